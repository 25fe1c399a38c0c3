//! [`Figures`]: the measurements of the scripts about OVN, as a table or as JSON.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write, stdout};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::run::show;

/// Figures by name and chassis, in the order in which the names first occurred.
#[derive(Default)]
pub struct Figures {
    names: Vec<String>,
    chassis: Vec<String>,
    values: BTreeMap<(String, String), String>,
}

impl Figures {
    /// Runs a script to its end. Returns its figures, and whether it has passed. Prints its output,
    /// unless `is_quiet`.
    pub fn of(mut script: Command, is_quiet: bool) -> Result<(Self, bool)> {
        script.stdin(Stdio::null()).stdout(Stdio::piped());
        show(&script);
        let mut running = script.spawn().context("cannot start timeout")?;
        let script_output = running.stdout.take().context("the script has no output")?;
        let mut figures = Self::default();
        for line in BufReader::new(script_output).lines() {
            let line = line.context("cannot read the output of the script")?;
            if !is_quiet {
                writeln!(stdout(), "{line}")?;
            }
            figures.add(&line);
        }
        Ok((figures, running.wait()?.success()))
    }

    /// Adds a line such as `figure weft start_ms 480`.
    pub fn add(&mut self, line: &str) {
        let mut words = line.splitn(4, ' ');
        let parts = [words.next(), words.next(), words.next(), words.next()];
        let [Some("figure"), Some(chassis), Some(name), Some(value)] = parts else { return };
        for (list, new) in [(&mut self.chassis, chassis), (&mut self.names, name)] {
            if !list.iter().any(|known| known == new) {
                list.push(new.to_owned());
            }
        }
        self.values.insert((name.to_owned(), chassis.to_owned()), value.to_owned());
    }

    /// A row for each figure, and a column for each chassis.
    pub fn table(&self) -> String {
        let row = |name: &str, cell: &dyn Fn(&String) -> String| {
            let cells = self.chassis.iter().map(|chassis| format!("{:>14}", cell(chassis)));
            format!("{name:<26}{}\n", cells.collect::<String>())
        };
        let rows = self.names.iter().map(|name| {
            row(name, &|chassis| {
                let value = self.values.get(&(name.clone(), chassis.clone()));
                value.cloned().unwrap_or_else(|| "-".to_owned())
            })
        });
        row("", &Clone::clone) + &rows.collect::<String>()
    }

    /// A JSON object for each chassis, with the values as strings.
    pub fn json(&self, commit: &str, command: &str) -> Value {
        let mut chassis = BTreeMap::<_, BTreeMap<_, _>>::new();
        for ((name, of), value) in &self.values {
            chassis.entry(of).or_default().insert(name, value);
        }
        json!({ "commit": commit, "command": command, "figures": chassis })
    }
}

/// Writes the table to the file `log`, and removes the directory of a script that has passed.
///
/// # Errors
/// The script has failed, or a file cannot be written.
pub fn keep(table: &str, log: Option<&Path>, has_passed: bool, directory: &Path) -> Result<()> {
    if !has_passed {
        bail!("the measurement failed; the logs are in {}", directory.display());
    }
    if let Some(path) = log {
        fs::write(path, table).with_context(|| path.display().to_string())?;
    }
    fs::remove_dir_all(directory).with_context(|| directory.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::Figures;

    #[test]
    fn table_has_a_row_for_each_figure_and_a_column_for_each_chassis() {
        let mut figures = Figures::default();
        for line in ["figure stock start_ms 20", "12:00:00 weft", "figure weft bind_ms 3 4"] {
            figures.add(line);
        }
        let rows: Vec<String> = figures.table().lines().map(str::to_owned).collect();
        let words = |row: &String| row.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&rows[0]), ["stock", "weft"]);
        assert_eq!(words(&rows[1]), ["start_ms", "20", "-"]);
        assert_eq!(words(&rows[2]), ["bind_ms", "-", "3", "4"]);
        let json = figures.json("1a2b", "cargo xtask");
        assert_eq!(json["figures"]["weft"]["bind_ms"], "3 4");
        assert_eq!(json["commit"], "1a2b");
    }
}
