use super::*;
use flow::{DatapathKey, LogicalPorts, PortKey, Reply};
use services::{Service, dhcp4};
use std::sync::Arc;
use wire::VlanId;

const UPLINK: PortNo = PortNo(0);
const OUT: Action = Action::Output(PortNo(2));
const TWO: BpfAction = BpfAction::Output(PortNo(2));

fn megaflow(fields: &[(Field, u128)], actions: &[Action]) -> Megaflow {
    let mut condition = Match::any();
    for &(field, value) in fields {
        assert!(condition.require(field, value, field.all_ones()));
    }
    Megaflow::new(condition, actions.into())
}

fn list(fields: &[(Field, u128)], actions: &[Action]) -> Option<ActionList> {
    ActionList::of(&megaflow(fields, actions), UPLINK)
}

/// Compiles a list that has no length limit and does not grow the frame.
fn compiled_actions(fields: &[(Field, u128)], actions: &[Action]) -> Option<Vec<BpfAction>> {
    let list = list(fields, actions)?;
    assert_eq!((list.max_len, list.grows), (u32::MAX, 0), "{list:?}");
    Some(list.actions)
}

fn tag(tpid: EtherType, vlan: u16) -> Tag {
    Tag::new(tpid, VlanId::new(vlan).unwrap())
}

fn set(field: Field, value: u128) -> Action {
    Action::Set { field, value, mask: field.all_ones() }
}

const KEY: TunnelKey = TunnelKey { datapath: DatapathKey(0x12_3456), ports: None };
const TUNNEL: Action = Action::Encap { endpoint: EndpointId(7), key: KEY };
const INTO: BpfAction = BpfAction::Encap { endpoint: EndpointId(7), key: 0x12_3456, ports: None };
const IP4: (Field, u128) = (Field::EthType, 0x0800);
const IP6: (Field, u128) = (Field::EthType, 0x86dd);
const TCP: (Field, u128) = (Field::IpProto, 6);
const WHOLE: (Field, u128) = (Field::IpFrag, 0);

#[test]
fn outputs_compile_and_the_last_one_takes_the_packet() {
    let copy = |port| Action::Output(PortNo(port));
    assert_eq!(compiled_actions(&[], &[OUT]), Some(vec![TWO]));
    assert_eq!(
        compiled_actions(&[], &[copy(1), OUT, TUNNEL]),
        Some(vec![BpfAction::Output(PortNo(1)), TWO, INTO])
    );
    assert_eq!(compiled_actions(&[], &[Action::Output(UPLINK)]), Some(vec![BpfAction::Uplink]));
    assert_eq!(compiled_actions(&[], &[OUT, Action::SetQueue(3), OUT]), Some(vec![TWO, TWO]));
    let drop = Action::Drop(DropReason::FlowDrop);
    let dropped = BpfAction::Drop(DropReason::FlowDrop);
    assert_eq!(compiled_actions(&[], &[OUT, drop.clone(), OUT]), Some(vec![TWO, dropped]));
    assert_eq!(compiled_actions(&[], &vec![OUT; 15]), Some(vec![TWO; 15]));
    assert_eq!(compiled_actions(&[], &[]), Some(Vec::new()));
    assert_eq!(compiled_actions(&[], &[OUT, set(Field::EthDst, 1)]), Some(vec![TWO]));
    for too_much in [&[TUNNEL, OUT][..], &vec![OUT; 16]] {
        assert_eq!(compiled_actions(&[], too_much), None, "{too_much:?}");
    }
    assert_eq!(compiled_actions(&[], &[copy(0xffff_ff00)]), None);
}

#[test]
fn encap_has_tunnel_key_and_logical_ports() {
    let ports =
        LogicalPorts { ingress: PortKey::new(0x0102), egress: PortKey::new(0x8003).unwrap() };
    let key = TunnelKey { ports: Some(ports), ..KEY };
    let list = list(&[], &[Action::Encap { endpoint: EndpointId(7), key }]).unwrap();
    let Some(BpfAction::Encap { key, ports, .. }) = list.actions.last().copied() else { panic!() };
    assert_eq!((key, ports), (0x12_3456, Some(0x0102_8003)));
    assert_eq!(list.endpoint(), Some(EndpointId(7)));
}

