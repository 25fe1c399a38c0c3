//! [`FieldRef`]: a symbol or some bits of one, as actions and comparisons name it.

use crate::logical::error::SyntaxError;
use crate::logical::lexer::Lexer;
use crate::logical::symbol::{Level, Meaning, Symbol};
use crate::logical::token::TokenKind;
use flow::Subfield;
use std::fmt;

/// A symbol, or some bits of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldRef {
    symbol: &'static Symbol,
    first: u8,
    width: u8,
}

impl FieldRef {
    /// The whole of a symbol.
    pub const fn whole(symbol: &'static Symbol) -> Self {
        Self { symbol, first: 0, width: symbol.width }
    }

    /// Whose bits these are.
    pub const fn symbol(self) -> &'static Symbol {
        self.symbol
    }

    /// The lowest of the bits, within the symbol.
    pub const fn first(self) -> u8 {
        self.first
    }

    /// How many bits; 0 for a name of a port.
    pub const fn width(self) -> u8 {
        self.width
    }

    /// True for the whole symbol.
    pub const fn is_whole(self) -> bool {
        self.width == self.symbol.width
    }

    /// The bits of a key; `None` for a predicate and for what only actions know.
    pub const fn bits(self) -> Option<Subfield> {
        match self.symbol.meaning {
            Meaning::Number(of) => Subfield::new(of.field(), of.first() + self.first, self.width),
            _ => self.symbol.bits(),
        }
    }
}

/// `name`, `name[bit]` or `name[first..last]`.
impl fmt::Display for FieldRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.symbol.name)?;
        match (self.is_whole(), self.width) {
            (true, _) => Ok(()),
            (false, 1) => write!(f, "[{}]", self.first),
            (false, width) => write!(f, "[{}..{}]", self.first, self.first + width - 1),
        }
    }
}

/// Parses a symbol, or some bits of one: `ip4.src`, `eth.dst[40]`, `reg0[0..15]`.
///
/// # Errors
///
/// No symbol has that name, or it does not have those bits.
pub fn parse_field(lexer: &mut Lexer<'_>) -> Result<FieldRef, SyntaxError> {
    let symbol = match lexer.kind() {
        TokenKind::Identifier(name) => Symbol::find(name),
        _ => None,
    };
    let symbol = symbol.ok_or_else(|| lexer.expecting("field name"))?;
    lexer.advance();
    let open = lexer.span();
    if !lexer.accept(&TokenKind::LeftSquare) {
        return Ok(FieldRef::whole(symbol));
    }
    let name = symbol.name;
    if symbol.is_string() {
        let message = format!("Cannot select subfield of string field {name}.");
        return Err(SyntaxError::new(open, message));
    }
    let first = lexer.expect_small_integer()?;
    let last =
        if lexer.accept(&TokenKind::Ellipsis) { lexer.expect_small_integer()? } else { first };
    let brackets = open.start..lexer.span().end;
    lexer.expect(&TokenKind::RightSquare)?;
    let error = |message| Err(SyntaxError::new(brackets, message));
    let width = symbol.width;
    if first > last {
        return error(format!("Invalid bit range {first} to {last}."));
    }
    if last >= u32::from(width) {
        return error(format!("Cannot select bits {first} to {last} of {width}-bit field {name}."));
    }
    let selected = FieldRef { symbol, first: first as u8, width: (last - first + 1) as u8 };
    if symbol.level == Level::Nominal && !selected.is_whole() {
        return error(format!("Cannot select subfield of nominal field {name}."));
    }
    Ok(selected)
}
