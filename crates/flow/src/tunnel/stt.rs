//! Encapsulates a frame as one STT frame in one TCP-like super-segment, and decapsulates it
//! (draft-davie-stt sections 3 and 4).
//!
//! The STT header carries the inner offload state, so a super-packet with a partial checksum
//! crosses the underlay unchanged. Any NIC with TCP segmentation offload can segment the outer
//! packet.

use super::codec::TunnelCodec;
use super::{
    Carrier, DeviceOffloads, HeaderLen, KernelDatapath, LogicalPortsField, NetworkId, OptionKind,
    TunnelDescriptor, TunnelOption,
};
use crate::decap::strip_outer;
use crate::encap::{is_ipv4, outer_pseudo_header};
use crate::header_template::L3;
use crate::{
    DatapathKey, DropReason, Encapsulated, Endpoint, LogicalPorts, PortKey, TunnelKey, TunnelSpec,
};
use packet::stt::{SttFrameKey, SttSegmentPosition};
use packet::{Checksum, ChecksumStatus, Gso, GsoKind, Offload, PacketBuf};
use wire::ecn::Ecn;
use wire::tunnel::stt::{FRAME_HEADER_LEN, PORT, SEGMENT_HEADER_LEN};
use wire::tunnel::{SttChecksum, SttContext, SttPacket, SttRepr, SttSegmentPacket, SttSegmentRepr};
use wire::{EtherType, Fragment, Protocol, vlan};

/// The largest outer IP packet.
const MAX_IP_LEN: usize = 65_535;
const TCP_CHECKSUM: u16 = 16;
const UDP_CHECKSUM: u16 = 6;

pub(crate) struct Stt;

impl TunnelCodec for Stt {
    const DESCRIPTOR: TunnelDescriptor = TunnelDescriptor {
        name: "stt",
        standard: "draft-davie-stt",
        carrier: Carrier::TcpLike,
        default_port: PORT,
        header: HeaderLen::fixed(FRAME_HEADER_LEN),
        network_id: NetworkId::VNI_24,
        logical_ports: LogicalPortsField::SttContext,
        options: &[
            TunnelOption::new(OptionKind::Port, "tcp_port", "tcp_port = 7471", "7471"),
            TunnelOption::LOGICAL_PORTS,
            TunnelOption::TTL,
            TunnelOption::DSCP,
        ],
        offloads: DeviceOffloads::TCP_SHAPED,
        kernel_datapath: KernelDatapath::Unsupported {
            why: "eBPF programs cannot send STT; the user datapath carries it",
        },
        has_gro_device: false,
    };
}

/// The longest inner frame that fits in one STT frame over IPv4, or over IPv6 if `ipv6` is set.
pub(crate) const fn max_inner_len(ipv6: bool) -> usize {
    MAX_IP_LEN - if ipv6 { 40 } else { 20 } - SEGMENT_HEADER_LEN - FRAME_HEADER_LEN
}

/// The outer TTL of a frame: `ttl`, but less than the TTL of the frame if that is itself an STT
/// segment. Otherwise packets would loop endlessly when the route to the end point leads into the
/// tunnel itself. With other tunnel types, packets in such a loop soon exceed the path MTU; STT
/// segments them.
///
/// # Errors
/// [`DropReason::TtlExpired`]: the TTL of the segment has run out.
pub(crate) fn outer_ttl(ttl: u8, port: u16, packet: &PacketBuf) -> Result<u8, DropReason> {
    let head = packet.head();
    let Ok(at) = packet.located() else { return Ok(ttl) };
    let dst_port = at.l4.and_then(|l4| head.get(l4 + 2..l4 + 4));
    if at.protocol != Protocol::TCP || dst_port != Some(&port.to_be_bytes()) {
        return Ok(ttl);
    }
    let ttl_offset = if at.ethertype == EtherType::IPV4 { 8 } else { 7 };
    let inner = head.get(at.l3 + ttl_offset).copied().unwrap_or_default();
    if inner <= 1 { Err(DropReason::TtlExpired) } else { Ok(ttl.min(inner - 1)) }
}

