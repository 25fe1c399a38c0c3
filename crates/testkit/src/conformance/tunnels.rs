//! Tests packets from tunnels: the remote end points send outer packets that the reference creates.

use super::actions::{self, Kinds};
use super::compare::{self, Seen};
use super::forwarding::Bench;
use super::lab::{PEER_MAC, UPLINK_MAC};
use super::reference::{ExpectedUpcall, L3, Outcome, arrived, is_v4, outer_l4, outer_segments};
use super::{BASE, UPLINK, tunnel_port};
use crate::frames::{self, FrameKinds};
use crate::random::Random;
use datapath::config::EndpointConfig;
use datapath::megaflow::Megaflow;
use datapath::stats::Snapshot;
use datapath::upcall::UpcallReason;
use flow::{
    Action, Carrier, DatapathKey, DecapOptions, DropReason, EndpointTable, Field, FlowMask,
    LogicalPorts, LogicalPortsField, Match, NextHop, OuterIp, PortKey, TunnelInfo, TunnelKey,
    TunnelType, decap_stt, extract, propagate_ecn, strip_outer, strip_stt_segment,
};
use packet::{Checksum, Gso, GsoKind, PacketBuf, SegmentChecksum, Segmenter};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::checksum::{checksum, pseudo_v4, pseudo_v6};
use wire::{Ipv4Packet, Ipv6Packet, MacAddr, Protocol, udp};

/// The number of frames of each end point in one case.
const FRAMES: usize = 3;
/// Fields that distinguish connections and are equal in all segments of a super-packet.
const CONNECTION: [Field; 10] = [
    Field::InPort,
    Field::TunId,
    Field::EthSrc,
    Field::EthDst,
    Field::Ip4Src,
    Field::Ip4Dst,
    Field::Ip6Src,
    Field::Ip6Dst,
    Field::TpSrc,
    Field::TpDst,
];

/// A decapsulated frame.
pub(super) type Inner = (TunnelInfo, PacketBuf);

/// Tests single frames, whose results are compared completely; then super-packets.
pub(super) fn check(bench: &mut Bench, random: &mut Random, seen: &mut Seen) -> Result<(), String> {
    singles(bench, random, seen)?;
    let endpoints = bench.endpoints.clone();
    let some = random.below(2);
    for endpoint in endpoints.iter().skip(some).step_by(2) {
        let EndpointConfig { spec, remote, .. } = endpoint;
        train(bench, random, endpoint)
            .map_err(|fault| format!("{} from {remote}: {fault}", spec.tunnel))?;
    }
    Ok(())
}

/// Tests single frames.
pub(super) fn singles(
    bench: &mut Bench,
    random: &mut Random,
    seen: &mut Seen,
) -> Result<(), String> {
    let kinds = FrameKinds { supers: false, snap: true, malformed: true, max_payload: 1300 };
    let (mut sent, mut arrivals) = (Vec::new(), Vec::new());
    for endpoint in bench.endpoints.clone().iter() {
        let tunnel = endpoint.spec.tunnel;
        for _ in 0..FRAMES {
            let frame = frames::frame(random, kinds);
            let key = key(random, tunnel);
            let outer = encapsulated(&mut bench.others, endpoint, &key, frame);
            let Some((_, outer)) = outer else { continue };
            for mut outer in outer {
                if random.once_in(4) {
                    mark(&mut outer);
                }
                arrivals.push((tunnel, decapped(tunnel, &outer)));
                sent.push(outer);
            }
        }
    }
    let mut megaflows = Vec::new();
    for (tunnel, arrival) in &arrivals {
        let Ok((info, packet)) = arrival else { continue };
        let Ok(key) = extract(packet, tunnel_port(*tunnel), Some(info)) else { continue };
        if !random.once_in(3) {
            let upcall = ExpectedUpcall { port: tunnel_port(*tunnel), key, packet: packet.clone() };
            megaflows.extend(bench.add_megaflow(random, &upcall, Kinds::All));
        }
    }
    bench.put(megaflows);
    let mut outcome = Outcome::default();
    let mut decapped = 0;
    for (tunnel, arrival) in &arrivals {
        match arrival {
            Ok((info, packet)) => {
                decapped += 1;
                bench.reference.receive(tunnel_port(*tunnel), Some(info), packet, &mut outcome);
            }
            Err(reason) => outcome.drops.entry(UPLINK).or_default().add(*reason, 1),
        }
    }
    (seen.frames, seen.decapped) = (seen.frames + sent.len() as u64, seen.decapped + decapped);
    let before = bench.lab.snapshot();
    for outer in &sent {
        bench.lab.send(UPLINK, outer);
    }
    wait_arrived(bench, &before, decapped);
    let upcalls = bench.compare(&outcome, &before, seen)?;
    let misses = upcalls.into_iter().filter(|upcall| upcall.reason == UpcallReason::Miss).collect();
    bench.answer(random, misses, Kinds::All, seen)?;
    bench.clear()
}

