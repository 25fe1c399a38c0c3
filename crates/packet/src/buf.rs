//! [`PacketBuf`]: one Ethernet frame with headroom and with the state of its checksum and
//! segmentation offloads.
//!
//! ```text
//!   0            start                 end        fragments (ranges of the same storage, in order)
//!   | headroom   | linear part         | unused   | payload | gap | payload | ...
//! ```
//!
//! A frame read from a device is linear. A super-packet coalesced from a received UDP batch keeps
//! its payload where it was received, so that coalescing copies nothing: the headers and the first
//! payload are the linear part, and the other payloads are fragments of the same storage. Headers
//! are always in the linear part.
//!
//! The buffer remembers where the headers of its frame are ([`PacketBuf::located`]), so that the
//! stages of forwarding do not each walk them again.

use crate::reassembly::Refragment;
use std::cell::Cell;
use std::ops::Range;
use wire::{EtherType, Fragment, Located, ParseError, Protocol, transport_offset_in};

/// The state of the innermost transport checksum, as in a virtio-net header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checksum {
    /// The checksum is complete and has not been verified.
    #[default]
    Unverified,
    /// The checksum has been verified, or the frame never left this host's memory. On transmit it
    /// is the same as `Unverified`.
    Verified,
    /// The field at `start + offset` holds only the sum of the pseudo header. The sum of all bytes
    /// from `start` to the end of the frame must be added to it before the frame is on a wire.
    Partial {
        /// Where summing starts, in bytes from the start of the frame (the transport header).
        start: u16,
        /// The checksum field, in bytes from `start`.
        offset: u16,
    },
}

/// The kind of segments that a super-packet is divided into.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GsoKind {
    /// TCP segments over IPv4.
    TcpV4,
    /// TCP segments over IPv6.
    TcpV6,
    /// UDP datagrams (UDP_SEGMENT), over either family.
    UdpL4,
}

/// The segmentation that a super-packet needs before it is on a wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Gso {
    /// The kind of segments.
    pub kind: GsoKind,
    /// Transport payload in bytes of each segment but the last; at least 1.
    pub size: u16,
    /// TCP: CWR (congestion window reduced) is set on the first segment only
    /// (`VIRTIO_NET_HDR_GSO_ECN`).
    pub ecn: bool,
}

/// The work on a frame that is left to checksum and segmentation offloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// The transport checksum. A frame with `gso` always has `Checksum::Partial`.
    pub checksum: Checksum,
    /// `Some` for a super-packet.
    pub gso: Option<Gso>,
}

/// The headroom of a frame is too small for a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the header needs {needed} bytes of headroom, and the frame has {have}")]
pub struct HeadroomError {
    /// Length of the header in bytes.
    pub needed: usize,
    /// The headroom in bytes.
    pub have: usize,
}

/// The result of the last header walk.
#[derive(Debug)]
struct HeaderWalk {
    /// The Ethernet header at which it began, from the start of the storage; [`HeaderWalk::NONE`]
    /// if there is no result.
    base: Cell<usize>,
    located: Cell<Located>,
}

impl HeaderWalk {
    const NONE: usize = usize::MAX;

    fn clear(&mut self) {
        *self.base.get_mut() = Self::NONE;
    }
}

impl Default for HeaderWalk {
    fn default() -> Self {
        let located = Located {
            vlan_tags: 0,
            ethertype: EtherType(0),
            l3: 0,
            l4: None,
            protocol: Protocol::NO_NEXT_HEADER,
            fragment: Fragment::Whole,
            l3_end: 0,
        };
        Self { base: Cell::new(Self::NONE), located: Cell::new(located) }
    }
}

/// One frame with headroom and offload state.
#[derive(Debug, Default)]
pub struct PacketBuf {
    storage: Vec<u8>,
    start: usize,
    end: usize,
    fragments: Vec<Range<usize>>,
    /// The last header walk. Every change of bytes or lengths behind its `base` clears it.
    walk: HeaderWalk,
    /// The work left to offloads. [`PacketBuf::push_front`] and [`PacketBuf::pull_front`] adjust
    /// `Checksum::Partial::start`.
    pub offload: Offload,
    /// `Some` for a datagram that was reassembled: it is fragmented again before it is sent.
    pub refragment: Option<Refragment>,
}

