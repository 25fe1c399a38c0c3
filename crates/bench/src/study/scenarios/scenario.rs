//! A scenario, and how a load between pairs of guests is measured.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::scale::{self, Axis};
use super::{entropy, longest};
use crate::lab::{Attachment, Contender, Lab, Shape, retransmitted};
use crate::measure::{Snapshot, Usage};
use crate::stats::ratio;
use crate::study::model::{BASE, Figures};
use crate::traffic::flow::{Counts, Flow, Traffic};
use crate::traffic::load::{Histogram, Load, Pattern};
use crate::{Error, Result};

/// How often a run checks the contender's processes and the connections.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Contenders and scenarios that are compared on one underlay.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The shape of the underlay and the guests.
    pub shape: Shape,
    /// The contenders.
    pub contenders: Vec<Contender>,
    /// The scenarios.
    pub scenarios: Vec<Scenario>,
}

impl Cell {
    /// The contender that each block measures twice for the A/A check: the base, else the first. If
    /// each scenario needs a separate lab, only the first scenario is measured twice.
    pub(crate) fn repeated_contender(&self) -> Option<Contender> {
        self.contenders.iter().find(|c| **c == BASE).or(self.contenders.first()).copied()
    }

    /// The scenarios of a visit. `again` is true for the second visit of the contender
    /// [`Cell::repeated_contender`].
    pub(crate) fn scenarios(&self, again: bool) -> &[Scenario] {
        match &self.scenarios[..] {
            [first, ..] if again && first.joins_guests() => std::slice::from_ref(first),
            all => all,
        }
    }
}

/// A type of measurement with its parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scenario {
    /// A load between each of several pairs of guests.
    Load {
        /// The number of pairs, starting with the first one.
        pairs: usize,
        /// The load of each pair.
        load: Load,
    },
    /// Small packets with up to a million megaflows or end points, and a separate network file.
    Scale {
        /// The scaled quantity.
        axis: Axis,
        /// The number of megaflows or end points.
        count: u64,
    },
    /// The highest packet rate with a loss of 1 % at most, between the first guests.
    Rate {
        /// Packets of one size, without a fixed rate.
        load: Load,
    },
    /// The spread of many flows over the queues of a receiver.
    Spread,
    /// The longest packet that crosses unfragmented.
    Longest,
}

/// The duration of a measurement.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Timing {
    /// The time before the measurement.
    pub warm_up: Duration,
    /// The measured time.
    pub measured: Duration,
}

impl Scenario {
    /// `load` between the first guests of both hosts.
    pub const fn one_pair(load: Load) -> Self {
        Self::Load { pairs: 1, load }
    }

    /// `load` between each of several pairs of guests.
    pub const fn pairs(pairs: usize, load: Load) -> Self {
        Self::Load { pairs, load }
    }

    /// The published name, such as `tcp_rr-1024B-64i`; `5x` before it means five pairs of guests.
    pub fn name(&self) -> String {
        match self {
            Self::Load { pairs: 1, load } => load.to_string(),
            Self::Load { pairs, load } => format!("{pairs}x{load}"),
            Self::Scale { axis: Axis::Megaflows, count } => format!("flows-{count}"),
            Self::Scale { axis: Axis::Endpoints, count } => format!("endpoints-{count}"),
            Self::Rate { load } => {
                format!("packet_rate-{}B-{}i", load.size_bytes(), load.connections())
            }
            Self::Spread => "spread".to_owned(),
            Self::Longest => "longest-packet".to_owned(),
        }
    }

    /// True when the scenario needs a separate lab and connects the guests itself.
    pub const fn joins_guests(&self) -> bool {
        matches!(self, Self::Scale { .. })
    }

    /// Measures between guests that the contender has connected.
    ///
    /// # Errors
    /// Traffic does not flow, a process of the contender ends, or [`Error::Interrupted`].
    pub fn run(
        &self,
        lab: &Lab<'_>,
        attachment: &mut Attachment,
        timing: Timing,
    ) -> Result<Figures> {
        match *self {
            Self::Load { pairs, load } => Run { pairs, load }.run(lab, attachment, timing),
            Self::Rate { load } => highest_rate(load, lab, attachment, timing),
            Self::Spread => entropy::spread(lab, attachment),
            Self::Longest => longest::longest(lab, attachment),
            Self::Scale { .. } => Err(Error::Other("this joins the guests itself".into())),
        }
    }

    /// Measures a scenario that connects the guests itself, with the datapath of a weft contender.
    ///
    /// # Errors
    /// As [`Scenario::run`].
    pub fn run_alone(
        &self,
        lab: &Lab<'_>,
        (contender, weft): (Contender, &Path),
        timing: Timing,
    ) -> Result<Figures> {
        let (Self::Scale { axis, count }, Contender::Weft(datapath, _)) = (*self, contender) else {
            return Err(Error::Other("this needs guests that are joined".into()));
        };
        let seen = scale::measure(lab, (datapath, weft), timing.measured, axis, count)?;
        Ok(Figures {
            seconds: seen.usage.seconds,
            packets_per_second: Some(seen.packets_per_second),
            cpu_busy: seen.usage.cpu_busy,
            cpu_steal: seen.usage.cpu_steal,
            cpu_us_each: ratio(
                seen.usage.cpu_seconds * 1e6,
                seen.packets_per_second * seen.usage.seconds,
            ),
            more: BTreeMap::from([("ready_seconds".to_owned(), seen.ready_seconds)]),
            ..Figures::default()
        })
    }
}

