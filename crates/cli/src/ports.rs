//! `weft ports`: the ports of a running switch.

use crate::control::{DaemonSelector, Request, request};
use crate::table::{Align, Table};
use crate::{Failure, stdio};
use datapath::stats::{Drops, PortStats, Snapshot};

/// Show the ports of a running switch: device, state, traffic and drops by reason.
///
/// RX counts packets received from the guest, TX packets sent to it. A super-packet counts as one
/// packet. `weft show` also shows the uplink.
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
        ("DROPS", Left),
    ]);
    for port in ports {
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
            drops(&port.drops),
        ]);
    }
    table
}

/// Drops by reason, such as `flow_drop 3, hairpin 1`.
fn drops(drops: &Drops) -> String {
    let counts = drops.iter().map(|(reason, count)| format!("{reason} {count}"));
    counts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::stats::PacketCount;

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
        };
        let text = "\
NO  PORT  SWITCH  DEVICE   STATE  RX PACKETS  RX BYTES  TX PACKETS  TX BYTES  DROPS
 3  vm1   blue    tap vm1  up              2       196           0         0  flow_drop 3, \
            hairpin 1
";
        assert_eq!(table(&[port]).to_string(), text);
    }
}
