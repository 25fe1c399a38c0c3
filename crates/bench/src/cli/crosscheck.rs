//! `weft-bench crosscheck`: compares this program's traffic with that of iperf3 and sockperf.

use std::time::Duration;

use super::Failure;
use crate::Stop;
use crate::crosscheck::{self, Outcome};

/// Measure the same loads with this program and with iperf3 and sockperf, and print both
#[derive(clap::Args)]
pub struct Args {
    /// Repetitions
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    blocks: u16,
    /// Whole seconds of each measurement
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
}

pub fn crosscheck(args: &Args) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let found = crosscheck::run(args.blocks.into(), Duration::from_secs(args.seconds), &stop)?;
    found.iter().for_each(|agreement| println!("{agreement}"));
    let any = |outcome| found.iter().any(|agreement| agreement.outcome() == outcome);
    if any(Outcome::Apart) {
        return Err(Failure::work(
            "the programs disagree: a load differs by more than 10 %; see the lines with APART",
        ));
    }
    if any(Outcome::NotConverged) {
        return Err(Failure::work(
            "the comparison is not conclusive: the machine is too noisy; raise --blocks, or run \
             it on an idle machine",
        ));
    }
    Ok(())
}
