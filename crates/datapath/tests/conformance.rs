//! The `user` provider passes the conformance suite of datapaths.

use datapath::Datapath;
use datapath::user::{Config, UserDatapath, Workers};
use std::sync::Arc;
use testkit::conformance::{self, Provider};

fn start(config: Config) -> Arc<dyn Datapath> {
    Arc::new(UserDatapath::start(config).unwrap())
}

fn start_three_workers(config: Config) -> Arc<dyn Datapath> {
    start(Config { workers: Workers { count: 3, ..config.workers }, ..config })
}

fn one_worker() -> Provider<'static> {
    Provider::complete(&start)
}

fn three_workers() -> Provider<'static> {
    Provider::complete(&start_three_workers)
}

#[test]
fn what_leaves_is_what_the_reference_says_when_one_worker_forwards() {
    testkit::require_root!();
    conformance::generated(one_worker());
}

#[test]
fn what_leaves_is_what_the_reference_says_when_several_workers_forward() {
    testkit::require_root!();
    conformance::generated(three_workers());
}

#[test]
fn what_leaves_is_what_programs_say_when_a_switch_makes_the_megaflows() {
    testkit::require_root!();
    conformance::programs(one_worker());
}

#[test]
fn what_leaves_is_what_programs_say_when_several_workers_forward() {
    testkit::require_root!();
    conformance::programs(three_workers());
}

#[test]
fn puts_and_deletes_take_effect_when_they_return() {
    testkit::require_root!();
    conformance::puts_and_deletes_take_effect(one_worker());
    conformance::puts_and_deletes_take_effect(three_workers());
}

#[test]
fn upcalls_are_counted_when_their_ports_queue_is_full() {
    testkit::require_root!();
    conformance::upcall_queues_are_bounded(one_worker());
}

#[test]
fn packets_are_counted_when_routers_have_asked_for_their_neighbours() {
    testkit::require_root!();
    conformance::solicitations_are_limited(one_worker());
}

#[test]
fn ports_are_closed_when_removed_and_open_when_added() {
    testkit::require_root!();
    conformance::ports_come_and_go(one_worker());
    conformance::ports_come_and_go(three_workers());
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
    conformance::watchers_are_told(three_workers());
}
