//! IPv6 neighbour discovery (RFC 4861 section 4).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+---------------+-------------------------------+
//! |     Type      |    Code (0)   |           Checksum            |
//! +---------------+---------------+-------------------------------+
//! | 133 router solicitation:     reserved                         |
//! | 134 router advertisement:    hop limit, flags, lifetime;      |
//! |                              reachable time; retransmit timer |
//! | 135 neighbour solicitation:  reserved; target, 16 bytes       |
//! | 136 neighbour advertisement: R, S, O flags; target            |
//! | 137 redirect:                reserved; target; destination    |
//! +---------------------------------------------------------------+
//! |   options: type (8), length in units of 8 bytes (8), data     |
//! +---------------------------------------------------------------+
//! ```

use std::net::Ipv6Addr;

use super::v6::Icmpv6Packet;
use crate::view::{array, put, put_u16, put_u32, require, u16_at, u32_at};
use crate::{Layer, MacAddr, ParseError, ParseErrorKind};

/// The hop limit of every neighbour discovery packet. A lower value proves that a router forwarded
/// it.
pub const HOP_LIMIT: u8 = 255;

/// ICMPv6 type of a neighbour solicitation.
pub const NEIGHBOR_SOLICITATION: u8 = 135;
/// ICMPv6 type of a neighbour advertisement.
pub const NEIGHBOR_ADVERTISEMENT: u8 = 136;

pub(super) const FIRST_KIND: u8 = ROUTER_SOLICITATION;
pub(super) const LAST_KIND: u8 = REDIRECT;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const REDIRECT: u8 = 137;

const fn bad_length(len: usize) -> ParseError {
    ParseError { layer: Layer::Nd, kind: ParseErrorKind::BadLength(len) }
}

/// One option of a neighbour discovery message (RFC 4861 section 4.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NdOption<'a> {
    /// Link-layer address of the sender (type 1).
    SourceLinkLayer(MacAddr),
    /// Link-layer address of the target (type 2).
    TargetLinkLayer(MacAddr),
    /// Prefix information (type 3).
    Prefix(NdPrefix),
    /// MTU of the link, in bytes of IP packet (type 5).
    Mtu(u32),
    /// Any other option, unchanged.
    Unknown {
        /// Type.
        kind: u8,
        /// The data after type and length. With both, the option is a multiple of 8 bytes, at most
        /// 2,040.
        data: &'a [u8],
    },
}

/// A prefix in a router advertisement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NdPrefix {
    /// Length, 0 to 128 bits.
    pub len: u8,
    /// Addresses of the prefix are on-link (L).
    pub on_link: bool,
    /// Hosts may use the prefix for stateless address autoconfiguration (A).
    pub autonomous: bool,
    /// Valid lifetime, in seconds; all ones means infinity.
    pub valid_lifetime_s: u32,
    /// Preferred lifetime, in seconds; all ones means infinity.
    pub preferred_lifetime_s: u32,
    /// The prefix; bits beyond its length are ignored.
    pub prefix: Ipv6Addr,
}

impl NdOption<'_> {
    const UNIT: usize = 8;
    const SOURCE_LINK_LAYER: u8 = 1;
    const TARGET_LINK_LAYER: u8 = 2;
    const PREFIX: u8 = 3;
    const MTU: u8 = 5;
    const PREFIX_LEN: usize = 32;
    const ON_LINK: u8 = 0x80;
    const AUTONOMOUS: u8 = 0x40;

    /// Bytes of the encoded option.
    pub const fn wire_len(&self) -> usize {
        match self {
            Self::SourceLinkLayer(_) | Self::TargetLinkLayer(_) | Self::Mtu(_) => Self::UNIT,
            Self::Prefix(_) => Self::PREFIX_LEN,
            Self::Unknown { data, .. } => 2 + data.len(),
        }
    }

    /// Writes the option; `out` must be `wire_len` bytes long.
    fn emit(&self, out: &mut [u8]) -> Result<(), ParseError> {
        let units = u8::try_from(out.len() / Self::UNIT).map_err(|_| bad_length(out.len()))?;
        if !out.len().is_multiple_of(Self::UNIT) {
            return Err(bad_length(out.len()));
        }
        out[1] = units;
        match *self {
            Self::SourceLinkLayer(mac) => {
                out[0] = Self::SOURCE_LINK_LAYER;
                put(out, 2, mac.0);
            }
            Self::TargetLinkLayer(mac) => {
                out[0] = Self::TARGET_LINK_LAYER;
                put(out, 2, mac.0);
            }
            Self::Mtu(mtu) => {
                out[0] = Self::MTU;
                put_u16(out, 2, 0);
                put_u32(out, 4, mtu);
            }
            Self::Prefix(prefix) => {
                out[0] = Self::PREFIX;
                prefix.emit(out);
            }
            Self::Unknown { kind, data } => {
                out[0] = kind;
                out[2..].copy_from_slice(data);
            }
        }
        Ok(())
    }
}

