//! The tables of a report: the runs of each scenario and contender, summarized.

use crate::lab::{Contender, Shape};
use crate::stats::{Estimate, median, ratio, relative_deviation};
use crate::study::model::{BASE, Figures, Results, Sample, Study};
use crate::study::scenarios::Scenario;

/// The contender without a switch. Its cost is subtracted to get the cost of switching.
pub(crate) const WIRE: Contender = Contender::Direct;
/// Runs agree when their relative standard deviation is at most this: the rule of the published
/// study.
pub const AGREEMENT: f64 = 0.05;

/// The largest distance of an end of the A/A interval from 1.
pub const STEADY: f64 = 0.1;
/// How far the A/A interval may be from 1: intervals of few runs can be narrow by chance.
const SLACK: f64 = 0.02;

/// The quantity that is compared in a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    /// Throughput.
    Gbps,
    /// Transactions per second.
    Transactions,
    /// Packets per second.
    Packets,
}

impl Metric {
    /// Its unit.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Gbps => "Gb/s",
            Self::Transactions => "transactions/s",
            Self::Packets => "packets/s",
        }
    }

    /// The unit of its processor cost.
    pub const fn cost_unit(self) -> &'static str {
        match self {
            Self::Gbps => "CPU s/Gbit",
            Self::Transactions => "CPU µs/transaction",
            Self::Packets => "CPU µs/packet",
        }
    }

    fn of(figures: &Figures) -> Self {
        if figures.transactions_per_second.is_some() {
            Self::Transactions
        } else if figures.packets_per_second.is_some() {
            Self::Packets
        } else {
            Self::Gbps
        }
    }

    fn value(self, figures: &Figures) -> Option<f64> {
        match self {
            Self::Gbps => figures.gbps,
            Self::Transactions => figures.transactions_per_second,
            Self::Packets => figures.packets_per_second,
        }
    }

    fn cost(self, figures: &Figures) -> Option<f64> {
        match self {
            Self::Gbps => figures.cpu_seconds_per_gbit,
            Self::Transactions | Self::Packets => figures.cpu_us_each,
        }
    }
}

/// One scenario on one underlay.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// The study, by name.
    pub study: String,
    /// The scenario, by name.
    pub scenario: String,
    /// The shape of the underlay and the guests.
    pub shape: Shape,
    /// The compared quantity.
    pub metric: Metric,
    /// The A/A check: the figure of a contender's second run divided by that of its first in each
    /// block.
    pub noise: Option<Estimate>,
    /// The same check for the processor cost.
    pub cost_noise: Option<Estimate>,
    /// One row for each contender.
    pub rows: Vec<Row>,
}

/// One contender in a scenario.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The contender.
    pub contender: Contender,
    /// The MTU of its guests, in bytes.
    pub guest_mtu: Option<u16>,
    /// The compared quantity.
    pub value: Option<Estimate>,
    /// The relative standard deviation of `value`.
    pub deviation: Option<f64>,
    /// `value` divided by that of the base in the same block.
    pub ratio: Option<Estimate>,
    /// The processor cost of a unit of `value`.
    pub cost: Option<Estimate>,
    /// `cost` divided by that of the base in the same block.
    pub cost_ratio: Option<Estimate>,
    /// The processor cost of switching: `cost` minus that of one veth pair in the same block.
    pub switching: Option<Estimate>,
    /// Medians of the times that 50 %, 99 % and 99.9 % of the transactions did not exceed, in
    /// microseconds.
    pub latency_us: Option<[f64; 3]>,
    /// Frames per second on the underlay.
    pub wire_frames_per_second: Option<f64>,
    /// Busy share of the machine's processors, 0 to 1.
    pub cpu_busy: Option<f64>,
    /// Retransmitted TCP segments of all runs.
    pub retransmitted: u64,
    /// The largest share of the machine's time that the hypervisor took (steal), 0 to 1.
    pub cpu_steal: f64,
    /// The first failure of a run, if there is one.
    pub failure: Option<String>,
}

