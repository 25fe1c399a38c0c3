//! `cargo xtask ovn-scale`: what one host of a large OVN deployment costs, with the stock chassis
//! and with weft. `packaging/ovn-scale.sh` measures it, in namespaces of its own.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::demo::{build_released, commit};
use crate::packages;
use crate::run::show;

/// What makes the network and measures.
const SCRIPT: &str = "packaging/ovn-scale.sh";
/// The longest run, in seconds.
const LIMIT_S: &str = "3600";

/// How large the deployment is.
#[derive(Args)]
pub struct Options {
    /// Logical switches
    #[arg(long, default_value_t = 1000)]
    switches: u32,
    /// Ports of each switch
    #[arg(long, default_value_t = 20)]
    ports: u32,
    /// Routers, over which the switches are spread
    #[arg(long, default_value_t = 50)]
    routers: u32,
    /// How often a new port and a new ACL are measured
    #[arg(long, default_value_t = 50)]
    repeats: u32,
    /// Keep the table in this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// Builds weft, runs the script, and prints a table.
pub fn measure(options: &Options) -> Result<()> {
    packages::ensure(&[&packages::BUILD[..], &packages::TEST].concat())?;
    let weft = build_released()?;
    let directory = std::env::temp_dir().join(format!("ovn-scale-{}", std::process::id()));
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let Options { switches, ports, routers, repeats, .. } = options;
    let mut script = Command::new("timeout");
    script.args(["--kill-after=10", LIMIT_S, SCRIPT]).arg(&directory).arg(&weft);
    script.args([switches, ports, routers, repeats].map(u32::to_string));
    script.stdin(Stdio::null()).stdout(Stdio::piped());
    show(&script);
    let mut running = script.spawn().context("cannot start timeout")?;
    let said = running.stdout.take().context("the script has no output")?;
    let mut figures = Figures::default();
    for line in BufReader::new(said).lines() {
        let line = line.context("cannot read the output of the script")?;
        writeln!(std::io::stdout(), "{line}")?;
        figures.add(&line);
    }
    let has_passed = running.wait()?.success();
    let table = format!(
        "commit {}, cargo xtask ovn-scale --switches {switches} --ports {ports} --routers \
         {routers} --repeats {repeats}\n{}",
        commit().unwrap_or_default(),
        figures.table()
    );
    write!(std::io::stdout(), "\n{table}")?;
    if !has_passed {
        bail!("the measurement failed; the logs are in {}", directory.display());
    }
    if let Some(path) = &options.log {
        fs::write(path, &table).with_context(|| path.display().to_string())?;
    }
    fs::remove_dir_all(&directory).with_context(|| directory.display().to_string())
}

/// Figures by name and chassis, in the order of their names' first lines.
#[derive(Default)]
struct Figures {
    names: Vec<String>,
    chassis: Vec<String>,
    values: BTreeMap<(String, String), String>,
}

impl Figures {
    /// Adds a line such as `figure weft start_ms 480`.
    fn add(&mut self, line: &str) {
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
    fn table(&self) -> String {
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
    }
}
