//! Tests of `weft reload`.

use super::call::{weft, weft_json};
use crate::common::daemon::reply;
use crate::common::{Daemon, Datapath, GUEST_DEVICE, Lab, PATIENCE, Setup, traffic};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::host::wait_until;
use testkit::{report, require_root};

fn descriptors(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("a process").count()
}

fn resident_kb(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a field");
    line.trim().trim_end_matches(" kB").parse().expect("a number of kB")
}

/// The network file of the lab with additions: a host, a logical switch with a port on h1, another
/// port at the end of `blue`, and an ACL.
fn changed(lab: &Lab) -> PathBuf {
    let text = fs::read_to_string(lab.network_file()).expect("the network file");
    let underlay = u32::from(lab.hosts[0].uplink.ip4) & !0xff;
    let far = std::net::Ipv4Addr::from(underlay + 77);
    let text = text
        + &format!(
            r#"
[[logical_switch.port]]
name = "far"
host = "h3"
mac = "02:00:00:00:00:77"
device = {{ tap = "far" }}
[[host]]
name = "h3"
uplink = "eth0"
underlay = ["{far}"]
[[logical_switch]]
name = "green"
vni = 77
[[logical_switch.port]]
name = "more"
host = "h1"
mac = "02:00:00:00:00:78"
device = {{ tap = "more0" }}
[[acl]]
switch = "blue"
direction = "to-port"
priority = 10
match = "udp.dst == 7"
action = "drop"
"#
        );
    let file = lab.dir.path().join("changed.toml");
    fs::write(&file, text).expect("a file can be written");
    file
}

/// The output of `weft diff` for host h1, from the network file of the lab to `new`.
fn diff(lab: &Lab, new: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["diff", "--json", "--host", "h1"]).arg(lab.network_file()).arg(new);
    let output = command.output().expect("weft starts");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(output.status.success(), "{report}");
    report["hosts"][0].clone()
}

