//! Random programs in both languages: OpenFlow flows of a bridge, and networks with a router and
//! ACLs. They match the few values that [`frames`] generates, and use the ports and end points of
//! the suite.

use super::{Ability, PORTS, Provider, tunnel_port};
use crate::frames;
use crate::random::Random;
use datapath::config::EndpointConfig;
use flow::{Carrier, EndpointId, PortNo, TunnelType};
use network::{Network, Placement, load_program, logical_flows};
use ofctl::Bridge;
use pipeline::{BridgePort, BridgePortKind, Program};
use std::fmt::Write;
use std::net::IpAddr;

/// Tables of a bridge that have flows.
const TABLES: usize = 4;
/// The bridge port for tunnels.
const TUNNEL: PortNo = PortNo(9);

/// A program.
pub(super) struct Source {
    pub program: Program,
    /// The source text.
    pub text: String,
}

impl Source {
    /// A random program.
    pub fn random(random: &mut Random, provider: Provider<'_>) -> Self {
        if random.once_in(2) { bridge(random, provider) } else { network(random, provider) }
    }
}

fn bridge(random: &mut Random, provider: Provider<'_>) -> Source {
    let endpoints = provider.endpoints();
    let mut text = String::new();
    for table in 0..TABLES {
        for _ in 0..2 + random.below(5) {
            let (condition, is_ip) = condition(random);
            let (priority, actions) = (1 + random.below(4), actions(random, table, is_ip));
            let _ =
                writeln!(text, "table={table},priority={priority}{condition} actions={actions}");
        }
        let last = match (table + 1 < TABLES, random.below(3)) {
            (true, 1..) => format!("resubmit(,{})", table + 1),
            (_, 0) => "normal".to_owned(),
            _ => output(random),
        };
        let _ = writeln!(text, "table={table},priority=0 actions={last}");
    }
    let devices = PORTS.map(|port| Bridge::device(port, &format!("p{port}")));
    let mut bridge = Bridge::new("br0", devices).expect("ports that can be");
    bridge.apply(&text, "flows", 0).unwrap_or_else(|fault| panic!("{fault}\n{text}"));
    let mut program = bridge.program().clone();
    let tunnels = endpoints.iter().map(|endpoint| tunnel_port(endpoint.spec.tunnel));
    for port in tunnels.chain([TUNNEL]) {
        let remotes = endpoints.iter().map(|endpoint| (endpoint.remote, endpoint.id));
        let kind = BridgePortKind::Tunnel { endpoints: remotes.collect() };
        let bridge_port = BridgePort { name: format!("tunnel{port}"), number: port, kind };
        program.set_bridge_port(Program::BRIDGE, port, bridge_port);
    }
    Source { program, text }
}

fn ip4_prefix(random: &mut Random) -> String {
    format!("{}/{}", frames::ip4(random), random.pick(&[8, 23, 24, 30, 31, 32]))
}

fn ip6_prefix(random: &mut Random) -> String {
    format!("{}/{}", frames::ip6(random), random.pick(&[8, 16, 112, 127, 128]))
}

fn port_mask(random: &mut Random) -> String {
    let port = frames::port(random);
    match random.below(3) {
        0 => {
            let mask = random.pick(&[0x8000_u16, 0xff00, 0xfff0]);
            format!("{:#x}/{mask:#x}", port & mask)
        }
        _ => port.to_string(),
    }
}

