//! Rewrites header fields in a frame, and updates the checksums that cover them (RFC 1624).
//!
//! | checksum | covers |
//! |---|---|
//! | IPv4 header | all fields of that header |
//! | TCP, UDP, UDP-Lite, DCCP, ICMPv6 | their own fields, and the IP addresses |
//! | ICMP | its own fields |
//! | SCTP | its own fields; a CRC32c, not a sum |
//!
//! A wrong checksum stays wrong, so that the receiver still detects the error. A partial checksum
//! holds the sum of the pseudo header, so only address changes update it.

use crate::{DropReason, Field};
use packet::{Checksum, PacketBuf};
use wire::checksum::{Sum, update_bytes, update_udp};
use wire::icmp::nd;
use wire::{
    ArpPacket, Crc32c, EtherType, Fragment, Located, Protocol, arp, icmp, ipv4, ipv6, tcp, udp,
    vlan,
};

/// Bytes of an SCTP common header (RFC 9260 section 3.1).
const SCTP_HEADER_LEN: usize = 12;
const SCTP_CHECKSUM_OFFSET: usize = 8;
/// The TCI bits that are part of a flow key. The remaining bit means "tag present" in the key, and
/// DEI in the frame.
const TCI_BITS: u128 = 0xefff;

/// Rewrites the bits of `field` that are set in `mask`, for [`Action::Set`](crate::Action::Set). A
/// frame without the field is not changed.
///
/// # Errors
/// [`DropReason::NotApplicable`] for the ports of a fragmented SCTP message, because its checksum
/// covers bytes in other fragments. The frame is unchanged then.
pub fn set_field(
    packet: &mut PacketBuf,
    field: Field,
    value: u128,
    mask: u128,
) -> Result<(), DropReason> {
    let mask = mask & field.all_ones();
    if let Some(position) = ethernet_position(packet.head(), field) {
        set_plain(packet.fields_mut(), field, position, value, mask);
        return Ok(());
    }
    let head = packet.head();
    let Ok(at) = packet.located() else { return Ok(()) };
    let position = match at.ethertype {
        EtherType::ARP | EtherType::RARP => arp_position(head, &at, field),
        EtherType::IPV4 => ip4_position(&at, field),
        EtherType::IPV6 => ip6_position(head, &at, field),
        _ => None,
    };
    match position.or_else(|| transport_position(head, &at, field)) {
        Some(position) => write(packet, &at, position, value, mask),
        None => Ok(()),
    }
}

/// Rewrites the MTU of an ICMPv6 "packet too big" or an ICMP "destination unreachable". The code of
/// the latter may be set later. In ICMP the MTU has 16 bits, and larger values become 65,535. Other
/// frames are not changed.
pub(crate) fn set_icmp_mtu(packet: &mut PacketBuf, mtu: u32) {
    let Ok(at) = packet.located() else { return };
    let Some((l4, [kind, _])) = icmp_kind(packet.head(), &at) else { return };
    let (position, mtu) = match (at.ethertype, kind) {
        (EtherType::IPV4, 3) => (
            FieldPosition::new(l4 + 6, 2, 0, ChecksumCoverage::Transport),
            mtu.min(u32::from(u16::MAX)),
        ),
        (EtherType::IPV6, 1 | 2) => {
            (FieldPosition::new(l4 + 4, 4, 0, ChecksumCoverage::Transport), mtu)
        }
        _ => return,
    };
    // Only SCTP rewrites can fail.
    let _ = write(packet, &at, position, mtu.into(), u128::MAX);
}

/// The checksums that cover a field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChecksumCoverage {
    /// No checksum.
    No,
    /// The checksum of the IPv4 header.
    Ip4Header,
    /// The transport checksum through its pseudo header, and the checksum of an IPv4 header.
    Address,
    /// The transport checksum.
    Transport,
}

/// Position of a field in a frame: in the `len` bytes at `at`, read as a big-endian number, the
/// field begins `shift` bits from the right. `len`, and the distance of `at` from the header that
/// the checksum covers, are even, so that whole 16-bit words change.
#[derive(Clone, Copy)]
pub(crate) struct FieldPosition {
    at: usize,
    len: usize,
    shift: u8,
    coverage: ChecksumCoverage,
}

impl FieldPosition {
    pub const fn new(at: usize, len: usize, shift: u8, coverage: ChecksumCoverage) -> Self {
        Self { at, len, shift, coverage }
    }
}

