//! Judges each claim by its measurements.

use super::check::{Check, moved};
use super::criteria::{checks, steering};
use super::evidence::{Evidence, ratios, spread};
use super::noise::{self, Figure};
use super::select::Ratio;
use super::tables::{Metric, Row, Table, WIRE};
use crate::stats::Estimate;
use crate::study::format;
use crate::study::model::{
    CLAIMS, Claim, ClaimVerdict, Finding, INTERLEAVED, Results, SCHEMA, Study, Tally,
};

/// The verdict on each claim.
pub fn verdicts(results: &Results) -> Vec<Finding> {
    let evidence = Evidence::of(results);
    CLAIMS.into_iter().map(|claim| judge(claim, &evidence)).collect()
}

/// `results` with the verdicts of this version of the program.
#[must_use]
pub fn judged(mut results: Results) -> Results {
    results.verdicts = verdicts(&results);
    // Older files keep their schema, because their blocks have another meaning.
    if results.schema >= INTERLEAVED {
        results.schema = SCHEMA;
    }
    results
}

/// The verdict on `claim`.
fn judge(claim: Claim, evidence: &Evidence<'_>) -> Finding {
    let untestable = |why: &str| Finding {
        claim,
        verdict: ClaimVerdict::NotTestable,
        measurements: Tally::default(),
        why: why.to_owned(),
        evidence: Vec::new(),
    };
    if claim.id == "C13" {
        return untestable(
            "it is about how features are written, which no measurement shows; weft carries logical \
             ports in Geneve and STT",
        );
    }
    if !evidence.results.studies.iter().any(|name| name == claim.study.name()) {
        return untestable(&format!("the study {} was not run", claim.study));
    }
    match claim.id {
        "C4" => small_packets(claim, evidence),
        "C12" => {
            let by = "RPS as the substitute: eight streams with it over without it, Gb/s, at least \
                      1.05, with a source port for each flow and with one for all. A veth pair has \
                      no hardware hash to test; `weft doctor` reports that of a real card";
            let mut finding = combine(claim, by, &steering(evidence));
            finding.evidence.extend(spread(evidence.results));
            finding
        }
        "C17" => untestable(
            "it needs a card that inserts tags: a veth device passes them beside the frame, and \
             weft writes its own; `weft bench exact` counts the cost of two tags in software",
        ),
        _ => {
            let (by, checks) = checks(claim.id, evidence);
            combine(claim, by, &checks)
        }
    }
}

fn combine(claim: Claim, by: &str, checks: &[Check]) -> Finding {
    let verdicts: Vec<ClaimVerdict> = checks.iter().filter_map(Check::verdict).collect();
    let count = |verdict| verdicts.iter().filter(|v| **v == verdict).count();
    let measurements = Tally {
        agree: count(ClaimVerdict::Holds),
        disagree: count(ClaimVerdict::DoesNotHold),
        open: count(ClaimVerdict::NotConverged),
    };
    let Tally { agree, disagree, open } = measurements;
    let why = match measurements.all() {
        0 => "no available contender was measured for it".to_owned(),
        1 => by.to_owned(),
        all => format!(
            "{by}. Of {all} measurements {agree} agree, {disagree} do not, {open} did not converge"
        ),
    };
    let evidence = checks.iter().filter_map(Check::line).collect();
    Finding { claim, verdict: measurements.verdict(), measurements, why, evidence }
}

/// The answer to the question of `claim`: one line for each figure, with an interval that includes
/// the noise.
fn small_packets(claim: Claim, evidence: &Evidence<'_>) -> Finding {
    let (mut evidence_lines, mut measurements) = (Vec::new(), Tally::default());
    for table in evidence.of_study(Study::SmallPackets).filter(|t| t.metric == Metric::Packets) {
        for row in &table.rows {
            let answer = match table.scenario.starts_with("packet_rate") {
                true => ReplyForm::rate(row, table, evidence),
                false => ReplyForm::cost(row, table, evidence),
            };
            let Some(ReplyForm { text, known }) = answer else { continue };
            *(if known { &mut measurements.agree } else { &mut measurements.open }) += 1;
            let end = if known { "" } else { ": not converged here" };
            evidence_lines.push(format!("{}, {}: {text}{end}", row.contender, table.scenario));
        }
    }
    let Tally { agree, open, .. } = measurements;
    let verdict = match (agree, open) {
        (0, 0) => ClaimVerdict::NotTestable,
        (_, 0) => ClaimVerdict::Answered,
        (_, 1..) => ClaimVerdict::NotConverged,
    };
    let why = match verdict {
        ClaimVerdict::NotTestable => "no available contender was measured for it".to_owned(),
        _ => format!(
            "the highest rate at which 99 % of the packets arrive; and at one rate for all, the \
             processor time of the whole machine minus that with one veth pair and no switch. Of \
             {} figures {agree} are known to a third. The study `flows` has the cost of more flows",
            agree + open
        ),
    };
    Finding { claim, verdict, measurements, why, evidence: evidence_lines }
}

