//! The summary of a run in three sentences, with the figures of each.

use crate::exact::{Baseline, Row};
use crate::lab::{Contender, Datapath, OvsTunnel, Profile};
use crate::study::format;
use crate::study::model::{BASE, ClaimVerdict, Finding, Results, Study};
use crate::study::verdict::{Evidence, Ratio, SampleSelector};
use network::TunnelType;

/// The scenario of the throughput sentence: one stream, as published in 2012.
const STREAM: &str = "tcp_stream-32768B-1i";
/// VXLAN with weft's kernel datapath, which is compared with kernel VXLAN.
const PROGRAMS: Contender = Contender::Weft(Datapath::Kernel, TunnelType::Vxlan);
/// The contenders of the summary, and their names in sentences.
const REPORTED: [(Contender, &str); 6] = [
    (Contender::KERNEL_VXLAN, "kernel VXLAN"),
    (Contender::OVS_VXLAN, "Open vSwitch in userspace"),
    (Contender::Ovs(Datapath::Kernel, OvsTunnel::Vxlan), "Open vSwitch's kernel module"),
    (PROGRAMS, "weft's VXLAN in the kernel"),
    (Contender::Weft(Datapath::Kernel, TunnelType::Vlan), "weft's VLAN in the kernel"),
    (Contender::Weft(Datapath::User, TunnelType::Vxlan), "weft's VXLAN in userspace"),
];

/// The verdicts, the throughput of a stream, and the cost of a message, as items of a Markdown
/// list. `copied` are the counts with [`Wire::Copies`](crate::exact::Wire::Copies), if there are
/// any.
pub fn findings(results: &Results, counted: &Baseline, copied: Option<&Baseline>) -> [String; 3] {
    [claims(&results.verdicts), stream(results), message(counted, copied)]
}

/// A list item with `sentence`, and a sub-item for each of `figures`.
fn item(sentence: &str, figures: impl IntoIterator<Item = String>) -> String {
    let figures = figures.into_iter().map(|figures| format!("\n  - {figures}"));
    format!("**{sentence}**{}", figures.collect::<String>())
}

