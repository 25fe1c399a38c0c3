//! Answers of services: their checksums and keys are correct, and only requests are answered.

use crate::frames::{
    ETH_DST, ETH_SRC, Frame, Kind, SRC_V4, SRC_V6, Spec, naive_sum, spec, wrong_checksum,
};
use crate::set::key;
use crate::{Event, Recorder};
use flow::{Action, Field, PortNo, answer, answer_edits};
use packet::{Checksum, PacketBuf};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use services::router::{AddressMode, Preference, Router};
use services::{Destination, Service, dhcp4, dhcp6, dns};
use std::sync::Arc;
use wire::{MacAddr, NdOption};

const CLIENT: [u8; 4] = [10, 0, 0, 5];

fn dhcp4_server() -> Service {
    let mut server = dhcp4::Server::new(CLIENT.into());
    server.add(1, &[255, 255, 255, 0]);
    Service::Dhcp4(server)
}

/// A DHCP DISCOVER.
fn dhcp4_discover(is_broadcast: bool) -> Vec<u8> {
    let mut message = vec![0; 236];
    message[..3].copy_from_slice(&[1, 1, 6]);
    message[10] = if is_broadcast { 0x80 } else { 0 };
    [&message[..], &[99, 130, 83, 99, 53, 1, 1, 255]].concat()
}

fn dhcp6_server() -> Service {
    Service::Dhcp6(dhcp6::Server::new(MacAddr([2, 0, 0, 0, 0, 1]), None))
}

/// A DHCPv6 INFORMATION-REQUEST.
const DHCP6_REQUEST: &[u8] = &[11, 1, 2, 3, 0, 1, 0, 2, 7, 7];

fn resolver() -> Service {
    let mut records = dns::Records::new(false);
    assert!(records.add("a", "10.0.0.9"));
    Service::Dns(dns::Resolver([Arc::new(records)].into()))
}

/// A question for the IPv4 address of `a`.
const DNS_QUESTION: &[u8] = b"id\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";

fn router() -> Service {
    let mut router = Router::new(AddressMode::Slaac, Preference::Medium);
    router.add(NdOption::SourceLinkLayer(MacAddr([2, 0, 0, 0, 0, 1]))).unwrap();
    Service::Router(router)
}

/// The destination of the answer to a packet. Checks the answer's key and checksums.
fn checked(service: &Service, packet: &PacketBuf) -> Result<Option<Destination>, TestCaseError> {
    let Some((destination, made)) = answer(service, packet) else { return Ok(None) };
    prop_assert!(service.destinations().contains(&destination));
    let mut expected = key(packet).expect("an answered packet has a key");
    answer_edits(service, destination).iter().for_each(|edit| edit.apply(&mut expected));
    prop_assert_eq!(key(&made), Some(expected));
    prop_assert_eq!(wrong_checksum(&made, &[]), None);
    prop_assert_eq!(made.offload.checksum, Checksum::Verified);
    prop_assert!(made.headroom() >= PacketBuf::HEADROOM);
    let parsed = etherparse::PacketHeaders::from_ethernet_slice(made.head());
    prop_assert!(parsed.is_ok(), "{:?}", parsed);
    Ok(Some(destination))
}

/// A router solicitation from `::` or from [`SRC_V6`].
fn solicitation(tags: usize, is_unspecified: bool, options: &[u8], hop_limit: u8) -> PacketBuf {
    let src = if is_unspecified { [0; 16] } else { SRC_V6 };
    let dst = [&[0xff, 2][..], &[0; 13], &[2]].concat();
    let message = [&[133, 0, 0, 0, 0, 0, 0, 0], options].concat();
    let len = message.len() as u8;
    let mut frame = [ETH_DST, ETH_SRC].concat();
    (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 7]));
    frame.extend([0x86, 0xdd, 0x60, 1, 2, 3, 0, len, 58, hop_limit]);
    frame.extend([&src[..], &dst, &message].concat());
    let at = frame.len() - message.len();
    let pseudo = [&src[..], &dst, &[0, 0, 0, len, 0, 0, 0, 58], &message].concat();
    let checksum = !naive_sum(&[&pseudo]);
    frame[at + 2..at + 4].copy_from_slice(&checksum.to_be_bytes());
    PacketBuf::from_bytes(&frame)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn answer_has_the_key_that_its_edits_make(spec in spec(), is_broadcast: bool) {
        for (service, payload, is_v6) in [
            (dhcp4_server(), dhcp4_discover(is_broadcast), false),
            (dhcp6_server(), DHCP6_REQUEST.to_vec(), true),
        ] {
            let spec = Spec { payload, ..spec.clone() };
            let Frame { packet, missing } = spec.build();
            if key(&packet).is_none() {
                continue;
            }
            let is_request = matches!(spec.kind, Kind::Udp | Kind::UdpNoSum)
                && spec.is_v6 == is_v6
                && missing.is_empty()
                && packet.offload.gso.is_none();
            let destination = match is_broadcast && !is_v6 {
                true => Destination::Broadcast,
                false => Destination::Client,
            };
            prop_assert_eq!(checked(&service, &packet)?, is_request.then_some(destination));
            prop_assert_eq!(checked(&router(), &packet)?, None);
        }
    }
}

