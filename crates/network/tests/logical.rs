//! Tests logical flows with packets: the flows are compiled, loaded and translated, and the
//! resulting actions compared.
//!
//! The cases are in `logical/*.txt`: a title after `==`, then lines `guest: packet`, each followed
//! by a line `=> actions`.

use crate::support::Net;
use flow::{EndpointId, Field, FlowKey, PortNo, TunnelType};
use network::{Network, Placement, RemoteEnd, logical_flows};
use pipeline::{LearnLimits, LearnedTables};
use std::collections::BTreeSet;

/// Compares the `count` cases of a file.
fn check(net: &Net, cases: &str, count: usize) {
    let (mut names, mut found, mut seen) = (Vec::new(), String::new(), 0);
    for line in cases.lines().filter(|line| !line.starts_with("=>")) {
        found.push_str(line);
        found.push('\n');
        if line.starts_with('#') || line.starts_with("==") {
            continue;
        }
        if let Some((name, text)) = line.split_once(" = ").filter(|_| seen == 0) {
            names.push((format!("${name}"), text));
            // Longest name first: one name may be a prefix of another.
            names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        } else if let Some((guest, packet)) = line.split_once(": ") {
            let packet =
                names.iter().fold(packet.to_owned(), |p, (name, text)| p.replace(name, text));
            found.push_str(&format!("=> {}\n", net.send(guest, &packet)));
            seen += 1;
        }
    }
    assert_eq!(seen, count);
    for (found, expected) in found.lines().zip(cases.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found, cases);
}

#[test]
fn packets_take_their_routes_when_the_network_is_routed() {
    let net = Net::whole(include_str!("../../../examples/routed.toml"));
    check(&net, include_str!("logical/routed.txt"), 45);
}

#[test]
fn router_and_dhcp_messages_pass_when_their_port_is_trusted() {
    let net = Net::whole(include_str!("logical/guarded.toml"));
    check(&net, include_str!("logical/guarded.txt"), 34);
}

const ROUTED: &str = include_str!("../../../examples/routed.toml");
const TCP_22: &str = "eth.src == 02:00:00:00:01:0a && eth.dst == 02:00:00:00:01:0b && \
                      ip4.src == 10.0.1.10 && ip4.dst == 10.0.1.11 && ip.ttl == 64 && tcp.dst == \
                      22";

/// A packet from a Geneve tunnel with this key and these logical ports.
fn out_of_geneve(key: &mut FlowKey, vni: u32, ingress: u16, egress: u16) {
    key.set(Field::InPort, Placement::tunnel_port(TunnelType::Geneve).0.into());
    key.set(Field::TunId, vni.into());
    key.set(Field::TunMetadataPresent, 1);
    key.set(Field::TunMetadata0, u128::from(ingress) << 16 | u128::from(egress));
}

/// Guests on three hosts in two VXLAN switches, one with a group of its own; `g1` and `r1` are on
/// h1.
fn grouped() -> String {
    let mut text = "tunnel = \"vxlan\"\n[tunnel_options.vxlan]\ngroup = \"239.1.1.1\"\n".to_owned();
    for host in 1..=3 {
        text += &format!(
            "[[host]]\nname = \"h{host}\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.{host}\"]\n"
        );
    }
    for (name, vni, group) in [("g", 1, ""), ("r", 2, "group = \"239.1.1.2\"\n")] {
        text += &format!("[[logical_switch]]\nname = \"{name}\"\nvni = {vni}\n{group}");
        for host in 1..=3 {
            text += &format!(
                "[[logical_switch.port]]\nname = \"{name}{host}\"\nhost = \"h{host}\"\n\
                 mac = \"02:00:00:00:0{vni}:0{host}\"\ndevice = {{ tap = \"{name}{host}\" }}\n"
            );
        }
    }
    text
}

#[test]
fn broadcast_is_sent_once_to_the_group_and_unicast_to_its_host() {
    let net = Net::on("h1", &grouped());
    let from = "eth.src == 02:00:00:00:01:01 && eth.type == 0x1234";
    for everybody in ["ff:ff:ff:ff:ff:ff", "33:33:00:00:00:01"] {
        let sent = net.send("g1", &format!("{from} && eth.dst == {everybody}"));
        assert_eq!(sent, "encap(endpoint=99,key=1)");
    }
    let sent = net.send("g1", &format!("{from} && eth.dst == 02:00:00:00:01:03"));
    assert_eq!(sent, "encap(endpoint=2,key=1)");
    let without = grouped().replace("group = \"239.1.1.1\"\n", "");
    let sent =
        Net::on("h1", &without).send("g1", &format!("{from} && eth.dst == ff:ff:ff:ff:ff:ff"));
    assert_eq!(sent, "encap(endpoint=1,key=1),encap(endpoint=2,key=1)");
}

