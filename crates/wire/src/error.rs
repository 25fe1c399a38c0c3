//! Parse errors: which header is invalid, and why.

use std::fmt;

/// The header that was being parsed when a [`ParseError`] occurred.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the variants are the names of the headers")]
pub enum Layer {
    Ethernet,
    Vlan,
    Snap,
    Arp,
    Ipv4,
    Ipv6,
    Icmpv4,
    Icmpv6,
    Nd,
    Tcp,
    Udp,
    Sctp,
    Vxlan,
    Geneve,
    Gre,
    Stt,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ethernet => "Ethernet",
            Self::Vlan => "VLAN",
            Self::Snap => "SNAP",
            Self::Arp => "ARP",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Icmpv4 => "ICMP",
            Self::Icmpv6 => "ICMPv6",
            Self::Nd => "ND",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
            Self::Vxlan => "VXLAN",
            Self::Geneve => "Geneve",
            Self::Gre => "GRE",
            Self::Stt => "STT",
        })
    }
}

/// What is wrong with a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseErrorKind {
    /// The buffer is shorter than the header, or than a length field requires.
    Truncated {
        /// Number of bytes needed, counted from the start of the header.
        needed: usize,
        /// Number of bytes present.
        have: usize,
    },
    /// A version other than the one the standard defines.
    BadVersion(u8),
    /// A length field smaller than its header, or inconsistent with another one.
    BadLength(usize),
    /// The checksum is wrong.
    BadChecksum,
    /// A value that the standard forbids or that this codec does not support; the text names the
    /// field.
    BadField(&'static str),
    /// An unknown option that is marked critical (Geneve: the packet must be dropped).
    UnknownCriticalOption {
        /// Geneve option class.
        class: u16,
        /// Geneve option type, the critical bit included.
        kind: u8,
    },
    /// More headers of this kind than are parsed.
    TooDeep,
}

/// A parse error: which header, and what is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub struct ParseError {
    /// The header being parsed.
    pub layer: Layer,
    /// What is wrong with it.
    pub kind: ParseErrorKind,
}

impl ParseError {
    /// Fewer bytes than needed.
    pub const fn truncated(layer: Layer, needed: usize, have: usize) -> Self {
        Self { layer, kind: ParseErrorKind::Truncated { needed, have } }
    }

    /// The field `name` has a forbidden value.
    pub const fn field(layer: Layer, name: &'static str) -> Self {
        Self { layer, kind: ParseErrorKind::BadField(name) }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layer = self.layer;
        match self.kind {
            ParseErrorKind::Truncated { needed, have } => {
                write!(f, "{layer}: {needed} bytes needed, {have} there")
            }
            ParseErrorKind::BadVersion(version) => write!(f, "{layer}: unknown version {version}"),
            ParseErrorKind::BadLength(len) => write!(f, "{layer}: impossible length {len}"),
            ParseErrorKind::BadChecksum => write!(f, "{layer}: wrong checksum"),
            ParseErrorKind::BadField(name) => write!(f, "{layer}: forbidden value of {name}"),
            ParseErrorKind::UnknownCriticalOption { class, kind } => {
                write!(f, "{layer}: unknown critical option class {class:#06x} type {kind:#04x}")
            }
            ParseErrorKind::TooDeep => write!(f, "{layer}: more headers than are parsed"),
        }
    }
}
