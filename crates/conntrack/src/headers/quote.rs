//! The packet that an ICMP error quotes, which may be truncated.

use wire::{Fragment, Ipv4Packet, Ipv6Packet, Protocol, icmp};

use crate::Tuple;
use crate::tuple::has_ports;

/// The tuple of the packet quoted in `bytes`. `None` when it is malformed, is itself an ICMP error,
/// or ends before its ports or identifier.
pub(super) fn parse(bytes: &[u8], is_v4: bool) -> Option<Tuple> {
    let (src, dst, protocol, at) = if is_v4 {
        let ip = Ipv4Packet::new_header(bytes).ok()?;
        if ip.fragment() == Fragment::Later {
            return None;
        }
        (ip.src().into(), ip.dst().into(), ip.protocol(), ip.header_len())
    } else {
        let ip = Ipv6Packet::new_header(bytes).ok()?;
        let upper = ip.upper().ok()?;
        if upper.fragmentation() == Fragment::Later {
            return None;
        }
        (ip.src().into(), ip.dst().into(), upper.protocol, upper.offset)
    };
    let transport = bytes.get(at..)?;
    if protocol == if is_v4 { Protocol::ICMP } else { Protocol::ICMPV6 } {
        let &[kind, code, _, _, high, low, _, _] =
            transport.first_chunk::<{ icmp::HEADER_LEN }>()?;
        return Tuple::icmp(src, dst, kind, code, u16::from_be_bytes([high, low]));
    }
    if has_ports(protocol) {
        let &[a, b, c, d] = transport.first_chunk()?;
        let (src_port, dst_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        return Tuple::new(src, dst, protocol, src_port, dst_port);
    }
    Tuple::new(src, dst, protocol, 0, 0)
}
