//! The content of a row of the field table: [`FieldSpec`].

use super::{Field, Position, Prerequisite};

/// How the value of a field is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notation {
    /// A number in decimal.
    Decimal,
    /// A number in hexadecimal, with `0x`.
    Hexadecimal,
    /// `02:00:00:00:00:01`.
    Mac,
    /// `192.0.2.1`.
    Ipv4,
    /// `2001:db8::1`.
    Ipv6,
}

/// The rules for writing a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Actions of OVN's language and of the ofctl language.
    ReadWrite,
    /// No action.
    ReadOnly,
    /// Only the switch itself, when it generates a reply or pushes a VLAN tag.
    SwitchOnly,
    /// Only OVN's `ct_commit { ... }`.
    CtCommit,
    /// Actions of Open vSwitch that weft does not support; the text gives the reason.
    Unsupported(&'static str),
}

/// A member of `struct weft_key` (`bpf/intf.h`), the key of the kernel datapath.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelMember {
    /// `port`.
    Port,
    /// `eth_dst`.
    EthDst,
    /// `eth_src`.
    EthSrc,
    /// `vlan`.
    Vlan,
    /// `ip`.
    Ip,
    /// `transport`.
    Transport,
    /// `l3`, four words.
    L3,
    /// `nd`, three words.
    Nd,
    /// `tun_id`.
    TunId,
    /// `tun_flags`.
    TunFlags,
    /// `tun_metadata`.
    TunMetadata,
    /// `tun_addr`, four words.
    TunAddr,
}

/// The frames in whose kernel key a word is present; `enum weft_shape` in `bpf/intf.h` tells them
/// apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelShape {
    /// All frames: the word is never used for anything else.
    Any,
    /// IPv4.
    Ip4,
    /// IPv6.
    Ip6,
    /// ARP and reverse ARP.
    Arp,
    /// Neighbour solicitations.
    NdSolicit,
    /// Neighbour advertisements.
    NdAdvert,
    /// Frames that no tunnel with outer IPv6 addresses delivered.
    Tunnel4,
    /// Frames that a tunnel with outer IPv6 addresses delivered.
    Tunnel6,
}

/// Where the key of the kernel datapath holds a word of the flow key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelWord {
    /// In a member of `struct weft_key`.
    Held {
        /// The member.
        member: KernelMember,
        /// The word within the member, from 0.
        index: u8,
        /// The frames whose key has it. In other frames the place holds something else, or 0.
        shape: KernelShape,
    },
    /// Nowhere: only the pipeline writes the word, so it is 0 in every frame that arrives.
    Register,
    /// Nowhere: the user datapath handles flows that depend on the field.
    NotHeld,
}

/// How values of a field are written in the ofctl language (ovs-fields(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfctlSyntax {
    /// A number in this [`Notation`], with an optional prefix length or mask after a `/`.
    Number(Notation),
    /// An EtherType: hexadecimal with four digits.
    EtherType,
    /// A port of the bridge, by number or name.
    Port,
    /// `no`, `yes`, `first`, `later` or `not_later`.
    Fragment,
    /// Flag names joined by `|`, or each after a `+` or `-`. The table gives the bit of each name.
    Flags(&'static [(&'static str, u8)]),
    /// The type of service without the two bits of ECN.
    Tos,
    /// A VLAN identifier, or 0xffff for a frame without a tag.
    DlVlan,
    /// A VLAN identifier, plus 0x1000 if the frame has a tag.
    VlanVid,
    /// A VLAN priority; only tagged frames match.
    VlanPcp,
    /// The value of a tunnel option that must be present: 0 to 3.
    TunnelOption(u8),
}

/// A symbol of OVN's language (ovn-sb(5)) that stands for a field or some bits of one.
#[derive(Clone, Copy, Debug)]
pub struct OvnSymbol {
    /// The name.
    pub name: &'static str,
    /// The lowest bit of the field that the symbol covers.
    pub first: u8,
    /// The number of bits; 0 for all bits of the field.
    pub width: u8,
    /// The supported comparisons.
    pub kind: OvnKind,
    /// The condition that must hold, an expression of OVN's language; `None` for the field's own
    /// [`Prerequisite`].
    pub prerequisite: Option<&'static str>,
}

/// The comparisons that an [`OvnSymbol`] supports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OvnKind {
    /// Numbers: equality and order.
    Ordinal,
    /// Numbers: only equality.
    Nominal,
    /// Names of logical ports and multicast groups: only equality.
    PortName,
}

/// How OpenFlow messages name a field: OXM (OpenFlow 1.3.5 section 7.2.3.2), and its predecessor
/// NXM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OxmHeader {
    /// The vendor or standard that assigned the number.
    pub class: u16,
    /// The number, 0 to 127.
    pub number: u8,
    /// The length of the value, in bytes.
    pub len: u8,
}

