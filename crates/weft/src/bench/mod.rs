//! `weft bench`: the published studies, repeated on this machine.

mod count;
mod remote;

use crate::Failure;
use ::bench::crosscheck::{self, Outcome};
use ::bench::exact::{Baseline, Wire};
use ::bench::lab::{Contender, Family, Profile, check_privileges};
use ::bench::study::{self, Milestone, Options, Results, Study};
use ::bench::{Error, Stop};
use anyhow::Context;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Repeat the published studies of tunnels on this machine, and say claim by claim what holds here.
///
/// Hosts, guests and switches are network namespaces of this machine; nothing else is touched, and all is removed afterwards.
#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Name the studies with their scenarios, and the contenders with what keeps them out
    List,
    Run(Run),
    Exact(Exact),
    /// Compare two runs: before and after
    Compare {
        /// results.json of the earlier run
        before: PathBuf,
        /// results.json of the later run
        after: PathBuf,
    },
    /// Judge the samples of results.json anew; write report.html, report.md and results.json
    Report {
        /// results.json of a run
        results: PathBuf,
        /// The directory for the reports
        #[arg(long, value_name = "DIR", default_value = ".")]
        out: PathBuf,
    },
    /// Make several runs on this machine one: more repetitions than one sitting has time for, or studies that were run apart
    Join {
        /// results.json of each run
        #[arg(required = true, num_args = 2.., value_name = "FILE")]
        runs: Vec<PathBuf>,
        /// The directory for results.json and the reports
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Say in three sentences, each with its figures, what a directory has found: results.json, exact.json of `weft bench exact --json`, and,
    /// where there is one, exact-copies.json of the same with `--wire copies`
    Findings {
        /// The directory
        directory: PathBuf,
    },
    /// Measure the same loads with this program and with iperf3 and sockperf, and print both
    Crosscheck {
        /// Repetitions
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
        blocks: u16,
        /// Whole seconds of each measurement
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
        seconds: u64,
    },
    Serve(remote::Serve),
    Client(remote::Client),
    /// What `exact` runs in its machine
    #[command(hide = true)]
    Inside(Inside),
}

/// Count instructions in an emulated machine: of a message one way, and of a KiB of a stream
///
/// The lab runs in a machine of its own for each contender, on Debian's kernel, whose clock counts instructions: the same input gives
/// the same digits on every host. Switching is the total less that of one veth pair between the same guests.
#[derive(Args)]
struct Exact {
    /// A contender [default: all that there can be]; may be repeated
    #[arg(long, value_name = "NAME")]
    contender: Vec<Contender>,
    /// The directory of the kernel, as scripts/fetch-guest-kernel.sh makes it
    #[arg(long, value_name = "DIR", default_value = "target/guest-kernel")]
    kernel: PathBuf,
    /// What the wire hands over: packets that the sender's socket shares (shared), as a veth pair does, or copies, as network cards do
    #[arg(long, value_name = "KIND", default_value_t)]
    wire: Wire,
    /// Fewer messages: the digits differ from those of a full run, and are as exact
    #[arg(long)]
    short: bool,
    /// Keep the counts in this file after each contender, for --baseline
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail when a message through a contender of ours costs more than 1 % more than this file says, or a stream 3 % through programs in the
    /// kernel and 20 % through threads
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
}

#[derive(Args)]
struct Inside {
    contender: Contender,
    warm_up: u32,
    measured: u32,
    stream_kib: u32,
    wire: Wire,
}

