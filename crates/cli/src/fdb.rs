//! `weft fdb`: the forwarding database of a running switch.

use crate::control::replies::{FdbReply, ForgetReply};
use crate::control::{DaemonSelector, Request, request};
use crate::table::{Align, Table};
use crate::{Failure, stdio};
use serde_json::json;
use wire::MacAddr;

/// Show the forwarding database of a running switch: MAC and IP addresses and their ports.
///
/// MAC addresses are those of the network file and those learned behind ports with `learn = true`.
/// PORT is SWITCH//HOST for an address learned from another host through a tunnel that carries no
/// logical ports, and SWITCH//uplink for one learned from tagged frames. IP addresses are those
/// that logical routers have resolved. AGE is the time since the last packet of an address.
///
/// Further tables have the clients of load balancers with affinity and their backends, and the
/// connections that came to a router through one of several next hops. AGE is the time since the
/// last new connection of a client, or the last packet of a connection.
///
/// The number of entries that one port may teach is limited (docs/network-toml.md, section
/// "Limits"). REFUSED counts the entries beyond the limit.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: DaemonSelector,
    /// Delete the learned entries of this MAC address
    #[arg(long, value_name = "MAC")]
    forget: Option<MacAddr>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  weft fdb --host h1
  weft fdb --host h1 --json | jq '.bindings[] | select(.age_ms > 60000)'
  weft fdb --host h1 --forget 02:00:00:00:00:07

Exit codes: 0 success, 1 no daemon replies or the address is not learned, 2 bad usage.";

pub fn fdb(args: &Args) -> Result<(), Failure> {
    let path = args.target.path()?;
    if let Some(mac) = args.forget {
        let ForgetReply { entries } = request(&path, &Request::Forget { mac })?;
        if entries == 0 {
            return Err(anyhow::anyhow!(
                "cannot forget {mac}: the switch has not learned it; weft fdb lists the addresses"
            )
            .into());
        }
        return stdio::print(&if args.json {
            format!("{}\n", json!({ "forgotten": entries }))
        } else {
            format!("deleted {entries} entries of {mac}\n")
        });
    }
    let fdb: FdbReply = request(&path, &Request::Fdb)?;
    if args.json {
        return stdio::print_json(&fdb);
    }
    stdio::print(&describe(&fdb))
}

fn describe(fdb: &FdbReply) -> String {
    use Align::{Left, Right};
    let mut stations = Table::new([
        ("SWITCH", Left),
        ("MAC", Left),
        ("PORT", Left),
        ("HOST", Left),
        ("AGE", Right),
        ("ADDRESSES", Left),
    ]);
    for station in &fdb.stations {
        stations.row([
            station.logical_switch.clone(),
            station.mac.clone(),
            station.port.clone(),
            station.host.clone().unwrap_or_default(),
            age(station.age_ms),
            station.addresses.join(" "),
        ]);
    }
    let mut out = stations.to_string();
    if !fdb.bindings.is_empty() {
        let mut bindings = Table::new([
            ("ROUTER", Left),
            ("IP", Left),
            ("MAC", Left),
            ("PORT", Left),
            ("AGE", Right),
        ]);
        for binding in &fdb.bindings {
            bindings.row([
                binding.datapath.clone(),
                binding.ip.to_string(),
                binding.mac.clone(),
                binding.port.clone(),
                age(binding.age_ms),
            ]);
        }
        out += &format!("\n{bindings}");
    }
    out += &describe_clients(fdb);
    if !fdb.refused.is_empty() {
        let mut refused = Table::new([
            ("DATAPATH", Left),
            ("PORT", Left),
            ("LEARNT", Left),
            ("KNOWN", Right),
            ("REFUSED", Right),
        ]);
        for port in &fdb.refused {
            refused.row([
                port.datapath.clone(),
                port.port.clone(),
                port.what.clone(),
                port.known.to_string(),
                port.refused.to_string(),
            ]);
        }
        out += &format!("\n{refused}");
    }
    out
}