pub(super) fn wait_arrived(bench: &Bench, before: &Snapshot, decapped: u64) {
    let deadline = Instant::now() + super::lab::PATIENCE;
    loop {
        let now = bench.lab.snapshot();
        let arrived = decapsulated_frames(&now) - decapsulated_frames(before);
        if arrived >= decapped {
            return;
        }
        let (had, has) = (&before.uplink.drops, &now.uplink.drops);
        assert!(
            Instant::now() < deadline,
            "{arrived} of {decapped} frames have come out of the tunnels; drops {had:?} and {has:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The number of decapsulated frames.
fn decapsulated_frames(snapshot: &Snapshot) -> u64 {
    snapshot.endpoints.iter().map(|endpoint| endpoint.rx.packets).sum()
}

/// Sends the segments of a super-packet through a tunnel. The output, after segmentation, must
/// equal the output for the separate segments.
fn train(bench: &mut Bench, random: &mut Random, endpoint: &EndpointConfig) -> Result<(), String> {
    let spec = &endpoint.spec;
    let port = tunnel_port(spec.tunnel);
    let packet = frames::super_packet(random);
    let whole = packet.clone();
    let key = key(random, spec.tunnel);
    let outer = encapsulated(&mut bench.others, endpoint, &key, packet);
    let Some((whole_outer, mut outer)) = outer else { return Ok(()) };
    let arrivals: Result<Vec<Inner>, DropReason> =
        outer.iter().map(|outer| decapped(spec.tunnel, outer)).collect();
    let arrivals =
        arrivals.map_err(|reason| format!("the reference drops the segments: {reason:?}"))?;
    let Some((info, first)) = arrivals.first() else { return Ok(()) };
    let key = extract(first, port, Some(info)).map_err(|error| error.to_string())?;
    let mut mask = FlowMask::default();
    CONNECTION.into_iter().for_each(|field| mask.add(field));
    let condition = Match::new(&key, mask);
    // The actions must send every segment. Then all input has been forwarded when all expected
    // output has arrived. There is no other indication, because the number of coalesced
    // super-packets is unknown. Without it, late packets could match megaflows of the next case.
    let (megaflow, outcome) = loop {
        let actions: Arc<[Action]> = actions::list(random, Kinds::EachSegment);
        let megaflow = Megaflow::new(condition.clone(), actions);
        let mut outcome = Outcome::default();
        bench.reference.megaflows = vec![(megaflow.clone(), (0, 0))];
        bench.reference.cut = true;
        let all_leave = arrivals.iter().all(|(info, packet)| {
            let had = outcome.expected.len();
            bench.reference.receive(port, Some(info), packet, &mut outcome);
            outcome.expected.len() > had
        });
        bench.reference.cut = false;
        if all_leave {
            break (megaflow, outcome);
        }
    };
    bench.put(vec![megaflow.clone()]);
    match spec.tunnel.carrier() {
        // The super-packet is segmented on its way, as a network card does.
        Carrier::TcpLike if random.once_in(2) => outer = cut(&whole_outer),
        Carrier::Udp if random.once_in(2) => outer = vec![joined(&outer)],
        _ => {}
    }
    for outer in &outer {
        bench.lab.send(UPLINK, outer);
    }
    let counts = compare::counts(&outcome.expected);
    let result = compare::frames(&outcome.expected, bench.lab.collect_cut(&counts));
    bench.reference.megaflows.clear();
    bench.lab.datapath.delete(vec![megaflow.id]).map_err(|error| error.to_string())?;
    result.map_err(|fault| {
        format!("{fault}\nfrom {:?} {:02x?}", whole.offload, &whole.head()[..90.min(whole.len())])
    })?;
    // No upcall may remain queued for the next case.
    compare::upcalls(&Outcome::default(), &bench.lab.upcalls(0))
}

/// A random key of a tunnel header.
pub(super) fn key(random: &mut Random, tunnel: TunnelType) -> TunnelKey {
    let egress = PortKey::new(1 + random.below(9) as u16).expect("not 0");
    let ports = LogicalPorts { ingress: PortKey::new(random.below(3) as u16), egress };
    let has_ports = tunnel.descriptor().logical_ports != LogicalPortsField::Absent;
    TunnelKey {
        datapath: DatapathKey(1 + random.below(9) as u32),
        ports: (has_ports && random.once_in(2)).then_some(ports),
    }
}

/// The end points from the perspective of the other hosts, with the same numbers. One table is used
/// for all frames, so that all packets of a flow have the same source port, by which receivers
/// distinguish flows.
pub(super) fn others(endpoints: &[EndpointConfig]) -> EndpointTable {
    let mut table = EndpointTable::new(BASE, 64);
    for EndpointConfig { id, spec, local, remote } in endpoints {
        // Packets to a group are sent by one of the group's members.
        let member = endpoints.iter().find(|end| (end.spec, end.local) == (*spec, *local));
        let (source, destination, mac) = match member {
            Some(member) if remote.is_multicast() => (member.remote, *remote, group_mac(*remote)),
            _ => (*remote, *local, UPLINK_MAC),
        };
        table.insert(*id, spec, source, destination).expect("an end point");
        table.resolve(*id, Some(NextHop { source: PEER_MAC, destination: mac }));
    }
    table
}

/// The multicast MAC address of an IPv4 group (RFC 1112 section 6.4).
pub(super) fn group_mac(group: IpAddr) -> MacAddr {
    let IpAddr::V4(group) = group else { panic!("{group} is no IPv4 group") };
    let [_, a, b, c] = group.octets();
    MacAddr([1, 0, 0x5e, a & 0x7f, b, c])
}

/// A frame in a tunnel from another host: the packet that its sender passes to the network card,
/// and the packets on the wire. `None` for a super-packet that must be segmented first, or that has
/// too many tags to be segmented.
pub(super) fn encapsulated(
    others: &mut EndpointTable,
    endpoint: &EndpointConfig,
    key: &TunnelKey,
    mut frame: PacketBuf,
) -> Option<(PacketBuf, Vec<PacketBuf>)> {
    let outer = others.encap(endpoint.id, key, &mut frame).ok()?;
    let packets = match outer.carrier {
        Carrier::TcpLike => vec![frame.clone()],
        _ => {
            let segments = outer_segments(&outer, &frame)?;
            segments.iter().map(|segment| arrived(segment)).collect()
        }
    };
    Some((frame, packets))
}

/// Sets the ECN field of an outer packet to CE (congestion experienced).
fn mark(outer: &mut PacketBuf) {
    let l4 = outer_l4(outer.head());
    let ip = &mut outer.head_mut()[L3..l4];
    if ip[0] >> 4 == 4 {
        ip[1] |= 3;
        set_header_checksum(ip);
    } else {
        // ECN is the last two bits of the traffic class.
        ip[1] |= 3 << 4;
    }
}

fn set_header_checksum(ip: &mut [u8]) {
    ip[10..12].fill(0);
    let sum = checksum(ip).to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
}

/// The inner packet and the tunnel information of an outer packet.
pub(super) fn decapped(tunnel: TunnelType, outer: &PacketBuf) -> Result<Inner, DropReason> {
    let mut packet = outer.clone();
    let ip = strip_outer(&mut outer.clone())?;
    if tunnel.carrier() == Carrier::TcpLike {
        strip_stt_segment(&mut packet)?;
        let key = decap_stt(&mut packet)?;
        return finished(tunnel, &ip, &key, packet);
    }
    strip_outer(&mut packet)?;
    if tunnel.carrier() == Carrier::Udp {
        packet.pull_front(udp::HEADER_LEN);
    }
    let decapped =
        tunnel.decap(packet.head(), &DecapOptions { key: true, skip_checksum: false })?;
    packet.pull_front(decapped.inner);
    finished(tunnel, &ip, &decapped.key, packet)
}

fn finished(
    tunnel: TunnelType,
    ip: &OuterIp,
    key: &TunnelKey,
    mut packet: PacketBuf,
) -> Result<Inner, DropReason> {
    propagate_ecn(ip.traffic_class, &mut packet)?;
    Ok((TunnelInfo::new(tunnel, ip, key), packet))
}

/// The segments of an outer super-packet.
fn cut(outer: &PacketBuf) -> Vec<PacketBuf> {
    let mut segmenter = Segmenter::new();
    let segments = segmenter
        .segment(outer, 0, SegmentChecksum::Complete, |_| {})
        .expect("an outer packet can be cut");
    segments.map(|(header, payload)| arrived(&[header, payload].concat())).collect()
}

/// Coalesces datagrams into a super-packet, as a network card or a veth does.
fn joined(outer: &[PacketBuf]) -> PacketBuf {
    let l4 = outer_l4(outer[0].head());
    let payload_at = l4 + udp::HEADER_LEN;
    let size = outer[0].len() - payload_at;
    let mut bytes = outer[0].to_vec();
    outer[1..].iter().for_each(|packet| bytes.extend(&packet.head()[payload_at..]));
    let udp_len = (bytes.len() - l4) as u16;
    let pseudo = if is_v4(&bytes) {
        let ip_len = (bytes.len() - L3) as u16;
        bytes[L3 + 2..L3 + 4].copy_from_slice(&ip_len.to_be_bytes());
        set_header_checksum(&mut bytes[L3..l4]);
        let ip = Ipv4Packet::new_unchecked(&bytes[L3..]);
        pseudo_v4(ip.src(), ip.dst(), Protocol::UDP, udp_len)
    } else {
        bytes[L3 + 4..L3 + 6].copy_from_slice(&udp_len.to_be_bytes());
        let ip = Ipv6Packet::new_unchecked(&bytes[L3..]);
        pseudo_v6(ip.src(), ip.dst(), Protocol::UDP, udp_len.into())
    };
    bytes[l4 + 4..l4 + 6].copy_from_slice(&udp_len.to_be_bytes());
    bytes[l4 + 6..l4 + 8].copy_from_slice(&pseudo.fold().to_be_bytes());
    let mut packet = arrived(&bytes);
    packet.offload.checksum = Checksum::Partial { start: l4 as u16, offset: 6 };
    packet.offload.gso = Some(Gso { kind: GsoKind::UdpL4, size: size as u16, ecn: false });
    packet
}
