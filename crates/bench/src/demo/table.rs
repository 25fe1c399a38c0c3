//! The report of the demo as text: three sentences, a table of ten rows, and all other rows on
//! request.

use std::fmt::{self, Write};

use comfy_table::{Cell, CellAlignment, Table, TableComponent, presets};
use network::TunnelType;

use super::policy::{PolicyReport, RoutedPings};
use super::report::{BASE, DemoReport, ProfileReport, Row};
use super::summary::sentences;
use crate::environment::Environment;
use crate::lab::{Contender, Datapath};

const HEADER: [&str; 10] = [
    "",
    "guest\nMTU",
    "ping4\nµs",
    "ping6\nµs",
    "TCP x1\nGb/s",
    "TCP x8\nGb/s",
    "CPU x1\n%",
    "CPU x1\ns/Gbit",
    "x1 of\nbridge",
    "frames/s\non wire",
];
/// Rows of the short table.
const SHORT_ROWS: usize = 10;
/// From this share of the machine's time on, the report mentions the time that the hypervisor took.
const NOTABLE_STEAL: f64 = 0.01;
/// A cell without a figure.
const NOTHING: &str = "-";

impl DemoReport {
    /// The report as text: for each profile three sentences and ten rows, or all rows if `all`.
    pub fn text(&self, all: bool) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text, all);
        text
    }

    fn write(&self, out: &mut String, all: bool) -> fmt::Result {
        for profile in &self.profiles {
            if self.profiles.len() > 1 {
                writeln!(out, "Offload profile `{}`:", profile.profile)?;
            }
            writeln!(out, "{}\n", sentences(profile))?;
            if all {
                profile.write_all(out)?;
            } else {
                profile.write_short(out)?;
            }
            writeln!(out)?;
        }
        let Environment { date, cores, cpu_model, kernel, version, commit, .. } = &self.environment;
        let commit = commit.as_deref().unwrap_or("commit unknown");
        writeln!(
            out,
            "{date}; {cores} x {cpu_model}; Linux {kernel}; weft {version} ({commit}); {} s per \
             run, {} block(s).",
            self.seconds, self.blocks
        )?;
        if !all {
            return writeln!(
                out,
                "`weft demo --all` also shows the user datapath, the router and the ACLs, and \
                 explains the columns."
            );
        }
        writeln!(
            out,
            "Columns: TCP x1 and x8 are one and eight TCP streams ({}); CPU is of the whole \
             machine, and s/Gbit processor seconds for 10^9 payload bits; x1 of bridge is a \
             ratio within blocks; a super-packet counts as one frame.",
            self.environment.congestion_control
        )?;
        let receivers = 1 % cores.max(&1);
        writeln!(
            out,
            "Guests' programs are pinned: senders to core 0, receivers to core {receivers}. \
             Daemons and softirqs are not pinned."
        )
    }
}

