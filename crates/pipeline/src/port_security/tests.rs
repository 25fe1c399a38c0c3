//! Port security compared with a table of cases, and on random packets with the rules that
//! ovn-controller generates.

use super::PortSecurity;
use crate::op::Direction::{self, Egress, Ingress};
use crate::recorder::PlainRecorder;
use flow::{Field, FlowKey, FlowMask, low_bits};
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

const MACS: [u128; 3] = [0x0200_0000_0001, 0x0200_0000_0002, 0x0200_0001_0001];

fn v4(text: &str) -> u128 {
    text.parse::<Ipv4Addr>().unwrap().to_bits().into()
}

fn v6(text: &str) -> u128 {
    text.parse::<Ipv6Addr>().unwrap().to_bits()
}

/// `field=value` words; MAC addresses are written as numbers.
fn key(text: &str) -> FlowKey {
    let mut key = FlowKey::default();
    for word in text.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap();
        let number = |value: &str| {
            value
                .strip_prefix("0x")
                .map_or_else(|| value.parse().ok(), |hex| u128::from_str_radix(hex, 16).ok())
        };
        let value = number(value)
            .or_else(|| value.parse().ok().map(|address: Ipv4Addr| address.to_bits().into()))
            .or_else(|| value.parse().ok().map(Ipv6Addr::to_bits))
            .unwrap_or_else(|| panic!("{word}"));
        key.set(Field::from_name(name).unwrap_or_else(|| panic!("{word}")), value);
    }
    key
}

fn decide(security: &PortSecurity, direction: Direction, key: &FlowKey) -> (bool, FlowMask) {
    let mut read = FlowMask::default();
    let forbidden = security.forbids(direction, &mut PlainRecorder { key, read: &mut read });
    (forbidden, read)
}

const ARP: &str = "eth_type=0x806";
const IP4: &str = "eth_type=0x800";
const IP6: &str = "eth_type=0x86dd";
const DHCP: &str = "ip4_src=0.0.0.0 ip4_dst=255.255.255.255 ip_proto=17 tp_src=68 tp_dst=67";
const NS: &str = "ip_proto=58 icmp_type=135 ip_ttl=255";
const NA: &str = "ip_proto=58 icmp_type=136 ip_ttl=255";

