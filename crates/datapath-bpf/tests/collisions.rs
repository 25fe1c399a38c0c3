//! Hash collisions. A chain of megaflows has a limit, so a search compares few of them, and keys
//! that collide under known factors do not collide under secret ones.
//! `instruction_counts::instructions_are_bounded_when_hashes_collide` counts the cost.

use crate::common::abi::WEFT_MAX_CHAIN;
use crate::common::frames::tcp6;
use crate::common::lookup::{EXECUTED, FACTORS, Lookup};
use datapath_bpf::{FlowTableSizes, KernelKey, KernelMatch, MapError};
use flow::{Field, FlowKey, FlowMask};

const SIZES: FlowTableSizes = FlowTableSizes { flows: 3000, cached: 256 };
const CHAIN: usize = WEFT_MAX_CHAIN as usize;
/// Offset of an IPv6 source address in a frame.
const SOURCE: usize = 14 + 8;

fn from(source: u128) -> FlowKey {
    let mut key = FlowKey::default();
    key.set(Field::EthType, 0x86dd);
    key.set(Field::Ip6Src, source);
    key
}

/// The index of the only word that a source address changes in a kernel's key.
fn word_of(source: u128) -> usize {
    let [zero, other] = [0, source].map(|source| KernelKey::from(&from(source)));
    let words = zero.words().iter().zip(other.words());
    words.enumerate().find(|(_, (zero, other))| zero != other).expect("a word differs").0
}

/// The number that gives 1 when it is multiplied by an odd number modulo 2^64.
fn inverse(odd: u64) -> u64 {
    // Each step of Newton's iteration doubles the number of right bits; it begins with three.
    (0..5).fold(odd, |x, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x))))
}

/// Source addresses whose two halves, multiplied by these factors, add up to 0.
fn colliding(factors: &[u64; FACTORS], count: u64) -> Vec<u128> {
    let [high, low] = [1 << 64, 1].map(word_of).map(|word| factors[word]);
    let source = |number: u64| {
        let low = number.wrapping_mul(high).wrapping_neg().wrapping_mul(inverse(low));
        u128::from(number) << 64 | u128::from(low)
    };
    (1..=count).map(source).collect()
}

fn megaflow(source: u128) -> KernelMatch {
    let mut mask = FlowMask::default();
    [Field::EthType, Field::Ip6Src].into_iter().for_each(|field| mask.add(field));
    KernelMatch::new(&from(source), &mask).expect("bits that the key holds")
}

fn frame(source: u128) -> Vec<u8> {
    let mut frame = tcp6();
    frame[SOURCE..SOURCE + 16].copy_from_slice(&source.to_be_bytes());
    frame
}

#[test]
fn chain_is_limited_when_a_sender_knows_the_factors() {
    testkit::require_root!();
    let known = FlowTableSizes::hash_factors();
    let mut kernel = Lookup::load_with(SIZES, known);
    let sources = colliding(&known, 100);
    let (chained, refused) = sources.split_at(CHAIN);
    let flows: Vec<_> = chained
        .iter()
        .map(|&source| kernel.tables.put(&megaflow(source), EXECUTED).expect("there is room"))
        .collect();
    for &source in refused {
        let put = kernel.tables.put(&megaflow(source), EXECUTED);
        assert!(matches!(put, Err(MapError::ChainFull)), "{put:?}");
        assert_eq!(kernel.search(&frame(source)), None);
    }
    for (&source, &flow) in chained.iter().zip(&flows) {
        assert_eq!(kernel.search(&frame(source)), Some(flow));
    }
    // Other keys find room and are found.
    let flow = kernel.tables.put(&megaflow(5), EXECUTED).expect("another chain has room");
    assert_eq!(kernel.search(&frame(5)), Some(flow));
}

#[test]
fn keys_that_collide_under_known_factors_are_spread_when_the_factors_are_secret() {
    testkit::require_root!();
    let sources = colliding(&FlowTableSizes::hash_factors(), 1000);
    let mut kernel = Lookup::load(SIZES);
    for &source in &sources {
        let flow = kernel.tables.put(&megaflow(source), EXECUTED);
        let flow = flow.unwrap_or_else(|error| panic!("{source:032x}: {error}"));
        assert_eq!(kernel.search(&frame(source)), Some(flow));
    }
}
