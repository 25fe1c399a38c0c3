//! Whether a claim holds here: what it is measured by, and what that comes to.

use super::catalogue::Study;
use super::claims::{Claim, Finding, Verdict};
use super::results::{Figures, Sample};
use super::select::{Evidence, Pick, Ratio};
use super::summary::Metric;
use crate::lab::{Contender, Family, Profile};
use crate::stats::Estimate;

/// One measurement that speaks for or against a claim.
struct Check {
    what: String,
    /// `None` when it was not measured.
    found: Option<Ratio>,
    /// What it has to lie between.
    range: (f64, f64),
}

impl Check {
    /// `None` when it was not measured.
    fn verdict(&self) -> Option<Verdict> {
        let Ratio { estimate, unsteady } = self.found.as_ref()?;
        let (low, high) = self.range;
        Some(if unsteady.is_some() || estimate.runs < 2 {
            Verdict::NotConverged
        } else if estimate.low >= low && estimate.high <= high {
            Verdict::Holds
        } else if estimate.high < low || estimate.low > high {
            Verdict::DoesNotHold
        } else {
            Verdict::NotConverged
        })
    }

    fn line(&self) -> Option<String> {
        let Ratio { estimate, unsteady } = self.found.as_ref()?;
        let Estimate { median, low, high, runs } = estimate;
        let verdict = self.verdict()?;
        let range = match self.range {
            (low, f64::INFINITY) => format!("at least {low}"),
            (f64::NEG_INFINITY, high) => format!("at most {high}"),
            (low, high) => format!("{low} to {high}"),
        };
        let what = &self.what;
        let plural = if *runs == 1 { "run" } else { "runs" };
        let why = match (verdict, unsteady) {
            (Verdict::NotConverged, Some(why)) => format!(" ({})", why.replace("**", "")),
            (Verdict::NotConverged, None) if *runs < 2 => " (one run says nothing)".to_owned(),
            (Verdict::NotConverged, None) => " (the interval crosses the limit)".to_owned(),
            _ => String::new(),
        };
        let words = verdict.words();
        Some(format!(
            "{what}: {median:.2} [{low:.2}, {high:.2}], {runs} {plural}; claimed {range}: {words}{why}"
        ))
    }
}

const UP: f64 = f64::INFINITY;
const DOWN: f64 = f64::NEG_INFINITY;

/// What became of `claim` by what was measured.
pub(super) fn judge(claim: Claim, evidence: &Evidence<'_>) -> Finding {
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
    if !evidence.results.studies.iter().any(|name| name == claim.study.name()) {
        return untestable(&format!("the study {} was not run", claim.study));
    }
    match claim.id {
        "C4" => small_packets(claim, evidence),
        "C12" => {
            let mut finding = untestable(
                "the underlay is a veth pair, which has no hash and one queue; `weft doctor` asks a real card",
            );
            finding.evidence = super::select::spread(evidence.results);
            finding
        }
        "C16" => scatter(claim, evidence),
        "C17" => untestable(
            "a veth device inserts no tags, so there is only the software; `weft bench exact` counts what a tag costs",
        ),
        _ => {
            let (by, checks) = checks(claim.id, evidence);
            combine(claim, by, &checks)
        }
    }
}

/// What a claim is judged by, and the measurements.
fn checks(id: &str, evidence: &Evidence<'_>) -> (&'static str, Vec<Check>) {
    match id {
        "C1" => (
            "throughput and processor time for a gigabit beside the bridge, 5 % tolerated",
            right_protocol(evidence),
        ),
        "C2" => (
            "GRE without segmentation (`none`) beside the bridge with it (`full`): at most half",
            wrong_protocol(evidence),
        ),
        "C3" => (
            "packets a second to very many end points, over those to one: at least 0.9",
            many(evidence, Study::Endpoints, "endpoints-100000", "endpoints-1"),
        ),
        "C5" => ("VXLAN without offload (`none`) beside no tunnel (`full`)", jumbo_vxlan(evidence)),
        "C6" => (
            "VXLAN with offload, and with large frames, over VXLAN with neither",
            offload(evidence),
        ),
        "C7" => ("four streams over one, without offload", streams(evidence)),
        "C8" => (
            "bytes between the MTU of the underlay and what VXLAN left to its guests",
            overhead(evidence),
        ),
        "C9" => (
            "processor time for a gigabit, Geneve over VXLAN of the same switch, each stream (there is no line rate here)",
            geneve(evidence, Metric::Gbps, Figures::stream_cost, (DOWN, 1.0)),
        ),
        "C10" => (
            "transactions a second, Geneve over VXLAN of the same switch, each kind of round trip",
            geneve(evidence, Metric::Transactions, Figures::transactions, (1.0, UP)),
        ),
        "C11" => {
            ("processor time for a gigabit with the checksum over that without", checksum(evidence))
        }
        "C14" => (
            "QinQ (`full`: plain segmentation does for it) over VXLAN and Geneve in `none`, one stream: 1.6 or more",
            qinq(evidence, "tcp_stream-131072B-1i", Figures::throughput, (1.6, UP)),
        ),
        _ => (
            "processor time for a gigabit at the fixed rate, QinQ over VXLAN and Geneve",
            qinq(evidence, "5xtcp_stream-131072B-128i-400M", Figures::stream_cost, (DOWN, 0.5)),
        ),
    }
}

