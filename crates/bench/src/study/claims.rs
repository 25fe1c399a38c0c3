//! What the published studies claim, and whether it holds here.

use serde::{Deserialize, Serialize};

use super::catalogue::Study;
use super::results::{Figures, Results, Sample};
use super::select::{Pick, subjects};
use super::summary::tables;
use crate::lab::{Contender, Profile};
use crate::stats::Estimate;

/// What became of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Everything that was measured agrees with it.
    Holds,
    /// Some implementations agree with it, others do not.
    HoldsInPart,
    /// Nothing that was measured agrees with it.
    DoesNotHold,
    /// It was a question; here is an answer.
    Answered,
    /// It was measured, but the machine did not hold still enough to say.
    Undecided,
    /// This machine, or this run, has not what it takes.
    NotTestable,
}

impl Verdict {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::HoldsInPart => "holds in part",
            Self::DoesNotHold => "does not hold",
            Self::Answered => "answered",
            Self::Undecided => "not converged",
            Self::NotTestable => "not testable here",
        }
    }
}

/// A claim, in our words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// C1 to C17.
    pub id: &'static str,
    /// The study that made it.
    pub study: Study,
    /// What it says.
    pub text: &'static str,
}

/// A claim judged.
#[derive(Clone, PartialEq, Debug)]
pub struct Finding {
    /// The claim.
    pub claim: Claim,
    /// What became of it.
    pub verdict: Verdict,
    /// Why, or what it was judged by.
    pub why: String,
    /// What was measured: a line for each implementation.
    pub evidence: Vec<String>,
}

/// One measurement that speaks for or against a claim.
struct Check {
    what: String,
    estimate: Option<Estimate>,
    /// What it has to lie between.
    range: (f64, f64),
}

impl Check {
    /// `None` when it was not measured.
    fn verdict(&self) -> Option<Verdict> {
        let estimate = self.estimate?;
        let (low, high) = self.range;
        Some(if estimate.low >= low && estimate.high <= high {
            Verdict::Holds
        } else if estimate.high < low || estimate.low > high {
            Verdict::DoesNotHold
        } else {
            Verdict::Undecided
        })
    }

    fn line(&self) -> Option<String> {
        let Estimate { median, low, high, runs } = self.estimate?;
        let verdict = self.verdict()?.words();
        let range = match self.range {
            (low, f64::INFINITY) => format!("at least {low}"),
            (f64::NEG_INFINITY, high) => format!("at most {high}"),
            (low, high) => format!("{low} to {high}"),
        };
        let what = &self.what;
        let plural = if runs == 1 { "run" } else { "runs" };
        Some(format!(
            "{what}: {median:.2} [{low:.2}, {high:.2}], {runs} {plural}; claimed {range}: {verdict}"
        ))
    }
}

const UP: f64 = f64::INFINITY;
const DOWN: f64 = f64::NEG_INFINITY;

