//! TCP (RFC 9293) and its common options (RFC 7323, RFC 2018).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------------------------------+-------------------------------+
//! |          Source Port          |       Destination Port        |
//! +-------------------------------+-------------------------------+
//! |                        Sequence Number                        |
//! +---------------------------------------------------------------+
//! |                    Acknowledgment Number                      |
//! +-------+-------+-+-+-+-+-+-+-+-+-------------------------------+
//! | Offset| Rsrvd |C|E|U|A|P|R|S|F|            Window             |
//! +-------+-------+-+-+-+-+-+-+-+-+-------------------------------+
//! |           Checksum            |         Urgent Pointer        |
//! +-------------------------------+-------------------------------+
//! |                    Options, 0 to 40 bytes                     |
//! +---------------------------------------------------------------+
//! ```

use std::ops::BitOr;

use crate::checksum::Sum;
use crate::view::{put_u16, put_u32, require, u16_at, u32_at, view};
use crate::{Layer, ParseError, ParseErrorKind};

/// Bytes of a header without options.
pub const MIN_HEADER_LEN: usize = 20;
/// Bytes of the longest header.
pub const MAX_HEADER_LEN: usize = 60;
/// Bytes of the longest options.
pub const MAX_OPTIONS_LEN: usize = MAX_HEADER_LEN - MIN_HEADER_LEN;
/// Offset of the flags in the header.
pub const FLAGS_OFFSET: usize = 13;
/// Offset of the checksum in the header (the `csum_offset` of a partial checksum).
pub const CHECKSUM_OFFSET: usize = 16;

/// The flags of a TCP header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement number is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// True when all of `flags` are set.
    #[inline]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// True when any of `flags` is set.
    #[inline]
    pub const fn intersects(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// These flags without `flags`.
    #[must_use]
    #[inline]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }
}

impl BitOr for TcpFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

view! {
    /// A view of a TCP segment: the payload of an IP packet, cut to the IP length.
    TcpPacket
}

impl<T: AsRef<[u8]>> TcpPacket<T> {
    #[inline]
    fn check(&self) -> Result<(), ParseError> {
        let have = self.bytes().len();
        require(Layer::Tcp, MIN_HEADER_LEN, have)?;
        let len = self.header_len();
        if len < MIN_HEADER_LEN {
            return Err(bad_length(len));
        }
        require(Layer::Tcp, len, have)
    }

    /// Source port.
    #[inline]
    pub fn src_port(&self) -> u16 {
        u16_at(self.bytes(), 0)
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        u16_at(self.bytes(), 2)
    }

    /// Sequence number.
    #[inline]
    pub fn seq(&self) -> u32 {
        u32_at(self.bytes(), 4)
    }

    /// Acknowledgement number.
    #[inline]
    pub fn ack(&self) -> u32 {
        u32_at(self.bytes(), 8)
    }

