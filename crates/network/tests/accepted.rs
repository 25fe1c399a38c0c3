//! Tests valid files: the resulting model, and that the files in the documentation are valid.

use network::{
    DatapathKey, Device, Dscp, IpNet, LogicalSwitch, Network, PortKey, RouterLink, Segment, Ttl,
    TunnelType, UnderlayFamily,
};
use std::path::{Path, PathBuf};
use wire::EtherType;

const TWO_HOSTS: &str = r#"
host = [
  { name = "h1", uplink = "eth0", underlay = ["192.0.2.1", "2001:db8::1"] },
  { name = "h2", uplink = "eth1", underlay = ["2001:db8::2", "192.0.2.2"] },
]
"#;

fn parse(text: &str) -> Network {
    Network::parse(text, "net.toml").unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A switch of each type with default options.
fn switch_of_each_type(underlay: &str) -> Network {
    let switches = TunnelType::ALL.map(|tunnel| {
        let segment = match tunnel {
            TunnelType::Vlan => "vlan = 5",
            TunnelType::QinQ => "vlan = { outer = 5, inner = 6 }",
            _ => "vni = 5",
        };
        format!("[[logical_switch]]\nname = \"{tunnel}\"\ntunnel = \"{tunnel}\"\n{segment}\n")
    });
    parse(&format!("{underlay}{TWO_HOSTS}{}", switches.concat()))
}

/// Ports without a number get the first free one, and all datapaths have different keys.
#[test]
fn bridge_ports_are_numbered_around_those_that_have_a_number() {
    let port = |name: &str, more: &str| {
        format!("[[bridge.port]]\nname = \"{name}\"\n{more}device = {{ tap = \"{name}\" }}\n")
    };
    let bridge = |name: &str| format!("[[bridge]]\nname = \"{name}\"\nhost = \"h2\"\n");
    let text = format!("underlay_mtu = 1400\n{TWO_HOSTS}")
        + &bridge("br0")
        + &[port("a", ""), port("b", "number = 1\n"), port("c", "")].concat()
        + &bridge("br1")
        + &port("d", "");
    let network = parse(&text);
    let h2 = network.host("h2").unwrap().index;
    let on_h2: Vec<_> = network.bridges_on(h2).collect();
    let numbers =
        |index: usize| on_h2[index].1.ports.iter().map(|port| port.number.0).collect::<Vec<_>>();
    assert_eq!((numbers(0), numbers(1)), (vec![2, 1, 3], vec![1]));
    assert_ne!(on_h2[0].0, on_h2[1].0);
    assert_eq!(on_h2[0].1.mtu, 1400);
    assert_eq!(network.bridges_on(network.host("h1").unwrap().index).count(), 0);
}

#[test]
fn example_is_valid_when_loaded_for_each_type() {
    for tunnel in TunnelType::ALL {
        let path = root().join(format!("examples/{tunnel}.toml"));
        let network = Network::load(&path).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(network.hosts().len(), 2, "{tunnel}");
        let [blue] = network.logical_switches() else { panic!("{tunnel}: one switch") };
        assert_eq!(blue.tunnel, tunnel);
        assert_eq!(blue.ports.len(), 2, "{tunnel}");
        // The examples say that the MTU they give is the default.
        let given = std::fs::read_to_string(&path).unwrap();
        let without: String = given
            .lines()
            .filter(|line| !line.starts_with("mtu"))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_ne!(given, without);
        assert_eq!(parse(&without), network, "{tunnel}");
    }
}

/// The manual shows whole files, then a file with errors and the messages about it.
#[test]
fn manual_shows_valid_files_and_real_messages() {
    let manual = std::fs::read_to_string(root().join("docs/network-toml.md")).unwrap();
    let blocks = |language: &str| -> Vec<String> {
        let fence = format!("```{language}\n");
        let parts = manual.split(&fence).skip(1);
        parts.filter_map(|part| part.split_once("```")).map(|(block, _)| block.to_owned()).collect()
    };
    let [valid, pooled, routed, bridged, grouped, mistaken] =
        blocks("toml").try_into().expect("six files");
    let [complaints] = blocks("text").try_into().expect("one set of complaints");
    assert_eq!(parse(&valid).logical_switches().len(), 2);
    let pooled = parse(&pooled);
    let ports = &pooled.logical_switches()[0].ports;
    let shown = [0, 99, 100, 199].map(|index| ports[index].addresses[0].addr().to_string());
    assert_eq!(shown, ["10.88.0.10", "10.88.0.109", "10.88.0.110", "10.88.0.209"]);
    assert_eq!(ports[100].name, "web.h2.1");
    assert_eq!(parse(&routed).logical_routers().len(), 1);
    let bridged = parse(&bridged);
    let [bridge] = bridged.bridges() else { panic!("one bridge") };
    assert_eq!(bridge.ports.iter().map(|port| port.number.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((bridge.mtu, bridge.flows.as_deref()), (1500, Some("br0.flows".as_ref())));
    let groups = parse(&grouped).logical_switches().iter().map(|s| s.group).collect::<Vec<_>>();
    assert_eq!(groups, ["239.1.1.1", "239.1.1.2"].map(|group| Some(group.parse().unwrap())));
    let errors = Network::parse(&mistaken, "network.toml").unwrap_err();
    assert_eq!(errors.to_string(), complaints.trim_end());
}

#[test]
fn manual_has_the_options_of_every_tunnel_type() {
    let manual = std::fs::read_to_string(root().join("docs/network-toml.md")).unwrap();
    for tunnel in TunnelType::ALL {
        assert!(manual.contains(&format!("`\"{tunnel}\"`")), "{tunnel}");
        for option in tunnel.descriptor().options {
            let begin = format!("| `{}` | ", option.name);
            // The table of switches has some of these keys too, in rows above.
            let row = manual.lines().rfind(|line| line.starts_with(&begin));
            let row = row.unwrap_or_else(|| panic!("{tunnel}: {option:?}"));
            assert!(row.contains(&format!("`{tunnel}`")), "{tunnel}: {row}");
            assert!(row.contains(option.default), "{tunnel}: {row}");
        }
    }
}

#[test]
fn network_holds_everything_in_the_file() {
    let network = parse(
        r#"
tunnel = "geneve"
underlay_mtu = 9000
least_path_mtu = 1400
path_probes = true
underlay_family = 6
punt_limit = 128
upcall_cpu_percent = 50
connections = { limit = 7, per_zone = 5, liberal_tcp = true, timeouts = { udp = 9 } }

[tunnel_options.geneve]
udp_port = 6082
checksum = false
logical_ports = false
ttl = 255
dscp = "inherit"
[tunnel_options.vxlan]
udp_port = 8472
checksum = false
dscp = 46
group = "ff05::1:1"
group_ttl = 7
[tunnel_options.gre]
checksum = true
sequence = true
ttl = 1
[tunnel_options.stt]
tcp_port = 7472
logical_ports = false
ttl = "inherit"
[tunnel_options.vlan]
[tunnel_options.qinq]
s_tpid = 0x9100

[underlay]
authenticate = "reverse-path"

[[host]]
name = "h1"
uplink = "eth0"
underlay = ["192.0.2.1", "2001:db8::1"]
[[host]]
name = "h2"
uplink = "bond0.7"
underlay = ["2001:db8::2"]
least_path_mtu = 1300

[[logical_switch]]
name = "blue"
vni = 0xffffff
mtu = 1400
  [[logical_switch.port]]
  name = "web"
  host = "h2"
  mac = "02:00:00:00:00:01"
  addresses = ["10.0.0.1/24", "fd00::1/64"]
  device = { tap = "web0", netns = "web" }
  [[logical_switch.port]]
  name = "vm"
  host = "h1"
  mac = "02:00:00:00:00:02"
  device = { interface = "veth-vm" }
"#,
    );
    assert_eq!((network.underlay_mtu(), network.underlay_family()), (9000, UnderlayFamily::V6));
    assert_eq!(network.least_path_mtu(), 1400);
    let [first, second] = [0, 1].map(|host| network.hosts()[host].index);
    assert_eq!(network.least_path_mtu_between(first, second), 1300);
    assert_eq!(network.least_path_mtu_between(first, first), 1400);
    assert!(network.path_probes());
    assert!(network.checks_reverse_path());
    assert_eq!(network.punt_limit(), Some(128));
    assert_eq!(network.upcall_cpu_percent(), Some(50));
    let connections = network.connections();
    let mut expected = network::default_connections();
    expected.limits =
        conntrack::Limits { connections: 7, per_port: 3, per_zone: 5, ..expected.limits };
    expected.liberal_tcp = true;
    expected.timeouts.set(conntrack::Timeout::Udp, 9);
    assert_eq!(*connections, expected);
    assert!(connections.adaptive);
    let options = network.options();
    let [vxlan, geneve, gre, stt, qinq] =
        [TunnelType::Vxlan, TunnelType::Geneve, TunnelType::Gre, TunnelType::Stt, TunnelType::QinQ]
            .map(|tunnel| options.of(tunnel));
    assert_eq!((geneve.port, geneve.checksum, geneve.logical_ports), (6082, Some(false), false));
    assert_eq!((geneve.ttl, geneve.dscp), (Ttl::Fixed(255), Dscp::Inherit));
    assert_eq!((vxlan.port, vxlan.checksum), (8472, Some(false)));
    assert_eq!(vxlan.group_ttl, 7);
    assert_eq!(network.logical_switches()[0].group, None, "it is of another type");
    assert_eq!((vxlan.ttl, vxlan.dscp), (Ttl::Fixed(64), Dscp::Fixed(46)));
    assert_eq!((gre.checksum, gre.key, gre.sequence), (Some(true), true, true));
    assert_eq!((gre.ttl, gre.dscp), (Ttl::Fixed(1), Dscp::Fixed(0)));
    assert_eq!((stt.port, stt.logical_ports), (7472, false));
    assert_eq!((stt.ttl, stt.dscp), (Ttl::Inherit, Dscp::Fixed(0)));
    assert_eq!(qinq.service_tpid, EtherType::VLAN_9100);
    assert!(TunnelType::ALL.into_iter().all(|tunnel| !options.of(tunnel).logical_ports));

    let (h1, h2) = (network.host("h1").unwrap(), network.host("h2").unwrap());
    assert_eq!(network.host("h3"), None);
    assert_eq!((&network[h2.index], h2.index.value(), h2.uplink.as_str()), (h2, 1, "bond0.7"));
    assert_eq!(h1.underlay(UnderlayFamily::V4), Some("192.0.2.1".parse().unwrap()));
    assert_eq!(h2.underlay(UnderlayFamily::V4), None);
    assert_eq!(h2.underlay(UnderlayFamily::V6), Some("2001:db8::2".parse().unwrap()));

    let blue = network.logical_switch("blue").unwrap();
    assert_eq!(blue.segment, Segment::Vni(0xff_ffff));
    assert_eq!((blue.datapath_key, blue.mtu), (DatapathKey(0xff_ffff), 1400));
    let [web, vm] = blue.ports.as_slice() else { panic!("two ports") };
    assert_eq!((web.name.as_str(), web.host, web.key.value()), ("web", h2.index, 1));
    assert_eq!(web.mac.to_string(), "02:00:00:00:00:01");
    let addresses: Vec<_> = web.addresses.iter().map(IpNet::to_string).collect();
    assert_eq!(addresses, ["10.0.0.1/24", "fd00::1/64"]);
    let device = web.device.as_ref().unwrap();
    assert_eq!((device.name(), device.netns()), ("web0", Some("web")));
    assert_eq!(vm.device, Some(Device::Interface { name: "veth-vm".to_owned() }));
    assert_eq!((vm.key.value(), vm.addresses.len()), (2, 0));

    assert_eq!(blue.port(web.key), Some(web));
    assert_eq!(blue.port(PortKey::FLOOD), None);
    assert_eq!(network.ports_on(h1.index).collect::<Vec<_>>(), [(blue, vm)]);
    assert!(blue.remote_hosts(h1.index).into_iter().eq([h2.index]));
}

#[test]
fn mtu_is_the_largest_that_fits_when_not_given() {
    let mtus = |underlay: &str| -> Vec<u16> {
        switch_of_each_type(underlay).logical_switches().iter().map(|switch| switch.mtu).collect()
    };
    // vxlan, geneve, gre, nvgre, stt, vlan, qinq
    assert_eq!(mtus(""), [1450, 1442, 1458, 1458, 1500, 1496, 1492]);
    assert_eq!(mtus("underlay_family = 6\n"), [1430, 1422, 1438, 1438, 1500, 1496, 1492]);
    assert_eq!(mtus("underlay_mtu = 9000\n"), [8950, 8942, 8958, 8958, 9000, 8996, 8992]);
    assert_eq!(mtus("underlay_mtu = 65535\n"), [65485, 65477, 65493, 65493, 65463, 65531, 65527]);
}

#[test]
fn datapath_key_is_unique_in_each_type_when_derived_from_the_segment() {
    let network = switch_of_each_type("");
    let keys: Vec<_> =
        network.logical_switches().iter().map(|switch| switch.datapath_key.0).collect();
    assert_eq!(keys, [5, 5, 5, 5, 5, 5, 5 << 12 | 6]);
    let unkeyed = parse(&format!(
        "{TWO_HOSTS}[tunnel_options.gre]\nkey = false\n\
         [[logical_switch]]\nname = \"blue\"\ntunnel = \"gre\"\n"
    ));
    let blue = unkeyed.logical_switch("blue").unwrap();
    assert_eq!(
        (blue.segment, blue.datapath_key, blue.mtu),
        (Segment::Unkeyed, DatapathKey(0), 1462)
    );
}

#[test]
fn family_is_the_common_one_when_not_given() {
    let family = |h1: &str, h2: &str| {
        parse(&format!(
            r#"
tunnel = "vxlan"
[[host]]
name = "h1"
uplink = "eth0"
underlay = [{h1}]
[[host]]
name = "h2"
uplink = "eth0"
underlay = [{h2}]
[[host]]
name = "idle"
uplink = "eth0"
[[logical_switch]]
name = "blue"
vni = 1
port = [
  {{ name = "a", host = "h1", mac = "02:00:00:00:00:01", device = {{ tap = "a" }} }},
  {{ name = "b", host = "h2", mac = "02:00:00:00:00:02", device = {{ tap = "b" }} }},
]
"#
        ))
        .underlay_family()
    };
    let (v4, v6) = (r#""192.0.2.1""#, r#""2001:db8::1""#);
    assert_eq!(family(v4, r#""192.0.2.2""#), UnderlayFamily::V4);
    assert_eq!(family(&format!("{v6}, {v4}"), r#""2001:db8::2", "192.0.2.2""#), UnderlayFamily::V4);
    assert_eq!(family(&format!("{v6}, {v4}"), r#""2001:db8::2""#), UnderlayFamily::V6);
}

/// A port named `name` with the last two bytes of its MAC address from `number`, and a device.
fn port(name: &str, host: &str, number: u16, device: &str) -> String {
    let [high, low] = number.to_be_bytes();
    format!(
        "{{ name = \"{name}\", host = \"{host}\", mac = \"02:00:00:00:{high:02x}:{low:02x}\", \
         addresses = [\"10.0.{high}.{low}/8\"], device = {{ {device} }} }},\n"
    )
}

/// A port with an explicit key.
fn keyed(name: &str, key: u16) -> String {
    let port = port(name, "h1", key, &format!("tap = \"{name}\""));
    port.replacen("{ ", &format!("{{ key = {key}, "), 1)
}

fn switch(name: &str, segment: &str, ports: &str) -> String {
    format!("[[logical_switch]]\nname = \"{name}\"\n{segment}\nport = [\n{ports}]\n")
}

#[test]
fn underlay_address_is_not_needed_when_no_tunnel_ends_at_the_host() {
    let local = port("a", "h1", 1, "tap = \"a\"") + &port("b", "h1", 2, "tap = \"b\"");
    let tagged = port("c", "h1", 1, "tap = \"c\"") + &port("d", "h2", 2, "tap = \"d\"");
    let network = parse(&format!(
        "host = [{{ name = \"h1\", uplink = \"e\" }}, {{ name = \"h2\", uplink = \"e\" }}]\n{}{}",
        switch("local", "tunnel = \"vxlan\"\nvni = 1", &local),
        switch("tagged", "tunnel = \"vlan\"\nvlan = 1", &tagged),
    ));
    assert_eq!(network.hosts()[0].underlay(network.underlay_family()), None);
}

/// Tests the same MAC and IP address in two switches, and a device name that occurs on two hosts,
/// in two namespaces, and as the uplink of another host.
#[test]
fn same_name_is_accepted_when_the_place_differs() {
    let blue = port("a", "h1", 1, "tap = \"tap0\"") + &port("b", "h2", 2, "tap = \"tap0\"");
    let red = port("c", "h1", 1, "tap = \"tap0\", netns = \"x\"")
        + &port("d", "h1", 2, "tap = \"eth0\", netns = \"x\"");
    let network = parse(&format!(
        "{TWO_HOSTS}{}{}",
        switch("blue", "tunnel = \"vxlan\"\nvni = 1", &blue),
        switch("red", "tunnel = \"vxlan\"\nvni = 2", &red),
    ));
    let ports = network.logical_switches().iter().map(|switch| switch.ports.len());
    assert_eq!(ports.collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn keys_are_one_to_the_last_when_a_switch_is_full() {
    let ports: String = (1..=PortKey::MAX_PORT)
        .map(|number| port(&format!("p{number}"), "h1", number, &format!("tap = \"p{number}\"")))
        .collect();
    let blue = switch("blue", "tunnel = \"stt\"\nvni = 1", &ports);
    let network = parse(&format!("{TWO_HOSTS}{blue}"));
    let blue: &LogicalSwitch = network.logical_switch("blue").unwrap();
    assert!(blue.ports.iter().map(|port| port.key.value()).eq(1..=PortKey::MAX_PORT));
    assert!(blue.ports.iter().all(|port| blue.port(port.key) == Some(port)));
}

#[test]
fn ports_without_key_get_the_free_keys_and_routers_the_last() {
    let auto = |name: &str, number| port(name, "h2", number, &format!("tap = \"{name}\""));
    let ports = [
        auto("a", 101),
        keyed("b", 1),
        auto("c", 102),
        keyed("d", 32_767),
        keyed("e", 3),
        auto("f", 103),
    ];
    let blue = switch("blue", "tunnel = \"geneve\"\nvni = 1", &ports.concat());
    let link = |number: u8| {
        format!(
            "{{ name = \"r{number}\", switch = \"blue\", mac = \"02:00:00:00:ff:0{number}\", \
             addresses = [\"10.0.{number}.1/24\"] }},\n"
        )
    };
    let links = link(1) + &link(2);
    let router = format!("[[logical_router]]\nname = \"core\"\nport = [\n{links}]\n");
    let network = parse(&format!("{TWO_HOSTS}{blue}{router}"));
    let blue = network.logical_switch("blue").unwrap();
    let keys = blue.ports.iter().map(|port| (port.name.as_str(), port.key.value()));
    let expected = [("a", 2), ("b", 1), ("c", 4), ("d", 32_767), ("e", 3), ("f", 5)];
    assert!(keys.eq(expected));
    assert!(blue.ports.iter().all(|port| blue.port(port.key) == Some(port)));
    assert_eq!(blue.port(PortKey::new(6).unwrap()), None);
    let links = network.logical_routers()[0].ports.iter().map(|port| match port.link {
        RouterLink::Switch { key, .. } => key.value(),
        RouterLink::Router { .. } => 0,
    });
    assert!(links.eq([32_766, 32_765]));
}

#[test]
fn port_with_a_key_keeps_it_when_other_ports_come_and_go() {
    for numbers in [&[1, 2, 3][..], &[3, 9, 1, 2], &[7, 3]] {
        let ports: String = numbers.iter().map(|&n| keyed(&format!("p{n}"), n)).collect();
        let blue = switch("blue", "tunnel = \"stt\"\nvni = 1", &ports);
        let network = parse(&format!("{TWO_HOSTS}{blue}"));
        let ports = &network.logical_switches()[0].ports;
        assert_eq!(ports.len(), numbers.len());
        assert!(ports.iter().all(|port| port.name == format!("p{}", port.key.value())));
    }
}

#[test]
fn byte_order_mark_is_skipped_and_does_not_count_as_a_column() {
    assert_eq!(parse(&format!("\u{feff}{TWO_HOSTS}")), parse(TWO_HOSTS));
    let errors = Network::parse("\u{feff}vnii = 1", "net.toml").unwrap_err();
    assert_eq!(errors.problems()[1].position.map(|at| (at.line, at.column)), Some((1, 1)));
}

#[test]
fn routed_example_is_valid_and_complete() {
    let path = root().join("examples/routed.toml");
    let network = Network::load(&path).unwrap_or_else(|errors| panic!("{errors}"));
    let [web, db, ops] = network.logical_switches() else { panic!("three switches") };
    assert!(web.arp_responder && db.arp_responder && ops.arp_responder);
    let security: Vec<_> =
        web.ports.iter().map(|port| port.security.as_ref().unwrap().to_string()).collect();
    assert_eq!(
        security,
        [
            "02:00:00:00:01:0a 10.0.1.10 fd00:1::a",
            "02:00:00:00:01:0b 10.0.1.11 10.8.0.0/16 fd00:1::b"
        ]
    );
    let core = network.logical_router("core").unwrap();
    let [to_web, to_db, to_edge] = core.ports.as_slice() else { panic!("three ports") };
    let RouterLink::Switch { switch, key } = to_web.link else { panic!("a switch") };
    assert_eq!((&network[switch].name, key.value()), (&web.name, PortKey::MAX_PORT));
    assert_eq!(to_db.key.value(), 2);
    let RouterLink::Router { router, port } = to_edge.link else { panic!("a router") };
    assert_eq!(network[router].port(port).unwrap().name, "edge-core");
    let [route, default4, default6] = core.routes.as_slice() else { panic!("three routes") };
    assert_eq!((route.port, route.source), (to_web.key, "10.0.1.1".parse().unwrap()));
    assert_eq!((default4.port, default4.prefix.prefix_len()), (to_edge.key, 0));
    assert_eq!(default6.next_hop.to_string(), "fd00:3::2");
    assert_eq!(network.acls().len(), 4);
    assert_eq!(network.acls()[1].log.as_deref(), Some("no-ssh"));
    assert_eq!(network.port_groups()["servers"], ["web1", "web2", "db1"]);
    assert_eq!(network.address_sets()["admins"][0].to_string(), "10.0.9.10");
}

/// Tests every prefix of a valid file, and the file with each byte replaced: they must give a
/// network or errors, and never a panic.
#[test]
fn damaged_file_gives_errors_and_no_panic() {
    let text = std::fs::read_to_string(root().join("examples/geneve.toml")).unwrap();
    assert!(text.is_ascii());
    let mut refused = 0;
    for at in 0..text.len() {
        refused += u32::from(Network::parse(&text[..at], "net.toml").is_err());
        for other in ["\"", "]", "{", "=", "\n", "9", "\u{0}", "é"] {
            let damaged = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            if let Err(errors) = Network::parse(&damaged, "net.toml") {
                refused += 1;
                assert!(errors.to_string().starts_with("net.toml:"), "{errors}");
            }
        }
    }
    let routed = std::fs::read_to_string(root().join("examples/routed.toml")).unwrap();
    assert!(routed.is_ascii());
    for at in (0..routed.len()).step_by(7) {
        let damaged = format!("{}9{}", &routed[..at], &routed[at + 1..]);
        for text in [&routed[..at], &damaged] {
            refused += u32::from(Network::parse(text, "net.toml").is_err());
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn pool_has_consecutive_ports_on_each_host() {
    let text = concat!(
        "tunnel = \"geneve\"\n",
        "host = [{ name = \"h1\", uplink = \"e\", underlay = [\"192.0.2.1\"] }, ",
        "{ name = \"h2\", uplink = \"e\", underlay = [\"192.0.2.2\"] }]\n",
        "[port_group]\npods = [\"p\", \"a\"]\n",
        "[[logical_switch]]\nname = \"s\"\nvni = 1\n",
        "port = [{ name = \"a\", host = \"h1\", mac = \"02:00:00:00:09:01\", ",
        "device = { tap = \"a0\" } }]\n",
        "[[logical_switch.pool]]\nname = \"p\"\nhosts = [\"h2\", \"h1\"]\ncount = 2\n",
        "mac = \"02:00:00:00:00:ff\"\naddresses = [\"10.0.0.255/16\", \"fd00::ffff/64\"]\n",
    );
    let network = Network::parse(text, "n.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let switch = &network.logical_switches()[0];
    assert!(switch.arp_responder, "all addresses are known");
    let rows: Vec<String> = switch.ports[1..]
        .iter()
        .map(|port| {
            let nets: Vec<_> = port.addresses.iter().map(ToString::to_string).collect();
            let host = &network[port.host].name;
            format!("{} {} {host} {} {}", port.key.value(), port.name, port.mac, nets.join(" "))
        })
        .collect();
    assert_eq!(
        rows,
        [
            "2 p.h2.1 h2 02:00:00:00:00:ff 10.0.0.255/16 fd00::ffff/64",
            "3 p.h2.2 h2 02:00:00:00:01:00 10.0.1.0/16 fd00::1:0/64",
            "4 p.h1.1 h1 02:00:00:00:01:01 10.0.1.1/16 fd00::1:1/64",
            "5 p.h1.2 h1 02:00:00:00:01:02 10.0.1.2/16 fd00::1:2/64",
        ]
    );
    assert!(switch.ports[1..].iter().all(|port| port.device.is_none() && port.security.is_some()));
    let members = &network.port_groups()["pods"];
    assert_eq!(*members, ["p.h2.1", "p.h2.2", "p.h1.1", "p.h1.2", "a"]);
}