/// A name of a field in the ofctl language (ovs-fields(7)).
#[derive(Clone, Copy, Debug)]
pub struct OfctlName {
    /// The name in printed actions.
    pub name: &'static str,
    /// Other accepted names, those of NXM and OXM included.
    pub aliases: &'static [&'static str],
    /// The name in printed matches; empty when they use another name of the field.
    pub shown: &'static str,
    /// How values are written; `None` for the field's [`Notation`].
    pub syntax: Option<OfctlSyntax>,
    /// The width in bits according to ovs-fields(7); 0 for the width of weft's field.
    pub width: u8,
    /// The number of low bits that Open vSwitch's field has and weft's field lacks.
    pub missing_low_bits: u8,
    /// The lowest bit of weft's field that Open vSwitch's field covers.
    pub first: u8,
    /// Whether a match may have a mask.
    pub maskable: bool,
    /// The condition on frames; `None` for the field's own [`Prerequisite`].
    pub prerequisite: Option<Prerequisite>,
    /// The header in OpenFlow messages; `None` if messages use another name of the field, or none.
    pub oxm: Option<OxmHeader>,
}

/// All properties of a field, one for each row of the table in `field/table.rs`.
#[derive(Clone, Copy, Debug)]
pub struct FieldSpec {
    /// The field.
    pub field: Field,
    /// The name in weft's output and JSON: OVN's with `.` written `_`.
    pub name: &'static str,
    /// The description of the field, one or two sentences.
    pub description: &'static str,
    /// The 64-bit word of the key that holds the field, or the upper half of one of 128 bits.
    pub word: u8,
    /// Bits to the right of the field in its word.
    pub shift: u8,
    /// Bits, 2 to 128.
    pub width: u8,
    /// How values are written.
    pub notation: Notation,
    /// Whether values are allotted in prefixes, as addresses and ports are.
    pub in_prefixes: bool,
    /// What a frame must be to have the field.
    pub prerequisite: Prerequisite,
    /// The rules for writing the field.
    pub access: Access,
    /// Where the kernel datapath keeps it.
    pub kernel: KernelWord,
    /// Its symbols in OVN's language.
    pub ovn: &'static [OvnSymbol],
    /// Its names in the ofctl language.
    pub ofctl: &'static [OfctlName],
}

/// A row with the defaults: hexadecimal, present in any frame, writable, no names in other
/// languages.
pub(super) const fn row(
    name: &'static str,
    word: u8,
    shift: u8,
    width: u8,
    kernel: KernelWord,
) -> FieldSpec {
    FieldSpec {
        // The table replaces this default.
        field: Field::InPort,
        description: "",
        name,
        word,
        shift,
        width,
        notation: Notation::Hexadecimal,
        in_prefixes: false,
        prerequisite: Prerequisite::Nothing,
        access: Access::ReadWrite,
        kernel,
        ovn: &[],
        ofctl: &[],
    }
}

impl FieldSpec {
    /// The place in the key.
    pub(super) const fn position(&self) -> Position {
        Position { word: self.word, shift: self.shift, width: self.width }
    }
}

/// Methods that replace the defaults of `row`.
impl FieldSpec {
    pub(super) const fn notation(self, notation: Notation) -> Self {
        Self { notation, ..self }
    }

    pub(super) const fn in_prefixes(self) -> Self {
        Self { in_prefixes: true, ..self }
    }

    pub(super) const fn needs(self, prerequisite: Prerequisite) -> Self {
        Self { prerequisite, ..self }
    }

    pub(super) const fn access(self, access: Access) -> Self {
        Self { access, ..self }
    }

    pub(super) const fn ovn(self, ovn: &'static [OvnSymbol]) -> Self {
        Self { ovn, ..self }
    }

    pub(super) const fn ofctl(self, ofctl: &'static [OfctlName]) -> Self {
        Self { ofctl, ..self }
    }
}

/// A symbol for the whole field, with the field's own prerequisite.
pub(super) const fn ovn(name: &'static str) -> OvnSymbol {
    OvnSymbol { name, first: 0, width: 0, kind: OvnKind::Ordinal, prerequisite: None }
}

/// A symbol for the bits `first` to `last` of the field.
pub(super) const fn ovn_bits(name: &'static str, first: u8, last: u8) -> OvnSymbol {
    OvnSymbol { first, width: last - first + 1, ..ovn(name) }
}

impl OvnSymbol {
    pub(super) const fn needs(self, prerequisite: &'static str) -> Self {
        Self { prerequisite: Some(prerequisite), ..self }
    }

    pub(super) const fn nominal(self) -> Self {
        Self { kind: OvnKind::Nominal, ..self }
    }

    pub(super) const fn port_name(self) -> Self {
        Self { kind: OvnKind::PortName, ..self }
    }
}

/// A name for the whole field: shown in matches, maskable, and with the field's prerequisite.
pub(super) const fn ofctl(name: &'static str) -> OfctlName {
    OfctlName {
        name,
        aliases: &[],
        shown: name,
        syntax: None,
        width: 0,
        missing_low_bits: 0,
        first: 0,
        maskable: true,
        prerequisite: None,
        oxm: None,
    }
}

