//! Fragmentation of IPv4 packets (RFC 791 section 3.2, RFC 1812 section 5.2.6) that are too long
//! for a tunnel and may be fragmented. IPv6 packets are fragmented only by their source (RFC 8200
//! section 5).
//!
//! | field | in the fragment at *offset* |
//! |---|---|
//! | total length | of the fragment |
//! | fragment offset | the packet's + *offset*, a multiple of 8 |
//! | more fragments | set on all but the last, which has the packet's |
//! | options | the first has all; others those with the "copied" flag, and no-ops for the rest |
//! | header checksum | complete |
//! | IEEE 802.3 length, with a SNAP header | of the fragment |
//!
//! All other fields, the Ethernet header and tags are copied. A fragment may be fragmented again:
//! all results belong to the same datagram.

use std::ops::Range;

use wire::{EtherType, Ipv4Packet, ipv4, snap};

use crate::buf::{Checksum, PacketBuf};
use crate::checksum::{self, copy_range};
use crate::segment::{SegmentError, SplitLimits, split};

/// Why a packet cannot be fragmented.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FragmentError {
    /// It is no well-formed IPv4 packet.
    #[error("not an IPv4 packet")]
    NotIpv4,
    /// It has "don't fragment" set.
    #[error("the packet must not be fragmented")]
    DontFragment,
    /// The MTU leaves fewer than eight bytes for payload.
    #[error("an MTU of {0} bytes has no room for a fragment")]
    MtuTooSmall(usize),
    /// The packet is a fragment that ends beyond 65,535 bytes of its datagram.
    #[error("the fragment ends beyond its datagram")]
    BeyondDatagram,
    /// The packet was not reassembled from fragments.
    #[error("the packet was not reassembled")]
    NotReassembled,
    /// The super-packet cannot be segmented, or the checksum cannot be completed.
    #[error(transparent)]
    Offload(#[from] SegmentError),
}

/// Fragments packets, and reuses its buffers.
#[derive(Debug)]
pub struct Fragmenter {
    fragment: PacketBuf,
}

impl Default for Fragmenter {
    fn default() -> Self {
        Self { fragment: PacketBuf::with_capacity(PacketBuf::HEADROOM, 2048) }
    }
}

impl Fragmenter {
    /// Makes a fragmenter with a buffer for common MTUs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Divides the IPv4 packet in `packet` into fragments of up to `mtu` bytes, IP header included,
    /// and calls `each` with every fragment in order. A fragment is a frame with the usual
    /// headroom, which `each` may change. A partial checksum is completed. A super-packet is
    /// segmented first. Each byte is copied once, and padding is dropped. Returns the number of
    /// fragments; one if the packet fits.
    ///
    /// # Errors
    /// [`FragmentError`]; `each` was not called.
    pub fn fragment(
        &mut self,
        packet: &PacketBuf,
        mtu: usize,
        mut each: impl FnMut(&mut PacketBuf),
    ) -> Result<usize, FragmentError> {
        if packet.offload.gso.is_none() {
            return self.cut(packet, &FragmentPlan::new(packet, mtu)?, &mut each);
        }
        let mut first = packet.clone();
        let one_by_one = SplitLimits { max_segments: 1, max_bytes: usize::MAX };
        let rest = split(&mut first, one_by_one)?;
        let segments: Vec<_> = std::iter::once(first).chain(rest).collect();
        let plans = segments.iter().map(|segment| FragmentPlan::new(segment, mtu));
        let plans = plans.collect::<Result<Vec<_>, _>>()?;
        let mut fragments = 0;
        for (segment, plan) in segments.iter().zip(&plans) {
            fragments += self.cut(segment, plan, &mut each)?;
        }
        Ok(fragments)
    }

    /// Divides a reassembled datagram into fragments, also if it has "don't fragment" set.
    pub(crate) fn fragment_again(
        &mut self,
        packet: &PacketBuf,
        mtu: usize,
        mut each: impl FnMut(&mut PacketBuf),
    ) -> Result<usize, FragmentError> {
        let plan = FragmentPlan::with_flags(packet, mtu, MORE_FRAGMENTS)?;
        self.cut(packet, &plan, &mut each)
    }

    fn cut(
        &mut self,
        packet: &PacketBuf,
        plan: &FragmentPlan,
        each: &mut impl FnMut(&mut PacketBuf),
    ) -> Result<usize, FragmentError> {
        let fragment = &mut self.fragment;
        let (mut count, mut from) = (0, plan.payload.start);
        loop {
            let to = plan.payload.end.min(from + plan.step);
            fragment.reset(PacketBuf::HEADROOM);
            copy_range(packet, 0..plan.payload.start, fragment);
            copy_range(packet, from..to, fragment);
            plan.finish(fragment.head_mut(), from..to);
            each(fragment);
            count += 1;
            from = to;
            if from >= plan.payload.end {
                return Ok(count);
            }
        }
    }
}

