//! `Set` and `SetIcmpMtu` change the given fields and no others, and keep all checksums correct.

use crate::frames::{Frame, Kind, Spec, spec, wrong_checksum};
use crate::{Event, Recorder};
use flow::{Action, DropReason, Field, FlowKey, PortNo, Reply, clamp_mss, extract, low_bits};
use packet::{Checksum, PacketBuf};
use proptest::prelude::*;
use wire::EtherType;
use wire::vlan::Tag;

/// Bytes of an IEEE 802.3 length, and an LLC and SNAP header.
const SNAP_LEN: usize = 8;
const TAG: Tag = Tag::from_tci(EtherType::VLAN, 7);
const OUTPUT: Action = Action::Output(PortNo(1));

/// The frame with an LLC and SNAP header inserted after its `tags` tags.
fn in_snap(frame: &[u8], tags: usize) -> Vec<u8> {
    let (front, rest) = frame.split_at(12 + 4 * tags);
    let length = (6 + rest.len()) as u16;
    [front, &length.to_be_bytes(), &[0xaa, 0xaa, 3, 0, 0, 0], rest].concat()
}

pub fn key(packet: &PacketBuf) -> Option<FlowKey> {
    extract(packet, PortNo(1), None).ok()
}

fn header_fields() -> Vec<Field> {
    Field::ALL.iter().copied().filter(|field| field.is_header()).collect()
}

/// A value and a mask for a field, often too wide for it. The value for a TPID often is a valid
/// TPID.
fn a_set() -> impl Strategy<Value = (Field, u128, u128)> {
    let mask = prop_oneof![2 => Just(u128::MAX), 1 => any::<u128>()];
    (prop::sample::select(header_fields()), any::<u128>(), mask).prop_map(|(field, value, mask)| {
        let is_tpid = matches!(field, Field::VlanTpid | Field::VlanInnerTpid);
        let value =
            if is_tpid && value & 7 > 0 { [0x8100, 0x88a8][(value & 1) as usize] } else { value };
        (field, value & mask, mask)
    })
}

/// The bits of a field that can be set in a frame with `key`; `original` is the key before all
/// actions.
fn settable(field: Field, key: &FlowKey, original: &FlowKey) -> u128 {
    let is = |field: Field, values: &[u128]| values.contains(&key.get(field));
    let has_l4 = key.get(Field::IpFrag) != 3;
    let is_nd = |kind: u128| {
        has_l4
            && is(Field::EthType, &[0x86dd])
            && is(Field::IpProto, &[58])
            && is(Field::IcmpType, &[kind])
            && is(Field::IcmpCode, &[0])
    };
    let can = match field {
        Field::EthDst | Field::EthSrc => true,
        Field::VlanTpid => key.get(Field::VlanTpid) != 0,
        Field::VlanInnerTpid => key.get(Field::VlanInnerTpid) != 0,
        Field::VlanTci if key.get(Field::VlanTpid) != 0 => return 0xefff,
        Field::VlanInnerTci if key.get(Field::VlanInnerTpid) != 0 => return 0xefff,
        Field::ArpOp | Field::ArpSpa | Field::ArpTpa | Field::ArpSha | Field::ArpTha => {
            is(Field::EthType, &[0x0806])
        }
        Field::Ip4Src | Field::Ip4Dst => is(Field::EthType, &[0x0800]),
        Field::Ip6Src | Field::Ip6Dst | Field::Ip6Label => is(Field::EthType, &[0x86dd]),
        Field::IpDscp | Field::IpEcn | Field::IpTtl => is(Field::EthType, &[0x0800, 0x86dd]),
        Field::TpSrc | Field::TpDst => has_l4 && is(Field::IpProto, &[6, 17, 132]),
        Field::TcpFlags => has_l4 && is(Field::IpProto, &[6]),
        Field::IcmpType | Field::IcmpCode => {
            has_l4
                && (is(Field::EthType, &[0x0800]) && is(Field::IpProto, &[1])
                    || is(Field::EthType, &[0x86dd]) && is(Field::IpProto, &[58]))
        }
        Field::NdTarget => is_nd(135) || is_nd(136),
        Field::NdSll => is_nd(135) && original.get(Field::NdSll) != 0,
        Field::NdTll => is_nd(136) && original.get(Field::NdTll) != 0,
        _ => false,
    };
    if can { field.all_ones() } else { 0 }
}

