//! `weft check`: are these lines in the language, and how are they written canonically?

use crate::line_check::{Checker, Language, LineFault};
use crate::trace::PortName;
use crate::{Failure, text};
use anyhow::anyhow;
use ofctl::Ports;
use serde_json::json;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Check flows, matches or actions, one a line, and print them in canonical form.
///
/// What is right goes to standard output, with empty lines and comments (`#`) as they are, so that it can be fed back; what
/// is wrong goes to standard error, with its place.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("language").required(true).args(["flows", "expr", "actions", "ofctl"]))]
pub struct Args {
    /// Logical flows, as `weft flows --logical` and `ovn-sbctl lflow-list` print them
    #[arg(long)]
    flows: bool,
    /// Matches of logical flows
    #[arg(long)]
    expr: bool,
    /// Actions of logical flows
    #[arg(long)]
    actions: bool,
    /// Flows in the syntax of ovs-ofctl
    #[arg(long)]
    ofctl: bool,
    /// With --ofctl: a port that flows may name; may be repeated
    #[arg(long, value_name = "NUMBER=NAME", requires = "ofctl")]
    port: Vec<PortName>,
    /// A JSON object for each line that is not empty or a comment: {"line", "canonical"} or {"line", "error"}
    #[arg(long)]
    json: bool,
    /// The file, or - for standard input
    file: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  echo 'ip4.dst==10.0.0.0/8 && tcp.dst<1024' | weft check --expr -
  echo 'ip.ttl--; outport = \"lan\"; output;' | weft check --actions -
  weft flows --logical network.toml | weft check --flows -
  weft check --ofctl flows.txt

Exit codes: 0 all lines are right, 1 some are wrong, 2 the file cannot be read.";

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
    let input = text::read(&args.file)?;
    let mut ports = Ports::new();
    for PortName { number, name } in &args.port {
        ports.add(*number, name).map_err(Failure::input)?;
    }
    let mut checker = Checker::new(args.language(), ports);
    let name = text::name(&args.file);
    let (mut checked, mut wrong) = (0, 0);
    let mut out = String::new();
    for (number, line) in (1..).zip(input.lines()) {
        let result = checker.check(line);
        checked += usize::from(!matches!(result, Ok(None)));
        wrong += usize::from(result.is_err());
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
    text::print(&out)?;
    match wrong {
        0 => Ok(()),
        _ => Err(anyhow!("{wrong} of {checked} lines are wrong").into()),
    }
}

/// What `--json` says of a line.
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