/// The tables of load balancers' clients, and of connections with a remembered next hop.
fn describe_clients(fdb: &FdbReply) -> String {
    use Align::{Left, Right};
    let mut out = String::new();
    if !fdb.affinities.is_empty() {
        let mut affinities = Table::new([
            ("DATAPATH", Left),
            ("CLIENT", Left),
            ("PROTOCOL", Left),
            ("ADDRESS", Left),
            ("BACKEND", Left),
            ("AGE", Right),
            ("TIMEOUT", Right),
        ]);
        for client in &fdb.affinities {
            affinities.row([
                client.datapath.clone(),
                client.client.to_string(),
                client.protocol.clone(),
                client.vip.clone(),
                client.backend.clone(),
                age(client.age_ms),
                age(Some(client.timeout_ms)),
            ]);
        }
        out += &format!("\n{affinities}");
    }
    if !fdb.next_hops.is_empty() {
        let mut next_hops = Table::new([
            ("ROUTER", Left),
            ("PROTOCOL", Left),
            ("CLIENT", Left),
            ("SERVER", Left),
            ("NEXT HOP", Left),
            ("AGE", Right),
        ]);
        for connection in &fdb.next_hops {
            next_hops.row([
                connection.datapath.clone(),
                connection.protocol.clone(),
                connection.client.to_string(),
                connection.server.to_string(),
                connection.mac.clone(),
                age(connection.age_ms),
            ]);
        }
        out += &format!("\n{next_hops}");
    }
    out
}

fn age(ms: Option<u64>) -> String {
    ms.map_or_else(|| "static".to_owned(), |ms| format!("{} s", ms / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::replies::{AffinityRow, BindingRow, NextHopRow, PortAtLimit, StationRow};

    #[test]
    fn describe_shows_static_entries_and_refused_ones() {
        let station = StationRow {
            logical_switch: "blue".to_owned(),
            mac: "02:00:00:00:00:01".to_owned(),
            port: "vm1".to_owned(),
            host: Some("h1".to_owned()),
            addresses: vec!["10.0.0.1".to_owned(), "fd00::1".to_owned()],
            age_ms: None,
        };
        let binding = BindingRow {
            datapath: "core".to_owned(),
            port: "core-blue".to_owned(),
            ip: [10, 0, 0, 9].into(),
            mac: "02:00:00:00:00:09".to_owned(),
            age_ms: Some(12_345),
        };
        let refused = PortAtLimit {
            datapath: "blue".to_owned(),
            port: "vm1".to_owned(),
            what: "stations".to_owned(),
            known: 8192,
            refused: 17,
        };
        let affinity = AffinityRow {
            datapath: "blue".to_owned(),
            client: [10, 0, 0, 1].into(),
            protocol: "tcp".to_owned(),
            vip: "10.9.0.1:80".to_owned(),
            backend: "10.0.0.9:8080".to_owned(),
            age_ms: Some(1999),
            timeout_ms: 60_000,
        };
        let next_hop = NextHopRow {
            datapath: "edge".to_owned(),
            protocol: "udp".to_owned(),
            client: ([203, 0, 113, 5], 4000).into(),
            server: ([10, 0, 0, 1], 53).into(),
            mac: "02:00:00:00:00:aa".to_owned(),
            age_ms: Some(0),
        };
        let fdb = FdbReply {
            stations: vec![station],
            bindings: vec![binding],
            affinities: vec![affinity],
            next_hops: vec![next_hop],
            refused: vec![refused],
        };
        let text = "\
SWITCH  MAC                PORT  HOST     AGE  ADDRESSES
blue    02:00:00:00:00:01  vm1   h1    static  10.0.0.1 fd00::1

ROUTER  IP        MAC                PORT        AGE
core    10.0.0.9  02:00:00:00:00:09  core-blue  12 s

DATAPATH  CLIENT    PROTOCOL  ADDRESS      BACKEND        AGE  TIMEOUT
blue      10.0.0.1  tcp       10.9.0.1:80  10.0.0.9:8080  1 s     60 s

ROUTER  PROTOCOL  CLIENT            SERVER       NEXT HOP           AGE
edge    udp       203.0.113.5:4000  10.0.0.1:53  02:00:00:00:00:aa  0 s

DATAPATH  PORT  LEARNT    KNOWN  REFUSED
blue      vm1   stations   8192       17
";
        assert_eq!(describe(&fdb), text);
    }
}
