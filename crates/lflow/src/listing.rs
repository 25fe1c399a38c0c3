//! [`FlowList`]: parses logical flows as `ovn-sbctl lflow-list` and `weft flows --logical` print
//! them.
//!
//! ```text
//! Datapath: "sw0" (4e9bf4c4-cf7f-4d5c-8f3c-5a3f4a5a8f4c)  Pipeline: ingress
//!   table=0 (ls_in_check_port_sec), priority=100  , match=(eth.src[40]), action=(drop;)
//! ```

use super::actions::{self, Actions, Stage};
use super::error::SyntaxError;
use super::expr::{self, Expr};
use pipeline::{Direction, TableId};
use std::fmt;

/// A flow in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedFlow {
    /// The first 32 bits of the UUID, if the list has them.
    pub uuid: Option<u32>,
    /// The table.
    pub table: TableId,
    /// The name of the stage; may be empty.
    pub stage: String,
    /// The priority, 0 to 65,535; the highest wins.
    pub priority: u16,
    /// The match.
    pub condition: Expr,
    /// The actions.
    pub actions: Actions,
}

/// Prints the flow like `ovn-sbctl lflow-list`, with match and actions in canonical form.
impl fmt::Display for ListedFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uuid, table, stage, priority, condition, actions } = self;
        f.write_str("  ")?;
        if let Some(uuid) = uuid {
            write!(f, "uuid={uuid:#010x}, ")?;
        }
        let table = table.in_pipeline().1;
        write!(
            f,
            "table={table:<2}({stage:<19}), priority={priority:<5}, match=({condition}), \
             action=({actions})"
        )
    }
}

/// Parses a list line by line. A line that names a pipeline applies to the flows after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowList {
    pipeline: Option<Direction>,
}

impl FlowList {
    /// The canonical form of a line.
    ///
    /// # Errors
    /// The line neither is a flow nor names a pipeline.
    pub fn line(&mut self, line: &str) -> Result<String, SyntaxError> {
        if !line.trim_start().starts_with("Datapath:") {
            return self.flow(line).map(|flow| flow.to_string());
        }
        let line = line.trim_end();
        let at = line.rfind("Pipeline:").map_or(line.len(), |at| at + "Pipeline:".len());
        let name = line.get(at..).unwrap_or_default();
        self.pipeline = Some(match name.trim() {
            "ingress" => Direction::Ingress,
            "egress" => Direction::Egress,
            _ => {
                let start = line.len() - name.trim_start().len();
                let message = "Expecting `Pipeline: ingress' or `Pipeline: egress'.";
                return Err(SyntaxError::new(start..line.len(), message));
            }
        });
        Ok(line.trim_start().to_owned())
    }

    /// Parses a flow. The name of its stage determines its pipeline. Without such a name it is the
    /// pipeline of the last line that names one, or else ingress.
    ///
    /// # Errors
    /// The line is not a flow.
    pub fn flow(&self, line: &str) -> Result<ListedFlow, SyntaxError> {
        let mut cursor = Cursor { text: line.trim_end(), at: 0 };
        let mut uuid = None;
        while cursor.accept("uuid=") || cursor.accept("cookie=") {
            uuid = Some(cursor.number("a number of 32 bits", u32::MAX)?);
            cursor.expect(",")?;
        }
        cursor.expect("table=")?;
        let number_at = cursor.at;
        let number = cursor.number("a table from 0 to 63", u32::from(TableId::LOGICAL) - 1)?;
        let number_span = number_at..cursor.at;
        let stage = if cursor.accept("(") { cursor.until(")")?.trim() } else { "" };
        cursor.expect(",")?;
        cursor.expect("priority=")?;
        let priority = cursor.number("a priority from 0 to 65535", u16::MAX.into())?;
        cursor.expect(",")?;
        cursor.expect("match=(")?;
        let (condition_at, condition) = (cursor.at, cursor.condition()?);
        if !cursor.accept("actions=(") {
            cursor.expect("action=(")?;
        }
        let actions_at = cursor.at;
        let Some(actions) = cursor.rest().strip_suffix(')') else {
            return Err(cursor.missing(line.trim_end().len(), ")"));
        };
        let direction = direction_of(stage).or(self.pipeline).unwrap_or(Direction::Ingress);
        let Some(table) = u8::try_from(number).ok().and_then(|n| TableId::logical(direction, n))
        else {
            return Err(SyntaxError::new(number_span, "Expecting a table from 0 to 63."));
        };
        Ok(ListedFlow {
            uuid,
            table,
            stage: stage.to_owned(),
            // The cast is lossless: the number is at most 65,535.
            priority: priority as u16,
            condition: expr::parse(condition).map_err(|error| error.shifted(condition_at))?,
            actions: actions::parse(actions, Stage::of(table))
                .map_err(|error| error.shifted(actions_at))?,
        })
    }
}

/// The pipeline of a stage with a name such as `ls_in_acl`.
fn direction_of(stage: &str) -> Option<Direction> {
    match stage.split('_').nth(1)? {
        "in" => Some(Direction::Ingress),
        "out" => Some(Direction::Egress),
        _ => None,
    }
}

