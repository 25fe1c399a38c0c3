//! Tests restarts of a daemon with the kernel datapath. After a kill or `weft stop`, the eBPF
//! programs keep forwarding cached flows. The next daemon adopts and revalidates them. `weft stop
//! --purge` removes everything.

mod absent;
mod flows;
mod second;
mod self_check;

use crate::common::daemon::{MEGAFLOWS, WEFT};
use crate::common::{Daemon, GUEST_DEVICE, Lab, PATIENCE, Setup, traffic};
use flows::{Flows, Streams};
use libbpf_rs::query::LinkInfoIter;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use nix::sys::signal::Signal;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testkit::host::wait_until;
use testkit::require_root;
use wire::MacAddr;

/// A lab whose daemons pin their state in a separate BPF file system.
struct Pinning {
    lab: Lab,
    bpf_fs: PathBuf,
    /// Additional options for `weft run`.
    options: &'static [&'static str],
}

impl Pinning {
    fn new(setup: Setup) -> Self {
        let lab = Lab::new(setup);
        let bpf_fs = lab.dir.path().join("bpf");
        fs::create_dir(&bpf_fs).expect("a directory can be made");
        // The neighbours are permanent, because nobody would respond to ARP requests without a
        // daemon.
        let (a, b) = lab.ends();
        for (guest, other) in [(a, b), (b, a)] {
            let (ip, mac) = (other.ip4.to_string(), other.mac.to_string());
            let script = format!("ip neigh replace {ip} lladdr {mac} dev eth0 nud permanent");
            fs::write(lab.dir.path().join(format!("{}.sh", guest.name)), script).expect("a file");
        }
        Self { lab, bpf_fs, options: &[] }
    }

    fn spawn(&self, host: usize, more: &[&str]) -> Daemon {
        let bpf_fs = self.bpf_fs.to_str().expect("a path");
        let options = [&["--datapath", "kernel", "--bpf-fs", bpf_fs], self.options, more].concat();
        let (host, control) = (&self.lab.hosts[host], self.lab.control(host));
        Daemon::spawn(host, &self.lab.network_file(), &control, &options)
    }

    fn start(&self, host: usize) -> Daemon {
        let daemon = self.spawn(host, &[]);
        daemon.wait_ready();
        daemon
    }

    fn start_both(&self) -> [Daemon; 2] {
        let daemons = [0, 1].map(|host| self.start(host));
        let (a, b) = self.lab.ends();
        for guest in [a, b] {
            let script = self.lab.dir.path().join(format!("{}.sh", guest.name));
            let done = guest.netns.program("sh").arg(script).status();
            assert!(done.expect("sh can be started").success(), "a neighbour can be set");
        }
        daemons
    }

