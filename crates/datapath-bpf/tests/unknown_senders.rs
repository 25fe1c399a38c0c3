//! Tests tunnel packets whose sender is not an end point: programs drop them if they know all
//! senders, and otherwise leave them to userspace. Packets that are not for a tunnel of this host
//! always pass.

use crate::common::abi::{WEFT_LOCAL_COMPLETE, WEFT_LOCAL_OPEN};
use crate::common::encode::{self, Bytes};
use crate::common::frames::tcp4;
use crate::common::switch::{DROPPED, PASSED, REDIRECTED, RunResult, Switch, offsets};
use crate::common::tunnels::{self, Tunnel};
use flow::{Action, Carrier, DropReason};
use testkit::random::Random;

const L3: usize = 14;

fn set(switch: &Switch, tunnel: &Tunnel, state: u32) {
    let key = encode::local(&tunnel.spec, tunnel.local);
    switch.update_key("weft_locals", &key, &Bytes::new().u32(state));
}

fn dropped(switch: &Switch) -> u64 {
    switch.drops(Switch::UPLINK, DropReason::UnknownEndpoint)
}

/// Changes bytes of the outer header and corrects its checksum.
fn with(outer: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut outer = outer.to_vec();
    change(&mut outer);
    if outer[L3] >> 4 == 4 {
        let header = L3..L3 + usize::from(outer[L3] & 0x0f) * 4;
        outer[L3 + 10..L3 + 12].fill(0);
        let sum = wire::checksum::checksum(&outer[header]);
        outer[L3 + 10..L3 + 12].copy_from_slice(&sum.to_be_bytes());
    }
    outer
}

/// The offsets of the last bytes of the source and of the destination address.
fn address_ends(outer: &[u8]) -> [usize; 2] {
    if outer[L3] >> 4 == 4 { [L3 + 15, L3 + 19] } else { [L3 + 23, L3 + 39] }
}

fn from_unknown(outer: &[u8]) -> Vec<u8> {
    with(outer, |outer| {
        let [source, _] = address_ends(outer);
        outer[source] ^= 0x40;
    })
}

#[test]
fn packets_from_unknown_senders_are_dropped_when_all_senders_are_known() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let random = &mut Random::new(1);
    for tunnel in tunnels::add_all(&mut switch) {
        let (outer, key) = tunnels::arrival(&tunnel, &tcp4(), &tunnel.key(random));
        switch.put(&key, &[Action::Output(Switch::DEVICE)], 0);
        let unknown = from_unknown(&outer);
        let passes = |switch: &Switch| {
            switch.uplink(&unknown) == RunResult { verdict: PASSED, bytes: unknown.clone() }
        };
        let is_gre = tunnel.spec.tunnel.carrier() == Carrier::Gre;
        let is_left_to_userspace = |switch: &Switch| match is_gre {
            true => switch.uplink(&unknown).punted() == Some((Switch::UPLINK, &unknown[..])),
            false => passes(switch),
        };
        let before = dropped(&switch);
        assert!(passes(&switch), "there is no such tunnel yet: {tunnel:?}");
        set(&switch, &tunnel, WEFT_LOCAL_OPEN);
        assert!(is_left_to_userspace(&switch), "{tunnel:?}");
        assert_eq!(dropped(&switch), before);
        set(&switch, &tunnel, WEFT_LOCAL_COMPLETE);
        assert_eq!(switch.uplink(&unknown).verdict, DROPPED, "{tunnel:?}");
        assert_eq!(dropped(&switch), before + 1);
        let delivered = RunResult { verdict: REDIRECTED, bytes: tcp4() };
        assert_eq!(switch.uplink(&outer), delivered, "an end point sent it: {tunnel:?}");
        switch.configure(offsets::WATCH_DROPS, &1_u32.to_ne_bytes());
        assert!(is_left_to_userspace(&switch), "drops are captured: {tunnel:?}");
        switch.punt_to(None);
        assert_eq!(switch.uplink(&unknown).verdict, DROPPED, "no daemon captures: {tunnel:?}");
        assert_eq!(dropped(&switch), before + 2);
        switch.punt_to(Some(1));
        switch.configure(offsets::WATCH_DROPS, &0_u32.to_ne_bytes());
    }
}

