//! Compares how programs and userspace parse frames. A key from `bpf/parse.h` equals that of
//! [`flow::extract`], frames that the program calls malformed are rejected there, too, and few
//! frames are left undecided.
//!
//! `cargo xtask bpf-agreement` is the long run. `WEFT_CASES` and `WEFT_SEED` set the number of
//! frames and the random seed.

use crate::common::agree::{Extractor, Outcome};
use crate::common::frames::{Case, case, has_snap, is_neighbour_discovery};
use libbpf_rs::{TC_INGRESS, TcHookBuilder};
use netdev::tap::Tap;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use testkit::host::TestHost;
use testkit::random::{Random, environment};

/// Whether a program may punt a frame instead of parsing it.
fn may_be_left(case: &Case) -> bool {
    has_snap(&case.frame) || is_neighbour_discovery(&case.frame)
}

#[test]
fn kernel_and_userspace_agree_on_frames() {
    testkit::require_root!();
    let cases = environment("WEFT_CASES", 200_000);
    let seed = environment("WEFT_SEED", 1);
    let mut object = std::mem::MaybeUninit::uninit();
    let mut extractor = Extractor::load(&mut object);
    let mut random = Random::new(seed);
    let mut tally = crate::common::agree::Tally::default();
    let mut with_snap = 0;
    for number in 0..cases {
        let case = case(&mut random);
        let outcome = extractor.compare(&case).unwrap_or_else(|difference| {
            panic!("seed {seed}, frame {number}: {difference}");
        });
        assert!(
            outcome != Outcome::Upcall || may_be_left(&case),
            "seed {seed}, frame {number}: undecided {case:?}"
        );
        if has_snap(&case.frame) {
            assert_eq!(outcome, Outcome::Upcall, "seed {seed}, frame {number}: {case:?}");
            with_snap += 1;
        } else {
            tally.add(&case, outcome);
        }
    }
    println!("\n{tally}| frames with a SNAP header | {:?} | {with_snap} |", Outcome::Upcall);
    assert!(tally.share(Outcome::Upcall) < 0.01, "too much is left to userspace:\n{tally}");
    assert!(tally.share(Outcome::Parsed) > 0.5 && tally.share(Outcome::Malformed) > 0.1, "{tally}");
}

/// The kernel puts a TAP frame that is longer than a page into fragments. Its linear part is as
/// long as the virtio-net header says that the headers are.
#[test]
fn frames_with_nonlinear_headers_are_parsed_like_linear_ones() {
    testkit::require_root!();
    let host = TestHost::new("bpf");
    let mut object = std::mem::MaybeUninit::uninit();
    let mut extractor = Extractor::load(&mut object);
    let program = extractor.program().try_clone_to_owned().expect("it can be shared");
    let (tap, index) = host.run(|| {
        let tap = Tap::open("tap0").expect("a TAP can be made");
        let index = tap.ifindex().expect("it is there");
        let mut hook =
            TcHookBuilder::new(program.as_fd()).ifindex(index.0.cast_signed()).hook(TC_INGRESS);
        hook.create().and_then(|mut hook| hook.attach()).expect("the program can be attached");
        (tap, index)
    });
    host.netlink().set_up(index).expect("it can be set up");
    let mut wire = File::from(tap.as_fd().try_clone_to_owned().expect("it can be shared"));
    let mut random = Random::new(environment("WEFT_SEED", 1));
    let (mut parsed, mut pulled) = (0, 0);
    for number in 0..4000 {
        let mut case = case(&mut random);
        case.tunnel = None;
        // Padding makes the frame longer than a page.
        case.frame.resize(case.frame.len().max(4200), 0);
        let linear = 14 + random.below(120);
        let outcome = extractor.compare_sent(&case, |frame| {
            let mut header = [0; 10];
            header[2..4].copy_from_slice(&(linear as u16).to_ne_bytes());
            wire.write_all(&[&header, frame].concat()).expect("the TAP takes it");
        });
        let (outcome, had) = outcome.unwrap_or_else(|difference| {
            panic!("frame {number}, {linear} bytes linear: {difference}");
        });
        assert!(outcome != Outcome::Upcall || may_be_left(&case), "undecided {case:?}");
        parsed += u32::from(outcome == Outcome::Parsed);
        pulled += u32::from(had < 60);
    }
    assert!(parsed > 1500 && pulled > 1000, "{parsed} read, {pulled} with few linear bytes");
}
