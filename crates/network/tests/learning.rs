//! Tests MAC addresses that the file does not list: which frames teach which addresses, and where
//! frames for them are sent.

use crate::support::Net;
use flow::{DatapathKey, Field, FlowKey, PortKey, TunnelType};
use network::Placement;
use network::logical::LogicalPort;
use pipeline::{FdbKey, FdbPort, LearnEvent, LearnLimits, LearnedTables};
use wire::MacAddr;

/// `a` on h1 does not learn; `b` and `c` on h2 and `d` on h3 do. 02:00:00:00:00:99 is in no file.
fn text(tunnel: TunnelType) -> String {
    let segment = match tunnel {
        TunnelType::Vlan => "vlan = 7",
        TunnelType::QinQ => "vlan = { outer = 7, inner = 8 }",
        _ => "vni = 7",
    };
    let mut text = format!("tunnel = \"{tunnel}\"\n");
    for host in 1..=3 {
        text += &format!(
            "[[host]]\nname = \"h{host}\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.{host}\"]\n"
        );
    }
    text += &format!("[[logical_switch]]\nname = \"blue\"\n{segment}\n");
    for (number, (name, host)) in (1..).zip([("a", 1), ("b", 2), ("c", 2), ("d", 3)]) {
        let learn = if name == "a" { "" } else { "learn = true\n" };
        text += &format!(
            "[[logical_switch.port]]\nname = \"{name}\"\nhost = \"h{host}\"\n\
             mac = \"02:00:00:00:00:0{number}\"\ndevice = {{ tap = \"{name}\" }}\n{learn}"
        );
    }
    text
}

/// The tunnel type whose end points have the numbers 100 plus the index of the host in [`Net::on`].
const GENEVE: TunnelType = TunnelType::Geneve;
const TO_A: &str =
    "eth.src == 02:00:00:00:00:99 && eth.dst == 02:00:00:00:00:01 && eth.type == 0x1234";
const FROM_A: &str =
    "eth.src == 02:00:00:00:00:01 && eth.dst == 02:00:00:00:00:99 && eth.type == 0x1234";

fn event(net: &Net, port: PortKey) -> LearnEvent {
    let datapath = net.logical.datapaths[0].key;
    let mac = MacAddr([2, 0, 0, 0, 0, 0x99]);
    LearnEvent::Fdb(FdbKey { datapath, vlan: 0, mac }, FdbPort::Logical(port))
}

fn key(number: u16) -> PortKey {
    PortKey::new(number).unwrap()
}

fn tables_with(event: LearnEvent) -> LearnedTables {
    let mut learned = LearnedTables::new(LearnLimits::default());
    learned.configure(event);
    learned
}

/// A packet from a tunnel of a host, with these logical ports if the tunnel carries any.
fn from(
    tunnel: TunnelType,
    net: &Net,
    host: u8,
    ports: Option<(u16, u16)>,
) -> impl Fn(&mut FlowKey) + use<> {
    let DatapathKey(number) = net.logical.datapaths[0].key;
    move |key| {
        key.set(Field::InPort, Placement::tunnel_port(tunnel).0.into());
        key.set(Field::TunId, number.into());
        if tunnel.has_endpoints() {
            key.set(Field::TunSrc, 0xc000_0200 | u128::from(host));
        }
        if let Some((ingress, egress)) = ports {
            key.set(Field::TunMetadataPresent, 1);
            key.set(Field::TunMetadata0, u128::from(ingress) << 16 | u128::from(egress));
        }
    }
}

