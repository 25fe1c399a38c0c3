//! IPv6 and its extension headers (RFC 8200).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+---------------+---------------------------------------+
//! |Version| Traffic Class |              Flow Label               |
//! +-------+-------+-------+-------+---------------+---------------+
//! |         Payload Length        |  Next Header  |   Hop Limit   |
//! +-------------------------------+---------------+---------------+
//! |                   Source Address, 16 bytes                    |
//! +---------------------------------------------------------------+
//! |                Destination Address, 16 bytes                  |
//! +---------------------------------------------------------------+
//! ```
//!
//! The packet ends where its payload length says, not where the frame ends. Jumbograms (RFC 2675)
//! are not supported: a payload length of zero means an empty payload.

use std::net::Ipv6Addr;

use crate::checksum::{Sum, pseudo_v6};
use crate::ip::{Fragment, Protocol};
use crate::view::{array, put, put_u16, put_u32, require, u16_at, u32_at, view};
use crate::{Layer, ParseError, ParseErrorKind};

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;
/// The largest number of extension headers in a packet; packets with more are rejected. This is
/// more than RFC 8200 section 4.1 recommends to send (each kind once, destination options twice).
pub const MAX_EXTENSION_HEADERS: usize = 12;
/// Bytes of the fragment header.
pub const FRAGMENT_HEADER_LEN: usize = 8;

view! {
    /// A view of an IPv6 packet and of any padding after it.
    Ipv6Packet
}

impl<T: AsRef<[u8]>> Ipv6Packet<T> {
    #[inline]
    fn check(&self) -> Result<(), ParseError> {
        self.check_header()?;
        self.check_total(self.bytes().len())
    }

    /// Checks the payload length against `have`, the number of packet bytes in this buffer and
    /// after it.
    #[inline]
    pub(crate) fn check_total(&self, have: usize) -> Result<(), ParseError> {
        require(Layer::Ipv6, self.total_len(), have)
    }

    #[inline]
    fn check_header(&self) -> Result<(), ParseError> {
        require(Layer::Ipv6, HEADER_LEN, self.bytes().len())?;
        match self.bytes()[0] >> 4 {
            6 => Ok(()),
            version => {
                Err(ParseError { layer: Layer::Ipv6, kind: ParseErrorKind::BadVersion(version) })
            }
        }
    }

    /// A view of a packet whose fixed header is whole but whose payload may be truncated, such as
    /// the packet quoted in an ICMPv6 error.
    ///
    /// # Errors
    /// The same as `new_checked`, except that the payload length is not checked.
    #[inline]
    pub fn new_header(buffer: T) -> Result<Self, ParseError> {
        let packet = Self { buffer };
        packet.check_header()?;
        Ok(packet)
    }

