//! Seeds of what reaches a daemon on its own host: requests, output of OVN's tools, pinned maps.

use super::Group;
use crate::pins;

use datapath_bpf::KernelMatch;
use flow::{Field, Match};

/// A request of each kind of value.
pub(super) fn control_requests() -> Group {
    let texts = [
        ("show", r#"{"command":"show"}"#),
        ("flows", r#"{"command":"flows","port":"vm1","min_packets":3}"#),
        ("forget", r#"{"command":"forget","mac":"02:00:00:00:00:01"}"#),
        (
            "connections",
            r#"{"command":"connections","filter":{"zone":"blue","address":"10.0.0.1:80",
            "protocol":"tcp","state":"established"}}"#,
        ),
        (
            "change-flows",
            r#"{"command":"change_flows","bridge":"br0","change":"delete_strict",
            "text":"ip,nw_dst=10.0.0.1","source":"-"}"#,
        ),
        ("packet-out", r#"{"command":"packet_out","bridge":"br0","text":"in_port=1 packet=00"}"#),
        ("capture", r#"{"command":"capture","port":"vm1","outer":true,"snap_bytes":64}"#),
        ("reload", r#"{"command":"reload","network":"/etc/weft/network.toml"}"#),
        (
            "add-port",
            r#"{"command":"add_port","at":"pods","device":"veth1","owner":"a\u00e4",
            "addresses":["10.0.0.2","fd00::2"]}"#,
        ),
        ("delete-port", r#"{"command":"delete_port","port":null,"owner":"a"}"#),
        ("stop", r#"{"command":"stop","purge":true}"#),
    ];
    texts.map(|(name, text)| (name, format!("{text}\n").into_bytes())).to_vec()
}

/// Tables with captions, as ovsdb-client prints them, and without, as ovn-sbctl does.
pub(super) fn ovn_dumps() -> Group {
    let uuid = |last: u8| format!(r#"["uuid","aaaaaaaa-0000-4000-8000-0000000000{last:02x}"]"#);
    let [switch, port, other, flow, set, group] = [1, 2, 3, 4, 5, 6].map(uuid);
    let datapaths = format!(
        r#"{{"caption":"Datapath_Binding table","data":[[{switch},1,["map",[["name","sw0"],
        ["logical-switch","bbbbbbbb-0000-4000-8000-000000000001"]]]]],
        "headings":["_uuid","tunnel_key","external_ids"]}}"#
    );
    let ports = format!(
        r#"{{"data":[[{port},"p1","",{switch},1,["map",[]],["set",["02:00:00:00:00:01 10.0.0.1"]],
        "02:00:00:00:00:01 10.0.0.1",["set",[]],["set",[]],["set",[]]],
        [{other},"p2","",{switch},2,["map",[]],["set",[]],"unknown",["set",[]],["set",[]],7]],
        "headings":["_uuid","logical_port","type","datapath","tunnel_key","options",
        "port_security","mac","chassis","parent_port","tag"]}}"#
    );
    let flows = format!(
        r#"{{"caption":"Logical_Flow table","data":[[{flow},{switch},["set",[]],"ingress",0,100,
        "ip4.src == $hosts && inport == @all","next;",["map",[["stage-name","ls_in_acl"]]]]],
        "headings":["_uuid","logical_datapath","logical_dp_group","pipeline","table_id",
        "priority","match","actions","external_ids"]}}"#
    );
    let sets = format!(
        r#"{{"caption":"Address_Set table","data":[[{set},"hosts",["set",["10.0.0.0/24",
        "10.0.1.1"]]]],"headings":["_uuid","name","addresses"]}}
        {{"caption":"Port_Group table","data":[[{group},"all",["set",["p1","p2"]]]],
        "headings":["_uuid","name","ports"]}}"#
    );
    vec![
        ("network", format!("{datapaths}\n{ports}\n{sets}\n{flows}\n").into_bytes()),
        ("other-table", format!(r#"{datapaths}{{"data":[[1]],"headings":["x"]}}"#).into_bytes()),
    ]
}

/// Flows as ovn-sbctl and weft print them.
pub(super) fn ovn_lists() -> Group {
    let list = "Datapath: \"sw0\" (aaaaaaaa-0000-4000-8000-000000000001)  Pipeline: ingress\n  \
                table=0 (ls_in_check_port_sec), priority=100  , match=(eth.src[40]), \
                action=(drop;)\n  uuid=0x1234abcd, table=27(ls_in_l2_lkup      ), priority=50   , \
                match=(eth.dst == 02:00:00:00:00:01 && ip4.src == {10.0.0.1, 10.0.0.2/31}), \
                action=(outport = \"a\\\"b\"; reg9[2] = 1; output;)\n\
                Datapath: \"sw0\"  Pipeline: egress\n  \
                cookie=0x1, table=3, priority=0, match=(1), actions=(ct_next;)\n";
    vec![("list", list.into())]
}

/// Megaflows of a guest and of a tunnel, each with its mask.
pub(super) fn pinned_megaflows() -> Group {
    let guest = [(Field::InPort, 1), (Field::EthType, 0x0800), (Field::Ip4Dst, 0x0a00_0001)];
    let guest6 = [(Field::InPort, 1), (Field::EthType, 0x86dd), (Field::Ip6Dst, 1 << 100 | 1)];
    let tunnel = [(Field::InPort, 0xffff_ff01), (Field::TunId, 5001), (Field::TunDst, 0xc000_0201)];
    let all = [("guest", guest), ("guest6", guest6), ("tunnel", tunnel)];
    all.map(|(name, fields)| {
        let mut condition = Match::any();
        for (field, value) in fields {
            assert!(condition.require(field, value, field.all_ones()), "{name}");
        }
        (name, KernelMatch::of(&condition, None).map(|it| pins::entry(&it)).unwrap_or_default())
    })
    .to_vec()
}
