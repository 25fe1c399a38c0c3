//! The report as a person reads it.

use std::fmt;

use comfy_table::{Cell, CellAlignment, Table, TableComponent, presets};
use network::TunnelType;

use super::policy::{PolicyReport, RoutedPings};
use super::report::{DemoReport, Noise, ProfileReport, Row};
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
/// How far the base may be from itself.
const STEADY: f64 = 0.05;
/// From which ratio on, as it is printed, a contender stands no lower than the base.
const LEVEL: f64 = 0.995;
/// The share of the machine's time from which on its reader is told that somebody else had it.
const NOTABLE_STEAL: f64 = 0.01;
/// Shown where there is nothing to show.
const NOTHING: &str = "-";

impl fmt::Display for DemoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for profile in &self.profiles {
            writeln!(f, "{profile}")?;
        }
        let env = &self.environment;
        let commit = env.commit.as_deref().unwrap_or("commit unknown");
        writeln!(
            f,
            "{}; {} x {}; Linux {}; weft {} ({commit}); {}; {} s a run, {} block(s).",
            env.date,
            env.cores,
            env.cpu_model,
            env.kernel,
            env.version,
            env.congestion_control,
            self.seconds,
            self.blocks
        )?;
        f.write_str("CPU is that of the whole machine; a super-packet counts as one frame.\n")?;
        let receivers = 1 % env.cores.max(1);
        writeln!(
            f,
            "The guests' programs are pinned: senders to core 0, receivers to core {receivers}. Daemons and \
             softirqs are not."
        )
    }
}

impl fmt::Display for ProfileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Underlay: MTU {}, offload profile `{}`", self.uplink_mtu, self.profile)?;
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header(HEADER);
        table.set_style(TableComponent::HeaderLines, '─');
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for row in &self.rows {
            table.add_row(cells(row));
        }
        writeln!(f, "{table}")?;
        let off = self.offloads.iter().filter(|(_, on)| !**on).map(|(name, _)| name.as_str());
        let off = off.collect::<Vec<_>>().join(", ");
        writeln!(f, "Off on the underlay: {}.", if off.is_empty() { "nothing" } else { &off })?;
        if let Some(noise) = self.noise {
            writeln!(f, "{noise}")?;
        }
        write_standing(&self.rows, f)?;
        write_policy(self, f)?;
        if self.cpu_steal >= NOTABLE_STEAL {
            let percent = self.cpu_steal * 100.0;
            writeln!(
                f,
                "The hypervisor took up to {percent:.0} % of the machine's time in a run."
            )?;
        }
        for row in &self.rows {
            if let Some(reason) = &row.failure {
                let verdict = if row.left_out { "left out" } else { "FAIL" };
                writeln!(f, "{}: {verdict}: {reason}", label(row))?;
            }
        }
        for trial in &self.trials {
            for stall in &trial.stalls {
                writeln!(f, "{}: measured again, for {stall}", trial.contender)?;
            }
        }
        Ok(())
    }
}

/// Where weft's kernel datapath stands beside the bridge, which is what the demo is asked first.
fn write_standing(rows: &[Row], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let kernel = rows.iter().filter_map(|row| match row.contender {
        Contender::Weft(Datapath::Kernel, tunnel) => {
            Some((tunnel, row.one_ratio?, row.eight_ratio?))
        }
        _ => None,
    });
    let (above, below): (Vec<_>, Vec<_>) =
        kernel.partition(|&(_, one, eight)| one.min(eight) >= LEVEL);
    let names = |standing: &[(TunnelType, f64, f64)]| {
        let all =
            standing.iter().map(|(tunnel, one, eight)| format!("{tunnel} {one:.2} and {eight:.2}"));
        all.collect::<Vec<_>>().join(", ")
    };
    if !above.is_empty() {
        writeln!(
            f,
            "weft kernel, at or above the bridge (Gb/s of 1 and 8 connections beside it): {}.",
            names(&above)
        )?;
    }
    if !below.is_empty() {
        writeln!(
            f,
            "weft kernel, BELOW the bridge (Gb/s of 1 and 8 connections beside it): {}.",
            names(&below)
        )?;
    }
    Ok(())
}

