//! Tests of bridges (switches on one host whose flows are in the syntax of ovs-ofctl) on both
//! datapaths, and of `weft ofctl`.

use crate::common::daemon::{WEFT, port};
use crate::common::{Datapath, GUEST_DEVICE, Guest, Lab, PATIENCE, Setup, traffic};
use netdev::{LinkKind, LinkSpec};
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;
use testkit::host::{TestHost, wait_until};
use testkit::{report, require_program, require_root};

const MEGABYTE: usize = 1 << 20;
/// In each direction, [`exchange`] sends more packets than this, even if super-packets are counted
/// as one.
const COUNTED: u64 = 40;
/// How long to wait for a reply that must not arrive.
const SILENCE: Duration = Duration::from_millis(700);

/// The `[[bridge]]` text for `h1` with these guests as ports, whose numbers start at `first`.
fn bridge_of(name: &str, first: u32, guests: &[&Guest]) -> String {
    let mut text =
        format!("[[bridge]]\nname = \"{name}\"\nhost = \"h1\"\nflows = \"{name}.flows\"\n");
    for (number, guest) in (first..).zip(guests) {
        let Guest { name, mac, ip4, ip6, .. } = guest;
        let netns = guest.netns.name().expect("the namespace of a guest has a name");
        write!(
            text,
            "[[bridge.port]]\nname = \"{name}\"\nnumber = {number}\nmac = \"{mac}\"\n\
             addresses = [\"{ip4}/24\", \"{ip6}/64\"]\n\
             device = {{ tap = \"{GUEST_DEVICE}\", netns = \"{netns}\" }}\n"
        )
        .expect("a String takes all");
    }
    text
}

/// A lab whose network file contains the text `more`, and whose directory contains these flow
/// files.
fn lab(datapath: Datapath, more: &str, files: &[(&str, &str)]) -> Lab {
    let setup = Setup::new("vxlan").guests(0, 0).datapath(datapath);
    let lab = Lab::new(setup.more(more));
    for (name, flows) in files {
        write_flows(&lab, name, flows);
    }
    lab
}

fn write_flows(lab: &Lab, name: &str, flows: &str) {
    std::fs::write(lab.dir.path().join(name), flows).expect("a file can be written");
}

/// Runs `weft ofctl` with `input` on standard input. The error is its exit code and its standard
/// error.
fn try_ofctl(lab: &Lab, arguments: &[&str], input: &str) -> Result<String, (Option<i32>, String)> {
    let mut command = Command::new(WEFT);
    command.arg("ofctl").arg(arguments[0]).arg("--control").arg(lab.control(0));
    command.args(&arguments[1..]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("weft can be started");
    let mut stdin = child.stdin.take().expect("a pipe");
    // Errors are ignored: a command that does not read its input may have closed it.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("weft ends");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).expect("text")),
        false => Err((output.status.code(), stderr)),
    }
}

fn ofctl(lab: &Lab, arguments: &[&str]) -> String {
    try_ofctl(lab, arguments, "").unwrap_or_else(|error| panic!("{arguments:?}: {error:?}"))
}

/// The packet counter of the only flow that `selector` matches.
fn packets(lab: &Lab, bridge: &str, selector: &str) -> u64 {
    let dump = ofctl(lab, &["dump-flows", bridge, selector]);
    let mut lines = dump.lines();
    let line = lines.next().unwrap_or_else(|| panic!("no flow of {bridge} matches {selector}"));
    assert_eq!(lines.next(), None, "{dump}");
    let (_, rest) = line.split_once("n_packets=").expect("a counter");
    rest.split(',').next().and_then(|count| count.parse().ok()).expect("a number")
}

