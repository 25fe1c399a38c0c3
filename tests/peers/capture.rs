//! Captures of the wire by tcpdump, read by tshark: an independent opinion on every frame.

use super::program::{Running, command, run};
use crate::common::{Host, PATIENCE};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use testkit::host::wait_until;

/// A capture has taken all frames when it has not grown for so long.
const QUIET: Duration = Duration::from_millis(300);

/// A running capture of a host's end of the wire, both directions.
pub struct Capture {
    tcpdump: Running,
    file: PathBuf,
}

impl Capture {
    /// Starts it; returns when frames are being captured.
    pub fn start(host: &Host, directory: &Path, name: &str) -> Self {
        let file = directory.join(name).with_extension("pcap");
        let mut tcpdump = command("tcpdump");
        // As root to the end: by default it changes to a user of its own, who may not write here.
        tcpdump.args(["--immediate-mode", "-U", "-n", "-Z", "root", "-B", "16384"]);
        tcpdump.arg("-i").arg(&host.uplink.name).arg("-w").arg(&file);
        let tcpdump = Running::start("tcpdump", host.netns.command(tcpdump), directory);
        wait_until(PATIENCE, "tcpdump listens", || tcpdump.output().contains("listening on"));
        Self { tcpdump, file }
    }

    /// Ends it once all frames are in the file, and returns that.
    ///
    /// # Panics
    /// When frames are missing.
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
        let said = self.tcpdump.stop();
        assert!(said.contains("\n0 packets dropped by kernel"), "the capture has gaps:\n{said}");
        self.file
    }
}

/// The dissection of one frame: for each field that was asked for, all its values.
pub type Row = Vec<Vec<String>>;

/// Dissects the frames of `file` that `filter` selects (all, if it is empty) and returns the `fields` of each.
/// `options` are tshark's; none comes from the configuration of whoever runs this.
pub fn dissect(file: &Path, options: &[&str], filter: &str, fields: &[&str]) -> Vec<Row> {
    let mut tshark = command("tshark");
    let configuration = file.parent().expect("a capture is in a directory");
    tshark.env("WIRESHARK_CONFIG_DIR", configuration);
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
