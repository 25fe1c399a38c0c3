//! What programs do not do: they hand it over, or leave it alone, or count it, and a packet that they do not finish is as it was.

mod common;

use common::encode::{self, Bytes};
use common::frames::tcp4;
use common::switch::{DROPPED, PASSED, REDIRECTED, Ran, Switch, offsets};
use common::tunnels::{self, Tunnel};
use datapath_bpf::{ListNo, Served};
use flow::{
    Action, DatapathKey, DropReason, FlowKey, LogicalPorts, PortKey, TunnelKey, TunnelSpec,
    TunnelType, extract,
};
use packet::PacketBuf;
use testkit::random::Random;

const ALL: TunnelKey = TunnelKey { datapath: DatapathKey(5), ports: None };

fn key(frame: &[u8]) -> FlowKey {
    extract(&PacketBuf::from_bytes(frame), Switch::VIF, None).expect("it is whole")
}

fn is_handed_over(ran: &Ran, frame: &[u8]) -> bool {
    ran.handed_over() == Some((Switch::VIF, frame))
}

#[test]
fn misses_are_handed_over_as_long_as_there_are_tokens() {
    testkit::require_root!();
    let switch = Switch::load();
    let frame = tcp4();
    assert!(is_handed_over(&switch.vif(&frame), &frame));
    switch.configure(offsets::MISS_BURST, &3_u64.to_ne_bytes());
    switch.configure(offsets::MISS_NS, &(1_u64 << 50).to_ne_bytes());
    let handed_over = (0..10).filter(|_| is_handed_over(&switch.vif(&frame), &frame)).count();
    // The machine may have been up for less than that many nanoseconds: then there is not one token.
    assert!(handed_over <= 3, "{handed_over}");
    let dropped = switch.drops(Switch::VIF, DropReason::UpcallQueueFull);
    assert_eq!(dropped, 10 - handed_over as u64);
    switch.configure(offsets::MISS_NS, &1_u64.to_ne_bytes());
    assert!(is_handed_over(&switch.vif(&frame), &frame), "there are tokens again");
    switch.configure(offsets::MISS_NS, &(1_u64 << 62).to_ne_bytes());
    (0..3).for_each(|_| drop(switch.vif(&frame)));
    assert_eq!(switch.vif(&frame).verdict, DROPPED);
    switch.configure(offsets::WATCH_DROPS, &1_u32.to_ne_bytes());
    assert!(is_handed_over(&switch.vif(&frame), &frame), "somebody wants to see it");
}

#[test]
fn what_nobody_reads_is_dropped_and_counted() {
    testkit::require_root!();
    let switch = Switch::load();
    switch.configure(offsets::HAND_OVER_IFINDEX, &0_u32.to_ne_bytes());
    assert_eq!(switch.vif(&tcp4()).verdict, DROPPED);
    assert_eq!(switch.drops(Switch::VIF, DropReason::UpcallQueueFull), 1);
}

#[test]
fn list_for_userspace_is_handed_over_without_tokens() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let frame = tcp4();
    let flow = switch.put_list(&key(&frame), ListNo::HAND_OVER);
    switch.configure(offsets::MISS_NS, &(1_u64 << 62).to_ne_bytes());
    assert!((0..5).all(|_| is_handed_over(&switch.vif(&frame), &frame)));
    assert_eq!(
        switch.tables.served(flow).expect("it is there"),
        Served::default(),
        "userspace counts it"
    );
    assert_eq!(switch.counts(Switch::VIF), [0; 4]);
}

#[test]
fn drops_are_counted_unless_somebody_watches_them() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let frame = tcp4();
    let flow = switch.put(&key(&frame), &[Action::Drop(DropReason::FlowDrop)], 0);
    assert_eq!(switch.vif(&frame).verdict, DROPPED);
    assert_eq!(switch.drops(Switch::VIF, DropReason::FlowDrop), 1);
    assert_eq!(switch.counts(Switch::VIF), [1, frame.len() as u64, 0, 0]);
    let served = switch.tables.served(flow).expect("it is there");
    assert_eq!((served.packets, served.bytes), (1, frame.len() as u64));
    switch.configure(offsets::WATCH_DROPS, &1_u32.to_ne_bytes());
    assert!(is_handed_over(&switch.vif(&frame), &frame));
    assert_eq!(switch.drops(Switch::VIF, DropReason::FlowDrop), 1);
}