/// The identifiers and packet counters of the megaflows of a port.
fn megaflows(lab: &Lab, port: &str) -> Vec<(String, u64)> {
    let mut command = Command::new(WEFT);
    command.args(["flows", "--json", "--port", port, "--control"]).arg(lab.control(0));
    let output = command.output().expect("weft can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = text
        .lines()
        .map(|row| -> serde_json::Value { serde_json::from_str(row).expect("a row is JSON") });
    rows.filter_map(|row| Some((row["id"].as_str()?.to_owned(), row["packets"].as_u64()?)))
        .collect()
}

fn reaches(from: &Guest, to: IpAddr) -> bool {
    traffic::ping_within(&from.netns, to, SILENCE).is_ok()
}

fn exchange(near: &Guest, far: &Guest) {
    for family in [4, 6] {
        traffic::ping(&near.netns, far.ip(family));
        traffic::tcp(near, far, family, MEGABYTE);
        traffic::tcp(far, near, family, MEGABYTE);
        traffic::udp_echo(near, far, family, 1300);
    }
}

#[test]
fn guests_talk_when_the_flow_file_of_their_bridge_forwards() {
    require_root!();
    for datapath in Datapath::BOTH {
        let [a, b, c, d] = [11, 12, 13, 14].map(|number| Guest::new(number, 0));
        let more = bridge_of("br0", 7, &[&a, &b]) + &bridge_of("br1", 7, &[&c, &d]);
        // Both bridges use the same port numbers.
        let flows = "in_port=7 actions=output:8\nin_port=g12 actions=output:7\n";
        let other = "in_port=7 actions=output:8\nin_port=8 actions=output:7\n";
        let lab = lab(datapath, &more, &[("br0.flows", flows), ("br1.flows", other)]);
        let daemon = lab.start(0);
        exchange(&a, &b);
        exchange(&c, &d);
        assert!(!reaches(&a, c.ip(4)), "{datapath:?}: a frame crossed from br0 to br1");

        // Flow counters are computed from megaflow counters. Only the first packets match no
        // megaflow.
        wait_until(PATIENCE, "the packets are counted", || {
            packets(&lab, "br0", "in_port=7") > COUNTED
                && packets(&lab, "br1", "in_port=8") > COUNTED
        });
        let cached: u64 = megaflows(&lab, "g11").iter().map(|(_, packets)| packets).sum();
        assert!(cached > COUNTED / 2, "{datapath:?}: megaflows forwarded only {cached} packets");
        let ports = ofctl(&lab, &["dump-ports", "br0", "g12"]);
        assert!(ports.starts_with("OFPST_PORT reply (xid=0x2): 1 ports\n  port  8: rx pkts="));
        daemon.stop();
    }
}

#[test]
fn only_megaflows_of_changed_flows_go_when_ofctl_changes_flows() {
    require_root!();
    for datapath in Datapath::BOTH {
        let [a, b, c, d] = [21, 22, 23, 24].map(|number| Guest::new(number, 0));
        let more = bridge_of("br0", 1, &[&a, &b, &c, &d]);
        let flows = "in_port=1 actions=2\nin_port=2 actions=1\n\
                     in_port=3 actions=4\nin_port=4 actions=3\n";
        let lab = lab(datapath, &more, &[("br0.flows", flows)]);
        let daemon = lab.start(0);
        traffic::ping(&a.netns, b.ip(4));
        traffic::ping(&c.netns, d.ip(4));
        let kept = megaflows(&lab, "g23");
        assert!(!kept.is_empty());

        ofctl(&lab, &["mod-flows", "br0", "in_port=1 actions=drop"]);
        assert!(!reaches(&a, b.ip(4)), "{datapath:?}: the flow drops");
        assert!(!daemon.drops().contains_key("no_flow"), "{datapath:?}");
        ofctl(&lab, &["del-flows", "br0", "in_port=1"]);
        assert!(!reaches(&a, b.ip(4)), "{datapath:?}: there is no flow");
        wait_until(PATIENCE, "packets without a flow are counted", || {
            daemon.drops().get("no_flow").is_some_and(|&count| count > 0)
        });
        ofctl(&lab, &["add-flow", "br0", "in_port=1,actions=output:g22"]);
        traffic::ping(&a.netns, b.ip(4));
        let ids = |rows: &[(String, u64)]| rows.iter().map(|row| row.0.clone()).collect::<Vec<_>>();
        let now = ids(&megaflows(&lab, "g23"));
        assert!(ids(&kept).iter().all(|id| now.contains(id)), "{datapath:?}: {kept:?} {now:?}");

        // A reload reads the flow file again. Flows that are still in the file keep their counters.
        ofctl(&lab, &["add-flow", "br0", "table=9,actions=drop"]);
        let before = packets(&lab, "br0", "in_port=3");
        assert!(before > 0, "{datapath:?}");
        write_flows(&lab, "br0.flows", &flows.replace("in_port=4 actions=3\n", ""));
        let mut reload = Command::new(WEFT);
        reload.args(["reload", "--control"]).arg(lab.control(0)).arg(lab.network_file());
        let reloaded = reload.output().expect("weft can be started");
        assert!(reloaded.status.success(), "{}", String::from_utf8_lossy(&reloaded.stderr));
        let dump = ofctl(&lab, &["dump-flows", "--no-stats", "br0"]);
        let left = " in_port=2 actions=output:1\n in_port=3 actions=output:4\n\
                    \x20in_port=1 actions=output:2\n";
        let sorted = |text: &str| {
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&dump), sorted(left), "{datapath:?}");
        assert!(packets(&lab, "br0", "in_port=3") >= before, "{datapath:?}");
        assert!(!reaches(&d, c.ip(4)), "{datapath:?}");
        daemon.stop();
    }
}

