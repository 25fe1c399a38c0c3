//! The results of the demo: the figures of every trial, and one row of medians for each contender.
//!
//! A contender is one of the switches that the demo compares. A block measures every contender
//! once, and the base, the Linux bridge, twice. All ratios are relative to the base.

use super::policy::PolicyReport;
use crate::environment::Environment;
use crate::lab::{Contender, Datapath, OffloadFlags, Profile};
use crate::measure::Usage;
use crate::stats::{median, ratio};
use crate::traffic::ping::PingReport;

/// The throughput and the cost of a TCP measurement.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct StreamReport {
    /// The usage from the end of the warm-up to the end of the measurement.
    #[serde(flatten)]
    pub usage: Usage,
    /// Segments that the senders' namespaces retransmitted, warm-up included.
    pub retransmitted: u64,
}

/// One contender, measured once.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Trial {
    /// The contender.
    #[serde(serialize_with = "as_text")]
    pub contender: Contender,
    /// The number of its block, from 0.
    pub block: usize,
    /// True for the second measurement of the base in a block. Its difference from the first is the
    /// noise of the machine.
    pub again: bool,
    /// MTU of the guests in bytes; `None` when the contender could not connect them.
    pub guest_mtu: Option<u16>,
    /// Pings over IPv4 between the first guests of the two hosts.
    pub ping4: Option<PingReport>,
    /// Pings over IPv6 between the first guests of the two hosts.
    pub ping6: Option<PingReport>,
    /// One TCP connection from the first host to the second.
    pub one: Option<StreamReport>,
    /// Eight TCP connections from the first host to the second, four for each pair of guests.
    pub eight: Option<StreamReport>,
    /// The observations of weft's router and ACLs; other contenders have none.
    pub policy: Option<PolicyReport>,
    /// Why the trial failed, if it did. The other fields contain what was measured before the
    /// failure.
    pub failure: Option<String>,
    /// The reason for each TCP measurement that was repeated because no data was transferred.
    pub stalls: Vec<String>,
}

impl Trial {
    pub(super) fn new(contender: Contender, block: usize, again: bool) -> Self {
        Self {
            contender,
            block,
            again,
            guest_mtu: None,
            ping4: None,
            ping6: None,
            one: None,
            eight: None,
            policy: None,
            failure: None,
            stalls: Vec::new(),
        }
    }
}

/// One line of the demo's table: medians over the trials of one contender.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Row {
    /// The contender.
    #[serde(serialize_with = "as_text")]
    pub contender: Contender,
    /// True for the row of the second measurements of the base.
    pub again: bool,
    /// True if the contender is weft.
    pub is_weft: bool,
    /// MTU of the guests, in bytes.
    pub guest_mtu: Option<u16>,
    /// Round-trip time over IPv4 in microseconds; `None` unless all pings were answered.
    pub ping4_us: Option<f64>,
    /// Round-trip time over IPv6 in microseconds; `None` unless all pings were answered.
    pub ping6_us: Option<f64>,
    /// Gb/s of payload over one TCP connection.
    pub one_gbps: Option<f64>,
    /// Gb/s of payload over eight TCP connections.
    pub eight_gbps: Option<f64>,
    /// Busy share of the machine during the run with one connection, 0 to 1.
    pub cpu_busy: Option<f64>,
    /// Busy processor seconds of the machine for 10^9 payload bits over one connection.
    pub cpu_seconds_per_gbit: Option<f64>,
    /// Gb/s of one connection, divided by the mean of the base in the same block.
    pub one_ratio: Option<f64>,
    /// Gb/s of eight connections, divided by the mean of the base in the same block.
    pub eight_ratio: Option<f64>,
    /// Frames per second on the underlay with one connection, both directions; a super-packet
    /// counts as one.
    pub wire_frames_per_second: Option<f64>,
    /// Why the contender failed, or why it was left out.
    pub failure: Option<String>,
    /// The contender is not available on this machine and was left out.
    pub left_out: bool,
}

/// The difference between the two measurements of the base in a block. A ratio that is closer to 1
/// than this shows no difference between contenders.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Noise {
    /// The second rate divided by the first, in the block and for the number of connections where
    /// it is farthest from 1.
    pub farthest: f64,
    /// Blocks in which the base was measured twice.
    pub pairs: usize,
}

