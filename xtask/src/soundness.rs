//! The long runs of the properties that matter most: a megaflow's mask is never too wide, the
//! kernel reads frames as userspace does, and headers are read as they were written.

use anyhow::Result;
use clap::Args;

use crate::packages;
use crate::run::{cargo, run};

/// How much to try.
#[derive(Args)]
pub struct Options {
    /// Packets, each with several others of its megaflow
    #[arg(long, default_value_t = 10_000_000)]
    cases: u64,
    /// The first seed; a failure prints the one that repeats it
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Translates random packets by random programs, and others that agree on the mask, until a
/// difference or the end.
pub fn soundness(options: &Options) -> Result<()> {
    run(cargo(&["test", "--release", "--package=pipeline", "--test=main", "soundness::"])
        .env("WEFT_CASES", options.cases.to_string())
        .env("WEFT_SEED", options.seed.to_string()))
}

/// How many frames and tunnel packets the kernel and userspace are to agree on.
#[derive(Args)]
pub struct AgreementOptions {
    /// Frames, and as many tunnel packets
    #[arg(long, default_value_t = 10_000_000)]
    cases: u64,
    /// The first seed; a failure prints the one that repeats it
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Gives random, crafted and damaged frames and tunnel packets to the programs of the kernel
/// datapath and to userspace, until they differ or the end. Needs root.
pub fn agreement(options: &AgreementOptions) -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    run(cargo(&["test", "--release", "--package=datapath-bpf", "--test=main"])
        .args(["--", "--nocapture", "kernel_and_userspace_agree_on"])
        .env("WEFT_CASES", options.cases.to_string())
        .env("WEFT_SEED", options.seed.to_string()))
}

/// How many headers to write and read.
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
/// the programs write with those of the codecs. Needs root.
pub fn round_trips(options: &RoundTripOptions) -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    run(cargo(&["test", "--package=wire", "--test=headers", "round_trip"])
        .env("PROPTEST_CASES", options.cases.to_string()))?;
    // The test keeps the files of each object open, so it cannot load as many as a million need.
    const MOST_ENDPOINTS: u64 = 60_000;
    run(cargo(&["test", "--package=datapath-bpf", "--test=main"])
        .arg("programs_write_the_headers_that_the_codecs_write")
        .env("WEFT_CASES", options.cases.min(MOST_ENDPOINTS).to_string())
        .env("WEFT_SEED", options.seed.to_string()))
}