#[test]
fn ofctl_takes_the_arguments_of_ovs_ofctl_and_says_what_is_wrong() {
    require_root!();
    let [a, b] = [31, 32].map(|number| Guest::new(number, 0));
    let more = bridge_of("br0", 1, &[&a, &b]);
    let lab = lab(Datapath::User, &more, &[("br0.flows", "")]);
    let daemon = lab.start(0);
    let dump = |selector: &str| ofctl(&lab, &["dump-flows", "--no-stats", "br0", selector]);
    assert_eq!(dump(""), "");
    let lines = "# a comment\ntable=1,priority=5,ip actions=1\ncookie=0x7,tcp,tp_dst=80 actions=2\n\
                 delete_strict table=1,priority=4,ip\n";
    try_ofctl(&lab, &["add-flows", "br0", "-"], lines).expect("lines");
    let both = " cookie=0x7, tcp,tp_dst=80 actions=output:2\n \
                table=1, priority=5,ip actions=output:1\n";
    assert_eq!(dump(""), both);
    assert_eq!(dump("table=1"), " table=1, priority=5,ip actions=output:1\n");
    assert_eq!(dump("cookie=0x7/-1"), " cookie=0x7, tcp,tp_dst=80 actions=output:2\n");
    let shown = ofctl(&lab, &["dump-flows", "br0", "tcp"]);
    let (duration, rest) = shown.split_once("s, ").expect("an age");
    assert!(duration.starts_with(" cookie=0x7, duration="), "{shown}");
    assert_eq!(rest, "table=0, n_packets=0, n_bytes=0, tcp,tp_dst=80 actions=output:2\n");
    ofctl(&lab, &["mod-flows", "--strict", "br0", "table=1,priority=5,ip actions=drop"]);
    assert_eq!(dump("table=1"), " table=1, priority=5,ip actions=drop\n");
    ofctl(&lab, &["del-flows", "--strict", "br0", "ip"]);
    assert_eq!(dump("").lines().count(), 2, "no flow has this priority");
    ofctl(&lab, &["del-flows", "br0", "ip"]);
    assert_eq!(dump(""), "");
    try_ofctl(&lab, &["add-flows", "br0", "-"], lines).expect("lines");
    try_ofctl(&lab, &["replace-flows", "br0", "-"], "in_port=1 actions=2\n").expect("lines");
    assert_eq!(dump(""), " in_port=1 actions=output:2\n");
    ofctl(&lab, &["add-flow", "br0", "table=3,hard_timeout=1,actions=drop"]);
    ofctl(&lab, &["add-flow", "br0", "table=4,idle_timeout=1,actions=drop"]);
    assert_eq!(dump("table=3"), " table=3, hard_timeout=1, actions=drop\n");
    wait_until(PATIENCE, "flows expire", || dump("").lines().count() == 1);

    for (arguments, input, fault) in [
        (&["add-flow", "br0", "in_port=1"][..], "", "column 10: expected `actions=...`"),
        (&["add-flow", "br0", "in_port=x,actions=1"], "", "column 9: unknown port `x`"),
        (&["dump-flows", "br0", "priority=4"], "", "column 1: `priority`"),
        (&["dump-flows", "br9"], "", "no bridge `br9` on host h1: use one of br0"),
        (&["dump-ports", "br0", "p9"], "", "no port `p9`: use a number, or one of g31, g32"),
        (&["add-flows", "br0", "-"], "actions=1\nfoo\n", "standard input:2:"),
        (&["replace-flows", "br0", "-"], "delete\n", "standard input:1:1: a file that replaces"),
        (&["add-flow", "br0", "local,actions=1"], "", "column 1:"),
    ] {
        let (code, stderr) = try_ofctl(&lab, arguments, input).expect_err("it is refused");
        assert!(stderr.contains(fault) && code == Some(2), "{arguments:?}: {code:?} {stderr}");
    }
    assert_eq!(dump(""), " in_port=1 actions=output:2\n", "nothing was applied");
    daemon.stop();
}

