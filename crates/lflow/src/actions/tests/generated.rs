//! Properties of generated actions, and of texts made of random tokens.

use super::{parse_here, stage};
use crate::actions::option_table::EMPTY_LB_BACKENDS;
use crate::actions::{
    Action, ActionOption, Actions, Backend, Check, CtLb, IpVersion, KnownOption, LbAffinity,
    LbFlag, Log, LogVerdict, Nat, NatTarget, NatZone, NestedPacket, ObservationPoint,
    OptionProtocol, OptionValue, Sample, Severity, Transport, compile,
};
use crate::lexer::Lexer;
use crate::symbol::FieldRef;
use crate::token::{Constant, Format};
use pipeline::{Direction, TableId};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use std::net::IpAddr;

fn field(names: &'static [&'static str]) -> impl Strategy<Value = FieldRef> {
    select(names).prop_map(|name| FieldRef::parse(&mut Lexer::new(name)).unwrap())
}

fn bit() -> impl Strategy<Value = FieldRef> {
    field(&["reg0[0]", "flags.loopback", "xxreg1[127]", "eth.mcast"])
}

fn port() -> impl Strategy<Value = FieldRef> {
    field(&["inport", "outport"])
}

fn mac() -> impl Strategy<Value = FieldRef> {
    field(&["eth.src", "arp.sha", "xreg0[0..47]", "nd.tll"])
}

fn ip(family: IpVersion) -> BoxedStrategy<FieldRef> {
    match family {
        IpVersion::V4 => field(&["reg0", "ip4.dst", "arp.spa"]).boxed(),
        IpVersion::V6 => field(&["xxreg0", "ip6.src", "nd.target"]).boxed(),
    }
}

fn word32() -> impl Strategy<Value = FieldRef> {
    field(&["reg0", "ip4.src", "flags", "xxreg0[3..34]", "pkt.mark"])
}

fn text() -> impl Strategy<Value = Box<str>> {
    "[ -~é\\n]{0,12}".prop_map(Box::from)
}

fn family() -> impl Strategy<Value = IpVersion> {
    select(&[IpVersion::V4, IpVersion::V6][..])
}

fn constant() -> impl Strategy<Value = Constant> {
    let number = prop_oneof![
        (0..=u128::from(u32::MAX)).prop_map(|value| (value, Format::Decimal)),
        (0..=u128::from(u32::MAX)).prop_map(|value| (value, Format::Hexadecimal)),
        (0..=u128::from(u32::MAX)).prop_map(|value| (value, Format::Ipv4)),
    ];
    (number, option::of(0..=u128::from(u32::MAX))).prop_map(|((value, format), mask)| Constant {
        value: value & mask.unwrap_or(u128::MAX),
        mask,
        format,
    })
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|ip| IpAddr::V4(ip.into())),
        any::<u128>().prop_map(|ip| IpAddr::V6(ip.into()))
    ]
}

fn backend() -> impl Strategy<Value = Backend> {
    (address(), prop_oneof![Just(0), any::<u16>()]).prop_map(|(ip, port)| Backend { ip, port })
}

fn packet() -> impl Strategy<Value = Action> {
    let table = (0u8..24, select(&[Direction::Ingress, Direction::Egress][..]));
    prop_oneof![
        Just(Action::Output),
        table.prop_map(|(table, direction)| Action::Next(
            TableId::logical(direction, table).unwrap()
        )),
        (word32(), constant()).prop_map(|(to, value)| Action::Load { to, value }),
        (port(), text()).prop_map(|(to, name)| Action::LoadName { to, name }),
        (word32(), word32()).prop_map(|(to, from)| Action::Move { to, from }),
        (port(), port()).prop_map(|(a, b)| Action::Exchange(a, b)),
        (mac(), mac()).prop_map(|(a, b)| Action::Exchange(a, b)),
        prop_oneof![word32(), bit(), port()].prop_map(Action::Push),
        prop_oneof![word32(), bit(), port()].prop_map(Action::Pop),
        Just(Action::DecTtl),
        (family(), any::<u16>())
            .prop_map(|(family, mtu)| Action::LoadFragMtu { family, mtu: mtu.into() }),
        (word32(), vec((any::<u16>(), 1u16..), 2..5))
            .prop_map(|(to, choices)| Action::Select { to, choices: choices.into() }),
        (bit(), any::<u16>()).prop_map(|(to, bytes)| Action::CheckLength { to, bytes }),
        (bit(), select(Check::ALL)).prop_map(|(to, check)| Action::Check { to, check }),
        (any::<bool>(), vec(text(), 1..4))
            .prop_map(|(liveness, ports)| Action::ForwardGroup { liveness, ports: ports.into() }),
    ]
}

