//! Expressions of the logical language: conditions on packets.
//!
//! ```text
//! text --parse--> Expr --lower(Scope)--> Predicate --compile--> rows for a classifier + a residual predicate
//! ```
//!
//! An [`Expr`] is what the text says, with every `!` brought down to the comparisons. To lower it is to give its names the
//! meaning that they have in a [`Scope`], to expand its predicates, to add what its fields presuppose, and to write it in
//! bits of a key.

mod compile;
mod lower;
mod microflow;
mod parse;
mod print;
mod ranges;

pub use compile::{Compiled, compile};
pub(super) use microflow::place_of_text;
pub use microflow::{Microflow, parse_microflow};
pub use parse::parse;

use super::scope::Scope;
use super::symbol::{FieldRef, SymbolId};
use pipeline::Predicate;

/// A condition on packets. Its `Display` is its canonical form, which says the same to [`parse()`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expr(Node);

impl Expr {
    /// Both conditions.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(Node::combine(Junction::All, self.0, other.0))
    }

    /// The condition in bits of a key, with all that it presupposes.
    ///
    /// # Errors
    ///
    /// The expression speaks of an address set or a port group that is not there, or of one whose addresses are wider than
    /// the field they are compared with. Nothing can meet such a condition.
    pub fn lower(&self, scope: &impl Scope) -> Result<Predicate, LowerError> {
        lower::lower(&self.0, scope)
    }

    /// The name of the one logical port that `inport` is compared with; `None` without such a comparison, and with
    /// several ports.
    pub fn inport(&self) -> Option<&str> {
        let mut ports = Vec::new();
        self.0.visit(&mut |node| {
            if let Node::Port(test) = node
                && test.symbol.symbol().name == "inport"
                && !ports.contains(&&*test.port)
            {
                ports.push(&*test.port);
            }
        });
        match ports[..] {
            [port] => Some(port),
            _ => None,
        }
    }
}

/// What the field of a comparison needs, for actions that use it.
impl FieldRef {
    /// What must hold for the field to have a meaning; `None` for nothing.
    pub fn prerequisite(self) -> Option<Expr> {
        match self.symbol().prerequisite {
            "" => None,
            text => parse(text).ok(),
        }
    }
}

/// Why an expression has no meaning in a scope.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LowerError {
    /// No address set has that name.
    #[error("There is no address set `${0}'.")]
    AddressSet(String),
    /// No port group has that name.
    #[error("There is no port group `@{0}'.")]
    PortGroup(String),
    /// An address set has an address that the field cannot have.
    #[error(
        "Address set `${set}' has a {width}-bit address, and field {field} has {field_width} bits."
    )]
    Width {
        /// The address set.
        set: String,
        /// Bits of the address.
        width: u8,
        /// The field that is compared with it.
        field: &'static str,
        /// Bits of the field.
        field_width: u8,
    },
}

/// A condition. `!` is not among them: it is brought down to the comparisons.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Node {
    Constant(bool),
    Number(NumberTest),
    Port(PortTest),
    Set(SetTest),
    Resident(ResidentTest),
    /// Of two or more, none of which is an `All`.
    All(Vec<Node>),
    /// Of two or more, none of which is an `Any`.
    Any(Vec<Node>),
}

/// A comparison with a number.
#[derive(Clone, PartialEq, Eq, Debug)]
struct NumberTest {
    symbol: SymbolId,
    /// Not `NotEqual` when the mask has a single bit.
    relation: Relation,
    /// 0 outside the mask.
    value: u128,
    /// Bits of the symbol; contiguous unless the relation is equality or inequality.
    mask: u128,
}

impl NumberTest {
    fn new(symbol: SymbolId, relation: Relation, value: u128, mask: u128) -> Self {
        if relation == Relation::NotEqual && mask.is_power_of_two() {
            Self { symbol, relation: Relation::Equal, value: !value & mask, mask }
        } else {
            Self { symbol, relation, value: value & mask, mask }
        }
    }
}

/// A comparison with the name of a port. Complete expressions have no negated one.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PortTest {
    symbol: SymbolId,
    negated: bool,
    port: Box<str>,
}

/// A comparison with all members of an address set or, for a field of names, a port group.
#[derive(Clone, PartialEq, Eq, Debug)]
struct SetTest {
    field: FieldRef,
    negated: bool,
    name: Box<str>,
}

/// `is_chassis_resident("port")`
#[derive(Clone, PartialEq, Eq, Debug)]
struct ResidentTest {
    negated: bool,
    port: Box<str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relation {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Relation {
    /// The relation with its sides exchanged.
    const fn turned(self) -> Self {
        match self {
            Self::Equal => Self::Equal,
            Self::NotEqual => Self::NotEqual,
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
        }
    }

    /// The relation that holds when this one does not.
    const fn inverted(self) -> Self {
        match self {
            Self::Equal => Self::NotEqual,
            Self::NotEqual => Self::Equal,
            Self::Less => Self::GreaterOrEqual,
            Self::LessOrEqual => Self::Greater,
            Self::Greater => Self::LessOrEqual,
            Self::GreaterOrEqual => Self::Less,
        }
    }

    const fn is_order(self) -> bool {
        !matches!(self, Self::Equal | Self::NotEqual)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Junction {
    All,
    Any,
}

impl Node {
    /// Both, or one of both, without a junction inside one of its own kind.
    fn combine(junction: Junction, a: Self, b: Self) -> Self {
        let wrap = |parts| match junction {
            Junction::All => Self::All(parts),
            Junction::Any => Self::Any(parts),
        };
        match (a.parts_of(junction), b.parts_of(junction)) {
            (Ok(mut parts), Ok(mut more)) => {
                parts.append(&mut more);
                wrap(parts)
            }
            (Ok(mut parts), Err(b)) => {
                parts.push(b);
                wrap(parts)
            }
            (Err(a), Ok(mut parts)) => {
                parts.insert(0, a);
                wrap(parts)
            }
            (Err(a), Err(b)) => wrap(vec![a, b]),
        }
    }

    fn parts_of(self, junction: Junction) -> Result<Vec<Self>, Self> {
        match (junction, self) {
            (Junction::All, Self::All(parts)) | (Junction::Any, Self::Any(parts)) => Ok(parts),
            (_, other) => Err(other),
        }
    }

    /// The condition that holds when this one does not.
    fn negated(self) -> Self {
        let negate_all = |parts: Vec<Self>| parts.into_iter().map(Self::negated).collect();
        match self {
            Self::Constant(value) => Self::Constant(!value),
            Self::Number(test) => Self::Number(NumberTest::new(
                test.symbol,
                test.relation.inverted(),
                test.value,
                test.mask,
            )),
            Self::Port(test) => Self::Port(PortTest { negated: !test.negated, ..test }),
            Self::Set(test) => Self::Set(SetTest { negated: !test.negated, ..test }),
            Self::Resident(test) => Self::Resident(ResidentTest { negated: !test.negated, ..test }),
            Self::All(parts) => Self::Any(negate_all(parts)),
            Self::Any(parts) => Self::All(negate_all(parts)),
        }
    }

    /// Shows every node to `see`, parents first.
    fn visit<'a>(&'a self, see: &mut impl FnMut(&'a Self)) {
        see(self);
        if let Self::All(parts) | Self::Any(parts) = self {
            parts.iter().for_each(|part| part.visit(see));
        }
    }
}

#[cfg(test)]
mod tests;