fn combine(claim: Claim, by: &str, checks: &[Check]) -> Finding {
    let verdicts: Vec<Verdict> = checks.iter().filter_map(Check::verdict).collect();
    let count = |verdict| verdicts.iter().filter(|v| **v == verdict).count();
    let (yes, no, open) =
        (count(Verdict::Holds), count(Verdict::DoesNotHold), count(Verdict::NotConverged));
    let verdict = match (yes, no, open) {
        (0, 0, 0) => Verdict::NotTestable,
        (1.., 1.., _) => Verdict::HoldsInPart,
        (1.., 0, 0) => Verdict::Holds,
        (0, 1.., 0) => Verdict::DoesNotHold,
        _ => Verdict::NotConverged,
    };
    let why = match (verdict, verdicts.len()) {
        (Verdict::NotTestable, _) => "nobody who takes part here was measured for it".to_owned(),
        (_, 1) => by.to_owned(),
        (_, all) => {
            format!("{by}. Of {all} measurements {yes} agree, {no} do not, {open} did not converge")
        }
    };
    let evidence = checks.iter().filter_map(Check::line).collect();
    Finding { claim, verdict, why, evidence }
}

fn right_protocol(evidence: &Evidence<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    for contender in evidence.subjects("stt") {
        for scenario in ["tcp_stream-32768B-1i", "4xtcp_bidirec-32768B-1i"] {
            let pick = |contender| {
                Pick::new(Study::SoftwareTunnelling, contender, scenario).profile(Profile::Full)
            };
            let (a, b) = (pick(contender), pick(Contender::LinuxBridge));
            let line = |what: &str| format!("{contender}, {scenario}, {what} beside the bridge");
            checks.push(Check {
                what: line("Gb/s"),
                found: a.over(&b, evidence, Figures::throughput),
                range: (0.95, UP),
            });
            checks.push(Check {
                what: line("CPU for a gigabit"),
                found: a.over(&b, evidence, Figures::stream_cost),
                range: (DOWN, 1.05),
            });
        }
    }
    checks
}

fn wrong_protocol(evidence: &Evidence<'_>) -> Vec<Check> {
    let pick = |contender| Pick::new(Study::SoftwareTunnelling, contender, "tcp_stream-32768B-1i");
    let base = pick(Contender::LinuxBridge).profile(Profile::Full);
    let check = |contender| Check {
        what: format!("{contender} beside the bridge, Gb/s"),
        found: pick(contender).profile(Profile::None).over(&base, evidence, Figures::throughput),
        range: (DOWN, 0.5),
    };
    evidence.subjects("gre").into_iter().map(check).collect()
}

fn many(evidence: &Evidence<'_>, study: Study, many: &str, one: &str) -> Vec<Check> {
    let check = |contender| {
        let pick = |scenario| Pick::new(study, contender, scenario);
        Check {
            what: format!("{contender}, {many} over {one}, packets/s"),
            found: pick(many).over(&pick(one), evidence, |f| f.packets_per_second),
            range: (0.9, UP),
        }
    };
    evidence.subjects("").into_iter().map(check).collect()
}

fn jumbo(contender: Contender, profile: Profile, guest_mtu: u16) -> Pick<'static> {
    Pick::new(Study::JumboFrames, contender, "tcp_stream-131072B-1i")
        .profile(profile)
        .guest_mtu(guest_mtu)
}

fn jumbo_vxlan(evidence: &Evidence<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    for contender in evidence.subjects("vxlan") {
        for (mtu, range) in [(1500, (0.5, 0.7)), (8900, (0.95, UP))] {
            let base = jumbo(Contender::LinuxBridge, Profile::Full, mtu);
            let mine = jumbo(contender, Profile::None, mtu);
            checks.push(Check {
                what: format!("{contender}, guests with MTU {mtu}, Gb/s beside no tunnel"),
                found: mine.over(&base, evidence, Figures::throughput),
                range,
            });
        }
    }
    checks
}

