//! Encapsulation: prepends an end point's header template to a frame, and fills in the fields that
//! differ between packets.
//!
//! A super-packet is not split. With STT, the frame becomes one TCP-like GSO frame that the NIC
//! segments, and the STT header carries the inner offload state. For other tunnel types, the outer
//! lengths and checksums are known only after segmentation: [`Encapsulated::finish_segment`] then
//! completes the outer header of each segment.

use crate::header_template::L3;
use crate::tunnel::{PacketFields, stt};
use crate::{
    Carrier, DropReason, Dscp, EndpointId, EndpointTable, HeaderTemplate, InnerFlow, Ttl,
    TunnelKey, TunnelType,
};
use packet::{Checksum, GsoKind, Offload, PacketBuf, SplitLimits};
use std::net::IpAddr;
use wire::checksum::{self, InnerSegment, Sum};
use wire::ecn;
use wire::ip::Protocol;
use wire::tunnel::GrePacket;

/// The outer headers that encapsulation writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OuterHeaders {
    /// All, from the outer Ethernet header on.
    All,
    /// Only the tunnel header, because a socket writes the headers in front of it: UDP, or IP with
    /// protocol 47. No socket writes the headers of STT, so STT gets all.
    BehindSocket,
}

/// An encapsulated frame: the layout of the outer header, and the values that were used for it.
#[derive(Clone, Copy, Debug)]
pub struct Encapsulated {
    /// The tunnel type.
    pub tunnel: TunnelType,
    /// The protocol that carries the tunnel header.
    pub carrier: Carrier,
    /// The outer source address.
    pub local: IpAddr,
    /// The outer destination address.
    pub remote: IpAddr,
    /// Bytes before the inner frame: all outer headers, or only the tunnel header if a socket
    /// writes the others ([`OuterHeaders::BehindSocket`]).
    pub outer_len: usize,
    /// Offset of the outer transport header (UDP, GRE, or the TCP-like header of STT); 0 if a
    /// socket writes it.
    pub l4: usize,
    /// Offset of the tunnel header: after UDP; at `l4` for GRE; after the TCP-like header for STT.
    pub tunnel_header: usize,
    /// The outer traffic class byte: DSCP and ECN.
    pub traffic_class: u8,
    /// The outer TTL or hop limit.
    pub ttl: u8,
    /// The hash of the inner flow.
    pub entropy: u32,
    /// The outer source port, which depends on `entropy`; unused for GRE.
    pub source_port: u16,
    /// The destination port; unused for GRE.
    pub port: u16,
    /// Whether the outer UDP or GRE header has a checksum.
    pub checksum: bool,
    /// Whether the Ethernet addresses of the outer header are known.
    pub resolved: bool,
    ipv4: bool,
    is_behind_socket: bool,
    inner_offload: Offload,
}

impl Encapsulated {
    /// Removes the outer header.
    #[inline]
    pub fn undo(&self, packet: &mut PacketBuf) {
        packet.pull_front(self.outer_len);
        packet.offload = self.inner_offload;
    }

