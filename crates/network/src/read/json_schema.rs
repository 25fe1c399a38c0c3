//! The JSON Schema of `network.toml` for editors, generated from the tables of keys.
//!
//! This module is compiled for tests only, so that the daemon does not link the generator. The test
//! fails when the committed `docs/network.schema.json` differs. `cargo xtask docs-generate` sets
//! [`WRITE`], so that the test writes the file instead.

mod limits;

use super::{
    ROOT, acl, bridge, connections, host, port, router, services, switch, tunnel, underlay,
};
use crate::section::{Key, Schema};
use flow::TunnelType;
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
    let tables: [&'static Schema; 17] = [
        &underlay::UNDERLAY,
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

/// The schema of a table, with its permitted keys and its required keys.
fn table(Schema { name, keys }: &Schema) -> Value {
    let properties = keys.iter().map(|key| (key.name.to_owned(), value(name, key)));
    let mut schema = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": Value::Object(properties.collect()),
    });
    if let Some((_, required)) = limits::REQUIRED.iter().find(|(table, _)| table == name) {
        schema["required"] = json!(required);
    }
    if *name == port::DEVICE.name {
        let one_of = ["tap", "vm", "interface"].map(|key| json!({ "required": [key] }));
        schema["oneOf"] = json!(one_of);
        schema["dependentRequired"] = json!({ "netns": ["tap"], "queues": ["vm"] });
    }
    schema
}

/// The schema of the value of a key, from its example.
fn value(table: &str, Key { name, example }: &Key) -> Value {
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
                .map(|example| value_like(table, name, example.trim_end_matches(',')))
                .collect();
            if types.len() == 1 { types.remove(0) } else { json!({ "anyOf": types }) }
        }
    }
}

/// The schema of values of the type that `example` has. Inline tables have the name of their key.
fn value_like(table: &str, name: &str, example: &str) -> Value {
    // The text after an example explains it: `vlan = {…} for qinq`.
    let example = example.trim_end_matches(" for qinq");
    let parsed: toml::Table = toml::from_str(example).unwrap();
    match &parsed[name] {
        toml::Value::Table(_) => reference(&format!("`{name}`")),
        toml::Value::Array(items) => {
            assert!(items.iter().all(toml::Value::is_str), "{example}");
            json!({ "type": "array", "items": { "type": "string" }, "examples": [items] })
        }
        toml::Value::Integer(number) => {
            let mut schema = json!({ "type": "integer", "examples": [number] });
            if let Some((min, max)) = range(table, name) {
                schema["minimum"] = json!(min);
                schema["maximum"] = json!(max);
            }
            schema
        }
        toml::Value::Boolean(_) => json!({ "type": "boolean" }),
        toml::Value::String(text) => {
            let mut words = limits::words().into_iter();
            match words.find(|(of_table, key, _)| (*of_table, *key) == (table, name)) {
                Some((_, _, words)) => json!({ "enum": words }),
                None => json!({ "type": "string", "examples": [text] }),
            }
        }
        other => panic!("{example}: no key takes {}", other.type_str()),
    }
}

/// The range of an integer, if the reader has one.
fn range(table: &str, name: &str) -> Option<(i64, i64)> {
    let mut ranges = limits::RANGES.iter();
    let found = ranges.find(|(of_table, key, ..)| (*of_table, *key) == (table, name));
    let of_option = || {
        let mut tunnels = TunnelType::ALL.into_iter();
        let tunnel = tunnels.find(|tunnel| table == format!("[tunnel_options.{tunnel}]"))?;
        let mut options = tunnel.descriptor().options.iter();
        limits::range_of_option(options.find(|option| option.name == name)?.kind)
    };
    found.map(|&(_, _, min, max)| (min, max)).or_else(of_option)
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
