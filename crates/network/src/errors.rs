//! Errors in a network file, with their positions.

use std::fmt;
use std::net::IpAddr;
use wire::MacAddr;

/// An error in a network file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Its position; `None` when it concerns the file as a whole.
    pub position: Option<Position>,
    /// The error, and how to correct it, in one line.
    pub message: String,
}

/// A position in a text, as editors count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

/// All errors in a network file, in the order of the file; never empty.
///
/// `Display` prints one line per error, like a compiler: `network.toml:12:7: what is wrong; what
/// would be right`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Errors {
    file: String,
    problems: Vec<Problem>,
}

impl Errors {
    /// An error that concerns the whole file.
    pub(crate) fn of_file(file: &str, message: String) -> Self {
        Self { file: file.to_owned(), problems: vec![Problem { position: None, message }] }
    }

    /// The name of the file, as given.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The errors, at least one: those of the whole file first, then from top to bottom.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.problems.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            f.write_str(&self.file)?;
            if let Some(Position { line, column }) = problem.position {
                write!(f, ":{line}:{column}")?;
            }
            write!(f, ": {}", problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// Collects errors by byte offset, in any order.
pub(crate) struct ProblemCollector<'t> {
    text: &'t str,
    line_starts: Vec<usize>,
    problems: Vec<(Option<usize>, String)>,
}

impl<'t> ProblemCollector<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        let newlines = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
        let line_starts = std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect();
        Self { text, line_starts, problems: Vec::new() }
    }

    /// Adds an error at the byte offset `at`.
    pub(crate) fn error(&mut self, at: usize, message: impl Into<String>) {
        self.problems.push((Some(at), shortened(message.into())));
    }

    /// Adds an error that concerns the whole file.
    pub(crate) fn file_error(&mut self, message: impl Into<String>) {
        self.problems.push((None, shortened(message.into())));
    }

    /// Reports a MAC address that occurs twice in a logical switch, first at the offset `first`.
    pub(crate) fn mac_taken(&mut self, at: usize, mac: MacAddr, first: usize) {
        let line = self.line(first);
        self.error(
            at,
            format!(
                "{mac} is already the MAC address of the port in line {line}; give each port of \
                 a switch its own"
            ),
        );
    }

    /// Reports an IP address that occurs twice in a logical switch, first at the offset `first`.
    pub(crate) fn address_taken(&mut self, at: usize, addr: IpAddr, first: usize) {
        let line = self.line(first);
        self.error(
            at,
            format!(
                "{addr} is already used in line {line}; give each port of a switch its own address"
            ),
        );
    }

    /// The file offset of byte `offset` in the value of the string at `at`.
    pub(crate) fn inside_string(&self, at: usize, offset: usize) -> usize {
        crate::source::inside_string(self.text, at, offset)
    }

    /// The number of errors so far.
    pub(crate) fn len(&self) -> usize {
        self.problems.len()
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// The line of a byte offset, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= at)
    }

    fn position(&self, at: usize) -> Position {
        let line = self.line(at);
        let start = self.line_starts[line - 1];
        let column =
            self.text.get(start..at).map_or(at - start, |before| before.chars().count()) + 1;
        Position { line, column }
    }

    /// The errors in the order of the file.
    pub(crate) fn finish(mut self, file: &str) -> Errors {
        let mut found = std::mem::take(&mut self.problems);
        found.sort_by_key(|&(at, _)| at);
        let problems = found
            .into_iter()
            .map(|(at, message)| Problem { position: at.map(|at| self.position(at)), message })
            .collect();
        Errors { file: file.to_owned(), problems }
    }
}

/// Shortens a message that quotes a very long text: the middle is left out, both ends stay.
fn shortened(message: String) -> String {
    const MAX_CHARS: usize = 600;
    if message.chars().count() <= MAX_CHARS {
        return message;
    }
    let start: String = message.chars().take(MAX_CHARS / 2).collect();
    let end = message.char_indices().rev().nth(MAX_CHARS / 2).map_or(0, |(at, _)| at);
    format!("{start} ... {}", &message[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_keeps_both_ends_when_it_quotes_a_very_long_text() {
        let long = shortened(format!("what {} right", "ü".repeat(100_000)));
        assert!(long.starts_with("what ü") && long.ends_with("ü right"), "{long}");
        assert!(long.chars().count() < 610);
        assert_eq!(shortened("short".to_owned()), "short");
    }

    #[test]
    fn problems_come_in_file_order_when_found_in_any_order() {
        let mut report = ProblemCollector::new("ab\nüz = 1\n");
        report.error(5, "z");
        report.error(0, "a");
        report.file_error("whole");
        assert_eq!(report.finish("f").to_string(), "f: whole\nf:1:1: a\nf:2:2: z");
    }

    #[test]
    fn position_is_total_when_the_offset_is_at_or_past_the_end() {
        let report = ProblemCollector::new("a\n");
        assert_eq!(report.position(2), Position { line: 2, column: 1 });
        assert_eq!(report.position(9), Position { line: 2, column: 8 });
    }
}
