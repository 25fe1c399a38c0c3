//! Software segmentation without copying payload.
//!
//! A [`Segmenter`] builds the headers of all segments of a super-packet in a buffer that it reuses.
//! The payload of each segment remains a slice of the super-packet. The result, [`Segments`], is
//! ready for vectored I/O, as a whole or in [batches](Segments::trains) for one system call each.
//!
//! | field | in segment *i* |
//! |---|---|
//! | IPv4 total length, IPv6 payload length, UDP length | of the segment |
//! | IPv4 identification | + *i* (wrapping) |
//! | IPv4 header checksum | complete |
//! | TCP sequence number | + payload bytes in front |
//! | TCP FIN, PSH | on the last only |
//! | TCP CWR | on the first only (RFC 3168 section 6.1.2) |
//! | TCP, UDP checksum | complete, or the pseudo header's sum: [`SegmentChecksum`] |
//!
//! [`split`] divides a super-packet into smaller super-packets instead.

use wire::checksum::Sum;

use crate::buf::{Checksum, Offload, PacketBuf};
use crate::checksum::{self, ChecksumError};
use crate::headers::{SegmentRange, SuperHeaders};

/// The most segments of one super-packet: 64 KiB in segments of 8 bytes, the smallest TCP segment
/// that Linux accepts. It bounds the memory of a [`Segmenter`].
pub const MAX_SEGMENTS: usize = 8192;
/// The longest header of a segment in bytes, outer headers included. With [`MAX_SEGMENTS`] it
/// limits that memory to 4 MiB.
pub const MAX_HEADER_LEN: usize = 512;

/// Why a packet cannot be segmented, completed or split.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SegmentError {
    /// The frame has fragments: [`PacketBuf::linearize`] it first.
    #[error("the frame is not linear: linearize it first")]
    NotLinear,
    /// The frame is shorter than the outer headers it should start with.
    #[error("the frame is shorter than its outer headers")]
    OuterLength,
    /// A super-packet that is not an unfragmented, well-formed IP packet.
    #[error("no transport header to segment")]
    NotTransport,
    /// The segmentation type belongs to another IP version or transport than the packet's.
    #[error("the segmentation type does not fit the packet")]
    KindMismatch,
    /// The checksum is not left partial at the packet's transport header.
    #[error("the checksum is not partial, or not the one of the transport header")]
    ChecksumMisplaced,
    /// The transport header is truncated, or its length field is invalid.
    #[error("the transport header is truncated")]
    Truncated,
    /// The segment size is 0.
    #[error("the segment size is zero")]
    ZeroSize,
    /// More than [`MAX_SEGMENTS`].
    #[error("{0} segments, more than {MAX_SEGMENTS}")]
    TooManySegments(usize),
    /// Headers longer than [`MAX_HEADER_LEN`].
    #[error("{0} bytes of headers, more than {MAX_HEADER_LEN}")]
    HeadersTooLong(usize),
    /// A single segment exceeds the limits of [`split`], or the packet does and is no super-packet.
    #[error("a segment does not fit the limits")]
    LimitTooSmall,
}

impl From<ChecksumError> for SegmentError {
    fn from(_: ChecksumError) -> Self {
        Self::ChecksumMisplaced
    }
}

/// What to do with the transport checksum of each segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentChecksum {
    /// Compute it; the payload is read once.
    Complete,
    /// Leave the pseudo header's sum, for a device that completes it ([`Segments::offload`]).
    Partial,
}

/// A segment before it is finished, as the `fix` closure of [`Segmenter::segment`] sees it.
#[derive(Debug)]
pub struct SegmentHead<'a> {
    /// Number of the segment, from 0.
    pub index: usize,
    /// Segments in all.
    pub count: usize,
    /// The outer prefix, to be fixed, and behind it the finished inner headers.
    pub header: &'a mut [u8],
    /// The payload behind `header`.
    pub payload: &'a [u8],
    /// The inner transport, from which an outer checksum can be computed without reading the
    /// payload (`wire::checksum::local_offload`). `None` if the packet's checksum was not partial.
    pub transport: Option<Transport>,
}

