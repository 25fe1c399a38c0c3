//! The doctor's predictions for super-packets must agree with the kernel. The test sets every
//! combination of offloads on a veth, and a packet socket at its peer shows whether super-packets
//! arrive whole.
//!
//! GRE is not tested, because a virtio-net header cannot describe a GRE super-packet.

use doctor::checks::tunnel::{OuterHeaders, PerformedBy, TunnelSupport, tunnel_support};
use doctor::facts::NicFacts;
use flow::TunnelType;
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use netdev::udp::{TxOptions, TxPool, TxUdpBatch};
use netdev::{Dad, IpNet, LinkKind, LinkSpec, VxlanSpec};
use packet::PacketBuf;
use std::collections::BTreeMap;
use std::io::{IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use testkit::host::{TestHost, WireEnd, pair};
use testkit::merging::{MSS, Merging, PAYLOAD, super_packet};
use testkit::require_root;
use wire::Vni;

/// Longer than any frame segmented for an MTU of 1500, including two tags.
const WHOLE: usize = 1600;
/// Timeout for the arrival of frames.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The offloads that are switched. The offloads of one group are switched together.
const SWITCHES: [&[&str]; 5] = [
    &["tx-tcp-segmentation", "tx-tcp6-segmentation"],
    &["tx-udp-segmentation"],
    &["tx-udp_tnl-segmentation"],
    &["tx-udp_tnl-csum-segmentation"],
    &["tx-checksum-ip-generic"],
];

struct Lab {
    near: TestHost,
    far: TestHost,
    ends: (WireEnd, WireEnd),
    watcher: PacketSocket,
    sender: PacketSocket,
    trains: TxPool,
}

impl Lab {
    fn new() -> Self {
        let (near, far) = (TestHost::new("near"), TestHost::new("far"));
        let ends = pair(&near, &far);
        // Two kernel VXLAN tunnels: with and without outer checksum.
        for (host, local, remote, number) in
            [(&near, ends.0.ip4, ends.1.ip4, 1), (&far, ends.1.ip4, ends.0.ip4, 2)]
        {
            for (vni, udp_checksum) in [(1, true), (2, false)] {
                let spec = VxlanSpec {
                    local: Some(local.into()),
                    remote: Some(remote.into()),
                    udp_checksum,
                    ..VxlanSpec::new(Vni::new(vni).unwrap())
                };
                let name = format!("vx{vni}");
                let link = LinkSpec::new(&name).mtu(1450).up();
                let index = host.netlink().create(&link, &LinkKind::Vxlan(spec)).unwrap();
                let address = IpNet::new(inside(vni, number).into(), 24).unwrap();
                host.netlink().add_address(index, address, Dad::Skip).unwrap();
            }
        }
        let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
        let watcher = far
            .run(|| PacketSocket::open(ends.1.index, &SocketFilter::everything(), options))
            .expect("a packet socket");
        let sender = near.run(|| PacketSocket::open_sender(ends.0.index)).expect("a packet socket");
        let trains = near
            .run(|| TxPool::new(ends.0.ip4.into(), TxOptions { count: 1, ..TxOptions::default() }))
            .expect("a UDP socket");
        Self { near, far, ends, watcher, sender, trains }
    }

    /// Switches the offloads according to the bits of `on`.
    fn switch(&self, on: usize) {
        // Checksums first: segmentation requires them.
        let features = SWITCHES.iter().enumerate().rev();
        let features =
            features.flat_map(|(bit, names)| names.iter().map(move |n| (*n, on >> bit & 1 == 1)));
        let features: Vec<_> = features.collect();
        // The result is ignored: a requested offload stays off if it depends on one that is off,
        // and the facts show that.
        let _ = self.near.ethtool().unwrap().set_features(&self.ends.0.name, &features).unwrap();
    }

    /// Calls `send`. Returns the length of the longest arriving frame that `is_of_kind` accepts.
    fn longest(&self, is_of_kind: fn(&[u8], bool) -> bool, send: impl FnOnce(&Self)) -> usize {
        let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
        while let Ok(Some(_)) = self.watcher.recv(&mut packet) {}
        send(self);
        let end = Instant::now() + TIMEOUT;
        let (mut longest, mut bytes) = (0, 0);
        while bytes < PAYLOAD {
            match self.watcher.recv(&mut packet) {
                Ok(Some(received)) => {
                    packet.linearize();
                    if is_of_kind(packet.head(), received.vlan.is_some()) {
                        longest = longest.max(packet.len());
                        bytes += packet.len();
                    }
                }
                _ => std::thread::sleep(Duration::from_micros(100)),
            }
            assert!(Instant::now() < end, "timeout: {bytes} of {PAYLOAD} bytes arrived");
        }
        longest
    }

    /// Sends a TCP stream through a kernel VXLAN tunnel.
    fn stream(&self, vni: u32) {
        let (from, to) = (inside(vni, 1), inside(vni, 2));
        let listener = self.far.run(|| TcpListener::bind((to, 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_to_end(&mut Vec::new()).unwrap();
            });
            self.near.run(|| {
                let mut stream = TcpStream::connect((to, port)).unwrap();
                assert_eq!(stream.local_addr().unwrap().ip(), IpAddr::from(from));
                stream.write_all(&vec![7; 10 * PAYLOAD]).unwrap();
            });
        });
    }

    fn frame(&self, tags: &[u16]) {
        self.sender.send(&super_packet(&self.ends, tags)).expect("a super-packet can be sent");
    }

    fn train(&self) {
        let train = TxUdpBatch {
            dst: SocketAddr::new(self.ends.1.ip4.into(), 9),
            entropy: 0,
            tos: 0,
            ttl: None,
            gso_size: Some(MSS),
        };
        self.trains.send(&train, &[IoSlice::new(&[7; PAYLOAD])]).expect("a train can be sent");
    }
}

