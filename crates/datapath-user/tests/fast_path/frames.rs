//! Punted frames are handled like frames that the datapath reads from their ingress device.

use super::fake_programs::FakePrograms;
use super::{BASE, Lab, PATIENCE, SEED, UPLINK, guest_mac, guest_port};
use datapath::config::{EndpointConfig, LinkConfig, TunnelConfig, Underlay};
use datapath::megaflow::Megaflow;
use datapath::stats::Snapshot;
use datapath::{Datapath, DumpCursor, watch::CaptureDirection};
use datapath_user::UserDatapath;
use flow::{
    Action, DatapathKey, Dscp, EndpointId, EndpointTable, Field, InnerFlow, Match, PortNo, TagLink,
    Ttl, TunnelKey, TunnelSpec, TunnelType,
};
use netdev::af_packet::{PacketOptions, PacketSocket, VlanTag};
use netdev::filter::SocketFilter;
use packet::{Checksum, Gso, GsoKind, PacketBuf};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use testkit::host::{TestHost, wait_until};
use wire::checksum::{Sum, checksum, pseudo_v4};
use wire::{Protocol, VlanId};

const GRE_PORT: PortNo = PortNo(0xffff_ff02);
const TAG_PORT: PortNo = PortNo(0xffff_ff04);

/// A TCP packet from guest 1 to guest 2 with a partial checksum.
fn tcp(payload: usize) -> PacketBuf {
    let (src, dst) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let [high, low] = (40 + payload as u16).to_be_bytes();
    let mut ip = [0x45, 0, high, low, 0, 0, 0x40, 0, 64, 6, 0, 0].to_vec();
    ip.extend([src, dst].concat());
    let sum = checksum(&ip).to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
    let pseudo = pseudo_v4(src.into(), dst.into(), Protocol::TCP, 20 + payload as u16).fold();
    let mut l4 = [0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff].to_vec();
    l4.extend(pseudo.to_be_bytes());
    l4.extend([0, 0]);
    let macs = [guest_mac(2).0, guest_mac(1).0].concat();
    let frame = [&macs[..], &[8, 0], &ip, &l4, &vec![0xa5; payload]].concat();
    let mut packet = PacketBuf::from_bytes(&frame);
    packet.offload.checksum = Checksum::Partial { start: 34, offset: 16 };
    packet
}

fn super_packet(payload: usize) -> PacketBuf {
    let mut packet = tcp(payload);
    packet.offload.gso = Some(Gso { kind: GsoKind::TcpV4, size: 1000, ecn: false });
    packet
}

/// Puts a megaflow that applies `actions` to every packet from `port`.
fn put(datapath: &UserDatapath, port: PortNo, actions: Vec<Action>) {
    let mut condition = Match::any();
    assert!(condition.require(Field::InPort, port.0.into(), u32::MAX.into()));
    datapath.put(vec![Megaflow::new(condition, actions.into())]).unwrap();
    datapath.snapshot().unwrap();
}

/// A socket that receives all frames of a guest.
fn listen(guest: &TestHost) -> PacketSocket {
    let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
    guest.run(|| PacketSocket::open_name("eth0", &SocketFilter::everything(), options)).unwrap()
}

