//! Which header fields a packet has.

use super::translator::TAG_PRESENT;
use crate::recorder::Recorder;
use flow::Field;
use wire::{EtherType, Protocol};

/// True when the packet has the header field, so that it can be written. In the key, fields of
/// absent headers are 0 and must stay 0.
pub(super) fn has_field(key: &mut impl Recorder, field: Field) -> bool {
    match field {
        Field::EthDst | Field::EthSrc => true,
        Field::VlanTci | Field::VlanTpid => key.read(Field::VlanTci, TAG_PRESENT) != 0,
        Field::Ip4Src | Field::Ip4Dst => ethertype(key) == EtherType::IPV4,
        Field::Ip6Src | Field::Ip6Dst | Field::Ip6Label => ethertype(key) == EtherType::IPV6,
        Field::IpDscp | Field::IpEcn | Field::IpTtl => is_ip(key),
        Field::ArpSpa | Field::ArpTpa | Field::ArpSha | Field::ArpOp | Field::ArpTha => {
            matches!(ethertype(key), EtherType::ARP | EtherType::RARP)
        }
        Field::TpSrc | Field::TpDst => {
            is_ip(key)
                && matches!(transport(key), Some(Protocol::TCP | Protocol::UDP | Protocol::SCTP))
        }
        Field::TcpFlags => is_ip(key) && transport(key) == Some(Protocol::TCP),
        Field::IcmpType | Field::IcmpCode => match ethertype(key) {
            EtherType::IPV4 => transport(key) == Some(Protocol::ICMP),
            EtherType::IPV6 => transport(key) == Some(Protocol::ICMPV6),
            _ => false,
        },
        Field::NdTarget => is_neighbour_discovery(key),
        // A packet without the option has 0 here; the option cannot be added.
        Field::NdSll | Field::NdTll => is_neighbour_discovery(key) && key.read_field(field) != 0,
        _ => false,
    }
}

fn ethertype(key: &mut impl Recorder) -> EtherType {
    // The cast is lossless: the field is 16 bits wide.
    EtherType(key.read_field(Field::EthType) as u16)
}

fn is_ip(key: &mut impl Recorder) -> bool {
    matches!(ethertype(key), EtherType::IPV4 | EtherType::IPV6)
}

/// The protocol of an IP packet with a transport header; `None` for later fragments, which have
/// none.
fn transport(key: &mut impl Recorder) -> Option<Protocol> {
    const LATER: u128 = 2;
    let protocol = Protocol(key.read_field(Field::IpProto) as u8);
    (key.read(Field::IpFrag, LATER) == 0).then_some(protocol)
}

fn is_neighbour_discovery(key: &mut impl Recorder) -> bool {
    const SOLICIT: u128 = 135;
    const ADVERT: u128 = 136;
    ethertype(key) == EtherType::IPV6
        && transport(key) == Some(Protocol::ICMPV6)
        && matches!(key.read_field(Field::IcmpType), SOLICIT | ADVERT)
        && key.read_field(Field::IcmpCode) == 0
}
