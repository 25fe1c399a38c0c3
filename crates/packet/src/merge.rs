//! Decides whether a TCP segment can be joined to others, and writes the headers of the
//! super-packet.
//!
//! The rules are listed in [`crate::coalesce`]; the functions here check the fields in the same
//! order.

use wire::checksum::Sum;
use wire::{Located, ParseError, Protocol, TcpFlags, tcp, transport_offset};

use crate::buf::{Checksum, Gso, GsoKind, Offload};
use crate::locate::{Location, whole};

const FIN: u8 = TcpFlags::FIN.0;
const SYN: u8 = TcpFlags::SYN.0;
const RST: u8 = TcpFlags::RST.0;
const PSH: u8 = TcpFlags::PSH.0;
const URG: u8 = TcpFlags::URG.0;
const CWR: u8 = TcpFlags::CWR.0;

const MAX_IP_LEN: usize = 65_535;

/// The class of a frame for coalescing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MergeClass {
    /// A TCP segment.
    Tcp(Segment),
    /// A fragment or malformed frame, which may belong to an unknown TCP flow.
    Unclassifiable,
    /// Not TCP.
    Other,
}

/// A whole TCP segment in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    at: Location,
    /// The first byte of payload, from the start of the frame.
    payload: usize,
    seq: u32,
    flags: u8,
    /// It may be part of a super-packet.
    pub is_mergeable: bool,
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Classifies a frame that is whole in one slice.
pub(crate) fn classify(frame: &[u8]) -> MergeClass {
    classify_at(frame, transport_offset(frame))
}

/// Classifies a frame whose headers are at `located`.
pub(crate) fn classify_at(frame: &[u8], located: Result<Located, ParseError>) -> MergeClass {
    let Ok(located) = located else { return MergeClass::Unclassifiable };
    // A frame that is not IP has no protocol either.
    if located.protocol != Protocol::TCP {
        return MergeClass::Other;
    }
    let Some(at) = whole(&located) else { return MergeClass::Unclassifiable };
    if at.end < at.l4 + tcp::MIN_HEADER_LEN || !at.has_only_options(frame) {
        return MergeClass::Unclassifiable;
    }
    let tcp = &frame[at.l4..at.end];
    let header_len = usize::from(tcp[12] >> 4) * 4;
    if header_len < tcp::MIN_HEADER_LEN || header_len > tcp.len() {
        return MergeClass::Unclassifiable;
    }
    let flags = tcp[13];
    let plain_ip = at.is_v6 || (at.l4 - at.l3 == 20 && Sum::of(&frame[at.l3..at.l4]).is_valid());
    MergeClass::Tcp(Segment {
        at,
        payload: at.l4 + header_len,
        seq: u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]),
        flags,
        is_mergeable: plain_ip && tcp.len() > header_len && flags & (SYN | RST | URG) == 0,
    })
}

impl Segment {
    fn payload_len(&self) -> usize {
        self.at.end - self.payload
    }

    /// True if no segment may be joined behind this one.
    pub(crate) fn ends_run(&self) -> bool {
        self.flags & (PSH | FIN) != 0
    }

    /// True unless there is a partial checksum that is not this segment's own.
    pub(crate) fn has_no_other_partial_checksum(&self, offload: Offload) -> bool {
        match offload.checksum {
            Checksum::Partial { start, offset } => {
                usize::from(start) == self.at.l4 && usize::from(offset) == tcp::CHECKSUM_OFFSET
            }
            Checksum::Unverified | Checksum::Verified => true,
        }
    }

    /// The payload, without padding behind it.
    pub(crate) fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[self.payload..self.at.end]
    }

    /// True if the TCP checksum is valid.
    pub(crate) fn is_valid(&self, frame: &[u8]) -> bool {
        let tcp = &frame[self.at.l4..self.at.end];
        self.at.pseudo_header(frame, tcp.len() as u16).bytes(tcp).is_valid()
    }

    /// True if addresses and ports equal those of `other`.
    pub(crate) fn is_same_flow(&self, frame: &[u8], other: &Self, other_frame: &[u8]) -> bool {
        fn addresses<'a>(at: &Location, frame: &'a [u8]) -> &'a [u8] {
            if at.is_v6 { &frame[at.l3 + 8..at.l3 + 40] } else { &frame[at.l3 + 12..at.l3 + 20] }
        }
        let ports = |at: &Location, frame: &[u8]| be32(frame, at.l4);
        ports(&self.at, frame) == ports(&other.at, other_frame)
            && addresses(&self.at, frame) == addresses(&other.at, other_frame)
    }
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The segments joined so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergedSegments {
    pub first: Segment,
    /// The number of segments.
    pub count: usize,
    payload_len: usize,
    last_flags: u8,
    /// No further segment can be joined.
    pub is_closed: bool,
    /// The IPv4 identification stays 0.
    id_is_fixed: bool,
    /// The checksum of the first segment is known to be valid.
    pub is_first_valid: bool,
}

