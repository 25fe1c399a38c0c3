//! The runs that are kept: every study and every count, with the README's findings made of them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::demo::{as_root, commit};
use crate::packages::{self, GUEST_KERNEL};
use crate::run::{cargo, run, target_dir};

const README: &str = "README.md";
/// What the README has between these is generated; the first names the directory.
const BEGIN: &str = "<!-- findings";
const END: &str = "<!-- /findings -->\n";

/// What to measure, and where to keep it.
#[derive(Args)]
pub struct Options {
    /// The directory [default: docs/results/DATE-bench]
    #[arg(long, value_name = "DIR")]
    out: Option<String>,
    /// Measure nothing; write the findings of this directory into the README
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    findings: Option<String>,
    /// Arguments of `weft bench run all`, for example --quick, or --blocks 3 --seconds 1
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Runs all studies and counts all contenders, and writes the README's findings.
pub fn results(options: &Options) -> Result<()> {
    if let Some(directory) = &options.findings {
        build()?;
        return write_findings(directory);
    }
    packages::ensure(&packages::all())?;
    packages::fetch_guest_kernel()?;
    let built = build()?;
    let directory = match &options.out {
        Some(directory) => directory.clone(),
        None => format!("docs/results/{}-bench", today()?),
    };
    let weft = target_dir().join("release/weft");
    let mut studies = as_root(weft.clone());
    studies.args(["bench", "run", "all", "--out", &directory]).args(&options.arguments);
    run(&mut studies)?;
    // One that could not be counted does not take from the others what hours have found; it is told at the end.
    let counted = [("shared", "exact"), ("copies", "exact-copies")].map(|(wire, name)| {
        let counts = format!("{directory}/{name}.json");
        let mut exact = Command::new(&weft);
        exact.args(["bench", "exact", "--kernel", GUEST_KERNEL, "--wire", wire]);
        run(exact.args(["--json", &counts]))
    });
    let page = format!(
        "# weft bench\n\nweft at {built}; machine, kernel and date are in [report.md](report.md), all samples in results.json, and the \
         counted instructions in exact.json and, of a wire that hands over copies, in exact-copies.json.\n\n    weft bench run all {}\n    \
         weft bench exact\n    weft bench exact --wire copies\n\n{}",
        options.arguments.join(" "),
        findings(&directory)?
    );
    let file = Path::new(&directory).join(README);
    fs::write(&file, page).with_context(|| file.display().to_string())?;
    write_findings(&directory)?;
    counted.into_iter().collect()
}

/// Builds weft; returns the commit it was built from.
fn build() -> Result<String> {
    let mut build = cargo(&["build", "--release", "--package", "weft"]);
    let commit = commit().unwrap_or_else(|| "an unknown commit".to_owned());
    build.env("WEFT_COMMIT", &commit);
    run(&mut build)?;
    Ok(commit)
}

fn today() -> Result<String> {
    let output = Command::new("date").args(["--utc", "+%F"]).output().context("date")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn findings(directory: &str) -> Result<String> {
    let weft = target_dir().join("release/weft");
    let output = Command::new(weft).args(["bench", "findings", directory]).output()?;
    if !output.status.success() {
        bail!("weft bench findings: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn write_findings(directory: &str) -> Result<()> {
    let readme = fs::read_to_string(README).context(README)?;
    let section = format!("{BEGIN} {directory} -->\n{}", findings(directory)?);
    fs::write(README, replaced(&readme, &section)?).context(README)
}

/// `readme` with `section` in place of what it has between the marks.
fn replaced(readme: &str, section: &str) -> Result<String> {
    let marks = || format!("{README} lacks {BEGIN} DIR --> or {END}");
    let (before, rest) = readme.split_once(BEGIN).with_context(marks)?;
    let (_, after) = rest.split_once(END).with_context(marks)?;
    Ok(format!("{before}{section}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_is_replaced_and_nothing_else() {
        let readme = "a\n<!-- findings x -->\n- old\n<!-- /findings -->\nb\n";
        let new = replaced(readme, "<!-- findings y -->\n- new\n").unwrap();
        assert_eq!(new, "a\n<!-- findings y -->\n- new\n<!-- /findings -->\nb\n");
        assert!(replaced("nothing", "").is_err());
    }
}
