//! What making a packet from a packet does to the key: [`Reply::steps`].

use crate::reply::{ALL_NODES, ICMP_TTL, SOLICITED_NODE, TCP_TTL};
use crate::{Field, FlowKey, Reply, Subfield};
use wire::{EtherType, Protocol};

/// One step from the key of a packet to that of a packet made from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyStep {
    /// Bits take a value.
    Load {
        /// Which bits.
        to: Subfield,
        /// Their value, right aligned in `to`.
        value: u128,
    },
    /// Bits are copied.
    Move {
        /// From where.
        from: Subfield,
        /// To where; as wide as `from`.
        to: Subfield,
    },
    /// Two fields of equal width change places.
    Swap {
        /// One.
        a: Field,
        /// The other.
        b: Field,
    },
    /// Bits are inverted.
    Flip(Subfield),
}

impl KeyStep {
    /// Carries the step out on a key.
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
    /// The steps, in order, from the key of a packet to that of the reply to it, if [`Reply::build`] makes one. All fields
    /// beside the frame stay as they are.
    ///
    /// `unspecified_src` matters to [`Reply::NeighbourAdvert`] only: whether the solicitation's `ip6_src` is `::`. A
    /// translation that asks has read all of that field.
    pub const fn steps(self, unspecified_src: bool) -> &'static [KeyStep] {
        match self {
            Self::Arp => ARP,
            Self::NeighbourAdvert { .. } if unspecified_src => NEIGHBOUR_ADVERT_TO_ALL,
            Self::NeighbourAdvert { .. } => NEIGHBOUR_ADVERT,
            Self::NeighbourSolicit => NEIGHBOUR_SOLICIT,
            Self::Icmp4 => ICMP4,
            Self::Icmp6 => ICMP6,
            Self::TcpReset => TCP_RESET,
        }
    }
}

/// Bits of a field; refused when compiling if there are none such.
const fn bits(field: Field, first: u8, width: u8) -> Subfield {
    match Subfield::new(field, first, width) {
        Some(bits) => bits,
        None => panic!("no such bits"),
    }
}

const fn load(field: Field, value: u128) -> KeyStep {
    KeyStep::Load { to: Subfield::whole(field), value }
}

const fn copy(from: Field, to: Field) -> KeyStep {
    KeyStep::Move { from: Subfield::whole(from), to: Subfield::whole(to) }
}

const fn clear(field: Field) -> KeyStep {
    load(field, 0)
}

const ARP: &[KeyStep] = &[
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

const ICMP4: &[KeyStep] = &[
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

const ICMP6: &[KeyStep] = &[
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

const TCP_RESET: &[KeyStep] = &[
    clear(Field::IpDscp),
    clear(Field::IpEcn),
    load(Field::IpTtl, TCP_TTL as u128),
    clear(Field::IpFrag),
    clear(Field::Ip6Label),
    KeyStep::Swap { a: Field::TpSrc, b: Field::TpDst },
    // RST, and ACK if the segment had none.
    KeyStep::Load { to: bits(Field::TcpFlags, 0, 4), value: 0b0100 },
    KeyStep::Flip(bits(Field::TcpFlags, 4, 1)),
    KeyStep::Load { to: bits(Field::TcpFlags, 5, 7), value: 0 },
];

const NEIGHBOUR_ADVERT: &[KeyStep] = &[
    KeyStep::Swap { a: Field::EthDst, b: Field::EthSrc },
    copy(Field::Ip6Src, Field::Ip6Dst),
    copy(Field::NdTarget, Field::Ip6Src),
    clear(Field::IpDscp),
    clear(Field::IpEcn),
    clear(Field::Ip6Label),
    load(Field::IcmpType, 136),
    clear(Field::NdSll),
    copy(Field::EthSrc, Field::NdTll),
];

const NEIGHBOUR_ADVERT_TO_ALL: &[KeyStep] = &[
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

const NEIGHBOUR_SOLICIT: &[KeyStep] = &[
    copy(Field::Ip6Dst, Field::NdTarget),
    // The group of the nodes whose addresses end alike.
    KeyStep::Load { to: bits(Field::Ip6Dst, 24, 104), value: SOLICITED_NODE >> 24 },
    KeyStep::Load { to: bits(Field::EthDst, 24, 24), value: 0x33_33ff },
    KeyStep::Move { from: bits(Field::Ip6Dst, 0, 24), to: bits(Field::EthDst, 0, 24) },
    // The sender's link-local address.
    KeyStep::Load { to: bits(Field::Ip6Src, 64, 64), value: 0xfe80 << 48 },
    KeyStep::Move { from: bits(Field::EthSrc, 24, 24), to: bits(Field::Ip6Src, 40, 24) },
    KeyStep::Flip(bits(Field::Ip6Src, 57, 1)),
    KeyStep::Load { to: bits(Field::Ip6Src, 24, 16), value: 0xfffe },
    KeyStep::Move { from: bits(Field::EthSrc, 0, 24), to: bits(Field::Ip6Src, 0, 24) },
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