impl MergedSegments {
    /// Starts a run with one mergeable segment; `is_valid` means that its checksum is known to be
    /// valid.
    pub(crate) fn new(first: Segment, is_valid: bool) -> Self {
        Self {
            first,
            count: 1,
            payload_len: first.payload_len(),
            last_flags: first.flags,
            is_closed: first.ends_run(),
            id_is_fixed: false,
            is_first_valid: is_valid,
        }
    }

    /// The payload length in bytes of each segment but the last.
    pub(crate) fn size(&self) -> usize {
        self.first.payload_len()
    }

    /// The payload length in bytes of all segments.
    pub(crate) fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// The header length in bytes of the first segment.
    pub(crate) fn header_len(&self) -> usize {
        self.first.payload
    }

    /// Joins `next` if the rules allow it. `head` is the first frame (or the super-packet so far),
    /// `is_valid` means that the checksum of `next` is known to be valid.
    pub(crate) fn join(
        &mut self,
        head: &[u8],
        next: &Segment,
        frame: &[u8],
        is_valid: bool,
    ) -> bool {
        if self.is_closed || !next.is_mergeable || !self.continues(head, next, frame) {
            return false;
        }
        if !self.is_first_valid {
            // Verify the first segment before its headers change; a run has only valid segments.
            if !self.first.is_valid(head) {
                self.is_closed = true;
                return false;
            }
            self.is_first_valid = true;
        }
        if !is_valid && !next.is_valid(frame) {
            return false;
        }
        if !self.first.at.is_v6 && self.count == 1 {
            self.id_is_fixed = be16(frame, next.at.l3 + 4) == be16(head, self.first.at.l3 + 4);
        }
        self.count += 1;
        self.payload_len += next.payload_len();
        self.last_flags = next.flags;
        self.is_closed = next.ends_run() || next.payload_len() < self.size();
        true
    }

    fn continues(&self, head: &[u8], next: &Segment, frame: &[u8]) -> bool {
        let (a, b) = (&self.first, next);
        let (l3, l4) = (a.at.l3, a.at.l4);
        let same = |from: usize, to: usize| head[from..to] == frame[from..to];
        let shape = l3 == b.at.l3
            && l4 == b.at.l4
            && a.payload == b.payload
            && a.at.is_v6 == b.at.is_v6
            && b.payload_len() <= self.size()
            && a.payload - l3 + self.payload_len + b.payload_len() <= MAX_IP_LEN;
        if !shape || b.seq != a.seq.wrapping_add(self.payload_len as u32) || !same(0, l3) {
            return false;
        }
        let same_ip = if a.at.is_v6 {
            same(l3, l3 + 4) && same(l3 + 6, l4)
        } else {
            same(l3, l3 + 2)
                && same(l3 + 6, l3 + 10)
                && same(l3 + 12, l4)
                && self.id_follows(head, frame)
        };
        same_ip
            && same(l4, l4 + 4)
            && same(l4 + 8, l4 + 13)
            && (a.flags ^ b.flags) & !(FIN | PSH | CWR) == 0
            && b.flags & CWR == 0
            && same(l4 + 14, l4 + 16)
            && same(l4 + 18, a.payload)
    }

    /// Checks the IPv4 identification; both headers are at the same offset.
    fn id_follows(&self, head: &[u8], frame: &[u8]) -> bool {
        let l3 = self.first.at.l3;
        let (first, next) = (be16(head, l3 + 4), be16(frame, l3 + 4));
        let is_fixed = first == 0 && next == 0 && head[l3 + 6] & 0x40 != 0;
        let follows = next == first.wrapping_add(self.count as u16);
        if self.count == 1 {
            is_fixed || follows
        } else if self.id_is_fixed {
            is_fixed
        } else {
            follows
        }
    }

    /// Turns the headers of the first segment, at the start of `head`, into those of the
    /// super-packet, and returns its offload state. Call it only for a run of two or more segments.
    pub(crate) fn finish(&self, head: &mut [u8]) -> Offload {
        let at = self.first.at;
        let (l3, l4) = (at.l3, at.l4);
        let l4_len = (self.first.payload - l4 + self.payload_len) as u16;
        let l3_len = (self.first.payload - l3 + self.payload_len) as u16;
        if at.is_v6 {
            head[l3 + 4..l3 + 6].copy_from_slice(&(l3_len - 40).to_be_bytes());
        } else {
            head[l3 + 2..l3 + 4].copy_from_slice(&l3_len.to_be_bytes());
            head[l3 + 10..l3 + 12].fill(0);
            let checksum = Sum::of(&head[l3..l4]).checksum();
            head[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
        }
        head[l4 + 13] |= self.last_flags & (FIN | PSH);
        let pseudo = at.pseudo_header(head, l4_len).fold();
        head[l4 + 16..l4 + 18].copy_from_slice(&pseudo.to_be_bytes());
        let kind = if at.is_v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let ecn = self.first.flags & CWR != 0;
        Offload {
            checksum: Checksum::Partial { start: l4 as u16, offset: 16 },
            gso: Some(Gso { kind, size: self.size() as u16, ecn }),
        }
    }
}