/// Joins words to `a, b and c`.
fn list(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// One line for each conclusive claim, and the numbers of the other claims.
fn claims(all: &[Finding]) -> String {
    let with = |verdict| -> Vec<&Finding> {
        all.iter().filter(|finding| finding.verdict == verdict).collect()
    };
    let unknown = [
        (ClaimVerdict::NotConverged, "the noise or the conditions of the run allow both"),
        (ClaimVerdict::NotTestable, "the machine or the run lacks what they need"),
    ];
    let open = unknown.map(|(verdict, why)| (with(verdict), verdict, why));
    let open: Vec<_> = open.into_iter().filter(|(claims, ..)| !claims.is_empty()).collect();
    let so_far = [ClaimVerdict::HoldsSoFar, ClaimVerdict::DoesNotHoldSoFar];
    let in_part: usize = so_far.iter().map(|verdict| with(*verdict).len()).sum();
    let inconclusive: usize = open.iter().map(|(claims, ..)| claims.len()).sum();
    let why: Vec<_> =
        open.iter().map(|(claims, _, why)| format!("{} because {why}", claims.len())).collect();
    let sentence = format!(
        "This run settles {} of {} claims about tunnels and has evidence for or against {in_part} \
         more. It leaves {inconclusive} open{}{}.",
        all.len() - in_part - inconclusive,
        all.len(),
        if why.is_empty() { "" } else { ": " },
        why.join(", ")
    );
    let conclusive =
        ClaimVerdict::ALL.into_iter().filter(|verdict| unknown.iter().all(|(it, _)| it != verdict));
    let numbers = open.iter().map(|(claims, verdict, _)| {
        let ids: Vec<_> = claims.iter().map(|finding| finding.claim.id).collect();
        format!("{}: {}", verdict.words(), ids.join(", "))
    });
    item(&sentence, conclusive.flat_map(with).map(line).chain(numbers))
}

/// A claim with its verdict, and the number of conclusive measurements if some did not converge.
fn line(Finding { claim, verdict, measurements, .. }: &Finding) -> String {
    let by = match verdict {
        ClaimVerdict::HoldsSoFar | ClaimVerdict::DoesNotHoldSoFar => {
            let judged = measurements.agree + measurements.disagree;
            format!(", by {judged} of {} measurements", measurements.all())
        }
        _ => String::new(),
    };
    format!("{}{by}: {} ({})", verdict.words(), claim.text, claim.id)
}

/// One TCP stream through a contender of the summary.
struct Stream {
    who: Contender,
    words: &'static str,
    /// The throughput divided by that of the bridge.
    ratio: Ratio,
}

impl Stream {
    /// True when it is slower than the bridge, false when faster, or why this is unknown. A
    /// difference within the noise is unknown, as in the verdicts on claims.
    fn is_slower_than_bridge(&self, evidence: &Evidence<'_>) -> Result<bool, String> {
        match self.ratio.widened()? {
            (_, high, _) if high < 1.0 => Ok(true),
            (low, ..) if low > 1.0 => Ok(false),
            _ => {
                let again = noise(evidence);
                Err(format!(
                    "the intervals, widened by the difference of the bridge from itself \
                     ({again}), lie on both sides"
                ))
            }
        }
    }
}

fn stream(results: &Results) -> String {
    let evidence = Evidence::of(results);
    let pick =
        |who| SampleSelector::new(Study::SoftwareTunnelling, who, STREAM).profile(Profile::Full);
    let streams = REPORTED.into_iter().filter_map(|(who, words)| {
        let ratio = pick(who).over(&pick(BASE), &evidence, |figures| figures.gbps)?;
        Some(Stream { who, words, ratio })
    });
    let streams: Vec<_> = streams.collect();
    if streams.is_empty() {
        return item("No stream beside the bridge was measured.", []);
    }
    let (mut slower, mut faster, mut open, mut doubt) = (vec![], vec![], vec![], String::new());
    for stream in &streams {
        match stream.is_slower_than_bridge(&evidence) {
            Ok(true) => slower.push(stream.words),
            Ok(false) => faster.push(stream.words),
            Err(why) => {
                open.push(stream.words);
                doubt = why;
            }
        }
    }
    let apart: Vec<_> = [("slower", slower), ("faster", faster)]
        .into_iter()
        .filter(|(_, those)| !those.is_empty())
        .map(|(which, those)| format!("{which} through {}", list(&those)))
        .collect();
    let (apart, of) = (apart.join(" and "), list(&open));
    let than = "than across a Linux bridge without a tunnel";
    let sentence = match (apart.is_empty(), open.is_empty()) {
        (_, true) => format!("One TCP stream is {apart} {than}."),
        (false, _) => {
            format!("One TCP stream is {apart} {than}. Of {of} this run cannot tell: {doubt}.")
        }
        (true, _) => format!(
            "This run cannot tell whether one TCP stream is slower through {of} {than}. \
             The reason: {doubt}."
        ),
    };
    let estimate = |Stream { who, ratio, .. }: &Stream| {
        format!("{who} {}", format::estimate(Some(ratio.estimate)))
    };
    let figures: Vec<_> = streams.iter().map(estimate).collect();
    item(&sentence, [format!("of what the bridge carries: {}", figures.join(", "))])
}

/// The throughput of the bridge's second run divided by that of its first (A/A).
fn noise(evidence: &Evidence<'_>) -> String {
    let table = evidence
        .of_study(Study::SoftwareTunnelling)
        .find(|table| (table.scenario.as_str(), table.shape.profile) == (STREAM, Profile::Full));
    format::estimate(table.and_then(|table| table.noise))
}

fn message(counted: &Baseline, copied: Option<&Baseline>) -> String {
    let than =
        [" instructions than with kernel VXLAN", " than across a Linux bridge without a tunnel"];
    let sentence = match programs(counted, than) {
        None => {
            "The cost of a message with weft's VXLAN in the kernel was not counted beside kernel \
                 VXLAN"
                .to_owned()
        }
        Some([vxlan, bridge]) => format!(
            "Switching a TCP message with weft's VXLAN in the kernel datapath takes {vxlan}, and \
             {bridge}"
        ),
    };
    let copies = copied.and_then(|copied| programs(copied, [""; 2]));
    let copies = copies.map_or_else(String::new, |[vxlan, bridge]| {
        format!(
            ". On a wire that delivers copies, as network cards do, it takes {vxlan} and {bridge}"
        )
    });
    let figures = costs("where both hosts share packets", counted);
    let of_copies = copied.map(|copied| costs("on a wire that delivers copies", copied));
    item(
        &format!("{sentence}{copies}."),
        figures.into_iter().chain(of_copies.into_iter().flatten()),
    )
}

/// Compares the cost of VXLAN in weft's kernel datapath with kernel VXLAN and with the bridge.
fn programs(counted: &Baseline, than: [&str; 2]) -> Option<[String; 2]> {
    let of = |who: Contender| counted.counted().find(|row| row.contender == who).map(cost);
    let (weft, [vxlan, bridge]) = (of(PROGRAMS)?, than);
    Some([
        relative_cost(weft, of(Contender::KERNEL_VXLAN)?, vxlan),
        relative_cost(weft, of(BASE)?, bridge),
    ])
}

/// Instructions for switching a message over TCP, one way.
fn cost(row: &Row) -> f64 {
    row.switching().tcp
}

/// A comparison such as `21 % fewer than that (6,618 against 8,376)`.
fn relative_cost(weft: f64, other: f64, than: &str) -> String {
    let percent = (weft / other - 1.0) * 100.0;
    let which = if percent < 0.0 { "fewer" } else { "more" };
    let (weft, other) = (grouped(weft), grouped(other));
    format!("{:.0} % {which}{than} ({weft} against {other})", percent.abs())
}

/// A count with commas between groups of three digits.
fn grouped(count: f64) -> String {
    let digits = format!("{count:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The costs of the contenders in the summary, and the contenders that could not be counted.
fn costs(wire: &str, counted: &Baseline) -> Vec<String> {
    let of = |who: Contender| {
        let row = counted.counted().find(|row| row.contender == who)?;
        Some(format!("{who} {}", grouped(cost(row))))
    };
    let all = [BASE].into_iter().chain(REPORTED.map(|(who, _)| who));
    let reported: Vec<_> = all.filter_map(of).collect();
    let early = if counted.complete { "" } else { ", incomplete" };
    let failed: Vec<_> = counted.failed().map(|failed| failed.contender.to_string()).collect();
    let mut lines = Vec::new();
    if !reported.is_empty() {
        lines.push(format!(
            "instructions to switch it one way, {wire}{early}: {}",
            reported.join(", ")
        ));
    }
    if !failed.is_empty() {
        lines.push(format!("could not be counted, {wire}: {}", failed.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::{ContenderCounts, Counts, Failed, Wire, Workload};
    use crate::lab::Shape;
    use crate::study::model::{Figures, Sample, empty};
    use crate::study::verdict::{judged, verdicts};
    use std::path::Path;
    use std::sync::LazyLock;

    /// A run in which the bridge carries 10 Gb/s, and two other contenders less.
    fn results() -> Results {
        let mut results = empty(2);
        for block in 0..2 {
            for (contender, again, gbps) in [
                (BASE, false, 10.0),
                (BASE, true, 10.0),
                (Contender::KERNEL_VXLAN, false, 8.0),
                (Contender::OVS_VXLAN, false, 1.0),
            ] {
                results.samples.push(Sample {
                    study: Study::SoftwareTunnelling.name().to_owned(),
                    scenario: STREAM.to_owned(),
                    shape: Shape::default(),
                    contender,
                    block,
                    again,
                    figures: Some(Figures { gbps: Some(gbps), ..Figures::default() }),
                    failure: None,
                });
            }
        }
        results
    }

    /// Counts of `contenders`, each with its switching cost.
    fn counts(contenders: &[(Contender, f64)]) -> Baseline {
        let veth_pair = Counts { tcp: 200.0, udp: 0.0, stream: 0.0, connection: None };
        let row = |&(contender, tcp): &(Contender, f64)| {
            ContenderCounts::Counted(Row {
                contender,
                total: Counts { tcp: tcp + 200.0, ..veth_pair },
                veth_pair,
            })
        };
        let rows = contenders.iter().map(row).collect();
        let (kernel, workload) = ("k".to_owned(), Workload::SHORT);
        Baseline { schema: 2, kernel, workload, wire: Wire::Shared, complete: true, rows }
    }

    #[test]
    fn streams_differ_only_where_the_noise_leaves_no_doubt() {
        let mut results = results();
        let text = stream(&results);
        let slower = "is slower through kernel VXLAN and Open vSwitch in userspace than across a \
                      Linux bridge without a tunnel.**";
        assert!(text.contains(slower), "{text}");
        assert!(
            text.ends_with(
                "carries: kernel vxlan 0.80 [0.80, 0.80], OVS user vxlan 0.10 [0.10, 0.10]"
            ),
            "{text}"
        );
        for sample in results.samples.iter_mut().filter(|sample| sample.again) {
            sample.figures = Some(Figures { gbps: Some(15.0), ..Figures::default() });
        }
        let text = stream(&results);
        let slower = "is slower through Open vSwitch in userspace than across a Linux bridge \
                      without a tunnel. Of kernel VXLAN this run";
        assert!(text.contains(slower), "{text}");
        assert!(text.contains("from itself (1.50 [1.50, 1.50]), lie on both sides.**"), "{text}");
        results.samples.retain(|sample| !sample.again);
        let text = stream(&results);
        assert!(text.contains("The reason: without A/A runs"), "{text}");
        results.samples.clear();
        assert_eq!(stream(&results), "**No stream beside the bridge was measured.**");
    }

    #[test]
    fn message_is_compared_with_kernel_and_bridge_when_they_were_counted() {
        let who = [(BASE, 3591.0), (Contender::KERNEL_VXLAN, 8376.0), (PROGRAMS, 6618.0)];
        let (all, copied) = (counts(&who), counts(&who.map(|(who, tcp)| (who, tcp.min(5000.0)))));
        let text = message(&all, Some(&copied));
        let sentence = "takes 21 % fewer instructions than with kernel VXLAN (6,618 against 8,376), and 84 % more \
                        than across a Linux bridge without a tunnel (6,618 against 3,591). On";
        assert!(text.contains(sentence), "{text}");
        assert!(
            text.ends_with(
                "copies: Linux bridge 3,591, kernel vxlan 5,000, weft kernel vxlan 5,000"
            ),
            "{text}"
        );
    }

    #[test]
    fn contender_without_counts_is_named_without_figures() {
        let mut counted = counts(&[(BASE, 3591.0), (Contender::KERNEL_VXLAN, 8376.0)]);
        let failure = "the emulated machine could not measure".to_owned();
        counted.rows.push(ContenderCounts::Failed(Failed { contender: PROGRAMS, failure }));
        counted.complete = false;
        let text = message(&counted, None);
        assert!(text.contains("was not counted beside kernel VXLAN.**"), "{text}");
        assert!(text.contains("share packets, incomplete: Linux bridge 3,591"), "{text}");
        assert!(
            text.ends_with(
                "could not be counted, where both hosts share packets: weft kernel vxlan"
            ),
            "{text}"
        );
    }

    #[test]
    fn claims_of_the_run_are_reported_once_and_in_words() {
        let mut all = verdicts(&empty(1));
        all[1].verdict = ClaimVerdict::DoesNotHold;
        all[2].verdict = ClaimVerdict::NotConverged;
        all[3].verdict = ClaimVerdict::HoldsSoFar;
        all[7].verdict = ClaimVerdict::Holds;
        let text = claims(&all);
        let sentence = "settles 2 of 17 claims about tunnels and has evidence for or against 1 more. It leaves 14 open: 1 because the \
                        noise or the conditions of the run allow both, 13 because";
        assert!(text.contains(sentence), "{text}");
        for (at, words) in
            [(7, "holds"), (1, "does not hold"), (3, "holds so far, by 0 of 0 measurements")]
        {
            let Finding { claim, .. } = &all[at];
            assert!(
                text.contains(&format!("\n  - {words}: {} ({})\n", claim.text, claim.id)),
                "{text}"
            );
        }
        assert!(
            text.contains("\n  - not converged here: C3\n  - not testable here: C1, C5, "),
            "{text}"
        );
        assert_eq!(text.matches("C8").count(), 1);
    }

    /// The published run of all studies.
    const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/2026-11-23-bench");

    /// The published run with verdicts of the current code. Without compiler optimization they take
    /// long to compute.
    fn kept_run() -> &'static Results {
        static RUN: LazyLock<Results> =
            LazyLock::new(|| judged(Results::read(&Path::new(KEPT).join("results.json")).unwrap()));
        &RUN
    }

    #[test]
    fn kept_findings_equal_those_of_the_kept_run() {
        let directory = Path::new(KEPT);
        let counted = Baseline::read(&directory.join("exact.json")).unwrap();
        let copied = Baseline::read(&directory.join("exact-copies.json")).unwrap();
        let page = std::fs::read_to_string(directory.join("studies.md")).unwrap();
        for finding in findings(kept_run(), &counted, Some(&copied)) {
            assert!(
                page.contains(&format!("- {finding}\n")),
                "weft bench findings {KEPT}: {finding}"
            );
        }
    }

    #[test]
    fn kept_reports_equal_those_of_the_kept_run() {
        let directory = Path::new(KEPT);
        let results = kept_run();
        let how = format!("weft bench report {KEPT}/results.json --out {KEPT}");
        let kept = std::fs::read_to_string(directory.join("results.json")).unwrap();
        let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
        let verdicts = serde_json::to_value(&results.verdicts).unwrap();
        assert!(kept["verdicts"] == verdicts, "{how}");
        for (name, made) in [
            ("report.md", crate::study::markdown(results)),
            ("report.html", crate::study::html(results)),
        ] {
            let kept = std::fs::read_to_string(directory.join(name)).unwrap();
            assert!(kept == made, "{name}: {how}");
        }
    }
}