    /// Bytes of the header, options included.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.bytes()[12] >> 4) * 4
    }

    /// Flags.
    #[inline]
    pub fn flags(&self) -> TcpFlags {
        TcpFlags(self.bytes()[FLAGS_OFFSET])
    }

    /// Window, unscaled.
    #[inline]
    pub fn window(&self) -> u16 {
        u16_at(self.bytes(), 14)
    }

    /// The checksum field.
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16_at(self.bytes(), CHECKSUM_OFFSET)
    }

    /// Urgent pointer.
    pub fn urgent(&self) -> u16 {
        u16_at(self.bytes(), 18)
    }

    /// True when the checksum over the whole buffer, which must be exactly the segment, is correct.
    pub fn verify_checksum(&self, pseudo: Sum) -> bool {
        pseudo.bytes(self.bytes()).is_valid()
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> TcpPacket<&'a T> {
    /// The bytes after the header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.buffer.as_ref()[self.header_len()..]
    }

    /// The option bytes, 0 to 40, not validated.
    #[inline]
    pub fn option_bytes(&self) -> &'a [u8] {
        &self.buffer.as_ref()[MIN_HEADER_LEN..self.header_len()]
    }

    /// The options.
    ///
    /// # Errors
    /// `BadLength` for an option whose length is below 2, reaches beyond the header, or is wrong
    /// for its kind.
    pub fn options(&self) -> Result<TcpOptions<'a>, ParseError> {
        TcpOptions::new(self.option_bytes())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> TcpPacket<T> {
    /// Sets the source port.
    pub fn set_src_port(&mut self, port: u16) {
        put_u16(self.buffer.as_mut(), 0, port);
    }

    /// Sets the destination port.
    pub fn set_dst_port(&mut self, port: u16) {
        put_u16(self.buffer.as_mut(), 2, port);
    }

    /// Sets the sequence number.
    pub fn set_seq(&mut self, seq: u32) {
        put_u32(self.buffer.as_mut(), 4, seq);
    }

    /// Sets the acknowledgement number.
    pub fn set_ack(&mut self, ack: u32) {
        put_u32(self.buffer.as_mut(), 8, ack);
    }

    /// Sets the flags.
    pub fn set_flags(&mut self, flags: TcpFlags) {
        self.buffer.as_mut()[FLAGS_OFFSET] = flags.0;
    }

    /// Sets the window.
    pub fn set_window(&mut self, window: u16) {
        put_u16(self.buffer.as_mut(), 14, window);
    }

    /// Sets the checksum field.
    pub fn set_checksum(&mut self, checksum: u16) {
        put_u16(self.buffer.as_mut(), CHECKSUM_OFFSET, checksum);
    }

    /// Computes the checksum over the whole buffer, which must be exactly the segment, and stores
    /// it. `pseudo` is the sum of the pseudo header.
    pub fn fill_checksum(&mut self, pseudo: Sum) {
        self.set_checksum(0);
        let checksum = pseudo.bytes(self.bytes()).checksum();
        self.set_checksum(checksum);
    }
}

const fn bad_length(len: usize) -> ParseError {
    ParseError { layer: Layer::Tcp, kind: ParseErrorKind::BadLength(len) }
}

/// One TCP option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpOption<'a> {
    /// Padding of one byte (kind 1).
    NoOperation,
    /// Maximum segment size, in bytes (kind 2).
    MaxSegmentSize(u16),
    /// Window scale, as a shift count; above 14 the receiver uses 14 (kind 3, RFC 7323 section 2).
    WindowScale(u8),
    /// Selective acknowledgement is permitted (kind 4, RFC 2018).
    SackPermitted,
    /// Timestamps (kind 8, RFC 7323 section 3).
    Timestamps {
        /// The sender's timestamp clock.
        value: u32,
        /// The timestamp echo reply: the peer's clock value, echoed.
        echo_reply: u32,
    },
    /// Any other option, unchanged.
    Unknown {
        /// Kind, 2 to 255.
        kind: u8,
        /// The option data after kind and length, at most 38 bytes.
        data: &'a [u8],
    },
}

impl TcpOption<'_> {
    const END: u8 = 0;
    const NOP: u8 = 1;

    /// Bytes of the encoded option.
    pub const fn wire_len(&self) -> usize {
        match self {
            Self::NoOperation => 1,
            Self::SackPermitted => 2,
            Self::WindowScale(_) => 3,
            Self::MaxSegmentSize(_) => 4,
            Self::Timestamps { .. } => 10,
            Self::Unknown { data, .. } => 2 + data.len(),
        }
    }

    /// Writes the option; `out` must be `wire_len` bytes long.
    fn emit(&self, out: &mut [u8]) {
        if let Self::NoOperation = self {
            out[0] = Self::NOP;
            return;
        }
        out[1] = out.len() as u8;
        match *self {
            Self::NoOperation => {}
            Self::SackPermitted => out[0] = 4,
            Self::WindowScale(shift) => {
                out[0] = 3;
                out[2] = shift;
            }
            Self::MaxSegmentSize(size) => {
                out[0] = 2;
                put_u16(out, 2, size);
            }
            Self::Timestamps { value, echo_reply } => {
                out[0] = 8;
                put_u32(out, 2, value);
                put_u32(out, 6, echo_reply);
            }
            Self::Unknown { kind, data } => {
                out[0] = kind;
                out[2..].copy_from_slice(data);
            }
        }
    }
}

/// The options of a TCP header: well-formed, 0 to 40 bytes, a multiple of 4.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpOptions<'a>(&'a [u8]);

