//! [`KernelKey`] and [`KernelMatch`]: keys and megaflows in the layout of the kernel datapath.
//!
//! The kernel's key (`struct weft_key`) consists of words of the [`FlowKey`], unchanged. Words that
//! no frame has together share a place: the addresses of IPv4, IPv6 and ARP, for instance. A
//! *shape*, which is part of the key, tells which of them is present. If the flow keys of two
//! frames differ in a bit that the kernel's key holds, then their kernel's keys differ, too: either
//! both have the same shape, and the bit is at the same place, or their shapes differ.
//!
//! Two rules make the conversion of a megaflow sound:
//!
//! - A mask with bits in a shared place gets the bits of the shape as well, so that only frames of
//!   the same shape are compared.
//! - A mask with bits in a word that the shape lacks gets the bits of the shape instead: the word
//!   is 0 in every frame of that shape.
//!
//! The place of each word comes from the table of fields ([`flow::KernelWord`]).

use crate::abi;
use crate::layout::{self, WORDS};
use flow::{Field, FlowKey, FlowMask, KernelMember, KernelShape, KernelWord, Match};
use std::fmt;
use wire::icmp::nd;
use wire::{EtherType, Protocol};

/// Which headers a frame has: the bits of `enum weft_shape` in `bpf/intf.h`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape(u64);

impl Shape {
    const IP4: u64 = abi::WEFT_L3_IP4 as u64;
    const IP6: u64 = abi::WEFT_L3_IP6 as u64;
    const ARP: u64 = abi::WEFT_L3_ARP as u64;
    /// The bits of all three layer-3 protocols.
    const L3: u64 = Self::IP4 | Self::IP6 | Self::ARP;
    const ND: u64 = abi::WEFT_ND as u64;
    const ND_ADVERT: u64 = abi::WEFT_ND_ADVERT as u64;
    const TUNNEL: u64 = abi::WEFT_TUNNEL as u64;
    const TUNNEL6: u64 = abi::WEFT_TUNNEL6 as u64;

    fn of(key: &FlowKey) -> Self {
        let get = |field| key.get(field);
        let l3 = match EtherType(get(Field::EthType) as u16) {
            EtherType::IPV4 => Self::IP4,
            EtherType::IPV6 => Self::IP6,
            EtherType::ARP | EtherType::RARP => Self::ARP,
            _ => 0,
        };
        let is_icmp6 = Protocol(get(Field::IpProto) as u8) == Protocol::ICMPV6;
        let is_nd = l3 == Self::IP6 && is_icmp6 && get(Field::IcmpCode) == 0;
        let nd = match get(Field::IcmpType) as u8 {
            nd::NEIGHBOR_SOLICITATION if is_nd => Self::ND,
            nd::NEIGHBOR_ADVERTISEMENT if is_nd => Self::ND | Self::ND_ADVERT,
            _ => 0,
        };
        // For every tunnel packet, `bpf/decap.h` sets the outer addresses. They are not 0.
        let tunnel = if any(key, FIRST_TUNNEL_WORD..TUNNEL_END) { Self::TUNNEL } else { 0 };
        let tunnel6 = if has_word_of(key, KernelShape::Tunnel6) { Self::TUNNEL6 } else { 0 };
        Self(l3 | nd | tunnel | tunnel6)
    }

    /// The bits that tell frames of `shape` from all others.
    const fn bits_of(shape: KernelShape) -> u64 {
        match shape {
            KernelShape::Any => 0,
            KernelShape::Ip4 | KernelShape::Ip6 | KernelShape::Arp => Self::L3,
            KernelShape::NdSolicit | KernelShape::NdAdvert => Self::ND | Self::ND_ADVERT,
            KernelShape::Tunnel4 | KernelShape::Tunnel6 => Self::TUNNEL | Self::TUNNEL6,
        }
    }

    /// True when frames of this shape have the words of `shape`.
    const fn has(self, shape: KernelShape) -> bool {
        let nd = self.0 & (Self::ND | Self::ND_ADVERT);
        match shape {
            KernelShape::Any => true,
            KernelShape::Ip4 => self.0 & Self::L3 == Self::IP4,
            KernelShape::Ip6 => self.0 & Self::L3 == Self::IP6,
            KernelShape::Arp => self.0 & Self::L3 == Self::ARP,
            KernelShape::NdSolicit => nd == Self::ND,
            KernelShape::NdAdvert => nd == Self::ND | Self::ND_ADVERT,
            KernelShape::Tunnel4 => self.0 & Self::TUNNEL6 == 0,
            KernelShape::Tunnel6 => self.0 & Self::TUNNEL6 != 0,
        }
    }