    /// Traffic class: DSCP (6 bits) and ECN (2 bits).
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (u16_at(self.bytes(), 0) >> 4) as u8
    }

    /// Flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        u32_at(self.bytes(), 0) & 0xf_ffff
    }

    /// Bytes after the fixed header, extension headers included.
    #[inline]
    pub fn payload_len(&self) -> u16 {
        u16_at(self.bytes(), 4)
    }

    /// Bytes of fixed header and payload.
    #[inline]
    pub fn total_len(&self) -> usize {
        HEADER_LEN + usize::from(self.payload_len())
    }

    /// The protocol after the fixed header: an extension header or the upper layer.
    #[inline]
    pub fn next_header(&self) -> Protocol {
        Protocol(self.bytes()[6])
    }

    /// Hop limit.
    pub fn hop_limit(&self) -> u8 {
        self.bytes()[7]
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.bytes(), 8))
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.bytes(), 24))
    }

    /// Walks the extension headers to the upper layer.
    ///
    /// # Errors
    /// `Truncated` when an extension header reaches beyond the payload. `BadField` for a hop-by-hop
    /// header that is not the first (RFC 8200 section 4.1), and for more than
    /// [`MAX_EXTENSION_HEADERS`] headers.
    #[inline]
    pub fn upper(&self) -> Result<Upper, ParseError> {
        let bytes = self.bytes();
        let end = self.total_len().min(bytes.len());
        walk(&bytes[..end], self.next_header())
    }

    /// The sum of the pseudo header of a packet without extension headers. For other packets use
    /// [`pseudo_v6`].
    pub fn pseudo_header(&self) -> Sum {
        pseudo_v6(self.src(), self.dst(), self.next_header(), u32::from(self.payload_len()))
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> Ipv6Packet<&'a T> {
    /// The bytes after the fixed header, according to the payload length, without padding.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let bytes = self.buffer.as_ref();
        &bytes[HEADER_LEN..self.total_len().min(bytes.len())]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv6Packet<T> {
    /// Sets the traffic class.
    pub fn set_traffic_class(&mut self, class: u8) {
        let word = u16_at(self.bytes(), 0);
        put_u16(self.buffer.as_mut(), 0, (word & 0xf00f) | (u16::from(class) << 4));
    }

    /// Sets the payload length.
    pub fn set_payload_len(&mut self, len: u16) {
        put_u16(self.buffer.as_mut(), 4, len);
    }

    /// Sets the protocol after the fixed header.
    pub fn set_next_header(&mut self, next: Protocol) {
        self.buffer.as_mut()[6] = next.0;
    }

    /// Sets the hop limit.
    pub fn set_hop_limit(&mut self, hops: u8) {
        self.buffer.as_mut()[7] = hops;
    }

    /// Sets the source address; the transport checksum is not updated.
    pub fn set_src(&mut self, src: Ipv6Addr) {
        put(self.buffer.as_mut(), 8, src.octets());
    }

    /// Sets the destination address; the transport checksum is not updated.
    pub fn set_dst(&mut self, dst: Ipv6Addr) {
        put(self.buffer.as_mut(), 24, dst.octets());
    }

    /// The bytes after the fixed header, according to the payload length.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let end = self.total_len();
        let bytes = self.buffer.as_mut();
        let end = end.min(bytes.len());
        &mut bytes[HEADER_LEN..end]
    }
}

/// The result of walking the extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upper {
    /// Protocol of the upper layer; [`Protocol::NO_NEXT_HEADER`] when there is none.
    pub protocol: Protocol,
    /// Offset of the upper layer from the start of the IPv6 header, in bytes. In a later fragment,
    /// the offset of the fragment's data.
    pub offset: usize,
    /// The fragment header, if there was one.
    pub fragment: Option<FragmentHeader>,
}

impl Upper {
    /// Whole, first fragment or later fragment.
    #[inline]
    pub const fn fragmentation(&self) -> Fragment {
        match self.fragment {
            None => Fragment::Whole,
            Some(header) => Fragment::new(header.offset_bytes, header.more),
        }
    }
}

/// The IPv6 fragment header (RFC 8200 section 4.5).
///
/// ```text
/// +-------------+-------------+-------------------------+---+-+
/// | Next Header |  Reserved   |   Fragment Offset (13)  |Res|M|
/// +-------------+-------------+-------------------------+---+-+
/// |                 Identification, 4 bytes                   |
/// +-----------------------------------------------------------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragmentHeader {
    /// Offset of the data in the fragmentable part, in bytes; a multiple of 8.
    pub offset_bytes: u16,
    /// More fragments follow.
    pub more: bool,
    /// Identification, for reassembly.
    pub ident: u32,
}

impl FragmentHeader {
    /// The encoded header, with `next` as the protocol after it.
    pub const fn to_bytes(self, next: Protocol) -> [u8; FRAGMENT_HEADER_LEN] {
        let [a, b] = ((self.offset_bytes & !7) | self.more as u16).to_be_bytes();
        let [c, d, e, f] = self.ident.to_be_bytes();
        [next.0, 0, a, b, c, d, e, f]
    }
}

