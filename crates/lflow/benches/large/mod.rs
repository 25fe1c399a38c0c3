//! A network like large OVN deployments, with flows like those of ovn-northd: 1,000 logical
//! switches with 12 guests each, and 50 distributed routers with 20 switches each. It has about
//! 100,000 logical flows.

use flow::{DatapathKey, PortKey, PortNo};
use lflow::{Loader, LogicalFlow};
use pipeline::{
    DatapathKind, Direction, LogicalPort, MulticastGroup, PortLocation, PortRole, PortSecurity,
};

pub const SWITCHES: u32 = 1000;
pub const ROUTERS: u32 = 50;
pub const GUESTS: u32 = 12;
/// The logical port of a switch that leads to its router.
const TO_ROUTER: u16 = GUESTS as u16 + 1;

/// The number of tables of each pipeline, as ovn-northd 23.03 numbers them; each has `next` as its
/// default.
const SWITCH_INGRESS: u8 = 25;
const SWITCH_EGRESS: u8 = 9;
const ROUTER_INGRESS: u8 = 21;
const ROUTER_EGRESS: u8 = 6;

pub fn switch_key(switch: u32) -> DatapathKey {
    DatapathKey(1 + switch)
}

pub fn router_key(router: u32) -> DatapathKey {
    DatapathKey(1 + SWITCHES + router)
}

fn router_of(switch: u32) -> u32 {
    switch % ROUTERS
}

/// The port of the router that leads to a switch.
fn router_port(switch: u32) -> PortKey {
    port_key(1 + (switch / ROUTERS) as u16)
}

fn port_key(number: u16) -> PortKey {
    PortKey::new(number).unwrap_or(PortKey::FLOOD)
}

pub fn guest_name(switch: u32, guest: u32) -> String {
    format!("vm-{switch}-{guest}")
}

/// The datapath port of a guest.
pub fn guest_port(switch: u32, guest: u32) -> PortNo {
    PortNo(1 + switch * GUESTS + guest)
}

pub fn guest_mac(switch: u32, guest: u32) -> String {
    format!("02:00:{:02x}:{:02x}:00:{:02x}", switch >> 8, switch & 0xff, 0x10 + guest)
}

pub fn router_mac(switch: u32) -> String {
    format!("02:01:{:02x}:{:02x}:00:01", switch >> 8, switch & 0xff)
}

pub fn guest_ip4(switch: u32, guest: u32) -> String {
    format!("10.{}.{}.{}", switch >> 8, switch & 0xff, 10 + guest)
}

fn guest_ip6(switch: u32, guest: u32) -> String {
    format!("fd00:{switch:x}::{:x}", 0x10 + guest)
}

/// The datapaths, ports and multicast groups, without flows.
pub fn topology() -> Loader {
    let mut loader = Loader::default();
    for router in 0..ROUTERS {
        loader.add_datapath(router_key(router), &format!("r{router}"), DatapathKind::Router);
    }
    for switch in 0..SWITCHES {
        let key = switch_key(switch);
        loader.add_datapath(key, &format!("sw{switch}"), DatapathKind::Switch);
        for guest in 0..GUESTS {
            let (vif, port) = (guest_port(switch, guest), port_key(1 + guest as u16));
            add_port(&mut loader, key, port, guest_name(switch, guest), PortLocation::Local(vif));
            loader.program_mut().set_port_role(vif, PortRole::Vif { datapath: key, port });
        }
        let (router, peer) = (router_key(router_of(switch)), router_port(switch));
        let to_router = port_key(TO_ROUTER);
        let there = PortLocation::Patch { datapath: router, port: peer };
        add_port(&mut loader, key, to_router, format!("sw{switch}-r"), there);
        let back = PortLocation::Patch { datapath: key, port: to_router };
        add_port(&mut loader, router, peer, format!("r-sw{switch}"), back);
        let members = (1..=TO_ROUTER).map(port_key).collect();
        let group = MulticastGroup { name: "_MC_flood".into(), members };
        loader.set_multicast(key, PortKey::FLOOD, group);
    }
    loader
}

fn add_port(
    loader: &mut Loader,
    datapath: DatapathKey,
    key: PortKey,
    name: String,
    location: PortLocation,
) {
    loader.set_port(
        datapath,
        key,
        LogicalPort { name, location, security: PortSecurity::default() },
    );
}

/// All logical flows.
pub fn flows() -> Vec<LogicalFlow> {
    let mut flows = shared_flows();
    for switch in 0..SWITCHES {
        switch_flows(switch, &mut flows);
        for guest in 0..GUESTS {
            flows.extend(guest_flows(switch, guest));
        }
    }
    flows
}

