//! Definitions common to IPv4 and IPv6: protocol numbers and fragment position.

use std::fmt;

/// An IP protocol number (IPv4 protocol, IPv6 next header; IANA "Protocol Numbers").
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Protocol(pub u8);

impl Protocol {
    /// IPv6 hop-by-hop options (RFC 8200 section 4.3).
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP (RFC 792).
    pub const ICMP: Self = Self(1);
    /// IGMP (RFC 9776).
    pub const IGMP: Self = Self(2);
    /// TCP (RFC 9293), and the TCP-like segments of STT.
    pub const TCP: Self = Self(6);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(17);
    /// DCCP (RFC 4340).
    pub const DCCP: Self = Self(33);
    /// IPv6 routing header (RFC 8200 section 4.4).
    pub const ROUTING: Self = Self(43);
    /// IPv6 fragment header (RFC 8200 section 4.5).
    pub const FRAGMENT: Self = Self(44);
    /// GRE (RFC 2784).
    pub const GRE: Self = Self(47);
    /// Authentication header (RFC 4302).
    pub const AH: Self = Self(51);
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
    /// IPv6 "no next header" (RFC 8200 section 4.7).
    pub const NO_NEXT_HEADER: Self = Self(59);
    /// IPv6 destination options (RFC 8200 section 4.6).
    pub const DESTINATION_OPTIONS: Self = Self(60);
    /// SCTP (RFC 9260).
    pub const SCTP: Self = Self(132);
    /// UDP-Lite (RFC 3828).
    pub const UDP_LITE: Self = Self(136);
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Position of a packet in a fragmented datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Fragment {
    /// Not fragmented. An IPv6 atomic fragment (offset 0, no more fragments; RFC 6946) is whole.
    #[default]
    Whole,
    /// The first fragment: it has the transport header, but not all of the payload.
    First,
    /// Any later fragment: it has no transport header.
    Later,
}

impl Fragment {
    /// The position for an offset (in any unit) and a more-fragments flag.
    #[inline]
    pub const fn new(offset: u16, more: bool) -> Self {
        match (offset, more) {
            (0, false) => Self::Whole,
            (0, true) => Self::First,
            _ => Self::Later,
        }
    }
}
