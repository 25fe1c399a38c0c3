//! Reassembly of STT frames from the TCP-like segments that carry them (draft-davie-stt section
//! 4).
//!
//! The two halves of a segment's sequence number are the length of its frame and its offset in it.
//! A frame that arrives whole, from GRO or as an unsegmented super-packet, is not copied. Other
//! segments are copied into a buffer of the frame's length.
//!
//! Invariants: every frame has between 1 and `total - 1` bytes; the ranges of a frame are sorted,
//! disjoint and not adjacent; `bytes` is the sum of the totals of all frames and at most
//! `max_bytes`; `ages` has exactly the keys of `frames`. A sender of forged segments can corrupt or
//! evict frames, because STT has no protection against it, but cannot exceed these bounds.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use crate::buf::PacketBuf;

/// Bytes of the STT header with its padding: the minimum length of a frame.
const STT_HEADER_LEN: u16 = 18;
/// The maximum number of separate ranges of a frame. In-order delivery needs 1. The limit bounds
/// the cost of a frame in many small pieces.
const MAX_RANGES: usize = 64;
/// The maximum number of unused buffers that are kept for later frames.
const MAX_FREE_BUFFERS: usize = 4;

/// The frame that a segment belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SttFrameKey {
    /// Outer source address.
    pub src: IpAddr,
    /// Outer destination address.
    pub dst: IpAddr,
    /// Source port of the TCP-like header.
    pub src_port: u16,
    /// Acknowledgement number of the TCP-like header: the packet id, new for every frame.
    pub packet_id: u32,
}

/// The position of a segment in its frame, and its ECN mark, from the outer headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SttSegmentPosition {
    /// Bytes of the whole frame, STT header included: the upper half of the sequence number.
    pub total: u16,
    /// The segment's offset in the frame in bytes: the lower half of the sequence number.
    pub offset: u16,
    /// True if the outer IP header has ECN CE.
    pub ce: bool,
}

/// The result of adding a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SttProgress {
    /// The packet now holds the whole frame, starting with the STT header.
    Complete {
        /// True if any segment of the frame had ECN CE.
        ce: bool,
    },
    /// More segments are needed. The packet's bytes were copied, and its buffer may be reused.
    Pending,
}

/// Why a segment or an incomplete frame was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum SttDrop {
    /// A segment without bytes.
    #[error("empty STT segment")]
    Empty,
    /// A frame shorter than an STT header.
    #[error("STT frame shorter than its header")]
    TotalTooShort,
    /// A segment that reaches past the end of its frame.
    #[error("STT segment past the end of its frame")]
    BeyondTotal,
    /// A segment with another frame length than the earlier segments of its frame.
    #[error("STT segment disagrees about the length of its frame")]
    InconsistentTotal,
    /// A segment that overlaps or repeats received bytes.
    #[error("overlapping STT segment")]
    Overlap,
    /// A frame with too many separate ranges.
    #[error("STT frame in too many pieces")]
    Scattered,
    /// A frame longer than [`SttLimits::max_bytes`].
    #[error("STT frame exceeds the memory for reassembly")]
    OverLimit,
    /// An incomplete frame that was removed to make room for a newer one. Counts frames.
    #[error("incomplete STT frame evicted")]
    Evicted,
    /// A frame that was incomplete after the timeout. Counts frames.
    #[error("incomplete STT frame expired")]
    Expired,
    /// An incomplete frame whose packet id arrived again with a whole frame. Counts frames.
    #[error("incomplete STT frame superseded by a whole one")]
    Superseded,
}

impl SttDrop {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Empty,
        Self::TotalTooShort,
        Self::BeyondTotal,
        Self::InconsistentTotal,
        Self::Overlap,
        Self::Scattered,
        Self::OverLimit,
        Self::Evicted,
        Self::Expired,
        Self::Superseded,
    ];
}

/// Bounds of an [`SttReassembler`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SttLimits {
    /// The sum of the full lengths of all incomplete frames, in bytes.
    pub max_bytes: usize,
    /// The maximum number of incomplete frames.
    pub max_frames: usize,
    /// Milliseconds from a frame's first segment until the frame is dropped.
    pub timeout_ms: u64,
}

