//! Runs a script that prints a line for each check, once for each variant, and prints the table of
//! results.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::demo::commit;
use crate::run::show;

/// A script to run for one variant.
pub struct Walk {
    /// The heading of the variant's column.
    pub variant: &'static str,
    /// The path of the script.
    pub script: &'static str,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The time limit, in seconds.
    pub limit_s: &'static str,
}

/// The result of one run.
pub struct Outcome {
    variant: &'static str,
    /// The checks in order, and whether each has passed.
    checks: Vec<(String, bool)>,
    /// Measurements, in the format of the script.
    notes: Vec<String>,
    seconds: u64,
    /// True if the script and all checks have passed.
    pub has_passed: bool,
}

impl Walk {
    /// Runs the script. It prints `ok CHECK` or `FAILED CHECK` for each check, and `info NOTE`.
    pub fn run(self) -> Result<Outcome> {
        let mut script = Command::new("timeout");
        script.args(["--kill-after=10", self.limit_s, self.script]).args(self.arguments);
        script.stdin(Stdio::null()).stdout(Stdio::piped());
        show(&script);
        let start = Instant::now();
        let mut running = script.spawn().context("cannot start timeout")?;
        let stdout = running.stdout.take().context("the script has no output")?;
        let (mut checks, mut notes) = (Vec::new(), Vec::new());
        for line in BufReader::new(stdout).lines() {
            let line = line.context("cannot read the output of the script")?;
            writeln!(std::io::stdout(), "{line}")?;
            if let Some(name) = line.strip_prefix("ok ") {
                checks.push((name.to_owned(), true));
            } else if let Some(name) = line.strip_prefix("FAILED ") {
                checks.push((name.to_owned(), false));
            } else if let Some(note) = line.strip_prefix("info ") {
                notes.push(note.to_owned());
            }
        }
        let has_passed = running.wait()?.success() && checks.iter().all(|(_, passed)| *passed);
        let (variant, seconds) = (self.variant, start.elapsed().as_secs());
        Ok(Outcome { variant, checks, notes, seconds, has_passed })
    }
}

/// Prints a table with a row for each check and a column for each variant. Also writes it to the
/// file `log`.
pub fn report(task: &str, outcomes: &[Outcome], log: Option<&PathBuf>) -> Result<()> {
    let table = table(task, outcomes)?;
    write!(std::io::stdout(), "\n{table}")?;
    log.map_or(Ok(()), |path| {
        std::fs::write(path, &table).with_context(|| path.display().to_string())
    })
}

fn table(task: &str, outcomes: &[Outcome]) -> Result<String> {
    let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%MZ"]).output().context("date")?;
    let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
    let mut lines =
        vec![format!("{date}, commit {}, cargo xtask {task}", commit().unwrap_or_default())];
    let checks = || outcomes.iter().flat_map(|outcome| &outcome.checks);
    let width = checks().map(|(name, _)| name.len()).max().unwrap_or_default().max(48) + 2;
    let cells = |what: &str, cell: &dyn Fn(&Outcome) -> String| {
        let cells = outcomes.iter().map(|outcome| format!("{:<10}", cell(outcome)));
        let row = format!("{what:<width$}{}", cells.collect::<String>());
        row.trim_end().to_owned()
    };
    lines.push(cells("check", &|outcome| outcome.variant.to_owned()));
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in checks() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    for name in names {
        lines.push(cells(name, &|outcome| {
            let found = outcome.checks.iter().find(|(known, _)| known == name);
            found.map_or("-", |(_, passed)| if *passed { "pass" } else { "FAIL" }).to_owned()
        }));
    }
    lines.push(cells("duration", &|outcome| format!("{} s", outcome.seconds)));
    for outcome in outcomes {
        lines.extend(outcome.notes.iter().map(|note| format!("{}: {note}", outcome.variant)));
    }
    Ok(lines.join("\n") + "\n")
}