    /// Where the kernel's key has `word` of a flow key, for frames of this shape.
    const fn position(self, word: usize) -> KernelPosition {
        match PLACES[word] {
            KernelWord::Held { member, index, shape: KernelShape::Any } => {
                KernelPosition::Own(word_of(member) + index as usize)
            }
            KernelWord::Held { member, index, shape } => {
                let bits = Self::bits_of(shape);
                if self.has(shape) {
                    KernelPosition::Shared { at: word_of(member) + index as usize, bits }
                } else {
                    KernelPosition::Absent { bits }
                }
            }
            KernelWord::Register => KernelPosition::Register,
            KernelWord::NotHeld => KernelPosition::NotHeld,
        }
    }
}

/// The first word of the tunnel in a flow key, and the word after the last.
const FIRST_TUNNEL_WORD: usize = Field::TunId.word();
const TUNNEL_END: usize = Field::Metadata.word();

fn any(key: &FlowKey, words: std::ops::Range<usize>) -> bool {
    key.words()[words].iter().any(|&word| word != 0)
}

/// True when a word that only `shape` has is not 0.
fn has_word_of(key: &FlowKey, shape: KernelShape) -> bool {
    let is_of_shape =
        |place: &KernelWord| matches!(place, KernelWord::Held { shape: of, .. } if *of == shape);
    key.words().iter().zip(&PLACES).any(|(&word, place)| word != 0 && is_of_shape(place))
}

/// The word of the kernel's key at which a member begins.
const fn word_of(member: KernelMember) -> usize {
    match member {
        KernelMember::Port => layout::PORT,
        KernelMember::EthDst => layout::ETH_DST,
        KernelMember::EthSrc => layout::ETH_SRC,
        KernelMember::Vlan => layout::VLAN,
        KernelMember::Ip => layout::IP,
        KernelMember::Transport => layout::TRANSPORT,
        KernelMember::L3 => layout::L3,
        KernelMember::Nd => layout::ND,
        KernelMember::TunId => layout::TUN_ID,
        KernelMember::TunFlags => layout::TUN_FLAGS,
        KernelMember::TunMetadata => layout::TUN_METADATA,
        KernelMember::TunAddr => layout::TUN_ADDR,
    }
}

/// Where the kernel's key has each word of a flow key, by the table of fields.
static PLACES: [KernelWord; flow::WORDS] = flow::KERNEL_WORDS;

/// Where the kernel's key has a word of a flow key, for one shape.
enum KernelPosition {
    /// At this word, in every shape. It is 0 in shapes that lack it.
    Own(usize),
    /// At this word, in this shape; other shapes, told apart by `bits`, have another word there.
    Shared { at: usize, bits: u64 },
    /// Nowhere: frames of this shape, told apart by `bits`, lack the word, so that it is 0.
    Absent { bits: u64 },
    /// Nowhere: only the pipeline writes the word, so that it is 0.
    Register,
    /// Nowhere, although frames may have it.
    NotHeld,
}

/// The kernel datapath's key of a frame: `struct weft_key` of `bpf/intf.h`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelKey([u64; WORDS]);

/// The bits of a [`KernelKey`] that a megaflow depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelMask([u64; WORDS]);

/// Converts the flow key of a frame, as [`flow::extract()`](flow::extract()) returns it.
impl From<&FlowKey> for KernelKey {
    fn from(key: &FlowKey) -> Self {
        let shape = Shape::of(key);
        let mut words = [0; WORDS];
        for (word, &value) in key.words().iter().enumerate() {
            if let KernelPosition::Own(at) | KernelPosition::Shared { at, .. } =
                shape.position(word)
            {
                words[at] = value;
            }
        }
        words[layout::PORT] = words[layout::PORT] & IN_PORT | shape.0;
        Self(words)
    }
}

/// The bits of the ingress port in the first word of a key. In a flow key, the other bits are the
/// packet mark, which is 0 on arrival. In a kernel's key, they are the shape.
const IN_PORT: u64 = (Field::InPort.all_ones() as u64) << Field::InPort.shift();

macro_rules! words {
    ($name:ident) => {
        impl $name {
            /// The words, in the order of `struct weft_key`.
            pub const fn words(&self) -> &[u64; WORDS] {
                &self.0
            }

            /// From the words of `struct weft_key`.
            pub const fn from_words(words: [u64; WORDS]) -> Self {
                Self(words)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_list().entries(self.0.iter().map(|word| format!("{word:016x}"))).finish()
            }
        }
    };
}

words!(KernelKey);
words!(KernelMask);