#[test]
fn actions_that_programs_cannot_execute_have_no_list() {
    for action in [
        Action::Controller,
        Action::SetIcmpMtu(1400),
        Action::Meter { rate_kbps: 1, burst_kb: 1 },
        Action::Reply { reply: Reply::Arp, actions: Box::new([OUT]) },
        Action::Serve {
            service: Arc::new(Service::Dhcp4(dhcp4::Server::new([10, 0, 0, 5].into()))),
            answered: Box::new([Box::new([OUT]), Box::new([OUT])]),
            otherwise: Box::new([OUT]),
        },
        Action::Clone(Box::new([set(Field::EthDst, 1), OUT])),
        Action::Clone(Box::new([Action::Drop(DropReason::FlowDrop)])),
        Action::PushVlan(tag(EtherType::VLAN_9100, 1)),
        Action::PopVlan,
        set(Field::VlanTci, 5),
        set(Field::ArpOp, 2),
        set(Field::Ip4Src, 1),
        set(Field::TpDst, 1),
        Action::Set { field: Field::EthDst, value: 1, mask: 1 },
    ] {
        assert_eq!(compiled_actions(&[], &[action.clone(), OUT]), None, "{action:?}");
    }
}

#[test]
fn copies_that_change_nothing_are_outputs() {
    let inner = Action::Clone(Box::new([OUT, Action::SetQueue(1)]));
    let clone = Action::Clone(Box::new([OUT, inner]));
    assert_eq!(compiled_actions(&[], &[clone.clone(), TUNNEL]), Some(vec![TWO, TWO, INTO]));
    assert_eq!(
        compiled_actions(&[], &[set(Field::EthSrc, 9), clone]).map(|steps| steps.len()),
        Some(3)
    );
    let deep = (0..20).fold(OUT, |inner, _| Action::Clone(Box::new([inner])));
    assert_eq!(compiled_actions(&[], &[deep]), None);
}

#[test]
fn fields_are_set_when_the_condition_fixes_their_header() {
    let one = |field, bits, value| Some(vec![BpfAction::Set { field, bits, value }, TWO]);
    let of = |fields: &[(Field, u128)], action| compiled_actions(fields, &[action, OUT]);
    assert_eq!(
        of(&[], set(Field::EthDst, 0x0200_0000_0001)),
        one(SetField::EthDst, 0, 0x0200_0000_0001)
    );
    assert_eq!(of(&[IP4], set(Field::IpTtl, 63)), one(SetField::Ip4Ttl, 0, 63));
    assert_eq!(of(&[IP6], set(Field::IpTtl, 63)), one(SetField::Ip6HopLimit, 0, 63));
    assert_eq!(of(&[IP4], set(Field::IpDscp, 46)), one(SetField::Ip4Tos, 0xfc, 46 << 2));
    assert_eq!(of(&[IP6], set(Field::IpEcn, 1)), one(SetField::Ip6Tos, 3, 1));
    let some_bits = Action::Set { field: Field::IpDscp, value: 2, mask: 6 };
    assert_eq!(of(&[IP4], some_bits), one(SetField::Ip4Tos, 6 << 2, 2 << 2));
    assert_eq!(of(&[IP4], set(Field::Ip4Dst, 0x0a00_0001)), one(SetField::Ip4Dst, 0, 0x0a00_0001));
    assert_eq!(of(&[IP4, TCP, WHOLE], set(Field::TpDst, 80)), one(SetField::TpDst, 0, 80));
    let halves = compiled_actions(&[IP6], &[set(Field::Ip6Src, 5 << 64 | 6), OUT]).unwrap();
    let half = |field, value| BpfAction::Set { field, bits: 0, value };
    assert_eq!(halves, [half(SetField::Ip6SrcHigh, 5), half(SetField::Ip6SrcLow, 6), TWO]);
    let sctp = (Field::IpProto, 132);
    for (fields, field) in [
        (&[IP4][..], Field::Ip6Src),
        (&[IP6], Field::Ip4Src),
        (&[(Field::EthType, 0x0806)], Field::IpTtl),
        (&[IP4, TCP], Field::TpDst),
        (&[IP4, WHOLE], Field::TpDst),
        (&[IP4, sctp, WHOLE], Field::TpDst),
        (&[IP4, TCP, WHOLE], Field::TcpFlags),
        (&[IP6], Field::Ip6Label),
    ] {
        assert_eq!(of(fields, set(field, 1)), None, "{field} of {fields:?}");
    }
    // A mask of 0 changes nothing.
    let nothing = Action::Set { field: Field::NdTarget, value: 0, mask: 0 };
    assert_eq!(of(&[], nothing), Some(vec![TWO]));
}

