//! Bar charts as SVG: a bar with its interval for each contender, and the limit as a line.

use maud::{Markup, html};

use crate::lab::Contender;
use crate::stats::Estimate;
use crate::study::format::number;

/// The width of a chart, in SVG units.
const WIDTH: f64 = 960.0;
/// Where the bars begin, right of the names.
const LEFT: f64 = 150.0;
/// The space at the right of the longest bar, for its figure.
const RIGHT: f64 = 150.0;
const BAR: f64 = 16.0;
const GAP: f64 = 6.0;
/// The space above the bars, for the name of the limit.
const TOP: f64 = 24.0;
/// The space below the bars, for the axis.
const BOTTOM: f64 = 44.0;
const TICKS: usize = 5;

/// A chart of one scenario.
pub(super) struct Chart<'a> {
    /// The quantity along the axis, with its unit.
    pub(super) axis: &'a str,
    /// The text for screen readers.
    pub(super) title: &'a str,
    /// The bars, from the top.
    pub(super) bars: Vec<(Contender, Estimate)>,
    /// A value that no contender can exceed, and its name.
    pub(super) limit: Option<(f64, &'a str)>,
}

impl Chart<'_> {
    /// The chart; empty without bars.
    pub(super) fn svg(&self) -> Markup {
        if self.bars.is_empty() {
            return html! {};
        }
        let end = self.end();
        let x = |value: f64| LEFT + (value.max(0.0) / end).min(1.0) * (WIDTH - LEFT - RIGHT);
        let bottom = TOP + self.bars.len() as f64 * (BAR + GAP);
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        let view_box = format!("0 0 {WIDTH} {}", bottom + BOTTOM);
        html! {
            svg viewBox=(view_box) role="img" aria-label=(self.title) {
                @for tick in 0..=TICKS {
                    @let value = end * tick as f64 / TICKS as f64;
                    @let at = units(x(value));
                    line .grid x1=(at) x2=(at) y1=(TOP) y2=(bottom) {}
                    text .tick x=(at) y=(units(bottom + 15.0)) { (tick_label(value)) }
                }
                text .axis x=(middle) y=(units(bottom + 34.0)) { (self.axis) }
                @if let Some((value, name)) = self.limit {
                    @let at = units(x(value));
                    line .limit x1=(at) x2=(at) y1=(units(TOP - 4.0)) y2=(bottom) {}
                    text .limit-name x=(at) y="14" { (name) }
                }
                @for (number, (contender, estimate)) in self.bars.iter().enumerate() {
                    @let y = TOP + number as f64 * (BAR + GAP) + GAP / 2.0;
                    (bar(*contender, *estimate, y, &x))
                }
            }
        }
    }

    /// The end of the axis: a round number above all bars and the limit.
    fn end(&self) -> f64 {
        let bars = self.bars.iter().map(|(_, estimate)| estimate.high.max(estimate.median));
        let most = bars.chain(self.limit.map(|(value, _)| value)).fold(0.0, f64::max);
        round_up(most)
    }
}

fn bar(contender: Contender, estimate: Estimate, y: f64, x: &impl Fn(f64) -> f64) -> Markup {
    let kind = match contender {
        Contender::Direct | Contender::LinuxBridge => "base",
        _ if contender.is_weft() => "weft",
        _ => "other",
    };
    let (middle, base) = (y + BAR / 2.0, units(y + BAR / 2.0 + 4.0));
    let (low, high) = (x(estimate.low), x(estimate.high));
    let width = (x(estimate.median) - LEFT).max(0.5);
    let figure = high.max(x(estimate.median)) + 6.0;
    let runs = if estimate.runs == 1 { "1 run" } else { &format!("{} runs", estimate.runs) };
    let (low, high, from) = (units(low), units(high), units(middle - 4.0));
    let whiskers = format!("M{low} {middle:.1}H{high}M{low} {from}v8M{high} {from}v8");
    html! {
        text .name x=(units(LEFT - 8.0)) y=(base) { (contender.to_string()) }
        rect class=(kind) x=(LEFT) y=(units(y)) width=(units(width)) height=(BAR) {}
        @if estimate.runs > 1 {
            path .interval d=(whiskers) {}
        }
        text .figure x=(units(figure)) y=(base) { (number(estimate.median)) " (" (runs) ")" }
    }
}

/// A coordinate with one decimal.
fn units(value: f64) -> String {
    format!("{value:.1}")
}

/// The next round number that is at least `value`: one of a few steps in each power of ten.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0];
    steps.into_iter().map(|step| step * power).find(|end| *end >= value).unwrap_or(10.0 * power)
}

/// A short form, such as `250k` or `1.5M`.
fn tick_label(value: f64) -> String {
    let trim = |text: String| text.trim_end_matches('0').trim_end_matches('.').to_owned();
    match value {
        0.0 => "0".to_owned(),
        large if large >= 1e6 => trim(format!("{:.2}", large / 1e6)) + "M",
        middle if middle >= 1e3 => trim(format!("{:.2}", middle / 1e3)) + "k",
        small if small >= 1.0 => trim(format!("{small:.2}")),
        tiny => trim(format!("{tiny:.4}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_ends_at_a_round_number_above_everything() {
        for (value, end) in
            [(0.0, 1.0), (0.93, 1.0), (1.01, 1.5), (13.0, 15.0), (76_000.0, 100_000.0)]
        {
            assert!((round_up(value) - end).abs() < end * 1e-9, "{value}");
        }
        let labels = [0.0, 0.25, 12.0, 2500.0, 1_500_000.0].map(tick_label);
        assert_eq!(labels, ["0", "0.25", "12", "2.5k", "1.5M"]);
    }

    #[test]
    fn chart_names_axis_limit_and_every_bar() {
        let estimate = Estimate { median: 4.0, low: 3.0, high: 5.0, runs: 5 };
        let bars = vec![(Contender::LinuxBridge, estimate), (Contender::KERNEL_VXLAN, estimate)];
        let limit = Some((5.5, "one veth"));
        let svg = Chart { axis: "Gb/s", title: "<t>", bars, limit }.svg().into_string();
        for text in
            ["Gb/s", "one veth", "Linux bridge", "kernel vxlan", "4.00 (5 runs)", "&lt;t&gt;"]
        {
            assert!(svg.contains(text), "{text} in {svg}");
        }
        assert_eq!(svg.matches("<rect").count(), 2);
        let none = Chart { axis: "", title: "", bars: Vec::new(), limit: None };
        assert!(none.svg().into_string().is_empty());
    }
}