/// What the router and the lists did in all trials that came to them.
fn write_policy(report: &ProfileReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let policies = || report.trials.iter().filter_map(|trial| trial.policy.as_ref());
    let Some(PolicyReport { routed, refused, let_in }) = policies().next() else { return Ok(()) };
    let sum = |count: &dyn Fn(&PolicyReport) -> u64| policies().map(count).sum::<u64>();
    let pings = |count: fn(&RoutedPings) -> u32| {
        sum(&|policy| policy.routed.iter().map(|pings| u64::from(count(pings))).sum())
    };
    let mut ways: Vec<String> =
        routed.iter().map(|pings| format!("{} -> {}", pings.from, pings.to)).collect();
    ways.dedup();
    let mut gateways: Vec<String> = routed.iter().map(|pings| pings.gateway.to_string()).collect();
    gateways.truncate(routed.len() / ways.len().max(1));
    let (ways, gateways) = (ways.join(" and "), gateways.join(" and "));
    let (received, sent) = (pings(|pings| pings.received), pings(|pings| pings.sent));
    let tried = report.trials.iter().filter(|trial| trial.contender.is_weft()).count();
    writeln!(
        f,
        "weft's router: {ways} through {gateways}: {received} of {sent} pings answered, in {} of {tried} trials.",
        policies().count()
    )?;
    let (port, to, entry) = (refused.port, &refused.to, &refused.entry.condition);
    let (times, tried) = (sum(&|p| p.refused.refused.into()), sum(&|p| p.refused.tried.into()));
    let counted = sum(&|policy| policy.refused.entry.packets);
    writeln!(
        f,
        "weft's lists: TCP port {port} of {to} refused {times} of {tried} times, {counted} counted as `{entry}`; what is \
         measured was let in by `{}`, {} packets on h2.",
        let_in.condition,
        thousands(sum(&|policy| policy.let_in.packets) as f64),
    )
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.distance() > STEADY {
            "not converged: the machine did not hold still, and ratios mean no more than that"
        } else {
            "the machine held still"
        };
        let rests = match self.pairs {
            1 => "one pair of measurements only".to_owned(),
            pairs => format!("the farthest from 1 of {pairs} pairs of measurements"),
        };
        let farthest = self.farthest;
        write!(f, "The bridge against itself: {farthest:.2} ({rests}); {verdict}.")
    }
}

fn label(row: &Row) -> String {
    format!("{}{}", row.contender, if row.again { " (again)" } else { "" })
}

fn cells(row: &Row) -> Vec<Cell> {
    let number = |value: Option<f64>, decimals: usize| {
        value.map_or(NOTHING.to_owned(), |value| format!("{value:.decimals$}"))
    };
    let verdict = match (&row.failure, row.left_out) {
        (None, _) => "",
        (Some(_), true) => " (left out)",
        (Some(_), false) => " FAIL",
    };
    let ping = |rtt: Option<f64>| rtt.map_or(NOTHING.to_owned(), |rtt| format!("{rtt:.0}"));
    vec![
        Cell::new(format!("{}{verdict}", label(row))),
        Cell::new(row.guest_mtu.map_or(NOTHING.to_owned(), |mtu| mtu.to_string())),
        Cell::new(ping(row.ping4_us)),
        Cell::new(ping(row.ping6_us)),
        Cell::new(number(row.one_gbps, 2)),
        Cell::new(number(row.eight_gbps, 2)),
        Cell::new(number(row.cpu_busy.map(|busy| busy * 100.0), 0)),
        Cell::new(number(row.cpu_seconds_per_gbit, 3)),
        Cell::new(number(row.one_ratio, 2)),
        Cell::new(row.wire_frames_per_second.map_or(NOTHING.to_owned(), thousands)),
    ]
}

