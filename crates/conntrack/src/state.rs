//! [`State`], the `ct_state` of a packet, and [`Invalid`], the reason why it is `inv`.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// The connection state of a packet: the bits of `ct_state` in ovs-fields(7) and of OVN's `ct.new`,
/// `ct.est` and so on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct State(pub u8);

impl State {
    /// The packet begins a connection, or belongs to one that has not seen a reply.
    pub const NEW: Self = Self(0x01);
    /// The packet belongs to a committed connection that has seen packets of both directions.
    pub const EST: Self = Self(0x02);
    /// The packet is an ICMP error about a packet of a committed connection.
    pub const REL: Self = Self(0x04);
    /// The packet is in the reply direction.
    pub const RPL: Self = Self(0x08);
    /// The packet is invalid; [`Invalid`] says why.
    pub const INV: Self = Self(0x10);
    /// The packet was tracked. Every other bit implies it.
    pub const TRK: Self = Self(0x20);
    /// NAT changed the source of the packet.
    pub const SNAT: Self = Self(0x40);
    /// NAT changed the destination of the packet.
    pub const DNAT: Self = Self(0x80);

    const NAMES: [(Self, &'static str); 8] = [
        (Self::NEW, "new"),
        (Self::EST, "est"),
        (Self::REL, "rel"),
        (Self::RPL, "rpl"),
        (Self::INV, "inv"),
        (Self::TRK, "trk"),
        (Self::SNAT, "snat"),
        (Self::DNAT, "dnat"),
    ];

    /// True when all of `bits` are set.
    #[inline]
    pub const fn contains(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// These bits without `bits`.
    #[must_use]
    pub const fn without(self, bits: Self) -> Self {
        Self(self.0 & !bits.0)
    }
}

impl BitOr for State {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for State {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Prints as in ovs-ofctl(8): `est|rpl|trk`; `-` for an untracked packet.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (_, name) in Self::NAMES.iter().filter(|&&(bit, _)| self.contains(bit)) {
            write!(f, "{separator}{name}")?;
            separator = "|";
        }
        if separator.is_empty() { f.write_str("-") } else { Ok(()) }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! invalid {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal,)+) => {
        /// The reason why a packet is invalid.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Invalid {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Invalid {
            /// Every reason.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name in counters and output: lower case, words joined by `_`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The meaning, in one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc,)+).trim_ascii(),)+ }
            }
        }
    };
}

invalid! {
    /// A header is cut short, or its lengths contradict each other.
    Malformed "malformed",
    /// The packet is a fragment, which the caller has not reassembled.
    Fragment "fragment",
    /// A checksum is wrong.
    Checksum "checksum",
    /// The TCP flags contradict each other.
    TcpFlags "tcp_flags",
    /// The SCTP packet has no chunk, or chunks that may not be together.
    SctpChunks "sctp_chunks",
    /// The message has no reply by which to recognise a connection, such as neighbour discovery.
    Untrackable "untrackable",
    /// The ICMP error quotes no packet of a connection, or goes to somebody else.
    Quote "quote",
    /// No connection begins with such a packet.
    NotFirst "not_first",
    /// The connection cannot have such a packet in its state.
    OutOfState "out_of_state",
    /// The TCP sequence or acknowledgement number is outside the window.
    OutOfWindow "out_of_window",
    /// The SCTP verification tag is not that of the association.
    SctpTag "sctp_tag",
}