/// The key after a `Set`. `None` when the action turns the frame into a neighbour discovery
/// message, or a neighbour discovery message into something else, because that changes the set of
/// fields.
fn after(
    key: &FlowKey,
    original: &FlowKey,
    (field, value, mask): (Field, u128, u128),
) -> Option<FlowKey> {
    let mask = mask & settable(field, key, original);
    let new = key.get(field) & !mask | value & mask;
    let is_vlan = |tpid| matches!(tpid, 0x8100 | 0x88a8 | 0x9100);
    let mut key = key.clone();
    match field {
        Field::VlanTpid | Field::VlanInnerTpid if !is_vlan(new) => {}
        Field::IcmpType | Field::IcmpCode if mask != 0 && key.get(Field::EthType) == 0x86dd => {
            let nd = |kind| matches!(kind, 135 | 136);
            if nd(key.get(Field::IcmpType)) || field == Field::IcmpType && nd(new) {
                return None;
            }
            key.set(field, new);
        }
        _ => key.set(field, new),
    }
    Some(key)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn fields_set_are_seen_and_no_other_changes(
        spec in spec(),
        sets in prop::collection::vec(a_set(), 0..12),
    ) {
        let Frame { mut packet, missing } = spec.build();
        prop_assert_eq!(wrong_checksum(&packet, &missing), None, "as built");
        let Some(original) = key(&packet) else { return Ok(()) };
        let (mut expected, mut refused) = (original.clone(), false);
        let mut actions = Vec::new();
        for set in sets {
            let Some(key) = after(&expected, &original, set) else { continue };
            let (field, value, mask) = set;
            let is_port = matches!(field, Field::TpSrc | Field::TpDst);
            refused |= is_port && spec.kind == Kind::Sctp && !missing.is_empty() && key != expected;
            if !refused {
                expected = key;
            }
            actions.push(Action::Set { field, value, mask });
        }
        actions.push(OUTPUT);
        let before = packet.offload;
        let done = Recorder::default().run(&actions, &mut packet);
        prop_assert_eq!(packet.offload, before);
        prop_assert_eq!(key(&packet), Some(expected), "{:?}", actions);
        prop_assert_eq!(wrong_checksum(&packet, &missing), None, "{:?}", actions);
        if refused {
            prop_assert_eq!(done.events, [Event::Drop(DropReason::NotApplicable)]);
        } else {
            prop_assert_eq!(done.events, [Event::Port(1, packet.to_vec())]);
        }
    }

    #[test]
    fn setting_back_restores_every_byte(spec in spec(), set in a_set()) {
        let Frame { mut packet, missing } = spec.build();
        let Some(original) = key(&packet) else { return Ok(()) };
        let (field, value, mask) = set;
        let bytes = packet.to_vec();
        if field == Field::IcmpType || field == Field::IcmpCode || !missing.is_empty() {
            return Ok(());
        }
        let back = Action::Set { field, value: original.get(field) & mask, mask };
        Recorder::default().run(&[Action::Set { field, value, mask }, back], &mut packet);
        prop_assert_eq!(packet.to_vec(), bytes);
    }

    #[test]
    fn packets_behind_snap_become_what_they_become_in_ethernet_ii(
        spec in spec(),
        sets in prop::collection::vec(a_set(), 0..6),
        max_frame_len in 100_usize..2000,
    ) {
        let bytes = spec.build().packet.to_vec();
        let mut plain = PacketBuf::from_bytes(&bytes);
        let mut snap = PacketBuf::from_bytes(&in_snap(&bytes, spec.tags));
        // Only a short packet has a correct IEEE 802.3 length.
        prop_assume!(bytes.len() < 1500 && key(&plain).is_some());
        prop_assert_eq!(key(&snap), key(&plain));
        for reply in Reply::ALL {
            let replies = [&plain, &snap].map(|packet| reply.build(packet).map(|p| p.to_vec()));
            prop_assert_eq!(&replies[0], &replies[1], "{:?}", reply);
        }
        let actions: Vec<_> = sets
            .into_iter()
            .map(|(field, value, mask)| Action::Set { field, value, mask })
            .chain([Action::SetIcmpMtu(1400)])
            .collect();
        for packet in [&mut plain, &mut snap] {
            Recorder::default().run(&actions, packet);
        }
        let clamped = clamp_mss(&mut plain, max_frame_len);
        prop_assert_eq!(clamp_mss(&mut snap, max_frame_len + SNAP_LEN), clamped);
        prop_assert_eq!(snap.to_vec(), in_snap(&plain.to_vec(), spec.tags));
        for packet in [&mut plain, &mut snap] {
            Recorder::default().run(&[Action::PopVlan, Action::PushVlan(TAG)], packet);
        }
        prop_assert_eq!(snap.to_vec(), in_snap(&plain.to_vec(), spec.tags.max(1)));
    }

    #[test]
    fn wrong_checksum_stays_wrong(spec in spec(), set in a_set()) {
        let Frame { mut packet, missing } = spec.build();
        let is_summed = !matches!(spec.kind, Kind::UdpNoSum | Kind::Other | Kind::Arp);
        if !is_summed || packet.offload.checksum != Checksum::Unverified || !missing.is_empty() {
            return Ok(());
        }
        let Some(original) = key(&packet) else { return Ok(()) };
        // Changes the last byte of the transport's checksum field, or of its payload.
        let last = packet.len() - 1 - if spec.pieces { 0 } else { spec.padding };
        if !packet.is_linear() {
            packet.linearize();
        }
        let Some(at) = packet.head_mut().get_mut(last) else { return Ok(()) };
        *at ^= 0x10;
        let (field, value, mask) = set;
        let is_correct = wrong_checksum(&packet, &missing).is_none();
        if is_correct || after(&original, &original, set).is_none() {
            return Ok(());
        }
        Recorder::default().run(&[Action::Set { field, value, mask }], &mut packet);
        prop_assert_eq!(wrong_checksum(&packet, &missing), Some("transport"));
    }

    #[test]
    fn super_packet_is_segmented_right_after_rewriting(
        any in spec(),
        is_tcp in any::<bool>(),
        size in 8..600u16,
        sets in prop::collection::vec(a_set(), 0..6),
    ) {
        let kind = if is_tcp { Kind::Tcp } else { Kind::Udp };
        let spec = Spec { kind, gso: Some(size), routed: false, fragment: None, ..any };
        let Frame { mut packet, .. } = spec.build();
        prop_assert!(packet.offload.gso.is_some());
        let sets: Vec<_> =
            sets.into_iter()
                .map(|(field, value, mask)| Action::Set { field, value, mask })
                .collect();
        Recorder::default().run(&sets, &mut packet);
        packet.linearize();
        let mut segmenter = packet::Segmenter::new();
        let segments = segmenter
            .segment(&packet, 0, packet::SegmentChecksum::Complete, |_| {})
            .expect("still a super-packet");
        for (header, payload) in segments {
            let segment = PacketBuf::from_bytes(&[header, payload].concat());
            prop_assert_eq!(wrong_checksum(&segment, &[]), None);
        }
    }

    #[test]
    fn any_bytes_are_survived(
        bytes in prop::collection::vec(any::<u8>(), 0..120),
        start in any::<u16>(),
        offset in any::<u16>(),
        sets in prop::collection::vec(a_set(), 1..4),
    ) {
        let mut packet = PacketBuf::from_bytes(&bytes);
        packet.offload.checksum = Checksum::Partial { start, offset };
        let mut actions: Vec<_> =
            sets.into_iter()
                .map(|(field, value, mask)| Action::Set { field, value, mask })
                .collect();
        actions.push(Action::SetIcmpMtu(1400));
        Recorder::default().run(&actions, &mut packet);
        prop_assert_eq!(packet.len(), bytes.len());
    }
}

