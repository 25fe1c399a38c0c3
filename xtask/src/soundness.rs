//! The long runs of the properties that matter most: a megaflow's mask is never too wide, and the
//! kernel reads frames as userspace does.

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
