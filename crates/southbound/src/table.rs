//! What is known of a table, and how its rows are read.

use super::cell::{Cell, Value};
use super::error::{RowName, SouthboundError};
use super::uuid::Uuid;

/// A column that is read.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// False when a dump may lack it.
    pub required: bool,
}

/// A type of row.
pub trait Row: Sized {
    /// The name of the table.
    const TABLE: &'static str;
    /// The columns that are read, `_uuid` first.
    const COLUMNS: &'static [Column];
    /// Columns of OVN 23.03 that are not read; with the others they tell which table it is when nothing else does.
    const OTHERS: &'static [&'static str];

    /// Reads the cells, one for each of [`Row::COLUMNS`] and in that order.
    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, SouthboundError>;
    /// The row's name.
    fn uuid(&self) -> Uuid;
}

/// The cells of a row, to be read one after another.
pub struct Cells<'c, 't> {
    pub table: &'static str,
    pub columns: &'static [Column],
    pub cells: &'c [Cell<'t>],
    pub row: RowName,
    pub at: usize,
}

impl Cells<'_, '_> {
    /// The value of the next column.
    pub fn next<T: Value>(&mut self) -> Result<T, SouthboundError> {
        let at = self.at;
        self.at += 1;
        let (Some(column), Some(cell)) = (self.columns.get(at), self.cells.get(at)) else {
            return Err(SouthboundError::Ragged {
                table: self.table,
                row: self.row,
                columns: self.columns.len(),
            });
        };
        T::read(cell).map_err(|problem| SouthboundError::Value {
            table: self.table,
            row: self.row,
            column: column.name,
            problem,
        })
    }
}

/// Declares types of rows: each field is read from the column named beside it.
macro_rules! rows {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident in $table:literal {
            $($(#[doc = $field_doc:literal])+ $field:ident: $type:ty = $column:literal,)+
        } others [$($other:literal),*];
    )+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $name {
            /// The row's name.
            pub uuid: Uuid,
            $($(#[doc = $field_doc])+ pub $field: $type,)+
        }

        impl Row for $name {
            const TABLE: &'static str = $table;
            const COLUMNS: &'static [Column] = &[
                Column { name: "_uuid", required: true },
                $(Column { name: $column, required: <$type as Value>::REQUIRED },)+
            ];
            const OTHERS: &'static [&'static str] = &[$($other),*];

            fn read(cells: &mut Cells<'_, '_>) -> Result<Self, SouthboundError> {
                Ok(Self { uuid: cells.next()?, $($field: cells.next()?,)+ })
            }

            fn uuid(&self) -> Uuid {
                self.uuid
            }
        }
    )+};
}
pub(super) use rows;
