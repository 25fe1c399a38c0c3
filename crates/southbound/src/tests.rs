//! Tests the output of OVN's tools, and the errors for other texts.

use super::*;
use flow::{DatapathKey, PortKey};
use ovsdb::Uuid;
use pipeline::Direction;

/// Output of `ovsdb-client dump --format=json`: with captions, all columns in alphabetical order.
const DATAPATHS: &str = r#"{"caption":"Datapath_Binding table","data":[[["uuid","1a86b80b-e14a-4253-9d2a-12606c87e6fb"],["map",[["logical-switch","0fb3643b-fb6b-4063-8b14-178ae96ab441"],["name","s1"]]],["set",[]],1],[["uuid","2a86b80b-e14a-4253-9d2a-12606c87e6fb"],["map",[["logical-router","1fb3643b-fb6b-4063-8b14-178ae96ab441"]]],["set",[]],2]],"headings":["_uuid","external_ids","load_balancers","tunnel_key"]}
"#;
const PORTS: &str = r#"{"caption":"Port_Binding table","data":[[["uuid","70cf1aee-054c-4bfc-b26b-e1b1bec4f238"],["set",[]],["set",[]],["set",[]],["uuid","1a86b80b-e14a-4253-9d2a-12606c87e6fb"],["set",[]],["map",[]],["set",[]],["set",[]],"vm1",["set",["02:00:00:00:00:01 10.0.0.1","unknown"]],["set",[]],["set",[]],["map",[["peer","x"]]],["set",[]],"02:00:00:00:00:01 10.0.0.1",["set",[]],["set",[]],7,2,"",false,["set",[]]]],"headings":["_uuid","additional_chassis","additional_encap","chassis","datapath","encap","external_ids","gateway_chassis","ha_chassis_group","logical_port","mac","mirror_rules","nat_addresses","options","parent_port","port_security","requested_additional_chassis","requested_chassis","tag","tunnel_key","type","up","virtual_parent"]}
"#;
const FLOWS: &str = r#"{"caption":"Logical_Flow table","data":[[["uuid","5bebb3a5-2315-4c29-8c5e-9217a76d7df6"],"outport = \"vm1\"; output;",["set",[]],["map",[["source","northd.c:6588"],["stage-hint","ca8f369c"],["stage-name","ls_in_acl"]]],["uuid","1a86b80b-e14a-4253-9d2a-12606c87e6fb"],["set",[]],"inport==@pg1 && ip4.dst == $as1","ingress",2000,8,["map",[]]]],"headings":["_uuid","actions","controller_meter","external_ids","logical_datapath","logical_dp_group","match","pipeline","priority","table_id","tags"]}
"#;
/// Output of `ovn-sbctl --format=json list`: without captions.
const SMALL: &str = r#"{"data":[[["uuid","20000000-0000-0000-0000-000000000001"],["set",[["uuid","1a86b80b-e14a-4253-9d2a-12606c87e6fb"],["uuid","2a86b80b-e14a-4253-9d2a-12606c87e6fb"]]]]],"headings":["_uuid","datapaths"]}
{"data":[[["uuid","20000000-0000-0000-0000-000000000002"],["uuid","1a86b80b-e14a-4253-9d2a-12606c87e6fb"],"_MC_flood",["uuid","70cf1aee-054c-4bfc-b26b-e1b1bec4f238"],32768]],"headings":["_uuid","datapath","name","ports","tunnel_key"]}
{"data":[[["uuid","20000000-0000-0000-0000-000000000003"],["set",["10.0.0.1","10.0.0.2"]],"as1"]],"headings":["_uuid","addresses","name"]}
{"data":[[["uuid","20000000-0000-0000-0000-000000000004"],"1_pg1",["set",["vm1","vm2"]]]],"headings":["_uuid","name","ports"]}
{"data":[[["uuid","20000000-0000-0000-0000-000000000005"],["uuid","1a86b80b-e14a-4253-9d2a-12606c87e6fb"],"fd00::1","lrp1","02:00:00:00:00:01",0]],"headings":["_uuid","datapath","ip","logical_port","mac","timestamp"]}
{"data":[[["uuid","20000000-0000-0000-0000-000000000006"],["uuid","1a86b80b-e14a-4253-9d2a-12606c87e6fb"],"10.0.0.1","lrp1","02:00:00:00:00:01",true]],"headings":["_uuid","datapath","ip","logical_port","mac","override_dynamic_mac"]}
{"data":[[["uuid","20000000-0000-0000-0000-000000000007"],1,"02:00:00:00:00:01",2]],"headings":["_uuid","dp_key","mac","port_key"]}
{"data":[[["uuid","20000000-0000-0000-0000-000000000008"],["uuid","20000000-0000-0000-0000-000000000009"],["map",[]],"h1","ch1",0,["map",[]],["set",[]],["set",[]]]],"headings":["_uuid","encaps","external_ids","hostname","name","nb_cfg","other_config","transport_zones","vtep_logical_switches"]}
{"data":[[["uuid","20000000-0000-0000-0000-00000000000a"],["uuid","20000000-0000-0000-0000-000000000001"],["map",[]],["map",[]]]],"headings":["_uuid","datapaths","external_ids","records"]}
"#;

