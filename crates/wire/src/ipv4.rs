//! IPv4 (RFC 791).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+---------------+-------------------------------+
//! |Version|  IHL  |Type of Service|          Total Length         |
//! +-------+-------+---------------+-----+-------------------------+
//! |         Identification        |0|D|M|     Fragment Offset     |
//! +---------------+---------------+-----+-------------------------+
//! |  Time to Live |    Protocol   |         Header Checksum       |
//! +---------------+---------------+-------------------------------+
//! |                       Source Address                          |
//! +---------------------------------------------------------------+
//! |                    Destination Address                        |
//! +---------------------------------------------------------------+
//! |                    Options, 0 to 40 bytes                     |
//! +---------------------------------------------------------------+
//! ```
//!
//! The packet ends where its total length says, not where the frame ends, because short frames are
//! padded to 60 bytes.

use std::net::Ipv4Addr;

use crate::checksum::{Sum, checksum, pseudo_v4, update_u16};
use crate::ip::{Fragment, Protocol};
use crate::view::{array, put, put_u16, require, u16_at, view};
use crate::{Layer, ParseError, ParseErrorKind};

/// Bytes of a header without options.
pub const MIN_HEADER_LEN: usize = 20;
/// Bytes of the longest header.
pub const MAX_HEADER_LEN: usize = 60;
/// Offset of the header checksum.
pub const CHECKSUM_OFFSET: usize = 10;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

view! {
    /// A view of an IPv4 packet and of any padding after it.
    Ipv4Packet
}

impl<T: AsRef<[u8]>> Ipv4Packet<T> {
    #[inline]
    fn check(&self) -> Result<(), ParseError> {
        self.check_header()?;
        self.check_total(self.bytes().len())
    }

    /// Checks the total length against `have`, the number of packet bytes in this buffer and after
    /// it.
    #[inline]
    pub(crate) fn check_total(&self, have: usize) -> Result<(), ParseError> {
        let total = usize::from(self.total_len());
        if total < self.header_len() {
            return Err(bad_length(total));
        }
        require(Layer::Ipv4, total, have)
    }

    #[inline]
    fn check_header(&self) -> Result<(), ParseError> {
        let have = self.bytes().len();
        require(Layer::Ipv4, MIN_HEADER_LEN, have)?;
        let version = self.bytes()[0] >> 4;
        if version != 4 {
            return Err(ParseError {
                layer: Layer::Ipv4,
                kind: ParseErrorKind::BadVersion(version),
            });
        }
        if self.header_len() < MIN_HEADER_LEN {
            return Err(bad_length(self.header_len()));
        }
        require(Layer::Ipv4, self.header_len(), have)
    }

    /// A view of a packet whose header is whole but whose payload may be truncated, such as the
    /// packet quoted in an ICMP error.
    ///
    /// # Errors
    /// The same as `new_checked`, except that the total length is not checked.
    #[inline]
    pub fn new_header(buffer: T) -> Result<Self, ParseError> {
        let packet = Self { buffer };
        packet.check_header()?;
        Ok(packet)
    }

