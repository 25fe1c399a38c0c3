//! The long runs of the properties that matter most: a megaflow's mask is never too wide,
//! decapsulators read what the bytes say, and headers are read as they were written.

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

/// How many packets to decapsulate.
#[derive(Args)]
pub struct DecapsulationOptions {
    /// Packets of each tunnel type
    #[arg(long, default_value_t = 10_000_000)]
    cases: u64,
    /// The first seed; a failure prints the one that repeats it
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Compares the decapsulator of every tunnel type with a naive one, on random packets.
pub fn decapsulation(options: &DecapsulationOptions) -> Result<()> {
    run(cargo(&["test", "--release", "--package=flow", "--test=decap"])
        .args(["--", "--nocapture", "naive::"])
        .env("WEFT_CASES", options.cases.to_string())
        .env("WEFT_SEED", options.seed.to_string()))
}

/// The options of `cargo xtask round-trips`.
#[derive(Args)]
pub struct RoundTripOptions {
    /// Headers of each codec, and end points for programs of the kernel datapath
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
    // The test keeps the files of each object open, so one process cannot load the objects for a
    // million end points. It takes a new seed for every 1,000 end points.
    const MOST_ENDPOINTS: u64 = 60_000;
    const OF_ONE_SEED: u64 = 1_000;
    for first in (0..options.cases).step_by(MOST_ENDPOINTS as usize) {
        run(cargo(&["test", "--package=datapath-bpf", "--test=main"])
            .arg("programs_write_the_headers_that_the_codecs_write")
            .env("WEFT_CASES", (options.cases - first).min(MOST_ENDPOINTS).to_string())
            .env("WEFT_SEED", (options.seed + first / OF_ONE_SEED).to_string()))?;
    }
    Ok(())
}
