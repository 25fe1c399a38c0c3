//! [`Row`]: a row of the replica. Rows never change; a modified row is a new value.

use crate::datum::{Datum, FromDatum};
use crate::layout::TableLayout;
use crate::uuid::Uuid;
use std::fmt;
use std::sync::Arc;

/// A row of a table.
pub struct Row {
    layout: Arc<TableLayout>,
    uuid: Uuid,
    values: Box<[Datum]>,
}

impl Row {
    pub(crate) fn new(layout: Arc<TableLayout>, uuid: Uuid, values: Box<[Datum]>) -> Self {
        Self { layout, uuid, values }
    }

    /// The table's name.
    pub fn table(&self) -> &Arc<str> {
        self.layout.name()
    }

    /// The columns.
    pub fn layout(&self) -> &TableLayout {
        &self.layout
    }

    /// The row's UUID.
    pub const fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The values, in the order of the layout's columns.
    pub fn values(&self) -> &[Datum] {
        &self.values
    }

    /// The value of a column; `None` if the column is not replicated.
    pub fn get(&self, column: &str) -> Option<&Datum> {
        self.values.get(self.layout.position(column)?)
    }

    /// The value of a column, converted; `None` if it is not replicated or has another type.
    pub fn value<T: FromDatum>(&self, column: &str) -> Option<T> {
        T::from_datum(self.get(column)?)
    }

    /// As [`value`](Self::value); `position` is the probable position of the column.
    pub fn value_near<T: FromDatum>(&self, position: usize, column: &str) -> Option<T> {
        match self.layout.columns().get(position) {
            Some(candidate) if &*candidate.name == column => {
                T::from_datum(self.values.get(position)?)
            }
            _ => self.value(column),
        }
    }

    /// Names and values of all columns.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Datum)> {
        self.layout.columns().iter().map(|column| &column.name).zip(&self.values)
    }

    /// The names of the columns in which this row and `other` differ.
    pub fn changed_columns<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a Arc<str>> {
        self.iter().filter(|(name, value)| other.get(name) != Some(*value)).map(|(name, _)| name)
    }

    pub(crate) fn has_layout(&self, layout: &Arc<TableLayout>) -> bool {
        Arc::ptr_eq(&self.layout, layout)
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.table(), self.uuid)?;
        f.debug_map()
            .entries(self.iter().map(|(name, value)| (name, value.to_json().to_string())))
            .finish()
    }
}

impl PartialEq for Row {
    /// Rows are equal if tables, UUIDs, columns and values are.
    fn eq(&self, other: &Self) -> bool {
        self.uuid == other.uuid
            && self.values == other.values
            && (Arc::ptr_eq(&self.layout, &other.layout) || self.layout == other.layout)
    }
}