#[test]
fn packet_passes_when_the_port_may_use_its_addresses() {
    let open: &[&str] = &[];
    let mac = &["02:00:00:00:00:01"][..];
    let host = &["02:00:00:00:00:01 10.0.0.4/24"][..];
    let both = &["02:00:00:00:00:01 10.0.0.4 fd00::4", "02:00:00:00:00:02"][..];
    let net = &["02:00:00:00:00:01 10.1.0.0/16 fd00:1::/64"][..];
    let six = &["02:00:00:00:00:01 fd00::4"][..];
    let table: &[(&[&str], Direction, &str, &str, bool)] = &[
        (open, Ingress, IP4, "eth_src=9", true),
        (open, Egress, IP4, "eth_dst=9", true),
        // Only a MAC address.
        (mac, Ingress, IP4, "eth_src=0x020000000001 ip4_src=1.2.3.4", true),
        (mac, Ingress, IP4, "eth_src=0x020000000002", false),
        (mac, Ingress, "eth_type=0x88cc", "eth_src=0x020000000001", true),
        (mac, Ingress, ARP, "eth_src=0x020000000001 arp_sha=0x020000000001 arp_spa=9.9.9.9", true),
        (mac, Ingress, ARP, "eth_src=0x020000000001 arp_sha=0x020000000002", false),
        (mac, Ingress, IP6, &format!("eth_src=0x020000000001 {NA} nd_target=fd00::9"), true),
        (mac, Ingress, IP6, &format!("eth_src=0x020000000001 {NA} nd_tll=0x020000000001"), true),
        (mac, Ingress, IP6, &format!("eth_src=0x020000000001 {NA} nd_tll=0x020000000002"), false),
        (mac, Egress, IP6, "eth_dst=0x020000000001", true),
        (mac, Egress, IP6, "eth_dst=0x020000000002", false),
        // An IPv4 address with a prefix length.
        (host, Ingress, IP4, "eth_src=0x020000000001 ip4_src=10.0.0.4", true),
        (host, Ingress, IP4, "eth_src=0x020000000001 ip4_src=10.0.0.5", false),
        (host, Ingress, IP4, &format!("eth_src=0x020000000001 {DHCP}"), true),
        (host, Ingress, IP4, &format!("eth_src=0x020000000002 {DHCP}"), false),
        (host, Ingress, IP6, "eth_src=0x020000000001 ip6_src=fe80::ff:fe00:1", false),
        (host, Ingress, "eth_type=0x8035", "eth_src=0x020000000001", false),
        (
            host,
            Ingress,
            ARP,
            "eth_src=0x020000000001 arp_sha=0x020000000001 arp_spa=10.0.0.4",
            true,
        ),
        (
            host,
            Ingress,
            ARP,
            "eth_src=0x020000000001 arp_sha=0x020000000001 arp_spa=10.0.0.5",
            false,
        ),
        (host, Egress, IP4, "eth_dst=0x020000000001 ip4_dst=10.0.0.4", true),
        (host, Egress, IP4, "eth_dst=0x020000000001 ip4_dst=10.0.0.255", true),
        (host, Egress, IP4, "eth_dst=0x020000000001 ip4_dst=255.255.255.255", true),
        (host, Egress, IP4, "eth_dst=0x020000000001 ip4_dst=239.1.2.3", true),
        (host, Egress, IP4, "eth_dst=0x020000000001 ip4_dst=10.0.0.5", false),
        (host, Egress, IP4, "eth_dst=0x020000000002 ip4_dst=10.0.0.4", false),
        (host, Egress, IP6, "eth_dst=0x020000000001 ip6_dst=ff02::1", false),
        (host, Egress, ARP, "eth_dst=0x020000000001 arp_tpa=10.0.0.5", true),
        // Several MAC addresses.
        (both, Ingress, IP4, "eth_src=0x020000000002 ip4_src=1.2.3.4", true),
        (both, Ingress, IP4, "eth_src=0x020000000001 ip4_src=1.2.3.4", false),
        (both, Ingress, IP6, "eth_src=0x020000000001 ip6_src=fd00::4", true),
        (both, Ingress, IP6, "eth_src=0x020000000001 ip6_src=fe80::ff:fe00:1", true),
        (both, Ingress, IP6, "eth_src=0x020000000001 ip6_src=fe80::ff:fe00:2", false),
        (both, Egress, IP6, "eth_dst=0x020000000001 ip6_dst=fe80::ff:fe00:1", true),
        (both, Egress, IP6, "eth_dst=0x020000000001 ip6_dst=ff05::7", true),
        (both, Egress, IP6, "eth_dst=0x020000000001 ip6_dst=fd00::5", false),
        // Subnets.
        (net, Ingress, IP4, "eth_src=0x020000000001 ip4_src=10.1.200.3", true),
        (net, Ingress, IP4, "eth_src=0x020000000001 ip4_src=10.2.0.0", false),
        (net, Ingress, IP6, "eth_src=0x020000000001 ip6_src=fd00:1::77", true),
        (net, Egress, IP6, "eth_dst=0x020000000001 ip6_dst=fd00:1:0:1::", false),
        // IPv6 only: no IPv4, no ARP; neighbour discovery is checked.
        (six, Ingress, ARP, "eth_src=0x020000000001 arp_sha=0x020000000001", false),
        (six, Ingress, IP4, &format!("eth_src=0x020000000001 {DHCP}"), false),
        (
            six,
            Ingress,
            IP6,
            &format!("eth_src=0x020000000001 ip6_src=:: ip6_dst=ff02::1:ff00:4 {NS}"),
            true,
        ),
        (
            six,
            Ingress,
            IP6,
            &format!("eth_src=0x020000000001 ip6_src=:: ip6_dst=ff05::1 {NS}"),
            false,
        ),
        (
            six,
            Ingress,
            IP6,
            &format!("eth_src=0x020000000001 ip6_src=fd00::4 {NS} nd_sll=0x020000000002"),
            true,
        ),
        (
            six,
            Ingress,
            IP6,
            "eth_src=0x020000000001 ip6_dst=ff02::16 ip_proto=58 icmp_type=143",
            true,
        ),
        (
            six,
            Ingress,
            IP6,
            "eth_src=0x020000000001 ip6_dst=ff02::16 ip_proto=58 icmp_type=132",
            false,
        ),
        (
            six,
            Ingress,
            IP6,
            &format!("eth_src=0x020000000001 ip6_src=fd00::4 {NA} nd_target=fd00::4"),
            true,
        ),
        (
            six,
            Ingress,
            IP6,
            &format!("eth_src=0x020000000001 ip6_src=fd00::4 {NA} nd_target=fe80::ff:fe00:1"),
            true,
        ),
        (
            six,
            Ingress,
            IP6,
            &format!("eth_src=0x020000000001 ip6_src=fd00::4 {NA} nd_target=fd00::5"),
            false,
        ),
        (
            six,
            Ingress,
            IP6,
            &format!("eth_src=0x020000000001 ip6_src=fd00::4 {NA} icmp_code=1 nd_target=fd00::4"),
            false,
        ),
        (
            six,
            Ingress,
            IP6,
            "eth_src=0x020000000001 ip6_src=fd00::4 ip_proto=58 icmp_type=136 ip_ttl=64 \
             nd_target=fd00::5",
            true,
        ),
    ];
    for &(entries, direction, kind, fields, passes) in table {
        let security = PortSecurity::parse(entries).unwrap();
        let (forbidden, _) = decide(&security, direction, &key(&format!("{kind} {fields}")));
        assert_eq!(!forbidden, passes, "{entries:?} {direction:?} {kind} {fields}");
    }
}