/// The bytes of a field before and after rewriting some of its bits, each in the last `len` of 16.
fn rewritten(
    head: &[u8],
    position: FieldPosition,
    value: u128,
    mask: u128,
) -> Option<([u8; 16], [u8; 16])> {
    let mut old = [0; 16];
    let first = old.len() - position.len;
    old[first..].copy_from_slice(head.get(position.at..position.at + position.len)?);
    let kept = u128::from_be_bytes(old) & !(mask << position.shift);
    Some((old, (kept | (value & mask) << position.shift).to_be_bytes()))
}

/// Rewrites a field of the Ethernet header or of a tag, which no checksum covers. A TPID is only
/// replaced by another TPID, because other values would change how the rest of the frame is parsed.
fn set_plain(head: &mut [u8], field: Field, position: FieldPosition, value: u128, mask: u128) {
    let mask = match field {
        Field::VlanTci | Field::VlanInnerTci => mask & TCI_BITS,
        _ => mask,
    };
    let Some((_, new)) = rewritten(head, position, value, mask) else { return };
    let [.., tpid_high, tpid_low] = new;
    let is_tpid = matches!(field, Field::VlanTpid | Field::VlanInnerTpid);
    if !is_tpid || EtherType(u16::from_be_bytes([tpid_high, tpid_low])).is_vlan() {
        head[position.at..position.at + position.len]
            .copy_from_slice(&new[new.len() - position.len..]);
    }
}

fn ethernet_position(head: &[u8], field: Field) -> Option<FieldPosition> {
    let plain = |at, len| FieldPosition::new(at, len, 0, ChecksumCoverage::No);
    let (tag, position) = match field {
        Field::EthDst => return Some(plain(0, 6)),
        Field::EthSrc => return Some(plain(6, 6)),
        Field::VlanTpid => (0, plain(12, 2)),
        Field::VlanTci => (0, plain(14, 2)),
        Field::VlanInnerTpid => (1, plain(16, 2)),
        Field::VlanInnerTci => (1, plain(18, 2)),
        _ => return None,
    };
    let tags = vlan::Tags::parse(head).ok()?;
    (tags.count() > tag).then_some(position)
}

fn arp_position(head: &[u8], at: &Located, field: Field) -> Option<FieldPosition> {
    let packet = head.get(at.l3..at.l3_end.min(head.len()))?.get(..arp::PACKET_LEN)?;
    ArpPacket::new_checked(packet).ok()?;
    let (offset, len) = match field {
        Field::ArpOp => (6, 2),
        Field::ArpSha => (8, 6),
        Field::ArpSpa => (14, 4),
        Field::ArpTha => (18, 6),
        Field::ArpTpa => (24, 4),
        _ => return None,
    };
    Some(FieldPosition::new(at.l3 + offset, len, 0, ChecksumCoverage::No))
}

fn ip4_position(at: &Located, field: Field) -> Option<FieldPosition> {
    let (offset, len, shift, coverage) = match field {
        Field::IpDscp => (0, 2, 2, ChecksumCoverage::Ip4Header),
        Field::IpEcn => (0, 2, 0, ChecksumCoverage::Ip4Header),
        Field::IpTtl => (8, 2, 8, ChecksumCoverage::Ip4Header),
        Field::Ip4Src => (12, 4, 0, ChecksumCoverage::Address),
        Field::Ip4Dst => (16, 4, 0, ChecksumCoverage::Address),
        _ => return None,
    };
    Some(FieldPosition::new(at.l3 + offset, len, shift, coverage))
}

fn ip6_position(head: &[u8], at: &Located, field: Field) -> Option<FieldPosition> {
    let (offset, len, shift, coverage) = match field {
        Field::IpDscp => (0, 4, 22, ChecksumCoverage::No),
        Field::IpEcn => (0, 4, 20, ChecksumCoverage::No),
        Field::Ip6Label => (0, 4, 0, ChecksumCoverage::No),
        Field::IpTtl => (6, 2, 0, ChecksumCoverage::No),
        Field::Ip6Src => (8, 16, 0, ChecksumCoverage::Address),
        // With a routing header, the transport checksum covers the address in that header.
        Field::Ip6Dst if has_route_left(head, at) => (24, 16, 0, ChecksumCoverage::No),
        Field::Ip6Dst => (24, 16, 0, ChecksumCoverage::Address),
        _ => return None,
    };
    Some(FieldPosition::new(at.l3 + offset, len, shift, coverage))
}

