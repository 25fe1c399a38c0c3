//! [`Cell`]: a value in the notation of RFC 7047 section 5.1, and its conversion to the type of a
//! column.

use super::error::SouthboundProblem;
use flow::{DatapathKey, PortKey};
use ovsdb::Uuid;
use pipeline::Direction;
use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use wire::MacAddr;

/// A parsed value. Its strings borrow from the text unless they contain escapes.
#[derive(Clone, PartialEq, Debug)]
pub enum Cell<'t> {
    /// A string.
    Text(Cow<'t, str>),
    /// An integer.
    Integer(i64),
    /// A boolean.
    Boolean(bool),
    /// `["uuid", "..."]`.
    Uuid(Uuid),
    /// `["set", [...]]`; a set of one is written as its element.
    Set(Vec<Cell<'t>>),
    /// `["map", [[key, value], ...]]`.
    Map(Vec<(Cell<'t>, Cell<'t>)>),
    /// Anything else.
    Malformed(String),
}

impl Cell<'_> {
    /// The value of a column that the text does not have.
    pub const ABSENT: Self = Self::Set(Vec::new());

    fn describe(&self) -> String {
        /// The number of characters of a string to show.
        const SHOWN: usize = 60;
        match self {
            Self::Text(text) => match text.char_indices().nth(SHOWN) {
                Some((end, _)) => format!("\"{}...\"", &text[..end]),
                None => format!("\"{text}\""),
            },
            Self::Integer(number) => number.to_string(),
            Self::Boolean(value) => value.to_string(),
            Self::Uuid(uuid) => format!("the UUID {uuid}"),
            Self::Set(elements) if elements.is_empty() => "nothing".to_owned(),
            Self::Set(elements) => format!("a set of {}", elements.len()),
            Self::Map(_) => "a map".to_owned(),
            Self::Malformed(what) => what.clone(),
        }
    }
}

impl<'de> Deserialize<'de> for Cell<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CellVisitor)
    }
}

struct CellVisitor;

impl<'de> Visitor<'de> for CellVisitor {
    type Value = Cell<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value in the notation of RFC 7047")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cell::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cell::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Cell::Integer(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(i64::try_from(number)
            .map_or_else(|_| Cell::Malformed(format!("the number {number}")), Cell::Integer))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Cell::Malformed(format!("the number {number}")))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Cell::Boolean(value))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Cell::Malformed("null".to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Cell::Malformed("a JSON object".to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let tag = match list.next_element::<Cell<'de>>()? {
            Some(Cell::Text(tag)) => tag,
            _ => Cow::Borrowed(""),
        };
        let cell = match tag.as_ref() {
            "uuid" => list.next_element::<Cell<'de>>()?.map(uuid),
            "set" => list.next_element::<List<Cell<'de>>>()?.map(set),
            "map" => list.next_element::<List<List<Cell<'de>>>>()?.map(map),
            _ => None,
        };
        let mut is_longer = false;
        while list.next_element::<IgnoredAny>()?.is_some() {
            is_longer = true;
        }
        Ok(cell.filter(|_| !is_longer).unwrap_or_else(|| malformed("a list")))
    }
}

