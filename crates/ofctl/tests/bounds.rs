//! Flow tables that loop or are very large are handled in bounded time.

use flow::{Action, DropReason, Field, FlowKey, PortNo};
use pipeline::{Program, translate};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// A time limit far above the duration of these tests on a busy machine.
const LONG: Duration = Duration::from_secs(20);

const TCP_22: [(Field, u128); 4] =
    [(Field::InPort, 1), (Field::EthType, 0x0800), (Field::IpProto, 6), (Field::TpDst, 22)];

fn key(fields: &[(Field, u128)]) -> FlowKey {
    let mut key = FlowKey::default();
    fields.iter().for_each(|&(field, value)| key.set(field, value));
    key
}

fn bridge(flows: &str) -> Program {
    let mut bridge = crate::bridge();
    bridge.apply(flows, "flows.txt", 0).unwrap_or_else(|error| panic!("{error}"));
    bridge.program().clone()
}

fn dropped(program: &Program, fields: &[(Field, u128)]) -> Option<DropReason> {
    let start = Instant::now();
    let translation = translate(program, &key(fields), &(), &mut ());
    assert!(start.elapsed() < LONG);
    translation.dropped()
}

#[test]
fn resubmit_loop_ends_with_a_named_drop() {
    let looping = bridge("actions=resubmit(,0)");
    assert_eq!(dropped(&looping, &TCP_22), Some(DropReason::TranslationSteps));
    let through_two = bridge("table=0 actions=resubmit(,1)\ntable=1 actions=resubmit(,0)");
    assert_eq!(dropped(&through_two, &TCP_22), Some(DropReason::TranslationSteps));
    // A step follows each `resubmit`, so the lookups nest.
    let nested = bridge("actions=resubmit(,0),output:2");
    assert_eq!(dropped(&nested, &TCP_22), Some(DropReason::TranslationDepth));
    // Each lookup causes two more, so the number of steps would be exponential without the limit.
    let doubling = bridge("actions=clone(resubmit(,0)),resubmit(,0)");
    assert!(matches!(
        dropped(&doubling, &TCP_22),
        Some(DropReason::TranslationDepth | DropReason::TranslationSteps)
    ));
}

#[test]
fn hundred_thousand_flows_in_one_table_are_loaded_and_found() {
    let mut flows = String::new();
    for n in 0..100_000u32 {
        let [_, a, b, c] = n.to_be_bytes();
        let port = 2 + n % 3;
        writeln!(flows, "priority={},ip,nw_dst=10.{a}.{b}.{c},actions=output:{port}", n % 7)
            .unwrap();
    }
    let start = Instant::now();
    let program = bridge(&flows);
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
    for n in [0u32, 1, 65_536, 99_999] {
        let fields = [
            (Field::InPort, 1),
            (Field::EthType, 0x0800),
            (Field::Ip4Dst, u128::from(0x0a00_0000 + n)),
        ];
        let translation = translate(&program, &key(&fields), &(), &mut ());
        assert_eq!(translation.actions, [Action::Output(PortNo(2 + n % 3))]);
    }
    let beyond = [(Field::InPort, 1), (Field::EthType, 0x0800), (Field::Ip4Dst, 0x0b00_0000)];
    assert_eq!(dropped(&program, &beyond), Some(DropReason::NoFlow));
}
