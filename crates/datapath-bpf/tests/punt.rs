//! Tests packets that programs do not forward: they punt them, pass them to the host's network
//! stack, or drop and count them. Programs must not change a packet that they punt or pass on.

use crate::common::abi;
use crate::common::frames::tcp4;
use crate::common::switch::{DROPPED, PASSED, REDIRECTED, RunResult, Switch, offsets};
use crate::common::tunnels::{self, Tunnel};
use datapath_bpf::{ActionListNo, FlowStats};
use flow::{
    Action, DatapathKey, DropReason, FlowKey, LogicalPorts, PortKey, PortNo, TunnelKey, TunnelSpec,
    TunnelType, extract,
};
use netdev::{LinkKind, LinkSpec};
use packet::PacketBuf;
use std::time::Duration;
use testkit::host::{TestHost, wait_until};
use testkit::random::Random;

const ALL: TunnelKey = TunnelKey { datapath: DatapathKey(5), ports: None };

fn key(frame: &[u8]) -> FlowKey {
    extract(&PacketBuf::from_bytes(frame), Switch::VIF, None).expect("it is whole")
}

fn is_punted(ran: &RunResult, frame: &[u8]) -> bool {
    ran.punted() == Some((Switch::VIF, frame))
}

#[test]
fn misses_are_punted_while_the_token_bucket_has_tokens() {
    testkit::require_root!();
    let switch = Switch::load();
    let frame = tcp4();
    assert!(is_punted(&switch.vif(&frame), &frame));
    switch.configure(offsets::MISS_BURST, &3_u64.to_ne_bytes());
    switch.configure(offsets::MISS_NS, &1_u64.to_ne_bytes());
    assert!(is_punted(&switch.vif(&frame), &frame), "the bucket is full, and loses one of three");
    // No token is added for 13 days.
    switch.configure(offsets::MISS_NS, &(1_u64 << 50).to_ne_bytes());
    let punted = (0..10).map(|_| is_punted(&switch.vif(&frame), &frame));
    assert_eq!(punted.collect::<Vec<_>>(), [[true; 2].as_slice(), &[false; 8]].concat());
    assert_eq!(switch.drops(Switch::VIF, DropReason::UpcallQueueFull), 8);
    switch.configure(offsets::MISS_NS, &1_u64.to_ne_bytes());
    assert!(is_punted(&switch.vif(&frame), &frame), "the bucket has tokens again");
    switch.configure(offsets::MISS_NS, &(1_u64 << 62).to_ne_bytes());
    (0..3).for_each(|_| drop(switch.vif(&frame)));
    assert_eq!(switch.vif(&frame).verdict, DROPPED);
    switch.configure(offsets::WATCH_DROPS, &1_u32.to_ne_bytes());
    assert!(is_punted(&switch.vif(&frame), &frame), "drops are captured");
}

#[test]
fn punted_packets_are_dropped_and_counted_without_a_daemon() {
    testkit::require_root!();
    let switch = Switch::load();
    switch.punt_to(None);
    assert_eq!(switch.vif(&tcp4()).verdict, DROPPED);
    assert_eq!(switch.drops(Switch::VIF, DropReason::NoDaemon), 1);
}

/// Without a daemon there are no captures, and no punted packets that later ones must not overtake.
#[test]
fn watched_and_pinned_packets_are_forwarded_without_a_daemon() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let frame = tcp4();
    let mut long = frame.clone();
    long.push(0);
    let output = [Action::Output(Switch::DEVICE)];
    let flow = switch.put(&key(&frame), &output, frame.len() as u32);
    let served = RunResult { verdict: REDIRECTED, bytes: frame.clone() };
    let check_removed_and_readded = |switch: &Switch, what: &str| {
        assert!(is_punted(&switch.vif(&frame), &frame), "{what}");
        switch.punt_to(None);
        assert_eq!(switch.vif(&frame), served, "{what}");
        switch.punt_to(Some(1));
    };
    for port in [Switch::VIF, Switch::DEVICE] {
        switch.set_port(port, 1, abi::WEFT_PORT_WATCHED, 0);
        check_removed_and_readded(&switch, "a port that is watched");
        switch.set_port(port, 1, 0, 0);
    }
    assert!(is_punted(&switch.vif(&long), &long));
    check_removed_and_readded(&switch, "pinned to the slow path");
    switch.tables.delete(flow).expect("it is there");
    switch.put(&key(&frame), &[Action::Drop(DropReason::FlowDrop)], 0);
    switch.configure(offsets::WATCH_DROPS, &1_u32.to_ne_bytes());
    assert!(is_punted(&switch.vif(&frame), &frame));
    switch.punt_to(None);
    assert_eq!(switch.vif(&frame).verdict, DROPPED);
    let dropped = [DropReason::FlowDrop, DropReason::NoDaemon];
    assert_eq!(dropped.map(|reason| switch.drops(Switch::VIF, reason)), [1, 0]);
}

