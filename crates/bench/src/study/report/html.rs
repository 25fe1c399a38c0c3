//! `report.html`: one file that needs nothing else, for a screen, in the dark, and on paper.

use std::fmt::{self, Write};

use super::chart::{Chart, escape};
use super::markdown::{environment, how, noise, place, tally};
use super::published::{Published, published};
use crate::lab::Contender;
use crate::stats::Estimate;
use crate::study::format::number;
use crate::study::model::{ClaimVerdict, Finding, Results, Study};
use crate::study::verdict::{AGREEMENT, Metric, Row, Table, spread, tables, verdicts};

/// The report on `results`.
pub fn html(results: &Results) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_report(&mut text, results);
    text
}

fn write_report(out: &mut String, results: &Results) -> fmt::Result {
    writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>weft bench</title><style>\n{}</style></head><body>",
        include_str!("style.css")
    )?;
    writeln!(
        out,
        "<h1>weft bench: what holds on this machine</h1><p>{}</p>",
        escape(&how(results))
    )?;
    if !results.complete {
        writeln!(out, "<p class=\"warn\">The run was ended before all was measured.</p>")?;
    }
    let tables = tables(results);
    let of =
        |study: Study| tables.iter().filter(move |t| t.study == study.name()).collect::<Vec<_>>();
    let studies = Study::ALL.into_iter().filter(|study| !of(*study).is_empty());
    let studies: Vec<_> = studies.collect();
    write!(out, "<nav>")?;
    for study in &studies {
        write!(out, "<a href=\"#{study}\">{study}</a>")?;
    }
    writeln!(out, "<a href=\"#environment\">environment</a></nav>")?;
    write_verdicts(out, &verdicts(results))?;
    for study in studies {
        write_study(out, study, &of(study))?;
        if study == Study::Entropy {
            write_spread(out, results)?;
        }
    }
    write_environment(out, results)?;
    writeln!(out, "</body></html>")
}

fn write_verdicts(out: &mut String, findings: &[Finding]) -> fmt::Result {
    writeln!(out, "<p>{}</p>", escape(&tally(findings)))?;
    writeln!(
        out,
        "<table class=\"text claims\"><thead><tr><th></th><th>claim</th><th>here</th></tr></thead><tbody>"
    )?;
    for finding in findings {
        let Finding { claim, verdict, why, evidence, .. } = finding;
        let (text, why) = (escape(claim.text), escape(&why.replace('`', "")));
        write!(out, "<tr><td>{}</td><td>", claim.id)?;
        if evidence.is_empty() {
            write!(out, "{text}<br><small>{why}</small>")?;
        } else {
            write!(out, "<details><summary>{text}</summary>{why}<ul>")?;
            for line in evidence {
                write!(out, "<li>{}</li>", escape(line))?;
            }
            write!(out, "</ul></details>")?;
        }
        let (class, words) = (class(*verdict), finding.words());
        writeln!(out, "</td><td class=\"verdict {class}\">{words}</td></tr>")?;
    }
    writeln!(out, "</tbody></table>")
}

const fn class(verdict: ClaimVerdict) -> &'static str {
    match verdict {
        ClaimVerdict::Holds => "holds",
        ClaimVerdict::DoesNotHold => "does_not_hold",
        ClaimVerdict::HoldsInPart | ClaimVerdict::HoldsSoFar | ClaimVerdict::DoesNotHoldSoFar => {
            "holds_in_part"
        }
        ClaimVerdict::Answered => "answered",
        ClaimVerdict::NotConverged => "not_converged",
        ClaimVerdict::NotTestable => "not_testable",
    }
}

fn write_study(out: &mut String, study: Study, tables: &[&Table]) -> fmt::Result {
    writeln!(
        out,
        "<h2 id=\"{study}\">{study}</h2><p>{} <span class=\"soft\">{}</span></p>",
        escape(study.question()),
        escape(&study.differences().replace('`', ""))
    )?;
    if let Some(Published { source, columns, rows }) = published(study) {
        write!(out, "<h3>As published</h3><p class=\"soft\">{}</p>", escape(&source))?;
        write!(out, "<div class=\"scroll\"><table><thead><tr>")?;
        for column in columns {
            write!(out, "<th>{}</th>", escape(&column.replace('_', " ")))?;
        }
        write!(out, "</tr></thead><tbody>")?;
        for row in rows {
            write!(out, "<tr>")?;
            for cell in row {
                write!(out, "<td>{}</td>", escape(cell))?;
            }
            write!(out, "</tr>")?;
        }
        writeln!(out, "</tbody></table></div><h3>Measured here</h3>")?;
    }
    writeln!(
        out,
        "<p class=\"key\"><small><span class=\"weft\"></span>weft <span class=\"base\"></span>no tunnel \
         <span class=\"other\"></span>others; whiskers are 95 % intervals</small></p>"
    )?;
    for table in tables {
        write_table(out, table)?;
    }
    Ok(())
}

