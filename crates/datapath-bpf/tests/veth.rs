//! Tests the programs between veth pairs, with packets that BPF_PROG_TEST_RUN cannot create: with
//! tags in the skb's metadata, super-packets, and pending checksums.

use crate::common::action_lists::{has_odd_action, sets};
use crate::common::encode;
use crate::common::lab::{Lab, PATIENCE, Wire, comparable, punted, punted_by_tags};
use crate::common::reference::reference;
use crate::common::switch::{Switch, guest};
use crate::common::tunnels::{self, Tunnel};
use flow::{
    Action, Carrier, Field, FlowKey, OuterIp, TagLink, TunnelInfo, TunnelKey, extract, tun_flags,
};
use packet::{Checksum, GsoKind, PacketBuf};
use std::time::Duration;
use testkit::frames::{self, FrameKinds};
use testkit::random::{Random, environment};
use wire::vlan::Tag;
use wire::{EtherType, Protocol, VlanId};

const KINDS: FrameKinds =
    FrameKinds { supers: true, snap: false, malformed: false, max_payload: 1400 };

/// A frame as a guest sends it, and its key.
fn frame(random: &mut Random) -> (PacketBuf, FlowKey) {
    loop {
        let mut packet = frames::frame(random, KINDS);
        packet.linearize();
        if packet.len() < 64 {
            continue;
        }
        if let Ok(key) = extract(&packet, Switch::VIF, None) {
            return (packet, key);
        }
    }
}

fn shown(packet: &PacketBuf) -> String {
    let bytes = packet.to_vec();
    format!("{} bytes, {:?}: {:02x?}", bytes.len(), packet.offload, &bytes[..bytes.len().min(160)])
}

/// Actions that push and pop tags before the output.
fn tag_changes(random: &mut Random, key: &FlowKey) -> Vec<Action> {
    let tpid = random.pick(&[EtherType::VLAN, EtherType(0x88a8)]);
    let push = Action::PushVlan(Tag::from_tci(tpid, random.word() as u16 & 0xefff));
    let has_one = key.get(Field::VlanTci) != 0;
    match random.below(6) {
        0 => vec![push],
        1 => vec![push.clone(), push],
        2 | 3 if has_one => vec![Action::PopVlan],
        4 if has_one => vec![Action::PopVlan, push],
        _ => Vec::new(),
    }
}

/// Whether a program may punt this frame.
fn may_be_punted(frame: &PacketBuf, key: &FlowKey, actions: &[Action], to: &Tunnel) -> bool {
    let ends_in_tunnel = matches!(actions.last(), Some(Action::Encap { .. }));
    let tpids = [Field::VlanTpid, Field::VlanInnerTpid].map(|field| key.get(field));
    let has_odd_tag =
        tpids.contains(&0x9100) || EtherType(key.get(Field::EthType) as u16).is_vlan();
    let own_tags = [Field::VlanTci, Field::VlanInnerTci].iter().filter(|tag| key.get(**tag) != 0);
    let own_tags = own_tags.count();
    // Length of the IP header with extensions, if a checksum is pending behind it.
    let ip_len = match frame.offload.checksum {
        Checksum::Partial { start, .. } => Some(usize::from(start) - 14 - 4 * own_tags),
        _ => None,
    };
    let gso = frame.offload.gso;
    let no_checksum = to.spec.checksum && gso.is_some() && to.local.is_ipv6();
    let count = |is: fn(&Action) -> bool| actions.iter().filter(|action| is(action)).count();
    let pushed = count(|action| matches!(action, Action::PushVlan(_)));
    let popped = count(|action| matches!(action, Action::PopVlan));
    let has_many_tags = own_tags + pushed > 2 + popped;
    let is_long = frame.len() > 65_000 || gso.is_some_and(|gso| gso.size > 2800);
    let has_extensions = key.get(Field::EthType) == 0x86dd && ip_len.is_some_and(|len| len > 40);
    let is_long = is_long || has_extensions && gso.is_some();
    has_odd_action(key, actions)
        || has_odd_tag && (ends_in_tunnel || popped > 0)
        || ends_in_tunnel && (no_checksum || has_many_tags || is_long)
}

