//! The changes of a flow key when the switch generates a reply: [`Reply::key_edits`].

use crate::reply::{ALL_NODES, ICMP_TTL, SOLICITED_NODE, TCP_TTL};
use crate::{Field, FlowKey, Reply, Subfield};
use wire::{EtherType, Protocol};

/// One of the changes that turn the key of a packet into the key of the reply to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyEdit {
    /// Writes a constant to bits.
    Load {
        /// The bits to write.
        to: Subfield,
        /// The value, right-aligned.
        value: u128,
    },
    /// Copies bits.
    Move {
        /// The source.
        from: Subfield,
        /// The destination, as wide as `from`.
        to: Subfield,
    },
    /// Exchanges two fields of equal width.
    Swap {
        /// The first field.
        a: Field,
        /// The second field.
        b: Field,
    },
    /// Inverts bits.
    Flip(Subfield),
}

impl KeyEdit {
    /// Applies the change to a key.
    pub fn apply(self, key: &mut FlowKey) {
        match self {
            Self::Load { to, value } => key.set_bits(to, value),
            Self::Move { from, to } => key.set_bits(to, key.get_bits(from)),
            Self::Swap { a, b } => {
                let (of_a, of_b) = (key.get(a), key.get(b));
                key.set(a, of_b);
                key.set(b, of_a);
            }
            Self::Flip(bits) => key.set_bits(bits, !key.get_bits(bits)),
        }
    }
}

impl Reply {
    /// The changes, in order, that turn the key of a packet into the key of the reply that
    /// [`Reply::build`] generates. Fields outside the frame stay as they are.
    ///
    /// `unspecified_src` tells whether the `ip6_src` of a solicitation is `::`; only
    /// [`Reply::NeighbourAdvert`] depends on it. To determine it, a translation reads the whole
    /// field, so the mask contains all its bits.
    pub const fn key_edits(self, unspecified_src: bool) -> &'static [KeyEdit] {
        match self {
            Self::Arp => ARP,
            Self::NeighbourAdvert { .. } if unspecified_src => NEIGHBOUR_ADVERT_TO_ALL,
            Self::NeighbourAdvert { .. } => NEIGHBOUR_ADVERT,
            Self::NeighbourSolicit => NEIGHBOUR_SOLICIT,
            Self::Icmp4 => ICMP4,
            Self::Icmp6 => ICMP6,
            Self::TcpReset => TCP_RESET,
            Self::SctpAbort => SCTP_ABORT,
        }
    }
}

/// A range of bits; compilation fails when the field lacks them.
const fn bits(field: Field, first: u8, width: u8) -> Subfield {
    match Subfield::new(field, first, width) {
        Some(bits) => bits,
        None => panic!("no such bits"),
    }
}

const fn load(field: Field, value: u128) -> KeyEdit {
    KeyEdit::Load { to: Subfield::whole(field), value }
}

const fn copy(from: Field, to: Field) -> KeyEdit {
    KeyEdit::Move { from: Subfield::whole(from), to: Subfield::whole(to) }
}

const fn clear(field: Field) -> KeyEdit {
    load(field, 0)
}

const ARP: &[KeyEdit] = &[
    load(Field::EthDst, Field::EthDst.all_ones()),
    load(Field::EthType, EtherType::ARP.0 as u128),
    load(Field::ArpOp, 1),
    copy(Field::EthSrc, Field::ArpSha),
    copy(Field::Ip4Src, Field::ArpSpa),
    clear(Field::ArpTha),
    copy(Field::Ip4Dst, Field::ArpTpa),
    clear(Field::Ip4Src),
    clear(Field::Ip4Dst),
    clear(Field::IpProto),
    clear(Field::IpDscp),
    clear(Field::IpEcn),
    clear(Field::IpTtl),
    clear(Field::IpFrag),
    clear(Field::TpSrc),
    clear(Field::TpDst),
    clear(Field::TcpFlags),
    clear(Field::IcmpType),
    clear(Field::IcmpCode),
];

const ICMP4: &[KeyEdit] = &[
    load(Field::IpProto, Protocol::ICMP.0 as u128),
    clear(Field::IpDscp),
    clear(Field::IpEcn),
    load(Field::IpTtl, ICMP_TTL as u128),
    clear(Field::IpFrag),
    clear(Field::TpSrc),
    clear(Field::TpDst),
    clear(Field::TcpFlags),
    load(Field::IcmpType, 3),
    load(Field::IcmpCode, 1),
];

