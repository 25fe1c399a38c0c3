//! `report.md`: verdicts, evidence, tables, and the machine.

use std::fmt::{self, Write};

use super::published;
use crate::study::format::{estimate, number};
use crate::study::model::{ClaimVerdict, Finding, INTERLEAVED, Results, Study, blocks_by_study};
use crate::study::verdict::{AGREEMENT, Row, Table, spread, tables};

/// The report on `results`.
pub fn markdown(results: &Results) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_report(&mut text, results);
    text
}

fn write_report(out: &mut String, results: &Results) -> fmt::Result {
    writeln!(out, "# weft bench: what holds on this machine\n")?;
    writeln!(out, "{}\n", method(results))?;
    if !results.complete {
        writeln!(out, "**The run ended before everything was measured.**\n")?;
    }
    writeln!(out, "## Verdicts\n\n| | claim | here |\n|---|---|---|")?;
    for finding in &results.verdicts {
        let claim = finding.claim;
        writeln!(out, "| {} | {} | **{}** |", claim.id, claim.text, finding.words())?;
    }
    writeln!(out, "\n### Evidence\n")?;
    for Finding { claim, why, evidence, .. } in &results.verdicts {
        writeln!(out, "- **{}**: {why}", claim.id)?;
        for line in evidence {
            writeln!(out, "  - {line}")?;
        }
    }
    let tables = tables(results);
    for study in Study::ALL {
        let mine: Vec<_> = tables.iter().filter(|t| t.study == study.name()).collect();
        if !mine.is_empty() {
            write_study(out, study, &mine)?;
            if study == Study::Entropy {
                spread(results).iter().try_for_each(|line| writeln!(out, "- {line}"))?;
            }
        }
    }
    write_environment(out, results)
}

/// The number of claims with each verdict, in a sentence.
pub(super) fn tally(findings: &[Finding]) -> String {
    let of = |verdict: ClaimVerdict| {
        let count = findings.iter().filter(|finding| finding.verdict == verdict).count();
        (count > 0).then(|| format!("{count} {}", verdict.words()))
    };
    let parts: Vec<_> = ClaimVerdict::ALL.into_iter().filter_map(of).collect();
    format!("{} claims: {}. Click on a claim for its evidence.", findings.len(), parts.join(", "))
}

/// The method of the run: repetitions and durations.
pub(super) fn method(results: &Results) -> String {
    let Results { seconds, blocks, quick, .. } = results;
    let quick = if *quick { " This was a quick run." } else { "" };
    let each = blocks_by_study(&results.samples);
    let (fewest, most) =
        (each.values().min().unwrap_or(blocks), each.values().max().unwrap_or(blocks));
    let blocks = if fewest == most { most.to_string() } else { format!("{fewest} to {most}") };
    let blocks = if results.schema < INTERLEAVED {
        format!("{blocks} blocks on each underlay measure every contender")
    } else {
        format!("{blocks} blocks of each study measure every contender on every underlay")
    };
    format!(
        "{}. Each measurement lasts {seconds} s. {blocks} in random order, and the bridge twice. \
         Ratios are taken within blocks; figures are medians with bootstrap 95 % intervals and the \
         number of runs. A claim is judged by an interval that is widened by the difference of the \
         bridge from itself (A/A). It is left open where that interval crosses the claim's \
         limit.{quick}",
        results.environment
    )
}

/// The underlay and the guests of a table.
pub(super) fn underlay(table: &Table) -> String {
    let shape = table.shape;
    let mut text = format!(
        "profile `{}`, underlay {} with MTU {}",
        shape.profile, shape.family, shape.uplink_mtu
    );
    if let Some(mtu) = shape.guest_mtu {
        let _ = write!(text, ", guests {mtu}");
    }
    if let Some(checksum) = shape.outer_checksum {
        let _ = write!(text, ", outer checksum {}", if checksum { "on" } else { "off" });
    }
    if shape.one_source_port {
        text += ", all flows from one outer source port";
    }
    if shape.steering {
        text += ", received flows steered to all processors";
    }
    text
}

/// The result of a table's A/A check, which compares two runs of one contender.
pub(super) fn noise(table: &Table) -> String {
    let Some(rate) = table.noise else {
        return "A/A: without a second run the noise is unknown: **not converged**.".to_owned();
    };
    let cost = table
        .cost_noise
        .map_or_else(String::new, |cost| format!(", its processor cost {}", estimate(Some(cost))));
    let end = if table.converged() {
        "converged."
    } else {
        "**not converged**; smaller differences mean nothing, and claims are widened by it."
    };
    format!("A/A: the second run over the first {}{cost}; {end}", estimate(Some(rate)))
}