#[test]
fn group_is_requested_when_another_host_uses_it() {
    let joined_groups = |text: &str| {
        let network = Network::parse(text, "net.toml").unwrap();
        let mut groups = BTreeSet::new();
        let host = network.host("h1").unwrap().index;
        Placement::of_host(
            &network,
            host,
            |_, _| PortNo(1),
            |_, far| {
                if let RemoteEnd::Group(group) = far {
                    groups.insert(group.to_string());
                }
                Some(EndpointId(0))
            },
        );
        groups.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(joined_groups(&grouped()), ["239.1.1.1", "239.1.1.2"]);
    let alone = grouped().replace("host = \"h2\"", "host = \"h1\"");
    assert_eq!(joined_groups(&alone.replace("host = \"h3\"", "host = \"h1\"")), [""; 0]);
}

#[test]
fn packet_takes_one_tunnel_because_routers_are_on_every_host() {
    let to_db1 = "eth.src == 02:00:00:00:01:0a && eth.dst == 02:00:00:00:01:01 && \
                  ip4.src == 10.0.1.10 && ip4.dst == 10.0.2.10 && ip.ttl == 64 && tcp.dst == 5432";
    let sent = Net::on("h1", ROUTED).send("web1", to_db1);
    // 0x7fff is the port of `db` that leads to the router.
    let arrives = "otherwise(set(eth_dst=02:00:00:00:02:0a),set(eth_src=02:00:00:00:02:01),\
                   set(ip_ttl=63),\
                   encap(endpoint=101,key=5002,inport=32767,outport=1)))";
    assert!(sent.ends_with(arrives), "{sent}");
    let routed = "eth.src == 02:00:00:00:02:01 && eth.dst == 02:00:00:00:02:0a && \
                  ip4.src == 10.0.1.10 && ip4.dst == 10.0.2.10 && ip.ttl == 63 && tcp.dst == 5432";
    let received = Net::on("h2", ROUTED).receive(routed, |key| out_of_geneve(key, 5002, 0x7fff, 1));
    assert_eq!(received, "output(2)");
}

/// The ACL is for packets to the port, so the receiver's host applies it, and sends the rejection
/// back through the tunnel.
#[test]
fn rejection_returns_through_the_tunnel_when_the_sender_is_on_another_host() {
    let sent = Net::on("h1", ROUTED).send("web1", TCP_22);
    assert_eq!(sent, "encap(endpoint=101,key=5001,inport=1,outport=2)");
    let received = Net::on("h2", ROUTED).receive(TCP_22, |key| out_of_geneve(key, 5001, 1, 2));
    assert_eq!(
        received,
        "log(name=\"no-ssh\"),tcp_reset(set(eth_dst=02:00:00:00:01:0a),\
         set(eth_src=02:00:00:00:01:0b),\
         set(ip4_src=10.0.1.11),set(ip4_dst=10.0.1.10),encap(endpoint=100,key=5001,inport=2,\
         outport=1))"
    );
}

/// VXLAN carries no logical ports, so the receiver's host looks up the destination again, but does
/// not apply the ACLs again.
#[test]
fn from_port_acls_apply_once_when_the_tunnel_carries_no_ports() {
    let text = ROUTED.replace("\"geneve\"", "\"vxlan\"").replace(
        "direction = \"from-port\"\npriority = 1000\nmatch = 'inport == \"db1\" && udp'",
        "direction = \"from-port\"\npriority = 1000\nmatch = 'udp'",
    );
    assert_ne!(text.matches("match = 'udp'").count(), 0);
    let from_router = "eth.src == 02:00:00:00:02:01 && eth.dst == 02:00:00:00:02:0a && \
                       ip4.src == 10.0.1.10 && ip4.dst == 10.0.2.10 && ip.ttl == 63 && udp.dst == \
                       53";
    let received = Net::on("h2", &text).receive(from_router, |key| {
        key.set(Field::InPort, Placement::tunnel_port(TunnelType::Vxlan).0.into());
        key.set(Field::TunId, 5002);
    });
    assert_eq!(received, "output(2)");
    let own = "eth.src == 02:00:00:00:02:0a && eth.dst == 02:00:00:00:02:01 && \
               ip4.src == 10.0.2.10 && ip4.dst == 10.0.1.10 && ip.ttl == 64 && udp.dst == 53";
    assert_eq!(Net::on("h2", &text).send("db1", own), "drop(flow_drop)");
}

#[test]
fn sender_gets_a_reply_when_its_packet_is_rejected() {
    let text = format!(
        "{ROUTED}\n[[acl]]\nswitch = \"web\"\ndirection = \"from-port\"\npriority = 5\n\
         match = 'udp.dst == 53'\naction = \"reject\"\n"
    );
    let net = Net::whole(&text);
    let packet = "eth.src == 02:00:00:00:01:0b && eth.dst == 02:00:00:00:01:0a && \
                  ip4.src == 10.0.1.11 && ip4.dst == 10.0.1.10 && ip.ttl == 64 && udp.dst == 53";
    let sent = net.send("web2", packet);
    assert!(sent.starts_with("icmp4(") && sent.ends_with("output(2))"), "{sent}");
    assert!(sent.contains("set(ip4_dst=10.0.1.11)"), "{sent}");
    // The ACL does not apply to a packet from the router, which is not a guest of the switch.
    let routed = "eth.src == 02:00:00:00:09:0a && eth.dst == 02:00:00:00:09:01 && \
                  ip4.src == 10.0.9.10 && ip4.dst == 10.0.1.11 && ip.ttl == 64 && udp.dst == 53";
    assert!(net.send("ops1", routed).ends_with("output(2)"));
}

#[test]
fn learned_neighbour_is_reached_when_the_file_does_not_list_it() {
    const SECURITY: &str = "port_security = [\"10.0.1.11\", \"10.8.0.0/16\", \"fd00:1::b\"]";
    let open = Net::whole(&ROUTED.replace(SECURITY, ""));
    let packet = "eth.src == 02:00:00:00:09:0a && eth.dst == 02:00:00:00:09:01 && \
                  ip4.src == 10.0.9.10 && ip4.dst == 10.0.1.50 && ip.ttl == 64 && udp.dst == 53";
    assert!(open.send("ops1", packet).contains("arp("));
    let answer = "eth.src == 02:00:00:00:01:0b && eth.dst == 02:00:00:00:01:01 && arp.op == 2 && \
                  arp.spa == 10.0.1.50 && arp.sha == 02:00:00:00:01:0b && arp.tpa == 10.0.1.1";
    let events = open.learn_events("web2", answer);
    assert_eq!(events.len(), 1);
    let mut learned = LearnedTables::new(LearnLimits::default());
    events.into_iter().for_each(|event| learned.configure(event));
    assert_eq!(
        open.send_knowing("ops1", packet, &learned),
        "set(eth_dst=02:00:00:00:01:0b),set(eth_src=02:00:00:00:01:01),set(ip_ttl=62),output(2)"
    );
    // Not learned: an address that port security forbids, or that is outside of the port's network.
    assert_eq!(Net::whole(ROUTED).learn_events("web2", answer), []);
    let of_db = answer.replace("arp.spa == 10.0.1.50", "arp.spa == 10.0.2.50");
    assert_eq!(open.learn_events("web2", &of_db), []);
}

#[test]
fn flows_are_printed_as_ovn_prints_them() {
    let text = include_str!("logical/small.toml");
    let network = Network::parse(text, "small.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let logical = logical_flows(&network);
    assert_eq!(logical.to_string(), include_str!("logical/small.flows"));
    let flow = logical.flows.iter().find(|flow| flow.stage.name() == "ls_out_acl").unwrap();
    assert_eq!(
        serde_json::to_string(flow).unwrap(),
        concat!(
            r#"{"datapaths":[7],"pipeline":"egress","table":4,"stage":"ls_out_acl","#,
            r#""priority":33768,"match":"outport == \"blue/core-blue\"","actions":"next;","line":18}"#
        )
    );
}

/// VNI 5 of VXLAN and VNI 5 of Geneve are two switches, with different keys in the program and 5 on
/// the wire.
#[test]
fn switches_are_separate_when_two_tunnel_types_use_the_same_key() {
    let switch = |name: &str, tunnel: TunnelType, number: u8| {
        format!(
            "[[logical_switch]]\nname = \"{name}\"\ntunnel = \"{tunnel}\"\nvni = 5\nport = [\n\
             {{ name = \"{name}1\", host = \"h1\", mac = \"02:00:00:00:00:01\", device = {{ tap \
                         = \"a{number}\" }} }},\n\
             {{ name = \"{name}2\", host = \"h2\", mac = \"02:00:00:00:00:02\", device = {{ tap \
                         = \"a{number}\" }} }}]\n"
        )
    };
    let hosts = "host = [{ name = \"h1\", uplink = \"e\", underlay = [\"192.0.2.1\"] }, \
                 { name = \"h2\", uplink = \"e\", underlay = [\"192.0.2.2\"] }]\n";
    let text = hosts.to_owned()
        + &switch("blue", TunnelType::Vxlan, 0)
        + &switch("red", TunnelType::Geneve, 1);
    let net = Net::on("h1", &text);
    let keys: Vec<_> = net.logical.datapaths.iter().map(|d| (d.key.0, d.tunnel_key)).collect();
    assert_eq!(keys, [(5, None), (0xff_ffff, Some(flow::DatapathKey(5)))]);
    let frame = "eth.src == 02:00:00:00:00:01 && eth.dst == 02:00:00:00:00:02";
    assert_eq!(net.send("blue1", frame), "encap(endpoint=1,key=5)");
    assert_eq!(net.send("red1", frame), "encap(endpoint=101,key=5,inport=1,outport=2)");
    let back = "eth.src == 02:00:00:00:00:02 && eth.dst == 02:00:00:00:00:01";
    let received = net.receive(back, |key| out_of_geneve(key, 5, 2, 1));
    assert_eq!(received, "output(2)");
}

#[test]
fn datapath_ports_are_numbered_as_planned() {
    let net = Net::on("h2", ROUTED);
    assert_eq!((net.port("web2"), net.port("db1")), (PortNo(1), PortNo(2)));
    assert_eq!(Placement::UPLINK, PortNo(0));
    let whole = Net::whole(ROUTED);
    assert_eq!((whole.port("web1"), whole.port("ops1")), (PortNo(1), PortNo(4)));
}

/// The program of a host leaves out parts of the network that cannot reach this host.
#[test]
fn program_holds_only_what_the_host_can_reach() {
    let text = ROUTED.replace("host = \"h1\"", "host = \"h2\"").replace(
        "[address_set]",
        "[[logical_switch]]\nname = \"alone\"\nvni = 9\nport = [{ name = \"a\", host = \"h1\", \
         mac = \"02:00:00:00:00:01\", device = { tap = \"a\" } }]\n[address_set]",
    );
    let names = |host: &str| -> Vec<String> {
        let net = Net::on(host, &text);
        let mut names: Vec<_> = net.program.datapaths().map(|(_, d)| d.name.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(names("h1"), ["alone"]);
    assert_eq!(names("h2"), ["core", "db", "edge", "ops", "web"]);
}

#[test]
fn end_points_are_requested_when_routers_connect_switches() {
    let text = "\
[[host]]
name = \"h1\"
uplink = \"eth0\"
underlay = [\"192.0.2.1\"]
[[host]]
name = \"h2\"
uplink = \"eth0\"
underlay = [\"192.0.2.2\"]
[[logical_switch]]
name = \"web\"
vni = 1
tunnel = \"stt\"
[[logical_switch.port]]
name = \"web1\"
host = \"h1\"
mac = \"02:00:00:00:01:0a\"
device = { tap = \"web1\" }
[[logical_switch]]
name = \"db\"
vni = 2
tunnel = \"geneve\"
[[logical_switch.port]]
name = \"db1\"
host = \"h2\"
mac = \"02:00:00:00:02:0a\"
device = { tap = \"db1\" }
";
    let router = "\
[[logical_router]]
name = \"core\"
[[logical_router.port]]
name = \"core-web\"
switch = \"web\"
mac = \"02:00:00:00:01:01\"
addresses = [\"10.0.1.1/24\"]
[[logical_router.port]]
name = \"core-db\"
switch = \"db\"
mac = \"02:00:00:00:02:01\"
addresses = [\"10.0.2.1/24\"]
";
    let tunnels_of = |text: &str, host: &str| {
        let network = Network::parse(text, "net.toml").unwrap();
        let (host, mut tunnels) = (network.host(host).unwrap().index, BTreeSet::new());
        Placement::of_host(
            &network,
            host,
            |_, _| PortNo(1),
            |tunnel, _| {
                tunnels.insert(tunnel.name());
                Some(EndpointId(0))
            },
        );
        tunnels.into_iter().collect::<Vec<_>>()
    };
    let routed = format!("{text}{router}");
    for host in ["h1", "h2"] {
        // Routed packets of the other host arrive in the tunnel of this host's switch, and routed
        // packets of this host leave in the tunnel of the other host's switch.
        assert_eq!(tunnels_of(&routed, host), ["geneve", "stt"], "{host}");
        assert_eq!(tunnels_of(text, host), [""; 0], "{host}");
    }
}

/// Guests `a` and `b`: every guest may open connections to `b`, and none to `a`.
const STATEFUL: &str = "tunnel = \"geneve\"\n\
    [[host]]\nname = \"h1\"\nuplink = \"e\"\nunderlay = [\"192.0.2.1\"]\n\
    [[logical_switch]]\nname = \"blue\"\nvni = 5\nport = [\n\
    { name = \"a\", host = \"h1\", mac = \"02:00:00:00:00:01\", device = { tap = \"a\" } },\n\
    { name = \"b\", host = \"h1\", mac = \"02:00:00:00:00:02\", device = { tap = \"b\" } }]\n\
    [[acl]]\nswitch = \"blue\"\ndirection = \"to-port\"\npriority = 10\n\
    match = '''outport == \"b\" // clients\n && ip'''\naction = \"allow-related\"\n\
    [[acl]]\nswitch = \"blue\"\ndirection = \"to-port\"\npriority = 20\n\
    match = 'udp.dst == 53'\naction = \"allow-stateless\"\n\
    [[acl]]\nswitch = \"blue\"\ndirection = \"to-port\"\npriority = 5\n\
    match = 'ip'\naction = \"drop\"\n";

/// The trace assumes established connections in the direction of the packet.
#[test]
fn stateful_switch_blocks_connections_that_its_acls_no_longer_allow() {
    let net = Net::whole(STATEFUL);
    let (to_a, to_b) = (
        "eth.src == 02:00:00:00:00:02 && eth.dst == 02:00:00:00:00:01",
        "eth.src == 02:00:00:00:00:01 && eth.dst == 02:00:00:00:00:02",
    );
    assert_eq!(net.send("a", &format!("{to_b} && ip4 && tcp.dst == 80")), "output(2)");
    assert_eq!(
        net.send("b", &format!("{to_a} && ip4 && tcp.dst == 80")),
        "ct(commit,mark=0x1/0x1,zone=1,nat),drop(flow_drop)"
    );
    // Not tracked: protocols other than IP, and packets that a stateless ACL allows.
    assert_eq!(net.send("b", &format!("{to_a} && eth.type == 0x88cc")), "output(1)");
    assert_eq!(net.send("b", &format!("{to_a} && arp")), "output(1)");
    assert_eq!(net.send("b", &format!("{to_a} && ip4 && udp.dst == 53")), "output(1)");
}

/// The actions of the flows whose stage and match begin with these texts.
fn actions_of(network: &Network, stage: &str, condition: &str) -> Vec<String> {
    let flows = logical_flows(network).flows;
    let found = flows
        .iter()
        .filter(|flow| flow.stage.name() == stage && flow.condition.starts_with(condition));
    found.map(|flow| flow.actions.clone()).collect()
}

#[test]
fn backends_get_no_new_connections_while_they_are_offline() {
    let text = include_str!("../../../examples/services.toml").replace(
        "backends = [",
        "affinity = 9\nhealth = { sources = [\"10.0.1.254\"] }\nrouters = [\"edge\"]\nbackends = [",
    );
    let mut network = Network::parse(&text, "net.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let all = logical_flows(&network);
    let choices = |network: &Network| {
        let of_switch = actions_of(network, "ls_in_lb", "ct.new");
        (of_switch, actions_of(network, "lr_in_dnat", "ct.new && !ct.rel"))
    };
    let chosen = |backends: &str| {
        let choose = format!("ct_lb_mark(backends={backends});");
        (vec![format!("reg0[1] = 0; {choose}")], vec![choose])
    };
    assert_eq!(choices(&network), chosen("10.0.1.11:8080,10.0.1.12:8080"));
    let backends = ["10.0.1.11:8080", "10.0.1.12:8080"].map(|it| it.parse().unwrap());
    let offline = |name: &str, backends: &[std::net::SocketAddr]| -> BTreeSet<_> {
        backends.iter().map(|backend| (name.to_owned(), *backend)).collect()
    };
    network.set_offline(&offline("web", &backends[..1]));
    assert_eq!(choices(&network), chosen("10.0.1.12:8080"));
    // Affinity does not send clients to a backend that is offline, but its replies are still
    // recognized.
    let some = logical_flows(&network);
    let keeps = |flow: &&network::LogicalFlow| flow.condition.starts_with("reg9[6] == 1");
    assert!(some.flows.iter().filter(keeps).all(|flow| !flow.actions.contains("10.0.1.11")));
    assert_eq!(some.load_balancers, all.load_balancers);
    network.set_offline(&offline("web", &backends));
    assert_eq!(choices(&network), (vec!["drop;".to_owned()], vec!["drop;".to_owned()]));
    network.set_offline(&offline("other", &backends));
    assert_eq!(logical_flows(&network), all);
}

/// A network with a checked guest on each host, and an ACL that drops everything.
fn checked(tunnel: &str) -> String {
    let port = |number: u8| {
        format!(
            "{{ name = \"g{number}\", host = \"h{number}\", mac = \"02:00:00:00:00:0{number}\", \
             addresses = [\"10.0.0.{number}/24\"], device = {{ tap = \"g{number}\" }} }}"
        )
    };
    format!(
        "tunnel = \"{tunnel}\"\nhost = [{{ name = \"h1\", uplink = \"e\", underlay = \
         [\"192.0.2.1\"] }}, {{ name = \"h2\", uplink = \"e\", underlay = [\"192.0.2.2\"] }}]\n\
         logical_switch = [{{ name = \"s\", vni = 5, port = [{}, {}] }}]\n\
         [[load_balancer]]\nname = \"w\"\nswitches = [\"s\"]\nprotocol = \"tcp\"\n\
         vip = \"10.9.9.9:80\"\nbackends = [\"10.0.0.1:80\", \"10.0.0.2:80\"]\n\
         health = {{ sources = [\"10.0.0.250\"] }}\n\
         [[acl]]\nswitch = \"s\"\ndirection = \"from-port\"\npriority = 9\nmatch = 'ip'\n\
         action = \"drop\"\n",
        port(1),
        port(2)
    )
}

const ANSWER: &str = "eth.src == 02:00:00:00:00:01 && ip4.src == 10.0.0.1 && \
                      ip4.dst == 10.0.0.250 && ip.ttl == 64 && tcp.src == 80 && tcp.flags == 0x12";

#[test]
fn answers_to_health_checks_reach_the_host_that_has_asked() {
    for (tunnel, encap) in [("vxlan", 1), ("geneve", 101)] {
        let net = Net::on("h1", &checked(tunnel));
        let to = |port: u16| {
            net.send(
                "g1",
                &format!("{ANSWER} && eth.dst == 0a:57:45:46:00:00 && tcp.dst == {port}"),
            )
        };
        assert_eq!(to(0x8000), "controller");
        assert_eq!(to(0x803f), "controller");
        let other = format!("set(eth_dst=0a:57:45:46:00:02),encap(endpoint={encap},key=5)");
        assert_eq!((to(0x8040), to(0x807f)), (other.clone(), other));
        // No host has this range.
        assert_eq!(to(0x8080), "drop(flow_drop)");
        let asks = "eth.src == 02:00:00:00:00:01 && eth.dst == ff:ff:ff:ff:ff:ff && arp.op == 1 && \
                    arp.spa == 10.0.0.1 && arp.tpa == 10.0.0.250 && arp.sha == 02:00:00:00:00:01";
        let answered = net.send("g1", asks);
        assert!(answered.contains("set(arp_sha=0a:57:45:46:00:00)"), "{answered}");
        // A guest does not pass the ACLs with the address of health checks.
        let forged = ANSWER.replace("02:00:00:00:00:01", "0a:57:45:46:00:01");
        let forged = format!("{forged} && eth.dst == 02:00:00:00:00:02 && tcp.dst == 9");
        assert_eq!(net.send("g1", &forged), "drop(flow_drop)");
        let own = net.send("g1", &forged.replace("0a:57:45:46", "02:00:00:00"));
        assert!(own.ends_with("drop(flow_drop)") && own != "drop(flow_drop)", "{own}");
    }
}
