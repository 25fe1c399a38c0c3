//! The columns of known tables, and the conversion of their rows.

use super::cell::{Cell, Value};
use super::error::{RowName, SouthboundError};
use ovsdb::Uuid;

/// A used column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The name.
    pub name: &'static str,
    /// False if a dump may lack the column.
    pub required: bool,
}

/// A type of row.
pub trait Row: Sized {
    /// The name of the table.
    const TABLE: &'static str;
    /// The used columns, `_uuid` first.
    const COLUMNS: &'static [Column];
    /// Unused columns of OVN 23.03. They help to recognize a table without a caption.
    const OTHERS: &'static [&'static str];

    /// Converts the cells, one for each of [`Row::COLUMNS`] in that order.
    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, SouthboundError>;
    /// The UUID of the row.
    fn uuid(&self) -> Uuid;
}

/// The cells of a row, converted one after another.
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

/// Declares types of rows. Each field is followed by the name of its column.
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
            /// The UUID of the row.
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
