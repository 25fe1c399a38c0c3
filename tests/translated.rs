//! Tests address translation when no port is free, and checks with tshark that translated packets
//! are valid.

use crate::commands::call::{Watch, weft};
use crate::common::{
    Attachment, Daemon, Datapath, GUEST_DEVICE, Guest, Lab, PATIENCE, Setup, traffic,
};
use crate::dissect::{CHECKSUM_STATUS, Marks, VERIFY, WIRE_FRAME_LEN};
use crate::ovn::nat::{FORWARDED, OUTSIDE, SERVER, ip};
use crate::peers::capture::{Capture, dissect};
use crate::peers::program::{command, run};
use crate::peers::{MTU, carry_wire_frames};
use crate::services::{BACKEND_PORT, EDGE, add_routes, outside, router_vips, routers, services};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use testkit::host::wait_until;
use testkit::{report, require_program, require_root};
use traffic::EchoServer;
use wire::Protocol;
use wire::checksum::{pseudo_v4, pseudo_v6};

/// The range from which address translation selects a new port if the source port is in that range,
/// as in Linux.
const PORTS: RangeInclusive<u16> = 600..=1023;
/// The source port of connections that are opened when no port is free.
const OTHER_PORT: u16 = 700;
/// UDP counts as a stream after two seconds of traffic in both directions.
const STREAM: Duration = Duration::from_millis(2300);
const EXHAUSTED: &str = "ct_nat_exhausted";