impl KernelMask {
    /// The key with every bit outside the mask cleared.
    pub fn apply(&self, key: &KernelKey) -> KernelKey {
        KernelKey(std::array::from_fn(|at| key.0[at] & self.0[at]))
    }
}

/// A megaflow depends on a field that the kernel's key does not hold, so that it must stay in the
/// user datapath.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the kernel's key does not hold {0}")]
pub struct FieldNotInKey(pub Field);

/// A megaflow in the kernel's layout: the frames that agree with `key` on the bits of `mask`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KernelMatch {
    key: KernelKey,
    mask: KernelMask,
}

impl KernelMatch {
    /// The megaflow of a frame with `key`, from [`flow::extract()`](flow::extract()), that depends
    /// on the bits of `mask`. It serves no frame that differs from `key` on those bits; it may
    /// serve fewer frames than `mask` allows.
    ///
    /// # Errors
    /// [`FieldNotInKey`] when the mask has bits that the kernel's key does not hold, or when the
    /// key has bits that no frame of its shape has.
    pub fn new(key: &FlowKey, mask: &FlowMask) -> Result<Self, FieldNotInKey> {
        let shape = Shape::of(key);
        let mut words = [0; WORDS];
        let mut shape_bits = 0;
        for (word, &bits) in mask.words().iter().enumerate() {
            if bits == 0 {
                continue;
            }
            let is_set = key.words()[word] & bits != 0;
            match shape.position(word) {
                // The mark beside the port is 0 in every frame that arrives.
                KernelPosition::Own(layout::PORT) if key.words()[word] & bits & !IN_PORT != 0 => {
                    return Err(FieldNotInKey(Field::PktMark));
                }
                KernelPosition::Own(at) => words[at] |= bits,
                KernelPosition::Shared { at, bits: shape } => {
                    words[at] |= bits;
                    shape_bits |= shape;
                }
                // No frame has such a bit: the key is not that of a frame. Leaving the bits out
                // would serve frames that do not match.
                KernelPosition::Absent { .. } | KernelPosition::Register if is_set => {
                    return Err(FieldNotInKey(field_of(word, key.words()[word] & bits)));
                }
                KernelPosition::Absent { bits: shape } => shape_bits |= shape,
                KernelPosition::Register => {}
                KernelPosition::NotHeld => return Err(FieldNotInKey(field_of(word, bits))),
            }
        }
        words[layout::PORT] = words[layout::PORT] & IN_PORT | shape_bits;
        let mask = KernelMask(words);
        Ok(Self { key: mask.apply(&KernelKey::from(key)), mask })
    }

    /// The megaflow for a condition. `example` is a key that meets the condition, if one is known;
    /// the megaflow then serves frames like it.
    ///
    /// # Errors
    /// As [`KernelMatch::new`].
    pub fn of(condition: &Match, example: Option<&FlowKey>) -> Result<Self, FieldNotInKey> {
        match example.filter(|key| condition.matches(key)) {
            Some(key) => Self::new(key, condition.mask()),
            None => Self::new(&with_eth_type(condition), condition.mask()),
        }
    }

    /// A megaflow found in the maps of the programs, by its key and mask.
    pub fn from_parts(key: KernelKey, mask: KernelMask) -> Self {
        Self { key: mask.apply(&key), mask }
    }

    /// The flow key of every frame that the megaflow serves meets this condition. It is at least as
    /// strict as the condition from which the megaflow was made.
    pub fn condition(&self) -> Match {
        let shape = Shape(self.key.0[layout::PORT]);
        let shape_bits = self.mask.0[layout::PORT] & !IN_PORT;
        let (mut key, mut mask) = (FlowKey::default(), FlowMask::default());
        for word in 0..flow::WORDS {
            let (value, bits) = match shape.position(word) {
                KernelPosition::Own(at) => (self.key.0[at], self.mask.0[at]),
                KernelPosition::Shared { at, bits } if shape_bits & bits == bits => {
                    (self.key.0[at], self.mask.0[at])
                }
                KernelPosition::Absent { bits } if shape_bits & bits == bits => (0, u64::MAX),
                KernelPosition::Register => (0, u64::MAX),
                KernelPosition::Shared { .. }
                | KernelPosition::Absent { .. }
                | KernelPosition::NotHeld => (0, 0),
            };
            // The kernel's key has the shape in place of the packet mark, which is 0 on arrival.
            let (value, bits) =
                if word == 0 { (value & IN_PORT, bits | !IN_PORT) } else { (value, bits) };
            key.words_mut()[word] = value;
            mask.words_mut()[word] = bits;
        }
        Match::new(&key, mask)
    }

    /// The values, 0 outside the mask.
    pub const fn key(&self) -> &KernelKey {
        &self.key
    }

