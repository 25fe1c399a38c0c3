//! Match expressions: conditions on packets.
//!
//! ```text
//! text --parse--> Expr --lower(Scope)--> Predicate --compile--> classifier rows + residual
//! ```
//!
//! An [`Expr`] is the parsed text, with every `!` moved down to the comparisons. Lowering resolves
//! its names in a [`Scope`], expands its predicates, adds the prerequisites of its fields, and
//! expresses it in bits of the flow key.

mod compile;
mod lower;
mod microflow;
mod parse;
mod print;
mod ranges;

pub use compile::{Compiled, compile};
pub(super) use microflow::span_of_string;
pub use microflow::{Microflow, parse_microflow};
pub use parse::parse;

use super::scope::Scope;
use super::symbol::{FieldRef, SymbolId};
use pipeline::Predicate;

/// A condition on packets. `Display` writes its canonical form, which [`parse()`] reads back as the
/// same condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expr(Node);

impl Expr {
    /// The conjunction of both conditions.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(Node::combine(Junction::All, self.0, other.0))
    }

    /// The condition in bits of the flow key, with all prerequisites.
    ///
    /// # Errors
    ///
    /// The expression uses an unknown address set or port group, or an address set whose addresses
    /// are wider than the field. Such a condition never holds.
    pub fn lower(&self, scope: &impl Scope) -> Result<Predicate, LowerError> {
        lower::lower(&self.0, scope)
    }

    /// The logical port that `inport` is compared with; `None` without such a comparison, or with
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

/// Prerequisites of fields, for actions.
impl FieldRef {
    /// The condition under which the field exists; `None` if it always does.
    pub fn prerequisite(self) -> Option<Expr> {
        match self.symbol().prerequisite {
            "" => None,
            text => parse(text).ok(),
        }
    }
}

/// Why an expression cannot be lowered in a scope.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LowerError {
    /// The address set is unknown.
    #[error("There is no address set `${0}'.")]
    AddressSet(String),
    /// The port group is unknown.
    #[error("There is no port group `@{0}'.")]
    PortGroup(String),
    /// An address of the set is wider than the field.
    #[error(
        "Address set `${set}' has a {width}-bit address, and field {field} has {field_width} bits."
    )]
    Width {
        /// The address set.
        set: String,
        /// The width of the address in bits.
        width: u8,
        /// The field.
        field: &'static str,
        /// The width of the field in bits.
        field_width: u8,
    },
}

/// A condition. It has no negation: `!` is moved down to the comparisons.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Node {
    Constant(bool),
    Number(NumberTest),
    Port(PortTest),
    Set(SetTest),
    Resident(ResidentTest),
    /// Two or more nodes, none of which is an `All`.
    All(Vec<Node>),
    /// Two or more nodes, none of which is an `Any`.
    Any(Vec<Node>),
}

/// A comparison with a number.
#[derive(Clone, PartialEq, Eq, Debug)]
struct NumberTest {
    symbol: SymbolId,
    /// Never `NotEqual` when the mask has a single bit.
    relation: Relation,
    /// The value; 0 outside the mask.
    value: u128,
    /// The bits of the symbol that are compared; contiguous for `<`, `<=`, `>` and `>=`.
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

/// A comparison with a port name. It is negated only in intermediate results of the parser.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PortTest {
    symbol: SymbolId,
    negated: bool,
    port: Box<str>,
}

/// A comparison with all members of an address set or, for a port field, of a port group.
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
    /// The relation with its sides swapped.
    const fn swapped(self) -> Self {
        match self {
            Self::Equal => Self::Equal,
            Self::NotEqual => Self::NotEqual,
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
        }
    }

    /// The negated relation.
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
    /// The conjunction or disjunction of both. Nested nodes of the same kind are flattened.
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

    /// The negated condition.
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

    /// Calls `see` for every node, parents first.
    fn visit<'a>(&'a self, see: &mut impl FnMut(&'a Self)) {
        see(self);
        if let Self::All(parts) | Self::Any(parts) = self {
            parts.iter().for_each(|part| part.visit(see));
        }
    }
}

#[cfg(test)]
mod tests;
