//! The `user` provider passes the conformance suite of datapaths.

use datapath::Datapath;
use datapath::user::Workers;
use datapath::user::{Config, UserDatapath};
use std::sync::Arc;
use testkit::conformance;

fn start(config: Config) -> Arc<dyn Datapath> {
    Arc::new(UserDatapath::start(config).unwrap())
}

fn start_three_workers(config: Config) -> Arc<dyn Datapath> {
    start(Config { workers: Workers { count: 3, ..config.workers }, ..config })
}

#[test]
fn what_leaves_is_what_the_reference_says_when_one_worker_forwards() {
    testkit::require_root!();
    conformance::generated(&start);
}

#[test]
fn what_leaves_is_what_the_reference_says_when_several_workers_forward() {
    testkit::require_root!();
    conformance::generated(&start_three_workers);
}

#[test]
fn puts_and_deletes_take_effect_when_they_return() {
    testkit::require_root!();
    conformance::puts_and_deletes_take_effect(&start);
    conformance::puts_and_deletes_take_effect(&start_three_workers);
}

#[test]
fn upcalls_are_counted_when_their_ports_queue_is_full() {
    testkit::require_root!();
    conformance::upcall_queues_are_bounded(&start);
}

#[test]
fn ports_are_closed_when_removed_and_open_when_added() {
    testkit::require_root!();
    conformance::ports_come_and_go(&start);
    conformance::ports_come_and_go(&start_three_workers);
}
