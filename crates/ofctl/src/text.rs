//! Splits the text of a flow into words with values, and keeps the position of each.

use std::fmt;

/// An error at a byte of the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TextError {
    pub at: usize,
    pub message: String,
}

impl TextError {
    pub fn new(at: usize, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}

pub(super) type Parsed<T> = Result<T, TextError>;

/// A part of the text, and its offset in the whole text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TextSlice<'a> {
    pub text: &'a str,
    pub at: usize,
}

impl<'a> TextSlice<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The part from byte `start` to byte `end` of this part, clipped to its bounds.
    pub fn slice(self, start: usize, end: usize) -> Self {
        let text = self.text.get(start..end.min(self.text.len())).unwrap_or_default();
        Self { text, at: self.at + start.min(self.text.len()) }
    }

    pub fn end(self) -> usize {
        self.at + self.text.len()
    }

    pub fn is_empty(self) -> bool {
        self.text.is_empty()
    }

    /// The parts before and after the first `separator`.
    pub fn split_once(self, separator: &str) -> Option<(Self, Self)> {
        let at = self.text.find(separator)?;
        Some((self.slice(0, at), self.slice(at + separator.len(), self.text.len())))
    }

    pub fn trim(self) -> Self {
        let start = self.text.len() - self.text.trim_start().len();
        self.slice(start, start + self.text.trim().len())
    }

    pub fn fault(self, message: impl Into<String>) -> TextError {
        TextError::new(self.at, message)
    }

    /// The error for a part of the text where `what` was expected.
    pub fn expected(self, what: impl fmt::Display) -> TextError {
        if self.is_empty() {
            self.fault(format!("expected {what}"))
        } else {
            self.fault(format!("expected {what}, found `{}`", self.text))
        }
    }
}

/// The value of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value<'a> {
    /// No value: `drop`.
    None,
    /// `word=value` or `word:value`.
    Plain(TextSlice<'a>),
    /// `word(value)`, with an optional part after `->`: `check_pkt_larger(1500)->reg0[0]`.
    Braced(TextSlice<'a>, Option<TextSlice<'a>>),
}

/// A word with its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Item<'a> {
    pub word: TextSlice<'a>,
    pub value: Value<'a>,
}

impl<'a> Item<'a> {
    /// The value of `word=value`, `word:value` or `word(value)`.
    ///
    /// # Errors
    /// The word has no value; `what` says what is expected.
    pub fn operand(self, what: &str) -> Parsed<TextSlice<'a>> {
        match self.value {
            Value::Plain(value) | Value::Braced(value, None) if !value.is_empty() => Ok(value),
            Value::Braced(_, Some(target)) => {
                Err(target.fault(format!("`{}` takes no `->`", self.word.text)))
            }
            _ => Err(TextError::new(self.word.end(), format!("`{}` needs {what}", self.word.text))),
        }
    }

    /// Checks that the word has no value.
    ///
    /// # Errors
    /// The word has a value.
    pub fn no_operand(self) -> Parsed<()> {
        match self.value {
            Value::None => Ok(()),
            Value::Plain(value) | Value::Braced(value, _) => {
                Err(value.fault(format!("`{}` takes no value", self.word.text)))
            }
        }
    }
}

/// The words of a text, separated by commas and white space.
#[derive(Clone, Debug)]
pub(super) struct Items<'a> {
    text: TextSlice<'a>,
    /// The next byte of `text` to parse.
    next: usize,
}

const SEPARATORS: [char; 5] = [',', ' ', '\t', '\r', '\n'];

impl<'a> Items<'a> {
    pub fn new(text: TextSlice<'a>) -> Self {
        Self { text, next: 0 }
    }

