//! The size of a run, and an estimate of its duration.

use std::fmt;
use std::time::Duration;

use crate::lab::{Contender, Datapath};
use crate::progress::duration;
use crate::study::model::Study;
use crate::study::scenarios::{Cell, RATE_TRIALS, Scenario, Timing};

/// The size of a run: numbers of studies, contenders and measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RunPlan {
    studies: usize,
    contenders: usize,
    blocks: usize,
    measured: Duration,
    measurements: usize,
    estimate: Duration,
}

impl RunPlan {
    /// Counts `plan`, from which unavailable contenders have been removed.
    pub(super) fn of(plan: &[(Study, Vec<Cell>)], blocks: usize, timing: Timing) -> Self {
        let studies = plan.iter().filter(|(_, cells)| !cells.is_empty()).count();
        let mut contenders: Vec<Contender> = Vec::new();
        let (mut measurements, mut estimate) = (0, Duration::ZERO);
        for cell in plan.iter().flat_map(|(_, cells)| cells) {
            let once = cell.contenders.iter().map(|contender| (*contender, false));
            for (contender, again) in
                once.chain(cell.repeated_contender().map(|contender| (contender, true)))
            {
                if !contenders.contains(&contender) {
                    contenders.push(contender);
                }
                let scenarios = cell.scenarios(again);
                measurements += scenarios.len() * blocks;
                estimate += visit(scenarios, contender, timing) * blocks as u32;
            }
        }
        let contenders = contenders.len();
        Self { studies, contenders, blocks, measured: timing.measured, measurements, estimate }
    }

    /// The estimated duration.
    #[cfg(test)]
    pub(super) const fn estimate(&self) -> Duration {
        self.estimate
    }

    /// The estimated duration with `repeats` additional repetitions of every study.
    pub(super) fn with_repeats(&self, repeats: usize) -> Duration {
        self.estimate.mul_f64((self.blocks + repeats) as f64 / self.blocks.max(1) as f64)
    }

    /// The number of measurements.
    pub(super) const fn measurements(&self) -> usize {
        self.measurements
    }
}

impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { studies, contenders, blocks, measured, measurements, estimate } = self;
        write!(
            f,
            "{studies} studies, {contenders} contenders, {measurements} measurements of {:.2} s in \
             {blocks} blocks: about {}",
            measured.as_secs_f64(),
            duration(*estimate)
        )
    }
}

/// The estimated duration of a visit (all scenarios of one contender). The constants were measured
/// on two cores; [`super::run`] logs the actual durations at level `debug`.
fn visit(scenarios: &[Scenario], contender: Contender, timing: Timing) -> Duration {
    let millis = Duration::from_millis;
    let join = match contender {
        Contender::Direct | Contender::LinuxBridge | Contender::Kernel(_) => millis(200),
        Contender::Ovs(..) => millis(1500),
        Contender::Weft(Datapath::User, _) | Contender::WeftBridge(Datapath::User) => millis(400),
        Contender::Weft(Datapath::Kernel, _)
        | Contender::WeftBridge(Datapath::Kernel)
        | Contender::WeftVeth(_)
        | Contender::Stateful(..) => millis(1500),
    };
    let measure = |scenario: &Scenario| match scenario {
        // Each connection has two threads.
        Scenario::Load { pairs, load } => {
            let connections = (pairs * load.connections()) as u64;
            timing.warm_up + timing.measured + millis(90 + 2 * connections)
        }
        Scenario::Rate { .. } => {
            let trial = (timing.warm_up + timing.measured) / 2 + millis(100);
            trial * (RATE_TRIALS + 1) + timing.warm_up + timing.measured + millis(100)
        }
        Scenario::Spread => millis(500),
        Scenario::Longest => millis(700),
        // The second term is the time to create the end points or megaflows.
        Scenario::Scale { count, .. } => timing.measured + millis(2500 + count / 12),
    };
    join + scenarios.iter().map(measure).sum::<Duration>()
}
