//! [`FieldRef`]: a symbol or some bits of it, as actions and comparisons name it.

use super::{Level, Symbol, SymbolId, SymbolMeaning, Writable};
use crate::error::SyntaxError;
use crate::lexer::Lexer;
use crate::token::TokenKind;
use flow::Subfield;
use std::fmt;

/// A symbol, or some bits of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldRef {
    symbol: SymbolId,
    first: u8,
    width: u8,
}

impl FieldRef {
    /// Parses a field or some bits of it for an action: `ip4.src`, `eth.dst[40]`, `reg0[0..15]`.
    ///
    /// # Errors
    ///
    /// There is no such field, it does not have these bits, or it is a predicate.
    pub fn parse(lexer: &mut Lexer<'_>) -> Result<Self, SyntaxError> {
        let span = lexer.span();
        let field = Self::parse_symbol(lexer)?;
        match field.symbol().meaning {
            SymbolMeaning::Predicate(_) => {
                let name = field.symbol().name;
                let message = format!("Predicate symbol {name} used where lvalue required.");
                Err(SyntaxError::new(span, message))
            }
            _ => Ok(field),
        }
    }

    fn whole(symbol: SymbolId) -> Self {
        Self { symbol, first: 0, width: symbol.symbol().width }
    }

    /// The symbol.
    pub fn symbol(self) -> &'static Symbol {
        self.symbol.symbol()
    }

    pub(crate) const fn id(self) -> SymbolId {
        self.symbol
    }

    /// The name of the symbol.
    pub fn name(self) -> &'static str {
        self.symbol().name
    }

    /// The width of the symbol in bits.
    pub fn symbol_width(self) -> u8 {
        self.symbol().width
    }

    /// True for a symbol whose values are written as port names.
    pub fn is_text(self) -> bool {
        self.symbol().is_string()
    }

    /// True when an action may write it. `in_ct_commit` says whether the action is inside
    /// `ct_commit { ... }`.
    pub fn is_writable(self, in_ct_commit: bool) -> bool {
        match self.symbol().writable {
            Writable::Never => false,
            Writable::Anywhere => !in_ct_commit,
            Writable::InCtCommit => in_ct_commit,
            Writable::Everywhere => true,
        }
    }

    /// The index of the lowest bit within the symbol.
    pub const fn first(self) -> u8 {
        self.first
    }

    /// The width in bits; 0 for a port name.
    pub const fn width(self) -> u8 {
        self.width
    }

    /// True for the whole symbol.
    pub fn is_whole(self) -> bool {
        self.width == self.symbol().width
    }

    /// The bits of the flow key; `None` for a predicate and for a field that only actions use.
    pub fn bits(self) -> Option<Subfield> {
        match self.symbol().meaning {
            SymbolMeaning::Number(of) => {
                Subfield::new(of.field(), of.first() + self.first, self.width)
            }
            _ => self.symbol().bits(),
        }
    }

    /// Parses a field, some bits of it, or a predicate.
    pub(crate) fn parse_symbol(lexer: &mut Lexer<'_>) -> Result<Self, SyntaxError> {
        let symbol = match lexer.kind() {
            TokenKind::Identifier(name) => SymbolId::find(name),
            _ => None,
        };
        let id = symbol.ok_or_else(|| lexer.expecting("field name"))?;
        lexer.advance();
        let open = lexer.span();
        if !lexer.accept(&TokenKind::LeftSquare) {
            return Ok(Self::whole(id));
        }
        let symbol = id.symbol();
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
            return error(format!(
                "Cannot select bits {first} to {last} of {width}-bit field {name}."
            ));
        }
        let selected = Self { symbol: id, first: first as u8, width: (last - first + 1) as u8 };
        if symbol.level == Level::Nominal && !selected.is_whole() {
            return error(format!("Cannot select subfield of nominal field {name}."));
        }
        Ok(selected)
    }
}

/// Prints `name`, `name[bit]` or `name[first..last]`.
impl fmt::Display for FieldRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.symbol().name)?;
        match (self.is_whole(), self.width) {
            (true, _) => Ok(()),
            (false, 1) => write!(f, "[{}]", self.first),
            (false, width) => write!(f, "[{}..{}]", self.first, self.first + width - 1),
        }
    }
}
