//! `weft monitor --drops`: packets that a running switch does not deliver, as it happens.

use crate::control::answers::{DropRow, FlowRef};
use crate::control::{Next, Request, Stream, Target};
use crate::text::Output;
use crate::{Failure, text};
use anyhow::anyhow;
use flow::DropReason;
use serde_json::Value;
use std::time::Duration;

/// Watch the packets that a running switch does not deliver, with the reason and the flow that decided.
///
/// A line for each: time (UTC), the port by which it came in, the reason, the logical flow (stage, line of the network file,
/// match, priority), and the headers. A broadcast is there once for each copy that is not delivered. Packets that are
/// refused before they are frames of a logical switch (a broken tunnel header, an unknown end point) are only counted:
/// `weft show`. What cannot be shown in time is counted as missed; forwarding never waits.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Packets that are not delivered
    #[arg(long, required = true)]
    drops: bool,
    /// Only those that came in by this port
    #[arg(long, value_name = "NAME")]
    port: Option<String>,
    /// Only those for this reason
    #[arg(long, value_name = "NAME", value_parser = reason)]
    reason: Option<String>,
    /// End after so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// A JSON object a line instead of text
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  weft monitor --drops --host h1
  weft monitor --drops --host h1 --port vm1 --reason flow_drop
  weft monitor --drops --host h1 --json | jq -r '[.port, .reason, .flow.source] | @tsv'

Exit codes: 0 ended after --count packets, 1 no daemon answers or it has ended, 2 bad usage or no such port.";

/// How long is waited before it is looked again.
const WAIT: Duration = Duration::from_secs(3600);

pub fn monitor(args: &Args) -> Result<(), Failure> {
    let request = Request::Drops { port: args.port.clone(), reason: args.reason.clone() };
    let (_, mut stream): (Value, _) = Stream::open(&args.target.path()?, &request)?;
    let mut out = Output::new();
    let mut shown = 0;
    while args.count.is_none_or(|count| shown < count) {
        match stream.next::<DropRow, Value>(WAIT)? {
            Next::Row(row) => {
                if args.json {
                    out.json(&row)?;
                } else {
                    out.write(&line(&row))?;
                }
                if !stream.has_more() {
                    out.flush()?;
                }
                shown += 1;
            }
            Next::Nothing => {}
            Next::End(_) | Next::HungUp => {
                out.flush()?;
                return Err(anyhow!("the daemon has ended").into());
            }
        }
    }
    out.flush()
}

/// The name of a drop reason.
fn reason(name: &str) -> Result<String, String> {
    let names = DropReason::ALL.iter().map(|reason| reason.name());
    if names.clone().any(|known| known == name) {
        return Ok(name.to_owned());
    }
    Err(format!("there is no such reason; there are {}", names.collect::<Vec<_>>().join(", ")))
}

fn line(row: &DropRow) -> String {
    let missed = match row.missed {
        0 => String::new(),
        missed => format!("({missed} packets were not shown)\n"),
    };
    // The day is today.
    let time = row.time.split_once('T').map_or(&*row.time, |(_, time)| time.trim_end_matches('Z'));
    let by = row.flow.as_ref().map_or_else(String::new, |flow| format!("  by {}", decided(flow)));
    let packet = if row.packet.is_empty() { "no headers that make sense" } else { &row.packet };
    let DropRow { port, reason, len, .. } = row;
    format!("{missed}{time}  {port}  {reason}{by}  {len} bytes  {packet}\n")
}

/// `ls_in_acl network.toml:31 (udp), priority 1000`
pub fn decided(flow: &FlowRef) -> String {
    let FlowRef { stage, priority, source, condition, .. } = flow;
    format!("{stage} {} ({condition}), priority {priority}", text::file_name(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_is_told_in_a_line_with_the_flow_that_decided() {
        let flow = FlowRef {
            stage: "ls_in_acl".to_owned(),
            priority: 2000,
            source: "/etc/weft/network.toml:31".to_owned(),
            condition: "udp".to_owned(),
            actions: "drop;".to_owned(),
        };
        let mut row = DropRow {
            time: "2026-11-21T18:40:00.123456Z".to_owned(),
            port: "vm1".to_owned(),
            reason: "flow_drop".to_owned(),
            meaning: "A flow of the pipeline says so.".to_owned(),
            len: 98,
            packet: "in_port=1,eth_type=0x800".to_owned(),
            flow: Some(flow),
            missed: 0,
        };
        let by = "by ls_in_acl network.toml:31 (udp), priority 2000";
        let rest = "98 bytes  in_port=1,eth_type=0x800\n";
        assert_eq!(line(&row), format!("18:40:00.123456  vm1  flow_drop  {by}  {rest}"));
        (row.flow, row.missed) = (None, 7);
        row.packet.clear();
        let text = "(7 packets were not shown)\n\
                    18:40:00.123456  vm1  flow_drop  98 bytes  no headers that make sense\n";
        assert_eq!(line(&row), text);
    }

    #[test]
    fn reasons_are_known_by_name() {
        assert_eq!(reason("hairpin").as_deref(), Ok("hairpin"));
        assert!(reason("hairpn").unwrap_err().contains("hairpin"));
    }
}
