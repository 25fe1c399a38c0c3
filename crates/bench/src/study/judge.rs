//! Whether a claim holds here: what its checks come to.

use super::catalogue::Study;
use super::checks::{checks, steering};
use super::claims::{Claim, Finding, Verdict};
use super::select::{Evidence, Ratio};
use super::summary::Metric;
use crate::stats::Estimate;

/// One measurement that speaks for or against a claim.
pub(super) struct Check {
    pub(super) what: String,
    /// `None` when it was not measured.
    pub(super) found: Option<Ratio>,
    /// What it has to lie between.
    pub(super) range: (f64, f64),
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
            "it is about how features are written, and nothing that is measured speaks for or against it; weft carries logical ports in \
             Geneve and STT",
        );
    }
    if !evidence.results.studies.iter().any(|name| name == claim.study.name()) {
        return untestable(&format!("the study {} was not run", claim.study));
    }
    match claim.id {
        "C4" => small_packets(claim, evidence),
        "C12" => {
            let by = "RPS as the substitute: eight streams with it over without it, Gb/s, 1.05 or more, with outer source ports that differ \
                      and with one for all. What a card's own hash does cannot be tested on a veth pair, which has none: `weft doctor` \
                      asks a real card";
            let mut finding = combine(claim, by, &steering(evidence));
            finding.evidence.extend(super::select::spread(evidence.results));
            finding
        }
        "C17" => untestable(
            "it needs a card that inserts tags: a veth device hands them over beside the frame, and weft writes its own; `weft bench exact` \
             counts what two tags cost in software",
        ),
        _ => {
            let (by, checks) = checks(claim.id, evidence);
            combine(claim, by, &checks)
        }
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

/// A question: each line of the answer is one figure, with its interval.
fn small_packets(claim: Claim, evidence: &Evidence<'_>) -> Finding {
    let (mut lines, mut converged) = (Vec::new(), true);
    let figure = |estimate: Estimate| super::markdown::estimate(Some(estimate));
    let tables = evidence.of_study(Study::SmallPackets);
    for table in tables.filter(|table| table.metric == Metric::Packets) {
        converged &= table.converged();
        for row in &table.rows {
            let runs = row.value.map_or(0, |value| value.runs);
            let who = format!("{}, {}", row.contender, table.scenario);
            let rate = table.scenario.starts_with("packet_rate");
            if let (true, Some(value), Some(ratio)) = (rate, row.value, row.ratio) {
                let (value, ratio) = (figure(value), figure(ratio));
                lines.push(format!(
                    "{who}: {value} packets a second, {ratio} of the bridge; {runs} runs"
                ));
            } else if let (false, Some(cost)) = (rate, row.switching) {
                let cost = figure(cost);
                lines.push(format!(
                    "{who}: {cost} µs of processor time for switching a packet; {runs} runs"
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
    let why = match verdict {
        Verdict::NotTestable => "nobody who takes part here was measured for it",
        _ => {
            "the highest rate at which 99 % of the packets arrive; and at the same rate for all, the processor time of the whole \
             machine less that with one veth and no switch. What more flows cost is the study `flows`"
        }
    };
    Finding { claim, verdict, why: why.to_owned(), evidence: lines }
}

#[cfg(test)]
mod tests {
    use super::super::results::{Figures, Results, Sample};
    use super::*;
    use crate::lab::{Contender, Profile, Shape};

    fn check(low: f64, high: f64, runs: usize, unsteady: Option<&str>) -> Check {
        let estimate = Estimate { median: 1.0, low, high, runs };
        let unsteady = unsteady.map(str::to_owned);
        let found = Some(Ratio { estimate, unsteady });
        Check { what: String::new(), found, range: (0.95, f64::INFINITY) }
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

    /// Results of one study: what `of` gives for each contender and block.
    fn results(
        study: Study,
        runs: usize,
        contenders: &[Contender],
        scenario: &str,
        of: impl Fn(Contender, usize) -> Figures,
    ) -> Results {
        let mut results = super::super::run::empty(runs);
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

    fn verdict(id: &str, results: &Results) -> (Verdict, Vec<String>) {
        let mut all = super::super::claims::verdicts(results).into_iter();
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
        assert_eq!(of(1450.0).0, Verdict::Holds);
        assert_eq!(of(1454.0).0, Verdict::DoesNotHold);
        assert_eq!(of(1446.0).0, Verdict::DoesNotHold);
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
                    _ => 0.0,
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
        assert_eq!(found, Verdict::Holds, "{lines:?}");
        assert!(lines[0].contains("20.00 ["), "{lines:?}");
        assert_eq!(of(0.01, 7).0, Verdict::DoesNotHold);
        assert_eq!(of(0.2, 2).0, Verdict::NotTestable);
    }

    #[test]
    fn scenarios_are_judged_one_by_one_when_geneve_is_compared() {
        let pair: [Contender; 2] =
            ["weft-user-vxlan".parse().unwrap(), "weft-user-geneve".parse().unwrap()];
        let of = |better: f64, scenario| {
            let rate = move |contender, _| {
                let rate = if contender == pair[1] { 100.0 * better } else { 100.0 };
                Figures { transactions_per_second: Some(rate), ..Figures::default() }
            };
            results(Study::GeneveVsVxlan, 3, &pair, scenario, rate)
        };
        let mut both = of(1.2, "tcp_rr-1024B-8i");
        both.samples.extend(of(0.5, "udp_rr-64B-8i").samples);
        let (found, lines) = verdict("C10", &both);
        assert_eq!((found, lines.len()), (Verdict::HoldsInPart, 2), "{lines:?}");
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
        assert_eq!(found, Verdict::Answered);
        let has = |text: &str| lines.iter().any(|line| line.contains(text));
        assert!(
            has("Linux bridge, packet_rate-18B-8i: 1000 [1000, 1000] packets a second"),
            "{lines:?}"
        );
        assert!(has("Linux bridge, udp_stream-18B-8i-3M: 3.00 [3.00, 3.00] µs"), "{lines:?}");
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
