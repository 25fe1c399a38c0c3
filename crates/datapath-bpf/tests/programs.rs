//! Tests the programs with BPF_PROG_TEST_RUN: they must produce the same packets as `flow::execute`
//! with the same actions.

use crate::common::action_lists::{has_odd_action, sets};
use crate::common::debian;
use crate::common::frames::udp4;
use crate::common::reference::reference;
use crate::common::switch::{PASSED, REDIRECTED, RunResult, Switch};
use crate::common::tunnels::{self, Tunnel};
use flow::{
    Action, Carrier, DatapathKey, Field, FlowKey, TunnelKey, extract, propagate_ecn_in_slice,
};
use packet::PacketBuf;
use testkit::frames::{self, FrameKinds};
use testkit::random::{Random, environment};

const KINDS: FrameKinds =
    FrameKinds { supers: false, snap: false, malformed: false, max_payload: 1400 };
/// The length limit of a list that has none.
const ANY_LEN: u32 = 0;

/// A frame that a program parses, with complete checksums: a test run cannot pass pending ones.
fn frame(random: &mut Random) -> (Vec<u8>, FlowKey) {
    loop {
        let mut packet = frames::frame(random, KINDS);
        if packet.offload.checksum != packet::Checksum::Unverified {
            packet::complete_checksum(&mut packet).expect("it is where it belongs");
        }
        let frame = packet.to_vec();
        if frame.len() < 64 {
            continue;
        }
        if let Ok(key) = extract(&PacketBuf::from_bytes(&frame), Switch::VIF, None) {
            return (frame, key);
        }
    }
}

fn is_tagged(key: &FlowKey) -> bool {
    key.get(Field::VlanTci) != 0
}

#[test]
fn frames_leave_as_the_reference_executor_says() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let tunnels = tunnels::add_every(&mut switch);
    let seed = environment("WEFT_SEED", 1);
    let (mut done, mut punted) = (0, 0);
    for case in 0..environment("WEFT_CASES", 3000) {
        let random = &mut Random::new(seed << 32 | case);
        let (frame, key) = frame(random);
        let mut actions = sets(random, &key);
        let tunnel = random.pick(&tunnels);
        actions.push(match random.below(4) {
            0 => Action::Output(random.pick(&[Switch::PEER, Switch::DEVICE])),
            1 => Action::Output(Switch::UPLINK),
            _ => Action::Encap { endpoint: tunnel.id, key: tunnel.key(random) },
        });
        let flow = switch.put(&key, &actions, ANY_LEN);
        let expected = reference(&actions, &PacketBuf::from_bytes(&frame), &mut switch.endpoints);
        let before = switch.tables.stats(flow).expect("it is there");
        let ran = switch.vif(&frame);
        let context =
            || format!("case {case} of seed {seed}: {tunnel:?} {actions:?}\n{frame:02x?}");
        if let Some((port, as_it_was)) = ran.punted() {
            assert!(has_odd_action(&key, &actions) || is_tagged(&key), "{}", context());
            assert_eq!((port, as_it_was), (Switch::VIF, &frame[..]), "{}", context());
            punted += 1;
        } else {
            assert_eq!(ran.verdict, REDIRECTED, "{}", context());
            let [(_, bytes)] = &expected.frames[..] else { panic!("{}", context()) };
            assert_eq!(ran.bytes, bytes.to_vec(), "{}", context());
            let served = switch.tables.stats(flow).expect("it is there");
            let grown = (served.packets - before.packets, served.bytes - before.bytes);
            assert_eq!(grown, (1, frame.len() as u64), "{}", context());
            done += 1;
        }
        switch.tables.delete(flow).expect("it is there");
    }
    assert!(done > 5 * punted && punted > 0, "{done} done, {punted} punted");
}

/// The frames have complete checksums, so the program sums all their bytes.
#[test]
fn outer_checksums_are_right_when_frames_have_any_length() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let noise: Vec<u8> = (0..2000_u32).map(|at| (at * at / 7 + at) as u8).collect();
    for tunnel in tunnels::add_checked(&mut switch, 0) {
        let tunnel_key = TunnelKey { datapath: DatapathKey(5), ports: None };
        let encap = [Action::Encap { endpoint: tunnel.id, key: tunnel_key }];
        let key = extract(&PacketBuf::from_bytes(&udp4(&[])), Switch::VIF, None);
        let flow = switch.put(&key.expect("it is whole"), &encap, ANY_LEN);
        for len in (0..140).chain(440..580).chain(950..1060).chain([1472, 1999, 2000]) {
            let frame = udp4(&noise[..len]);
            let ran = switch.vif(&frame);
            let leaves = reference(&encap, &PacketBuf::from_bytes(&frame), &mut switch.endpoints);
            let [(_, expected)] = &leaves.frames[..] else { panic!("one frame leaves") };
            assert_eq!(ran.bytes, expected.to_vec(), "{len} bytes of payload: {tunnel:?}");
        }
        switch.tables.delete(flow).expect("it is there");
    }
}

