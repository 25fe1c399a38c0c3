//! Tests networks without routers: the compiled program must treat every frame as a MAC address
//! table does.

use crate::support::Net;
use crate::support::mac_table::{Ingress, MacTable, PortPlace, SwitchLink};
use flow::{
    Action, DatapathKey, Field, FlowKey, LogicalPorts, PortKey, PortNo, TagLink, TunnelKey,
    TunnelType,
};
use network::{LogicalSwitch, Placement};
use pipeline::{PortLocation, PortRole, translate};
use wire::MacAddr;

/// Three hosts. `blue` has guests on all of them, two of the three on h1 and h2; `red` only on h1.
fn network(tunnel: TunnelType) -> String {
    let segment = |number: u16| match tunnel {
        TunnelType::Vlan => format!("vlan = {number}"),
        TunnelType::QinQ => format!("vlan = {{ outer = 9, inner = {number} }}"),
        _ => format!("vni = {number}"),
    };
    let hosts: String = (1..=3)
        .map(|n| {
            format!("[[host]]\nname = \"h{n}\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.{n}\"]\n")
        })
        .collect();
    let port = |name: &str, host: u8, number: u8| {
        format!(
            "[[logical_switch.port]]\nname = \"{name}\"\nhost = \"h{host}\"\n\
             mac = \"02:00:00:00:00:{number:02x}\"\ndevice = {{ tap = \"{name}\" }}\n"
        )
    };
    format!("tunnel = \"{tunnel}\"\n{hosts}")
        + &format!("[[logical_switch]]\nname = \"blue\"\n{}\n", segment(5))
        + &port("a", 1, 1)
        + &port("b", 2, 2)
        + &port("c", 1, 3)
        + &port("d", 3, 4)
        + &port("e", 2, 5)
        + &format!("[[logical_switch]]\nname = \"red\"\n{}\n", segment(6))
        + &port("f", 1, 1)
        + &port("g", 1, 2)
}

/// The MAC address table for the same placement.
fn table(net: &Net, tunnel: TunnelType) -> MacTable {
    let mut table = MacTable::default();
    for switch in net.network.logical_switches() {
        let place = table.add_switch(switch.datapath_key, link(net, switch, tunnel));
        for port in &switch.ports {
            let at = match net.placement.locations.get(&(switch.datapath_key, port.key)) {
                Some(PortLocation::Local(number)) => PortPlace::Local(*number),
                Some(PortLocation::Remote { endpoint, .. }) => PortPlace::Remote(*endpoint),
                Some(PortLocation::Tagged { .. }) => PortPlace::Uplink,
                // The switch has no ports on this host.
                _ => continue,
            };
            table.add_port(place, port.key, port.mac, at);
        }
    }
    table
}

fn link(net: &Net, switch: &LogicalSwitch, tunnel: TunnelType) -> SwitchLink {
    let of_switch = |link: &&TagLink| link.key() == switch.datapath_key;
    match net.placement.links.iter().find(of_switch) {
        Some(&link) => SwitchLink::Tags { uplink: Placement::UPLINK, link },
        None => {
            let logical_ports = net.network.options().of(tunnel).logical_ports;
            SwitchLink::Tunnel { tunnel, logical_ports }
        }
    }
}

/// All ingress ports and tunnels of a frame, in the forms for the table and for the program. Tunnel
/// packets come from the port `sender` of another host.
fn ways_in(net: &Net, tunnel: TunnelType, sender: u16) -> Vec<(Ingress, FlowKey)> {
    let key_from = |port: PortNo| {
        let mut key = FlowKey::default();
        key.set(Field::InPort, port.0.into());
        key.set(Field::EthType, 0x88b5);
        key
    };
    let mut ways: Vec<_> = net
        .placement
        .entries
        .iter()
        .filter(|(_, entry)| matches!(entry, PortRole::Vif { .. }))
        .map(|(&port, _)| (Ingress::Vif(port), key_from(port)))
        .collect();
    for &(_, number) in net.placement.tunnels.keys() {
        let datapath = DatapathKey(number as u32);
        let carries = net.network.options().of(tunnel).logical_ports;
        let ports: &[u16] = if carries { &[1, 2, 3, 4, 5, 6, 0x8000] } else { &[0] };
        for &egress in ports {
            let ports = PortKey::new(egress)
                .map(|egress| LogicalPorts { ingress: PortKey::new(sender), egress })
                .filter(|ports| Some(ports.egress) != ports.ingress);
            let mut key = key_from(Placement::tunnel_port(tunnel));
            key.set(Field::TunId, number.into());
            if let Some(ports) = ports {
                let (egress, ingress) = (u128::from(ports.egress.value()), u128::from(sender));
                match tunnel {
                    TunnelType::Stt => {
                        key.set(Field::TunId, u128::from(number) | egress << 24 | ingress << 40);
                    }
                    _ => {
                        key.set(Field::TunMetadataPresent, 1);
                        key.set(Field::TunMetadata0, ingress << 16 | egress);
                    }
                }
            }
            ways.push((Ingress::Tunnel { tunnel, key: TunnelKey { datapath, ports } }, key));
        }
    }
    ways
}

/// Actions as a set: the order of copies does not matter, and drop reasons are not compared.
fn normal(actions: &[Action]) -> Vec<String> {
    let dropped = |action: &Action| matches!(action, Action::Drop(_));
    let mut shown: Vec<String> = if actions.iter().any(dropped) {
        vec!["drop".to_owned()]
    } else {
        actions.iter().map(|action| format!("{action:?}")).collect()
    };
    shown.sort();
    shown
}

#[test]
fn program_agrees_with_the_mac_table_when_there_are_only_switches() {
    let mac = |last: u8| MacAddr([2, 0, 0, 0, 0, last]);
    let group = MacAddr([1, 0, 0x5e, 0, 0, 1]);
    let destinations = [mac(1), mac(2), mac(3), mac(4), mac(5), mac(99), MacAddr::BROADCAST, group];
    let bits = |mac: MacAddr| mac.0.iter().fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    let mut compared = 0;
    for tunnel in TunnelType::ALL {
        for (host, sender) in [("h1", 4), ("h2", 4), ("h3", 2)] {
            let net = Net::on(host, &network(tunnel));
            let table = table(&net, tunnel);
            for (ingress, mut key) in ways_in(&net, tunnel, sender) {
                for destination in destinations {
                    for source in [mac(77), group] {
                        let by_ports = matches!(
                            ingress,
                            Ingress::Tunnel { key: TunnelKey { ports: Some(_), .. }, .. }
                        );
                        // The host that chose the receiver has also checked the source.
                        if by_ports && source == group {
                            continue;
                        }
                        key.set(Field::EthSrc, bits(source));
                        key.set(Field::EthDst, bits(destination));
                        let mut expected = Vec::new();
                        table.look_up(ingress, source, destination, &mut expected);
                        let found = translate(&net.program, &key, &(), &mut ()).actions;
                        let what = format!("{tunnel} {host} {ingress:?} {source} > {destination}");
                        assert_eq!(normal(&found), normal(&expected), "{what}");
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(compared > 500, "{compared}");
}