impl<'a> TcpOptions<'a> {
    /// Validates option bytes.
    ///
    /// # Errors
    /// `BadLength` for a total over 40 or not a multiple of 4, and for an option whose length is
    /// below 2, reaches beyond the end, or is wrong for its kind.
    pub fn new(bytes: &'a [u8]) -> Result<Self, ParseError> {
        if bytes.len() > MAX_OPTIONS_LEN || !bytes.len().is_multiple_of(4) {
            return Err(bad_length(bytes.len()));
        }
        let mut rest = bytes;
        while let Some((_, after)) = next_option(rest)? {
            rest = after;
        }
        Ok(Self(bytes))
    }

    /// Writes `options` into `scratch` and pads them with end-of-list bytes to a multiple of 4.
    ///
    /// # Errors
    /// `BadLength` when they take more than 40 bytes.
    pub fn write(
        options: &[TcpOption<'_>],
        scratch: &'a mut [u8; MAX_OPTIONS_LEN],
    ) -> Result<Self, ParseError> {
        let mut at = 0;
        for option in options {
            let end = at + option.wire_len();
            option.emit(scratch.get_mut(at..end).ok_or(bad_length(end))?);
            at = end;
        }
        let padded = at.next_multiple_of(4);
        scratch[at..padded].fill(TcpOption::END);
        Self::new(&scratch[..padded])
    }

    /// The options in order, without the padding after the end of the list.
    pub fn iter(&self) -> impl Iterator<Item = TcpOption<'a>> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (option, after) = next_option(rest).ok()??;
            rest = after;
            Some(option)
        })
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// Removes the first option from `bytes` and returns it; `None` at the end of the list.
fn next_option(bytes: &[u8]) -> Result<Option<(TcpOption<'_>, &[u8])>, ParseError> {
    match bytes {
        [] | [TcpOption::END, ..] => Ok(None),
        [TcpOption::NOP, rest @ ..] => Ok(Some((TcpOption::NoOperation, rest))),
        [kind, len, ..] => {
            let len = usize::from(*len);
            let (option, rest) = bytes.split_at_checked(len).ok_or(bad_length(len))?;
            let data = option.get(2..).ok_or(bad_length(len))?;
            let option = match (kind, data) {
                (2, [a, b]) => TcpOption::MaxSegmentSize(u16::from_be_bytes([*a, *b])),
                (3, [shift]) => TcpOption::WindowScale(*shift),
                (4, []) => TcpOption::SackPermitted,
                (8, data) if data.len() == 8 => {
                    TcpOption::Timestamps { value: u32_at(data, 0), echo_reply: u32_at(data, 4) }
                }
                (2 | 3 | 4 | 8, _) => return Err(bad_length(len)),
                (kind, data) => TcpOption::Unknown { kind: *kind, data },
            };
            Ok(Some((option, rest)))
        }
        [_] => Err(bad_length(1)),
    }
}

/// A TCP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpRepr<'a> {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Flags.
    pub flags: TcpFlags,
    /// Window, unscaled.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions<'a>,
}

impl<'a> TcpRepr<'a> {
    /// Reads a checked view. The checksum is not verified, because it may be partial.
    ///
    /// # Errors
    /// `BadLength` for malformed options.
    pub fn parse<T: AsRef<[u8]> + ?Sized>(packet: &TcpPacket<&'a T>) -> Result<Self, ParseError> {
        Ok(Self {
            src_port: packet.src_port(),
            dst_port: packet.dst_port(),
            seq: packet.seq(),
            ack: packet.ack(),
            flags: packet.flags(),
            window: packet.window(),
            urgent: packet.urgent(),
            options: packet.options()?,
        })
    }

    /// Bytes that [`TcpRepr::emit`] writes.
    pub const fn header_len(&self) -> usize {
        MIN_HEADER_LEN + self.options.0.len()
    }

    /// Writes the header with a zero checksum; see [`TcpPacket::fill_checksum`].
    ///
    /// # Panics
    /// When the buffer is shorter than [`TcpRepr::header_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut TcpPacket<T>) {
        let header_len = self.header_len();
        packet.set_src_port(self.src_port);
        packet.set_dst_port(self.dst_port);
        packet.set_seq(self.seq);
        packet.set_ack(self.ack);
        packet.buffer.as_mut()[12] = (header_len as u8 / 4) << 4;
        packet.set_flags(self.flags);
        packet.set_window(self.window);
        packet.set_checksum(0);
        put_u16(packet.buffer.as_mut(), 18, self.urgent);
        packet.buffer.as_mut()[MIN_HEADER_LEN..header_len].copy_from_slice(self.options.0);
    }
}