const CLAIMS: [Claim; 17] = [
    claim(
        "C1",
        Study::SoftwareTunnelling,
        "A tunnel with the right protocol (STT) is as fast as no tunnel, and can cost less processor time.",
    ),
    claim(
        "C2",
        Study::SoftwareTunnelling,
        "A tunnel that the card cannot segment (GRE) loses most of the throughput.",
    ),
    claim(
        "C3",
        Study::Endpoints,
        "A software edge supports hundreds of thousands of tunnel end points.",
    ),
    claim(
        "C4",
        Study::SmallPackets,
        "How many small packets a second does a tunnel carry, and what does one cost? (asked by readers, never answered)",
    ),
    claim(
        "C5",
        Study::JumboFrames,
        "At MTU 1500 without offload VXLAN reaches about 60 % of VLAN; at 8900 it is as fast.",
    ),
    claim(
        "C6",
        Study::JumboFrames,
        "A card's VXLAN offload is worth 10 to 25 % at MTU 1500; large frames without it are worth more.",
    ),
    claim(
        "C7",
        Study::JumboFrames,
        "More parallel streams do not help where the processor that encapsulates is the limit.",
    ),
    claim(
        "C8",
        Study::JumboFrames,
        "VXLAN over IPv4 takes 50 bytes, so a 9000-byte underlay carries at most 8950; the MTU must be right in five places.",
    ),
    claim(
        "C9",
        Study::GeneveVsVxlan,
        "Geneve and VXLAN both reach line rate, and Geneve uses less processor time.",
    ),
    claim("C10", Study::GeneveVsVxlan, "Geneve serves more requests a second than VXLAN."),
    claim("C11", Study::OuterChecksum, "The outer UDP checksum makes receiving cheaper."),
    claim(
        "C12",
        Study::Entropy,
        "No command tells whether a card spreads tunnelled flows over its queues; RPS is the substitute in software.",
    ),
    claim(
        "C13",
        Study::GeneveVsVxlan,
        "Logical ports in the tunnel let features be written once, whatever host a packet is on.",
    ),
    claim(
        "C14",
        Study::Qinq,
        "QinQ reaches almost twice the throughput of VXLAN and Geneve in software.",
    ),
    claim(
        "C15",
        Study::Qinq,
        "QinQ uses less than half the processor time of VXLAN and Geneve in software.",
    ),
    claim(
        "C16",
        Study::Qinq,
        "VXLAN and Geneve in software scatter from run to run, QinQ hardly does.",
    ),
    claim(
        "C17",
        Study::Qinq,
        "Whether a card or software inserts the tags of QinQ hardly matters.",
    ),
];

const fn claim(id: &'static str, study: Study, text: &'static str) -> Claim {
    Claim { id, study, text }
}

/// A verdict for each claim.
pub fn verdicts(results: &Results) -> Vec<Finding> {
    CLAIMS.into_iter().map(|claim| judge(claim, results)).collect()
}

fn judge(claim: Claim, results: &Results) -> Finding {
    let untestable = |why: &str| Finding {
        claim,
        verdict: Verdict::NotTestable,
        why: why.to_owned(),
        evidence: Vec::new(),
    };
    if claim.id == "C13" {
        return untestable(
            "it is about how features are written, not about a number; weft carries logical ports in Geneve and STT",
        );
    }
    if !results.studies.iter().any(|name| name == claim.study.name()) {
        return untestable(&format!("the study {} was not run", claim.study));
    }
    match claim.id {
        "C4" => small_packets(claim, results),
        "C12" => {
            let mut finding = untestable(
                "the underlay is a veth pair, which has no hash and one queue; `weft doctor` asks a real card",
            );
            finding.evidence = super::select::spread(results);
            finding
        }
        "C16" => scatter(claim, results),
        "C17" => untestable(
            "a veth device inserts no tags, so there is only the software; `weft bench exact` counts what a tag costs",
        ),
        _ => {
            let (by, checks) = checks(claim.id, results);
            combine(claim, by, &checks)
        }
    }
}

/// What a claim is judged by, and the measurements.
fn checks(id: &str, results: &Results) -> (&'static str, Vec<Check>) {
    match id {
        "C1" => (
            "throughput and processor time for a gigabit beside the bridge, 5 % tolerated",
            right_protocol(results),
        ),
        "C2" => (
            "GRE without segmentation (`none`) beside the bridge with it (`full`): at most half",
            wrong_protocol(results),
        ),
        "C3" => (
            "packets a second to very many end points, over those to one: at least 0.9",
            many(results, Study::Endpoints, "endpoints-100000", "endpoints-1"),
        ),
        "C5" => ("VXLAN without offload (`none`) beside no tunnel (`full`)", jumbo_vxlan(results)),
        "C6" => {
            ("VXLAN with offload, and with large frames, over VXLAN with neither", offload(results))
        }
        "C7" => ("four streams over one, without offload", streams(results)),
        "C8" => (
            "bytes between the MTU of the underlay and what VXLAN left to its guests",
            overhead(results),
        ),
        "C9" => (
            "processor time for a gigabit, Geneve over VXLAN, all streams (there is no line rate here)",
            geneve(results, Figures::stream_cost, (DOWN, 1.0)),
        ),
        "C10" => (
            "transactions a second, Geneve over VXLAN, all round trips",
            geneve(results, Figures::transactions, (1.0, UP)),
        ),
        "C11" => {
            ("processor time for a gigabit with the checksum over that without", checksum(results))
        }
        "C14" => (
            "QinQ (`full`: plain segmentation does for it) over VXLAN and Geneve in `none`, one stream: 1.6 or more",
            qinq(results, false),
        ),
        _ => (
            "processor time for a gigabit at the fixed rate, QinQ over VXLAN and Geneve",
            qinq(results, true),
        ),
    }
}

