//! Tests guests that try to reach resources of the host: its services, its control protocols, and
//! the path probes between hosts.

use super::geneve::{GENEVE_PORT, geneve_header};
use super::stt::STT_PORT;
use super::target::TEB;
use super::vxlan::VXLAN_PORT;
use crate::common::daemon::{WEFT, end_of_reply};
use crate::common::frames::{FrameSocket, frame, note};
use crate::common::outer::{Outer, TCP};
use crate::common::{
    Attachment, Daemon, GUEST_DEVICE, Guest, Host, Lab, PATIENCE, Setup, TUNNELS, traffic,
};
use std::cell::RefCell;
use std::fs;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::process::Stdio;
use switch::probe::Probe;
use testkit::host::wait_until;
use testkit::require_root;
use wire::MacAddr;

/// The UDP port of BFD (RFC 5881).
const BFD: u16 = 3784;
/// The TCP port of OVSDB (RFC 7047).
const OVSDB: u16 = 6640;
const LLDP: u16 = 0x88cc;
/// A destination address that bridges must not forward (IEEE 802.1Q table 8-1).
const NEAREST_BRIDGE: MacAddr = MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x0e]);
const ATTACK: &str = "ATTACK";

/// Sockets on a host that listen at all of its addresses.
struct Services {
    bfd: UdpSocket,
    ovsdb: TcpListener,
}

impl Services {
    fn start(host: &Host) -> Self {
        host.netns.run(|| {
            let bfd = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, BFD)).expect("a UDP socket");
            let ovsdb = TcpListener::bind((Ipv6Addr::UNSPECIFIED, OVSDB)).expect("a listener");
            bfd.set_nonblocking(true).expect("a socket can be made non-blocking");
            ovsdb.set_nonblocking(true).expect("a listener can be made non-blocking");
            Self { bfd, ovsdb }
        })
    }

    /// Whether a datagram has arrived.
    fn is_reached(&self) -> bool {
        self.bfd.recv_from(&mut [0; 100]).is_ok()
    }
}

/// The number of TCP segments that the kernel of a host has received.
fn segments(host: &Host) -> u64 {
    let read = || fs::read_to_string("/proc/thread-self/net/snmp").expect("the kernel's counters");
    let text = host.netns.run(read);
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp: "));
    let [names, values] = [lines.next(), lines.next()].map(|line| line.expect("two lines of TCP"));
    let at = names.split(' ').position(|name| name == "InSegs").expect("a counter");
    values.split(' ').nth(at).and_then(|value| value.parse().ok()).expect("a number")
}

/// Datagrams and TCP SYNs to the services of a host, for every address that the host has or
/// receives packets for.
fn attacks(lab: &Lab, attacker: &Guest, macs: &[MacAddr]) -> Vec<Vec<u8>> {
    let host = &lab.hosts[0];
    let peer = &lab.hosts[1];
    let addresses: [(IpAddr, IpAddr); 6] = [
        (attacker.ip4.into(), host.uplink.ip4.into()),
        // A service may respond only to neighbours, so the source is also a neighbour's address.
        (peer.uplink.ip4.into(), host.uplink.ip4.into()),
        (attacker.ip4.into(), Ipv4Addr::new(224, 0, 0, 1).into()),
        (attacker.ip4.into(), Ipv4Addr::LOCALHOST.into()),
        (peer.uplink.ip6.into(), host.uplink.ip6.into()),
        (attacker.ip6.into(), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into()),
    ];
    let mut frames = Vec::new();
    for &dst_mac in macs {
        for (src, dst) in addresses {
            let to = Outer { src_mac: attacker.mac, dst_mac, src, dst, traffic_class: 0 };
            frames.push(to.udp(BFD, ATTACK.as_bytes()));
            let mut syn = [50_000, OVSDB].map(u16::to_be_bytes).concat();
            syn.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0, 0, 0, 0, 0]);
            let sum = to.transport_sum(TCP, &syn).checksum();
            syn[16..18].copy_from_slice(&sum.to_be_bytes());
            frames.push(to.packet(TCP, &syn));
        }
        frames.push(frame(dst_mac, attacker.mac, LLDP, ATTACK.as_bytes()));
    }
    frames
}

