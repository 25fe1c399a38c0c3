//! [`Atom`] and [`Datum`]: values of columns (RFC 7047 section 5.1), and differences of them.

use crate::schema::{AtomKind, ColumnType};
use crate::uuid::Uuid;
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

mod convert;
mod decode;

pub use convert::{Cardinality, Expected, FromAtom, FromDatum};
pub(crate) use decode::{DatumSeed, Interner};

/// A value without structure.
///
/// Atoms are ordered by kind and value. Two reals are equal if their bits are.
#[derive(Clone, Debug)]
pub enum Atom {
    /// An integer.
    Integer(i64),
    /// A real number.
    Real(f64),
    /// True or false.
    Boolean(bool),
    /// A string.
    String(Arc<str>),
    /// A UUID, often a reference to a row.
    Uuid(Uuid),
}

impl Atom {
    /// The kind.
    pub const fn kind(&self) -> AtomKind {
        match self {
            Self::Integer(_) => AtomKind::Integer,
            Self::Real(_) => AtomKind::Real,
            Self::Boolean(_) => AtomKind::Boolean,
            Self::String(_) => AtomKind::String,
            Self::Uuid(_) => AtomKind::Uuid,
        }
    }

    /// The default of a kind: zero, false, "" or the nil UUID.
    pub fn default_of(kind: AtomKind) -> Self {
        match kind {
            AtomKind::Integer => Self::Integer(0),
            AtomKind::Real => Self::Real(0.0),
            AtomKind::Boolean => Self::Boolean(false),
            AtomKind::String => Self::String(Arc::from("")),
            AtomKind::Uuid => Self::Uuid(Uuid::NIL),
        }
    }

    /// Parses an atom in the notation of RFC 7047; `None` if it has another kind.
    pub fn from_json(kind: AtomKind, value: &Value) -> Option<Self> {
        match kind {
            AtomKind::Integer => value.as_i64().map(Self::Integer),
            AtomKind::Real => value.as_f64().map(Self::Real),
            AtomKind::Boolean => value.as_bool().map(Self::Boolean),
            AtomKind::String => value.as_str().map(|text| Self::String(text.into())),
            AtomKind::Uuid => match value.as_array()?.as_slice() {
                [tag, text] if tag == "uuid" => text.as_str()?.parse().ok().map(Self::Uuid),
                _ => None,
            },
        }
    }

    /// The atom in the notation of RFC 7047.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Integer(number) => json!(number),
            Self::Real(number) => json!(number),
            Self::Boolean(value) => json!(value),
            Self::String(text) => json!(&**text),
            Self::Uuid(uuid) => json!(["uuid", uuid.to_string()]),
        }
    }

    /// The atom for an error message, cut to 60 characters.
    pub(crate) fn describe(&self) -> String {
        const SHOWN: usize = 60;
        match self {
            Self::Integer(number) => number.to_string(),
            Self::Real(number) => number.to_string(),
            Self::Boolean(value) => value.to_string(),
            Self::Uuid(uuid) => format!("the UUID {uuid}"),
            Self::String(text) => match text.char_indices().nth(SHOWN) {
                Some((end, _)) => format!("\"{}...\"", text.get(..end).unwrap_or_default()),
                None => format!("\"{text}\""),
            },
        }
    }
}

impl PartialEq for Atom {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Atom {}

impl PartialOrd for Atom {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Atom {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => a.cmp(b),
            (Self::Real(a), Self::Real(b)) => a.total_cmp(b),
            (Self::Boolean(a), Self::Boolean(b)) => a.cmp(b),
            (Self::String(a), Self::String(b)) => a.cmp(b),
            (Self::Uuid(a), Self::Uuid(b)) => a.cmp(b),
            _ => self.kind().cmp(&other.kind()),
        }
    }
}

impl Hash for Atom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind().hash(state);
        match self {
            Self::Integer(number) => number.hash(state),
            Self::Real(number) => number.to_bits().hash(state),
            Self::Boolean(value) => value.hash(state),
            Self::String(text) => text.hash(state),
            Self::Uuid(uuid) => uuid.hash(state),
        }
    }
}

/// The value of a column.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Datum {
    /// Exactly one element.
    Scalar(Atom),
    /// Any number of elements, sorted and without duplicates; an optional value has none or one.
    Set(Box<[Atom]>),
    /// Keys with values, sorted by key and without duplicate keys.
    Map(Box<[(Atom, Atom)]>),
}

impl Datum {
    /// A set without elements, and an absent optional value.
    pub fn empty_set() -> Self {
        Self::Set(Box::default())
    }

    /// A map without pairs.
    pub fn empty_map() -> Self {
        Self::Map(Box::default())
    }

    /// A set of these elements; duplicates are dropped.
    pub fn set(elements: impl IntoIterator<Item = Atom>) -> Self {
        let mut elements: Vec<_> = elements.into_iter().collect();
        elements.sort_unstable();
        elements.dedup();
        Self::Set(elements.into_boxed_slice())
    }

