//! Frames that come out of tunnels: outer packets as the reference makes them, from the other ends of the end points.

use super::actions::{self, Kinds};
use super::compare::{self, Seen};
use super::forwarding::Bench;
use super::lab::{LOCAL, PEER_MAC, UPLINK_MAC};
use super::reference::{Outcome, Up, arrived, outer_segments};
use super::{BASE, UPLINK, endpoints, tunnel_port};
use crate::frames::{self, FrameKinds};
use crate::host::wait_until;
use crate::random::Random;
use datapath::megaflow::Megaflow;
use datapath::stats::Snapshot;
use datapath::upcall::UpcallReason;
use flow::{
    Action, DatapathKey, DropReason, EndpointTable, Field, FlowMask, LogicalPorts, Match, NextHop,
    OuterIp, PortKey, TunnelInfo, TunnelKey, TunnelSpec, TunnelType, decap_geneve, decap_gre,
    decap_stt, decap_vxlan, extract, propagate_ecn, strip_outer, strip_stt_segment,
};
use packet::{Checksum, Gso, GsoKind, PacketBuf, SegmentChecksum, Segmenter};
use std::net::IpAddr;
use std::sync::Arc;
use wire::checksum::{checksum, pseudo_v4};
use wire::{Ipv4Packet, Protocol, udp};

/// Frames of each tunnel in one case.
const FRAMES: usize = 5;
const L3: usize = 14;
const L4: usize = L3 + 20;
/// What tells connections apart, and is the same in all segments of a super-packet.
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

/// A frame that has come out of a tunnel.
type Inner = (TunnelInfo, PacketBuf);

/// Single frames, with everything compared; then super-packets.
pub(super) fn check(bench: &mut Bench, random: &mut Random, seen: &mut Seen) -> Result<(), String> {
    singles(bench, random, seen)?;
    for (_, spec, remote) in endpoints() {
        train(bench, random, &spec, remote).map_err(|fault| format!("{}: {fault}", spec.tunnel))?;
    }
    Ok(())
}

