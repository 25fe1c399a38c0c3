//! "Packet too big" from the path, as a tunnel end point needs it: how long packets may be, and which of its own packets was
//! too long.
//!
//! Anybody can send such a message. It is worth believing when the packet that it quotes is one that this host sends:
//! [`TooBig::local`], [`TooBig::remote`], the protocol and the port or key have to be those of a known end point.

use std::net::IpAddr;

use super::{Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, v6};
use crate::view::u32_at;
use crate::{Fragment, Ipv4Packet, Ipv6Packet, Layer, ParseError, Protocol};

/// The least MTU of an IPv4 link (RFC 791 section 3.2), below which no path MTU is taken to be (RFC 1191 section 3).
pub const MIN_MTU_V4: u16 = 68;
/// The least MTU of an IPv6 link (RFC 8200 section 5).
pub const MIN_MTU_V6: u16 = 1280;

/// Common MTUs, largest first (RFC 1191 section 7): the path MTU is most likely one of them.
const PLATEAUS: [u16; 10] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, 296, 68];

/// What an ICMP message of type 3 code 4 (RFC 1191), or an ICMPv6 message of type 2 (RFC 4443 section 3.2), says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TooBig {
    /// The longest IP packet that gets through, in bytes: at least [`MIN_MTU_V4`] or [`MIN_MTU_V6`], and less than the length
    /// of the packet quoted.
    pub mtu: u16,
    /// The source of the quoted packet: this host, if the message is true.
    pub local: IpAddr,
    /// The destination of the quoted packet.
    pub remote: IpAddr,
    /// The protocol of the quoted packet.
    pub protocol: Protocol,
    /// What tells the quoted packet from others of its protocol.
    pub quoted: Quoted,
}

/// The first bytes of the transport header of a quoted packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Quoted {
    /// UDP or TCP (and so STT).
    Ports {
        /// Source port.
        src: u16,
        /// Destination port.
        dst: u16,
    },
    /// GRE.
    Gre {
        /// The key; `None` when there is none, or it is beyond what is quoted.
        key: Option<u32>,
    },
    /// Something else, a later fragment, or less than the first eight bytes.
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
                Self::Gre { key: known.then(|| u32_at(transport, at)) }
            }
            _ => Self::Other,
        }
    }
}

impl TooBig {
    /// Reads an IPv4 packet, header included, as a raw socket for ICMP receives it.
    ///
    /// A message without an MTU, as routers older than RFC 1191 send it, means the largest common MTU (RFC 1191 section 7)
    /// below the length of the packet quoted.
    ///
    /// # Errors
    /// Headers that do not parse, `BadChecksum`, and `BadField` for any other message and for an MTU that is no less than the
    /// length of the packet quoted.
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
        let mtu = mtu.max(MIN_MTU_V4);
        if mtu >= ip.total_len() {
            return Err(ParseError::field(Layer::Icmpv4, "MTU"));
        }
        Ok(Self {
            mtu,
            local: ip.src().into(),
            remote: ip.dst().into(),
            protocol: ip.protocol(),
            quoted: Quoted::parse(ip.protocol(), ip.fragment(), transport),
        })
    }

    /// Reads an ICMPv6 message, as a raw socket for ICMPv6 receives it: without the IPv6 header, and with a checksum that
    /// the kernel has verified.
    ///
    /// # Errors
    /// Headers that do not parse, and `BadField` for any other message, for an MTU below [`MIN_MTU_V6`] (RFC 8201 section 4: to
    /// be discarded) and for one that is no less than the length of the packet quoted.
    pub fn parse_v6(message: &[u8]) -> Result<Self, ParseError> {
        let message = Icmpv6Packet::new_checked(message)?;
        if message.kind() != v6::PACKET_TOO_BIG {
            return Err(ParseError::field(Layer::Icmpv6, "type"));
        }
        let quoted = message.data();
        let ip = Ipv6Packet::new_header(quoted)?;
        let upper = ip.upper()?;
        // At most 65,535: above, it is no less than the length of any packet.
        let mtu = u16::try_from(u32::from_be_bytes(message.rest())).unwrap_or(u16::MAX);
        if mtu < MIN_MTU_V6 || usize::from(mtu) >= ip.total_len() {
            return Err(ParseError::field(Layer::Icmpv6, "MTU"));
        }
        let transport = quoted.get(upper.offset..).unwrap_or_default();
        Ok(Self {
            mtu,
            local: ip.src().into(),
            remote: ip.dst().into(),
            protocol: upper.protocol,
            quoted: Quoted::parse(upper.protocol, upper.fragmentation(), transport),
        })
    }
}