/// Run studies and write results.json, report.html and report.md
#[derive(Args)]
#[command(
    after_help = "Examples:\n  weft bench run all --quick --out /tmp/bench\n  weft bench run software-tunnelling --out st\n  \
                  weft bench run qinq --contender weft-user-qinq --contender kernel-vxlan --out q"
)]
struct Run {
    /// A study, or all; `weft bench list` names them
    #[arg(value_name = "STUDY", required = true)]
    studies: Vec<String>,
    /// Two short runs of everything in place of five long ones
    #[arg(long)]
    quick: bool,
    /// The directory for the reports
    #[arg(long, value_name = "DIR", default_value = "weft-bench")]
    out: PathBuf,
    /// Only this contender, beside the bridge; may be repeated
    #[arg(long, value_name = "NAME")]
    contender: Vec<Contender>,
    /// Only scenarios that have this in their name
    #[arg(long, value_name = "TEXT")]
    scenario: Option<String>,
    /// Only this underlay profile: full, tso, none
    #[arg(long, value_name = "PROFILE")]
    profile: Option<Profile>,
    /// Only this MTU of the underlay; all scenarios with it where the study has none such
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1280..=65000))]
    mtu: Option<u16>,
    /// Tunnels go over IPv6
    #[arg(long)]
    ipv6: bool,
    /// Repetitions [default: 5, quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    blocks: Option<u16>,
    /// How many more of a study, at most, while its last three runs have a standard deviation above 5 % of their mean [default: 2; 0
    /// with --blocks or --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1000))]
    repeats: Option<u16>,
    /// Seconds of each measurement [default: 2, quick 0.2]
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<f64>,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number from 0.05 to 600".to_owned()),
    }
}

pub fn bench(args: Bench) -> Result<(), Failure> {
    crate::logging::init();
    // Many connections of a load are as many files. Where it is not allowed, they fail for that reason.
    if let Err(error) = netdev::limits::raise_open_files() {
        tracing::warn!("{error}");
    }
    match args.task {
        Task::List => list(),
        Task::Run(args) => run(args),
        Task::Exact(args) => count::exact(&args),
        Task::Inside(args) => count::inside(&args),
        Task::Compare { before, after } => {
            let read = |path: &Path| Results::read(path).map_err(Failure::input);
            println!("{}", study::compare(&read(&before)?, &read(&after)?));
            Ok(())
        }
        Task::Report { results, out } => report(&results, &out),
        Task::Join { runs, out } => join(&runs, &out),
        Task::Findings { directory } => findings(&directory),
        Task::Crosscheck { blocks, seconds } => crosscheck(blocks.into(), seconds),
        Task::Serve(args) => remote::serve(&args),
        Task::Client(args) => remote::client(&args),
    }
}

fn list() -> Result<(), Failure> {
    let weft = this_program()?;
    println!("Studies:");
    for study in Study::ALL {
        println!("  {study:20} {}", study.question());
        let mut names: Vec<String> = Vec::new();
        for scenario in study.cells(false)?.iter().flat_map(|cell| &cell.scenarios) {
            if !names.contains(&scenario.name()) {
                names.push(scenario.name());
            }
        }
        println!("  {:20} {}", "", names.join(" "));
    }
    println!("Contenders:");
    for contender in Contender::all() {
        let why = contender
            .unavailable(&weft)
            .map_or("found".to_owned(), |why| format!("skipped: {why}"));
        println!("  {:20} {why}", contender.id());
    }
    if let Err(why) = check_privileges() {
        println!(
            "  As root, `weft bench run` can measure them, and this list knows of all of them: {why}"
        );
    }
    println!("Underlay profiles:\n  {}", Profile::ALL.map(|profile| profile.to_string()).join(" "));
    Ok(())
}

fn run(args: Run) -> Result<(), Failure> {
    let studies = studies(&args.studies).map_err(Failure::input)?;
    let options = Options {
        quick: args.quick,
        blocks: args.blocks.map(usize::from),
        repeats: args.repeats.map(usize::from),
        seconds: args.seconds,
        contenders: (!args.contender.is_empty()).then_some(args.contender),
        scenario: args.scenario,
        profile: args.profile,
        mtu: args.mtu,
        family: if args.ipv6 { Family::V6 } else { Family::V4 },
        quiet: args.quiet,
        commit: option_env!("WEFT_COMMIT").map(str::to_owned),
        ..Options::new(this_program()?, studies)
    };
    options.check().map_err(Failure::input)?;
    std::fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot create {}", args.out.display()))
        .map_err(Failure::Input)?;
    let stop = Stop::on_signals()?;
    let json = args.out.join("results.json");
    let mut keep = |results: &Results, milestone| match milestone {
        Milestone::Sample => results.write(&json),
        Milestone::Block => results.write(&json).and_then(|()| write_reports(results, &args.out)),
    };
    let results = study::run(&options, &stop, &mut keep).map_err(|error| match error {
        Error::Missing { .. } => Failure::input(error),
        error => error.into(),
    })?;
    results.write(&json)?;
    write_reports(&results, &args.out)?;
    print_verdicts(&results);
    let failed = results.samples.iter().filter(|sample| sample.failure.is_some()).count();
    if failed > 0 {
        println!("{failed} of {} measurements failed; the reports say why", results.samples.len());
    }
    println!("Reports: {}", args.out.join("report.html").display());
    if results.complete {
        Ok(())
    } else {
        Err(anyhow::anyhow!("interrupted: what was measured is kept").into())
    }
}

