//! Which actions a frame gets.

mod common;

use common::{GUEST_A, GUEST_B};
use flow::{
    Action, DatapathKey, DropReason, EndpointId, Ingress, LogicalPorts, MacTable, PortKey, PortNo,
    PortPlace, SwitchLink, TableError, TunnelKey, TunnelType,
};
use wire::vlan::Tag;
use wire::{EtherType, MacAddr, VlanId};

const REMOTE: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);
const BLUE: DatapathKey = DatapathKey(5001);

fn port_key(value: u16) -> PortKey {
    PortKey::new(value).unwrap()
}

/// Ports 1 and 2 here, port 3 and 4 behind end point 0.
fn overlay(logical_ports: bool) -> MacTable {
    let mut table = MacTable::default();
    let link = SwitchLink::Tunnel { tunnel: TunnelType::Geneve, logical_ports };
    let blue = table.add_switch(BLUE, link).unwrap();
    table.add_port(blue, port_key(1), GUEST_A, PortPlace::Local(PortNo(1))).unwrap();
    table.add_port(blue, port_key(2), GUEST_B, PortPlace::Local(PortNo(2))).unwrap();
    table.add_port(blue, port_key(3), REMOTE, PortPlace::Remote(EndpointId(0))).unwrap();
    let other = MacAddr([2, 0, 0, 0, 0, 4]);
    table.add_port(blue, port_key(4), other, PortPlace::Remote(EndpointId(0))).unwrap();
    table
}

fn look_up(
    table: &MacTable,
    ingress: Ingress,
    source: MacAddr,
    destination: MacAddr,
) -> Vec<Action> {
    let mut actions = vec![Action::PopVlan];
    table.look_up(ingress, source, destination, &mut actions);
    actions
}

fn encap(egress: Option<u16>) -> Action {
    let ports =
        egress.map(|egress| LogicalPorts { ingress: Some(port_key(1)), egress: port_key(egress) });
    Action::Encap { endpoint: EndpointId(0), key: TunnelKey { datapath: BLUE, ports } }
}

#[test]
fn guest_frame_goes_to_the_port_that_owns_its_destination() {
    let table = overlay(true);
    let from = |destination| look_up(&table, Ingress::Vif(PortNo(1)), GUEST_A, destination);
    assert_eq!(from(GUEST_B), [Action::Output(PortNo(2))]);
    assert_eq!(from(REMOTE), [encap(Some(3))]);
    assert_eq!(from(GUEST_A), [Action::Drop(DropReason::Hairpin)]);
    assert_eq!(from(MacAddr([2, 9, 9, 9, 9, 9])), [Action::Drop(DropReason::UnknownMac)]);
    assert_eq!(
        look_up(&overlay(false), Ingress::Vif(PortNo(1)), GUEST_A, REMOTE),
        [encap(None)],
        "no logical ports where the tunnel does not carry them"
    );
}

#[test]
fn broadcast_reaches_every_other_port_and_each_remote_host_once() {
    let actions = look_up(&overlay(true), Ingress::Vif(PortNo(1)), GUEST_A, MacAddr::BROADCAST);
    assert_eq!(actions, [Action::Output(PortNo(2)), encap(Some(0x8000))]);
}

#[test]
fn tunnelled_frame_never_returns_to_the_underlay() {
    let table = overlay(false);
    let key = TunnelKey { datapath: BLUE, ports: None };
    let ingress = Ingress::Tunnel { tunnel: TunnelType::Geneve, key };
    let from = |destination| look_up(&table, ingress, REMOTE, destination);
    assert_eq!(from(MacAddr::BROADCAST), [Action::Output(PortNo(1)), Action::Output(PortNo(2))]);
    assert_eq!(from(GUEST_A), [Action::Output(PortNo(1))]);
    assert_eq!(from(MacAddr([2, 0, 0, 0, 0, 4])), [Action::Drop(DropReason::Hairpin)]);
}

#[test]
fn tunnelled_frame_goes_to_the_logical_port_that_its_header_names() {
    let table = overlay(true);
    let to = |egress: u16| {
        let ports = Some(LogicalPorts { ingress: None, egress: port_key(egress) });
        let key = TunnelKey { datapath: BLUE, ports };
        look_up(&table, Ingress::Tunnel { tunnel: TunnelType::Geneve, key }, REMOTE, GUEST_A)
    };
    assert_eq!(to(2), [Action::Output(PortNo(2))]);
    assert_eq!(to(0x8000), [Action::Output(PortNo(1)), Action::Output(PortNo(2))]);
    for unknown in [3, 77, 0x8001] {
        assert_eq!(to(unknown), [Action::Drop(DropReason::UnknownLogicalPort)], "{unknown}");
    }
}

