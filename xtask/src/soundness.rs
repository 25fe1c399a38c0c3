//! Long runs of the tests for the most important properties: a megaflow's mask is never too wide,
//! the kernel parses frames in the same way as userspace, and parsing an emitted header gives the
//! same header.

use anyhow::Result;
use clap::Args;

use crate::packages;
use crate::run::{cargo, run};

/// The options of `cargo xtask soundness`.
#[derive(Args)]
pub struct Options {
    /// Packets, each with several others of its megaflow
    #[arg(long, default_value_t = 10_000_000)]
    cases: u64,
    /// The first seed; a failure prints the one that repeats it
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Translates random packets with random programs, and other packets that have the same values in
/// the bits of the mask. Ends at the first difference, or after all cases.
pub fn soundness(options: &Options) -> Result<()> {
    run(cargo(&["test", "--release", "--package=pipeline", "--test=main", "soundness::"])
        .env("WEFT_CASES", options.cases.to_string())
        .env("WEFT_SEED", options.seed.to_string()))
}

/// The options of `cargo xtask bpf-agreement`.
#[derive(Args)]
pub struct AgreementOptions {
    /// Frames, and as many tunnel packets
    #[arg(long, default_value_t = 10_000_000)]
    cases: u64,
    /// The first seed; a failure prints the one that repeats it
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Parses random, crafted and damaged frames and tunnel packets with the kernel datapath's eBPF
/// programs and in userspace. Ends at the first difference, or after all cases. Needs root.
pub fn agreement(options: &AgreementOptions) -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    run(cargo(&["test", "--release", "--package=datapath-bpf", "--test=main"])
        .args(["--", "--nocapture", "kernel_and_userspace_agree_on"])
        .env("WEFT_CASES", options.cases.to_string())
        .env("WEFT_SEED", options.seed.to_string()))
}

/// The options of `cargo xtask round-trips`.
#[derive(Args)]
pub struct RoundTripOptions {
    /// Headers of each codec, and at most 60,000 end points for programs of the kernel datapath
    #[arg(long, default_value_t = 1_000_000)]
    cases: u64,
    /// The first seed of the end points; a failure prints the one that repeats it
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Emits random headers of every codec and parses them again. Then compares the outer headers that
/// the eBPF programs write with those of the codecs. Needs root.
pub fn round_trips(options: &RoundTripOptions) -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    run(cargo(&["test", "--package=wire", "--test=headers", "round_trip"])
        .env("PROPTEST_CASES", options.cases.to_string()))?;
    // The test keeps the files of each object open, so it cannot load the objects for a million end
    // points.
    const MOST_ENDPOINTS: u64 = 60_000;
    run(cargo(&["test", "--package=datapath-bpf", "--test=main"])
        .arg("programs_write_the_headers_that_the_codecs_write")
        .env("WEFT_CASES", options.cases.min(MOST_ENDPOINTS).to_string())
        .env("WEFT_SEED", options.seed.to_string()))
}
