//! Parses a schema, and tracks the path in it for errors.

use super::{
    AtomKind, BaseType, ColumnSchema, ColumnType, Object, Reference, Schema, SchemaError,
    TableSchema,
};
use crate::datum::Atom;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

type Parsed<T> = Result<T, SchemaError>;

/// A value and its path.
#[derive(Clone, Copy)]
struct Node<'a> {
    value: &'a Value,
    parent: Option<&'a Node<'a>>,
    name: &'a str,
}

impl<'a> Node<'a> {
    fn path(&self) -> String {
        match self.parent {
            Some(parent) if parent.parent.is_some() => format!("{}.{}", parent.path(), self.name),
            Some(_) => self.name.to_owned(),
            None => "top level".to_owned(),
        }
    }

    fn error<T>(&self, problem: impl Into<String>) -> Parsed<T> {
        Err(SchemaError { path: self.path(), problem: problem.into() })
    }

    fn object(&self) -> Parsed<&'a Object> {
        self.value.as_object().map_or_else(|| self.error("expected an object"), Ok)
    }

    fn string(&self) -> Parsed<&'a str> {
        self.value.as_str().map_or_else(|| self.error("expected a string"), Ok)
    }

    fn array(&self) -> Parsed<&'a [Value]> {
        let list = self.value.as_array().map(Vec::as_slice);
        list.map_or_else(|| self.error("expected an array"), Ok)
    }

    fn child(&'a self, name: &'a str) -> Parsed<Option<Node<'a>>> {
        let value = self.object()?.get(name);
        Ok(value.map(|value| Node { value, parent: Some(self), name }))
    }

    fn boolean(&'a self, name: &'a str, default: bool) -> Parsed<bool> {
        match self.child(name)? {
            None => Ok(default),
            Some(node) => {
                node.value.as_bool().map_or_else(|| node.error("expected true or false"), Ok)
            }
        }
    }

    /// An integer from 0.
    fn count(&self) -> Parsed<u64> {
        self.value.as_u64().map_or_else(|| self.error("expected an integer from 0"), Ok)
    }
}

pub(super) fn schema(value: &Value) -> Parsed<Schema> {
    let top = Node { value, parent: None, name: "" };
    let Some(name) = top.child("name")? else { return top.error("`name` is missing") };
    let Some(tables) = top.child("tables")? else { return top.error("`tables` is missing") };
    let version = match top.child("version")? {
        Some(version) => version.string()?.to_owned(),
        None => String::new(),
    };
    let tables = tables
        .object()?
        .iter()
        .map(|(name, value)| {
            let node = Node { value, parent: Some(&tables), name };
            Ok((identifier(&node, name)?, table(&node)?))
        })
        .collect::<Parsed<_>>()?;
    Ok(Schema { name: identifier(&name, name.string()?)?, version, tables })
}

/// A name (RFC 7047 section 3.1, `<id>`).
fn identifier(node: &Node<'_>, name: &str) -> Parsed<Arc<str>> {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_part = |c: char| is_start(c) || c.is_ascii_digit();
    if !name.starts_with(is_start) || !name.chars().all(is_part) {
        return node.error("a name consists of letters, digits and `_`, and begins with no digit");
    }
    Ok(name.into())
}

fn table(node: &Node<'_>) -> Parsed<TableSchema> {
    let Some(list) = node.child("columns")? else { return node.error("`columns` is missing") };
    let columns = list
        .object()?
        .iter()
        .map(|(name, value)| {
            let node = Node { value, parent: Some(&list), name };
            Ok((identifier(&node, name)?, column(&node)?))
        })
        .collect::<Parsed<BTreeMap<_, _>>>()?;
    let max_rows = node.child("maxRows")?.map(|max| max.count()).transpose()?;
    let indexes = match node.child("indexes")? {
        None => Vec::new(),
        Some(indexes) => indexes
            .array()?
            .iter()
            .map(|value| index(&Node { value, ..indexes }, &columns))
            .collect::<Parsed<_>>()?,
    };
    Ok(TableSchema { columns, is_root: node.boolean("isRoot", false)?, max_rows, indexes })
}

