//! Coalescing of in-order TCP segments of one flow into super-packets: the inverse of
//! [segmentation](crate::segment).
//!
//! [`coalesce_ranges`] joins frames that are in one buffer, without copying payload. [`Coalescer`]
//! joins frames received one by one. The rules are those of Linux's GRO (`inet_gro_receive`,
//! `ipv6_gro_receive`, `tcp_gro_receive`), so that segmenting the result gives the original
//! segments. A segment is joined to others if
//!
//! - all are whole IP packets with TCP behind the same bytes of Ethernet header and tags; IPv4
//!   without options and with a valid header checksum, or IPv6 with the same options headers and no
//!   other extension header. Lengths are those of the IP header, and padding of the frame is
//!   dropped;
//! - addresses, TTL or hop limit, TOS or traffic class (so DSCP and ECN), flow label and DF are
//!   equal. The IPv4 identification increases by 1. With DF set it may instead always be 0: it has
//!   no meaning then (RFC 6864 section 4.1), and segmentation may number the segments differently;
//! - ports, acknowledgement number, window, urgent pointer and all option bytes (timestamps too)
//!   are equal, and the sequence number follows;
//! - none has SYN, RST or URG, and all agree in ECE and the remaining bits. CWR is on the first
//!   only, PSH and FIN on the last only;
//! - all payloads are as long as the first, only the last may be shorter, none is empty;
//! - the IP packet stays within 65,535 bytes, its header included;
//! - all TCP checksums are valid, or known to be verified. A segment with a wrong checksum is
//!   passed on alone and unchanged, and its receiver drops it.

use std::ops::Range;

use crate::buf::{Checksum, Offload, PacketBuf};
use crate::merge::{MergeClass, MergedSegments, Segment, classify, classify_at};

/// Joins the longest possible run of frames at the front of `frames` in place, and returns the
/// number of frames in it (0 only if `frames` is empty). A frame that cannot be joined with the
/// next is a run of one and unchanged.
///
/// `frames` are ranges of [`PacketBuf::spare_mut`]. Each is an Ethernet frame, in the order
/// received, and all have the same tunnel key and outer ECN mark. `verified` means that the bytes
/// are known to be intact, e.g. by a checksum of the outer packet; otherwise inner TCP checksums
/// are verified. No payload moves: it becomes fragments of the frame.
///
/// The storage behind the run is not touched, so the other frames can be joined from the same
/// buffer afterwards:
///
/// ```
/// # use packet::{PacketBuf, coalesce_ranges};
/// # let mut packet = PacketBuf::from_bytes(&[0; 120]);
/// # let frames = [0..60, 60..120];
/// # let mut deliver = |packet: &mut PacketBuf| assert_eq!(packet.len(), 60);
/// let headroom = packet.headroom();
/// let mut rest = &frames[..];
/// while !rest.is_empty() {
///     packet.reset(headroom);
///     let taken = coalesce_ranges(&mut packet, rest, false);
///     deliver(&mut packet);
///     rest = &rest[taken..];
/// }
/// ```
pub fn coalesce_ranges(packet: &mut PacketBuf, frames: &[Range<usize>], verified: bool) -> usize {
    let Some(first_range) = frames.first().cloned() else { return 0 };
    let run = longest_run(packet.spare_mut(), frames, verified);
    let trusted = verified || run.is_some_and(|run| run.is_first_valid);
    let Some(run) = run.filter(|run| run.count > 1) else {
        packet.set_ranges(first_range, []);
        let checksum = if trusted { Checksum::Verified } else { Checksum::Unverified };
        packet.offload = Offload { checksum, gso: None };
        return 1;
    };
    let (header_len, size, total) = (run.header_len(), run.size(), run.payload_len());
    let linear = first_range.start..first_range.start + header_len + size;
    let rest = frames[1..run.count].iter().enumerate().map(|(index, frame)| {
        let start = frame.start + header_len;
        start..start + size.min(total - (index + 1) * size)
    });
    packet.set_ranges(linear, rest);
    packet.offload = run.finish(packet.head_mut());
    run.count
}

/// The longest run at the front of `frames`, which are ranges of `storage`; `None` if the first
/// frame cannot be in any run.
fn longest_run(storage: &[u8], frames: &[Range<usize>], verified: bool) -> Option<MergedSegments> {
    let mut frames = frames.iter().map(|range| storage.get(range.clone()));
    let head = frames.next()??;
    let MergeClass::Tcp(first) = classify(head) else { return None };
    if !first.is_mergeable {
        return None;
    }
    let mut run = MergedSegments::new(first, verified);
    for frame in frames {
        let Some(frame) = frame else { break };
        if run.is_closed {
            break;
        }
        let MergeClass::Tcp(next) = classify(frame) else { break };
        if !run.join(head, &next, frame, verified) {
            break;
        }
    }
    Some(run)
}