/// A decision must not depend on header bytes that completing a checksum changes later. So a
/// program forwards a frame only if completing the checksum leaves its key unchanged.
#[test]
fn frames_are_punted_when_completing_their_checksum_changes_the_key() {
    testkit::require_root!();
    const PLAIN: FrameKinds = FrameKinds { supers: false, ..KINDS };
    // New kernels refuse a checksum that covers bytes in front of this offset
    // (__virtio_net_hdr_to_skb).
    const LEAST_START: usize = 20;
    let mut lab = Lab::new();
    let seed = environment("WEFT_SEED", 1);
    let mut tally = [0; 3];
    for case in 0..environment("WEFT_CASES", 2000) {
        let random = &mut Random::new(seed << 32 | case);
        let mut frame = frames::frame(random, PLAIN);
        frame.linearize();
        let Ok(key) = extract(&frame, Switch::VIF, None) else { continue };
        if frame.len() < 64 {
            continue;
        }
        let own = frame.offload.checksum;
        if !random.once_in(4) {
            let field = LEAST_START + random.below(frame.len().min(120) - 1 - LEAST_START);
            let start = LEAST_START + random.below(field - LEAST_START + 1);
            let (start, offset) = (start as u16, (field - start) as u16);
            frame.offload.checksum = Checksum::Partial { start, offset };
        }
        let is_own = frame.offload.checksum == own;
        let flow = lab.switch.put(&key, &[Action::Output(Switch::DEVICE)], 0);
        lab.send(Wire::Vif, &frame);
        let context = || format!("case {case} of seed {seed}: {}", shown(&frame));
        let received = lab.receive(PATIENCE);
        let (wire, mut received) = received.unwrap_or_else(|| panic!("lost, {}", context()));
        let is_punted = wire == Wire::Punt;
        packet::complete_checksum(&mut received).expect("the field is in the frame");
        let has_key = extract(&received, Switch::VIF, None).ok().as_ref() == Some(&key);
        assert!(has_key || is_punted, "{}", context());
        assert!(!is_own || !is_punted, "{}", context());
        let kind = if is_own { 0 } else { 1 + usize::from(is_punted) };
        tally[kind] += 1;
        lab.switch.tables.delete(flow).expect("it is there");
    }
    assert!(tally.iter().all(|&count| count > 100), "own, harmless, punted: {tally:?}");
}

/// Helpers extend a frame without GSO only up to about 16 KB.
#[test]
fn frames_of_any_length_are_punted() {
    testkit::require_root!();
    let mut lab = Lab::new();
    let tunnel = tunnels::add_all(&mut lab.switch)[0];
    for tag in [None, Some(Tag::from_tci(EtherType::VLAN, 7))] {
        let mut frame = PacketBuf::from_bytes(&crate::common::frames::tcp4());
        frame.append(&vec![0x5a; 40_000]);
        if let Some(tag) = tag {
            flow::push_vlan(&mut frame, tag).expect("there is headroom");
        }
        let key = extract(&frame, Switch::VIF, None).expect("it is whole");
        let rewrite = Action::Set { field: Field::EthSrc, value: 1, mask: (1 << 48) - 1 };
        let tunnel_key = TunnelKey { datapath: flow::DatapathKey(5), ports: None };
        let encap = Action::Encap { endpoint: tunnel.id, key: tunnel_key };
        for actions in [None, Some(vec![rewrite, encap])] {
            let flow = actions.map(|actions| lab.switch.put(&key, &actions, 0));
            lab.send(Wire::Vif, &frame);
            let (wire, seen) = lab.receive(PATIENCE).expect("it is not lost");
            assert_eq!(wire, Wire::Punt);
            let (port, seen) = punted_by_tags(&seen);
            assert_eq!((port, comparable(&seen)), (Switch::VIF, comparable(&frame)));
            if let Some(flow) = flow {
                lab.switch.tables.delete(flow).expect("it is there");
            }
        }
    }
}