/// The next frame from `socket`, with its tag inserted.
fn next(socket: &PacketSocket) -> PacketBuf {
    let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(received) = socket.recv(&mut packet).unwrap() {
            if let Some(VlanTag { tpid, tci }) = received.vlan {
                let tag = wire::vlan::Tag::from_tci(wire::EtherType(tpid), tci);
                flow::push_vlan(&mut packet, tag).unwrap();
            }
            return packet;
        }
        assert!(Instant::now() < deadline, "no frame arrived in time");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn uplink_drops(snapshot: &Snapshot, reason: &str) -> u64 {
    snapshot.uplink.drops.get(reason).copied().unwrap_or(0)
}

#[test]
fn frame_goes_from_guest_to_guest_with_its_tags_and_offloads() {
    testkit::require_root!();
    testkit::require_program!("clang-19", "clang-19");
    testkit::require_program!("tc", "iproute2");
    let lab = Lab::new();
    let guests = [TestHost::new("g1"), TestHost::new("g2")];
    let programs = FakePrograms::attached();
    let ports = vec![guest_port(1, &guests[0]), guest_port(2, &guests[1])];
    let datapath = lab.start(&programs, ports);
    // Packets of the guests' own network stacks are dropped.
    let mut condition = Match::any();
    let mac = u128::from_be_bytes([&[0; 10], &guest_mac(2).0[..]].concat().try_into().unwrap());
    assert!(condition.require(Field::InPort, 1, u32::MAX.into()));
    assert!(condition.require(Field::EthDst, mac, (1 << 48) - 1));
    datapath.put(vec![Megaflow::new(condition, [Action::Output(PortNo(2))].into())]).unwrap();
    let watching = datapath.watch_frames(PortNo(2), 2000).unwrap();
    datapath.snapshot().unwrap();
    let [from, to] = [listen(&guests[0]), listen(&guests[1])];
    let tags = [&[][..], &[(0x8100, 0x6007)], &[(0x88a8, 5)], &[(0x88a8, 5), (0x8100, 6)]];
    let (mut packets, mut bytes) = (0, 0);
    for (packet, &tags) in [tcp(10), tcp(1000), super_packet(20_000), super_packet(60_000)]
        .iter()
        .flat_map(|packet| tags.iter().map(move |tags| (packet, tags)))
    {
        let mut packet = packet.clone();
        for &(tpid, tci) in tags.iter().rev() {
            let tag = wire::vlan::Tag::from_tci(wire::EtherType(tpid), tci);
            flow::push_vlan(&mut packet, tag).unwrap();
        }
        from.send(&packet).unwrap();
        let got = next(&to);
        assert_eq!(got.to_vec(), packet.to_vec(), "{tags:x?}");
        assert_eq!(got.offload, packet.offload, "{tags:x?}");
        let mut seen = std::iter::from_fn(|| watching.recv_timeout(PATIENCE).ok());
        let seen = seen.find(|seen| seen.direction == CaptureDirection::ToGuest);
        assert_eq!(seen.map(|seen| seen.len), Some(packet.len()));
        (packets, bytes) = (packets + 1, bytes + packet.len() as u64);
    }
    let snapshot = datapath.snapshot().unwrap();
    let [one, two] = &snapshot.ports[..] else { panic!("two ports: {snapshot:?}") };
    assert_eq!((two.tx.packets, two.tx.bytes), (packets, bytes));
    assert!(one.rx.packets >= packets && one.rx.bytes >= bytes, "{one:?}");
}

/// The number of lookups of each worker.
fn lookups_by_worker(datapath: &UserDatapath) -> Vec<u64> {
    let mut counts = Vec::new();
    let mut from = Some(DumpCursor::default());
    while let Some(cursor) = from {
        let (usages, next) = datapath.usage(cursor, 1000).unwrap();
        counts.resize(cursor.worker + 1, 0);
        counts[cursor.worker] += usages.iter().map(|(_, usage)| usage.packets).sum::<u64>();
        from = next;
    }
    counts
}

#[test]
fn flow_stays_with_one_worker_and_all_workers_get_flows() {
    testkit::require_root!();
    testkit::require_program!("clang-19", "clang-19");
    testkit::require_program!("tc", "iproute2");
    const FLOWS: u8 = 24;
    const FRAMES: u64 = 10;
    let lab = Lab::new();
    let guests = [TestHost::new("g1"), TestHost::new("g2")];
    let programs = FakePrograms::attached();
    let ports = vec![guest_port(1, &guests[0]), guest_port(2, &guests[1])];
    let datapath = lab.start(&programs, ports);
    let mut condition = Match::any();
    assert!(condition.require(Field::InPort, 1, u32::MAX.into()));
    assert!(condition.require(Field::IpProto, 6, 0xff));
    datapath.put(vec![Megaflow::new(condition, [Action::Output(PortNo(2))].into())]).unwrap();
    datapath.snapshot().unwrap();
    let [from, to] = [listen(&guests[0]), listen(&guests[1])];
    let mut served = [0; 2];
    for flow in 0..FLOWS {
        let before = lookups_by_worker(&datapath);
        for frame in 0..FRAMES {
            let mut packet = tcp(100 + usize::from(flow));
            packet.head_mut()[35] = flow;
            packet.head_mut()[41] = frame as u8;
            from.send(&packet).unwrap();
        }
        for frame in 0..FRAMES {
            let got = next(&to);
            assert_eq!((got.head()[35], u64::from(got.head()[41])), (flow, frame), "in order");
        }
        let after = lookups_by_worker(&datapath);
        let grown: Vec<u64> = before.iter().zip(&after).map(|(a, b)| b - a).collect();
        match grown[..] {
            [FRAMES, 0] => served[0] += 1,
            [0, FRAMES] => served[1] += 1,
            _ => panic!("several workers handled one flow: {grown:?}"),
        }
    }
    assert!(served.iter().all(|flows| *flows > 2), "{served:?}");
}

#[test]
fn frame_is_counted_when_its_punt_header_is_missing_or_names_no_port() {
    testkit::require_root!();
    let lab = Lab::new();
    let programs = FakePrograms::idle();
    let datapath = lab.start(&programs, Vec::new());
    for _ in 0..3 {
        programs.send(&tcp(100));
    }
    for _ in 0..2 {
        programs.punt(PortNo(77), &mut tcp(100));
    }
    // A frame from the uplink that is neither tagged nor GRE, so no tunnel accepts it.
    programs.punt(UPLINK, &mut tcp(100));
    wait_until(PATIENCE, "all frames are counted", || {
        let snapshot = datapath.snapshot().unwrap();
        let counted = ["malformed", "no_such_port", "tunnel_protocol"]
            .map(|reason| uplink_drops(&snapshot, reason));
        counted == [3, 2, 1]
    });
}

#[test]
fn frames_are_counted_when_the_queue_of_the_tap_is_full() {
    testkit::require_root!();
    let lab = Lab::new();
    let programs = FakePrograms::idle();
    let datapath = lab.start(&programs, Vec::new());
    let index = lab.host.netlink().index_of(super::TAP).unwrap();
    lab.host.netlink().set_tx_queue_len(index, 1).unwrap();
    const FRAMES: u64 = 3000;
    for _ in 0..FRAMES {
        programs.punt(PortNo(77), &mut tcp(100));
    }
    let lost = || lab.host.netlink().link_by_index(index).unwrap().stats.tx_dropped;
    assert!(lost() > 0, "the test has filled the queue");
    wait_until(PATIENCE, "all frames are counted", || {
        let snapshot = datapath.snapshot().unwrap();
        let overruns = uplink_drops(&snapshot, "receive_overrun");
        overruns == lost() && overruns + uplink_drops(&snapshot, "no_such_port") == FRAMES
    });
}

fn spec(tunnel: TunnelType, port: u16) -> TunnelSpec {
    TunnelSpec {
        tunnel,
        port,
        checksum: true,
        ttl: Ttl::Fixed(64),
        dscp: Dscp::Inherit,
        key: true,
        sequence: false,
        path_mtu_bytes: 1500,
        clamp_mss: false,
    }
}

#[test]
fn tagged_frames_and_gre_of_the_uplink_reach_their_guests() {
    testkit::require_root!();
    let lab = Lab::new();
    let guest = TestHost::new("g2");
    testkit::require_program!("clang-19", "clang-19");
    testkit::require_program!("tc", "iproute2");
    let programs = FakePrograms::attached();
    let (local, remote): (IpAddr, IpAddr) = (lab.uplink.ip4.into(), lab.far.ip4.into());
    let gre = spec(TunnelType::Gre, 0);
    let link = TagLink::Vlan(VlanId::new(7).unwrap());
    let underlay = Underlay {
        links: vec![LinkConfig { port: TAG_PORT, link }],
        tunnels: vec![TunnelConfig { port: GRE_PORT, spec: gre, local, group: None }],
        endpoints: vec![EndpointConfig { id: EndpointId(3), spec: gre, local, remote }],
        ..Underlay::default()
    };
    let datapath = lab.start_with(&programs, vec![guest_port(2, &guest)], underlay);
    for port in [GRE_PORT, TAG_PORT] {
        put(&datapath, port, vec![Action::Output(PortNo(2))]);
    }
    let socket = listen(&guest);

    let (tag, _) = link.tags();
    let from = lab.peer.run(|| PacketSocket::open_sender(lab.far.index)).unwrap();
    for packet in [tcp(100), super_packet(30_000)] {
        let mut tagged = packet.clone();
        flow::push_vlan(&mut tagged, tag).unwrap();
        from.send(&tagged).unwrap();
        let got = next(&socket);
        assert_eq!((got.to_vec(), got.offload), (packet.to_vec(), packet.offload));
    }

    let mut far = EndpointTable::new(BASE, 64);
    let id = far.add(&gre, remote, local).unwrap();
    let key = TunnelKey { datapath: DatapathKey(5), ports: None };
    for seq in 0..10_u8 {
        let mut packet = tcp(200);
        packet::complete_checksum(&mut packet).unwrap();
        packet.offload = Default::default();
        // Leaves gaps between the sequence numbers, because consecutive segments would be
        // coalesced.
        packet.head_mut()[38] = 1 + seq;
        let payload = Sum::of(&packet.head()[26..34]).u16(6).u16(220);
        packet.head_mut()[50..52].fill(0);
        let sum = payload.bytes(&packet.head()[34..]).checksum().to_be_bytes();
        packet.head_mut()[50..52].copy_from_slice(&sum);
        let expected = packet.to_vec();
        far.encap(id, &key, &mut packet).unwrap().finish(&mut packet);
        packet.head_mut()[..12].copy_from_slice(&[lab.uplink.mac.0, lab.far.mac.0].concat());
        from.send(&packet).unwrap();
        assert_eq!(next(&socket).to_vec(), expected);
    }
    let is_promiscuous = || lab.host.netlink().link(&lab.uplink.name).unwrap().promiscuous;
    assert!(is_promiscuous(), "the uplink must receive guests' MAC addresses");
    let snapshot = datapath.snapshot().unwrap();
    assert_eq!((snapshot.uplink.rx.packets, &snapshot.uplink.drops), (2, &Default::default()));
    assert_eq!(snapshot.endpoints[0].rx.packets, 10);

    // A punted packet whose sender is no end point.
    let unknown_endpoint = far.add(&gre, [192, 0, 2, 99].into(), local).unwrap();
    let mut packet = tcp(100);
    far.encap(unknown_endpoint, &key, &mut packet).unwrap().finish(&mut packet);
    programs.punt(UPLINK, &mut packet);
    wait_until(PATIENCE, "the packet is counted", || {
        uplink_drops(&datapath.snapshot().unwrap(), "unknown_endpoint") == 1
    });
    datapath.join().unwrap();
    assert!(!is_promiscuous());
}

#[test]
fn outer_source_port_is_derived_from_the_flow_hash() {
    testkit::require_root!();
    let lab = Lab::new();
    let guest = TestHost::new("g1");
    let programs = FakePrograms::idle();
    let (local, remote): (IpAddr, IpAddr) = (lab.uplink.ip4.into(), lab.far.ip4.into());
    // Two pools of sockets: with and without an outer checksum.
    let vxlan = TunnelSpec { checksum: false, ..spec(TunnelType::Vxlan, 4789) };
    let specs = [vxlan, spec(TunnelType::Geneve, 6081)];
    let tunnel = |spec| TunnelConfig { port: GRE_PORT, spec, local, group: None };
    let endpoint = |(id, spec)| EndpointConfig { id: EndpointId(id), spec, local, remote };
    let underlay = Underlay {
        tunnels: specs.map(tunnel).into(),
        endpoints: (0..).zip(specs).map(endpoint).collect(),
        ..Underlay::default()
    };
    let datapath = lab.start_with(&programs, vec![guest_port(1, &guest)], underlay);
    let open = |port: u16| std::net::UdpSocket::bind((lab.far.ip4, port));
    for (id, spec) in (0..).zip(specs) {
        let key = TunnelKey { datapath: DatapathKey(5), ports: None };
        put(&datapath, PortNo(1), vec![Action::Encap { endpoint: EndpointId(id), key }]);
        let socket = lab.peer.run(|| open(spec.port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for port in 0..32_u8 {
            let mut packet = tcp(100);
            packet.head_mut()[35] = port;
            packet::complete_checksum(&mut packet).unwrap();
            packet.offload = Default::default();
            let hash = InnerFlow::read(&packet, &SEED).hash;
            programs.punt(PortNo(1), &mut packet);
            let (_, from) = socket.recv_from(&mut [0; 2000]).unwrap();
            assert_eq!(from.port(), BASE + (hash as u16 & 63), "{:?}", spec.tunnel);
            seen.insert(from.port());
        }
        assert!(seen.len() > 10, "{seen:?}");
    }
}
