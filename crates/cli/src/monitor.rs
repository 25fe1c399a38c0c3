//! `weft monitor --drops`: shows packets while a running switch drops them.

use crate::control::replies::{DropRow, FlowRef};
use crate::control::{DAEMON_EXITED, DaemonSelector, Request, Stream, StreamEvent};
use crate::stdio::Output;
use crate::{Failure, stdio};
use anyhow::anyhow;
use flow::DropReason;
use serde_json::Value;
use std::time::Duration;

/// Watch the packets that a running switch drops, with the reason and the logical flow.
///
/// Each line has the time (UTC), the port that received the packet, the drop reason, the logical
/// flow that decided (stage, line of the network file, match, priority) and the header fields. A
/// broadcast has one line for every dropped copy. Packets that are dropped before decapsulation (a
/// malformed tunnel header, an unknown end point) are only counted: see `weft show`. If the output
/// is too slow, packets are counted as missed; forwarding never waits.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: DaemonSelector,
    /// Watch dropped packets
    #[arg(long, required = true)]
    drops: bool,
    /// Only packets received on this port
    #[arg(long, value_name = "NAME")]
    port: Option<String>,
    /// Only packets dropped for this reason; an unknown name lists all reasons
    #[arg(long, value_name = "NAME", value_parser = reason)]
    reason: Option<String>,
    /// Exit after this many packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  weft monitor --drops --host h1
  weft monitor --drops --host h1 --port vm1 --reason flow_drop
  weft monitor --drops --host h1 --json | jq -r '[.port, .reason, .flow.source] | @tsv'

Exit codes: 0 success (--count packets shown), 1 no daemon replies or the daemon exited, 2 bad usage
or an unknown port.";

/// The time limit for the next row. The command waits again when it has passed.
const READ_TIMEOUT: Duration = Duration::from_secs(3600);

pub fn monitor(args: &Args) -> Result<(), Failure> {
    let request = Request::Drops { port: args.port.clone(), reason: args.reason.clone() };
    let (_, mut stream): (Value, _) = Stream::open(&args.target.path()?, &request)?;
    let mut out = Output::new();
    let mut shown = 0;
    while args.count.is_none_or(|count| shown < count) {
        match stream.next::<DropRow, Value>(READ_TIMEOUT)? {
            StreamEvent::Row(row) => {
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
            StreamEvent::Timeout => {}
            StreamEvent::End(_) | StreamEvent::Closed => {
                out.flush()?;
                return Err(anyhow!(DAEMON_EXITED).into());
            }
        }
    }
    out.flush()
}

/// Checks the name of a drop reason.
fn reason(name: &str) -> Result<String, String> {
    let names = DropReason::ALL.iter().map(|reason| reason.name());
    if names.clone().any(|known| known == name) {
        return Ok(name.to_owned());
    }
    Err(format!("unknown drop reason: use one of {}", names.collect::<Vec<_>>().join(", ")))
}

fn line(row: &DropRow) -> String {
    let missed = match row.missed {
        0 => String::new(),
        missed => format!("(missed {missed} packets)\n"),
    };
    // The date is left out, because drops are shown as they happen.
    let time = row.time.split_once('T').map_or(&*row.time, |(_, time)| time.trim_end_matches('Z'));
    let by =
        row.flow.as_ref().map_or_else(String::new, |flow| format!("  by {}", flow_summary(flow)));
    let packet = if row.packet.is_empty() { "unparsable headers" } else { &row.packet };
    let DropRow { port, reason, len, .. } = row;
    format!("{missed}{time}  {port}  {reason}{by}  {len} bytes  {packet}\n")
}

/// A logical flow in short: `ls_in_acl network.toml:31 (udp), priority 1000`.
pub fn flow_summary(flow: &FlowRef) -> String {
    let FlowRef { stage, priority, source, condition, .. } = flow;
    format!("{stage} {} ({condition}), priority {priority}", stdio::file_name(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_names_the_drop_reason_and_the_logical_flow() {
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
        let text = "(missed 7 packets)\n\
                    18:40:00.123456  vm1  flow_drop  98 bytes  unparsable headers\n";
        assert_eq!(line(&row), text);
    }

    #[test]
    fn reason_accepts_known_names_only() {
        assert_eq!(reason("hairpin").as_deref(), Ok("hairpin"));
        assert!(reason("hairpn").unwrap_err().contains("hairpin"));
    }
}