/// Walks from the end of the fixed header at `HEADER_LEN` of `packet`; `packet` must end where the
/// payload ends.
#[inline]
fn walk(packet: &[u8], first: Protocol) -> Result<Upper, ParseError> {
    let upper = Upper { protocol: first, offset: HEADER_LEN, fragment: None };
    match first {
        Protocol::TCP | Protocol::UDP | Protocol::ICMPV6 => Ok(upper),
        _ => walk_extensions(packet, upper),
    }
}

fn walk_extensions(packet: &[u8], mut upper: Upper) -> Result<Upper, ParseError> {
    for _ in 0..=MAX_EXTENSION_HEADERS {
        let at = upper.offset;
        let len = match upper.protocol {
            Protocol::HOP_BY_HOP | Protocol::ROUTING | Protocol::DESTINATION_OPTIONS => {
                require(Layer::Ipv6, at + 8, packet.len())?;
                (usize::from(packet[at + 1]) + 1) * 8
            }
            Protocol::AH => {
                require(Layer::Ipv6, at + 8, packet.len())?;
                (usize::from(packet[at + 1]) + 2) * 4
            }
            Protocol::FRAGMENT => {
                require(Layer::Ipv6, at + FRAGMENT_HEADER_LEN, packet.len())?;
                let word = u16_at(packet, at + 2);
                upper.fragment = Some(FragmentHeader {
                    offset_bytes: word & !7,
                    more: word & 1 != 0,
                    ident: u32_at(packet, at + 4),
                });
                FRAGMENT_HEADER_LEN
            }
            _ => return Ok(upper),
        };
        require(Layer::Ipv6, at + len, packet.len())?;
        upper.protocol = Protocol(packet[at]);
        upper.offset = at + len;
        if upper.protocol == Protocol::HOP_BY_HOP {
            return Err(ParseError::field(Layer::Ipv6, "hop-by-hop header after another one"));
        }
        if upper.fragmentation() == Fragment::Later {
            return Ok(upper);
        }
    }
    Err(ParseError::field(Layer::Ipv6, "number of extension headers"))
}

/// The fixed IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ipv6Repr {
    /// Traffic class: DSCP (6 bits) and ECN (2 bits).
    pub traffic_class: u8,
    /// Flow label, 20 bits; higher bits are cut off.
    pub flow_label: u32,
    /// Bytes after the fixed header, extension headers included.
    pub payload_len: u16,
    /// The protocol after the fixed header.
    pub next_header: Protocol,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
}

impl Ipv6Repr {
    /// Reads a checked view.
    ///
    /// # Errors
    /// `BadField` for a multicast source address (RFC 4291 section 2.7).
    pub fn parse<T: AsRef<[u8]>>(packet: &Ipv6Packet<T>) -> Result<Self, ParseError> {
        if packet.src().is_multicast() {
            return Err(ParseError::field(Layer::Ipv6, "source address"));
        }
        Ok(Self {
            traffic_class: packet.traffic_class(),
            flow_label: packet.flow_label(),
            payload_len: packet.payload_len(),
            next_header: packet.next_header(),
            hop_limit: packet.hop_limit(),
            src: packet.src(),
            dst: packet.dst(),
        })
    }

    /// Bytes that [`Ipv6Repr::emit`] writes.
    pub const fn header_len(&self) -> usize {
        HEADER_LEN
    }

    /// The sum of the pseudo header of the payload, when no extension headers follow.
    pub fn pseudo_header(&self) -> Sum {
        pseudo_v6(self.src, self.dst, self.next_header, u32::from(self.payload_len))
    }

    /// Writes the header.
    ///
    /// # Panics
    /// When the buffer is shorter than [`Ipv6Repr::header_len`].
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Ipv6Packet<T>) {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | (self.flow_label & 0xf_ffff);
        put_u32(packet.buffer.as_mut(), 0, first);
        packet.set_payload_len(self.payload_len);
        packet.set_next_header(self.next_header);
        packet.set_hop_limit(self.hop_limit);
        packet.set_src(self.src);
        packet.set_dst(self.dst);
    }
}
