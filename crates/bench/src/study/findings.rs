//! What a run has found, in three sentences and the claims that it decides: for whoever reads no report.

use super::catalogue::Study;
use super::claims::{Finding, Verdict, verdicts};
use super::markdown;
use super::results::Results;
use super::summary::{Row, tables};
use crate::exact;
use crate::lab::{Contender, Datapath, OvsTunnel, Profile};
use network::TunnelType;

/// The scenario by which throughput is told: one stream in plain writes, as published in 2012.
const STREAM: &str = "tcp_stream-32768B-1i";
/// Those that are told of.
const TOLD: [Contender; 6] = [
    Contender::KERNEL_VXLAN,
    Contender::OVS_VXLAN,
    Contender::Ovs(Datapath::Kernel, OvsTunnel::Vxlan),
    Contender::Weft(Datapath::Kernel, TunnelType::Vxlan),
    Contender::Weft(Datapath::Kernel, TunnelType::Vlan),
    Contender::Weft(Datapath::User, TunnelType::Vxlan),
];

/// What became of the claims, what a stream reaches, and what a message costs, as Markdown. `copied` are counts on a wire that hands over
/// copies, where there are some.
pub fn findings(
    results: &Results,
    counted: &[exact::Row],
    copied: Option<&[exact::Row]>,
) -> [String; 3] {
    let copied = copied.map(|rows| {
        format!("; on a wire that hands over copies, as network cards do: {}", costs(rows))
    });
    let message = match counted {
        [] => "no instructions were counted".to_owned(),
        rows => format!("instructions for switching a message over TCP one way: {}", costs(rows)),
    };
    [claims(&verdicts(results)), stream(results), message + &copied.unwrap_or_default()]
}

/// The claims that are decided each in a line of its own, the others by number.
fn claims(all: &[Finding]) -> String {
    let is_decided = |verdict: &Verdict| {
        matches!(verdict, Verdict::Holds | Verdict::HoldsInPart | Verdict::DoesNotHold)
    };
    let with = |verdict| all.iter().filter(move |finding| finding.verdict == verdict);
    let (decided, open): (Vec<_>, Vec<_>) = Verdict::ALL.into_iter().partition(is_decided);
    let open = open.into_iter().filter_map(|verdict| {
        let ids: Vec<_> = with(verdict).map(|finding| finding.claim.id).collect();
        (!ids.is_empty()).then(|| format!("{}: {}", verdict.words(), ids.join(", ")))
    });
    let decided: Vec<_> = decided.into_iter().flat_map(with).collect();
    let mut parts: Vec<_> = open.collect();
    if !decided.is_empty() {
        parts.push(format!("settled: {}", decided.len()));
    }
    let lines = decided.iter().map(|Finding { claim, verdict, .. }| {
        format!("\n  - {}: {} ({})", verdict.words(), claim.text, claim.id)
    });
    format!("of {} claims, {}{}", all.len(), parts.join("; "), lines.collect::<String>())
}

fn stream(results: &Results) -> String {
    let mut tables = tables(results).into_iter();
    let table = tables.find(|table| {
        (table.study.as_str(), table.scenario.as_str(), table.shape.profile)
            == (Study::SoftwareTunnelling.name(), STREAM, Profile::Full)
    });
    let Some(table) = table else { return "no stream beside the bridge was measured".to_owned() };
    let ratio =
        |row: &Row| Some(format!("{} {}", row.contender, markdown::estimate(Some(row.ratio?))));
    let told: Vec<_> = TOLD.iter().filter_map(|who| ratio(table.row(*who)?)).collect();
    let doubt = match table.noise {
        Some(again) if !table.converged() => format!(
            " (not converged: the bridge, measured again, carries {} of what it did)",
            markdown::estimate(Some(again))
        ),
        Some(_) => String::new(),
        None => " (the bridge was not measured again)".to_owned(),
    };
    format!(
        "one stream of TCP, of what a Linux bridge without a tunnel carries{doubt}: {}",
        told.join(", ")
    )
}

