//! Charts as SVG: bars with their intervals, grouped by scenario, and the limit as a line.

use std::fmt::{self, Write};

use crate::lab::Contender;
use crate::stats::Estimate;
use crate::study::format::number;

/// Width of a chart, in SVG's units.
const WIDTH: f64 = 960.0;
/// Where bars begin: what is left of it are names.
const LEFT: f64 = 150.0;
/// What is right of the longest bar: room for its figure.
const RIGHT: f64 = 150.0;
const BAR: f64 = 16.0;
const GAP: f64 = 6.0;
/// Above and below the bars: the limit's name, and the axis.
const TOP: f64 = 24.0;
const BOTTOM: f64 = 44.0;
const TICKS: usize = 5;

/// A chart of one scenario: a bar for each contender.
pub(super) struct Chart<'a> {
    /// What is along the axis, with its unit.
    pub(super) axis: &'a str,
    /// What a screen reader says.
    pub(super) title: &'a str,
    /// The bars, from above.
    pub(super) bars: Vec<(Contender, Estimate)>,
    /// What no contender can beat, and what it is called.
    pub(super) limit: Option<(f64, &'a str)>,
}

impl Chart<'_> {
    /// The chart; nothing without bars.
    pub(super) fn svg(&self) -> String {
        let mut text = String::new();
        if !self.bars.is_empty() {
            // Writing to a string cannot fail.
            let _ = self.write(&mut text);
        }
        text
    }

    /// The end of the axis: a round number that all bars and the limit are below.
    fn end(&self) -> f64 {
        let bars = self.bars.iter().map(|(_, estimate)| estimate.high.max(estimate.median));
        let most = bars.chain(self.limit.map(|(value, _)| value)).fold(0.0, f64::max);
        round_up(most)
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let end = self.end();
        let x = |value: f64| LEFT + (value.max(0.0) / end).min(1.0) * (WIDTH - LEFT - RIGHT);
        let bottom = TOP + self.bars.len() as f64 * (BAR + GAP);
        let height = bottom + BOTTOM;
        write!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
            escape(self.title)
        )?;
        for tick in 0..=TICKS {
            let value = end * tick as f64 / TICKS as f64;
            let at = x(value);
            write!(
                out,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
                 <text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
                bottom + 15.0,
                tick_label(value)
            )?;
        }
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        let axis = escape(self.axis);
        write!(
            out,
            "<text class=\"axis\" x=\"{middle}\" y=\"{:.1}\">{axis}</text>",
            bottom + 34.0
        )?;
        if let Some((value, name)) = self.limit {
            let at = x(value);
            write!(
                out,
                "<line class=\"limit\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{bottom}\"/>\
                 <text class=\"limit-name\" x=\"{at:.1}\" y=\"14\">{}</text>",
                TOP - 4.0,
                escape(name)
            )?;
        }
        for (number, (contender, estimate)) in self.bars.iter().enumerate() {
            let y = TOP + number as f64 * (BAR + GAP) + GAP / 2.0;
            write_bar(out, (*contender, *estimate), y, &x)?;
        }
        out.write_str("</svg>")
    }
}

fn write_bar(
    out: &mut String,
    (contender, estimate): (Contender, Estimate),
    y: f64,
    x: &impl Fn(f64) -> f64,
) -> fmt::Result {
    let kind = match contender {
        Contender::Weft(..) => "weft",
        Contender::Direct | Contender::LinuxBridge => "base",
        Contender::Kernel(_) | Contender::Ovs(..) => "other",
    };
    let (middle, base) = (y + BAR / 2.0, y + BAR / 2.0 + 4.0);
    let (low, high) = (x(estimate.low), x(estimate.high));
    write!(
        out,
        "<text class=\"name\" x=\"{:.1}\" y=\"{base:.1}\">{}</text>\
         <rect class=\"{kind}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\"/>",
        LEFT - 8.0,
        escape(&contender.to_string()),
        (x(estimate.median) - LEFT).max(0.5)
    )?;
    if estimate.runs > 1 {
        write!(
            out,
            "<path class=\"interval\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v8M{high:.1} {:.1}v8\"/>",
            middle - 4.0,
            middle - 4.0
        )?;
    }
    let runs = if estimate.runs == 1 { "1 run" } else { &format!("{} runs", estimate.runs) };
    write!(
        out,
        "<text class=\"figure\" x=\"{:.1}\" y=\"{base:.1}\">{} ({runs})</text>",
        high.max(x(estimate.median)) + 6.0,
        number(estimate.median)
    )
}

/// 1, 2, 2.5 or 5 times a power of ten, at least `value`.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0];
    steps.into_iter().map(|step| step * power).find(|end| *end >= value).unwrap_or(10.0 * power)
}

/// Short: `250k`, `1.5M`.
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

/// Text as it may stand in HTML.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
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
        let svg = Chart { axis: "Gb/s", title: "<t>", bars, limit }.svg();
        for text in
            ["Gb/s", "one veth", "Linux bridge", "kernel vxlan", "4.00 (5 runs)", "&lt;t&gt;"]
        {
            assert!(svg.contains(text), "{text} in {svg}");
        }
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(Chart { axis: "", title: "", bars: Vec::new(), limit: None }.svg().is_empty());
    }
}
