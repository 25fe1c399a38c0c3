//! [`Ports`]: the ports of a bridge, by number and name.

use super::text::{Parsed, TextSlice};
use flow::PortNo;
use pipeline::suggestion;
use std::collections::BTreeMap;
use std::fmt;

/// The ports that flows can name. A flow may also use a number that no port has yet.
#[derive(Clone, Debug, Default)]
pub struct Ports {
    by_name: BTreeMap<String, PortNo>,
}

/// The reason why a port cannot be added to a bridge.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PortError {
    /// The number is out of range.
    #[error("port number {0}: expected 1 to {max}", max = Ports::MAX)]
    Number(PortNo),
    /// The name would be parsed as another word, or contains characters that flows cannot contain.
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

/// Reserved ports with a special meaning. Open vSwitch numbers them from 0xfff8 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReservedPort {
    InPort,
    Table,
    Normal,
    Flood,
    All,
    Controller,
    Local,
    None,
}

impl ReservedPort {
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
    /// The largest port number. Open vSwitch's reserved ports have larger numbers.
    pub const MAX: u32 = 0xfeff;

    /// A bridge without ports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a port.
    ///
    /// # Errors
    /// Flows cannot refer to it, or another port has its name or number.
    pub fn add(&mut self, port: PortNo, name: &str) -> Result<(), PortError> {
        if !(1..=Self::MAX).contains(&port.0) {
            return Err(PortError::Number(port));
        }
        let unreadable = |c: char| matches!(c, '"' | '#') || c.is_control();
        if name.is_empty()
            || name.contains(unreadable)
            || name.starts_with(|c: char| c.is_ascii_digit())
            || ReservedPort::from_name(name).is_some()
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

    /// The port with this name.
    pub fn by_name(&self, name: &str) -> Option<PortNo> {
        self.by_name.get(name).copied()
    }

    /// Finds a port by its name, with or without quotes. `None` for any other text.
    pub(super) fn find(&self, text: &str) -> Option<PortNo> {
        let name = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
        self.by_name(name)
    }

    /// Parses a number from 0 (which no port has) to [`Self::MAX`], or a port name.
    pub(super) fn parse(&self, text: TextSlice<'_>) -> Parsed<PortNo> {
        if text.text.starts_with(|c: char| c.is_ascii_digit()) {
            let number = super::value::number(text)?;
            return match u32::try_from(number) {
                Ok(number) if number <= Self::MAX => Ok(PortNo(number)),
                _ => Err(text.expected(format_args!("a port number from 0 to {}", Self::MAX))),
            };
        }
        self.find(text.text).ok_or_else(|| self.unknown(text))
    }

    /// An error about a text that is not a port.
    pub(super) fn unknown(&self, text: TextSlice<'_>) -> super::text::TextError {
        match ReservedPort::from_name(text.text) {
            Some(ReservedPort::Local) => {
                text.fault("this switch has no port `LOCAL`: use the name of one of its ports")
            }
            Some(_) => text.fault(format!("`{}` is not a port of this switch", text.text)),
            None => {
                let near = suggestion(text.text, self.by_name.keys().map(String::as_str));
                text.fault(format!("unknown port `{}`{near}", Shortened(text.text)))
            }
        }
    }
}

/// Input text in an error message, shortened if it is very long.
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