/// All trials with one underlay profile.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct ProfileReport {
    /// The profile.
    pub profile: Profile,
    /// MTU of the underlay, in bytes.
    pub uplink_mtu: u16,
    /// Offload flags of the underlay, read from the kernel.
    pub offloads: OffloadFlags,
    /// `None` when no block measured the base twice.
    pub noise: Option<Noise>,
    /// The largest share of the machine's time that the hypervisor took (steal), 0 to 1.
    pub cpu_steal: f64,
    /// One row for each contender.
    pub rows: Vec<Row>,
    /// The trials that the rows summarize.
    pub trials: Vec<Trial>,
}

/// The whole demo.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct DemoReport {
    /// The machine.
    pub environment: Environment,
    /// Seconds of each TCP measurement.
    pub seconds: f64,
    /// Number of blocks.
    pub blocks: usize,
    /// One report for each underlay profile.
    pub profiles: Vec<ProfileReport>,
}

/// The base of all ratios.
pub(super) const BASE: Contender = Contender::LinuxBridge;

impl DemoReport {
    /// True when no trial of the bridge or of weft failed in any profile. Failures of other
    /// contenders do not count. Neither do tunnels that the kernel datapath does not support.
    pub fn passed(&self) -> bool {
        let is_left = |row: &Row| {
            row.left_out && matches!(row.contender, Contender::Weft(Datapath::Kernel, _))
        };
        let must_pass = |row: &&Row| (row.is_weft && !is_left(row)) || row.contender == BASE;
        let rows = || self.profiles.iter().flat_map(|profile| &profile.rows).filter(must_pass);
        rows().next().is_some() && rows().all(|row| row.failure.is_none())
    }
}

impl ProfileReport {
    pub(super) fn new(
        profile: Profile,
        uplink_mtu: u16,
        offloads: OffloadFlags,
        trials: Vec<Trial>,
        left_out: &[(Contender, String)],
    ) -> Self {
        let mut kinds: Vec<(Contender, bool)> = Vec::new();
        for trial in &trials {
            if !kinds.contains(&(trial.contender, trial.again)) {
                kinds.push((trial.contender, trial.again));
            }
        }
        // Rows have the order of the first block, which ends with the second measurement of the
        // base.
        let mut rows: Vec<Row> =
            kinds.iter().map(|&(contender, again)| Row::of(contender, again, &trials)).collect();
        let last = rows.iter().position(|row| row.again).unwrap_or(rows.len());
        rows.splice(last..last, left_out.iter().map(|(c, why)| Row::left_out(*c, why)));
        let (noise, cpu_steal) = (Noise::of(&trials), largest_steal(&trials));
        Self { profile, uplink_mtu, offloads, noise, cpu_steal, rows, trials }
    }
}

impl Row {
    fn of(contender: Contender, again: bool, all: &[Trial]) -> Self {
        let trials: Vec<&Trial> =
            all.iter().filter(|t| t.contender == contender && t.again == again).collect();
        let middle =
            |of: &dyn Fn(&Trial) -> Option<f64>| median(trials.iter().filter_map(|t| of(t)));
        let ping = |ping: &Option<PingReport>| {
            ping.as_ref().filter(|ping| ping.is_complete()).and_then(|ping| ping.rtt_median_us)
        };
        let compared = |rate: fn(&Trial) -> Option<f64>| {
            middle(&|t| ratio(rate(t)?, base_rate(all, t.block, rate)?))
        };
        Self {
            contender,
            again,
            is_weft: contender.is_weft(),
            guest_mtu: trials.iter().find_map(|t| t.guest_mtu),
            ping4_us: middle(&|t| ping(&t.ping4)),
            ping6_us: middle(&|t| ping(&t.ping6)),
            one_gbps: middle(&one_gbps),
            eight_gbps: middle(&eight_gbps),
            cpu_busy: middle(&|t| Some(t.one.as_ref()?.usage.cpu_busy)),
            cpu_seconds_per_gbit: middle(&|t| Some(t.one.as_ref()?.usage.cpu_seconds_per_gbit)),
            one_ratio: compared(one_gbps),
            eight_ratio: compared(eight_gbps),
            wire_frames_per_second: middle(&|t| Some(t.one.as_ref()?.usage.wire_frames_per_second)),
            failure: trials.iter().find_map(|t| t.failure.clone()),
            left_out: false,
        }
    }

