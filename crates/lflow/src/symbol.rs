//! The symbols of OVN's language (ovn-sb(5)): fields, parts of fields, and predicates, each with
//! the condition under which it has a meaning.

mod field;
mod table;

pub use field::FieldRef;

use flow::{Field, Subfield};
use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

/// The comparisons that a symbol supports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// Equality only: names, and numbers that merely identify, such as EtherTypes.
    Nominal,
    /// Equality and inequality: predicates.
    Boolean,
    /// Equality and order; a comparison may also select single bits.
    Ordinal,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nominal => "nominal",
            Self::Boolean => "Boolean",
            Self::Ordinal => "ordinal",
        })
    }
}

/// The actions that may change a symbol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Writable {
    /// None.
    Never,
    /// All but those inside `ct_commit { ... }`.
    Anywhere,
    /// Only those inside `ct_commit { ... }`.
    InCtCommit,
    /// All.
    Everywhere,
}

/// The meaning of a symbol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SymbolMeaning {
    /// A number in a packet's key.
    Number(Subfield),
    /// The key of a logical port or multicast group, written as its name.
    Port(Field),
    /// A condition.
    Predicate(&'static str),
    /// The MTU in an ICMP or ICMPv6 "packet too big": actions can write it, and nothing can read
    /// it.
    IcmpMtu,
}

/// The index of a symbol in [`Symbol::all`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct SymbolId(u8);

impl SymbolId {
    pub(super) fn find(name: &str) -> Option<Self> {
        BY_NAME.get(name).copied()
    }

    /// The symbol. It exists: identifiers come from [`SymbolId::all`] only.
    pub(super) fn symbol(self) -> &'static Symbol {
        &SYMBOLS[self.index()]
    }

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).take(SYMBOLS.len()).map(Self)
    }
}

/// A symbol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// The name in texts.
    pub name: &'static str,
    /// Bits; 1 for a predicate, 0 for a name of a port.
    pub width: u8,
    /// The supported comparisons.
    pub level: Level,
    /// The condition under which the symbol has a meaning; empty for "always". A condition on the
    /// symbol implies it.
    pub prerequisite: &'static str,
    /// The actions that may change it.
    pub writable: Writable,
    /// The meaning.
    pub meaning: SymbolMeaning,
}

impl Symbol {
    /// The symbol of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        SymbolId::find(name).map(SymbolId::symbol)
    }

    /// Every symbol. Symbols that a condition or prerequisite mentions precede its owner.
    pub fn all() -> &'static [Self] {
        &SYMBOLS
    }

    /// True for a symbol whose values are written as names of ports.
    pub const fn is_string(&self) -> bool {
        self.width == 0
    }

    /// The bits of the flow key that the symbol names; `None` for a predicate and for a symbol that
    /// only actions use.
    pub const fn bits(&self) -> Option<Subfield> {
        match self.meaning {
            SymbolMeaning::Number(bits) => Some(bits),
            SymbolMeaning::Port(field) => Some(Subfield::whole(field)),
            SymbolMeaning::Predicate(_) | SymbolMeaning::IcmpMtu => None,
        }
    }
}

static SYMBOLS: LazyLock<Vec<Symbol>> = LazyLock::new(table::symbols);

static BY_NAME: LazyLock<HashMap<&str, SymbolId, ahash::RandomState>> =
    LazyLock::new(|| SymbolId::all().map(|id| (id.symbol().name, id)).collect());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_symbol_is_found_by_its_name() {
        for symbol in SYMBOLS.iter() {
            // If two symbols had the same name, one of them would be found for both.
            assert!(std::ptr::eq(Symbol::find(symbol.name).unwrap(), symbol), "{}", symbol.name);
        }
        assert_eq!(Symbol::find("xyzzy"), None);
        assert_eq!(Symbol::find(""), None);
    }

    #[test]
    fn symbols_have_the_bits_of_their_meaning() {
        for symbol in SYMBOLS.iter() {
            match symbol.meaning {
                SymbolMeaning::Number(bits) => {
                    assert_eq!(symbol.width, bits.width(), "{}", symbol.name)
                }
                SymbolMeaning::Port(_) => assert!(symbol.is_string()),
                SymbolMeaning::Predicate(_) => {
                    assert_eq!((symbol.width, symbol.writable), (1, Writable::Never));
                }
                SymbolMeaning::IcmpMtu => assert_eq!(symbol.bits(), None),
            }
        }
    }

    #[test]
    fn symbol_ids_suffice_for_all_symbols() {
        assert!(SYMBOLS.len() <= 1 << u8::BITS);
        assert_eq!(SymbolId::all().count(), SYMBOLS.len());
    }
}
