//! [`TableLayout`]: the columns of a replicated table, according to the schema of one server.

use crate::datum::{Datum, Expected};
use crate::request::{ColumnRequest, IndexKeys, TableRequest};
use crate::schema::{ColumnType, Schema, TableSchema};
use serde_json::{Value, json};
use std::sync::Arc;

/// Why a server's schema does not fit the requested tables.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// The server has no such table.
    #[error("the database has no table {table}")]
    NoTable {
        /// The table.
        table: Arc<str>,
    },
    /// The table has no such column.
    #[error("the database has no column {table}.{column}")]
    NoColumn {
        /// The table.
        table: Arc<str>,
        /// The column.
        column: Arc<str>,
    },
    /// The column has another type.
    #[error("the column {table}.{column} is {found}; expected {expected}")]
    Type {
        /// The table.
        table: Arc<str>,
        /// The column.
        column: Arc<str>,
        /// The type requested.
        expected: String,
        /// The type in the schema.
        found: String,
    },
}

/// The columns of a replicated table.
#[derive(Clone, PartialEq, Debug)]
pub struct TableLayout {
    name: Arc<str>,
    is_present: bool,
    columns: Vec<LayoutColumn>,
    defaults: Box<[Datum]>,
}

/// A column of a replicated table.
#[derive(Clone, PartialEq, Debug)]
pub struct LayoutColumn {
    /// The name.
    pub name: Arc<str>,
    /// The type in the server's schema, or the type requested if the server has no such column.
    pub ty: ColumnType,
    /// The server has the column.
    pub is_present: bool,
}

/// The layouts of all requested tables, in the order of the request.
pub(crate) type Layouts = Arc<[Arc<TableLayout>]>;

/// Finds the layouts of requested tables in a schema.
pub(crate) fn resolve(requests: &[TableRequest], schema: &Schema) -> Result<Layouts, LayoutError> {
    requests
        .iter()
        .map(|request| {
            let layout = TableLayout::resolve(request, schema.tables.get(&request.name))?;
            Ok(Arc::new(layout))
        })
        .collect()
}

impl TableLayout {
    /// Finds the columns of a request in the schema of its table.
    ///
    /// # Errors
    /// [`LayoutError`] if a table or column is missing and not optional, or has another type.
    pub fn resolve(
        request: &TableRequest,
        schema: Option<&TableSchema>,
    ) -> Result<Self, LayoutError> {
        if schema.is_none() && !request.is_optional {
            return Err(LayoutError::NoTable { table: Arc::clone(&request.name) });
        }
        let columns = match (&request.columns, schema) {
            (Some(columns), _) => columns
                .iter()
                .map(|column| resolve_column(&request.name, column, schema))
                .collect::<Result<Vec<_>, _>>()?,
            (None, Some(schema)) => schema
                .columns
                .iter()
                .map(|(name, column)| LayoutColumn {
                    name: Arc::clone(name),
                    ty: column.ty.clone(),
                    is_present: true,
                })
                .collect(),
            (None, None) => Vec::new(),
        };
        let defaults = columns.iter().map(|column| column.ty.default_datum()).collect();
        let name = Arc::clone(&request.name);
        let layout = Self { name, is_present: schema.is_some(), columns, defaults };
        layout.check_indexes(request)?;
        Ok(layout)
    }

    fn check_indexes(&self, request: &TableRequest) -> Result<(), LayoutError> {
        if !self.is_present && request.columns.is_none() {
            return Ok(());
        }
        for index in &request.indexes {
            for name in &index.columns {
                let place = || (Arc::clone(&self.name), Arc::clone(name));
                let Some(at) = self.position(name) else {
                    let (table, column) = place();
                    return Err(LayoutError::NoColumn { table, column });
                };
                let ty = self.columns.get(at).map(|column| &column.ty);
                if index.keys == IndexKeys::MapValues && ty.is_some_and(|ty| ty.value.is_none()) {
                    let (table, column) = place();
                    let found = ty.map(ToString::to_string).unwrap_or_default();
                    let expected = "a map".to_owned();
                    return Err(LayoutError::Type { table, column, expected, found });
                }
            }
        }
        Ok(())
    }

    /// The table's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// True if the server has the table.
    pub const fn is_present(&self) -> bool {
        self.is_present
    }

    /// The columns.
    pub fn columns(&self) -> &[LayoutColumn] {
        &self.columns
    }

    /// The position of a column.
    pub fn position(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|candidate| &*candidate.name == column)
    }

    pub(crate) fn defaults(&self) -> &[Datum] {
        &self.defaults
    }

    /// The object of a monitor request, without `where`.
    pub(crate) fn monitor_request(&self) -> Value {
        let present = self.columns.iter().filter(|column| column.is_present);
        json!({ "columns": present.map(|column| &*column.name).collect::<Vec<_>>() })
    }
}

fn resolve_column(
    table: &Arc<str>,
    request: &ColumnRequest,
    schema: Option<&TableSchema>,
) -> Result<LayoutColumn, LayoutError> {
    let name = Arc::clone(&request.name);
    let found = schema.and_then(|schema| schema.columns.get(&name));
    match (found, request.expected) {
        (Some(column), Some(expected)) if !expected.accepts(&column.ty) => Err(LayoutError::Type {
            table: Arc::clone(table),
            column: name,
            expected: expected.to_string(),
            found: column.ty.to_string(),
        }),
        (Some(column), _) => Ok(LayoutColumn { name, ty: column.ty.clone(), is_present: true }),
        (None, expected) if request.is_optional || schema.is_none() => {
            let ty = expected.unwrap_or(Expected::OPTIONAL_STRING).column_type();
            Ok(LayoutColumn { name, ty, is_present: false })
        }
        (None, _) => Err(LayoutError::NoColumn { table: Arc::clone(table), column: name }),
    }
}
