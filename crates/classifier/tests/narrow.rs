//! Lookups report fewer bits than the masks of all rules when fewer bits prove the result.

mod common;

use classifier::{Classifier, Rank};
use common::{bits, condition, key, prefix};
use flow::{Field, FlowKey, FlowMask, Match};

const IP: (Field, u128, u128) = (Field::EthType, 0x800, 0xffff);

fn v4(a: u8, b: u8, c: u8, d: u8) -> u128 {
    u32::from_be_bytes([a, b, c, d]).into()
}

fn route(address: u128, len: u8) -> (Match, Rank) {
    let condition = condition(&[IP, (Field::Ip4Dst, address, prefix(Field::Ip4Dst, len))]);
    (condition, Rank { priority: len.into(), id: address as u64 })
}

fn classifier(rules: impl IntoIterator<Item = (Match, Rank)>) -> Classifier<()> {
    let mut classifier = Classifier::default();
    for (condition, rank) in rules {
        assert!(classifier.insert(&condition, rank, ()).is_none());
    }
    classifier
}

/// The priority of the rule found, and the bits read.
fn look_up(classifier: &Classifier<()>, key: &FlowKey) -> (Option<u32>, FlowMask) {
    let mut read = FlowMask::default();
    let found = classifier.lookup(key, None, &mut read, |_, _| true);
    (found.map(|(rank, _)| rank.priority), read)
}

fn to(address: u128) -> FlowKey {
    key(&[(Field::EthType, 0x800), (Field::Ip4Dst, address), (Field::TpDst, 80)])
}

/// Rules on 10.0.0.0/8 and on `hosts` addresses in 10.200.0.0/16: few rules make a list, many a
/// tuple space.
#[test]
fn address_is_read_by_prefix_when_no_host_route_is_near() {
    for hosts in [4, 12, 200, 1000u128] {
        let hosts = (0..hosts).map(|n| route(v4(10, 200, 0, 0) + n * 64, 32));
        let classifier = classifier(hosts.chain([route(v4(10, 0, 0, 0), 8)]));
        for (address, priority, most) in [
            (v4(10, 1, 2, 3), Some(8), 9),
            (v4(10, 199, 2, 3), Some(8), 15),
            (v4(10, 200, 0, 1), Some(8), 32),
            (v4(10, 200, 0, 64), Some(32), 32),
            (v4(192, 168, 0, 1), None, 8),
        ] {
            let (found, read) = look_up(&classifier, &to(address));
            assert_eq!(found, priority);
            let len = read.get(Field::Ip4Dst).count_ones() as u8;
            assert_eq!(read.get(Field::Ip4Dst), prefix(Field::Ip4Dst, len), "a prefix");
            assert!(len <= most, "{len} bits of {address:#x} of {} rules", classifier.len());
            let ether_type = if found.is_some() { 16 } else { 0 };
            assert_eq!(bits(&read), u32::from(len) + ether_type, "nothing else");
        }
    }
}

#[test]
fn later_layers_are_not_read_when_an_earlier_one_excludes() {
    let rule = |n: u128| {
        let parts = [
            (Field::Metadata, n % 5, u128::MAX),
            IP,
            (Field::Ip4Src, n, 0xff),
            (Field::TpDst, n, !0),
        ];
        (condition(&parts), Rank { priority: 1, id: n as u64 })
    };
    let classifier = classifier((0..100).map(rule));
    let other_datapath = key(&[(Field::Metadata, 7), (Field::EthType, 0x800)]);
    let mut expected = FlowMask::default();
    expected.add(Field::Metadata);
    assert_eq!(look_up(&classifier, &other_datapath), (None, expected));

    let arp = key(&[(Field::Metadata, 3), (Field::EthType, 0x806)]);
    let mut expected = FlowMask::default();
    expected.add(Field::EthType);
    assert_eq!(look_up(&classifier, &arp), (None, expected));
}

