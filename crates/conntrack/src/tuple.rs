//! [`Zone`], [`Direction`] and [`Tuple`]: the packet fields that identify a connection.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::Protocol;

/// A connection tracking zone: an independent set of connections.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Zone(pub u16);

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The direction of a packet in its connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// From the end that sent the first packet.
    Original,
    /// Toward the end that sent the first packet.
    Reply,
}

impl Direction {
    /// The opposite direction.
    #[must_use]
    pub const fn reversed(self) -> Self {
        match self {
            Self::Original => Self::Reply,
            Self::Reply => Self::Original,
        }
    }

    #[inline]
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Original => 0,
            Self::Reply => 1,
        }
    }

    #[inline]
    pub(crate) const fn from_bit(bit: u32) -> Self {
        if bit & 1 == 0 { Self::Original } else { Self::Reply }
    }
}

/// The addresses, the protocol, and the ports of a packet. ICMP has an identifier, a type and a
/// code in place of ports. Protocols other than TCP, UDP, SCTP, ICMP and ICMPv6 have neither.
///
/// An IPv4 address and its IPv4-mapped IPv6 address are different.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    src: [u64; 2],
    dst: [u64; 2],
    /// From the left: first and second [`Tuple::parts`], zone, protocol, IP version.
    rest: u64,
}

/// Hashes only the words, without the length prefixes that arrays add.
impl Hash for Tuple {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ([a, b], [c, d]) = (self.src, self.dst);
        [a, b, c, d, self.rest].iter().for_each(|&word| state.write_u64(word));
    }
}

const FIRST_SHIFT: u32 = 48;
const SECOND_SHIFT: u32 = 32;
const ZONE_SHIFT: u32 = 16;
const PROTOCOL_SHIFT: u32 = 8;

impl Tuple {
    /// The tuple of a protocol with ports; `src_port` and `dst_port` are 0 for a protocol without.
    ///
    /// `None` when the addresses are of different families.
    pub fn new(
        src: IpAddr,
        dst: IpAddr,
        protocol: Protocol,
        src_port: u16,
        dst_port: u16,
    ) -> Option<Self> {
        let (version, src, dst) = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                (4, u128::from(src.to_bits()), u128::from(dst.to_bits()))
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => (6, src.to_bits(), dst.to_bits()),
            _ => return None,
        };
        let rest = u64::from(src_port) << FIRST_SHIFT
            | u64::from(dst_port) << SECOND_SHIFT
            | u64::from(protocol.0) << PROTOCOL_SHIFT
            | version;
        Some(Self { src: words(src), dst: words(dst), rest })
    }

    /// The tuple of an ICMP or ICMPv6 message with an identifier. The family of the addresses
    /// decides which of the two it is. `None` when they are of different families.
    pub fn icmp(src: IpAddr, dst: IpAddr, kind: u8, code: u8, ident: u16) -> Option<Self> {
        let protocol = if src.is_ipv4() { Protocol::ICMP } else { Protocol::ICMPV6 };
        Self::new(src, dst, protocol, ident, u16::from_be_bytes([kind, code]))
    }

    /// Source address.
    pub fn src(&self) -> IpAddr {
        self.address(self.src)
    }

    /// Destination address.
    pub fn dst(&self) -> IpAddr {
        self.address(self.dst)
    }

    /// Source address as a number, IPv4 in the lowest 32 bits.
    pub const fn src_bits(&self) -> u128 {
        bits(self.src)
    }

    /// Destination address as a number, IPv4 in the lowest 32 bits.
    pub const fn dst_bits(&self) -> u128 {
        bits(self.dst)
    }

    fn address(&self, words: [u64; 2]) -> IpAddr {
        if self.is_v4() {
            IpAddr::V4(Ipv4Addr::from_bits(words[1] as u32))
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(bits(words)))
        }
    }

    /// True for IPv4.
    #[inline]
    pub const fn is_v4(&self) -> bool {
        self.rest & 0xff == 4
    }

    /// Protocol.
    #[inline]
    pub const fn protocol(&self) -> Protocol {
        Protocol((self.rest >> PROTOCOL_SHIFT) as u8)
    }

    /// True for ICMP over IPv4 and ICMPv6 over IPv6.
    #[inline]
    pub const fn is_icmp(&self) -> bool {
        let protocol = if self.is_v4() { Protocol::ICMP } else { Protocol::ICMPV6 };
        self.protocol().0 == protocol.0
    }

    /// True for protocols with ports that NAT may change: TCP, UDP and SCTP.
    #[inline]
    pub fn has_ports(&self) -> bool {
        has_ports(self.protocol())
    }

    /// Source and destination port; 0 for a protocol without ports, and for ICMP.
    pub fn ports(&self) -> (u16, u16) {
        if self.has_ports() { self.parts() } else { (0, 0) }
    }

    /// Type, code and identifier of an ICMP or ICMPv6 message.
    pub fn icmp_fields(&self) -> Option<(u8, u8, u16)> {
        let (ident, second) = self.parts();
        let [kind, code] = second.to_be_bytes();
        self.is_icmp().then_some((kind, code, ident))
    }

    /// Source port or ICMP identifier, and destination port or ICMP type and code.
    #[inline]
    pub(crate) const fn parts(&self) -> (u16, u16) {
        ((self.rest >> FIRST_SHIFT) as u16, (self.rest >> SECOND_SHIFT) as u16)
    }

    #[must_use]
    pub(crate) const fn with_parts(self, first: u16, second: u16) -> Self {
        let kept = self.rest & ((1 << SECOND_SHIFT) - 1);
        let rest = kept | (first as u64) << FIRST_SHIFT | (second as u64) << SECOND_SHIFT;
        Self { rest, ..self }
    }

    #[must_use]
    pub(crate) const fn with_src(self, address: u128) -> Self {
        Self { src: words(address), ..self }
    }

    #[must_use]
    pub(crate) const fn with_dst(self, address: u128) -> Self {
        Self { dst: words(address), ..self }
    }

    /// The tuple of a packet in the opposite direction. `None` for an ICMP message that has no
    /// reply.
    pub fn reversed(&self) -> Option<Self> {
        let (first, second) = self.parts();
        let swapped = Self { src: self.dst, dst: self.src, rest: self.rest };
        if !self.is_icmp() {
            return Some(swapped.with_parts(second, first));
        }
        let [kind, code] = second.to_be_bytes();
        let reply = icmp_counterpart(self.is_v4(), kind)?;
        Some(swapped.with_parts(first, u16::from_be_bytes([reply, code])))
    }

    /// The tuple with this zone: its key in the table.
    #[inline]
    pub(crate) const fn in_zone(self, zone: Zone) -> Self {
        let rest = self.rest & !(0xffff << ZONE_SHIFT) | (zone.0 as u64) << ZONE_SHIFT;
        Self { rest, ..self }
    }

    /// The zone that [`Tuple::in_zone`] has set.
    #[inline]
    pub(crate) const fn zone(&self) -> Zone {
        Zone((self.rest >> ZONE_SHIFT) as u16)
    }

    /// The tuple without a zone, for callers.
    #[inline]
    pub(crate) const fn without_zone(self) -> Self {
        self.in_zone(Zone(0))
    }

    /// The length of [`Tuple::words`].
    pub(crate) const WORDS: usize = 5;

    /// The tuple with its zone, as words.
    pub(crate) const fn words(&self) -> [u64; Self::WORDS] {
        [self.src[0], self.src[1], self.dst[0], self.dst[1], self.rest]
    }

    /// The tuple of [`Tuple::words`].
    pub(crate) const fn from_words(words: [u64; Self::WORDS]) -> Self {
        let [a, b, c, d, rest] = words;
        Self { src: [a, b], dst: [c, d], rest }
    }

    /// True if the IP version is 4 or 6, as in every tuple of a packet.
    pub(crate) const fn has_version(&self) -> bool {
        matches!(self.rest & 0xff, 4 | 6)
    }

    pub(crate) const EMPTY: Self = Self { src: [0; 2], dst: [0; 2], rest: 0 };
}