/// OXM class of the fields that Nicira defined for Open vSwitch.
pub(super) const NICIRA: u16 = 1;
/// OXM class of the OpenFlow 1.0 fields in Nicira's numbering.
pub(super) const NICIRA_BASIC: u16 = 0;
/// OXM class of the fields that OpenFlow defines.
pub(super) const OPENFLOW: u16 = 0x8000;
/// OXM class of register pairs (OpenFlow 1.5).
pub(super) const PACKET_REGS: u16 = 0x8001;

impl OfctlName {
    pub(super) const fn oxm(self, class: u16, number: u8, len: u8) -> Self {
        Self { oxm: Some(OxmHeader { class, number, len }), ..self }
    }

    pub(super) const fn also(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    pub(super) const fn shown(self, shown: &'static str) -> Self {
        Self { shown, ..self }
    }

    /// Printed matches use another name of the field.
    pub(super) const fn unshown(self) -> Self {
        Self { shown: "", ..self }
    }

    pub(super) const fn syntax(self, syntax: OfctlSyntax) -> Self {
        Self { syntax: Some(syntax), ..self }
    }

    pub(super) const fn width(self, width: u8) -> Self {
        Self { width, ..self }
    }

    pub(super) const fn missing_low_bits(self, missing_low_bits: u8) -> Self {
        Self { missing_low_bits, ..self }
    }

    pub(super) const fn first(self, first: u8) -> Self {
        Self { first, ..self }
    }

    /// A match has no mask.
    pub(super) const fn exact(self) -> Self {
        Self { maskable: false, ..self }
    }

    pub(super) const fn needs(self, prerequisite: Prerequisite) -> Self {
        Self { prerequisite: Some(prerequisite), ..self }
    }
}

/// The word is in a member of the kernel datapath's key that holds nothing else.
pub(super) const fn held(member: KernelMember) -> KernelWord {
    in_shape(member, 0, KernelShape::Any)
}

/// The word is word `index` of a member of the kernel datapath's key. In frames of other shapes,
/// the member holds other fields.
pub(super) const fn in_shape(member: KernelMember, index: u8, shape: KernelShape) -> KernelWord {
    KernelWord::Held { member, index, shape }
}

/// The TCP flags of RFC 9293 and RFC 3540, with their bit numbers.
pub(super) const TCP_FLAGS: &[(&str, u8)] = &[
    ("fin", 0),
    ("syn", 1),
    ("rst", 2),
    ("psh", 3),
    ("ack", 4),
    ("urg", 5),
    ("ece", 6),
    ("cwr", 7),
    ("ns", 8),
];
pub(super) const CT_STATE: &[(&str, u8)] = &[
    ("new", 0),
    ("est", 1),
    ("rel", 2),
    ("rpl", 3),
    ("inv", 4),
    ("trk", 5),
    ("snat", 6),
    ("dnat", 7),
];
pub(super) const TUN_FLAGS: &[(&str, u8)] = &[("oam", 0)];
/// The lowest bit of the priority in [`Field::VlanTci`].
pub(super) const VLAN_PCP_FIRST: u8 = 13;

/// Generates the enumeration `Field` and the tables of its rows.
macro_rules! fields {
    (
        $($(#[doc = $doc:literal])+ $variant:ident = $row:expr,)+
        ---
        $($(#[doc = $alias_doc:literal])+ $alias:ident = $alias_row:expr,)+
    ) => {
        /// A field of a flow key. `Xreg*` and `Xxreg*` are other names for two or four registers.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum Field {
            $($(#[doc = $doc])+ $variant,)+
            $($(#[doc = $alias_doc])+ $alias,)+
        }

        /// The rows, in the order of the enumeration.
        pub(super) static SPECS: &[FieldSpec] = &[
            $(FieldSpec { field: Field::$variant, description: concat!($($doc),+), ..$row },)+
            $(FieldSpec {
                field: Field::$alias,
                description: concat!($($alias_doc),+),
                ..$alias_row
            },)+
        ];

        /// The positions of the fields in the key. A separate table, so that the compiler can fold
        /// positions into constants.
        pub(super) const POSITIONS: &[Position] = &[
            $($row.position(),)+
            $($alias_row.position(),)+
        ];

        /// Whether the values of each row are allotted in prefixes.
        pub(super) const IN_PREFIXES: &[bool] =
            &[$($row.in_prefixes,)+ $($alias_row.in_prefixes,)+];

        /// Where the kernel's key holds each row.
        pub(super) const KERNEL: &[KernelWord] = &[$($row.kernel,)+];

        impl Field {
            /// Every field once, in the order of the key; aliases are not among them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];
            /// The fields that are another name for several registers together.
            pub const ALIASES: &[Self] = &[$(Self::$alias,)+];
        }
    };
}

pub(super) use fields;