/// A position in a line.
struct Cursor<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Cursor<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Skips white space, then moves past `word` if that is next.
    fn accept(&mut self, word: &str) -> bool {
        self.skip_space();
        let is_next = self.rest().starts_with(word);
        if is_next {
            self.at += word.len();
        }
        is_next
    }

    fn expect(&mut self, word: &str) -> Result<(), SyntaxError> {
        if self.accept(word) { Ok(()) } else { Err(self.missing(self.at, word)) }
    }

    /// An error: `word` is missing at byte `at`.
    fn missing(&self, at: usize, word: &str) -> SyntaxError {
        let rest = self.text.get(at..).unwrap_or_default();
        let end = rest.find([' ', ',', '=', '(']).unwrap_or(rest.len());
        SyntaxError::new(at..at + end, format!("Expecting `{word}'."))
    }

    /// Returns the text before `end`, and moves past `end`.
    fn until(&mut self, end: &str) -> Result<&'t str, SyntaxError> {
        let rest = self.rest();
        let length = rest.find(end).ok_or_else(|| self.missing(self.text.len(), end))?;
        self.at += length + end.len();
        Ok(rest.get(..length).unwrap_or_default())
    }

    /// Parses a decimal number, or a hexadecimal one with `0x`.
    fn number(&mut self, what: &str, max: u32) -> Result<u32, SyntaxError> {
        self.skip_space();
        let rest = self.rest();
        let length = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let digits = rest.get(..length).unwrap_or_default();
        let number = match digits.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => digits.parse(),
        };
        let span = self.at..self.at + length;
        self.at += length;
        let number = number.ok().filter(|&number| number <= max);
        number.ok_or_else(|| SyntaxError::new(span, format!("Expecting {what}.")))
    }

    /// Returns the text of a match, and moves to the `action` after it. The match ends at the first
    /// `), action` outside quotes.
    fn condition(&mut self) -> Result<&'t str, SyntaxError> {
        let rest = self.rest();
        let (mut quoted, mut escaped) = (false, false);
        for (at, character) in rest.char_indices() {
            match character {
                _ if escaped => escaped = false,
                '\\' => escaped = quoted,
                '"' => quoted = !quoted,
                ')' if !quoted => {
                    let behind = rest.get(at + 1..).unwrap_or_default().trim_start();
                    let behind = behind.strip_prefix(',').unwrap_or_default().trim_start();
                    if behind.starts_with("action=(") || behind.starts_with("actions=(") {
                        self.at = self.text.len() - behind.len();
                        return Ok(rest.get(..at).unwrap_or_default());
                    }
                }
                _ => {}
            }
        }
        let message = "Expecting `), action=(' behind the match.";
        Err(SyntaxError::new(self.text.len()..self.text.len(), message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_is_read_as_it_is_printed() {
        let table = [
            (
                r#"  table=0 (ls_in_check_port_sec), priority=100  , match=(eth.src[40]), action=(drop;)"#,
                r#"  table=0 (ls_in_check_port_sec), priority=100  , match=(eth.src[40]), action=(drop;)"#,
            ),
            (
                r#"cookie=0x1f, table=9(ls_out_x),priority=1,match=(inport=="a), action=(\"" && (ip4)),actions=( output; )"#,
                r#"  uuid=0x0000001f, table=9 (ls_out_x           ), priority=1    , match=(inport == "a), action=(\"" && ip4), action=(output;)"#,
            ),
            (
                "table=3, priority=0, match=(1), action=(next;)",
                "  table=3 (                   ), priority=0    , match=(1), action=(next;)",
            ),
        ];
        for (line, canonical) in table {
            let mut list = FlowList::default();
            assert_eq!(list.line(line).as_deref(), Ok(canonical));
            assert_eq!(list.line(canonical).as_deref(), Ok(canonical));
        }
    }

    #[test]
    fn fault_is_where_the_line_is_wrong() {
        let table = [
            ("tabel=0", 0..5, "Expecting `table='."),
            ("table=64(x), ", 6..8, "Expecting a table from 0 to 63."),
            ("table=0(x, ", 10..10, "Expecting `)'."),
            ("table=0(x) priority=1", 11..19, "Expecting `,'."),
            ("table=0, priority=65536,", 18..23, "Expecting a priority from 0 to 65535."),
            (
                "table=0, priority=1, match=(ip4)",
                32..32,
                "Expecting `), action=(' behind the match.",
            ),
            ("table=0, priority=1, match=(ip4), action=(next;", 47..47, "Expecting `)'."),
            (
                "table=0, priority=1, match=((ip4), action=(next;)",
                32..32,
                "Syntax error at end of input expecting `)'.",
            ),
            (
                "table=0, priority=1, match=(ip4), action=(nxt;)",
                42..45,
                "Syntax error at `nxt' expecting action.",
            ),
            (
                "Datapath: x Pipeline: side",
                22..26,
                "Expecting `Pipeline: ingress' or `Pipeline: egress'.",
            ),
        ];
        for (line, span, message) in table {
            assert_eq!(
                FlowList::default().line(line),
                Err(SyntaxError::new(span, message)),
                "{line}"
            );
        }
    }

    #[test]
    fn pipeline_comes_from_the_stage_or_from_the_line_above() {
        let mut list = FlowList::default();
        let flow = |list: &FlowList, stage: &str| {
            let line = format!("table=1({stage}), priority=1, match=(1), action=(next;)");
            list.flow(&line).map(|flow| flow.table.in_pipeline().0)
        };
        assert_eq!(flow(&list, "x"), Ok(Direction::Ingress));
        let header = "Datapath: \"sw0\" (7)  Pipeline: egress";
        assert_eq!(list.line(header).as_deref(), Ok(header));
        assert_eq!(flow(&list, "x"), Ok(Direction::Egress));
        assert_eq!(flow(&list, "lr_in_x"), Ok(Direction::Ingress));
    }
}
