//! UDP (RFC 768).
//!
//! ```text
//!  0      7 8     15 16    23 24    31
//! +--------+--------+--------+--------+
//! |   source port   | destination port|
//! +--------+--------+--------+--------+
//! |     length      |    checksum     |
//! +--------+--------+--------+--------+
//! ```

use crate::checksum::Sum;
use crate::view::{put_u16, require, u16_at, view};
use crate::{Layer, ParseError, ParseErrorKind};

/// Bytes of a UDP header.
pub const HEADER_LEN: usize = 8;
/// Offset of the checksum in the header (the `csum_offset` of a partial checksum).
pub const CHECKSUM_OFFSET: usize = 6;

view! {
    /// A view of a UDP datagram: the payload of an IP packet, cut to the IP length.
    UdpPacket
}

impl<T: AsRef<[u8]>> UdpPacket<T> {
    #[inline]
    fn check(&self) -> Result<(), ParseError> {
        let have = self.bytes().len();
        require(Layer::Udp, HEADER_LEN, have)?;
        let length = usize::from(self.length());
        if length < HEADER_LEN {
            return Err(ParseError { layer: Layer::Udp, kind: ParseErrorKind::BadLength(length) });
        }
        require(Layer::Udp, length, have)
    }

    /// A view of the header alone, for the first fragment of a datagram: the length field is not
    /// compared with the number of bytes.
    ///
    /// # Errors
    /// `Truncated` when `buffer` is shorter than eight bytes.
    pub fn new_header(buffer: T) -> Result<Self, ParseError> {
        require(Layer::Udp, HEADER_LEN, buffer.as_ref().len())?;
        Ok(Self { buffer })
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

    /// Bytes of header and payload.
    #[inline]
    pub fn length(&self) -> u16 {
        u16_at(self.bytes(), 4)
    }

    /// The checksum field; 0 means that the sender computed none.
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16_at(self.bytes(), CHECKSUM_OFFSET)
    }

    /// True when the checksum is correct, or zero and `zero` accepts that. `pseudo` is the sum of
    /// the pseudo header with the length [`UdpPacket::length`].
    pub fn verify_checksum(&self, pseudo: Sum, zero: ZeroChecksum) -> bool {
        if self.checksum() == 0 {
            return zero == ZeroChecksum::Accept;
        }
        let end = usize::from(self.length()).min(self.bytes().len());
        pseudo.bytes(&self.bytes()[..end]).is_valid()
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> UdpPacket<&'a T> {
    /// The payload according to the length field; bytes after it do not belong to the datagram.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let bytes = self.buffer.as_ref();
        let end = usize::from(self.length()).clamp(HEADER_LEN, bytes.len());
        &bytes[HEADER_LEN..end]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> UdpPacket<T> {
    /// Sets the source port.
    pub fn set_src_port(&mut self, port: u16) {
        put_u16(self.buffer.as_mut(), 0, port);
    }

    /// Sets the destination port.
    pub fn set_dst_port(&mut self, port: u16) {
        put_u16(self.buffer.as_mut(), 2, port);
    }

    /// Sets the length of header and payload.
    pub fn set_length(&mut self, length: u16) {
        put_u16(self.buffer.as_mut(), 4, length);
    }

    /// Sets the checksum field.
    pub fn set_checksum(&mut self, checksum: u16) {
        put_u16(self.buffer.as_mut(), CHECKSUM_OFFSET, checksum);
    }

    /// Computes the checksum over the whole buffer, which must be exactly the datagram, and stores
    /// it. A computed 0 is stored as 0xffff. `pseudo` is the sum of the pseudo header.
    pub fn fill_checksum(&mut self, pseudo: Sum) {
        self.set_checksum(0);
        let checksum = pseudo.bytes(self.bytes()).udp_checksum();
        self.set_checksum(checksum);
    }
}

/// Whether a datagram without a checksum (a zero field) is acceptable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ZeroChecksum {
    /// IPv4 (RFC 768), and tunnels over IPv6 that are configured for it (RFC 6935, RFC 6936).
    Accept,
    /// IPv6 otherwise (RFC 8200 section 8.1).
    Refuse,
}

/// A UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpRepr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of header and payload, at least 8.
    pub length: u16,
}

impl UdpRepr {
    /// Reads a checked view. The checksum is not verified: whether it can be depends on the tunnel
    /// type and on the offload state of the packet.
    pub fn parse<T: AsRef<[u8]>>(packet: &UdpPacket<T>) -> Self {
        Self { src_port: packet.src_port(), dst_port: packet.dst_port(), length: packet.length() }
    }

    /// Bytes that [`UdpRepr::emit`] writes.
    pub const fn header_len(&self) -> usize {
        HEADER_LEN
    }

    /// Writes the header with a zero checksum. Complete it with [`UdpPacket::fill_checksum`] or
    /// [`crate::checksum::local_offload`].
    ///
    /// # Panics
    /// When the buffer is shorter than [`UdpRepr::header_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut UdpPacket<T>) {
        packet.set_src_port(self.src_port);
        packet.set_dst_port(self.dst_port);
        packet.set_length(self.length);
        packet.set_checksum(0);
    }
}
