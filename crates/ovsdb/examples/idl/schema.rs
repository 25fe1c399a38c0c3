//! The tables of the test suite's schema that `test-ovsdb idl` prints.

use ovsdb::datum::{Cardinality, Expected};
use ovsdb::schema::AtomKind;
use ovsdb::{ColumnRequest, TableRequest};

use AtomKind::{Boolean, Integer, Real, String, Uuid};
use Cardinality::{Many, One, Optional};

type Column = (&'static str, AtomKind, Cardinality);

/// A table and its columns, in alphabetical order.
pub const TABLES: [(&str, &[Column]); 8] = [
    (
        "simple",
        &[
            ("b", Boolean, One),
            ("ba", Boolean, Many),
            ("i", Integer, One),
            ("ia", Integer, Many),
            ("r", Real, One),
            ("ra", Real, Many),
            ("s", String, One),
            ("sa", String, Many),
            ("u", Uuid, One),
            ("ua", Uuid, Many),
        ],
    ),
    (
        "link1",
        &[("i", Integer, One), ("k", Uuid, Optional), ("ka", Uuid, Many), ("l2", Uuid, Optional)],
    ),
    ("link2", &[("i", Integer, One), ("l1", Uuid, Optional)]),
    ("simple3", &[("name", String, One), ("uref", Uuid, Many), ("uset", Uuid, Many)]),
    ("simple4", &[("name", String, One)]),
    ("simple6", &[("name", String, One), ("weak_ref", Uuid, Many)]),
    ("indexed", &[("i", Integer, One)]),
    ("singleton", &[("name", String, One)]),
];

/// The requests for all tables. A server may lack tables and columns.
pub fn requests() -> Vec<TableRequest> {
    let column = |&(name, key, cardinality): &Column| ColumnRequest {
        name: name.into(),
        // The scalar columns `k` of old schemas are not optional.
        expected: Some(Expected { key, value: None, cardinality }),
        is_optional: true,
    };
    TABLES
        .iter()
        .map(|(name, columns)| TableRequest {
            columns: Some(columns.iter().map(column).collect()),
            is_optional: true,
            ..TableRequest::all_columns(name)
        })
        .collect()
}

/// The type of a column's elements.
pub fn kind(table: &str, column: &str) -> Option<AtomKind> {
    let (_, columns) = TABLES.iter().find(|(name, _)| *name == table)?;
    columns.iter().find(|(name, ..)| *name == column).map(|&(_, kind, _)| kind)
}