/// The host's network stack would reply to them with "port unreachable".
#[test]
fn tunnel_packets_are_dropped_and_counted_without_a_daemon() {
    testkit::require_root!();
    let mut switch = Switch::load();
    for (number, tunnel) in tunnels::add_all(&mut switch).iter().enumerate() {
        let tunnel_key = tunnel.key(&mut Random::new(1));
        let (outer, _) = tunnels::arrival(tunnel, &tcp4(), &tunnel_key);
        let is_gre = tunnel.spec.tunnel.carrier() == flow::Carrier::Gre;
        assert_eq!(switch.uplink(&outer).verdict, if is_gre { REDIRECTED } else { PASSED });
        switch.punt_to(None);
        assert_eq!(switch.uplink(&outer).verdict, DROPPED, "{tunnel:?}");
        assert_eq!(switch.drops(Switch::UPLINK, DropReason::NoDaemon), number as u64 + 1);
        switch.punt_to(Some(1));
    }
}

#[test]
fn nothing_is_punted_to_a_device_that_reuses_the_ifindex_of_the_tap() {
    testkit::require_root!();
    let (switch, host) = (Switch::load(), TestHost::new("gone"));
    let (netlink, spec) = (host.netlink(), LinkSpec::new("up"));
    let index = netlink.create(&spec, &LinkKind::Bridge).expect("a device can be made");
    host.run(|| switch.punt_to(Some(index.0)));
    let frame = tcp4();
    assert!(is_punted(&switch.vif(&frame), &frame));
    netlink.delete(index).expect("it can be removed");
    let again = host.program("ip");
    let made = { again }
        .args(["link", "add", "name", "other", "index", &index.to_string(), "type", "bridge"])
        .status();
    assert!(made.is_ok_and(|status| status.success()), "another gets its number");
    assert_eq!(switch.vif(&frame).verdict, DROPPED);
    assert_eq!(switch.drops(Switch::VIF, DropReason::NoDaemon), 1);
}

#[test]
fn punt_list_needs_no_tokens() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let frame = tcp4();
    let flow = switch.put_action_list(&key(&frame), ActionListNo::PUNT);
    switch.configure(offsets::MISS_NS, &(1_u64 << 62).to_ne_bytes());
    assert!((0..5).all(|_| is_punted(&switch.vif(&frame), &frame)));
    assert_eq!(
        switch.tables.stats(flow).expect("it is there"),
        FlowStats::default(),
        "userspace counts it"
    );
    assert_eq!(switch.counts(Switch::VIF), [0; 4]);
}

#[test]
fn drops_are_counted_unless_they_are_captured() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let frame = tcp4();
    let flow = switch.put(&key(&frame), &[Action::Drop(DropReason::FlowDrop)], 0);
    assert_eq!(switch.vif(&frame).verdict, DROPPED);
    assert_eq!(switch.drops(Switch::VIF, DropReason::FlowDrop), 1);
    assert_eq!(switch.counts(Switch::VIF), [1, frame.len() as u64, 0, 0]);
    let served = switch.tables.stats(flow).expect("it is there");
    assert_eq!((served.packets, served.bytes), (1, frame.len() as u64));
    switch.configure(offsets::WATCH_DROPS, &1_u32.to_ne_bytes());
    assert!(is_punted(&switch.vif(&frame), &frame));
    assert_eq!(switch.drops(Switch::VIF, DropReason::FlowDrop), 1);
}

#[test]
fn empty_action_list_consumes_the_frame_without_a_drop() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let frame = tcp4();
    switch.put(&key(&frame), &[], 0);
    assert_eq!(switch.vif(&frame).verdict, DROPPED);
    assert!(DropReason::ALL.iter().all(|&reason| switch.drops(Switch::VIF, reason) == 0));
    assert_eq!(switch.counts(Switch::VIF), [1, frame.len() as u64, 0, 0]);
}

