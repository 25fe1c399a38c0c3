//! Parses one line of a file of flows.

use super::actions::{self, ActionParser};
use super::condition::{self, MatchWords};
use super::names::PacketKind;
use super::ports::Ports;
use super::text::{Item, Items, Parsed, TextSlice, Value};
use super::value;
use flow::{FlowKey, Match};
use pipeline::{Op, TableId};
use std::fmt::{self, Write};
use std::sync::Arc;

/// The priority of a flow without one.
const DEFAULT_PRIORITY: u16 = 0x8000;
/// The limit on the length of a line, in bytes.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// A parsed and compiled flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowSpec {
    /// The table.
    pub table: TableId,
    /// The priority; the highest wins.
    pub priority: u16,
    /// A number for [`FlowSelector`]s and for display; 0 if none is given.
    pub cookie: u64,
    /// Seconds without a packet after which the flow is removed; 0 for never.
    pub idle_timeout_s: u16,
    /// Seconds after which the flow is removed; 0 for never.
    pub hard_timeout_s: u16,
    /// The match.
    pub condition: Match,
    /// The steps.
    pub ops: Arc<[Op]>,
    /// The match in canonical form; empty if it matches all packets.
    pub condition_text: Arc<str>,
    /// The actions in canonical form.
    pub actions_text: Arc<str>,
}

/// The canonical form, which parses to the same flow: `table=0,priority=10,tcp,tp_dst=80
/// actions=output:1`.
impl fmt::Display for FlowSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.cookie != 0 {
            write!(f, "cookie={:#x},", self.cookie)?;
        }
        write!(f, "table={},", self.table)?;
        if self.idle_timeout_s != 0 {
            write!(f, "idle_timeout={},", self.idle_timeout_s)?;
        }
        if self.hard_timeout_s != 0 {
            write!(f, "hard_timeout={},", self.hard_timeout_s)?;
        }
        write!(f, "priority={}", self.priority)?;
        if !self.condition_text.is_empty() {
            write!(f, ",{}", self.condition_text)?;
        }
        write!(f, " actions={}", self.actions_text)
    }
}

/// Selects the flows that a line changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowSelector {
    /// Selects only flows of this table.
    pub table: Option<TableId>,
    /// Selects only flows whose cookie equals the first number in the bits that are set in the
    /// second.
    pub cookie: Option<(u64, u64)>,
    /// Selects only the flow with this priority and exactly this condition. `None` selects all
    /// flows whose conditions imply it.
    pub strict_priority: Option<u16>,
    /// The condition. [`Self::strict_priority`] selects how it is compared.
    pub condition: Match,
    condition_text: Arc<str>,
}

/// The change that a line makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FlowChange {
    /// Adds a flow. It replaces one with the same table, priority and match.
    Add(FlowSpec),
    /// Replaces the actions of existing flows.
    Modify {
        /// The flows.
        filter: FlowSelector,
        /// The new steps.
        ops: Arc<[Op]>,
        /// The new actions in canonical form.
        actions_text: Arc<str>,
    },
    /// Removes flows.
    Delete(FlowSelector),
}

impl FlowChange {
    /// True if the change may add a flow.
    pub(crate) fn adds(&self) -> bool {
        matches!(self, Self::Add(_))
    }
}

/// The canonical form, which parses to the same change.
impl fmt::Display for FlowChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(flow) => flow.fmt(f),
            Self::Modify { filter, actions_text, .. } => {
                filter.show(f, "modify")?;
                write!(f, " actions={actions_text}")
            }
            Self::Delete(filter) => filter.show(f, "delete"),
        }
    }
}

