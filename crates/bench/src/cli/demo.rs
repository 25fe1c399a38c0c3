//! `weft-bench demo`: compares every tunnel with both datapaths to the Linux bridge, in one table.

use std::path::PathBuf;

use super::{Failure, commit};
use crate::demo::{self, DemoOptions};
use crate::lab::{Profile, check_privileges};
use crate::{Error, Stop};

/// Carry real traffic through every tunnel between two hosts made of namespaces, and print the
/// result in three sentences and a table.
///
/// For every tunnel type and datapath the demo starts two daemons. Guests ping each other over IPv4
/// and IPv6 and send TCP streams. The same runs through a Linux bridge without a tunnel, through
/// kernel VXLAN, and through Open vSwitch where it is installed. weft runs with access control
/// lists and a logical router, and the demo checks both. Needs root.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  weft demo\n  weft demo --seconds 5 --blocks 3 --json demo.json\n  \
                  weft demo --profile full --profile tso"
)]
pub struct Args {
    /// Write the whole report, with the machine it was made on, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seconds of each TCP measurement, 0.1 to 600
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    seconds: f64,
    /// Offloads of the underlay: full (all), tso (no tunnel segmentation), none; may be repeated
    #[arg(long, value_name = "PROFILE", default_value = "full")]
    profile: Vec<Profile>,
    /// Repetitions; from the second on the contenders run in random order
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    blocks: u16,
    /// Show all rows, the router and the ACLs, and explain the columns
    #[arg(long)]
    all: bool,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
}

pub fn demo(args: Args, weft: PathBuf) -> Result<(), Failure> {
    let options = DemoOptions {
        json: args.json,
        seconds: args.seconds,
        profiles: args.profile,
        blocks: args.blocks.into(),
        quiet: args.quiet,
        commit: commit(),
        ..DemoOptions::new(weft)
    };
    // First, so that a user without the privileges reads only that error.
    check_privileges()?;
    if !options.quiet {
        // A defect that `weft doctor` finds on this machine may explain the measured figures.
        let found = doctor::diagnose::Diagnosis::default().diagnose().map_err(Error::from)?;
        eprintln!("weft doctor reports for this machine:\n{}", found.brief());
    }
    let stop = Stop::on_signals()?;
    let report = demo::run(&options, &stop)?;
    print!("{}", report.text(args.all));
    if report.passed() {
        Ok(())
    } else {
        Err(Failure::work(
            "the demo failed: a tunnel or the bridge did not pass; see its row above",
        ))
    }
}
