//! Prints flows with their statistics, as `ovs-ofctl dump-flows` does.

use super::bridge::{Bridge, BridgeFlow};
use super::line::{FlowChange, FlowSelector};
use super::text::TextError;
use super::{Problem, parse_command};
use std::fmt::{self, Write};

/// The default priority, which is not printed.
const DEFAULT_PRIORITY: u16 = 0x8000;

impl Bridge {
    /// Parses the words that select flows, such as `table=1,ip`, as in `ovs-ofctl del-flows`. With
    /// `strict`, they select the flow with exactly this match and priority.
    ///
    /// # Errors
    /// The error; its line is 1, and its column counts from the start of `text`.
    pub fn selector(&self, text: &str, strict: bool) -> Result<FlowSelector, Problem> {
        let command = if strict { "delete_strict" } else { "delete" };
        match parse_command(command, text, self.ports())? {
            FlowChange::Delete(selector) => Ok(selector),
            FlowChange::Add(_) | FlowChange::Modify { .. } => {
                Err(Problem::new(1, text, TextError::new(0, "expected a match")))
            }
        }
    }

    /// The flows that `selector` selects, by table, the highest priority first. One line for each,
    /// like ` cookie=0x0, duration=1.5s, table=0, n_packets=3, n_bytes=294, in_port=1
    /// actions=output:2`. Without `statistics`, the lines have the format that `ovs-ofctl add-flow`
    /// accepts.
    pub fn dump_flows(
        &self,
        selector: &FlowSelector,
        statistics: bool,
        now_ms: u64,
    ) -> Vec<String> {
        let line = |entry: &BridgeFlow| match statistics {
            true => WithStatistics { entry, now_ms }.to_string(),
            false => Plain(entry).to_string(),
        };
        self.selected(Some(selector)).into_iter().map(line).collect()
    }
}

/// A flow without statistics.
struct Plain<'a>(&'a BridgeFlow);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spec = &self.0.spec;
        f.write_char(' ')?;
        if spec.cookie != 0 {
            write!(f, "cookie={:#x}, ", spec.cookie)?;
        }
        if spec.table.index() != 0 {
            write!(f, "table={}, ", spec.table)?;
        }
        write_rest(f, self.0)
    }
}

/// A flow with its counters and its age.
struct WithStatistics<'a> {
    entry: &'a BridgeFlow,
    now_ms: u64,
}

impl fmt::Display for WithStatistics<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spec = &self.entry.spec;
        let (packets, bytes) = self.entry.flow.counters.get();
        let age_ms = self.now_ms.saturating_sub(self.entry.added_ms);
        write!(f, " cookie={:#x}, duration={}", spec.cookie, age_ms / 1000)?;
        match age_ms % 1000 {
            0 => f.write_str("s, ")?,
            ms => write!(f, ".{ms:03}s, ")?,
        }
        write!(f, "table={}, n_packets={packets}, n_bytes={bytes}, ", spec.table)?;
        write_rest(f, self.entry)
    }
}

/// The timeouts, the match and the actions.
fn write_rest(f: &mut fmt::Formatter<'_>, entry: &BridgeFlow) -> fmt::Result {
    let spec = &entry.spec;
    if spec.idle_timeout_s != 0 {
        write!(f, "idle_timeout={}, ", spec.idle_timeout_s)?;
    }
    if spec.hard_timeout_s != 0 {
        write!(f, "hard_timeout={}, ", spec.hard_timeout_s)?;
    }
    let condition = &*spec.condition_text;
    let priority = (spec.priority != DEFAULT_PRIORITY).then_some(spec.priority);
    match (priority, condition.is_empty()) {
        (Some(priority), true) => write!(f, "priority={priority} ")?,
        (Some(priority), false) => write!(f, "priority={priority},{condition} ")?,
        (None, true) => {}
        (None, false) => write!(f, "{condition} ")?,
    }
    write!(f, "actions={}", spec.actions_text)
}