impl FlowSelector {
    fn show(&self, f: &mut fmt::Formatter<'_>, command: &str) -> fmt::Result {
        f.write_str(command)?;
        if self.strict_priority.is_some() {
            f.write_str("_strict")?;
        }
        let mut separator = ' ';
        let mut part = |text: fmt::Arguments<'_>| {
            f.write_char(std::mem::replace(&mut separator, ','))?;
            f.write_fmt(text)
        };
        if let Some((value, mask)) = self.cookie {
            part(format_args!("cookie={value:#x}/{mask:#x}"))?;
        }
        if let Some(table) = self.table {
            part(format_args!("table={table}"))?;
        }
        if let Some(priority) = self.strict_priority {
            part(format_args!("priority={priority}"))?;
        }
        if !self.condition_text.is_empty() {
            part(format_args!("{}", self.condition_text))?;
        }
        Ok(())
    }

    /// True for a flow that the filter selects.
    pub fn selects(&self, flow: &FlowSpec) -> bool {
        self.table.is_none_or(|table| table == flow.table)
            && self.cookie.is_none_or(|(value, mask)| (flow.cookie ^ value) & mask == 0)
            && match self.strict_priority {
                Some(priority) => priority == flow.priority && self.condition == flow.condition,
                None => {
                    flow.condition.mask().covers(self.condition.mask())
                        && self.condition.matches(flow.condition.key())
                }
            }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Command {
    Add,
    Modify { strict: bool },
    Delete { strict: bool },
}

impl Command {
    fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "add" => Self::Add,
            "modify" => Self::Modify { strict: false },
            "modify_strict" => Self::Modify { strict: true },
            "delete" => Self::Delete { strict: false },
            "delete_strict" => Self::Delete { strict: true },
            _ => return None,
        })
    }
}

/// The words of a line before its actions, except the words of the match.
#[derive(Debug, Default)]
struct LineWords<'a> {
    table: Option<TableId>,
    priority: Option<u16>,
    cookie: Option<(u64, Option<u64>)>,
    idle_timeout_s: Option<u16>,
    hard_timeout_s: Option<u16>,
    /// The words, to report duplicates and misplaced ones.
    words: Vec<TextSlice<'a>>,
}

const WORDS: &[&str] = &["table", "priority", "cookie", "idle_timeout", "hard_timeout", "actions"];
/// Words that `ovs-ofctl dump-flows` adds; they do not describe the flow itself.
const STATISTICS: [&str; 5] = ["duration", "n_packets", "n_bytes", "idle_age", "hard_age"];
/// Words of Open vSwitch that weft does not support.
const FOREIGN: [&str; 9] = [
    "out_port",
    "out_group",
    "send_flow_rem",
    "check_overlap",
    "reset_counts",
    "no_packet_counts",
    "no_byte_counts",
    "importance",
    "allow_hidden_fields",
];

impl<'a> LineWords<'a> {
    fn take(&mut self, item: Item<'a>) -> Parsed<bool> {
        let word = item.word;
        match word.text {
            "table" => {
                let operand = item.operand("a table from 0 to 254")?;
                self.table = Some(actions::table(operand)?);
            }
            "priority" => self.priority = Some(short(item, "a priority from 0 to 65535")?),
            "idle_timeout" => self.idle_timeout_s = Some(short(item, "seconds, 0 to 65535")?),
            "hard_timeout" => self.hard_timeout_s = Some(short(item, "seconds, 0 to 65535")?),
            "cookie" => {
                let operand = item.operand("a number")?;
                let (value, mask) = match operand.split_once("/") {
                    Some((value, mask)) => (value, Some(mask)),
                    None => (operand, None),
                };
                let long = |text: TextSlice<'_>| match text.text {
                    "-1" => Ok(u64::MAX),
                    _ => value::number_of(text, 64).map(|number| number as u64),
                };
                self.cookie = Some((long(value)?, mask.map(long).transpose()?));
            }
            name if STATISTICS.contains(&name) => return Ok(true),
            name if FOREIGN.contains(&name) => {
                return Err(word.fault(format!("`{name}` is not supported")));
            }
            _ => return Ok(false),
        }
        if self.words.iter().any(|other| other.text == word.text) {
            return Err(word.fault(format!("duplicate `{}`", word.text)));
        }
        self.words.push(word);
        Ok(true)
    }

    /// Rejects the line if it contains one of `words`.
    ///
    /// # Errors
    /// `message`, about that word.
    fn refuse(&self, words: &[&str], message: &str) -> Parsed<()> {
        match self.words.iter().find(|word| words.contains(&word.text)) {
            Some(word) => Err(word.fault(format!("`{}` {message}", word.text))),
            None => Ok(()),
        }
    }

    fn filter(&self, strict: bool, condition: Match) -> Parsed<FlowSelector> {
        self.refuse(&["idle_timeout", "hard_timeout"], "is for flows that are added")?;
        if !strict {
            self.refuse(&["priority"], "is for `add`, `modify_strict` and `delete_strict`")?;
        }
        let cookie = match self.cookie {
            None => None,
            Some((value, Some(mask))) => Some((value & mask, mask)),
            Some((_, None)) => {
                self.refuse(&["cookie"], "needs a mask to select flows: `cookie=1/-1`")?;
                None
            }
        };
        let condition_text = condition::text(&condition).into();
        let strict_priority = strict.then(|| self.priority.unwrap_or(DEFAULT_PRIORITY));
        Ok(FlowSelector { table: self.table, cookie, strict_priority, condition, condition_text })
    }
}