fn write_spread(out: &mut String, results: &Results) -> fmt::Result {
    writeln!(
        out,
        "<h3>spread<br><small>flows of a guest as a card would tell them apart</small></h3><ul>"
    )?;
    for line in spread(results) {
        writeln!(out, "<li>{}</li>", escape(&line))?;
    }
    writeln!(out, "</ul>")
}

fn write_table(out: &mut String, table: &Table) -> fmt::Result {
    let place = place(table).replace('`', "");
    let title = format!("{}, {place}", table.scenario);
    writeln!(out, "<h3>{}<br><small>{}</small></h3>", escape(&table.scenario), escape(&place))?;
    let unit = table.metric.unit();
    let bars = table.rows.iter().filter_map(|row| Some((row.contender, row.value?))).collect();
    let wire = table.row(Contender::Direct).and_then(|row| row.value);
    let limit = wire.map(|wire| (wire.median, "limit: one veth"));
    writeln!(out, "{}", Chart { axis: unit, title: &title, bars, limit }.svg())?;
    let cost = table.metric.cost_unit();
    let transactions = table.metric == Metric::Transactions;
    let latency = if transactions { "<th>p50 / p99 / p99.9 µs</th>" } else { "" };
    writeln!(
        out,
        "<div class=\"scroll\"><table><thead><tr><th>contender</th><th>MTU</th><th>{unit}</th><th>of bridge</th><th>runs</th><th>dev.</th>\
         <th>{cost}</th><th>of bridge</th><th>switching</th>{latency}<th>CPU</th><th>frames/s</th><th>resent</th><th>steal</th></tr></thead><tbody>"
    )?;
    for row in &table.rows {
        write_row(out, row, transactions)?;
    }
    let warn = if table.converged() { "soft" } else { "warn" };
    let noise = noise(table).replace("**", "");
    writeln!(out, "</tbody></table></div><p class=\"{warn}\"><small>{}</small></p>", escape(&noise))
}

fn write_row(out: &mut String, row: &Row, transactions: bool) -> fmt::Result {
    let name = escape(&row.contender.to_string());
    if let (None, Some(failure)) = (row.value, &row.failure) {
        let columns = if transactions { 13 } else { 12 };
        let why = escape(failure.lines().next().unwrap_or_default());
        return writeln!(
            out,
            "<tr><td>{name}</td><td class=\"failed\" colspan=\"{columns}\">failed: {why}</td></tr>"
        );
    }
    let part =
        if row.failure.is_some() { " <small class=\"warn\">some runs failed</small>" } else { "" };
    let deviation = row.deviation.map_or("-".to_owned(), |deviation| {
        let class = if deviation > AGREEMENT { " class=\"warn\"" } else { "" };
        format!("<span{class}>{:.0} %</span>", deviation * 100.0)
    });
    write!(
        out,
        "<tr><td>{name}{part}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{deviation}</td><td>{}</td><td>{}</td><td>{}</td>",
        row.guest_mtu.map_or("-".to_owned(), |mtu| mtu.to_string()),
        cell(row.value),
        cell(row.ratio),
        row.value.map_or(0, |value| value.runs),
        cell(row.cost),
        cell(row.cost_ratio),
        cell(row.switching),
    )?;
    if transactions {
        let latency = row
            .latency_us
            .map_or("-".to_owned(), |[p50, p99, p999]| format!("{p50:.0} / {p99:.0} / {p999:.0}"));
        write!(out, "<td>{latency}</td>")?;
    }
    writeln!(
        out,
        "<td>{}</td><td>{}</td><td>{}</td><td>{:.0} %</td></tr>",
        row.cpu_busy.map_or("-".to_owned(), |busy| format!("{:.0} %", busy * 100.0)),
        row.wire_frames_per_second.map_or("-".to_owned(), number),
        row.retransmitted,
        row.cpu_steal * 100.0
    )
}

fn cell(estimate: Option<Estimate>) -> String {
    let Some(Estimate { median, low, high, runs }) = estimate else { return "-".to_owned() };
    if runs == 1 {
        return number(median);
    }
    format!("{}<br><span class=\"iv\">{} – {}</span>", number(median), number(low), number(high))
}

fn write_environment(out: &mut String, results: &Results) -> fmt::Result {
    writeln!(out, "<h2 id=\"environment\">environment</h2><table class=\"text\"><tbody>")?;
    for (what, value) in environment(results) {
        writeln!(out, "<tr><td>{}</td><td>{}</td></tr>", escape(&what), escape(&value))?;
    }
    writeln!(out, "</tbody></table>")
}
