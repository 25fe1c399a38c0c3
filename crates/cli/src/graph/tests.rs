//! Tests of pictures: of network files, with unusual names as OVN allows them, and of running
//! switches.

use super::picture::{End, Kind, State};
use super::topology::{BalancerNode, HostNode, PortNode, RouterNode, SwitchNode, TunnelNode};
use super::*;
use crate::control::replies::RemoteEnd;
use datapath::stats::{Drops, PacketCount, PortStats};
use network::Network;
use std::collections::BTreeSet;
use std::path::Path;

/// The examples in the repository, by file name.
fn examples() -> Vec<(String, Network)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut files: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    files.iter().map(|path| (name(path), Network::load(path).unwrap())).collect()
}

fn picture_of(name: &str, network: &Network) -> Picture {
    Picture::new(name.to_owned(), &Topology::of_network(network, |_| None), false, None)
}

/// Checks that a text is well-formed XML without declarations, and returns its elements.
fn elements(xml: &str) -> Vec<String> {
    let (mut open, mut found, mut rest) = (Vec::new(), Vec::new(), xml);
    let check_text = |text: &str| {
        assert!(!text.contains(['<', '>', '"']) && !text.contains('\u{0}'), "{text}");
        for reference in text.split('&').skip(1) {
            let (name, _) = reference.split_once(';').expect("a reference ends");
            assert!(["amp", "lt", "gt", "quot", "#39"].contains(&name), "{text}");
        }
    };
    while let Some(start) = rest.find('<') {
        // The style sheet contains characters that must be escaped in other texts.
        if open.last() != Some(&"style") {
            check_text(&rest[..start]);
        }
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
            continue;
        }
        let name = tag.split([' ', '/']).next().unwrap();
        found.push(name.to_owned());
        let attributes = tag.trim_end_matches('/')[name.len()..].trim();
        let quotes: Vec<&str> = attributes.split('"').collect();
        assert_eq!(quotes.len() % 2, 1, "{tag}");
        for (name, value) in quotes.iter().zip(quotes.iter().skip(1)).step_by(2) {
            assert!(name.ends_with('=') && !value.contains('<'), "{tag}");
        }
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
    found
}

/// Checks the structure of a DOT text: brackets and quotes match, and each end of a line exists.
fn check_dot(dot: &str) {
    let (mut ports, mut ends) = (BTreeSet::new(), BTreeSet::new());
    for line in dot.lines().map(str::trim) {
        if let Some((node, label)) = line.split_once(" [label = <") {
            let label = label.strip_suffix(">]").expect("a label ends");
            elements(label);
            for port in label.split("port=\"").skip(1) {
                ports.insert(format!("{node}:{}", port.split('"').next().unwrap()));
            }
        } else if let Some((from, to)) = line.split_once(" -- ") {
            let place = |end: &str| end.rsplit_once(':').unwrap().0.to_owned();
            ends.insert(place(from));
            ends.insert(place(to.split(' ').next().unwrap()));
        } else {
            let unescaped = line.replace("\\\\", "").replace("\\\"", "");
            assert_eq!(unescaped.matches('"').count() % 2, 0, "{line}");
        }
    }
    let missing: Vec<_> = ends.difference(&ports).collect();
    assert!(missing.is_empty(), "{missing:?}\n{dot}");
    let outside: String = dot.lines().filter(|line| !line.contains("label")).collect();
    assert_eq!(outside.matches('{').count(), outside.matches('}').count());
    assert!(dot.starts_with("graph weft {\n") && dot.ends_with("}\n"));
}