#[test]
fn ports_are_read_by_prefix_when_rules_are_about_low_ones() {
    let tcp = |port: u128| {
        let rank = Rank { priority: 10, id: port as u64 };
        (condition(&[IP, (Field::IpProto, 6, 0xff), (Field::TpDst, port, 0xffff)]), rank)
    };
    let any = (Match::any(), Rank { priority: 0, id: 0 });
    let classifier = classifier((1..100).map(tcp).chain([any]));
    let packet = |port| key(&[(Field::EthType, 0x800), (Field::IpProto, 6), (Field::TpDst, port)]);
    let (found, read) = look_up(&classifier, &packet(50_000));
    assert_eq!((found, read.get(Field::TpDst)), (Some(0), 0x8000));
    let (found, read) = look_up(&classifier, &packet(200));
    assert_eq!((found, read.get(Field::TpDst)), (Some(0), 0xff80));
    let (found, read) = look_up(&classifier, &packet(99));
    assert_eq!((found, read.get(Field::TpDst)), (Some(10), 0xffff));
}

#[test]
fn worse_rules_are_not_read_when_a_better_one_is_found() {
    let worse = (0..100).map(|n| {
        let id = n as u64;
        (condition(&[(Field::EthDst, n, u128::MAX)]), Rank { priority: 1, id })
    });
    let better = (condition(&[(Field::InPort, 3, u128::MAX)]), Rank { priority: 2, id: 0 });
    let classifier = classifier(worse.chain([better]));
    let (found, read) = look_up(&classifier, &key(&[(Field::InPort, 3), (Field::EthDst, 5)]));
    assert_eq!((found, bits(&read)), (Some(2), 32));
    let (found, read) = look_up(&classifier, &key(&[(Field::InPort, 4), (Field::EthDst, 5)]));
    assert_eq!((found, bits(&read)), (Some(1), 32 + 48));

    let limit = Some(Rank { priority: 2, id: 0 });
    let mut read = FlowMask::default();
    assert_eq!(classifier.lookup(&FlowKey::default(), limit, &mut read, |_, _| true), None);
    assert_eq!(bits(&read), 0, "no rule is better, and no key can change that");
}

#[test]
fn bits_that_are_known_are_used_when_they_exclude_a_rule() {
    let rule = condition(&[(Field::InPort, 3, u128::MAX), (Field::TpDst, 80, 0xffff)]);
    let classifier = classifier([(rule, Rank { priority: 1, id: 0 })]);
    let mut read = FlowMask::default();
    read.add(Field::TpDst);
    let before = read.clone();
    assert_eq!(classifier.lookup(&FlowKey::default(), None, &mut read, |_, _| true), None);
    assert_eq!(read, before);
}

/// Removed rules no longer add bits: prefixes are forgotten at once, values of other fields when
/// enough rules are gone.
#[test]
fn mask_is_no_wider_than_before_when_rules_came_and_went() {
    let rule = |datapath: u128, n: u128| {
        let parts = [
            (Field::Metadata, datapath, u128::MAX),
            (Field::Ip4Dst, n << 8, 0xffff_ffff),
            (Field::TpDst, n, 0xffff),
        ];
        (condition(&parts), Rank { priority: 1, id: n as u64 })
    };
    let mut classifier = classifier((0..100).map(|n| rule(1, n)));
    let packet = key(&[(Field::Metadata, 2), (Field::Ip4Dst, 0xff00), (Field::TpDst, 9)]);
    let before = look_up(&classifier, &packet);
    assert_eq!(bits(&before.1), 64);
    (0..300).for_each(|n| assert!(classifier.insert(&rule(2, n).0, rule(2, n).1, ()).is_none()));
    assert_ne!(look_up(&classifier, &packet), before);
    (0..300).for_each(|n| assert!(classifier.remove(&rule(2, n).0, rule(2, n).1).is_some()));
    let after = look_up(&classifier, &packet);
    assert_eq!(after.0, before.0);
    assert!(bits(&after.1) <= bits(&before.1), "{:?}", after.1);
    for n in 0..100 {
        let found = look_up(&classifier, rule(1, n).0.key()).0;
        assert_eq!(found, Some(1), "rule {n} stayed");
    }
}