    /// Bytes of the header, options included.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.bytes()[0] & 0x0f) * 4
    }

    /// Type of service: DSCP (6 bits) and ECN (2 bits).
    #[inline]
    pub fn tos(&self) -> u8 {
        self.bytes()[1]
    }

    /// Bytes of header and payload.
    #[inline]
    pub fn total_len(&self) -> u16 {
        u16_at(self.bytes(), 2)
    }

    /// Identification, for reassembly.
    pub fn ident(&self) -> u16 {
        u16_at(self.bytes(), 4)
    }

    /// The DF bit: routers must not fragment this packet.
    pub fn dont_fragment(&self) -> bool {
        u16_at(self.bytes(), 6) & DONT_FRAGMENT != 0
    }

    /// More fragments of the datagram follow.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        u16_at(self.bytes(), 6) & MORE_FRAGMENTS != 0
    }

    /// Offset of the payload in the datagram, in bytes; a multiple of 8.
    #[inline]
    pub fn fragment_offset_bytes(&self) -> u16 {
        (u16_at(self.bytes(), 6) & FRAGMENT_OFFSET) << 3
    }

    /// Whole, first fragment or later fragment.
    #[inline]
    pub fn fragment(&self) -> Fragment {
        Fragment::new(self.fragment_offset_bytes(), self.more_fragments())
    }

    /// Time to live, in hops.
    pub fn ttl(&self) -> u8 {
        self.bytes()[8]
    }

    /// Protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> Protocol {
        Protocol(self.bytes()[9])
    }

    /// The header checksum field.
    pub fn checksum(&self) -> u16 {
        u16_at(self.bytes(), CHECKSUM_OFFSET)
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<4>(self.bytes(), 12))
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<4>(self.bytes(), 16))
    }

    /// True when the header checksum is correct.
    pub fn verify_checksum(&self) -> bool {
        Sum::of(&self.bytes()[..self.header_len()]).is_valid()
    }

    /// Bytes of payload, according to the total length.
    #[inline]
    pub fn payload_len(&self) -> u16 {
        self.total_len().saturating_sub(self.header_len() as u16)
    }

    /// The sum of the payload's pseudo header. Not valid for fragments: it uses this packet's
    /// length.
    pub fn pseudo_header(&self) -> Sum {
        pseudo_v4(self.src(), self.dst(), self.protocol(), self.payload_len())
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> Ipv4Packet<&'a T> {
    /// The payload, according to the total length, without padding.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let bytes = self.buffer.as_ref();
        &bytes[self.header_len()..usize::from(self.total_len()).min(bytes.len())]
    }

    /// The option bytes, 0 to 40.
    pub fn options(&self) -> &'a [u8] {
        &self.buffer.as_ref()[MIN_HEADER_LEN..self.header_len()]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv4Packet<T> {
    /// Sets the type of service and updates the header checksum.
    pub fn set_tos(&mut self, tos: u8) {
        self.update_word(0, |word| (word & 0xff00) | u16::from(tos));
    }

    /// Sets the total length; the header checksum is not updated.
    pub fn set_total_len(&mut self, len: u16) {
        put_u16(self.buffer.as_mut(), 2, len);
    }

    /// Sets the source address; the checksums of this header and of the transport are not updated.
    pub fn set_src(&mut self, src: Ipv4Addr) {
        put(self.buffer.as_mut(), 12, src.octets());
    }

    /// Sets the destination address; the checksums of this header and of the transport are not
    /// updated.
    pub fn set_dst(&mut self, dst: Ipv4Addr) {
        put(self.buffer.as_mut(), 16, dst.octets());
    }

    /// Sets the header checksum field.
    pub fn set_checksum(&mut self, checksum: u16) {
        put_u16(self.buffer.as_mut(), CHECKSUM_OFFSET, checksum);
    }

    /// Computes and stores the header checksum.
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let sum = checksum(&self.bytes()[..self.header_len()]);
        self.set_checksum(sum);
    }

    /// The payload, according to the total length.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let start = self.header_len();
        let bytes = self.buffer.as_mut();
        let end = usize::from(u16_at(bytes, 2)).min(bytes.len());
        &mut bytes[start..end]
    }

    fn update_word(&mut self, at: usize, change: impl FnOnce(u16) -> u16) {
        let old = u16_at(self.bytes(), at);
        let new = change(old);
        let sum = update_u16(self.checksum(), old, new);
        put_u16(self.buffer.as_mut(), at, new);
        self.set_checksum(sum);
    }
}

const fn bad_length(len: usize) -> ParseError {
    ParseError { layer: Layer::Ipv4, kind: ParseErrorKind::BadLength(len) }
}

/// The option bytes of an IPv4 header: 0 to 40, a multiple of 4, not interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ipv4Options<'a>(&'a [u8]);

