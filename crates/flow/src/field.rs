//! The fields of a [`FlowKey`](crate::FlowKey): names, widths, and where each is kept.
//!
//! A key is an array of 64-bit words in host byte order. A field lies within one word, or, when it has 128 bits, takes two
//! (the upper half first). Words are ordered by *stage*: what is known without reading the frame, layer 2, layer 3,
//! layer 4. A staged lookup reads the frame's layers one after another and stops at the first that excludes a match.

use std::fmt;
use std::ops::Range;

/// 64-bit words in a key.
pub const WORDS: usize = 41;

/// The words of each stage of a lookup: beside the frame (port, tunnel, pipeline registers), layer 2, 3 and 4.
pub const STAGES: [Range<usize>; 4] = [0..24, 24..27, 27..36, 36..WORDS];

/// The words that [`extract`](crate::extract()) fills in; the others belong to the pipeline and begin as 0.
pub const PACKET_WORDS: [Range<usize>; 2] = [0..12, 24..WORDS];

#[derive(Clone, Copy)]
struct Place {
    name: &'static str,
    word: u8,
    shift: u8,
    width: u8,
}

macro_rules! fields {
    (
        $($(#[doc = $doc:literal])+ $variant:ident $name:literal $word:literal $shift:literal $width:literal,)+
        ---
        $($(#[doc = $alias_doc:literal])+ $alias:ident $alias_name:literal $alias_word:literal $alias_width:literal,)+
    ) => {
        /// A field of a flow key. `Xreg*` and `Xxreg*` are other names for pairs and quadruples of registers.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum Field {
            $($(#[doc = $doc])+ $variant,)+
            $($(#[doc = $alias_doc])+ $alias,)+
        }

        const PLACES: &[Place] = &[
            $(Place { name: $name, word: $word, shift: $shift, width: $width },)+
            $(Place { name: $alias_name, word: $alias_word, shift: 0, width: $alias_width },)+
        ];

        impl Field {
            /// Every field once; fields that are only another name for others are not among them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];
            /// The fields that are another name for several registers together.
            pub const ALIASES: &[Self] = &[$(Self::$alias,)+];
        }
    };
}

fields! {
    /// The datapath port that the frame came in by; see [`PortNo`](crate::PortNo).
    InPort "in_port" 0 32 32,
    /// The mark that travels with a packet inside the host; begins as 0.
    PktMark "pkt_mark" 0 0 32,
    /// The tunnel's key: VNI, GRE key, or STT's 64-bit context; 0 without tunnel.
    TunId "tun_id" 1 0 64,
    /// Outer IPv4 source.
    TunSrc "tun_src" 2 32 32,
    /// Outer IPv4 destination.
    TunDst "tun_dst" 2 0 32,
    /// Flags of the tunnel; see [`tun_flags`](crate::tun_flags).
    TunFlags "tun_flags" 3 48 16,
    /// Type of service of the outer IP header.
    TunTos "tun_tos" 3 40 8,
    /// TTL or hop limit of the outer IP header.
    TunTtl "tun_ttl" 3 32 8,
    /// Which of `tun_metadata0` to `3` the packet brought: bit n for option n.
    TunMetadataPresent "tun_metadata_present" 3 24 8,
    /// Outer IPv6 source.
    TunIpv6Src "tun_ipv6_src" 4 0 128,
    /// Outer IPv6 destination.
    TunIpv6Dst "tun_ipv6_dst" 6 0 128,
    /// Tunnel option 0, right aligned. OVN's logical ports come here.
    TunMetadata0 "tun_metadata0" 8 0 64,
    /// Tunnel option 1.
    TunMetadata1 "tun_metadata1" 9 0 64,
    /// Tunnel option 2.
    TunMetadata2 "tun_metadata2" 10 0 64,
    /// Tunnel option 3.
    TunMetadata3 "tun_metadata3" 11 0 64,
    /// The logical datapath, in a logical pipeline.
    Metadata "metadata" 12 0 64,
    /// Pipeline register.
    Reg0 "reg0" 13 32 32,
    /// Pipeline register.
    Reg1 "reg1" 13 0 32,
    /// Pipeline register.
    Reg2 "reg2" 14 32 32,
    /// Pipeline register.
    Reg3 "reg3" 14 0 32,
    /// Pipeline register.
    Reg4 "reg4" 15 32 32,
    /// Pipeline register.
    Reg5 "reg5" 15 0 32,
    /// Pipeline register.
    Reg6 "reg6" 16 32 32,
    /// Pipeline register.
    Reg7 "reg7" 16 0 32,
    /// Pipeline register.
    Reg8 "reg8" 17 32 32,
    /// Pipeline register.
    Reg9 "reg9" 17 0 32,
    /// Pipeline register; OVN's `flags`.
    Reg10 "reg10" 18 32 32,
    /// Pipeline register.
    Reg11 "reg11" 18 0 32,
    /// Pipeline register.
    Reg12 "reg12" 19 32 32,
    /// Pipeline register.
    Reg13 "reg13" 19 0 32,
    /// Pipeline register; OVN's `inport`.
    Reg14 "reg14" 20 32 32,
    /// Pipeline register; OVN's `outport`.
    Reg15 "reg15" 20 0 32,
    /// Connection state; always 0, because there is no connection tracking yet.
    CtState "ct_state" 21 32 32,
    /// Connection mark; always 0.
    CtMark "ct_mark" 21 0 32,
    /// Connection label; always 0.
    CtLabel "ct_label" 22 0 128,
    /// Ethernet destination.
    EthDst "eth_dst" 24 16 48,
    /// EtherType behind at most two VLAN tags; the length field of an IEEE 802.3 frame becomes 0x05ff.
    EthType "eth_type" 24 0 16,
    /// Ethernet source.
    EthSrc "eth_src" 25 16 48,
    /// TPID of the outer tag; 0 without tag.
    VlanTpid "vlan_tpid" 26 48 16,
    /// Outer tag: PCP (3 bits), a bit that says that there is a tag (in the place of DEI), VID (12 bits).
    VlanTci "vlan_tci" 26 32 16,
    /// TPID of the second tag; 0 without.
    VlanInnerTpid "vlan_inner_tpid" 26 16 16,
    /// Second tag, as `vlan_tci`.
    VlanInnerTci "vlan_inner_tci" 26 0 16,
    /// IPv4 source.
    Ip4Src "ip4_src" 27 32 32,
    /// IPv4 destination.
    Ip4Dst "ip4_dst" 27 0 32,
    /// IPv6 source.
    Ip6Src "ip6_src" 28 0 128,
    /// IPv6 destination.
    Ip6Dst "ip6_dst" 30 0 128,
    /// Protocol behind the IP header and its extension headers.
    IpProto "ip_proto" 32 56 8,
    /// Differentiated services code point (RFC 2474).
    IpDscp "ip_dscp" 32 50 6,
    /// Explicit congestion notification (RFC 3168).
    IpEcn "ip_ecn" 32 48 2,
    /// TTL or hop limit.
    IpTtl "ip_ttl" 32 40 8,
    /// Bit 0: the packet is a fragment; bit 1: not the first one. 0, 1 and 3 occur.
    IpFrag "ip_frag" 32 32 2,
    /// IPv6 flow label.
    Ip6Label "ip6_label" 32 0 20,
    /// ARP sender protocol address.
    ArpSpa "arp_spa" 33 32 32,
    /// ARP target protocol address.
    ArpTpa "arp_tpa" 33 0 32,
    /// ARP sender hardware address.
    ArpSha "arp_sha" 34 16 48,
    /// ARP operation.
    ArpOp "arp_op" 34 0 16,
    /// ARP target hardware address.
    ArpTha "arp_tha" 35 16 48,
    /// Source port of TCP, UDP or SCTP; which, says `ip_proto`.
    TpSrc "tp_src" 36 48 16,
    /// Destination port of TCP, UDP or SCTP.
    TpDst "tp_dst" 36 32 16,
    /// TCP flags, 12 bits (RFC 9293, reserved bits included).
    TcpFlags "tcp_flags" 36 16 12,
    /// Type of ICMP or ICMPv6; which, says `ip_proto`.
    IcmpType "icmp_type" 36 8 8,
    /// Code of ICMP or ICMPv6.
    IcmpCode "icmp_code" 36 0 8,
    /// Target of a neighbour solicitation or advertisement (RFC 4861).
    NdTarget "nd_target" 37 0 128,
    /// Source link-layer address option of a neighbour solicitation; 0 without.
    NdSll "nd_sll" 39 16 48,
    /// Target link-layer address option of a neighbour advertisement; 0 without.
    NdTll "nd_tll" 40 16 48,
    ---
    /// `reg0` and `reg1`.
    Xreg0 "xreg0" 13 64,
    /// `reg2` and `reg3`.
    Xreg1 "xreg1" 14 64,
    /// `reg4` and `reg5`.
    Xreg2 "xreg2" 15 64,
    /// `reg6` and `reg7`.
    Xreg3 "xreg3" 16 64,
    /// `reg8` and `reg9`.
    Xreg4 "xreg4" 17 64,
    /// `reg10` and `reg11`.
    Xreg5 "xreg5" 18 64,
    /// `reg12` and `reg13`.
    Xreg6 "xreg6" 19 64,
    /// `reg14` and `reg15`.
    Xreg7 "xreg7" 20 64,
    /// `reg0` to `reg3`.
    Xxreg0 "xxreg0" 13 128,
    /// `reg4` to `reg7`.
    Xxreg1 "xxreg1" 15 128,
    /// `reg8` to `reg11`.
    Xxreg2 "xxreg2" 17 128,
    /// `reg12` to `reg15`.
    Xxreg3 "xxreg3" 19 128,
}

impl Field {
    const fn place(self) -> Place {
        PLACES[self as usize]
    }

    /// The name in weft's output.
    pub const fn name(self) -> &'static str {
        self.place().name
    }

    /// The field with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().chain(Self::ALIASES).copied().find(|field| field.name() == name)
    }

    /// Bits of the field, 2 to 128.
    pub const fn width(self) -> u8 {
        self.place().width
    }

    /// All bits of the field, right aligned.
    pub const fn all_ones(self) -> u128 {
        low_bits(self.width())
    }

    /// The word that holds the field, or the upper half of one of 128 bits.
    #[inline]
    pub const fn word(self) -> usize {
        self.place().word as usize
    }

    /// Bits to the right of the field in its word.
    #[inline]
    pub const fn shift(self) -> u8 {
        self.place().shift
    }

    /// True for a field that the pipeline alone writes and no packet carries: registers, `metadata`, marks, connection
    /// state. They begin as 0.
    pub const fn is_register(self) -> bool {
        matches!(self.word(), 12..24) || matches!(self, Self::PktMark)
    }

    /// True for a field that stands in the frame's headers.
    pub const fn is_header(self) -> bool {
        self.word() >= STAGES[1].start
    }

    /// Register `number`, 0 to 15.
    pub const fn reg(number: u8) -> Option<Self> {
        if number < 16 { Some(Self::ALL[Self::Reg0 as usize + number as usize]) } else { None }
    }

    /// The registers `2 * number` and `2 * number + 1` together, 0 to 7.
    pub const fn xreg(number: u8) -> Option<Self> {
        if number < 8 { Some(Self::ALIASES[number as usize]) } else { None }
    }

    /// The registers `4 * number` to `4 * number + 3` together, 0 to 3.
    pub const fn xxreg(number: u8) -> Option<Self> {
        if number < 4 { Some(Self::ALIASES[8 + number as usize]) } else { None }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The lowest `width` bits, 0 to 128.
#[inline]
pub const fn low_bits(width: u8) -> u128 {
    if width >= 128 { u128::MAX } else { (1 << width) - 1 }
}

/// Some neighbouring bits of a field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Subfield {
    field: Field,
    first: u8,
    width: u8,
}

impl Subfield {
    /// The bits `first` (0 is the lowest) to `first + width - 1` of `field`; `None` when it has fewer, or for no bits.
    pub const fn new(field: Field, first: u8, width: u8) -> Option<Self> {
        if width == 0 || first as u16 + width as u16 > field.width() as u16 {
            None
        } else {
            Some(Self { field, first, width })
        }
    }

    /// The whole of a field.
    pub const fn whole(field: Field) -> Self {
        Self { field, first: 0, width: field.width() }
    }

    /// One bit of a field, or none when it has fewer.
    pub const fn bit(field: Field, bit: u8) -> Option<Self> {
        Self::new(field, bit, 1)
    }

    /// Whose bits these are.
    #[inline]
    pub const fn field(self) -> Field {
        self.field
    }

    /// The lowest of the bits.
    #[inline]
    pub const fn first(self) -> u8 {
        self.first
    }

    /// How many.
    #[inline]
    pub const fn width(self) -> u8 {
        self.width
    }

    /// True for the whole field.
    pub const fn is_whole(self) -> bool {
        self.width == self.field.width()
    }

    /// The bits, right aligned in the *field*.
    #[inline]
    pub const fn field_mask(self) -> u128 {
        low_bits(self.width) << self.first
    }
}

impl From<Field> for Subfield {
    fn from(field: Field) -> Self {
        Self::whole(field)
    }
}

/// `name`, `name[bit]` or `name[first..last]`.
impl fmt::Display for Subfield {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field.name())?;
        match (self.is_whole(), self.width) {
            (true, _) => Ok(()),
            (false, 1) => write!(f, "[{}]", self.first),
            (false, width) => write!(f, "[{}..{}]", self.first, self.first + width - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_overlap_and_stay_in_their_words() {
        let mut taken = [0u64; WORDS];
        for &field in Field::ALL {
            let word = field.word();
            if field.width() == 128 {
                assert_eq!(taken[word] | taken[word + 1], 0, "{field}");
                taken[word] = u64::MAX;
                taken[word + 1] = u64::MAX;
            } else {
                assert!(field.shift() + field.width() <= 64, "{field}");
                let bits = (field.all_ones() as u64) << field.shift();
                assert_eq!(taken[word] & bits, 0, "{field}");
                taken[word] |= bits;
            }
        }
        assert!(taken.iter().all(|&word| word != 0));
    }

    #[test]
    fn fields_do_not_cross_stages() {
        assert_eq!(
            STAGES.iter().flat_map(Clone::clone).collect::<Vec<_>>(),
            (0..WORDS).collect::<Vec<_>>()
        );
        for &field in Field::ALL {
            let last = field.word() + usize::from(field.width() == 128);
            assert!(
                STAGES.iter().any(|s| s.contains(&field.word()) && s.contains(&last)),
                "{field}"
            );
        }
    }

    #[test]
    fn aliases_cover_the_registers_they_name() {
        for n in 0..8 {
            let (xreg, low) = (Field::xreg(n).unwrap(), Field::reg(2 * n + 1).unwrap());
            assert_eq!((xreg.word(), xreg.name()), (low.word(), format!("xreg{n}").as_str()));
        }
        for n in 0..4 {
            let (xxreg, high) = (Field::xxreg(n).unwrap(), Field::reg(4 * n).unwrap());
            assert_eq!((xxreg.word(), xxreg.name()), (high.word(), format!("xxreg{n}").as_str()));
        }
        assert_eq!((Field::reg(16), Field::xreg(8), Field::xxreg(4)), (None, None, None));
        assert_eq!(Field::reg(15), Some(Field::Reg15));
    }

    #[test]
    fn subfield_is_refused_beyond_its_field() {
        assert_eq!(Subfield::new(Field::IpEcn, 1, 2), None);
        assert_eq!(Subfield::new(Field::Reg0, 0, 0), None);
        assert_eq!(Subfield::new(Field::Ip6Src, 127, 1).map(Subfield::field_mask), Some(1 << 127));
        assert_eq!(Subfield::bit(Field::Reg3, 4).unwrap().to_string(), "reg3[4]");
    }
}