/// The flows of the published study: port 2 is the guest, port 1 the link to the other bridge.
const STUDY: &str = "in_port=2 action=push_vlan:0x88a8,mod_vlan_vid:1,output:1\n\
                     in_port=1,dl_vlan=1 action=pop_vlan,output:2\n";
/// The same flows with a second tag, which another table checks.
const TWO_TAGS: &str = "in_port=2 actions=push_vlan:0x8100,mod_vlan_vid:200,push_vlan:0x88a8,\
                        mod_vlan_vid:100,output:1\n\
                        in_port=1,dl_vlan=100 actions=pop_vlan,resubmit(,1)\n\
                        table=1,dl_vlan=200 actions=pop_vlan,output:2\n";

#[test]
fn tags_are_pushed_and_popped_when_flows_of_two_bridges_say_so() {
    require_root!();
    for datapath in Datapath::BOTH {
        let [a, b] = [41, 42].map(|number| Guest::new(number, 0));
        let wire = |number: u32, name: &str, device: &str| {
            format!(
                "[[bridge.port]]\nname = \"{name}\"\nnumber = {number}\n\
                 device = {{ interface = \"{device}\" }}\n"
            )
        };
        let more = bridge_of("br0", 2, &[&a])
            + &wire(1, "left", "wire0")
            + &wire(3, "card", "card0")
            + &bridge_of("br1", 2, &[&b])
            + &wire(1, "right", "wire1");
        let lab = lab(datapath, &more, &[("br0.flows", STUDY), ("br1.flows", STUDY)]);
        let host = &lab.hosts[0].netns;
        let peer = LinkSpec::new("wire1").mtu(1508).up();
        let spec = LinkSpec::new("wire0").mtu(1508).up();
        host.netlink().create(&spec, &LinkKind::Veth { peer }).expect("a veth can be made");
        let card = LinkSpec::new("card0").mtu(1508).up();
        host.netlink().create(&card, &LinkKind::Bridge).expect("a device can be made");
        let daemon = lab.start(0);
        // A veth leads to a guest, and other devices to a network, which has no limit.
        for (name, percent) in [(a.name.as_str(), 25), ("left", 25), ("card", 0)] {
            let found = port(&daemon, name).slow_path.upcall_cpu_limit_percent;
            assert_eq!(found, percent, "{datapath:?}, {name}");
        }
        exchange(&a, &b);
        wait_until(PATIENCE, "the packets are counted", || {
            packets(&lab, "br1", "in_port=1") > COUNTED
        });
        for bridge in ["br0", "br1"] {
            try_ofctl(&lab, &["replace-flows", bridge, "-"], TWO_TAGS).expect("flows");
        }
        exchange(&a, &b);
        wait_until(PATIENCE, "the packets are counted", || {
            packets(&lab, "br1", "table=1") > COUNTED
        });
        // Frames with a wrong inner tag arrive at the other bridge and are not delivered.
        ofctl(
            &lab,
            &[
                "mod-flows",
                "br0",
                "in_port=2 actions=push_vlan:0x8100,mod_vlan_vid:201,\
                      push_vlan:0x88a8,mod_vlan_vid:100,output:1",
            ],
        );
        assert!(!reaches(&a, b.ip(4)), "{datapath:?}");
        daemon.stop();
    }
}

