//! The outer header template of an end point: Ethernet, IP, UDP (or the TCP-like header of STT) and
//! the tunnel header, with all fields set that are equal for all packets.

use crate::endpoint::OuterLayout;
use crate::{Carrier, NextHop, TunnelDescriptor, TunnelSpec, TunnelType};
use std::net::IpAddr;
use wire::{
    EtherType, EthernetPacket, EthernetRepr, Ipv4Options, Ipv4Packet, Ipv4Repr, Ipv6Packet,
    Ipv6Repr, MacAddr, Protocol,
};

/// The longest header: Ethernet, IPv6, TCP-like segment header, STT header.
const TEMPLATE_MAX: usize = 14 + 40 + 20 + 18;

/// The longest tunnel header after UDP, or after IP with protocol 47: GRE with all its fields.
const TUNNEL_HEADER_MAX: usize = 16;
const _: () = {
    let mut at = 0;
    while at < TunnelType::ALL.len() {
        let TunnelDescriptor { carrier, header, .. } = TunnelType::ALL[at].descriptor();
        let fits = header.with_fields(true, true, true) <= TUNNEL_HEADER_MAX;
        assert!(fits || !matches!(carrier, Carrier::Udp | Carrier::Gre));
        at += 1;
    }
};

/// The outer header of an end point, without the fields that differ between packets.
#[derive(Clone, Debug)]
pub struct HeaderTemplate {
    /// The header is at the end of the array, so that copying the whole array puts it directly
    /// before a frame.
    bytes: [u8; TEMPLATE_MAX],
    /// Bytes in use; without Geneve options, which are added by encapsulation.
    len: u8,
}

/// Offset of the outer IP header in a template.
pub(crate) const L3: usize = 14;

impl HeaderTemplate {
    /// Builds the template from `local` to `remote`, which must be of one address family.
    pub(crate) fn build(
        spec: &TunnelSpec,
        local: IpAddr,
        remote: IpAddr,
        next_hop: Option<NextHop>,
    ) -> Self {
        let layout = OuterLayout::new(spec, local.is_ipv4());
        let mut bytes = [0; TEMPLATE_MAX];
        let header = &mut bytes[TEMPLATE_MAX - usize::from(layout.len)..];
        let (ethernet, rest) = header.split_at_mut(L3);
        let (ip, transport) = rest.split_at_mut(usize::from(layout.l4) - L3);
        let unknown = NextHop { source: MacAddr([0; 6]), destination: MacAddr([0; 6]) };
        let next_hop = next_hop.unwrap_or(unknown);
        let ethertype = if layout.ipv4 { EtherType::IPV4 } else { EtherType::IPV6 };
        EthernetRepr { dst: next_hop.destination, src: next_hop.source, ethertype }
            .emit(&mut EthernetPacket::new_unchecked(ethernet));
        emit_ip(ip, spec.tunnel.carrier().protocol(), local, remote);
        spec.tunnel.write_template(spec, transport);
        Self { bytes, len: layout.len }
    }

    /// The bytes of the header.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[TEMPLATE_MAX - usize::from(self.len)..]
    }

    /// The destination of the IP header.
    #[inline]
    pub(crate) fn remote(&self) -> IpAddr {
        fn at<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
            // The header is never truncated.
            header.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
        }
        let header = self.as_bytes();
        if header.get(L3).is_some_and(|first| first >> 4 == 4) {
            at::<4>(header, L3 + 16).into()
        } else {
            at::<16>(header, L3 + 24).into()
        }
    }

    pub(crate) fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[TEMPLATE_MAX - usize::from(self.len)..]
    }

    /// The whole array, at the end of which the header is, and the length of the header.
    pub(crate) fn array(&self) -> (&[u8; TEMPLATE_MAX], usize) {
        (&self.bytes, self.len.into())
    }

    /// The last bytes of the array, at the end of which the tunnel header is, and the length of the
    /// tunnel header. Not for STT, whose header is longer.
    #[inline]
    pub(crate) fn tunnel_header(&self, layout: &OuterLayout) -> (&[u8; TUNNEL_HEADER_MAX], usize) {
        const START: usize = TEMPLATE_MAX - TUNNEL_HEADER_MAX;
        let (_, end) = self.bytes.split_at(START);
        (
            end.first_chunk().unwrap_or(&[0; TUNNEL_HEADER_MAX]),
            usize::from(layout.len - layout.tunnel_header),
        )
    }
}

/// Writes an IP header whose length, traffic class and TTL are 0, with IPv4's checksum for these
/// values. Encapsulation fills in the fields and updates the checksum.
fn emit_ip(header: &mut [u8], protocol: Option<Protocol>, local: IpAddr, remote: IpAddr) {
    let protocol = protocol.unwrap_or(Protocol::NO_NEXT_HEADER);
    match (local, remote) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let repr = Ipv4Repr {
                tos: 0,
                payload_len: 0,
                ident: 0,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset_bytes: 0,
                ttl: 0,
                protocol,
                src,
                dst,
                options: Ipv4Options::default(),
            };
            let mut packet = Ipv4Packet::new_unchecked(header);
            repr.emit(&mut packet);
            packet.set_total_len(0);
            packet.fill_checksum();
        }
        (local, remote) => {
            let v6 = |address| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            let repr = Ipv6Repr {
                traffic_class: 0,
                flow_label: 0,
                payload_len: 0,
                next_header: protocol,
                hop_limit: 0,
                src: v6(local),
                dst: v6(remote),
            };
            repr.emit(&mut Ipv6Packet::new_unchecked(header));
        }
    }
}
