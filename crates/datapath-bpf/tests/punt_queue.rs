//! Tests the limit of each port's packets that wait for userspace, the limits of super-packets with
//! short segments, and how long a megaflow stays pinned to the slow path.

use crate::common::frames::tcp4;
use crate::common::switch::{DROPPED, REDIRECTED, RunResult, Switch, offsets};
use crate::common::tunnels::{self, Tunnel};
use datapath_bpf::ActionListNo;
use flow::{Action, Carrier, DropReason, FlowKey, extract};
use packet::PacketBuf;
use testkit::random::Random;

/// The value of the punt clock when the queue is empty.
const ALL_READ: u64 = u64::MAX;
/// The most packets that are punted after the one that caused a pin.
const PINNED: usize = 64;

fn key(frame: &[u8]) -> FlowKey {
    extract(&PacketBuf::from_bytes(frame), Switch::VIF, None).expect("it is whole")
}

/// A switch with limits for the queue of punted packets: `limit` units for each port, and `all` for
/// all together. All frames of [`tcp4`] and longer ones are punted.
fn limited(limit: u32, all: u32) -> (Switch, Vec<u8>) {
    let mut switch = Switch::load();
    let frame = tcp4();
    for port in [Switch::VIF, Switch::PEER] {
        let key = extract(&PacketBuf::from_bytes(&frame), port, None).expect("it is whole");
        switch.put_action_list(&key, ActionListNo::PUNT);
    }
    switch.configure(offsets::PUNT_LIMIT, &limit.to_ne_bytes());
    switch.configure(offsets::PUNT_QUEUE_LEN, &all.to_ne_bytes());
    switch.punted_read_until(1);
    (switch, frame)
}

/// How many of `sent` frames are punted.
fn punted(switch: &Switch, frame: &[u8], sent: usize) -> usize {
    (0..sent).filter(|_| switch.vif(frame).punted().is_some()).count()
}

#[test]
fn port_is_limited_until_its_packets_are_read() {
    testkit::require_root!();
    let (switch, frame) = limited(8, 1000);
    assert_eq!(punted(&switch, &frame, 20), 8);
    let full = DropReason::PuntQueueFull;
    assert_eq!(switch.drops(Switch::VIF, full), 12);
    switch.set_device(1, Switch::PEER);
    assert_eq!(punted(&switch, &frame, 5), 5, "another port has its own room");
    switch.set_device(1, Switch::VIF);
    assert_eq!(punted(&switch, &frame, 1), 0);
    switch.punted_read_until(ALL_READ);
    assert_eq!(punted(&switch, &frame, 20), 8, "the first packet ends the idle time");
    assert_eq!(switch.drops(Switch::PEER, full), 0);
}

#[test]
fn room_returns_as_packets_are_read() {
    testkit::require_root!();
    let (switch, frame) = limited(8, 1000);
    let times: Vec<u64> = (0..8).map(|_| switch.vif(&frame).punted_ns()).collect();
    assert_eq!(switch.vif(&frame).verdict, DROPPED);
    switch.punted_read_until(times[3]);
    // The first of the eight packets was marked. The packets after it count until the next marked
    // one is read.
    assert_eq!(punted(&switch, &frame, 20), 1);
    switch.punted_read_until(times[7]);
    assert_eq!(punted(&switch, &frame, 20), 7, "all eight were read, but not the one behind");
    // A reader that keeps up with the port never makes it lose packets.
    let (switch, frame) = limited(8, 1000);
    let mut waits = std::collections::VecDeque::new();
    for number in 0..1000 {
        let ran = switch.vif(&frame);
        assert!(ran.punted().is_some(), "packet {number} was dropped");
        waits.push_back(ran.punted_ns());
        if waits.len() > 3 {
            switch.punted_read_until(waits.pop_front().expect("there are four"));
        }
    }
}

#[test]
fn port_can_have_at_most_what_remains_free() {
    testkit::require_root!();
    let (switch, frame) = limited(8, 10);
    assert_eq!(punted(&switch, &frame, 20), 5);
    switch.set_device(1, Switch::PEER);
    assert_eq!(punted(&switch, &frame, 20), 3);
}

/// Without this limit, a flood from other hosts would prevent all guests of this host from reaching
/// userspace.
#[test]
fn uplink_can_have_more_than_a_port_but_leaves_room_for_others() {
    testkit::require_root!();
    let (mut switch, frame) = limited(8, 30);
    // Programs do not punt UDP: they pass it to the daemon's socket.
    let is_gre = |tunnel: &Tunnel| tunnel.spec.tunnel.carrier() == Carrier::Gre;
    let tunnel = tunnels::add_all(&mut switch).into_iter().find(is_gre).expect("there is one");
    let (outer, key) = tunnels::arrival(&tunnel, &frame, &tunnel.key(&mut Random::new(1)));
    switch.put_action_list(&key, ActionListNo::PUNT);
    let is_punted = |_: &usize| switch.uplink(&outer).punted().is_some();
    assert_eq!((0..40).filter(is_punted).count(), 15);
    assert_eq!(switch.drops(Switch::UPLINK, DropReason::PuntQueueFull), 25);
    assert_eq!(punted(&switch, &frame, 20), 8, "of the 15 that remain");
}

