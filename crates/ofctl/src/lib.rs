//! The subset of the flow syntax of ovs-ofctl that weft executes like Open vSwitch.
//!
//! ```text
//! file -> lines -> FlowChange (match, steps, canonical text) -> Bridge -> Program
//! ```
//!
//! [`parse`] reads a file and reports every line with an error, with line and column. A [`Bridge`]
//! holds a program of one datapath; it applies a file completely or not at all. `docs/ofctl.md`
//! lists the rejected syntax and the differences from Open vSwitch.
#![forbid(unsafe_code)]

mod actions;
mod bridge;
mod condition;
mod ct;
mod dump;
mod line;
mod names;
mod packet_out;
mod ports;
mod references;
mod set;
mod text;
mod value;
mod zones;

pub use bridge::{Bridge, BridgeError};
pub use line::{FlowChange, FlowSelector, FlowSpec};
pub use packet_out::PacketOut;
pub use ports::{PortError, Ports};
pub use references::FlowReferences;

use flow::FlowKey;
use std::fmt;
use text::{TextError, TextSlice};

/// An error in a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The error, and the expected input.
    pub message: String,
}

/// `line:column: message`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl Problem {
    fn new(line: usize, text: &str, fault: TextError) -> Self {
        let before = text.get(..fault.at).unwrap_or(text);
        Self { line, column: before.chars().count() + 1, message: fault.message }
    }
}

/// All errors of a text; at least one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Problems {
    /// The name of the file or other source.
    pub source_name: String,
    /// The errors, in the order of lines.
    pub problems: Vec<Problem>,
}

/// One line for each error: `file:line:column: message`.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.problems.iter().enumerate() {
            let newline = if place > 0 { "\n" } else { "" };
            write!(f, "{newline}{}:{problem}", self.source_name)?;
        }
        Ok(())
    }
}

/// Parses a file of flows. Each line is a flow or another change; `#` begins a comment. Returns the
/// changes with their line numbers, from 1.
///
/// # Errors
/// The first error of every line that has one.
pub fn parse(
    text: &str,
    source_name: &str,
    ports: &Ports,
) -> Result<Vec<(usize, FlowChange)>, Problems> {
    let mut changes = Vec::new();
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let code = without_comment(line);
        if code.trim().is_empty() {
            continue;
        }
        match line::parse(TextSlice::new(code), ports) {
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

/// Parses one line, which must not be empty or a comment.
///
/// # Errors
/// The error; its line is 1.
pub fn parse_line(line: &str, ports: &Ports) -> Result<FlowChange, Problem> {
    let code = without_comment(line);
    line::parse(TextSlice::new(code), ports).map_err(|fault| Problem::new(1, code, fault))
}

/// Parses a change whose command is not part of `text`. The columns of errors refer to `text`.
fn parse_command(command: &str, text: &str, ports: &Ports) -> Result<FlowChange, Problem> {
    if text.contains('\n') {
        let message = "expected one line".to_owned();
        return Err(Problem { line: 1, column: 1, message });
    }
    let line = format!("{command} {}", without_comment(text));
    line::parse(TextSlice::new(&line), ports).map_err(|fault| {
        let at = fault.at.saturating_sub(command.len() + 1);
        Problem::new(1, text, TextError::new(at, fault.message))
    })
}

/// Parses a packet as `ovs-appctl ofproto/trace` takes it: the words of a match without masks
/// (`in_port=1,tcp,nw_src=10.0.0.1,tp_dst=80`). Fields that are not mentioned are 0.
///
/// # Errors
/// The error; its line is 1.
pub fn parse_packet_flow(text: &str, ports: &Ports) -> Result<FlowKey, Problem> {
    line::packet(TextSlice::new(text), ports).map_err(|fault| Problem::new(1, text, fault))
}

/// The words of a match for a condition; empty if it matches every packet. Omits bits that have no
/// name in ovs-ofctl: the second VLAN tag and the TPID of the first one.
pub fn condition_text(condition: &flow::Match) -> String {
    condition::text(condition)
}