impl PacketBuf {
    /// Headroom in bytes for the longest outer header of any tunnel, Geneve options included.
    pub const HEADROOM: usize = 256;
    /// The longest frame in bytes: a 64 KiB IP packet with an Ethernet header, two VLAN tags of its
    /// sender, and two of the underlay.
    pub const MAX_FRAME: usize = 65_535 + 14 + 16;

    /// Makes an empty frame with room for `capacity` bytes behind `headroom` bytes.
    pub fn with_capacity(headroom: usize, capacity: usize) -> Self {
        Self {
            storage: vec![0; headroom + capacity],
            start: headroom,
            end: headroom,
            fragments: Vec::new(),
            walk: HeaderWalk::default(),
            offload: Offload::default(),
            refragment: None,
        }
    }

    /// Makes a frame with a copy of `bytes` behind the usual headroom.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut packet = Self::with_capacity(Self::HEADROOM, bytes.len());
        packet.storage[Self::HEADROOM..].copy_from_slice(bytes);
        packet.end = packet.storage.len();
        packet
    }

    /// Empties the frame and sets its headroom to `headroom` bytes (at most the storage). The
    /// allocation is kept.
    pub fn reset(&mut self, headroom: usize) {
        self.walk.clear();
        self.start = headroom.min(self.storage.len());
        self.end = self.start;
        self.fragments.clear();
        self.offload = Offload::default();
        self.refragment = None;
    }

    /// All storage behind the headroom, for a device to read into. Call [`PacketBuf::set_len`]
    /// afterwards.
    pub fn spare_mut(&mut self) -> &mut [u8] {
        self.walk.clear();
        &mut self.storage[self.start..]
    }

    /// Makes the first `len` bytes of [`PacketBuf::spare_mut`] (at most all) the frame.
    pub fn set_len(&mut self, len: usize) {
        self.walk.clear();
        self.end = (self.start + len).min(self.storage.len());
        self.fragments.clear();
    }

    /// Makes `range` of [`PacketBuf::spare_mut`] the linear part, and the ranges `rest` of it the
    /// fragments. The bytes before `range` become headroom. Ranges are clamped to the storage.
    pub fn set_ranges(
        &mut self,
        range: Range<usize>,
        rest: impl IntoIterator<Item = Range<usize>>,
    ) {
        self.walk.clear();
        let (base, limit) = (self.start, self.storage.len());
        let place = |r: Range<usize>| {
            let end = r.end.saturating_add(base).min(limit);
            r.start.saturating_add(base).min(end)..end
        };
        let linear = place(range);
        self.start = linear.start;
        self.end = linear.end;
        self.fragments.clear();
        self.fragments.extend(rest.into_iter().map(place));
    }

    /// Length of the frame in bytes, fragments included.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start + self.fragments.iter().map(ExactSizeIterator::len).sum::<usize>()
    }

    /// True when the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The linear part: all headers, and the payload as well if there are no fragments.
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.storage[self.start..self.end]
    }

    /// The linear part, for any change.
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        self.walk.clear();
        &mut self.storage[self.start..self.end]
    }

    /// The linear part, for changes that leave all headers where they are: addresses, ports, TTL
    /// and the like, but no EtherType, protocol, or length.
    #[inline]
    pub fn fields_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.end]
    }

    /// Locates the headers of the frame. The frame is walked only if that was not done before, or
    /// if its bytes may have changed since.
    ///
    /// # Errors
    /// As [`transport_offset_in`]: a header is malformed, or not whole in the linear part.
    #[inline]
    pub fn located(&self) -> Result<Located, ParseError> {
        self.located_behind(0)
    }

    /// Like [`PacketBuf::located`], for a frame behind `outer_len` bytes of outer headers. Offsets
    /// are counted from the Ethernet header behind them.
    ///
    /// # Errors
    /// As [`PacketBuf::located`].
    #[inline]
    pub fn located_behind(&self, outer_len: usize) -> Result<Located, ParseError> {
        let base = self.start + outer_len;
        if self.walk.base.get() == base {
            let located = self.walk.located.get();
            debug_assert_eq!(self.walk_headers(outer_len), Ok(located));
            return Ok(located);
        }
        let located = self.walk_headers(outer_len)?;
        self.walk.base.set(base);
        self.walk.located.set(located);
        Ok(located)
    }

    #[inline]
    fn walk_headers(&self, outer_len: usize) -> Result<Located, ParseError> {
        let frame = self.head().get(outer_len..).unwrap_or_default();
        transport_offset_in(frame, self.len().saturating_sub(outer_len))
    }

    /// True when the whole frame is its linear part.
    pub fn is_linear(&self) -> bool {
        self.fragments.is_empty()
    }

    /// The pieces of the frame in order; the first is [`PacketBuf::head`].
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> + Clone {
        std::iter::once(self.head()).chain(self.fragments.iter().map(|r| &self.storage[r.clone()]))
    }

    /// The whole frame as one new vector.
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces().collect::<Vec<_>>().concat()
    }

    /// Free bytes in front of the frame.
    pub fn headroom(&self) -> usize {
        self.start
    }

    /// Moves all fragments behind the linear part, so that [`PacketBuf::head`] is the whole frame.
    pub fn linearize(&mut self) {
        if self.fragments.is_empty() {
            return;
        }
        let in_order =
            self.fragments.iter().try_fold(self.end, |end, r| (r.start >= end).then_some(r.end));
        if in_order.is_some() {
            for range in std::mem::take(&mut self.fragments) {
                let len = range.len();
                self.storage.copy_within(range, self.end);
                self.end += len;
            }
        } else {
            let bytes = self.to_vec();
            self.storage.resize((self.start + bytes.len()).max(self.storage.len()), 0);
            self.end = self.start + bytes.len();
            self.storage[self.start..self.end].copy_from_slice(&bytes);
            self.fragments.clear();
        }
    }

    /// Extends the frame by `len` bytes in front and returns them. Their contents are unspecified.
    ///
    /// # Errors
    /// [`HeadroomError`] if fewer than `len` bytes are free; the frame is unchanged.
    #[inline]
    pub fn push_front(&mut self, len: usize) -> Result<&mut [u8], HeadroomError> {
        let start =
            self.start.checked_sub(len).ok_or(HeadroomError { needed: len, have: self.start })?;
        self.start = start;
        if let Checksum::Partial { start, .. } = &mut self.offload.checksum {
            *start = start.saturating_add(len as u16);
        }
        Ok(&mut self.storage[start..start + len])
    }

    /// Puts the last `len` bytes of `header` in front of the frame, with a gap of `gap` bytes
    /// between the two, and returns header and gap. The contents of the gap, and of the headroom,
    /// are unspecified.
    ///
    /// If there is headroom for `N` bytes, the copy has a constant length and compiles to few
    /// instructions.
    ///
    /// # Errors
    /// [`HeadroomError`] if fewer than `len + gap` bytes are free; the frame is unchanged.
    #[inline]
    pub fn push_front_header<const N: usize>(
        &mut self,
        header: &[u8; N],
        len: usize,
        gap: usize,
    ) -> Result<&mut [u8], HeadroomError> {
        let len = len.min(N);
        let end = self.start.checked_sub(gap).filter(|end| *end >= len);
        let end = end.ok_or(HeadroomError { needed: len + gap, have: self.start })?;
        match self.storage[..end].last_chunk_mut::<N>() {
            Some(room) => *room = *header,
            None => self.storage[end - len..end].copy_from_slice(&header[N - len..]),
        }
        self.push_front(len + gap)
    }

    /// Removes `len` bytes (at most the linear part) from the front of the frame.
    #[inline]
    pub fn pull_front(&mut self, len: usize) {
        let len = len.min(self.end - self.start);
        self.start += len;
        // Bytes before the frame may be overwritten, so a walk that began there no longer holds.
        if *self.walk.base.get_mut() < self.start {
            self.walk.clear();
        }
        if let Checksum::Partial { start, .. } = &mut self.offload.checksum {
            *start = start.saturating_sub(len as u16);
        }
    }

    /// Appends `bytes` to the frame and grows the storage if needed. A frame with fragments becomes
    /// linear first.
    pub fn append(&mut self, bytes: &[u8]) {
        self.walk.clear();
        self.linearize();
        let end = self.end + bytes.len();
        if self.storage.len() < end {
            self.storage.resize(end, 0);
        }
        self.storage[self.end..end].copy_from_slice(bytes);
        self.end = end;
    }

    /// Shortens the frame to `len` bytes if it is longer.
    pub fn truncate(&mut self, len: usize) {
        self.walk.clear();
        let mut left = len;
        let linear = (self.end - self.start).min(left);
        self.end = self.start + linear;
        left -= linear;
        for range in &mut self.fragments {
            let keep = range.len().min(left);
            range.end = range.start + keep;
            left -= keep;
        }
        self.fragments.retain(|r| !r.is_empty());
    }
}