/// A packet from the other end of a tunnel, its inner frame, and its key.
fn arrival(random: &mut Random, tunnel: &Tunnel, outer_ecn: u8) -> (Vec<u8>, Vec<u8>, FlowKey) {
    let (mut inner, _) = frame(random);
    let key = tunnel.key(random);
    let mut outer = tunnels::outer(tunnel, &inner, &key);
    set_outer_ecn(&mut outer, outer_ecn);
    let info = tunnels::info(tunnel, &outer, &key);
    // A frame that is not ECN-capable is left to userspace.
    let _ = propagate_ecn_in_slice(info.tos, &mut inner);
    let packet = PacketBuf::from_bytes(&inner);
    let key = extract(&packet, Switch::TUNNEL, Some(&info)).expect("it was parsed before");
    (outer, inner, key)
}

fn set_outer_ecn(outer: &mut [u8], ecn: u8) {
    if outer[14] >> 4 == 4 {
        outer[15] = outer[15] & 0xfc | ecn;
        outer[24..26].fill(0);
        let sum = wire::checksum::checksum(&outer[14..34]);
        outer[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        outer[15] = outer[15] & 0xcf | ecn << 4;
    }
}

#[test]
fn tunnelled_frames_are_delivered_as_the_reference_says() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let tunnels = tunnels::add_all(&mut switch);
    let seed = environment("WEFT_SEED", 1);
    let (mut done, mut left) = (0, 0);
    for case in 0..environment("WEFT_CASES", 3000) {
        let random = &mut Random::new(seed << 32 | case);
        let tunnel = random.pick(&tunnels);
        let ecn = random.below(4) as u8;
        let (outer, inner, key) = arrival(random, &tunnel, ecn);
        let mut actions = sets(random, &key);
        actions.push(Action::Output(random.pick(&[Switch::PEER, Switch::DEVICE])));
        let flow = switch.put(&key, &actions, ANY_LEN);
        let expected = reference(&actions, &PacketBuf::from_bytes(&inner), &mut switch.endpoints);
        let before = switch.endpoint_counts(tunnel.id);
        let ran = switch.uplink(&outer);
        let context =
            || format!("case {case} of seed {seed}: {tunnel:?} {actions:?}\n{outer:02x?}");
        let untouched = match ran.punted() {
            Some((port, frame)) => {
                assert_eq!(port, Switch::UPLINK, "{}", context());
                tunnel.spec.tunnel.carrier() == Carrier::Gre && frame == outer
            }
            None => ran == RunResult { verdict: PASSED, bytes: outer.clone() },
        };
        if untouched {
            let no_ecn = ecn == 3 && key.get(Field::IpEcn) == 0 && is_ip(&key);
            assert!(no_ecn || has_odd_action(&key, &actions), "{}", context());
            left += 1;
        } else {
            assert_eq!(ran.verdict, REDIRECTED, "{}", context());
            let [(_, bytes)] = &expected.frames[..] else { panic!("{}", context()) };
            assert_eq!(ran.bytes, bytes.to_vec(), "{}", context());
            let counts = switch.endpoint_counts(tunnel.id);
            let len = inner.len() as u64;
            assert_eq!(counts, [before[0], before[1], before[2] + 1, before[3] + len]);
            done += 1;
        }
        switch.tables.delete(flow).expect("it is there");
    }
    assert!(done > 3 * left && left > 0, "{done} done, {left} left");
}

fn is_ip(key: &FlowKey) -> bool {
    matches!(key.get(Field::EthType), 0x0800 | 0x86dd)
}

/// Debian's kernel lacks some flags of helpers.
#[test]
fn programs_do_the_same_on_debians_kernel() {
    testkit::require_vm!();
    let mut vm = debian();
    for test in [
        "frames_leave_as_the_reference_executor_says",
        "outer_checksums_are_right_when_frames_have_any_length",
        "tunnelled_frames_are_delivered_as_the_reference_says",
    ] {
        let printed =
            vm.run(&format!("WEFT_CASES=500 /bin/program --exact programs::{test} --nocapture"));
        assert!(printed.contains("1 passed"), "{printed}");
    }
}
