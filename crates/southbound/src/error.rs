//! Errors of a dump.

use ovsdb::Uuid;
use std::fmt;

/// Why a dump cannot be parsed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SouthboundError {
    /// The text is not JSON, or not objects with `data` and `headings`.
    #[error("not a dump of a database: {0}")]
    NotADump(String),
    /// The dump has no known table: it may be of another database.
    #[error("the dump has no table of the OVN_Southbound database")]
    NoTable,
    /// A required column is missing.
    #[error("table {table}: the column `{column}` is missing")]
    NoColumn {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
    },
    /// The number of cells of a row differs from the number of headings.
    #[error("table {table}, {row}: expected one cell for each of the {columns} headings")]
    Ragged {
        /// The table.
        table: &'static str,
        /// The row.
        row: RowName,
        /// The number of headings.
        columns: usize,
    },
    /// The value of a column has the wrong type or range.
    #[error("table {table}, {row}, column `{column}`: {problem}")]
    Value {
        /// The table.
        table: &'static str,
        /// The row.
        row: RowName,
        /// The column.
        column: &'static str,
        /// The problem.
        problem: SouthboundProblem,
    },
}

/// The problem with a value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected {expected}, not {found}")]
pub struct SouthboundProblem {
    /// A description of valid values.
    pub expected: &'static str,
    /// The value found.
    pub found: String,
}

/// A row in an error message: by its UUID, or by its number if that is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowName {
    /// The row with this UUID.
    Uuid(Uuid),
    /// The row with this number, from 1.
    Number(usize),
}

impl fmt::Display for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(uuid) => write!(f, "row {uuid}"),
            Self::Number(number) => write!(f, "row number {number}"),
        }
    }
}
