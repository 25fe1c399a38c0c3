//! Measures the published results: a run of every study, and the counts of every contender.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::demo::{as_root, build_released, commit};
use crate::packages::{self, GUEST_KERNEL};
use crate::run::run;

/// The options of `cargo xtask results`.
#[derive(Args)]
pub struct Options {
    /// The directory [default: docs/results/DATE-bench]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Arguments of `weft bench run all`, for example --quick, or --blocks 3 --seconds 1
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Runs all studies, counts all contenders, and writes the directory's README.md.
pub fn results(options: &Options) -> Result<()> {
    packages::ensure(&packages::all())?;
    packages::fetch_guest_kernel()?;
    let weft = build_released()?;
    let directory = match &options.out {
        Some(directory) => directory.clone(),
        None => PathBuf::from(format!("docs/results/{}-bench", today()?)),
    };
    let mut studies = as_root(weft.clone());
    studies.args(["bench", "run", "all", "--out"]).arg(&directory).args(&options.arguments);
    run(&mut studies)?;
    // A failed count is reported at the end, so that the results of hours of studies are not lost.
    let counted =
        [("shared", "exact.json"), ("copies", "exact-copies.json")].map(|(wire, name)| {
            let mut exact = Command::new(&weft);
            exact.args(["bench", "exact", "--kernel", GUEST_KERNEL, "--wire", wire, "--json"]);
            run(exact.arg(directory.join(name)))
        });
    let built = commit().unwrap_or_else(|| "an unknown commit".to_owned());
    let page = format!(
        "# weft bench\n\nweft at {built}. [report.md](report.md) has the machine, the kernel, the \
         date and the verdicts; results.json has all samples; exact.json has the counted \
         instructions, and exact-copies.json those of a wire that delivers copies.\n\n    \
         weft bench run all {}\n    weft bench exact\n    weft bench exact --wire copies\n\n{}",
        options.arguments.join(" "),
        findings(&weft, &directory)?
    );
    let file = directory.join("studies.md");
    fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
    counted.into_iter().collect()
}

fn today() -> Result<String> {
    let output = Command::new("date").args(["--utc", "+%F"]).output().context("cannot run date")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn findings(weft: &Path, directory: &Path) -> Result<String> {
    let mut command = Command::new(weft);
    let output = command.args(["bench", "findings"]).arg(directory).output();
    let output = output.with_context(|| format!("cannot start {}", weft.display()))?;
    if !output.status.success() {
        bail!("weft bench findings: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}
