//! [`Framer`]: splits a stream of bytes into JSON messages and, inside table updates, into rows.
//!
//! A message ends where its outermost `}` is; OVSDB has no other framing (RFC 7047 section 4). The
//! framer holds back the bytes of a message until it is complete, except for the rows of a table
//! update. It yields each row on its own as soon as the row is complete, so that a dump of a whole
//! database is never in memory as text.
//!
//! The rows are found by their place in the message:
//!
//! ```text
//! {"id": .., "result": {TABLE: {UUID: row, ..}, ..}, ..}             monitor, monitor_cond
//! {"id": .., "result": [found, txn, {TABLE: {UUID: row, ..}}], ..}   monitor_cond_since
//! {"method": .., "params": [monitor, {TABLE: {UUID: row}}], ..}      update, update2
//! {"method": .., "params": [monitor, txn, {TABLE: {UUID: row}}], ..} update3
//! ```
//!
//! A table's name is an identifier and not a UUID, so no other message has a UUID as a name in
//! these places. If a server sends `id` after `result`, or `method` after `params`, the rows stay
//! in the message, because the monitor that they belong to is not known yet.
//!
//! The framer checks only the structure. The parser of a row or message finds other errors.

use crate::limits::Limits;
use crate::uuid::Uuid;

mod scan;

use scan::{Brackets, StringScan};

/// Why a stream of bytes is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FramingError {
    /// A message or a row is too long.
    #[error("a message or row exceeds {limit_bytes} bytes (limit message_bytes)")]
    TooLong {
        /// The limit.
        limit_bytes: usize,
    },
    /// A table update is too long.
    #[error("a table update exceeds {limit_bytes} bytes (limit update_bytes)")]
    UpdateTooLong {
        /// The limit.
        limit_bytes: u64,
    },
    /// A message is nested too deeply.
    #[error("a message is nested deeper than {limit} arrays and objects (limit depth)")]
    TooDeep {
        /// The limit.
        limit: u32,
    },
    /// A message does not begin with `{`.
    #[error("expected a JSON object, not the byte {found:#04x}")]
    NotAnObject {
        /// The byte found.
        found: u8,
    },
    /// A bracket closes an array or object that is not open.
    #[error("a `{found}` in a message closes nothing")]
    Unbalanced {
        /// The bracket.
        found: char,
    },
    /// The text between the rows of a table is not JSON.
    #[error("in the rows of a table: expected {expected}, not the byte {found:#04x}")]
    Rows {
        /// The expected text.
        expected: &'static str,
        /// The byte found.
        found: u8,
    },
}

/// The result of [`Framer::next`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// A row: see [`Framer::row`] and [`Framer::head`].
    Row,
    /// A complete message: see [`Framer::message`].
    Message,
}

/// A row inside a table update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowText<'a> {
    /// The table's name, as JSON between quotes.
    pub table: &'a [u8],
    /// The row.
    pub uuid: Uuid,
    /// The value of the UUID's member, as JSON.
    pub value: &'a [u8],
}

/// Splits a stream of bytes; see the [module](self).
#[derive(Debug)]
pub struct Framer {
    limits: Limits,
    state: State,
    /// The bytes of the message without the rows that were yielded.
    message: Vec<u8>,
    /// The table, and the part of it that is not complete: a UUID's text, or a row.
    table: Vec<u8>,
    uuid_text: Vec<u8>,
    uuid: Uuid,
    row: Vec<u8>,
    brackets: Brackets,
    path: Path,
    /// Bytes of the rows of this message.
    update_bytes: u64,
    /// Rows of this message.
    rows: u64,
}

/// The framer's position in the structure of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Between messages.
    Idle,
    /// The last piece was a complete message.
    Complete,
    /// In a message.
    Message,
    /// In a string of a message; the flag is true for a name at the top two levels.
    Text(StringScan, bool),
    /// In an object that may be a table of rows.
    Table(TableState),
}