fn offload(evidence: &Evidence<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    for contender in evidence.subjects("vxlan") {
        let neither = jumbo(contender, Profile::None, 1500);
        let offload = jumbo(contender, Profile::Full, 1500);
        let large = jumbo(contender, Profile::None, 8900);
        checks.push(Check {
            what: format!("{contender}, offload at MTU 1500 over neither, Gb/s"),
            found: offload.over(&neither, evidence, Figures::throughput),
            range: (1.1, 1.25),
        });
        checks.push(Check {
            what: format!("{contender}, MTU 8900 without offload over offload at MTU 1500, Gb/s"),
            found: large.over(&offload, evidence, Figures::throughput),
            range: (1.0, UP),
        });
    }
    checks
}

fn streams(evidence: &Evidence<'_>) -> Vec<Check> {
    let check = |contender| {
        let one = jumbo(contender, Profile::None, 1500);
        let four = one.scenario("tcp_stream-131072B-4i");
        Check {
            what: format!("{contender}, four streams over one, Gb/s"),
            found: four.over(&one, evidence, Figures::throughput),
            range: (DOWN, 1.05),
        }
    };
    evidence.subjects("vxlan").into_iter().map(check).collect()
}

/// The guests' MTU is what the contender chose, where the shape did not.
fn overhead(evidence: &Evidence<'_>) -> Vec<Check> {
    let check = |contender| {
        let is = |s: &&Sample| {
            let v4 = s.shape.family == Family::V4;
            s.contender == contender && v4 && s.shape.guest_mtu.is_none()
        };
        let bytes = |s: &Sample| {
            Some(f64::from(s.shape.uplink_mtu.saturating_sub(s.figures.as_ref()?.guest_mtu)))
        };
        let samples = evidence.results.samples.iter();
        let found: Vec<f64> = samples.filter(is).filter_map(bytes).collect();
        let ratio = |estimate| Ratio { estimate, unsteady: None };
        Check {
            what: format!("{contender}, bytes"),
            found: Estimate::of(&found).map(ratio),
            range: (50.0, 50.0),
        }
    };
    evidence.subjects("vxlan").into_iter().map(check).collect()
}

/// Geneve over VXLAN of the same switch, in each scenario of which `metric` is the rate.
fn geneve(
    evidence: &Evidence<'_>,
    metric: Metric,
    of: fn(&Figures) -> Option<f64>,
    range: (f64, f64),
) -> Vec<Check> {
    let mut checks = Vec::new();
    for geneve in evidence.subjects("geneve") {
        let Ok(vxlan) = geneve.id().replace("geneve", "vxlan").parse::<Contender>() else {
            continue;
        };
        for table in evidence.of_study(Study::GeneveVsVxlan).filter(|t| t.metric == metric) {
            let pick = |contender| Pick::new(Study::GeneveVsVxlan, contender, &table.scenario);
            checks.push(Check {
                what: format!("{geneve} over {vxlan}, {}", table.scenario),
                found: pick(geneve).over(&pick(vxlan), evidence, of),
                range,
            });
        }
    }
    checks
}

fn checksum(evidence: &Evidence<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    for tunnel in ["vxlan", "geneve"] {
        for contender in evidence.subjects(tunnel) {
            for profile in [Profile::Full, Profile::None] {
                let pick = |on| {
                    Pick::new(Study::OuterChecksum, contender, "tcp_stream-131072B-1i")
                        .profile(profile)
                        .checksum(on)
                };
                checks.push(Check {
                    what: format!("{contender}, profile {profile}, with over without"),
                    found: pick(true).over(&pick(false), evidence, Figures::stream_cost),
                    range: (DOWN, 1.0),
                });
            }
        }
    }
    checks
}

fn qinq(
    evidence: &Evidence<'_>,
    scenario: &str,
    of: fn(&Figures) -> Option<f64>,
    range: (f64, f64),
) -> Vec<Check> {
    let pick = |contender| Pick::new(Study::Qinq, contender, scenario);
    let mut checks = Vec::new();
    for qinq in evidence.subjects("qinq") {
        for tunnel in ["vxlan", "geneve"] {
            let Ok(other) = qinq.id().replace("qinq", tunnel).parse::<Contender>() else {
                continue;
            };
            let slow = pick(other).profile(Profile::None);
            checks.push(Check {
                what: format!("{qinq} over {other}, {scenario}"),
                found: pick(qinq).profile(Profile::Full).over(&slow, evidence, of),
                range,
            });
        }
    }
    checks
}