#[test]
fn examples_are_drawn_with_all_their_names() {
    let examples = examples();
    assert!(examples.len() > 8);
    for (name, network) in &examples {
        let picture = picture_of(name, network);
        let (svg, dot) = (svg::draw(&picture), dot::draw(&picture));
        elements(&svg);
        check_dot(&dot);
        let hosts = network.hosts().iter().map(|host| &host.name);
        let switches = network.logical_switches();
        let ports = switches.iter().flat_map(|switch| &switch.ports).map(|port| &port.name);
        let routers = network.logical_routers();
        let router_ports = routers.iter().flat_map(|router| &router.ports).map(|port| &port.name);
        let bridges = network.bridges().iter();
        let bridge_ports = bridges.clone().flat_map(|bridge| &bridge.ports).map(|port| &port.name);
        let balancers = network.load_balancers().iter().map(|balancer| &balancer.name);
        let names = hosts
            .chain(switches.iter().map(|switch| &switch.name))
            .chain(ports)
            .chain(routers.iter().map(|router| &router.name))
            .chain(router_ports)
            .chain(bridges.map(|bridge| &bridge.name))
            .chain(bridge_ports)
            .chain(balancers);
        for expected in names {
            assert!(svg.contains(&format!(">{expected}</text>")), "{name}: {expected}");
            assert!(dot.contains(expected), "{name}: {expected}");
        }
        assert_eq!(svg, svg::draw(&picture_of(name, network)), "it is deterministic");
    }
}

