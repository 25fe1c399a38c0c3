//! The kernel datapath passes the conformance suite of datapaths.

use datapath::Datapath;
use datapath::config::{Config, Workers};
use datapath_bpf::KernelDatapath;
use std::sync::Arc;
use testkit::conformance::{Ability, Provider};

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
    Provider { start: &start, lacks: LACKS, second_half: false }
}

fn three_workers() -> Provider<'static> {
    Provider { start: &start_three_workers, lacks: LACKS, second_half: true }
}

testkit::conformance_tests!(super::one_worker, super::three_workers);