    /// A map of these pairs; of equal keys the last counts.
    pub fn map(pairs: impl IntoIterator<Item = (Atom, Atom)>) -> Self {
        let mut pairs: Vec<_> = pairs.into_iter().collect();
        pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
        pairs.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                std::mem::swap(later, earlier);
            }
            is_same
        });
        Self::Map(pairs.into_boxed_slice())
    }

    /// The number of elements or pairs.
    pub fn len(&self) -> usize {
        match self {
            Self::Scalar(_) => 1,
            Self::Set(elements) => elements.len(),
            Self::Map(pairs) => pairs.len(),
        }
    }

    /// True for a set or map of nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True for a map.
    pub const fn is_map(&self) -> bool {
        matches!(self, Self::Map(_))
    }

    /// The elements of a scalar or set; none of a map.
    pub fn atoms(&self) -> &[Atom] {
        match self {
            Self::Scalar(atom) => std::slice::from_ref(atom),
            Self::Set(elements) => elements,
            Self::Map(_) => &[],
        }
    }

    /// The pairs of a map; none of a scalar or set.
    pub fn pairs(&self) -> &[(Atom, Atom)] {
        match self {
            Self::Map(pairs) => pairs,
            _ => &[],
        }
    }

    /// The value of a map's string key.
    pub fn get(&self, key: &str) -> Option<&Atom> {
        let found = self.pairs().binary_search_by(|(candidate, _)| match candidate {
            Atom::String(text) => (**text).cmp(key),
            other => other.kind().cmp(&AtomKind::String),
        });
        found.ok().and_then(|at| self.pairs().get(at)).map(|(_, value)| value)
    }

    /// The value in the notation of RFC 7047.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Scalar(atom) => atom.to_json(),
            Self::Set(elements) => match elements.as_ref() {
                [element] => element.to_json(),
                _ => json!(["set", elements.iter().map(Atom::to_json).collect::<Vec<_>>()]),
            },
            Self::Map(pairs) => {
                let pair = |(key, value): &(Atom, Atom)| json!([key.to_json(), value.to_json()]);
                json!(["map", pairs.iter().map(pair).collect::<Vec<_>>()])
            }
        }
    }

    /// The value for an error message.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Scalar(atom) => atom.describe(),
            Self::Set(elements) if elements.is_empty() => "nothing".to_owned(),
            Self::Set(elements) => match elements.as_ref() {
                [element] => element.describe(),
                _ => format!("a set of {}", elements.len()),
            },
            Self::Map(pairs) => format!("a map of {}", pairs.len()),
        }
    }

    /// The value after a difference of `modify` in an `update2` or `update3` notification.
    ///
    /// For a type of at most one element the difference is the new value. Otherwise it holds the
    /// elements that are in one of both sets only. In a map, a key with its old value is removed,
    /// and a key with any other value is set.
    pub fn apply_difference(&self, difference: Self, ty: &ColumnType) -> Self {
        if !ty.is_sent_as_difference() {
            return difference;
        }
        match (self, difference) {
            (Self::Map(pairs), Self::Map(changes)) => apply_to_map(pairs, changes),
            (Self::Map(pairs), _) => Self::Map(pairs.clone()),
            (_, Self::Map(changes)) => Self::Map(changes),
            (_, changes) => symmetric_difference(self.atoms(), changes.atoms()),
        }
    }
}

fn symmetric_difference(old: &[Atom], changes: &[Atom]) -> Datum {
    let mut new = Vec::with_capacity(old.len() + changes.len());
    let (mut old_atoms, mut changes) = (old.iter().peekable(), changes.iter().peekable());
    loop {
        let order = match (old_atoms.peek(), changes.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(change)) => old.cmp(change),
        };
        match order {
            Ordering::Less => new.extend(old_atoms.next().cloned()),
            Ordering::Greater => new.extend(changes.next().cloned()),
            Ordering::Equal => {
                old_atoms.next();
                changes.next();
            }
        }
    }
    Datum::Set(new.into_boxed_slice())
}

fn apply_to_map(old: &[(Atom, Atom)], changes: Box<[(Atom, Atom)]>) -> Datum {
    let mut new = Vec::with_capacity(old.len() + changes.len());
    let (mut old_atoms, mut changes) = (old.iter().peekable(), changes.into_iter().peekable());
    loop {
        let order = match (old_atoms.peek(), changes.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((old, _)), Some((change, _))) => old.cmp(change),
        };
        match order {
            Ordering::Less => new.extend(old_atoms.next().cloned()),
            Ordering::Greater => new.extend(changes.next()),
            Ordering::Equal => {
                let old_value = old_atoms.next().map(|(_, value)| value);
                new.extend(changes.next().filter(|(_, value)| Some(value) != old_value));
            }
        }
    }
    Datum::Map(new.into_boxed_slice())
}

#[cfg(test)]
mod tests;
