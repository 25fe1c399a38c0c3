//! Decodes values from JSON text directly by their column's type, without an intermediate tree.

use super::{Atom, Datum};
use crate::schema::{AtomKind, ColumnType};
use crate::uuid::Uuid;
use serde::de::{self, DeserializeSeed, Deserializer, SeqAccess, Visitor};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// Shares the memory of short strings that occur often, such as the keys of maps.
#[derive(Debug, Default)]
pub struct Interner {
    known: HashSet<Arc<str>>,
}

impl Interner {
    /// Longer strings are rarely repeated.
    const MAX_LENGTH: usize = 40;
    /// Strings to remember. When there are more, all are forgotten.
    const CAPACITY: usize = 16_384;

    /// The string, shared if it is short.
    pub fn intern(&mut self, text: &str) -> Arc<str> {
        if text.len() > Self::MAX_LENGTH {
            return Arc::from(text);
        }
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        if self.known.len() >= Self::CAPACITY {
            self.known.clear();
        }
        let shared: Arc<str> = Arc::from(text);
        self.known.insert(Arc::clone(&shared));
        shared
    }
}

/// Decodes the value of a column.
pub struct DatumSeed<'a> {
    pub ty: &'a ColumnType,
    pub interner: &'a mut Interner,
}

impl<'de> DeserializeSeed<'de> for DatumSeed<'_> {
    type Value = Datum;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Datum, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl DatumSeed<'_> {
    /// The value of a column that is written as a plain atom.
    fn one<E: de::Error>(self, atom: Atom) -> Result<Datum, E> {
        if self.ty.value.is_some() || atom.kind() != self.ty.key.kind {
            return Err(E::custom(format_args!("expected {}, not {}", self.ty, atom.describe())));
        }
        Ok(if self.ty.is_scalar() { Datum::Scalar(atom) } else { Datum::Set(Box::new([atom])) })
    }

    /// Checks that a scalar has one element, and an optional value at most one. A difference of
    /// sets may have more elements than either set.
    fn counted<E: de::Error>(ty: &ColumnType, datum: Datum) -> Result<Datum, E> {
        if ty.is_scalar() || ty.max == 1 && datum.len() > 1 {
            return match datum {
                Datum::Set(elements) if elements.len() == 1 && ty.is_scalar() => {
                    elements.into_iter().next().map(Datum::Scalar).ok_or_else(|| E::custom("empty"))
                }
                other => Err(E::custom(format_args!("expected {ty}, not {}", other.describe()))),
            };
        }
        Ok(datum)
    }
}

