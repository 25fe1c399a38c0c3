//! The schema of a database (RFC 7047 section 3.2): tables, columns, their types and constraints.

use crate::datum::{Atom, Datum};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

mod parse;

/// Why a schema is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("schema, {path}: {problem}")]
pub struct SchemaError {
    /// The place, such as `tables.Bridge.columns.name.type`.
    pub path: String,
    /// The problem.
    pub problem: String,
}

/// Why a value does not have the type of a column.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected {expected}, not {found}")]
pub struct TypeError {
    /// The values that the type allows.
    pub expected: String,
    /// The value found.
    pub found: String,
}

/// The schema of a database.
#[derive(Clone, PartialEq, Debug)]
pub struct Schema {
    /// The database's name.
    pub name: Arc<str>,
    /// The version, such as `20.27.0`; empty if the server has none.
    pub version: String,
    /// The tables by name.
    pub tables: BTreeMap<Arc<str>, TableSchema>,
}

/// The schema of a table.
#[derive(Clone, PartialEq, Debug)]
pub struct TableSchema {
    /// The columns by name, without `_uuid` and `_version`.
    pub columns: BTreeMap<Arc<str>, ColumnSchema>,
    /// Unreferenced rows are kept. In a table that is not root, the server garbage-collects them
    /// (RFC 7047 section 3.2, `isRoot`).
    pub is_root: bool,
    /// The greatest number of rows, if it is limited.
    pub max_rows: Option<u64>,
    /// Lists of columns whose values together are unique.
    pub indexes: Vec<Vec<Arc<str>>>,
}

/// The schema of a column.
#[derive(Clone, PartialEq, Debug)]
pub struct ColumnSchema {
    /// The type.
    pub ty: ColumnType,
    /// A restart of the server may lose the values.
    pub is_ephemeral: bool,
    /// The value of a row may change.
    pub is_mutable: bool,
}

/// The type of a column: a scalar, an optional value, a set or a map.
#[derive(Clone, PartialEq, Debug)]
pub struct ColumnType {
    /// The type of the elements, or of a map's keys.
    pub key: BaseType,
    /// The type of a map's values.
    pub value: Option<BaseType>,
    /// The least number of elements: 0 or 1.
    pub min: u32,
    /// The greatest number of elements; [`u32::MAX`] for `unlimited`.
    pub max: u32,
}

/// The type of an element, with its constraints.
#[derive(Clone, PartialEq, Debug)]
pub struct BaseType {
    /// The kind of atom.
    pub kind: AtomKind,
    /// The values allowed, if there is a list; sorted.
    pub allowed: Option<Box<[Atom]>>,
    /// The range of an integer.
    pub integers: (i64, i64),
    /// The range of a real number.
    pub reals: (f64, f64),
    /// The range of a string's length, in characters.
    pub lengths: (u64, u64),
    /// The table that a UUID refers to.
    pub reference: Option<Reference>,
}

/// A reference to rows of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reference {
    /// The table.
    pub table: Arc<str>,
    /// A strong reference: the server does not delete the row while it is referenced.
    pub is_strong: bool,
}

/// The kinds of atoms (RFC 7047 section 3.2, `<atomic-type>`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum AtomKind {
    /// 64 bits with sign.
    Integer,
    /// A double.
    Real,
    /// True or false.
    Boolean,
    /// UTF-8 text.
    String,
    /// A UUID.
    Uuid,
}

impl fmt::Display for AtomKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Integer => "integer",
            Self::Real => "real",
            Self::Boolean => "boolean",
            Self::String => "string",
            Self::Uuid => "uuid",
        })
    }
}

impl Schema {
    /// Parses the JSON text of an `.ovsschema` file.
    ///
    /// # Errors
    /// [`SchemaError`] with the place if the text is not JSON or not a schema.
    pub fn from_text(text: &[u8]) -> Result<Self, SchemaError> {
        let value: Value = serde_json::from_slice(text).map_err(|error| SchemaError {
            path: "the text".to_owned(),
            problem: format!("not JSON: {error}"),
        })?;
        parse::schema(&value)
    }

    /// Parses the reply to `get_schema`.
    ///
    /// # Errors
    /// [`SchemaError`] with the place.
    pub fn from_json(value: &Value) -> Result<Self, SchemaError> {
        parse::schema(value)
    }

    /// The schema of a column; `None` if this schema lacks the table or the column.
    pub fn column(&self, table: &str, column: &str) -> Option<&ColumnSchema> {
        self.tables.get(table)?.columns.get(column)
    }
}

