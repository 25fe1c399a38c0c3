//! [`KernelKey`] and [`KernelMatch`]: keys and megaflows as the kernel has them.
//!
//! The kernel's key is made of words of the [`FlowKey`], unchanged. Words that exclude one another share a place; a *shape*, which
//! is part of the key, says which of them are there. So two frames whose flow keys differ in a bit that the kernel's key
//! holds differ there: either they have the same shape, and the bit is at the same place, or the shapes differ.
//!
//! The conversion of a megaflow is sound because of two rules. A mask that has bits of a place that is shared gets the bits of the
//! shape, too: then only frames of the same shape are compared. And bits of words that the shape does not have are left out,
//! because in every frame of that shape they are 0, and the mask has the bits of the shape.

use crate::abi;
use crate::layout::{self, WORDS};
use flow::{Field, FlowKey, FlowMask, Match, STAGES, WORDS as FLOW_WORDS};
use std::fmt;

/// What of a frame is there, by the bits of `enum weft_shape` in `bpf/intf.h`: a key with other ones would differ from the
/// program's, which the tests of agreement would see.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape(u64);

impl Shape {
    const IP4: u64 = abi::WEFT_L3_IP4 as u64;
    const IP6: u64 = abi::WEFT_L3_IP6 as u64;
    const ARP: u64 = abi::WEFT_L3_ARP as u64;
    /// The bits of the above.
    const L3: u64 = Self::IP4 | Self::IP6 | Self::ARP;
    const ND: u64 = abi::WEFT_ND as u64;
    const ND_ADVERT: u64 = abi::WEFT_ND_ADVERT as u64;
    const TUNNEL: u64 = abi::WEFT_TUNNEL as u64;
    const TUNNEL6: u64 = abi::WEFT_TUNNEL6 as u64;

    fn of(key: &FlowKey) -> Self {
        let get = |field| key.get(field);
        let l3 = match get(Field::EthType) {
            0x0800 => Self::IP4,
            0x86dd => Self::IP6,
            0x0806 | 0x8035 => Self::ARP,
            _ => 0,
        };
        let is_nd = l3 == Self::IP6 && get(Field::IpProto) == 58 && get(Field::IcmpCode) == 0;
        let nd = match get(Field::IcmpType) {
            135 if is_nd => Self::ND,
            136 if is_nd => Self::ND | Self::ND_ADVERT,
            _ => 0,
        };
        let any = |words: std::ops::Range<usize>| key.words()[words].iter().any(|&word| word != 0);
        let tunnel = if any(1..TUNNEL_END) { Self::TUNNEL } else { 0 };
        let tunnel6 = if any(TUN6..TUN6 + 4) { Self::TUNNEL6 } else { 0 };
        Self(l3 | nd | tunnel | tunnel6)
    }

    fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// Where the kernel's key has `word` of a flow key.
    fn place(self, word: usize) -> Place {
        let l3 = self.0 & Self::L3;
        let shared = |there: bool, at: usize, bits: u64| {
            if there { Place::Shared { at, bits } } else { Place::Absent { bits } }
        };
        let nd_bits = Self::ND | Self::ND_ADVERT;
        let tunnel_bits = Self::TUNNEL | Self::TUNNEL6;
        match word {
            0 => Place::Own(layout::PORT),
            1 => Place::Own(layout::TUN_ID),
            2 => shared(!self.has(Self::TUNNEL6), layout::TUN_ADDR, tunnel_bits),
            3 => Place::Own(layout::TUN_FLAGS),
            4..8 => shared(self.has(Self::TUNNEL6), layout::TUN_ADDR + word - TUN6, tunnel_bits),
            8 => Place::Own(layout::TUN_METADATA),
            9 => Place::NotHeld(Field::TunMetadata1),
            10 => Place::NotHeld(Field::TunMetadata2),
            11 => Place::NotHeld(Field::TunMetadata3),
            24 => Place::Own(layout::ETH_DST),
            25 => Place::Own(layout::ETH_SRC),
            26 => Place::Own(layout::VLAN),
            27 => shared(l3 == Self::IP4, layout::L3, Self::L3),
            28..32 => shared(l3 == Self::IP6, layout::L3 + word - 28, Self::L3),
            32 => Place::Own(layout::IP),
            33..36 => shared(l3 == Self::ARP, layout::L3 + word - 33, Self::L3),
            36 => Place::Own(layout::TRANSPORT),
            37 | 38 => Place::Own(layout::ND + word - 37),
            39 => shared(self.0 & nd_bits == Self::ND, layout::ND + 2, nd_bits),
            40 => shared(self.0 & nd_bits == nd_bits, layout::ND + 2, nd_bits),
            _ => Place::Register,
        }
    }
}

