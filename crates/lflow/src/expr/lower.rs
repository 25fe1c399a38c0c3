//! Lowers [`Expr`](super::Expr) to [`Predicate`]: expands predicates, adds prerequisites, and
//! replaces names by their meaning.

use super::parse::{number_test, parse};
use super::ranges::{all, always, any, from_ranges, negate, never};
use super::{LowerError, Node, NumberTest, Relation, SetTest};
use crate::scope::Scope;
use crate::symbol::{SymbolId, SymbolMeaning};
use crate::token::Constant;
use flow::{Subfield, low_bits};
use pipeline::Predicate;
use std::sync::LazyLock;

/// The parsed texts of a row of the symbol table.
struct ParsedSymbol {
    prerequisite: Predicate,
    /// For a predicate symbol: the condition, and its negation.
    holds: Predicate,
    fails: Predicate,
}

/// The parsed symbols, in the order of the symbol table. A symbol refers only to symbols before it,
/// so there are no cycles.
static KNOWN: LazyLock<Vec<ParsedSymbol>> = LazyLock::new(|| {
    let mut known = Vec::new();
    for id in SymbolId::all() {
        let next = explain(id, &known);
        known.push(next);
    }
    known
});

fn explain(id: SymbolId, known: &[ParsedSymbol]) -> ParsedSymbol {
    // A test checks that every text in the table can be parsed.
    let meaning = |text: &str| {
        let lowering = Lowering { scope: &(), known };
        parse(text).ok().and_then(|expr| lowering.node(&expr.0, true).ok()).unwrap_or_else(never)
    };
    let symbol = id.symbol();
    let holds = match symbol.meaning {
        SymbolMeaning::Predicate(text) => meaning(text),
        _ => never(),
    };
    let prerequisite = match symbol.prerequisite {
        "" => always(),
        text => meaning(text),
    };
    ParsedSymbol { prerequisite, fails: negate(holds.clone()), holds }
}

pub(super) fn lower(node: &Node, scope: &impl Scope) -> Result<Predicate, LowerError> {
    Lowering { scope, known: &KNOWN }.node(node, true)
}

struct Lowering<'a, S> {
    scope: &'a S,
    known: &'a [ParsedSymbol],
}

impl<S: Scope> Lowering<'_, S> {
    /// Lowers a condition, with or without the prerequisites of its fields.
    fn node(&self, node: &Node, prerequisites: bool) -> Result<Predicate, LowerError> {
        let with_prerequisite = |symbol, predicate| {
            if prerequisites { self.with_prerequisite(symbol, predicate) } else { predicate }
        };
        Ok(match node {
            Node::Constant(value) => constant(*value),
            Node::Resident(test) => {
                constant(self.scope.is_chassis_resident(&test.port) != test.negated)
            }
            Node::Number(test) => with_prerequisite(test.symbol, self.number(test)),
            Node::Port(test) => {
                let predicate = self.port(test.symbol, &test.port);
                with_prerequisite(
                    test.symbol,
                    if test.negated { negate(predicate) } else { predicate },
                )
            }
            Node::Set(test) => match self.set(test)? {
                None => constant(test.negated),
                Some(predicate) => with_prerequisite(test.field.id(), predicate),
            },
            Node::All(parts) | Node::Any(parts) => {
                // If all comparisons are on one symbol, its prerequisite is added once.
                let common = if prerequisites { self.common_symbol(node) } else { None };
                let each = prerequisites && common.is_none();
                let parts: Result<Vec<_>, _> =
                    parts.iter().map(|part| self.node(part, each)).collect();
                let joined = match node {
                    Node::All(_) => all(parts?),
                    _ => any(parts?),
                };
                match common {
                    Some(symbol) => self.with_prerequisite(symbol, joined),
                    None => joined,
                }
            }
        })
    }

    fn with_prerequisite(&self, symbol: SymbolId, predicate: Predicate) -> Predicate {
        match self.known.get(symbol.index()).map(|known| &known.prerequisite) {
            None => never(),
            Some(Predicate::All(parts)) if parts.is_empty() => predicate,
            Some(prerequisite) => all(vec![predicate, prerequisite.clone()]),
        }
    }

    /// The symbol that all comparisons are on, if there is one.
    fn common_symbol(&self, node: &Node) -> Option<SymbolId> {
        match node {
            Node::Constant(_) | Node::Resident(_) => None,
            Node::Number(test) => Some(test.symbol),
            Node::Port(test) => Some(test.symbol),
            // A comparison with an empty set has a constant result.
            Node::Set(test) => {
                let empty = if test.field.is_text() {
                    self.scope.port_group(&test.name).is_none_or(|group| group.is_empty)
                } else {
                    self.scope.address_set(&test.name).is_none_or(<[_]>::is_empty)
                };
                (!empty).then(|| test.field.id())
            }
            Node::All(parts) | Node::Any(parts) => {
                let first = self.common_symbol(parts.first()?)?;
                let same = |part| self.common_symbol(part) == Some(first);
                parts.iter().skip(1).all(same).then_some(first)
            }
        }
    }

    fn number(&self, test: &NumberTest) -> Predicate {
        let bits = match test.symbol.symbol().meaning {
            SymbolMeaning::Number(bits) => bits,
            SymbolMeaning::Predicate(_) => {
                let Some(known) = self.known.get(test.symbol.index()) else { return never() };
                let affirmed = test.value & 1 == 1;
                return if affirmed { known.holds.clone() } else { known.fails.clone() };
            }
            SymbolMeaning::Port(_) | SymbolMeaning::IcmpMtu => return never(),
        };
        let (field, mask) = (bits.field(), test.mask << bits.first());
        let equal = match mask {
            0 => always(),
            _ => Predicate::Masked { field, value: test.value << bits.first(), mask },
        };
        match test.relation {
            Relation::Equal => equal,
            Relation::NotEqual => negate(equal),
            relation => order(bits, relation, test),
        }
    }

    fn port(&self, symbol: SymbolId, name: &str) -> Predicate {
        self.scope.port(name).map_or_else(never, |key| port_is(symbol, key))
    }

    /// Lowers a comparison with a set; `None` if the set is empty.
    fn set(&self, test: &SetTest) -> Result<Option<Predicate>, LowerError> {
        let (is_empty, members): (bool, Result<Vec<_>, LowerError>) = if test.field.is_text() {
            let group = self.scope.port_group(&test.name);
            let group = group.ok_or_else(|| LowerError::PortGroup(test.name.to_string()))?;
            let members = group.keys.iter().map(|key| Ok(port_is(test.field.id(), *key)));
            (group.is_empty, members.collect())
        } else {
            let addresses = self.scope.address_set(&test.name);
            let addresses =
                addresses.ok_or_else(|| LowerError::AddressSet(test.name.to_string()))?;
            let members = addresses.iter().map(|address| self.member(test, address));
            (addresses.is_empty(), members.collect())
        };
        let members = members?;
        if is_empty {
            return Ok(None);
        }
        let one_of = any(members);
        Ok(Some(if test.negated { negate(one_of) } else { one_of }))
    }

    fn member(&self, test: &SetTest, address: &Constant) -> Result<Predicate, LowerError> {
        if address.width() > test.field.symbol_width() {
            return Err(LowerError::Width {
                set: test.name.to_string(),
                width: address.width(),
                field: test.field.name(),
                field_width: test.field.symbol_width(),
            });
        }
        Ok(self.number(&number_test(test.field, Relation::Equal, address)))
    }
}