/// A UDP socket of a guest at this port.
fn bound(guest: &Guest, family: u8, port: u16) -> UdpSocket {
    let address = SocketAddr::new(guest.ip(family), port);
    let mut socket = None;
    // A program that another test starts may hold a copy of an earlier socket for a moment, so this
    // waits until the port is free.
    wait_until(PATIENCE, "the port is free", || {
        socket = guest.netns.run(|| UdpSocket::bind(address)).ok();
        socket.is_some()
    });
    let socket = socket.expect("a UDP socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
    socket
}

/// A server outside that is reached via one translated source address, and clients that use all of
/// its ports.
struct Exhausted {
    family: u8,
    server: UdpSocket,
    /// One socket for each of the [`PORTS`].
    opened: Vec<UdpSocket>,
}

impl Exhausted {
    /// Opens a connection from each of the ports of a guest.
    fn open(guest: &Guest, outside: &Guest, family: u8) -> Self {
        let address = SocketAddr::new(ip(SERVER, family), 53);
        let server = outside.netns.run(|| UdpSocket::bind(address)).expect("a UDP socket");
        server.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
        traffic::ping(&guest.netns, address.ip());
        let opened = PORTS.map(|port| bound(guest, family, port)).collect();
        let this = Self { family, server, opened };
        let seen: BTreeSet<u16> = this.opened.iter().map(|it| this.exchange(it)).collect();
        assert!(seen.iter().copied().eq(PORTS), "{seen:?}");
        this
    }

    fn address(&self) -> SocketAddr {
        self.server.local_addr().expect("an address")
    }

    /// Sends a datagram to the server and back. Returns the source port that the server sees.
    fn exchange(&self, client: &UdpSocket) -> u16 {
        let own = client.local_addr().expect("an address").to_string();
        client.send_to(own.as_bytes(), self.address()).expect("a datagram is sent");
        let mut bytes = [0; 64];
        let (len, source) = self.server.recv_from(&mut bytes).expect("a datagram arrives");
        // Other content would be a datagram of a connection that must be refused.
        assert_eq!(bytes[..len], *own.as_bytes(), "from {source}");
        assert_eq!(source.ip(), ip(OUTSIDE, self.family), "{own}");
        self.server.send_to(&bytes[..len], source).expect("a datagram is sent");
        let (len, _) = client.recv_from(&mut bytes).expect("an answer arrives");
        assert_eq!(bytes[..len], *own.as_bytes(), "from the server");
        source.port()
    }

    /// Checks that all connections still work and keep their ports.
    fn assert_goes_on(&self) {
        for (port, client) in PORTS.zip(&self.opened) {
            assert_eq!(self.exchange(client), port);
        }
    }

    /// Checks that no datagram of a new connection arrives, and that each is counted.
    fn assert_refused(&self, daemon: &Daemon, client: &UdpSocket) {
        const DATAGRAMS: u64 = 3;
        let count = || daemon.drops().get(EXHAUSTED).copied().unwrap_or_default();
        let before = count();
        for _ in 0..DATAGRAMS {
            client.send_to(b"refused", self.address()).expect("a datagram is sent");
        }
        wait_until(PATIENCE, "the datagrams are counted", || count() >= before + DATAGRAMS);
        assert_eq!(count(), before + DATAGRAMS);
    }
}

#[test]
fn connections_go_on_and_others_are_dropped_when_no_port_is_left() {
    require_root!();
    for datapath in Datapath::BOTH {
        let outside = outside();
        let mut text = routers(&outside);
        for (family, subnet) in [(4, "192.168.7.0/24"), (6, "fd77::/64")] {
            let external = ip(OUTSIDE, family);
            text += &format!(
                "[[nat]]\nrouter = \"edge\"\ntype = \"snat\"\nexternal = \"{external}\"\n\
                 internal = \"{subnet}\"\n"
            );
        }
        let lab = Lab::new(Setup::new("geneve").guests(2, 1).datapath(datapath).more(&text));
        let daemons = lab.start_both();
        lab.guests.iter().for_each(add_routes);
        let [first, near, far] = &lab.guests[..] else { panic!("three guests") };
        let start = Instant::now();
        let all = [4, 6].map(|family| Exhausted::open(first, &outside, family));
        // The router is on `h2`: packets of `near` reach it through a tunnel.
        let new = |guest, of: &Exhausted| bound(guest, of.family, OTHER_PORT);
        for of in &all {
            for guest in [near, far] {
                of.assert_refused(&daemons[1], &new(guest, of));
            }
            assert_is_shown(&lab, of, &new(far, of));
        }
        // After this time, eBPF programs forward the connections.
        std::thread::sleep(STREAM.saturating_sub(start.elapsed()));
        all.iter().for_each(Exhausted::assert_goes_on);
        for of in &all {
            let flushed = SocketAddr::new(first.ip(of.family), 777).to_string();
            let args = ["ct", "--flush", "--protocol", "udp", "--src", &flushed];
            let (code, out, _) = weft(&lab.control(1), &args);
            assert!(code == 0 && out.starts_with("removed ") && !out.contains(" 0 "), "{out}");
            // Only the port of the flushed connection is free, so a new connection must use it.
            assert_eq!(of.exchange(&new(near, of)), 777, "{datapath:?} IPv{}", of.family);
            of.assert_refused(&daemons[1], &new(far, of));
        }
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// Checks the output of the user's commands about refused packets of the guest `g3`.
fn assert_is_shown(lab: &Lab, of: &Exhausted, refused: &UdpSocket) {
    let control = lab.control(1);
    let args = ["monitor", "--drops", "--json", "--count", "1", "--reason", EXHAUSTED];
    let mut watch = Watch::start(&control, &args);
    let mut line = None;
    wait_until(PATIENCE, "the drop is reported", || {
        refused.send_to(b"refused", of.address()).expect("a datagram is sent");
        line = watch.lines.recv_timeout(Duration::from_millis(20)).ok();
        line.is_some()
    });
    watch.end();
    let event: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
    assert_eq!((&event["reason"], &event["port"]), (&EXHAUSTED.into(), &"g3".into()), "{event}");
    assert_eq!(event["flow"]["stage"], "lr_out_snat", "{event}");
    for command in ["show", "ports"] {
        let (_, shown, _) = weft(&control, &[command]);
        assert!(shown.contains(EXHAUSTED), "{shown}");
    }
}

/// Skips the calling test unless tcpdump, tshark and mergecap are installed.
macro_rules! require_tshark {
    () => {
        require_root!();
        require_program!("tcpdump", "tcpdump");
        require_program!("tshark", "tshark");
        require_program!("mergecap", "wireshark-common");
    };
}

/// Length of a TCP stream in each direction: several super-packets.
const TRANSFER_LEN: usize = 70_000;
/// The port of the UDP load balancer. Its address is that of the TCP load balancer.
const UDP_PORT: u16 = 82;

/// The network file text of [`services`]. In addition, the router balances UDP, and forced SNAT
/// makes it the client of the balanced connections.
fn forced(outside: &Guest) -> String {
    let mut text = services(outside)
        .replace("host = \"h2\"\n[[log", "host = \"h2\"\nlb_force_snat_ip = \"router_ip\"\n[[log");
    for family in [4, 6] {
        let vip = SocketAddr::new(router_vips(family)[0].ip(), UDP_PORT);
        let backend = if family == 4 { "192.168.7.1" } else { "[fd77::1]" };
        text += &format!(
            "[[load_balancer]]\nname = \"udp{family}\"\nrouters = [\"edge\"]\n\
             protocol = \"udp\"\nvip = \"{vip}\"\nbackends = [\"{backend}:{BACKEND_PORT}\"]\n"
        );
    }
    text
}

/// Sends the traffic that the test captures: streams, datagrams and ICMP errors, translated by
/// source NAT, by destination NAT, and by load balancers.
fn talk(first: &Guest, third: &Guest, outside: &Guest, family: u8) {
    let server = |port| SocketAddr::new(ip(SERVER, family), port);
    let inside = |guest: &Guest, port| SocketAddr::new(guest.ip(family), port);
    let vip = router_vips(family)[0];
    let _servers = [
        EchoServer::start_at(outside, server(80)),
        EchoServer::start_at(first, inside(first, 80)),
        EchoServer::start_at(first, inside(first, BACKEND_PORT)),
        EchoServer::start_at(third, inside(third, BACKEND_PORT)),
    ];
    let forwarded = |port| SocketAddr::new(ip(FORWARDED, family), port);
    let balanced = SocketAddr::new(vip.ip(), UDP_PORT);
    for (from, to, client) in [
        (first, server(80), ip(OUTSIDE, family)),
        (outside, forwarded(80), ip(SERVER, family)),
        (outside, vip, ip(EDGE, family)),
    ] {
        assert_eq!(traffic::tcp_echo(from, to, TRANSFER_LEN).client, client, "to {to}");
    }
    for (from, own, to, by, client) in [
        (first, first.ip(family), server(53), (outside, server(53)), ip(OUTSIDE, family)),
        (outside, server(0).ip(), forwarded(53), (first, inside(first, 53)), ip(SERVER, family)),
        (outside, server(0).ip(), balanced, (first, inside(first, BACKEND_PORT)), ip(EDGE, family)),
    ] {
        let socket = |guest: &Guest, address: SocketAddr| {
            let socket = guest.netns.run(|| UdpSocket::bind(address)).expect("a UDP socket");
            socket.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
            socket
        };
        let (near, far) = (socket(from, SocketAddr::new(own, 0)), socket(by.0, by.1));
        near.connect(to).expect("a socket can be connected");
        for len in [1, 1300] {
            let (sent, mut bytes) = (traffic::noise(len, 9), vec![0; len + 1]);
            near.send(&sent).expect("a datagram is sent");
            let (got, source) = far.recv_from(&mut bytes).expect("a datagram arrives");
            assert_eq!((&bytes[..got], source.ip()), (&sent[..], client), "to {to}");
            far.send_to(&sent, source).expect("a datagram is sent");
            let got = near.recv(&mut bytes).expect("an answer arrives");
            assert_eq!(bytes[..got], sent, "from {to}");
        }
        // Closes the port. The ICMP error must return through the same translation. A program that
        // another test starts may hold a copy of the socket for a moment, so the datagram is
        // repeated.
        drop(far);
        near.set_read_timeout(Some(Duration::from_millis(500))).expect("a socket has a timeout");
        wait_until(PATIENCE, "the error comes back", || {
            let sent = near.send(b"to a closed port").map(drop);
            let error = sent.and_then(|()| near.recv(&mut [0; 16]).map(drop));
            error.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        });
    }
}

/// Captures the packets that the guests receive during [`talk`] over IPv4 and IPv6. Returns one
/// file.
fn captured(lab: &Lab, outside: &Guest) -> PathBuf {
    let [first, _, third] = &lab.guests[..] else { panic!("three guests") };
    let directory = lab.dir.path();
    let capture = |guest: &Guest| Capture::of_guest(guest, directory, &guest.name);
    let captures = [first, third, outside].map(capture);
    [4, 6].into_iter().for_each(|family| talk(first, third, outside, family));
    let files = captures.map(Capture::stop);
    let all = directory.join("all.pcap");
    let mut merge = command("mergecap");
    merge.arg("-w").arg(&all).args(files);
    run(merge, b"");
    all
}

/// The packets that arrived: the source address of each, and its protocols from IP on.
type Arrived = BTreeSet<(IpAddr, String)>;

/// The message of tshark 4.0 about a partial checksum, which the sender has left to its device.
const BAD_CHECKSUM: &str = "Bad checksum";
/// The fields from which [`checksums`] computes the checksum of the pseudo-header.
const PSEUDO: [&str; 9] = [
    "ip.src",
    "ipv6.src",
    "ip.dst",
    "ipv6.dst",
    "tcp.hdr_len",
    "tcp.len",
    "udp.length",
    "tcp.checksum",
    "udp.checksum",
];

/// The checksum in a guest's segment or datagram, and the checksum of its pseudo-header alone.
fn checksums(fields: &[Vec<String>]) -> Option<[u16; 2]> {
    let first = |name: &str| {
        let at = PSEUDO.iter().position(|field| *field == name).expect("a field");
        fields[at].first()
    };
    let number = |name: &str| first(name)?.parse::<u16>().ok();
    let (protocol, len, checksum) = match number("tcp.len") {
        Some(len) => (Protocol::TCP, number("tcp.hdr_len")? + len, first("tcp.checksum")?),
        None => (Protocol::UDP, number("udp.length")?, first("udp.checksum")?),
    };
    let ends = [first("ip.src").or(first("ipv6.src")), first("ip.dst").or(first("ipv6.dst"))];
    let sum = match ends.map(|end| end.and_then(|end| end.parse().ok())) {
        [Some(IpAddr::V4(src)), Some(IpAddr::V4(dst))] => pseudo_v4(src, dst, protocol, len),
        [Some(IpAddr::V6(src)), Some(IpAddr::V6(dst))] => pseudo_v6(src, dst, protocol, len.into()),
        _ => return None,
    };
    let checksum = u16::from_str_radix(checksum.trim_start_matches("0x"), 16).ok()?;
    Some([checksum, sum.fold()])
}

/// With offloads, the checksum in a captured packet may be partial: that of the pseudo-header
/// alone, to which the device adds the rest. If it is, removes the message about it from the
/// dissection.
fn accept_partial(row: &mut [Vec<String>], pseudo: &[Vec<String>]) {
    let column = |name: &str| Marks::FIELDS.iter().position(|field| *field == name);
    let column = |name: &str| column(name).expect("a field");
    let message = column("_ws.expert.message");
    let complaint = row[message].iter().position(|it| it.starts_with(BAD_CHECKSUM));
    if let (Some(at), Some([found, partial])) = (complaint, checksums(pseudo))
        && found == partial
    {
        for name in ["_ws.expert.severity", "_ws.expert.group", "_ws.expert.message"] {
            row[column(name)].remove(at);
        }
        for name in ["tcp.checksum.status", "udp.checksum.status"] {
            let at = CHECKSUM_STATUS.iter().position(|field| *field == name).expect("a field");
            row[Marks::FIELDS.len() + at].clear();
        }
    }
}

/// Checks that tshark reports no problem for any frame of a capture, including checksums. Returns
/// the packets that arrived, and those of them that were longer than a frame on the wire.
fn assert_clean(file: &Path, is_wire: bool) -> (Arrived, Arrived) {
    let fields = [Marks::FIELDS, CHECKSUM_STATUS, &PSEUDO].concat();
    let (mut arrived, mut long) = (Arrived::new(), Arrived::new());
    for mut row in dissect(file, VERIFY, "ip || ipv6", &fields) {
        let pseudo = row.split_off(Marks::FIELDS.len() + CHECKSUM_STATUS.len());
        if !is_wire {
            accept_partial(&mut row, &pseudo);
        }
        let (marks, statuses) = row.split_at(Marks::FIELDS.len());
        let marks = Marks(marks);
        marks.check();
        let is_checked = statuses.iter().any(|statuses| !statuses.is_empty());
        if is_wire || is_checked {
            marks.check_checksums(statuses, false);
        }
        let protocols = marks.protocols().trim_start_matches("eth:ethertype:");
        let source = pseudo[0].first().or(pseudo[1].first()).expect("a source");
        let source = source.parse().expect("an address");
        let sender = (source, protocols.trim_end_matches(":data").to_owned());
        if marks.frame_len() > WIRE_FRAME_LEN {
            assert!(!is_wire, "{marks} is too long for the wire");
            long.insert(sender.clone());
        }
        arrived.insert(sender);
    }
    (arrived, long)
}

#[test]
fn tshark_finds_translated_packets_clean_when_threads_forward() {
    require_tshark!();
    translated_packets_are_clean(Datapath::User);
}

#[test]
fn tshark_finds_translated_packets_clean_when_programs_forward() {
    require_tshark!();
    translated_packets_are_clean(Datapath::Kernel);
}

fn translated_packets_are_clean(datapath: Datapath) {
    for is_wire in [false, true] {
        received_packets_are_clean(datapath, is_wire);
        let frames = if is_wire { "complete frames" } else { "super-packets" };
        let by = datapath.name();
        report::peer("tshark", &format!("translated {frames}: checksums; {by} datapath"));
    }
}

/// Checks the packets that guests receive. With `is_wire`, guests have veth interfaces without
/// offloads, otherwise TAP devices.
fn received_packets_are_clean(datapath: Datapath, is_wire: bool) {
    let mut outside = outside();
    outside.ip4 = SERVER[0].parse().expect("an address");
    outside.ip6 = SERVER[1].parse().expect("an address");
    let mut text = forced(&outside);
    let setup = Setup::new("geneve").guests(2, 1).datapath(datapath);
    let lab = if is_wire {
        let (device, _) =
            text.split_once("device = ").and_then(|(_, it)| it.split_once('\n')).expect("a device");
        let own = format!("{{ interface = \"{}\" }}", outside.host_device());
        text =
            text.replace(device, &own).replace("vni = 5002", &format!("vni = 5002\nmtu = {MTU}"));
        let lab = Lab::new(setup.more(&text).attachment(Attachment::Veth).mtu(MTU));
        outside.attach(&lab.hosts[0], MTU);
        for guest in lab.guests.iter().chain([&outside]) {
            carry_wire_frames(&lab.hosts[guest.host].netns, &guest.host_device());
        }
        carry_wire_frames(&outside.netns, GUEST_DEVICE);
        // With the user datapath, the guests send super-packets, which are segmented after their
        // translation. Packets that eBPF programs forward do not pass the host's end of the veth
        // pair, which would complete them. So with the kernel datapath, guests must send complete
        // packets.
        if datapath == Datapath::Kernel {
            lab.guests.iter().for_each(|guest| carry_wire_frames(&guest.netns, GUEST_DEVICE));
        }
        lab
    } else {
        Lab::new(setup.more(&text))
    };
    let daemons = lab.start_both();
    lab.guests.iter().for_each(add_routes);
    let file = captured(&lab, &outside);
    let (arrived, long) = assert_clean(&file, is_wire);
    for family in [4, 6] {
        let [own, server, forwarded, inside] =
            [OUTSIDE, SERVER, FORWARDED, EDGE].map(|of| ip(of, family));
        let vip = router_vips(family)[0].ip();
        let (version, icmp) = if family == 4 { ("ip", "icmp") } else { ("ipv6", "icmpv6") };
        let [tcp, udp] = ["tcp", "udp"].map(|it| format!("{version}:{it}"));
        let error = format!("{version}:{icmp}:{udp}");
        for from in [own, server, forwarded, vip, inside] {
            for kind in [&tcp, &udp] {
                assert!(arrived.contains(&(from, kind.clone())), "{from} {kind}: {arrived:?}");
            }
            assert!(is_wire || long.contains(&(from, tcp.clone())), "{from}: {long:?}");
        }
        for from in [server, forwarded, vip] {
            assert!(arrived.contains(&(from, error.clone())), "{from} {error}: {arrived:?}");
        }
    }
    daemons.into_iter().for_each(Daemon::stop);
}
