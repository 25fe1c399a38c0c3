//! The long run of the property that matters most: a megaflow's mask is never too wide.

use anyhow::Result;
use clap::Args;

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

/// Translates random packets by random programs, and others that agree on the mask, until a difference or the end.
pub fn soundness(options: &Options) -> Result<()> {
    run(cargo(&["test", "--release", "--package=pipeline", "--test=soundness"])
        .env("WEFT_CASES", options.cases.to_string())
        .env("WEFT_SEED", options.seed.to_string()))
}