/// A figure that answers a question.
struct ReplyForm {
    text: String,
    /// True when half of its interval, including the noise, is at most [`KNOWN`].
    known: bool,
}

/// The largest half-interval of a known figure, relative to the figure or to the whole cost.
const KNOWN: f64 = 1.0 / 3.0;

impl ReplyForm {
    /// The packet rate of `row`. It is known if its ratio to the bridge is known.
    fn rate(row: &Row, table: &Table, evidence: &Evidence<'_>) -> Option<Self> {
        let (value, estimate) = (row.value?, row.ratio?);
        let rate: Figure<'_> = &|figures| figures.packets_per_second;
        let (study, runs) = (Study::SmallPackets, estimate.runs);
        let twice = noise::twice(evidence, study, &[table], runs, rate, ratios);
        let ratio = Ratio { estimate, noise: twice.map(|twice| noise::factor(&twice)) };
        let (value, shown) = (figure(value), figure(estimate));
        let text = format!("{value} packets a second, {shown} of the bridge; {runs} runs");
        Some(match ratio.widened() {
            Ok((low, high, factor)) => Self {
                text: text + &moved(low, high, &format!("{factor:.2} times")),
                known: (high - low) / 2.0 <= KNOWN * estimate.median,
            },
            Err(why) => Self { text: format!("{text}; {why}"), known: false },
        })
    }

    /// The switching cost of `row`. It is a difference, and the noise of the whole cost applies to
    /// it.
    fn cost(row: &Row, table: &Table, evidence: &Evidence<'_>) -> Option<Self> {
        // One veth pair has no switch, so its switching cost is 0 by definition.
        let row = (row.contender != WIRE).then_some(row)?;
        let (whole, switching) = (row.cost?, row.switching?);
        let cost: Figure<'_> = &|figures| figures.cpu_us_each;
        let (study, runs) = (Study::SmallPackets, switching.runs);
        let twice = noise::twice(evidence, study, &[table], runs, cost, differences);
        let shown = figure(switching);
        let text = format!("{shown} µs of processor time to switch a packet; {runs} runs");
        Some(match twice.map(|twice| noise::distance(&twice)) {
            Ok(by) => {
                let (low, high) = (switching.low - by, switching.high + by);
                let text = text + &moved(low, high, &format!("{by:.2} µs"));
                Self { text, known: (high - low) / 2.0 <= KNOWN * whole.median }
            }
            Err(why) => Self { text: format!("{text}; {why}"), known: false },
        })
    }
}

fn figure(estimate: Estimate) -> String {
    format::estimate(Some(estimate))
}