/// A count with its thousands marked: `1 234 567`.
fn thousands(value: f64) -> String {
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
    use super::super::policy::{Entry, Refusals};
    use super::super::report::Trial;
    use super::super::report::tests::{STT, report, trial};
    use super::*;
    use crate::demo::DemoOptions;

    #[test]
    fn thousands_are_marked_when_there_are_any() {
        let all = [0.0, 999.4, 1000.0, 1_234_567.0].map(thousands);
        assert_eq!(all, ["0", "999", "1 000", "1 234 567"]);
    }

    #[test]
    fn table_shows_figures_failures_and_who_was_left_out() {
        let failure = Some("no answer from 10.77.0.21".to_owned());
        let text = report(vec![
            trial(Contender::LinuxBridge, 0, false, 40.0),
            Trial { stalls: vec!["TCP is stalled".into()], ..trial(STT, 0, false, 22.0) },
            Trial { failure, ..Trial::new(Contender::KERNEL_VXLAN, 0, false) },
            trial(Contender::LinuxBridge, 0, true, 40.0),
        ])
        .to_string();
        let line = |start: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(start));
            line.unwrap_or_else(|| panic!("{start} in\n{text}"))
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            line("weft user stt"),
            "weft user stt 1450 50 50 22.00 22.00 50 0.045 0.55 1 000"
        );
        assert_eq!(line("weft user stt:"), "weft user stt: measured again, for TCP is stalled");
        assert_eq!(line("kernel vxlan FAIL"), "kernel vxlan FAIL - - - - - - - - -");
        assert_eq!(line("kernel vxlan:"), "kernel vxlan: FAIL: no answer from 10.77.0.21");
        assert_eq!(line("OVS user vxlan:"), "OVS user vxlan: left out: not installed");
        assert_eq!(
            line("The bridge"),
            "The bridge against itself: 1.00 (one pair of measurements only); the machine held still."
        );
        assert_eq!(line("Off on"), "Off on the underlay: nothing.");
        assert!(line("The guests'").contains("senders to core 0"));
        assert!(!text.contains("hypervisor"), "nothing was stolen:\n{text}");
    }

    #[test]
    fn reader_is_told_when_the_kernel_datapath_is_below_the_bridge() {
        let kernel = |tunnel| Contender::Weft(Datapath::Kernel, tunnel);
        let slower = |trial: Trial, gbps: f64| {
            let mut trial = trial;
            trial.eight.as_mut().expect("a stream").usage.gbps = gbps;
            trial
        };
        let text = report(vec![
            trial(Contender::LinuxBridge, 0, false, 40.0),
            trial(kernel(TunnelType::Vlan), 0, false, 39.9),
            slower(trial(kernel(TunnelType::Vxlan), 0, false, 44.0), 30.0),
            trial(kernel(TunnelType::Gre), 0, false, 20.0),
            // The user datapath is another matter.
            trial(STT, 0, false, 10.0),
        ])
        .to_string();
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with("weft kernel,")).collect();
        let beside = "the bridge (Gb/s of 1 and 8 connections beside it)";
        assert_eq!(
            lines,
            [
                format!("weft kernel, at or above {beside}: vlan 1.00 and 1.00."),
                format!("weft kernel, BELOW {beside}: vxlan 1.10 and 0.75, gre 0.50 and 0.50."),
            ]
        );
        assert!(!report(vec![trial(STT, 0, false, 1.0)]).to_string().contains("weft kernel,"));
    }

    #[test]
    fn router_and_lists_are_told_of_when_weft_had_them() {
        let pings = |gateway: &str| RoutedPings {
            from: "h1g1".into(),
            to: "h2r".into(),
            gateway: gateway.parse().unwrap(),
            sent: 3,
            received: 3,
        };
        let entry = |packets| Entry { condition: "tcp.dst == 23".into(), packets };
        let policy = PolicyReport {
            routed: vec![pings("10.77.0.1"), pings("fd77::ffff")],
            refused: Refusals { to: "h2r".into(), port: 23, tried: 3, refused: 3, entry: entry(3) },
            let_in: Entry { condition: "ip4".into(), packets: 1000 },
        };
        let with = |again| Trial { policy: Some(policy.clone()), ..trial(STT, 0, again, 20.0) };
        let failed = Trial { policy: None, ..with(false) };
        let text = report(vec![with(false), with(true), failed]).to_string();
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with("weft's")).collect();
        assert_eq!(
            lines,
            [
                "weft's router: h1g1 -> h2r through 10.77.0.1 and fd77::ffff: 12 of 12 pings answered, in 2 of \
                 3 trials.",
                "weft's lists: TCP port 23 of h2r refused 6 of 6 times, 6 counted as `tcp.dst == 23`; what is measured was \
                 let in by `ip4`, 2 000 packets on h2.",
            ]
        );
        assert!(!report(vec![trial(STT, 0, false, 20.0)]).to_string().contains("weft's"));
    }

    #[test]
    fn doubts_are_told_when_the_machine_did_not_hold_still() {
        let mut trials = Vec::new();
        for (block, again) in [(0, 20.0), (1, 60.0)] {
            trials.push(trial(Contender::LinuxBridge, block, false, 40.0));
            trials.push(trial(Contender::LinuxBridge, block, true, again));
        }
        trials[1].eight.as_mut().expect("a stream").usage.cpu_steal = 0.07;
        let text = report(trials).to_string();
        assert!(text.contains("of 2 pairs of measurements); not converged"), "{text}");
        assert!(text.contains("The hypervisor took up to 7 %"), "{text}");
    }

    #[test]
    fn table_fits_a_terminal_when_figures_are_large() {
        let mut all: Vec<_> = DemoOptions::new("weft")
            .contenders
            .into_iter()
            .map(|c| trial(c, 0, false, 88.88))
            .collect();
        all.push(trial(Contender::LinuxBridge, 0, true, 88.88));
        for usage in all.iter_mut().filter_map(|trial| Some(&mut trial.one.as_mut()?.usage)) {
            usage.wire_frames_per_second = 12_345_678.0;
            usage.cpu_busy = 1.0;
        }
        let text = report(all).to_string();
        let widest =
            text.lines().take_while(|line| !line.starts_with("Off")).map(|l| l.chars().count());
        assert!(widest.max().is_some_and(|columns| columns <= 100), "{text}");
    }
}
