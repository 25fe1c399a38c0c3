//! Regression tests for published faults of other switches: a frame that a rule rejects must not be
//! forwarded by the megaflow of another frame.
//!
//! Each case translates a forwarded frame, and checks that its megaflow does not match the dropped
//! frame.

use flow::{Action, FlowKey, PortNo, extract};
use ofctl::Bridge;
use packet::PacketBuf;
use pipeline::{Program, Translation, translate};

fn bridge(flows: &str) -> Program {
    let ports = (1..=2).map(|number| Bridge::device(PortNo(number), &format!("p{number}")));
    let mut bridge = Bridge::new("br0", ports).unwrap();
    bridge.apply(flows, "flows.txt", 0).unwrap_or_else(|error| panic!("{error}"));
    bridge.program().clone()
}

fn key_of(frame: &[u8]) -> FlowKey {
    extract(&PacketBuf::from_bytes(frame), PortNo(1), None).unwrap()
}

fn is_sent(translation: &Translation<'_>) -> bool {
    translation.actions.iter().any(|action| matches!(action, Action::Output(_)))
}

/// The first frame is forwarded and the second one is dropped, in either order, and the megaflow of
/// neither matches the other.
fn assert_distinguished(flows: &str, forwarded: &[u8], dropped: &[u8]) {
    let program = bridge(flows);
    let (forwarded, dropped) = (key_of(forwarded), key_of(dropped));
    for (first, second, first_is_sent) in
        [(&forwarded, &dropped, true), (&dropped, &forwarded, false)]
    {
        let translation = translate(&program, first, &(), &mut ());
        assert_eq!(is_sent(&translation), first_is_sent, "{first}");
        assert!(
            !translation.mask.agree(first, second),
            "the megaflow of {first} serves {second}: {}",
            translation.mask
        );
    }
}

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&MACS[..], &ethertype.to_be_bytes(), payload].concat()
}

/// An IPv4 packet. `fragment` is the 16-bit field with flags and fragment offset.
fn ipv4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let total = (20 + payload.len() as u16).to_be_bytes();
    let fragment = fragment.to_be_bytes();
    let header = [
        0x45,
        0,
        total[0],
        total[1],
        0,
        1,
        fragment[0],
        fragment[1],
        64,
        protocol,
        0,
        0,
        10,
        0,
        0,
        1,
        10,
        0,
        0,
        2,
    ];
    [&header[..], payload].concat()
}

fn udp(destination: u16) -> Vec<u8> {
    let [high, low] = destination.to_be_bytes();
    vec![0x10, 0, high, low, 0, 8, 0, 0]
}

/// CVE-2020-35498 (Open vSwitch): frames padded to 60 bytes were parsed beyond the end of the
/// packet, so that the padding of one frame affected the handling of later frames.
#[test]
fn padding_does_not_decide() {
    let program = bridge("priority=10,udp,tp_dst=53,actions=drop\npriority=0,actions=output:2");
    let packet = ipv4(17, 0, &udp(80));
    let plain = key_of(&ethernet(0x0800, &packet));
    for padding in [vec![0; 18], vec![0xff; 18], udp(53).repeat(3)] {
        let padded = key_of(&ethernet(0x0800, &[&packet[..], &padding].concat()));
        assert_eq!(padded, plain);
        assert!(is_sent(&translate(&program, &padded, &(), &mut ())));
    }
    // A header that extends into the padding is not parsed.
    let short =
        ethernet(0x0800, &[&ipv4(17, 0, &[0x10, 0]), &[0, 53, 0, 8, 0, 0][..], &[0; 20]].concat());
    assert!(extract(&PacketBuf::from_bytes(&short), PortNo(1), None).is_err());
}

/// CVE-2023-1668 (Open vSwitch): the megaflow of a packet with IP protocol 0 had the protocol
/// wildcarded, so that it matched all protocols.
#[test]
fn protocol_zero_does_not_serve_other_protocols() {
    let flows = "priority=10,udp,actions=drop\npriority=0,actions=output:2";
    let forwarded = ethernet(0x0800, &ipv4(0, 0, &udp(80)));
    let dropped = ethernet(0x0800, &ipv4(17, 0, &udp(80)));
    assert_distinguished(flows, &forwarded, &dropped);
    let rewriting = "priority=10,udp,actions=drop\npriority=0,ip,actions=mod_nw_ttl:9,output:2";
    assert_distinguished(rewriting, &forwarded, &dropped);
}