impl<'de> Visitor<'de> for DatumSeed<'_> {
    type Value = Datum;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ty)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Datum, E> {
        let atom = Atom::String(self.interner.intern(text));
        self.one(atom)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Datum, E> {
        self.one(Atom::Boolean(value))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Datum, E> {
        let kind = self.ty.key.kind;
        self.one(integer(kind, number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Datum, E> {
        let kind = self.ty.key.kind;
        self.one(unsigned(kind, number)?)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Datum, E> {
        self.one(Atom::Real(number))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Datum, A::Error> {
        let Self { ty, interner } = self;
        let datum = match (list.next_element_seed(TagSeed)?, &ty.value) {
            (Some(Tag::Uuid), _) => {
                let uuid = list.next_element::<Uuid>()?.ok_or_else(|| short::<A>("uuid"))?;
                end(list)?;
                return Self { ty, interner }.one(Atom::Uuid(uuid));
            }
            (Some(Tag::Set), None) => {
                let kind = ty.key.kind;
                let elements = list.next_element_seed(Elements { kind, interner })?;
                Datum::set(elements.ok_or_else(|| short::<A>("set"))?)
            }
            (Some(Tag::Map), Some(value)) => {
                let kinds = (ty.key.kind, value.kind);
                let pairs = list.next_element_seed(Pairs { kinds, interner })?;
                Datum::map(pairs.ok_or_else(|| short::<A>("map"))?)
            }
            (Some(Tag::Set), Some(_)) => {
                return Err(de::Error::custom(format_args!("expected {ty}, not a set")));
            }
            (Some(Tag::Map), None) => {
                return Err(de::Error::custom(format_args!("expected {ty}, not a map")));
            }
            (None, _) => {
                return Err(de::Error::custom(format_args!("expected {ty}, not an empty array")));
            }
        };
        end(list)?;
        Self::counted(ty, datum)
    }
}

fn short<'de, A: SeqAccess<'de>>(tag: &str) -> A::Error {
    de::Error::custom(format_args!("nothing follows \"{tag}\" in an array"))
}

fn end<'de, A: SeqAccess<'de>>(mut list: A) -> Result<(), A::Error> {
    match list.next_element::<de::IgnoredAny>()? {
        None => Ok(()),
        Some(_) => Err(de::Error::custom("an array has more elements than a value may have")),
    }
}

/// The atom for a JSON integer, which may also be a real without a fraction.
#[expect(clippy::cast_precision_loss, reason = "a real has no more precision")]
fn integer(kind: AtomKind, number: i64) -> Atom {
    if kind == AtomKind::Real { Atom::Real(number as f64) } else { Atom::Integer(number) }
}

#[expect(clippy::cast_precision_loss, reason = "a real has no more precision")]
fn unsigned<E: de::Error>(kind: AtomKind, number: u64) -> Result<Atom, E> {
    match i64::try_from(number) {
        Ok(number) => Ok(integer(kind, number)),
        Err(_) if kind == AtomKind::Real => Ok(Atom::Real(number as f64)),
        Err(_) => Err(E::custom(format_args!("the integer {number} exceeds 64 bits with sign"))),
    }
}

/// The first element of an array.
enum Tag {
    Uuid,
    Set,
    Map,
}

struct TagSeed;

impl<'de> DeserializeSeed<'de> for TagSeed {
    type Value = Tag;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tag, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for TagSeed {
    type Value = Tag;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"uuid\", \"set\" or \"map\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Tag, E> {
        match text {
            "uuid" => Ok(Tag::Uuid),
            "set" => Ok(Tag::Set),
            "map" => Ok(Tag::Map),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }
}

impl<'de> de::Deserialize<'de> for Uuid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UuidVisitor;
        impl Visitor<'_> for UuidVisitor {
            type Value = Uuid;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a UUID")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Uuid, E> {
                text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(UuidVisitor)
    }
}

/// Decodes an atom of a known kind.
struct AtomSeed<'a> {
    kind: AtomKind,
    interner: &'a mut Interner,
}

impl<'de> DeserializeSeed<'de> for AtomSeed<'_> {
    type Value = Atom;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Atom, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl AtomSeed<'_> {
    fn checked<E: de::Error>(kind: AtomKind, atom: Atom) -> Result<Atom, E> {
        if atom.kind() == kind {
            return Ok(atom);
        }
        Err(E::custom(format_args!("expected a value of type {kind}, not {}", atom.describe())))
    }
}

impl<'de> Visitor<'de> for AtomSeed<'_> {
    type Value = Atom;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value of type {}", self.kind)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Atom, E> {
        Self::checked(self.kind, Atom::String(self.interner.intern(text)))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Atom, E> {
        Self::checked(self.kind, Atom::Boolean(value))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Atom, E> {
        Self::checked(self.kind, integer(self.kind, number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Atom, E> {
        Self::checked(self.kind, unsigned(self.kind, number)?)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Atom, E> {
        Self::checked(self.kind, Atom::Real(number))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Atom, A::Error> {
        if !matches!(list.next_element_seed(TagSeed)?, Some(Tag::Uuid)) {
            return Err(de::Error::custom("an element of a set or map is itself a set or map"));
        }
        let uuid = list.next_element::<Uuid>()?.ok_or_else(|| short::<A>("uuid"))?;
        end(list)?;
        Self::checked(self.kind, Atom::Uuid(uuid))
    }
}

/// Decodes an array of atoms.
struct Elements<'a> {
    kind: AtomKind,
    interner: &'a mut Interner,
}

impl<'de> DeserializeSeed<'de> for Elements<'_> {
    type Value = Vec<Atom>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Atom>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = Vec<Atom>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the elements of a set")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Atom>, A::Error> {
        let Self { kind, interner } = self;
        let mut atoms = Vec::new();
        while let Some(atom) = list.next_element_seed(AtomSeed { kind, interner })? {
            atoms.push(atom);
        }
        Ok(atoms)
    }
}

/// Decodes an array of pairs.
struct Pairs<'a> {
    kinds: (AtomKind, AtomKind),
    interner: &'a mut Interner,
}

impl<'de> DeserializeSeed<'de> for Pairs<'_> {
    type Value = Vec<(Atom, Atom)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Pairs<'_> {
    type Value = Vec<(Atom, Atom)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the pairs of a map")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let Self { kinds, interner } = self;
        let mut pairs = Vec::new();
        while let Some(pair) = list.next_element_seed(Pair { kinds, interner })? {
            pairs.push(pair);
        }
        Ok(pairs)
    }
}

/// Decodes a pair of a map.
struct Pair<'a> {
    kinds: (AtomKind, AtomKind),
    interner: &'a mut Interner,
}

impl<'de> DeserializeSeed<'de> for Pair<'_> {
    type Value = (Atom, Atom);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Pair<'_> {
    type Value = (Atom, Atom);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key and a value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let Self { kinds: (key, value), interner } = self;
        let missing = || de::Error::custom("a pair of a map needs a key and a value");
        let key = list.next_element_seed(AtomSeed { kind: key, interner })?.ok_or_else(missing)?;
        let value =
            list.next_element_seed(AtomSeed { kind: value, interner })?.ok_or_else(missing)?;
        end(list)?;
        Ok((key, value))
    }
}
