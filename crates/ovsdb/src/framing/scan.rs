//! The structure of JSON text: strings and brackets.

use super::FramingError;
use memchr::memchr2;

/// The place in a string.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct StringScan {
    /// The last byte was a backslash that escapes the next.
    is_escaped: bool,
}

impl StringScan {
    /// The length of the string's part in `input`, and whether that includes the closing quote.
    pub fn advance(&mut self, input: &[u8]) -> (usize, bool) {
        let mut at = 0;
        while let Some(rest) = input.get(at..).filter(|rest| !rest.is_empty()) {
            if self.is_escaped {
                self.is_escaped = false;
                at += 1;
                continue;
            }
            match memchr2(b'"', b'\\', rest) {
                None => return (input.len(), false),
                Some(length) => {
                    at += length + 1;
                    if rest.get(length) == Some(&b'"') {
                        return (at, true);
                    }
                    self.is_escaped = true;
                }
            }
        }
        (at, false)
    }
}

/// The open arrays and objects of a message.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Brackets {
    depth: u32,
    /// A bit for each open bracket, the outermost lowest: 1 for an object.
    objects: u128,
    /// The next string of the innermost object is a name.
    expects_name: bool,
}

impl Brackets {
    /// The number of open brackets.
    pub fn depth(self) -> u32 {
        self.depth
    }

    /// True if the bracket of this level, from 1, belongs to an object.
    pub fn is_object(self, level: u32) -> bool {
        level >= 1 && level <= self.depth && self.objects >> (level - 1) & 1 == 1
    }

    pub fn expects_name(self) -> bool {
        self.expects_name
    }

    pub fn colon(&mut self) {
        self.expects_name = false;
    }

    pub fn comma(&mut self) {
        self.expects_name = self.is_object(self.depth);
    }

    pub fn open(&mut self, is_object: bool, limit: u32) -> Result<(), FramingError> {
        let limit = limit.min(crate::limits::Limits::MAX_DEPTH);
        if self.depth >= limit {
            return Err(FramingError::TooDeep { limit });
        }
        let bit = 1 << self.depth;
        self.objects = if is_object { self.objects | bit } else { self.objects & !bit };
        self.depth += 1;
        self.expects_name = is_object;
        Ok(())
    }

    pub fn close(&mut self, bracket: u8) -> Result<(), FramingError> {
        if self.depth == 0 || self.is_object(self.depth) != (bracket == b'}') {
            return Err(FramingError::Unbalanced { found: char::from(bracket) });
        }
        self.depth -= 1;
        self.expects_name = false;
        Ok(())
    }

    /// Appends the closing brackets of all open ones.
    pub fn close_all(self, text: &mut Vec<u8>) {
        for level in (1..=self.depth).rev() {
            text.push(if self.is_object(level) { b'}' } else { b']' });
        }
    }
}