#[test]
fn question_is_answered_over_either_ip_version() {
    for (is_v6, tags) in [(false, 0), (true, 1), (false, 2), (true, 0)] {
        let spec = Spec { tags, payload: DNS_QUESTION.to_vec(), ..Spec::of(Kind::Udp, is_v6) };
        let packet = spec.build().packet;
        assert_eq!(checked(&resolver(), &packet).unwrap(), Some(Destination::Client));
        assert_eq!(checked(&dhcp4_server(), &packet).unwrap(), None);
        let fragment = Spec { fragment: Some(3), ..spec }.build();
        assert!(!fragment.missing.is_empty());
        assert_eq!(checked(&resolver(), &fragment.packet).unwrap(), None);
    }
}

#[test]
fn checksum_of_an_answer_over_ipv6_is_never_zero() {
    let spec = Spec { payload: DNS_QUESTION.to_vec(), ..Spec::of(Kind::Udp, true) };
    let mut packet = spec.build().packet;
    let at = packet.len() - DNS_QUESTION.len();
    let mut has_full = false;
    for id in 0..=u16::MAX {
        packet.head_mut()[at..at + 2].copy_from_slice(&id.to_be_bytes());
        let (_, made) = answer(&resolver(), &packet).expect("an answer");
        let checksum = &made.head()[made.len() - DNS_QUESTION.len() - 16 - 2..][..2];
        assert_ne!(checksum, [0, 0], "{id}");
        has_full |= checksum == [0xff; 2];
    }
    assert!(has_full, "one of all IDs sums up to zero");
}

/// The smallest MTU of IPv6 (RFC 8200 section 5).
const MIN_MTU: usize = 1280;

#[test]
fn longest_answer_fits_the_smallest_mtu() {
    let mut server = dhcp6::Server::new(MacAddr([2, 0, 0, 0, 0, 1]), Some(1.into()));
    server.set_boot_files(None, Some(&[b'x'; dhcp6::MAX_OPTIONS_LEN - 4]));
    assert_eq!(server.check(), Ok(()));
    let id = [&[0, 1, 0, 130][..], &[7; 130]].concat();
    let association = [&[0, 3, 0, 12][..], &[0; 12]].concat();
    let payload = [&[1, 1, 2, 3][..], &id, &association].concat();
    let solicit = Spec { payload, ..Spec::of(Kind::Udp, true) }.build().packet;
    let mut router = Router::new(AddressMode::Slaac, Preference::Medium);
    let data = [0; 30];
    while router.add(NdOption::Unknown { kind: 200, data: &data }).is_ok() {}
    let router = Service::Router(router);
    for (service, request) in
        [(Service::Dhcp6(server), solicit), (router, solicitation(0, false, &[], 255))]
    {
        let (_, made) = answer(&service, &request).expect("an answer");
        let len = made.len() - 14;
        assert!((1100..=MIN_MTU).contains(&len), "{}: {len} bytes", service.name());
    }
}

#[test]
fn solicitation_is_answered_when_it_is_valid() {
    let link = [1, 1, 6, 0x11, 0x22, 0x33, 0x44, 0x55];
    for (unspecified, options, hop_limit, expected) in [
        (false, &[][..], 255, Some(Destination::Client)),
        (false, &link, 255, Some(Destination::Client)),
        (true, &[], 255, Some(Destination::Broadcast)),
        (true, &link, 255, None),
        (false, &[], 254, None),
        (false, &link[..4], 255, None),
    ] {
        for tags in 0..3 {
            let packet = solicitation(tags, unspecified, options, hop_limit);
            let destination = checked(&router(), &packet).unwrap();
            assert_eq!(destination, expected, "{unspecified} {options:?} {hop_limit}");
        }
    }
}

fn out(port: u32) -> Box<[Action]> {
    [Action::Output(PortNo(port))].into()
}

#[test]
fn list_depends_on_the_answer_and_ends_there() {
    let action = |otherwise| Action::Serve {
        service: Arc::new(dhcp4_server()),
        answered: [out(1), out(2)].into(),
        otherwise,
    };
    let frame = |payload| Spec { payload, ..Spec::of(Kind::Udp, false) }.build().packet;
    for (payload, port) in
        [(dhcp4_discover(false), 1), (dhcp4_discover(true), 2), (b"no request".to_vec(), 3)]
    {
        let mut packet = frame(payload);
        let before = packet.to_vec();
        // A clone may not change the frame of the list around it.
        let list = [Action::Clone([action(out(3)), out(4)[0].clone()].into()), out(5)[0].clone()];
        let Recorder { events, .. } = Recorder::default().run(&list, &mut packet);
        let [Event::Port(first, sent), Event::Port(5, last)] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!((*first, last), (port, &before));
        if port == 3 {
            assert_eq!(*sent, before);
        } else {
            let destination = if port == 1 { CLIENT } else { [255; 4] };
            assert_eq!(sent[..14], [&ETH_DST[..], &ETH_SRC, &[8, 0]].concat());
            assert_eq!(sent[26..34], [SRC_V4, destination].concat());
        }
    }
    assert!(key(&frame(dhcp4_discover(true))).is_some_and(|key| key.get(Field::IpProto) == 17));
}
