//! ICMP errors about packets that are too long for a tunnel.

use crate::frames::{
    DST_V4, DST_V6, ETH_DST, ETH_SRC, Kind, SRC_V4, SRC_V6, Spec, spec, wrong_checksum,
};
use flow::{
    Action, ActionOutput, DatapathKey, DropReason, Encapsulated, EndpointId, EndpointTable,
    NextHop, PortNo, ReplyAddresses, TunnelKey, TunnelSpec, TunnelType, too_big,
};
use packet::{Checksum, Fit, PacketBuf, complete_misplaced_checksum, fit, wire_len};
use proptest::prelude::*;
use wire::vlan::Tag;
use wire::{EtherType, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, MacAddr, TooBig};

const BACK: ReplyAddresses<'_> =
    ReplyAddresses { eth_dst: MacAddr(ETH_SRC), eth_src: MacAddr([2, 9, 9, 9, 9, 9]), tags: &[] };

/// Sets the DF bit of an IPv4 packet.
fn dont_fragment(mut packet: PacketBuf, l3: usize) -> PacketBuf {
    let ip = &mut packet.head_mut()[l3..];
    ip[6] |= 0x40;
    let header_len = usize::from(ip[0] & 15) * 4;
    ip[10..12].fill(0);
    let sum = wire::checksum::checksum(&ip[..header_len]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn packet(spec: &Spec) -> PacketBuf {
    let packet = spec.build().packet;
    let is_ip4 = !spec.is_v6 && spec.kind != Kind::Arp;
    if is_ip4 { dont_fragment(packet, 14 + 4 * spec.tags) } else { packet }
}

fn long(kind: Kind, is_v6: bool) -> Spec {
    Spec { payload: (0..1450).map(|i| i as u8).collect(), ..Spec::of(kind, is_v6) }
}

#[test]
fn answer_comes_from_the_destination_by_the_way_of_the_packet() {
    let tags = [Tag::from_tci(EtherType::QINQ, 0x2005), Tag::from_tci(EtherType::VLAN, 7)];
    for is_v6 in [false, true] {
        // A router of the switch may have changed the tags after ingress.
        let original = packet(&Spec { tags: 1, ..long(Kind::Udp, is_v6) });
        let answer = too_big(&original, 1450, &ReplyAddresses { tags: &tags, ..BACK }).unwrap();
        let (link, ip) = answer.head().split_at(22);
        let ethertype: &[u8] = if is_v6 { &[0x86, 0xdd] } else { &[8, 0] };
        let expected = [&ETH_SRC[..], &BACK.eth_src.0, &[0x88, 0xa8, 0x20, 5, 0x81, 0, 0, 7]];
        assert_eq!(link, [&expected.concat()[..], ethertype].concat());
        let (addresses, message) = if is_v6 { (&ip[8..40], 40) } else { (&ip[12..20], 20) };
        let exchanged =
            if is_v6 { [&DST_V6[..], &SRC_V6].concat() } else { [&DST_V4[..], &SRC_V4].concat() };
        assert_eq!(addresses, exchanged);
        let (max_len, header) = if is_v6 { (1280, 48) } else { (576, 28) };
        assert_eq!(ip.len(), max_len);
        assert_eq!(ip[header..], original.head()[18..][..max_len - header]);
        let kind: &[u8] = if is_v6 { &[2, 0] } else { &[3, 4] };
        assert_eq!(&ip[message..message + 2], kind);
        assert_eq!(&ip[message + 4..message + 8], [0, 0, 0x05, 0xaa]);
        assert_eq!(wrong_checksum(&answer, &[]), None);
    }
}

#[test]
fn mtu_is_1280_at_least_when_ipv6() {
    let original = packet(&long(Kind::Tcp, true));
    for (mtu, reported) in [(0, 1280), (1279, 1280), (1280, 1280), (1281, 1281), (65_535, 65_535)] {
        let answer = too_big(&original, mtu, &BACK).unwrap();
        let message = Icmpv6Packet::new_checked(&answer.head()[54..]).unwrap();
        assert_eq!(u32::from_be_bytes(message.rest()), reported);
    }
    let short = |payload: usize| Spec { payload: vec![1; payload], ..Spec::of(Kind::Udp, true) };
    assert!(too_big(&packet(&short(1233)), 1200, &BACK).is_ok());
    let refused = too_big(&packet(&short(1232)), 1200, &BACK).map(|_| ());
    assert_eq!(refused, Err(DropReason::NotApplicable), "the guest would send it again unchanged");
}

#[test]
fn first_segment_is_quoted_when_a_super_packet_is_too_long() {
    for is_v6 in [false, true] {
        let spec = Spec { gso: Some(1300), ..long(Kind::Tcp, is_v6) };
        let answer = too_big(&packet(&spec), 1290, &BACK).unwrap();
        let at = if is_v6 { 62 } else { 42 };
        let quoted_len = u16::from_be_bytes([answer.head()[at + 2], answer.head()[at + 3]]);
        let payload_len = u16::from_be_bytes([answer.head()[at + 4], answer.head()[at + 5]]);
        assert_eq!(if is_v6 { payload_len } else { quoted_len - 20 }, 24 + 1300);
    }
}

/// A guest can request checksum offload at the offset of the IP length field. Completing that
/// checksum after the length check would change the quoted length.
#[test]
fn quoted_length_is_what_was_compared_when_a_checksum_is_asked_for_in_its_place() {
    let frame = packet(&long(Kind::Udp, false)).to_vec();
    let mut answers = 0;
    // Two bytes of the Ethernet source let the guest choose the resulting sum.
    for bytes in (0..=u16::MAX).map(u16::to_be_bytes) {
        let frame = [&frame[..8], &bytes, &frame[10..]].concat();
        let mut guest = PacketBuf::from_bytes(&frame);
        guest.offload.checksum = Checksum::Partial { start: 8, offset: 8 };
        complete_misplaced_checksum(&mut guest).unwrap();
        let Fit::TooBig { mtu } = fit(&guest, 1400) else { continue };
        let answer = too_big(&guest, mtu, &BACK).unwrap();
        assert_eq!(TooBig::parse_v4(&answer.head()[14..]).map(|reported| reported.mtu), Ok(1386));
        answers += 1;
    }
    assert!(answers > 50, "{answers} answers: expected one for each length from 1387 to 1478");
}

#[test]
fn there_is_no_answer_when_none_may_be_sent() {
    let refused = |what: &str, packet: &PacketBuf| {
        let refused = too_big(packet, 1400, &BACK).map(|_| ());
        assert_eq!(refused, Err(DropReason::NotApplicable), "{what}");
    };
    let with = |is_v6: bool, at: usize, bytes: &[u8]| {
        let mut packet = packet(&long(Kind::Udp, is_v6));
        packet.head_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        packet
    };
    refused("may be fragmented", &with(false, 20, &[0]));
    refused("later fragment", &with(false, 20, &[0x40, 9]));
    refused("not IP", &packet(&Spec::of(Kind::Arp, false)));
    for (is_v6, group) in [(false, 1), (true, 0x33)] {
        refused("ICMP error", &packet(&long(Kind::Error, is_v6)));
        refused("Ethernet group", &with(is_v6, 0, &[group]));
        refused("from a group", &with(is_v6, if is_v6 { 22 } else { 26 }, &[0xff]));
        refused("to a group", &with(is_v6, if is_v6 { 38 } else { 30 }, &[0xff]));
        refused(
            "from nobody",
            &with(is_v6, if is_v6 { 22 } else { 26 }, &[0; 16][..if is_v6 { 16 } else { 4 }]),
        );
    }
    refused("from this host itself", &with(false, 26, &[127]));
    assert!(too_big(&packet(&long(Kind::Echo, false)), 1400, &BACK).is_ok(), "no error");
    // IPv6 fragments are answered, the later ones too, unlike in IPv4.
    let fragment = Spec { fragment: Some(170), ..long(Kind::Udp, true) }.build().packet;
    let mut later = fragment.clone();
    later.head_mut()[57] = 9;
    assert!(too_big(&fragment, 1300, &BACK).is_ok() && too_big(&later, 1300, &BACK).is_ok());
}

proptest! {
    #[test]
    fn answer_is_whole_and_within_its_limit(
        spec in spec(), mtu in any::<u16>(), tags in 0usize..3,
    ) {
        let original = packet(&spec);
        let tag = Tag::from_tci(EtherType::VLAN, 5);
        let back = ReplyAddresses { tags: &[tag; 2][..tags], ..BACK };
        let Ok(answer) = too_big(&original, mtu, &back) else { return Ok(()) };
        prop_assert_eq!(wrong_checksum(&answer, &[]), None);
        let l3 = 14 + 4 * tags;
        if spec.is_v6 {
            prop_assert!(wire_len(&original) > 1280);
            prop_assert!(answer.len() <= l3 + 1280);
        } else {
            prop_assert!(answer.len() <= l3 + 576);
            let message = Icmpv4Packet::new_checked(&answer.head()[l3 + 20..]).unwrap();
            let reported = match Icmpv4Repr::parse(&message) {
                Ok(Icmpv4Repr::FragmentationNeeded { mtu, .. }) => Some(mtu),
                _ => None,
            };
            prop_assert_eq!(reported, Some(mtu));
        }
        prop_assert_eq!(answer.head()[..6].to_vec(), ETH_SRC.to_vec());
        prop_assert!(answer.head()[6..12] != ETH_DST);
    }

    #[test]
    fn any_bytes_are_survived(
        bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0..4u8, mtu in any::<u16>(),
    ) {
        let mut bytes = bytes;
        let version: &[u8] = if kind & 1 == 0 { &[8, 0, 0x45] } else { &[0x86, 0xdd, 0x60] };
        if let (true, Some(place)) = (kind < 3, bytes.get_mut(12..15)) {
            place.copy_from_slice(version);
        }
        if let Ok(answer) = too_big(&PacketBuf::from_bytes(&bytes), mtu, &BACK) {
            prop_assert_eq!(wrong_checksum(&answer, &[]), None);
        }
    }
}

/// The lengths of the frames that are sent. For each sender that is notified, the length of its
/// frame and the reported MTU.
#[derive(Default)]
struct Lengths {
    sent: Vec<usize>,
    reported: Vec<(usize, u16)>,
}

impl ActionOutput for Lengths {
    fn port(&mut self, _: PortNo, _: &mut PacketBuf) -> Result<(), DropReason> {
        Err(DropReason::NoSuchPort)
    }
    fn underlay(&mut self, _: &Encapsulated, packet: &mut PacketBuf) -> Result<(), DropReason> {
        self.sent.push(packet.len());
        Ok(())
    }
    fn too_big(&mut self, packet: &PacketBuf, mtu: u16) {
        self.reported.push((packet.len(), mtu));
    }
    fn dropped(&mut self, _: DropReason, _: &PacketBuf) {}
}

#[test]
fn ipv6_packet_of_1280_bytes_is_sent_although_the_discovered_path_mtu_is_lower() {
    /// The outer IPv4, UDP and VXLAN headers, and the guest's Ethernet header.
    const OVERHEAD: u16 = 20 + 8 + 8 + 14;
    let local_remote = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
    let (endpoint, key) = (EndpointId(0), DatapathKey(5));
    for (configured, found) in [(1500, 1280), (1500, 700), (1300, 1280)] {
        let mut endpoints = EndpointTable::new(49_152, 1);
        let settings = TunnelType::Vxlan.descriptor().default_settings();
        let spec = TunnelSpec {
            path_mtu_bytes: configured,
            ..TunnelSpec::new(TunnelType::Vxlan, &settings)
        };
        endpoints.insert(endpoint, &spec, local_remote[0], local_remote[1]).unwrap();
        let (source, destination) = (MacAddr([2; 6]), MacAddr([4; 6]));
        endpoints.resolve(endpoint, Some(NextHop { source, destination }));
        endpoints.set_path_mtu(endpoint, Some(found));
        let mut run = |is_v6: bool, ip_len: usize| {
            let headers = if is_v6 { 48 } else { 28 };
            let payload = vec![1; ip_len - headers];
            let mut packet = packet(&Spec { payload, ..Spec::of(Kind::Udp, is_v6) });
            let key = TunnelKey { datapath: key, ports: None };
            let actions = [Action::Encap { endpoint, key }];
            let mut lengths = Lengths::default();
            flow::execute(&actions, &mut packet, &mut endpoints, &mut lengths);
            (lengths.sent, lengths.reported)
        };
        let limit = found - OVERHEAD;
        let sent = |ip_len: usize| (vec![14 + usize::from(OVERHEAD) + ip_len], vec![]);
        let reported = |ip_len: usize| (vec![], vec![(14 + ip_len, limit)]);
        assert_eq!(run(true, limit.into()), sent(limit.into()));
        if configured == 1500 {
            assert_eq!(run(true, 1280), sent(1280), "{found}");
        } else {
            assert_eq!(run(true, 1250), sent(1250), "the configured path MTU carries it");
            assert_eq!(run(true, 1251), reported(1251), "the configured path MTU does not");
        }
        assert_eq!(run(true, 1281), reported(1281), "{found}");
        assert_eq!(run(false, 1280), reported(1280), "IPv4 guests obey");
    }
}