pub(crate) fn encap(
    outer: &Encapsulated,
    spec: &TunnelSpec,
    endpoint: &Endpoint,
    key: &TunnelKey,
    packet: &mut PacketBuf,
    packet_id: u32,
) -> Result<(), DropReason> {
    let ipv4 = is_ipv4(endpoint.template.as_bytes());
    if packet.len() > max_inner_len(!ipv4) {
        return Err(DropReason::UnderlayTooBig);
    }
    let inner = describe(packet)?;
    let frame_len = FRAME_HEADER_LEN + packet.len();
    let header = outer.push_template(&endpoint.template, packet)?;
    let l4 = outer.l4;
    let segment = SttSegmentRepr {
        src_port: outer.source_port,
        dst_port: spec.port,
        frame_len: frame_len as u16,
        offset: 0,
        packet_id,
    };
    let segment_len = (SEGMENT_HEADER_LEN + frame_len) as u32;
    let pseudo = outer_pseudo_header(header, Protocol::TCP, segment_len).fold();
    let (segment_header, frame_header) = header[l4..].split_at_mut(SEGMENT_HEADER_LEN);
    let mut view = SttSegmentPacket::new_unchecked(segment_header);
    segment.emit(&mut view);
    view.set_checksum(pseudo);
    let frame = SttRepr { checksum: inner, vlan: None, context_id: context(key) };
    frame.emit(&mut SttPacket::new_unchecked(frame_header));

    let headers = l4 - L3 + SEGMENT_HEADER_LEN;
    let segment_size = endpoint.path_mtu_bytes(spec).saturating_sub(headers as u16).max(1);
    let kind = if ipv4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
    packet.offload = Offload {
        checksum: Checksum::Partial { start: l4 as u16, offset: TCP_CHECKSUM },
        gso: (frame_len > usize::from(segment_size)).then_some(Gso {
            kind,
            size: segment_size,
            ecn: false,
        }),
    };
    Ok(())
}

/// Encodes the inner offload state for the STT header. Checksums that it cannot represent are
/// completed first.
fn describe(packet: &mut PacketBuf) -> Result<SttChecksum, DropReason> {
    let checksum = match packet.offload.checksum {
        Checksum::Unverified => SttChecksum::Unverified,
        Checksum::Verified => SttChecksum::Verified,
        Checksum::Partial { start, offset } => match partial(packet, start, offset) {
            Some(checksum) => checksum,
            None => {
                packet::complete_checksum(packet).map_err(|_| DropReason::Segmentation)?;
                SttChecksum::Verified
            }
        },
    };
    match (packet.offload.gso, checksum) {
        (None, _) | (Some(_), SttChecksum::Partial { tcp: true, .. }) => Ok(checksum),
        // STT can describe only TCP super-packets; others must be split earlier.
        _ => Err(DropReason::Segmentation),
    }
}

/// Encodes a partial checksum; `None` if the STT header cannot represent it: the receiver infers
/// the place of the field from the protocol.
fn partial(packet: &PacketBuf, start: u16, offset: u16) -> Option<SttChecksum> {
    let located = packet.located().ok()?;
    if located.l4 != Some(usize::from(start)) || located.has_snap() {
        return None;
    }
    let tcp = match (located.protocol, offset) {
        (Protocol::TCP, TCP_CHECKSUM) => true,
        (Protocol::UDP, UDP_CHECKSUM) => false,
        _ => return None,
    };
    Some(SttChecksum::Partial {
        l4_offset: u8::try_from(start).ok()?,
        ipv4: located.ethertype == EtherType::IPV4,
        tcp,
        mss: packet.offload.gso.map_or(0, |gso| gso.size),
    })
}

/// The context ID of a packet.
pub(crate) fn context(key: &TunnelKey) -> u64 {
    SttContext { datapath: key.datapath.0, ports: key.ports.map(Into::into) }.value()
}

/// Decodes a context ID.
pub(crate) fn key_of_context(context: u64) -> Result<TunnelKey, DropReason> {
    if context >> SttContext::BITS != 0 {
        return Err(DropReason::UnknownDatapath);
    }
    let SttContext { datapath, ports } = SttContext::from_value(context);
    let ports = ports.and_then(|ports| {
        let egress = PortKey::new(ports.egress)?;
        Some(LogicalPorts { ingress: PortKey::new(ports.ingress), egress })
    });
    Ok(TunnelKey { datapath: DatapathKey(datapath), ports })
}

/// One segment of an STT frame, after its outer headers were removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SttSegment {
    /// The frame that the segment belongs to.
    pub key: SttFrameKey,
    /// Position of the segment in the frame.
    pub place: SttSegmentPosition,
    /// The outer destination port.
    pub port: u16,
    /// The outer traffic class byte.
    pub traffic_class: u8,
}