fn small_packets(claim: Claim, evidence: &Evidence<'_>) -> Finding {
    let (mut lines, mut converged) = (Vec::new(), true);
    let tables = evidence.of_study(Study::SmallPackets);
    for table in tables.filter(|table| table.metric == Metric::Packets) {
        converged &= table.converged();
        for row in &table.rows {
            if let (Some(value), Some(cost)) = (row.value, row.cost) {
                let beside = row.ratio.map_or_else(String::new, |r| {
                    format!(", {:.2} of the bridge's rate", r.median)
                });
                lines.push(format!(
                    "{}: {:.0} packets of 64 bytes a second, {:.2} µs of processor time each{beside}; {} runs",
                    row.contender, value.median, cost.median, value.runs
                ));
            }
        }
        lines.push(super::markdown::noise(table).replace("**", ""));
    }
    let verdict = match (lines.is_empty(), converged) {
        (true, _) => Verdict::NotTestable,
        (false, true) => Verdict::Answered,
        (false, false) => Verdict::NotConverged,
    };
    let why = "the processor time is that of the whole machine, sender and receiver included; what a lookup costs is the study `flows`";
    Finding { claim, verdict, why: why.to_owned(), evidence: lines }
}

/// Standard deviations of one stream.
fn scatter(claim: Claim, evidence: &Evidence<'_>) -> Finding {
    let mut lines = Vec::new();
    let (mut tunnels, mut tags, mut converged) = (Vec::new(), Vec::new(), true);
    for table in evidence.of_study(Study::Qinq) {
        if table.metric != Metric::Gbps || table.shape.profile != Profile::None {
            continue;
        }
        converged &= table.converged();
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
            let percent = deviation * 100.0;
            lines.push(format!("{}, {}: {percent:.1} %", row.contender, table.scenario));
        }
    }
    let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let (verdict, why) = if tunnels.is_empty() || tags.is_empty() {
        (
            Verdict::NotTestable,
            "a standard deviation needs three runs of either; this run has fewer",
        )
    } else if !converged {
        (Verdict::NotConverged, "the bridge scatters too: it is the machine that does")
    } else if least(&tunnels) > most(&tags) {
        (Verdict::Holds, "standard deviations over the runs, without offload")
    } else {
        (Verdict::DoesNotHold, "standard deviations over the runs, without offload: they overlap")
    };
    Finding { claim, verdict, why: why.to_owned(), evidence: lines }
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

    fn check(low: f64, high: f64, runs: usize, unsteady: Option<&str>) -> Check {
        let estimate = Estimate { median: 1.0, low, high, runs };
        let unsteady = unsteady.map(str::to_owned);
        let found = Some(Ratio { estimate, unsteady });
        Check { what: String::new(), found, range: (0.95, UP) }
    }

    #[test]
    fn check_is_open_when_its_interval_crosses_the_limit() {
        let verdict = |low, high| check(low, high, 5, None).verdict();
        assert_eq!(verdict(0.96, 1.1), Some(Verdict::Holds));
        assert_eq!(verdict(0.8, 0.9), Some(Verdict::DoesNotHold));
        assert_eq!(verdict(0.9, 1.1), Some(Verdict::NotConverged));
        assert_eq!(check(1.0, 1.0, 1, None).verdict(), Some(Verdict::NotConverged));
    }

    #[test]
    fn check_is_open_with_its_numbers_when_the_machine_did_not_hold_still() {
        for (low, high) in [(0.96, 1.1), (0.8, 0.9)] {
            let check = check(low, high, 5, Some("A/A: 0.70 [0.50, 0.90]"));
            assert_eq!(check.verdict(), Some(Verdict::NotConverged));
            let line = check.line().unwrap();
            assert!(line.contains(&format!("[{low:.2}, {high:.2}]")), "{line}");
            assert!(line.ends_with("not converged here (A/A: 0.70 [0.50, 0.90])"), "{line}");
        }
    }

    #[test]
    fn claim_is_open_when_nothing_contradicts_it_and_something_is_open() {
        let claim = super::super::claims::verdicts(&super::super::run::empty(1))[0].claim;
        let good = || check(0.96, 1.1, 5, None);
        let bad = || check(0.1, 0.2, 5, None);
        let open = || check(0.1, 2.0, 5, None);
        let of = |checks: &[Check]| combine(claim, "", checks).verdict;
        assert_eq!(of(&[good(), good()]), Verdict::Holds);
        assert_eq!(of(&[good(), open()]), Verdict::NotConverged);
        assert_eq!(of(&[bad(), open()]), Verdict::NotConverged);
        assert_eq!(of(&[good(), bad(), open()]), Verdict::HoldsInPart);
        assert_eq!(of(&[bad(), bad()]), Verdict::DoesNotHold);
        assert_eq!(of(&[]), Verdict::NotTestable);
    }
}