fn singles(bench: &mut Bench, random: &mut Random, seen: &mut Seen) -> Result<(), String> {
    let kinds = FrameKinds { supers: false, malformed: true, max_payload: 1300 };
    let (mut sent, mut arrivals) = (Vec::new(), Vec::new());
    for (_, spec, remote) in endpoints() {
        for _ in 0..FRAMES {
            let frame = frames::frame(random, kinds);
            let Some((_, outer)) = encapsulated(random, &spec, remote, frame) else { continue };
            for mut outer in outer {
                if random.once_in(4) {
                    mark(&mut outer);
                }
                arrivals.push((spec.tunnel, decapped(spec.tunnel, &outer)));
                sent.push(outer);
            }
        }
    }
    let mut megaflows = Vec::new();
    for (tunnel, arrival) in &arrivals {
        let Ok((info, packet)) = arrival else { continue };
        let Ok(key) = extract(packet, tunnel_port(*tunnel), Some(info)) else { continue };
        if !random.once_in(3) {
            let up = Up { port: tunnel_port(*tunnel), key, packet: packet.clone() };
            megaflows.extend(bench.add_megaflow(random, &up, Kinds::All));
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
    let refused = sent.len() as u64 - decapped;
    wait_arrived(bench, &before, decapped, refused);
    let upcalls = bench.compare(&outcome, &before, seen)?;
    let misses = upcalls.into_iter().filter(|up| up.reason == UpcallReason::Miss).collect();
    bench.answer(random, misses, Kinds::All, seen)?;
    bench.clear()
}

fn wait_arrived(bench: &Bench, before: &Snapshot, decapped: u64, refused: u64) {
    let (frames, drops) = arrived_until(before);
    wait_until(super::lab::PATIENCE, "everything has come out of the tunnels", || {
        let (frames_now, drops_now) = arrived_until(&bench.lab.snapshot());
        frames_now >= frames + decapped && drops_now >= drops + refused
    });
}

/// Frames that have come out of tunnels, and packets from the underlay that were dropped.
fn arrived_until(snapshot: &Snapshot) -> (u64, u64) {
    let frames = snapshot.endpoints.iter().map(|endpoint| endpoint.rx.packets).sum();
    (frames, snapshot.uplink.drops.values().sum())
}

/// Segments of one super-packet in a tunnel: what leaves, cut again, is what leaves when they come one by one.
fn train(
    bench: &mut Bench,
    random: &mut Random,
    spec: &TunnelSpec,
    remote: IpAddr,
) -> Result<(), String> {
    let port = tunnel_port(spec.tunnel);
    let packet = frames::super_packet(random);
    let whole = packet.clone();
    let Some((whole_outer, mut outer)) = encapsulated(random, spec, remote, packet) else {
        return Ok(());
    };
    let arrivals: Result<Vec<Inner>, DropReason> =
        outer.iter().map(|outer| decapped(spec.tunnel, outer)).collect();
    let arrivals = arrivals.map_err(|reason| format!("the reference drops a train: {reason:?}"))?;
    let Some((info, first)) = arrivals.first() else { return Ok(()) };
    let key = extract(first, port, Some(info)).map_err(|error| error.to_string())?;
    let mut mask = FlowMask::default();
    CONNECTION.into_iter().for_each(|field| mask.add(field));
    let actions: Arc<[Action]> = actions::list(random, Kinds::EachSegment);
    let megaflow = Megaflow::new(Match::new(&key, mask), actions);
    bench.reference.megaflows.push((megaflow.clone(), (0, 0)));
    bench.put(vec![megaflow.clone()]);
    let mut outcome = Outcome::default();
    bench.reference.cut = true;
    for (info, packet) in &arrivals {
        bench.reference.receive(port, Some(info), packet, &mut outcome);
    }
    bench.reference.cut = false;
    match spec.tunnel {
        // Cut on the way, as by a NIC.
        TunnelType::Stt if random.once_in(2) => outer = cut(&whole_outer),
        TunnelType::Vxlan | TunnelType::Geneve if random.once_in(2) => outer = vec![joined(&outer)],
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
    })
}

/// A frame in a tunnel from another host: the packet as its sender hands it to the NIC, and what the others find on the wire. `None`
/// of a super-packet that has to be cut before it is sent, or cannot be cut because of its many tags.
fn encapsulated(
    random: &mut Random,
    spec: &TunnelSpec,
    remote: IpAddr,
    mut frame: PacketBuf,
) -> Option<(PacketBuf, Vec<PacketBuf>)> {
    let mut table = EndpointTable::new(BASE, 64);
    let id = table.add(spec, remote, LOCAL.into()).expect("an end point");
    table.resolve(id, Some(NextHop { source: PEER_MAC, destination: UPLINK_MAC }));
    let egress = PortKey::new(1 + random.below(9) as u16).expect("not 0");
    let ports = LogicalPorts { ingress: PortKey::new(random.below(3) as u16), egress };
    let has_ports = matches!(spec.tunnel, TunnelType::Geneve | TunnelType::Stt);
    let key = TunnelKey {
        datapath: DatapathKey(1 + random.below(9) as u32),
        ports: (has_ports && random.once_in(2)).then_some(ports),
    };
    let outer = table.encap(id, &key, &mut frame).ok()?;
    let packets = match spec.tunnel {
        TunnelType::Stt => vec![frame.clone()],
        _ => {
            let segments = outer_segments(&outer, &frame)?;
            segments.iter().map(|segment| arrived(segment)).collect()
        }
    };
    Some((frame, packets))
}

/// Marks an outer packet as one that has met congestion.
fn mark(outer: &mut PacketBuf) {
    let ip = &mut outer.head_mut()[L3..L4];
    ip[1] |= 3;
    ip[10..12].fill(0);
    let sum = checksum(ip).to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
}

/// What comes out of a tunnel, and by which tunnel.
fn decapped(tunnel: TunnelType, outer: &PacketBuf) -> Result<Inner, DropReason> {
    let mut packet = outer.clone();
    let ip = strip_outer(&mut outer.clone())?;
    if tunnel == TunnelType::Stt {
        strip_stt_segment(&mut packet)?;
        let key = decap_stt(&mut packet)?;
        return finished(tunnel, &ip, &key, packet);
    }
    strip_outer(&mut packet)?;
    if tunnel != TunnelType::Gre {
        packet.pull_front(udp::HEADER_LEN);
    }
    let decapped = match tunnel {
        TunnelType::Vxlan => decap_vxlan(packet.head()),
        TunnelType::Geneve => decap_geneve(packet.head()),
        _ => decap_gre(packet.head(), true, false),
    }?;
    packet.pull_front(decapped.inner);
    finished(tunnel, &ip, &decapped.key, packet)
}

fn finished(
    tunnel: TunnelType,
    ip: &OuterIp,
    key: &TunnelKey,
    mut packet: PacketBuf,
) -> Result<Inner, DropReason> {
    propagate_ecn(ip.traffic_class, packet.head_mut())?;
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

/// Datagrams as one super-packet, as a NIC or a veth interface hands them on.
fn joined(outer: &[PacketBuf]) -> PacketBuf {
    let payload_at = L4 + udp::HEADER_LEN;
    let size = outer[0].len() - payload_at;
    let mut bytes = outer[0].to_vec();
    outer[1..].iter().for_each(|packet| bytes.extend(&packet.head()[payload_at..]));
    let ip_len = (bytes.len() - L3) as u16;
    bytes[L3 + 2..L3 + 4].copy_from_slice(&ip_len.to_be_bytes());
    bytes[L3 + 10..L3 + 12].fill(0);
    let sum = checksum(&bytes[L3..L4]).to_be_bytes();
    bytes[L3 + 10..L3 + 12].copy_from_slice(&sum);
    let udp_len = (bytes.len() - L4) as u16;
    bytes[L4 + 4..L4 + 6].copy_from_slice(&udp_len.to_be_bytes());
    let ip = Ipv4Packet::new_unchecked(&bytes[L3..]);
    let pseudo = pseudo_v4(ip.src(), ip.dst(), Protocol::UDP, udp_len).fold().to_be_bytes();
    bytes[L4 + 6..L4 + 8].copy_from_slice(&pseudo);
    let mut packet = arrived(&bytes);
    packet.offload.checksum = Checksum::Partial { start: L4 as u16, offset: 6 };
    packet.offload.gso = Some(Gso { kind: GsoKind::UdpL4, size: size as u16, ecn: false });
    packet
}