impl ProfileReport {
    fn write_short(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "{}", table(&short_rows(&self.rows)))?;
        self.write_failures(out, false)
    }

    fn write_all(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "Underlay: MTU {}, offload profile `{}`", self.uplink_mtu, self.profile)?;
        writeln!(out, "{}", table(&self.rows.iter().collect::<Vec<_>>()))?;
        let off = self.offloads.iter().filter(|(_, on)| !**on).map(|(name, _)| name.as_str());
        let off = off.collect::<Vec<_>>().join(", ");
        writeln!(out, "Off on the underlay: {}.", if off.is_empty() { "nothing" } else { &off })?;
        self.write_ratios(out)?;
        self.write_policy(out)?;
        if self.cpu_steal >= NOTABLE_STEAL {
            let percent = self.cpu_steal * 100.0;
            writeln!(
                out,
                "The hypervisor took up to {percent:.0} % of the machine's time in a run."
            )?;
        }
        self.write_failures(out, true)?;
        for trial in &self.trials {
            for stall in &trial.stalls {
                writeln!(out, "{}: measured again after a stall: {stall}", trial.contender)?;
            }
        }
        Ok(())
    }

    /// The ratio of each tunnel of the kernel datapath to the bridge, with one and eight streams.
    fn write_ratios(&self, out: &mut String) -> fmt::Result {
        let ratios = self.rows.iter().filter_map(|row| match row.contender {
            Contender::Weft(Datapath::Kernel, tunnel) => {
                Some(format!("{tunnel} {:.2} and {:.2}", row.one_ratio?, row.eight_ratio?))
            }
            _ => None,
        });
        let ratios: Vec<_> = ratios.collect();
        if ratios.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "Kernel datapath over the bridge, one and eight streams: {}.",
            ratios.join(", ")
        )
    }

    /// The results of the router and the access control lists, over all trials that tested them.
    fn write_policy(&self, out: &mut String) -> fmt::Result {
        let policies = || self.trials.iter().filter_map(|trial| trial.policy.as_ref());
        let Some(PolicyReport { routed, refused, let_in }) = policies().next() else {
            return Ok(());
        };
        let sum = |count: &dyn Fn(&PolicyReport) -> u64| policies().map(count).sum::<u64>();
        let pings = |count: fn(&RoutedPings) -> u32| {
            sum(&|policy| policy.routed.iter().map(|pings| u64::from(count(pings))).sum())
        };
        let mut paths: Vec<String> =
            routed.iter().map(|pings| format!("{} -> {}", pings.from, pings.to)).collect();
        paths.dedup();
        let mut gateways: Vec<String> =
            routed.iter().map(|pings| pings.gateway.to_string()).collect();
        gateways.truncate(routed.len() / paths.len().max(1));
        let (paths, gateways) = (paths.join(" and "), gateways.join(" and "));
        let (received, sent) = (pings(|pings| pings.received), pings(|pings| pings.sent));
        let trials = self.trials.iter().filter(|trial| trial.contender.is_weft()).count();
        writeln!(
            out,
            "Router: {received} of {sent} pings answered, {paths} through {gateways}, in {} of \
             {trials} trials.",
            policies().count()
        )?;
        let (port, to, entry) = (refused.port, &refused.to, &refused.entry.condition);
        let (times, tried) = (sum(&|p| p.refused.refused.into()), sum(&|p| p.refused.tried.into()));
        let counted = sum(&|policy| policy.refused.entry.packets);
        writeln!(
            out,
            "ACLs: `{entry}` rejected {times} of {tried} connections to TCP port {port} of {to}, \
             and counted {counted}; `{}` allowed the measured traffic, {} packets on h2.",
            let_in.condition,
            group_thousands(sum(&|policy| policy.let_in.packets) as f64),
        )
    }

    fn write_failures(&self, out: &mut String, with_left_out: bool) -> fmt::Result {
        for row in self.rows.iter().filter(|row| with_left_out || !row.left_out) {
            if let Some(reason) = &row.failure {
                let result = if row.left_out { "left out" } else { "FAIL" };
                writeln!(out, "{}: {result}: {reason}", label(row))?;
            }
        }
        Ok(())
    }
}

/// The rows of the short table, and those that failed: the bridge, the kernel datapath, the user
/// datapath for tunnels that only it supports, and the other switches.
fn short_rows(rows: &[Row]) -> Vec<&Row> {
    let in_kernel = |tunnel: TunnelType| {
        let kernel = Contender::Weft(Datapath::Kernel, tunnel);
        rows.iter().any(|row| row.contender == kernel && !row.left_out)
    };
    let is_short = |row: &&Row| match row.contender {
        Contender::Weft(Datapath::User, tunnel) => !in_kernel(tunnel),
        contender => contender != BASE || !row.again,
    };
    let is_failed = |row: &&Row| row.failure.is_some();
    let shown = rows.iter().filter(|row| !row.left_out);
    let (short, rest): (Vec<_>, Vec<_>) = shown.partition(is_short);
    let failed = rest.into_iter().filter(is_failed);
    short.into_iter().take(SHORT_ROWS).chain(failed).collect()
}