fn combine(claim: Claim, by: &str, checks: &[Check]) -> Finding {
    let verdicts: Vec<Verdict> = checks.iter().filter_map(Check::verdict).collect();
    let has = |verdict| verdicts.contains(&verdict);
    let verdict = match (has(Verdict::Holds), has(Verdict::DoesNotHold), has(Verdict::Undecided)) {
        (false, false, false) => Verdict::NotTestable,
        (true, true, _) => Verdict::HoldsInPart,
        (true, false, false) => Verdict::Holds,
        (false, true, false) => Verdict::DoesNotHold,
        _ => Verdict::Undecided,
    };
    let why = match verdict {
        Verdict::NotTestable => "nobody who takes part here was measured for it".to_owned(),
        _ => by.to_owned(),
    };
    let evidence = checks.iter().filter_map(Check::line).collect();
    Finding { claim, verdict, why, evidence }
}

const STREAM: &str = "tcp_stream";

fn right_protocol(results: &Results) -> Vec<Check> {
    let pick = |contender| Pick::new(Study::SoftwareTunnelling, contender).profile(Profile::Full);
    let mut checks = Vec::new();
    for contender in subjects(results, "stt") {
        for scenario in ["tcp_stream-32768B-1i", "4xtcp_bidirec-32768B-1i"] {
            let (a, b) = (pick(contender), pick(Contender::LinuxBridge));
            let (a, b) = (a.scenario(scenario), b.scenario(scenario));
            let line = |what: &str| format!("{contender}, {scenario}, {what} beside the bridge");
            checks.push(Check {
                what: line("Gb/s"),
                estimate: a.over(&b, results, Figures::throughput),
                range: (0.95, UP),
            });
            checks.push(Check {
                what: line("CPU for a gigabit"),
                estimate: a.over(&b, results, Figures::stream_cost),
                range: (DOWN, 1.05),
            });
        }
    }
    checks
}

fn wrong_protocol(results: &Results) -> Vec<Check> {
    let pick = |contender| {
        Pick::new(Study::SoftwareTunnelling, contender).scenario("tcp_stream-32768B-1i")
    };
    let base = pick(Contender::LinuxBridge).profile(Profile::Full);
    let check = |contender| Check {
        what: format!("{contender} beside the bridge, Gb/s"),
        estimate: pick(contender).profile(Profile::None).over(&base, results, Figures::throughput),
        range: (DOWN, 0.5),
    };
    subjects(results, "gre").into_iter().map(check).collect()
}

fn many(results: &Results, study: Study, many: &'static str, one: &'static str) -> Vec<Check> {
    let check = |contender| {
        let pick = |scenario| Pick::new(study, contender).scenario(scenario);
        Check {
            what: format!("{contender}, {many} over {one}, packets/s"),
            estimate: pick(many).over(&pick(one), results, |f| f.packets_per_second),
            range: (0.9, UP),
        }
    };
    subjects(results, "").into_iter().map(check).collect()
}

fn jumbo(contender: Contender, profile: Profile, guest_mtu: u16) -> Pick {
    Pick::new(Study::JumboFrames, contender)
        .profile(profile)
        .guest_mtu(guest_mtu)
        .scenario("tcp_stream-131072B-1i")
}