fn uuid(text: &str) -> Uuid {
    text.parse().unwrap()
}

#[test]
fn rows_are_read_as_ovsdb_client_prints_them() {
    let database = Southbound::parse(&[DATAPATHS, PORTS, FLOWS].concat()).unwrap();
    let s1 = uuid("1a86b80b-e14a-4253-9d2a-12606c87e6fb");
    let [switch, router] = database.datapaths.as_slice() else { panic!("{database:?}") };
    assert_eq!(
        (switch.uuid, switch.tunnel_key, switch.name().as_str()),
        (s1, DatapathKey(1), "s1")
    );
    assert_eq!((switch.is_router(), router.is_router()), (false, true));
    assert_eq!(router.name(), "1fb3643b-fb6b-4063-8b14-178ae96ab441");
    assert_eq!(
        database.ports,
        [PortBinding {
            uuid: uuid("70cf1aee-054c-4bfc-b26b-e1b1bec4f238"),
            logical_port: "vm1".into(),
            kind: PortKind::Vif,
            datapath: s1,
            tunnel_key: PortKey::new(2).unwrap(),
            options: StringMap::from([("peer".into(), "x".into())]),
            port_security: vec!["02:00:00:00:00:01 10.0.0.1".into()],
            mac: vec!["02:00:00:00:00:01 10.0.0.1".into(), "unknown".into()],
            chassis: None,
            parent_port: None,
            tag: Some(7),
        }]
    );
    assert_eq!(
        database.flows,
        [LogicalFlow {
            uuid: uuid("5bebb3a5-2315-4c29-8c5e-9217a76d7df6"),
            logical_datapath: Some(s1),
            logical_dp_group: None,
            pipeline: Direction::Ingress,
            table_id: 8,
            priority: 2000,
            condition: "inport==@pg1 && ip4.dst == $as1".into(),
            actions: "outport = \"vm1\"; output;".into(),
            origin: FlowOrigin { stage: "ls_in_acl".into(), source: "northd.c:6588".into() },
        }]
    );
    assert_eq!(database.flows[0].uuid.first_bits(), 0x5beb_b3a5);
}