impl NdPrefix {
    /// Reads a prefix information option of 32 bytes.
    fn parse(option: &[u8]) -> Result<Self, ParseError> {
        let flags = option[3];
        let prefix = Self {
            len: option[2],
            on_link: flags & NdOption::ON_LINK != 0,
            autonomous: flags & NdOption::AUTONOMOUS != 0,
            valid_lifetime_s: u32_at(option, 4),
            preferred_lifetime_s: u32_at(option, 8),
            prefix: Ipv6Addr::from(array::<16>(option, 16)),
        };
        if prefix.len > 128 {
            return Err(ParseError::field(Layer::Nd, "prefix length"));
        }
        Ok(prefix)
    }

    /// Writes the data after type and length.
    fn emit(&self, option: &mut [u8]) {
        option[2] = self.len;
        option[3] = if self.on_link { NdOption::ON_LINK } else { 0 }
            | if self.autonomous { NdOption::AUTONOMOUS } else { 0 };
        put_u32(option, 4, self.valid_lifetime_s);
        put_u32(option, 8, self.preferred_lifetime_s);
        put_u32(option, 12, 0);
        put(option, 16, self.prefix.octets());
    }
}

/// The options of a neighbour discovery message: well-formed, a multiple of 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NdOptions<'a>(&'a [u8]);

impl<'a> NdOptions<'a> {
    /// Validates option bytes.
    ///
    /// # Errors
    /// `BadLength` for an option of length zero (RFC 4861 section 4.6: discard the message), for
    /// one that reaches beyond the end, and for a known option of the wrong length. `BadField` for
    /// a prefix longer than 128 bits.
    pub fn new(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let mut rest = bytes;
        while let Some((_, after)) = next_option(rest)? {
            rest = after;
        }
        Ok(Self(bytes))
    }

