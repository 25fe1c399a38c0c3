//! Prints rows as `test-ovsdb idl` does.

use crate::schema::TABLES;
use ovsdb::{Atom, Replica, Row, RowChange, Uuid};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All rows, with their changes since the last print.
pub fn rows(replica: &Replica, changes: &[RowChange], is_terse: bool) -> Vec<String> {
    let summary = summarize(changes);
    let mut lines = Vec::new();
    for (table, _) in TABLES {
        for row in replica.table(table).into_iter().flat_map(|table| table.rows()) {
            let change = summary.get(&(table.to_owned(), row.uuid()));
            let is_new = change.is_some_and(|change| change.old.is_none());
            let prefix = if is_new { "inserted row: " } else { "" };
            lines.push(line(&|uuid| replica_row(replica, uuid), row, prefix, is_terse));
            if let Some(change) = change {
                updated(&mut lines, change);
            }
        }
    }
    or_empty(lines)
}

/// The changes of a row since the last print.
#[derive(Default)]
struct Summary {
    /// The row at the last print.
    old: Option<Arc<Row>>,
    /// The last version of the row.
    last: Option<Arc<Row>>,
    is_deleted: bool,
}

fn summarize(changes: &[RowChange]) -> BTreeMap<(String, Uuid), Summary> {
    let mut summary: BTreeMap<_, Summary> = BTreeMap::new();
    for change in changes {
        let key = (change.table().to_owned(), change.uuid());
        let start = || Summary { old: change.old.clone(), ..Summary::default() };
        let entry = summary.entry(key).or_insert_with(start);
        entry.last = change.row().cloned();
        entry.is_deleted = change.new.is_none();
    }
    summary
}

/// A row of any table.
fn replica_row(replica: &Replica, uuid: Uuid) -> Option<Arc<Row>> {
    TABLES.iter().find_map(|(table, _)| replica.row(table, uuid)).cloned()
}

/// The changed rows, each once, and the names of their changed columns.
///
/// `test-ovsdb` also reports rows with references to rows that were added or deleted. It does not
/// report a new row whose columns all have their defaults.
pub fn changes(replica: &Replica, changes: &[RowChange], is_terse: bool) -> Vec<String> {
    let summary = summarize(changes);
    let deleted = |uuid: Uuid| {
        let found = summary.iter().find(|((_, own), change)| *own == uuid && change.is_deleted);
        found.and_then(|(_, change)| change.last.clone())
    };
    let mut lines = Vec::new();
    for change in summary.values() {
        let Some(row) = &change.last else { continue };
        let prefix = match (&change.old, change.is_deleted) {
            (None, true) => "inserted/deleted row: ",
            (None, false) => "inserted row: ",
            (Some(_), true) => "deleted row: ",
            (Some(_), false) => "",
        };
        let types = row.layout().columns().iter().zip(row.values());
        let mut set = types.filter(|(column, value)| **value != column.ty.default_datum());
        if change.old.is_none() && set.next().is_none() {
            continue;
        }
        let find = |uuid| {
            let gone = if change.is_deleted { deleted(uuid) } else { None };
            gone.or_else(|| replica_row(replica, uuid))
        };
        lines.push(line(&find, row, prefix, is_terse));
        updated(&mut lines, change);
    }
    let is_inserted_or_deleted = |uuid: Uuid| {
        summary
            .iter()
            .any(|((_, own), change)| *own == uuid && (change.old.is_none() || change.is_deleted))
    };
    for row in replica.tables().flat_map(|table| table.rows()) {
        let is_known = summary.contains_key(&(row.table().to_string(), row.uuid()));
        let columns = row.layout().columns().iter().zip(row.values());
        let mut references = columns
            .filter(|(column, _)| column.ty.key.reference.is_some())
            .flat_map(|(_, value)| value.atoms());
        let is_affected =
            |atom: &Atom| matches!(atom, Atom::Uuid(uuid) if is_inserted_or_deleted(*uuid));
        if !is_known && references.any(is_affected) {
            lines.push(line(&|uuid| replica_row(replica, uuid), row, "", is_terse));
        }
    }
    or_empty(lines)
}

/// The columns of a change: those that differ from before, or from their defaults in a new row.
fn updated(lines: &mut Vec<String>, change: &Summary) {
    let Some(row) = &change.last else { return };
    let columns: Vec<_> = match &change.old {
        None => {
            let types = row.layout().columns().iter().zip(row.values());
            let set = types.filter(|(column, value)| **value != column.ty.default_datum());
            set.map(|(column, _)| column.name.to_string()).collect()
        }
        Some(_) if change.is_deleted => Vec::new(),
        Some(old) => row.changed_columns(old).map(ToString::to_string).collect(),
    };
    if !columns.is_empty() {
        lines.push(format!("table {}: updated columns: {}", row.table(), columns.join(" ")));
    }
}

fn or_empty(lines: Vec<String>) -> Vec<String> {
    if lines.is_empty() { vec!["empty".to_owned()] } else { lines }
}

fn line(
    find: &dyn Fn(Uuid) -> Option<Arc<Row>>,
    row: &Row,
    change: &str,
    is_terse: bool,
) -> String {
    let table = row.table();
    if is_terse {
        return format!("table {table}");
    }
    let one = |column: &str| list(row, column).concat();
    let set = |column: &str, separator| format!("{column}=[{}]", list(row, column).join(separator));
    let referenced = |column: &str| -> Vec<Arc<Row>> {
        let atoms = row.get(column).map(ovsdb::Datum::atoms).unwrap_or_default();
        let uuid = |atom: &Atom| if let Atom::Uuid(uuid) = atom { find(*uuid) } else { None };
        atoms.iter().filter_map(uuid).collect()
    };
    // A reference is shown as the number of the referenced row, if the replica has that row.
    let numbers = |column: &str| {
        let mut found: Vec<i64> =
            referenced(column).iter().filter_map(|row| row.value("i")).collect();
        found.sort_unstable();
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let references = |column: &str, separator: &str| {
        let found: Vec<_> = referenced(column).iter().map(|row| row.uuid().to_string()).collect();
        format!("{column}=[{}]", found.join(separator))
    };
    let text = match &**table {
        "simple" => {
            let scalars = ["i", "r", "b", "s", "u"].map(|name| format!("{name}={}", one(name)));
            let sets = ["ia", "ra", "ba", "sa", "ua"].map(|name| set(name, " "));
            format!("{} {}", scalars.join(" "), sets.join(" "))
        }
        "link1" => format!(
            "i={} k={} ka=[{}] l2={}",
            one("i"),
            numbers("k").concat(),
            numbers("ka").join(" "),
            numbers("l2").concat()
        ),
        "link2" => format!("i={} l1={}", one("i"), numbers("l1").concat()),
        "simple3" => {
            format!("name={} {} {}", one("name"), set("uset", ","), references("uref", ","))
        }
        "simple6" => format!("name={} {}", one("name"), references("weak_ref", " ")),
        "indexed" => format!("i={}", one("i")),
        _ => format!("name={}", one("name")),
    };
    format!("table {table}: {change}{text} uuid={}", row.uuid())
}

/// The elements of a column as text.
fn list(row: &Row, column: &str) -> Vec<String> {
    let atoms = row.get(column).map(ovsdb::Datum::atoms).unwrap_or_default();
    let text = |atom: &Atom| match atom {
        Atom::String(text) => text.to_string(),
        Atom::Uuid(uuid) => uuid.to_string(),
        Atom::Integer(number) => number.to_string(),
        Atom::Real(number) => number.to_string(),
        Atom::Boolean(value) => value.to_string(),
    };
    atoms.iter().map(text).collect()
}