#[test]
fn malformed_string_is_refused_with_its_text() {
    let table = [
        ("", "port security ``: expected a MAC address first, such as 02:00:00:00:00:01"),
        (
            "10.0.0.1",
            "port security `10.0.0.1`: expected a MAC address first, such as 02:00:00:00:00:01",
        ),
        (
            "02:00:00:00:00:01:02",
            "port security `02:00:00:00:00:01:02`: expected a MAC address first, such as \
             02:00:00:00:00:01",
        ),
        (
            "02:00:00:00:00:+1",
            "port security `02:00:00:00:00:+1`: expected a MAC address first, such as \
             02:00:00:00:00:01",
        ),
        (
            "02:00:00:00:00:01 10.0.0.1/33",
            "port security `02:00:00:00:00:01 10.0.0.1/33`: expected an IPv4 or IPv6 \
             address, with a prefix length if it is a subnet, not `10.0.0.1/33`",
        ),
        (
            "02:00:00:00:00:01 fd00::1 unknown",
            "port security `02:00:00:00:00:01 fd00::1 unknown`: expected an IPv4 or IPv6 \
             address, with a prefix length if it is a subnet, not `unknown`",
        ),
        (
            "02:00:00:00:00:01 10.0.0.0/255.0.255.0",
            "port security `02:00:00:00:00:01 10.0.0.0/255.0.255.0`: expected an IPv4 or \
             IPv6 address, with a prefix length if it is a subnet, not `10.0.0.0/255.0.255.0`",
        ),
    ];
    for (entry, error) in table {
        assert_eq!(PortSecurity::parse(&[entry]).unwrap_err().to_string(), error);
    }
}

#[test]
fn malformed_string_is_cut_short_when_parsed_as_ovn_does() {
    let (open, errors) = PortSecurity::parse_as_ovn(&["unknown"]);
    assert_eq!((open, errors.len()), (PortSecurity::default(), 1));
    let (cut, errors) =
        PortSecurity::parse_as_ovn(&["2:0:0:0:0:1 10.0.0.1/255.255.255.0 x 10.0.0.2"]);
    assert_eq!(errors.len(), 1);
    assert_eq!(cut, PortSecurity::parse(&["02:00:00:00:00:01 10.0.0.1/24"]).unwrap());
}

#[test]
fn mask_ends_at_the_first_byte_that_differs() {
    let security = PortSecurity::parse(&["02:00:00:00:00:01 10.0.0.0/9"]).unwrap();
    let (forbidden, read) =
        decide(&security, Ingress, &key("eth_type=0x800 eth_src=0x060000000001"));
    assert!(forbidden);
    assert_eq!(read.get(Field::EthSrc), 0xff00_0000_0000);
    let (forbidden, read) =
        decide(&security, Ingress, &key("eth_type=0x800 eth_src=0x020000000001 ip4_src=10.1.2.3"));
    assert!(!forbidden);
    assert_eq!((read.get(Field::Ip4Src), read.get(Field::IpProto)), (0xff80_0000, 0));
}

