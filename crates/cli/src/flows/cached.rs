//! Shows the megaflows of a running switch.

use super::Args;
use crate::Failure;
use crate::control::replies::{FlowRow, FlowTotals};
use crate::control::{Request, Stream};
use crate::monitor::flow_summary;
use crate::stdio::Output;
use ::switch::SwitchStats;
use clap::ValueEnum;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::fmt::Write as _;

/// The sort key of megaflows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Sort {
    /// Number of packets
    Packets,
    /// Number of bytes
    Bytes,
    /// Time since installation
    Age,
}

pub fn show(args: &Args) -> Result<(), Failure> {
    let request = Request::Flows { port: args.port.clone(), min_packets: args.min_packets };
    let (_, stream): (Value, _) = Stream::open(&args.target.path()?, &request)?;
    let mut out = Output::new();
    let mut write = |row: &FlowRow| {
        if args.json { out.json(row) } else { out.write(&describe(row, args.brief)) }
    };
    let (mut shown, mut rows) = (0_u64, Vec::new());
    let end: FlowTotals = stream.all(|row: FlowRow| {
        shown += 1;
        match args.sort {
            Some(_) => rows.push(row),
            None => write(&row)?,
        }
        Ok(())
    })?;
    if let Some(sort) = args.sort {
        rows.sort_by_key(|row| {
            Reverse(match sort {
                Sort::Packets => row.packets,
                Sort::Bytes => row.bytes,
                Sort::Age => row.age_ms,
            })
        });
    }
    rows.iter().try_for_each(write)?;
    if args.json {
        out.json(&json!({ "totals": end }))?;
    } else {
        out.write(&totals(shown, &end))?;
    }
    out.flush()
}

fn describe(row: &FlowRow, brief: bool) -> String {
    let FlowRow { condition, actions, packets, bytes, .. } = row;
    let port = row.port.as_deref().unwrap_or("any port");
    let seconds = |ms: u64| format!("{}.{} s", ms / 1000, ms % 1000 / 100);
    let (age, idle) = (seconds(row.age_ms), seconds(row.idle_ms));
    let fused = match row.connections {
        0 => String::new(),
        connections => format!("  connections {connections}"),
    };
    let mut text = format!(
        "{port}: {condition}  actions {actions}{fused}  packets {packets}  bytes {bytes}  \
         age {age}  idle {idle}\n"
    );
    if !brief {
        for flow in &row.flows {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "    {}", flow_summary(flow));
        }
    }
    text
}

fn totals(shown: u64, end: &FlowTotals) -> String {
    let FlowTotals { cache, switch } = end;
    let share = |part: u64| match cache.lookups {
        0 => "-".to_owned(),
        all => format!("{:.1} %", part as f64 * 100.0 / all as f64),
    };
    let misses = cache.lookups.saturating_sub(cache.exact_hits + cache.search_hits);
    let mut text = format!(
        "{shown} of {} megaflows with {} masks; program generation {}\n\
         {} lookups: exact match {}, mask search {}, miss {}; {} upcalls, {} not cached\n",
        cache.megaflows,
        cache.masks,
        switch.generation,
        cache.lookups,
        share(cache.exact_hits),
        share(cache.search_hits),
        share(misses),
        switch.upcalls,
        switch.refused + switch.outdated,
    );
    if switch.mask_limited > 0 {
        let limited = switch.mask_limited;
        text += &format!("{limited} megaflows match a single packet: too many different masks\n");
    }
    if switch.fusions > 0 {
        let SwitchStats { fused, fusions, fusions_ended, .. } = switch;
        text += &format!(
            "{fused} fused megaflows of tracked connections, of {fusions} so far; \
             {fusions_ended} ended with a change of their connection\n"
        );
    }
    if switch.self_check_faults > 0 {
        let (faults, checks) = (switch.self_check_faults, switch.self_checks);
        text += &format!("self-check: deleted {faults} wrong megaflows in {checks} checks\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::replies::FlowRef;
    use datapath::stats::MegaflowStats;
    use switch::SwitchStats;

    #[test]
    fn describe_lists_a_megaflow_and_its_logical_flows() {
        let flow = FlowRef {
            stage: "ls_in_l2_lkup".to_owned(),
            priority: 50,
            source: "/tmp/network.toml:31".to_owned(),
            condition: "eth.dst == 02:00:00:00:00:02".to_owned(),
            actions: "output;".to_owned(),
        };
        let row = FlowRow {
            id: "00".to_owned(),
            port: Some("vm1".to_owned()),
            condition: "in_port=1".to_owned(),
            actions: "output(2)".to_owned(),
            connections: 0,
            packets: 3,
            bytes: 294,
            age_ms: 12_345,
            idle_ms: 99,
            generation: 1,
            flows: vec![flow],
        };
        let first =
            "vm1: in_port=1  actions output(2)  packets 3  bytes 294  age 12.3 s  idle 0.0 s\n";
        let second =
            "    ls_in_l2_lkup network.toml:31 (eth.dst == 02:00:00:00:00:02), priority 50\n";
        assert_eq!(describe(&row, true), first);
        assert_eq!(describe(&row, false), [first, second].concat());
    }

    #[test]
    fn totals_show_hit_rates() {
        let cache = MegaflowStats {
            megaflows: 5,
            masks: 2,
            lookups: 1000,
            exact_hits: 900,
            search_hits: 75,
            mask_probes: 150,
        };
        let switch = SwitchStats { generation: 3, upcalls: 25, refused: 1, ..Default::default() };
        let text = "\
2 of 5 megaflows with 2 masks; program generation 3
1000 lookups: exact match 90.0 %, mask search 7.5 %, miss 2.5 %; 25 upcalls, 1 not cached
";
        assert_eq!(totals(2, &FlowTotals { cache, switch: switch.clone() }), text);
        let limited = "7 megaflows match a single packet: too many different masks\n";
        let switch = SwitchStats { mask_limited: 7, ..switch };
        assert_eq!(
            totals(2, &FlowTotals { cache, switch: switch.clone() }),
            [text, limited].concat()
        );
        let faults = "self-check: deleted 1 wrong megaflows in 640 checks\n";
        let switch =
            SwitchStats { mask_limited: 0, self_check_faults: 1, self_checks: 640, ..switch };
        assert_eq!(totals(2, &FlowTotals { cache, switch }), [text, faults].concat());
    }
}