/// The framer's position in an object of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TableState {
    /// After `{`: white space, a UUID or `}`.
    First,
    /// After `,`: white space or a UUID.
    Next,
    /// In the UUID's text; the flag is true for the first name of the object.
    Uuid(bool),
    /// After the UUID: white space or `:`.
    Colon,
    /// After the colon: white space or the row.
    Value,
    /// In the row, outside strings; the number of open brackets.
    Row(u32),
    /// In a string of the row.
    RowText(StringScan, u32),
    /// The last piece was the row. White space, `,` or `}` follows.
    Comma,
}

/// The place in the message, at the top two levels.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Path {
    /// The offset in the message at which the current name begins.
    name_start: usize,
    top: Top,
    /// The index in the array of the second level.
    index: u32,
    has_id: bool,
    has_method: bool,
    /// The range in the message of the name of a possible table.
    table: (usize, usize),
}

/// The member of the message.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Top {
    Result,
    Params,
    #[default]
    Other,
}

impl Framer {
    /// A framer at the beginning of a stream.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: State::Idle,
            message: Vec::new(),
            table: Vec::new(),
            uuid_text: Vec::new(),
            uuid: Uuid::NIL,
            row: Vec::new(),
            brackets: Brackets::default(),
            path: Path::default(),
            update_bytes: 0,
            rows: 0,
        }
    }

    /// Consumes bytes of `input` until a piece is complete, or all bytes.
    ///
    /// # Errors
    /// The stream is unusable after an error.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Piece>, FramingError> {
        while let Some((&byte, rest)) = input.split_first() {
            match self.state {
                State::Idle | State::Complete => {
                    if self.state == State::Complete {
                        self.begin();
                    }
                    *input = rest;
                    match byte {
                        b' ' | b'\t' | b'\r' | b'\n' => {}
                        b'{' => {
                            self.push(byte)?;
                            self.brackets.open(true, self.limits.depth)?;
                            self.state = State::Message;
                        }
                        found => return Err(FramingError::NotAnObject { found }),
                    }
                }
                State::Message => {
                    *input = rest;
                    if self.in_message(byte)? {
                        return Ok(Some(Piece::Message));
                    }
                }
                State::Text(scan, is_name) => self.in_text(input, scan, is_name)?,
                State::Table(state) => {
                    if self.in_table(input, state)? {
                        return Ok(Some(Piece::Row));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The complete message, without the rows that were yielded, after [`Piece::Message`].
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// The row, after [`Piece::Row`].
    pub fn row(&self) -> RowText<'_> {
        RowText { table: &self.table, uuid: self.uuid, value: &self.row }
    }

    /// Rows yielded of this message.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The received part of the message, with its brackets closed so that it is valid JSON, after
    /// [`Piece::Row`].
    pub fn head(&self) -> Vec<u8> {
        let mut head = self.message.clone();
        self.brackets.close_all(&mut head);
        head
    }

    /// Starts a new message. A big buffer is released.
    fn begin(&mut self) {
        const KEEP_BYTES: usize = 1 << 20;
        for buffer in [&mut self.message, &mut self.row] {
            buffer.clear();
            buffer.shrink_to(KEEP_BYTES);
        }
        self.state = State::Idle;
        self.path = Path::default();
        self.update_bytes = 0;
        self.rows = 0;
    }

    fn push(&mut self, byte: u8) -> Result<(), FramingError> {
        self.check(self.message.len(), 1)?;
        self.message.push(byte);
        Ok(())
    }

    fn check(&self, length: usize, more: usize) -> Result<(), FramingError> {
        let limit_bytes = self.limits.message_bytes;
        if length.saturating_add(more) > limit_bytes {
            return Err(FramingError::TooLong { limit_bytes });
        }
        Ok(())
    }

    /// Handles a byte of the message outside strings. True if it ends the message.
    fn in_message(&mut self, byte: u8) -> Result<bool, FramingError> {
        self.push(byte)?;
        match byte {
            b'"' => {
                let is_name = self.brackets.depth() <= 3 && self.brackets.expects_name();
                self.path.name_start = self.message.len();
                self.state = State::Text(StringScan::default(), is_name);
            }
            b':' => self.brackets.colon(),
            b',' => {
                self.brackets.comma();
                if self.brackets.depth() == 2 {
                    self.path.index = self.path.index.saturating_add(1);
                }
            }
            b'{' => {
                self.brackets.open(true, self.limits.depth)?;
                self.entered();
                if self.may_be_table() {
                    self.table.clear();
                    let (start, end) = self.path.table;
                    self.table.extend(self.message.get(start..end).unwrap_or_default());
                    self.state = State::Table(TableState::First);
                }
            }
            b'[' => {
                self.brackets.open(false, self.limits.depth)?;
                self.entered();
            }
            b'}' | b']' => {
                self.brackets.close(byte)?;
                if self.brackets.depth() == 0 {
                    self.state = State::Complete;
                    return Ok(true);
                }
            }
            _ => {}
        }
        Ok(false)
    }

    /// Handles an opening bracket.
    fn entered(&mut self) {
        if self.brackets.depth() == 2 {
            self.path.index = 0;
        }
    }

    /// Whether the object that begins here holds the rows of a table, if its names are UUIDs.
    fn may_be_table(&self) -> bool {
        let Path { top, index, has_id, has_method, .. } = self.path;
        match (top, self.brackets.depth(), self.brackets.is_object(2)) {
            (Top::Result, 3, true) => has_id,
            (Top::Result, 4, false) => has_id && index == 2 && self.brackets.is_object(3),
            (Top::Params, 4, false) => {
                has_method && matches!(index, 1 | 2) && self.brackets.is_object(3)
            }
            _ => false,
        }
    }

    /// Handles bytes of a string of the message.
    fn in_text(
        &mut self,
        input: &mut &[u8],
        mut scan: StringScan,
        is_name: bool,
    ) -> Result<(), FramingError> {
        let (length, is_end) = scan.advance(input);
        let (text, rest) = input.split_at(length);
        self.check(self.message.len(), length)?;
        self.message.extend_from_slice(text);
        *input = rest;
        if !is_end {
            self.state = State::Text(scan, is_name);
            return Ok(());
        }
        self.state = State::Message;
        if is_name {
            self.named();
        }
        Ok(())
    }

    /// Handles a complete name at one of the top levels.
    fn named(&mut self) {
        let (start, end) = (self.path.name_start, self.message.len().saturating_sub(1));
        if self.brackets.depth() > 1 {
            self.path.table = (start, end);
            return;
        }
        self.path.top = match self.message.get(start..end).unwrap_or_default() {
            b"result" => Top::Result,
            b"params" => Top::Params,
            b"id" => {
                self.path.has_id = true;
                Top::Other
            }
            b"method" => {
                self.path.has_method = true;
                Top::Other
            }
            _ => Top::Other,
        };
    }

    /// Handles bytes of an object of rows. True if they end a row.
    fn in_table(&mut self, input: &mut &[u8], state: TableState) -> Result<bool, FramingError> {
        use TableState::{Colon, Comma, First, Next, Row, Uuid, Value};
        if let TableState::RowText(scan, open) = state {
            self.in_row_text(input, scan, open)?;
            return Ok(false);
        }
        let Some((&byte, rest)) = input.split_first() else { return Ok(false) };
        *input = rest;
        self.state = State::Table(match (state, byte) {
            (First | Next | Colon | Value | Comma, b' ' | b'\t' | b'\r' | b'\n') => state,
            (First | Next, b'"') => {
                self.uuid_text.clear();
                Uuid(state == First)
            }
            (First | Comma, b'}') => {
                self.push(byte)?;
                self.brackets.close(byte)?;
                self.state = State::Message;
                return Ok(false);
            }
            (Uuid(is_first), _) => return self.in_uuid(byte, is_first).map(|()| false),
            (Colon, b':') => {
                self.row.clear();
                Value
            }
            (Value, _) => return self.in_row(byte, 0),
            (Row(open), _) => return self.in_row(byte, open),
            (Comma, b',') => Next,
            (First, _) => {
                // The object is not a table: continues with the message.
                self.state = State::Message;
                self.in_message(byte)?;
                return Ok(false);
            }
            (Next, found) => return Err(FramingError::Rows { expected: "a UUID", found }),
            (Colon, found) => return Err(FramingError::Rows { expected: "`:`", found }),
            (Comma, found) => return Err(FramingError::Rows { expected: "`,` or `}`", found }),
            (TableState::RowText(..), _) => state,
        });
        Ok(false)
    }

    /// Handles a byte of a name that may be a UUID.
    fn in_uuid(&mut self, byte: u8, is_first: bool) -> Result<(), FramingError> {
        const LENGTH: usize = 36;
        if byte == b'"'
            && let Ok(uuid) = Uuid::from_text(&self.uuid_text)
        {
            self.uuid = uuid;
            self.state = State::Table(TableState::Colon);
            return Ok(());
        }
        let is_possible = byte == b'-' || byte.is_ascii_hexdigit();
        if is_possible && self.uuid_text.len() < LENGTH {
            self.uuid_text.push(byte);
            return Ok(());
        }
        if !is_first {
            return Err(FramingError::Rows { expected: "a UUID", found: byte });
        }
        // The object is not a table: moves the name back to the message.
        self.in_message(b'"')?;
        let text = std::mem::take(&mut self.uuid_text);
        self.check(self.message.len(), text.len())?;
        self.message.extend_from_slice(&text);
        self.uuid_text = text;
        if let State::Text(scan, is_name) = self.state {
            self.in_text(&mut [byte].as_slice(), scan, is_name)?;
        }
        Ok(())
    }

    /// Handles a byte of a row outside strings, with `open` open brackets. True if it ends the row.
    fn in_row(&mut self, byte: u8, open: u32) -> Result<bool, FramingError> {
        if open == 0 && byte != b'{' {
            return Err(FramingError::Rows { expected: "`{` of a row", found: byte });
        }
        self.count_row_bytes(1)?;
        self.row.push(byte);
        let state = match byte {
            b'"' => TableState::RowText(StringScan::default(), open),
            b'{' | b'[' => {
                let limit = self.limits.depth;
                if self.brackets.depth() + open >= limit {
                    return Err(FramingError::TooDeep { limit });
                }
                TableState::Row(open + 1)
            }
            b'}' | b']' if open == 1 => TableState::Comma,
            b'}' | b']' => TableState::Row(open - 1),
            _ => TableState::Row(open),
        };
        self.state = State::Table(state);
        if state == TableState::Comma {
            self.rows += 1;
            return Ok(true);
        }
        Ok(false)
    }

    fn in_row_text(
        &mut self,
        input: &mut &[u8],
        mut scan: StringScan,
        open: u32,
    ) -> Result<(), FramingError> {
        let (length, is_end) = scan.advance(input);
        let (text, rest) = input.split_at(length);
        self.count_row_bytes(length)?;
        self.row.extend_from_slice(text);
        *input = rest;
        self.state = State::Table(if is_end {
            TableState::Row(open)
        } else {
            TableState::RowText(scan, open)
        });
        Ok(())
    }

    fn count_row_bytes(&mut self, more: usize) -> Result<(), FramingError> {
        self.check(self.row.len(), more)?;
        self.update_bytes = self.update_bytes.saturating_add(more as u64);
        let limit_bytes = self.limits.update_bytes;
        if self.update_bytes > limit_bytes {
            return Err(FramingError::UpdateTooLong { limit_bytes });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