#[test]
fn frames_that_are_too_long_are_punted() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let all = tunnels::add_all(&mut switch);
    let frame = tcp4();
    let len = frame.len() as u32;
    let output = Action::Output(Switch::DEVICE);
    for (max_len, goes) in [(len, true), (len - 1, false)] {
        let flow = switch.put(&key(&frame), std::slice::from_ref(&output), max_len);
        assert_eq!(is_punted(&switch.vif(&frame), &frame), !goes, "a list of {max_len}");
        switch.tables.delete(flow).expect("it is there");
    }
    for (extra, goes) in [(0, true), (1, false)] {
        let mut long = frame.clone();
        long.resize(Switch::MAX_LEN as usize + extra, 0);
        let flow = switch.put(&key(&long), std::slice::from_ref(&output), 0);
        assert_eq!(is_punted(&switch.vif(&long), &long), !goes, "{extra} too long for a port");
        switch.tables.delete(flow).expect("it is there");
    }
    for tunnel in &all {
        let template = switch.endpoints.get(tunnel.id).expect("it is there").template();
        let most = usize::from(tunnels::PATH_MTU) + 14 - template.as_bytes().len();
        let encap = Action::Encap { endpoint: tunnel.id, key: ALL };
        for (extra, goes) in [(0, true), (1, false)] {
            let mut long = frame.clone();
            long.resize(most + extra, 0);
            let flow = switch.put(&key(&long), std::slice::from_ref(&encap), 0);
            assert_eq!(is_punted(&switch.vif(&long), &long), !goes, "{extra}: {tunnel:?}");
            switch.tables.delete(flow).expect("it is there");
        }
    }
}

#[test]
fn frames_to_unusable_or_watched_ports_are_punted() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let frame = tcp4();
    switch.put(&key(&frame), &[Action::Output(Switch::DEVICE)], 0);
    assert_eq!(switch.vif(&frame), RunResult { verdict: REDIRECTED, bytes: frame.clone() });
    for (ifindex, flags) in [(0, 0), (1, abi::WEFT_PORT_WATCHED)] {
        switch.set_port(Switch::DEVICE, ifindex, flags, 0);
        assert!(is_punted(&switch.vif(&frame), &frame), "{ifindex} {flags}");
    }
    switch.set_port(Switch::DEVICE, 1, 0, 0);
    switch.set_port(Switch::VIF, 1, abi::WEFT_PORT_WATCHED, 0);
    assert!(is_punted(&switch.vif(&frame), &frame), "a port that is watched");
}

#[test]
fn device_is_found_by_linear_probing() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let frame = tcp4();
    switch.put(&key(&frame), &[Action::Output(Switch::DEVICE)], 0);
    assert_eq!(switch.vif(&frame).verdict, REDIRECTED);
    // All test runs have ifindex 1.
    let other = 1 + abi::WEFT_DEVICES;
    switch.set_device_at(1, other, Switch::PEER);
    switch.set_device_at(4, 1, Switch::VIF);
    assert_eq!(switch.vif(&frame).verdict, REDIRECTED, "found in a further slot");
    switch.set_device_at(4, other, Switch::PEER);
    assert_eq!(
        switch.vif(&frame).verdict,
        DROPPED,
        "it is no port, and the host must not see its frames"
    );
    assert_eq!(switch.drops(Switch::UPLINK, DropReason::NoSuchPort), 1);
    assert_eq!(switch.counts(Switch::VIF)[0], 2);
}

#[test]
fn drops_count_for_the_uplink_when_the_map_is_full() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let frame = tcp4();
    switch.put(&key(&frame), &[Action::Drop(DropReason::FlowDrop)], 0);
    switch.expect_drops(Switch::UPLINK, DropReason::FlowDrop);
    let others = (1 << 20..).map(PortNo);
    let fits = others.take_while(|port| switch.expect_drops(*port, DropReason::FlowDrop)).count();
    assert!(fits > 10_000, "{fits}");
    assert_eq!(switch.vif(&frame).verdict, DROPPED);
    assert_eq!(switch.drops(Switch::VIF, DropReason::FlowDrop), 0);
    assert_eq!(switch.drops(Switch::UPLINK, DropReason::FlowDrop), 1);
}