/// A packet of a flow that waits for more segments.
#[derive(Debug)]
struct HeldPacket<K> {
    key: K,
    packet: PacketBuf,
    run: MergedSegments,
}

/// Joins TCP segments received one by one.
///
/// [`Coalescer::push`] takes packets and emits them through its closure; packets of one flow keep
/// their order. Call [`Coalescer::flush`] at the end of each receive batch, so that no packet waits
/// longer. Only packets with equal `K` are joined, and `K` is emitted with them: it holds the
/// tunnel, its key and the outer ECN mark.
///
/// A [`Checksum`] that is `Verified` or `Partial` is trusted. An `Unverified` one is verified
/// before the packet is joined.
#[derive(Debug)]
pub struct Coalescer<K> {
    /// Oldest first.
    held: Vec<HeldPacket<K>>,
    max_flows: usize,
}

impl<K: Copy + Eq> Coalescer<K> {
    /// Makes a coalescer that holds packets of up to `max_flows` flows, at least one.
    pub fn new(max_flows: usize) -> Self {
        let max_flows = max_flows.max(1);
        Self { held: Vec::with_capacity(max_flows), max_flows }
    }

    /// Takes a packet. It is joined to the held packet of its flow, or held, or emitted; in the
    /// last two cases, a held packet of its flow is emitted first. The buffer of a joined packet is
    /// returned for reuse.
    pub fn push(
        &mut self,
        key: K,
        mut packet: PacketBuf,
        mut emit: impl FnMut(K, PacketBuf),
    ) -> Option<PacketBuf> {
        packet.linearize();
        let segment = match classify_at(packet.head(), packet.located()) {
            MergeClass::Tcp(segment) => segment,
            MergeClass::Unclassifiable => {
                self.emit_where(|held| held.key == key, &mut emit);
                emit(key, packet);
                return None;
            }
            MergeClass::Other => {
                emit(key, packet);
                return None;
            }
        };
        let offload = packet.offload;
        let mergeable = segment.is_mergeable
            && offload.gso.is_none()
            && segment.has_no_other_partial_checksum(offload);
        let trusted = offload.checksum != Checksum::Unverified;
        if let Some(index) = self.find(key, &segment, packet.head()) {
            let held = &mut self.held[index];
            if mergeable && held.join(&segment, packet.head(), trusted) {
                if held.run.is_closed {
                    self.emit_at(index, &mut emit);
                }
                return Some(packet);
            }
            self.emit_at(index, &mut emit);
        }
        if !mergeable || segment.ends_run() {
            emit(key, packet);
            return None;
        }
        if self.held.len() == self.max_flows {
            self.emit_at(0, &mut emit);
        }
        self.held.push(HeldPacket { key, packet, run: MergedSegments::new(segment, trusted) });
        None
    }

    /// Emits all held packets, the oldest flow first.
    pub fn flush(&mut self, mut emit: impl FnMut(K, PacketBuf)) {
        for held in self.held.drain(..) {
            held.emit(&mut emit);
        }
    }

    /// True if no packet is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn find(&self, key: K, segment: &Segment, frame: &[u8]) -> Option<usize> {
        self.held.iter().position(|held| {
            held.key == key && held.run.first.is_same_flow(held.packet.head(), segment, frame)
        })
    }

    fn emit_at(&mut self, index: usize, emit: &mut impl FnMut(K, PacketBuf)) {
        self.held.remove(index).emit(emit);
    }

    fn emit_where(
        &mut self,
        mut which: impl FnMut(&HeldPacket<K>) -> bool,
        emit: &mut impl FnMut(K, PacketBuf),
    ) {
        for held in self.held.extract_if(.., |held| which(held)) {
            held.emit(emit);
        }
    }
}

impl<K> HeldPacket<K> {
    fn join(&mut self, next: &Segment, frame: &[u8], trusted: bool) -> bool {
        let joined = self.run.join(self.packet.head(), next, frame, trusted);
        if joined {
            // Before the first join, padding may lie behind the payload.
            self.packet.truncate(
                self.run.header_len() + self.run.payload_len() - next.payload(frame).len(),
            );
            self.packet.append(next.payload(frame));
        }
        joined
    }

    fn emit(mut self, emit: &mut impl FnMut(K, PacketBuf)) {
        if self.run.count > 1 {
            self.packet.offload = self.run.finish(self.packet.head_mut());
        } else if self.run.is_first_valid && self.packet.offload.checksum == Checksum::Unverified {
            self.packet.offload.checksum = Checksum::Verified;
        }
        emit(self.key, self.packet);
    }
}