/// The location and pseudo-header sum of an inner TCP or UDP segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transport {
    /// The transport header, in bytes from the start of the segment, outer prefix included.
    pub offset: usize,
    /// Bytes from the transport header to the end of what the checksum covers.
    pub len: usize,
    /// The folded sum of the pseudo header.
    pub pseudo: u16,
}

/// Segments packets, and reuses its buffer.
#[derive(Debug, Default)]
pub struct Segmenter {
    headers: Vec<u8>,
}

impl Segmenter {
    /// Makes a segmenter. Its buffer is allocated on first use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Divides `packet` into segments. Each gets a copy of the first `outer_len` bytes, which are
    /// the outer headers, before its own headers. `fix` is called once for each segment in order,
    /// to set the outer lengths, identification and checksum.
    ///
    /// A packet that is no super-packet becomes one segment. A partial checksum is completed.
    ///
    /// # Errors
    /// [`SegmentError`]; `fix` was not called.
    pub fn segment<'a>(
        &'a mut self,
        packet: &'a PacketBuf,
        outer_len: usize,
        checksum: SegmentChecksum,
        fix: impl FnMut(SegmentHead<'_>),
    ) -> Result<Segments<'a>, SegmentError> {
        if !packet.is_linear() {
            return Err(SegmentError::NotLinear);
        }
        if outer_len > packet.len() {
            return Err(SegmentError::OuterLength);
        }
        match packet.offload.gso {
            Some(gso) => {
                let headers = SuperHeaders::parse(packet, gso, outer_len)?;
                self.divide(packet, &headers, checksum, fix)
            }
            None => self.single(packet, outer_len, checksum, fix),
        }
    }

    fn divide<'a>(
        &'a mut self,
        packet: &'a PacketBuf,
        from: &SuperHeaders,
        checksum: SegmentChecksum,
        mut fix: impl FnMut(SegmentHead<'_>),
    ) -> Result<Segments<'a>, SegmentError> {
        let (count, size) = (from.count(), usize::from(from.gso.size));
        if count > MAX_SEGMENTS {
            return Err(SegmentError::TooManySegments(count));
        }
        let (template, payload) = packet.head()[..from.end].split_at(from.payload);
        let headers = room(&mut self.headers, count * template.len());
        let mut left = payload;
        for (index, header) in headers.chunks_exact_mut(template.len()).enumerate() {
            let (own, rest) = left.split_at(size.min(left.len()));
            left = rest;
            header.copy_from_slice(template);
            let payload_sum = (checksum == SegmentChecksum::Complete).then(|| Sum::of(own).fold());
            let piece = SegmentRange {
                index,
                offset: index * size,
                len: own.len(),
                is_last: index + 1 == count,
            };
            let pseudo = from.patch(header, piece, payload_sum);
            let len = template.len() - from.l4 + own.len();
            let transport = Some(Transport { offset: from.l4, len, pseudo });
            fix(SegmentHead { index, count, header, payload: own, transport });
        }
        let partial = Checksum::Partial { start: from.l4 as u16, offset: from.checksum_offset() };
        Ok(Segments {
            headers,
            payload,
            header_len: template.len(),
            size,
            count,
            checksum: if checksum == SegmentChecksum::Partial {
                partial
            } else {
                Checksum::Verified
            },
        })
    }

    fn single<'a>(
        &'a mut self,
        packet: &'a PacketBuf,
        outer_len: usize,
        mode: SegmentChecksum,
        mut fix: impl FnMut(SegmentHead<'_>),
    ) -> Result<Segments<'a>, SegmentError> {
        let head = packet.head();
        let (mut header_len, mut transport, mut completed) = (outer_len, None, None);
        if let Checksum::Partial { start, offset } = packet.offload.checksum {
            let partial = checksum::partial_sum(packet, outer_len, start, offset)?;
            let start = usize::from(start);
            if start < outer_len {
                return Err(SegmentError::ChecksumMisplaced);
            }
            header_len = partial.field + 2;
            transport =
                Some(Transport { offset: start, len: partial.end - start, pseudo: partial.pseudo });
            if mode == SegmentChecksum::Complete {
                completed = Some(partial.compute(packet));
            }
        }
        let (template, payload) = head.split_at(header_len);
        let headers = room(&mut self.headers, header_len);
        headers.copy_from_slice(template);
        if let Some(value) = completed {
            headers[header_len - 2..].copy_from_slice(&value.to_be_bytes());
        }
        fix(SegmentHead { index: 0, count: 1, header: headers, payload, transport });
        Ok(Segments {
            headers,
            payload,
            header_len,
            size: payload.len(),
            count: 1,
            checksum: if completed.is_some() {
                Checksum::Verified
            } else {
                packet.offload.checksum
            },
        })
    }
}