fn inside(vni: u32, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 16, vni as u8, host)
}

fn is_udp(frame: &[u8], _: bool) -> bool {
    frame.get(12..14) == Some(&[0x08, 0x00]) && frame.get(23) == Some(&17)
}

fn is_tcp(frame: &[u8], tagged: bool) -> bool {
    !tagged && frame.get(12..14) == Some(&[0x08, 0x00]) && frame.get(23) == Some(&6)
}

fn is_tagged(_: &[u8], tagged: bool) -> bool {
    tagged
}

#[test]
fn prediction_is_right_for_super_packets_with_every_set_of_offloads() {
    require_root!();
    let lab = Lab::new();
    let predict = |tunnel, checksum| -> TunnelSupport {
        let nic = lab.near.run(|| NicFacts::read(&lab.ends.0.name)).unwrap();
        tunnel_support(&nic, tunnel, OuterHeaders { v6: false, checksum })
    };
    let mut seen: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for on in 0..1 << SWITCHES.len() {
        lab.switch(on);
        let mut check = |what: &str, outcome: PerformedBy, longest: usize| {
            let expected = if longest > WHOLE { PerformedBy::Yes } else { PerformedBy::InSoftware };
            seen.entry(what.to_owned()).or_default()[usize::from(longest > WHOLE)] += 1;
            let state: Vec<_> = SWITCHES.iter().map(|names| names[0]).enumerate().collect();
            assert_eq!(
                outcome, expected,
                "{what}: frames of {longest} bytes; {on:#b} of {state:?}"
            );
        };
        for (vni, checksum) in [(1, true), (2, false)] {
            let outcome = predict(TunnelType::Vxlan, checksum).kernel_segmentation.unwrap().outcome;
            let longest = lab.longest(is_udp, |lab| lab.stream(vni));
            check(if checksum { "kernel, checksum" } else { "kernel" }, outcome, longest);
        }
        let outcome = predict(TunnelType::Geneve, true).segmentation.outcome;
        check("train", outcome, lab.longest(is_udp, Lab::train));
        let outcome = predict(TunnelType::Stt, false).segmentation.outcome;
        check("STT", outcome, lab.longest(is_tcp, |lab| lab.frame(&[])));
        let outcome = predict(TunnelType::Vlan, false).segmentation.outcome;
        check("VLAN", outcome, lab.longest(is_tagged, |lab| lab.frame(&[0x8100])));
        let outcome = predict(TunnelType::QinQ, false).segmentation.outcome;
        check("QinQ", outcome, lab.longest(is_tagged, |lab| lab.frame(&[0x88a8, 0x8100])));
    }
    assert_eq!(seen.len(), 6);
    for (what, counts) in seen {
        assert!(counts.iter().all(|count| *count > 0), "{what}: only one outcome: {counts:?}");
    }
}

#[test]
fn prediction_is_right_for_segments_behind_tags() {
    require_root!();
    let lab = Merging::new();
    let device = lab.device();
    let nic = lab.receiver.run(|| NicFacts::read(device)).unwrap();
    for (tunnel, tags) in [
        (TunnelType::Stt, &[][..]),
        (TunnelType::Vlan, &[0x8100]),
        (TunnelType::QinQ, &[0x88a8, 0x8100]),
    ] {
        let support = tunnel_support(&nic, tunnel, OuterHeaders::DEFAULT).gro;
        let expected = if lab.merges(tags) { PerformedBy::InSoftware } else { PerformedBy::No };
        assert_eq!(support.outcome, expected, "{tunnel}: {}", support.why);
    }
}