fn learned() -> impl Strategy<Value = Action> {
    family().prop_flat_map(|family| {
        prop_oneof![
            (port(), ip(family)).prop_map(move |(port, ip)| Action::GetMacBinding {
                family,
                port,
                ip
            }),
            (port(), ip(family), mac()).prop_map(move |(port, ip, mac)| Action::PutMacBinding {
                family,
                port,
                ip,
                mac
            }),
            (bit(), port(), ip(family), option::of(mac())).prop_map(move |(to, port, ip, mac)| {
                Action::LookupMacBinding { to, family, port, ip, mac }
            }),
            (prop_oneof![port(), word32()], mac()).prop_map(|(to, mac)| Action::GetFdb { to, mac }),
            (port(), mac()).prop_map(|(port, mac)| Action::PutFdb { port, mac }),
            (bit(), port(), mac()).prop_map(|(to, port, mac)| Action::LookupFdb { to, port, mac }),
        ]
    })
}

fn connection() -> impl Strategy<Value = Action> {
    let ports = option::of((1u16..1000, option::of(1000u16..)));
    let target = (address(), ports).prop_map(|(ip, ports)| NatTarget { ip, ports });
    let mark = (any::<u32>(), any::<u32>())
        .prop_filter_map("a mask", |(value, mask)| (mask != 0).then_some((value & mask, mask)));
    let label = prop_oneof![Just(u128::MAX), 1u128..].prop_map(|mask| ((mask / 3) & mask, mask));
    let lb =
        (any::<bool>(), vec(backend(), 1..4), option::of(text()), option::of(select(LbFlag::ALL)));
    prop_oneof![
        Just(Action::CtClear),
        option::of(select(NatZone::ALL)).prop_map(Action::CtNext),
        option::of(select(NatZone::ALL)).prop_map(Action::CtCommitNat),
        select(NatZone::ALL).prop_map(Action::CtCommitToZone),
        Just(Action::MacCacheUse),
        Just(Action::CtSnatToVip),
        Just(Action::CtCommit(Box::default())),
        (field(&["ct_mark", "ct_label[0..31]"]), constant())
            .prop_map(|(to, value)| Action::CtCommit([Action::Load { to, value }].into())),
        mark.clone().prop_map(|mark| Action::CtCommitV1 { mark: Some(mark), label: None }),
        (option::of(mark), label)
            .prop_map(|(mark, label)| Action::CtCommitV1 { mark, label: Some(label) }),
        (select(Nat::ALL), option::of(target)).prop_map(|(nat, to)| Action::CtNat { nat, to }),
        lb.prop_map(|(mark, backends, hash_fields, flag)| {
            Action::CtLb(CtLb { mark, backends: backends.into(), hash_fields, flag })
        }),
        (any::<bool>(), select(Transport::ALL))
            .prop_map(|(ipv6, protocol)| Action::CommitEcmpNh { ipv6, protocol }),
        (any::<[u32; 2]>(), any::<u16>(), any::<u16>(), select(Transport::ALL), any::<u16>())
            .prop_map(|(ips, vip_port, port, protocol, timeout_s)| {
                let [vip, backend] = ips.map(|ip| IpAddr::V4(ip.into()));
                Action::CommitLbAffinity(LbAffinity {
                    vip: Backend { ip: vip, port: vip_port },
                    backend: Backend { ip: backend, port },
                    protocol: (vip_port != 0).then_some(protocol),
                    timeout_s,
                })
            }),
    ]
}