impl Default for SttLimits {
    /// 4 MiB, 1024 frames, 30 s.
    fn default() -> Self {
        Self { max_bytes: 4 << 20, max_frames: 1024, timeout_ms: 30_000 }
    }
}

#[derive(Debug)]
struct PartialFrame {
    serial: u64,
    buffer: PacketBuf,
    /// The received ranges: (start, end), sorted, neither overlapping nor adjacent.
    ranges: Vec<(u16, u16)>,
    total: u16,
    ce: bool,
}

/// Reassembles STT frames.
#[derive(Debug, Default)]
pub struct SttReassembler {
    limits: SttLimits,
    frames: HashMap<SttFrameKey, PartialFrame>,
    /// Incomplete frames in order of their first segment: serial -> (key, time of the first segment
    /// in ms).
    ages: BTreeMap<u64, (SttFrameKey, u64)>,
    next_serial: u64,
    bytes: usize,
    free_buffers: Vec<PacketBuf>,
    /// The caller's buffer, while the caller has the last completed frame in another buffer.
    borrowed: Option<PacketBuf>,
    drops: [u64; SttDrop::ALL.len()],
}

impl SttReassembler {
    /// Makes an empty reassembler with these limits.
    pub fn new(limits: SttLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Adds the segment in `packet`: the bytes after the TCP-like header, without padding.
    /// `now_ms` is a monotonic time in milliseconds.
    ///
    /// When the frame is complete, `packet` holds it, starting with the STT header. Its buffer may
    /// then be another one, just large enough. [`SttReassembler::restore_buffer`] restores the
    /// original.
    ///
    /// # Errors
    /// [`SttDrop`], which is counted. The segment was not added to a frame, and `packet` is
    /// unchanged.
    pub fn push(
        &mut self,
        key: SttFrameKey,
        place: SttSegmentPosition,
        packet: &mut PacketBuf,
        now_ms: u64,
    ) -> Result<SttProgress, SttDrop> {
        self.expire(now_ms);
        let result = self.add_segment(key, place, packet, now_ms);
        if let Err(reason) = result {
            self.count(reason);
        }
        result
    }

    /// Restores the buffer that the last [`SttReassembler::push`] took from `packet`, if it took
    /// one. `packet` is then empty, and the frame's buffer is kept for later frames.
    pub fn restore_buffer(&mut self, packet: &mut PacketBuf) {
        if let Some(mut buffer) = self.borrowed.take() {
            buffer.reset(PacketBuf::HEADROOM);
            self.recycle(std::mem::replace(packet, buffer));
        }
    }

    /// Drops every frame whose first segment is older than the timeout. [`SttReassembler::push`]
    /// also does this. Call it to free memory while no segments arrive.
    pub fn expire(&mut self, now_ms: u64) {
        while let Some((_, &(key, born_ms))) = self.ages.first_key_value() {
            if now_ms.saturating_sub(born_ms) < self.limits.timeout_ms {
                break;
            }
            self.drop_frame(key, SttDrop::Expired);
        }
    }

    /// The number of drops for `reason`.
    pub fn dropped(&self, reason: SttDrop) -> u64 {
        self.drops[reason as usize]
    }

    /// The number of incomplete frames.
    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    /// The sum of the full lengths of the incomplete frames, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn add_segment(
        &mut self,
        key: SttFrameKey,
        place: SttSegmentPosition,
        packet: &mut PacketBuf,
        now_ms: u64,
    ) -> Result<SttProgress, SttDrop> {
        let len = packet.len();
        if len == 0 {
            return Err(SttDrop::Empty);
        }
        if place.total < STT_HEADER_LEN {
            return Err(SttDrop::TotalTooShort);
        }
        let end = usize::from(place.offset) + len;
        if end > usize::from(place.total) {
            return Err(SttDrop::BeyondTotal);
        }
        // The cast is lossless because of the check above.
        let range = (place.offset, end as u16);
        if len == usize::from(place.total) {
            self.drop_frame(key, SttDrop::Superseded);
            return Ok(SttProgress::Complete { ce: place.ce });
        }
        if !self.frames.contains_key(&key) {
            self.open(key, place.total, now_ms)?;
        }
        let Entry::Occupied(mut entry) = self.frames.entry(key) else {
            return Err(SttDrop::OverLimit);
        };
        let frame = entry.get_mut();
        frame.add(range, place, packet)?;
        if !frame.is_complete() {
            return Ok(SttProgress::Pending);
        }
        let mut frame = entry.remove();
        self.ages.remove(&frame.serial);
        self.bytes -= usize::from(frame.total);
        frame.buffer.set_len(usize::from(frame.total));
        std::mem::swap(packet, &mut frame.buffer);
        self.borrowed = Some(frame.buffer);
        Ok(SttProgress::Complete { ce: frame.ce })
    }

