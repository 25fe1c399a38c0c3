//! `cargo xtask soak`: repeats changes under traffic, and checks that nothing leaks.

use anyhow::Result;
use clap::Args;

use crate::demo::{as_root, build_released};
use crate::packages;
use crate::run::run;

/// The chapters of `weft-bench trust soak`.
const CHAPTERS: [&str; 5] = ["ports", "end-points", "programs", "attacks", "restarts"];

/// The options of `cargo xtask soak`.
#[derive(Args)]
pub struct Options {
    /// Chapters: ports, end-points, programs, attacks, restarts [default: all, one after another]
    #[arg(value_parser = CHAPTERS)]
    chapters: Vec<String>,
    /// Seconds of each chapter, at most 1800
    #[arg(long, value_name = "N", default_value_t = 1800)]
    seconds: u32,
    /// The datapath of both hosts: auto, kernel or user
    #[arg(long, value_name = "DATAPATH", default_value = "auto")]
    datapath: String,
}

/// Builds weft and runs the chapters.
pub fn soak(options: &Options) -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    let bench = build_released()?.with_file_name("weft-bench");
    let all = CHAPTERS.map(str::to_owned).to_vec();
    let chapters = if options.chapters.is_empty() { &all } else { &options.chapters };
    for chapter in chapters {
        let mut command = as_root(bench.clone());
        command.args(["trust", "soak", "--chapter", chapter, "--datapath", &options.datapath]);
        run(command.args(["--seconds", &options.seconds.to_string()]))?;
    }
    Ok(())
}
