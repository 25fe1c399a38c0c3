//! The fields of a TCP segment that the state machine reads.

use wire::{TcpFlags, tcp};

use crate::Invalid;

/// The largest window scale (RFC 7323 section 2.3).
const MAX_SCALE: u8 = 14;
const END: u8 = 0;
const NOP: u8 = 1;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const SACK_BLOCK_LEN: usize = 8;

/// A TCP segment, or a super-packet of segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub seq: u32,
    /// The sequence number after the segment, which counts data, SYN and FIN.
    pub end: u32,
    pub ack: u32,
    /// The highest sequence number that the sender of this segment has received: the highest right
    /// edge of the SACK blocks, or `ack` without SACK blocks.
    pub sack: u32,
    /// The window field, not scaled.
    pub window: u16,
    pub flags: TcpFlags,
    /// `None` when the header has no options at all.
    pub options: Option<Options>,
}

/// The options of a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options {
    pub scale: Option<u8>,
    pub sack_permitted: bool,
}

/// The meaning of a segment for the state machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum TcpEvent {
    /// None of the other events.
    None,
    Syn,
    SynAck,
    Fin,
    Ack,
    Rst,
}

impl Segment {
    /// Parses a segment of `len` bytes that begins with `bytes`. Also returns its ports.
    pub(super) fn parse(bytes: &[u8], len: usize) -> Result<(Self, [u16; 2]), Invalid> {
        let segment = wire::TcpPacket::new_checked(bytes).map_err(|_| Invalid::Malformed)?;
        let flags = segment.flags();
        if !is_valid(flags) {
            return Err(Invalid::TcpFlags);
        }
        let option_bytes = segment.option_bytes();
        let (options, edge) = parse_options(option_bytes, segment.ack());
        let control =
            u32::from(flags.contains(TcpFlags::SYN)) + u32::from(flags.contains(TcpFlags::FIN));
        // An IP packet is shorter than 2^32 bytes.
        let data = len.saturating_sub(segment.header_len()) as u32;
        let parsed = Self {
            seq: segment.seq(),
            end: segment.seq().wrapping_add(data).wrapping_add(control),
            ack: segment.ack(),
            sack: edge,
            window: segment.window(),
            flags,
            options: (!option_bytes.is_empty()).then_some(options),
        };
        Ok((parsed, [segment.src_port(), segment.dst_port()]))
    }

    pub fn event(&self) -> TcpEvent {
        let has = |flags| self.flags.contains(flags);
        if has(TcpFlags::RST) {
            TcpEvent::Rst
        } else if has(TcpFlags::SYN) {
            if has(TcpFlags::ACK) { TcpEvent::SynAck } else { TcpEvent::Syn }
        } else if has(TcpFlags::FIN) {
            TcpEvent::Fin
        } else if has(TcpFlags::ACK) {
            TcpEvent::Ack
        } else {
            TcpEvent::None
        }
    }

    pub fn has(&self, flags: TcpFlags) -> bool {
        self.flags.contains(flags)
    }
}

/// False for combinations of flags that no TCP sends.
fn is_valid(flags: TcpFlags) -> bool {
    let always_allowed = TcpFlags::PSH | TcpFlags::ECE | TcpFlags::CWR;
    let rest = flags.without(always_allowed);
    let with_urgent = [TcpFlags::SYN, TcpFlags::FIN | TcpFlags::ACK, TcpFlags::ACK];
    let without = [TcpFlags::SYN | TcpFlags::ACK, TcpFlags::RST, TcpFlags::RST | TcpFlags::ACK];
    with_urgent.contains(&rest.without(TcpFlags::URG)) || without.contains(&rest)
}

/// The options, up to the first malformed one, and the highest right edge of the SACK blocks after
/// `ack`.
fn parse_options(mut rest: &[u8], ack: u32) -> (Options, u32) {
    let (mut options, mut edge, mut has_sack) = (Options::default(), ack, false);
    loop {
        match *rest {
            [] | [END, ..] => break,
            [NOP, ..] => rest = &rest[1..],
            [_] => break,
            [kind, len, ..] => {
                let len = usize::from(len);
                let Some((option, after)) = rest.split_at_checked(len).filter(|_| len >= 2) else {
                    break;
                };
                match (kind, &option[2..]) {
                    (WINDOW_SCALE, &[scale]) => options.scale = Some(scale.min(MAX_SCALE)),
                    (SACK_PERMITTED, []) => options.sack_permitted = true,
                    (SACK, blocks) if is_sack(blocks) && !has_sack => {
                        edge = last_edge(blocks, ack);
                        has_sack = true;
                    }
                    _ => {}
                }
                rest = after;
            }
        }
    }
    (options, edge)
}

fn is_sack(blocks: &[u8]) -> bool {
    !blocks.is_empty() && blocks.len().is_multiple_of(SACK_BLOCK_LEN)
}

fn last_edge(blocks: &[u8], ack: u32) -> u32 {
    let (blocks, _) = blocks.as_chunks::<SACK_BLOCK_LEN>();
    blocks.iter().fold(ack, |edge, &[_, _, _, _, a, b, c, d]| {
        let right = u32::from_be_bytes([a, b, c, d]);
        if is_after(right, edge) { right } else { edge }
    })
}

/// True when sequence number `a` is after `b` (RFC 9293 section 3.4).
#[inline]
pub(crate) const fn is_after(a: u32, b: u32) -> bool {
    (b.wrapping_sub(a) as i32) < 0
}

/// The shortest header that carries the fields above.
const _: () = assert!(tcp::MIN_HEADER_LEN == 20);
