//! Nested action lists, and the actions that end a list.

use crate::frames::{Kind, Spec};
use crate::{Event, Recorder};
use flow::{
    AclVerdict, Action, DropReason, Field, LogPriority, LogRecord, MAX_NESTING, PortNo, Reply,
};
use packet::PacketBuf;
use std::sync::Arc;
use wire::{EtherType, VlanId, vlan};

fn spec(kind: Kind) -> Spec {
    Spec::of(kind, false)
}

fn out(port: u32) -> Action {
    Action::Output(PortNo(port))
}

fn tag() -> Action {
    Action::PushVlan(vlan::Tag::new(EtherType::VLAN, VlanId::new(10).unwrap()))
}

fn ttl(value: u128) -> Action {
    Action::Set { field: Field::IpTtl, value, mask: 0xff }
}

/// The operations performed, with frames as port and length.
fn done(recorder: Recorder) -> Vec<String> {
    let show = |event| match event {
        Event::Port(port, bytes) => format!("port {port}: {}", bytes.len()),
        Event::Drop(reason) => reason.name().into(),
        Event::Solicit(bytes, first) => format!("solicit by {first:?}: {}", bytes.len()),
        other => format!("{other:?}"),
    };
    recorder.events.into_iter().map(show).collect()
}

fn run(actions: &[Action], packet: &mut PacketBuf) -> Vec<String> {
    done(Recorder::default().run(actions, packet))
}

#[test]
fn clone_leaves_the_frame_as_it_was() {
    let mut packet = spec(Kind::Udp).build().packet;
    let before = packet.to_vec();
    let check = Action::CheckLength { bytes: 10, larger: [ttl(9)].into(), otherwise: [].into() };
    let lists = [vec![tag(), out(1)], vec![check, out(1)], vec![out(1), ttl(9), out(2)]];
    for list in lists {
        run(&[Action::Clone(list.into())], &mut packet);
        assert_eq!(packet.to_vec(), before);
    }
    assert_eq!(
        run(&[Action::Clone([tag(), out(1)].into()), out(2)], &mut packet),
        ["port 1: 146", "port 2: 142"]
    );
}

#[test]
fn clone_that_changes_nothing_is_executed_on_the_frame_itself() {
    struct Places(Vec<*const u8>);
    impl flow::ActionOutput for Places {
        fn port(&mut self, _: PortNo, packet: &mut PacketBuf) -> Result<(), DropReason> {
            self.0.push(packet.head().as_ptr());
            Ok(())
        }
        fn underlay(
            &mut self,
            _: &flow::Encapsulated,
            _: &mut PacketBuf,
        ) -> Result<(), DropReason> {
            Ok(())
        }
        fn dropped(&mut self, _: DropReason, _: &PacketBuf) {}
    }
    let mut packet = spec(Kind::Udp).build().packet;
    let mut places = Places(Vec::new());
    let actions = [
        Action::Clone([out(1), Action::Clone([ttl(3), out(2)].into())].into()),
        Action::Clone([ttl(3), out(3)].into()),
    ];
    let mut endpoints = flow::EndpointTable::new(49_152, 1);
    flow::execute(&actions, &mut packet, &mut endpoints, &mut places);
    let own = packet.head().as_ptr();
    assert_eq!(places.0.iter().map(|&at| at == own).collect::<Vec<_>>(), [true, false, false]);
}

#[test]
fn drop_ends_its_own_list_only() {
    let mut packet = spec(Kind::Udp).build().packet;
    let list = [Action::Drop(DropReason::FlowDrop), out(1)];
    let actions = [Action::Clone(list.clone().into()), out(2), list[0].clone(), out(3)];
    assert_eq!(run(&actions, &mut packet), ["flow_drop", "port 2: 142", "flow_drop"]);
}

#[test]
fn nothing_follows_a_tag_for_which_there_is_no_room() {
    let mut packet = PacketBuf::with_capacity(0, 60);
    packet.set_len(60);
    assert_eq!(run(&[out(1), tag(), out(2)], &mut packet), ["port 1: 60", "headroom"]);
}

#[test]
fn output_that_is_refused_is_counted_and_the_rest_goes_on() {
    let mut packet = spec(Kind::Udp).build().packet;
    let recorder = Recorder { refuse: Some(DropReason::QueueFull), ..Recorder::default() };
    let done = done(recorder.run(&[out(1), Action::Controller, out(2)], &mut packet));
    assert_eq!(done, ["queue_full", "Controller", "queue_full"]);
}

#[test]
fn meter_that_is_exceeded_ends_the_list() {
    let mut packet = spec(Kind::Udp).build().packet;
    let actions = [Action::Meter { rate_kbps: 100, burst_kb: 20 }, out(1)];
    assert_eq!(run(&actions, &mut packet), ["Meter(100, 20)", "port 1: 142"]);
    let recorder = Recorder { exceeded: true, ..Recorder::default() };
    assert_eq!(done(recorder.run(&actions, &mut packet)), ["Meter(100, 20)", "meter"]);
}