fn solicitation(kind: u8, target: u8) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 24, 58, 255];
    packet.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    packet.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 2]);
    packet.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
    packet.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, target]);
    ethernet(0x86dd, &packet)
}

/// CVE-2023-5366 (Open vSwitch): one megaflow served rules that differ in `nd_target`, so that a
/// guest could advertise addresses of others.
#[test]
fn neighbour_target_is_in_the_mask() {
    let flows = "priority=10,icmp6,icmpv6_type=136,nd_target=fe80::2,actions=output:2\n\
                 priority=5,icmp6,icmpv6_type=136,actions=drop\npriority=0,actions=output:2";
    assert_distinguished(flows, &solicitation(136, 2), &solicitation(136, 3));
    let by_type = "priority=10,icmp6,icmpv6_type=136,actions=drop\npriority=0,actions=output:2";
    assert_distinguished(by_type, &solicitation(135, 2), &solicitation(136, 2));
}

/// Later fragments have no ports. If payload bytes were read as ports, such a fragment could pass a
/// rule, or its megaflow could match other packets.
#[test]
fn later_fragment_has_no_ports() {
    let flows = "priority=10,udp,tp_dst=53,actions=drop\npriority=0,actions=output:2";
    let later = ethernet(0x0800, &ipv4(17, 0x0001, &udp(53)));
    let whole = ethernet(0x0800, &ipv4(17, 0, &udp(53)));
    assert_distinguished(flows, &later, &whole);
    let first = ethernet(0x0800, &ipv4(17, 0x2000, &udp(53)));
    assert_distinguished(flows, &later, &first);
    // Port 0 is a real port: a rule for it does not match later fragments.
    let zero =
        "priority=10,udp,tp_dst=0,ip_frag=not_later,actions=drop\npriority=0,actions=output:2";
    let whole_zero = ethernet(0x0800, &ipv4(17, 0, &udp(0)));
    assert_distinguished(zero, &later, &whole_zero);
}

fn arp(operation: u16, sender: u8) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4];
    packet.extend(operation.to_be_bytes());
    packet.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, sender, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    ethernet(0x0806, &packet)
}

/// The ARP operation has 16 bits. A switch that reads only eight bits mistakes operation 257 for a
/// request.
#[test]
fn arp_operation_is_read_in_full() {
    let flows = "priority=10,arp,arp_op=1,actions=output:2\npriority=0,actions=drop";
    assert_distinguished(flows, &arp(1, 1), &arp(0x0101, 1));
    assert_distinguished(flows, &arp(1, 1), &arp(2, 1));
    let spoofed = "priority=10,arp,arp_spa=10.0.0.1,actions=output:2\npriority=0,actions=drop";
    assert_distinguished(spoofed, &arp(2, 1), &arp(2, 3));
}

/// A megaflow for a short prefix must not match addresses that a longer prefix covers.
#[test]
fn short_prefix_beside_long_ones_is_told_apart() {
    let flows = "priority=10,ip,nw_dst=10.0.0.0/8,actions=output:2\n\
                 priority=20,ip,nw_dst=10.0.0.2/32,actions=drop\npriority=0,actions=drop";
    let mut other = ipv4(17, 0, &udp(80));
    other[19] = 3;
    let (forwarded, dropped) = (ethernet(0x0800, &other), ethernet(0x0800, &ipv4(17, 0, &udp(80))));
    assert_distinguished(flows, &forwarded, &dropped);
}

/// The megaflow of an untagged frame must not match a tagged frame with the same EtherType.
#[test]
fn tag_does_not_hide_a_protocol() {
    let flows = "priority=10,dl_vlan=5,ip,actions=drop\npriority=0,actions=output:2";
    let packet = ipv4(17, 0, &udp(80));
    let tagged = |tpid: u16, tci: u16| {
        let tag = [tpid.to_be_bytes(), tci.to_be_bytes()].concat();
        [&MACS[..], &tag, &[8, 0], &packet].concat()
    };
    assert_distinguished(flows, &ethernet(0x0800, &packet), &tagged(0x8100, 5));
    assert_distinguished(flows, &tagged(0x8100, 6), &tagged(0x8100, 5));
    // The priority bits do not matter.
    assert_distinguished(flows, &tagged(0x8100, 6), &tagged(0x8100, 0xe005));
    assert_distinguished(flows, &ethernet(0x0800, &packet), &tagged(0x88a8, 5));
}
