//! Every protocol: a frame and its complete key.

use crate::frame::{
    ARP, DST6, Frame, IPV4, IPV6, SRC6, TARGET, arp, ethernet, extension, icmp, in_snap, ipv4,
    ipv6, neighbour, sctp, tcp, udp,
};
use crate::{key_of, key_with};
use flow::Field as F;
use flow::{FlowKey, PortNo, extract};
use packet::PacketBuf;

type Fields = Vec<(F, u128)>;

fn link(ethertype: u16) -> Fields {
    vec![
        (F::EthDst, 0x0200_0000_0002),
        (F::EthSrc, 0x0200_0000_0001),
        (F::EthType, ethertype.into()),
    ]
}

fn v4(protocol: u8, fragment: u128) -> Fields {
    let ip = [
        (F::Ip4Src, 0x0a00_0001),
        (F::Ip4Dst, 0x0a00_0002),
        (F::IpProto, protocol.into()),
        (F::IpDscp, 0b10_1011),
        (F::IpEcn, 0b10),
        (F::IpTtl, 63),
        (F::IpFrag, fragment),
    ];
    [link(IPV4), ip.to_vec()].concat()
}

fn v6(protocol: u8, hop_limit: u128, fragment: u128) -> Fields {
    let ip = [
        (F::Ip6Src, SRC6),
        (F::Ip6Dst, DST6),
        (F::Ip6Label, 0x5_4321),
        (F::IpProto, protocol.into()),
        (F::IpDscp, 0b10_1110),
        (F::IpEcn, 0b01),
        (F::IpTtl, hop_limit),
        (F::IpFrag, fragment),
    ];
    [link(IPV6), ip.to_vec()].concat()
}

fn ports(destination: u128) -> Fields {
    vec![(F::TpSrc, 40_000), (F::TpDst, destination)]
}

#[track_caller]
fn assert_key(name: &str, frame: &Frame, fields: &[Fields]) {
    let expected = key_with(&fields.concat());
    assert_eq!(key_of(&frame.bytes), Ok(expected.clone()), "{name}");
    // The key is the same with padding after the packet, in the shortest linear part that has all
    // headers.
    let mut storage = frame.bytes.clone();
    storage.extend([0xee; 30]);
    let mut packet = PacketBuf::from_bytes(&storage);
    packet.set_ranges(
        0..frame.headers,
        [frame.headers..frame.len() + 5, frame.len() + 9..storage.len()],
    );
    assert_eq!(extract(&packet, crate::PORT, None), Ok(expected), "{name}, in pieces");
}

#[test]
fn ipv4_frames_have_all_their_fields_and_no_other() {
    let frame =
        |protocol, fragment, l4: Frame| ethernet(&[], IPV4).then(ipv4(protocol, fragment, &[], l4));
    let tcp12 = tcp(0xe12, &[]).payload([1; 9]);
    let flags = vec![(F::TcpFlags, 0xe12)];
    let kind = |kind, code| vec![(F::IcmpType, kind), (F::IcmpCode, code)];
    let table: Vec<(&str, Frame, Vec<Fields>)> = vec![
        ("tcp", frame(6, 0x4000, tcp12.clone()), vec![v4(6, 0), ports(443), flags.clone()]),
        ("tcp, first fragment", frame(6, 0x2000, tcp12.clone()), vec![v4(6, 1), ports(443), flags]),
        ("tcp, middle fragment", frame(6, 0x2001, tcp12.clone()), vec![v4(6, 3)]),
        ("tcp, last fragment", frame(6, 0x1fff, tcp12), vec![v4(6, 3)]),
        ("udp", frame(17, 0, udp(0)), vec![v4(17, 0), ports(53)]),
        ("sctp", frame(132, 0, sctp()), vec![v4(132, 0), ports(5060)]),
        ("echo", frame(1, 0, icmp(8, 0)), vec![v4(1, 0), kind(8, 0)]),
        ("unreachable", frame(1, 0, icmp(3, 4)), vec![v4(1, 0), kind(3, 4)]),
        ("icmp, later fragment", frame(1, 0x0001, icmp(3, 4)), vec![v4(1, 3)]),
        ("ICMPv6 in IPv4", frame(58, 0, neighbour(135, &[])), vec![v4(58, 0)]),
        ("protocol 0", frame(0, 0, tcp(2, &[])), vec![v4(0, 0)]),
        ("IGMP", frame(2, 0, icmp(0x16, 0)), vec![v4(2, 0)]),
        (
            "authentication header",
            frame(51, 0, extension(51, 6, 0).then(tcp(2, &[]))),
            vec![v4(51, 0)],
        ),
        ("no payload", frame(47, 0, Frame::default()), vec![v4(47, 0)]),
    ];
    for (name, frame, fields) in table {
        assert_key(name, &frame, &fields);
    }
    let options = ipv4(17, 0, &[0x94, 4, 0, 0, 1, 1, 1, 1], udp(3).payload([9; 3]));
    assert_key("options", &ethernet(&[], IPV4).then(options), &[v4(17, 0), ports(53)]);
}

