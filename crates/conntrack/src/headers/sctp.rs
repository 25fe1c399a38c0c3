//! The fields of an SCTP packet that the state machine reads (RFC 9260).

use crate::Invalid;

const HEADER_LEN: usize = 12;
const CHUNK_HEADER_LEN: usize = 4;
/// The number of control chunks of a packet that are kept. Real packets bundle at most three.
const MAX_CONTROL_CHUNKS: usize = 8;
/// The T bit of ABORT and SHUTDOWN COMPLETE.
const FLAG_T: u8 = 1;

/// A chunk that the state machine evaluates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Chunk {
    Init { tag: u32 },
    InitAck { tag: u32 },
    Heartbeat,
    HeartbeatAck,
    Abort { reflects_tag: bool },
    Shutdown,
    ShutdownAck,
    Error,
    CookieEcho,
    CookieAck,
    ShutdownComplete { reflects_tag: bool },
}

/// An SCTP packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SctpPacket {
    pub tag: u32,
    /// True if the packet contains a DATA chunk.
    pub has_data: bool,
    /// True if the packet contains a chunk that is not listed in [`Chunk`], for example DATA.
    pub has_other: bool,
    chunks: [Option<Chunk>; MAX_CONTROL_CHUNKS],
}

impl SctpPacket {
    /// Parses a packet of `len` bytes that begins with `bytes`. Also returns its ports.
    pub(super) fn parse(bytes: &[u8], len: usize) -> Result<(Self, [u16; 2]), Invalid> {
        let &[a, b, c, d, e, f, g, h, ..] = super::first::<HEADER_LEN>(bytes)?;
        let mut packet = Self {
            tag: u32::from_be_bytes([e, f, g, h]),
            has_data: false,
            has_other: false,
            chunks: [None; MAX_CONTROL_CHUNKS],
        };
        packet.read_chunks(bytes, len)?;
        Ok((packet, [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]))
    }

    /// The control chunks, in order.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> + '_ {
        self.chunks.iter().map_while(|chunk| *chunk)
    }

    fn read_chunks(&mut self, bytes: &[u8], len: usize) -> Result<(), Invalid> {
        let (mut at, mut count, mut kept) = (HEADER_LEN, 0_usize, 0);
        let mut must_be_alone = false;
        while at < len {
            // A chunk beyond the linear part is data of a super-packet.
            let Some(&[kind, flags, high, low]) =
                bytes.get(at..).and_then(|rest| rest.first_chunk::<CHUNK_HEADER_LEN>())
            else {
                break;
            };
            must_be_alone |= matches!(kind, 1 | 2 | 14);
            let must_be_first = must_be_alone || matches!(kind, 10 | 11);
            let chunk_len = usize::from(u16::from_be_bytes([high, low]));
            if (must_be_first && count > 0) || chunk_len == 0 {
                return Err(Invalid::SctpChunks);
            }
            match Chunk::parse(kind, flags, &bytes[at..])? {
                Some(chunk) => {
                    *self.chunks.get_mut(kept).ok_or(Invalid::SctpChunks)? = Some(chunk);
                    kept += 1;
                }
                None => {
                    self.has_data |= kind == 0;
                    self.has_other = true;
                }
            }
            count += 1;
            at += chunk_len.next_multiple_of(4);
        }
        if count == 0 { Err(Invalid::SctpChunks) } else { Ok(()) }
    }
}

impl Chunk {
    fn parse(kind: u8, flags: u8, bytes: &[u8]) -> Result<Option<Self>, Invalid> {
        let reflects_tag = flags & FLAG_T != 0;
        // The initiate tag follows the chunk header; the fixed part has 16 bytes.
        let tag = || match bytes.get(4..20) {
            Some(&[a, b, c, d, ..]) => Ok(u32::from_be_bytes([a, b, c, d])),
            _ => Err(Invalid::SctpChunks),
        };
        Ok(Some(match kind {
            1 => Self::Init { tag: tag()? },
            2 => Self::InitAck { tag: tag()? },
            4 => Self::Heartbeat,
            5 => Self::HeartbeatAck,
            6 => Self::Abort { reflects_tag },
            7 => Self::Shutdown,
            8 => Self::ShutdownAck,
            9 => Self::Error,
            10 => Self::CookieEcho,
            11 => Self::CookieAck,
            14 => Self::ShutdownComplete { reflects_tag },
            _ => return Ok(None),
        }))
    }
}
