//! The outer header that is ready for an end point: Ethernet, IP, UDP (or the TCP-shaped header of STT) and the tunnel header,
//! with everything in place that is the same for all packets.

use crate::endpoint::Layout;
use crate::{NextHop, TunnelSpec, TunnelType};
use std::net::IpAddr;

/// The longest header: Ethernet, IPv6, TCP-shaped segment header, STT header.
const TEMPLATE_MAX: usize = 14 + 40 + 20 + 18;

/// The outer header of an end point, complete but for what differs between packets.
#[derive(Clone, Debug)]
pub struct HeaderTemplate {
    /// The header stands at the end, so that a copy of the whole array puts it in front of a frame.
    bytes: [u8; TEMPLATE_MAX],
    /// Bytes in use; without Geneve options, which are added by encapsulation.
    len: u8,
}

/// Where the outer IP header begins in a template.
pub(crate) const L3: usize = 14;

impl HeaderTemplate {
    /// The template from `local` to `remote`, of one address family.
    pub(crate) fn build(
        spec: &TunnelSpec,
        local: IpAddr,
        remote: IpAddr,
        next_hop: Option<NextHop>,
    ) -> Self {
        let mut bytes = [0; TEMPLATE_MAX];
        let protocol = match spec.tunnel {
            TunnelType::Vxlan | TunnelType::Geneve => 17,
            TunnelType::Stt => 6,
            _ => 47,
        };
        if let Some(next_hop) = next_hop {
            bytes[0..6].copy_from_slice(&next_hop.destination.0);
            bytes[6..12].copy_from_slice(&next_hop.source.0);
        }
        let l4 = Self::build_ip(&mut bytes, local, remote, protocol);
        match spec.tunnel {
            TunnelType::Vxlan => {
                bytes[l4 + 2..l4 + 4].copy_from_slice(&spec.port.to_be_bytes());
                bytes[l4 + 8] = 0x08; // the I flag
            }
            TunnelType::Geneve => {
                bytes[l4 + 2..l4 + 4].copy_from_slice(&spec.port.to_be_bytes());
                bytes[l4 + 10..l4 + 12].copy_from_slice(&0x6558_u16.to_be_bytes());
            }
            TunnelType::Gre => {
                let flag = |present, bit| if present { bit } else { 0 };
                bytes[l4] =
                    flag(spec.checksum, 0x80) | flag(spec.key, 0x20) | flag(spec.sequence, 0x10);
                bytes[l4 + 2..l4 + 4].copy_from_slice(&0x6558_u16.to_be_bytes());
            }
            TunnelType::Stt => {
                bytes[l4 + 2..l4 + 4].copy_from_slice(&spec.port.to_be_bytes());
                bytes[l4 + 12] = 5 << 4;
                bytes[l4 + 13] = 0x18; // ACK and PSH
                bytes[l4 + 14..l4 + 16].fill(0xff); // window
            }
            TunnelType::Vlan | TunnelType::QinQ => {}
        }
        let len = Layout::new(spec, local.is_ipv4()).len;
        bytes.rotate_right(TEMPLATE_MAX - usize::from(len));
        Self { bytes, len }
    }

    /// Writes the IP header and returns where it ends.
    fn build_ip(
        bytes: &mut [u8; TEMPLATE_MAX],
        local: IpAddr,
        remote: IpAddr,
        protocol: u8,
    ) -> usize {
        match (local, remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                bytes[12..14].copy_from_slice(&0x0800_u16.to_be_bytes());
                bytes[L3] = 0x45;
                bytes[L3 + 6] = 0x40; // don't fragment
                bytes[L3 + 9] = protocol;
                bytes[L3 + 12..L3 + 16].copy_from_slice(&local.octets());
                bytes[L3 + 16..L3 + 20].copy_from_slice(&remote.octets());
                // Of the header without length, traffic class and TTL; encapsulation adds theirs.
                let sum = wire::checksum::checksum(&bytes[L3..L3 + 20]);
                bytes[L3 + 10..L3 + 12].copy_from_slice(&sum.to_be_bytes());
                L3 + 20
            }
            (local, remote) => {
                let octets = |address| match address {
                    IpAddr::V4(v4) => std::net::Ipv4Addr::to_ipv6_mapped(&v4).octets(),
                    IpAddr::V6(v6) => v6.octets(),
                };
                bytes[12..14].copy_from_slice(&0x86dd_u16.to_be_bytes());
                bytes[L3] = 0x60;
                bytes[L3 + 6] = protocol;
                bytes[L3 + 8..L3 + 24].copy_from_slice(&octets(local));
                bytes[L3 + 24..L3 + 40].copy_from_slice(&octets(remote));
                L3 + 40
            }
        }
    }

    /// The header's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[TEMPLATE_MAX - usize::from(self.len)..]
    }

    pub(crate) fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[TEMPLATE_MAX - usize::from(self.len)..]
    }

    /// The header at the end of an array, and how many bytes of it count.
    pub(crate) fn array(&self) -> (&[u8; TEMPLATE_MAX], usize) {
        (&self.bytes, self.len.into())
    }
}

/// Source and destination of an outer header; a header cut short has none, but an outer header never is.
pub(crate) fn addresses(header: &[u8]) -> (IpAddr, IpAddr) {
    fn at<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
        header.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }
    if header.get(L3).is_some_and(|first| first >> 4 == 4) {
        (at::<4>(header, L3 + 12).into(), at::<4>(header, L3 + 16).into())
    } else {
        (at::<16>(header, L3 + 8).into(), at::<16>(header, L3 + 24).into())
    }
}