/// Packets that follow a punted one are punted, too, until a second has passed.
#[test]
fn packets_that_follow_a_punted_one_are_punted() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let random = &mut Random::new(1);
    let tunnel = tunnels::add_all(&mut switch)[0];
    let frame = tcp4();
    let mut long = frame.clone();
    long.push(0);
    let output = [Action::Output(Switch::DEVICE)];
    switch.put(&key(&frame), &output, frame.len() as u32);
    let tunnel_key = tunnel.key(random);
    let (outer, of_tunnel) = tunnels::arrival(&tunnel, &frame, &tunnel_key);
    let (long_outer, _) = tunnels::arrival(&tunnel, &long, &tunnel_key);
    switch.put(&of_tunnel, &output, frame.len() as u32);
    let is_left =
        |outer: &[u8]| switch.uplink(outer) == RunResult { verdict: PASSED, bytes: outer.to_vec() };

    assert!(!is_punted(&switch.vif(&frame), &frame) && !is_left(&outer));
    assert!(is_punted(&switch.vif(&long), &long) && is_left(&long_outer));
    assert!(is_punted(&switch.vif(&frame), &frame), "a longer one was punted before it");
    assert!(is_left(&outer), "a longer one was punted before it");
    let patience = Duration::from_secs(10);
    wait_until(patience, "the pin expires", || !is_punted(&switch.vif(&frame), &frame));
    wait_until(patience, "the pin expires", || !is_left(&outer));
}

#[test]
fn packets_are_punted_and_not_counted_without_an_uplink() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let tunnel = tunnels::add_all(&mut switch)[0];
    let frame = tcp4();
    let encap = Action::Encap { endpoint: tunnel.id, key: ALL };
    let flow = switch.put(&key(&frame), &[encap], 0);
    switch.configure(offsets::UPLINK_IFINDEX, &0_u32.to_ne_bytes());
    assert!(is_punted(&switch.vif(&frame), &frame));
    assert_eq!(switch.endpoint_counts(tunnel.id), [0; 4]);
    assert_eq!(switch.tables.stats(flow).expect("it is there"), FlowStats::default());
}

#[test]
fn copies_by_the_uplink_are_punted_when_they_are_too_long() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let frame = tcp4();
    let copies = [Action::Output(Switch::UPLINK), Action::Output(Switch::DEVICE)];
    for (extra, goes) in [(0, true), (1, false)] {
        let flow = switch.put(&key(&frame), &copies, 0);
        let max_len = frame.len() as u32 - extra;
        switch.configure(offsets::UPLINK_MAX_LEN, &max_len.to_ne_bytes());
        assert_eq!(is_punted(&switch.vif(&frame), &frame), !goes, "{extra} too long");
        switch.tables.delete(flow).expect("it is there");
    }
}

/// RFC 8200 section 8.1 allows packets without a checksum only if both ends agreed on it.
#[test]
fn packets_without_a_checksum_go_to_userspace_when_their_ip6_tunnel_has_checksums() {
    testkit::require_root!();
    for (is_checked, goes) in [(false, true), (true, false)] {
        let mut switch = Switch::load();
        let spec = TunnelSpec { checksum: is_checked, ..tunnels::spec(TunnelType::Vxlan) };
        let [local, remote] = ["fd01::1", "fd01::2"].map(|text| text.parse().expect("an address"));
        let tunnel = tunnels::add(&mut switch, &spec, 0, local, remote);
        let (mut outer, key) = tunnels::arrival(&tunnel, &tcp4(), &ALL);
        switch.put(&key, &[Action::Output(Switch::DEVICE)], 0);
        let sum = 14 + 40 + 6..14 + 40 + 8;
        assert_eq!(outer[sum.clone()] == [0, 0], !is_checked);
        assert_eq!(switch.uplink(&outer), RunResult { verdict: REDIRECTED, bytes: tcp4() });
        outer[sum].fill(0);
        let is_left = switch.uplink(&outer) == RunResult { verdict: PASSED, bytes: outer };
        assert_eq!(is_left, !goes, "checksums: {is_checked}");
    }
}

