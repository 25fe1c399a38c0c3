//! The table Service_Monitor of the southbound database: the backends of this host that it checks,
//! and their status, which ovn-northd reads.

use crate::program::ports::port_named;
use crate::tables::{DatapathBinding, PortBinding, ServiceMonitor, Text};
use crate::writes::{Installed, row_is};
use flow::{
    DatapathKey, LogicalPorts, OuterIp, PortKey, PortNo, TunnelInfo, TunnelKey, TunnelType,
};
use network::Placement;
use ovsdb::{Replica, RowValues, Table, Transaction, Uuid};
use services::health::{Check, Kind, Status, Timing};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use wire::{MacAddr, Protocol};

/// The first source port of checks: the start of the dynamic range (RFC 6335).
const FIRST_PORT: u16 = 49_152;
const PORT_COUNT: u16 = 16_383;
/// The largest number that an option may have.
const MAX_OPTION: u32 = 86_400;

/// A check of a backend on this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceCheck {
    /// The row of Service_Monitor.
    pub row: Uuid,
    /// The logical port of the backend.
    pub port: String,
    /// Probes enter the program as if they had arrived by this port with this tunnel header, which
    /// names the backend's logical port: so they pass its egress pipeline.
    pub entry: (PortNo, TunnelInfo),
    /// The check itself. Replies arrive at the datapath port `arrival`.
    pub check: Check,
}

/// The rows whose backends are on this host, each with its check; `None` if the row is invalid.
pub(crate) fn of_host(
    replica: &Replica,
    chassis: Option<Uuid>,
    installed: &Installed,
    tunnels: &[TunnelType],
) -> Vec<(Uuid, Option<ServiceCheck>)> {
    let here = replica.rows::<ServiceMonitor>().filter_map(|(uuid, row)| {
        let port = port_named(replica, &row.logical_port)?;
        let is_bound = port.chassis.is_some() && port.chassis == chassis;
        let number = *installed.ports.get(&row.logical_port).filter(|_| is_bound)?;
        let tunnel = *tunnels.first()?;
        Some((uuid, check(replica, (uuid, &row), &port, (number, tunnel))))
    });
    here.collect()
}

fn check(
    replica: &Replica,
    (uuid, row): (Uuid, &ServiceMonitor),
    port: &PortBinding,
    (number, tunnel): (PortNo, TunnelType),
) -> Option<ServiceCheck> {
    let (ip, source): (IpAddr, IpAddr) = (row.ip.parse().ok()?, row.src_ip.parse().ok()?);
    if ip.is_ipv4() != source.is_ipv4() {
        return None;
    }
    let backend = SocketAddr::new(ip, u16::try_from(row.port).ok().filter(|port| *port != 0)?);
    let datapath = replica.get::<DatapathBinding>(port.datapath)?;
    let check = Check {
        backend,
        backend_mac: mac_of(&port.mac, ip)?,
        source,
        source_mac: row.src_mac.parse().ok()?,
        first_port: FIRST_PORT,
        port_count: PORT_COUNT,
        arrival: number.0,
        kind: match row.protocol.as_deref() {
            Some("udp") => Kind::Udp,
            _ => Kind::Tcp,
        },
        timing: Timing {
            interval_ms: option(row, "interval", 5) * 1000,
            timeout_ms: option(row, "timeout", 3) * 1000,
            failures: option(row, "failure_count", 1),
            successes: option(row, "success_count", 1),
        },
    };
    let ports =
        LogicalPorts { ingress: None, egress: PortKey::new(u16::try_from(port.tunnel_key).ok()?)? };
    let key = TunnelKey {
        datapath: DatapathKey(u32::try_from(datapath.tunnel_key).ok()?),
        ports: Some(ports),
    };
    let outer = OuterIp {
        source: Ipv4Addr::UNSPECIFIED.into(),
        destination: Ipv4Addr::UNSPECIFIED.into(),
        protocol: Protocol::UDP,
        traffic_class: 0,
        ttl: 0,
        dont_fragment: false,
    };
    let entry = (Placement::tunnel_port(tunnel), TunnelInfo::new(tunnel, &outer, &key));
    Some(ServiceCheck { row: uuid, port: row.logical_port.to_string(), entry, check })
}

/// The value of an option in seconds or in checks. As in OVN, the default if it is not a number.
fn option(row: &ServiceMonitor, name: &str, default: u32) -> u32 {
    let value = row.options.get(name).and_then(|value| value.parse().ok());
    value.unwrap_or(default).clamp(1, MAX_OPTION)
}

/// The MAC address of a port that has this IP address, or whose IP addresses are not known.
fn mac_of(addresses: &[String], ip: IpAddr) -> Option<MacAddr> {
    addresses.iter().find_map(|entry| {
        let mut words = entry.split_whitespace();
        let mac = words.next()?.parse().ok()?;
        let ips: Vec<IpAddr> = words
            .filter_map(|word| word.split('/').next().and_then(|word| word.parse().ok()))
            .collect();
        (ips.is_empty() || ips.contains(&ip)).then_some(mac)
    })
}

/// Adds updates of the rows of this host whose status is outdated. `known` has the results of
/// checks.
pub(crate) fn statuses(
    mut transaction: Transaction,
    replica: &Replica,
    checks: &[(Uuid, Option<ServiceCheck>)],
    known: &BTreeMap<Uuid, Status>,
) -> Transaction {
    for (uuid, check) in checks {
        let Some(row) = replica.get::<ServiceMonitor>(*uuid) else { continue };
        let status = match (check, known.get(uuid)) {
            (None, _) => "error",
            (Some(_), Some(Status::Online)) => "online",
            (Some(_), Some(Status::Offline)) => "offline",
            (Some(_), Some(Status::Unknown) | None) => continue,
        };
        if row.status.as_deref() != Some(status) {
            let values = RowValues::new().set("status", Text::from(status));
            transaction = transaction.update(ServiceMonitor::NAME, &row_is(*uuid), values);
        }
    }
    transaction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_address_is_that_of_the_ip_address() {
        let entries = |entries: &[&str]| -> Vec<String> {
            entries.iter().map(|it| (*it).to_owned()).collect()
        };
        let ip: IpAddr = "10.0.0.2".parse().unwrap();
        let mac = |last| Some(MacAddr([2, 0, 0, 0, 0, last]));
        for (addresses, expected) in [
            (
                entries(&["02:00:00:00:00:01 10.0.0.1", "02:00:00:00:00:02 fd00::1 10.0.0.2"]),
                mac(2),
            ),
            (entries(&["unknown", "02:00:00:00:00:03"]), mac(3)),
            (entries(&["02:00:00:00:00:04 10.0.0.2/24"]), mac(4)),
            (entries(&["02:00:00:00:00:05 10.0.0.3"]), None),
            (entries(&["router", ""]), None),
        ] {
            assert_eq!(mac_of(&addresses, ip), expected, "{addresses:?}");
        }
    }
}
