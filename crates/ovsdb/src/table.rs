//! Typed rows: [`Table`] and the macro [`table!`](crate::table!) that implements it.

use crate::condition::Condition;
use crate::datum::Expected;
use crate::request::{ColumnRequest, TableRequest};
use crate::row::Row;

/// A column of a typed table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TypedColumn {
    /// The column's name.
    pub name: &'static str,
    /// The column types that the field's type accepts.
    pub expected: Expected,
    /// A server without the column is accepted.
    pub is_optional: bool,
}

/// A Rust struct for the rows of a table. Implement it with [`table!`](crate::table!).
pub trait Table: Sized {
    /// The table's name.
    const NAME: &'static str;
    /// A column for each field.
    const COLUMNS: &'static [TypedColumn];

    /// Converts a row; `None` if a column is missing or has another type. That cannot happen for
    /// rows that were requested with [`request`](Self::request).
    fn from_row(row: &Row) -> Option<Self>;

    /// The request for the columns of this type, and for all rows.
    fn request() -> TableRequest {
        let column = |column: &TypedColumn| ColumnRequest {
            name: column.name.into(),
            expected: Some(column.expected),
            is_optional: column.is_optional,
        };
        TableRequest {
            name: Self::NAME.into(),
            columns: Some(Self::COLUMNS.iter().map(column).collect()),
            is_optional: false,
            condition: Condition::all(),
            indexes: Vec::new(),
        }
    }
}

/// Declares a struct for the rows of a table, and names each column once.
///
/// A field's type is any [`FromDatum`](crate::FromDatum). When a server's schema has another type
/// for a column, the session refuses the server and names table and column. A column marked
/// `or default` may be missing in the schema; the field then has its type's default.
///
/// ```
/// use ovsdb::{Table, Uuid};
/// use std::collections::BTreeMap;
///
/// ovsdb::table! {
///     /// A port of a logical switch or router.
///     pub struct PortBinding: "Port_Binding" {
///         /// The name of the logical port.
///         pub logical_port: "logical_port" => String,
///         /// `patch`, `localnet` and so on; empty for a VIF.
///         pub kind: "type" => String,
///         pub chassis: "chassis" => Option<Uuid>,
///         pub options: "options" => BTreeMap<String, String>,
///         /// Since OVN 22.06.
///         pub additional_chassis: "additional_chassis" or default => Vec<Uuid>,
///     }
/// }
///
/// let request = PortBinding::request().index("name", &["logical_port"]);
/// assert_eq!(&*request.name, "Port_Binding");
/// assert_eq!(PortBinding::COLUMNS[1].name, "type");
/// assert!(PortBinding::COLUMNS[4].is_optional);
/// ```
#[macro_export]
macro_rules! table {
    ($(#[$meta:meta])* $vis:vis struct $name:ident: $table:literal {
        $(
            $(#[$field_meta:meta])* $field_vis:vis $field:ident:
                $column:literal $(or $optional:ident)? => $type:ty
        ),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Debug)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type,)+
        }

        impl $crate::Table for $name {
            const NAME: &'static str = $table;
            const COLUMNS: &'static [$crate::TypedColumn] = &[$(
                $crate::TypedColumn {
                    name: $column,
                    expected: <$type as $crate::FromDatum>::EXPECTED,
                    is_optional: $crate::table!(@optional $($optional)?),
                },
            )+];

            fn from_row(row: &$crate::Row) -> ::core::option::Option<Self> {
                let mut position = 0;
                $(
                    let $field = row.value_near::<$type>(position, $column)?;
                    position += 1;
                )+
                let _ = position;
                ::core::option::Option::Some(Self { $($field,)+ })
            }
        }
    };
    (@optional) => { false };
    (@optional default) => { true };
}