/// The share of the packets that must arrive, and the share of the nominal rate that must be sent.
const ARRIVES: f64 = 0.99;
const KEEPS_PACE: f64 = 0.95;
/// Steps of the binary search. Each step after the first halves the remaining interval.
pub(crate) const RATE_TRIALS: u32 = 4;

/// Measures at the highest rate that loses 1 % at most. A binary search finds the rate, as in RFC
/// 2544 section 26.1, which allows no loss.
fn highest_rate(
    load: Load,
    lab: &Lab<'_>,
    attachment: &mut Attachment,
    timing: Timing,
) -> Result<Figures> {
    let mut run = |load, timing| Run { pairs: 1, load }.run(lab, attachment, timing);
    let short = Timing { warm_up: timing.warm_up / 2, measured: timing.measured / 2 };
    let rates =
        |f: &Figures| (f.sent_per_second.unwrap_or(0.0), f.packets_per_second.unwrap_or(0.0));
    let at = |packets: f64| load.at_rate(packets * load.size_bytes() as f64 * 8.0);
    let (sent, received) = rates(&run(load, short)?);
    if received >= ARRIVES * sent {
        return run(load, timing);
    }
    let (mut low, mut high, mut next) = (0.0, sent, received);
    for _ in 0..RATE_TRIALS {
        let (sent, received) = rates(&run(at(next)?, short)?);
        match received >= ARRIVES * sent && sent >= KEEPS_PACE * next {
            true => low = next,
            false => high = next,
        }
        next = f64::midpoint(low, high);
    }
    if low == 0.0 {
        return Err(Error::Other(format!("more than 1 % is lost even of {high:.0} packets/s")));
    }
    run(at(low)?, timing)
}

/// A load between pairs of guests.
struct Run {
    pairs: usize,
    load: Load,
}

impl Run {
    fn run(self, lab: &Lab<'_>, attachment: &mut Attachment, timing: Timing) -> Result<Figures> {
        let flow = |number: usize| {
            let (from, to) = (lab.guest(0, number), lab.guest(1, number));
            Flow { from, to, address: to.ip4().into(), load: self.load }
        };
        let flows: Vec<_> = (0..self.pairs).map(flow).collect();
        let traffic = Traffic::start(&flows, lab.stop())?;
        let senders =
            || -> Result<u64> { lab.guests().iter().map(retransmitted).sum::<Result<u64>>() };
        let mut wait = |duration: Duration| -> Result<()> {
            let mut left = duration;
            while !left.is_zero() {
                let step = left.min(CHECK_INTERVAL);
                lab.stop().sleep(step)?;
                left -= step;
                attachment.check_running()?;
                traffic.check()?;
            }
            Ok(())
        };
        wait(timing.warm_up)?;
        traffic.begin_measuring();
        let resent = senders()?;
        let start = RunCounters::now(lab, &traffic)?;
        wait(timing.measured)?;
        let end = RunCounters::now(lab, &traffic)?;
        let resent = senders()?.saturating_sub(resent);
        let times = traffic.finish()?;
        self.figures((&start, &end), &times, resent, attachment.guest_mtu())
    }

    fn figures(
        &self,
        (start, end): (&RunCounters, &RunCounters),
        times: &Histogram,
        retransmitted: u64,
        guest_mtu: u16,
    ) -> Result<Figures> {
        let usage = Usage::between(&start.snapshot, &end.snapshot);
        let per_second = |count: u64| count as f64 / usage.seconds;
        let counts = end.counts - start.counts;
        let pattern = self.load.pattern();
        let transactions = pattern.is_transactions();
        let moved =
            if transactions { counts.transactions } else { usage.connection_bytes.iter().sum() };
        if moved == 0 {
            return Err(Error::Other("connections were established but nothing moved".into()));
        }
        let packets = (pattern == Pattern::UdpStream).then_some(counts.received_messages);
        let each = if transactions { Some(counts.transactions) } else { packets };
        let percentile = |part| times.percentile_us(part);
        let latency = || Some([percentile(0.5)?, percentile(0.99)?, percentile(0.999)?]);
        Ok(Figures {
            seconds: usage.seconds,
            guest_mtu,
            gbps: (!transactions).then_some(usage.gbps),
            transactions_per_second: transactions.then(|| per_second(counts.transactions)),
            packets_per_second: packets.map(per_second),
            sent_per_second: packets.map(|_| per_second(counts.sent_messages)),
            latency_us: if transactions { latency() } else { None },
            lost: (pattern == Pattern::UdpRr).then_some(counts.lost),
            cpu_busy: usage.cpu_busy,
            cpu_seconds_per_gbit: (!transactions).then_some(usage.cpu_seconds_per_gbit),
            cpu_us_each: each.and_then(|each| ratio(usage.cpu_seconds * 1e6, each as f64)),
            wire_frames_per_second: usage.wire_frames_per_second,
            retransmitted,
            cpu_steal: usage.cpu_steal,
            more: BTreeMap::new(),
        })
    }
}

/// The counters of a run at one moment.
struct RunCounters {
    snapshot: Snapshot,
    /// The sum over all pairs.
    counts: Counts,
}

impl RunCounters {
    fn now(lab: &Lab<'_>, traffic: &Traffic) -> Result<Self> {
        let each = traffic.counts();
        let bytes = each.iter().map(|counts| counts.bytes).collect();
        let mut counts = Counts::default();
        each.into_iter().for_each(|more| counts += more);
        Ok(Self { snapshot: Snapshot::now(lab.wire_counters()?, bytes)?, counts })
    }
}