fn write_study(out: &mut String, study: Study, tables: &[&Table]) -> fmt::Result {
    writeln!(out, "\n## {study}\n\n{} {}", study.question(), study.differences())?;
    if let Some(published) = published::markdown(study) {
        writeln!(out, "\n### As published\n\n{published}")?;
    }
    for table in tables {
        writeln!(out, "\n### {}, {}\n", table.scenario, underlay(table))?;
        let (unit, cost) = (table.metric.unit(), table.metric.cost_unit());
        writeln!(
            out,
            "| contender | guest MTU | {unit} | of bridge | runs | dev. % | {cost} | of bridge \
             | switching | p50/p99/p99.9 µs | frames/s | resent | steal |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|"
        )?;
        for row in &table.rows {
            write_row(out, row)?;
        }
        writeln!(out, "\n{}", noise(table))?;
    }
    Ok(())
}

fn write_row(out: &mut String, row: &Row) -> fmt::Result {
    if let (None, Some(failure)) = (row.value, &row.failure) {
        let why = failure.lines().next().unwrap_or_default().replace('|', "/");
        return writeln!(out, "| {} | FAILED: {why} ||||||||||||", row.contender);
    }
    let runs = row.value.map_or(0, |value| value.runs);
    let part = if row.failure.is_some() { " (some runs failed)" } else { "" };
    let deviation = row.deviation.map_or("-".to_owned(), |deviation| {
        let mark = if deviation > AGREEMENT { "!" } else { "" };
        format!("{:.1}{mark}", deviation * 100.0)
    });
    let latency = row
        .latency_us
        .map_or("-".to_owned(), |[p50, p99, p999]| format!("{p50:.0} / {p99:.0} / {p999:.0}"));
    let mtu = row.guest_mtu.map_or("-".to_owned(), |mtu| mtu.to_string());
    let frames = row.wire_frames_per_second.map_or("-".to_owned(), number);
    writeln!(
        out,
        "| {}{part} | {mtu} | {} | {} | {runs} | {deviation} | {} | {} | {} | {latency} | {frames} \
         | {} | {:.0} % |",
        row.contender,
        estimate(row.value),
        estimate(row.ratio),
        estimate(row.cost),
        estimate(row.cost_ratio),
        estimate(row.switching),
        row.retransmitted,
        row.cpu_steal * 100.0,
    )
}

fn write_environment(out: &mut String, results: &Results) -> fmt::Result {
    writeln!(out, "\n## Environment\n\n| | |\n|---|---|")?;
    for (what, value) in environment(results) {
        writeln!(out, "| {what} | {} |", value.replace('|', "/"))?;
    }
    Ok(())
}

/// Key-value pairs that describe the machine and the unavailable contenders.
pub(super) fn environment(results: &Results) -> Vec<(String, String)> {
    let machine = &results.environment;
    let mut pairs = vec![
        ("date".to_owned(), machine.date.clone()),
        ("processors".to_owned(), format!("{} x {}", machine.cores, machine.cpu_model)),
        ("kernel".to_owned(), machine.kernel.clone()),
        (
            "weft".to_owned(),
            format!(
                "{} ({})",
                machine.version,
                machine.commit.as_deref().unwrap_or("commit unknown")
            ),
        ),
        (
            "Open vSwitch".to_owned(),
            machine.open_vswitch.clone().unwrap_or_else(|| "not installed".to_owned()),
        ),
        ("congestion control".to_owned(), machine.congestion_control.clone()),
        ("mitigations".to_owned(), machine.mitigations.join("; ")),
    ];
    let steal = results.samples.iter().filter_map(|s| Some(s.figures.as_ref()?.cpu_steal));
    let steal = steal.fold(0.0, f64::max);
    pairs.push((
        "stolen by the hypervisor".to_owned(),
        format!("up to {:.0} % of a run", steal * 100.0),
    ));
    for (profile, flags) in &results.offloads {
        let off: Vec<_> =
            flags.iter().filter(|(_, on)| !**on).map(|(name, _)| name.as_str()).collect();
        let off = if off.is_empty() { "nothing".to_owned() } else { off.join(", ") };
        pairs.push((format!("off with profile {profile}"), off));
    }
    for left_out in &results.left_out {
        pairs.push((format!("left out: {}", left_out.contender), left_out.why.clone()));
    }
    pairs
}
