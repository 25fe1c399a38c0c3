//! The flow syntax of ovs-ofctl, as far as it can be executed faithfully.
//!
//! ```text
//! file --> lines --> Change (match, steps, canonical text) --> Bridge --> Program
//! ```
//!
//! [`parse`] reads a file; it reports all that is wrong with it, by line and column. A [`Bridge`] holds a program of one
//! datapath and changes it as a whole file says, or not at all. What is refused, and where weft differs from Open vSwitch, is in
//! `docs/ofctl.md`.
#![forbid(unsafe_code)]

mod actions;
mod bridge;
mod condition;
mod line;
mod mentioned;
mod names;
mod ports;
mod set;
mod text;
mod value;

pub use bridge::{Bridge, BridgeError};
pub use line::{Change, Filter, FlowSpec};
pub use mentioned::Mentioned;
pub use ports::{PortError, Ports};

use flow::FlowKey;
use std::fmt;
use text::{Fault, Piece};

/// What is wrong with a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
    /// What is wrong, and what was expected.
    pub message: String,
}

/// `line:column: message`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl Problem {
    fn new(line: usize, text: &str, fault: Fault) -> Self {
        let before = text.get(..fault.at).unwrap_or(text);
        Self { line, column: before.chars().count() + 1, message: fault.message }
    }
}

/// Everything that is wrong with a text; at least one problem.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Problems {
    /// The file's name, or what stands for it.
    pub source_name: String,
    /// In the order of lines.
    pub problems: Vec<Problem>,
}

/// A line for each problem: `file:line:column: message`.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.problems.iter().enumerate() {
            let newline = if place > 0 { "\n" } else { "" };
            write!(f, "{newline}{}:{problem}", self.source_name)?;
        }
        Ok(())
    }
}

/// Reads a file of flows: a flow or another change in each line; `#` begins a comment. Returns the changes with the numbers
/// of their lines, counted from 1.
///
/// # Errors
/// The first problem of every line that has one.
pub fn parse(
    text: &str,
    source_name: &str,
    ports: &Ports,
) -> Result<Vec<(usize, Change)>, Problems> {
    let mut changes = Vec::new();
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let code = without_comment(line);
        if code.trim().is_empty() {
            continue;
        }
        match line::parse(Piece::new(code), ports) {
            Ok(change) => changes.push((number, change)),
            Err(fault) => problems.push(Problem::new(number, code, fault)),
        }
    }
    if problems.is_empty() {
        Ok(changes)
    } else {
        Err(Problems { source_name: source_name.to_owned(), problems })
    }
}

fn without_comment(line: &str) -> &str {
    line.split_once('#').map_or(line, |(code, _)| code)
}

/// Reads one line, which must not be empty or a comment.
///
/// # Errors
/// What is wrong with it; its line is 1.
pub fn parse_line(line: &str, ports: &Ports) -> Result<Change, Problem> {
    let code = without_comment(line);
    line::parse(Piece::new(code), ports).map_err(|fault| Problem::new(1, code, fault))
}

/// Reads a packet as `ovs-appctl ofproto/trace` takes it: the words of a match, without masks
/// (`in_port=1,tcp,nw_src=10.0.0.1,tp_dst=80`). What is not named is 0.
///
/// # Errors
/// What is wrong; its line is 1.
pub fn parse_packet_flow(text: &str, ports: &Ports) -> Result<FlowKey, Problem> {
    line::packet(Piece::new(text), ports).map_err(|fault| Problem::new(1, text, fault))
}

/// A condition in the words of a match; empty for one that every packet meets. Bits that ovs-ofctl has no word for are left
/// out: the second VLAN tag and the TPID of the first.
pub fn condition_text(condition: &flow::Match) -> String {
    condition::text(condition)
}
