//! [`LineChecker`]: parses flows, matches and actions, one per line, and writes their canonical
//! form.

use lflow::{FlowList, Position, Stage, SyntaxError, actions, expr};
use pipeline::TableId;

/// The language of the lines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Language {
    /// Logical flows, as `ovn-sbctl lflow-list` prints them.
    LogicalFlows,
    /// Match expressions of logical flows.
    Expressions,
    /// Actions of logical flows.
    Actions,
    /// Flows in the syntax of ovs-ofctl.
    Ofctl,
}

/// A syntax error in a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineFault {
    /// Column of the error in characters, from 1.
    pub column: usize,
    /// Number of wrong characters; 0 where something is missing.
    pub width: usize,
    /// The error, and the expected input.
    pub message: String,
}

impl LineFault {
    /// Locates `error` in `line`, which has no line breaks.
    pub fn new(line: &str, error: SyntaxError) -> Self {
        let column = Position::of(line, error.span.start).column;
        let width = line.get(error.span).map_or(0, |wrong| wrong.chars().count());
        Self { column, width, message: error.message }
    }

    /// Two lines: the text, cut around the error if it is long, and a marker below the error.
    pub fn excerpt(&self, line: &str) -> String {
        /// Maximum number of characters shown.
        const MAX_SHOWN: usize = 120;
        let start = self.column.saturating_sub(1);
        let first = match line.chars().count() {
            count if count <= MAX_SHOWN => 0,
            count => start.saturating_sub(MAX_SHOWN / 2).min(count - MAX_SHOWN),
        };
        // A tab would misalign the marker.
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let shown: String = line.chars().skip(first).take(MAX_SHOWN).map(plain).collect();
        let before = start - first;
        let tail = self.width.min(MAX_SHOWN.saturating_sub(before)).saturating_sub(1);
        format!("{shown}\n{:before$}^{}", "", "~".repeat(tail))
    }
}

/// Checks lines of one language.
#[derive(Clone, Debug)]
pub struct LineChecker {
    language: Language,
    ports: ofctl::Ports,
    list: FlowList,
}

impl LineChecker {
    /// A checker for `language`. `ports` are the port names that flows of ovs-ofctl may use.
    pub fn new(language: Language, ports: ofctl::Ports) -> Self {
        Self { language, ports, list: FlowList::default() }
    }

    /// The canonical form of a line; `None` for an empty line or a comment, which starts with `#`.
    ///
    /// # Errors
    /// The line is not in the language.
    pub fn check(&mut self, line: &str) -> Result<Option<String>, LineFault> {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            return Ok(None);
        }
        let fault = |error| LineFault::new(line, error);
        let canonical = match self.language {
            Language::LogicalFlows => self.list.line(line).map_err(fault)?,
            Language::Expressions => expr::parse(line).map_err(fault)?.to_string(),
            Language::Actions => {
                actions::parse(line, Stage::of(TableId::FIRST)).map_err(fault)?.to_string()
            }
            Language::Ofctl => {
                let change = ofctl::parse_line(line, &self.ports);
                let change = change.map_err(|problem| LineFault {
                    column: problem.column,
                    width: 1,
                    message: problem.message,
                })?;
                change.to_string()
            }
        };
        Ok(Some(canonical))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_returns_the_canonical_form_or_the_error_in_each_language() {
        use Language::{Actions, Expressions, LogicalFlows, Ofctl};
        let table = [
            (Expressions, "  ip4.dst==10.0.0.1  ", Ok("ip4.dst == 0xa000001")),
            (Expressions, "ip4.dst = 1", Err((9, 1))),
            (Expressions, "tcp &&", Err((7, 0))),
            (Actions, "next  ;", Ok("next;")),
            (Actions, "ip.ttl++;", Err((7, 1))),
            (Ofctl, "tcp,priority=7 action=2", Ok("table=0,priority=7,tcp actions=output:2")),
            (Ofctl, "tcp,tcp_dst=x,actions=2", Err((13, 1))),
            (
                LogicalFlows,
                "table=0(ls_in_acl), priority=7, match=(tcp), action=(next;)",
                Ok("  table=0 (ls_in_acl          ), priority=7    , match=(tcp), action=(next;)"),
            ),
        ];
        for (language, line, expected) in table {
            let got = LineChecker::new(language, ofctl::Ports::new()).check(line);
            let got = got.as_ref().map_err(|fault| (fault.column, fault.width));
            assert_eq!(got.map(Option::as_deref), expected.map(Some), "{line}");
        }
        for line in ["", " \t", "  # anything"] {
            assert_eq!(LineChecker::new(Ofctl, ofctl::Ports::new()).check(line), Ok(None));
        }
    }

    #[test]
    fn excerpt_points_at_the_error_in_lines_of_any_length() {
        let fault = |column, width| LineFault { column, width, message: String::new() };
        assert_eq!(fault(3, 2).excerpt("a\tßc e"), "a ßc e\n  ^~");
        assert_eq!(fault(4, 0).excerpt("abc"), "abc\n   ^");
        let long = format!("{}X{}", "a".repeat(5000), "b".repeat(5000));
        let shown = fault(5001, 1).excerpt(&long);
        let (line, marks) = shown.split_once('\n').unwrap();
        assert_eq!(line.chars().count(), 120);
        assert_eq!(line.find('X'), marks.find('^'));
        let end = fault(10_002, 0).excerpt(&long);
        assert_eq!(end.split_once('\n').unwrap().1.len(), 121);
        assert!(fault(1, 10_000).excerpt(&long).len() <= 241);
    }
}
