//! `weft-bench run` and `weft-bench list`: the published studies, measured on this machine.

use std::path::{Path, PathBuf};

use super::reports::{print_verdicts, write_reports};
use super::{Failure, commit, print, seconds};
use crate::lab::{Contender, IpVersion, Profile, check_privileges};
use crate::study::{self, Results, SavePoint, Study, StudyOptions};
use crate::{Error, Stop};

/// List the studies with their scenarios, and the contenders, with the reason where one is
/// unavailable
#[derive(clap::Args)]
pub struct List;

/// Run studies and write results.json, report.html and report.md
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  weft bench run all --quick --out /tmp/bench\n  \
                  weft bench run software-tunnelling --out st\n  \
                  weft bench run qinq --contender weft-user-qinq --contender kernel-vxlan --out q")]
pub struct Run {
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
    /// Only scenarios with this text in their name
    #[arg(long, value_name = "TEXT")]
    scenario: Option<String>,
    /// Only this underlay profile: full, tso, none
    #[arg(long, value_name = "PROFILE")]
    profile: Option<Profile>,
    /// Only this MTU of the underlay; all scenarios use it when the study has no such MTU
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1280..=65000))]
    mtu: Option<u16>,
    /// Tunnels go over IPv6
    #[arg(long)]
    ipv6: bool,
    /// Repetitions [default: 5, quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    blocks: Option<u16>,
    /// Additional repetitions of a study, at most, while the last three runs have a standard
    /// deviation above 5 % of their mean [default: 2; 0 with --blocks or --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1000))]
    repeats: Option<u16>,
    /// Seconds of each measurement [default: 2, quick 0.2]
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<f64>,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
}

pub fn list(weft: &Path) -> Result<(), Failure> {
    print("Studies:\n")?;
    for study in Study::ALL {
        let mut names: Vec<String> = Vec::new();
        for scenario in study.cells(false)?.iter().flat_map(|cell| &cell.scenarios) {
            if !names.contains(&scenario.name()) {
                names.push(scenario.name());
            }
        }
        let (name, question, names) = (study.name(), study.question(), names.join(" "));
        print(&format!("  {name:20} {question}\n  {:20} {names}\n", ""))?;
    }
    print("Contenders:\n")?;
    for contender in Contender::all() {
        let why =
            contender.unavailable(weft).map_or("found".to_owned(), |why| format!("skipped: {why}"));
        print(&format!("  {:20} {why}\n", contender.id()))?;
    }
    if let Err(why) = check_privileges() {
        print(&format!(
            "  As root, `weft bench run` can measure them, and this list is complete: {why}\n"
        ))?;
    }
    let profiles = Profile::ALL.map(|profile| profile.to_string()).join(" ");
    print(&format!("Underlay profiles:\n  {profiles}\n"))
}

pub fn run(args: Run, weft: PathBuf) -> Result<(), Failure> {
    let studies = studies(&args.studies).map_err(Failure::input)?;
    let options = StudyOptions {
        quick: args.quick,
        blocks: args.blocks.map(usize::from),
        repeats: args.repeats.map(usize::from),
        seconds: args.seconds,
        contenders: (!args.contender.is_empty()).then_some(args.contender),
        scenario: args.scenario,
        profile: args.profile,
        mtu: args.mtu,
        family: if args.ipv6 { IpVersion::V6 } else { IpVersion::V4 },
        quiet: args.quiet,
        commit: commit(),
        ..StudyOptions::new(weft, studies)
    };
    options.check().map_err(Failure::input)?;
    super::reports::create_directory(&args.out)?;
    let stop = Stop::on_signals()?;
    let json = args.out.join("results.json");
    let mut keep = |results: &Results, milestone| match milestone {
        SavePoint::Sample => results.write(&json),
        SavePoint::Block => results.write(&json).and_then(|()| write_reports(results, &args.out)),
    };
    let results = study::run(&options, &stop, &mut keep)?;
    results.write(&json)?;
    write_reports(&results, &args.out)?;
    print_verdicts(&results);
    let failed = results.samples.iter().filter(|sample| sample.failure.is_some()).count();
    if failed > 0 {
        println!("{failed} of {} measurements failed; see the reports", results.samples.len());
    }
    println!("Reports: {}", args.out.join("report.html").display());
    if results.complete {
        Ok(())
    } else {
        Err(Failure::work(format!(
            "interrupted; {} has what was measured until then",
            json.display()
        )))
    }
}

/// The studies with these names, without duplicates.
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