    /// Completes the outer checksum of a packet that is not a super-packet, for callers that send
    /// all outer headers themselves. A partial inner checksum stays partial, and the payload is not
    /// read.
    pub fn finish(&self, packet: &mut PacketBuf) {
        let Some(udp) = self.udp_header() else {
            packet.linearize();
            let (header, payload) = packet.head_mut().split_at_mut(self.outer_len);
            return self.finish_segment(header, payload, 0);
        };
        if !self.checksum {
            return;
        }
        let len = packet.len() - udp;
        packet.head_mut()[udp + 6..udp + 8].fill(0);
        let head = packet.head();
        let mut sum = outer_pseudo_header(head, Protocol::UDP, len as u32);
        match packet.offload.checksum {
            Checksum::Partial { start, offset } => {
                let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
                let pseudo =
                    head.get(field..field + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
                let inner = InnerSegment { pseudo, len: packet.len() - start };
                sum = checksum::local_offload(sum, &head[udp..start], inner, &[]);
            }
            Checksum::Unverified | Checksum::Verified => {
                sum = sum.bytes(&head[udp..]);
                for piece in packet.pieces().skip(1) {
                    sum = sum.bytes(piece);
                }
            }
        }
        let value = sum.udp_checksum();
        packet.head_mut()[udp + 6..udp + 8].copy_from_slice(&value.to_be_bytes());
    }

    /// Completes lengths and checksums of one segment of a super-packet.
    ///
    /// `header` is the outer header followed by the segment's inner headers, `payload` the bytes
    /// after them, and `index` the number of the segment, from 0. Not for STT, whose segments the
    /// NIC completes, and not for packets whose outer headers a socket writes.
    pub fn finish_segment(&self, header: &mut [u8], payload: &[u8], index: u32) {
        set_lengths(header, header.len() + payload.len(), self.udp_header());
        if self.carrier == Carrier::Gre {
            GrePacket::new_unchecked(&mut header[self.l4..]).finish_segment(payload, index);
        } else if let (Some(udp), true) = (self.udp_header(), self.checksum) {
            header[udp + 6..udp + 8].fill(0);
            let len = header.len() - udp + payload.len();
            let sum = outer_pseudo_header(header, Protocol::UDP, len as u32).bytes(&header[udp..]);
            let value = sum.bytes(payload).udp_checksum();
            header[udp + 6..udp + 8].copy_from_slice(&value.to_be_bytes());
        }
    }
}

fn saturating_u16(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

pub(crate) fn is_ipv4(header: &[u8]) -> bool {
    header[L3] >> 4 == 4
}

/// Sets the outer lengths, and IPv4's checksum, of a packet of `total` bytes from the outer
/// Ethernet header on. Lengths of a super-packet saturate until segmentation.
fn set_lengths(header: &mut [u8], total: usize, udp: Option<usize>) {
    if let Some(udp) = udp {
        header[udp + 4..udp + 6].copy_from_slice(&saturating_u16(total - udp).to_be_bytes());
    }
    if is_ipv4(header) {
        header[L3 + 2..L3 + 4].copy_from_slice(&saturating_u16(total - L3).to_be_bytes());
        header[L3 + 10..L3 + 12].fill(0);
        let sum = checksum::checksum(&header[L3..L3 + 20]);
        header[L3 + 10..L3 + 12].copy_from_slice(&sum.to_be_bytes());
    } else {
        header[L3 + 4..L3 + 6].copy_from_slice(&saturating_u16(total - L3 - 40).to_be_bytes());
    }
}

/// The sum over the outer pseudo header.
pub(crate) fn outer_pseudo_header(header: &[u8], protocol: Protocol, l4_len: u32) -> Sum {
    let addresses = if is_ipv4(header) { L3 + 12..L3 + 20 } else { L3 + 8..L3 + 40 };
    Sum::of(&header[addresses]).u32(l4_len).u16(u16::from(protocol.0))
}

impl EndpointTable {
    /// The limits for splitting a super-packet before it is sent to `endpoint`, because STT carries
    /// only TCP super-packets of limited length. `None` when no split is needed.
    pub fn split_limits(&self, endpoint: EndpointId, packet: &PacketBuf) -> Option<SplitLimits> {
        let gso = packet.offload.gso?;
        let endpoint = self.get(endpoint)?;
        if self.class(endpoint).0.tunnel.carrier() != Carrier::TcpLike {
            return None;
        }
        let max_bytes = stt::max_inner_len(!is_ipv4(endpoint.template.as_bytes()));
        if gso.kind == GsoKind::UdpL4 {
            return Some(SplitLimits { max_segments: 1, max_bytes });
        }
        (packet.len() > max_bytes).then_some(SplitLimits { max_segments: usize::MAX, max_bytes })
    }

    /// Prepends the outer header of `endpoint` to `packet`, which then begins with the outer
    /// Ethernet header. For STT its offload state becomes that of the outer packet. For other types
    /// it remains that of the inner packet, with its offsets adjusted.
    ///
    /// # Errors
    /// [`DropReason`] when the end point does not exist or the frame cannot be carried. The packet
    /// is unchanged then.
    pub fn encap(
        &mut self,
        id: EndpointId,
        key: &TunnelKey,
        packet: &mut PacketBuf,
    ) -> Result<Encapsulated, DropReason> {
        self.encap_with(id, key, packet, OuterHeaders::All)
    }

    /// Like [`EndpointTable::encap`], but writes only the outer headers in `headers`. With
    /// [`OuterHeaders::BehindSocket`], `packet` begins with the tunnel header, except for STT.
    ///
    /// # Errors
    /// The same as [`EndpointTable::encap`].
    #[inline]
    pub fn encap_with(
        &mut self,
        id: EndpointId,
        key: &TunnelKey,
        packet: &mut PacketBuf,
        headers: OuterHeaders,
    ) -> Result<Encapsulated, DropReason> {
        packet.linearize();
        let inner = InnerFlow::read(packet, &self.seed);
        self.emit(id, key, packet, (inner, headers))
    }

    /// Like [`EndpointTable::encap_with`], for a linear packet whose inner headers are already
    /// parsed.
    ///
    /// # Errors
    /// The same as [`EndpointTable::encap`].
    #[inline]
    pub fn emit(
        &mut self,
        id: EndpointId,
        key: &TunnelKey,
        packet: &mut PacketBuf,
        (inner, headers): (InnerFlow, OuterHeaders),
    ) -> Result<Encapsulated, DropReason> {
        let endpoint = self
            .endpoints
            .get_mut(id.0 as usize)
            .and_then(Option::as_mut)
            .ok_or(DropReason::UnknownEndpoint)?;
        let class = &self.classes[usize::from(endpoint.class)];
        let (spec, layout) = (&class.spec, &class.layout);
        let is_behind_socket =
            headers == OuterHeaders::BehindSocket && layout.carrier != Carrier::TcpLike;
        let tunnel_header = usize::from(layout.tunnel_header);
        let (outer_len, l4, tunnel_header) = if is_behind_socket {
            (layout.outer_len(key) - tunnel_header, 0, 0)
        } else {
            (layout.outer_len(key), layout.l4.into(), tunnel_header)
        };
        let mut outer = Encapsulated {
            tunnel: spec.tunnel,
            carrier: layout.carrier,
            local: class.local,
            remote: endpoint.remote(),
            outer_len,
            l4,
            tunnel_header,
            traffic_class: outer_traffic_class(spec.dscp, inner.traffic_class),
            ttl: outer_ttl(spec.ttl, inner.ttl),
            entropy: inner.hash,
            source_port: self.entropy_base + (inner.hash as u16 & (self.entropy_ports - 1)),
            port: spec.port,
            checksum: spec.checksum,
            resolved: endpoint.resolved,
            ipv4: layout.ipv4,
            is_behind_socket,
            inner_offload: packet.offload,
        };
        let inner_len = packet.len();
        if outer.carrier == Carrier::TcpLike {
            outer.ttl = stt::outer_ttl(outer.ttl, spec.port, packet)?;
            stt::encap(&outer, spec, endpoint, key, packet, self.next_packet_id)?;
            self.next_packet_id = self.next_packet_id.wrapping_add(1);
        } else {
            let segments = if spec.sequence { segment_count(packet) } else { 0 };
            let header = if is_behind_socket {
                let (template, len) = endpoint.template.tunnel_header(layout);
                let pushed = packet.push_front_header(template, len, outer_len - len);
                pushed.map_err(|_| DropReason::Headroom)?
            } else {
                outer.push_template(&endpoint.template, packet)?
            };
            let fields = PacketFields {
                key,
                sequence: endpoint.next_sequence,
                source_port: outer.source_port,
            };
            outer.tunnel.fill(&mut header[outer.tunnel_header..], &fields);
            endpoint.next_sequence = endpoint.next_sequence.wrapping_add(segments);
        }
        endpoint.tx.add(inner_len);
        Ok(outer)
    }
}

/// Number of packets that a frame becomes on the wire, for GRE's sequence numbers.
fn segment_count(packet: &PacketBuf) -> u32 {
    let Some(gso) = packet.offload.gso else { return 1 };
    let Checksum::Partial { start, .. } = packet.offload.checksum else { return 1 };
    let l4 = usize::from(start);
    let header_len = match (gso.kind, packet.head().get(l4 + 12)) {
        (GsoKind::TcpV4 | GsoKind::TcpV6, Some(offset)) => usize::from(offset >> 4) * 4,
        _ => 8,
    };
    let payload = packet.len().saturating_sub(l4 + header_len);
    payload.div_ceil(usize::from(gso.size.max(1))).max(1) as u32
}

fn outer_traffic_class(dscp: Dscp, inner: Option<u8>) -> u8 {
    let dscp = match dscp {
        Dscp::Fixed(dscp) => dscp << 2,
        Dscp::Inherit => inner.unwrap_or(0) & 0xfc,
    };
    // RFC 6040 section 4.1, normal mode: the outer ECN field is a copy of the inner one.
    ecn::encap(dscp, inner.unwrap_or(0))
}

fn outer_ttl(ttl: Ttl, inner: Option<u8>) -> u8 {
    match ttl {
        Ttl::Fixed(ttl) => ttl,
        // An outer TTL of 0 must not be sent.
        Ttl::Inherit => inner.unwrap_or(Ttl::UNLESS_GIVEN).max(1),
    }
}

impl Encapsulated {
    /// Prepends the template to the packet, and sets the IP fields that differ between packets:
    /// traffic class, length, TTL, and IPv4's checksum.
    #[inline]
    pub(crate) fn push_template<'a>(
        &self,
        template: &HeaderTemplate,
        packet: &'a mut PacketBuf,
    ) -> Result<&'a mut [u8], DropReason> {
        let total = packet.len() + self.outer_len;
        let (template, len) = template.array();
        let header = packet
            .push_front_header(template, len, self.outer_len - len)
            .map_err(|_| DropReason::Headroom)?;
        let ip = &mut header[L3..];
        if self.ipv4 {
            let len = saturating_u16(total - L3);
            let template_sum = !u16::from_be_bytes([ip[10], ip[11]]);
            let ttl = u32::from(self.ttl) << 8;
            let sum =
                u32::from(template_sum) + u32::from(self.traffic_class) + u32::from(len) + ttl;
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            ip[1] = self.traffic_class;
            ip[2..4].copy_from_slice(&len.to_be_bytes());
            ip[8] = self.ttl;
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            ip[0] = 0x60 | self.traffic_class >> 4;
            // The flow label carries the entropy too (RFC 6438).
            let label = u32::from(self.traffic_class & 0xf) << 20 | u32::from(self.source_port);
            ip[1..4].copy_from_slice(&label.to_be_bytes()[1..]);
            ip[4..6].copy_from_slice(&saturating_u16(total - L3 - 40).to_be_bytes());
            ip[7] = self.ttl;
        }
        if let Some(udp) = self.udp_header() {
            let source_port = self.source_port.to_be_bytes();
            header[udp..udp + 2].copy_from_slice(&source_port);
            header[udp + 4..udp + 6].copy_from_slice(&saturating_u16(total - udp).to_be_bytes());
        }
        Ok(header)
    }

    /// Offset of the outer UDP header, if encapsulation has written one.
    fn udp_header(&self) -> Option<usize> {
        (self.carrier == Carrier::Udp && !self.is_behind_socket).then_some(self.l4)
    }
}
