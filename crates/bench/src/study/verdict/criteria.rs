//! The criteria of each claim: which ratios are measured, and the range that each must have.

use super::check::Check;
use super::evidence::Evidence;
use super::select::{Ratio, SampleSelector, mean_over};
use super::tables::Metric;
use crate::lab::{Contender, IpVersion, Profile};
use crate::stats::Estimate;
use crate::study::model::{Figures, Sample, Study};

/// The upper end of a range without an upper limit.
const UP: f64 = f64::INFINITY;
/// The lower end of a range without a lower limit.
const DOWN: f64 = f64::NEG_INFINITY;

/// The criterion of the claim `id` in a sentence, and its measurements. In the sentences,
/// "A over B" is A divided by B.
pub(super) fn checks(id: &str, evidence: &Evidence<'_>) -> (&'static str, Vec<Check>) {
    match id {
        "C1" => (
            "throughput and processor time per gigabit, over the bridge; 5 % tolerated",
            right_protocol(evidence),
        ),
        "C2" => (
            "GRE without segmentation (`none`) over the bridge with it (`full`): at most half",
            wrong_protocol(evidence),
        ),
        "C3" => (
            "packet rate to very many end points, over that to one: at least 0.9",
            many(evidence, Study::Endpoints, "endpoints-100000", "endpoints-1"),
        ),
        "C5" => ("VXLAN without offload (`none`) over no tunnel (`full`)", jumbo_vxlan(evidence)),
        "C6" => (
            "VXLAN with offload, and with large frames, over VXLAN with neither",
            offload(evidence),
        ),
        "C7" => ("four streams over one, without offload", streams(evidence)),
        "C8" => (
            "MTU of the underlay minus the longest packet that crosses it unfragmented, sent by a \
             guest with a larger MTU; of the five places, guest, switch, end point and underlay \
             are covered here",
            overhead(evidence),
        ),
        "C9" => (
            "processor time per gigabit, Geneve over VXLAN of the same switch, averaged over the \
             streams as published (without a line rate here)",
            geneve(evidence, Metric::Gbps, Figures::stream_cost, (DOWN, 1.0)),
        ),
        "C10" => (
            "transactions per second, Geneve over VXLAN of the same switch, averaged over the kinds \
             of round trips as published",
            geneve(evidence, Metric::Transactions, Figures::transactions, (1.0, UP)),
        ),
        "C11" => ("processor time per gigabit, with the checksum over without", checksum(evidence)),
        "C14" => (
            "QinQ (`full`: plain segmentation suffices) over VXLAN and Geneve in `none`, one \
             stream: at least 1.6",
            one_stream(evidence),
        ),
        "C16" => (
            "standard deviation of the runs without offload, VXLAN and Geneve over QinQ: at least 2, \
             from three runs on",
            scatter(evidence),
        ),
        _ => (
            "processor time per gigabit at the fixed rate, QinQ over VXLAN and Geneve, where both \
             hold the rate",
            fixed_rate(evidence),
        ),
    }
}

fn right_protocol(evidence: &Evidence<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    for contender in evidence.subjects("stt") {
        for scenario in ["tcp_stream-32768B-1i", "4xtcp_bidirec-32768B-1i"] {
            let pick = |contender| {
                SampleSelector::new(Study::SoftwareTunnelling, contender, scenario)
                    .profile(Profile::Full)
            };
            let (a, b) = (pick(contender), pick(Contender::LinuxBridge));
            let line = |what: &str| format!("{contender}, {scenario}, {what} over the bridge");
            checks.push(Check {
                what: line("Gb/s"),
                found: a.over(&b, evidence, Figures::throughput),
                range: (0.95, UP),
            });
            checks.push(Check {
                what: line("CPU per gigabit"),
                found: a.over(&b, evidence, Figures::stream_cost),
                range: (DOWN, 1.05),
            });
        }
    }
    checks
}

fn wrong_protocol(evidence: &Evidence<'_>) -> Vec<Check> {
    let pick = |contender| {
        SampleSelector::new(Study::SoftwareTunnelling, contender, "tcp_stream-32768B-1i")
    };
    let base = pick(Contender::LinuxBridge).profile(Profile::Full);
    let check = |contender| Check {
        what: format!("{contender} over the bridge, Gb/s"),
        found: pick(contender).profile(Profile::None).over(&base, evidence, Figures::throughput),
        range: (DOWN, 0.5),
    };
    evidence.subjects("gre").into_iter().map(check).collect()
}

