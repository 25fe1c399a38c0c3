//! The `kernel` provider passes the conformance suite of datapaths.

use datapath::Datapath;
use datapath::user::{Config, Workers};
use datapath_bpf::KernelDatapath;
use std::sync::Arc;
use testkit::conformance::{self, Ability, Provider};

fn start(config: Config) -> Arc<dyn Datapath> {
    Arc::new(KernelDatapath::start(config).unwrap())
}

fn start_three_workers(config: Config) -> Arc<dyn Datapath> {
    start(Config { workers: Workers { count: 3, ..config.workers }, ..config })
}

const LACKS: &[(Ability, &str)] = &[(
    Ability::SuperPacketChecksum,
    "no BPF helper can ask for outer checksums of the segments of a super-packet",
)];

fn one_worker() -> Provider<'static> {
    Provider { start: &start, lacks: LACKS }
}

fn three_workers() -> Provider<'static> {
    Provider { start: &start_three_workers, lacks: LACKS }
}

#[test]
fn what_leaves_is_what_the_reference_says_when_programs_forward() {
    testkit::require_root!();
    conformance::generated(one_worker());
}

#[test]
fn what_leaves_is_what_programs_say_when_a_switch_makes_the_megaflows() {
    testkit::require_root!();
    conformance::programs(one_worker());
}

#[test]
fn what_leaves_is_what_programs_say_when_several_workers_stand_behind() {
    testkit::require_root!();
    conformance::programs(three_workers());
}

#[test]
fn puts_and_deletes_take_effect_when_they_return() {
    testkit::require_root!();
    conformance::puts_and_deletes_take_effect(one_worker());
}

#[test]
fn upcalls_are_counted_when_their_ports_queue_is_full() {
    testkit::require_root!();
    conformance::upcall_queues_are_bounded(one_worker());
}

#[test]
fn ports_are_closed_when_removed_and_open_when_added() {
    testkit::require_root!();
    conformance::ports_come_and_go(one_worker());
}

#[test]
fn end_points_that_stay_lose_nothing_when_others_come_and_go() {
    testkit::require_root!();
    conformance::underlays_change(one_worker());
    conformance::underlays_change(three_workers());
}

#[test]
fn watchers_see_frames_and_drops_when_they_happen() {
    testkit::require_root!();
    conformance::watchers_are_told(one_worker());
}