    /// Makes room for a frame of `total` bytes and inserts it without segments. The caller adds the
    /// first segment, which cannot fail.
    fn open(&mut self, key: SttFrameKey, total: u16, now_ms: u64) -> Result<(), SttDrop> {
        let total_bytes = usize::from(total);
        if total_bytes > self.limits.max_bytes || self.limits.max_frames == 0 {
            return Err(SttDrop::OverLimit);
        }
        while self.bytes + total_bytes > self.limits.max_bytes
            || self.frames.len() >= self.limits.max_frames
        {
            let Some((_, &(oldest, _))) = self.ages.first_key_value() else {
                return Err(SttDrop::OverLimit);
            };
            self.drop_frame(oldest, SttDrop::Evicted);
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let buffer = self.buffer(total_bytes);
        self.frames
            .insert(key, PartialFrame { serial, buffer, ranges: Vec::new(), total, ce: false });
        self.ages.insert(serial, (key, now_ms));
        self.bytes += total_bytes;
        Ok(())
    }

    fn drop_frame(&mut self, key: SttFrameKey, reason: SttDrop) {
        if let Some(frame) = self.frames.remove(&key) {
            self.ages.remove(&frame.serial);
            self.bytes -= usize::from(frame.total);
            self.recycle(frame.buffer);
            self.count(reason);
        }
    }

    fn count(&mut self, reason: SttDrop) {
        self.drops[reason as usize] += 1;
    }

    /// An empty buffer with the usual headroom and room for `len` bytes after it.
    fn buffer(&mut self, len: usize) -> PacketBuf {
        if let Some(mut buffer) = self.free_buffers.pop() {
            buffer.reset(PacketBuf::HEADROOM);
            if buffer.headroom() == PacketBuf::HEADROOM && buffer.spare_mut().len() >= len {
                return buffer;
            }
        }
        PacketBuf::with_capacity(PacketBuf::HEADROOM, len)
    }

    fn recycle(&mut self, buffer: PacketBuf) {
        if self.free_buffers.len() < MAX_FREE_BUFFERS {
            self.free_buffers.push(buffer);
        }
    }
}

impl PartialFrame {
    fn add(
        &mut self,
        range: (u16, u16),
        place: SttSegmentPosition,
        packet: &PacketBuf,
    ) -> Result<(), SttDrop> {
        if place.total != self.total {
            return Err(SttDrop::InconsistentTotal);
        }
        let (start, end) = range;
        // Ranges before index `next` start before the range of this segment.
        let next = self.ranges.partition_point(|&(from, _)| from < start);
        let touches_next = match self.ranges.get(next) {
            Some(&(from, _)) if from < end => return Err(SttDrop::Overlap),
            Some(&(from, _)) => from == end,
            None => false,
        };
        let touches_previous = match next.checked_sub(1).map(|previous| self.ranges[previous]) {
            Some((_, to)) if to > start => return Err(SttDrop::Overlap),
            Some((_, to)) => to == start,
            None => false,
        };
        match (touches_previous, touches_next) {
            (true, true) => {
                self.ranges[next - 1].1 = self.ranges[next].1;
                self.ranges.remove(next);
            }
            (true, false) => self.ranges[next - 1].1 = end,
            (false, true) => self.ranges[next].0 = start,
            (false, false) if self.ranges.len() == MAX_RANGES => return Err(SttDrop::Scattered),
            (false, false) => self.ranges.insert(next, range),
        }
        let mut to = &mut self.buffer.spare_mut()[usize::from(start)..usize::from(end)];
        for piece in packet.pieces() {
            let (target, rest) = to.split_at_mut(piece.len());
            target.copy_from_slice(piece);
            to = rest;
        }
        self.ce |= place.ce;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.ranges == [(0, self.total)]
    }
}