    fn left_out(contender: Contender, why: &str) -> Self {
        let failure = Some(why.to_owned());
        Self { failure, left_out: true, ..Self::of(contender, false, &[]) }
    }
}

pub(super) fn one_gbps(trial: &Trial) -> Option<f64> {
    Some(trial.one.as_ref()?.usage.gbps)
}

fn eight_gbps(trial: &Trial) -> Option<f64> {
    Some(trial.eight.as_ref()?.usage.gbps)
}

/// The mean rate of the base over its measurements in `block`.
fn base_rate(all: &[Trial], block: usize, rate: fn(&Trial) -> Option<f64>) -> Option<f64> {
    let base = all.iter().filter(|trial| trial.contender == BASE && trial.block == block);
    let rates: Vec<f64> = base.filter_map(rate).collect();
    ratio(rates.iter().sum(), rates.len() as f64)
}

impl Noise {
    fn of(trials: &[Trial]) -> Option<Self> {
        let base = |again| trials.iter().filter(move |t| t.contender == BASE && t.again == again);
        let twice = base(false).filter_map(|first| {
            let second = base(true).find(|second| second.block == first.block)?;
            let compared = |rate: fn(&Trial) -> Option<f64>| ratio(rate(second)?, rate(first)?);
            let loads = [one_gbps, eight_gbps].into_iter().filter_map(compared);
            loads.max_by(|a, b| distance(*a).total_cmp(&distance(*b)))
        });
        let twice: Vec<f64> = twice.collect();
        let farthest =
            twice.iter().copied().max_by(|a, b| distance(*a).total_cmp(&distance(*b)))?;
        Some(Self { farthest, pairs: twice.len() })
    }

    /// The difference between the two measurements, as a part of the first: 0.5 is 50 %.
    pub fn distance(&self) -> f64 {
        distance(self.farthest)
    }
}

fn distance(ratio: f64) -> f64 {
    (ratio - 1.0).abs()
}

fn largest_steal(trials: &[Trial]) -> f64 {
    let streams = trials.iter().flat_map(|trial| trial.one.iter().chain(&trial.eight));
    streams.map(|stream| stream.usage.cpu_steal).fold(0.0, f64::max)
}

