//! The names of fields in the syntax of ovs-ofctl, as ovs-fields(7) lists them.
//!
//! The names, their prerequisites and the way values are written come from the table of fields
//! ([`flow::FieldSpec`]). This module finds a field by a name, and checks whether a match meets the
//! prerequisite of a name.

use flow::{Access, Field, Match, OfctlName, OfctlSyntax, Prerequisite, Subfield};
use std::collections::HashMap;
use std::sync::LazyLock;

/// The header fields that determine the type of a packet, if the match requires an exact value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PacketKind {
    pub ethertype: Option<u16>,
    pub protocol: Option<u8>,
    pub icmp_type: Option<u8>,
    pub icmp_code: Option<u8>,
    pub tagged: bool,
}

pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
pub(super) const ARP: u16 = 0x0806;
pub(super) const RARP: u16 = 0x8035;
const ICMP4: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP6: u8 = 58;
const SCTP: u8 = 132;
/// The bit of [`Field::VlanTci`] that is set in tagged frames.
pub(super) const TAGGED: u128 = flow::TAG_PRESENT as u128;

impl PacketKind {
    pub fn of(condition: &Match) -> Self {
        let exact = |field: Field| {
            let whole = condition.mask().get(field) == field.all_ones();
            whole.then(|| condition.key().get(field) as u16)
        };
        Self {
            ethertype: exact(Field::EthType),
            protocol: exact(Field::IpProto).map(|value| value as u8),
            icmp_type: exact(Field::IcmpType).map(|value| value as u8),
            icmp_code: exact(Field::IcmpCode).map(|value| value as u8),
            tagged: condition.mask().get(Field::VlanTci)
                & condition.key().get(Field::VlanTci)
                & TAGGED
                != 0,
        }
    }

    /// True when every packet of the match meets a prerequisite.
    pub fn meets(&self, prerequisite: Prerequisite) -> bool {
        if prerequisite == Prerequisite::Vlan {
            return self.tagged;
        }
        let requirement = prerequisite.requirement();
        if requirement.frame_kinds.is_empty() {
            return true;
        }
        let kind =
            requirement.frame_kinds.iter().find(|kind| self.ethertype == Some(kind.eth_type));
        let Some(kind) = kind else { return false };
        let protocol = kind.ip_protos.is_empty()
            || self.protocol.is_some_and(|protocol| kind.ip_protos.contains(&protocol));
        // Key extraction reads the neighbour discovery fields only from ICMPv6 messages with code
        // 0.
        let icmp = requirement.icmp_types.is_empty()
            || self.icmp_type.is_some_and(|kind| requirement.icmp_types.contains(&kind))
                && self.icmp_code.unwrap_or(0) == 0;
        protocol && icmp
    }
}

/// A field under one of its names.
#[derive(Clone, Debug)]
pub(super) struct Name {
    /// Its name in actions.
    pub name: &'static str,
    /// Other accepted names, including those of NXM and OXM.
    aliases: &'static [&'static str],
    /// Its name in printed matches; empty if matches show the field under another name.
    pub shown: &'static str,
    pub field: Field,
    /// The width in bits by ovs-fields(7).
    pub width: u8,
    /// The number of low bits in ovs-fields(7) that weft's field does not have.
    pub missing_low_bits: u8,
    /// The lowest bit of weft's field that belongs to this name.
    first: u8,
    pub syntax: OfctlSyntax,
    /// Whether a match on it can have a mask.
    pub maskable: bool,
    pub prerequisite: Prerequisite,
    pub access: Access,
}

impl Name {
    fn new(field: Field, name: &OfctlName) -> Self {
        let spec = field.spec();
        Self {
            name: name.name,
            aliases: name.aliases,
            shown: name.shown,
            field,
            width: if name.width == 0 { spec.width } else { name.width },
            missing_low_bits: name.missing_low_bits,
            first: name.first,
            syntax: name.syntax.unwrap_or(OfctlSyntax::Number(spec.notation)),
            maskable: name.maskable,
            prerequisite: name.prerequisite.unwrap_or(spec.prerequisite),
            access: spec.access,
        }
    }

    /// The bits `first` to `first + width - 1`, as ovs-fields(7) counts them; `None` for bits that
    /// the field does not have.
    pub fn bits(&self, first: u8, width: u8) -> Option<Subfield> {
        let within = u16::from(first) + u16::from(width) <= u16::from(self.width);
        let first = first.checked_sub(self.missing_low_bits)?.checked_add(self.first)?;
        Subfield::new(self.field, first, width).filter(|_| within)
    }

    /// True for a field that is shown under this name.
    pub fn is_shown(&self) -> bool {
        !self.shown.is_empty()
    }
}

/// Fields that are printed before the shorthand for the packet type.
pub(super) const BEFORE_KIND: [Field; 5] =
    [Field::PktMark, Field::CtState, Field::CtZone, Field::CtMark, Field::CtLabel];