/// True when a routing header has segments left. Then the transport checksum covers the final
/// destination, not the destination address (RFC 8200 section 8.1).
fn has_route_left(head: &[u8], at: &Located) -> bool {
    let Some(l4) = at.l4 else { return false };
    let Some(&next) = head.get(at.l3 + 6) else { return false };
    let (mut next, mut offset) = (Protocol(next), at.l3 + ipv6::HEADER_LEN);
    while offset < l4 {
        let Some(&[following, len, _, segments_left]) =
            head.get(offset..).and_then(|rest| rest.first_chunk())
        else {
            return false;
        };
        let len = usize::from(len);
        offset += match next {
            Protocol::ROUTING if segments_left > 0 => return true,
            Protocol::FRAGMENT => ipv6::FRAGMENT_HEADER_LEN,
            Protocol::AH => (len + 2) * 4,
            _ => (len + 1) * 8,
        };
        next = Protocol(following);
    }
    false
}

fn transport_position(head: &[u8], at: &Located, field: Field) -> Option<FieldPosition> {
    let transport =
        |at, len, shift| Some(FieldPosition::new(at, len, shift, ChecksumCoverage::Transport));
    let l4 = at.l4?;
    let have = at.l3_end.min(head.len()).checked_sub(l4)?;
    match field {
        Field::TpSrc | Field::TpDst => {
            let least = match at.protocol {
                Protocol::TCP => tcp::MIN_HEADER_LEN,
                Protocol::UDP => udp::HEADER_LEN,
                Protocol::SCTP => SCTP_HEADER_LEN,
                _ => return None,
            };
            let offset = if field == Field::TpSrc { 0 } else { 2 };
            if have < least { None } else { transport(l4 + offset, 2, 0) }
        }
        Field::TcpFlags if at.protocol == Protocol::TCP && have >= tcp::MIN_HEADER_LEN => {
            transport(l4 + 12, 2, 0)
        }
        Field::IcmpType => icmp_kind(head, at).and_then(|(l4, _)| transport(l4, 2, 8)),
        Field::IcmpCode => icmp_kind(head, at).and_then(|(l4, _)| transport(l4, 2, 0)),
        Field::NdTarget => nd_options(head, at).and_then(|_| transport(l4 + 8, 16, 0)),
        Field::NdSll | Field::NdTll => {
            let (kind, options) = nd_options(head, at)?;
            let wanted = match (field, kind) {
                (Field::NdSll, nd::NEIGHBOR_SOLICITATION) => SOURCE_LINK_LAYER,
                (Field::NdTll, nd::NEIGHBOR_ADVERTISEMENT) => TARGET_LINK_LAYER,
                _ => return None,
            };
            let option = option_offset(head.get(options..at.l3_end.min(head.len()))?, wanted)?;
            transport(options + option + 2, 6, 0)
        }
        _ => None,
    }
}

/// Rewrites the identifier of an ICMP or ICMPv6 request or reply. Other frames are not changed.
pub fn set_icmp_ident(packet: &mut PacketBuf, ident: u16) {
    let Ok(at) = packet.located() else { return };
    let Some((l4, _)) = icmp_kind(packet.head(), &at) else { return };
    let position = FieldPosition::new(l4 + 4, 2, 0, ChecksumCoverage::Transport);
    // Only SCTP rewrites can fail.
    let _ = write(packet, &at, position, ident.into(), u128::MAX);
}

/// Offset of the message of an ICMP or ICMPv6 packet, and its type and code.
pub(crate) fn icmp_kind(head: &[u8], at: &Located) -> Option<(usize, [u8; 2])> {
    let protocol = match at.ethertype {
        EtherType::IPV4 => Protocol::ICMP,
        EtherType::IPV6 => Protocol::ICMPV6,
        _ => return None,
    };
    let l4 = at.l4.filter(|_| at.protocol == protocol)?;
    let message: &[u8; icmp::HEADER_LEN] =
        head.get(l4..at.l3_end.min(head.len()))?.first_chunk()?;
    Some((l4, [message[0], message[1]]))
}

/// Option types (RFC 4861 section 4.6.1).
const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;
/// Bytes of a neighbour solicitation or advertisement before its options.
const ND_FIXED_LEN: usize = 24;

/// The type of a neighbour solicitation or advertisement, and the offset of its options.
fn nd_options(head: &[u8], at: &Located) -> Option<(u8, usize)> {
    let (l4, [kind, code]) = icmp_kind(head, at).filter(|_| at.ethertype == EtherType::IPV6)?;
    let whole = l4 + ND_FIXED_LEN <= at.l3_end.min(head.len());
    let is_nd = matches!(kind, nd::NEIGHBOR_SOLICITATION | nd::NEIGHBOR_ADVERTISEMENT) && code == 0;
    (whole && is_nd).then_some((kind, l4 + ND_FIXED_LEN))
}

