//! The table of all metrics, and its rendering for docs/metrics.md.

mod host;
mod switch;
mod traffic;

use super::exposition::{Family, Kind, Samples};
use super::observation::Observation;
use std::collections::BTreeMap;

/// The parts of the table: a title and the families.
const PARTS: [(&str, &[Family]); 8] = [
    ("Ports of guests", traffic::PORTS),
    ("Uplink and tunnels", traffic::UNDERLAY),
    ("Megaflows", switch::MEGAFLOWS),
    ("Upcalls and learning", switch::UPCALLS),
    ("Revalidator and self-check", switch::REVALIDATOR),
    ("Tracked connections", switch::CONNECTIONS),
    ("OVN", host::OVN),
    ("Daemon", host::DAEMON),
];

/// All families.
pub fn all() -> impl Iterator<Item = &'static Family> {
    PARTS.into_iter().flat_map(|(_, families)| families)
}

type Read = fn(&Observation, &mut Samples<'_>);
type Labels = &'static [&'static str];

const fn counter(name: &'static str, labels: Labels, help: &'static str, read: Read) -> Family {
    Family { name, kind: Kind::Counter, labels, help, read }
}

const fn gauge(name: &'static str, labels: Labels, help: &'static str, read: Read) -> Family {
    Family { name, kind: Kind::Gauge, labels, help, read }
}

const fn info(name: &'static str, labels: Labels, help: &'static str, read: Read) -> Family {
    Family { name, kind: Kind::Info, labels, help, read }
}

const fn histogram(name: &'static str, help: &'static str, read: Read) -> Family {
    Family { name, kind: Kind::Histogram, labels: &[], help, read }
}

/// Adds a sample for each reason of a map.
fn add_reasons(samples: &mut Samples<'_>, reasons: &BTreeMap<String, u64>) {
    reasons.iter().for_each(|(reason, count)| samples.add(&[reason], *count));
}

/// True if the state of a device begins with `up`, as in `up, behind PROGRAM`.
fn is_up(state: &str) -> bool {
    state.split(',').next() == Some("up")
}

/// The table as it is in docs/metrics.md.
#[cfg(test)]
pub fn document() -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for (title, families) in PARTS {
        let _ = writeln!(text, "\n### {title}\n\n| metric | type | labels | meaning |");
        let _ = writeln!(text, "|---|---|---|---|");
        for Family { name, kind, labels, help, .. } in families {
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            let (suffix, kind, labels) = (kind.suffix(), kind.name(), labels.join(", "));
            let _ = writeln!(text, "| `{name}{suffix}` | {kind} | {labels} | {help} |");
        }
    }
    text
}

#[cfg(test)]
mod tests;
