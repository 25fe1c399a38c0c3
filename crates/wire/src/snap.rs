//! SNAP headers (IEEE 802 clause 9.4, RFC 1042): the EtherType of an IEEE 802.3 frame, which has a
//! length in front of its LLC header.
//!
//! ```text
//!  12      14                       20          22
//! +-------+------+------+----------+-----------+---------
//! |length | AA   | AA   | 03       | EtherType | payload
//! |       | DSAP | SSAP | OUI 0    |           |
//! +-------+------+------+----------+-----------+---------
//! ```
//!
//! The OUI 00-00-00 says that an EtherType follows. Frames of other OUIs and other LLC frames are
//! not parsed. Neither are types below [`MIN_ETHERTYPE`](crate::ethernet::MIN_ETHERTYPE), as in
//! Open vSwitch.

use crate::ethernet::EtherType;
use crate::view::{put_u16, require, u16_at};
use crate::{Layer, ParseError, ParseErrorKind};

/// Bytes of LLC and SNAP header.
pub const HEADER_LEN: usize = 8;
/// Bytes of the length field in front of them.
const LENGTH_LEN: usize = 2;
/// DSAP, SSAP, control (unnumbered information) and OUI.
const PREFIX: [u8; 6] = [0xaa, 0xaa, 0x03, 0, 0, 0];

/// Parses the LLC and SNAP header at `at`, behind a length field of `length`. `frame_len` is the
/// length of the frame, of which `frame` may hold only the beginning. Returns the EtherType and the
/// offset where the payload ends. `None` for other LLC frames.
///
/// # Errors
/// `BadLength` when the length excludes the header itself. `Truncated` when the frame is shorter
/// than its length, or `frame` is shorter than the header. Receivers disagree about such frames:
/// some ignore the length.
pub(crate) fn parse(
    frame: &[u8],
    frame_len: usize,
    at: usize,
    length: usize,
) -> Result<Option<(EtherType, usize)>, ParseError> {
    let rest = frame.get(at..).unwrap_or_default();
    let have = frame_len.saturating_sub(at);
    if have < HEADER_LEN || rest.iter().zip(PREFIX).any(|(byte, prefix)| *byte != prefix) {
        return Ok(None);
    }
    require(Layer::Snap, HEADER_LEN, rest.len())?;
    let ethertype = EtherType(u16_at(rest, PREFIX.len()));
    if ethertype.is_length() {
        return Ok(None);
    }
    if length < HEADER_LEN {
        return Err(ParseError { layer: Layer::Snap, kind: ParseErrorKind::BadLength(length) });
    }
    require(Layer::Snap, length, have)?;
    Ok(Some((ethertype, at + length)))
}

/// Sets the IEEE 802.3 length of a frame with SNAP header for `len` bytes of payload from `l3` on.
/// More than 65,527 bytes, and an `l3` outside `frame`, are ignored.
pub fn set_payload_len(frame: &mut [u8], l3: usize, len: usize) {
    let field = l3.checked_sub(HEADER_LEN + LENGTH_LEN).and_then(|at| frame.get_mut(at..l3));
    if let (Some(field), Ok(length)) = (field, u16::try_from(HEADER_LEN + len)) {
        put_u16(field, 0, length);
    }
}
