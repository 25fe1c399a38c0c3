//! `weft check`: checks the syntax of flows, matches or actions and prints their canonical form.

use crate::line_check::{Language, LineChecker, LineFault};
use crate::trace::PortName;
use crate::{Failure, stdio};
use anyhow::anyhow;
use ofctl::Ports;
use serde_json::json;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Check flows, matches or actions, one per line, and print their canonical form.
///
/// Valid lines go to standard output; empty lines and comments (`#`) are copied, so the output is
/// valid input. Errors go to standard error with file, line and column.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("language")
    .required(true)
    .args(["flows", "expr", "actions", "ofctl"]))]
pub struct Args {
    /// The lines are logical flows, as printed by `weft flows --logical` or `ovn-sbctl lflow-list`
    #[arg(long)]
    flows: bool,
    /// The lines are match expressions of logical flows
    #[arg(long)]
    expr: bool,
    /// The lines are actions of logical flows
    #[arg(long)]
    actions: bool,
    /// The lines are flows in the syntax of ovs-ofctl
    #[arg(long)]
    ofctl: bool,
    /// With --ofctl: a port that flows may refer to by name; may be repeated
    #[arg(long, value_name = "NUMBER=NAME", requires = "ofctl")]
    port: Vec<PortName>,
    /// Print a JSON object for each flow, match or action: {"line", "canonical"} or
    /// {"line", "error"}
    #[arg(long)]
    json: bool,
    /// The input file; - for standard input
    file: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  echo 'ip4.dst==10.0.0.0/8 && tcp.dst<1024' | weft check --expr -
  echo 'ip.ttl--; outport = \"lan\"; output;' | weft check --actions -
  weft flows --logical network.toml | weft check --flows -
  weft check --ofctl flows.txt

Exit codes: 0 all lines are valid, 1 some are invalid, 2 bad usage or an unreadable file.";

impl Args {
    fn language(&self) -> Language {
        match (self.flows, self.expr, self.actions) {
            (true, _, _) => Language::LogicalFlows,
            (_, true, _) => Language::Expressions,
            (_, _, true) => Language::Actions,
            _ => Language::Ofctl,
        }
    }
}

pub fn check(args: &Args) -> Result<(), Failure> {
    let input = stdio::read_input(&args.file)?;
    let mut ports = Ports::new();
    for PortName { number, name } in &args.port {
        ports.add(*number, name).map_err(Failure::input)?;
    }
    let mut checker = LineChecker::new(args.language(), ports);
    let name = stdio::display_name(&args.file);
    let (mut checked, mut invalid) = (0, 0);
    let mut out = String::new();
    for (number, line) in (1..).zip(input.lines()) {
        let result = checker.check(line);
        checked += usize::from(!matches!(result, Ok(None)));
        invalid += usize::from(result.is_err());
        if args.json {
            if let Some(object) = object(number, &result) {
                writeln!(out, "{object}")?;
            }
            continue;
        }
        match result {
            Ok(canonical) => writeln!(out, "{}", canonical.as_deref().unwrap_or(line))?,
            Err(fault) => {
                let excerpt = fault.excerpt(line).replace('\n', "\n    ");
                let LineFault { column, message, .. } = fault;
                eprintln!("{name}:{number}:{column}: {message}\n    {excerpt}");
            }
        }
    }
    stdio::print(&out)?;
    match invalid {
        0 => Ok(()),
        _ => {
            Err(anyhow!("{invalid} of {checked} lines are invalid: see the messages above").into())
        }
    }
}

/// The output of --json for a line; `None` for empty lines and comments.
fn object(line: usize, result: &Result<Option<String>, LineFault>) -> Option<serde_json::Value> {
    match result {
        Ok(canonical) => {
            canonical.as_ref().map(|canonical| json!({ "line": line, "canonical": canonical }))
        }
        Err(LineFault { column, message, .. }) => {
            let error = json!({ "line": line, "column": column, "message": message });
            Some(json!({ "line": line, "error": error }))
        }
    }
}
