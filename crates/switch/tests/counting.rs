//! The counters of flows include every packet and byte of their megaflows.

use crate::{Rig, bridge, udp};
use ofctl::Bridge;
use pipeline::Program;
use proptest::prelude::*;
use switch::Config;

/// A bridge where every packet matches one flow of table 0 and one of table 1.
fn counted() -> Bridge {
    bridge(
        "priority=5,udp,tp_dst=1 actions=resubmit(,1)\npriority=1 actions=resubmit(,1)\n\
         table=1 actions=normal",
    )
}

fn totals(bridge: &Bridge) -> [(u64, u64); 2] {
    let mut totals = [(0, 0); 2];
    for (_, flow) in bridge.flows() {
        let (packets, bytes) = flow.counters.get();
        let total = &mut totals[flow.table.index()];
        *total = (total.0 + packets, total.1 + bytes);
    }
    totals
}

#[test]
fn packets_are_counted_in_the_matching_flows_after_a_sweep() {
    let bridge = counted();
    let rig = Rig::new(bridge.program().clone(), &Config::default());
    let len = udp(1, 2, (1, 1)).len() as u64;
    for _ in 0..10 {
        rig.send(1, &udp(1, 2, (1, 1)));
    }
    rig.sweep();
    rig.sweep();
    assert_eq!(totals(&bridge), [(10, 10 * len); 2]);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send { worker: u16, at: u32, from: u8, to: u8, port: u16 },
    Sweep,
    Revalidate,
    Wait(u16),
    Publish,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..2u16, 1..3u32, 1..4u8, 1..4u8, 0..4u16)
            .prop_map(|(worker, at, from, to, port)| Step::Send { worker, at, from, to, port }),
        3 => Just(Step::Sweep),
        2 => Just(Step::Revalidate),
        2 => (0..12_000u16).prop_map(Step::Wait),
        1 => Just(Step::Publish),
    ]
}

proptest! {
    #[test]
    fn all_packets_are_counted_when_all_megaflows_are_gone(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let bridge = counted();
        let programs: [Program; 2] = std::array::from_fn(|_| bridge.program().clone());
        let rig = Rig::with_workers(2, programs[0].clone(), &Config::default());
        let (mut packets, mut bytes) = (0, 0);
        for step in steps {
            match step {
                Step::Send { worker, at, from, to, port } => {
                    let frame = udp(from, to, (7, port));
                    rig.send_at(worker, at, &frame);
                    packets += 1;
                    bytes += frame.len() as u64;
                }
                Step::Sweep => rig.sweep(),
                Step::Revalidate => rig.engine.revalidate().unwrap(),
                Step::Wait(ms) => rig.wait(ms.into()),
                Step::Publish => drop(rig.engine.publish(programs[1].clone())),
            }
        }
        rig.sweep();
        prop_assert_eq!(totals(&bridge), [(packets, bytes); 2]);
        rig.wait(10_000);
        rig.sweep();
        prop_assert_eq!(rig.fake.megaflows().len(), 0);
        prop_assert_eq!(totals(&bridge), [(packets, bytes); 2]);
    }
}