#[test]
fn frames_to_unresolved_end_points_are_punted() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let spec = TunnelSpec { clamp_mss: true, ..tunnels::spec(TunnelType::Vxlan) };
    let [local, remote] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().expect("an address"));
    let tunnel = tunnels::add(&mut switch, &spec, 0, local, remote);
    let encap = Action::Encap { endpoint: tunnel.id, key: ALL };
    let (frame, mut syn) = (tcp4(), tcp4());
    syn[14 + 20 + 13] |= 0x02;
    for frame in [&frame, &syn] {
        switch.put(&key(frame), std::slice::from_ref(&encap), 0);
    }
    assert_eq!(switch.vif(&frame).verdict, REDIRECTED);
    assert!(!is_punted(&switch.vif(&frame), &frame));
    assert!(is_punted(&switch.vif(&syn), &syn), "the user datapath clamps its MSS");
    switch.endpoints.resolve(tunnel.id, None);
    switch.put_endpoint(tunnel.id, 0, &spec, local);
    assert!(is_punted(&switch.vif(&frame), &frame), "it is not resolved");
}

/// A change to an outer packet.
type Change = fn(&mut Vec<u8>);

fn sum_again(outer: &mut [u8]) {
    outer[24..26].fill(0);
    let sum = wire::checksum::checksum(&outer[14..34]);
    outer[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Changes to packets over IPv4: those of one tunnel type, or of all.
const ODD: [(&str, Option<TunnelType>, Change); 14] = [
    ("a wrong checksum of the header", None, |outer| outer[24] ^= 1),
    ("a fragment", None, |outer| {
        outer[20] |= 0x20;
        sum_again(outer);
    }),
    ("another protocol", None, |outer| {
        outer[23] = 4;
        sum_again(outer);
    }),
    ("another sender", None, |outer| {
        outer[29] ^= 1;
        sum_again(outer);
    }),
    ("padding", None, |outer| outer.push(0)),
    ("a wrong length of UDP", Some(TunnelType::Vxlan), |outer| outer[39] ^= 1),
    ("another port", Some(TunnelType::Vxlan), |outer| outer[37] ^= 1),
    ("no I flag", Some(TunnelType::Vxlan), |outer| outer[42] = 0),
    ("a control packet", Some(TunnelType::Geneve), |outer| outer[43] |= 0x80),
    ("another version", Some(TunnelType::Geneve), |outer| outer[42] |= 0x40),
    ("another option", Some(TunnelType::Geneve), |outer| outer[52] = 5),
    ("no port to go to", Some(TunnelType::Geneve), |outer| outer[56..58].fill(0)),
    ("a checksum", Some(TunnelType::Gre), |outer| outer[34] |= 0x80),
    ("another payload", Some(TunnelType::Gre), |outer| outer[36] = 8),
];

fn ports() -> Option<LogicalPorts> {
    Some(LogicalPorts { ingress: PortKey::new(1), egress: PortKey::new(2)? })
}

#[test]
fn unusual_underlay_packets_pass_unchanged() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let random = &mut Random::new(1);
    let all = tunnels::add_all(&mut switch);
    let tunnels: Vec<&Tunnel> = all.iter().filter(|tunnel| tunnel.local.is_ipv4()).collect();
    let mut tried = 0;
    for tunnel in tunnels {
        let has_ports = tunnel.spec.tunnel == TunnelType::Geneve;
        let tunnel_key = TunnelKey { ports: has_ports.then(ports).flatten(), ..tunnel.key(random) };
        let (outer, key) = tunnels::arrival(tunnel, &tcp4(), &tunnel_key);
        switch.put(&key, &[Action::Output(Switch::DEVICE)], 0);
        assert_eq!(switch.uplink(&outer), RunResult { verdict: REDIRECTED, bytes: tcp4() });
        let of_it = |only: Option<TunnelType>| only.is_none_or(|only| only == tunnel.spec.tunnel);
        for (what, _, change) in ODD.into_iter().filter(|(_, only, _)| of_it(*only)) {
            let mut odd = outer.clone();
            change(&mut odd);
            let ran = switch.uplink(&odd);
            let of_gre = matches!(what, "a checksum" | "another payload");
            if of_gre {
                assert_eq!(ran.punted(), Some((Switch::UPLINK, &odd[..])), "{what}");
            } else {
                assert_eq!(ran, RunResult { verdict: PASSED, bytes: odd }, "{what}: {tunnel:?}");
            }
            tried += 1;
        }
    }
    assert!(tried > 30, "{tried}");
}
