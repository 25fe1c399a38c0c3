//! The commands that show, watch and change a running switch, as an operator calls them.

mod common;

use common::daemon::WEFT;
use common::frames::{FrameSocket, contains, frame, note};
use common::{Daemon, GUEST_DEVICE, Guest, Lab, PATIENCE, Setup, traffic};
use netdev::Route;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pcap_parser::PcapCapture;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use testkit::host::wait_until;
use testkit::require_root;
use wire::MacAddr;

/// Runs a command for a daemon: exit code, standard output, standard error.
fn weft(control: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(WEFT);
    let output = command.args(args).arg("--control").arg(control).output().expect("weft starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

/// The same for a command that succeeds and says one JSON object.
fn weft_json(control: &Path, args: &[&str]) -> Value {
    let (code, out, said) = weft(control, &[args, &["--json"]].concat());
    assert_eq!((code, &*said), (0, ""), "{args:?}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error}\n{out}"))
}

/// A command that goes on until it is ended, and the lines that it says.
struct Watch {
    child: Child,
    lines: Receiver<String>,
    stderr: Receiver<String>,
}

impl Watch {
    fn start(control: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(WEFT);
        command.args(args).arg("--control").arg(control);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("weft starts");
        let lines = lines_of(child.stdout.take().expect("a pipe"));
        let stderr = lines_of(child.stderr.take().expect("a pipe"));
        Self { child, lines, stderr }
    }

    /// A capture that has begun.
    fn capture(control: &Path, args: &[&str]) -> Self {
        let watch = Self::start(control, &[&["capture"], args].concat());
        let said = watch.stderr.recv_timeout(PATIENCE).expect("it says that it has begun");
        assert!(said.contains("Ctrl-C ends it"), "{said}");
        watch
    }

    /// Ends it as Ctrl-C does; returns its exit code and the rest of what it says.
    fn interrupt(mut self) -> (Option<i32>, String) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a process number"));
        kill(pid, Signal::SIGINT).expect("a child can be sent a signal");
        self.end()
    }

    /// Waits for its end.
    fn end(&mut self) -> (Option<i32>, String) {
        let mut status = None;
        wait_until(PATIENCE, "the command ends", || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        let said: Vec<String> = self.stderr.iter().collect();
        (status.and_then(|status| status.code()), said.join("\n"))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines_of(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(pipe).lines().map_while(Result::ok);
        lines.take_while(|line| sender.send(line.clone()).is_ok()).count()
    });
    receiver
}

/// Two logical switches with a guest each on another host, and a router between them.
struct Routed {
    lab: Lab,
    daemons: [Daemon; 2],
    /// The line of the access control list.
    acl_line: usize,
}

/// The router's port toward the first guest.
const GATEWAY_MAC: MacAddr = MacAddr([2, 0, 0, 0, 1, 1]);
const NEAR: [u8; 4] = [10, 0, 1, 10];
const FAR: [u8; 4] = [10, 0, 2, 10];

impl Routed {
    fn start() -> Self {
        let lab = Lab::new(Setup::new("geneve"));
        let text = routed_toml(&lab);
        let line = text.lines().position(|line| line == "[[acl]]").expect("an ACL");
        fs::write(lab.network_file(), text).expect("a file can be written");
        let daemons = lab.start_both();
        for (guest, gateway) in lab.guests.iter().zip([[10, 0, 1, 1], [10, 0, 2, 1]]) {
            let everywhere = "0.0.0.0/0".parse().expect("a prefix");
            let route = Route::via(everywhere, IpAddr::from(gateway));
            guest.netns.netlink().add_route(&route).expect("a route can be added");
        }
        Self { lab, daemons, acl_line: line + 1 }
    }

    fn near(&self) -> &Guest {
        &self.lab.guests[0]
    }

    /// One drop that `weft monitor` tells of on a host, `send` being called until it does.
    fn dropped(&self, host: usize, args: &[&str], mut send: impl FnMut()) -> Value {
        let args = [&["monitor", "--drops", "--json", "--count", "1"], args].concat();
        let mut watch = Watch::start(&self.lab.control(host), &args);
        let mut line = None;
        wait_until(PATIENCE, "the drop is told", || {
            send();
            line = watch.lines.recv_timeout(Duration::from_millis(20)).ok();
            line.is_some()
        });
        assert_eq!(watch.end(), (Some(0), String::new()));
        serde_json::from_str(&line.expect("a line")).expect("JSON")
    }
}

fn routed_toml(lab: &Lab) -> String {
    let hosts = lab.hosts.iter().map(|host| {
        let (name, uplink, address) = (host.name, &host.uplink.name, host.uplink.ip4);
        format!("[[host]]\nname = \"{name}\"\nuplink = \"{uplink}\"\nunderlay = [\"{address}\"]\n")
    });
    let mut text = format!("tunnel = \"geneve\"\n{}", hosts.collect::<String>());
    for (number, (guest, name)) in (1..).zip(lab.guests.iter().zip(["web", "db"])) {
        let (port, mac, host) = (&guest.name, guest.mac, lab.hosts[guest.host].name);
        let netns = guest.netns.name().expect("a name");
        text += &format!(
            "[[logical_switch]]\nname = \"{name}\"\nvni = {number}\n\
             [[logical_switch.port]]\nname = \"{port}\"\nhost = \"{host}\"\nmac = \"{mac}\"\n\
             addresses = [\"10.0.{number}.10/24\"]\nport_security = true\n\
             device = {{ tap = \"{GUEST_DEVICE}\", netns = \"{netns}\" }}\n"
        );
    }
    text += "[[logical_router]]\nname = \"core\"\n";
    for (number, switch) in [(1, "web"), (2, "db")] {
        text += &format!(
            "[[logical_router.port]]\nname = \"core-{switch}\"\nswitch = \"{switch}\"\n\
             mac = \"02:00:00:00:{number:02x}:01\"\naddresses = [\"10.0.{number}.1/24\"]\n"
        );
    }
    text + "[[acl]]\nswitch = \"db\"\ndirection = \"to-port\"\npriority = 1000\n\
            match = 'udp.dst == 53'\naction = \"drop\"\n"
}

#[test]
fn packets_are_routed_and_filtered_when_the_network_says_so() {
    require_root!();
    let routed = Routed::start();
    let (near, far) = (routed.near(), &routed.lab.guests[1]);
    let seen = FrameSocket::open(&far.netns, GUEST_DEVICE);
    traffic::ping(&near.netns, FAR.into());
    let is_request = |frame: &[u8]| frame[12..14] == [8, 0] && frame[23] == 1 && frame[34] == 8;
    let frames = seen.until("an echo request", is_request);
    assert_eq!(
        frames.last().map(|frame| frame[22]),
        Some(63),
        "the router has taken one off the TTL"
    );
    traffic::ping(&far.netns, NEAR.into());
    traffic::ping(&near.netns, [10, 0, 2, 1].into());

    // The access control list stands at the far end.
    let socket = traffic_socket(near);
    let dns = || {
        socket.send_to(b"?", (IpAddr::from(FAR), 53)).expect("a datagram is sent");
    };
    let told = routed.dropped(1, &["--reason", "flow_drop", "--port", "tunnel geneve"], dns);
    let place = format!("{}:{}", routed.lab.network_file().display(), routed.acl_line);
    assert_eq!(told["flow"]["source"], place, "{told}");
    assert_eq!(told["flow"]["stage"], "ls_out_acl");
    assert_eq!(told["flow"]["match"], "udp.dst == 53");
    let packet = told["packet"].as_str().expect("the headers");
    assert!(packet.contains("ip4_src=10.0.1.10") && packet.contains("tp_dst=53"), "{packet}");
    assert!(packet.contains("ip_ttl=63"), "it was routed: {packet}");

    // Port security stands where the guest is.
    let wire = FrameSocket::open(&near.netns, GUEST_DEVICE);
    let stranger = MacAddr([2, 0, 0, 0, 9, 9]);
    let forged = || wire.send(&note(GATEWAY_MAC, stranger, "forged"));
    let told = routed.dropped(0, &["--port", "g1"], forged);
    assert_eq!((&told["port"], &told["reason"]), (&json!("g1"), &json!("flow_drop")));
    assert_eq!(told["flow"]["stage"], "ls_in_apply_port_sec");

    // What has no headers that make sense is told, too.
    let broken = || wire.send(&frame(GATEWAY_MAC, near.mac, 0x0800, b"no IP"));
    let told = routed.dropped(0, &["--reason", "malformed"], broken);
    assert_eq!((&told["packet"], &told["flow"]), (&json!(""), &Value::Null));

    // A routed packet is one of the guest's, also where it is in the other switch's tunnel.
    let file = routed.lab.dir.path().join("routed.pcap");
    let path = file.to_str().expect("a path of ASCII");
    let args = ["g1", "--outer", "--count", "2", "-w", path];
    let mut capture = Watch::capture(&routed.lab.control(0), &args);
    traffic::ping(&near.netns, FAR.into());
    assert_eq!(capture.end().0, Some(0));
    for frame in frames_of(&file) {
        let there = contains(&frame, [NEAR, FAR].concat());
        let back = contains(&frame, [FAR, NEAR].concat());
        assert!(there != back, "both addresses, in one order");
    }
    routed.daemons.into_iter().for_each(Daemon::stop);
}

fn traffic_socket(guest: &Guest) -> std::net::UdpSocket {
    let bind = || std::net::UdpSocket::bind((IpAddr::from([0, 0, 0, 0]), 0));
    guest.netns.run(bind).expect("a UDP socket")
}

/// The frames of a capture file.
fn frames_of(file: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(file).expect("a capture file");
    let capture = PcapCapture::from_file(&bytes).expect("it is whole");
    assert!(capture.header.is_nanosecond_precision());
    capture.blocks.iter().map(|block| block.data.to_vec()).collect()
}

#[test]
fn tables_show_what_runs_when_asked() {
    require_root!();
    let routed = Routed::start();
    traffic::ping(&routed.near().netns, FAR.into());
    let control = &routed.lab.control(0);
    let ports = weft_json(control, &["ports"]);
    assert_eq!(ports[0]["name"], "g1");
    assert!(ports[0]["rx"]["packets"].as_u64() > Some(0), "{ports}");
    let (_, text, _) = weft(control, &["ports"]);
    assert!(text.starts_with("NO  PORT") && text.contains("g1"), "{text}");

    let fdb = weft_json(control, &["fdb"]);
    let stations: Vec<_> = fdb["stations"].as_array().expect("an array").iter().collect();
    assert_eq!(stations.iter().map(|s| &s["port"]).collect::<Vec<_>>(), ["g2", "g1"]);
    let learnt = fdb["bindings"].as_array().expect("an array");
    let near = learnt.iter().find(|binding| binding["ip"] == "10.0.1.10").expect("it was learnt");
    assert_eq!((&near["port"], &near["mac"]), (&json!("core-web"), &json!("02:00:00:00:00:01")));
    let (code, said, _) = weft(control, &["fdb", "--forget", "02:00:00:00:00:01"]);
    assert_eq!((code, said.contains("1 entries")), (0, true), "{said}");
    assert_eq!(weft(control, &["fdb", "--forget", "02:00:00:00:00:77"]).0, 1);

    let tunnels = weft_json(control, &["tunnels"]);
    assert_eq!(tunnels["local"][0]["tunnel"], "geneve");
    assert_eq!((&tunnels["endpoints"][0]["host"]), &json!("h2"));
    assert_eq!(tunnels["endpoints"][0]["path_mtu"], 1500);

    let (code, out, _) = weft(control, &["flows", "--json", "--port", "g1", "--sort", "packets"]);
    assert_eq!(code, 0);
    let mut rows: Vec<Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let totals = rows.pop().expect("a last line");
    assert!(totals["totals"]["cache"]["lookups"].as_u64() > Some(0), "{totals}");
    let count = |row: &Value| row["packets"].as_u64().expect("a number");
    assert!(rows.is_sorted_by_key(|row| std::cmp::Reverse(count(row))));
    assert!(rows.iter().all(|row| row["port"] == "g1"));
    let routed_row =
        rows.iter().find(|row| row["actions"].as_str().is_some_and(|a| a.contains("encap")));
    let flows = routed_row.expect("a megaflow into the tunnel")["flows"].to_string();
    assert!(flows.contains("lr_in_ip_routing") && flows.contains("network.toml:"), "{flows}");
    let (_, brief, _) = weft(control, &["flows", "--brief"]);
    assert!(!brief.contains("\n    "), "{brief}");

    let program = || weft(control, &["flows", "--logical", "--datapath", "core"]).1;
    wait_until(PATIENCE, "the routing flow has counted", || {
        let program = program();
        let routing = program.lines().find(|line| line.contains("ip4.dst == 10.0.2.0/24"));
        routing.is_some_and(|line| !line.contains("packets=0 "))
    });
    routed.daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn faults_are_told_with_exit_code_2_when_the_input_is_wrong() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    let daemon = lab.start(0);
    let control = &lab.control(0);
    let cases: [(&[&str], &str); 9] = [
        (&["capture", "g9", "-w", "/nowhere.pcap"], "no port `g9`; it has g1"),
        (&["capture", "g1", "-w", "/nowhere/x.pcap"], "cannot write /nowhere/x.pcap"),
        (&["capture", "g1", "--snap", "3", "-w", "-"], "14..="),
        (&["monitor", "--drops", "--port", "g9"], "no port `g9`"),
        (&["monitor", "--drops", "--reason", "rain"], "hairpin"),
        (&["monitor"], "--drops"),
        (&["flows", "--port", "g9"], "no port `g9`"),
        (&["flows", "--logical", "--datapath", "red"], "router `red` concerns h1; it has blue"),
        (&["fdb", "--forget", "02:00"], "02:00"),
    ];
    for (args, fault) in cases {
        let (code, out, said) = weft(control, args);
        assert!(said.contains(fault), "{args:?}: {said}");
        assert_eq!((code, &*out), (2, ""), "{args:?}: {said}");
    }
    assert!(!Path::new("/nowhere.pcap").exists());
    daemon.stop();
    for command in [&["ports"][..], &["fdb"], &["tunnels"], &["flows"], &["monitor", "--drops"]] {
        let (code, _, said) = weft(control, command);
        assert_eq!((code, said.contains("weft run")), (1, true), "{command:?}: {said}");
    }
}

#[test]
fn frames_are_captured_on_both_sides_of_every_tunnel() {
    require_root!();
    for tunnel in ["vxlan", "geneve", "gre", "stt", "vlan", "qinq"] {
        let lab = Lab::new(Setup::new(tunnel));
        let daemons = lab.start_both();
        let (a, b) = lab.ends();
        traffic::ping(&a.netns, b.ip(4));
        for side in ["--inner", "--outer"] {
            let file = lab.dir.path().join(format!("{tunnel}{side}.pcap"));
            let path = file.to_str().expect("a path of ASCII");
            let capture = Watch::capture(&lab.control(0), &["g1", side, "-w", path]);
            traffic::ping(&a.netns, b.ip(4));
            // Segments, and on the underlay super-packets.
            traffic::tcp(a, b, 4, 100_000);
            let (there, back) = ([b.mac.0, a.mac.0].concat(), [a.mac.0, b.mac.0].concat());
            let has = |macs: &[u8]| frames_of(&file).iter().any(|frame| contains(frame, macs));
            wait_until(PATIENCE, &format!("{tunnel}{side} has both ways"), || {
                file.exists() && has(&there) && has(&back)
            });
            let (code, said) = capture.interrupt();
            let frames = frames_of(&file);
            assert_eq!(code, Some(0), "{said}");
            assert!(said.contains(&format!("{} packets", frames.len())), "{said}");
            // Of the two guests, or what one of them tells everybody.
            let is_inner = |frame: &Vec<u8>| {
                frame.starts_with(&there) || frame.starts_with(&back) || frame[0] & 1 == 1
            };
            let inside = frames.iter().filter(|frame| is_inner(frame)).count();
            match (side, tunnel) {
                ("--inner", _) => assert_eq!(inside, frames.len(), "{tunnel}"),
                // A tag stands behind the addresses.
                (_, "vlan" | "qinq") => {
                    assert!(
                        frames.iter().all(|f| f[12..14] == [0x81, 0] || f[12..14] == [0x88, 0xa8])
                    );
                }
                _ => assert_eq!(inside, 0, "{tunnel}"),
            }
        }
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn traffic_goes_on_when_a_client_does_not_read_and_ends_its_stream_when_it_hangs_up() {
    require_root!();
    let lab = Lab::new(Setup::new("geneve"));
    let daemons = lab.start_both();
    let (a, b) = lab.ends();
    let idle = threads(&daemons[0]);
    let mut deaf: Vec<_> = (0..3)
        .map(|_| {
            let mut stream = UnixStream::connect(lab.control(0)).expect("the daemon listens");
            let request = json!({ "command": "capture", "port": "g1", "snap_bytes": 65_557 });
            writeln!(stream, "{request}").expect("a request can be sent");
            stream
        })
        .collect();
    wait_until(PATIENCE, "three are served", || threads(&daemons[0]) == idle + 3);
    traffic::tcp(a, b, 4, 20 << 20);
    daemons[0].show();
    deaf.clear();
    wait_until(PATIENCE, "their threads have ended", || threads(&daemons[0]) == idle);
    daemons.into_iter().for_each(Daemon::stop);
}

fn threads(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("a process").count()
}

fn descriptors(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("a process").count()
}

fn resident_kb(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a field");
    line.trim().trim_end_matches(" kB").parse().expect("a number of kB")
}

/// The lab's network file with more: a host, a switch with a port on h1, a port of `blue` behind the others, an ACL.
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

#[test]
fn no_packet_is_lost_when_the_network_is_reloaded_fifty_times() {
    require_root!();
    /// As fast as a guest may well send, slow enough to see every reload.
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
                let file = file.to_str().expect("a path of ASCII");
                for control in &controls {
                    let told = weft_json(control, &["reload", file]);
                    assert_eq!(told["generation"], round + 2, "{told}");
                    assert_eq!(told["ports"]["changed"], json!([]));
                    assert!(told["ports"]["kept"].as_u64() > Some(0), "{told}");
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
    assert_eq!(daemons.each_ref().map(Daemon::drops), before);
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn nothing_leaks_when_the_network_is_reloaded_a_thousand_times() {
    require_root!();
    /// What an allocator may keep for itself.
    const GROWTH_KB: u64 = 3 << 10;
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
            let mut said = String::new();
            stream.read_to_string(&mut said).expect("an answer");
            assert!(said.starts_with("{\"ok\""), "{said}");
        }
    };
    let before = links();
    reload(100);
    let now = || (descriptors(&daemon), links());
    let (kb, open) = (resident_kb(&daemon), now());
    assert_eq!(open.1, before, "devices are left behind");
    let started = Instant::now();
    reload(900);
    let after = resident_kb(&daemon);
    println!("900 reloads in {:?}: {kb} kB before, {after} kB after", started.elapsed());
    // The last client's thread may still be ending.
    wait_until(PATIENCE, "descriptors and devices are as before", || now() == open);
    assert!(after < kb + GROWTH_KB, "{kb} kB before, {after} kB after");
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
        ("uplink = \"eth0\"", "uplink = \"eth7\"", "the uplink of h1 is eth0, and eth7"),
        (&format!("\"{own}\""), "\"192.0.2.77\"", "and 192.0.2.77 in the file; a running switch"),
        ("\"h1\"", "\"h9\"", "no host \"h1\"; it has h9, h2"),
    ];
    let ports = |of: &Daemon| of.show().ports.into_iter().map(|port| port.port).collect::<Vec<_>>();
    let before = ports(&daemons[0]);
    for (from, to, fault) in cases {
        assert!(text.contains(from), "{from}");
        fs::write(&file, text.replace(from, to)).expect("a file can be written");
        let (code, out, said) = weft(control, &["reload", path]);
        assert!(said.contains(fault), "{to}: {said}");
        assert_eq!((code, &*out), (2, ""), "{to}: {said}");
        assert_eq!(ports(&daemons[0]), before);
    }
    // A port that somebody else has is found out only when it is opened; all is as it was then.
    let taken = std::net::UdpSocket::bind;
    let address = (lab.hosts[0].underlay(4), 4790);
    let _taken = lab.hosts[0].netns.run(|| taken(address)).expect("a UDP socket");
    let other = text.replace("[tunnel_options.vxlan]", "[tunnel_options.vxlan]\nudp_port = 4790");
    fs::write(&file, other).expect("a file can be written");
    let (code, _, said) = weft(control, &["reload", path]);
    assert!(code == 1 && said.contains("nothing was changed") && said.contains("4790"), "{said}");
    traffic::ping(&a.netns, b.ip(4));
    traffic::tcp(b, a, 4, 1 << 16);

    // The next one succeeds, and a hangup has the daemon read its own file again.
    let told = weft_json(control, &["reload", changed(&lab).to_str().expect("ASCII")]);
    assert_eq!(
        told["ports"],
        json!({ "added": ["more"], "changed": [], "removed": [], "kept": 1 })
    );
    assert_eq!(told["endpoints"]["kept"], 1);
    assert_eq!(told["datapaths"]["added"], json!(["green"]));
    assert_eq!(daemons[0].show().ports.len(), 2);
    daemons[0].signal(Signal::SIGHUP);
    wait_until(PATIENCE, "the port is gone again", || daemons[0].show().ports.len() == 1);
    traffic::ping(&a.netns, b.ip(4));
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn port_is_made_anew_when_its_configuration_has_changed() {
    require_root!();
    let lab = Lab::new(Setup::new("stt"));
    let daemons = lab.start_both();
    let (a, b) = lab.ends();
    traffic::ping(&a.netns, b.ip(4));
    let text = fs::read_to_string(lab.network_file()).expect("the network file");
    let file = lab.dir.path().join("small.toml");
    let small = text.replace("name = \"blue\"", "name = \"blue\"\nmtu = 1280");
    fs::write(&file, small).expect("a file can be written");
    for host in [0, 1] {
        let told = weft_json(&lab.control(host), &["reload", file.to_str().expect("ASCII")]);
        assert_eq!(told["ports"]["changed"].as_array().map(Vec::len), Some(1), "{told}");
        assert_eq!(told["endpoints"]["kept"], 1, "{told}");
        daemons[host].wait_ready();
    }
    let link = a.netns.netlink().link(GUEST_DEVICE).expect("the guest has its device");
    assert_eq!(link.mtu, 1280);
    traffic::ping(&a.netns, b.ip(4));
    traffic::tcp(a, b, 4, 1 << 20);
    daemons.into_iter().for_each(Daemon::stop);
}