/// The first word of the outer IPv6 addresses in a flow key.
const TUN6: usize = Field::TunIpv6Src.word();
/// Behind the last word of the tunnel in a flow key.
const TUNNEL_END: usize = Field::Metadata.word();

// `Shape::place` names words of a flow key by their numbers.
const _: () = {
    assert!(FLOW_WORDS == 41 && STAGES[1].start == 24 && TUN6 == 4 && TUNNEL_END == 12);
    assert!(Field::InPort.word() == 0 && Field::InPort.shift() == 32);
    assert!(Field::TunId.word() == 1 && Field::TunSrc.word() == 2 && Field::TunFlags.word() == 3);
    assert!(Field::TunMetadata0.word() == 8 && Field::TunMetadata3.word() == 11);
    assert!(Field::EthDst.word() == 24);
    assert!(Field::EthSrc.word() == 25 && Field::VlanTpid.word() == 26);
    assert!(
        Field::Ip4Src.word() == 27 && Field::Ip6Src.word() == 28 && Field::IpProto.word() == 32
    );
    assert!(Field::ArpSpa.word() == 33 && Field::ArpTha.word() == 35 && Field::TpSrc.word() == 36);
    assert!(Field::NdTarget.word() == 37 && Field::NdSll.word() == 39 && Field::NdTll.word() == 40);
};

/// Where the kernel's key has a word of a flow key.
enum Place {
    /// Here, in every shape. It is 0 in shapes that do not have it.
    Own(usize),
    /// Here, in this shape; others, told by these bits of the shape, have another word here.
    Shared { at: usize, bits: u64 },
    /// Nowhere, because frames of this shape, told by these bits, do not have it: it is 0.
    Absent { bits: u64 },
    /// Nowhere, because only the pipeline writes it: it is 0.
    Register,
    /// Nowhere, although frames may have it.
    NotHeld(Field),
}

/// What the kernel knows of a frame: `struct weft_key` of `bpf/intf.h`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelKey([u64; WORDS]);

/// A one for every bit of a kernel's key that matters.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelMask([u64; WORDS]);

/// The key of a frame: `key` is as [`flow::extract()`](flow::extract()) has made it.
impl From<&FlowKey> for KernelKey {
    fn from(key: &FlowKey) -> Self {
        let shape = Shape::of(key);
        let mut words = [0; WORDS];
        for (word, &value) in key.words().iter().enumerate() {
            if let Place::Own(at) | Place::Shared { at, .. } = shape.place(word) {
                words[at] = value;
            }
        }
        words[layout::PORT] = words[layout::PORT] & IN_PORT | shape.0;
        Self(words)
    }
}

/// The in-port's bits of a key's first word. In the others a flow key has a mark that begins as 0, and the kernel its shape.
const IN_PORT: u64 = 0xffff_ffff << 32;

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

/// A megaflow depends on something that the kernel's key does not hold: it cannot live in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the kernel's key does not hold {0}")]
pub struct NotHeld(pub Field);

/// A megaflow as the kernel has it: the frames that agree with `key` on the bits of `mask`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KernelMatch {
    key: KernelKey,
    mask: KernelMask,
}