    /// The bits that matter.
    pub const fn mask(&self) -> &KernelMask {
        &self.mask
    }

    /// True when the megaflow serves frames with this key.
    pub fn matches(&self, key: &KernelKey) -> bool {
        self.mask.apply(key) == self.key
    }
}

/// A field that has some of these bits of a flow key's word.
fn field_of(word: usize, bits: u64) -> Field {
    let is_in = |field: &&Field| {
        let mut mask = FlowMask::default();
        mask.add(**field);
        mask.words()[word] & bits != 0
    };
    Field::ALL.iter().find(is_in).copied().unwrap_or(Field::InPort)
}

/// The key of a condition. Where the condition leaves the EtherType open, the key gets the one that
/// its addresses imply.
fn with_eth_type(condition: &Match) -> FlowKey {
    let mut key = condition.key().clone();
    let known = condition.mask().get(Field::EthType);
    let eth_type = match () {
        () if has_word_of(&key, KernelShape::Ip4) => EtherType::IPV4,
        () if has_word_of(&key, KernelShape::Ip6) => EtherType::IPV6,
        () if has_word_of(&key, KernelShape::Arp) => EtherType::ARP,
        () => return key,
    };
    let eth_type = u128::from(eth_type.0);
    if eth_type & known == key.get(Field::EthType) {
        key.set(Field::EthType, eth_type);
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::frames::{self, FrameKinds};
    use testkit::random::Random;

    const KINDS: FrameKinds =
        FrameKinds { supers: false, snap: false, malformed: true, max_payload: 200 };

    /// The key of a random frame, from a port, sometimes through a tunnel.
    fn random_key(random: &mut Random) -> FlowKey {
        loop {
            let frame = frames::frame(random, KINDS);
            let port = flow::PortNo(random.below(3) as u32);
            let Ok(mut key) = flow::extract(&frame, port, None) else { continue };
            if random.once_in(2) {
                random_tunnel(random, &mut key);
            }
            return key;
        }
    }

    fn random_tunnel(random: &mut Random, key: &mut FlowKey) {
        key.set(Field::TunId, random.below(3) as u128);
        key.set(Field::TunFlags, random.below(16) as u128);
        key.set(Field::TunTtl, 64);
        let few = |random: &mut Random| u128::from(random.word()) & 0x3_0000_0003 | 1;
        let [src, dst] = if random.once_in(2) {
            [Field::TunSrc, Field::TunDst]
        } else {
            [Field::TunIpv6Src, Field::TunIpv6Dst]
        };
        key.set(src, few(random));
        key.set(dst, few(random) << 64 | few(random));
        if random.once_in(2) {
            key.set(Field::TunMetadataPresent, 1);
            key.set(Field::TunMetadata0, random.below(4) as u128);
        }
    }

    /// Some bits of some fields that the kernel's key holds.
    fn random_mask(random: &mut Random) -> FlowMask {
        let mut mask = FlowMask::default();
        for _ in 0..random.below(6) {
            let field = random.pick(Field::ALL);
            match random.below(3) {
                0 => mask.add(field),
                1 => mask.add_bits(field, random.wide()),
                _ => mask.add_bits(field, field.all_ones() << random.below(128)),
            }
        }
        for field in [Field::TunMetadata1, Field::TunMetadata2, Field::TunMetadata3] {
            mask.words_mut()[field.word()] = 0;
        }
        mask
    }

    #[test]
    fn megaflow_serves_no_frame_that_differs_on_its_mask() {
        let mut random = Random::new(1);
        let keys: Vec<_> = (0..300).map(|_| random_key(&mut random)).collect();
        let mut served = 0;
        for _ in 0..3000 {
            let (of, mask) = (&keys[random.below(keys.len())], random_mask(&mut random));
            let megaflow =
                KernelMatch::new(of, &mask).expect("the kernel's key holds these fields");
            assert!(
                megaflow.matches(&KernelKey::from(of)),
                "{mask:?} of {of:?} does not serve its own frame"
            );
            for other in keys.iter().filter(|other| megaflow.matches(&KernelKey::from(*other))) {
                served += 1;
                assert!(mask.agree(of, other), "{mask:?} of {of:?} serves {other:?}");
            }
        }
        assert!(served > 10_000, "only {served} pairs were compared");
    }

    #[test]
    fn condition_covers_the_mask_and_is_met_by_every_frame_served() {
        let mut random = Random::new(4);
        let keys: Vec<_> = (0..300).map(|_| random_key(&mut random)).collect();
        let mut served = 0;
        for _ in 0..3000 {
            let (of, mask) = (&keys[random.below(keys.len())], random_mask(&mut random));
            let megaflow =
                KernelMatch::new(of, &mask).expect("the kernel's key holds these fields");
            let again = KernelMatch::from_parts(*megaflow.key(), *megaflow.mask());
            assert_eq!(again, megaflow);
            let condition = megaflow.condition();
            assert!(condition.mask().covers(&mask), "{condition:?} for {mask:?} of {of:?}");
            for other in keys.iter().filter(|other| megaflow.matches(&KernelKey::from(*other))) {
                served += 1;
                assert!(condition.matches(other), "{megaflow:?} serves {other:?}: {condition:?}");
            }
        }
        assert!(served > 10_000, "only {served} pairs were compared");
    }

    #[test]
    fn megaflow_without_an_example_serves_no_frame_that_differs_on_its_mask() {
        let mut random = Random::new(3);
        let keys: Vec<_> = (0..300).map(|_| random_key(&mut random)).collect();
        let (mut served, mut refused) = (0, 0);
        for _ in 0..3000 {
            let (of, mask) = (&keys[random.below(keys.len())], random_mask(&mut random));
            let condition = Match::new(of, mask);
            let Ok(megaflow) = KernelMatch::of(&condition, None) else {
                refused += 1;
                continue;
            };
            for other in keys.iter().filter(|other| megaflow.matches(&KernelKey::from(*other))) {
                served += 1;
                assert!(condition.matches(other), "{condition:?} of {of:?} serves {other:?}");
            }
            let exact =
                KernelMatch::of(&condition, Some(of)).expect("the kernel's key holds these fields");
            assert!(
                exact.matches(&KernelKey::from(of)),
                "{condition:?} does not serve its own frame"
            );
        }
        assert!(served > 10_000 && refused < 300, "{served} pairs, {refused} refused");
    }

    #[test]
    fn exact_megaflow_serves_only_frames_of_its_key() {
        let mut random = Random::new(2);
        let keys: Vec<_> = (0..1000).map(|_| random_key(&mut random)).collect();
        let exact = FlowMask::exact();
        for a in &keys {
            for b in &keys {
                let same = KernelKey::from(a) == KernelKey::from(b);
                assert_eq!(same, exact.agree(a, b), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn mask_is_refused_when_the_kernel_key_lacks_its_field() {
        for &field in Field::ALL {
            let mut mask = FlowMask::default();
            mask.add(field);
            let refused =
                matches!(field, Field::TunMetadata1 | Field::TunMetadata2 | Field::TunMetadata3);
            let expected = if refused { Some(FieldNotInKey(field)) } else { None };
            assert_eq!(KernelMatch::new(&FlowKey::default(), &mask).err(), expected, "{field}");
        }
    }

    #[test]
    fn condition_is_refused_when_no_arriving_frame_can_meet_it() {
        for &field in Field::ALL.iter().filter(|field| field.is_register()) {
            let mut mask = FlowMask::default();
            mask.add(field);
            let mut key = FlowKey::default();
            assert!(KernelMatch::new(&key, &mask).is_ok(), "{field} is 0 in every frame");
            key.set(field, field.all_ones() ^ field.all_ones() >> 1);
            let refused = KernelMatch::of(&Match::new(&key, mask.clone()), None);
            assert_eq!(refused, Err(FieldNotInKey(field)), "{field}");
            assert_eq!(KernelMatch::new(&key, &mask), Err(FieldNotInKey(field)), "{field}");
        }
    }

    #[test]
    fn mask_includes_the_shape_only_for_shared_words() {
        let mask = |fields: &[Field]| {
            let mut mask = FlowMask::default();
            fields.iter().for_each(|&field| mask.add(field));
            let megaflow = KernelMatch::new(&FlowKey::default(), &mask)
                .expect("the kernel's key holds these fields");
            megaflow.mask().words()[layout::PORT]
        };
        assert_eq!(mask(&[Field::EthDst, Field::VlanTci, Field::IpProto, Field::TpDst]), 0);
        assert_eq!(mask(&[Field::TunId, Field::TunMetadata0, Field::PktMark, Field::Reg3]), 0);
        assert_eq!(mask(&[Field::InPort, Field::Ip4Dst]), IN_PORT | Shape::L3);
        assert_eq!(mask(&[Field::ArpOp, Field::Ip6Src]), Shape::L3);
        assert_eq!(mask(&[Field::NdTarget]), 0);
        assert_eq!(mask(&[Field::NdTll]), Shape::ND | Shape::ND_ADVERT);
        assert_eq!(mask(&[Field::TunDst]), Shape::TUNNEL | Shape::TUNNEL6);
    }
}