/// The first `len` bytes of `memory`, grown if need be; contents unspecified.
fn room(memory: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if memory.len() < len {
        memory.resize(len, 0);
    }
    &mut memory[..len]
}

/// An iterator over segments as (header, payload) pairs. All headers have the same length, and all
/// payloads except the last.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a> {
    headers: &'a [u8],
    payload: &'a [u8],
    header_len: usize,
    size: usize,
    count: usize,
    checksum: Checksum,
}

impl<'a> Segments<'a> {
    /// Length in bytes of each header, outer headers included.
    pub fn header_len(&self) -> usize {
        self.header_len
    }

    /// Length in bytes of the first segment, which is the longest; 0 if there is none.
    pub fn segment_len(&self) -> usize {
        if self.count == 0 { 0 } else { self.header_len + self.size.min(self.payload.len()) }
    }

    /// Length in bytes of all segments together.
    pub fn total_len(&self) -> usize {
        self.headers.len() + self.payload.len()
    }

    /// The offload state of each segment; a partial checksum counts from the start of the outer
    /// prefix.
    pub fn offload(&self) -> Offload {
        Offload { checksum: self.checksum, gso: None }
    }

    /// The segments in groups of up to `max_segments` with up to `max_bytes` in total, but at least
    /// one segment each. UDP_SEGMENT takes 64 segments and 65,507 bytes. Only the last segment of a
    /// group may be shorter than the others.
    pub fn trains(
        self,
        max_segments: usize,
        max_bytes: usize,
    ) -> impl Iterator<Item = Segments<'a>> {
        let fit = max_bytes.checked_div(self.segment_len()).unwrap_or(0);
        let per_train = fit.min(max_segments).max(1);
        let mut rest = self;
        std::iter::from_fn(move || (rest.count > 0).then(|| rest.take_front(per_train)))
    }

    /// Removes and returns the first `count` segments, at most all.
    fn take_front(&mut self, count: usize) -> Self {
        let count = count.min(self.count);
        let payload_len = if count == self.count { self.payload.len() } else { count * self.size };
        let (headers, headers_left) = self.headers.split_at(count * self.header_len);
        let (payload, payload_left) = self.payload.split_at(payload_len);
        let front = Self { headers, payload, count, ..*self };
        *self = Self {
            headers: headers_left,
            payload: payload_left,
            count: self.count - count,
            ..*self
        };
        front
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        (self.count > 0).then(|| {
            let one = self.take_front(1);
            (one.headers, one.payload)
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for Segments<'_> {}

/// The limits of each super-packet that [`split`] produces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SplitLimits {
    /// The most segments.
    pub max_segments: usize,
    /// The most bytes of the frame: its headers once, and the payload of all segments.
    pub max_bytes: usize,
}

/// A copy of the first segment of a super-packet with complete checksum; of any other packet, a
/// copy with complete checksum. Only that segment is copied and summed.
///
/// # Errors
/// [`SegmentError`] if the super-packet's headers are invalid, or a checksum cannot be completed.
pub fn first_segment(packet: &PacketBuf) -> Result<PacketBuf, SegmentError> {
    let Some(gso) = packet.offload.gso else {
        let mut copy = packet.clone();
        checksum::complete_checksum(&mut copy)?;
        return Ok(copy);
    };
    if !packet.is_linear() {
        return first_segment(&packet.clone());
    }
    let from = SuperHeaders::parse(packet, gso, 0)?;
    let len = from.payload_len().min(gso.size.into());
    let (header, payload) = packet.head().split_at(from.payload);
    let mut first = PacketBuf::with_capacity(PacketBuf::HEADROOM, header.len() + len);
    first.append(header);
    first.append(&payload[..len]);
    let piece = SegmentRange { index: 0, offset: 0, len, is_last: len == from.payload_len() };
    from.patch(&mut first.head_mut()[..from.payload], piece, Some(Sum::of(&payload[..len]).fold()));
    first.offload = Offload { checksum: Checksum::Verified, gso: None };
    Ok(first)
}

/// Divides a super-packet that exceeds `limits` into smaller ones. `packet` becomes the first in
/// place, and the others are returned in order. Nothing is returned or allocated if `packet` is
/// within the limits. Only payload that leaves `packet` is copied. Each part has its own lengths,
/// identification, sequence number and pseudo-header sum; a part of one segment is no super-packet
/// any more.
///
/// # Errors
/// [`SegmentError`]; the bytes of `packet` are unchanged.
pub fn split(packet: &mut PacketBuf, limits: SplitLimits) -> Result<Vec<PacketBuf>, SegmentError> {
    let Some(gso) = packet.offload.gso else {
        let fits = packet.len() <= limits.max_bytes && limits.max_segments > 0;
        return if fits { Ok(Vec::new()) } else { Err(SegmentError::LimitTooSmall) };
    };
    let size = usize::from(gso.size).max(1);
    // Counting the headers as payload gives at least the real number of segments, without parsing.
    if packet.len() <= limits.max_bytes && packet.len().div_ceil(size) <= limits.max_segments {
        return Ok(Vec::new());
    }
    packet.linearize();
    let from = SuperHeaders::parse(packet, gso, 0)?;
    // A super-packet with less payload than one segment fits where a full segment would not.
    if packet.len() <= limits.max_bytes && from.count() <= limits.max_segments {
        return Ok(Vec::new());
    }
    let per_part = (limits.max_bytes.saturating_sub(from.payload) / size).min(limits.max_segments);
    if per_part == 0 {
        return Err(SegmentError::LimitTooSmall);
    }
    let total = from.payload_len();
    let mut parts = Vec::new();
    for offset in (0..total).step_by(per_part * size).skip(1) {
        let len = (total - offset).min(per_part * size);
        let mut part = PacketBuf::with_capacity(PacketBuf::HEADROOM, from.payload + len);
        part.append(&packet.head()[..from.payload]);
        part.append(&packet.head()[from.payload + offset..][..len]);
        part.offload = packet.offload;
        finish_part(
            &mut part,
            &from,
            SegmentRange { index: offset / size, offset, len, is_last: offset + len == total },
        );
        parts.push(part);
    }
    let len = total.min(per_part * size);
    packet.truncate(from.payload + len);
    finish_part(
        packet,
        &from,
        SegmentRange { index: 0, offset: 0, len, is_last: parts.is_empty() },
    );
    Ok(parts)
}

fn finish_part(part: &mut PacketBuf, from: &SuperHeaders, piece: SegmentRange) {
    from.patch(&mut part.head_mut()[..from.payload], piece, None);
    if piece.len <= usize::from(from.gso.size) {
        part.offload.gso = None;
    } else if let (Some(gso), true) = (&mut part.offload.gso, piece.index > 0) {
        gso.ecn = false;
    }
}
