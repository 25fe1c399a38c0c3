//! The JSON Schema of `network.toml` for editors, generated from the tables of keys.
//!
//! This module is compiled for tests only, so that the daemon does not link the generator. The test
//! fails when the committed `docs/network.schema.json` differs. `cargo xtask docs-generate` sets
//! [`WRITE`] to get it.

use super::{ROOT, acl, bridge, connections, host, port, router, services, switch, tunnel};
use crate::section::{Key, Schema};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// With this environment variable the test writes its file, into this directory, instead of
/// comparing it.
const WRITE: &str = "WEFT_WRITE_REFERENCE";
const FILE: &str = "network.schema.json";

/// Keys that also take a value of another type than their example has.
const FURTHER: [(&str, &str); 1] = [("port_security", "port_security = [\"10.0.0.5\"]")];

/// All tables, except that of the whole file.
pub(super) fn tables() -> impl Iterator<Item = &'static Schema> {
    let tables: [&'static Schema; 16] = [
        &host::HOST,
        &switch::SWITCH,
        &switch::VLAN_PAIR,
        &port::PORT,
        &port::DEVICE,
        &port::pool::POOL,
        &bridge::BRIDGE,
        &bridge::PORT,
        &router::ROUTER,
        &router::PORT,
        &router::ROUTE,
        &acl::ACL,
        &services::LOAD_BALANCER,
        &services::HEALTH,
        &services::NAT,
        &connections::CONNECTIONS,
    ];
    tables.into_iter().chain(tunnel::schemas())
}

fn schema() -> Value {
    let mut whole = table(&ROOT);
    whole["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    whole["title"] = json!("network.toml of weft");
    let definitions = tables().map(|schema| (definition(schema.name), table(schema)));
    whole["$defs"] = Value::Object(definitions.collect());
    whole
}

/// The schema of a table: its keys and no others.
fn table(Schema { keys, .. }: &Schema) -> Value {
    let properties = keys.iter().map(|key| (key.name.to_owned(), value(key)));
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": Value::Object(properties.collect()),
    })
}

/// The schema of the value of a key, from its example.
fn value(Key { name, example }: &Key) -> Value {
    let further = FURTHER.iter().filter(|(key, _)| key == name).map(|(_, example)| *example);
    match *name {
        _ if ["[address_set]", "[port_group]"].contains(example) => {
            let texts = json!({ "type": "array", "items": { "type": "string" } });
            json!({ "type": "object", "additionalProperties": texts })
        }
        "timeouts" => {
            json!({ "type": "object", "additionalProperties": { "type": "integer" } })
        }
        // The example is one of its tables.
        "tunnel_options" => reference("[tunnel_options]"),
        _ if example.starts_with("[[") => json!({ "type": "array", "items": reference(example) }),
        _ if example.starts_with('[') => reference(example),
        _ => {
            let alternatives = example.split(" or ").chain(further);
            let mut types: Vec<Value> = alternatives
                .map(|example| value_like(name, example.trim_end_matches(',')))
                .collect();
            if types.len() == 1 { types.remove(0) } else { json!({ "anyOf": types }) }
        }
    }
}

/// The schema of values of the type that `example` has. Inline tables have the name of their key.
fn value_like(name: &str, example: &str) -> Value {
    // What follows an example explains it: `vlan = {…} for qinq`.
    let example = example.trim_end_matches(" for qinq");
    let parsed: toml::Table = toml::from_str(example).unwrap();
    match &parsed[name] {
        toml::Value::Table(_) => reference(&format!("`{name}`")),
        toml::Value::Array(items) => {
            assert!(items.iter().all(toml::Value::is_str), "{example}");
            json!({ "type": "array", "items": { "type": "string" }, "examples": [items] })
        }
        toml::Value::Integer(number) => json!({ "type": "integer", "examples": [number] }),
        toml::Value::Boolean(_) => json!({ "type": "boolean" }),
        toml::Value::String(text) => json!({ "type": "string", "examples": [text] }),
        other => panic!("{example}: no key takes {}", other.type_str()),
    }
}

/// A reference to the table with this name.
fn reference(table: &str) -> Value {
    assert!(tables().any(|schema| schema.name == table), "{table}");
    json!({ "$ref": format!("#/$defs/{}", definition(table)) })
}

/// The name of a table as a key of JSON that needs no escape in a reference.
fn definition(table: &str) -> String {
    table.trim_matches(|c: char| "[]`".contains(c)).to_owned()
}

#[test]
fn committed_json_schema_has_all_keys() {
    let made = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    if let Some(directory) = std::env::var_os(WRITE).map(PathBuf::from) {
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(FILE), made).unwrap();
        return;
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let committed = std::fs::read_to_string(docs.join(FILE)).unwrap_or_default();
    assert!(committed == made, "docs/{FILE} differs: run cargo xtask docs-generate");
}