impl KernelMatch {
    /// The megaflow of a frame with `key`, as [`flow::extract()`](flow::extract()) has made it, that depends on the bits of `mask`. It
    /// serves no frame that does not agree with `key` on those bits, whatever key that is; it may serve fewer.
    ///
    /// # Errors
    /// [`NotHeld`] when the mask has bits that the kernel's key does not hold, or the key has bits that no frame of its shape has.
    pub fn new(key: &FlowKey, mask: &FlowMask) -> Result<Self, NotHeld> {
        let shape = Shape::of(key);
        let mut words = [0; WORDS];
        let mut of_shape = 0;
        for (word, &bits) in mask.words().iter().enumerate() {
            if bits == 0 {
                continue;
            }
            let is_set = key.words()[word] & bits != 0;
            match shape.place(word) {
                // Beside the port, a flow key has a mark, which is 0 in every frame that comes.
                Place::Own(layout::PORT) if key.words()[word] & bits & !IN_PORT != 0 => {
                    return Err(NotHeld(Field::PktMark));
                }
                Place::Own(at) => words[at] |= bits,
                Place::Shared { at, bits: shape } => {
                    words[at] |= bits;
                    of_shape |= shape;
                }
                // No frame has it: this key was not made of one, and what is left out would be asked of none.
                Place::Absent { .. } | Place::Register if is_set => {
                    return Err(NotHeld(field_of(word, key.words()[word] & bits)));
                }
                Place::Absent { bits: shape } => of_shape |= shape,
                Place::Register => {}
                Place::NotHeld(field) => return Err(NotHeld(field)),
            }
        }
        words[layout::PORT] = words[layout::PORT] & IN_PORT | of_shape;
        let mask = KernelMask(words);
        Ok(Self { key: mask.apply(&KernelKey::from(key)), mask })
    }

    /// The megaflow with a condition, of which `example` is a key that meets it, if one is known: the megaflow serves frames like it.
    ///
    /// # Errors
    /// As [`KernelMatch::new`].
    pub fn of(condition: &Match, example: Option<&FlowKey>) -> Result<Self, NotHeld> {
        match example.filter(|key| condition.matches(key)) {
            Some(key) => Self::new(key, condition.mask()),
            None => Self::new(&with_eth_type(condition), condition.mask()),
        }
    }

    /// A megaflow that programs have had, by its key and mask.
    pub fn from_parts(key: KernelKey, mask: KernelMask) -> Self {
        Self { key: mask.apply(&key), mask }
    }