fn jumbo_vxlan(results: &Results) -> Vec<Check> {
    let mut checks = Vec::new();
    for contender in subjects(results, "vxlan") {
        for (mtu, range) in [(1500, (0.5, 0.7)), (8900, (0.95, UP))] {
            let base = jumbo(Contender::LinuxBridge, Profile::Full, mtu);
            checks.push(Check {
                what: format!("{contender}, guests with MTU {mtu}, Gb/s beside no tunnel"),
                estimate: jumbo(contender, Profile::None, mtu).over(
                    &base,
                    results,
                    Figures::throughput,
                ),
                range,
            });
        }
    }
    checks
}

fn offload(results: &Results) -> Vec<Check> {
    let mut checks = Vec::new();
    for contender in subjects(results, "vxlan") {
        let neither = jumbo(contender, Profile::None, 1500);
        let over = |pick: Pick| pick.over(&neither, results, Figures::throughput);
        let offload = over(jumbo(contender, Profile::Full, 1500));
        let jumbo = over(jumbo(contender, Profile::None, 8900));
        let worth = offload.map_or(UP, |estimate| estimate.median);
        checks.push(Check {
            what: format!("{contender}, offload at MTU 1500, Gb/s"),
            estimate: offload,
            range: (1.1, 1.25),
        });
        checks.push(Check {
            what: format!("{contender}, MTU 8900 without offload, Gb/s"),
            estimate: jumbo,
            range: ((worth * 100.0).round() / 100.0, UP),
        });
    }
    checks
}

fn streams(results: &Results) -> Vec<Check> {
    let check = |contender| Check {
        what: format!("{contender}, four streams over one, Gb/s"),
        estimate: jumbo(contender, Profile::None, 1500).scenario("tcp_stream-131072B-4i").over(
            &jumbo(contender, Profile::None, 1500),
            results,
            Figures::throughput,
        ),
        range: (DOWN, 1.05),
    };
    subjects(results, "vxlan").into_iter().map(check).collect()
}

/// The guests' MTU is what the contender chose, where the shape did not.
fn overhead(results: &Results) -> Vec<Check> {
    let check = |contender| {
        let is = |s: &&Sample| {
            let v4 = s.shape.family == crate::lab::Family::V4;
            s.contender == contender && v4 && s.shape.guest_mtu.is_none()
        };
        let bytes = |s: &Sample| {
            Some(f64::from(s.shape.uplink_mtu.saturating_sub(s.figures.as_ref()?.guest_mtu)))
        };
        let found: Vec<f64> = results.samples.iter().filter(is).filter_map(bytes).collect();
        Check {
            what: format!("{contender}, bytes"),
            estimate: Estimate::of(&found),
            range: (50.0, 50.0),
        }
    };
    subjects(results, "vxlan").into_iter().map(check).collect()
}

/// Geneve over VXLAN of the same switch, over all scenarios that have the figure.
fn geneve(results: &Results, of: fn(&Figures) -> Option<f64>, range: (f64, f64)) -> Vec<Check> {
    let check = |geneve: Contender| {
        let vxlan = geneve.id().replace("geneve", "vxlan").parse().ok()?;
        let pick = |contender| Pick::new(Study::GeneveVsVxlan, contender);
        let estimate = pick(geneve).over(&pick(vxlan), results, of);
        Some(Check { what: format!("{geneve} over {vxlan}"), estimate, range })
    };
    subjects(results, "geneve").into_iter().filter_map(check).collect()
}

fn checksum(results: &Results) -> Vec<Check> {
    let mut checks = Vec::new();
    for tunnel in ["vxlan", "geneve"] {
        for contender in subjects(results, tunnel) {
            let pick = |on| Pick::new(Study::OuterChecksum, contender).checksum(on);
            let estimate = pick(true).over(&pick(false), results, Figures::stream_cost);
            checks.push(Check {
                what: format!("{contender}, with over without"),
                estimate,
                range: (DOWN, 1.0),
            });
        }
    }
    checks
}

