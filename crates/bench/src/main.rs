//! `weft-lab`: what `cargo xtask trust`, `speed` and `scale` run as root.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bench::lab::Profile;
use bench::scenario::{Options, Scenario};
use bench::speed;
use bench::traffic::blast::Pace;
use bench::{Error, Stop};
use clap::{Parser, Subcommand};

/// Scenarios and measurements in labs of network namespaces.
#[derive(Parser)]
#[command(name = "weft-lab", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Try what a switch has to be trusted with; print numbers and verdicts
    Trust(Trust),
    /// Measure small packets, transactions and new connections beside Open vSwitch, kernel VXLAN and the bridge
    Speed(Speed),
    /// Measure what 100,000 megaflows and 100,000 end points cost
    Scale(Speed),
}

#[derive(clap::Args)]
struct Speed {
    /// The program of the daemon
    #[arg(long, value_name = "PATH")]
    weft: PathBuf,
    /// Seconds of each measurement
    #[arg(long, value_name = "N", default_value_t = 4.0, value_parser = seconds)]
    seconds: f64,
    /// Repetitions; from the second on the order is random
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    blocks: u16,
    /// Offloads of the underlay: full, tso, none
    #[arg(long, value_name = "PROFILE", default_value = "full")]
    profile: Profile,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Trust {
    /// The program of the daemon
    #[arg(long, value_name = "PATH")]
    weft: PathBuf,
    /// What to try: upcall-flood, port-scan, tuple-space, reload, kill [default: all]
    #[arg(value_name = "SCENARIO", value_parser = scenario)]
    scenarios: Vec<Scenario>,
    /// Seconds of each measurement
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Packets a second of a guest that means ill [default: as many as it can]
    #[arg(long, value_name = "N")]
    attack_pps: Option<u32>,
    /// How often the network file is read again
    #[arg(long, value_name = "N", default_value_t = 1000)]
    reloads: usize,
    /// How often the daemon is killed
    #[arg(long, value_name = "N", default_value_t = 20)]
    kills: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn scenario(name: &str) -> Result<Scenario, String> {
    let names = || Scenario::ALL.map(Scenario::name).join(", ");
    Scenario::by_name(name).ok_or_else(|| format!("no such scenario; there are {}", names()))
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.5..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number from 0.5 to 3600".to_owned()),
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::Trust(args) => Stop::on_signals().and_then(|stop| trust(&args, &stop)),
        Task::Speed(args) => Stop::on_signals().and_then(|stop| speed(&args, &stop)),
        Task::Scale(args) => Stop::on_signals().and_then(|stop| scale(&args, &stop)),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("weft-lab: {error}");
            if error.is_missing() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

impl Speed {
    fn options(&self) -> speed::Options {
        speed::Options {
            weft: self.weft.clone(),
            seconds: Duration::from_secs_f64(self.seconds),
            blocks: self.blocks.into(),
            profile: self.profile,
            commit: option_env!("WEFT_COMMIT").map(str::to_owned),
        }
    }

    fn print(&self, report: &(impl fmt::Display + serde::Serialize)) {
        if self.json {
            println!("{}", serde_json::json!(report));
        } else {
            println!("{report}");
        }
    }
}

/// True when everything could be measured.
fn speed(args: &Speed, stop: &Stop) -> Result<bool, Error> {
    let report = speed::run(&args.options(), stop)?;
    args.print(&report);
    Ok(report.is_complete())
}

fn scale(args: &Speed, stop: &Stop) -> Result<bool, Error> {
    args.print(&speed::scale::run(&args.options(), stop)?);
    Ok(true)
}

/// True when everything has passed.
fn trust(args: &Trust, stop: &Stop) -> Result<bool, Error> {
    let options = Options {
        weft: args.weft.clone(),
        seconds: Duration::from_secs_f64(args.seconds),
        attack_pace: args.attack_pps.map_or(Pace::FlatOut, |pps| Pace::PerSecond(pps.into())),
        reloads: args.reloads,
        kills: args.kills,
    };
    let all = Scenario::ALL.to_vec();
    let scenarios = if args.scenarios.is_empty() { &all } else { &args.scenarios };
    let mut passed = true;
    for scenario in scenarios {
        let outcome = scenario.run(&options, stop)?;
        passed &= outcome.passed();
        if args.json {
            let line = serde_json::json!({
                "scenario": scenario.name(), "passed": outcome.passed(), "lines": outcome.lines,
            });
            println!("{line}");
        } else {
            let verdict = if outcome.passed() { "passed" } else { "FAILED" };
            println!("{scenario}: {verdict}\n{outcome}");
        }
    }
    Ok(passed)
}