/// A rule as ovn-controller generates it, in table 0 (all packets) or 1 (ARP and neighbour
/// discovery).
struct Rule {
    table: u8,
    priority: u8,
    conditions: Vec<(Field, u128, u128)>,
    action: RuleAction,
}

#[derive(Clone, Copy, PartialEq)]
enum RuleAction {
    Allow,
    Deny,
    /// Continues in table 1.
    CheckArpNd,
}

#[derive(Clone, Debug)]
struct Naive {
    mac: u128,
    v4: Vec<(u128, u8)>,
    v6: Vec<(u128, u8)>,
}

impl Naive {
    fn text(&self) -> String {
        let [_, _, _, _, _, _, _, _, _, _, mac @ ..] = self.mac.to_be_bytes();
        let mut text = wire::MacAddr(mac).to_string();
        for &(address, len) in &self.v4 {
            text += &format!(" {}/{len}", Ipv4Addr::from_bits(address as u32));
        }
        for &(address, len) in &self.v6 {
            text += &format!(" {}/{len}", Ipv6Addr::from_bits(address));
        }
        text
    }

    fn link_local(&self) -> u128 {
        let bytes = self.mac.to_be_bytes();
        let m = &bytes[10..];
        let eui = [m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]];
        0xfe80 << 112 | u128::from(u64::from_be_bytes(eui))
    }
}

fn net(&(address, len): &(u128, u8), width: u8) -> (u128, u128) {
    let mask = low_bits(width) & !low_bits(width - len);
    if address & !mask == 0 { (address, mask) } else { (address, low_bits(width)) }
}

fn all(field: Field, value: u128) -> (Field, u128, u128) {
    (field, value, field.all_ones())
}

fn ingress_rules(entries: &[Naive]) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut rule = |table, priority, conditions: &[(Field, u128, u128)], action| {
        rules.push(Rule { table, priority, conditions: conditions.to_vec(), action });
    };
    let (arp, ip4, ip6) =
        (all(Field::EthType, 0x806), all(Field::EthType, 0x800), all(Field::EthType, 0x86dd));
    let icmp6 = all(Field::IpProto, 58);
    let kind = |kind| all(Field::IcmpType, kind);
    let code0 = all(Field::IcmpCode, 0);
    let ttl = all(Field::IpTtl, 255);
    rule(0, 80, &[], RuleAction::Deny);
    rule(0, 95, &[arp], RuleAction::CheckArpNd);
    rule(1, 80, &[arp], RuleAction::Deny);
    rule(1, 80, &[ip6, icmp6, ttl, kind(136)], RuleAction::Deny);
    rule(1, 80, &[ip6, icmp6, ttl, kind(135)], RuleAction::Allow);
    for e in entries {
        let src = all(Field::EthSrc, e.mac);
        let sha = all(Field::ArpSha, e.mac);
        let any_ip = e.v4.is_empty() && e.v6.is_empty();
        if any_ip {
            rule(0, 90, &[src], RuleAction::CheckArpNd);
            rule(1, 90, &[src, arp, sha], RuleAction::Allow);
        }
        for address in &e.v4 {
            let (value, mask) = net(address, 32);
            rule(0, 90, &[src, ip4, (Field::Ip4Src, value, mask)], RuleAction::Allow);
            rule(1, 90, &[src, arp, sha, (Field::ArpSpa, value, mask)], RuleAction::Allow);
        }
        if !e.v4.is_empty() {
            let (from, to) = (all(Field::Ip4Src, 0), all(Field::Ip4Dst, 0xffff_ffff));
            let udp = [all(Field::IpProto, 17), all(Field::TpSrc, 68), all(Field::TpDst, 67)];
            rule(0, 90, &[&[src, ip4, from, to], &udp[..]].concat(), RuleAction::Allow);
        }
        for address in &e.v6 {
            let (value, mask) = net(address, 128);
            rule(0, 90, &[src, ip6, (Field::Ip6Src, value, mask)], RuleAction::CheckArpNd);
        }
        if !e.v6.is_empty() {
            rule(0, 90, &[src, ip6, all(Field::Ip6Src, e.link_local())], RuleAction::CheckArpNd);
            let (from, to) = (all(Field::Ip6Src, 0), (Field::Ip6Dst, 0xff02 << 112, 0xffff << 112));
            for (number, action) in
                [(131, RuleAction::Allow), (143, RuleAction::Allow), (135, RuleAction::CheckArpNd)]
            {
                rule(0, 90, &[src, ip6, from, to, icmp6, kind(number), code0], action);
            }
        }
        for mac in [0, e.mac] {
            let tll = all(Field::NdTll, mac);
            rule(
                1,
                90,
                &[ip6, icmp6, ttl, kind(135), code0, all(Field::NdSll, mac)],
                RuleAction::Allow,
            );
            let advert = [ip6, icmp6, kind(136), code0, tll];
            if e.v6.is_empty() {
                rule(1, 90, &[&advert[..], &[ttl]].concat(), RuleAction::Allow);
            } else {
                let target = all(Field::NdTarget, e.link_local());
                rule(1, 90, &[&advert[..], &[ttl, target]].concat(), RuleAction::Allow);
            }
            for address in &e.v6 {
                let (value, mask) = net(address, 128);
                let target = (Field::NdTarget, value, mask);
                rule(1, 90, &[&advert[..], &[src, target]].concat(), RuleAction::Allow);
            }
        }
    }
    rules
}