#[test]
fn empty_list_ends_silently() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let frame = tcp4();
    switch.put(&key(&frame), &[], 0);
    assert_eq!(switch.vif(&frame).verdict, DROPPED);
    assert!(DropReason::ALL.iter().all(|&reason| switch.drops(Switch::VIF, reason) == 0));
    assert_eq!(switch.counts(Switch::VIF), [1, frame.len() as u64, 0, 0]);
}

#[test]
fn frames_that_are_too_long_are_handed_over() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let all = tunnels::add_all(&mut switch);
    let frame = tcp4();
    let len = frame.len() as u32;
    let output = Action::Output(Switch::DEVICE);
    for (max_len, goes) in [(len, true), (len - 1, false)] {
        let flow = switch.put(&key(&frame), std::slice::from_ref(&output), max_len);
        assert_eq!(is_handed_over(&switch.vif(&frame), &frame), !goes, "a list of {max_len}");
        switch.tables.delete(flow).expect("it is there");
    }
    for (extra, goes) in [(0, true), (1, false)] {
        let mut long = frame.clone();
        long.resize(Switch::MAX_LEN as usize + extra, 0);
        let flow = switch.put(&key(&long), std::slice::from_ref(&output), 0);
        assert_eq!(is_handed_over(&switch.vif(&long), &long), !goes, "{extra} too long for a port");
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
            assert_eq!(is_handed_over(&switch.vif(&long), &long), !goes, "{extra}: {tunnel:?}");
            switch.tables.delete(flow).expect("it is there");
        }
    }
}

#[test]
fn ports_that_cannot_be_used_or_are_watched_get_nothing_from_programs() {
    testkit::require_root!();
    let mut switch = Switch::load();
    let frame = tcp4();
    switch.put(&key(&frame), &[Action::Output(Switch::DEVICE)], 0);
    assert_eq!(switch.vif(&frame), Ran { verdict: REDIRECTED, bytes: frame.clone() });
    for (ifindex, flags) in [(0, 0), (1, encode::WATCHED)] {
        switch.set_port(Switch::DEVICE, ifindex, flags, 0);
        assert!(is_handed_over(&switch.vif(&frame), &frame), "{ifindex} {flags}");
    }
    switch.set_port(Switch::DEVICE, 1, 0, 0);
    switch.set_port(Switch::VIF, 1, encode::WATCHED, 0);
    assert!(is_handed_over(&switch.vif(&frame), &frame), "a port that is watched");
    switch.update("weft_devices", 1, &Bytes::new().u32(0).u32(0));
    assert_eq!(switch.vif(&frame), Ran { verdict: PASSED, bytes: frame }, "no port of ours");
}

#[test]
fn end_points_that_are_not_ready_get_nothing_from_programs() {
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
    assert!(!is_handed_over(&switch.vif(&frame), &frame));
    assert!(is_handed_over(&switch.vif(&syn), &syn), "its MSS is lowered there");
    switch.endpoints.resolve(tunnel.id, None);
    switch.put_endpoint(tunnel.id, 0, &spec, local);
    assert!(is_handed_over(&switch.vif(&frame), &frame), "it is not resolved");
}

/// A change to an outer packet.
type Change = fn(&mut Vec<u8>);

fn sum_again(outer: &mut [u8]) {
    outer[24..26].fill(0);
    let sum = wire::checksum::checksum(&outer[14..34]);
    outer[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Of packets over IPv4, with VXLAN, Geneve and GRE; and all of them.
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
    ("somebody else", None, |outer| {
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
fn odd_packets_of_the_underlay_are_left_as_they_are() {
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
        assert_eq!(switch.uplink(&outer), Ran { verdict: REDIRECTED, bytes: tcp4() });
        let of_it = |only: Option<TunnelType>| only.is_none_or(|only| only == tunnel.spec.tunnel);
        for (what, _, change) in ODD.into_iter().filter(|(_, only, _)| of_it(*only)) {
            let mut odd = outer.clone();
            change(&mut odd);
            let ran = switch.uplink(&odd);
            let of_gre = matches!(what, "a checksum" | "another payload");
            if of_gre {
                assert_eq!(ran.handed_over(), Some((Switch::UPLINK, &odd[..])), "{what}");
            } else {
                assert_eq!(ran, Ran { verdict: PASSED, bytes: odd }, "{what}: {tunnel:?}");
            }
            tried += 1;
        }
    }
    assert!(tried > 30, "{tried}");
}