/// `g51` may open connections, `g52` may not; replies are allowed. Connections from `g51` to
/// 192.168.7.99 are translated to `g52`.
const STATEFUL: &str = "\
arp actions=normal
ip actions=ct(table=1,zone=5,nat)
table=1,priority=20,ct_state=+trk+new,ip,in_port=1,nw_dst=192.168.7.99 \
    actions=ct(commit,zone=5,nat(dst=192.168.7.52),\
    exec(set_field:7->ct_mark),table=2)
table=1,priority=10,ct_state=+trk+new,ip,in_port=1 \
    actions=ct(commit,zone=5,exec(set_field:7->ct_mark)),output:2
table=1,ct_state=+trk+est,ct_mark=7,ip,in_port=1 actions=output:2
table=1,ct_state=+trk+est,ct_zone=5,ct_mark=7,ip,in_port=2 actions=output:1
table=2,ip actions=output:2
";

#[test]
fn connections_are_tracked_when_flows_of_a_bridge_use_ct() {
    require_root!();
    for datapath in Datapath::BOTH {
        let [a, b] = [51, 52].map(|number| Guest::new(number, 0));
        let flows = STATEFUL.replace("    actions", "actions").replace("\n    ", "");
        let more = bridge_of("br0", 1, &[&a, &b]);
        let lab = lab(datapath, &more, &[("br0.flows", &flows)]);
        let daemon = lab.start(0);
        traffic::ping(&a.netns, b.ip(4));
        traffic::tcp(&a, &b, 4, MEGABYTE);
        let listener = a.netns.run(|| TcpListener::bind((a.ip4, 0))).expect("a TCP listener");
        let address = listener.local_addr().expect("an address");
        let opened = b.netns.run(|| TcpStream::connect_timeout(&address, SILENCE));
        assert!(opened.is_err(), "{datapath:?}: a connection against the rules");

        let server = traffic::EchoServer::start(&b, 4, 7077);
        let neighbour = ["neigh", "replace", "192.168.7.99", "lladdr", "02:00:00:00:00:34"];
        let mut ip = a.netns.program("ip");
        ip.args(neighbour).args(["dev", GUEST_DEVICE]);
        assert!(ip.status().expect("ip can be started").success());
        let virtual_address = SocketAddr::new([192, 168, 7, 99].into(), 7077);
        traffic::tcp_echo(&a, virtual_address, MEGABYTE);
        drop(server);

        let mut ct = Command::new(WEFT);
        ct.args(["ct", "--zone", "br0 zone 5", "--control"]).arg(lab.control(0));
        let shown = ct.output().expect("weft can be started");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("192.168.7.99") && shown.contains("br0 zone 5"), "{shown}");
        daemon.stop();
    }
}

/// Tracks all packets except neighbour discovery. Connections to 192.168.7.99 are translated to
/// `g72`.
const TRACK_ALL: &str = "\
arp actions=normal
priority=40000,icmp6,icmp_type=135 actions=normal
priority=40000,icmp6,icmp_type=136 actions=normal
ip actions=ct(table=1,zone=5,nat)
ipv6 actions=ct(table=1,zone=5)
table=1,priority=40000,ct_state=+new,ip,in_port=1,nw_dst=192.168.7.99 \
actions=ct(commit,zone=5,nat(dst=192.168.7.72)),output:2
table=1,ct_state=+new,ip,in_port=1 actions=ct(commit,zone=5),output:2
table=1,ct_state=+new,ipv6,in_port=1 actions=ct(commit,zone=5),output:2
table=1,ct_state=+est,in_port=1 actions=output:2
table=1,ct_state=+est,in_port=2 actions=output:1
";

/// A fragment of an IPv4 datagram from 192.168.7.71 with 16 bytes of payload, in hexadecimal.
fn fragment(offset: u16, more: bool) -> String {
    let flags = (u16::from(more) << 13) | (offset / 8);
    let payload = "0007000700100000".to_owned() + "0000000000000000";
    format!("0200000000480200000000470800450000240101{flags:04x}40110000c0a80747c0a80748{payload}")
}