impl BaseType {
    /// A type of this kind without constraints.
    pub const fn new(kind: AtomKind) -> Self {
        Self {
            kind,
            allowed: None,
            integers: (i64::MIN, i64::MAX),
            reals: (f64::NEG_INFINITY, f64::INFINITY),
            lengths: (0, u64::MAX),
            reference: None,
        }
    }

    /// Checks an atom against kind and constraints.
    ///
    /// # Errors
    /// [`TypeError`] with the constraint that is broken.
    pub fn check(&self, atom: &Atom) -> Result<(), TypeError> {
        let fail = |expected: String| Err(TypeError { expected, found: atom.describe() });
        if atom.kind() != self.kind {
            return fail(format!("{} {}", article(self.kind), self.kind));
        }
        if let Some(allowed) = &self.allowed
            && !allowed.contains(atom)
        {
            let list: Vec<_> = allowed.iter().map(Atom::describe).collect();
            return fail(format!("one of {}", list.join(", ")));
        }
        match atom {
            Atom::Integer(number) => {
                let (min, max) = self.integers;
                if !(min..=max).contains(number) {
                    return fail(format!("an integer from {min} to {max}"));
                }
            }
            Atom::Real(number) => {
                let (min, max) = self.reals;
                if !(min..=max).contains(number) {
                    return fail(format!("a real from {min} to {max}"));
                }
            }
            Atom::String(text) => {
                let (min, max) = self.lengths;
                if !(min..=max).contains(&(text.chars().count() as u64)) {
                    return fail(format!("a string of {min} to {max} characters"));
                }
            }
            Atom::Boolean(_) | Atom::Uuid(_) => {}
        }
        Ok(())
    }
}

impl ColumnType {
    /// A type with exactly one element.
    pub const fn scalar(kind: AtomKind) -> Self {
        Self { key: BaseType::new(kind), value: None, min: 1, max: 1 }
    }

    /// True for exactly one element and no map: the value is a plain atom.
    pub const fn is_scalar(&self) -> bool {
        self.value.is_none() && self.min == 1 && self.max == 1
    }

    /// True if `update2` and `update3` carry a difference instead of the new value: for columns
    /// with a maximum above 1.
    pub const fn is_sent_as_difference(&self) -> bool {
        self.max > 1
    }

    /// The value of a column that a message omits (RFC 7047 section 5.2.1).
    pub fn default_datum(&self) -> Datum {
        if self.min == 0 {
            return if self.value.is_some() { Datum::empty_map() } else { Datum::empty_set() };
        }
        let key = Atom::default_of(self.key.kind);
        match &self.value {
            Some(value) => Datum::map([(key, Atom::default_of(value.kind))]),
            None if self.max == 1 => Datum::Scalar(key),
            None => Datum::set([key]),
        }
    }

    /// Checks a value against the type and its constraints.
    ///
    /// # Errors
    /// [`TypeError`] with the constraint that is broken.
    pub fn check(&self, datum: &Datum) -> Result<(), TypeError> {
        let count = datum.len();
        let is_in_range = count >= self.min as usize && count <= self.max as usize;
        if !is_in_range || datum.is_map() && self.value.is_none() {
            return Err(TypeError { expected: self.to_string(), found: datum.describe() });
        }
        match (datum, &self.value) {
            (Datum::Map(pairs), Some(value)) => pairs.iter().try_for_each(|(key, item)| {
                self.key.check(key)?;
                value.check(item)
            }),
            (_, Some(_)) => Err(TypeError { expected: self.to_string(), found: datum.describe() }),
            (_, None) => datum.atoms().iter().try_for_each(|atom| self.key.check(atom)),
        }
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let article = article(self.key.kind);
        match (&self.value, self.min, self.max) {
            (None, 1, 1) => write!(f, "{article} {}", self.key.kind),
            (None, 0, 1) => write!(f, "{article} {} or nothing", self.key.kind),
            (None, min, u32::MAX) => write!(f, "a set of {min} or more {}s", self.key.kind),
            (None, min, max) => write!(f, "a set of {min} to {max} {}s", self.key.kind),
            (Some(value), ..) => write!(f, "a map of {}s to {}s", self.key.kind, value.kind),
        }
    }
}

fn article(kind: AtomKind) -> &'static str {
    if kind == AtomKind::Integer { "an" } else { "a" }
}

/// An object of JSON.
type Object = Map<String, Value>;

#[cfg(test)]
mod tests;