const ICMP6: &[KeyEdit] = &[
    load(Field::IpProto, Protocol::ICMPV6.0 as u128),
    clear(Field::IpDscp),
    clear(Field::IpEcn),
    load(Field::IpTtl, ICMP_TTL as u128),
    clear(Field::IpFrag),
    clear(Field::Ip6Label),
    clear(Field::TpSrc),
    clear(Field::TpDst),
    clear(Field::TcpFlags),
    load(Field::IcmpType, 1),
    load(Field::IcmpCode, 1),
    clear(Field::NdTarget),
    clear(Field::NdSll),
    clear(Field::NdTll),
];

const TCP_RESET: &[KeyEdit] = &[
    clear(Field::IpDscp),
    clear(Field::IpEcn),
    load(Field::IpTtl, TCP_TTL as u128),
    clear(Field::IpFrag),
    clear(Field::Ip6Label),
    KeyEdit::Swap { a: Field::TpSrc, b: Field::TpDst },
    // The reset carries ACK exactly when the segment did not (RFC 9293 section 3.10.7.1).
    KeyEdit::Load { to: bits(Field::TcpFlags, 0, 4), value: 0b0100 },
    KeyEdit::Flip(bits(Field::TcpFlags, 4, 1)),
    KeyEdit::Load { to: bits(Field::TcpFlags, 5, 7), value: 0 },
];

const SCTP_ABORT: &[KeyEdit] = &[
    clear(Field::IpDscp),
    clear(Field::IpEcn),
    load(Field::IpTtl, TCP_TTL as u128),
    clear(Field::IpFrag),
    clear(Field::Ip6Label),
    KeyEdit::Swap { a: Field::TpSrc, b: Field::TpDst },
];

const NEIGHBOUR_ADVERT: &[KeyEdit] = &[
    KeyEdit::Swap { a: Field::EthDst, b: Field::EthSrc },
    copy(Field::Ip6Src, Field::Ip6Dst),
    copy(Field::NdTarget, Field::Ip6Src),
    clear(Field::IpDscp),
    clear(Field::IpEcn),
    clear(Field::Ip6Label),
    load(Field::IcmpType, 136),
    clear(Field::NdSll),
    copy(Field::EthSrc, Field::NdTll),
];

const NEIGHBOUR_ADVERT_TO_ALL: &[KeyEdit] = &[
    copy(Field::EthDst, Field::EthSrc),
    load(Field::EthDst, 0x3333_0000_0001),
    load(Field::Ip6Dst, ALL_NODES.to_bits()),
    copy(Field::NdTarget, Field::Ip6Src),
    clear(Field::IpDscp),
    clear(Field::IpEcn),
    clear(Field::Ip6Label),
    load(Field::IcmpType, 136),
    clear(Field::NdSll),
    copy(Field::EthSrc, Field::NdTll),
];

const NEIGHBOUR_SOLICIT: &[KeyEdit] = &[
    copy(Field::Ip6Dst, Field::NdTarget),
    // The solicited-node multicast address (RFC 4291 section 2.7.1).
    KeyEdit::Load { to: bits(Field::Ip6Dst, 24, 104), value: SOLICITED_NODE >> 24 },
    KeyEdit::Load { to: bits(Field::EthDst, 24, 24), value: 0x33_33ff },
    KeyEdit::Move { from: bits(Field::Ip6Dst, 0, 24), to: bits(Field::EthDst, 0, 24) },
    // The sender's link-local address, from its MAC address (RFC 4291 appendix A).
    KeyEdit::Load { to: bits(Field::Ip6Src, 64, 64), value: 0xfe80 << 48 },
    KeyEdit::Move { from: bits(Field::EthSrc, 24, 24), to: bits(Field::Ip6Src, 40, 24) },
    KeyEdit::Flip(bits(Field::Ip6Src, 57, 1)),
    KeyEdit::Load { to: bits(Field::Ip6Src, 24, 16), value: 0xfffe },
    KeyEdit::Move { from: bits(Field::EthSrc, 0, 24), to: bits(Field::Ip6Src, 0, 24) },
    load(Field::IpProto, Protocol::ICMPV6.0 as u128),
    clear(Field::IpDscp),
    clear(Field::IpEcn),
    load(Field::IpTtl, ICMP_TTL as u128),
    clear(Field::IpFrag),
    clear(Field::Ip6Label),
    clear(Field::TpSrc),
    clear(Field::TpDst),
    clear(Field::TcpFlags),
    load(Field::IcmpType, 135),
    clear(Field::IcmpCode),
    copy(Field::EthSrc, Field::NdSll),
    clear(Field::NdTll),
];
