use super::*;
use crate::load::{MapSizes, load};
use datapath::config::{PUNT_LIMIT, UPCALL_CPU_PERCENT, Workers};
use datapath::solicit::SolicitLimits;
use datapath::upcall::UpcallLimits;
use flow::{Action, EntropySeed, Field, Match};
use std::sync::atomic::{AtomicBool, Ordering};

/// As many masks as one port may use.
const MASKS: u32 = 64;

fn state() -> BpfState {
    let config = Config {
        host: "h1".to_owned(),
        uplink: "uplink".to_owned(),
        uplink_port: PortNo(0),
        underlay: Underlay::default(),
        ports: Vec::new(),
        entropy_base: 49_152,
        entropy_ports: 64,
        workers: Workers::default(),
        megaflows: 1000,
        upcalls: UpcallLimits::default(),
        punt_limit: PUNT_LIMIT,
        upcall_cpu_percent: UPCALL_CPU_PERCENT,
        solicit: SolicitLimits { again_after: Duration::ZERO, neighbours: 1 },
        conntrack: Default::default(),
    };
    let sizes = MapSizes::new(config.megaflows, 1);
    let loaded = load(sizes, &EntropySeed::random()).expect("the programs can be loaded");
    BpfState::new(&loaded, &config, None, false).expect("the maps can be written")
}

/// A megaflow with a mask that no other has.
fn with_mask(field: Field, bit: u32) -> Megaflow {
    let mut condition = Match::any();
    assert!(condition.require(Field::InPort, 1, Field::InPort.all_ones()));
    assert!(condition.require(Field::EthType, 0x86dd, Field::EthType.all_ones()));
    assert!(condition.require(field, 0, 1 << bit));
    Megaflow::new(condition, [Action::Output(PortNo(2))].into())
}

#[test]
fn megaflows_get_masks_when_maintenance_has_taken_the_unused_ones() {
    testkit::require_root!();
    let (state, is_over) = (state(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let maintenance = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                state.maintain(true).expect("the maps can be written");
            }
        });
        let left_out = (0..100).find_map(|round| {
            let field = [Field::Ip6Src, Field::Ip6Dst][round % 2];
            let first = if round % 4 < 2 { 0 } else { MASKS };
            let bits = first..first + MASKS;
            let megaflows: Vec<_> = bits.map(|bit| with_mask(field, bit)).collect();
            state.put(megaflows.iter().map(|megaflow| (megaflow, None))).expect("can be written");
            let ids: Vec<_> = megaflows.iter().map(|megaflow| megaflow.id).collect();
            let mut maps = state.lock();
            let put = maps.megaflows.get(ids.iter().copied()).len();
            // Without waiting, so that masks of several rounds are not free yet.
            let (deleted, result) = maps.megaflows.delete(&ids);
            maps.megaflows.requeue(deleted);
            result.expect("can be deleted");
            (put != megaflows.len()).then_some((round, put))
        });
        is_over.store(true, Ordering::Relaxed);
        maintenance.join().expect("it ends");
        assert_eq!(left_out, None, "the round, and how many of {MASKS} megaflows were put");
    });
}