#[test]
fn packets_that_are_not_for_a_tunnel_pass_when_all_senders_are_known() {
    testkit::require_root!();
    const TRANSPORT: usize = L3 + 20;
    let mut switch = Switch::load();
    let random = &mut Random::new(1);
    for tunnel in tunnels::add_all(&mut switch) {
        set(&switch, &tunnel, WEFT_LOCAL_COMPLETE);
        let (outer, _) = tunnels::arrival(&tunnel, &tcp4(), &tunnel.key(random));
        let unknown = from_unknown(&outer);
        let (protocol, transport) =
            if tunnel.local.is_ipv4() { (L3 + 9, TRANSPORT) } else { (L3 + 6, L3 + 40) };
        let mut others = vec![
            (
                "another address of this host",
                with(&unknown, |outer| {
                    let [_, destination] = address_ends(outer);
                    outer[destination] ^= 0x80;
                }),
            ),
            ("TCP", with(&unknown, |outer| outer[protocol] = 6)),
            (
                "ICMP",
                with(&unknown, |outer| {
                    outer[protocol] = if tunnel.local.is_ipv4() { 1 } else { 58 };
                }),
            ),
        ];
        if tunnel.spec.tunnel.carrier() == Carrier::Udp {
            others.push(("another port", with(&unknown, |outer| outer[transport + 3] ^= 1)));
        }
        if tunnel.local.is_ipv4() && tunnel.spec.tunnel.carrier() == Carrier::Udp {
            others.push(("a later fragment", with(&unknown, |outer| outer[L3 + 7] = 1)));
        }
        for (what, other) in others {
            let ran = switch.uplink(&other);
            assert_eq!(ran, RunResult { verdict: PASSED, bytes: other }, "{what}: {tunnel:?}");
        }
    }
    assert_eq!(dropped(&switch), 0);
}

/// Packets of a tunnel with headers that the program does not read, and what is unusual in them.
fn unusual(tunnel: &Tunnel, outer: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut unusual = vec![("padding", with(outer, |outer| outer.push(0)))];
    if tunnel.local.is_ipv4() {
        unusual.push(("a first fragment", with(outer, |outer| outer[L3 + 6] = 0x20)));
        unusual.push((
            "an option",
            with(outer, |outer| {
                outer[L3] += 1;
                outer[L3 + 3] += 4;
                outer.splice(L3 + 20..L3 + 20, [0x94, 4, 0, 0]);
            }),
        ));
    } else {
        unusual.push((
            "an extension header",
            with(outer, |outer| {
                let next = std::mem::replace(&mut outer[L3 + 6], 60);
                outer[L3 + 5] += 8;
                outer.splice(L3 + 40..L3 + 40, [next, 0, 1, 4, 0, 0, 0, 0]);
            }),
        ));
    }
    if tunnel.spec.tunnel.carrier() == Carrier::Udp {
        let len = if tunnel.local.is_ipv4() { L3 + 25 } else { L3 + 45 };
        unusual.push(("a short UDP length", with(outer, |outer| outer[len] -= 1)));
    }
    unusual
}

/// Packets with unusual headers must not reach the socket either.
#[test]
fn packets_from_unknown_senders_are_dropped_when_their_headers_are_unusual() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let random = &mut Random::new(1);
    for tunnel in tunnels::add_all(&mut switch) {
        set(&switch, &tunnel, WEFT_LOCAL_COMPLETE);
        let (outer, _) = tunnels::arrival(&tunnel, &tcp4(), &tunnel.key(random));
        for (what, known) in unusual(&tunnel, &outer) {
            let before = dropped(&switch);
            assert_ne!(switch.uplink(&known).verdict, DROPPED, "{what}: {tunnel:?}");
            let unknown = from_unknown(&known);
            assert_eq!(switch.uplink(&unknown).verdict, DROPPED, "{what}: {tunnel:?}");
            assert_eq!(dropped(&switch), before + 1, "{what}: {tunnel:?}");
        }
    }
}

/// A regression test: GRE behind IPv6 extension headers was passed to the host's network stack.
#[test]
fn packets_of_end_points_reach_userspace_when_their_headers_are_unusual() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let random = &mut Random::new(1);
    for tunnel in tunnels::add_all(&mut switch) {
        set(&switch, &tunnel, WEFT_LOCAL_OPEN);
        let (outer, _) = tunnels::arrival(&tunnel, &tcp4(), &tunnel.key(random));
        for (what, packet) in unusual(&tunnel, &outer) {
            let ran = switch.uplink(&packet);
            if tunnel.spec.tunnel.carrier() == Carrier::Gre {
                let punted = Some((Switch::UPLINK, &packet[..]));
                assert_eq!(ran.punted(), punted, "{what}: {tunnel:?}");
            } else {
                assert_eq!(ran, RunResult { verdict: PASSED, bytes: packet }, "{what}: {tunnel:?}");
            }
        }
    }
}