/// The order in which the fields of a match are printed, as in ovs-ofctl(8). Other fields follow in
/// the order of the key.
const ORDER: &[Field] = &[
    Field::PktMark,
    Field::CtState,
    Field::CtZone,
    Field::CtMark,
    Field::CtLabel,
    Field::Reg0,
    Field::Reg1,
    Field::Reg2,
    Field::Reg3,
    Field::Reg4,
    Field::Reg5,
    Field::Reg6,
    Field::Reg7,
    Field::Reg8,
    Field::Reg9,
    Field::Reg10,
    Field::Reg11,
    Field::Reg12,
    Field::Reg13,
    Field::Reg14,
    Field::Reg15,
    Field::TunId,
    Field::TunSrc,
    Field::TunDst,
    Field::TunIpv6Src,
    Field::TunIpv6Dst,
    Field::TunTos,
    Field::TunTtl,
    Field::TunFlags,
    Field::TunMetadata0,
    Field::TunMetadata1,
    Field::TunMetadata2,
    Field::TunMetadata3,
    Field::Metadata,
    Field::InPort,
    Field::VlanTci,
    Field::EthSrc,
    Field::EthDst,
    Field::EthType,
    Field::Ip4Src,
    Field::Ip4Dst,
    Field::Ip6Src,
    Field::Ip6Dst,
    Field::Ip6Label,
    Field::IpProto,
    Field::IpDscp,
    Field::IpEcn,
    Field::IpTtl,
    Field::IpFrag,
    Field::ArpSpa,
    Field::ArpTpa,
    Field::ArpOp,
    Field::ArpSha,
    Field::ArpTha,
    Field::TpSrc,
    Field::TpDst,
    Field::TcpFlags,
    Field::IcmpType,
    Field::IcmpCode,
    Field::NdTarget,
    Field::NdSll,
    Field::NdTll,
];

/// Every name, in the order in which matches are printed.
static NAMES: LazyLock<Vec<Name>> = LazyLock::new(|| {
    let others = Field::ALL.iter().filter(|field| !ORDER.contains(field));
    let fields = ORDER.iter().chain(others).chain(Field::ALIASES);
    let names = |&field: &Field| field.spec().ofctl.iter().map(move |name| Name::new(field, name));
    fields.flat_map(names).collect()
});

static BY_NAME: LazyLock<HashMap<&'static str, &'static Name, ahash::RandomState>> =
    LazyLock::new(|| {
        let mut names = HashMap::default();
        for entry in all() {
            names.insert(entry.name, entry);
            names.extend(entry.aliases.iter().map(|&alias| (alias, entry)));
        }
        names
    });

/// Every name, in the order in which matches are printed.
pub(super) fn all() -> impl Iterator<Item = &'static Name> {
    NAMES.iter()
}

/// The field with that name.
pub(super) fn find(name: &str) -> Option<&'static Name> {
    BY_NAME.get(name).copied()
}

/// The name of `field` that has exactly this prerequisite.
pub(super) fn of_field(field: Field, prerequisite: Prerequisite) -> Option<&'static Name> {
    all().find(|entry| entry.field == field && entry.prerequisite == prerequisite)
}

/// The shorthands for packet types: name, EtherType, IP protocol. Of several shorthands for one
/// type, the last one is printed.
pub(super) const SHORTHANDS: [(&str, u16, Option<u8>); 13] = [
    ("ip", IPV4, None),
    ("ip6", IPV6, None),
    ("ipv6", IPV6, None),
    ("arp", ARP, None),
    ("rarp", RARP, None),
    ("icmp", IPV4, Some(ICMP4)),
    ("icmp6", IPV6, Some(ICMP6)),
    ("tcp", IPV4, Some(TCP)),
    ("tcp6", IPV6, Some(TCP)),
    ("udp", IPV4, Some(UDP)),
    ("udp6", IPV6, Some(UDP)),
    ("sctp", IPV4, Some(SCTP)),
    ("sctp6", IPV6, Some(SCTP)),
];

/// True for a field of Open vSwitch that weft does not support.
pub(super) fn is_foreign(name: &str) -> bool {
    let is_it = |foreign: &str| match foreign.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == foreign,
    };
    flow::FOREIGN_FIELDS.iter().any(|foreign| is_it(foreign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_that_ovs_has_is_shown_under_one_name() {
        let lacking = [
            Field::TunMetadataPresent,
            Field::RecircId,
            Field::VlanTpid,
            Field::VlanInnerTpid,
            Field::VlanInnerTci,
        ];
        for &field in Field::ALL {
            let shown = all().filter(|entry| entry.field == field && entry.is_shown()).count();
            assert_eq!(shown, usize::from(!lacking.contains(&field)), "{field}");
        }
    }

    #[test]
    fn field_is_found_by_its_old_new_nxm_and_oxm_name() {
        for (name, field) in [
            ("nw_src", Field::Ip4Src),
            ("OXM_OF_IPV4_SRC", Field::Ip4Src),
            ("NXM_NX_REG15", Field::Reg15),
            ("NXM_NX_XXREG3", Field::Xxreg3),
            ("OXM_OF_PKT_REG7", Field::Xreg7),
            ("vlan_pcp", Field::VlanTci),
            ("udp_dst", Field::TpDst),
        ] {
            assert_eq!(find(name).map(|entry| entry.field), Some(field), "{name}");
        }
        assert!(find("vlan_tpid").is_none());
    }
}
