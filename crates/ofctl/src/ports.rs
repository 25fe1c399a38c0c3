//! The ports of a bridge, by number and name.

use super::text::{Parsed, Piece};
use flow::PortNo;
use pipeline::suggestion;
use std::collections::BTreeMap;
use std::fmt;

/// The ports of a bridge, as flows name them. A flow may speak of a number that no port has yet.
#[derive(Clone, Debug, Default)]
pub struct Ports {
    by_name: BTreeMap<String, PortNo>,
}

/// Why a bridge cannot have a port.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PortError {
    /// The number is not one that flows can name.
    #[error("port number {0}: expected 1 to {max}", max = Ports::MAX)]
    Number(PortNo),
    /// The name would be read as something else, or cannot be written.
    #[error(
        "port name `{0}`: it is empty, a number, a word of the syntax, or has a quote or line \
         break in it"
    )]
    Name(String),
    /// Another port has the name.
    #[error("port name `{0}` is taken")]
    NameTaken(String),
    /// Another port has the number.
    #[error("port number {0} is taken")]
    NumberTaken(PortNo),
}

/// Ports that are not of the bridge but stand for something; Open vSwitch gives them numbers from 0xfff8 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reserved {
    InPort,
    Table,
    Normal,
    Flood,
    All,
    Controller,
    Local,
    None,
}

impl Reserved {
    const ALL: [(&'static str, Self); 9] = [
        ("in_port", Self::InPort),
        ("table", Self::Table),
        ("normal", Self::Normal),
        ("flood", Self::Flood),
        ("all", Self::All),
        ("controller", Self::Controller),
        ("local", Self::Local),
        ("none", Self::None),
        ("any", Self::None),
    ];

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(word, _)| word.eq_ignore_ascii_case(name)).map(|&(_, port)| port)
    }
}

impl Ports {
    /// The largest number of a port: above it Open vSwitch's reserved ones begin.
    pub const MAX: u32 = 0xfeff;

    /// Without ports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a port.
    ///
    /// # Errors
    /// When flows could not name it, or name and number are not its alone.
    pub fn add(&mut self, port: PortNo, name: &str) -> Result<(), PortError> {
        if !(1..=Self::MAX).contains(&port.0) {
            return Err(PortError::Number(port));
        }
        let unreadable = |c: char| matches!(c, '"' | '#') || c.is_control();
        if name.is_empty()
            || name.contains(unreadable)
            || name.starts_with(|c: char| c.is_ascii_digit())
            || Reserved::from_name(name).is_some()
        {
            return Err(PortError::Name(name.to_owned()));
        }
        if self.by_name.contains_key(name) {
            return Err(PortError::NameTaken(name.to_owned()));
        }
        if self.by_name.values().any(|&have| have == port) {
            return Err(PortError::NumberTaken(port));
        }
        self.by_name.insert(name.to_owned(), port);
        Ok(())
    }

    /// The port with that name.
    pub fn by_name(&self, name: &str) -> Option<PortNo> {
        self.by_name.get(name).copied()
    }

    /// A number, or the name of a port, in quotes or not. `None` for a text that is neither.
    pub(super) fn find(&self, text: &str) -> Option<PortNo> {
        let name = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
        self.by_name(name)
    }

    /// A number from 0 (no port has it) to [`Self::MAX`], or the name of a port.
    pub(super) fn parse(&self, text: Piece<'_>) -> Parsed<PortNo> {
        if text.text.starts_with(|c: char| c.is_ascii_digit()) {
            let number = super::value::number(text)?;
            return match u32::try_from(number) {
                Ok(number) if number <= Self::MAX => Ok(PortNo(number)),
                _ => Err(text.expected(format_args!("a port number from 0 to {}", Self::MAX))),
            };
        }
        self.find(text.text).ok_or_else(|| self.unknown(text))
    }

    /// The error about a text that names no port.
    pub(super) fn unknown(&self, text: Piece<'_>) -> super::text::Fault {
        match Reserved::from_name(text.text) {
            Some(Reserved::Local) => {
                text.fault("this switch has no port `LOCAL`: name a port that it has")
            }
            Some(_) => text.fault(format!("`{}` is no port here", text.text)),
            None => {
                let near = suggestion(text.text, self.by_name.keys().map(String::as_str));
                text.fault(format!("there is no port `{}`{near}", Shortened(text.text)))
            }
        }
    }
}

/// A text of a user in an error message: not the whole of a very long one.
pub(super) struct Shortened<'a>(pub &'a str);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 60;
        match self.0.char_indices().nth(LONGEST) {
            Some((at, _)) => write!(f, "{}...", self.0.get(..at).unwrap_or_default()),
            None => f.write_str(self.0),
        }
    }
}
