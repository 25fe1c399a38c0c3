//! `weft ports`: the ports of a running switch.

use crate::control::{DaemonSelector, Request, request};
use crate::table::{Align, Table};
use crate::{Failure, stdio};
use datapath::stats::{Drops, PortStats, Snapshot};

/// Show the ports of a running switch: device, state, traffic, load and drops by reason.
///
/// RX counts packets received from the guest, TX packets sent to it. A super-packet counts as one
/// packet. UPCALLS are packets without a cached flow that the switch has decided about, and UPCALL
/// CPU the processor time for them since the daemon started. LIMIT is the most that they may take,
/// in percent of one processor; a port that leads to a physical network has none. PUNTED are
/// packets that eBPF programs have handed to the daemon, and PUNT CPU the time for those of them
/// that had a cached flow. `weft show` also shows the uplink.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: DaemonSelector,
    /// Print an array of JSON objects
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  weft ports --host h1
  weft ports --host h1 --json | jq '.[] | select(.state != \"up\")'

Exit codes: 0 success, 1 no daemon replies, 2 bad usage.";

pub fn ports(args: &Args) -> Result<(), Failure> {
    let snapshot: Snapshot = request(&args.target.path()?, &Request::Show)?;
    if args.json {
        return stdio::print_json(&snapshot.ports);
    }
    stdio::print(&table(&snapshot.ports).to_string())
}

fn table(ports: &[PortStats]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("NO", Right),
        ("PORT", Left),
        ("SWITCH", Left),
        ("DEVICE", Left),
        ("STATE", Left),
        ("RX PACKETS", Right),
        ("RX BYTES", Right),
        ("TX PACKETS", Right),
        ("TX BYTES", Right),
        ("UPCALLS", Right),
        ("PUNTED", Right),
        ("UPCALL CPU", Right),
        ("PUNT CPU", Right),
        ("LIMIT", Right),
        ("DROPS", Left),
    ]);
    for port in ports {
        let slow = &port.slow_path;
        table.row([
            port.port.to_string(),
            port.name.clone(),
            port.logical_switch.clone(),
            port.device.clone(),
            port.state.clone(),
            port.rx.packets.to_string(),
            port.rx.bytes.to_string(),
            port.tx.packets.to_string(),
            port.tx.bytes.to_string(),
            slow.upcalls.to_string(),
            slow.punted.to_string(),
            seconds(slow.upcall_cpu_ns),
            seconds(slow.punted_cpu_ns),
            match slow.upcall_cpu_limit_percent {
                0 => "none".to_owned(),
                percent => format!("{percent} %"),
            },
            drops(&port.drops),
        ]);
    }
    table
}

/// Processor time, such as `1.25 s`.
fn seconds(ns: u64) -> String {
    format!("{}.{:02} s", ns / 1_000_000_000, ns % 1_000_000_000 / 10_000_000)
}

/// Drops by reason, such as `flow_drop 3, hairpin 1`.
fn drops(drops: &Drops) -> String {
    let counts = drops.iter().map(|(reason, count)| format!("{reason} {count}"));
    counts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::stats::{PacketCount, SlowPathStats};

    #[test]
    fn table_lists_ports_with_their_drops() {
        let port = PortStats {
            port: 3,
            name: "vm1".to_owned(),
            logical_switch: "blue".to_owned(),
            device: "tap vm1".to_owned(),
            state: "up".to_owned(),
            rx: PacketCount { packets: 2, bytes: 196 },
            tx: PacketCount::default(),
            drops: [("hairpin".to_owned(), 1), ("flow_drop".to_owned(), 3)].into(),
            slow_path: SlowPathStats {
                upcalls: 7,
                upcall_cpu_ns: 1_258_000_000,
                upcall_cpu_limit_percent: 25,
                punted: 8,
                punted_cpu_ns: 12_000_000,
            },
        };
        let text = "\
NO  PORT  SWITCH  DEVICE   STATE  RX PACKETS  RX BYTES  TX PACKETS  TX BYTES  UPCALLS  PUNTED  \
            UPCALL CPU  PUNT CPU  LIMIT  DROPS
 3  vm1   blue    tap vm1  up              2       196           0         0        7       8      \
            1.25 s    0.01 s   25 %  flow_drop 3, hairpin 1
";
        assert_eq!(table(&[port]).to_string(), text);
    }
}
