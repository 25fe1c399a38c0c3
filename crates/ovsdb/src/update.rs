//! Decodes rows of table updates: `update` (RFC 7047 section 4.1.6), `update2` and `update3`
//! (ovsdb-server(7) sections 4.1.14 and 4.1.16).

use crate::datum::{Datum, DatumSeed, Interner};
use crate::layout::TableLayout;
use crate::uuid::Uuid;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The method of a monitor, and with it the form of its table updates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MonitorMethod {
    /// `monitor`, which sends `update`: no conditions.
    Monitor,
    /// `monitor_cond`, which sends `update2`.
    MonitorCond,
    /// `monitor_cond_since`, which sends `update3`.
    MonitorCondSince,
}

impl MonitorMethod {
    /// The name of the request.
    pub const fn request(self) -> &'static str {
        match self {
            Self::Monitor => "monitor",
            Self::MonitorCond => "monitor_cond",
            Self::MonitorCondSince => "monitor_cond_since",
        }
    }

    /// The name of the notification.
    pub const fn notification(self) -> &'static str {
        match self {
            Self::Monitor => "update",
            Self::MonitorCond => "update2",
            Self::MonitorCondSince => "update3",
        }
    }
}

/// Why a row of a table update is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UpdateError {
    /// A table that was not requested.
    #[error("a table update has rows of {table}, which is not monitored")]
    UnknownTable {
        /// The table.
        table: String,
    },
    /// A value does not have its column's type.
    #[error("{table}.{column} of row {uuid}: {problem}")]
    Column {
        /// The table.
        table: Arc<str>,
        /// The column.
        column: Arc<str>,
        /// The row.
        uuid: Uuid,
        /// The problem.
        problem: String,
    },
    /// A row violates the protocol.
    #[error("row {uuid} of {table}: {problem}")]
    Row {
        /// The table.
        table: Arc<str>,
        /// The row.
        uuid: Uuid,
        /// The problem.
        problem: String,
    },
}

/// A decoded row of a table update.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct StagedRow {
    /// The position of the table in the request.
    pub table: usize,
    pub uuid: Uuid,
    pub change: RowUpdate,
}

/// The change of a row.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum RowUpdate {
    /// The row with all its values.
    Put(Box<[Datum]>),
    /// Differences of columns, by position.
    Modify(Vec<(usize, Datum)>),
    /// The row is gone.
    Delete,
}

/// Decodes the value of a row in a table update.
pub(crate) fn decode_row(
    method: MonitorMethod,
    layout: &TableLayout,
    uuid: Uuid,
    text: &[u8],
    interner: &mut Interner,
) -> Result<RowUpdate, UpdateError> {
    let mut decoder = Decoder { method, layout, interner, column: None };
    let mut json = serde_json::Deserializer::from_slice(text);
    let decoded = UpdateSeed(&mut decoder).deserialize(&mut json);
    match decoded.and_then(|update| json.end().map(|()| update)) {
        Ok(update) => Ok(update),
        Err(error) => {
            let (table, problem) = (Arc::clone(layout.name()), error.to_string());
            Err(match decoder.column.and_then(|at| layout.columns().get(at)) {
                Some(column) => {
                    let column = Arc::clone(&column.name);
                    UpdateError::Column { table, column, uuid, problem }
                }
                None => UpdateError::Row { table, uuid, problem },
            })
        }
    }
}

struct Decoder<'a> {
    method: MonitorMethod,
    layout: &'a TableLayout,
    interner: &'a mut Interner,
    /// The column that is being decoded.
    column: Option<usize>,
}

/// Decodes `{"initial": row}`, `{"old": row, "new": row}` and so on.
struct UpdateSeed<'a, 'b>(&'a mut Decoder<'b>);

impl<'de> DeserializeSeed<'de> for UpdateSeed<'_, '_> {
    type Value = RowUpdate;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RowUpdate, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for UpdateSeed<'_, '_> {
    type Value = RowUpdate;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the update of a row")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RowUpdate, A::Error> {
        let mut update = None;
        while let Some(name) = map.next_key_seed(Name)? {
            let is_first = self.0.method == MonitorMethod::Monitor;
            let found = match (name.as_ref(), is_first) {
                ("new", true) | ("initial" | "insert", false) => {
                    RowUpdate::Put(map.next_value_seed(PutSeed(&mut *self.0))?)
                }
                ("modify", false) => {
                    RowUpdate::Modify(map.next_value_seed(ModifySeed(&mut *self.0))?)
                }
                ("old", true) => {
                    map.next_value::<IgnoredAny>()?;
                    if update.is_none() {
                        update = Some(RowUpdate::Delete);
                    }
                    continue;
                }
                ("delete", false) => {
                    map.next_value::<IgnoredAny>()?;
                    RowUpdate::Delete
                }
                _ => {
                    let notification = self.0.method.notification();
                    return Err(de::Error::custom(format_args!(
                        "`{name}` has no meaning in {notification}"
                    )));
                }
            };
            match update {
                None | Some(RowUpdate::Delete) if is_first || update.is_none() => {
                    update = Some(found);
                }
                _ => return Err(de::Error::custom("more than one update of the same row")),
            }
        }
        update.ok_or_else(|| de::Error::custom("the update of a row is empty"))
    }
}

/// Decodes a name; it borrows if it has no escapes.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

impl Decoder<'_> {
    /// Decodes the columns of a row and passes each to `put`. Other columns are ignored.
    fn columns<'de, A: MapAccess<'de>>(
        &mut self,
        mut map: A,
        mut put: impl FnMut(usize, Datum),
    ) -> Result<(), A::Error> {
        while let Some(name) = map.next_key_seed(Name)? {
            let Some(at) = self.layout.position(&name) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let Some(column) = self.layout.columns().get(at) else { continue };
            self.column = Some(at);
            let seed = DatumSeed { ty: &column.ty, interner: &mut *self.interner };
            put(at, map.next_value_seed(seed)?);
            self.column = None;
        }
        Ok(())
    }
}

/// Decodes a complete row. A column that is not in the text has its default.
struct PutSeed<'a, 'b>(&'a mut Decoder<'b>);

impl<'de> DeserializeSeed<'de> for PutSeed<'_, '_> {
    type Value = Box<[Datum]>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for PutSeed<'_, '_> {
    type Value = Box<[Datum]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let mut values: Box<[Datum]> = self.0.layout.defaults().into();
        self.0.columns(map, |at, value| {
            if let Some(slot) = values.get_mut(at) {
                *slot = value;
            }
        })?;
        Ok(values)
    }
}

/// Decodes the differences of a row.
struct ModifySeed<'a, 'b>(&'a mut Decoder<'b>);

impl<'de> DeserializeSeed<'de> for ModifySeed<'_, '_> {
    type Value = Vec<(usize, Datum)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ModifySeed<'_, '_> {
    type Value = Vec<(usize, Datum)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the differences of a row")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let mut differences = Vec::new();
        self.0.columns(map, |at, value| differences.push((at, value)))?;
        Ok(differences)
    }
}