/// A random match, and whether it requires IP.
fn condition(random: &mut Random) -> (String, bool) {
    let mut words = Vec::new();
    match random.below(6) {
        0 => words.push(format!("in_port={}", random.pick(&PORTS))),
        1 => words.push(format!("dl_src={}", frames::mac(random))),
        2 => words.push(format!("dl_dst={}", frames::mac(random))),
        3 => words.push("dl_dst=01:00:00:00:00:00/01:00:00:00:00:00".to_owned()),
        _ => {}
    }
    let kind = random.pick(&["", "", "ip", "ipv6", "tcp", "udp", "tcp6", "udp6", "arp", "icmp6"]);
    if !kind.is_empty() {
        words.push(kind.to_owned());
    }
    let is_v4 = matches!(kind, "ip" | "tcp" | "udp");
    let is_ip = is_v4 || matches!(kind, "ipv6" | "tcp6" | "udp6");
    if is_v4 && random.once_in(2) {
        words.push(format!("{}={}", random.pick(&["nw_src", "nw_dst"]), ip4_prefix(random)));
    }
    if is_ip && !is_v4 && random.once_in(2) {
        words.push(format!("{}={}", random.pick(&["ipv6_src", "ipv6_dst"]), ip6_prefix(random)));
    }
    if is_ip && random.once_in(4) {
        words.push(
            random.pick(&["nw_ttl=1", "nw_ttl=64", "nw_tos=40", "nw_ecn=1", "ip_frag=no"]).into(),
        );
    }
    if matches!(kind, "tcp" | "udp" | "tcp6" | "udp6") && !random.once_in(4) {
        words.push(format!("{}={}", random.pick(&["tp_src", "tp_dst"]), port_mask(random)));
    }
    if matches!(kind, "tcp" | "tcp6") && random.once_in(3) {
        words.push(random.pick(&["tcp_flags=0x2/0x2", "tcp_flags=+ack", "tcp_flags=0x12"]).into());
    }
    match kind {
        "arp" if random.once_in(2) => words.push(format!("arp_tpa={}", ip4_prefix(random))),
        "arp" => words.push(format!("arp_op={}", 1 + random.below(2))),
        "icmp6" if random.once_in(2) => words.push("icmpv6_type=135".to_owned()),
        _ => {}
    }
    if random.once_in(5) {
        words.push(
            random
                .pick(&["dl_vlan=1", "vlan_tci=0", "vlan_tci=0x1000/0x1000", "vlan_pcp=1"])
                .into(),
        );
    }
    if random.once_in(5) {
        words.push(random.pick(&["reg0=0x1/0x1", "reg0=0", "tun_id=3", "tun_id=0/0xc"]).into());
    }
    let text = words.iter().fold(String::new(), |text, word| format!("{text},{word}"));
    (text, is_ip)
}

fn output(random: &mut Random) -> String {
    format!("output:{}", random.pick(&PORTS))
}

fn actions(random: &mut Random, table: usize, is_ip: bool) -> String {
    let mut list: Vec<String> = (0..random.below(4)).map(|_| action(random, is_ip)).collect();
    list.push(match random.below(8) {
        0 => random.pick(&["normal", "flood", "in_port", "controller"]).to_owned(),
        1..4 if table + 1 < TABLES => format!("resubmit(,{})", table + 1),
        4 => into_tunnel(random),
        5 => format!("resubmit({},{})", random.pick(&PORTS), TABLES - 1),
        _ => output(random),
    });
    if random.once_in(12) {
        return "drop".to_owned();
    }
    list.join(",")
}

fn action(random: &mut Random, is_ip: bool) -> String {
    match random.below(15) {
        0 => format!("mod_dl_src:{}", frames::mac(random)),
        1 => format!("mod_dl_dst:{}", frames::mac(random)),
        2 if is_ip => "dec_ttl".to_owned(),
        3 => format!("mod_nw_src:{}", frames::ip4(random)),
        4 => format!("mod_nw_dst:{}", frames::ip4(random)),
        5 => format!("mod_tp_dst:{}", frames::port(random)),
        6 => random.pick(&["mod_nw_tos:184", "mod_nw_ecn:1", "mod_nw_ttl:9"]).to_owned(),
        7 => format!(
            "push_vlan:{},mod_vlan_vid:{}",
            random.pick(&["0x8100", "0x88a8"]),
            1 + random.below(3)
        ),
        8 => "pop_vlan".to_owned(),
        9 => "load:1->NXM_NX_REG0[0]".to_owned(),
        10 => "move:NXM_OF_ETH_SRC[0..3]->NXM_NX_REG0[0..3]".to_owned(),
        11 => format!("clone(mod_dl_dst:{},{})", frames::mac(random), output(random)),
        12 => format!("check_pkt_larger({})->NXM_NX_REG0[0]", random.pick(&[100, 600, 1514])),
        13 => "push:NXM_OF_ETH_SRC[],pop:NXM_OF_ETH_DST[]".to_owned(),
        _ => output(random),
    }
}

/// A random tunnel action. Its destination is an end point, or an address that no end point has.
fn into_tunnel(random: &mut Random) -> String {
    let known: Vec<EndpointConfig> = super::endpoints().collect();
    let field = |ip: IpAddr| if ip.is_ipv4() { "tun_dst" } else { "tun_ipv6_dst" };
    let remote =
        if random.once_in(8) { [192, 0, 2, 99].into() } else { random.pick(&known).remote };
    let (key, field) = (1 + random.below(9), field(remote));
    format!("set_field:{key}->tun_id,set_field:{remote}->{field},output:{TUNNEL}")
}

