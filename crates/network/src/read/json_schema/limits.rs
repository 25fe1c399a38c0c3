//! Ranges, words and required keys for the JSON Schema, and the test that the reader enforces the
//! same.

use super::super::underlay::AUTHENTICATE;
use crate::{AclAction, AclDirection, NatKind, Network};
use flow::{OptionKind, TunnelType};
use lflow::actions::Transport;
use ofctl::Ports;
use toml::{Table, Value};

/// The integers that a key of a table permits. Where the range depends on the tunnel, the widest.
pub(super) const RANGES: [(&str, &str, i64, i64); 27] = [
    ("the network", "version", 1, 1),
    ("the network", "underlay_mtu", 576, 65_535),
    ("the network", "least_path_mtu", 576, 65_535),
    ("the network", "underlay_family", 4, 6),
    ("the network", "punt_limit", 128, 4096),
    ("the network", "upcall_cpu_percent", 1, 6400),
    ("[[host]]", "least_path_mtu", 576, 65_535),
    ("[[logical_switch]]", "vni", 1, 0xffff_ffff),
    ("[[logical_switch]]", "vlan", 1, 4094),
    ("[[logical_switch]]", "mtu", 68, 65_535),
    ("`vlan`", "outer", 1, 4094),
    ("`vlan`", "inner", 1, 4094),
    ("[[logical_switch.port]]", "key", 1, 32_767),
    ("`device`", "queues", 1, 256),
    ("[[logical_switch.pool]]", "count", 1, 32_767),
    ("[[logical_switch.pool]]", "key", 1, 32_767),
    ("[[bridge]]", "mtu", 68, 65_535),
    ("[[bridge.port]]", "number", 1, Ports::MAX as i64),
    ("[[acl]]", "priority", 0, 32_767),
    ("[[load_balancer]]", "affinity", 1, 65_535),
    ("[connections]", "limit", 1, 67_108_864),
    ("[connections]", "per_port", 1, 67_108_864),
    ("[connections]", "per_zone", 1, 67_108_864),
    ("`health`", "interval", 1, 3600),
    ("`health`", "timeout", 1, 3600),
    ("`health`", "failures", 1, 100),
    ("`health`", "successes", 1, 100),
];

/// The range of an integer option of tunnels.
pub(super) const fn range_of_option(kind: OptionKind) -> Option<(i64, i64)> {
    match kind {
        OptionKind::Port => Some((1, 65_535)),
        OptionKind::Ttl | OptionKind::GroupTtl => Some((1, 255)),
        OptionKind::Dscp => Some((0, 63)),
        _ => None,
    }
}

/// The words that a key of a table permits.
pub(super) fn words() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let tunnels = || TunnelType::ALL.iter().map(|tunnel| tunnel.name()).collect();
    vec![
        ("the network", "tunnel", tunnels()),
        ("[[logical_switch]]", "tunnel", tunnels()),
        ("[underlay]", "authenticate", AUTHENTICATE.iter().map(|(word, _)| *word).collect()),
        ("[[acl]]", "direction", AclDirection::ALL.iter().map(|word| word.name()).collect()),
        ("[[acl]]", "action", AclAction::ALL.iter().map(|word| word.name()).collect()),
        ("[[load_balancer]]", "protocol", Transport::ALL.iter().map(|word| word.name()).collect()),
        ("`health`", "kind", vec!["tcp", "http", "udp"]),
        ("[[nat]]", "type", NatKind::ALL.iter().map(|word| word.name()).collect()),
    ]
}

/// The keys that a table must have.
pub(super) const REQUIRED: [(&str, &[&str]); 15] = [
    ("the network", &["host"]),
    ("[[host]]", &["name", "uplink"]),
    ("[[logical_switch]]", &["name"]),
    ("`vlan`", &["outer", "inner"]),
    ("[[logical_switch.port]]", &["name", "host", "mac", "device"]),
    ("[[logical_switch.pool]]", &["name", "hosts", "count", "mac"]),
    ("[[bridge]]", &["name", "host"]),
    ("[[bridge.port]]", &["name", "device"]),
    ("[[logical_router]]", &["name", "port"]),
    ("[[logical_router.port]]", &["name", "mac", "addresses"]),
    ("[[logical_router.route]]", &["prefix", "next_hop"]),
    ("[[acl]]", &["direction", "priority", "match", "action"]),
    ("[[load_balancer]]", &["name", "protocol", "vip", "backends"]),
    ("`health`", &["sources"]),
    ("[[nat]]", &["router", "type", "external", "internal"]),
];