#[test]
fn guest_frames_leave_as_the_reference_executor_says() {
    testkit::require_root!();
    let mut lab = Lab::new();
    let tunnels = tunnels::add_every(&mut lab.switch);
    let seed = environment("WEFT_SEED", 1);
    let mut tally = [0; 4];
    for case in 0..environment("WEFT_CASES", 2000) {
        let random = &mut Random::new(seed << 32 | case);
        let (frame, key) = frame(random);
        let mut actions = if random.once_in(2) { sets(random, &key) } else { Vec::new() };
        if random.once_in(3) {
            actions.extend(tag_changes(random, &key));
        }
        let tunnel = random.pick(&tunnels);
        actions.push(match random.below(4) {
            0 => Action::Output(random.pick(&[Switch::PEER, Switch::DEVICE])),
            1 => Action::Output(Switch::UPLINK),
            _ => Action::Encap { endpoint: tunnel.id, key: tunnel.key(random) },
        });
        let flow = lab.switch.put(&key, &actions, 0);
        let expected = reference(&actions, &frame, &mut lab.switch.endpoints);
        let [(_, expected)] = &expected.frames[..] else { panic!("one frame leaves") };
        lab.send(Wire::Vif, &frame);
        let context =
            || format!("case {case} of seed {seed}: {tunnel:?} {actions:?}\n{}", shown(&frame));
        let (wire, seen) = lab.receive(PATIENCE).unwrap_or_else(|| panic!("lost, {}", context()));
        if wire == Wire::Punt {
            let (port, seen) = punted(&seen);
            assert_eq!(port, Switch::VIF, "{}", context());
            assert_eq!(comparable(&seen), comparable(&frame), "{}", context());
            assert!(may_be_punted(&frame, &key, &actions, &tunnel), "{}", context());
            tally[3] += 1;
        } else {
            assert_eq!(comparable(&seen), comparable(expected), "{}", context());
            tally[0] += 1;
            tally[1] += usize::from(seen.offload.gso.is_some());
            tally[2] += usize::from(wire == Wire::Uplink);
        }
        lab.switch.tables.delete(flow).expect("it is there");
    }
    let [done, supers, outer, punted] = tally;
    let is_mixed = supers * 8 > done && outer * 3 > done && punted * 3 < done;
    assert!(is_mixed && punted > 0, "done, super-packets, by the uplink, punted: {tally:?}");
}

/// Adds the tunnels as the other end sees them, so that the same programs receive what they send.
fn add_reverse(switch: &mut Switch, tunnels: &[Tunnel]) -> Vec<Tunnel> {
    let reverse = |(number, to): (usize, &Tunnel)| {
        let class = (tunnels.len() + number) as u16;
        tunnels::add(switch, &to.spec, class, to.remote, to.local)
    };
    tunnels.iter().enumerate().map(reverse).collect()
}

/// The tunnel part of the key that a received frame has.
fn info(to: &Tunnel, tunnel_key: &TunnelKey, key: &FlowKey) -> TunnelInfo {
    let (tos, ttl) = (key.get(Field::IpDscp) << 2 | key.get(Field::IpEcn), key.get(Field::IpTtl));
    let is_ip = matches!(key.get(Field::EthType), 0x0800 | 0x86dd);
    let is_gre = to.spec.tunnel.carrier() == flow::Carrier::Gre;
    let dscp = match to.spec.dscp {
        flow::Dscp::Fixed(dscp) => dscp << 2,
        flow::Dscp::Inherit => tos as u8 & 0xfc,
    };
    let ttl = match to.spec.ttl {
        flow::Ttl::Fixed(ttl) => ttl,
        flow::Ttl::Inherit if is_ip => (ttl as u8).max(1),
        flow::Ttl::Inherit => 64,
    };
    let outer = OuterIp {
        source: to.local,
        destination: to.remote,
        protocol: Protocol::UDP,
        traffic_class: dscp | tos as u8 & 3,
        ttl: if is_gre { ttl } else { 0 },
        dont_fragment: is_gre && to.local.is_ipv4(),
    };
    let mut info = TunnelInfo::new(to.spec.tunnel, &outer, tunnel_key);
    if is_gre && !to.spec.key {
        info.flags &= !tun_flags::KEY;
    }
    info
}

fn links() -> [TagLink; 3] {
    let [a, b] = [7, 8].map(|vlan| VlanId::new(vlan).expect("it is one"));
    let pair = |service_tpid| TagLink::QinQ { service_tpid, outer: a, inner: b };
    [TagLink::Vlan(b), pair(EtherType(0x88a8)), pair(EtherType::VLAN)]
}

