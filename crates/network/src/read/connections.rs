//! `[connections]`: limits and timeouts of tracked connections.

use crate::errors::ProblemCollector;
use crate::section::{Field, Schema, key};
use crate::{default_connections, suggest};
use conntrack::{Config, Limits, Timeout};

pub(super) const CONNECTIONS: Schema = Schema {
    name: "[connections]",
    keys: &[
        key("limit", "limit = 1000000"),
        key("per_port", "per_port = 500000"),
        key("per_zone", "per_zone = 500000"),
        key("adaptive", "adaptive = true"),
        key("liberal_tcp", "liberal_tcp = true"),
        key("timeouts", "timeouts = { tcp_established = 86400 }"),
    ],
};

/// The longest timeout: thirty days.
const MAX_TIMEOUT_S: u32 = 30 * 86_400;

pub(super) fn connections(
    report: &mut ProblemCollector<'_>,
    field: Option<Field<'_, '_>>,
) -> Config {
    let mut config = default_connections();
    let Some(section) = field.and_then(|field| field.table(report, &CONNECTIONS)) else {
        return config;
    };
    let limits = &mut config.limits;
    for (name, limit) in [
        ("limit", &mut limits.connections),
        ("per_port", &mut limits.per_port),
        ("per_zone", &mut limits.per_zone),
    ] {
        let rule = "a limit of connections is 1 to 67108864";
        let read = |field: Field<'_, '_>| field.integer(report, 1..=Limits::MAX_CONNECTIONS, rule);
        *limit = section.get(name).and_then(read).unwrap_or(*limit);
    }
    if section.get("per_port").is_none() {
        limits.per_port = (limits.connections / 2).max(1);
    }
    for (name, option) in
        [("adaptive", &mut config.adaptive), ("liberal_tcp", &mut config.liberal_tcp)]
    {
        *option = section.get(name).and_then(|field| field.boolean(report)).unwrap_or(*option);
    }
    let example = "tcp_established = 86400";
    let entries = section.get("timeouts").and_then(|field| field.named_entries(report, example));
    for (name, field) in entries.into_iter().flatten() {
        let Some(&timeout) = Timeout::ALL.iter().find(|timeout| timeout.name() == name) else {
            let hint = suggest::hint(name, Timeout::ALL.iter().map(|it| it.name()), "timeouts");
            report.error(field.key_at, format!("unknown timeout `{name}`{hint}"));
            continue;
        };
        let rule = "a timeout is 1 to 2592000 seconds";
        if let Some(seconds) = field.integer(report, 1..=MAX_TIMEOUT_S, rule) {
            config.timeouts.set(timeout, seconds);
        }
    }
    config
}