#[test]
fn services_of_the_host_are_not_reached_when_a_guest_addresses_them() {
    require_root!();
    let attached = [(Attachment::Tap, "geneve"), (Attachment::Veth, "geneve")];
    for (attachment, tunnel) in attached {
        let lab = Lab::new(Setup::new(tunnel).mtu(1400).attachment(attachment));
        let (near, far) = lab.ends();
        let host = &lab.hosts[0];
        let mut macs = vec![host.uplink.mac, MacAddr::BROADCAST, NEAREST_BRIDGE];
        if attachment == Attachment::Veth {
            // The settings that docs/network-toml.md requires for such ports.
            let device = near.host_device();
            for (name, value) in [("ipv6/conf", "disable_ipv6"), ("ipv4/conf", "rp_filter")]
                .map(|(folder, name)| (format!("net/{folder}/{device}/{name}"), "1"))
            {
                host.netns.sysctl(&name, value).expect("a sysctl can be set");
            }
            macs.push(host.netns.netlink().link(&device).expect("it is there").mac);
        }
        let daemons = lab.start_both();
        traffic::ping(&near.netns, far.ip(4));
        let services = Services::start(host);
        let attacker = FrameSocket::open(&near.netns, GUEST_DEVICE);
        let wire = FrameSocket::open(&lab.hosts[1].netns, &lab.hosts[1].uplink.name);
        // A neighbour on the underlay can reach the services.
        let address = lab.hosts[1].uplink.ip4;
        let neighbour = lab.hosts[1].netns.run(|| UdpSocket::bind((address, 0)));
        let neighbour = neighbour.expect("a UDP socket");
        neighbour.send_to(b"hello", (host.uplink.ip4, BFD)).expect("it is sent");
        wait_until(PATIENCE, "a neighbour reaches the host", || services.is_reached());
        let before = segments(host);
        let attacks = attacks(&lab, near, &macs);
        // Frames of the second round can match megaflows of the first.
        for round in 1..=2 {
            attacks.iter().for_each(|frame| attacker.send(frame));
            let sent = |daemon: &Daemon| daemon.show().ports[0].rx.packets;
            let expected = (round * attacks.len()) as u64;
            wait_until(PATIENCE, "weft has all of them", || sent(&daemons[0]) >= expected);
        }
        let end = note(far.mac, near.mac, "the end");
        attacker.send(&end);
        let seen = wire.until_note("the end");
        let what = format!("{attachment:?}");
        assert!(!services.is_reached(), "{what}: a datagram of a guest arrived");
        assert!(services.ovsdb.accept().is_err(), "{what}: a guest is connected");
        assert_eq!(segments(host), before, "{what}: segments of a guest arrived");
        // Frames that guests broadcast or multicast must be in the tunnel, not on the underlay.
        let plain = seen.iter().filter(|frame| frame[12..14] == LLDP.to_be_bytes());
        assert_eq!(plain.count(), 0, "{what}: LLDP of a guest is on the underlay");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn daemon_listens_to_nothing_but_its_tunnels() {
    require_root!();
    for tunnel in TUNNELS {
        let lab = Lab::new(Setup::new(tunnel));
        let daemon = lab.start(0);
        let read = |file: &str| {
            let path = format!("/proc/thread-self/net/{file}");
            lab.hosts[0].netns.run(|| fs::read_to_string(path)).expect("the kernel's sockets")
        };
        // The namespace has no other programs. The first line of the file is a heading.
        let sockets =
            |file: &str| -> Vec<String> { read(file).lines().skip(1).map(str::to_owned).collect() };
        for file in ["udplite", "udplite6"] {
            assert_eq!(sockets(file), Vec::<String>::new(), "{tunnel}: {file}");
        }
        for file in ["tcp", "tcp6", "udp", "udp6"] {
            for socket in sockets(file) {
                let local = socket.split_whitespace().nth(1).expect("a local address");
                let (address, port) = local.split_once(':').expect("a port");
                let port = u16::from_str_radix(port, 16).expect("a port in hexadecimal");
                // The kernel opens this socket for the device `weft-gro`, which discards received
                // packets.
                let is_kernels = file.starts_with("udp") && port == VXLAN_PORT;
                let is_bound = address.bytes().any(|digit| digit != b'0');
                assert!(is_bound || is_kernels, "{tunnel}: {socket} takes all");
                // The socket that reserves the port of STT accepts no connections.
                let is_allowed = file.starts_with("udp") || (tunnel, port) == ("stt", STT_PORT);
                assert!(is_allowed, "{tunnel}: {socket} listens");
            }
        }
        // A socket with a file is protected by the mode of that file. The abstract socket with this
        // name is only a lock, and accepts no connections.
        let in_no_file =
            |line: &String| line.contains('@') && !line.ends_with("@weft-kernel-datapath");
        let others: Vec<_> = sockets("unix").into_iter().filter(in_no_file).collect();
        assert_eq!(others, Vec::<String>::new(), "{tunnel}");
        daemon.stop();
    }
}

/// The number of path probes that a daemon has received.
fn probes(lab: &Lab, host: usize) -> u64 {
    let totals = end_of_reply(&lab.control(host), r#"{"command":"flows"}"#);
    totals["switch"]["probes"].as_u64().expect("a number")
}

/// A path probe request and a reply with a guessed token, in the format that hosts use.
fn forged_probes(token: u64) -> [Vec<u8>; 2] {
    let question = Probe::question(token, 1, 1400);
    let reply = Probe { is_reply: true, ..question };
    [question, reply].map(|probe| probe.emit(Probe::MIN_FRAME))
}

#[test]
fn path_probes_of_a_guest_are_frames_like_any_other() {
    require_root!();
    for tunnel in TUNNELS {
        // Learning does not depend on the tunnel type, so one type suffices for it.
        for &learns in if tunnel == "geneve" { &[false, true][..] } else { &[false] } {
            let lab = Lab::new(Setup::new(tunnel));
            if learns {
                let text = fs::read_to_string(lab.network_file()).expect("a network file");
                let text = text.replace("addresses = ", "learn = true\naddresses = ");
                fs::write(lab.network_file(), text).expect("a file can be written");
            }
            let daemons = lab.start_both();
            let (near, far) = lab.ends();
            let [attacker, victim] =
                [near, far].map(|guest| FrameSocket::open(&guest.netns, GUEST_DEVICE));
            let mut frames = Vec::new();
            for probe in forged_probes(1) {
                let tagged = [&probe[..12], &[0x81, 0, 0, 0], &probe[12..]].concat();
                let mut to_guest = probe.clone();
                to_guest[..6].copy_from_slice(&far.mac.0);
                let outer = Outer {
                    src_mac: near.mac,
                    dst_mac: far.mac,
                    ..Outer::between(&lab.hosts[0], &lab.hosts[1], 4)
                };
                let payload = [&geneve_header(0, 0, TEB, 0, &[])[..], &probe].concat();
                frames.extend([probe, tagged, to_guest, outer.udp(GENEVE_PORT, &payload)]);
            }
            let what = format!("{tunnel}, learning: {learns}");
            for _ in 0..2 {
                frames.iter().for_each(|frame| attacker.send(frame));
                // The other guest receives them as ordinary frames. A punted frame may be overtaken
                // by later ones.
                let missing = RefCell::new(frames[2..4].to_vec());
                victim.until(&what, |seen| {
                    missing.borrow_mut().retain(|frame| frame != seen);
                    missing.borrow().is_empty()
                });
            }
            let expected = if learns { 0 } else { 8 };
            wait_until(
                PATIENCE,
                &format!("{what}: frames to unknown addresses are dropped"),
                || {
                    let drops = daemons[0].drops();
                    drops.get("unknown_mac").copied().unwrap_or(0) >= expected
                },
            );
            for host in [0, 1] {
                assert_eq!(probes(&lab, host), 0, "{what}");
            }
            daemons.into_iter().for_each(Daemon::stop);
        }
    }
}

/// The report of `weft doctor --path h2` on `h1`. `meanwhile` is called repeatedly until the
/// command ends.
fn measure(lab: &Lab, mut meanwhile: impl FnMut()) -> String {
    let mut command = lab.hosts[0].netns.program(WEFT);
    command.args(["doctor", "--path", "h2", "--json", "--control"]).arg(lab.control(0));
    let mut doctor = command.stdout(Stdio::piped()).spawn().expect("weft can be started");
    wait_until(PATIENCE, "the doctor ends", || {
        meanwhile();
        doctor.try_wait().expect("a child can be waited for").is_some()
    });
    let mut report = String::new();
    doctor.stdout.take().expect("a pipe").read_to_string(&mut report).expect("UTF-8");
    report
}

#[test]
fn replies_to_path_probes_are_ignored_when_another_host_sends_them_or_guesses() {
    require_root!();
    const NO_ANSWER: &str = "no answer from";
    let mut lab = Lab::new(Setup::new("geneve"));
    let from_second = Outer::between(&lab.hosts[1], &lab.hosts[0], 4);
    let from_third = from_second.as_stranger();
    let third = from_third.src;
    lab.change_setup(|setup| {
        setup.more(&format!(
            "[[logical_switch.port]]\nname = \"g3\"\nhost = \"h3\"\nmac = \"02:00:00:00:00:03\"\n\
             device = {{ tap = \"g3\" }}\n\
             [[host]]\nname = \"h3\"\nuplink = \"eth0\"\nunderlay = [\"{third}\"]\n"
        ))
    });
    // No daemon runs on `h2`, so only the test sends replies.
    let daemon = lab.start(0);
    let wire = FrameSocket::open(&lab.hosts[1].netns, &lab.hosts[1].uplink.name);
    let send = |outer: Outer, probe: &[u8]| {
        let payload = [&geneve_header(0, 0, TEB, 0, &[])[..], probe].concat();
        wire.send(&outer.udp(GENEVE_PORT, &payload));
    };
    let is_request = |frame: &[u8]| {
        const INNER: usize = 14 + 20 + 8 + 8;
        let is_tunnel = frame.get(36..38) == Some(&GENEVE_PORT.to_be_bytes());
        let probe = frame.get(INNER..).filter(|_| is_tunnel).and_then(Probe::parse);
        probe.filter(|probe| !probe.is_reply)
    };
    let answer = |outer: Outer| {
        let pending = wire.pending();
        for probe in pending.iter().filter_map(|frame| is_request(frame)) {
            send(outer, &Probe { is_reply: true, ..probe }.emit(Probe::MIN_FRAME));
        }
    };

    // Replies of a third host, which knows the token and is an end point, must be ignored.
    let report = measure(&lab, || answer(from_third));
    assert!(report.contains(NO_ANSWER), "{report}");
    assert!(probes(&lab, 0) > 0, "the replies have arrived");

    // Tokens must not be numbers that are easy to guess.
    let guesses: Vec<_> = (0..4_u64)
        .flat_map(|low| [low, u64::from(daemon.pid()) << 32 | low])
        .flat_map(|token| (0..20).map(move |number| (token, number)))
        .collect();
    let report = measure(&lab, || {
        for &(token, number) in &guesses {
            let reply = Probe { is_reply: true, ..Probe::question(token, number, 0) };
            send(from_second, &reply.emit(Probe::MIN_FRAME));
        }
    });
    assert!(report.contains(NO_ANSWER), "{report}");

    // Replies of the host that was probed are accepted.
    let report = measure(&lab, || answer(from_second));
    assert!(!report.contains(NO_ANSWER), "{report}");
    daemon.stop();
}
