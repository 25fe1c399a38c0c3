//! The limits on megaflows and masks.

use crate::{Rig, ipv4, program, udp};
use datapath::megaflow::Megaflow;
use datapath::provider::Datapath;
use flow::Match;
use std::fmt::Write;
use std::sync::Arc;
use switch::{Config, Limits};

/// Flows that cause a separate megaflow for each UDP port.
const BY_PORT: &str = "priority=9,udp,tp_dst=1,tp_src=1 actions=drop\npriority=1 actions=output:4";

fn limited(limits: Limits) -> Rig {
    // All megaflows have the same mask, the exact-match mask.
    let limits = Limits { masks_per_port: 0, ..limits };
    Rig::new(program(BY_PORT), &Config { limits, ..Config::default() })
}

#[test]
fn flooding_port_leaves_megaflows_to_other_ports() {
    let rig = limited(Limits { megaflows: 100, ..Limits::default() });
    for port in 0..1000 {
        assert_eq!(rig.send(1, &udp(1, 9, (port, 7))).0, [4], "the packet is still forwarded");
    }
    assert_eq!(rig.fake.megaflows().len(), 50);
    assert_eq!(rig.engine.stats().refused, 950);
    for port in 0..1000 {
        rig.send(2, &udp(2, 9, (port, 7)));
    }
    assert_eq!(rig.fake.megaflows().len(), 75);
    assert!(rig.send(3, &udp(3, 9, (0, 7))).1 && !rig.send(3, &udp(3, 9, (0, 7))).1);
    // The megaflows of silent ports expire and make room for the others.
    rig.wait(9900);
    rig.send(3, &udp(3, 9, (0, 7)));
    rig.wait(100);
    rig.sweep();
    assert_eq!(rig.fake.megaflows().len(), 1);
}

#[test]
fn idle_timeout_is_shorter_when_the_cache_is_nearly_full() {
    let rig = limited(Limits { megaflows: 64, ..Limits::default() });
    for port in 0..200 {
        (1..=12).for_each(|number| drop(rig.send(number, &udp(9, 8, (port, 7)))));
    }
    let full = rig.fake.megaflows().len();
    assert!((57..=64).contains(&full), "{full}");
    rig.wait(900);
    rig.sweep();
    assert_eq!(rig.fake.megaflows().len(), full);
    rig.wait(100);
    rig.sweep();
    let stats = rig.engine.stats();
    assert_eq!((stats.megaflows, stats.idle, stats.deleted), (0, full as u64, full as u64));
}

#[test]
fn packets_are_cached_by_exact_match_when_their_port_has_too_many_masks() {
    let mut flows = String::new();
    for len in 8..=32 {
        writeln!(flows, "priority={len},ip,nw_dst=10.1.1.{}/{len} actions=output:3", len * 8 % 256)
            .unwrap();
    }
    flows.push_str("priority=0 actions=output:4");
    let limits = Limits { masks_per_port: 4, ..Limits::default() };
    let rig = Rig::new(program(&flows), &Config { limits, ..Config::default() });
    for bit in 0..24 {
        let address = u32::from_be_bytes([10, 1, 1, 0]) ^ 1 << bit;
        let frame = ipv4((1, 2), [10, 0, 0, 1], address.to_be_bytes(), (1, 2));
        let first = rig.send(1, &frame);
        assert!(first.1 || rig.engine.stats().mask_limited == 0);
        assert_eq!(rig.send(1, &frame), (first.0, false));
    }
    assert_eq!(rig.fake.caches[0].lock().unwrap().masks().count(), 5);
    assert!(rig.engine.stats().mask_limited > 5);
    // Other ports have their own limit, and deleted megaflows free their masks.
    let limited = rig.engine.stats().mask_limited;
    rig.send(2, &ipv4((1, 2), [10, 0, 0, 1], [10, 1, 1, 1], (1, 2)));
    rig.wait(10_000);
    rig.sweep();
    assert!(rig.fake.megaflows().is_empty());
    rig.send(1, &ipv4((1, 2), [10, 0, 0, 1], [10, 1, 1, 1], (1, 2)));
    assert_eq!(rig.engine.stats().mask_limited, limited);
}