    /// Writes `options` into `scratch`, in the order given.
    ///
    /// # Errors
    /// `BadLength` when `scratch` is too small, and for an option that is too long or not a
    /// multiple of 8 bytes.
    pub fn write(options: &[NdOption<'_>], scratch: &'a mut [u8]) -> Result<Self, ParseError> {
        let mut at = 0;
        for option in options {
            let end = at + option.wire_len();
            option.emit(scratch.get_mut(at..end).ok_or(bad_length(end))?)?;
            at = end;
        }
        Self::new(&scratch[..at])
    }

    /// The options in order.
    pub fn iter(&self) -> impl Iterator<Item = NdOption<'a>> + use<'a> {
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

    /// The first source link-layer address.
    pub fn source_link_layer(&self) -> Option<MacAddr> {
        self.iter().find_map(|option| match option {
            NdOption::SourceLinkLayer(mac) => Some(mac),
            _ => None,
        })
    }

    /// The first target link-layer address.
    pub fn target_link_layer(&self) -> Option<MacAddr> {
        self.iter().find_map(|option| match option {
            NdOption::TargetLinkLayer(mac) => Some(mac),
            _ => None,
        })
    }
}

/// Removes the first option from `bytes` and returns it; `None` at the end.
fn next_option(bytes: &[u8]) -> Result<Option<(NdOption<'_>, &[u8])>, ParseError> {
    let [kind, units, ..] = bytes else {
        return if bytes.is_empty() { Ok(None) } else { Err(bad_length(bytes.len())) };
    };
    let len = usize::from(*units) * NdOption::UNIT;
    if len == 0 {
        return Err(bad_length(0));
    }
    let (option, rest) = bytes.split_at_checked(len).ok_or(bad_length(len))?;
    let option = match (*kind, len) {
        (NdOption::SOURCE_LINK_LAYER, 8) => NdOption::SourceLinkLayer(MacAddr(array(option, 2))),
        (NdOption::TARGET_LINK_LAYER, 8) => NdOption::TargetLinkLayer(MacAddr(array(option, 2))),
        (NdOption::PREFIX, NdOption::PREFIX_LEN) => NdOption::Prefix(NdPrefix::parse(option)?),
        (NdOption::MTU, 8) => NdOption::Mtu(u32_at(option, 4)),
        (1 | 2 | 3 | 5, len) => return Err(bad_length(len)),
        (kind, _) => NdOption::Unknown { kind, data: &option[2..] },
    };
    Ok(Some((option, rest)))
}

/// A neighbour discovery message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NdRepr<'a> {
    /// Router solicitation (type 133).
    RouterSolicitation {
        /// Options.
        options: NdOptions<'a>,
    },
    /// Router advertisement (type 134).
    RouterAdvertisement {
        /// Hop limit that hosts should use; 0 means unspecified.
        hop_limit: u8,
        /// The flags byte: managed (0x80), other configuration (0x40), preference (RFC 4191), and
        /// bits that are not assigned yet.
        flags: u8,
        /// Lifetime as default router, in seconds; 0 means that it is no default router.
        lifetime_s: u16,
        /// Reachable time of a neighbour, in milliseconds; 0 means unspecified.
        reachable_ms: u32,
        /// Time between solicitations, in milliseconds; 0 means unspecified.
        retransmit_ms: u32,
        /// Options.
        options: NdOptions<'a>,
    },
    /// Neighbour solicitation (type 135).
    NeighborSolicitation {
        /// The requested address; never multicast.
        target: Ipv6Addr,
        /// Options.
        options: NdOptions<'a>,
    },
    /// Neighbour advertisement (type 136).
    NeighborAdvertisement {
        /// The sender is a router (R).
        router: bool,
        /// The message answers a solicitation (S).
        solicited: bool,
        /// Receivers override an existing cache entry (O).
        replace: bool,
        /// The advertised address; never multicast.
        target: Ipv6Addr,
        /// Options.
        options: NdOptions<'a>,
    },
    /// Redirect (type 137).
    Redirect {
        /// The better first hop.
        target: Ipv6Addr,
        /// The destination that the redirect is for.
        destination: Ipv6Addr,
        /// Options.
        options: NdOptions<'a>,
    },
}

impl<'a> NdRepr<'a> {
    /// Reads a checked view from a packet with `hop_limit`.
    ///
    /// The caller must have verified the checksum, as [`super::Icmpv6Repr::parse`] does. The caller
    /// also makes the checks that depend on the addresses of the IPv6 header.
    ///
    /// # Errors
    /// Rejects what RFC 4861 sections 6.1, 7.1 and 8.1 require to discard. `BadField` for a hop
    /// limit other than 255, a code other than 0, a multicast target, or a type outside 133 to 137.
    /// `Truncated` and `BadLength` for short messages and malformed options.
    pub fn parse<T: AsRef<[u8]> + ?Sized>(
        packet: &Icmpv6Packet<&'a T>,
        hop_limit: u8,
    ) -> Result<Self, ParseError> {
        if hop_limit != HOP_LIMIT {
            return Err(ParseError::field(Layer::Nd, "hop limit"));
        }
        if packet.code() != 0 {
            return Err(ParseError::field(Layer::Nd, "code"));
        }
        let word = packet.rest();
        let data = packet.data();
        let kind = packet.kind();
        let fixed_len = fixed_len(kind).ok_or(ParseError::field(Layer::Nd, "type"))?;
        require(Layer::Nd, super::HEADER_LEN + fixed_len, super::HEADER_LEN + data.len())?;
        let options = NdOptions::new(&data[fixed_len..])?;
        let address = |at| Ipv6Addr::from(array::<16>(data, at));
        let target = || match address(0) {
            target if target.is_multicast() => Err(ParseError::field(Layer::Nd, "target address")),
            target => Ok(target),
        };
        Ok(match kind {
            ROUTER_SOLICITATION => Self::RouterSolicitation { options },
            ROUTER_ADVERTISEMENT => Self::RouterAdvertisement {
                hop_limit: word[0],
                flags: word[1],
                lifetime_s: u16_at(&word, 2),
                reachable_ms: u32_at(data, 0),
                retransmit_ms: u32_at(data, 4),
                options,
            },
            NEIGHBOR_SOLICITATION => Self::NeighborSolicitation { target: target()?, options },
            NEIGHBOR_ADVERTISEMENT => Self::NeighborAdvertisement {
                router: word[0] & 0x80 != 0,
                solicited: word[0] & 0x40 != 0,
                replace: word[0] & 0x20 != 0,
                target: target()?,
                options,
            },
            _ => Self::Redirect { target: target()?, destination: address(16), options },
        })
    }

