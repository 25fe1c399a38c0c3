//! The commands that measure nothing: they read saved results to judge, join, compare or report
//! them.

use std::path::{Path, PathBuf};

use super::Failure;
use crate::exact::{Baseline, Wire};
use crate::study::{self, Results};
use crate::{Error, file};

/// Compare two runs: before and after
#[derive(clap::Args)]
pub struct Compare {
    /// results.json of the earlier run
    before: PathBuf,
    /// results.json of the later run
    after: PathBuf,
}

/// Judge the samples of results.json again; write report.html, report.md and results.json
#[derive(clap::Args)]
pub struct Report {
    /// results.json of a run
    results: PathBuf,
    /// The directory for the reports
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

/// Join several runs of one machine: more repetitions, or studies that were run separately
#[derive(clap::Args)]
pub struct Join {
    /// results.json of each run
    #[arg(required = true, num_args = 2.., value_name = "FILE")]
    runs: Vec<PathBuf>,
    /// The directory for results.json and the reports
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Summarize the results of a directory in three sentences, each with its figures
///
/// The directory has results.json, exact.json (of `weft bench exact --json`) and optionally
/// exact-copies.json (of the same with `--wire copies`).
#[derive(clap::Args)]
pub struct Findings {
    /// The directory
    directory: PathBuf,
}

pub fn compare(args: &Compare) -> Result<(), Failure> {
    let read = |path: &Path| Results::read(path).map_err(Failure::input);
    super::print(&format!("{}\n", study::compare(&read(&args.before)?, &read(&args.after)?)))
}

pub fn report(args: &Report) -> Result<(), Failure> {
    let results = study::judged(Results::read(&args.results).map_err(Failure::input)?);
    write_all(&results, &args.out)
}

pub fn join(args: &Join) -> Result<(), Failure> {
    let read: Result<_, Error> = args.runs.iter().map(|run| Results::read(run)).collect();
    let results = read.and_then(study::join).map_err(Failure::input)?;
    create_directory(&args.out)?;
    write_all(&results, &args.out)
}

pub fn findings(args: &Findings) -> Result<(), Failure> {
    let directory = &args.directory;
    let results = Results::read(&directory.join("results.json")).map_err(Failure::input)?;
    let results = study::judged(results);
    let counted = Baseline::read(&directory.join("exact.json")).map_err(Failure::input)?;
    let copies = directory.join("exact-copies.json");
    let copied = copies.exists().then(|| Baseline::read(&copies)).transpose();
    let copied = copied.map_err(Failure::input)?;
    let wires = (counted.wire, copied.as_ref().map_or(Wire::Copies, |copied| copied.wire));
    if wires != (Wire::Shared, Wire::Copies) {
        let (first, second) = wires;
        return Err(Failure::input(format!(
            "cannot summarize {}: exact.json was counted on the wire {first} and \
             exact-copies.json on {second}; expected shared and copies",
            directory.display()
        )));
    }
    let found = study::findings(&results, &counted, copied.as_ref());
    found.iter().for_each(|finding| println!("- {finding}"));
    Ok(())
}

pub fn print_verdicts(results: &Results) {
    for finding in &results.verdicts {
        println!("{:4} {:30} {}", finding.claim.id, finding.words(), finding.claim.text);
    }
}

pub fn create_directory(path: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(path)
        .map_err(|error| Failure::input(format!("cannot create {}: {error}", path.display())))
}

/// Writes report.md and report.html into the directory `out`.
pub fn write_reports(results: &Results, out: &Path) -> Result<(), Error> {
    for (name, text) in
        [("report.md", study::markdown(results)), ("report.html", study::html(results))]
    {
        let path = out.join(name);
        file::write(&path, &text).map_err(Error::io(format!("write {}", path.display())))?;
    }
    Ok(())
}

fn write_all(results: &Results, out: &Path) -> Result<(), Failure> {
    results.write(&out.join("results.json"))?;
    write_reports(results, out)?;
    print_verdicts(results);
    Ok(())
}