/// A network with every table that has a limit.
const SAMPLE: &str = r#"
tunnel = "geneve"
underlay_mtu = 65535
[[host]]
name = "h1"
uplink = "eth0"
underlay = ["192.0.2.1"]
[[logical_switch]]
name = "blue"
vni = 1
[[logical_switch.port]]
name = "a"
host = "h1"
mac = "02:00:00:00:00:01"
addresses = ["10.0.0.1/24"]
device = { vm = "tap7", queues = 4 }
[[logical_switch.pool]]
name = "pods"
hosts = ["h1"]
count = 2
mac = "02:00:00:01:00:01"
[[logical_switch]]
name = "red"
tunnel = "qinq"
vlan = { outer = 1, inner = 2 }
[[bridge]]
name = "br0"
host = "h1"
[[bridge.port]]
name = "b"
device = { tap = "b0" }
[[logical_router]]
name = "core"
host = "h1"
[[logical_router.port]]
name = "core-blue"
switch = "blue"
mac = "02:00:00:00:01:01"
addresses = ["10.0.0.254/24"]
[[logical_router.route]]
prefix = "0.0.0.0/0"
next_hop = "10.0.0.253"
[[acl]]
switch = "blue"
direction = "to-port"
priority = 1
match = "ip4"
action = "drop"
[[load_balancer]]
name = "web"
switches = ["blue"]
protocol = "tcp"
vip = "10.9.0.1:80"
backends = ["10.0.0.1:80"]
health = { sources = ["10.0.0.252"] }
[[nat]]
router = "core"
type = "snat"
external = "203.0.113.1"
internal = "10.0.0.0/24"
[connections]
adaptive = true
[underlay]
authenticate = "none"
"#;

/// The table with this name in the sample.
fn place<'t>(root: &'t mut Value, name: &str) -> &'t mut Table {
    let (path, at) = match name {
        "the network" => ("", 0),
        "`vlan`" => ("logical_switch.vlan", 1),
        "`device`" => ("logical_switch.port.device", 0),
        "`health`" => ("load_balancer.health", 0),
        _ => (name.trim_matches(['[', ']']), 0),
    };
    let mut value = root;
    for part in path.split('.').filter(|part| !part.is_empty()) {
        value = match value.get_mut(part).expect("the sample has all tables") {
            Value::Array(tables) => &mut tables[at],
            other => other,
        };
    }
    value.as_table_mut().expect("a table")
}

/// The reader's errors for the sample with one table changed.
fn errors(table: &str, change: impl FnOnce(&mut Table)) -> String {
    let mut root: Value = Value::Table(toml::from_str(SAMPLE).expect("TOML"));
    change(place(&mut root, table));
    let text = toml::to_string(&root).expect("TOML");
    Network::parse(&text, "net.toml").map_or_else(|errors| errors.to_string(), |_| String::new())
}

#[test]
fn reader_has_the_ranges_of_the_json_schema() {
    assert_eq!(errors("the network", |_| {}), "");
    for (table, key, min, max) in RANGES {
        let with = |number: i64| {
            errors(table, |values| {
                match key {
                    // The widest range of numbers is that of GRE, and one tag is for VLANs.
                    "vni" => drop(values.insert("tunnel".to_owned(), "gre".into())),
                    "vlan" => {
                        values.insert("tunnel".to_owned(), "vlan".into());
                        values.remove("vni");
                    }
                    _ => {}
                }
                values.insert(key.to_owned(), number.into());
            })
        };
        let refused = |number: i64| with(number).contains(&format!("`{key}` is {number};"));
        assert!(!refused(min) && !refused(max), "{table} {key}: {} {}", with(min), with(max));
        assert!(refused(min - 1) && refused(max + 1), "{table} {key}: {}", with(max + 1));
    }
}

#[test]
fn reader_has_the_ranges_of_options_of_the_json_schema() {
    for tunnel in TunnelType::ALL {
        for option in tunnel.descriptor().options {
            let Some((min, max)) = range_of_option(option.kind) else { continue };
            let refused = |number: i64| {
                let text = errors("the network", |network| {
                    let options = Table::from_iter([(option.name.to_owned(), number.into())]);
                    let of_type = Table::from_iter([(tunnel.to_string(), options.into())]);
                    network.insert("tunnel_options".to_owned(), of_type.into());
                });
                text.contains(&format!("`{}` is {number};", option.name))
            };
            let found = [min - 1, min, max, max + 1].map(refused);
            assert_eq!(found, [true, false, false, true], "{tunnel} {}", option.name);
        }
    }
}

#[test]
fn reader_has_the_words_of_the_json_schema() {
    for (table, key, words) in words() {
        let what = match key {
            "tunnel" => "tunnel type",
            "authenticate" => "check",
            _ => key,
        };
        let unknown = format!("unknown {what}");
        let with =
            |word: &str| errors(table, |values| drop(values.insert(key.to_owned(), word.into())));
        for word in words {
            assert!(!with(word).contains(&unknown), "{table} {key}: {}", with(word));
        }
        assert!(with("frobnicate").contains(&unknown), "{table} {key}: {}", with("frobnicate"));
    }
}

#[test]
fn reader_requires_the_keys_that_the_json_schema_requires() {
    for (table, keys) in REQUIRED {
        let present: Vec<String> = {
            let mut root = Value::Table(toml::from_str(SAMPLE).expect("TOML"));
            place(&mut root, table).keys().cloned().collect()
        };
        for key in present {
            let text = errors(table, |values| drop(values.remove(&key)));
            let is_missing = text.contains(&format!("has no `{key}`; add one"))
                || text.contains(&format!("there is no [[{key}]]"));
            // One of `switches` and `routers`, and one of the kinds of device.
            if key == "switches" {
                continue;
            }
            assert_eq!(is_missing, keys.contains(&&*key), "{table} {key}: {text}");
        }
    }
}