#[inline]
const fn words(address: u128) -> [u64; 2] {
    [(address >> 64) as u64, address as u64]
}

#[inline]
const fn bits(words: [u64; 2]) -> u128 {
    (words[0] as u128) << 64 | words[1] as u128
}

/// True for TCP, UDP and SCTP.
#[inline]
pub(crate) fn has_ports(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP)
}

/// The ICMP (RFC 792, RFC 950) or ICMPv6 (RFC 4443, RFC 4620) reply type of request type `kind`, or
/// the request type of reply type `kind`.
const fn icmp_counterpart(is_v4: bool, kind: u8) -> Option<u8> {
    match (is_v4, kind) {
        // Echo.
        (true, 8) => Some(0),
        (true, 0) => Some(8),
        // Timestamp, information and address mask: request and reply follow each other.
        (true, 13 | 15 | 17) => Some(kind + 1),
        (true, 14 | 16 | 18) => Some(kind - 1),
        // Echo and node information.
        (false, 128 | 139) => Some(kind + 1),
        (false, 129 | 140) => Some(kind - 1),
        _ => None,
    }
}

/// True for an ICMP or ICMPv6 request, the only messages that begin a connection.
pub(crate) const fn is_icmp_request(is_v4: bool, kind: u8) -> bool {
    match is_v4 {
        true => matches!(kind, 8 | 13 | 15 | 17),
        false => matches!(kind, 128 | 139),
    }
}

impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Prints the tuple in the style of conntrack(8):
/// `src=10.0.0.1,dst=10.0.0.2,proto=6,sport=1024,dport=80`.
impl fmt::Display for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "src={},dst={},proto={}", self.src(), self.dst(), self.protocol())?;
        if let Some((kind, code, ident)) = self.icmp_fields() {
            return write!(f, ",type={kind},code={code},id={ident}");
        }
        let (src, dst) = self.ports();
        if self.has_ports() { write!(f, ",sport={src},dport={dst}") } else { Ok(()) }
    }
}
