//! The user datapath passes the conformance suite for datapath providers.

use datapath::Datapath;
use datapath::config::{Config, Workers};
use datapath_user::UserDatapath;
use std::sync::Arc;
use testkit::conformance::Provider;

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
    Provider { second_half: true, ..Provider::complete(&start_three_workers) }
}

testkit::conformance_tests!(super::one_worker, super::three_workers);
