//! The programs and userspace read frames alike: a key that `bpf/parse.h` makes is that of [`flow::extract`], what it calls
//! malformed is refused there, and little is left undecided.
//!
//! The long run is `cargo xtask bpf-agreement`. `WEFT_CASES` and `WEFT_SEED` say how many frames and which.

mod common;

use common::agree::{Extractor, Outcome};
use common::frames::{Case, case};
use testkit::random::{Random, environment};

/// Which frames a program may leave to userspace: those with more options of neighbour discovery than it reads. Everything else it
/// decides.
fn may_be_left(case: &Case) -> bool {
    case.kind == "nd"
}

#[test]
fn kernel_and_userspace_agree_on_frames() {
    testkit::require_root!();
    let cases = environment("WEFT_CASES", 20_000);
    let seed = environment("WEFT_SEED", 1);
    let mut object = std::mem::MaybeUninit::uninit();
    let mut extractor = Extractor::load(&mut object);
    let mut random = Random::new(seed);
    let mut tally = common::agree::Tally::default();
    for number in 0..cases {
        let case = case(&mut random);
        let outcome = extractor.compare(&case).unwrap_or_else(|difference| {
            panic!("seed {seed}, frame {number}: {difference}");
        });
        assert!(
            outcome != Outcome::Upcall || may_be_left(&case),
            "seed {seed}, frame {number}: undecided {case:?}"
        );
        tally.add(&case, outcome);
    }
    println!("{tally}");
    assert!(tally.share(Outcome::Upcall) < 0.01, "too much is left to userspace:\n{tally}");
    assert!(tally.share(Outcome::Parsed) > 0.5 && tally.share(Outcome::Malformed) > 0.1, "{tally}");
}
