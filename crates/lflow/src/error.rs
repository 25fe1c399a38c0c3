//! [`SyntaxError`]: a parse error with its position.

use std::fmt;
use std::ops::Range;

/// A text that is not in the language.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct SyntaxError {
    /// The wrong bytes of the text; empty at its end.
    pub span: Range<usize>,
    /// A sentence that says what was expected.
    pub message: String,
}

impl SyntaxError {
    /// An error about these bytes of the text.
    pub fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into() }
    }

    /// The position in `text`, the text that was parsed.
    pub fn position(&self, text: &str) -> Position {
        Position::of(text, self.span.start)
    }

    /// The same error, for a text that contains the parsed one from byte `offset` on.
    #[must_use]
    pub fn shifted(self, offset: usize) -> Self {
        let span = self.span.start.saturating_add(offset)..self.span.end.saturating_add(offset);
        Self { span, ..self }
    }
}

/// A line and column, as editors count them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl Position {
    /// The position of byte `offset` of `text`. An offset beyond the end counts as the end, one
    /// inside a character as its beginning.
    pub fn of(text: &str, offset: usize) -> Self {
        let before = &text[..text.floor_char_boundary(offset)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

/// Prints `line:column`.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_counts_lines_and_characters_from_one() {
        let text = "a\nß x\n";
        for (offset, position) in
            [(0, "1:1"), (1, "1:2"), (2, "2:1"), (3, "2:1"), (4, "2:2"), (7, "3:1"), (99, "3:1")]
        {
            assert_eq!(Position::of(text, offset).to_string(), position, "{offset}");
        }
    }

    #[test]
    fn shifted_error_points_into_the_outer_text() {
        let error = SyntaxError::new(1..2, "Bad.").shifted(4);
        assert_eq!((error.span.clone(), error.to_string()), (5..6, "Bad.".to_owned()));
        assert_eq!(error.position("abc\nde").to_string(), "2:2");
    }
}