/// Offset of the first link-layer address option of type `wanted`. `None` when there is none, or
/// when any option of the message is malformed.
fn option_offset(options: &[u8], wanted: u8) -> Option<usize> {
    nd::NdOptions::new(options).ok()?;
    let mut at = 0;
    while let Some(&[kind, units]) = options.get(at..).and_then(|rest| rest.first_chunk()) {
        if kind == wanted {
            return Some(at);
        }
        at += usize::from(units) * 8;
    }
    None
}

pub(crate) fn write(
    packet: &mut PacketBuf,
    at: &Located,
    position: FieldPosition,
    value: u128,
    mask: u128,
) -> Result<(), DropReason> {
    let Some((old, new)) = rewritten(packet.head(), position, value, mask) else { return Ok(()) };
    let first = new.len() - position.len;
    let (old, new) = (&old[first..], &new[first..]);
    if old == new {
        return Ok(());
    }
    if position.coverage == ChecksumCoverage::Transport && at.protocol == Protocol::SCTP {
        update_crc(packet, at, position.at, old, new)?;
    }
    packet.fields_mut()[position.at..position.at + position.len].copy_from_slice(new);
    let in_ip4 = position.coverage == ChecksumCoverage::Address && at.ethertype == EtherType::IPV4;
    if in_ip4 || position.coverage == ChecksumCoverage::Ip4Header {
        let sum = at.l3 + ipv4::CHECKSUM_OFFSET;
        rewrite_u16(packet, sum, |sum| update_bytes(sum, old, new));
    }
    if matches!(position.coverage, ChecksumCoverage::Address | ChecksumCoverage::Transport) {
        update_transport(packet, at, position.coverage, old, new);
    }
    Ok(())
}

fn rewrite_u16(packet: &mut PacketBuf, at: usize, change: impl FnOnce(u16) -> u16) {
    if let Some(bytes) = packet.fields_mut().get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *bytes = change(u16::from_be_bytes(*bytes)).to_be_bytes();
    }
}

/// Updates the transport checksum after `old` became `new` in the transport or the pseudo header.
fn update_transport(
    packet: &mut PacketBuf,
    at: &Located,
    coverage: ChecksumCoverage,
    old: &[u8],
    new: &[u8],
) {
    let is_v6 = at.ethertype == EtherType::IPV6;
    let Some(l4) = at.l4 else { return };
    let offset = match at.protocol {
        Protocol::TCP => tcp::CHECKSUM_OFFSET,
        // At the same offset, over the same pseudo header.
        Protocol::UDP | Protocol::UDP_LITE | Protocol::DCCP => udp::CHECKSUM_OFFSET,
        Protocol::ICMPV6 if is_v6 => icmp::CHECKSUM_OFFSET,
        Protocol::ICMP if !is_v6 && coverage == ChecksumCoverage::Transport => {
            icmp::CHECKSUM_OFFSET
        }
        _ => return,
    };
    if at.l3_end < l4 + offset + 2 {
        return;
    }
    let is_partial = match packet.offload.checksum {
        Checksum::Partial { start, offset: at } => {
            usize::from(start) + usize::from(at) == l4 + offset
        }
        Checksum::Unverified | Checksum::Verified => false,
    };
    let protocol = at.protocol;
    rewrite_u16(packet, l4 + offset, |sum| match (is_partial, coverage) {
        (true, ChecksumCoverage::Transport) => sum,
        (true, _) => Sum::new().u16(sum).u16(!Sum::of(old).fold()).bytes(new).fold(),
        (false, _) if protocol == Protocol::UDP => {
            update_udp(sum, |sum| update_bytes(sum, old, new))
        }
        (false, _) => update_bytes(sum, old, new),
    });
}

/// Updates the checksum of an SCTP packet, before the bytes `old` at `field` become `new`.
fn update_crc(
    packet: &mut PacketBuf,
    at: &Located,
    field: usize,
    old: &[u8],
    new: &[u8],
) -> Result<(), DropReason> {
    if at.fragment != Fragment::Whole {
        return Err(DropReason::NotApplicable);
    }
    let Some(sum) = at.l4.map(|l4| l4 + SCTP_CHECKSUM_OFFSET) else { return Ok(()) };
    if matches!(packet.offload.checksum, Checksum::Partial { start, offset }
        if usize::from(start) + usize::from(offset) == sum)
    {
        return Ok(());
    }
    let change = old.iter().zip(new).map(|(old, new)| old ^ new);
    let unchanged = std::iter::repeat_n(0, at.l3_end - field - old.len());
    let change = Crc32c::of_difference(change.chain(unchanged));
    for (byte, change) in packet.fields_mut().iter_mut().skip(sum).zip(change) {
        *byte ^= change;
    }
    Ok(())
}