impl Table {
    /// True when the A/A intervals of rate and cost include 1, and no end is farther from 1 than
    /// [`STEADY`].
    pub fn converged(&self) -> bool {
        self.noise.is_some_and(steady) && self.cost_noise.is_none_or(steady)
    }

    /// True when `sample` belongs to this table.
    pub(crate) fn has(&self, sample: &Sample) -> bool {
        (sample.study.as_str(), sample.scenario.as_str(), sample.shape)
            == (self.study.as_str(), self.scenario.as_str(), self.shape)
    }

    /// The row of `contender`.
    pub fn row(&self, contender: Contender) -> Option<&Row> {
        self.rows.iter().find(|row| row.contender == contender)
    }
}

fn steady(noise: Estimate) -> bool {
    let near = noise.low >= 1.0 - STEADY && noise.high <= 1.0 + STEADY;
    let around = noise.low <= 1.0 + SLACK && noise.high >= 1.0 - SLACK;
    noise.runs > 1 && near && around
}

impl Row {
    /// True when the runs agree by the published rule.
    pub fn agrees(&self) -> bool {
        self.deviation.is_some_and(|deviation| deviation <= AGREEMENT)
    }
}

/// All tables of `results`, ordered by study, underlay and scenario.
pub fn tables(results: &Results) -> Vec<Table> {
    let mut keys: Vec<(&str, &str, Shape)> = Vec::new();
    // Samples without a rate have no table: `evidence::spread` reports them instead.
    let rates = |s: &&Sample| s.figures.as_ref().is_none_or(|f| Metric::of(f).value(f).is_some());
    for sample in results.samples.iter().filter(rates) {
        let key = (sample.study.as_str(), sample.scenario.as_str(), sample.shape);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.sort_by_cached_key(|&(study, name, shape)| {
        let (study, scenario) = catalogue_position(study, name);
        (study, shape, scenario)
    });
    let of = |key: &(&str, &str, Shape)| {
        let is = |sample: &&Sample| {
            (sample.study.as_str(), sample.scenario.as_str(), sample.shape) == *key
        };
        table(*key, &results.samples.iter().filter(rates).filter(is).collect::<Vec<_>>())
    };
    keys.iter().map(of).collect()
}

/// The positions of a study and of a scenario in the catalogue; unknown ones come last.
fn catalogue_position(study: &str, scenario: &str) -> (usize, usize) {
    let Some(place) = Study::ALL.iter().position(|known| known.name() == study) else {
        return (usize::MAX, usize::MAX);
    };
    let cells = Study::ALL.get(place).and_then(|study| study.cells(false).ok());
    let names: Vec<_> =
        cells.iter().flatten().flat_map(|cell| &cell.scenarios).map(Scenario::name).collect();
    (place, names.iter().position(|name| name == scenario).unwrap_or(usize::MAX))
}

fn table((study, scenario, shape): (&str, &str, Shape), samples: &[&Sample]) -> Table {
    let figures = |sample: &&Sample| sample.figures.as_ref().map(Metric::of);
    let metric = samples.iter().find_map(figures).unwrap_or(Metric::Gbps);
    let mut contenders: Vec<Contender> = samples.iter().map(|sample| sample.contender).collect();
    let order = Contender::all();
    contenders.sort_by_key(|contender| order.iter().position(|other| other == contender));
    contenders.dedup();
    let in_block = Blocks { samples, metric };
    Table {
        study: study.to_owned(),
        scenario: scenario.to_owned(),
        shape,
        metric,
        noise: Estimate::of(&in_block.twice(Metric::value)),
        cost_noise: Estimate::of(&in_block.twice(Metric::cost)),
        rows: contenders.into_iter().map(|contender| in_block.row(contender)).collect(),
    }
}

/// The samples of one table.
struct Blocks<'a> {
    samples: &'a [&'a Sample],
    metric: Metric,
}

