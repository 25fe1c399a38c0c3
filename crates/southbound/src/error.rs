//! What is wrong with a dump, and where.

use super::uuid::Uuid;
use std::fmt;

/// Why a dump cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SouthboundError {
    /// The text is not JSON, or not objects with `data` and `headings`.
    #[error("not a dump of a database: {0}")]
    NotADump(String),
    /// There is nothing in it that could be read: perhaps it is another database's.
    #[error("no table of the OVN_Southbound database is in it")]
    NoTable,
    /// A column that is needed is not in the dump.
    #[error("table {table}: the column `{column}` is missing")]
    NoColumn {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
    },
    /// A row has not as many cells as there are headings.
    #[error("table {table}, {row}: has not one cell for each of the {columns} headings")]
    Ragged {
        /// The table.
        table: &'static str,
        /// The row.
        row: RowName,
        /// Headings.
        columns: usize,
    },
    /// The value of a column is not what it should be.
    #[error("table {table}, {row}, column `{column}`: {problem}")]
    Value {
        /// The table.
        table: &'static str,
        /// The row.
        row: RowName,
        /// The column.
        column: &'static str,
        /// What is wrong.
        problem: SouthboundProblem,
    },
}

/// What is wrong with a value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected {expected}, not {found}")]
pub struct SouthboundProblem {
    /// What would be right.
    pub expected: &'static str,
    /// What is there.
    pub found: String,
}

/// Which row: by its UUID, or by its number when that is not known.
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