#[test]
fn tags_are_popped_when_the_condition_fixes_them() {
    let vlan = |tpid| (Field::VlanTpid, tpid);
    let inner = |tpid| (Field::VlanInnerTpid, tpid);
    let pops = |fields: &[(Field, u128)], count| {
        let mut actions = vec![Action::PopVlan; count];
        actions.push(OUT);
        let list = list(fields, &actions)?;
        assert_eq!(list.grows, 0);
        Some(list.actions.len() - 1)
    };
    assert_eq!(pops(&[vlan(0)], 3), Some(0));
    assert_eq!(pops(&[vlan(0x8100)], 1), Some(1));
    assert_eq!(pops(&[vlan(0x8100)], 2), None);
    assert_eq!(pops(&[vlan(0x88a8), inner(0)], 5), Some(1));
    assert_eq!(pops(&[vlan(0x88a8), inner(0x8100)], 2), Some(2));
    assert_eq!(pops(&[vlan(0x88a8), inner(0x8100)], 3), None);
    assert_eq!(pops(&[vlan(0x88a8), inner(0x9100)], 2), None);
    assert_eq!(pops(&[vlan(0x9100)], 1), None);
    assert_eq!(pops(&[], 1), None);
}

#[test]
fn pushed_tags_count_for_the_length_and_follow_set_fields() {
    let (customer, service) = (tag(EtherType::VLAN, 5), tag(EtherType::QINQ, 6));
    let push = [Action::PushVlan(customer), Action::PushVlan(service), Action::Output(UPLINK)];
    let expected = [BpfAction::PushVlan(customer), BpfAction::PushVlan(service), BpfAction::Uplink];
    let qinq = list(&[], &push).unwrap();
    assert_eq!((&qinq.actions[..], qinq.grows), (&expected[..], 8));
    let pops = [Action::PopVlan, Action::PopVlan];
    assert_eq!(
        list(&[], &[&push[..], &pops].concat()),
        Some(qinq),
        "nothing sees tags popped after the last output"
    );
    let pushed = Action::PushVlan(customer);
    let popped = list(&[], &[pushed.clone(), Action::PopVlan, OUT]).unwrap();
    assert_eq!((popped.actions.len(), popped.grows), (3, 0));
    assert!(list(&[IP4], &[set(Field::IpTtl, 1), pushed.clone(), OUT]).is_some());
    assert_eq!(list(&[IP4], &[pushed.clone(), set(Field::IpTtl, 1), OUT]), None);
    assert!(list(&[], &[pushed.clone(), set(Field::EthDst, 1), OUT]).is_some());
    assert_eq!(list(&[], &[OUT, pushed, OUT]), None, "a copy of another length");
}

#[test]
fn ip_fields_are_set_behind_changed_tags_unless_there_may_be_three() {
    let vlan = |tpid| (Field::VlanTpid, tpid);
    let inner = |tpid| (Field::VlanInnerTpid, tpid);
    let (ttl, pushed) = (set(Field::IpTtl, 1), Action::PushVlan(tag(EtherType::VLAN, 5)));
    let is_compiled = |tags: &[(Field, u128)], first: &[Action]| {
        let actions = [first, &[ttl.clone(), OUT]].concat();
        list(&[tags, &[IP4]].concat(), &actions).is_some()
    };
    let one = [vlan(0x8100), inner(0)];
    assert!(is_compiled(&one, &[Action::PopVlan]));
    assert!(is_compiled(&one, std::slice::from_ref(&pushed)));
    assert!(is_compiled(&[vlan(0)], &[pushed.clone(), pushed.clone()]));
    assert!(!is_compiled(&[vlan(0)], &[pushed.clone(), pushed.clone(), pushed.clone()]));
    assert!(!is_compiled(&one, &[pushed.clone(), pushed.clone()]));
    assert!(!is_compiled(&[vlan(0x8100), inner(0x8100)], &[Action::PopVlan]));
    assert!(!is_compiled(&[], &[pushed]));
}

#[test]
fn longer_frames_are_punted_when_their_length_is_checked() {
    let check = |bytes, otherwise: &[Action]| Action::CheckLength {
        bytes,
        larger: Box::new([Action::Controller]),
        otherwise: otherwise.into(),
    };
    let checked = list(&[], &[check(1400, &[check(1500, &[OUT])]), Action::Controller]).unwrap();
    assert_eq!((checked.max_len, &checked.actions[..]), (1400, &[TWO][..]));
    let pushed = Action::PushVlan(tag(EtherType::VLAN, 5));
    let tagged = list(&[], &[pushed.clone(), check(1400, &[OUT])]).unwrap();
    assert_eq!((tagged.max_len, tagged.grows), (1396, 4));
    assert_eq!(list(&[], &[pushed, check(4, &[OUT])]), None, "no frame is so short");
    assert_eq!(list(&[], &[check(1400, &[Action::Controller])]), None);
    assert_eq!(list(&[], &[check(1400, &[])]), None, "a list without actions has no limit");
}