#[test]
fn fragments_are_tracked_as_datagrams_and_leave_as_fragments() {
    require_root!();
    for datapath in Datapath::BOTH {
        let [a, b] = [71, 72].map(|number| Guest::new(number, 0));
        let more = bridge_of("br0", 1, &[&a, &b]);
        let lab = lab(datapath, &more, &[("br0.flows", TRACK_ALL)]);
        let daemon = lab.start(0);
        let mac = b.mac.to_string();
        let mut ip = a.netns.program("ip");
        ip.args(["neigh", "replace", "192.168.7.99", "lladdr", &mac, "dev", GUEST_DEVICE]);
        assert!(ip.status().expect("ip can be started").success());
        for family in [4, 6] {
            traffic::udp_echo(&a, &b, family, 4000);
            traffic::udp_echo(&a, &b, family, 20_000);
        }
        // Datagrams are also sent with address translation, in both directions.
        let (near, far) = (traffic::udp_socket(&a, 4), traffic::udp_socket(&b, 4));
        let to = SocketAddr::new([192, 168, 7, 99].into(), far.local_addr().expect("one").port());
        let mut bytes = [0; 8000];
        near.send_to(&[0x5a; 5000], to).expect("a datagram is sent");
        let (len, source) = far.recv_from(&mut bytes).expect("a datagram arrives");
        far.send_to(&bytes[..len], source).expect("a datagram is sent");
        let (len, source) = near.recv_from(&mut bytes).expect("a datagram arrives");
        assert_eq!((&bytes[..len], source), (&[0x5a; 5000][..], to), "{datapath:?}");
        // A port sends no frame that is longer than its MTU, so each datagram was sent in
        // fragments.
        let sent = |port: &str| {
            let ports = ofctl(&lab, &["dump-ports", "br0", port]);
            let (_, rest) = ports.split_once("tx pkts=").expect("a counter");
            rest.split(',').next().and_then(|count| count.parse().ok()).unwrap_or(0_u32)
        };
        // With each address family, the datagrams of 4,000 and 20,000 bytes are sent as 3 and 14
        // fragments.
        wait_until(PATIENCE, "fragments are counted", || sent("g71") >= 34 && sent("g72") >= 34);
        let drops = daemon.drops();
        assert!(!drops.keys().any(|reason| reason.starts_with("fragment")), "{drops:?}");

        for (offset, more) in [(0, true), (8, false)] {
            let packet =
                format!("in_port=1 packet={} actions=resubmit(,0)", fragment(offset, more));
            ofctl(&lab, &["packet-out", "br0", &packet]);
        }
        wait_until(PATIENCE, "fragments that overlap are counted", || {
            daemon.drops().get("fragment_overlap") == Some(&2)
        });
        daemon.stop();
    }
}

#[test]
fn packet_out_executes_actions_as_if_the_packet_had_arrived() {
    require_root!();
    for datapath in Datapath::BOTH {
        let [a, b] = [81, 82].map(|number| Guest::new(number, 0));
        let more = bridge_of("br0", 1, &[&a, &b]);
        let flows = "in_port=1,udp actions=output:2\ntable=3 actions=output:1\n";
        let lab = lab(datapath, &more, &[("br0.flows", flows)]);
        let daemon = lab.start(0);
        // An empty UDP datagram from 10.1.1.1, port 1, to 10.1.1.2, port 2.
        let packet = "50540000000a50540000000908004500001c000000000011a4cd0a0101010a010102\
                      0001000200080000";
        let send = |actions: &str| {
            let text = format!("in_port=g81, packet={packet}, actions={actions}");
            ofctl(&lab, &["packet-out", "br0", &text]);
        };
        send("resubmit(,0)");
        send("resubmit(,0)");
        wait_until(PATIENCE, "the flow counts", || packets(&lab, "br0", "in_port=1,udp") == 2);
        // A packet may not be sent on its ingress port.
        send("resubmit(,3)");
        wait_until(PATIENCE, "the flow counts", || packets(&lab, "br0", "table=3") == 1);
        wait_until(PATIENCE, "the drop is counted", || daemon.drops().get("hairpin") == Some(&1));
        // No flow has used zone 6 before.
        send("ct(commit,zone=6)");
        wait_until(PATIENCE, "the connection is there", || {
            let mut ct = Command::new(WEFT);
            ct.args(["ct", "--zone", "br0 zone 6", "--control"]).arg(lab.control(0));
            let shown = ct.output().expect("weft can be started");
            String::from_utf8_lossy(&shown.stdout).contains("10.1.1.1:1 -> 10.1.1.2:2")
        });
        for (text, fault) in [
            ("packet=00 actions=drop", "expected `in_port=...`"),
            ("in_port=1 packet=0 actions=drop", "column 18: expected pairs of hexadecimal digits"),
            ("in_port=1 packet=0000 actions=drop", "column 18: the frame is malformed"),
            ("in_port=1 packet=00", "expected `actions=...`"),
            ("in_port=7 packet=PACKET actions=drop", "bridge br0 has no port 7"),
            ("in_port=1 packet=PACKET actions=learn()", "the action `learn` is not supported"),
        ] {
            let text = text.replace("PACKET", packet);
            let (code, stderr) =
                try_ofctl(&lab, &["packet-out", "br0", &text], "").expect_err("it is refused");
            assert!(stderr.contains(fault) && code == Some(2), "{text}: {code:?} {stderr}");
        }
        daemon.stop();
    }
}