fn many(evidence: &Evidence<'_>, study: Study, many: &str, one: &str) -> Vec<Check> {
    let check = |contender| {
        let pick = |scenario| SampleSelector::new(study, contender, scenario);
        Check {
            what: format!("{contender}, {many} over {one}, packets/s"),
            found: pick(many).over(&pick(one), evidence, |f| f.packets_per_second),
            range: (0.9, UP),
        }
    };
    evidence.subjects("").into_iter().map(check).collect()
}

/// The runs with one stream in the study of jumbo frames.
fn jumbo(contender: Contender, profile: Profile, guest_mtu: u16) -> SampleSelector<'static> {
    SampleSelector::new(Study::JumboFrames, contender, "tcp_stream-131072B-1i")
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
                what: format!("{contender}, guests with MTU {mtu}, Gb/s over no tunnel"),
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

fn overhead(evidence: &Evidence<'_>) -> Vec<Check> {
    let check = |contender| {
        let is =
            |s: &&Sample| s.contender == contender && s.shape.family == IpVersion::V4 && !s.again;
        let bytes = |s: &Sample| {
            let longest = s.figures.as_ref()?.more.get("longest_packet")?;
            Some(f64::from(s.shape.uplink_mtu) - longest)
        };
        let samples = evidence.results.samples.iter();
        let found: Vec<f64> = samples.filter(is).filter_map(bytes).collect();
        // Bytes are counted, not timed, so there is no noise.
        let exact = |estimate| Ratio { estimate, noise: Ok(1.0) };
        Check {
            what: format!("{contender}, bytes"),
            found: Estimate::of(&found).map(exact),
            range: (50.0, 50.0),
        }
    };
    evidence.subjects("vxlan").into_iter().map(check).collect()
}

/// The figure of Geneve divided by that of VXLAN on the same switch, averaged over the scenarios
/// with this `metric`.
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
        let mut tables = evidence.of_study(Study::GeneveVsVxlan).peekable();
        let shape = tables.peek().map(|table| table.shape);
        let scenarios: Vec<_> = tables
            .filter(|table| table.metric == metric && Some(table.shape) == shape)
            .map(|table| table.scenario.as_str())
            .collect();
        let pick =
            |contender, scenario| SampleSelector::new(Study::GeneveVsVxlan, contender, scenario);
        let mut pairs: Vec<_> =
            scenarios.iter().map(|name| (pick(geneve, name), pick(vxlan, name))).collect();
        // The mean needs blocks with all scenarios, so scenarios that failed in most blocks are
        // left out. If no block has all scenarios, one of them is used. In both cases the claim
        // stays open.
        let runs = |(these, those): &(SampleSelector<'_>, SampleSelector<'_>)| {
            these.over(those, evidence, of).map_or(0, |ratio| ratio.estimate.runs)
        };
        let (whole, most) = (pairs.len(), pairs.iter().map(runs).max().unwrap_or(0));
        pairs.retain(|pair| runs(pair) * 2 > most);
        if mean_over(&pairs, evidence, of).is_none() {
            pairs.retain(|pair| runs(pair) == most);
            pairs.truncate(1);
        }
        let (left, mut lacking) = (pairs.len(), String::new());
        let found = mean_over(&pairs, evidence, of).map(|ratio| {
            if left == whole {
                return ratio;
            }
            lacking = format!(" of {whole}");
            Ratio { noise: Err(format!("{} failed", whole - left)), ..ratio }
        });
        checks.push(Check {
            what: format!("{geneve} over {vxlan}, {left}{lacking} scenarios"),
            found,
            range,
        });
    }
    checks
}