    /// The files that both hosts have pinned.
    fn pinned(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.bpf_fs.join("weft")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if is_folder { &mut folders } else { &mut found }.push(entry.path());
            }
        }
        found
    }

    /// The IDs of the pinned BPF links.
    fn links(&self) -> Vec<u32> {
        let pinned = self.pinned();
        let links =
            pinned.iter().filter(|path| path.parent().is_some_and(|p| p.ends_with("links")));
        let id = |path: &PathBuf| Link::open(path).expect("a link").info().expect("its state").id;
        links.map(id).collect()
    }

    /// Runs `weft stop` for a host. Returns its output.
    fn stop(&self, host: usize, options: &[&str]) -> String {
        let mut command = self.lab.hosts[host].netns.program(WEFT);
        command.args(["stop", "--control"]).arg(self.lab.control(host));
        let output = command.args(options).output().expect("weft can be started");
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stdout}{errors}");
        stdout
    }

    fn purge(&self, host: usize) -> String {
        self.stop(host, &["--purge", "--bpf-fs", self.bpf_fs.to_str().expect("a path")])
    }

    /// Starts a command that watches the daemon of a host (such as a capture), and runs until it is
    /// killed.
    fn watch(&self, host: usize, command: &[&str]) -> Child {
        let mut watcher = Command::new(WEFT);
        watcher.args(command).arg("--control").arg(self.lab.control(host));
        watcher.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("weft can be started")
    }

    /// The devices in the namespace of a host that weft has created.
    fn devices(&self, host: usize) -> Vec<String> {
        let links = self.lab.hosts[host].netns.netlink().links().expect("the links");
        links.into_iter().map(|link| link.name).filter(|name| name.starts_with("weft")).collect()
    }

    fn show(&self, host: usize) -> String {
        let mut command = Command::new(WEFT);
        command.args(["show", "--control"]).arg(self.lab.control(host));
        let output = command.output().expect("weft can be started");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Pinning {
    fn drop(&mut self) {
        for host in [0, 1] {
            if !self.pinned().is_empty() {
                let mut command = self.lab.hosts[host].netns.program(WEFT);
                command.args(["stop", "--purge", "--control", "/nonexistent", "--bpf-fs"]);
                let _ = command.arg(&self.bpf_fs).output();
            }
        }
        let _ = Command::new("umount").arg("--lazy").arg(&self.bpf_fs).status();
    }
}

fn kill(mut daemon: Daemon) {
    daemon.signal(Signal::SIGKILL);
    daemon.wait_end(PATIENCE);
}

fn is_loaded(links: &[u32]) -> bool {
    LinkInfoIter::default().any(|link| links.contains(&link.id))
}

#[test]
fn no_packet_of_an_established_flow_is_lost_when_a_daemon_is_killed_and_started_again() {
    require_root!();
    let mut pinning = Pinning::new(Setup::new("vxlan").more(&flows::policy()));
    pinning.options = flows::LIMIT;
    let [first, second] = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    let streams = Streams::start(a, b);
    let [there, back] = [Flows::start(a, b), Flows::start(b, a)];
    for flows in [&there, &back] {
        flows.wait_established();
    }
    wait_until(PATIENCE, "programs serve all flows", || {
        [&first, &second].iter().all(|daemon| daemon.show().megaflows.megaflows >= flows::COUNT)
    });
    let before = [there.counts(), back.counts()];
    let retransmitted =
        || [a, b].map(|guest| flows::retransmitted(&guest.netns)).iter().sum::<u64>();
    let had_retransmitted = retransmitted();
    kill(first);
    std::thread::sleep(Duration::from_secs(3));
    let dead = [there.since(&before[0]), back.since(&before[1])];
    let first = pinning.start(0);
    std::thread::sleep(Duration::from_secs(3));
    let log = first.stderr();
    let totals = [there.stop(&before[0]), back.stop(&before[1])];
    let retransmitted = retransmitted() - had_retransmitted;
    println!("3 s without a daemon: {dead:?}");
    println!("and 3 s after the next daemon has started: {totals:?}");
    println!("{} bytes of 8 TCP streams, {retransmitted} segments retransmitted", streams.stop());
    let lines = log.lines().filter(|line| line.contains("adopted the megaflows"));
    lines.for_each(|line| println!("{line}"));
    assert!(log.contains("adopted the megaflows"), "{log}");
    for counts in totals {
        assert_eq!(counts.lost, counts.overflowed, "{counts:?}");
    }
    first.stop();
    second.stop();
    assert_eq!(pinning.pinned(), Vec::<PathBuf>::new());
}

#[test]
fn purge_removes_everything_after_a_daemon_was_killed() {
    require_root!();
    let pinning = Pinning::new(Setup::new("vxlan"));
    let [first, second] = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    traffic::udp_echo(a, b, 4, 100);
    let links = pinning.links();
    assert_eq!((links.len(), is_loaded(&links)), (4, true), "a port and the uplink of each host");
    kill(first);
    kill(second);
    assert!(is_loaded(&links) && !pinning.pinned().is_empty());
    for host in [0, 1] {
        let saved = pinning.lab.control(host).with_extension("sock.connections");
        assert!(!pinning.devices(host).is_empty() && saved.exists());
        let output = pinning.purge(host);
        assert!(!saved.exists());
        assert!(
            output.contains("programs at 2 devices") && output.contains("1 guest devices"),
            "{output}"
        );
        assert!(output.contains("files of saved connections: 1\n"), "{output}");
        assert_eq!(pinning.devices(host), Vec::<String>::new());
    }
    assert_eq!(pinning.pinned(), Vec::<PathBuf>::new());
    assert!(!pinning.bpf_fs.join("weft").exists());
    wait_until(PATIENCE, "the links are gone", || !is_loaded(&links));
    assert_eq!(pinning.purge(0), "nothing to remove\n");
}

/// While a port is watched, the eBPF programs pass its packets to the daemon. When the daemon is
/// killed, the programs must forward them again.
#[test]
fn cached_flows_keep_forwarding_when_a_watched_daemon_is_killed() {
    require_root!();
    let pinning = Pinning::new(Setup::new("vxlan"));
    let [first, second] = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    let (near, far) = (traffic::udp_socket(a, 4), traffic::udp_socket(b, 4));
    let cross = |text: &[u8]| {
        for (from, to) in [(&near, &far), (&far, &near)] {
            from.send_to(text, to.local_addr().expect("an address")).expect("a datagram is sent");
            let mut bytes = [0; 100];
            let len = to.recv(&mut bytes).expect("it arrives");
            assert_eq!(&bytes[..len], text);
        }
    };
    cross(b"unwatched");
    let file = pinning.lab.dir.path().join("watched.pcap");
    let mut watchers = [
        pinning.watch(0, &["capture", &a.name, "-w", file.to_str().expect("a path")]),
        pinning.watch(0, &["monitor", "--drops"]),
    ];
    // The capture shows a packet only when the programs already pass them to the daemon.
    wait_until(PATIENCE, "the port is watched", || {
        cross(b"watched");
        fs::read(&file).is_ok_and(|seen| seen.windows(7).any(|part| part == b"watched"))
    });
    kill(first);
    cross(b"without a daemon");
    for watcher in &mut watchers {
        let _ = watcher.kill();
        watcher.wait().expect("it ends");
    }
    second.stop();
}

#[test]
fn adopted_flow_is_dropped_when_the_new_network_file_denies_it() {
    require_root!();
    let mut pinning = Pinning::new(Setup::new("vxlan"));
    let [first, second] = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    let senders = [9, 10].map(|port| (port, traffic::udp_socket(a, 4)));
    let to = b.ip4;
    let receivers = [9, 10].map(|port| {
        let socket = b.netns.run(|| UdpSocket::bind((to, port))).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a limit");
        socket
    });
    let send = |count: u32| {
        for (port, socket) in (0..count).flat_map(|_| &senders) {
            socket.send_to(&[7; 100], (to, *port)).expect("a datagram is sent");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let receive = || {
        receivers.each_ref().map(|socket| {
            let mut bytes = [0; 200];
            std::iter::from_fn(|| socket.recv(&mut bytes).ok()).count() as u32
        })
    };
    send(100);
    assert_eq!(receive(), [100, 100]);
    kill(first);
    send(100);
    assert_eq!(receive(), [100, 100], "without a daemon");
    pinning.lab.change_setup(|setup| {
        setup.more(
            "[[acl]]\nswitch = \"blue\"\ndirection = \"from-port\"\npriority = 1000\nmatch = \
         'udp.dst == 9'\naction = \"drop\"\n",
        )
    });
    let first = pinning.start(0);
    first.wait_says("adopted the megaflows");
    send(100);
    assert_eq!(receive(), [0, 100], "{}", pinning.show(0));
    let dropped = first.show().ports[0].drops.get("flow_drop").copied();
    assert_eq!(dropped, Some(100), "{}", pinning.show(0));
    first.stop();
    second.stop();
}

#[test]
fn vxlan_device_is_removed_when_the_next_daemon_does_not_use_vxlan() {
    require_root!();
    let pinning = Pinning::new(Setup::new("vxlan"));
    let has_port = || pinning.devices(0).iter().any(|name| name == "weft-gro");
    kill(pinning.start(0));
    assert!(has_port(), "{:?}", pinning.devices(0));
    kill(pinning.start(0));
    assert!(has_port(), "{:?}", pinning.devices(0));
    let file = pinning.lab.network_file();
    let text = fs::read_to_string(&file).expect("the network file");
    fs::write(&file, text.replace("vxlan", "geneve")).expect("the network file");
    let daemon = pinning.start(0);
    assert!(!has_port(), "{:?}", pinning.devices(0));
    daemon.stop();
}

#[test]
fn lost_megaflows_are_reported_when_the_map_layout_differs() {
    require_root!();
    let pinning = Pinning::new(Setup::new("vxlan"));
    let [first, second] = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    traffic::udp_echo(a, b, 4, 100);
    // The daemon writes the number of megaflows to its pinned state periodically.
    std::thread::sleep(Duration::from_secs(1));
    let before = pinning.pinned();
    kill(first);
    let host = before.iter().filter(|path| path.ends_with("state"));
    for state in host {
        fake_layout(state);
    }
    let first = pinning.start(0);
    let shown = pinning.show(0);
    assert!(
        shown.contains("were lost: another version of weft used another map layout"),
        "{shown}"
    );
    first.wait_says("megaflows of another version of weft are lost");
    traffic::udp_echo(a, b, 4, 100);
    first.stop();
    second.stop();
}

#[test]
fn missed_packets_are_counted_once_over_two_restarts() {
    const SENT: u64 = 20;
    require_root!();
    let pinning = Pinning::new(Setup::new("vxlan"));
    let [mut first, second] = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    traffic::udp_echo(a, b, 4, 100);
    // No packet was sent to these addresses before, so they have no megaflow.
    let send = || {
        let netlink = a.netns.netlink();
        let device = netlink.index_of(GUEST_DEVICE).expect("the guest's interface");
        let own = a.ip4;
        let socket = a.netns.run(|| UdpSocket::bind((own, 0))).expect("a UDP socket");
        let [x, y, z, _] = own.octets();
        for number in 0..SENT as u8 {
            let nobody = Ipv4Addr::new(x, y, z, 100 + number);
            let mac = MacAddr([2, 0, 0, 0, 0x77, number]);
            netlink.set_neighbour(device, nobody.into(), mac).expect("a neighbour can be set");
            socket.send_to(b"anybody?", (nobody, 9)).expect("a datagram is sent");
        }
    };
    for is_sent in [true, false] {
        kill(first);
        if is_sent {
            send();
        }
        first = pinning.start(0);
        let shown = pinning.show(0);
        let line = shown.lines().find(|line| line.contains("packets missed")).expect("a line");
        let missed =
            line.split_once(" packets missed").and_then(|(line, _)| line.rsplit(' ').next());
        let missed: u64 = missed.and_then(|number| number.parse().ok()).expect("a number");
        // Guests send router solicitations by themselves, so a few more packets may be counted.
        assert_eq!(missed >= SENT, is_sent, "{shown}");
        let counted = first.show().ports[0].drops.get("no_daemon").copied().unwrap_or_default();
        assert_eq!(counted >= SENT, is_sent, "{shown}");
    }
    first.stop();
    second.stop();
}

fn fake_layout(state: &Path) {
    let map = MapHandle::from_pinned_path(state).expect("a map");
    let first = 0_u32.to_ne_bytes();
    let mut value = map.lookup(&first, MapFlags::ANY).expect("readable").expect("there");
    value[0] ^= 1;
    map.update(&first, &value, MapFlags::ANY).expect("writable");
}

/// Checks that a daemon with another control socket does not replace the running one.
fn second_daemon_is_refused(pinning: &Pinning, running: &Daemon) {
    let (host, bpf_fs) = (&pinning.lab.hosts[0], pinning.bpf_fs.to_str().expect("a path"));
    let control = pinning.lab.dir.path().join("other.sock");
    let options = ["--datapath", "kernel", "--bpf-fs", bpf_fs];
    let mut second = Daemon::spawn(host, &pinning.lab.network_file(), &control, &options);
    assert_eq!(second.wait_end(PATIENCE).code(), Some(1), "{}", second.stderr());
    let owner = format!("another weft (process {})", running.pid());
    assert!(second.stderr().contains(&owner), "{}", second.stderr());
    assert_eq!(running.show().pid, running.pid(), "the first daemon still answers");
}

#[test]
fn stop_reports_what_keeps_forwarding_and_the_next_daemon_adopts_it() {
    require_root!();
    let pinning = Pinning::new(Setup::new("geneve"));
    let [mut first, second] = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    traffic::udp_echo(a, b, 4, 100);
    let near = traffic::udp_socket(a, 4);
    let far = traffic::udp_socket(b, 4);
    let send = |text: &[u8]| {
        near.send_to(text, far.local_addr().expect("an address")).expect("a datagram is sent");
        let mut bytes = [0; 100];
        let len = far.recv(&mut bytes).expect("it arrives");
        assert_eq!(&bytes[..len], text);
    };
    send(b"with a daemon");
    let output = pinning.stop(0, &[]);
    assert!(output.contains("the kernel keeps forwarding"), "{output}");
    assert!(first.wait_end(PATIENCE).success());
    send(b"without a daemon");
    let first = pinning.start(0);
    first.wait_says("adopted the megaflows");
    send(b"with another daemon");
    second_daemon_is_refused(&pinning, &first);
    send(b"beside a refused daemon");
    first.stop();
    let output =
        pinning.stop(1, &["--purge", "--bpf-fs", pinning.bpf_fs.to_str().expect("a path")]);
    assert!(output.contains("the switch of h2 has stopped"), "{output}");
    let mut attached = pinning.lab.control(1).into_os_string();
    attached.push(".ports");
    assert!(!Path::new(&attached).exists(), "the directory of attached devices stays");
    drop(second);
    assert_eq!(pinning.pinned(), Vec::<PathBuf>::new(), "nothing stays");
    assert_eq!(pinning.devices(0), Vec::<String>::new());
    assert_eq!(pinning.devices(1), Vec::<String>::new());
}

#[test]
fn stop_claims_no_forwarding_when_the_pins_may_end_with_the_daemon() {
    require_root!();
    // Without CAP_SYS_PTRACE, the daemon cannot look into the mount namespace of process 1.
    for limit in [&[][..], &["setpriv", "--bounding-set", "-sys_ptrace"]] {
        stop_in_a_mount_namespace(limit);
    }
}

/// Runs a daemon in a mount namespace of its own, with `limit` before its command, and stops it.
fn stop_in_a_mount_namespace(limit: &[&str]) {
    let pinning = Pinning::new(Setup::new("geneve"));
    let lab = &pinning.lab;
    let mut command = lab.hosts[0].netns.program("unshare");
    command.args(["--mount", "--propagation", "private"]).args(limit);
    command.args([WEFT, "run", "--host", "h1"]);
    command.args(["--datapath", "kernel", "--bpf-fs"]).arg(&pinning.bpf_fs).args(MEGAFLOWS);
    command.arg("--control").arg(lab.control(0)).arg(lab.network_file());
    let mut daemon = command.stderr(Stdio::null()).spawn().expect("unshare can be started");
    wait_until(PATIENCE, "the port is up", || {
        pinning.show(0).lines().any(|line| line.starts_with("port") && line.ends_with("up"))
    });
    let output = pinning.stop(0, &[]);
    let status = daemon.wait().expect("a child can be waited for");
    assert!(status.success(), "{status}");
    assert!(output.contains("may have ended with the daemon"), "{output}");
    assert!(!output.contains("keeps forwarding"), "{output}");
    assert_eq!(pinning.pinned(), Vec::<PathBuf>::new(), "they have ended");
    pinning.purge(0);
}