fn qinq(results: &Results, cost: bool) -> Vec<Check> {
    let (scenario, of, range): (_, fn(&Figures) -> Option<f64>, _) = match cost {
        false => ("tcp_stream-131072B-1i", Figures::throughput, (1.6, UP)),
        true => ("5xtcp_stream-131072B-128i-400M", Figures::stream_cost, (DOWN, 0.5)),
    };
    let pick = |contender| Pick::new(Study::Qinq, contender).scenario(scenario);
    let mut checks = Vec::new();
    for qinq in subjects(results, "qinq") {
        for tunnel in ["vxlan", "geneve"] {
            let Ok(other) = qinq.id().replace("qinq", tunnel).parse::<Contender>() else {
                continue;
            };
            let slow = pick(other).profile(Profile::None);
            let estimate = pick(qinq).profile(Profile::Full).over(&slow, results, of);
            checks.push(Check {
                what: format!("{qinq} over {other}, {scenario}"),
                estimate,
                range,
            });
        }
    }
    checks
}

fn small_packets(claim: Claim, results: &Results) -> Finding {
    let mut evidence = Vec::new();
    for table in tables(results) {
        if table.study != Study::SmallPackets.name() || !table.scenario.starts_with("udp_stream") {
            continue;
        }
        for row in &table.rows {
            if let (Some(value), Some(cost)) = (row.value, row.cost) {
                let beside = row.ratio.map_or_else(String::new, |r| {
                    format!(", {:.2} of the bridge's rate", r.median)
                });
                evidence.push(format!(
                    "{}: {:.0} packets of 64 bytes a second, {:.2} µs of processor time each{beside}; {} runs",
                    row.contender, value.median, cost.median, value.runs
                ));
            }
        }
    }
    let verdict = if evidence.is_empty() { Verdict::NotTestable } else { Verdict::Answered };
    let why = "the processor time is that of the whole machine, sender and receiver included; what a lookup costs is the study `flows`";
    Finding { claim, verdict, why: why.to_owned(), evidence }
}

/// Standard deviations of one stream.
fn scatter(claim: Claim, results: &Results) -> Finding {
    let mut evidence = Vec::new();
    let (mut tunnels, mut tags) = (Vec::new(), Vec::new());
    for table in tables(results) {
        let stream = table.scenario.starts_with(STREAM) && table.shape.profile == Profile::None;
        if table.study != Study::Qinq.name() || !stream {
            continue;
        }
        for row in table.rows.iter().filter(|row| row.value.is_some_and(|v| v.runs >= 3)) {
            let Some(deviation) = row.deviation else { continue };
            let id = row.contender.id();
            if id.ends_with("qinq") {
                tags.push(deviation);
            } else if id.ends_with("vxlan") || id.ends_with("geneve") {
                tunnels.push(deviation);
            } else {
                continue;
            }
            evidence.push(format!(
                "{}, {}: {:.1} %",
                row.contender,
                table.scenario,
                deviation * 100.0
            ));
        }
    }
    let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let (verdict, why) = if tunnels.is_empty() || tags.is_empty() {
        (
            Verdict::NotTestable,
            "a standard deviation needs three runs of either; this run has fewer",
        )
    } else if least(&tunnels) > most(&tags) {
        (Verdict::Holds, "standard deviations over the runs, without offload")
    } else {
        (Verdict::DoesNotHold, "standard deviations over the runs, without offload: they overlap")
    };
    Finding { claim, verdict, why: why.to_owned(), evidence }
}

impl Figures {
    fn throughput(&self) -> Option<f64> {
        self.gbps
    }

    fn stream_cost(&self) -> Option<f64> {
        self.cpu_seconds_per_gbit
    }

    fn transactions(&self) -> Option<f64> {
        self.transactions_per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_is_undecided_when_its_interval_crosses_the_limit() {
        let check = |low, high| {
            let estimate = Some(Estimate { median: 1.0, low, high, runs: 5 });
            Check { what: String::new(), estimate, range: (0.95, UP) }.verdict()
        };
        assert_eq!(check(0.96, 1.1), Some(Verdict::Holds));
        assert_eq!(check(0.8, 0.9), Some(Verdict::DoesNotHold));
        assert_eq!(check(0.9, 1.1), Some(Verdict::Undecided));
    }

    #[test]
    fn claims_are_numbered_without_gaps() {
        for (number, claim) in (1..).zip(CLAIMS) {
            assert_eq!(claim.id, format!("C{number}"));
        }
    }
}