/// The flows common to all switches, and those common to all routers.
fn shared_flows() -> Vec<LogicalFlow> {
    use Direction::{Egress, Ingress};
    let switches: Vec<DatapathKey> = (0..SWITCHES).map(switch_key).collect();
    let routers: Vec<DatapathKey> = (0..ROUTERS).map(router_key).collect();
    let mut flows = Vec::new();
    let mut add = |datapaths: &[DatapathKey], direction, table, priority, condition, actions| {
        flows.push(flow(datapaths, direction, table, priority, condition, actions));
    };
    for table in 0..SWITCH_INGRESS {
        add(&switches, Ingress, table, 0, "1", "next;");
    }
    for table in 0..SWITCH_EGRESS {
        add(&switches, Egress, table, 0, "1", "next;");
    }
    add(&switches, Ingress, 0, 100, "eth.src[40]", "drop;");
    add(&switches, Ingress, 0, 100, "vlan.present", "drop;");
    add(&switches, Ingress, 0, 50, "1", "reg0[15] = check_in_port_sec(); next;");
    add(&switches, Ingress, 1, 50, "reg0[15] == 1", "drop;");
    add(&switches, Ingress, 4, 110, "eth.dst == $svc_monitor_mac", "next;");
    add(&switches, Ingress, 5, 110, "nd || nd_rs || nd_ra || mldv1 || mldv2", "next;");
    add(&switches, Ingress, 8, 34000, "eth.dst == $svc_monitor_mac", "next;");
    add(&switches, Ingress, SWITCH_INGRESS, 70, "eth.mcast", "outport = \"_MC_flood\"; output;");
    add(&switches, Ingress, SWITCH_INGRESS, 0, "1", "drop;");
    add(&switches, Egress, 8, 50, "eth.mcast", "reg0[15] = 0; next;");
    add(&switches, Egress, SWITCH_EGRESS, 50, "reg0[15] == 1", "drop;");
    add(&switches, Egress, SWITCH_EGRESS, 0, "1", "output;");
    for table in 0..ROUTER_INGRESS {
        add(&routers, Ingress, table, 0, "1", "next;");
    }
    for table in 0..ROUTER_EGRESS {
        add(&routers, Egress, table, 0, "1", "next;");
    }
    add(&routers, Ingress, 0, 100, "vlan.present || eth.src[40]", "drop;");
    add(
        &routers,
        Ingress,
        3,
        100,
        "ip4.src_mcast || ip4.src == 255.255.255.255 || ip4.src == 127.0.0.0/8 || ip4.dst == \
         127.0.0.0/8 || ip4.src == 0.0.0.0/8 || ip4.dst == 0.0.0.0/8",
        "drop;",
    );
    add(&routers, Ingress, 3, 30, "ip.ttl == {0, 1}", "drop;");
    add(&routers, Ingress, 13, 550, "nd_rs || nd_ra", "drop;");
    add(&routers, Ingress, 14, 150, "reg8[0..15] == 0", "next;");
    add(&routers, Ingress, 17, 500, "ip4.mcast || ip6.mcast", "next;");
    add(&routers, Ingress, ROUTER_INGRESS, 0, "1", "output;");
    flows
}

/// The flows of the patch port between a switch and its router, on both sides, and the ACLs of the
/// switch.
fn switch_flows(switch: u32, flows: &mut Vec<LogicalFlow>) {
    use Direction::{Egress, Ingress};
    let (sw, router) = ([switch_key(switch)], [router_key(router_of(switch))]);
    let (mac, high, low) = (router_mac(switch), switch >> 8, switch & 0xff);
    let (ip4, ip6) = (format!("10.{high}.{low}.1"), format!("fd00:{switch:x}::1"));
    let (there, back) = (format!("sw{switch}-r"), format!("r-sw{switch}"));
    let mut add = |datapaths: &[DatapathKey],
                   direction,
                   table,
                   priority,
                   condition: String,
                   actions: String| {
        flows.push(flow(datapaths, direction, table, priority, &condition, &actions));
    };
    add(
        &sw,
        Ingress,
        SWITCH_INGRESS,
        50,
        format!("eth.dst == {mac}"),
        format!("outport = \"{there}\"; output;"),
    );
    add(
        &sw,
        Ingress,
        SWITCH_INGRESS,
        80,
        format!("flags[1] == 0 && arp.op == 1 && arp.tpa == {ip4}"),
        format!("clone {{outport = \"{there}\"; output; }}; outport = \"_MC_flood\"; output;"),
    );
    add(&sw, Ingress, 5, 110, format!("ip && inport == \"{there}\""), "next;".into());
    add(&sw, Egress, 1, 110, format!("ip && outport == \"{there}\""), "ct_clear; next;".into());
    add(
        &sw,
        Egress,
        4,
        2001,
        format!("outport == \"{}\" && ip4 && tcp.dst == 22", guest_name(switch, 0)),
        "drop;".into(),
    );
    add(
        &sw,
        Egress,
        4,
        2000,
        format!("outport == \"{}\" && ip4.src == 10.0.0.0/8", guest_name(switch, 0)),
        "next;".into(),
    );
    add(
        &router,
        Ingress,
        0,
        50,
        format!("eth.mcast && inport == \"{back}\""),
        format!("xreg0[0..47] = {mac}; next;"),
    );
    add(
        &router,
        Ingress,
        0,
        50,
        format!("eth.dst == {mac} && inport == \"{back}\""),
        format!("xreg0[0..47] = {mac}; next;"),
    );
    add(&router, Ingress, 3, 90, format!("inport == \"{back}\" && arp.op == 1 && arp.tpa == {ip4} && arp.spa == 10.{high}.{low}.0/24"), "eth.dst = eth.src; eth.src = xreg0[0..47]; arp.op = 2; arp.tha = arp.sha; arp.sha = xreg0[0..47]; arp.tpa <-> arp.spa; outport = inport; flags.loopback = 1; output;".into());
    add(
        &router,
        Ingress,
        3,
        90,
        format!("ip4.dst == {ip4} && icmp4.type == 8 && icmp4.code == 0"),
        "ip4.dst <-> ip4.src; ip.ttl = 255; icmp4.type = 0; flags.loopback = 1; next;".into(),
    );
    add(&router, Ingress, 3, 60, format!("ip4.dst == {{{ip4}}}"), "drop;".into());
    add(
        &router,
        Ingress,
        13,
        74,
        format!("ip4.dst == 10.{high}.{low}.0/24"),
        format!(
            "ip.ttl--; reg8[0..15] = 0; reg0 = ip4.dst; reg1 = {ip4}; eth.src = {mac}; outport = \
             \"{back}\"; flags.loopback = 1; next;"
        ),
    );
    add(
        &router,
        Ingress,
        13,
        194,
        format!("ip6.dst == fd00:{switch:x}::/64"),
        format!(
            "ip.ttl--; reg8[0..15] = 0; xxreg0 = ip6.dst; xxreg1 = {ip6}; eth.src = {mac}; \
             outport = \"{back}\"; flags.loopback = 1; next;"
        ),
    );
    add(&router, Egress, ROUTER_EGRESS, 100, format!("outport == \"{back}\""), "output;".into());
}