    /// All that is known of the frames that the megaflow serves: the flow key of each meets this condition. What it was made of says
    /// no more.
    pub fn condition(&self) -> Match {
        let shape = Shape(self.key.0[layout::PORT]);
        let of_shape = self.mask.0[layout::PORT] & !IN_PORT;
        let (mut key, mut mask) = (FlowKey::default(), FlowMask::default());
        for word in 0..FLOW_WORDS {
            let (value, bits) = match shape.place(word) {
                Place::Own(at) => (self.key.0[at], self.mask.0[at]),
                Place::Shared { at, bits } if of_shape & bits == bits => {
                    (self.key.0[at], self.mask.0[at])
                }
                Place::Absent { bits } if of_shape & bits == bits => (0, u64::MAX),
                Place::Register => (0, u64::MAX),
                Place::Shared { .. } | Place::Absent { .. } | Place::NotHeld(_) => (0, 0),
            };
            // In the place of the shape a flow key has what begins as 0.
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

    /// True when the megaflow serves frames of this key.
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

/// The key of a condition, with the EtherType that its addresses tell where it does not say so itself.
fn with_eth_type(condition: &Match) -> FlowKey {
    let mut key = condition.key().clone();
    let known = condition.mask().get(Field::EthType);
    let has = |words: std::ops::Range<usize>| key.words()[words].iter().any(|&word| word != 0);
    let eth_type = match () {
        () if has(27..28) => 0x0800,
        () if has(28..32) => 0x86dd,
        () if has(33..36) => 0x0806,
        () => return key,
    };
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

    const KINDS: FrameKinds = FrameKinds { supers: false, malformed: true, max_payload: 200 };

    /// The key of a random frame, from a port and perhaps a tunnel.
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

    /// Some bits of some fields; none that the kernel's key does not hold.
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
        for word in [9, 10, 11] {
            mask.words_mut()[word] = 0;
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
            let megaflow = KernelMatch::new(of, &mask).expect("bits that the key holds");
            assert!(megaflow.matches(&KernelKey::from(of)), "its own frame: {of:?} {mask:?}");
            for other in keys.iter().filter(|other| megaflow.matches(&KernelKey::from(*other))) {
                served += 1;
                assert!(mask.agree(of, other), "{mask:?} of {of:?} serves {other:?}");
            }
        }
        assert!(served > 10_000, "only {served} pairs say anything");
    }

    #[test]
    fn condition_of_a_megaflow_is_met_by_all_frames_that_it_serves_and_says_all_of_its_mask() {
        let mut random = Random::new(4);
        let keys: Vec<_> = (0..300).map(|_| random_key(&mut random)).collect();
        let mut served = 0;
        for _ in 0..3000 {
            let (of, mask) = (&keys[random.below(keys.len())], random_mask(&mut random));
            let megaflow = KernelMatch::new(of, &mask).expect("bits that the key holds");
            let again = KernelMatch::from_parts(*megaflow.key(), *megaflow.mask());
            assert_eq!(again, megaflow);
            let condition = megaflow.condition();
            assert!(condition.mask().covers(&mask), "{condition:?} for {mask:?} of {of:?}");
            for other in keys.iter().filter(|other| megaflow.matches(&KernelKey::from(*other))) {
                served += 1;
                assert!(condition.matches(other), "{megaflow:?} serves {other:?}: {condition:?}");
            }
        }
        assert!(served > 10_000, "only {served} pairs say anything");
    }

    #[test]
    fn megaflow_serves_no_frame_that_differs_when_only_its_condition_is_known() {
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
            let exact = KernelMatch::of(&condition, Some(of)).expect("bits that the key holds");
            assert!(exact.matches(&KernelKey::from(of)), "its own frame: {condition:?}");
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
    fn mask_is_refused_when_the_key_does_not_hold_its_bits() {
        for &field in Field::ALL {
            let mut mask = FlowMask::default();
            mask.add(field);
            let refused =
                matches!(field, Field::TunMetadata1 | Field::TunMetadata2 | Field::TunMetadata3);
            let expected = if refused { Some(NotHeld(field)) } else { None };
            assert_eq!(KernelMatch::new(&FlowKey::default(), &mask).err(), expected, "{field}");
        }
    }

    #[test]
    fn condition_is_refused_when_no_frame_that_comes_can_meet_it() {
        for &field in Field::ALL.iter().filter(|field| field.is_register()) {
            let mut mask = FlowMask::default();
            mask.add(field);
            let mut key = FlowKey::default();
            assert!(KernelMatch::new(&key, &mask).is_ok(), "{field} is 0 in every frame");
            key.set(field, field.all_ones() ^ field.all_ones() >> 1);
            let refused = KernelMatch::of(&Match::new(&key, mask.clone()), None);
            assert_eq!(refused, Err(NotHeld(field)), "{field}");
            assert_eq!(KernelMatch::new(&key, &mask), Err(NotHeld(field)), "{field}");
        }
    }

    #[test]
    fn mask_has_the_shape_only_when_places_are_shared() {
        let mask = |fields: &[Field]| {
            let mut mask = FlowMask::default();
            fields.iter().for_each(|&field| mask.add(field));
            let megaflow = KernelMatch::new(&FlowKey::default(), &mask).expect("is held");
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
