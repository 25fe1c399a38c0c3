//! The SCTP ABORT that answers a packet without an association (RFC 9260 section 8.4).

use crate::DropReason;
use wire::crc32c::Crc32c;

/// The length of the packet: a common header, and a chunk without causes.
///
/// ```text
///  0                   1                   2                   3
/// |        source port            |      destination port         |
/// |                      verification tag                         |
/// |                          checksum                             |
/// |   type = 6    |  reserved   |T|          length = 4           |
/// ```
pub(crate) const LEN: usize = HEADER_LEN + CHUNK_HEADER_LEN;

const HEADER_LEN: usize = 12;
const CHUNK_HEADER_LEN: usize = 4;
/// The length of an INIT chunk without parameters (RFC 9260 section 3.3.2).
const INIT_LEN: usize = 20;
/// A packet with more chunks gets no answer. Real packets bundle far fewer.
const MAX_CHUNKS: usize = 64;

const INIT: u8 = 1;
const ABORT: u8 = 6;
const COOKIE_ACK: u8 = 11;
const SHUTDOWN_COMPLETE: u8 = 14;

/// The ABORT that answers an SCTP packet, from its common header to its end.
///
/// # Errors
/// [`DropReason::NotApplicable`] for a packet that must not be answered: it contains an ABORT, a
/// COOKIE ACK or a SHUTDOWN COMPLETE, or no valid chunk.
pub(crate) fn answer(packet: &[u8]) -> Result<[u8; LEN], DropReason> {
    let Some((&[a, b, c, d, tag @ .., _, _, _, _], chunks)) =
        packet.split_first_chunk::<HEADER_LEN>()
    else {
        return Err(DropReason::Malformed);
    };
    // The answer to an INIT carries the initiate tag of the INIT. The answer to another packet
    // reflects the verification tag of that packet, which the T bit indicates.
    let (tag, reflects_tag) = match initiate_tag(chunks)? {
        Some(initiate) => (initiate, 0),
        None => (tag, 1),
    };
    let mut abort = [0; LEN];
    abort[..4].copy_from_slice(&[c, d, a, b]);
    abort[4..8].copy_from_slice(&tag);
    abort[HEADER_LEN..].copy_from_slice(&[ABORT, reflects_tag, 0, CHUNK_HEADER_LEN as u8]);
    let checksum = Crc32c::new().bytes(&abort).checksum();
    abort[8..12].copy_from_slice(&checksum);
    Ok(abort)
}

/// The initiate tag of an INIT, which is the only chunk of its packet. `None` for other chunks that
/// may be answered.
fn initiate_tag(chunks: &[u8]) -> Result<Option<[u8; 4]>, DropReason> {
    const REFUSED: DropReason = DropReason::NotApplicable;
    let (mut rest, mut is_first) = (chunks, true);
    for _ in 0..MAX_CHUNKS {
        let &[kind, _, high, low, ..] = rest else {
            return if is_first { Err(REFUSED) } else { Ok(None) };
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        match kind {
            ABORT | COOKIE_ACK | SHUTDOWN_COMPLETE => return Err(REFUSED),
            INIT => {
                let tag = rest.get(CHUNK_HEADER_LEN..).and_then(|rest| rest.first_chunk::<4>());
                let tag = tag.filter(|tag| is_first && len >= INIT_LEN && **tag != [0; 4]);
                return tag.copied().map(Some).ok_or(REFUSED);
            }
            _ if len < CHUNK_HEADER_LEN => return Err(REFUSED),
            _ => {}
        }
        // Chunks are padded to a multiple of four bytes.
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        is_first = false;
    }
    Err(REFUSED)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet from port 1000 to port 80 with the tag 0x01020304 and these chunks.
    fn packet(chunks: &[u8]) -> Vec<u8> {
        [&[0x03, 0xe8, 0, 80, 1, 2, 3, 4, 9, 9, 9, 9], chunks].concat()
    }

    #[test]
    fn init_is_answered_with_its_own_tag_and_others_with_theirs() {
        let init = [&[INIT, 0, 0, 20, 0xa, 0xb, 0xc, 0xd][..], &[0; 12]].concat();
        let data = [0, 3, 0, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0];
        let cookie_echo_and_data = [&[10, 0, 0, 5, 1, 0, 0, 0][..], &data].concat();
        for (chunks, tag, flags) in [
            (&init[..], [0xa, 0xb, 0xc, 0xd], 0),
            (&data, [1, 2, 3, 4], 1),
            (&cookie_echo_and_data, [1, 2, 3, 4], 1),
        ] {
            let abort = answer(&packet(chunks)).unwrap();
            assert_eq!(abort[..8], [&[0, 80, 0x03, 0xe8], &tag[..]].concat());
            assert_eq!(abort[12..], [ABORT, flags, 0, 4]);
            let mut unsummed = abort;
            unsummed[8..12].fill(0);
            assert_eq!(abort[8..12], Crc32c::new().bytes(&unsummed).checksum());
        }
    }

    #[test]
    fn packets_that_must_not_be_answered_are_refused() {
        let (init, ones) = ([INIT, 0, 0, 20], [1; 16]);
        for (what, chunks) in [
            ("nothing", vec![]),
            ("part of a chunk", vec![0, 3, 0]),
            ("ABORT", vec![ABORT, 0, 0, 4]),
            ("SACK and ABORT", vec![3, 0, 0, 4, ABORT, 0, 0, 4]),
            ("COOKIE ACK", vec![COOKIE_ACK, 0, 0, 4]),
            ("SHUTDOWN COMPLETE", vec![SHUTDOWN_COMPLETE, 0, 0, 4]),
            ("length 3", vec![0, 0, 0, 3, 0, 0, 0, 0]),
            ("INIT with tag 0", [&init[..], &[0; 16]].concat()),
            ("INIT without a tag", init.to_vec()),
            ("INIT of a wrong length", [&[INIT, 0, 0, 19][..], &ones].concat()),
            ("INIT after a chunk", [&[3, 0, 0, 4][..], &init, &ones].concat()),
            ("many chunks", [3, 0, 0, 4].repeat(MAX_CHUNKS + 1)),
        ] {
            assert_eq!(answer(&packet(&chunks)), Err(DropReason::NotApplicable), "{what}");
        }
        assert_eq!(answer(&[0; 11]), Err(DropReason::Malformed));
    }
}
