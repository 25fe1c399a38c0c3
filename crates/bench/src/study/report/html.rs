//! `report.html`: one self-contained page, for a screen with light or dark colours, and for paper.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::Chart;
use super::markdown::{environment, method, noise, tally, underlay};
use super::published::{Published, published};
use crate::lab::Contender;
use crate::stats::Estimate;
use crate::study::format::number;
use crate::study::model::{ClaimVerdict, Finding, Results, Study};
use crate::study::verdict::{AGREEMENT, Metric, Row, Table, spread, tables};

/// The report on `results`.
pub fn html(results: &Results) -> String {
    let tables = tables(results);
    let of =
        |study: Study| tables.iter().filter(move |t| t.study == study.name()).collect::<Vec<_>>();
    let studies: Vec<_> = Study::ALL.into_iter().filter(|study| !of(*study).is_empty()).collect();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            (head())
            body {
                h1 { "weft bench: what holds on this machine" }
                p { (method(results)) }
                @if !results.complete {
                    p .warn { "The run ended before everything was measured." }
                }
                nav {
                    @for study in &studies {
                        a href={ "#" (study) } { (study) }
                    }
                    a href="#environment" { "environment" }
                }
                (claims(&results.verdicts))
                @for study in &studies {
                    (section(*study, &of(*study)))
                    @if *study == Study::Entropy {
                        (spread_list(results))
                    }
                }
                (environment_table(results))
            }
        }
    };
    page.into_string() + "\n"
}

fn head() -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { "weft bench" }
            style { (PreEscaped(include_str!("style.css"))) }
        }
    }
}

/// The text without Markdown markup.
fn plain(text: &str) -> String {
    text.replace(['`', '*'], "")
}

fn claims(findings: &[Finding]) -> Markup {
    html! {
        p { (tally(findings)) }
        table .text .claims {
            thead { tr { th {} th { "claim" } th { "here" } } }
            tbody {
                @for finding in findings {
                    tr {
                        td { (finding.claim.id) }
                        td { (claim(finding)) }
                        td .verdict .(class(finding.verdict)) { (finding.words()) }
                    }
                }
            }
        }
    }
}

fn claim(Finding { claim, why, evidence, .. }: &Finding) -> Markup {
    if evidence.is_empty() {
        return html! { (claim.text) br; small { (plain(why)) } };
    }
    html! {
        details {
            summary { (claim.text) }
            (plain(why))
            ul {
                @for line in evidence {
                    li { (line) }
                }
            }
        }
    }
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

fn section(study: Study, tables: &[&Table]) -> Markup {
    html! {
        h2 id=(study) { (study) }
        p { (study.question()) " " span .soft { (plain(study.differences())) } }
        @if let Some(published) = published(study) {
            (published_table(&published))
            h3 { "Measured here" }
        }
        p .key {
            small {
                span .weft {} "weft " span .base {} "no tunnel " span .other {}
                "others; whiskers are 95 % intervals"
            }
        }
        @for table in tables {
            (measured_table(table))
        }
    }
}

fn published_table(Published { source, columns, rows }: &Published) -> Markup {
    html! {
        h3 { "As published" }
        p .soft { (source) }
        div .scroll {
            table {
                thead { tr { @for column in columns { th { (column.replace('_', " ")) } } } }
                tbody {
                    @for row in rows {
                        tr { @for cell in row { td { (cell) } } }
                    }
                }
            }
        }
    }
}

fn spread_list(results: &Results) -> Markup {
    html! {
        h3 { "spread" br; small { "flows of a guest as a card would distinguish them" } }
        ul {
            @for line in spread(results) {
                li { (line) }
            }
        }
    }
}

fn measured_table(table: &Table) -> Markup {
    let underlay = plain(&underlay(table));
    let title = format!("{}, {underlay}", table.scenario);
    let unit = table.metric.unit();
    let bars = table.rows.iter().filter_map(|row| Some((row.contender, row.value?))).collect();
    let wire = table.row(Contender::Direct).and_then(|row| row.value);
    let limit = wire.map(|wire| (wire.median, "limit: one veth"));
    let chart = Chart { axis: unit, title: &title, bars, limit };
    let transactions = table.metric == Metric::Transactions;
    let warn = if table.converged() { "soft" } else { "warn" };
    html! {
        h3 { (table.scenario) br; small { (underlay) } }
        (chart.svg())
        div .scroll {
            table {
                thead {
                    tr {
                        th { "contender" } th { "MTU" } th { (unit) } th { "of bridge" }
                        th { "runs" } th { "dev." } th { (table.metric.cost_unit()) }
                        th { "of bridge" } th { "switching" }
                        @if transactions { th { "p50 / p99 / p99.9 µs" } }
                        th { "CPU" } th { "frames/s" } th { "resent" } th { "steal" }
                    }
                }
                tbody { @for row in &table.rows { (measured_row(row, transactions)) } }
            }
        }
        p .(warn) { small { (plain(&noise(table))) } }
    }
}

fn measured_row(row: &Row, transactions: bool) -> Markup {
    if let (None, Some(failure)) = (row.value, &row.failure) {
        let columns = if transactions { 13 } else { 12 };
        let why = failure.lines().next().unwrap_or_default();
        return html! {
            tr {
                td { (row.contender.to_string()) }
                td .failed colspan=(columns) { "failed: " (why) }
            }
        };
    }
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let latency = row.latency_us.map(|[p50, p99, p999]| format!("{p50:.0} / {p99:.0} / {p999:.0}"));
    html! {
        tr {
            td {
                (row.contender.to_string())
                @if row.failure.is_some() { " " small .warn { "some runs failed" } }
            }
            td { (or_dash(row.guest_mtu.map(|mtu| mtu.to_string()))) }
            td { (cell(row.value)) }
            td { (cell(row.ratio)) }
            td { (row.value.map_or(0, |value| value.runs)) }
            td {
                @match row.deviation {
                    Some(part) if part > AGREEMENT => span .warn { (percent(part)) },
                    part => (or_dash(part.map(percent))),
                }
            }
            td { (cell(row.cost)) }
            td { (cell(row.cost_ratio)) }
            td { (cell(row.switching)) }
            @if transactions { td { (or_dash(latency)) } }
            td { (or_dash(row.cpu_busy.map(percent))) }
            td { (or_dash(row.wire_frames_per_second.map(number))) }
            td { (row.retransmitted) }
            td { (percent(row.cpu_steal)) }
        }
    }
}

fn cell(estimate: Option<Estimate>) -> Markup {
    html! {
        @match estimate {
            None => "-",
            Some(Estimate { median, runs: 1, .. }) => (number(median)),
            Some(Estimate { median, low, high, .. }) => {
                (number(median)) br; span .iv { (number(low)) " – " (number(high)) }
            },
        }
    }
}

fn environment_table(results: &Results) -> Markup {
    html! {
        h2 id="environment" { "environment" }
        table .text {
            tbody {
                @for (what, value) in environment(results) {
                    tr { td { (what) } td { (value) } }
                }
            }
        }
    }
}