impl Clone for PacketBuf {
    /// Makes a linear copy with the usual headroom, or with this frame's headroom if that is more.
    fn clone(&self) -> Self {
        let headroom = self.start.max(Self::HEADROOM);
        let mut copy = Self::with_capacity(headroom, self.len());
        for piece in self.pieces() {
            copy.storage[copy.end..copy.end + piece.len()].copy_from_slice(piece);
            copy.end += piece.len();
        }
        copy.offload = self.offload;
        copy.refragment = self.refragment;
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_checksum_follows_the_front() {
        let mut p = PacketBuf::from_bytes(&[1; 60]);
        p.offload.checksum = Checksum::Partial { start: 34, offset: 16 };
        p.push_front(50).unwrap();
        assert_eq!(p.offload.checksum, Checksum::Partial { start: 84, offset: 16 });
        p.pull_front(50);
        assert_eq!(p.offload.checksum, Checksum::Partial { start: 34, offset: 16 });
        assert_eq!(p.to_vec(), [1; 60]);
    }

    #[test]
    fn push_front_is_refused_when_headroom_is_short() {
        let mut p = PacketBuf::with_capacity(4, 10);
        assert_eq!(p.push_front(5).unwrap_err(), HeadroomError { needed: 5, have: 4 });
        assert_eq!(p.len(), 0);
    }

    #[test]
    fn header_is_put_in_front_with_and_without_room_for_the_whole_array() {
        for headroom in [6, 7, 8, 30] {
            let mut p = PacketBuf::with_capacity(headroom, 4);
            p.spare_mut()[..4].fill(9);
            p.set_len(4);
            let header = p.push_front_header(&[0, 0, 0, 0, 1, 2, 3, 4], 4, 2).unwrap();
            assert_eq!((header.len(), &header[..4]), (6, &[1, 2, 3, 4][..]), "{headroom}");
            assert_eq!((p.len(), &p.head()[6..]), (10, &[9; 4][..]));
        }
        let mut p = PacketBuf::with_capacity(5, 4);
        let error = p.push_front_header(&[0; 8], 4, 2).unwrap_err();
        assert_eq!((error, p.headroom()), (HeadroomError { needed: 6, have: 5 }, 5));
    }

    #[test]
    fn fragments_are_joined_in_order() {
        let mut p = PacketBuf::with_capacity(0, 10);
        p.spare_mut().copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        p.set_ranges(1..3, [5..6, 8..10]);
        assert_eq!((p.len(), p.to_vec()), (5, vec![1, 2, 5, 8, 9]));
        let copy = p.clone();
        p.linearize();
        assert_eq!((p.head(), copy.head()), (&[1, 2, 5, 8, 9][..], &[1, 2, 5, 8, 9][..]));
        p.truncate(3);
        assert_eq!(p.to_vec(), [1, 2, 5]);
    }

    #[test]
    fn fragments_are_joined_when_out_of_order() {
        let mut p = PacketBuf::with_capacity(0, 10);
        p.spare_mut().copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        p.set_ranges(8..10, std::iter::once(0..4));
        p.linearize();
        assert_eq!(p.head(), [8, 9, 0, 1, 2, 3]);
    }
}
