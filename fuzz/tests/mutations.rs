//! Runs each target with mutated seeds. The inputs are the same in every run. Unlike this test,
//! libFuzzer (`cargo xtask fuzz`) searches for inputs that reach new code.

use std::panic::{AssertUnwindSafe, catch_unwind};

use weft_fuzz::seeds;
use weft_fuzz::targets;

/// The number of inputs for each target.
const INPUTS: u64 = 2000;
/// The maximum length of an input in bytes.
const MAX_LEN: usize = 1 << 14;
/// Byte values that often are limits or have a special meaning.
const LIMITS: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, b'{', b'"', b'\n'];

/// A generator of pseudorandom numbers: SplitMix64.
struct Random(u64);

impl Random {
    /// A number below `limit`, which is at least 1.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    /// A part of `bytes`, which may be empty.
    fn part(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let start = self.below(bytes.len() + 1);
        start..start + self.below(bytes.len() - start + 1)
    }

    /// Changes an input at one position. `other` is another seed of the same target.
    fn change(&mut self, input: &mut Vec<u8>, other: &[u8]) {
        let place = self.below(input.len() + 1);
        match self.below(6) {
            0 => input.truncate(place),
            1 => {
                let part = self.part(input);
                drop(input.drain(part));
            }
            2 => {
                let part = input[self.part(input)].to_vec();
                drop(input.splice(place..place, part));
            }
            3 => {
                let part = self.part(other);
                drop(input.splice(place.., other[part].iter().copied()));
            }
            kind => {
                let value = LIMITS[self.below(LIMITS.len())];
                let bit = 1 << self.below(8);
                if let Some(byte) = input.get_mut(place) {
                    *byte = if kind == 4 { value } else { *byte ^ bit };
                }
            }
        }
        input.truncate(MAX_LEN);
    }
}

#[test]
fn targets_find_no_fault_when_seeds_are_changed() {
    run(|name| name != targets::NEEDS_ROOT);
}

#[test]
fn parsers_agree_when_seeds_are_changed() {
    testkit::require_root!();
    run(|name| name == targets::NEEDS_ROOT);
}

fn run(is_chosen: impl Fn(&str) -> bool) {
    let all = seeds::all();
    for (name, body) in targets::ALL.into_iter().filter(|(name, _)| is_chosen(name)) {
        let seeds: Vec<_> = all.iter().filter(|seed| seed.target == name).collect();
        for number in 0..INPUTS {
            let mut random = Random(number << 32);
            let mut input = seeds[number as usize % seeds.len()].bytes.clone();
            for _ in 0..=random.below(4) {
                let other = &seeds[random.below(seeds.len())].bytes;
                random.change(&mut input, other);
            }
            let result = catch_unwind(AssertUnwindSafe(|| body(&input)));
            assert!(result.is_ok(), "{name} fails with input {number}: {input:02x?}");
        }
    }
}