fn egress_rules(entries: &[Naive]) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut rule = |priority, conditions: &[(Field, u128, u128)], action| {
        rules.push(Rule { table: 0, priority, conditions: conditions.to_vec(), action });
    };
    let (ip4, ip6) = (all(Field::EthType, 0x800), all(Field::EthType, 0x86dd));
    rule(80, &[], RuleAction::Deny);
    for e in entries {
        let dst = all(Field::EthDst, e.mac);
        rule(85, &[dst], RuleAction::Allow);
        if e.v4.is_empty() && e.v6.is_empty() {
            continue;
        }
        rule(90, &[dst, ip4], RuleAction::Deny);
        rule(90, &[dst, ip6], RuleAction::Deny);
        for address in &e.v4 {
            let (value, mask) = net(address, 32);
            rule(95, &[dst, ip4, (Field::Ip4Dst, value, mask)], RuleAction::Allow);
            if mask == 0xffff_ffff && address.1 != 32 {
                let broadcast = address.0 | low_bits(32 - address.1);
                rule(95, &[dst, ip4, all(Field::Ip4Dst, broadcast)], RuleAction::Allow);
            }
        }
        if !e.v4.is_empty() {
            rule(95, &[dst, ip4, all(Field::Ip4Dst, 0xffff_ffff)], RuleAction::Allow);
            rule(95, &[dst, ip4, (Field::Ip4Dst, 0xe000_0000, 0xf000_0000)], RuleAction::Allow);
        }
        for address in &e.v6 {
            let (value, mask) = net(address, 128);
            rule(95, &[dst, ip6, (Field::Ip6Dst, value, mask)], RuleAction::Allow);
        }
        if !e.v6.is_empty() {
            rule(95, &[dst, ip6, all(Field::Ip6Dst, e.link_local())], RuleAction::Allow);
            rule(95, &[dst, ip6, (Field::Ip6Dst, 0xff << 120, 0xff << 120)], RuleAction::Allow);
        }
    }
    rules
}

fn run_rules(rules: &[Rule], table: u8, key: &FlowKey) -> bool {
    let matching = |rule: &&Rule| {
        rule.table == table && rule.conditions.iter().all(|&(f, v, m)| key.get(f) & m == v & m)
    };
    match rules.iter().filter(matching).max_by_key(|rule| rule.priority).map(|rule| rule.action) {
        Some(RuleAction::Deny) => true,
        Some(RuleAction::CheckArpNd) => run_rules(rules, 1, key),
        Some(RuleAction::Allow) | None => false,
    }
}