#[test]
fn key_of_another_switch_or_another_tunnel_type_is_refused() {
    let table = overlay(false);
    for (tunnel, datapath) in [(TunnelType::Geneve, DatapathKey(5002)), (TunnelType::Vxlan, BLUE)] {
        let key = TunnelKey { datapath, ports: None };
        let actions = look_up(&table, Ingress::Tunnel { tunnel, key }, REMOTE, GUEST_A);
        assert_eq!(actions, [Action::Drop(DropReason::UnknownDatapath)]);
    }
}

#[test]
fn group_source_address_is_refused() {
    let actions = look_up(&overlay(true), Ingress::Vif(PortNo(1)), MacAddr::BROADCAST, GUEST_B);
    assert_eq!(actions, [Action::Drop(DropReason::BadSourceMac)]);
}

fn tag(tpid: EtherType, vlan: u16) -> Tag {
    Tag::new(tpid, VlanId::new(vlan).unwrap())
}

/// VLAN 100 with guest A, QinQ 100/200 with guest B.
fn tagged() -> MacTable {
    let mut table = MacTable::default();
    let uplink = PortNo(0);
    let link = SwitchLink::Tags { uplink, outer: tag(EtherType::VLAN, 100), inner: None };
    let vlan = table.add_switch(DatapathKey(100), link).unwrap();
    table.add_port(vlan, port_key(1), GUEST_A, PortPlace::Local(PortNo(1))).unwrap();
    table.add_port(vlan, port_key(2), REMOTE, PortPlace::Uplink).unwrap();
    let inner = Some(tag(EtherType::VLAN, 200));
    let link = SwitchLink::Tags { uplink, outer: tag(EtherType::QINQ, 100), inner };
    let qinq = table.add_switch(DatapathKey(100 << 12 | 200), link).unwrap();
    table.add_port(qinq, port_key(1), GUEST_B, PortPlace::Local(PortNo(2))).unwrap();
    table.add_port(qinq, port_key(2), REMOTE, PortPlace::Uplink).unwrap();
    table
}

#[test]
fn tags_are_pushed_inside_out_and_taken_off_again() {
    let table = tagged();
    let actions = look_up(&table, Ingress::Vif(PortNo(2)), GUEST_B, REMOTE);
    assert_eq!(
        actions,
        [
            Action::PushVlan(tag(EtherType::VLAN, 200)),
            Action::PushVlan(tag(EtherType::QINQ, 100)),
            Action::Output(PortNo(0)),
            Action::PopVlan,
            Action::PopVlan
        ]
    );
    let both =
        Ingress::Tags { outer: tag(EtherType::QINQ, 100), inner: Some(tag(EtherType::VLAN, 200)) };
    let actions = look_up(&table, both, REMOTE, GUEST_B);
    assert_eq!(actions, [Action::PopVlan, Action::PopVlan, Action::Output(PortNo(2))]);
}

#[test]
fn guests_own_tag_does_not_lead_into_a_qinq_switch() {
    let table = tagged();
    // VLAN 100 (0x8100) with a guest's own tag 200 inside: still the VLAN switch, which does not know guest B.
    let nested =
        Ingress::Tags { outer: tag(EtherType::VLAN, 100), inner: Some(tag(EtherType::VLAN, 200)) };
    assert_eq!(
        look_up(&table, nested, REMOTE, GUEST_A),
        [Action::PopVlan, Action::Output(PortNo(1))]
    );
    assert_eq!(look_up(&table, nested, REMOTE, GUEST_B), [Action::Drop(DropReason::UnknownMac)]);
    // The same VLANs behind other TPIDs are other networks.
    let other = Ingress::Tags {
        outer: tag(EtherType::QINQ, 100),
        inner: Some(tag(EtherType::VLAN_9100, 200)),
    };
    assert_eq!(
        look_up(&table, other, REMOTE, GUEST_B),
        [Action::Drop(DropReason::UnknownDatapath)]
    );
    let foreign = Ingress::Tags { outer: tag(EtherType::QINQ, 100), inner: None };
    assert_eq!(
        look_up(&table, foreign, REMOTE, GUEST_A),
        [Action::Drop(DropReason::UnknownDatapath)]
    );
}

#[test]
fn nothing_is_there_twice() {
    let mut table = overlay(true);
    let link = SwitchLink::Tunnel { tunnel: TunnelType::Geneve, logical_ports: true };
    assert_eq!(table.add_switch(BLUE, link), Err(TableError::DuplicateSwitch(BLUE)));
    let place = PortPlace::Local(PortNo(9));
    assert_eq!(
        table.add_port(0, port_key(9), GUEST_A, place),
        Err(TableError::DuplicateMac(GUEST_A))
    );
    let place = PortPlace::Local(PortNo(1));
    let result = table.add_port(0, port_key(9), MacAddr([2, 0, 0, 0, 0, 9]), place);
    assert_eq!(result, Err(TableError::DuplicatePort(PortNo(1))));
    let mac = MacAddr([2, 0, 0, 0, 0, 10]);
    let result = table.add_port(0, port_key(1), mac, PortPlace::Local(PortNo(10)));
    assert_eq!(result, Err(TableError::DuplicateKey(port_key(1))));
}