fn print_verdicts(results: &Results) {
    for finding in &results.verdicts {
        println!("{:4} {:30} {}", finding.claim.id, finding.words(), finding.claim.text);
    }
}

fn report(results: &Path, out: &Path) -> Result<(), Failure> {
    let results = Results::read(results).map_err(Failure::input)?.judged();
    write_all(&results, out)
}

fn join(runs: &[PathBuf], out: &Path) -> Result<(), Failure> {
    let read: Result<_, Error> = runs.iter().map(|run| Results::read(run)).collect();
    let results = read.and_then(study::join).map_err(Failure::input)?;
    std::fs::create_dir_all(out)
        .with_context(|| format!("cannot create {}", out.display()))
        .map_err(Failure::Input)?;
    write_all(&results, out)
}

fn write_all(results: &Results, out: &Path) -> Result<(), Failure> {
    results.write(&out.join("results.json"))?;
    write_reports(results, out)?;
    print_verdicts(results);
    Ok(())
}

fn findings(directory: &Path) -> Result<(), Failure> {
    let results = Results::read(&directory.join("results.json")).map_err(Failure::input)?;
    let counted = Baseline::read(&directory.join("exact.json")).map_err(Failure::input)?;
    let copies = directory.join("exact-copies.json");
    let copied = copies.exists().then(|| Baseline::read(&copies)).transpose();
    let copied = copied.map_err(Failure::input)?;
    let wires = (counted.wire, copied.as_ref().map_or(Wire::Copies, |copied| copied.wire));
    if wires != (Wire::Shared, Wire::Copies) {
        let (first, second) = wires;
        let why = format!("exact.json is of the wire {first}, exact-copies.json of {second}");
        return Err(Failure::Input(anyhow::anyhow!(why)));
    }
    let found = study::findings(&results, &counted, copied.as_ref());
    found.iter().for_each(|finding| println!("- {finding}"));
    Ok(())
}

fn crosscheck(blocks: usize, seconds: u64) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let found = crosscheck::run(blocks, Duration::from_secs(seconds), &stop)?;
    found.iter().for_each(|agreement| println!("{agreement}"));
    let is = |outcome| found.iter().any(|agreement| agreement.outcome() == outcome);
    if is(Outcome::Apart) {
        return Err(anyhow::anyhow!("not all are within 10 % of each other").into());
    }
    if is(Outcome::NotConverged) {
        let why = "the machine does not hold still: try more blocks, or when nothing else runs";
        return Err(anyhow::anyhow!(why).into());
    }
    Ok(())
}

fn write_reports(results: &Results, out: &Path) -> Result<(), Error> {
    for (name, text) in
        [("report.md", study::markdown(results)), ("report.html", study::html(results))]
    {
        let file = out.join(name);
        let what = format!("write {}", file.display());
        bench::file::write(&file, &text).map_err(|source| Error::Io { what, source })?;
    }
    Ok(())
}

/// The studies of these names, each once.
fn studies(names: &[String]) -> Result<Vec<Study>, Error> {
    if names.iter().any(|name| name == "all") {
        return Ok(Study::ALL.to_vec());
    }
    let mut studies = Vec::new();
    for name in names {
        let study = name.parse()?;
        if !studies.contains(&study) {
            studies.push(study);
        }
    }
    Ok(studies)
}

fn this_program() -> Result<PathBuf, Failure> {
    Ok(std::env::current_exe().context("find this program's own file")?)
}
