//! [`Condition`]: which rows of a table the server sends (`monitor_cond`, ovsdb-server(7) section
//! 4.1.12), and the `where` of an operation.

use crate::datum::Datum;
use serde_json::{Value, json};
use std::sync::Arc;

/// A comparison of a column with a value (RFC 7047 section 5.1, `<function>`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    /// `==`
    Equals,
    /// `!=`
    Differs,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `includes`: all elements of the value are in the column.
    Includes,
    /// `excludes`: no element of the value is in the column.
    Excludes,
}

impl Function {
    const fn text(self) -> &'static str {
        match self {
            Self::Equals => "==",
            Self::Differs => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Includes => "includes",
            Self::Excludes => "excludes",
        }
    }
}

/// A column, a comparison and a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Clause {
    /// The column, or `_uuid`.
    pub column: Arc<str>,
    /// The comparison.
    pub function: Function,
    /// The value.
    pub value: Datum,
}

impl Clause {
    /// A comparison of `column` with `value`.
    pub fn new(column: &str, function: Function, value: impl Into<Datum>) -> Self {
        Self { column: column.into(), function, value: value.into() }
    }

    /// The clause in the notation of RFC 7047.
    pub fn to_json(&self) -> Value {
        json!([&*self.column, self.function.text(), self.value.to_json()])
    }
}

/// Selects rows of a table for replication: a row is sent if **any** clause matches.
///
/// This differs from the `where` of an operation, of which all clauses must match.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition(Kind);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    All,
    Any(Vec<Clause>),
}

impl Condition {
    /// Selects all rows.
    pub const fn all() -> Self {
        Self(Kind::All)
    }

    /// Selects no row.
    pub const fn none() -> Self {
        Self(Kind::Any(Vec::new()))
    }

    /// Selects rows that match any of these clauses. Equal clauses are sent once.
    pub fn any(clauses: impl IntoIterator<Item = Clause>) -> Self {
        let mut kept: Vec<Clause> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for clause in clauses {
            let key = (Arc::clone(&clause.column), clause.function.text(), clause.value.clone());
            if seen.insert(key) {
                kept.push(clause);
            }
        }
        Self(Kind::Any(kept))
    }

    /// True if every row is selected.
    pub fn is_all(&self) -> bool {
        self.0 == Kind::All
    }

    /// The array `where` of a request. It is never empty, because to the server an empty array
    /// selects all rows.
    pub fn to_json(&self) -> Value {
        match &self.0 {
            Kind::All => json!([true]),
            Kind::Any(clauses) if clauses.is_empty() => json!([false]),
            Kind::Any(clauses) => clauses.iter().map(Clause::to_json).collect(),
        }
    }
}

impl Default for Condition {
    fn default() -> Self {
        Self::all()
    }
}
