//! The cost of parsing and of checksums, each compared with a `memcpy` of the same bytes.
//!
//! `cargo bench -p wire`. The target is to parse a VXLAN-in-IPv4 frame in less than 40 ns, from its
//! outer Ethernet header to the inner transport header.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use wire::checksum::{InnerSegment, Sum, local_offload, pseudo_v4};
use wire::tunnel::{VxlanPacket, VxlanRepr, vxlan};
use wire::{
    EtherType, EthernetPacket, EthernetRepr, Ipv4Packet, Ipv4Repr, MacAddr, ParseError, Protocol,
    TcpFlags, TcpPacket, TcpRepr, UdpPacket, UdpRepr, Vni, transport_offset,
};

const PAYLOAD_LEN: usize = 1400;
const OUTER_LEN: usize = 14 + 20 + 8 + 8;
const HEADERS_LEN: usize = OUTER_LEN + 14 + 20 + 20;

fn ethernet(frame: &mut [u8], at: usize) {
    let (dst, src) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    EthernetRepr { dst, src, ethertype: EtherType::IPV4 }
        .emit(&mut EthernetPacket::new_unchecked(&mut frame[at..]));
}

fn ipv4(frame: &mut [u8], at: usize, protocol: Protocol) {
    let repr = Ipv4Repr {
        tos: 0,
        payload_len: (frame.len() - at - 20) as u16,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset_bytes: 0,
        ttl: 64,
        protocol,
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        options: Default::default(),
    };
    repr.emit(&mut Ipv4Packet::new_unchecked(&mut frame[at..]));
}

/// A TCP segment of 1400 bytes in IPv4 in Ethernet in VXLAN in UDP in IPv4 in Ethernet.
fn vxlan_frame() -> Vec<u8> {
    let mut frame = vec![7; HEADERS_LEN + PAYLOAD_LEN];
    ethernet(&mut frame, 0);
    ipv4(&mut frame, 14, Protocol::UDP);
    let length = (frame.len() - 34) as u16;
    UdpRepr { src_port: 50_000, dst_port: vxlan::PORT, length }
        .emit(&mut UdpPacket::new_unchecked(&mut frame[34..]));
    VxlanRepr { vni: Vni::new(7).unwrap() }.emit(&mut VxlanPacket::new_unchecked(&mut frame[42..]));
    ethernet(&mut frame, OUTER_LEN);
    ipv4(&mut frame, OUTER_LEN + 14, Protocol::TCP);
    let tcp = TcpRepr {
        src_port: 40_000,
        dst_port: 80,
        seq: 1,
        ack: 2,
        flags: TcpFlags::ACK,
        window: 512,
        urgent: 0,
        options: Default::default(),
    };
    tcp.emit(&mut TcpPacket::new_unchecked(&mut frame[OUTER_LEN + 34..]));
    frame
}

/// Parses from the outer Ethernet header to the inner ports, with checked views only.
#[inline(never)]
fn parse_to_inner_l4(frame: &[u8]) -> Result<(Vni, u16, u16, usize), ParseError> {
    let ethernet = EthernetPacket::new_checked(frame)?;
    let refuse = ParseError::field(wire::Layer::Ethernet, "ethertype");
    if ethernet.ethertype() != EtherType::IPV4 {
        return Err(refuse);
    }
    let ip = Ipv4Packet::new_checked(ethernet.payload())?;
    if ip.protocol() != Protocol::UDP || ip.fragment() != wire::Fragment::Whole {
        return Err(refuse);
    }
    let udp = UdpPacket::new_checked(ip.payload())?;
    if udp.dst_port() != vxlan::PORT {
        return Err(refuse);
    }
    let packet = VxlanPacket::new_checked(udp.payload())?;
    let vni = VxlanRepr::parse(&packet)?.vni;
    let inner = packet.payload();
    let located = transport_offset(inner)?;
    let tcp = TcpPacket::new_checked(&inner[located.l4.ok_or(refuse)?..located.l3_end])?;
    Ok((vni, tcp.src_port(), tcp.dst_port(), tcp.payload().len()))
}

fn parse(c: &mut Criterion) {
    let frame = vxlan_frame();
    assert_eq!(parse_to_inner_l4(&frame), Ok((Vni::new(7).unwrap(), 40_000, 80, PAYLOAD_LEN)));
    let mut group = c.benchmark_group("vxlan in ipv4");
    group.bench_function("parse to inner L4", |b| b.iter(|| parse_to_inner_l4(black_box(&frame))));
    group.bench_function("locate outer and inner", |b| {
        b.iter(|| {
            let frame = black_box(&frame[..]);
            (transport_offset(frame), transport_offset(&frame[OUTER_LEN..]))
        });
    });
    let mut copy = [0; HEADERS_LEN];
    group.bench_function("memcpy of the headers", |b| {
        b.iter(|| {
            black_box(&mut copy[..]).copy_from_slice(black_box(&frame[..HEADERS_LEN]));
        });
    });
    let mut copy = vec![0; frame.len()];
    group.bench_function("memcpy of the frame", |b| {
        b.iter(|| black_box(&mut copy[..]).copy_from_slice(black_box(&frame)));
    });
    let outer = pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::UDP, 1478);
    let inner = InnerSegment { pseudo: 0x1234, len: 20 + PAYLOAD_LEN };
    group.bench_function("outer checksum by local offload", |b| {
        b.iter(|| {
            let before = black_box(&frame[34..OUTER_LEN + 34]);
            local_offload(outer, before, black_box(inner), &[]).udp_checksum()
        });
    });
    group.finish();
}

fn checksum(c: &mut Criterion) {
    for len in [20, 1448, 60_000] {
        let bytes = vec![0x5a; len];
        let mut copy = vec![0; len];
        let mut group = c.benchmark_group(format!("{len} bytes"));
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function("checksum", |b| b.iter(|| Sum::of(black_box(&bytes)).checksum()));
        group.bench_function("memcpy", |b| {
            b.iter(|| black_box(&mut copy[..]).copy_from_slice(black_box(&bytes)));
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(700))
        .sample_size(30);
    targets = parse, checksum
}
criterion_main!(benches);