#[test]
fn tables_are_known_by_their_columns_when_ovn_sbctl_prints_no_caption() {
    let database = Southbound::parse(SMALL).unwrap();
    assert_eq!(database.dp_groups[0].datapaths.len(), 2);
    assert_eq!(database.multicast_groups[0].name, "_MC_flood");
    assert_eq!(database.multicast_groups[0].ports, [uuid("70cf1aee-054c-4bfc-b26b-e1b1bec4f238")]);
    assert_eq!(database.address_sets[0].addresses, ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(database.port_groups[0].ports, ["vm1", "vm2"]);
    assert_eq!(database.port_groups[0].group_name(), "pg1");
    assert_eq!(database.mac_bindings[0].ip.to_string(), "fd00::1");
    assert!(database.static_mac_bindings[0].override_dynamic_mac);
    assert_eq!(database.fdb[0].mac.to_string(), "02:00:00:00:00:01");
    assert_eq!(database.chassis[0].name, "ch1");
    // Table DNS has a column of the same name as Logical_DP_Group.
    assert_eq!(database.dp_groups.len(), 1);
    let without = |text: &str| {
        let start = text.find("\"data\"").unwrap();
        format!("{{{}", &text[start..])
    };
    let bare = [DATAPATHS, PORTS, FLOWS].map(without).concat();
    assert_eq!(Southbound::parse(&bare), Southbound::parse(&[DATAPATHS, PORTS, FLOWS].concat()));
}

#[test]
fn columns_that_may_be_empty_may_be_left_out() {
    let text = r#"{"data":[[3,["uuid","1a86b80b-e14a-4253-9d2a-12606c87e6fb"],"ingress",0,"1","next;"]],"headings":["priority","_uuid","pipeline","table_id","match","actions"]}"#;
    let database = Southbound::parse(text).unwrap();
    assert_eq!((database.flows[0].priority, database.flows[0].logical_datapath), (3, None));
    assert_eq!(database.flows[0].origin, FlowOrigin::default());
}

#[test]
fn rows_that_come_twice_count_once() {
    let database = Southbound::parse(&[FLOWS, FLOWS].concat()).unwrap();
    assert_eq!(database.flows.len(), 1);
}

#[test]
fn malformed_dumps_are_refused_by_table_row_and_column() {
    let flow = "table Logical_Flow, row 5bebb3a5-2315-4c29-8c5e-9217a76d7df6";
    let change = |text: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    };
    let ports = "table Port_Binding, row 70cf1aee-054c-4bfc-b26b-e1b1bec4f238";
    let table = [
        (String::new(), "the dump has no table of the OVN_Southbound database".to_owned()),
        ("{}".into(), "not a dump of a database: missing field `data` at line 1 column 2".into()),
        (
            "ovs-vsctl: error".into(),
            "not a dump of a database: expected value at line 1 column 1".into(),
        ),
        (
            r#"{"caption":"Bridge table","data":[],"headings":["_uuid"]}"#.into(),
            "the dump has no table of the OVN_Southbound database".into(),
        ),
        (
            change(FLOWS, "\"match\"", "\"mach\""),
            "table Logical_Flow: the column `match` is missing".into(),
        ),
        (
            r#"{"data":[[["uuid","5bebb3a5-2315-4c29-8c5e-9217a76d7df6"],"1"]],"headings":["_uuid","match"]}"#.into(),
            "table Logical_Flow: the column `pipeline` is missing".into(),
        ),
        (
            change(FLOWS, "2000", "70000"),
            format!("{flow}, column `priority`: expected a number from 0 to 65535, not 70000"),
        ),
        (
            change(FLOWS, "\"ingress\"", "\"inside\""),
            format!("{flow}, column `pipeline`: expected \"ingress\" or \"egress\", not \"inside\""),
        ),
        (
            change(FLOWS, "\"inport==@pg1 && ip4.dst == $as1\"", "[\"set\",[]]"),
            format!("{flow}, column `match`: expected a string, not nothing"),
        ),
        (
            change(FLOWS, "[\"uuid\",\"1a86b80b-", "[\"uuid\",\"1a86-b80b"),
            format!(
                "{flow}, column `logical_datapath`: expected a UUID, not a UUID that is not in \
                 the notation of RFC 7047"
            ),
        ),
        (
            change(FLOWS, "[\"source\",\"northd.c:6588\"]", "[\"source\"]"),
            format!(
                "{flow}, column `external_ids`: expected a map of strings, not a map that is not \
                 in the notation of RFC 7047"
            ),
        ),
        (
            change(FLOWS, ",[\"map\",[]]]]", "]]"),
            format!("{flow}: expected one cell for each of the 11 headings"),
        ),
        (
            change(FLOWS, ",[\"map\",[]]]]", ",1,2]]"),
            format!("{flow}: expected one cell for each of the 11 headings"),
        ),
        (
            change(FLOWS, "[\"uuid\",\"5bebb3a5-2315-4c29-8c5e-9217a76d7df6\"]", "null"),
            "table Logical_Flow, row number 1, column `_uuid`: expected a UUID, not null".into(),
        ),
        (
            change(PORTS, ",7,2,", ",[\"set\",[7,8]],2,"),
            format!("{ports}, column `tag`: expected a number from 0 to 65535, not a set of 2"),
        ),
        (
            change(PORTS, ",7,2,", ",7,{\"a\":1},"),
            format!("{ports}, column `tunnel_key`: expected a number from 1 to 65535, not a JSON object"),
        ),
        (
            change(PORTS, "[[\"uuid\"", "7,[[\"uuid\""),
            "not a dump of a database: Port_Binding: invalid type: integer `7`, expected a list \
             of cells at line 1 column 2"
                .into(),
        ),
    ];
    for (text, error) in table {
        assert_eq!(Southbound::parse(&text).map_err(|e| e.to_string()), Err(error), "{text}");
    }
}

#[test]
fn deeply_nested_values_are_refused() {
    let deep = format!("{}{}", "[\"set\",[".repeat(100_000), "]]".repeat(100_000));
    let text = FLOWS.replacen("2000", &deep, 1);
    assert!(matches!(Southbound::parse(&text), Err(SouthboundError::NotADump(_))));
}
