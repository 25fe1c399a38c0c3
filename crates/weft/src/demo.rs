//! `weft demo`: all six tunnels with both datapaths in namespaces on this machine, beside the Linux bridge, in one table.

use crate::Failure;
use ::bench::demo::{self, DemoOptions};
use ::bench::lab::{Profile, check_privileges};
use ::bench::{Error, Stop};
use anyhow::{Context, anyhow};
use std::path::PathBuf;

/// Carry real traffic through all six tunnels between two hosts made of namespaces, and print one table.
///
/// For every tunnel type and datapath two daemons are started, guests ping each other over IPv4 and IPv6 and send TCP streams;
/// the same runs through a Linux bridge without tunnel, kernel VXLAN, and Open vSwitch where it is installed. weft's guests stand behind
/// access control lists; others are reached through its router, and a list refuses connections. Everything is removed
/// afterwards, also after a failure and after Ctrl-C. Needs root.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  weft demo\n  weft demo --seconds 5 --blocks 3 --json demo.json\n  weft demo --profile full --profile tso"
)]
pub struct Args {
    /// Write the whole report, with the machine it was made on, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seconds of each TCP measurement, 0.1 to 600
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    seconds: f64,
    /// Offloads of the underlay: full (everything), tso (no tunnel segmentation), none; may be repeated
    #[arg(long, value_name = "PROFILE", default_value = "full")]
    profile: Vec<Profile>,
    /// Repetitions; from the second on the contenders come in random order
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    blocks: u16,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
}

pub fn demo(args: Args) -> Result<(), Failure> {
    let weft = std::env::current_exe().context("find this program's own file")?;
    let options = DemoOptions {
        json: args.json,
        seconds: args.seconds,
        profiles: args.profile,
        blocks: args.blocks.into(),
        quiet: args.quiet,
        commit: option_env!("WEFT_COMMIT").map(str::to_owned),
        ..DemoOptions::new(weft)
    };
    let refused = |error| match error {
        Error::Missing { .. } => Failure::input(error),
        error => error.into(),
    };
    // Who may not run it is told that, and nothing else.
    check_privileges().map_err(refused)?;
    if !options.quiet {
        // What is wrong with the machine shows in the figures.
        let found = ::doctor::examine::Subject::default().examine()?;
        eprintln!("weft doctor says of this machine:\n{}", found.brief());
    }
    let stop = Stop::on_signals()?;
    let report = demo::run(&options, &stop).map_err(refused)?;
    println!("{report}");
    if report.passed() {
        Ok(())
    } else {
        Err(anyhow!("not everything passed: see the rows above").into())
    }
}
