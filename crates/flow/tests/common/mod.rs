//! Frames and end points for the tests of this crate.
#![allow(dead_code, reason = "each test program uses its part")]

use flow::{
    DatapathKey, DecapOptions, Dscp, EndpointId, EndpointTable, LogicalPorts, LogicalPortsField,
    NextHop, PortKey, TunnelKey, TunnelSpec, TunnelType,
};
use packet::{Checksum, Gso, GsoKind, PacketBuf};
use std::net::{IpAddr, Ipv4Addr};
use wire::checksum::pseudo_v4;
use wire::{MacAddr, Protocol};

pub const GUEST_A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub const GUEST_B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// Decapsulation options of a tunnel whose headers have a key.
pub const KEYED: DecapOptions = DecapOptions { key: true, skip_checksum: false };
pub const NEXT_HOP: NextHop =
    NextHop { source: MacAddr([2, 0, 0, 0, 1, 1]), destination: MacAddr([2, 0, 0, 0, 1, 2]) };

pub fn spec(tunnel: TunnelType) -> TunnelSpec {
    TunnelSpec {
        checksum: true,
        dscp: Dscp::Inherit,
        ..TunnelSpec::new(tunnel, &tunnel.descriptor().default_settings())
    }
}

pub fn addresses(ipv6: bool) -> (IpAddr, IpAddr) {
    if ipv6 {
        ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap())
    } else {
        ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap())
    }
}

pub fn table(spec: &TunnelSpec, ipv6: bool) -> (EndpointTable, EndpointId) {
    let mut table = EndpointTable::new(49_152, 64);
    let (local, remote) = addresses(ipv6);
    let id = table.add(spec, local, remote).unwrap();
    table.resolve(id, Some(NEXT_HOP));
    (table, id)
}

pub fn key(tunnel: TunnelType) -> TunnelKey {
    let ports = (tunnel.descriptor().logical_ports != LogicalPortsField::Absent)
        .then(|| LogicalPorts { ingress: PortKey::new(7), egress: PortKey::new(9).unwrap() });
    TunnelKey { datapath: DatapathKey(0x12_3456), ports }
}

/// An Ethernet frame with TCP over IPv4, `payload` bytes, and a partial checksum; ECT(0), DSCP 10.
pub fn tcp_frame(payload: usize) -> PacketBuf {
    let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let mut frame = [GUEST_B.0, GUEST_A.0].concat();
    frame.extend([0x08, 0x00]);
    let total = (20 + 20 + payload) as u16;
    let mut ip =
        vec![0x45, 10 << 2 | 2, (total >> 8) as u8, total as u8, 0, 1, 0x40, 0, 64, 6, 0, 0];
    ip.extend(src.octets());
    ip.extend(dst.octets());
    let sum = wire::checksum::checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    let mut tcp =
        vec![0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0];
    let pseudo = pseudo_v4(src, dst, Protocol::TCP, (20 + payload) as u16).fold();
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
    frame.extend(tcp);
    frame.extend((0..payload).map(|i| (i * 7) as u8));
    let mut packet = PacketBuf::from_bytes(&frame);
    packet.offload.checksum = Checksum::Partial { start: 34, offset: 16 };
    packet
}

pub fn super_packet(payload: usize, mss: u16) -> PacketBuf {
    let mut packet = tcp_frame(payload);
    packet.offload.gso = Some(Gso { kind: GsoKind::TcpV4, size: mss, ecn: false });
    packet
}
