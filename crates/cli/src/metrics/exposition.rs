//! The two text formats: OpenMetrics 1.0, and the older one of Prometheus (version 0.0.4).
//!
//! They differ in a few points. In OpenMetrics, `# TYPE` names a counter without `_total`, there
//! are units and the type `info`, and the text ends with `# EOF`.

use super::observation::Observation;
use datapath::histogram::HistogramCounts;
use std::fmt::Write as _;

/// The maximum number of samples of one family in one response. It is above the highest port
/// number, so that only families with several samples for a port, and families of end points, can
/// reach it.
pub const MAX_SAMPLES: usize = 1 << 16;
const _: () = assert!(MAX_SAMPLES > datapath::config::MAX_PORT.0 as usize);

/// A text format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    OpenMetrics,
    Prometheus,
}

impl Format {
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The type of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A number that only grows, and starts at 0 with the daemon.
    Counter,
    /// A number that can go up and down.
    Gauge,
    /// For each of several bounds, the number of values up to this bound.
    Histogram,
    /// Texts, as labels of the value 1.
    Info,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }

    /// The suffix that the names of samples add to the family's name.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }
}

/// Metrics that differ only in their labels.
pub struct Family {
    /// The name without the suffix of its type.
    pub name: &'static str,
    pub kind: Kind,
    /// The names of the labels of each sample.
    pub labels: &'static [&'static str],
    /// A description in one sentence.
    pub help: &'static str,
    /// The function that adds the samples.
    pub read: fn(&Observation, &mut Samples<'_>),
}

impl Family {
    /// The unit of its values, which is the last word of its name; empty for counts.
    pub fn unit(&self) -> &'static str {
        let units = ["bytes", "seconds"];
        let is_last = |unit: &&str| self.name.rsplit('_').next() == Some(*unit);
        units.into_iter().find(is_last).unwrap_or_default()
    }
}

/// Writes all families with at least one sample.
pub fn render<'f>(
    families: impl IntoIterator<Item = &'f Family>,
    observation: &Observation,
    format: Format,
) -> String {
    let (mut text, mut left_out) = (String::new(), 0);
    for family in families {
        let mut samples =
            Samples { text: &mut text, family, format, count: 0, left_out, scratch: String::new() };
        (family.read)(observation, &mut samples);
        left_out = samples.left_out;
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

/// The samples of one family.
pub struct Samples<'a> {
    text: &'a mut String,
    family: &'a Family,
    format: Format,
    count: usize,
    left_out: u64,
    scratch: String,
}

impl Samples<'_> {
    /// Adds a sample. `labels` are the values of the family's labels.
    pub fn add(&mut self, labels: &[&str], value: u64) {
        self.line(self.family.kind.suffix(), labels, None, |text| {
            let _ = write!(text, "{value}");
        });
    }

    /// Adds a sample that may have a fraction.
    pub fn add_fraction(&mut self, labels: &[&str], value: f64) {
        self.line(self.family.kind.suffix(), labels, None, |text| {
            let _ = write!(text, "{value}");
        });
    }

    /// Adds 1 for true and 0 for false.
    pub fn add_flag(&mut self, labels: &[&str], value: bool) {
        self.add(labels, value.into());
    }

    /// Adds a histogram. Its values are divided by `divisor`.
    pub fn add_histogram(&mut self, values: &HistogramCounts, divisor: f64) {
        let mut sum = 0;
        for (bound, count) in values.bounds.iter().zip(&values.counts) {
            sum += count;
            // OpenMetrics requires a decimal point in each bound.
            let bound = format!("{:?}", *bound as f64 / divisor);
            self.integer("_bucket", Some(&bound), sum);
        }
        let total = values.total();
        self.integer("_bucket", Some("+Inf"), total);
        self.integer("_count", None, total);
        self.line("_sum", &[], None, |text| {
            let _ = write!(text, "{}", values.sum as f64 / divisor);
        });
    }

    /// The number of samples that were left out, in this family and in all earlier ones.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    fn integer(&mut self, suffix: &str, bound: Option<&str>, value: u64) {
        self.line(suffix, &[], bound, |text| {
            let _ = write!(text, "{value}");
        });
    }

    fn line(
        &mut self,
        suffix: &str,
        labels: &[&str],
        bound: Option<&str>,
        value: impl FnOnce(&mut String),
    ) {
        debug_assert!(bound.is_some() || labels.len() == self.family.labels.len());
        if self.count == MAX_SAMPLES {
            self.left_out += 1;
            return;
        }
        if self.count == 0 {
            self.head();
        }
        self.count += 1;
        self.text.push_str(self.family.name);
        self.text.push_str(suffix);
        let named = self.family.labels.iter().copied().zip(labels.iter().copied());
        let mut before = '{';
        for (name, value) in named.chain(bound.map(|bound| ("le", bound))) {
            self.text.push(before);
            before = ',';
            self.text.push_str(name);
            self.text.push_str("=\"");
            push_escaped(self.text, value);
            self.text.push('"');
        }
        self.text.push_str(if before == ',' { "} " } else { " " });
        self.scratch.clear();
        value(&mut self.scratch);
        self.text.push_str(&self.scratch);
        self.text.push('\n');
    }

    fn head(&mut self) {
        let Family { name, kind, help, .. } = *self.family;
        let unit = self.family.unit();
        let (name, kind) = match self.format {
            Format::OpenMetrics => (name.to_owned(), kind.name()),
            // The Prometheus format has no type `info`.
            Format::Prometheus => (
                format!("{name}{}", kind.suffix()),
                if kind == Kind::Info { Kind::Gauge.name() } else { kind.name() },
            ),
        };
        let text = &mut *self.text;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        if self.format == Format::OpenMetrics && !unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
    }
}

