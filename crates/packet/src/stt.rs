//! Reassembly of STT frames from the TCP-shaped segments that carry them (draft-davie-stt section
//! 4).
//!
//! A segment tells the length of its frame and its own place in it (the two halves of the sequence
//! number). A frame that arrives whole, as GRO or an unsegmented super-packet delivers it, passes
//! through without a copy. Anything else is copied into a buffer of the frame's length.
//!
//! Invariants: every entry has between 1 and `total - 1` bytes; the ranges of an entry are sorted,
//! disjoint and not adjacent; `bytes` is the sum of all entries' totals and at most `max_bytes`;
//! `ages` has exactly the keys of `entries`. Whoever can forge segments can spoil or evict frames
//! (STT has no protection against it), but not exceed these bounds.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use crate::buf::PacketBuf;

/// Bytes of the STT header with its padding; no frame is shorter.
const STT_HEADER_LEN: u16 = 18;
/// Ranges of a frame with gaps between them. In-order delivery needs 1; this bounds what a frame in
/// crumbs can cost.
const MAX_RANGES: usize = 64;
/// Buffers kept for the next frames.
const MAX_SPARES: usize = 4;

/// Which frame a segment belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SttFrameKey {
    /// Outer source address.
    pub src: IpAddr,
    /// Outer destination address.
    pub dst: IpAddr,
    /// Source port of the TCP-shaped header.
    pub src_port: u16,
    /// Acknowledgement number of the TCP-shaped header: the packet id, new for every frame.
    pub packet_id: u32,
}

/// What the outer headers say about a segment besides its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SttPlace {
    /// Bytes of the whole frame, STT header included: the upper half of the sequence number.
    pub total: u16,
    /// Where in the frame the segment belongs: the lower half of the sequence number.
    pub offset: u16,
    /// The outer IP header has ECN CE.
    pub ce: bool,
}

/// What has become of a segment that was taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SttProgress {
    /// The packet now holds the whole frame, starting with the STT header.
    Complete {
        /// Any of the frame's segments had ECN CE.
        ce: bool,
    },
    /// More segments are needed; the packet's bytes have been copied and its buffer is free.
    Pending,
}

/// Why a segment was refused, or a frame given up.
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
    /// A segment that gives its frame another length than the ones before.
    #[error("STT segment disagrees about the length of its frame")]
    InconsistentTotal,
    /// A segment that overlaps or repeats what is there.
    #[error("overlapping STT segment")]
    Overlap,
    /// A frame in too many pieces with gaps between them.
    #[error("STT frame in too many pieces")]
    Scattered,
    /// A frame longer than all the memory for reassembly.
    #[error("STT frame exceeds the memory for reassembly")]
    OverLimit,
    /// An incomplete frame that made room for a newer one. Counts frames.
    #[error("incomplete STT frame evicted")]
    Evicted,
    /// A frame that was not complete in time. Counts frames.
    #[error("incomplete STT frame expired")]
    Expired,
    /// An incomplete frame whose packet id came again with a whole frame: its sender has started
    /// anew. Counts frames.
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
    /// Bytes of all incomplete frames together, each counted with its full length.
    pub max_bytes: usize,
    /// Incomplete frames.
    pub max_frames: usize,
    /// Milliseconds from a frame's first segment until it is given up.
    pub timeout_ms: u64,
}

impl Default for SttLimits {
    /// 4 MiB, 1024 frames, 30 s.
    fn default() -> Self {
        Self { max_bytes: 4 << 20, max_frames: 1024, timeout_ms: 30_000 }
    }
}

#[derive(Debug)]
struct Frame {
    serial: u64,
    buffer: PacketBuf,
    /// What has arrived: (start, end), sorted, neither overlapping nor touching.
    ranges: Vec<(u16, u16)>,
    total: u16,
    ce: bool,
}

/// Puts STT frames together.
#[derive(Debug, Default)]
pub struct SttReassembler {
    limits: SttLimits,
    frames: HashMap<SttFrameKey, Frame>,
    /// Incomplete frames in order of their first segment: serial -> (key, time of the first segment
    /// in ms).
    ages: BTreeMap<u64, (SttFrameKey, u64)>,
    next_serial: u64,
    bytes: usize,
    spares: Vec<PacketBuf>,
    /// The caller's buffer, in whose place stands that of the frame completed last.
    borrowed: Option<PacketBuf>,
    drops: [u64; SttDrop::ALL.len()],
}

