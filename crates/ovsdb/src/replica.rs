//! [`Replica`]: the rows of the requested tables, in the state after the last transaction of the
//! server that has arrived completely.

use crate::datum::Datum;
use crate::layout::{Layouts, TableLayout};
use crate::request::{IndexRequest, TableRequest};
use crate::row::Row;
use crate::table::Table;
use crate::update::{RowUpdate, StagedRow};
use crate::uuid::Uuid;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

mod index;

pub use index::IndexView;
use index::TableIndex;

/// A change of one row.
#[derive(Clone, PartialEq, Debug)]
pub struct RowChange {
    /// The row before; `None` if it is new.
    pub old: Option<Arc<Row>>,
    /// The row after; `None` if it is gone.
    pub new: Option<Arc<Row>>,
}

impl RowChange {
    /// The new row, or the old one if it is gone.
    pub fn row(&self) -> Option<&Arc<Row>> {
        self.new.as_ref().or(self.old.as_ref())
    }

    /// The table's name.
    pub fn table(&self) -> &str {
        self.row().map_or("", |row| row.table())
    }

    /// The row's UUID.
    pub fn uuid(&self) -> Uuid {
        self.row().map_or(Uuid::NIL, |row| row.uuid())
    }

    /// The old and new row as a typed row, if the change is of its table.
    pub fn typed<T: Table>(&self) -> Option<(Option<T>, Option<T>)> {
        if self.table() != T::NAME {
            return None;
        }
        let convert = |row: &Option<Arc<Row>>| row.as_deref().and_then(T::from_row);
        Some((convert(&self.old), convert(&self.new)))
    }
}

/// Why a table update does not fit the replica.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplicaError {
    /// A difference for a row that the replica does not have.
    #[error("the server modified row {uuid} of {table}, which the replica lacks")]
    UnknownRow {
        /// The table.
        table: Arc<str>,
        /// The row.
        uuid: Uuid,
    },
    /// The replica is full.
    #[error("the replica would exceed {limit} rows (limit rows)")]
    TooManyRows {
        /// The limit.
        limit: usize,
    },
}

/// The rows of the requested tables.
#[derive(Debug, Default)]
pub struct Replica {
    tables: Vec<TableRows>,
    by_name: HashMap<Arc<str>, usize>,
    rows: usize,
    limit: usize,
}

#[derive(Debug)]
struct TableRows {
    layout: Option<Arc<TableLayout>>,
    rows: HashMap<Uuid, Arc<Row>>,
    index_requests: Vec<IndexRequest>,
    indexes: Vec<TableIndex>,
}

impl Replica {
    /// An empty replica of these tables with at most `limit` rows.
    pub(crate) fn new(requests: &[TableRequest], limit: usize) -> Self {
        let tables = requests.iter().map(TableRows::new).collect();
        let names = requests.iter().map(|request| Arc::clone(&request.name));
        let by_name = names.zip(0..).collect();
        Self { tables, by_name, rows: 0, limit }
    }

