//! Conversion between column values and Rust types.

use super::{Atom, Datum};
use crate::schema::{AtomKind, ColumnType};
use crate::uuid::Uuid;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// A Rust type of one atom.
pub trait FromAtom: Sized {
    /// The kind of atom.
    const KIND: AtomKind;

    /// The value; `None` if the atom has another kind.
    fn from_atom(atom: &Atom) -> Option<Self>;

    /// The atom of this value.
    fn to_atom(&self) -> Atom;
}

/// How many elements a Rust type holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cardinality {
    /// Exactly one.
    One,
    /// None or one.
    Optional,
    /// Any number.
    Many,
}

/// The column types that a Rust type accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// The kind of the elements or keys.
    pub key: AtomKind,
    /// The kind of a map's values.
    pub value: Option<AtomKind>,
    /// The number of elements.
    pub cardinality: Cardinality,
}

impl Expected {
    /// A string or nothing: the type of an absent column for which no type is requested.
    pub(crate) const OPTIONAL_STRING: Self =
        Self { key: AtomKind::String, value: None, cardinality: Cardinality::Optional };

    /// True if every value of a column of type `ty` can be converted.
    pub fn accepts(self, ty: &ColumnType) -> bool {
        let is_counted = match self.cardinality {
            Cardinality::One => ty.is_scalar(),
            Cardinality::Optional => ty.max == 1,
            Cardinality::Many => true,
        };
        is_counted
            && ty.key.kind == self.key
            && ty.value.as_ref().map(|value| value.kind) == self.value
    }

    /// A column type for columns that the server's schema lacks.
    pub fn column_type(self) -> ColumnType {
        let (min, max) = match self.cardinality {
            Cardinality::One => (1, 1),
            Cardinality::Optional => (0, 1),
            Cardinality::Many => (0, u32::MAX),
        };
        let mut ty = ColumnType::scalar(self.key);
        ty.min = min;
        ty.max = max;
        if let Some(value) = self.value {
            ty.value = Some(crate::schema::BaseType::new(value));
        }
        ty
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.column_type())
    }
}

/// A Rust type of a column's value.
pub trait FromDatum: Sized {
    /// The column types that the type accepts.
    const EXPECTED: Expected;

    /// The value; `None` if the datum does not match [`EXPECTED`](Self::EXPECTED).
    fn from_datum(datum: &Datum) -> Option<Self>;

    /// The datum of this value.
    fn to_datum(&self) -> Datum;
}

/// Types of one atom.
macro_rules! atoms {
    ($($type:ty: $kind:ident, $from:expr, $to:expr;)+) => {$(
        impl FromAtom for $type {
            const KIND: AtomKind = AtomKind::$kind;

            fn from_atom(atom: &Atom) -> Option<Self> {
                let Atom::$kind(value) = atom else { return None };
                let from: fn(_) -> Self = $from;
                Some(from(value))
            }

            fn to_atom(&self) -> Atom {
                let to: fn(&Self) -> _ = $to;
                Atom::$kind(to(self))
            }
        }

        impl FromDatum for $type {
            const EXPECTED: Expected =
                Expected { key: AtomKind::$kind, value: None, cardinality: Cardinality::One };

            fn from_datum(datum: &Datum) -> Option<Self> {
                let Datum::Scalar(atom) = datum else { return None };
                Self::from_atom(atom)
            }

            fn to_datum(&self) -> Datum {
                Datum::Scalar(self.to_atom())
            }
        }
    )+};
}
atoms! {
    i64: Integer, |number: &i64| *number, |number| *number;
    f64: Real, |number: &f64| *number, |number| *number;
    bool: Boolean, |value: &bool| *value, |value| *value;
    Arc<str>: String, |text: &Arc<str>| Arc::clone(text), Arc::clone;
    String: String, |text: &Arc<str>| text.to_string(), |text| Arc::from(text.as_str());
    Uuid: Uuid, |uuid: &Uuid| *uuid, |uuid| *uuid;
}