impl<'a> Ipv4Options<'a> {
    /// Options from bytes that the caller has padded to a multiple of 4.
    ///
    /// # Errors
    /// `BadLength` when there are more than 40 bytes or their number is not a multiple of 4.
    pub const fn new(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let len = bytes.len();
        if len > MAX_HEADER_LEN - MIN_HEADER_LEN || !len.is_multiple_of(4) {
            return Err(bad_length(len));
        }
        Ok(Self(bytes))
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// An IPv4 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4Repr<'a> {
    /// Type of service: DSCP (6 bits) and ECN (2 bits).
    pub tos: u8,
    /// Bytes of payload; header and payload together are at most 65,535.
    pub payload_len: u16,
    /// Identification, for reassembly.
    pub ident: u16,
    /// The DF bit: routers must not fragment this packet.
    pub dont_fragment: bool,
    /// More fragments follow.
    pub more_fragments: bool,
    /// Offset of the payload in the datagram, in bytes; a multiple of 8.
    pub fragment_offset_bytes: u16,
    /// Time to live, in hops.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: Protocol,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Options.
    pub options: Ipv4Options<'a>,
}

impl<'a> Ipv4Repr<'a> {
    /// Reads a checked view.
    ///
    /// # Errors
    /// `BadChecksum` for a wrong header checksum; `BadLength` for a fragment that would end beyond
    /// 65,535 bytes.
    pub fn parse<T: AsRef<[u8]> + ?Sized>(packet: &Ipv4Packet<&'a T>) -> Result<Self, ParseError> {
        if !packet.verify_checksum() {
            return Err(ParseError { layer: Layer::Ipv4, kind: ParseErrorKind::BadChecksum });
        }
        let end = usize::from(packet.fragment_offset_bytes()) + usize::from(packet.total_len());
        if packet.fragment_offset_bytes() != 0 && end > 65_535 {
            return Err(bad_length(end));
        }
        Ok(Self {
            tos: packet.tos(),
            payload_len: packet.payload_len(),
            ident: packet.ident(),
            dont_fragment: packet.dont_fragment(),
            more_fragments: packet.more_fragments(),
            fragment_offset_bytes: packet.fragment_offset_bytes(),
            ttl: packet.ttl(),
            protocol: packet.protocol(),
            src: packet.src(),
            dst: packet.dst(),
            options: Ipv4Options::new(packet.options())?,
        })
    }

    /// Bytes that [`Ipv4Repr::emit`] writes.
    pub const fn header_len(&self) -> usize {
        MIN_HEADER_LEN + self.options.0.len()
    }

    /// Bytes of header and payload, limited to the range of the total length field.
    pub const fn total_len(&self) -> u16 {
        self.payload_len.saturating_add(self.header_len() as u16)
    }

    /// The sum of the pseudo header of the payload.
    pub fn pseudo_header(&self) -> Sum {
        pseudo_v4(self.src, self.dst, self.protocol, self.payload_len)
    }

    /// Writes the header with its checksum.
    ///
    /// # Panics
    /// When the buffer is shorter than [`Ipv4Repr::header_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Ipv4Packet<T>) {
        let header_len = self.header_len();
        let bytes = packet.buffer.as_mut();
        bytes[0] = 0x40 | (header_len / 4) as u8;
        bytes[1] = self.tos;
        put_u16(bytes, 2, self.total_len());
        put_u16(bytes, 4, self.ident);
        let flags = if self.dont_fragment { DONT_FRAGMENT } else { 0 }
            | if self.more_fragments { MORE_FRAGMENTS } else { 0 };
        put_u16(bytes, 6, flags | self.fragment_offset_bytes >> 3);
        bytes[8] = self.ttl;
        bytes[9] = self.protocol.0;
        put(bytes, 12, self.src.octets());
        put(bytes, 16, self.dst.octets());
        bytes[MIN_HEADER_LEN..header_len].copy_from_slice(self.options.0);
        packet.fill_checksum();
    }
}
