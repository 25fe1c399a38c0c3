//! Indexes of the replica: ordered, with any number of rows for a key.

use crate::datum::{Atom, Datum};
use crate::layout::TableLayout;
use crate::request::{IndexKeys, IndexRequest};
use crate::row::Row;
use crate::uuid::Uuid;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// A key: the values of the index's columns.
type Key = Box<[Datum]>;

/// An index of a table.
#[derive(Debug)]
pub(super) struct TableIndex {
    /// The positions of the columns; empty if the table lacks some of them.
    columns: Vec<usize>,
    keys: IndexKeys,
    entries: BTreeSet<(Key, Uuid)>,
}

impl TableIndex {
    pub fn new(request: &IndexRequest, layout: &TableLayout) -> Self {
        let columns: Option<Vec<_>> =
            request.columns.iter().map(|column| layout.position(column)).collect();
        let columns = columns.unwrap_or_default();
        Self { columns, keys: request.keys, entries: BTreeSet::new() }
    }

    pub fn insert(&mut self, row: &Row) {
        for key in self.keys_of(row) {
            self.entries.insert((key, row.uuid()));
        }
    }

    pub fn remove(&mut self, row: &Row) {
        for key in self.keys_of(row) {
            self.entries.remove(&(key, row.uuid()));
        }
    }

    fn keys_of(&self, row: &Row) -> Vec<Key> {
        let value = |at: &usize| row.values().get(*at);
        let single = |atom: &Atom| -> Key { Box::new([Datum::Scalar(atom.clone())]) };
        let first = self.columns.first().and_then(value);
        match self.keys {
            IndexKeys::Values if self.columns.is_empty() => Vec::new(),
            IndexKeys::Values => {
                vec![self.columns.iter().filter_map(value).cloned().collect()]
            }
            IndexKeys::Elements => {
                let first = first.map(|datum| (datum.atoms(), datum.pairs())).unwrap_or_default();
                first.0.iter().chain(first.1.iter().map(|(key, _)| key)).map(single).collect()
            }
            IndexKeys::MapValues => {
                let pairs = first.map(Datum::pairs).unwrap_or_default();
                pairs.iter().map(|(_, value)| single(value)).collect()
            }
        }
    }
}

/// An index, for lookups.
#[derive(Clone, Copy, Debug)]
pub struct IndexView<'a> {
    index: Option<&'a TableIndex>,
    rows: &'a HashMap<Uuid, Arc<Row>>,
}

impl<'a> IndexView<'a> {
    pub(super) const fn new(
        index: Option<&'a TableIndex>,
        rows: &'a HashMap<Uuid, Arc<Row>>,
    ) -> Self {
        Self { index, rows }
    }

    /// The rows whose key is `key`: a value for each column of the index, by UUID.
    pub fn find(self, key: &[Datum]) -> impl Iterator<Item = &'a Arc<Row>> + use<'a> {
        let from = Bound::Included((Key::from(key), Uuid::NIL));
        let to = Bound::Included((Key::from(key), Uuid::MAX));
        self.range(from, to)
    }

    /// The rows of an index of one column whose key is this atom.
    pub fn find_atom(self, atom: Atom) -> impl Iterator<Item = &'a Arc<Row>> + use<'a> {
        self.find(&[Datum::Scalar(atom)])
    }

    /// All rows, ordered by key. A row with several keys occurs several times.
    pub fn rows(self) -> impl Iterator<Item = &'a Arc<Row>> + use<'a> {
        self.range(Bound::Unbounded, Bound::Unbounded)
    }

    /// The rows whose keys are from `from` to `to`, both included, ordered by key.
    pub fn between(
        self,
        from: &[Datum],
        to: &[Datum],
    ) -> impl Iterator<Item = &'a Arc<Row>> + use<'a> {
        // The standard library panics on a range that ends before it begins.
        let index = self.index.filter(|_| from <= to);
        let range = Self { index, ..self };
        range.range(
            Bound::Included((Key::from(from), Uuid::NIL)),
            Bound::Included((Key::from(to), Uuid::MAX)),
        )
    }

    fn range(
        self,
        from: Bound<(Key, Uuid)>,
        to: Bound<(Key, Uuid)>,
    ) -> impl Iterator<Item = &'a Arc<Row>> + use<'a> {
        let entries = self.index.map(|index| index.entries.range((from, to)));
        entries.into_iter().flatten().filter_map(|(_, uuid)| self.rows.get(uuid))
    }
}