const fn elements<T: FromAtom>(cardinality: Cardinality) -> Expected {
    Expected { key: T::KIND, value: None, cardinality }
}

impl<T: FromAtom> FromDatum for Option<T> {
    const EXPECTED: Expected = elements::<T>(Cardinality::Optional);

    fn from_datum(datum: &Datum) -> Option<Self> {
        match datum.atoms() {
            [] if !datum.is_map() => Some(None),
            [atom] => T::from_atom(atom).map(Some),
            _ => None,
        }
    }

    fn to_datum(&self) -> Datum {
        Datum::set(self.iter().map(T::to_atom))
    }
}

impl<T: FromAtom> FromDatum for Vec<T> {
    const EXPECTED: Expected = elements::<T>(Cardinality::Many);

    fn from_datum(datum: &Datum) -> Option<Self> {
        if datum.is_map() { None } else { datum.atoms().iter().map(T::from_atom).collect() }
    }

    fn to_datum(&self) -> Datum {
        Datum::set(self.iter().map(T::to_atom))
    }
}

impl<T: FromAtom + Ord> FromDatum for BTreeSet<T> {
    const EXPECTED: Expected = elements::<T>(Cardinality::Many);

    fn from_datum(datum: &Datum) -> Option<Self> {
        if datum.is_map() { None } else { datum.atoms().iter().map(T::from_atom).collect() }
    }

    fn to_datum(&self) -> Datum {
        Datum::set(self.iter().map(T::to_atom))
    }
}

impl<K: FromAtom + Ord, V: FromAtom> FromDatum for BTreeMap<K, V> {
    const EXPECTED: Expected =
        Expected { key: K::KIND, value: Some(V::KIND), cardinality: Cardinality::Many };

    fn from_datum(datum: &Datum) -> Option<Self> {
        let Datum::Map(pairs) = datum else { return None };
        pairs.iter().map(|(key, value)| Some((K::from_atom(key)?, V::from_atom(value)?))).collect()
    }

    fn to_datum(&self) -> Datum {
        Datum::map(self.iter().map(|(key, value)| (key.to_atom(), value.to_atom())))
    }
}

/// Conversions to an atom, and to a scalar.
macro_rules! into_atom {
    ($($type:ty: $convert:expr;)+) => {$(
        impl From<$type> for Atom {
            fn from(value: $type) -> Self {
                let convert: fn($type) -> Self = $convert;
                convert(value)
            }
        }

        impl From<$type> for Datum {
            fn from(value: $type) -> Self {
                Self::Scalar(value.into())
            }
        }
    )+};
}
into_atom! {
    &str: |text| Self::String(text.into());
    String: |text| Self::String(text.into());
    Arc<str>: Self::String;
    i64: Self::Integer;
    f64: Self::Real;
    bool: Self::Boolean;
    Uuid: Self::Uuid;
}

impl From<Atom> for Datum {
    fn from(atom: Atom) -> Self {
        Self::Scalar(atom)
    }
}

impl<T: Into<Atom>> From<Option<T>> for Datum {
    fn from(value: Option<T>) -> Self {
        Self::set(value.map(Into::into))
    }
}

impl<T: Into<Atom>> From<Vec<T>> for Datum {
    fn from(elements: Vec<T>) -> Self {
        Self::set(elements.into_iter().map(Into::into))
    }
}

impl<T: Into<Atom>> From<BTreeSet<T>> for Datum {
    fn from(elements: BTreeSet<T>) -> Self {
        Self::set(elements.into_iter().map(Into::into))
    }
}

impl<K: Into<Atom>, V: Into<Atom>> From<BTreeMap<K, V>> for Datum {
    fn from(pairs: BTreeMap<K, V>) -> Self {
        Self::map(pairs.into_iter().map(|(key, value)| (key.into(), value.into())))
    }
}