    /// The number of rows of all tables.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// True if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// A table; `None` if it was not requested.
    pub fn table(&self, name: &str) -> Option<TableView<'_>> {
        let table = self.tables.get(*self.by_name.get(name)?)?;
        Some(TableView { table })
    }

    /// All requested tables.
    pub fn tables(&self) -> impl Iterator<Item = TableView<'_>> {
        self.tables.iter().map(|table| TableView { table })
    }

    /// A row.
    pub fn row(&self, table: &str, uuid: Uuid) -> Option<&Arc<Row>> {
        self.tables.get(*self.by_name.get(table)?)?.rows.get(&uuid)
    }

    /// A typed row; `None` if there is no such row.
    pub fn get<T: Table>(&self, uuid: Uuid) -> Option<T> {
        T::from_row(self.row(T::NAME, uuid)?)
    }

    /// All rows of a typed table, with their UUIDs.
    pub fn rows<T: Table>(&self) -> impl Iterator<Item = (Uuid, T)> {
        let rows = self.table(T::NAME).into_iter().flat_map(|table| table.rows());
        rows.filter_map(|row| Some((row.uuid(), T::from_row(row)?)))
    }

    /// The rows that a column of references names. References to rows that are not replicated are
    /// left out.
    pub fn referenced<'a>(
        &'a self,
        row: &'a Row,
        column: &str,
    ) -> impl Iterator<Item = &'a Arc<Row>> + 'a {
        let found = row.layout().position(column);
        let ty = found.and_then(|at| row.layout().columns().get(at)).map(|column| &column.ty);
        let value = found.and_then(|at| row.values().get(at));
        let table = |base: Option<&crate::schema::BaseType>| {
            let name = &base?.reference.as_ref()?.table;
            self.tables.get(*self.by_name.get(name)?)
        };
        let keys = table(ty.map(|ty| &ty.key));
        let values = table(ty.and_then(|ty| ty.value.as_ref()));
        let atoms = value.map(Datum::atoms).unwrap_or_default().iter();
        let pairs = value.map(Datum::pairs).unwrap_or_default().iter();
        let atoms = atoms
            .map(move |atom| (keys, atom))
            .chain(pairs.flat_map(move |(key, value)| [(keys, key), (values, value)]));
        atoms.filter_map(|(table, atom)| match (table, atom) {
            (Some(table), crate::datum::Atom::Uuid(uuid)) => table.rows.get(uuid),
            _ => None,
        })
    }

    /// True if the rows have these layouts, after a complete update.
    pub(crate) fn has_layouts(&self, layouts: &Layouts) -> bool {
        self.tables.len() == layouts.len()
            && self
                .tables
                .iter()
                .zip(layouts.iter())
                .all(|(table, layout)| table.layout.as_ref().is_some_and(|own| **own == **layout))
    }

    /// Replaces all rows by those of a dump. Equal rows stay, and are not reported as changes.
    pub(crate) fn replace(
        &mut self,
        layouts: &Layouts,
        rows: Vec<StagedRow>,
    ) -> Result<Vec<RowChange>, ReplicaError> {
        if rows.len() > self.limit {
            return Err(ReplicaError::TooManyRows { limit: self.limit });
        }
        let mut old: Vec<_> = self
            .tables
            .iter_mut()
            .zip(layouts.iter())
            .map(|(table, layout)| table.reset(layout))
            .collect();
        self.rows = 0;
        let mut changes = Vec::new();
        for StagedRow { table: at, uuid, change } in rows {
            let RowUpdate::Put(values) = change else { continue };
            let Some(table) = self.tables.get_mut(at) else { continue };
            let Some(layout) = table.layout.clone() else { continue };
            let old = old.get_mut(at).and_then(|rows| rows.remove(&uuid));
            if let Some(same) =
                old.as_ref().filter(|old| old.has_layout(&layout) && old.values() == &*values)
            {
                self.rows += usize::from(table.put(Arc::clone(same)).is_none());
                continue;
            }
            let new = Arc::new(Row::new(layout, uuid, values));
            let twice = table.put(Arc::clone(&new));
            self.rows += usize::from(twice.is_none());
            changes.push(RowChange { old: old.or(twice), new: Some(new) });
        }
        for (_, row) in old.into_iter().flatten() {
            changes.push(RowChange { old: Some(row), new: None });
        }
        Ok(changes)
    }

    /// Applies a table update. Returns the changes; with an error, those before it.
    pub(crate) fn apply(&mut self, rows: Vec<StagedRow>) -> (Vec<RowChange>, Option<ReplicaError>) {
        let mut changes = Vec::with_capacity(rows.len());
        for StagedRow { table: at, uuid, change } in rows {
            let Some(table) = self.tables.get_mut(at) else { continue };
            let Some(layout) = table.layout.clone() else { continue };
            let values = match change {
                RowUpdate::Delete => {
                    if let Some(old) = table.remove(uuid) {
                        self.rows -= 1;
                        changes.push(RowChange { old: Some(old), new: None });
                    }
                    continue;
                }
                RowUpdate::Put(values) => values,
                RowUpdate::Modify(differences) => match table.rows.get(&uuid) {
                    Some(row) => modified(row, &layout, differences),
                    None => {
                        let table = Arc::clone(layout.name());
                        return (changes, Some(ReplicaError::UnknownRow { table, uuid }));
                    }
                },
            };
            let new = Arc::new(Row::new(layout, uuid, values));
            let old = table.put(Arc::clone(&new));
            self.rows += usize::from(old.is_none());
            if old.as_ref() != Some(&new) {
                changes.push(RowChange { old, new: Some(new) });
            }
            if self.rows > self.limit {
                return (changes, Some(ReplicaError::TooManyRows { limit: self.limit }));
            }
        }
        (changes, None)
    }
}

