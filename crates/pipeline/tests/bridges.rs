//! Provider bridges: the receivers and tags of frames, and the learned addresses.

use flow::{Action, DatapathKey, DropReason, Field, FlowKey, PortKey, PortNo};
use pipeline::{
    Datapath, DatapathKind, FdbKey, FdbPort, LearnEvent, LearnedTables, LogicalPort, PortLocation,
    PortRole, PortSecurity, PortVlans, Program, StateQuery, VlanSet, translate,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use wire::MacAddr;

const BRIDGE: DatapathKey = DatapathKey::FIRST_LOCAL;
const OTHER: DatapathKey = DatapathKey(BRIDGE.0 + 1);
const STATION: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

fn key(number: u16) -> PortKey {
    PortKey::new(number).unwrap()
}

/// Adds a port to a bridge.
fn add(
    program: &mut Program,
    bridge: DatapathKey,
    number: u16,
    to: PortLocation,
    vlans: PortVlans,
) {
    if let PortLocation::Local(device) = to {
        program.set_port_role(device, PortRole::Vif { datapath: bridge, port: key(number) });
    }
    let entry = program.datapath_mut(bridge).unwrap();
    let (name, security) = (format!("p{number}"), PortSecurity::default());
    entry.ports.insert(key(number), LogicalPort { name, location: to, security });
    entry.vlans.insert(key(number), vlans);
}

fn device(number: u32) -> PortLocation {
    PortLocation::Local(PortNo(number))
}

fn trunk(vlans: &[u16]) -> PortVlans {
    let vlans = VlanSet::Only(Arc::new(BTreeSet::from_iter(vlans.iter().copied())));
    PortVlans::Trunk { vlans, native: None }
}

/// A bridge with a trunk (port 1), two access ports of VLAN 7 (2, 3), one of VLAN 8 (4), and a
/// tunnel of VLAN 7 (5).
fn bridge() -> Program {
    let mut program = Program::default();
    program.set_datapath(BRIDGE, Datapath::new("br-ex", DatapathKind::Provider));
    let tunnel = PortVlans::Tunnel { vlan: 7, tpid: 0x8100 };
    for (number, vlans) in [
        (1, trunk(&[0, 7])),
        (2, PortVlans::Access(7)),
        (3, PortVlans::Access(7)),
        (4, PortVlans::Access(8)),
        (5, tunnel),
    ] {
        add(&mut program, BRIDGE, number, device(number.into()), vlans);
    }
    program
}

/// A broadcast from a port, with a tag of this VLAN ID.
fn broadcast(port: u32, vid: Option<u16>) -> FlowKey {
    let mut frame = FlowKey::default();
    frame.set(Field::InPort, port.into());
    frame.set(Field::EthSrc, 0x0200_0000_0001);
    frame.set(Field::EthDst, 0xffff_ffff_ffff);
    frame.set(Field::EthType, 0x0806);
    if let Some(vid) = vid {
        frame.set(Field::VlanTpid, 0x8100);
        frame.set(Field::VlanTci, (0x1000 | vid).into());
    }
    frame
}

fn actions(program: &Program, frame: &FlowKey, learned: &LearnedTables) -> String {
    let translation = translate(program, frame, learned, &mut ());
    translation.actions.iter().map(|action| format!("{action:?} ")).collect()
}

/// The devices that a frame is sent to.
fn receivers(program: &Program, frame: &FlowKey, learned: &LearnedTables) -> Vec<u32> {
    fn add(actions: &[Action], found: &mut Vec<u32>) {
        for action in actions {
            match action {
                Action::Output(port) => found.push(port.0),
                Action::Clone(actions) => add(actions, found),
                _ => {}
            }
        }
    }
    let translation = translate(program, frame, learned, &mut ());
    let mut found = Vec::new();
    add(&translation.actions, &mut found);
    found.sort_unstable();
    found
}

#[test]
fn broadcast_reaches_the_ports_of_its_vlan() {
    let (program, learned) = (bridge(), LearnedTables::default());
    for (frame, expected) in [
        (broadcast(2, None), &[1, 3, 5][..]),
        // A priority tag.
        (broadcast(2, Some(0)), &[1, 3, 5]),
        (broadcast(2, Some(7)), &[]),
        (broadcast(1, Some(7)), &[2, 3, 5]),
        (broadcast(1, None), &[]),
        (broadcast(1, Some(8)), &[]),
        (broadcast(4, None), &[]),
        // Frames from a tunnel port (802.1Q tunnel) are payload, whatever their tag.
        (broadcast(5, Some(8)), &[1, 2, 3]),
    ] {
        assert_eq!(receivers(&program, &frame, &learned), expected, "{frame:?}");
    }
    let dropped = |frame| translate(&program, &frame, &learned, &mut ()).dropped();
    assert_eq!(dropped(broadcast(2, Some(7))), Some(DropReason::WrongVlan));
    assert_eq!(dropped(broadcast(1, Some(8))), Some(DropReason::WrongVlan));
    assert_eq!(dropped(broadcast(4, None)), Some(DropReason::NoReceiver));
}

#[test]
fn priority_tag_before_a_vlan_is_refused() {
    let (program, learned) = (bridge(), LearnedTables::default());
    let hidden = |port| {
        let mut frame = broadcast(port, Some(0));
        frame.set(Field::VlanInnerTpid, 0x8100);
        frame.set(Field::VlanInnerTci, 0x1008);
        frame
    };
    for port in [1, 2, 4] {
        let translation = translate(&program, &hidden(port), &learned, &mut ());
        assert_eq!(translation.dropped(), Some(DropReason::WrongVlan), "port {port}");
    }
    // A tunnel keeps both tags as payload. A third one, for the trunk, is not possible.
    assert_eq!(receivers(&program, &hidden(5), &learned), [2, 3]);
}

#[test]
fn unicast_goes_to_the_port_of_its_station_in_the_same_vlan() {
    let (program, mut learned) = (bridge(), LearnedTables::default());
    let station = FdbKey { datapath: BRIDGE, vlan: 7, mac: STATION };
    learned.configure(LearnEvent::Fdb(station, FdbPort::Logical(key(1))));
    let unicast = |port, vid| {
        let mut frame = broadcast(port, vid);
        frame.set(Field::EthDst, 0x0200_0000_0009);
        frame
    };
    let tagged = actions(&program, &unicast(2, None), &learned);
    assert!(tagged.starts_with("PushVlan") && tagged.contains("vid: 7"), "{tagged}");
    assert_eq!(receivers(&program, &unicast(2, None), &learned), [1]);
    // The station has moved: the frame would go back.
    let back = translate(&program, &unicast(1, Some(7)), &learned, &mut ());
    assert_eq!(back.dropped(), Some(DropReason::Hairpin));
    // The port no longer carries the VLAN, so the port of the station is unknown.
    let mut program = program;
    program.datapath_mut(BRIDGE).unwrap().vlans.insert(key(1), trunk(&[8]));
    assert_eq!(receivers(&program, &unicast(2, None), &learned), [3, 5]);
    // In another VLAN, the address is another station.
    assert_eq!(receivers(&program, &unicast(4, None), &learned), [1]);
}

#[test]
fn source_is_learned_in_its_vlan_once() {
    let (program, mut learned) = (bridge(), LearnedTables::default());
    let frame = broadcast(1, Some(7));
    let events =
        |learned: &LearnedTables| translate(&program, &frame, learned, &mut ()).learn_events;
    let station = FdbKey { datapath: BRIDGE, vlan: 7, mac: MacAddr([2, 0, 0, 0, 0, 1]) };
    let expected = LearnEvent::Fdb(station, FdbPort::Logical(key(1)));
    assert_eq!(events(&learned), [expected]);
    learned.configure(expected);
    assert_eq!(events(&learned), []);
    // Frames of a station confirm its entry. Frames to it do not, nor do frames of another station
    // that uses its address.
    let confirmed = |frame: &FlowKey| -> Vec<_> {
        let read = translate(&program, frame, &learned, &mut ()).dependencies;
        read.into_iter().filter(|read| read.confirms).map(|read| read.query).collect()
    };
    assert_eq!(confirmed(&frame), [StateQuery::Fdb(station)]);
    let mut answer = broadcast(2, None);
    answer.set(Field::EthSrc, 0x0200_0000_0002);
    answer.set(Field::EthDst, 0x0200_0000_0001);
    assert_eq!(confirmed(&answer), []);
    assert_eq!(confirmed(&broadcast(2, None)), []);
    // Nothing is learned from a refused frame or from a frame with a multicast source address.
    let refused = translate(&program, &broadcast(2, Some(7)), &learned, &mut ());
    assert_eq!(refused.learn_events, []);
    let mut group = broadcast(2, None);
    group.set(Field::EthSrc, 0x0300_0000_0001);
    let group = translate(&program, &group, &learned, &mut ());
    assert_eq!(
        (group.learn_events, group.actions),
        (vec![], vec![Action::Drop(DropReason::BadSourceMac)])
    );
}

#[test]
fn link_local_groups_are_not_forwarded() {
    let (program, learned) = (bridge(), LearnedTables::default());
    let mut frame = broadcast(2, None);
    frame.set(Field::EthDst, 0x0180_c200_000e);
    assert_eq!(receivers(&program, &frame, &learned), [0; 0]);
    frame.set(Field::EthDst, 0x0180_c200_0010);
    assert_eq!(receivers(&program, &frame, &learned), [1, 3, 5]);
}

#[test]
fn frame_ends_when_bridges_are_joined_twice() {
    let mut program = bridge();
    program.set_datapath(OTHER, Datapath::new("br-lan", DatapathKind::Provider));
    add(&mut program, OTHER, 1, device(11), PortVlans::default());
    let joined = |program: &mut Program, number: u16| {
        let (there, here) = (
            PortLocation::Patch { datapath: OTHER, port: key(number) },
            PortLocation::Patch { datapath: BRIDGE, port: key(number) },
        );
        add(program, BRIDGE, number, there, PortVlans::default());
        add(program, OTHER, number, here, PortVlans::default());
    };
    joined(&mut program, 21);
    let learned = LearnedTables::default();
    let frame = broadcast(2, None);
    assert_eq!(receivers(&program, &frame, &learned), [1, 3, 5, 11]);
    joined(&mut program, 22);
    let translation = translate(&program, &frame, &learned, &mut ());
    let reason = translation.dropped();
    assert!(
        matches!(reason, Some(DropReason::TranslationSteps | DropReason::TranslationDepth)),
        "{reason:?}"
    );
}