#[test]
fn udp_without_checksum_stays_without() {
    for is_v6 in [false, true] {
        let mut packet = Spec::of(Kind::UdpNoSum, is_v6).build().packet;
        let l4 = if is_v6 { 54 } else { 34 };
        let field = if is_v6 { Field::Ip6Dst } else { Field::Ip4Dst };
        let sets = [(field, low_bits(32)), (Field::TpDst, 53)].map(|(field, value)| Action::Set {
            field,
            value,
            mask: field.all_ones(),
        });
        Recorder::default().run(&sets, &mut packet);
        assert_eq!(packet.head()[l4 + 2..l4 + 8], [0, 53, 0, 108, 0, 0]);
    }
}

#[test]
fn computed_zero_is_sent_as_all_ones_by_udp() {
    let mut packet = Spec::of(Kind::Udp, false).build().packet;
    // The port that makes the computed checksum 0: the present port plus the present checksum.
    let sum = u16::from_be_bytes([packet.head()[40], packet.head()[41]]);
    let port = (80 + u32::from(sum)) % 0xffff;
    let action =
        Action::Set { field: Field::TpDst, value: port.into(), mask: Field::TpDst.all_ones() };
    Recorder::default().run(&[action], &mut packet);
    assert_eq!(packet.head()[40..42], [0xff, 0xff]);
    assert_eq!(wrong_checksum(&packet, &[]), None);
}

#[test]
fn dei_is_kept() {
    let mut packet =
        PacketBuf::from_bytes(&[[2; 12].as_slice(), &[0x81, 0, 0x50, 7, 9, 9]].concat());
    let set = |value| Action::Set { field: Field::VlanTci, value, mask: 0xffff };
    Recorder::default().run(&[set(0xe123)], &mut packet);
    assert_eq!(packet.head()[14..16], [0xf1, 0x23]);
    packet.head_mut()[14] = 0;
    Recorder::default().run(&[set(0xf123)], &mut packet);
    assert_eq!(packet.head()[14..16], [0xe1, 0x23]);
}

#[test]
fn icmp_mtu_is_set_in_errors_only() {
    let errors = [
        // IP version, type, the last four bytes of the ICMP header
        (false, 3, Some([0, 0, 0xff, 0xff])),
        (false, 11, None),
        (false, 8, None),
        (true, 1, Some([0, 1, 0x11, 0x70])),
        (true, 2, Some([0, 1, 0x11, 0x70])),
        (true, 3, None),
        (true, 128, None),
    ];
    for (is_v6, kind, expected) in errors {
        let mut packet = Spec::of(Kind::Error, is_v6).build().packet;
        let (field, value) = (Field::IcmpType, kind);
        let before = packet.to_vec();
        let set = Action::Set { field, value, mask: 0xff };
        Recorder::default().run(&[set, Action::SetIcmpMtu(70_000)], &mut packet);
        let l4 = if is_v6 { 54 } else { 34 };
        let mtu = expected.unwrap_or_else(|| before[l4 + 4..l4 + 8].try_into().unwrap());
        assert_eq!(packet.head()[l4 + 4..l4 + 8], mtu, "{is_v6} {kind}");
        assert_eq!(wrong_checksum(&packet, &[]), None);
    }
}