    /// Type and options.
    const fn parts(&self) -> (u8, NdOptions<'a>) {
        match *self {
            Self::RouterSolicitation { options } => (ROUTER_SOLICITATION, options),
            Self::RouterAdvertisement { options, .. } => (ROUTER_ADVERTISEMENT, options),
            Self::NeighborSolicitation { options, .. } => (NEIGHBOR_SOLICITATION, options),
            Self::NeighborAdvertisement { options, .. } => (NEIGHBOR_ADVERTISEMENT, options),
            Self::Redirect { options, .. } => (REDIRECT, options),
        }
    }

    /// The options.
    pub const fn options(&self) -> NdOptions<'a> {
        self.parts().1
    }

    /// Bytes of the ICMPv6 message.
    pub const fn message_len(&self) -> usize {
        let (kind, options) = self.parts();
        let fixed_len = match fixed_len(kind) {
            Some(len) => len,
            None => 0,
        };
        super::HEADER_LEN + fixed_len + options.0.len()
    }

    /// Writes the message except its checksum; `message` must be `message_len` bytes long.
    pub(super) fn emit(&self, message: &mut [u8]) {
        let (kind, options) = self.parts();
        put(message, 0, [kind, 0]);
        put_u32(message, 4, 0);
        match *self {
            Self::RouterSolicitation { .. } => {}
            Self::RouterAdvertisement {
                hop_limit,
                flags,
                lifetime_s,
                reachable_ms,
                retransmit_ms,
                ..
            } => {
                put(message, 4, [hop_limit, flags]);
                put_u16(message, 6, lifetime_s);
                put_u32(message, 8, reachable_ms);
                put_u32(message, 12, retransmit_ms);
            }
            Self::NeighborSolicitation { target, .. } => put(message, 8, target.octets()),
            Self::NeighborAdvertisement { router, solicited, replace, target, .. } => {
                message[4] =
                    u8::from(router) << 7 | u8::from(solicited) << 6 | u8::from(replace) << 5;
                put(message, 8, target.octets());
            }
            Self::Redirect { target, destination, .. } => {
                put(message, 8, target.octets());
                put(message, 24, destination.octets());
            }
        }
        let at = message.len() - options.0.len();
        message[at..].copy_from_slice(options.0);
    }
}

/// Bytes between the ICMPv6 header (8 bytes) and the options.
const fn fixed_len(kind: u8) -> Option<usize> {
    match kind {
        ROUTER_SOLICITATION => Some(0),
        ROUTER_ADVERTISEMENT => Some(8),
        NEIGHBOR_SOLICITATION | NEIGHBOR_ADVERTISEMENT => Some(16),
        REDIRECT => Some(32),
        _ => None,
    }
}