#[test]
fn no_packet_is_lost_when_the_network_is_reloaded_fifty_times() {
    require_root!();
    /// The interval between packets. It is realistic for a guest, and short enough to send packets
    /// during every reload.
    const PAUSE: Duration = Duration::from_micros(500);
    let lab = Lab::new(Setup::new("geneve"));
    let daemons = lab.start_both();
    let (a, b) = lab.ends();
    traffic::ping(&a.netns, b.ip(4));
    let before = daemons.each_ref().map(Daemon::drops);
    let files = [changed(&lab), lab.network_file()];
    let controls = [lab.control(0), lab.control(1)];
    let (near, far) = (traffic::udp_socket(a, 4), traffic::udp_socket(b, 4));
    let to = far.local_addr().expect("an address");
    let (sent, received) = std::thread::scope(|scope| {
        let reloading = scope.spawn(|| {
            for (round, file) in (0..50).zip(files.iter().cycle()) {
                let request = json!({ "command": "reload", "network": file }).to_string();
                for control in &controls {
                    let report = reply(control, &request);
                    assert_eq!(report["generation"], round + 2, "{report}");
                    assert_eq!(report["ports"]["changed"], json!([]));
                    assert!(report["ports"]["kept"].as_u64() > Some(0), "{report}");
                }
            }
        });
        let receiving = scope.spawn(|| {
            let mut received = Vec::new();
            let mut bytes = [0; 8];
            while let Ok((8, _)) = far.recv_from(&mut bytes) {
                match u64::from_be_bytes(bytes) {
                    u64::MAX => break,
                    number => received.push(number),
                }
            }
            received
        });
        let mut sent = 0_u64;
        while !reloading.is_finished() {
            near.send_to(&sent.to_be_bytes(), to).expect("a datagram is sent");
            sent += 1;
            std::thread::sleep(PAUSE);
        }
        reloading.join().expect("every reload succeeds");
        near.send_to(&u64::MAX.to_be_bytes(), to).expect("a datagram is sent");
        (sent, receiving.join().expect("it only receives"))
    });
    println!("{sent} packets through 50 reloads of two hosts");
    let lost: Vec<_> = (0..sent).filter(|number| !received.contains(number)).take(20).collect();
    assert_eq!((received.len() as u64, lost), (sent, vec![]), "packets are lost or doubled");
    let after = daemons.each_ref().map(|daemon| {
        let mut drops = daemon.drops();
        // The port `more` may have sent packets while it was removed.
        drops.remove("no_such_port");
        drops
    });
    assert_eq!(after, before);
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn nothing_leaks_when_the_network_is_reloaded_hundreds_of_times() {
    require_root!();
    /// A growth of 5 kB for each reload would be a leak.
    const GROWTH_KB: usize = 5;
    // In 2,000 reloads with the user datapath, free memory between allocations grew by up to 2.4
    // MB, faster at the beginning. These reloads are fast, so the test does enough of them to
    // distinguish this growth from a leak.
    let user = Datapath::from_environment() == Some(Datapath::User);
    let (first, counted) = if user { (200, 600) } else { (100, 200) };
    let lab = Lab::new(Setup::new("geneve"));
    let daemon = lab.start(0);
    let links = || {
        let links = lab.hosts[0].netns.netlink().links().expect("the links");
        links.into_iter().map(|link| link.name).collect::<Vec<_>>()
    };
    let files = [changed(&lab), lab.network_file()];
    let reload = |times: usize| {
        for file in files.iter().cycle().take(times) {
            let mut stream = UnixStream::connect(lab.control(0)).expect("the daemon listens");
            let request = json!({ "command": "reload", "network": file });
            writeln!(stream, "{request}").expect("a request can be sent");
            let mut reply = String::new();
            stream.read_to_string(&mut reply).expect("an answer");
            assert!(reply.starts_with("{\"ok\""), "{reply}");
        }
    };
    let before = links();
    reload(first);
    let now = || (descriptors(&daemon), links());
    let (kb, open) = (resident_kb(&daemon), now());
    assert_eq!(open.1, before, "devices are left behind");
    let started = Instant::now();
    reload(counted);
    let after = resident_kb(&daemon);
    println!("{counted} reloads in {:?}: {kb} kB before, {after} kB after", started.elapsed());
    // The thread of the last control client may still be running.
    wait_until(PATIENCE, "descriptors and devices are as before", || now() == open);
    let limit = kb + (GROWTH_KB * counted) as u64;
    assert!(after < limit, "{kb} kB before, {after} kB after");
    daemon.stop();
}

#[test]
fn nothing_changes_when_a_network_cannot_be_applied() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    let daemons = lab.start_both();
    let (a, b) = lab.ends();
    traffic::ping(&a.netns, b.ip(4));
    let control = &lab.control(0);
    let text = fs::read_to_string(lab.network_file()).expect("the network file");
    let own = lab.hosts[0].uplink.ip4.to_string();
    let file = lab.dir.path().join("other.toml");
    let path = file.to_str().expect("a path of ASCII");
    let cases = [
        ("vni = 5001", "vnii = 5001", "did you mean `vni`"),
        ("uplink = \"eth0\"", "uplink = \"eth7\"", "the uplink of h1 is eth0, but eth7"),
        (&format!("\"{own}\""), "\"192.0.2.77\"", "but 192.0.2.77 in the file; a running switch"),
        ("\"h1\"", "\"h9\"", "no host \"h1\": use one of h9, h2"),
    ];
    let ports = |of: &Daemon| of.show().ports.into_iter().map(|port| port.port).collect::<Vec<_>>();
    let before = ports(&daemons[0]);
    for (from, to, fault) in cases {
        assert!(text.contains(from), "{from}");
        fs::write(&file, text.replace(from, to)).expect("a file can be written");
        let (code, out, stderr) = weft(control, &["reload", path]);
        assert!(stderr.contains(fault), "{to}: {stderr}");
        assert_eq!((code, &*out), (2, ""), "{to}: {stderr}");
        assert_eq!(ports(&daemons[0]), before);
    }
    // A UDP port that is in use is detected only when weft opens it. The running configuration must
    // stay.
    let taken = std::net::UdpSocket::bind;
    let address = (lab.hosts[0].underlay(4), 4790);
    let _taken = lab.hosts[0].netns.run(|| taken(address)).expect("a UDP socket");
    let other = text.replace("[tunnel_options.vxlan]", "[tunnel_options.vxlan]\nudp_port = 4790");
    fs::write(&file, other).expect("a file can be written");
    let (code, _, stderr) = weft(control, &["reload", path]);
    assert!(
        code == 1 && stderr.contains("configuration is unchanged") && stderr.contains("4790"),
        "{stderr}"
    );
    traffic::ping(&a.netns, b.ip(4));
    traffic::tcp(b, a, 4, 1 << 16);

    // The next reload succeeds, and SIGHUP makes the daemon read the original file again.
    let predicted = diff(&lab, &changed(&lab));
    let report = weft_json(control, &["reload", changed(&lab).to_str().expect("ASCII")]);
    assert_eq!(predicted["step"], "reload", "{predicted}");
    for what in ["ports", "endpoints"] {
        assert_eq!(predicted[what], report[what], "{what}");
    }
    assert_eq!(
        report["ports"],
        json!({ "added": ["more"], "changed": [], "removed": [], "kept": 1 })
    );
    assert_eq!(report["endpoints"]["kept"], 1);
    assert_eq!(report["datapaths"]["added"], json!(["green"]));
    assert_eq!(daemons[0].show().ports.len(), 2);
    daemons[0].signal(Signal::SIGHUP);
    wait_until(PATIENCE, "the port is gone again", || daemons[0].show().ports.len() == 1);
    traffic::ping(&a.netns, b.ip(4));
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn port_is_recreated_when_its_configuration_has_changed() {
    require_root!();
    let lab = Lab::new(Setup::new("stt"));
    let daemons = lab.start_both();
    let (a, b) = lab.ends();
    traffic::ping(&a.netns, b.ip(4));
    let text = fs::read_to_string(lab.network_file()).expect("the network file");
    let file = lab.dir.path().join("small.toml");
    let small = text.replace("name = \"blue\"", "name = \"blue\"\nmtu = 1280");
    fs::write(&file, small).expect("a file can be written");
    let predicted = diff(&lab, &file);
    for host in [0, 1] {
        let report = weft_json(&lab.control(host), &["reload", file.to_str().expect("ASCII")]);
        if host == 0 {
            assert_eq!(predicted["ports"], report["ports"]);
        }
        assert_eq!(report["ports"]["changed"].as_array().map(Vec::len), Some(1), "{report}");
        assert_eq!(report["endpoints"]["kept"], 1, "{report}");
        daemons[host].wait_ready();
    }
    let link = a.netns.netlink().link(GUEST_DEVICE).expect("the guest has its device");
    assert_eq!(link.mtu, 1280);
    traffic::ping(&a.netns, b.ip(4));
    traffic::tcp(a, b, 4, 1 << 20);
    daemons.into_iter().for_each(Daemon::stop);
}

/// A network file on a file system that never responds, like an NFS server that is down.
struct HungFile {
    folder: PathBuf,
    /// The kernel sends the file system's requests here, and nobody reads them.
    _requests: fs::File,
}

impl HungFile {
    /// `None`, after a record in the test report, when the kernel lacks FUSE.
    fn new(lab: &Lab) -> Option<Self> {
        let folder = lab.dir.path().join("hung");
        fs::create_dir(&folder).expect("a directory");
        let requests = match fs::File::options().read(true).write(true).open("/dev/fuse") {
            Ok(requests) => requests,
            Err(error) => {
                report::lacking("a file system that hangs", &format!("/dev/fuse: {error}"));
                return None;
            }
        };
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", requests.as_raw_fd());
        let flags = MsFlags::empty();
        mount(Some("fuse"), &folder, Some("fuse"), flags, Some(&*options)).expect("a mount");
        Some(Self { folder, _requests: requests })
    }

    fn path(&self) -> PathBuf {
        self.folder.join("network.toml")
    }
}

impl Drop for HungFile {
    fn drop(&mut self) {
        // Reads end with an error when `_requests` is closed.
        umount2(&self.folder, MntFlags::MNT_DETACH).expect("it is mounted");
    }
}

#[test]
fn reload_fails_and_the_switch_goes_on_when_the_file_is_a_pipe() {
    require_root!();
    for datapath in Datapath::BOTH {
        let lab = Lab::new(Setup::new("geneve").datapath(datapath));
        let daemons = lab.start_both();
        let (a, b) = lab.ends();
        let pipe = lab.dir.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe can be made");
        let (code, _, stderr) =
            weft(&lab.control(0), &["reload", pipe.to_str().expect("a path of ASCII")]);
        assert!(stderr.contains("it is a pipe (FIFO), not a regular file"), "{stderr}");
        assert_eq!(code, 2);
        let original = lab.dir.path().join("original.toml");
        fs::rename(lab.network_file(), &original).expect("a file can be renamed");
        fs::rename(&pipe, lab.network_file()).expect("a pipe can be renamed");
        daemons[0].signal(Signal::SIGHUP);
        daemons[0].wait_says("cannot reload after SIGHUP");
        daemons[0].wait_says("it is a pipe (FIFO), not a regular file");
        traffic::ping(&a.netns, b.ip(4));
        // The original file is back, so the next SIGHUP succeeds.
        fs::rename(original, lab.network_file()).expect("a file can be renamed");
        daemons[0].signal(Signal::SIGHUP);
        daemons[0].wait_says("generation=2");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn switch_goes_on_and_stops_when_the_file_system_of_the_network_hangs() {
    require_root!();
    let lab = Lab::new(Setup::new("geneve"));
    let Some(hung) = HungFile::new(&lab) else { return };
    let daemons = lab.start_both();
    let (a, b) = lab.ends();
    let (control, path) = (&lab.control(0), hung.path());
    let path = path.to_str().expect("a path of ASCII");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| weft(control, &["reload", path]));
        // Other reloads do not wait for the reload that hangs.
        let other = changed(&lab);
        let report = weft_json(control, &["reload", other.to_str().expect("ASCII")]);
        assert_eq!(report["generation"], 2, "{report}");
        traffic::ping(&a.netns, b.ip(4));
        let (code, _, stderr) = waiting.join().expect("it only runs a command");
        assert!(stderr.contains("its file system has not answered within 5 s"), "{stderr}");
        assert_eq!(code, 2);
    });
    fs::remove_file(lab.network_file()).expect("a file can be removed");
    symlink(path, lab.network_file()).expect("a link can be made");
    daemons[0].signal(Signal::SIGHUP);
    traffic::ping(&a.netns, b.ip(4));
    daemons.into_iter().for_each(Daemon::stop);
}