#[test]
fn packets_count_by_their_bytes_and_segments() {
    testkit::require_root!();
    let of_len = |len: usize, gso_size: u32, fits: usize| {
        let (mut switch, mut frame) = limited(8, 1000);
        frame.resize(len, 0);
        switch.put_action_list(&key(&frame), ActionListNo::PUNT);
        let sent = (0..20).filter(|_| switch.vif_super(&frame, gso_size).punted().is_some());
        assert_eq!(sent.count(), fits, "{len} bytes in segments of {gso_size}");
    };
    of_len(3000, 0, 8);
    of_len(3000, 1448, 8);
    of_len(3000, 187, 4);
    of_len(3000, 36, 1);
    // A packet that costs more than the limit is punted when no other waits.
    let (mut switch, mut frame) = limited(2, 1000);
    frame.resize(3000, 0);
    switch.put_action_list(&key(&frame), ActionListNo::PUNT);
    assert!(switch.vif_super(&frame, 36).punted().is_some());
    assert_eq!(switch.vif_super(&frame, 36).verdict, DROPPED);
}

#[test]
fn misses_cost_a_token_for_each_segment() {
    testkit::require_root!();
    let switch = Switch::load();
    let mut frame = tcp4();
    frame.resize(3000, 0);
    switch.configure(offsets::MISS_BURST, &100_u64.to_ne_bytes());
    switch.configure(offsets::MISS_NS, &(1_u64).to_ne_bytes());
    assert!(switch.vif(&frame).punted().is_some(), "99 of 100 are left");
    switch.configure(offsets::MISS_NS, &(1_u64 << 50).to_ne_bytes());
    let ran = (0..3).map(|_| switch.vif_super(&frame, 100).punted().is_some());
    assert_eq!(ran.collect::<Vec<_>>(), [true, true, true]);
    assert_eq!(switch.vif_super(&frame, 100).verdict, DROPPED, "9 are left, and it needs 30");
    assert_eq!(switch.drops(Switch::VIF, DropReason::UpcallQueueFull), 1);
    assert!(switch.vif(&frame).punted().is_some(), "it needs only one");
}

#[test]
fn short_segments_of_super_packets_have_a_rate() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let mut frame = tcp4();
    frame.resize(3000, 0);
    switch.put(&key(&frame), &[Action::Output(Switch::DEVICE)], 0);
    switch.configure(offsets::SEGMENT_BURST, &100_u32.to_ne_bytes());
    switch.configure(offsets::SEGMENT_NS, &1_u32.to_ne_bytes());
    let is_sent = |size| switch.vif_super(&frame, size).verdict == REDIRECTED;
    assert!(is_sent(100), "70 of 100 are left");
    switch.configure(offsets::SEGMENT_NS, &u32::MAX.to_ne_bytes());
    assert_eq!([100, 100, 100].map(is_sent), [true, true, false], "a token each 4 s");
    assert_eq!(switch.drops(Switch::VIF, DropReason::SegmentLimit), 1);
    assert!((0..100).all(|_| is_sent(500) && is_sent(1448)), "they are not short");
    assert_eq!(switch.vif(&frame).verdict, REDIRECTED);
}

#[test]
fn super_packets_of_tiny_segments_are_dropped_and_counted() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let mut frame = tcp4();
    frame.resize(3000, 0);
    let tiny = DropReason::TinySegments;
    let is_dropped = |switch: &Switch, gso_size| {
        let before = switch.drops(Switch::VIF, tiny);
        let ran = switch.vif_super(&frame, gso_size);
        let counted = switch.drops(Switch::VIF, tiny) - before;
        assert_eq!(ran.verdict == DROPPED, counted == 1, "{gso_size}");
        counted == 1
    };
    // Tests packets without a megaflow, with one that a program executes, and with one that it
    // punts.
    for list in [None, Some(false), Some(true)] {
        let flow = list.map(|punts| match punts {
            true => switch.put_action_list(&key(&frame), ActionListNo::PUNT),
            false => switch.put(&key(&frame), &[Action::Output(Switch::DEVICE)], 0),
        });
        assert!(is_dropped(&switch, 1) && is_dropped(&switch, 8) && is_dropped(&switch, 22));
        for allowed in [0, 23, 35, 36, 1448] {
            assert!(!is_dropped(&switch, allowed), "{allowed}: about 128 segments, or long ones");
        }
        if let Some(flow) = flow {
            switch.tables.delete(flow).expect("it is there");
        }
    }
    switch.put(&key(&frame), &[Action::Output(Switch::DEVICE)], 0);
    let received = switch.counts(Switch::VIF)[0];
    assert!(is_dropped(&switch, 8));
    assert_eq!(switch.counts(Switch::VIF)[0], received + 1);
    // While drops are captured, userspace drops the packet and shows it.
    switch.configure(offsets::WATCH_DROPS, &1_u32.to_ne_bytes());
    assert!(switch.vif_super(&frame, 8).punted().is_some());
}

/// One long packet now and then must not keep a whole flow on the slow path.
#[test]
fn pin_ends_after_a_number_of_packets() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let tunnel = tunnels::add_all(&mut switch)[0];
    let frame = tcp4();
    let mut long = frame.clone();
    long.push(0);
    let output = [Action::Output(Switch::DEVICE)];
    switch.put(&key(&frame), &output, frame.len() as u32);
    let tunnel_key = tunnel.key(&mut Random::new(1));
    let (outer, of_tunnel) = tunnels::arrival(&tunnel, &frame, &tunnel_key);
    let (long_outer, _) = tunnels::arrival(&tunnel, &long, &tunnel_key);
    switch.put(&of_tunnel, &output, frame.len() as u32);
    let served = RunResult { verdict: REDIRECTED, bytes: frame.clone() };
    for _ in 0..3 {
        assert!(switch.vif(&long).punted().is_some());
        let by_program = (0..10 * PINNED).filter(|_| switch.vif(&frame) == served).count();
        assert!(by_program >= 9 * PINNED, "{by_program} packets were not punted");
        switch.uplink(&long_outer);
        let by_program = (0..10 * PINNED).filter(|_| switch.uplink(&outer) == served).count();
        assert!(by_program >= 9 * PINNED, "{by_program} packets were not punted");
    }
}