/// Parses and removes the outer headers of an STT segment, from its Ethernet header on. `packet` is
/// then the segment's part of the frame, without padding.
///
/// # Errors
/// - [`DropReason::Malformed`] for headers that do not parse
/// - [`DropReason::OuterFragment`] for IP fragments
/// - [`DropReason::SttFrame`] for a segment that cannot be part of a frame
/// - [`DropReason::OuterChecksum`] for a wrong checksum
pub fn strip_stt_segment(packet: &mut PacketBuf) -> Result<SttSegment, DropReason> {
    let status = match packet.offload.checksum {
        Checksum::Unverified => packet::verify_checksum(packet),
        Checksum::Verified | Checksum::Partial { .. } => ChecksumStatus::Valid,
    };
    let outer = strip_outer(packet)?;
    if outer.protocol != Protocol::TCP {
        return Err(DropReason::Malformed);
    }
    let view = SttSegmentPacket::new_checked(packet.head()).map_err(|_| DropReason::Malformed)?;
    let segment = SttSegmentRepr::parse(&view).map_err(|_| DropReason::SttFrame)?;
    if status == ChecksumStatus::Invalid {
        return Err(DropReason::OuterChecksum);
    }
    let header_len = packet.len() - view.payload_len();
    packet.offload = Offload::default();
    packet.pull_front(header_len);
    Ok(SttSegment {
        key: SttFrameKey {
            src: outer.source,
            dst: outer.destination,
            src_port: segment.src_port,
            packet_id: segment.packet_id,
        },
        place: SttSegmentPosition {
            total: segment.frame_len,
            offset: segment.offset,
            ce: Ecn::of(outer.traffic_class) == Ecn::Ce,
        },
        port: segment.dst_port,
        traffic_class: outer.traffic_class,
    })
}

/// Parses and removes the STT header of a whole frame. `packet` is then the inner Ethernet frame,
/// with the offload state from the header.
///
/// # Errors
/// [`DropReason::MalformedTunnel`] for a header that does not parse or does not match the frame,
/// [`DropReason::UnknownDatapath`] for a context ID with reserved bits set,
/// [`DropReason::Malformed`] for an inner frame that does not parse, [`DropReason::Headroom`]
/// without room for its VLAN tag.
pub fn decap_stt(packet: &mut PacketBuf) -> Result<TunnelKey, DropReason> {
    let ethernet_len = packet.len().saturating_sub(FRAME_HEADER_LEN);
    let view = SttPacket::new_checked(packet.head()).map_err(|_| DropReason::MalformedTunnel)?;
    let repr = SttRepr::parse(&view, ethernet_len).map_err(|_| DropReason::MalformedTunnel)?;
    let key = key_of_context(repr.context_id)?;
    packet.pull_front(FRAME_HEADER_LEN);
    if packet.head().len() < wire::ethernet::HEADER_LEN {
        return Err(DropReason::Malformed);
    }
    packet.offload = offload(packet, repr.checksum)?;
    if let Some(lost) = repr.vlan {
        let tag = vlan::Tag { tpid: EtherType::VLAN, pcp: lost.pcp, dei: false, vid: lost.vid };
        crate::execute::push_vlan(packet, tag)?;
    }
    Ok(key)
}

/// The offload state from an STT header. It is checked against the frame, because a device would
/// rely on it.
fn offload(packet: &PacketBuf, checksum: SttChecksum) -> Result<Offload, DropReason> {
    let (l4_offset, ipv4, tcp, mss) = match checksum {
        SttChecksum::Unverified => return Ok(Offload::default()),
        // The sender verified the checksum before the frame crossed the network, so the guest must
        // verify it again.
        SttChecksum::Verified => return Ok(Offload::default()),
        SttChecksum::Partial { l4_offset, ipv4, tcp, mss } => (l4_offset, ipv4, tcp, mss),
    };
    let located = packet.located().map_err(|_| DropReason::Malformed)?;
    let protocol = if tcp { Protocol::TCP } else { Protocol::UDP };
    let family = if ipv4 { EtherType::IPV4 } else { EtherType::IPV6 };
    let fits = !located.has_snap()
        && located.ethertype == family
        && located.protocol == protocol
        && located.fragment == Fragment::Whole
        && located.l4 == Some(l4_offset.into());
    let field = usize::from(l4_offset) + if tcp { 18 } else { 8 };
    if !fits || packet.head().len() < field || (mss != 0 && !tcp) {
        return Err(DropReason::MalformedTunnel);
    }
    let kind = if ipv4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
    Ok(Offload {
        checksum: Checksum::Partial {
            start: l4_offset.into(),
            offset: if tcp { TCP_CHECKSUM } else { UDP_CHECKSUM },
        },
        gso: (mss != 0).then_some(Gso { kind, size: mss, ecn: false }),
    })
}