#[test]
fn ipv6_frames_have_all_their_fields_and_no_other() {
    let frame = |next, rest: Frame| ethernet(&[], IPV6).then(ipv6(next, 64, rest));
    let fragment = |offset, next, rest: Frame| frame(44, extension(44, next, offset).then(rest));
    let chain = extension(0, 43, 0)
        .then(extension(43, 60, 0))
        .then(extension(60, 51, 0))
        .then(extension(51, 44, 0))
        .then(extension(44, 17, 0))
        .then(udp(2).payload([1; 2]));
    let flags = vec![(F::TcpFlags, 0x102)];
    let kind = |kind, code| vec![(F::IcmpType, kind), (F::IcmpCode, code)];
    let table: Vec<(&str, Frame, Vec<Fields>)> = vec![
        (
            "tcp",
            frame(6, tcp(0x102, &[1; 12]).payload([1; 9])),
            vec![v6(6, 64, 0), ports(443), flags],
        ),
        ("udp", frame(17, udp(0)), vec![v6(17, 64, 0), ports(53)]),
        ("sctp", frame(132, sctp()), vec![v6(132, 64, 0), ports(5060)]),
        ("echo", frame(58, icmp(128, 0)), vec![v6(58, 64, 0), kind(128, 0)]),
        ("ICMP in IPv6", frame(1, icmp(8, 0)), vec![v6(1, 64, 0)]),
        ("nothing follows", frame(59, Frame::default().payload([1; 8])), vec![v6(59, 64, 0)]),
        ("security payload", frame(50, Frame::default().payload([1; 20])), vec![v6(50, 64, 0)]),
        ("every extension, atomic fragment", frame(0, chain), vec![v6(17, 64, 0), ports(53)]),
        ("first fragment", fragment(1, 17, udp(0)), vec![v6(17, 64, 1), ports(53)]),
        ("middle fragment", fragment(9, 17, udp(0)), vec![v6(17, 64, 3)]),
        ("last fragment", fragment(8, 58, neighbour(135, &[])), vec![v6(58, 64, 3)]),
        (
            "later fragment of what begins with options",
            fragment(8, 60, udp(0)),
            vec![v6(60, 64, 3)],
        ),
    ];
    for (name, frame, fields) in table {
        assert_key(name, &frame, &fields);
    }
}

