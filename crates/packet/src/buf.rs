//! [`PacketBuf`]: one Ethernet frame, room in front of it, and what the checksum and segmentation offloads still owe.
//!
//! ```text
//!   0            start                 end        fragments (ranges of the same storage, in order)
//!   | headroom   | linear part         | unused   | payload | gap | payload | ...
//! ```
//!
//! A frame as read from a device is one linear piece. A super-packet coalesced from a received train keeps its payload
//! where it was received: the headers and the first payload are the linear part, the rest are fragments of the
//! same storage, so that coalescing copies nothing. Headers are always in the linear part.

use std::ops::Range;

/// The state of the innermost transport checksum, as a virtio-net header tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checksum {
    /// The checksum fields are complete; nobody has verified them.
    #[default]
    Unverified,
    /// The checksum fields have been verified, or the frame never left memory. On transmit the same as `Unverified`.
    Verified,
    /// The field holds the pseudo-header sum only. The sum over all bytes from `start` to the end of the frame is to be
    /// completed and stored at `start + offset`.
    Partial {
        /// Where summing starts, in bytes from the start of the frame (the transport header).
        start: u16,
        /// The checksum field, in bytes from `start`.
        offset: u16,
    },
}

/// What a super-packet is cut into.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GsoKind {
    /// TCP segments over IPv4.
    TcpV4,
    /// TCP segments over IPv6.
    TcpV6,
    /// UDP datagrams (UDP_SEGMENT), over either family.
    UdpL4,
}

/// The segmentation that a super-packet still needs before it fits a wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Gso {
    /// What it is cut into.
    pub kind: GsoKind,
    /// Transport payload bytes in each segment but the last; at least 1.
    pub size: u16,
    /// TCP: congestion window reduced is set on the first segment only (VIRTIO_NET_HDR_GSO_ECN).
    pub ecn: bool,
}

/// What the offloads still owe to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// The transport checksum. A frame with `gso` always has `Checksum::Partial`.
    pub checksum: Checksum,
    /// `Some` for a super-packet.
    pub gso: Option<Gso>,
}

/// The headroom in front of a frame is too small for a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{needed} bytes of headroom needed, {have} there")]
pub struct HeadroomError {
    /// Bytes the header takes.
    pub needed: usize,
    /// Bytes in front of the frame.
    pub have: usize,
}

/// One frame; see the module for its layout.
#[derive(Debug, Default)]
pub struct PacketBuf {
    storage: Vec<u8>,
    start: usize,
    end: usize,
    fragments: Vec<Range<usize>>,
    /// What the offloads still owe. `Checksum::Partial::start` follows [`PacketBuf::push_front`] and
    /// [`PacketBuf::pull_front`] by itself.
    pub offload: Offload,
}

impl PacketBuf {
    /// Headroom that holds the longest outer header of any tunnel, with Geneve options to spare.
    pub const HEADROOM: usize = 256;
    /// The longest frame: a 64 KiB IP packet with Ethernet, two VLAN tags of its sender's, and two of the underlay.
    pub const MAX_FRAME: usize = 65_535 + 14 + 16;

    /// An empty frame with room for `capacity` bytes behind `headroom`.
    pub fn with_capacity(headroom: usize, capacity: usize) -> Self {
        Self {
            storage: vec![0; headroom + capacity],
            start: headroom,
            end: headroom,
            fragments: Vec::new(),
            offload: Offload::default(),
        }
    }

    /// A frame that holds a copy of `bytes`, behind the usual headroom.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut packet = Self::with_capacity(Self::HEADROOM, bytes.len());
        packet.storage[Self::HEADROOM..].copy_from_slice(bytes);
        packet.end = packet.storage.len();
        packet
    }

    /// Makes the frame empty again, with `headroom` bytes in front (at most the storage), keeping the allocation.
    pub fn reset(&mut self, headroom: usize) {
        self.start = headroom.min(self.storage.len());
        self.end = self.start;
        self.fragments.clear();
        self.offload = Offload::default();
    }

    /// All storage behind the headroom, for a device to read into; follow it with [`PacketBuf::set_len`].
    pub fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..]
    }

    /// Declares the first `len` bytes of [`PacketBuf::spare_mut`] the frame. `len` is cut to what is there.
    pub fn set_len(&mut self, len: usize) {
        self.end = (self.start + len).min(self.storage.len());
        self.fragments.clear();
    }

    /// Declares `range` of the storage behind the headroom (the bytes of [`PacketBuf::spare_mut`]) the linear part, and
    /// `rest`, counted likewise, the fragments. What lies before the range becomes headroom. Ranges are cut to what
    /// is there.
    pub fn set_ranges(
        &mut self,
        range: Range<usize>,
        rest: impl IntoIterator<Item = Range<usize>>,
    ) {
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

    /// Total bytes of the frame, fragments included.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start + self.fragments.iter().map(ExactSizeIterator::len).sum::<usize>()
    }

    /// True when the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The linear part: all headers, and the payload too unless the frame has fragments.
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.storage[self.start..self.end]
    }

    /// The linear part.
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.end]
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

    /// Bytes free in front of the frame.
    pub fn headroom(&self) -> usize {
        self.start
    }

    /// Moves all fragments next to the linear part, so that [`PacketBuf::head`] is the whole frame.
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

    /// Makes `len` more bytes in front of the frame part of it and returns them, contents unspecified.
    ///
    /// # Errors
    /// [`HeadroomError`] when fewer than `len` bytes are free; the frame is unchanged.
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

    /// Puts the last `len` bytes of `header` in front of the frame, with `gap` bytes between the two, contents
    /// unspecified, and returns all `len + gap` of them. What lies in front of the frame then is unspecified too.
    ///
    /// The copy has a length known when compiling, wherever there is headroom for `N` bytes.
    ///
    /// # Errors
    /// [`HeadroomError`] when fewer than `len + gap` bytes are free; the frame is unchanged.
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

    /// Takes `len` bytes (at most the linear part) off the front of the frame.
    #[inline]
    pub fn pull_front(&mut self, len: usize) {
        let len = len.min(self.end - self.start);
        self.start += len;
        if let Checksum::Partial { start, .. } = &mut self.offload.checksum {
            *start = start.saturating_sub(len as u16);
        }
    }

    /// Appends `bytes` behind the linear part, growing the storage if need be. A frame with fragments becomes linear
    /// first.
    pub fn append(&mut self, bytes: &[u8]) {
        self.linearize();
        let end = self.end + bytes.len();
        if self.storage.len() < end {
            self.storage.resize(end, 0);
        }
        self.storage[self.end..end].copy_from_slice(bytes);
        self.end = end;
    }

    /// Shortens the frame to `len` bytes, if it is longer.
    pub fn truncate(&mut self, len: usize) {
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
    /// A linear copy with the usual headroom (or more, if this frame has more).
    fn clone(&self) -> Self {
        let headroom = self.start.max(Self::HEADROOM);
        let mut copy = Self::with_capacity(headroom, self.len());
        for piece in self.pieces() {
            copy.storage[copy.end..copy.end + piece.len()].copy_from_slice(piece);
            copy.end += piece.len();
        }
        copy.offload = self.offload;
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