/// The values of a row after differences.
fn modified(row: &Row, layout: &TableLayout, differences: Vec<(usize, Datum)>) -> Box<[Datum]> {
    let mut values: Box<[Datum]> = row.values().into();
    for (at, difference) in differences {
        if let (Some(slot), Some(column)) = (values.get_mut(at), layout.columns().get(at)) {
            *slot = slot.apply_difference(difference, &column.ty);
        }
    }
    values
}

impl TableRows {
    fn new(request: &TableRequest) -> Self {
        Self {
            layout: None,
            rows: HashMap::new(),
            index_requests: request.indexes.clone(),
            indexes: Vec::new(),
        }
    }

    /// Takes out all rows and installs a layout.
    fn reset(&mut self, layout: &Arc<TableLayout>) -> HashMap<Uuid, Arc<Row>> {
        if self.layout.as_ref().is_none_or(|own| **own != **layout) {
            self.layout = Some(Arc::clone(layout));
        }
        self.indexes =
            self.index_requests.iter().map(|request| TableIndex::new(request, layout)).collect();
        std::mem::take(&mut self.rows)
    }

    fn put(&mut self, row: Arc<Row>) -> Option<Arc<Row>> {
        let old = match self.rows.entry(row.uuid()) {
            Entry::Occupied(mut entry) => Some(entry.insert(Arc::clone(&row))),
            Entry::Vacant(entry) => {
                entry.insert(Arc::clone(&row));
                None
            }
        };
        for index in &mut self.indexes {
            if let Some(old) = &old {
                index.remove(old);
            }
            index.insert(&row);
        }
        old
    }

    fn remove(&mut self, uuid: Uuid) -> Option<Arc<Row>> {
        let old = self.rows.remove(&uuid)?;
        for index in &mut self.indexes {
            index.remove(&old);
        }
        Some(old)
    }
}

/// A table of the replica.
#[derive(Clone, Copy, Debug)]
pub struct TableView<'a> {
    table: &'a TableRows,
}

impl<'a> TableView<'a> {
    /// The columns; `None` before the first complete update.
    pub fn layout(self) -> Option<&'a TableLayout> {
        self.table.layout.as_deref()
    }

    /// The number of rows.
    pub fn len(self) -> usize {
        self.table.rows.len()
    }

    /// True if there are no rows.
    pub fn is_empty(self) -> bool {
        self.table.rows.is_empty()
    }

    /// A row.
    pub fn get(self, uuid: Uuid) -> Option<&'a Arc<Row>> {
        self.table.rows.get(&uuid)
    }

    /// All rows, in no particular order.
    pub fn rows(self) -> impl Iterator<Item = &'a Arc<Row>> + use<'a> {
        self.table.rows.values()
    }

    /// An index that was requested; `None` if there is none of this name.
    pub fn index(self, name: &str) -> Option<IndexView<'a>> {
        let at = self.table.index_requests.iter().position(|request| &*request.name == name)?;
        Some(IndexView::new(self.table.indexes.get(at), &self.table.rows))
    }
}

#[cfg(test)]
mod tests;
