//! [`TableRequest`]: the columns, rows and indexes of a table that a client wants to replicate.

use crate::condition::Condition;
use crate::datum::Expected;
use std::sync::Arc;

/// A table to replicate.
#[derive(Clone, PartialEq, Debug)]
pub struct TableRequest {
    /// The table's name.
    pub name: Arc<str>,
    /// The columns; `None` for all columns of the server's schema.
    pub columns: Option<Vec<ColumnRequest>>,
    /// A server without the table is accepted. The table is then empty.
    pub is_optional: bool,
    /// The rows to replicate.
    pub condition: Condition,
    /// The indexes of the replica.
    pub indexes: Vec<IndexRequest>,
}

/// A column to replicate.
#[derive(Clone, PartialEq, Debug)]
pub struct ColumnRequest {
    /// The column's name.
    pub name: Arc<str>,
    /// The type that the client can handle; `None` for any type.
    pub expected: Option<Expected>,
    /// A server without the column is accepted. All rows then have the default value.
    pub is_optional: bool,
}

/// An index of the replica. Several rows may have equal keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexRequest {
    /// The index's name, unique in the table.
    pub name: Arc<str>,
    /// The columns of the key.
    pub columns: Vec<Arc<str>>,
    /// How values become keys.
    pub keys: IndexKeys,
}

/// How the values of a row become keys of an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexKeys {
    /// One key: the whole values of all columns.
    Values,
    /// A key for each element of a set or each key of a map. The index has one column.
    Elements,
    /// A key for each value of a map. The index has one column.
    MapValues,
}

impl TableRequest {
    /// All rows and columns of a table.
    pub fn all_columns(name: &str) -> Self {
        Self {
            name: name.into(),
            columns: None,
            is_optional: false,
            condition: Condition::all(),
            indexes: Vec::new(),
        }
    }

    /// All rows with these columns, which may have any type.
    pub fn with_columns(name: &str, columns: &[&str]) -> Self {
        let column = |name: &&str| ColumnRequest {
            name: (*name).into(),
            expected: None,
            is_optional: false,
        };
        Self { columns: Some(columns.iter().map(column).collect()), ..Self::all_columns(name) }
    }

    /// Accepts a server without the table.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.is_optional = true;
        self
    }

    /// Replicates only matching rows.
    #[must_use]
    pub fn matching(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }

    /// Adds an index over the whole values of columns.
    #[must_use]
    pub fn index(self, name: &str, columns: &[&str]) -> Self {
        self.add_index(name, columns, IndexKeys::Values)
    }

    /// Adds an index over the elements of a set, or over the keys of a map. With a column of
    /// references it finds the rows that refer to a row.
    #[must_use]
    pub fn index_elements(self, name: &str, column: &str) -> Self {
        self.add_index(name, &[column], IndexKeys::Elements)
    }

    /// Adds an index over the values of a map.
    #[must_use]
    pub fn index_map_values(self, name: &str, column: &str) -> Self {
        self.add_index(name, &[column], IndexKeys::MapValues)
    }

    fn add_index(mut self, name: &str, columns: &[&str], keys: IndexKeys) -> Self {
        let columns = columns.iter().map(|&column| column.into()).collect();
        self.indexes.push(IndexRequest { name: name.into(), columns, keys });
        self
    }
}