/// Adds the value of a label.
fn push_escaped(text: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::histogram::Histogram;

    const FAMILIES: &[Family] = &[
        Family {
            name: "weft_frame",
            kind: Kind::Counter,
            labels: &["port", "reason"],
            help: "Frames.",
            read: |_, samples| {
                samples.add(&["a", "b \"c\" \\ \n"], 7);
                samples.add(&["d", ""], u64::MAX);
            },
        },
        Family {
            name: "weft_delay_seconds",
            kind: Kind::Histogram,
            labels: &[],
            help: "Delays.",
            read: |_, samples| {
                let histogram = Histogram::new(&[1_000_000, 1_000_000_000]);
                for value in [1, 2_000_000, 500_000_000, 3_000_000_000] {
                    histogram.add(value);
                }
                samples.add_histogram(&histogram.counts(), 1e9);
            },
        },
        Family {
            name: "weft_build",
            kind: Kind::Info,
            labels: &["version"],
            help: "The build.",
            read: |_, samples| samples.add(&["1.2"], 1),
        },
        Family {
            name: "weft_age_seconds",
            kind: Kind::Gauge,
            labels: &[],
            help: "The age.",
            read: |_, samples| samples.add_fraction(&[], 0.25),
        },
        Family {
            name: "weft_nothing",
            kind: Kind::Gauge,
            labels: &[],
            help: "No samples.",
            read: |_, _| {},
        },
    ];

    #[test]
    fn both_formats_have_the_same_samples_and_other_heads() {
        let samples = [
            "weft_frame_total{port=\"a\",reason=\"b \\\"c\\\" \\\\ \\n\"} 7",
            "weft_frame_total{port=\"d\",reason=\"\"} 18446744073709551615",
            "weft_delay_seconds_bucket{le=\"0.001\"} 1",
            "weft_delay_seconds_bucket{le=\"1.0\"} 3",
            "weft_delay_seconds_bucket{le=\"+Inf\"} 4",
            "weft_delay_seconds_count 4",
            "weft_delay_seconds_sum 3.502000001",
            "weft_build_info{version=\"1.2\"} 1",
            "weft_age_seconds 0.25",
        ];
        let open_metrics = [
            "# HELP weft_frame Frames.",
            "# TYPE weft_frame counter",
            "# HELP weft_delay_seconds Delays.",
            "# TYPE weft_delay_seconds histogram",
            "# UNIT weft_delay_seconds seconds",
            "# HELP weft_build The build.",
            "# TYPE weft_build info",
            "# HELP weft_age_seconds The age.",
            "# TYPE weft_age_seconds gauge",
            "# UNIT weft_age_seconds seconds",
            "# EOF",
        ];
        let prometheus = [
            "# HELP weft_frame_total Frames.",
            "# TYPE weft_frame_total counter",
            "# HELP weft_delay_seconds Delays.",
            "# TYPE weft_delay_seconds histogram",
            "# HELP weft_build_info The build.",
            "# TYPE weft_build_info gauge",
            "# HELP weft_age_seconds The age.",
            "# TYPE weft_age_seconds gauge",
        ];
        let observation = Observation::default();
        for (format, heads) in
            [(Format::OpenMetrics, &open_metrics[..]), (Format::Prometheus, &prometheus)]
        {
            let text = render(FAMILIES, &observation, format);
            let (found, values): (Vec<_>, Vec<_>) =
                text.lines().partition(|line| line.starts_with('#'));
            assert_eq!((found, values), (heads.to_vec(), samples.to_vec()));
        }
        assert!(render(FAMILIES, &observation, Format::OpenMetrics).ends_with("\n# EOF\n"));
    }

    #[test]
    fn samples_beyond_the_limit_are_left_out_and_counted() {
        let many = Family {
            labels: &["number"],
            read: |_, samples| {
                for number in 0..MAX_SAMPLES + 3 {
                    samples.add(&[&number.to_string()], 1);
                }
            },
            ..FAMILIES[0]
        };
        let tally = Family {
            name: "weft_left_out",
            read: |_, samples| samples.add(&[], samples.left_out()),
            ..FAMILIES[3]
        };
        let text = render(&[many, tally], &Observation::default(), Format::Prometheus);
        assert_eq!(text.matches("weft_frame_total{").count(), MAX_SAMPLES);
        assert!(text.ends_with("weft_left_out 3\n"), "{}", &text[text.len() - 100..]);
    }
}