#[test]
fn ports_that_create_many_masks_leave_some_to_other_ports() {
    let mut flows = String::new();
    for len in 1..=32 {
        writeln!(flows, "priority={len},ip,nw_dst=170.170.170.170/{len} actions=output:4").unwrap();
    }
    flows.push_str("priority=0 actions=output:4");
    let limits = Limits { masks_per_port: 12, masks: 16, ..Limits::default() };
    let rig = Rig::new(program(&flows), &Config { limits, ..Config::default() });
    let to = |bit: u32| {
        let address = 0xaaaa_aaaa_u32 ^ 1 << (31 - bit);
        ipv4((1, 2), [10, 0, 0, 1], address.to_be_bytes(), (1, 2))
    };
    let masks = || rig.fake.caches[0].lock().unwrap().masks().count();
    // Each packet first differs from the flows in another bit, so each needs another mask.
    (0..32).for_each(|bit| drop(rig.send(1, &to(bit))));
    assert_eq!(
        (masks(), rig.engine.stats().mask_limited),
        (8 + 1, 24),
        "a port may use half of the masks"
    );
    (0..32).rev().for_each(|bit| drop(rig.send(2, &to(bit))));
    // Masks that exist already do not count again.
    assert_eq!((masks(), rig.engine.stats().mask_limited), (8 + 4 + 1, 24 + 20));
    assert!(rig.send(3, &to(12)).1);
    assert_eq!((masks(), rig.engine.stats().mask_limited), (14, 44));
    rig.wait(10_000);
    rig.sweep();
    (0..32).for_each(|bit| drop(rig.send(4, &to(bit))));
    assert_eq!((masks(), rig.engine.stats().mask_limited), (9, 44 + 24));
}

#[test]
fn megaflow_that_is_hit_is_not_idle() {
    let rig = limited(Limits::default());
    rig.send(1, &udp(1, 9, (1, 7)));
    rig.send(1, &udp(1, 9, (2, 7)));
    for _ in 0..10 {
        rig.wait(5000);
        assert!(!rig.send(1, &udp(1, 9, (1, 7))).1);
        rig.sweep();
    }
    assert_eq!(rig.fake.megaflows().len(), 1);
}

#[test]
fn megaflow_without_a_record_is_deleted() {
    let rig = limited(Limits::default());
    rig.fake.put(vec![Megaflow::new(Match::any(), Arc::default())]).unwrap();
    rig.sweep();
    assert_eq!(rig.fake.megaflows(), []);
    assert_eq!(rig.engine.stats().strangers, 1);
}

#[test]
fn record_is_removed_when_the_datapath_has_lost_its_megaflow() {
    let rig = limited(Limits::default());
    rig.send(1, &udp(1, 9, (1, 7)));
    rig.sweep();
    rig.fake.caches[0].lock().unwrap().clear();
    assert_eq!(rig.engine.stats().megaflows, 1);
    rig.sweep();
    let stats = rig.engine.stats();
    assert_eq!((stats.megaflows, stats.vanished, stats.deleted), (0, 1, 0));
    // A lost megaflow is installed again when an upcall arrives before the next sweep.
    rig.send(1, &udp(1, 9, (1, 7)));
    rig.fake.caches[0].lock().unwrap().clear();
    assert!(rig.send(1, &udp(1, 9, (1, 7))).1);
    assert!(!rig.send(1, &udp(1, 9, (1, 7))).1);
}

#[test]
fn packets_of_one_batch_are_translated_once_when_one_megaflow_matches_them() {
    let rig = Rig::new(program("actions=output:4"), &Config::default());
    for port in 0..10 {
        rig.fake.receive(0, 1, &udp(1, 9, (port, 7)));
    }
    assert_eq!(rig.answer().len(), 10);
    let stats = rig.engine.stats();
    assert_eq!((stats.upcalls, stats.reused, stats.put, stats.megaflows), (10, 9, 1, 1));
}