fn costs(counted: &[exact::Row]) -> String {
    let order = [&[Contender::LinuxBridge], &TOLD[..]].concat();
    let of = |who: Contender| {
        let row = counted.iter().find(|row| row.contender == who)?;
        Some(format!("{who} {:.0}", row.switching().tcp))
    };
    order.into_iter().filter_map(of).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::{Baseline, Counts};
    use crate::lab::Shape;
    use crate::study::{Figures, Sample};
    use std::path::Path;

    #[test]
    fn sentences_say_what_was_measured_and_nothing_else() {
        let mut results = super::super::run::empty(2);
        for block in 0..2 {
            for (contender, again, gbps) in [
                (Contender::LinuxBridge, false, 10.0),
                (Contender::LinuxBridge, true, 10.0),
                (Contender::KERNEL_VXLAN, false, 8.0),
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
        let total = Counts { tcp: 900.0, udp: 0.0, stream: 0.0 };
        let wire = Counts { tcp: 200.0, ..total };
        let row = exact::Row { contender: Contender::LinuxBridge, total, wire };
        let copied = [exact::Row { total: Counts { tcp: 1000.0, ..total }, ..row.clone() }];
        let [claims, stream, message] = findings(&results, &[row], Some(&copied));
        assert!(claims.starts_with("of 17 claims, not testable here: C1, C2"), "{claims}");
        assert!(message.ends_with("network cards do: Linux bridge 800"), "{message}");
        assert!(stream.ends_with("carries: kernel vxlan 0.80 [0.80, 0.80]"), "{stream}");
        for sample in results.samples.iter_mut().filter(|sample| sample.again) {
            sample.figures = Some(Figures { gbps: Some(15.0), ..Figures::default() });
        }
        let [_, stream, _] = findings(&results, &[], None);
        assert!(stream.contains("measured again, carries 1.50 [1.50, 1.50] of what"), "{stream}");
        assert!(message.contains("one way: Linux bridge 700; on"), "{message}");
    }

    #[test]
    fn decided_claims_are_told_once_and_in_words() {
        let mut all = verdicts(&super::super::run::empty(1));
        all[1].verdict = Verdict::DoesNotHold;
        all[2].verdict = Verdict::NotConverged;
        all[7].verdict = Verdict::Holds;
        let told = claims(&all);
        let [holds, does_not] =
            [7, 1].map(|at: usize| format!("{} ({})", all[at].claim.text, all[at].claim.id));
        assert!(
            told.starts_with("of 17 claims, not converged here: C3; not testable here: C1, C4, "),
            "{told}"
        );
        let end = format!("C17; settled: 2\n  - holds: {holds}\n  - does not hold: {does_not}");
        assert!(told.ends_with(&end), "{told}");
        assert_eq!(told.matches("C8").count(), 1);
    }

    /// The README names the run that its findings are from.
    #[test]
    fn readme_says_what_the_kept_run_has_found() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
        // As long as no run is kept, it names none.
        let Some((_, rest)) = readme.split_once("<!-- findings docs/") else { return };
        let (name, rest) = rest.split_once(" -->\n").unwrap();
        let directory = format!("docs/{name}");
        let (section, _) = rest.split_once("<!-- /findings -->").unwrap();
        let results = Results::read(&root.join(&directory).join("results.json")).unwrap();
        let counted = Baseline::read(&root.join(&directory).join("exact.json")).unwrap();
        let copied = Baseline::read(&root.join(&directory).join("exact-copies.json")).ok();
        let rows = |of: &Baseline| -> Vec<_> { of.counted().cloned().collect() };
        let copied = copied.as_ref().map(rows);
        let lines = findings(&results, &rows(&counted), copied.as_deref());
        let lines = lines.map(|finding| format!("- {finding}\n"));
        assert_eq!(section, lines.concat(), "cargo xtask results --findings {directory}");
    }
}