#[test]
fn source_is_learned_when_its_port_learns_and_the_file_does_not_list_it() {
    for tunnel in TunnelType::ALL {
        let net = Net::on("h2", &text(tunnel));
        assert_eq!(net.learn_events("b", TO_A), [event(&net, key(2))], "{tunnel}");
        assert_eq!(
            net.learn_events("b", &TO_A.replace("00:99", "00:03")),
            [],
            "{tunnel}: of another"
        );
        assert_eq!(net.learn_events("b", &TO_A.replace("00:99", "00:02")), [], "{tunnel}: its own");
        assert_eq!(
            Net::on("h1", &text(tunnel)).learn_events("a", TO_A),
            [],
            "{tunnel}: no such port"
        );
        // An address that is known there is not learned again; one known elsewhere is.
        let state = tables_with(event(&net, key(2)));
        assert_eq!(net.learn_events_with("b", TO_A, &state), [], "{tunnel}");
        assert_eq!(net.learn_events_with("c", TO_A, &state), [event(&net, key(3))], "{tunnel}");
        let broadcast = TO_A.replace("02:00:00:00:00:01", "ff:ff:ff:ff:ff:ff");
        assert_eq!(net.learn_events("b", &broadcast), [event(&net, key(2))], "{tunnel}");
        let group = TO_A.replace("02:00:00:00:00:99", "03:00:00:00:00:99");
        assert_eq!(net.learn_events("b", &group), [], "{tunnel}");
    }
}

#[test]
fn unknown_unicast_goes_to_every_learning_port_and_no_other() {
    for (tunnel, h1, h2) in [
        (
            GENEVE,
            "encap(endpoint=101,key=7,inport=1,outport=32769),encap(endpoint=102,key=7,inport=1,\
             outport=32769)",
            "output(2),encap(endpoint=102,key=7,inport=2,outport=32769)",
        ),
        (
            TunnelType::Vxlan,
            "encap(endpoint=1,key=7),encap(endpoint=2,key=7)",
            "output(2),encap(endpoint=2,key=7)",
        ),
        (
            TunnelType::Vlan,
            "push_vlan(tpid=0x8100,vid=7,pcp=0),output(0),pop_vlan",
            "output(2),push_vlan(tpid=0x8100,vid=7,pcp=0),output(0),pop_vlan",
        ),
    ] {
        assert_eq!(Net::on("h1", &text(tunnel)).send("a", FROM_A), h1, "{tunnel}");
        let from_b = FROM_A.replace("02:00:00:00:00:01", "02:00:00:00:00:98");
        assert_eq!(Net::on("h2", &text(tunnel)).send("b", &from_b), h2, "{tunnel}");
        let without_learning = text(tunnel).replace("learn = true\n", "");
        assert_eq!(
            Net::on("h1", &without_learning).send("a", FROM_A),
            "drop(unknown_mac)",
            "{tunnel}"
        );
    }
}

#[test]
fn unknown_unicast_from_another_host_goes_to_local_ports_only() {
    for tunnel in [GENEVE, TunnelType::Vxlan, TunnelType::Gre, TunnelType::Vlan] {
        let net = Net::on("h2", &text(tunnel));
        let ports = (tunnel == GENEVE).then_some((1, PortKey::UNKNOWN.value()));
        let enter = from(tunnel, &net, 1, ports);
        assert_eq!(net.receive(FROM_A, &enter), "output(1),output(2)", "{tunnel}");
    }
}

#[test]
fn remote_frame_teaches_its_port_when_the_tunnel_carries_ports() {
    let net = Net::on("h1", &text(GENEVE));
    let enter = |ingress| from(GENEVE, &net, 2, Some((ingress, 1)));
    assert_eq!(net.learn_events_entering(TO_A, enter(2)), [event(&net, key(2))]);
    assert_eq!(net.learn_events_entering(&TO_A.replace("00:99", "00:03"), enter(2)), []);
    assert_eq!(net.receive(TO_A, enter(2)), "output(1)");
    let state = tables_with(event(&net, key(2)));
    let sent = "encap(endpoint=101,key=7,inport=1,outport=2)";
    assert_eq!(net.send_knowing("a", FROM_A, &state), sent);
    let there = Net::on("h2", &text(GENEVE));
    assert_eq!(there.receive(FROM_A, from(GENEVE, &there, 1, Some((1, 2)))), "output(1)");
}