fn known(table: &'static [KnownOption], name: &str) -> &'static KnownOption {
    table.iter().find(|option| option.name == name).expect("a known option")
}

fn beside() -> impl Strategy<Value = Action> {
    let log =
        (option::of(text()), select(LogVerdict::ALL), select(Severity::ALL), option::of(text()));
    let sample = (1u16.., any::<u32>(), any::<u8>(), option::of(any::<u32>()));
    let dhcp =
        |name, value| ActionOption { known: known(OptionProtocol::Dhcp4.table(), name), value };
    let offer = dhcp("offerip", OptionValue::Number(Constant::new(0x0102_0304, Format::Ipv4)));
    let extra = prop_oneof![
        vec(constant(), 1..4)
            .prop_map(move |values| dhcp("router", OptionValue::Numbers(values.into()))),
        vec(text(), 1..4).prop_map(move |texts| dhcp("wpad", OptionValue::Texts(texts.into()))),
        text().prop_map(move |text| dhcp("tftp_server", OptionValue::Text(text))),
    ];
    let vip = OptionValue::Text("[fd00::1]:80".into());
    let event = ActionOption { known: known(EMPTY_LB_BACKENDS, "vip"), value: vip };
    prop_oneof![
        log.prop_map(|(name, verdict, severity, meter)| {
            Action::Log(Log { name, verdict, severity, meter })
        }),
        (1u64.., any::<u64>())
            .prop_map(|(rate_kbps, burst_kb)| Action::SetMeter { rate_kbps, burst_kb }),
        (0..=0xf000u16).prop_map(Action::SetQueue),
        sample.prop_map(|(probability, collector_set, domain, point)| {
            let point = point.map_or(ObservationPoint::Cookie, ObservationPoint::Number);
            Action::Sample(Sample { probability, collector_set, domain, point })
        }),
        (bit(), extra).prop_map(move |(to, extra)| Action::PutOptions {
            to,
            protocol: OptionProtocol::Dhcp4,
            options: [offer.clone(), extra].into(),
        }),
        bit().prop_map(|to| Action::PutOptions {
            to,
            protocol: OptionProtocol::Dhcp6,
            options: Box::default()
        }),
        Just(Action::TriggerEvent([event].into())),
        (text(), port()).prop_map(|(name, parent)| Action::BindVport { name, parent }),
        port().prop_map(Action::HandleSvcCheck),
        Just(Action::HandleDhcp6Reply),
        Just(Action::HandleBfdMsg),
        Just(Action::Igmp),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let leaf = prop_oneof![packet(), learned(), connection(), beside()];
    leaf.prop_recursive(4, 24, 4, |inner| {
        (select(NestedPacket::ALL), vec(inner, 0..4))
            .prop_map(|(nest, actions)| Action::Nested(nest, actions.into()))
    })
}

/// Fragments of texts, valid and invalid.
const PIECES: &[&str] = &[
    "next",
    "output",
    "reg0",
    "[",
    "]",
    "0",
    "31",
    "..",
    "=",
    ";",
    "(",
    ")",
    "{",
    "}",
    ",",
    "clone",
    "arp",
    "ct_lb",
    "backends",
    "10.0.0.1",
    "fd00::1",
    ":",
    "80",
    "ct_commit",
    "ct_mark",
    "1/1",
    "<->",
    "inport",
    "\"a\"",
    "log",
    "verdict",
    "drop",
    "select",
    "put_dhcp_opts",
    "offerip",
    "set_meter",
    "$cookie",
    "sample",
    "--",
    "ip.ttl",
    "push",
    "18446744073709551615",
    "0xffffffffffffffffffffffffffffffff",
    "^x",
    "\"",
    "/*",
    "put_nd_ra_opts",
    "trigger_event",
    "event",
    "\"empty_lb_backends\"",
    "commit_lb_aff",
    "vip",
    "\"1.2.3.4:80\"",
    "fwd_group",
    "childports",
    "é",
    "icmp4.frag_mtu",
    "ct_dnat",
    "-",
    "lookup_arp",
    "ip4.src",
    "eth.src",
    "ip",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn printed_actions_parse_to_the_same_actions(list in vec(action(), 0..6)) {
        let actions = Actions { stage: stage(), list: list.into() };
        let printed = actions.to_string();
        prop_assert_eq!(parse_here(&printed), Ok(actions), "{}", printed);
    }

    #[test]
    fn tokens_in_any_order_cause_no_panic(
        pieces in vec(select(PIECES), 0..40),
        spaces in any::<bool>(),
    ) {
        let text = pieces.join(if spaces { " " } else { "" });
        match parse_here(&text) {
            Ok(actions) => {
                let printed = actions.to_string();
                compile(&actions, &());
                prop_assert_eq!(parse_here(&printed), Ok(actions), "{}", printed);
            }
            Err(error) => prop_assert!(text.get(error.span).is_some()),
        }
    }

    #[test]
    fn any_text_causes_no_panic(text in ".{0,60}") {
        if let Err(error) = parse_here(&text) {
            prop_assert!(text.get(error.span).is_some());
        }
    }
}