    /// The part that is not parsed yet.
    pub fn rest(&self) -> TextSlice<'a> {
        self.text.slice(self.next, self.text.text.len())
    }

    /// The text from the beginning of `piece` to the end.
    pub fn from(&self, piece: TextSlice<'a>) -> TextSlice<'a> {
        self.text.slice(piece.at - self.text.at, self.text.text.len())
    }

    fn take(&mut self, len: usize) -> TextSlice<'a> {
        let piece = self.rest().slice(0, len);
        self.next += piece.text.len();
        piece
    }

    /// Parses up to a separator outside parentheses, or a quoted name.
    fn value(&mut self) -> Parsed<TextSlice<'a>> {
        let rest = self.rest();
        if let Some(len) = quoted(rest.text) {
            return Ok(self.take(len));
        }
        let mut open = 0u32;
        for (at, character) in rest.text.char_indices() {
            match character {
                '(' => open += 1,
                ')' if open == 0 => {
                    return Err(TextError::new(rest.at + at, "unmatched `)`"));
                }
                ')' => open -= 1,
                _ if open == 0 && SEPARATORS.contains(&character) => return Ok(self.take(at)),
                _ => {}
            }
        }
        if open > 0 {
            return Err(TextError::new(rest.end(), "missing `)`"));
        }
        Ok(self.take(rest.text.len()))
    }

    /// Parses `(...)`; the first character is known to be `(`.
    fn braced(&mut self) -> Parsed<TextSlice<'a>> {
        let rest = self.rest();
        let mut open = 0u32;
        for (at, character) in rest.text.char_indices() {
            match character {
                '(' => open += 1,
                ')' if open == 1 => {
                    self.take(at + 1);
                    return Ok(rest.slice(1, at));
                }
                ')' => open = open.saturating_sub(1),
                _ => {}
            }
        }
        Err(TextError::new(rest.end(), "missing `)`"))
    }

    fn item(&mut self) -> Parsed<Item<'a>> {
        let rest = self.rest();
        let word_end = quoted(rest.text).unwrap_or_else(|| {
            let end = rest.text.find(|c| matches!(c, '=' | ':' | '(') || SEPARATORS.contains(&c));
            end.unwrap_or(rest.text.len())
        });
        let word = self.take(word_end);
        let value = match self.rest().text.chars().next() {
            Some('=' | ':') => {
                self.next += 1;
                Value::Plain(self.value()?)
            }
            Some('(') => {
                let inside = self.braced()?;
                let target = if self.rest().text.starts_with("->") {
                    self.next += 2;
                    Some(self.value()?)
                } else {
                    None
                };
                Value::Braced(inside, target)
            }
            _ => Value::None,
        };
        if word.is_empty() {
            return Err(word.fault("expected a word before this"));
        }
        Ok(Item { word, value })
    }
}

/// The length of a quoted name at the beginning of a text. It may contain any character except a
/// quote.
fn quoted(text: &str) -> Option<usize> {
    Some(text.strip_prefix('"')?.find('"')? + 2)
}

impl<'a> Iterator for Items<'a> {
    type Item = Parsed<Item<'a>>;

    /// After an error, the iterator ends.
    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest();
        let start = rest.text.find(|c| !SEPARATORS.contains(&c));
        self.next += start.unwrap_or(rest.text.len());
        start?;
        let item = self.item();
        if item.is_err() {
            self.next = self.text.text.len();
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        Items::new(TextSlice::new(text))
            .map(|item| match item {
                Ok(Item { word, value: Value::None }) => word.text.to_owned(),
                Ok(Item { word, value: Value::Plain(v) }) => format!("{}={}", word.text, v.text),
                Ok(Item { word, value: Value::Braced(v, target) }) => {
                    let target = target.map_or_else(String::new, |t| format!("->{}", t.text));
                    format!("{}[{}]{target}", word.text, v.text)
                }
                Err(fault) => format!("{}: {}", fault.at, fault.message),
            })
            .collect()
    }

    #[test]
    fn words_are_found_when_separated_in_any_way() {
        for (text, expected) in [
            ("ip,, nw_src=1.2.3.4/8\ttp_dst=5 ,", &["ip", "nw_src=1.2.3.4/8", "tp_dst=5"][..]),
            ("dl_src=aa:bb:cc:00:11:22", &["dl_src=aa:bb:cc:00:11:22"]),
            ("clone(1,clone(2),3),4", &["clone[1,clone(2),3]", "4"]),
            ("resubmit(,2) resubmit:3", &["resubmit[,2]", "resubmit=3"]),
            ("a(1)->b[0],c", &["a[1]->b[0]", "c"]),
            ("load:0x1->reg0[0..3]", &["load=0x1->reg0[0..3]"]),
            ("x=", &["x="]),
            ("\"eth 0\",\"p=1\"", &["\"eth 0\"", "\"p=1\""]),
            ("a(b", &["3: missing `)`"]),
            ("a=b),c", &["3: unmatched `)`"]),
            ("a,=b,c", &["a", "2: expected a word before this"]),
        ] {
            assert_eq!(words(text), expected, "{text}");
        }
    }
}