#[test]
fn remote_frame_teaches_its_host_when_the_tunnel_carries_no_ports() {
    for (tunnel, text, number) in [
        (TunnelType::Vxlan, text(TunnelType::Vxlan), 0),
        (TunnelType::Gre, text(TunnelType::Gre), 200),
        (GENEVE, text(GENEVE) + "[tunnel_options.geneve]\nlogical_ports = false\n", 100),
    ] {
        let net = Net::on("h1", &text);
        for host in [2_u8, 3] {
            let index = net.network.hosts()[usize::from(host) - 1].index;
            let port = LogicalPort::of_host(index).unwrap();
            let enter = from(tunnel, &net, host, None);
            assert_eq!(net.receive(TO_A, &enter), "output(1)", "{tunnel}");
            assert_eq!(net.learn_events_entering(TO_A, &enter), [event(&net, port)], "{tunnel}");
            assert_eq!(
                net.learn_events_entering(&TO_A.replace("00:99", "00:02"), &enter),
                [],
                "{tunnel}"
            );
            let state = tables_with(event(&net, port));
            let sent = format!("encap(endpoint={},key=7)", number + u32::from(host) - 1);
            assert_eq!(net.send_knowing("a", FROM_A, &state), sent, "{tunnel}");
        }
        // An unknown end point, and a host behind which nothing is learned.
        assert_eq!(net.learn_events_entering(TO_A, from(tunnel, &net, 77, None)), [], "{tunnel}");
        let there = Net::on("h2", &text);
        assert_eq!(
            there.learn_events_entering(TO_A, from(tunnel, &there, 1, None)),
            [],
            "{tunnel}"
        );
        // On that host the port is known.
        let (state, enter) = (tables_with(event(&there, key(3))), from(tunnel, &there, 1, None));
        assert_eq!(there.receive_knowing(FROM_A, enter, &state), "output(2)", "{tunnel}");
        // The host does not forward frames to a station that moved to another host: the sending
        // host has to learn its new location.
        let third = LogicalPort::of_host(there.network.hosts()[2].index).unwrap();
        let (state, enter) = (tables_with(event(&there, third)), from(tunnel, &there, 1, None));
        assert_eq!(there.receive_knowing(FROM_A, enter, &state), "drop(hairpin)", "{tunnel}");
    }
}

#[test]
fn tagged_frame_teaches_the_uplink() {
    for tunnel in [TunnelType::Vlan, TunnelType::QinQ] {
        let net = Net::on("h1", &text(tunnel));
        let enter = from(tunnel, &net, 2, None);
        assert_eq!(
            net.learn_events_entering(TO_A, enter),
            [event(&net, LogicalPort::WIRE)],
            "{tunnel}"
        );
        let state = tables_with(event(&net, LogicalPort::WIRE));
        let sent = net.send_knowing("a", FROM_A, &state);
        assert!(sent.starts_with("push_vlan") && sent.contains("output(0)"), "{tunnel}: {sent}");
    }
}

#[test]
fn frame_to_an_address_behind_its_own_port_is_not_sent_back() {
    let net = Net::on("h2", &text(GENEVE));
    let state = tables_with(event(&net, key(2)));
    let between = FROM_A.replace("02:00:00:00:00:01", "02:00:00:00:00:98");
    assert_eq!(net.send_knowing("b", &between, &state), "drop(hairpin)");
    assert_eq!(net.send_knowing("c", &between, &state), "output(1)");
}

/// A guest cannot attract a router's frames by sending from the router's MAC address.
#[test]
fn address_of_a_router_is_not_learned() {
    let text = text(GENEVE)
        + "[[logical_router]]\nname = \"core\"\n[[logical_router.port]]\nname = \"up\"\n\
           switch = \"blue\"\nmac = \"02:00:00:00:00:99\"\naddresses = [\"10.0.0.1/24\"]\n";
    assert_eq!(Net::on("h2", &text).learn_events("b", TO_A), []);
}