fn add_links(switch: &Switch) {
    for link in links() {
        let (key, value) = encode::link(link, Switch::TUNNEL);
        switch.update_key("weft_tag_links", &key, &value);
    }
}

/// Chooses a tunnel. Returns the action that sends by it, and the tunnel part of the received key.
fn send(random: &mut Random, tunnels: &[Tunnel], key: &FlowKey) -> (Tunnel, Action, TunnelInfo) {
    let tunnel = random.pick(tunnels);
    let tunnel_key = tunnel.key(random);
    let encap = Action::Encap { endpoint: tunnel.id, key: tunnel_key };
    (tunnel, encap, info(&tunnel, &tunnel_key, key))
}

#[test]
fn frames_sent_by_one_program_are_delivered_by_the_other() {
    testkit::require_root!();
    let mut lab = Lab::new();
    lab.loop_uplink();
    let tunnels = tunnels::add_every(&mut lab.switch);
    add_reverse(&mut lab.switch, &tunnels);
    add_links(&lab.switch);
    let seed = environment("WEFT_SEED", 1);
    let mut tally = [0; 4];
    for case in 0..environment("WEFT_CASES", 2000) {
        let random = &mut Random::new(seed << 32 | case);
        let (frame, key) = frame(random);
        let (tunnel, encap, mut info) = send(random, &tunnels, &key);
        let mut outward = vec![encap];
        if random.once_in(3) {
            let link = random.pick(&links());
            let (outer, inner) = link.tags();
            outward = inner.into_iter().chain([outer]).map(Action::PushVlan).collect();
            outward.push(Action::Output(Switch::UPLINK));
            info = TunnelInfo::of_link(link);
        }
        let mut inward = if random.once_in(2) { sets(random, &key) } else { Vec::new() };
        if random.once_in(3) {
            inward.extend(tag_changes(random, &key));
        }
        inward.push(Action::Output(random.pick(&[Switch::PEER, Switch::DEVICE])));
        let arriving = extract(&frame, Switch::TUNNEL, Some(&info)).expect("it is whole");
        let flows = [(&key, &outward), (&arriving, &inward)]
            .map(|(key, actions)| lab.switch.put(key, actions, 0));
        let expected = reference(&inward, &frame, &mut lab.switch.endpoints);
        let [(_, expected)] = &expected.frames[..] else { panic!("one frame leaves") };
        let is_refused = may_be_punted(&frame, &key, &outward, &tunnel);
        let by_tunnel = matches!(outward[..], [Action::Encap { .. }]);
        let pops = inward.contains(&Action::PopVlan);
        let is_for_guest = key.get(Field::EthDst) == (guest() >> 16).into();
        let in_udp = tunnel.spec.tunnel.carrier() == Carrier::Udp;
        let is_udp_super = frame.offload.gso.is_some_and(|gso| gso.kind == GsoKind::UdpL4)
            && (in_udp || !(is_for_guest && inward == [Action::Output(Switch::PEER)]));
        let is_tagged_super = frame.offload.gso.is_some() && key.get(Field::VlanTci) != 0;
        let may_be_left = may_be_punted(&frame, &arriving, &inward, &tunnel)
            || by_tunnel && (is_tagged_super || is_udp_super || pops);
        lab.send(Wire::Vif, &frame);
        let context = || {
            format!(
                "case {case} of seed {seed}: {tunnel:?} {outward:?} {inward:?}\n{}",
                shown(&frame)
            )
        };
        let patience = if may_be_left { Duration::from_millis(20) } else { PATIENCE };
        match lab.receive(patience) {
            None => {
                assert!(may_be_left, "lost, {}", context());
                tally[2] += 1;
            }
            Some((Wire::Punt, _)) => {
                assert!(is_refused || may_be_left, "{}", context());
                tally[3] += 1;
            }
            Some((_, seen)) => {
                assert_eq!(comparable(&seen), comparable(expected), "{}", context());
                tally[0] += 1;
                tally[1] += usize::from(seen.offload.gso.is_some());
            }
        }
        for flow in flows {
            lab.switch.tables.delete(flow).expect("it is there");
        }
    }
    let [done, supers, left, punted] = tally;
    let is_mixed = supers * 8 > done && left * 6 < done && punted * 2 < done;
    assert!(is_mixed, "done, super-packets, left, punted: {tally:?}");
}