impl SttReassembler {
    /// A reassembler with these bounds.
    pub fn new(limits: SttLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Takes in the segment in `packet`: the bytes behind the TCP-shaped header, without padding.
    /// `now_ms` is a monotonic time in milliseconds.
    ///
    /// When the frame is complete, `packet` holds it, starting with the STT header. Its buffer may
    /// be another one then, just large enough: [`SttReassembler::give_back`] exchanges it again.
    ///
    /// # Errors
    /// [`SttDrop`], counted already; the segment is not part of any frame then, and `packet` is
    /// unchanged.
    pub fn push(
        &mut self,
        key: SttFrameKey,
        place: SttPlace,
        packet: &mut PacketBuf,
        now_ms: u64,
    ) -> Result<SttProgress, SttDrop> {
        self.expire(now_ms);
        let result = self.take_in(key, place, packet, now_ms);
        if let Err(reason) = result {
            self.count(reason);
        }
        result
    }

    /// Gives `packet` the buffer back that the last [`SttReassembler::push`] took from it, if it
    /// did, and keeps the one of the frame for the frames to come. `packet` is empty then.
    pub fn give_back(&mut self, packet: &mut PacketBuf) {
        if let Some(mut buffer) = self.borrowed.take() {
            buffer.reset(PacketBuf::HEADROOM);
            self.spare(std::mem::replace(packet, buffer));
        }
    }

    /// Gives up every frame whose first segment is older than the timeout. [`SttReassembler::push`]
    /// does so too; call it besides only to free memory while nothing arrives.
    pub fn expire(&mut self, now_ms: u64) {
        while let Some((_, &(key, born_ms))) = self.ages.first_key_value() {
            if now_ms.saturating_sub(born_ms) < self.limits.timeout_ms {
                break;
            }
            self.give_up(key, SttDrop::Expired);
        }
    }

    /// How often `reason` has occurred.
    pub fn dropped(&self, reason: SttDrop) -> u64 {
        self.drops[reason as usize]
    }

    /// Incomplete frames.
    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    /// Bytes that the incomplete frames will have when complete.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn take_in(
        &mut self,
        key: SttFrameKey,
        place: SttPlace,
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
        // The check above makes this fit.
        let range = (place.offset, end as u16);
        if len == usize::from(place.total) {
            self.give_up(key, SttDrop::Superseded);
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

    /// Makes room for a frame of `total` bytes and starts it. It has no segment yet, which the
    /// caller adds at once: none of the refusals of a first segment can happen any more.
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
            self.give_up(oldest, SttDrop::Evicted);
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let buffer = self.buffer(total_bytes);
        self.frames.insert(key, Frame { serial, buffer, ranges: Vec::new(), total, ce: false });
        self.ages.insert(serial, (key, now_ms));
        self.bytes += total_bytes;
        Ok(())
    }

    fn give_up(&mut self, key: SttFrameKey, reason: SttDrop) {
        if let Some(frame) = self.frames.remove(&key) {
            self.ages.remove(&frame.serial);
            self.bytes -= usize::from(frame.total);
            self.spare(frame.buffer);
            self.count(reason);
        }
    }

    fn count(&mut self, reason: SttDrop) {
        self.drops[reason as usize] += 1;
    }

    /// An empty buffer with the usual headroom and `len` bytes behind it.
    fn buffer(&mut self, len: usize) -> PacketBuf {
        if let Some(mut spare) = self.spares.pop() {
            spare.reset(PacketBuf::HEADROOM);
            if spare.headroom() == PacketBuf::HEADROOM && spare.spare_mut().len() >= len {
                return spare;
            }
        }
        PacketBuf::with_capacity(PacketBuf::HEADROOM, len)
    }

    fn spare(&mut self, buffer: PacketBuf) {
        if self.spares.len() < MAX_SPARES {
            self.spares.push(buffer);
        }
    }
}

impl Frame {
    fn add(
        &mut self,
        range: (u16, u16),
        place: SttPlace,
        packet: &PacketBuf,
    ) -> Result<(), SttDrop> {
        if place.total != self.total {
            return Err(SttDrop::InconsistentTotal);
        }
        let (start, end) = range;
        // Of the ranges, those before `next` start before this segment's.
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
            let (now, later) = to.split_at_mut(piece.len());
            now.copy_from_slice(piece);
            to = later;
        }
        self.ce |= place.ce;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.ranges == [(0, self.total)]
    }
}