impl Blocks<'_> {
    /// The figure `of` the selected samples, paired with that of the base's first run in the same
    /// block.
    fn pairs(
        &self,
        is_selected: impl Fn(&Sample) -> bool,
        of: impl Fn(Metric, &Figures) -> Option<f64>,
    ) -> Vec<f64> {
        let value = |sample: &Sample| of(self.metric, sample.figures.as_ref()?);
        let base = |block| {
            let is = |s: &&&Sample| s.contender == BASE && !s.again && s.block == block;
            self.samples.iter().find(is).and_then(|s| value(s))
        };
        let selected = self.samples.iter().filter(|sample| is_selected(sample));
        selected.filter_map(|sample| ratio(value(sample)?, base(sample.block)?)).collect()
    }

    /// The figure `of` each second run, divided by that of the first run of the same contender and
    /// block.
    fn twice(&self, of: impl Fn(Metric, &Figures) -> Option<f64>) -> Vec<f64> {
        let value = |sample: &Sample| of(self.metric, sample.figures.as_ref()?);
        let first = |again: &Sample| {
            let same = |s: &&&Sample| (s.contender, s.block) == (again.contender, again.block);
            self.samples.iter().filter(|s| !s.again).find(same).and_then(|s| value(s))
        };
        let again = self.samples.iter().filter(|sample| sample.again);
        again.filter_map(|sample| ratio(value(sample)?, first(sample)?)).collect()
    }

    fn row(&self, contender: Contender) -> Row {
        let mine = |sample: &Sample| sample.contender == contender && !sample.again;
        let samples: Vec<&Sample> = self.samples.iter().copied().filter(|s| mine(s)).collect();
        let all = |of: &dyn Fn(&Figures) -> Option<f64>| -> Vec<f64> {
            samples.iter().filter_map(|s| of(s.figures.as_ref()?)).collect()
        };
        let values = all(&|figures| self.metric.value(figures));
        let middle = |of: &dyn Fn(&Figures) -> Option<f64>| median(all(of));
        let latency = |place: usize| middle(&|f| f.latency_us.and_then(|l| l.get(place).copied()));
        let latencies = || Some([latency(0)?, latency(1)?, latency(2)?]);
        Row {
            contender,
            guest_mtu: samples.iter().find_map(|s| Some(s.figures.as_ref()?.guest_mtu)),
            value: Estimate::of(&values),
            deviation: relative_deviation(&values),
            ratio: Estimate::of(&self.pairs(mine, Metric::value)),
            cost: Estimate::of(&all(&|figures| self.metric.cost(figures))),
            cost_ratio: Estimate::of(&self.pairs(mine, Metric::cost)),
            switching: Estimate::of(&self.switching(&samples)),
            latency_us: latencies(),
            wire_frames_per_second: middle(&|f| Some(f.wire_frames_per_second)),
            cpu_busy: middle(&|f| Some(f.cpu_busy)),
            retransmitted: samples
                .iter()
                .filter_map(|s| Some(s.figures.as_ref()?.retransmitted))
                .sum(),
            cpu_steal: all(&|f| Some(f.cpu_steal)).into_iter().fold(0.0, f64::max),
            failure: samples.iter().find_map(|s| s.failure.clone()),
        }
    }

    /// The cost of each sample minus that of one veth pair in the same block.
    fn switching(&self, samples: &[&Sample]) -> Vec<f64> {
        let cost = |sample: &Sample| self.metric.cost(sample.figures.as_ref()?);
        let wire = |block| {
            let is = |s: &&&Sample| s.contender == WIRE && s.block == block;
            self.samples.iter().find(is).and_then(|s| cost(s))
        };
        samples.iter().filter_map(|s| Some(cost(s)? - wire(s.block)?)).collect()
    }
}