/// A comparison of a symbol for ports with a key.
fn port_is(symbol: SymbolId, key: u16) -> Predicate {
    symbol.symbol().bits().map_or_else(never, |bits| Predicate::Masked {
        field: bits.field(),
        value: key.into(),
        mask: bits.field_mask(),
    })
}

fn constant(value: bool) -> Predicate {
    if value { always() } else { never() }
}

/// A comparison with `<`, `<=`, `>` or `>=`.
fn order(of: Subfield, relation: Relation, test: &NumberTest) -> Predicate {
    let first = (test.mask.trailing_zeros() % 128) as u8;
    let width = test.mask.count_ones() as u8;
    let Some(bits) = Subfield::new(of.field(), of.first() + first, width) else { return never() };
    let (value, last) = (test.value >> first, low_bits(width));
    let range = match relation {
        Relation::Less => value.checked_sub(1).map(|end| (0, end)),
        Relation::LessOrEqual => Some((0, value)),
        Relation::Greater => (value < last).then(|| (value + 1, last)),
        _ => Some((value, last)),
    };
    from_ranges(bits, range.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::super::ranges::is_never;
    use super::*;
    use crate::symbol::Level;

    #[test]
    fn symbols_are_defined_by_earlier_symbols() {
        for (id, known) in SymbolId::all().zip(KNOWN.iter()) {
            let symbol = id.symbol();
            let texts = match symbol.meaning {
                SymbolMeaning::Predicate(text) => [text, "1"],
                _ => ["1", symbol.prerequisite],
            };
            for text in texts.into_iter().filter(|text| !text.is_empty()) {
                let expr = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
                expr.0.visit(&mut |node| {
                    if let Node::Number(test) = node {
                        assert!(test.symbol < id, "{}: {text}", symbol.name);
                    }
                });
            }
            assert!(!is_never(&known.prerequisite), "{}", symbol.name);
            if matches!(symbol.meaning, SymbolMeaning::Predicate(_)) {
                assert!(!is_never(&known.holds) && !is_never(&known.fails), "{}", symbol.name);
            }
        }
    }

    #[test]
    fn predicates_have_the_level_of_their_field() {
        for id in SymbolId::all() {
            let symbol = id.symbol();
            if let SymbolMeaning::Predicate(text) = symbol.meaning {
                let mut level = Level::Boolean;
                parse(text).unwrap().0.visit(&mut |node| {
                    if let Node::Number(test) = node {
                        level = level.min(test.symbol.symbol().level);
                    }
                });
                assert_eq!(symbol.level, level, "{}", symbol.name);
            }
        }
    }
}
