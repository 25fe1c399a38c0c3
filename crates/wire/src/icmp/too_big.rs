//! "Packet too big" messages for a tunnel end point: the new path MTU, and the sent packet that
//! exceeded it.
//!
//! Anyone can forge such a message. A receiver should accept it only when the quoted packet is one
//! that this host sends: [`TooBig::local`], [`TooBig::remote`], the protocol and the port or key
//! must match a known end point.

use std::net::IpAddr;

use super::{Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, v6};
use crate::view::u32_at;
use crate::{Fragment, Ipv4Packet, Ipv6Packet, Layer, ParseError, Protocol};

/// The minimum MTU of an IPv4 link (RFC 791 section 3.2), which is also the lower limit for a path
/// MTU (RFC 1191 section 3).
pub const MIN_MTU_V4: u16 = 68;
/// The minimum MTU of an IPv6 link (RFC 8200 section 5).
pub const MIN_MTU_V6: u16 = 1280;

/// The MTU plateau table of RFC 1191 section 7, largest first: common values of the path MTU.
const PLATEAUS: [u16; 10] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, 296, 68];

/// The content of an ICMP message of type 3 code 4 (RFC 1191), or of an ICMPv6 message of type 2
/// (RFC 4443 section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TooBig {
    /// The MTU that the message states, in bytes of IP packet; see [`TooBig::path_mtu`].
    pub mtu: u16,
    /// The total length of the quoted packet, as its IP header says, in bytes. A router that
    /// receives super-packets quotes the length of one.
    pub quoted_len: usize,
    /// "Don't fragment" of the quoted packet; always true for IPv6. Without it, no router sends
    /// such a message.
    pub dont_fragment: bool,
    /// The source of the quoted packet: an address of this host, unless the message is forged.
    pub local: IpAddr,
    /// The destination of the quoted packet.
    pub remote: IpAddr,
    /// The protocol of the quoted packet.
    pub protocol: Protocol,
    /// The ports or key of the quoted packet.
    pub quoted: Quoted,
}

/// The first bytes of the quoted packet's transport header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Quoted {
    /// UDP, TCP or STT.
    Ports {
        /// Source port.
        src: u16,
        /// Destination port.
        dst: u16,
    },
    /// GRE.
    Gre {
        /// The first four bytes of the header: flags, version and protocol type.
        start: [u8; 4],
        /// The key; `None` when the header has none, or when the quoted part ends before it.
        key: Option<u32>,
    },
    /// Another protocol, a later fragment, or less than eight bytes of transport header.
    Other,
}

impl Quoted {
    fn parse(protocol: Protocol, fragment: Fragment, transport: &[u8]) -> Self {
        let Some(&first) = transport.first_chunk::<8>().filter(|_| fragment != Fragment::Later)
        else {
            return Self::Other;
        };
        let [a, b, c, d, ..] = first;
        match protocol {
            Protocol::TCP | Protocol::UDP => {
                Self::Ports { src: u16::from_be_bytes([a, b]), dst: u16::from_be_bytes([c, d]) }
            }
            Protocol::GRE => {
                let (checksum, key) = (a & 0x80 != 0, a & 0x20 != 0);
                let at = if checksum { 8 } else { 4 };
                let known = key && transport.len() >= at + 4;
                Self::Gre { start: [a, b, c, d], key: known.then(|| u32_at(transport, at)) }
            }
            _ => Self::Other,
        }
    }
}

impl TooBig {
    /// The stated MTU, where the RFCs allow it. An IPv4 MTU is at least [`MIN_MTU_V4`].
    ///
    /// `None` when the quoted packet would have fitted, or for an IPv6 MTU below [`MIN_MTU_V6`],
    /// which RFC 8201 section 4 requires to discard.
    pub fn path_mtu(&self) -> Option<u16> {
        let mtu = match self.local {
            IpAddr::V4(_) => self.mtu.max(MIN_MTU_V4),
            IpAddr::V6(_) => Some(self.mtu).filter(|&mtu| mtu >= MIN_MTU_V6)?,
        };
        (usize::from(mtu) < self.quoted_len).then_some(mtu)
    }

    /// Reads an IPv4 packet, header included, as a raw ICMP socket receives it.
    ///
    /// Routers older than RFC 1191 send no MTU. Then the result is the largest value of the plateau
    /// table (RFC 1191 section 7) below the length of the quoted packet.
    ///
    /// # Errors
    /// - any error of the headers that are parsed
    /// - `BadChecksum` for a wrong ICMP checksum
    /// - `BadField` for any other message
    pub fn parse_v4(packet: &[u8]) -> Result<Self, ParseError> {
        let outer = Ipv4Packet::new_checked(packet)?;
        if outer.protocol() != Protocol::ICMP || outer.fragment() != Fragment::Whole {
            return Err(ParseError::field(Layer::Ipv4, "protocol"));
        }
        let message = Icmpv4Packet::new_checked(outer.payload())?;
        let Icmpv4Repr::FragmentationNeeded { mtu, quoted } = Icmpv4Repr::parse(&message)? else {
            return Err(ParseError::field(Layer::Icmpv4, "type"));
        };
        let ip = Ipv4Packet::new_header(quoted)?;
        let transport = quoted.get(ip.header_len()..).unwrap_or_default();
        let mtu = match mtu {
            0 => PLATEAUS.into_iter().find(|&plateau| plateau < ip.total_len()).unwrap_or(0),
            mtu => mtu,
        };
        Ok(Self {
            mtu,
            quoted_len: ip.total_len().into(),
            dont_fragment: ip.dont_fragment(),
            local: ip.src().into(),
            remote: ip.dst().into(),
            protocol: ip.protocol(),
            quoted: Quoted::parse(ip.protocol(), ip.fragment(), transport),
        })
    }

    /// Reads an ICMPv6 message as a raw ICMPv6 socket receives it: without the IPv6 header, and
    /// with a checksum that the kernel has verified.
    ///
    /// # Errors
    /// - any error of the headers that are parsed
    /// - `BadField` for any other message
    pub fn parse_v6(message: &[u8]) -> Result<Self, ParseError> {
        let message = Icmpv6Packet::new_checked(message)?;
        if message.kind() != v6::PACKET_TOO_BIG {
            return Err(ParseError::field(Layer::Icmpv6, "type"));
        }
        let quoted = message.data();
        let ip = Ipv6Packet::new_header(quoted)?;
        let upper = ip.upper()?;
        // An MTU above 65,535 becomes 65,535: neither value lowers a path MTU.
        let mtu = u16::try_from(u32::from_be_bytes(message.rest())).unwrap_or(u16::MAX);
        let transport = quoted.get(upper.offset..).unwrap_or_default();
        Ok(Self {
            mtu,
            quoted_len: ip.total_len(),
            dont_fragment: true,
            local: ip.src().into(),
            remote: ip.dst().into(),
            protocol: upper.protocol,
            quoted: Quoted::parse(upper.protocol, upper.fragmentation(), transport),
        })
    }
}