#[test]
fn neighbour_discovery_has_target_and_the_link_layer_address_of_its_type() {
    const MAC_A: [u8; 8] = [1, 1, 2, 0, 0, 0, 0, 0xa];
    const MAC_B: [u8; 8] = [2, 1, 2, 0, 0, 0, 0, 0xb];
    const NONCE: [u8; 16] = [14, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
    let (sll, tll) = ((F::NdSll, 0x0200_0000_000a), (F::NdTll, 0x0200_0000_000b));
    let table: [(u8, u8, Vec<u8>, Fields); 9] = [
        (135, 255, vec![], vec![]),
        (135, 255, MAC_A.into(), vec![sll]),
        (135, 255, [&NONCE[..], &MAC_A].concat(), vec![sll]),
        (135, 255, [MAC_A, MAC_B].concat(), vec![sll]),
        (135, 255, [MAC_B, MAC_B].concat(), vec![]),
        (136, 255, MAC_B.into(), vec![tll]),
        (136, 255, [MAC_A, MAC_B].concat(), vec![tll]),
        // A hop limit other than 255 is left to rules: `ip_ttl` is in the key.
        (136, 254, MAC_B.into(), vec![tll]),
        (136, 255, NONCE.into(), vec![]),
    ];
    for (kind, hop_limit, options, fields) in table {
        let frame = ethernet(&[], IPV6).then(ipv6(58, hop_limit, neighbour(kind, &options)));
        let message = vec![(F::IcmpType, kind.into()), (F::IcmpCode, 0), (F::NdTarget, TARGET)];
        let ip = v6(58, hop_limit.into(), 0);
        assert_key(&format!("{kind} {options:02x?}"), &frame, &[ip, message, fields]);
    }
    for (kind, code) in [(135, 1), (133, 0), (137, 0)] {
        let message = icmp(kind, code).payload(TARGET.to_be_bytes()).payload(MAC_A);
        let fields = vec![(F::IcmpType, kind.into()), (F::IcmpCode, code.into())];
        let frame = ethernet(&[], IPV6).then(ipv6(58, 255, message));
        assert_key(&format!("{kind}/{code}"), &frame, &[v6(58, 255, 0), fields]);
    }
}

#[test]
fn arp_has_operation_and_addresses() {
    let fields = |operation| {
        vec![
            (F::ArpOp, operation),
            (F::ArpSpa, 0x0a00_0001),
            (F::ArpTpa, 0x0a00_0009),
            (F::ArpSha, 0x0200_0000_0001),
            (F::ArpTha, 0x0200_0000_0009),
        ]
    };
    for (ethertype, operation) in [(ARP, 1), (ARP, 2), (0x8035, 3), (ARP, 0), (ARP, 0xffff)] {
        let frame = ethernet(&[], ethertype).then(arp(operation)).payload([0xee; 18]);
        let name = format!("{ethertype:#x} {operation}");
        assert_key(&name, &frame, &[link(ethertype), fields(operation.into())]);
    }
}

#[test]
fn vlan_tags_have_a_presence_bit() {
    let outer = |tpid, tci| vec![(F::VlanTpid, tpid), (F::VlanTci, tci)];
    let inner = |tpid, tci| vec![(F::VlanInnerTpid, tpid), (F::VlanInnerTci, tci)];
    let ip = || ipv4(17, 0, &[], udp(0));
    let all = |ethertype, tags| [vec![link(ethertype)], tags].concat();
    let table = [
        ("priority", ethernet(&[(0x8100, 0)], 0x88cc), all(0x88cc, vec![outer(0x8100, 0x1000)])),
        (
            "DEI is not kept",
            ethernet(&[(0x8100, 0xf123)], 0x88cc),
            all(0x88cc, vec![outer(0x8100, 0xf123)]),
        ),
        (
            "DEI clear",
            ethernet(&[(0x9100, 0xe123)], 0x88cc),
            all(0x88cc, vec![outer(0x9100, 0xf123)]),
        ),
        (
            "two tags",
            ethernet(&[(0x88a8, 0x0064), (0x8100, 0x2014)], IPV4).then(ip()),
            vec![v4(17, 0), ports(53), outer(0x88a8, 0x1064), inner(0x8100, 0x3014)],
        ),
    ];
    for (name, frame, fields) in table {
        assert_key(name, &frame, &fields);
    }
}

#[test]
fn packets_behind_snap_have_the_key_of_ethernet_ii() {
    let tags = [(0x88a8, 0x0064), (0x8100, 0x2014)];
    let tagged = vec![
        (F::VlanTpid, 0x88a8),
        (F::VlanTci, 0x1064),
        (F::VlanInnerTpid, 0x8100),
        (F::VlanInnerTci, 0x3014),
    ];
    let of_arp = vec![
        (F::ArpOp, 1),
        (F::ArpSha, 0x0200_0000_0001),
        (F::ArpSpa, 0x0a00_0001),
        (F::ArpTha, 0x0200_0000_0009),
        (F::ArpTpa, 0x0a00_0009),
    ];
    let udp4 = || ipv4(17, 0, &[], udp(0));
    let udp6 = || ipv6(17, 64, udp(0));
    // The length may cover padding.
    for more in [0, 1, 26] {
        let table = [
            ("IPv4", in_snap(&[], IPV4, udp4(), more), vec![v4(17, 0), ports(53)]),
            ("IPv6", in_snap(&[], IPV6, udp6(), more), vec![v6(17, 64, 0), ports(53)]),
            ("ARP", in_snap(&[], ARP, arp(1), more), vec![link(ARP), of_arp.clone()]),
            ("LLDP", in_snap(&[], 0x88cc, Frame::default(), more), vec![link(0x88cc)]),
            (
                "two tags",
                in_snap(&tags, IPV4, udp4(), more),
                vec![v4(17, 0), ports(53), tagged.clone()],
            ),
        ];
        for (name, frame, fields) in table {
            assert_key(name, &frame.payload(vec![0xee; more]), &fields);
        }
    }
}

#[test]
fn payload_of_other_ieee_802_3_frames_is_not_parsed() {
    let ip = ipv4(17, 0, &[], udp(0)).bytes;
    for length in [0, 0x2e, 0x05dc, 0x05ff] {
        for llc in [
            // Other SAPs, another control field, another OUI, and a type that is a length.
            [0xaa, 0xab, 3, 0, 0, 0, 8, 0],
            [0x42, 0x42, 3, 0, 0, 0, 8, 0],
            [0xaa, 0xaa, 0xf3, 0, 0, 0, 8, 0],
            [0xaa, 0xaa, 3, 0, 0, 1, 8, 0],
            [0xaa, 0xaa, 3, 0, 0, 0, 5, 0xff],
        ] {
            let frame = ethernet(&[], length).read(llc).payload(&ip);
            assert_key("802.3", &frame, &[link(0x05ff)]);
        }
    }
    // No SNAP header fits.
    let short = ethernet(&[], 7).read([0xaa, 0xaa, 3, 0, 0, 0, 8]).bytes;
    assert_eq!(key_of(&short), Ok(key_with(&link(0x05ff))));
    assert_key("the first type", &ethernet(&[], 0x0600).payload(&ip), &[link(0x0600)]);
}

#[test]
fn super_packets_have_the_key_of_their_segments() {
    let segment = key_of(
        &ethernet(&[], IPV4).then(ipv4(6, 0x4000, &[], tcp(0x10, &[]).payload([0; 9]))).bytes,
    );
    for (total, pieces) in [(65_535, 1), (65_535, 45), (40 + 2 * 1460, 2)] {
        let ip = ipv4(6, 0x4000, &[], tcp(0x10, &[]).payload(vec![0; total - 40]));
        let frame = ethernet(&[], IPV4).then(ip).bytes;
        let mut packet = PacketBuf::from_bytes(&frame);
        let step = frame.len().div_ceil(pieces);
        let mut ranges = (0..pieces).map(|n| n * step..((n + 1) * step).min(frame.len()));
        let head = ranges.next().unwrap();
        packet.set_ranges(head, ranges);
        assert_eq!(packet.len(), frame.len());
        assert_eq!(extract(&packet, crate::PORT, None), segment, "{total} in {pieces}");
    }
}

#[test]
fn port_is_in_the_key_and_registers_are_not() {
    let key = extract(&PacketBuf::from_bytes(&ethernet(&[], 0x88cc).bytes), PortNo(u32::MAX), None);
    let key: FlowKey = key.unwrap();
    assert_eq!(key.get(F::InPort), u32::MAX.into());
    assert!(F::ALL.iter().filter(|f| f.is_register()).all(|&f| key.get(f) == 0));
}