fn short(item: Item<'_>, what: &str) -> Parsed<u16> {
    let operand = item.operand(what)?;
    let value = value::number(operand)?;
    u16::try_from(value).map_err(|_| operand.expected(what))
}

/// Parses one line that is neither empty nor a comment.
pub(super) fn parse(line: TextSlice<'_>, ports: &Ports) -> Parsed<FlowChange> {
    if line.text.len() > MAX_LINE_BYTES {
        return Err(line.fault(format!("the line is longer than {MAX_LINE_BYTES} bytes")));
    }
    let (command, line) = command(line)?;
    let mut items = Items::new(line);
    let (mut frame, mut words) = (LineWords::default(), MatchWords::default());
    let mut actions = None;
    while let Some(item) = items.next() {
        let item = item?;
        if let ("action" | "actions", Value::Plain(value)) = (item.word.text, item.value) {
            actions = Some(items.from(value));
            break;
        }
        if !frame.take(item)? && !words.take(item, ports)? {
            return Err(condition::unknown_word(item.word, WORDS));
        }
    }
    let condition = words.condition()?;
    let packet_kind = PacketKind::of(&condition);
    let table = frame.table.unwrap_or(TableId::FIRST);
    let compiled = match (command, actions) {
        (Command::Delete { strict }, None) => {
            return frame.filter(strict, condition).map(FlowChange::Delete);
        }
        (Command::Delete { .. }, Some(actions)) => {
            return Err(actions.fault("`delete` takes no actions"));
        }
        (_, Some(actions)) => ActionParser::parse(actions, ports, table, packet_kind)?,
        (_, None) => {
            return Err(line.slice(line.text.len(), line.text.len()).expected("`actions=...`"));
        }
    };
    let (ops, actions_text) = (compiled.0, compiled.1.into());
    if let Command::Modify { strict } = command {
        let filter = frame.filter(strict, condition)?;
        return Ok(FlowChange::Modify { filter, ops, actions_text });
    }
    if let Some((_, Some(_))) = frame.cookie {
        frame.refuse(&["cookie"], "of a flow that is added takes no mask")?;
    }
    Ok(FlowChange::Add(FlowSpec {
        table,
        priority: frame.priority.unwrap_or(DEFAULT_PRIORITY),
        cookie: frame.cookie.map_or(0, |(value, _)| value),
        idle_timeout_s: frame.idle_timeout_s.unwrap_or(0),
        hard_timeout_s: frame.hard_timeout_s.unwrap_or(0),
        condition_text: condition::text(&condition).into(),
        condition,
        ops,
        actions_text,
    }))
}

/// The command at the beginning of a line, with or without the `flow` that precedes it in a bundle,
/// and the rest of the line.
fn command(line: TextSlice<'_>) -> Parsed<(Command, TextSlice<'_>)> {
    let first =
        |line: TextSlice<'_>| line.text.find(char::is_whitespace).unwrap_or(line.text.len());
    let whole = line;
    let mut line = line.trim();
    let bundled = line.slice(0, first(line)).text == "flow";
    if bundled {
        line = line.slice(first(line), line.text.len()).trim();
    }
    let end = first(line);
    match Command::from_word(line.slice(0, end).text) {
        Some(command) => Ok((command, line.slice(end, line.text.len()))),
        None if bundled => Err(line.slice(0, end).expected(
            "`add`, `modify`, `modify_strict`, `delete` or `delete_strict` behind `flow`",
        )),
        None => Ok((Command::Add, whole)),
    }
}

/// Parses a packet as `ovs-appctl ofproto/trace` takes it.
pub(super) fn packet(text: TextSlice<'_>, ports: &Ports) -> Parsed<FlowKey> {
    const TPID: u128 = 0x8100;
    let mut words = MatchWords::default();
    for item in Items::new(text) {
        let item = item?;
        if !words.take(item, ports)? {
            return Err(condition::unknown_word(item.word, &[]));
        }
    }
    if let Some(word) = words.inexact() {
        return Err(word
            .fault(format!("`{}` is not an exact value: a packet needs exact values", word.text)));
    }
    let condition = words.condition()?;
    let mut key = condition.key().clone();
    if PacketKind::of(&condition).tagged {
        key.set(flow::Field::VlanTpid, TPID);
    }
    Ok(key)
}