#[test]
fn example_of_a_bridge_works_as_the_manual_says() {
    require_root!();
    let lab = lab(Datapath::User, "", &[]);
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let read = |name: &str| {
        std::fs::read_to_string(format!("{examples}/{name}")).expect("an example can be read")
    };
    write_flows(&lab, "bridge.flows", &read("bridge.flows"));
    let [web, db] = ["web", "db"].map(TestHost::new);
    let name = |netns: &TestHost| netns.name().expect("a namespace has a name").to_owned();
    let network = read("bridge.toml")
        .replace("netns = \"web\"", &format!("netns = \"{}\"", name(&web)))
        .replace("netns = \"db\"", &format!("netns = \"{}\"", name(&db)));
    std::fs::write(lab.network_file(), network).expect("a file can be written");
    for host in [&web, &db] {
        host.sysctl("net/ipv4/ping_group_range", "0 2147483647").expect("a sysctl can be set");
    }
    let daemon = lab.start(0);
    traffic::ping(&web, [10, 0, 0, 2].into());
    let denied = traffic::ping_within(&db, [10, 0, 0, 1].into(), SILENCE);
    assert!(denied.is_err(), "the guest db opened a connection");
    wait_until(PATIENCE, "the packets are counted", || {
        packets(&lab, "br0", "table=1,ct_state=+trk+est,ip,in_port=db") > 0
    });
    daemon.stop();
}

/// ovs-ofctl parses the output of `weft ofctl dump-flows`, and gets the flows that were written.
#[test]
fn ovs_ofctl_reads_what_dump_flows_prints() {
    require_root!();
    require_program!("ovs-ofctl", "openvswitch-switch");
    let [a, b] = [61, 62].map(|number| Guest::new(number, 0));
    let more = bridge_of("br0", 1, &[&a, &b]);
    let flows = STATEFUL.replace("    actions", "actions").replace("\n    ", "");
    let lab = lab(Datapath::User, &more, &[("br0.flows", &flows)]);
    let daemon = lab.start(0);
    let parsed = |flows: &str| -> Vec<String> {
        let path = lab.dir.path().join("dumped");
        std::fs::write(&path, flows).expect("a file can be written");
        let mut command = Command::new("ovs-ofctl");
        let output = command.args(["-O", "OpenFlow15", "parse-flows"]).arg(&path).output();
        let output = output.expect("ovs-ofctl can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let flows = text.lines().filter_map(|line| line.split_once("ADD ")).map(|(_, flow)| flow);
        let mut flows: Vec<_> = flows.map(str::to_owned).collect();
        flows.sort();
        flows
    };
    let dump = ofctl(&lab, &["dump-flows", "br0"]);
    assert_eq!(parsed(&dump), parsed(&flows), "{dump}");
    assert_eq!(parsed(&dump).len(), 7);
    daemon.stop();
    report::peer("ovs-ofctl", "flows as weft ofctl dump-flows prints them");
}
