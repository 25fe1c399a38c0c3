//! Captures frames with tcpdump and dissects them with tshark.

use super::program::{Running, command, run};
use crate::common::{GUEST_DEVICE, Guest, Host, PATIENCE};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};
use testkit::host::{TestHost, wait_until};

/// A capture is complete when its file has not grown for this time.
const QUIET: Duration = Duration::from_millis(300);

/// A running capture on a device.
pub struct Capture {
    tcpdump: Running,
    file: PathBuf,
}

impl Capture {
    /// Starts a capture on the uplink of a host, in both directions, and waits until it runs.
    pub fn start(host: &Host, directory: &Path, name: &str) -> Self {
        Self::start_on(&host.netns, &["-i", &host.uplink.name], directory, name)
    }

    /// Starts a capture of the frames that a guest receives, and waits until it runs.
    pub fn of_guest(guest: &Guest, directory: &Path, name: &str) -> Self {
        Self::start_on(&guest.netns, &["-i", GUEST_DEVICE, "-Q", "in"], directory, name)
    }

    fn start_on(netns: &TestHost, of: &[&str], directory: &Path, name: &str) -> Self {
        let file = directory.join(name).with_extension("pcap");
        let mut tcpdump = command("tcpdump");
        // By default tcpdump drops its privileges to a user that cannot write to this directory.
        tcpdump.args(["--immediate-mode", "-U", "-n", "-Z", "root", "-B", "16384"]);
        tcpdump.args(of).arg("-w").arg(&file);
        let tcpdump = Running::start("tcpdump", netns.command(tcpdump), directory);
        wait_until(PATIENCE, "tcpdump listens", || tcpdump.output().contains("listening on"));
        Self { tcpdump, file }
    }

    /// Ends the capture when all frames are in the file. Returns the path of the file.
    ///
    /// # Panics
    /// Frames are missing.
    pub fn stop(self) -> PathBuf {
        let len = || std::fs::metadata(&self.file).map_or(0, |file| file.len());
        let deadline = Instant::now() + PATIENCE;
        let mut last = len();
        loop {
            thread::sleep(QUIET);
            let now = len();
            if now == last || Instant::now() > deadline {
                break;
            }
            last = now;
        }
        let output = self.tcpdump.stop();
        assert!(
            output.contains("\n0 packets dropped by kernel"),
            "the capture has gaps:\n{output}"
        );
        self.file
    }
}

/// Two captures that were joined to one file.
pub struct Joined {
    /// The path of the file.
    pub file: PathBuf,
    /// The number of frames from the first capture.
    pub first_len: usize,
}

impl Joined {
    /// Appends `second` to a copy of `first`.
    pub fn new(first: &Path, second: &Path) -> Self {
        // The pcap format of tcpdump: one file header, which is the same in both captures, and one
        // header for each frame.
        const FILE_HEADER: usize = 24;
        const FRAME_HEADER: usize = 16;
        let [mut bytes, more] =
            [first, second].map(|path| std::fs::read(path).expect("a capture can be read"));
        let (mut first_len, mut at) = (0, FILE_HEADER);
        while let Some(header) = bytes.get(at..at + FRAME_HEADER) {
            let len = header[8..12].try_into().expect("four bytes");
            at += FRAME_HEADER + u32::from_ne_bytes(len) as usize;
            first_len += 1;
        }
        assert_eq!((at, &bytes[..FILE_HEADER]), (bytes.len(), &more[..FILE_HEADER]));
        bytes.extend_from_slice(&more[FILE_HEADER..]);
        let file = first.with_extension("joined.pcap");
        std::fs::write(&file, bytes).expect("a capture can be written");
        Self { file, first_len }
    }
}

/// The dissection of one frame: all values of each requested field.
pub type Row = Vec<Vec<String>>;

/// The only protocols that tshark may dissect. Otherwise it would interpret the random data of TCP
/// streams as the protocols of the port numbers, and report errors.
const PROTOCOLS: &[&str] = &[
    "arp",
    "data",
    "eth",
    "ethertype",
    "frame",
    "geneve",
    "gre",
    "icmp",
    "icmpv6",
    "ieee8021ad",
    "ip",
    "ipv6",
    "ipv6.hopopts",
    "stt",
    "tcp",
    "udp",
    "vlan",
    "vxlan",
];

/// Dissects the frames of `file` that `filter` selects (all, if it is empty) and returns the
/// `fields` of each. `options` are command line options of tshark; the user's configuration is not
/// read.
pub fn dissect(file: &Path, options: &[&str], filter: &str, fields: &[&str]) -> Vec<Row> {
    let directory = file.parent().expect("a capture is in a directory");
    let mut tshark = command("tshark");
    tshark.env("WIRESHARK_CONFIG_DIR", configuration(directory));
    tshark.arg("-r").arg(file).args(["-n", "-T", "fields"]);
    tshark.args(["-E", "separator=/t", "-E", "occurrence=a", "-E", "aggregator=|"]);
    tshark.args(options);
    if !filter.is_empty() {
        tshark.args(["-Y", filter]);
    }
    for field in fields {
        tshark.args(["-e", field]);
    }
    let values = |cell: &str| match cell {
        "" => Vec::new(),
        cell => cell.split('|').map(str::to_owned).collect(),
    };
    let row = |line: &str| line.split('\t').map(values).collect();
    run(tshark, b"").lines().map(row).collect()
}

/// Creates a configuration directory that disables all protocols of tshark except [`PROTOCOLS`].
fn configuration(parent: &Path) -> PathBuf {
    static OTHERS: OnceLock<String> = OnceLock::new();
    let directory = parent.join("tshark");
    let disabled = directory.join("disabled_protos");
    if !disabled.exists() {
        std::fs::create_dir_all(&directory).expect("a directory can be made");
        let others = OTHERS.get_or_init(|| other_protocols(&directory));
        std::fs::write(&disabled, others).expect("a file can be written");
    }
    directory
}

/// The protocols of tshark that are not in [`PROTOCOLS`], one per line.
fn other_protocols(directory: &Path) -> String {
    let mut tshark = command("tshark");
    tshark.env("WIRESHARK_CONFIG_DIR", directory).args(["-G", "protocols"]);
    // The columns are the full name, the short name, and the name in filters.
    let all = run(tshark, b"");
    let names = all.lines().filter_map(|line| line.split('\t').nth(2));
    let others: Vec<_> = names.filter(|name| !PROTOCOLS.contains(name)).collect();
    others.join("\n") + "\n"
}