/// A network of two logical switches with local and remote guests, and a router between them. The
/// guests have the addresses that generated frames use.
fn network(random: &mut Random, provider: Provider<'_>) -> Source {
    let types = super::endpoint_types();
    let types: Vec<TunnelType> =
        types.filter(|&tunnel| provider.has(Ability::Tunnel(tunnel))).collect();
    let mut text = "underlay_mtu = 1500\n".to_owned();
    for (host, address) in [("here", 1), ("there", 2)] {
        let _ = writeln!(
            text,
            "[[host]]\nname = \"{host}\"\nuplink = \"uplink\"\nunderlay = [\"192.0.2.{address}\"]"
        );
    }
    let mut types = types;
    for (name, net, vni) in [("blue", 0, 3), ("red", 1, 5)] {
        let (tunnel, mtu) = (random.pick(&types), random.pick(&[576, 1280, 1400]));
        // Two tunnel types over GRE (IP protocol 47) cannot be distinguished between the same two
        // hosts.
        types.retain(|&other| {
            other == tunnel || [tunnel, other].iter().any(|it| it.carrier() != Carrier::Gre)
        });
        let _ = writeln!(
            text,
            "[[logical_switch]]\nname = \"{name}\"\ntunnel = \"{tunnel}\"\nvni = {vni}\nmtu = {}",
            mtu.max(1280)
        );
        let guests = [("1", "here", 1, 1), ("2", "there", 2, 2), ("3", "here", 3, 9)];
        for (guest, host, mac, last) in guests {
            let security = random.pick(&["", "learn = true\n", "port_security = true\n"]);
            let _ = write!(
                text,
                "[[logical_switch.port]]\nname = \"{name}{guest}\"\nhost = \"{host}\"\n\
                 mac = \"02:00:00:00:00:0{mac}\"\naddresses = [\"10.0.{net}.{last}/24\", \
                 \"fd00::{net}:{last}/112\"]\ndevice = {{ interface = \"{name}{guest}\" \
                   }}\n{security}"
            );
        }
    }
    text.push_str("[[logical_router]]\nname = \"core\"\n");
    for (name, net) in [("blue", 0), ("red", 1)] {
        let _ = writeln!(
            text,
            "[[logical_router.port]]\nname = \"core-{name}\"\nswitch = \"{name}\"\n\
             mac = \"02:00:00:00:00:04\"\naddresses = [\"10.0.{net}.3/24\", \"fd00::{net}:3/112\"]"
        );
    }
    for _ in 0..random.below(6) {
        acl(random, &mut text);
    }
    let network = Network::parse(&text, "network.toml");
    let network = network.unwrap_or_else(|faults| panic!("{faults}\n{text}"));
    let host = network.host("here").expect("it is in the text").index;
    let mut ports = PORTS.into_iter();
    let endpoints = provider.endpoints();
    let end_point = |tunnel| -> Option<EndpointId> {
        Some(endpoints.iter().find(|endpoint| endpoint.spec.tunnel == tunnel)?.id)
    };
    let number = |_: &_, _: &_| ports.next().expect("four guests are here");
    let placement = Placement::of_host(&network, host, number, |tunnel, _| end_point(tunnel));
    let loader = load_program(&logical_flows(&network), &placement, "network.toml");
    let loader = loader.unwrap_or_else(|fault| panic!("{fault}\n{text}"));
    Source { program: loader.program(), text }
}

fn acl(random: &mut Random, text: &mut String) {
    let condition = match random.below(12) {
        0 => format!("tcp.dst == {}", frames::port(random)),
        1 => format!("udp.src == {{{}, {}}}", frames::port(random), frames::port(random)),
        2 => format!("ip4.src == {}", frames::ip4(random)),
        3 => "ip4.dst == 10.0.1.0/31 && ip.proto == 17".to_owned(),
        4 => "ip6.dst == fd00::1:0/112 && tcp".to_owned(),
        5 => "arp".to_owned(),
        6 => "icmp6.type == 128".to_owned(),
        7 => "ip.ttl == {1, 64}".to_owned(),
        8 => "tcp.flags == 0x2/0x2".to_owned(),
        9 => "ip.dscp == 10 || ip.ttl == 2".to_owned(),
        10 => format!("eth.src == {}", frames::mac(random)),
        _ => format!("tcp.dst >= {} && tcp.dst < 30000", frames::port(random).min(20_000)),
    };
    let _ = writeln!(
        text,
        "[[acl]]\nswitch = \"{}\"\ndirection = \"{}\"\npriority = {}\nmatch = \
         '{condition}'\naction = \"{}\"",
        random.pick(&["blue", "red"]),
        random.pick(&["from-port", "to-port"]),
        1000 + random.below(3),
        random.pick(&["allow", "drop", "reject"]),
    );
}