/// How a packet is divided.
struct FragmentPlan {
    /// The IP header, from the start of the frame.
    l3: usize,
    has_snap: bool,
    /// The payload of the IP packet, from the start of the frame.
    payload: Range<usize>,
    /// The payload length in bytes of each fragment but the last; a multiple of 8 unless there is
    /// only one.
    step: usize,
    /// The packet's own flags and fragment offset.
    flags: u16,
    /// The offset of the transport checksum from the start of the frame, and its value.
    checksum: Option<(usize, [u8; 2])>,
}

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;

impl FragmentPlan {
    fn new(packet: &PacketBuf, mtu: usize) -> Result<Self, FragmentError> {
        Self::with_flags(packet, mtu, MORE_FRAGMENTS | DONT_FRAGMENT)
    }

    /// As `new`, but obeys only the flags in `obeyed`.
    fn with_flags(packet: &PacketBuf, mtu: usize, obeyed: u16) -> Result<Self, FragmentError> {
        let head = packet.head();
        let at = packet.located().map_err(|_| FragmentError::NotIpv4)?;
        if at.ethertype != EtherType::IPV4 {
            return Err(FragmentError::NotIpv4);
        }
        let ip = Ipv4Packet::new_header(&head[at.l3..]).map_err(|_| FragmentError::NotIpv4)?;
        let payload = at.l3 + ip.header_len()..at.l3_end;
        let flags = u16::from_be_bytes([head[at.l3 + FLAGS], head[at.l3 + FLAGS + 1]]);
        let step = if at.l3_end - at.l3 <= mtu {
            payload.len()
        } else if flags & obeyed & DONT_FRAGMENT != 0 {
            return Err(FragmentError::DontFragment);
        } else {
            mtu.saturating_sub(ip.header_len()) & !7
        };
        if step < payload.len() && step == 0 {
            return Err(FragmentError::MtuTooSmall(mtu));
        }
        if usize::from(ip.fragment_offset_bytes()) + payload.len() > usize::from(u16::MAX) {
            return Err(FragmentError::BeyondDatagram);
        }
        let checksum = checksum(packet, &payload)?;
        Ok(Self { l3: at.l3, has_snap: at.has_snap(), payload, step, flags, checksum })
    }

    /// Turns the copied headers in `frame` into those of the fragment with the bytes `range` of the
    /// packet.
    fn finish(&self, frame: &mut [u8], range: Range<usize>) {
        let (headers, data) = frame.split_at_mut(self.payload.start);
        if let Some((field, bytes)) = self.checksum {
            for (at, byte) in (field..).zip(bytes) {
                if range.contains(&at) {
                    data[at - range.start] = byte;
                }
            }
        }
        let header = &mut headers[self.l3..];
        if range.start > self.payload.start {
            drop_uncopied_options(&mut header[ipv4::MIN_HEADER_LEN..]);
        }
        let offset = (range.start - self.payload.start) / 8;
        let more = if range.end < self.payload.end { MORE_FRAGMENTS } else { 0 };
        let flags = (self.flags + offset as u16) | more;
        let total_len = (header.len() + range.len()) as u16;
        header[FLAGS..FLAGS + 2].copy_from_slice(&flags.to_be_bytes());
        let mut ip = Ipv4Packet::new_unchecked(header);
        ip.set_total_len(total_len);
        ip.fill_checksum();
        if self.has_snap {
            snap::set_payload_len(headers, self.l3, total_len.into());
        }
    }
}

/// The offset of flags and fragment offset in the IP header.
const FLAGS: usize = 6;

/// The offset and the completed value of a partial checksum of `packet`, which must be in
/// `payload`.
fn checksum(
    packet: &PacketBuf,
    payload: &Range<usize>,
) -> Result<Option<(usize, [u8; 2])>, SegmentError> {
    let Checksum::Partial { start, offset } = packet.offload.checksum else { return Ok(None) };
    let partial = checksum::partial_sum(packet, 0, start, offset)?;
    if partial.field < payload.start || partial.field + 2 > payload.end {
        return Err(SegmentError::ChecksumMisplaced);
    }
    Ok(Some((partial.field, partial.compute(packet).to_be_bytes())))
}

/// Overwrites options without the "copied" flag by "no operation": they belong to the first
/// fragment only (RFC 791 section 3.1). Bytes behind the end of the list or from a malformed option
/// on are not changed.
fn drop_uncopied_options(mut options: &mut [u8]) {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const COPIED: u8 = 0x80;
    while let Some(&kind) = options.first() {
        let len = match kind {
            END => return,
            NO_OPERATION => 1,
            _ => options.get(1).map_or(0, |len| usize::from(*len)),
        };
        if len < if kind == NO_OPERATION { 1 } else { 2 } {
            return;
        }
        let Some((option, rest)) = options.split_at_mut_checked(len) else { return };
        if kind & COPIED == 0 {
            option.fill(NO_OPERATION);
        }
        options = rest;
    }
}