fn as_text<S: serde::Serializer>(value: &Contender, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[cfg(test)]
pub(super) mod tests {
    use network::TunnelType;

    use super::*;

    pub(in crate::demo) fn environment() -> Environment {
        Environment { date: "2025-01-01T00:00:00Z".into(), ..Environment::read(None) }
    }

    pub(in crate::demo) fn trial(
        contender: Contender,
        block: usize,
        again: bool,
        gbps: f64,
    ) -> Trial {
        let usage = Usage {
            seconds: 1.0,
            gbps,
            connection_bytes: vec![1],
            cpu_busy: 0.5,
            cpu_seconds: 1.0,
            cpu_seconds_per_gbit: 1.0 / gbps,
            cpu_steal: 0.0,
            wire_frames_per_second: 1000.0,
            wire_bytes_per_second: 1.0,
            wire_dropped: 0,
        };
        let ping =
            PingReport { sent: 2, received: 2, rtt_median_us: Some(50.0), rtt_max_us: Some(60.0) };
        let stream = StreamReport { usage, retransmitted: 0 };
        Trial {
            guest_mtu: Some(1450),
            ping4: Some(ping),
            ping6: Some(ping),
            one: Some(stream.clone()),
            eight: Some(stream),
            ..Trial::new(contender, block, again)
        }
    }

    pub(in crate::demo) fn report(trials: Vec<Trial>) -> DemoReport {
        let left_out = [(Contender::OVS_VXLAN, "not installed".to_owned())];
        let offloads = [("tx-tcp-segmentation".to_owned(), true)].into();
        let profile = ProfileReport::new(Profile::Full, 1500, offloads, trials, &left_out);
        let environment = environment();
        DemoReport { environment, seconds: 1.0, blocks: 2, profiles: vec![profile] }
    }

    pub(in crate::demo) const STT: Contender = Contender::weft(TunnelType::Stt);

    #[test]
    fn rows_are_medians_of_ratios_inside_their_block() {
        let report = report(vec![
            trial(BASE, 0, false, 40.0),
            trial(STT, 0, false, 20.0),
            trial(BASE, 0, true, 40.0),
            // The machine is half as fast in this block; the ratio stays the same.
            trial(BASE, 1, false, 20.0),
            trial(STT, 1, false, 10.0),
            trial(BASE, 1, true, 20.0),
        ]);
        let profile = &report.profiles[0];
        let names: Vec<_> = profile.rows.iter().map(|r| (r.contender, r.again)).collect();
        let ovs = (Contender::OVS_VXLAN, false);
        assert_eq!(names, [(BASE, false), (STT, false), ovs, (BASE, true)]);
        let stt = &profile.rows[1];
        assert_eq!(
            (stt.one_gbps, stt.one_ratio, profile.noise),
            (Some(15.0), Some(0.5), Some(Noise { farthest: 1.0, pairs: 2 }))
        );
        assert!(report.passed(), "a peer that is left out is no failure");
        let mut report = report;
        let stt = |datapath| Row::left_out(Contender::Weft(datapath, TunnelType::Stt), "no");
        report.profiles[0].rows.push(stt(Datapath::Kernel));
        assert!(report.passed(), "the user datapath carries it");
        report.profiles[0].rows.push(stt(Datapath::User));
        assert!(!report.passed(), "nothing else carries it");
    }

    #[test]
    fn noise_is_the_farthest_of_all_blocks_and_loads() {
        let base = |block, again, one, eight| {
            let mut trial = trial(BASE, block, again, one);
            trial.eight.as_mut().unwrap().usage.gbps = eight;
            trial
        };
        let noise = |trials: &[Trial]| Noise::of(trials).map(|noise| (noise.farthest, noise.pairs));
        let steady = [base(0, false, 40.0, 40.0), base(0, true, 36.0, 40.0)];
        assert_eq!(noise(&steady), Some((0.9, 1)));
        let row = &report(steady.to_vec()).profiles[0].rows[0];
        assert_eq!(row.one_ratio, Some(40.0 / 38.0));
        // Half as fast, then half as fast again: a median would call this steady.
        let opposed =
            [base(1, false, 40.0, 40.0), base(1, true, 20.0, 40.0), base(2, false, 40.0, 40.0)];
        let opposed = [&opposed[..], &[base(2, true, 60.0, 40.0)]].concat();
        assert_eq!(noise(&opposed).map(|(far, pairs)| ((far - 1.0).abs(), pairs)), Some((0.5, 2)));
        let eight = [base(0, false, 40.0, 40.0), base(0, true, 40.0, 10.0)];
        assert_eq!(noise(&eight), Some((0.25, 1)), "the other load counts as well");
        assert_eq!(noise(&[base(0, false, 40.0, 40.0), base(1, true, 36.0, 40.0)]), None);
    }

    #[test]
    fn report_fails_when_a_tunnel_or_the_base_fails() {
        for failing in [STT, BASE] {
            let failure = Some("no answer".to_owned());
            let broken = Trial { failure, ..Trial::new(failing, 1, false) };
            let report =
                report(vec![trial(BASE, 0, false, 1.0), trial(STT, 0, false, 1.0), broken]);
            assert!(!report.passed(), "{failing}");
        }
        assert!(!report(Vec::new()).passed(), "nothing measured is nothing passed");
    }

    #[test]
    fn ping_is_absent_when_an_answer_is_missing() {
        let mut lossy = trial(STT, 0, false, 1.0);
        lossy.ping6 = lossy.ping6.map(|ping| PingReport { received: 1, ..ping });
        let row = &report(vec![lossy]).profiles[0].rows[0];
        assert_eq!((row.ping4_us, row.ping6_us), (Some(50.0), None));
    }
}
