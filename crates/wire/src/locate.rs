//! Header offsets of a frame: one bounded walk from Ethernet to the transport header, without
//! copying or allocating. Segmentation, key extraction and encapsulation all start with it.

use crate::ethernet::{self, EtherType};
use crate::ip::{Fragment, Protocol};
use crate::ipv4::Ipv4Packet;
use crate::ipv6::Ipv6Packet;
use crate::view::{require, u16_at};
use crate::{Layer, ParseError};
use crate::{snap, vlan};

/// Header offsets of a frame, in bytes from its start.
///
/// Always `14 <= l3 <= l4 <= l3_end <= frame length`, and `l4` is at most the number of bytes read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Located {
    /// Number of VLAN tags before `ethertype`, 0 to 2.
    pub vlan_tags: u8,
    /// EtherType after the tags, or of a SNAP header after them; another TPID when the frame has
    /// more than two tags.
    pub ethertype: EtherType,
    /// Offset of the network header, or of the payload when the frame is not IP.
    pub l3: usize,
    /// Offset of the header after IP and its extension headers.
    ///
    /// `None` in later fragments, in frames that are not IP, and after an IPv6 "no next header".
    /// The transport header itself is not checked: pass `frame[l4..l3_end]` to
    /// `TcpPacket::new_checked` or the constructor of another protocol.
    pub l4: Option<usize>,
    /// Protocol at `l4`, or of the datagram that a later fragment belongs to.
    /// [`Protocol::NO_NEXT_HEADER`] in frames that are not IP.
    pub protocol: Protocol,
    /// Whole, first fragment or later fragment.
    pub fragment: Fragment,
    /// End of the network packet according to its own length field, before any padding. In a frame
    /// that is not IP: the end of the payload according to the IEEE 802.3 length in front of a SNAP
    /// header, otherwise the end of the frame.
    pub l3_end: usize,
}

impl Located {
    /// True for IPv4 and IPv6.
    #[inline]
    pub const fn is_ip(&self) -> bool {
        matches!(self.ethertype, EtherType::IPV4 | EtherType::IPV6)
    }

    /// True for an IEEE 802.3 frame with a SNAP header, which is in front of `l3`.
    #[inline]
    pub const fn has_snap(&self) -> bool {
        self.l3 != ethernet::HEADER_LEN + self.vlan_tags as usize * vlan::TAG_LEN
    }

    /// Offset of the EtherType, or of an IEEE 802.3 length: the end of addresses and tags.
    #[inline]
    pub const fn type_offset(&self) -> usize {
        vlan::ETHERTYPE_OFFSET + self.vlan_tags as usize * vlan::TAG_LEN
    }
}

/// Walks `frame` from its Ethernet header through up to two VLAN tags, a SNAP header, and IPv4 or
/// IPv6 to the transport header.
///
/// # Errors
/// A [`ParseError`] for a truncated or malformed Ethernet, VLAN, SNAP, IPv4 or IPv6 header. IPv4
/// header checksums are not verified. A frame that is not IP is no error: its `l4` is `None`.
#[inline]
pub fn transport_offset(frame: &[u8]) -> Result<Located, ParseError> {
    transport_offset_in(frame, frame.len())
}

/// [`transport_offset`] of a frame of `frame_len` bytes of which `frame` holds only the beginning,
/// such as the linear part of a fragmented buffer. `l3_end` may lie beyond `frame`.
///
/// # Errors
/// The same as [`transport_offset`]; also `Truncated` when `frame` does not hold a whole header.
#[inline]
pub fn transport_offset_in(frame: &[u8], frame_len: usize) -> Result<Located, ParseError> {
    require(Layer::Ethernet, ethernet::HEADER_LEN, frame.len())?;
    let mut ethertype = EtherType(u16_at(frame, vlan::ETHERTYPE_OFFSET));
    let mut l3 = ethernet::HEADER_LEN;
    let mut vlan_tags = 0;
    while ethertype.is_vlan() && usize::from(vlan_tags) < vlan::MAX_TAGS {
        require(Layer::Vlan, l3 + vlan::TAG_LEN, frame.len())?;
        ethertype = EtherType(u16_at(frame, l3 + 2));
        l3 += vlan::TAG_LEN;
        vlan_tags += 1;
    }
    let base = Located {
        vlan_tags,
        ethertype,
        l3,
        l4: None,
        protocol: Protocol::NO_NEXT_HEADER,
        fragment: Fragment::Whole,
        l3_end: frame_len.max(frame.len()),
    };
    match ethertype {
        EtherType::IPV4 => locate_v4(frame, base),
        EtherType::IPV6 => locate_v6(frame, base),
        _ if ethertype.is_length() => locate_snap(frame, base),
        _ => Ok(base),
    }
}

#[cold]
fn locate_snap(frame: &[u8], base: Located) -> Result<Located, ParseError> {
    let length = usize::from(base.ethertype.0);
    let Some((ethertype, l3_end)) = snap::parse(frame, base.l3_end, base.l3, length)? else {
        return Ok(base);
    };
    let inside = Located { ethertype, l3: base.l3 + snap::HEADER_LEN, l3_end, ..base };
    match ethertype {
        EtherType::IPV4 => locate_v4(frame, inside),
        EtherType::IPV6 => locate_v6(frame, inside),
        _ => Ok(inside),
    }
}

#[inline]
fn locate_v4(frame: &[u8], base: Located) -> Result<Located, ParseError> {
    let ip = Ipv4Packet::new_header(&frame[base.l3..])?;
    ip.check_total(base.l3_end - base.l3)?;
    let fragment = ip.fragment();
    let l4 = (fragment != Fragment::Later).then_some(base.l3 + ip.header_len());
    let l3_end = base.l3 + usize::from(ip.total_len());
    Ok(Located { l4, protocol: ip.protocol(), fragment, l3_end, ..base })
}

#[inline]
fn locate_v6(frame: &[u8], base: Located) -> Result<Located, ParseError> {
    let ip = Ipv6Packet::new_header(&frame[base.l3..])?;
    ip.check_total(base.l3_end - base.l3)?;
    let upper = ip.upper()?;
    let fragment = upper.fragmentation();
    let has_l4 = fragment != Fragment::Later && upper.protocol != Protocol::NO_NEXT_HEADER;
    let l4 = has_l4.then_some(base.l3 + upper.offset);
    let l3_end = base.l3 + ip.total_len();
    Ok(Located { l4, protocol: upper.protocol, fragment, l3_end, ..base })
}