/// The flows of a guest, on its switch and on the router.
pub fn guest_flows(switch: u32, guest: u32) -> [LogicalFlow; 7] {
    use Direction::Ingress;
    let (sw, router) = ([switch_key(switch)], [router_key(router_of(switch))]);
    let (name, mac) = (guest_name(switch, guest), guest_mac(switch, guest));
    let (ip4, ip6) = (guest_ip4(switch, guest), guest_ip6(switch, guest));
    let solicits = format!(
        "nd_ns && ip6.dst == {{{ip6}, ff02::1:ff00:{:x}}} && nd.target == {ip6}",
        0x10 + guest
    );
    let asks = format!("arp.tpa == {ip4} && arp.op == 1");
    [
        flow(&sw, Ingress, 19, 100, &format!("{asks} && inport == \"{name}\""), "next;"),
        flow(
            &sw,
            Ingress,
            19,
            50,
            &asks,
            &format!(
                "eth.dst = eth.src; eth.src = {mac}; arp.op = 2; /* ARP reply */ arp.tha = \
                 arp.sha; arp.sha = {mac}; arp.tpa = arp.spa; arp.spa = {ip4}; outport = inport; \
                 flags.loopback = 1; output;"
            ),
        ),
        flow(&sw, Ingress, 19, 100, &format!("{solicits} && inport == \"{name}\""), "next;"),
        flow(
            &sw,
            Ingress,
            19,
            50,
            &solicits,
            &format!(
                "nd_na {{ eth.src = {mac}; ip6.src = {ip6}; nd.target = {ip6}; nd.tll = {mac}; \
                 outport = inport; flags.loopback = 1; output; }};"
            ),
        ),
        flow(
            &sw,
            Ingress,
            SWITCH_INGRESS,
            50,
            &format!("eth.dst == {mac}"),
            &format!("outport = \"{name}\"; output;"),
        ),
        flow(
            &router,
            Ingress,
            17,
            100,
            &format!("outport == \"r-sw{switch}\" && reg0 == {ip4}"),
            &format!("eth.dst = {mac}; next;"),
        ),
        flow(
            &router,
            Ingress,
            17,
            100,
            &format!("outport == \"r-sw{switch}\" && xxreg0 == {ip6}"),
            &format!("eth.dst = {mac}; next;"),
        ),
    ]
}

fn flow(
    datapaths: &[DatapathKey],
    direction: Direction,
    table: u8,
    priority: u16,
    condition: &str,
    actions: &str,
) -> LogicalFlow {
    LogicalFlow {
        datapaths: datapaths.to_vec(),
        direction,
        table,
        priority,
        stage: format!("{}_{table}", direction.name()),
        condition: condition.to_owned(),
        actions: actions.to_owned(),
        source: format!("northd.c:{}", 5000 + u32::from(table) * 100 + u32::from(priority) % 100),
        cookie: 0,
    }
}

/// The whole network, loaded.
pub fn load() -> Loader {
    let mut loader = topology();
    for flow in flows() {
        if let Err(error) = loader.add_flow(&flow) {
            panic!("{error}");
        }
    }
    loader
}