fn table(rows: &[&Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(HEADER);
    table.set_style(TableComponent::HeaderLines, '─');
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.add_rows(rows.iter().map(|row| cells(row)));
    table
}

fn label(row: &Row) -> String {
    format!("{}{}", row.contender, if row.again { " (again)" } else { "" })
}

fn cells(row: &Row) -> Vec<Cell> {
    let number = |value: Option<f64>, decimals: usize| {
        value.map_or(NOTHING.to_owned(), |value| format!("{value:.decimals$}"))
    };
    let result = match (&row.failure, row.left_out) {
        (None, _) => "",
        (Some(_), true) => " (left out)",
        (Some(_), false) => " FAIL",
    };
    vec![
        Cell::new(format!("{}{result}", label(row))),
        Cell::new(row.guest_mtu.map_or(NOTHING.to_owned(), |mtu| mtu.to_string())),
        Cell::new(number(row.ping4_us, 0)),
        Cell::new(number(row.ping6_us, 0)),
        Cell::new(number(row.one_gbps, 2)),
        Cell::new(number(row.eight_gbps, 2)),
        Cell::new(number(row.cpu_busy.map(|busy| busy * 100.0), 0)),
        Cell::new(number(row.cpu_seconds_per_gbit, 3)),
        Cell::new(number(row.one_ratio, 2)),
        Cell::new(row.wire_frames_per_second.map_or(NOTHING.to_owned(), group_thousands)),
    ]
}

/// A count with its digits in groups of three: `1 234 567`.
fn group_thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::policy::{AclEntry, Refusals};
    use super::super::report::Trial;
    use super::super::report::tests::{STT, report, trial};
    use super::*;
    use crate::demo::DemoOptions;

    /// The line of `text` that begins with `start`, with single spaces.
    fn line(text: &str, start: &str) -> String {
        let line = text.lines().find(|line| line.trim_start().starts_with(start));
        let line = line.unwrap_or_else(|| panic!("{start} in\n{text}"));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// A trial of every contender of the default demo.
    fn one_trial_each() -> Vec<Trial> {
        let mut all = vec![trial(Contender::LinuxBridge, 0, false, 40.0)];
        let stt = Contender::Weft(Datapath::Kernel, TunnelType::Stt);
        let contenders = DemoOptions::new("weft").contenders.into_iter().filter(|c| *c != stt);
        all.extend(contenders.map(|contender| trial(contender, 0, false, 88.88)));
        all.push(trial(Contender::LinuxBridge, 0, true, 40.0));
        all
    }

    #[test]
    fn thousands_are_marked_when_there_are_any() {
        let all = [0.0, 999.4, 1000.0, 1_234_567.0].map(group_thousands);
        assert_eq!(all, ["0", "999", "1 000", "1 234 567"]);
    }

    #[test]
    fn short_report_begins_with_three_sentences_and_has_ten_rows() {
        let report = report(one_trial_each());
        let text = report.text(false);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("Traffic passed through"), "{text}");
        assert!(lines[1].starts_with("With one TCP stream"), "{text}");
        assert!(lines[2].starts_with("The machine was steady"), "{text}");
        let rows = short_rows(&report.profiles[0].rows);
        assert!((9..=10).contains(&rows.len()), "{text}");
        for name in ["Linux bridge", "weft kernel vxlan", "weft user stt", "kernel vxlan"] {
            line(&text, name);
        }
        assert!(!text.contains("weft user vxlan") && !text.contains("(again)"), "{text}");
        assert!(report.text(true).contains("weft user vxlan"));
    }

    #[test]
    fn failed_row_is_shown_in_the_short_report_with_its_reason() {
        let mut trials = one_trial_each();
        let user = Contender::Weft(Datapath::User, TunnelType::Vxlan);
        for trial in trials.iter_mut().filter(|trial| trial.contender == user) {
            trial.failure = Some("no answer".to_owned());
        }
        let text = report(trials).text(false);
        line(&text, "weft user vxlan FAIL");
        assert_eq!(line(&text, "weft user vxlan:"), "weft user vxlan: FAIL: no answer");
    }

    #[test]
    fn full_report_shows_figures_failures_and_left_out_contenders() {
        let failure = Some("no answer from 10.77.0.21".to_owned());
        let text = report(vec![
            trial(Contender::LinuxBridge, 0, false, 40.0),
            Trial { stalls: vec!["TCP is stalled".into()], ..trial(STT, 0, false, 22.0) },
            Trial { failure, ..Trial::new(Contender::KERNEL_VXLAN, 0, false) },
            trial(Contender::LinuxBridge, 0, true, 40.0),
        ])
        .text(true);
        let line = |start| line(&text, start);
        assert_eq!(
            line("weft user stt"),
            "weft user stt 1450 50 50 22.00 22.00 50 0.045 0.55 1 000"
        );
        assert_eq!(
            line("weft user stt:"),
            "weft user stt: measured again after a stall: TCP is stalled"
        );
        assert_eq!(line("kernel vxlan FAIL"), "kernel vxlan FAIL - - - - - - - - -");
        assert_eq!(line("kernel vxlan:"), "kernel vxlan: FAIL: no answer from 10.77.0.21");
        assert_eq!(line("OVS user vxlan:"), "OVS user vxlan: left out: not installed");
        assert_eq!(line("Off on"), "Off on the underlay: nothing.");
        assert!(line("Guests'").contains("senders to core 0"));
        assert!(!text.contains("hypervisor"), "nothing was stolen:\n{text}");
    }

    #[test]
    fn ratios_of_the_kernel_datapath_are_reported_for_both_loads() {
        let kernel = |tunnel| Contender::Weft(Datapath::Kernel, tunnel);
        let mut vxlan = trial(kernel(TunnelType::Vxlan), 0, false, 44.0);
        vxlan.eight.as_mut().expect("a stream").usage.gbps = 30.0;
        let text = report(vec![
            trial(Contender::LinuxBridge, 0, false, 40.0),
            trial(kernel(TunnelType::Vlan), 0, false, 39.9),
            vxlan,
            // The user datapath is not part of this comparison.
            trial(STT, 0, false, 10.0),
        ])
        .text(true);
        assert_eq!(
            line(&text, "Kernel datapath"),
            "Kernel datapath over the bridge, one and eight streams: vlan 1.00 and 1.00, vxlan \
             1.10 and 0.75."
        );
        assert!(!report(vec![trial(STT, 0, false, 1.0)]).text(true).contains("over the bridge,"));
    }

    #[test]
    fn router_and_acls_are_reported_when_weft_had_them() {
        let pings = |gateway: &str| RoutedPings {
            from: "h1g1".into(),
            to: "h2r".into(),
            gateway: gateway.parse().unwrap(),
            sent: 3,
            received: 3,
        };
        let entry = |packets| AclEntry { condition: "tcp.dst == 23".into(), packets };
        let policy = PolicyReport {
            routed: vec![pings("10.77.0.1"), pings("fd77::ffff")],
            refused: Refusals { to: "h2r".into(), port: 23, tried: 3, refused: 3, entry: entry(3) },
            let_in: AclEntry { condition: "ip4".into(), packets: 1000 },
        };
        let with = |again| Trial { policy: Some(policy.clone()), ..trial(STT, 0, again, 20.0) };
        let failed = Trial { policy: None, ..with(false) };
        let text = report(vec![with(false), with(true), failed]).text(true);
        assert_eq!(
            line(&text, "Router:"),
            "Router: 12 of 12 pings answered, h1g1 -> h2r through 10.77.0.1 and fd77::ffff, in 2 \
             of 3 trials."
        );
        assert_eq!(
            line(&text, "ACLs:"),
            "ACLs: `tcp.dst == 23` rejected 6 of 6 connections to TCP port 23 of h2r, and counted \
             6; `ip4` allowed the measured traffic, 2 000 packets on h2."
        );
        assert!(!report(vec![trial(STT, 0, false, 20.0)]).text(true).contains("Router:"));
    }

    #[test]
    fn stolen_time_is_reported_when_it_is_notable() {
        let mut trials = one_trial_each();
        trials[1].eight.as_mut().expect("a stream").usage.cpu_steal = 0.07;
        assert!(report(trials).text(true).contains("The hypervisor took up to 7 %"));
    }

    #[test]
    fn table_fits_a_terminal_when_figures_are_large() {
        let mut all = one_trial_each();
        for usage in all.iter_mut().filter_map(|trial| Some(&mut trial.one.as_mut()?.usage)) {
            usage.wire_frames_per_second = 12_345_678.0;
            usage.cpu_busy = 1.0;
        }
        let report = report(all);
        let table = table(&report.profiles[0].rows.iter().collect::<Vec<_>>()).to_string();
        let widest = table.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|columns| columns <= 100), "{table}");
    }
}