#[test]
fn lines_join_routers_switches_hosts_and_tunnels() {
    let (_, network) = examples().into_iter().find(|(name, _)| name == "routed.toml").unwrap();
    let picture = picture_of("routed.toml", &network);
    let title = |end: End| {
        let drawn = &picture.boxes[end.index];
        match end.row {
            None => drawn.title.clone(),
            Some(row) => format!("{}.{}", drawn.title, drawn.rows[row].cells[0]),
        }
    };
    let mut lines: Vec<_> = picture
        .lines
        .iter()
        .map(|line| format!("{} {}", title(line.from), title(line.to)))
        .collect();
    lines.sort();
    let mut expected = [
        "web.web1 h1.web1",
        "web.web2 h2.web2",
        "db.db1 h2.db1",
        "ops.ops1 h1.ops1",
        "core.core-web web",
        "core.core-db db",
        "edge.edge-ops ops",
        "core.core-edge edge.edge-core",
        "h1.uplink eth0 geneve",
        "h2.uplink eth0 geneve",
    ];
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn balancers_are_joined_to_their_switches_and_routers() {
    let named = |name: &str| name.to_owned();
    let topology = Topology {
        switches: vec![SwitchNode { name: named("web"), ..SwitchNode::default() }],
        routers: vec![RouterNode { name: named("edge"), ..RouterNode::default() }],
        load_balancers: vec![BalancerNode {
            name: named("vip"),
            switches: vec![named("web")],
            routers: vec![named("edge")],
            ..BalancerNode::default()
        }],
        ..Topology::default()
    };
    let picture = Picture::new(String::new(), &topology, false, None);
    let title = |end: End| picture.boxes[end.index].title.as_str();
    let lines: Vec<_> =
        picture.lines.iter().map(|line| (title(line.from), title(line.to))).collect();
    assert_eq!(lines, [("vip", "web"), ("vip", "edge")]);
}

/// A topology of one switch with one port, in which every text is `name`.
fn topology_named(name: &str) -> Topology {
    let port = PortNode {
        name: name.to_owned(),
        host: Some(name.to_owned()),
        mac: name.to_owned(),
        addresses: vec![name.to_owned(); 4],
        device: Some(name.to_owned()),
        pool: None,
    };
    Topology {
        hosts: vec![HostNode { name: name.to_owned(), uplink: name.to_owned(), underlay: vec![] }],
        switches: vec![SwitchNode {
            name: name.to_owned(),
            kind: "switch".to_owned(),
            ports: vec![port],
            ..SwitchNode::default()
        }],
        tunnels: vec![TunnelNode {
            name: name.to_owned(),
            carrier: name.to_owned(),
            hosts: vec![name.to_owned()],
        }],
        ..Topology::default()
    }
}

#[test]
fn names_with_any_characters_are_escaped() {
    let names = [
        "a<b>&\"c'd]]>",
        "\"]; evil [label=\"\\",
        "ends with \\",
        "<table>&amp;",
        "\u{0}\u{1b}[31m\r\n\u{ffff}",
        "Zürich 北京 🦀",
        "",
    ];
    for name in names {
        let picture = Picture::new(name.to_owned(), &topology_named(name), false, None);
        elements(&svg::draw(&picture));
        check_dot(&dot::draw(&picture));
    }
    let long = "long".repeat(100);
    let picture = Picture::new(String::new(), &topology_named(&long), false, None);
    let svg = svg::draw(&picture);
    assert!(!svg.contains(&format!(">{long}</text>")) && svg.contains("…</text>"));
    assert!(svg.contains(&format!("port {long}\n")), "the tip has the whole name");
}

fn count(packets: u64) -> PacketCount {
    PacketCount { packets, bytes: packets * 1000 }
}

/// A topology of two hosts, with the reports of the daemon on the first one.
fn running() -> (Topology, Snapshot, TunnelsReply) {
    let toml = "tunnel = \"geneve\"\n".to_owned()
        + &[1, 2]
            .map(|n| {
                format!("[[host]]\nname=\"h{n}\"\nuplink=\"eth0\"\nunderlay=[\"192.0.2.{n}\"]\n")
            })
            .concat()
        + "[[logical_switch]]\nname=\"blue\"\nvni=1\n"
        + &[("a", 1), ("b", 1), ("c", 1), ("d", 2)]
            .map(|(name, host)| {
                format!(
                    "[[logical_switch.port]]\nname=\"{name}\"\nhost=\"h{host}\"\n\
                     mac=\"02:00:00:00:00:{}\"\ndevice={{vm=\"t{name}\"}}\n",
                    10 + u32::from(name.as_bytes()[0] - b'a')
                )
            })
            .concat();
    let network = Network::parse(&toml, "network.toml").unwrap();
    let port = |(number, name, state, dropped): (u32, &str, &str, u64)| PortStats {
        port: number,
        name: name.to_owned(),
        state: state.to_owned(),
        rx: count(2000),
        tx: count(5),
        drops: Drops::from([("acl_drop".to_owned(), dropped)]),
        ..PortStats::default()
    };
    let ports = [(1, "a", "up", 0), (2, "b", "up", 7), (3, "c", "down: no device tc", 0)];
    let mut snapshot = Snapshot {
        host: "h1".to_owned(),
        datapath: "kernel".to_owned(),
        ports: ports.map(port).into(),
        ..Snapshot::default()
    };
    snapshot.uplink.state = "up".to_owned();
    let stats = EndpointStats {
        tunnel: "geneve".to_owned(),
        local: [192, 0, 2, 1].into(),
        remote: [192, 0, 2, 2].into(),
        neighbour: "unresolved".to_owned(),
        refused: false,
        path_mtu: 1400,
        path_mtu_report: None,
        rx: count(3),
        tx: count(4000),
    };
    let tunnels = TunnelsReply {
        endpoints: vec![RemoteEnd { host: Some("h2".to_owned()), stats }],
        ..TunnelsReply::default()
    };
    (Topology::of_network(&network, |_| None), snapshot, tunnels)
}

#[test]
fn state_traffic_and_drops_are_shown_when_the_switch_runs() {
    let (topology, snapshot, tunnels) = running();
    let live = |interval_s| Live { snapshot: &snapshot, tunnels: &tunnels, interval_s };
    let picture = Picture::new("host h1".to_owned(), &topology, false, Some(&live(None)));
    let h1 = picture.boxes.iter().find(|drawn| drawn.title == "h1").unwrap();
    let rows: Vec<_> = h1.rows.iter().map(|row| (row.cells.join("|"), row.state)).collect();
    let text = |text: &str, state| (text.to_owned(), state);
    assert_eq!(
        rows,
        [
            text("uplink eth0|192.0.2.1", State::Up),
            text("a|vm ta|up|rx 2.00k packets|tx 5 packets", State::Up),
            text("b|vm tb|up|rx 2.00k packets|tx 5 packets|drops 7 acl_drop", State::Drops),
            text("c|vm tc|down|rx 2.00k packets|tx 5 packets", State::Down),
        ]
    );
    let tunnel = picture.boxes.iter().find(|drawn| drawn.kind == Kind::Tunnel).unwrap();
    let cells = "to h2|192.0.2.2|path MTU 1400|rx 3 packets|tx 4.00k packets|neighbour unresolved";
    assert_eq!(
        (tunnel.rows[0].cells.join("|"), tunnel.rows[0].state),
        (cells.to_owned(), State::Down)
    );
    let svg = svg::draw(&picture);
    elements(&svg);
    for state in [State::Up, State::Down, State::Drops] {
        assert!(svg.contains(&format!("class=\"line {}\"", state.name())), "{svg}");
    }
    let brief = Picture::new(String::new(), &topology, true, Some(&live(Some(2.0))));
    let h1 = brief.boxes.iter().find(|drawn| drawn.title == "h1").unwrap();
    assert_eq!(h1.rows[1].cells[..3], ["3 ports of blue", "1 of 3 down", "rx 3.00kpps 24.0Mbit/s"]);
}

#[test]
fn ports_are_counted_when_there_are_many() {
    let hosts = "[[host]]\nname=\"h\"\nuplink=\"eth0\"\n";
    let pool = |ports| {
        let toml = format!(
            "{hosts}[[logical_switch]]\nname=\"blue\"\nvni=1\ntunnel=\"vxlan\"\n\
             [[logical_switch.pool]]\nname=\"pods\"\nhosts=[\"h\"]\ncount={ports}\n\
             mac=\"02:00:00:01:00:01\"\naddresses=[\"10.0.0.1/16\"]\n"
        );
        Network::parse(&toml, "network.toml").unwrap()
    };
    let network = pool(250);
    let attached = |port: &str| port.ends_with(".7").then(|| "interface veth7".to_owned());
    let topology = Topology::of_network(&network, attached);
    let picture = Picture::new(String::new(), &topology, false, None);
    let rows: Vec<_> = picture.boxes[1].rows.iter().map(|row| row.cells[0].clone()).collect();
    assert_eq!(rows, ["249 free ports of pods on h", "pods.h.7"]);
    let topology = Topology::of_network(&pool(400), |_| Some("interface veth".to_owned()));
    let picture = Picture::new(String::new(), &topology, false, None);
    assert_eq!(picture.boxes[1].rows[0].cells[0], "400 ports on h");
}

#[test]
fn host_of_ovn_draws_what_its_program_has() {
    let (_, network) = examples().into_iter().find(|(name, _)| name == "routed.toml").unwrap();
    let host = &network.hosts()[0];
    let mut numbers = crate::host_numbers::HostNumbers::default();
    let built =
        crate::host_config::build(&network, host, "n.toml", true, &mut numbers, |_| None).unwrap();
    let topology = Topology::of_program(&built.program, &built.config, |address| {
        (address.to_string() == "192.0.2.2").then(|| "h2".to_owned())
    });
    let hosts: Vec<_> = topology.hosts.iter().map(|host| (&*host.name, &*host.uplink)).collect();
    assert_eq!(hosts, [("h1", "eth0"), ("h2", "")]);
    assert_eq!(topology.tunnels[0].hosts, ["h1", "h2"]);
    let web = topology.switches.iter().find(|switch| switch.name == "web").unwrap();
    let ports: Vec<_> = web
        .ports
        .iter()
        .map(|port| (&*port.name, port.host.as_deref(), port.device.as_deref()))
        .collect();
    assert_eq!(ports, [("web1", Some("h1"), Some("tap web1 in web1")), ("web2", Some("h2"), None)]);
    let links: Vec<_> = topology
        .routers
        .iter()
        .flat_map(|router| &router.ports)
        .map(|port| (&*port.name, &*port.peer, &*port.peer_port))
        .collect();
    assert_eq!(
        links,
        [
            ("core-db", "db", ""),
            ("core-edge", "edge", "edge-core"),
            ("core-web", "web", ""),
            ("edge-core", "core", "core-edge"),
            ("edge-ops", "ops", ""),
        ]
    );
    let picture = Picture::new(String::new(), &topology, false, None);
    elements(&svg::draw(&picture));
    check_dot(&dot::draw(&picture));
}
