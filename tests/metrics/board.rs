//! Draws the Grafana board as a web page: its panels in their places, with the values from
//! Prometheus. Debian has no Grafana, so the pictures in the documents are drawn by this code.

use super::prometheus::{Prometheus, expand, packaged};
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The width of the page, and the height of a row of Grafana's grid, in pixels.
const WIDTH: u64 = 1600;
const ROW_HEIGHT: u64 = 34;
/// The maximum number of series that a panel's legend names.
const MAX_NAMED: usize = 6;
const COLORS: [&str; 10] = [
    "#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#e377c2",
    "#7f7f7f", "#bcbd22",
];
const STYLE: &str = "body { margin: 0; font: 12px sans-serif; background: #f4f5f5; color: #222 }
section { position: absolute; box-sizing: border-box; background: #fff; border: 1px solid #ddd;
padding: 6px 8px; overflow: hidden }
section.row { background: none; border: none; font-weight: bold; font-size: 14px }
h2 { font-size: 13px; margin: 0 0 2px }
svg { display: block }
.legend { white-space: nowrap; overflow: hidden; font-size: 11px }
.stat { font-size: 30px; margin-right: 6px }
.none { color: #999; margin-top: 60px; text-align: center }";

/// One series of a query result: seconds since the beginning, and values.
pub struct Series {
    pub labels: Map<String, Value>,
    pub points: Vec<(f64, f64)>,
}

impl Series {
    fn last(&self) -> f64 {
        self.points.last().map_or(f64::NAN, |point| point.1)
    }
}

/// The JSON definition of the board.
pub struct Board(Value);

impl Board {
    pub fn read() -> Self {
        let text = fs::read_to_string(packaged("weft-dashboard.json")).expect("the board is there");
        Self(serde_json::from_str(&text).expect("the board is JSON"))
    }

    fn panels(&self) -> &[Value] {
        self.0["panels"].as_array().expect("panels")
    }

    /// The queries of all panels.
    pub fn expressions(&self) -> impl Iterator<Item = &str> {
        let targets = self.panels().iter().filter_map(|panel| panel["targets"].as_array());
        targets.flatten().map(|target| target["expr"].as_str().expect("an expression"))
    }

    /// Makes a browser draw the board with the values of the last `span` into `picture`, a PNG
    /// file.
    pub fn draw(&self, prometheus: &Prometheus<'_>, span: Duration, folder: &Path, picture: &Path) {
        let mut height = 0;
        let mut page = format!("<!doctype html><meta charset=utf-8><style>{STYLE}</style>");
        for panel in self.panels() {
            let place = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
            let (x, y, w, h) = (place("x"), place("y") * ROW_HEIGHT, place("w"), place("h"));
            let (left, width) = (x * WIDTH / 24 + 4, w * WIDTH / 24 - 8);
            let high = h * ROW_HEIGHT - 6;
            height = height.max(y + high + 10);
            let is_row = panel["type"] == "row";
            let _ = write!(
                page,
                "<section class='{}' style='left:{left}px;top:{}px;width:{width}px;\
                 height:{high}px'><h2>{}</h2>",
                if is_row { "row" } else { "" },
                y + 4,
                panel["title"].as_str().expect("a title")
            );
            if !is_row {
                let body = draw_panel(prometheus, panel, span, width - 18, high - 46);
                page.push_str(&body);
            }
            page.push_str("</section>");
        }
        let file = folder.join("board.html");
        fs::write(&file, page).expect("a file can be written");
        let status = Command::new("timeout")
            .args(["120", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu"])
            .arg(format!("--user-data-dir={}", folder.join("profile").display()))
            .args(["--hide-scrollbars", &format!("--window-size={WIDTH},{height}")])
            .arg(format!("--screenshot={}", picture.display()))
            .arg(format!("file://{}", file.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("timeout can be started");
        assert!(status.success(), "chromium: {status}");
        let png = fs::read(picture).expect("the browser has written the picture");
        // A PNG file has its size in the first chunk.
        let number = |at: usize| png.get(at..at + 4).map(|word| word.try_into().expect("4 bytes"));
        let size = [16, 20].map(|at| number(at).map_or(0, u32::from_be_bytes));
        assert_eq!(size.map(u64::from), [WIDTH, height], "{}", picture.display());
    }
}

/// Draws the content of a panel.
fn draw_panel(
    prometheus: &Prometheus<'_>,
    panel: &Value,
    span: Duration,
    width: u64,
    height: u64,
) -> String {
    let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().expect("a unit");
    let mut all = Vec::new();
    for target in panel["targets"].as_array().expect("targets") {
        let text = |key: &str| target[key].as_str().expect("a text");
        let found = prometheus.query_range(&expand(text("expr")), span);
        all.extend(found.into_iter().map(|series| (name(text("legendFormat"), &series), series)));
    }
    all.retain(|(_, series)| series.points.iter().any(|point| point.1.is_finite()));
    if panel["type"] == "stat" {
        let stat = |(name, series): &(String, Series)| {
            format!("<span class=stat>{}</span>{name} ", show(series.last(), unit))
        };
        return all.iter().map(stat).collect();
    }
    if all.is_empty() {
        return "<div class=none>no data</div>".to_owned();
    }
    all.sort_by(|a, b| b.1.last().total_cmp(&a.1.last()));
    chart(&all, unit, span, width, height)
}

/// The legend text of a series, in which the series' labels replace `{{label}}`.
fn name(format: &str, series: &Series) -> String {
    series.labels.iter().fold(format.to_owned(), |text, (label, value)| {
        text.replace(&format!("{{{{{label}}}}}"), value.as_str().unwrap_or_default())
    })
}

fn chart(all: &[(String, Series)], unit: &str, span: Duration, width: u64, height: u64) -> String {
    /// The space for the numbers at the left and at the bottom.
    const LEFT: f64 = 58.0;
    const BOTTOM: f64 = 16.0;
    const TOP: f64 = 10.0;
    let (width, height) = (width as f64, height as f64);
    let points = all.iter().flat_map(|(_, series)| &series.points);
    let highest = points.map(|point| point.1).filter(|value| value.is_finite());
    let highest = highest.fold(0.0, f64::max);
    let top = match unit {
        "percentunit" => 1.0,
        "bytes" => {
            let scale = 1024_f64.powf(highest.max(1.0).log(1024.0).floor());
            round_up(highest / scale) * scale
        }
        _ => round_up(highest),
    };
    let x = |time: f64| LEFT + (width - LEFT) * time / span.as_secs_f64();
    let y = |value: f64| TOP + (height - BOTTOM - TOP) * (1.0 - value / top);
    let mut svg = format!("<svg width={width} height={height}>");
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        let (at, text) = (y(value), show(value, unit));
        let _ = write!(
            svg,
            "<line x1={LEFT} x2={width} y1={at} y2={at} stroke='#e4e4e4' />\
             <text x={} y={} text-anchor=end font-size=10 fill='#555'>{text}</text>",
            LEFT - 5.0,
            at + 3.0
        );
    }
    for part in 0..=4 {
        let time = span.as_secs_f64() * f64::from(part) / 4.0;
        let anchor = if part == 4 { "end" } else { "start" };
        let _ = write!(
            svg,
            "<text x={} y={} text-anchor={anchor} font-size=10 fill='#555'>{time:.0} s</text>",
            x(time),
            height - 3.0
        );
    }
    let mut legend = String::new();
    for (index, (name, series)) in all.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        let finite = series.points.iter().filter(|point| point.1.is_finite());
        let line: Vec<_> = finite.map(|(t, v)| format!("{:.1},{:.1}", x(*t), y(*v))).collect();
        let line = line.join(" ");
        let _ =
            write!(svg, "<polyline points='{line}' fill=none stroke='{color}' stroke-width=1.5 />");
        if index < MAX_NAMED {
            let _ = write!(legend, "<span style='color:{color}'>&#9644;</span> {name} &nbsp; ");
        }
    }
    if all.len() > MAX_NAMED {
        let _ = write!(legend, "and {} more", all.len() - MAX_NAMED);
    }
    format!("{svg}</svg><div class=legend>{legend}</div>")
}

/// The next number of the form 1, 2, 4, 5 or 8 times a power of ten.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 5.0, 8.0, 10.0];
    let step = steps.into_iter().find(|step| step * power >= value);
    step.unwrap_or(10.0) * power
}

/// A value with its unit.
fn show(value: f64, unit: &str) -> String {
    let scaled = |steps: &[(f64, &str)], unit: &str| {
        let step = steps.iter().find(|(least, _)| value.abs() >= *least);
        let (least, prefix) = step.copied().unwrap_or((1.0, ""));
        format!("{} {prefix}{unit}", short(value / least))
    };
    const DECIMAL: &[(f64, &str)] = &[(1e9, "G"), (1e6, "M"), (1e3, "k")];
    const BINARY: &[(f64, &str)] = &[(1073741824.0, "Gi"), (1048576.0, "Mi"), (1024.0, "Ki")];
    const SMALL: &[(f64, &str)] = &[(1.0, ""), (1e-3, "m"), (1e-6, "µ")];
    match unit {
        "bps" => scaled(DECIMAL, "bit/s"),
        "pps" => scaled(DECIMAL, "p/s"),
        "ops" => scaled(DECIMAL, "/s"),
        "bytes" => scaled(BINARY, "B"),
        "s" => scaled(SMALL, "s"),
        "percentunit" => format!("{} %", short(value * 100.0)),
        _ => short(value),
    }
}

/// A number with at most two decimal places.
fn short(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