fn v4_address() -> impl Strategy<Value = u128> {
    let known = [
        "10.0.0.4",
        "10.0.0.5",
        "10.0.0.0",
        "10.0.0.255",
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.9",
    ];
    prop_oneof![
        8 => proptest::sample::select(known.map(v4).to_vec()),
        1 => any::<u32>().prop_map(u128::from),
    ]
}

fn v6_address() -> impl Strategy<Value = u128> {
    let known = [
        "fd00::4",
        "fd00::5",
        "fd00::",
        "::",
        "ff02::1:ff00:4",
        "ff05::1",
        "fe80::ff:fe00:1",
        "fe80::ff:fe00:2",
    ];
    prop_oneof![
        8 => proptest::sample::select(known.map(v6).to_vec()),
        1 => any::<u128>(),
    ]
}

fn mac() -> impl Strategy<Value = u128> {
    prop_oneof![8 => proptest::sample::select(MACS.to_vec()), 1 => Just(0), 1 => 0u128..1 << 48]
}

fn entry() -> impl Strategy<Value = Naive> {
    let v4 = (v4_address(), proptest::sample::select(vec![0, 8, 24, 31, 32, 32]));
    let v6 = (v6_address(), proptest::sample::select(vec![0, 64, 112, 128, 128]));
    (mac(), prop::collection::vec(v4, 0..3), prop::collection::vec(v6, 0..3))
        .prop_map(|(mac, v4, v6)| Naive { mac, v4, v6 })
}

prop_compose! {
    fn packet()(
        macs in prop::array::uniform5(mac()),
        v4s in prop::array::uniform3(v4_address()),
        v6s in prop::array::uniform3(v6_address()),
        ethertype in proptest::sample::select(vec![0x806u128, 0x800, 0x86dd, 0x8035]),
        proto in proptest::sample::select(vec![58u128, 58, 17, 6]),
        ttl in proptest::sample::select(vec![255u128, 255, 64]),
        icmp in proptest::sample::select(vec![131u128, 143, 135, 136, 136, 128, 0]),
        code in proptest::sample::select(vec![0u128, 0, 0, 1]),
        ports in proptest::sample::select(vec![(68u128, 67u128), (67, 68), (68, 68)]),
        dhcp in any::<bool>(),
    ) -> FlowKey {
        let mut key = FlowKey::default();
        let fields = [
            (Field::EthSrc, macs[0]), (Field::EthDst, macs[1]), (Field::EthType, ethertype),
            (Field::ArpSha, macs[2]), (Field::NdSll, macs[3]), (Field::NdTll, macs[4]),
            (Field::Ip4Src, if dhcp { 0 } else { v4s[0] }),
            (Field::Ip4Dst, if dhcp { 0xffff_ffff } else { v4s[1] }),
            (Field::ArpSpa, v4s[2]),
            (Field::Ip6Src, v6s[0]), (Field::Ip6Dst, v6s[1]), (Field::NdTarget, v6s[2]),
            (Field::IpProto, proto), (Field::IpTtl, ttl), (Field::IcmpType, icmp),
            (Field::IcmpCode, code), (Field::TpSrc, ports.0), (Field::TpDst, ports.1),
        ];
        fields.into_iter().for_each(|(field, value)| key.set(field, value));
        key
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4096,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn decision_equals_that_of_ovn_controllers_rules(
        entries in prop::collection::vec(entry(), 1..4),
        key in packet(),
        other in packet(),
    ) {
        let texts: Vec<String> = entries.iter().map(Naive::text).collect();
        let security = PortSecurity::parse(&texts).unwrap();
        let both = [(Ingress, ingress_rules(&entries)), (Egress, egress_rules(&entries))];
        for (direction, rules) in both {
            let (forbidden, read) = decide(&security, direction, &key);
            prop_assert_eq!(forbidden, run_rules(&rules, 0, &key), "{:?} {:?}", direction, texts);
            // Changing the bits that were not read does not change the decision.
            let mut changed = other.clone();
            for &field in Field::ALL {
                let bits = read.get(field);
                changed.set(field, key.get(field) & bits | other.get(field) & !bits);
            }
            prop_assert_eq!(run_rules(&rules, 0, &changed), forbidden);
            prop_assert_eq!(decide(&security, direction, &changed), (forbidden, read));
        }
    }
}