fn uuid(cell: Cell<'_>) -> Cell<'_> {
    match &cell {
        Cell::Text(text) => text.parse().map_or_else(|_| malformed("a UUID"), Cell::Uuid),
        _ => malformed("a UUID"),
    }
}

fn set(list: List<Cell<'_>>) -> Cell<'_> {
    list.0.map_or_else(|| malformed("a set"), Cell::Set)
}

fn map(list: List<List<Cell<'_>>>) -> Cell<'_> {
    let pair = |pair: List<_>| {
        let mut pair = pair.0?.into_iter();
        let (key, value) = (pair.next()?, pair.next()?);
        pair.next().is_none().then_some((key, value))
    };
    let pairs = list.0.and_then(|pairs| pairs.into_iter().map(pair).collect());
    pairs.map_or_else(|| malformed("a map"), Cell::Map)
}

fn malformed(what: &str) -> Cell<'static> {
    Cell::Malformed(format!("{what} that is not in the notation of RFC 7047"))
}

/// A JSON array; `None` for any other value.
struct List<T>(Option<Vec<T>>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = list.next_element()? {
            elements.push(element);
        }
        Ok(List(Some(elements)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(List(None))
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(List(None))
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(List(None))
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(List(None))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(List(None))
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(List(None))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(List(None))
    }
}

/// The type of a column.
pub trait Value: Sized {
    /// A description of valid cells, for errors.
    const EXPECTED: &'static str;
    /// True if a dump must have the column because there is no default.
    const REQUIRED: bool = true;

    /// The value of a cell; `None` if it has another type.
    fn of(cell: &Cell<'_>) -> Option<Self>;

    /// The value of a cell.
    fn read(cell: &Cell<'_>) -> Result<Self, SouthboundProblem> {
        Self::of(cell)
            .ok_or_else(|| SouthboundProblem { expected: Self::EXPECTED, found: cell.describe() })
    }
}

/// Values that are written as strings.
macro_rules! from_text {
    ($($type:ty: $expected:literal, $parse:expr;)+) => {$(
        impl Value for $type {
            const EXPECTED: &'static str = $expected;

            fn of(cell: &Cell<'_>) -> Option<Self> {
                let Cell::Text(text) = cell else { return None };
                let parse: fn(&str) -> Option<Self> = $parse;
                parse(text)
            }
        }
    )+};
}
from_text! {
    String: "a string", |text| Some(text.to_owned());
    MacAddr: "a MAC address", |text| text.parse().ok();
    IpAddr: "an IP address", |text| text.parse().ok();
    Direction: "\"ingress\" or \"egress\"", |text| match text {
        "ingress" => Some(Direction::Ingress),
        "egress" => Some(Direction::Egress),
        _ => None,
    };
}

/// Values that are written as numbers.
macro_rules! from_integer {
    ($($type:ty: $expected:literal, $convert:expr;)+) => {$(
        impl Value for $type {
            const EXPECTED: &'static str = $expected;

            fn of(cell: &Cell<'_>) -> Option<Self> {
                let Cell::Integer(number) = cell else { return None };
                let convert: fn(i64) -> Option<Self> = $convert;
                convert(*number)
            }
        }
    )+};
}
from_integer! {
    u8: "a number from 0 to 255", |number| number.try_into().ok();
    u16: "a number from 0 to 65535", |number| number.try_into().ok();
    DatapathKey: "a number from 1 to 16777215", |number| {
        let key = u32::try_from(number).ok()?;
        (1..=0xff_ffff).contains(&key).then_some(DatapathKey(key))
    };
    PortKey: "a number from 1 to 65535", |number| PortKey::new(number.try_into().ok()?);
}

impl Value for bool {
    const EXPECTED: &'static str = "true or false";

    fn of(cell: &Cell<'_>) -> Option<Self> {
        if let Cell::Boolean(value) = cell { Some(*value) } else { None }
    }
}

impl Value for Uuid {
    const EXPECTED: &'static str = "a UUID";

    fn of(cell: &Cell<'_>) -> Option<Self> {
        if let Cell::Uuid(uuid) = cell { Some(*uuid) } else { None }
    }
}

/// A set of at most one element.
impl<T: Value> Value for Option<T> {
    const EXPECTED: &'static str = T::EXPECTED;
    const REQUIRED: bool = false;

    fn of(cell: &Cell<'_>) -> Option<Self> {
        match cell {
            Cell::Set(elements) => match elements.as_slice() {
                [] => Some(None),
                [element] => T::of(element).map(Some),
                _ => None,
            },
            _ => T::of(cell).map(Some),
        }
    }
}

/// A set.
impl<T: Value> Value for Vec<T> {
    const EXPECTED: &'static str = T::EXPECTED;
    const REQUIRED: bool = false;

    fn of(cell: &Cell<'_>) -> Option<Self> {
        match cell {
            Cell::Set(elements) => elements.iter().map(T::of).collect(),
            _ => T::of(cell).map(|element| vec![element]),
        }
    }
}