/// The median difference of `pairs`, with its interval.
fn differences(pairs: &[(f64, f64)]) -> Option<Estimate> {
    Estimate::of(&pairs.iter().map(|(a, b)| a - b).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::super::check::tests::check;
    use super::*;
    use crate::lab::{Contender, Profile, Shape};
    use crate::study::model::{Figures, Sample, empty};

    /// The results of one study, with the figures `of` each contender and block.
    fn results(
        study: Study,
        runs: usize,
        contenders: &[Contender],
        scenario: &str,
        of: impl Fn(Contender, usize) -> Figures,
    ) -> Results {
        let mut results = empty(runs);
        results.studies.push(study.name().to_owned());
        let shape = Shape { profile: Profile::None, ..Shape::default() };
        for block in 0..runs {
            let base = [(Contender::LinuxBridge, false), (Contender::LinuxBridge, true)];
            for (contender, again) in base.into_iter().chain(contenders.iter().map(|c| (*c, false)))
            {
                let figures = Some(of(contender, block));
                let (study, scenario) = (study.name().to_owned(), scenario.to_owned());
                let failure = None;
                results.samples.push(Sample {
                    study,
                    scenario,
                    shape,
                    contender,
                    block,
                    again,
                    figures,
                    failure,
                });
            }
        }
        results
    }

    fn verdict(id: &str, results: &Results) -> (ClaimVerdict, Vec<String>) {
        let mut all = verdicts(results).into_iter();
        let finding = all.find(|finding| finding.claim.id == id).unwrap();
        (finding.verdict, finding.evidence)
    }

    #[test]
    fn overhead_is_refuted_when_longer_packets_cross_in_one_piece() {
        let of = |longest: f64| {
            let more = [("longest_packet".to_owned(), longest)];
            let figures = Figures { more: more.into_iter().collect(), ..Figures::default() };
            let vxlan = [Contender::KERNEL_VXLAN];
            let run = |_, _| figures.clone();
            verdict("C8", &results(Study::JumboFrames, 2, &vxlan, "longest-packet", run))
        };
        assert_eq!(of(1450.0).0, ClaimVerdict::Holds);
        assert_eq!(of(1454.0).0, ClaimVerdict::DoesNotHold);
        assert_eq!(of(1446.0).0, ClaimVerdict::DoesNotHold);
    }

    #[test]
    fn scatter_has_an_interval_and_is_judged_by_it() {
        let (vxlan, qinq): (Contender, Contender) =
            ("weft-user-vxlan".parse().unwrap(), "weft-user-qinq".parse().unwrap());
        let of = |wild: f64, runs| {
            let gbps = move |contender, block: usize| {
                let part = match contender {
                    c if c == vxlan => wild,
                    c if c == qinq => 0.01,
                    // The bridge has the same deviation in both runs.
                    _ => 0.02,
                };
                let swing = [0.0, 1.0, -1.0, 0.7, -0.7, 0.4, -0.4][block % 7];
                Figures { gbps: Some(10.0 * (1.0 + part * swing)), ..Figures::default() }
            };
            verdict(
                "C16",
                &results(Study::Qinq, runs, &[vxlan, qinq], "tcp_stream-131072B-1i", gbps),
            )
        };
        let (found, lines) = of(0.2, 7);
        assert_eq!(found, ClaimVerdict::Holds, "{lines:?}");
        assert!(lines[0].contains("20.00 ["), "{lines:?}");
        assert_eq!(of(0.01, 7).0, ClaimVerdict::DoesNotHold);
        assert_eq!(of(0.2, 2).0, ClaimVerdict::NotTestable);
    }

    #[test]
    fn scenarios_are_judged_by_their_average_when_geneve_is_compared() {
        let pair: [Contender; 2] =
            ["weft-user-vxlan".parse().unwrap(), "weft-user-geneve".parse().unwrap()];
        // The bridge differs from itself (A/A), by inverse factors in the two scenarios of a block.
        let of = |better: f64, scale: f64, scenario| {
            let rate = move |contender, _| {
                let rate = if contender == pair[1] { 100.0 * better } else { 100.0 };
                Figures { transactions_per_second: Some(rate), ..Figures::default() }
            };
            let mut results = results(Study::GeneveVsVxlan, 5, &pair, scenario, rate);
            for sample in results.samples.iter_mut().filter(|sample| sample.again) {
                let scale = if sample.block % 2 == 0 { scale } else { 1.0 / scale };
                sample.figures.as_mut().unwrap().transactions_per_second = Some(100.0 * scale);
            }
            results
        };
        let both = |one, other| {
            let mut both = of(one, 1.5, "tcp_rr-1024B-8i");
            both.samples.extend(of(other, 1.0 / 1.5, "udp_rr-64B-8i").samples);
            verdict("C10", &both)
        };
        let (found, lines) = both(1.5, 0.8);
        assert_eq!((found, lines.len()), (ClaimVerdict::Holds, 1), "{lines:?}");
        assert!(lines[0].contains("2 scenarios: 1.10 ["), "{lines:?}");
        assert_eq!(both(1.2, 0.5).0, ClaimVerdict::DoesNotHold);
        // A scenario that failed in all blocks is left out, and the line says so.
        let mut failed = of(1.0, 1.0, "tcp_rr-1024B-64i");
        failed.samples.extend(of(1.5, 1.0, "tcp_rr-1024B-8i").samples);
        let lost = |results: &mut Results, blocks: std::ops::Range<usize>| {
            let is = |s: &&mut Sample| s.contender == pair[1] && s.scenario.ends_with("64i");
            let samples = results.samples.iter_mut().filter(is);
            samples.filter(|s| blocks.contains(&s.block)).for_each(|s| s.figures = None);
        };
        for blocks in [0..5, 1..5, 0..3] {
            let mut failed = failed.clone();
            lost(&mut failed, blocks);
            let (found, lines) = verdict("C10", &failed);
            assert_eq!(found, ClaimVerdict::NotConverged, "{lines:?}");
            assert!(lines[0].contains("1 of 2 scenarios: 1.50 ["), "{lines:?}");
            assert!(lines[0].contains("; 1 failed; claimed"), "{lines:?}");
        }
        // No block has results of both scenarios.
        failed.samples.retain(|s| s.block % 2 == usize::from(s.scenario.ends_with("64i")));
        let (found, lines) = verdict("C10", &failed);
        assert_eq!((found, lines.len()), (ClaimVerdict::NotConverged, 1), "{lines:?}");
        assert!(lines[0].contains("1 of 2 scenarios: 1.50 ["), "{lines:?}");
        // A single scenario is not conclusive.
        assert_eq!(verdict("C10", &of(1.4, 1.5, "tcp_rr-1024B-8i")).0, ClaimVerdict::NotConverged);
    }

    #[test]
    fn cost_at_a_fixed_rate_is_open_when_a_contender_did_not_hold_the_rate() {
        let [vxlan, qinq]: [Contender; 2] =
            ["weft-user-vxlan".parse().unwrap(), "weft-user-qinq".parse().unwrap()];
        let of = |held: f64| {
            let figures = move |contender, block| {
                let cost = if contender == qinq { 0.2 } else { 1.0 };
                let gbps = if contender == vxlan && block == 1 { held } else { 2.0 };
                Figures { gbps: Some(gbps), cpu_seconds_per_gbit: Some(cost), ..Figures::default() }
            };
            let scenario = "5xtcp_stream-131072B-128i-400M";
            let mut slow = results(Study::Qinq, 3, &[vxlan], scenario, figures);
            let mut fast = results(Study::Qinq, 3, &[qinq], scenario, figures);
            fast.samples.iter_mut().for_each(|sample| sample.shape.profile = Profile::Full);
            slow.samples.extend(fast.samples);
            for sample in &mut slow.samples {
                sample.figures.take_if(|figures| figures.gbps == Some(0.0));
            }
            verdict("C15", &slow)
        };
        assert_eq!(of(1.95).0, ClaimVerdict::Holds);
        // A run without traffic has no figures.
        for (held, why) in [
            (1.3, "weft user vxlan held 1.3 of 2 Gb/s at worst"),
            (0.0, "runs of weft user vxlan that failed: 1"),
        ] {
            let (found, lines) = of(held);
            assert_eq!(found, ClaimVerdict::NotConverged);
            assert!(lines[0].contains(&format!("; {why}; claimed")), "{lines:?}");
        }
    }

    #[test]
    fn small_packets_are_not_answered_when_the_noise_is_as_large_as_the_answer() {
        let of = |scale: f64| {
            let mut results = results(
                Study::SmallPackets,
                5,
                &[Contender::Direct],
                "packet_rate-18B-8i",
                |_, _| Figures { packets_per_second: Some(1000.0), ..Figures::default() },
            );
            for sample in results.samples.iter_mut().filter(|sample| sample.again) {
                sample.figures.as_mut().unwrap().packets_per_second = Some(1000.0 * scale);
            }
            verdict("C4", &results)
        };
        assert_eq!(of(1.3).0, ClaimVerdict::Answered);
        let (found, lines) = of(1.5);
        assert_eq!(found, ClaimVerdict::NotConverged);
        assert!(
            lines[0].ends_with("A/A up to 1.50 times, so [0.67, 1.50]: not converged here"),
            "{lines:?}"
        );
    }

    #[test]
    fn small_packets_have_their_rate_and_their_cost_from_their_own_tables() {
        let of = |scenario: &str| {
            results(Study::SmallPackets, 3, &[Contender::Direct], scenario, |contender, _| {
                let cost = if contender == Contender::Direct { 2.0 } else { 5.0 };
                let packets_per_second = Some(1000.0);
                Figures { packets_per_second, cpu_us_each: Some(cost), ..Figures::default() }
            })
        };
        let mut both = of("packet_rate-18B-8i");
        both.samples.extend(of("udp_stream-18B-8i-3M").samples);
        let (found, lines) = verdict("C4", &both);
        assert_eq!(found, ClaimVerdict::Answered);
        let has = |text: &str| lines.iter().any(|line| line.contains(text));
        assert!(
            has("Linux bridge, packet_rate-18B-8i: 1000 [1000, 1000] packets a second"),
            "{lines:?}"
        );
        assert!(has("Linux bridge, udp_stream-18B-8i-3M: 3.00 [3.00, 3.00] µs"), "{lines:?}");
    }

    #[test]
    fn claim_is_no_stronger_than_its_measurements() {
        let claim = verdicts(&empty(1))[0].claim;
        let good = || check(0.96, 1.1, Ok(1.1));
        let bad = || check(0.1, 0.2, Ok(1.1));
        let open = || check(0.1, 2.0, Ok(1.1));
        let of = |checks: &[Check]| combine(claim, "", checks).words();
        assert_eq!(of(&[good(), good()]), "holds");
        assert_eq!(of(&[bad(), bad()]), "does not hold");
        assert_eq!(of(&[good(), bad(), open()]), "holds in part");
        assert_eq!(of(&[good(), open(), open()]), "holds so far (1 of 3)");
        assert_eq!(of(&[bad(), open()]), "does not hold so far (1 of 2)");
        assert_eq!(of(&[open(), open()]), "not converged here");
        assert_eq!(of(&[]), "not testable here");
    }
}