#[test]
fn log_names_its_record() {
    let mut packet = spec(Kind::Udp).build().packet;
    let record = LogRecord {
        name: "acl".into(),
        priority: LogPriority::Info,
        verdict: AclVerdict::Allow,
        is_from_lport: true,
        meter: None,
    };
    assert_eq!(run(&[Action::Log(Arc::new(record))], &mut packet), ["Log(\"acl\")"]);
}

#[test]
fn queue_lasts_to_the_end_of_its_list() {
    let mut packet = spec(Kind::Udp).build().packet;
    let inner = Action::Clone([Action::SetQueue(2), out(1)].into());
    let actions = [Action::SetQueue(1), inner.clone(), out(2)];
    let expected = ["Queue(1)", "Queue(2)", "port 1: 142", "Queue(1)", "port 2: 142", "Queue(0)"];
    assert_eq!(run(&actions, &mut packet), expected);
    assert_eq!(run(&[inner], &mut packet), ["Queue(2)", "port 1: 142", "Queue(0)"]);
    let dropped = [Action::SetQueue(5), Action::Drop(DropReason::NoFlow)];
    assert_eq!(run(&dropped, &mut packet), ["Queue(5)", "no_flow", "Queue(0)"]);
}

#[test]
fn length_is_that_of_the_longest_frame_on_the_wire() {
    let check = |bytes| {
        let (larger, otherwise) = ([out(1)].into(), [out(2)].into());
        [Action::CheckLength { bytes, larger, otherwise }, out(3)]
    };
    // kind, tags, size of segments, frame length: Ethernet 14, tag 4, IPv4 20, UDP 8, TCP 24
    let cases = [
        (Kind::Udp, 0, None, 142),
        (Kind::Udp, 2, None, 150),
        (Kind::Udp, 0, Some(40), 82),
        (Kind::Tcp, 1, Some(40), 102),
        (Kind::Tcp, 1, Some(400), 162),
    ];
    for (kind, tags, gso, len) in cases {
        let mut packet = Spec { tags, gso, ..spec(kind) }.build().packet;
        let port = |bytes, packet: &mut PacketBuf| {
            let done = run(&check(bytes), packet);
            assert_eq!(done.len(), 1, "it ends the list");
            done[0].as_bytes()[5]
        };
        assert_eq!(port(len - 1, &mut packet), b'1', "{kind:?} {tags} {gso:?}");
        assert_eq!(port(len, &mut packet), b'2', "{kind:?} {tags} {gso:?}");
    }
}

#[test]
fn reply_that_cannot_be_made_is_counted_and_the_list_goes_on() {
    let mut packet = spec(Kind::Arp).build().packet;
    let reply = Action::Reply { reply: Reply::TcpReset, actions: [out(1)].into() };
    assert_eq!(run(&[reply, out(2)], &mut packet), ["not_applicable", "port 2: 42"]);
}

#[test]
fn nesting_is_bounded() {
    let nested = |levels| (0..levels).fold(out(1), |inner, _| Action::Clone([inner].into()));
    let mut packet = spec(Kind::Udp).build().packet;
    assert_eq!(run(&[nested(MAX_NESTING)], &mut packet), ["port 1: 142"]);
    assert_eq!(run(&[nested(MAX_NESTING + 1)], &mut packet), ["translation_depth"]);
    let checks = (0..1000).fold(out(1), |inner, _| Action::CheckLength {
        bytes: 0,
        larger: [inner].into(),
        otherwise: [].into(),
    });
    assert_eq!(run(&[Action::Clone([checks].into())], &mut packet), ["port 1: 142"]);
}

/// The actions of a router that solicits a next hop other than the packet's destination.
fn solicit_actions() -> [Action; 2] {
    let next_hop = Action::Set { field: Field::ArpTpa, value: 0x0a00_0001, mask: 0xffff_ffff };
    let solicitation = [next_hop, tag(), out(1), out(2)];
    [Action::Reply { reply: Reply::Arp, actions: solicitation.into() }, out(3)]
}

#[test]
fn router_asks_with_the_frame_that_is_sent() {
    let mut packet = spec(Kind::Udp).build().packet;
    let before = packet.to_vec();
    let Recorder { events, .. } = Recorder::default().run(&solicit_actions(), &mut packet);
    let [Event::Solicit(solicitation, first), Event::Port(1, one), Event::Port(2, other), last] =
        &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((solicitation, first), (one, &out(1)));
    assert_eq!((solicitation, &solicitation[42..46]), (other, &[10, 0, 0, 1][..]));
    assert_eq!(*last, Event::Port(3, before));
}

#[test]
fn packet_is_counted_and_goes_on_when_the_router_may_not_ask() {
    let recorder = Recorder { asked: true, ..Recorder::default() };
    let mut packet = spec(Kind::Udp).build().packet;
    assert_eq!(
        done(recorder.run(&solicit_actions(), &mut packet)),
        ["solicit by Output(PortNo(1)): 46", "neighbour_asked", "port 3: 142"]
    );
}

#[test]
fn router_asks_for_nobody_when_nothing_is_sent() {
    let solicitation = [ttl(1), tag()].into();
    let list = [Action::Reply { reply: Reply::Arp, actions: solicitation }, out(1)];
    assert_eq!(run(&list, &mut spec(Kind::Udp).build().packet), ["port 1: 142"]);
}