fn index(node: &Node<'_>, columns: &BTreeMap<Arc<str>, ColumnSchema>) -> Parsed<Vec<Arc<str>>> {
    let name = |value: &Value| {
        let name = value.as_str()?;
        columns.get_key_value(name).map(|(name, _)| Arc::clone(name))
    };
    let names: Option<Vec<_>> = node.array()?.iter().map(name).collect();
    names.map_or_else(|| node.error("expected names of columns of this table"), Ok)
}

fn column(node: &Node<'_>) -> Parsed<ColumnSchema> {
    let Some(ty) = node.child("type")? else { return node.error("`type` is missing") };
    Ok(ColumnSchema {
        ty: column_type(&ty)?,
        is_ephemeral: node.boolean("ephemeral", false)?,
        is_mutable: node.boolean("mutable", true)?,
    })
}

fn column_type(node: &Node<'_>) -> Parsed<ColumnType> {
    if node.value.is_string() {
        return Ok(ColumnType { key: base_type(node)?, value: None, min: 1, max: 1 });
    }
    let Some(key) = node.child("key")? else { return node.error("`key` is missing") };
    let key = base_type(&key)?;
    let value = node.child("value")?.map(|value| base_type(&value)).transpose()?;
    let min = match node.child("min")? {
        None => 1,
        Some(min) => match min.count()? {
            count @ (0 | 1) => count as u32,
            _ => return min.error("expected 0 or 1"),
        },
    };
    let max = match node.child("max")? {
        None => 1,
        Some(max) if max.value == "unlimited" => u32::MAX,
        Some(max) => match u32::try_from(max.count()?) {
            Ok(count) if count >= 1 => count,
            _ => return max.error("expected an integer from 1 to 4294967295, or \"unlimited\""),
        },
    };
    Ok(ColumnType { key, value, min, max })
}

fn base_type(node: &Node<'_>) -> Parsed<BaseType> {
    if node.value.is_string() {
        return Ok(BaseType::new(kind(node)?));
    }
    let Some(name) = node.child("type")? else { return node.error("`type` is missing") };
    let mut base = BaseType::new(kind(&name)?);
    let integer = |name, default| match node.child(name)? {
        None => Ok(default),
        Some(node) => node.value.as_i64().map_or_else(|| node.error("expected an integer"), Ok),
    };
    let real = |name, default| match node.child(name)? {
        None => Ok(default),
        Some(node) => node.value.as_f64().map_or_else(|| node.error("expected a number"), Ok),
    };
    let length = |name, default| node.child(name)?.map_or(Ok(default), |node| node.count());
    base.integers = (integer("minInteger", i64::MIN)?, integer("maxInteger", i64::MAX)?);
    base.reals = (real("minReal", f64::NEG_INFINITY)?, real("maxReal", f64::INFINITY)?);
    base.lengths = (length("minLength", 0)?, length("maxLength", u64::MAX)?);
    if let Some(list) = node.child("enum")? {
        base.allowed = Some(allowed(&list, base.kind)?);
    }
    if let Some(table) = node.child("refTable")? {
        let is_strong = match node.child("refType")? {
            None => true,
            Some(kind) => match kind.string()? {
                "strong" => true,
                "weak" => false,
                _ => return kind.error("expected \"strong\" or \"weak\""),
            },
        };
        base.reference = Some(Reference { table: identifier(&table, table.string()?)?, is_strong });
    }
    Ok(base)
}

fn kind(node: &Node<'_>) -> Parsed<AtomKind> {
    match node.string()? {
        "integer" => Ok(AtomKind::Integer),
        "real" => Ok(AtomKind::Real),
        "boolean" => Ok(AtomKind::Boolean),
        "string" => Ok(AtomKind::String),
        "uuid" => Ok(AtomKind::Uuid),
        other => node.error(format!("`{other}` is no atomic type")),
    }
}

/// `["set", [atom, ...]]`, or one atom.
fn allowed(node: &Node<'_>, kind: AtomKind) -> Parsed<Box<[Atom]>> {
    let list = match node.value.as_array().map(Vec::as_slice) {
        Some([tag, Value::Array(list)]) if tag == "set" => list.as_slice(),
        _ => std::slice::from_ref(node.value),
    };
    let mut atoms = list
        .iter()
        .map(|value| match Atom::from_json(kind, value) {
            Some(atom) => Ok(atom),
            None => node.error(format!("expected values of the type {kind}")),
        })
        .collect::<Parsed<Vec<_>>>()?;
    atoms.sort_unstable();
    Ok(atoms.into_boxed_slice())
}