/// The throughput with receive packet steering (RPS), divided by that without.
pub(super) fn steering(evidence: &Evidence<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    for contender in ["vxlan", "geneve", "gre", "stt"].iter().flat_map(|t| evidence.subjects(t)) {
        let pick = SampleSelector::new(Study::Entropy, contender, "tcp_stream-131072B-8i");
        for (pick, ports) in [(pick, ""), (pick.one_source_port(), ", one outer source port")] {
            checks.push(Check {
                what: format!("{contender}{ports}, with RPS over without"),
                found: pick.steering(true).over(
                    &pick.steering(false),
                    evidence,
                    Figures::throughput,
                ),
                range: (1.05, UP),
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
                    SampleSelector::new(Study::OuterChecksum, contender, "tcp_stream-131072B-1i")
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

/// The QinQ contender of each switch, paired with its VXLAN and with its Geneve contender.
fn qinq_and_tunnels(evidence: &Evidence<'_>) -> Vec<(Contender, Contender)> {
    let mut pairs = Vec::new();
    for qinq in evidence.subjects("qinq") {
        // A bridge has no tunnels, so weft's tunnel contenders take their place.
        let id = qinq.id().replace("-bridge-", "-");
        let tunnels = ["vxlan", "geneve"].map(|tunnel| id.replace("qinq", tunnel));
        pairs.extend(tunnels.iter().filter_map(|id| Some((qinq, id.parse().ok()?))));
    }
    pairs
}

fn one_stream(evidence: &Evidence<'_>) -> Vec<Check> {
    let scenario = "tcp_stream-131072B-1i";
    let check = |(qinq, tunnel)| {
        let pick = |contender| SampleSelector::new(Study::Qinq, contender, scenario);
        let (fast, slow) = (pick(qinq).profile(Profile::Full), pick(tunnel).profile(Profile::None));
        Check {
            what: format!("{qinq} over {tunnel}, {scenario}"),
            found: fast.over(&slow, evidence, Figures::throughput),
            range: (1.6, UP),
        }
    };
    qinq_and_tunnels(evidence).into_iter().map(check).collect()
}

/// The fixed rate of all streams together, in Gb/s, and the lowest rate that counts as holding it.
const FIXED_GBPS: f64 = 2.0;
const HELD: f64 = 0.95 * FIXED_GBPS;

/// The cost of a gigabit at the fixed rate. If a contender did not hold the rate, its measurement
/// is inconclusive.
fn fixed_rate(evidence: &Evidence<'_>) -> Vec<Check> {
    let scenario = "5xtcp_stream-131072B-128i-400M";
    let check = |(qinq, tunnel)| {
        let pick = |contender| SampleSelector::new(Study::Qinq, contender, scenario);
        let (fast, slow) = (pick(qinq).profile(Profile::Full), pick(tunnel).profile(Profile::None));
        let found = fast.over(&slow, evidence, Figures::stream_cost).map(|ratio| {
            let lost = [(qinq, fast), (tunnel, slow)].map(|(who, pick)| {
                match (pick.failed(evidence), pick.least(evidence, Figures::throughput)) {
                    (0, Some(gbps)) if gbps < HELD => {
                        Some(format!("{who} held {gbps:.1} of {FIXED_GBPS} Gb/s at worst"))
                    }
                    (0, _) => None,
                    (failed, _) => Some(format!("runs of {who} that failed: {failed}")),
                }
            });
            let lost: Vec<_> = lost.into_iter().flatten().collect();
            if lost.is_empty() { ratio } else { Ratio { noise: Err(lost.join(", ")), ..ratio } }
        });
        Check { what: format!("{qinq} over {tunnel}, {scenario}"), found, range: (DOWN, 0.5) }
    };
    qinq_and_tunnels(evidence).into_iter().map(check).collect()
}

/// The standard deviation of UDP tunnels, divided by that of QinQ on the same switch.
fn scatter(evidence: &Evidence<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    for (qinq, tunnel) in qinq_and_tunnels(evidence) {
        let tables = evidence.of_study(Study::Qinq);
        let unlimited = |name: &str| name.contains("tcp_stream") && !name.ends_with('M');
        for table in tables.filter(|t| t.shape.profile == Profile::None && unlimited(&t.scenario)) {
            let pick = |contender| {
                SampleSelector::new(Study::Qinq, contender, &table.scenario).profile(Profile::None)
            };
            checks.push(Check {
                what: format!("{tunnel} over {qinq}, {}", table.scenario),
                found: pick(tunnel).scatter_over(&pick(qinq), evidence, Figures::throughput),
                range: (2.0, UP),
            });
        }
    }
    checks
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
