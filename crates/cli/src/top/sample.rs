//! [`Sample`]: the rates of a running switch between two snapshots.

use crate::rates;
use datapath::stats::{Drops, PacketCount, Snapshot};
use serde::Serialize;
use std::fs;

/// A snapshot, and the processor time that the daemon had used then.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reading {
    pub snapshot: Snapshot,
    /// In seconds; `None` if the process of the daemon is not visible in this PID namespace.
    pub cpu_s: Option<f64>,
}

/// Rates per second.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Sample {
    /// The host.
    pub host: String,
    /// The datapath: `user` or `kernel`.
    pub datapath: String,
    /// The process ID of the daemon.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// The seconds between the two snapshots.
    pub seconds: f64,
    /// The processor time of the daemon in percent of one processor; `None` if unknown.
    pub cpu_percent: Option<f64>,
    /// Megaflows, and their masks.
    pub megaflows: u64,
    pub masks: u64,
    /// Packets that the user datapath looked up, and how many of them had a megaflow, in percent.
    pub lookups: f64,
    pub hit_percent: Option<f64>,
    /// Packets that waited for a decision, how long on average, and how many wait now.
    pub upcalls: f64,
    pub upcall_wait_us: Option<f64>,
    pub upcalls_waiting: u64,
    /// Tracked connections, and their limit.
    pub connections: u32,
    pub connection_limit: u32,
    /// Dropped packets of all ports and the uplink.
    pub drops: f64,
    /// The ports, and the uplink with its name.
    pub ports: Vec<PortSample>,
    /// The end points of tunnels.
    pub tunnels: Vec<TunnelSample>,
}

/// The rates of a port.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct PortSample {
    /// Its name; `uplink DEVICE` for the uplink.
    pub name: String,
    /// Its switch; empty for the uplink.
    pub logical_switch: String,
    /// `up`, or why it is not.
    pub state: String,
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Dropped packets.
    pub drops: f64,
    /// Dropped packets by reason.
    pub drop_reasons: Vec<(String, f64)>,
}

/// The rates of an end point.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct TunnelSample {
    /// The tunnel type.
    pub tunnel: String,
    /// The address of the other host.
    pub remote: String,
    /// `resolved`, `unresolved` or `kernel`.
    pub neighbour: String,
    /// The path MTU in bytes.
    pub path_mtu: u16,
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// Rates in both directions.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Traffic {
    pub rx_packets: f64,
    pub rx_bits: f64,
    pub tx_packets: f64,
    pub tx_bits: f64,
}

impl Traffic {
    fn new(rx: PacketCount, tx: PacketCount, seconds: f64) -> Self {
        let rate = |count: u64| count as f64 / seconds;
        Self {
            rx_packets: rate(rx.packets),
            rx_bits: rate(rx.bytes) * 8.0,
            tx_packets: rate(tx.packets),
            tx_bits: rate(tx.bytes) * 8.0,
        }
    }
}

impl Reading {
    /// Adds the processor time to a snapshot that has just arrived.
    pub fn new(snapshot: Snapshot) -> Self {
        let cpu_s = cpu_seconds(snapshot.pid);
        Self { snapshot, cpu_s }
    }
}

/// The processor time of a daemon; `None` if there is no such process, or it is not weft: the
/// daemon may run in another PID namespace.
fn cpu_seconds(pid: u32) -> Option<f64> {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    if comm.trim() != "weft" {
        return None;
    }
    cpu_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// User and system time, fields 14 and 15 of `/proc/PID/stat`. The program's name, in parentheses,
/// may have spaces.
fn cpu_of(stat: &str) -> Option<f64> {
    /// USER_HZ: 100 on every Linux architecture that weft is built for.
    const TICKS_PER_SECOND: f64 = 100.0;
    let fields = stat.rsplit_once(") ")?.1.split(' ').skip(11).take(2);
    let ticks: Option<Vec<f64>> = fields.map(|field| field.parse().ok()).collect();
    let ticks = ticks.filter(|ticks| ticks.len() == 2)?;
    Some(ticks.iter().sum::<f64>() / TICKS_PER_SECOND)
}

impl Sample {
    /// The rates between two readings; `None` if they are of two daemons, or of the same moment.
    pub fn between(before: &Reading, now: &Reading) -> Option<Self> {
        let (earlier, later) = (&before.snapshot, &now.snapshot);
        if !rates::is_same_run(later, earlier) || later.uptime_ms == earlier.uptime_ms {
            return None;
        }
        let seconds = (later.uptime_ms - earlier.uptime_ms) as f64 / 1000.0;
        let rate = |now: u64, before: u64| rates::added_count(now, before) as f64 / seconds;
        let mut ports = ports(earlier, later, seconds);
        ports.push(uplink(earlier, later, seconds));
        let cpu_percent = now.cpu_s.zip(before.cpu_s);
        let (flows, flows_before) = (&later.megaflows, &earlier.megaflows);
        let added = rates::added_count;
        let lookups = added(flows.lookups, flows_before.lookups);
        let hits = added(flows.exact_hits, flows_before.exact_hits)
            + added(flows.search_hits, flows_before.search_hits);
        let (waits, waits_before) = (&later.upcalls.waits_ns, &earlier.upcalls.waits_ns);
        let upcalls = added(waits.total(), waits_before.total());
        let waited_ns = added(waits.sum, waits_before.sum);
        Some(Self {
            host: later.host.clone(),
            datapath: later.datapath.clone(),
            pid: later.pid,
            uptime_s: later.uptime_ms / 1000,
            seconds,
            cpu_percent: cpu_percent.map(|(now, before)| (now - before).max(0.0) / seconds * 100.0),
            megaflows: flows.megaflows,
            masks: flows.masks,
            lookups: lookups as f64 / seconds,
            hit_percent: percent(hits, lookups),
            upcalls: rate(waits.total(), waits_before.total()),
            upcall_wait_us: (upcalls != 0).then(|| waited_ns as f64 / upcalls as f64 / 1000.0),
            upcalls_waiting: later.upcalls.waiting,
            connections: later.connections.connections,
            connection_limit: later.connections.limit,
            drops: total(ports.iter().map(|port| port.drops)),
            ports,
            tunnels: tunnels(earlier, later, seconds),
        })
    }
}

/// `part` of `all` in percent; `None` if `all` is 0. At most 100: the counters are not read at the
/// same instant, so `part` can be larger than `all`.
fn percent(part: u64, all: u64) -> Option<f64> {
    (all != 0).then(|| (part as f64 / all as f64 * 100.0).min(100.0))
}

/// A sum of rates, which is 0 for an empty list. `Iterator::sum` would return -0.
fn total(rates: impl Iterator<Item = f64>) -> f64 {
    rates.fold(0.0, |sum, rate| sum + rate)
}

fn drop_rates(now: &Drops, before: &Drops, seconds: f64) -> (f64, Vec<(String, f64)>) {
    let added = rates::added_drops(now, before);
    let mut reasons: Vec<_> =
        added.into_iter().map(|(reason, count)| (reason, count as f64 / seconds)).collect();
    // The sort is stable, so reasons with equal rates stay in the order of their names.
    reasons.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    (total(reasons.iter().map(|(_, rate)| *rate)), reasons)
}

fn ports(earlier: &Snapshot, later: &Snapshot, seconds: f64) -> Vec<PortSample> {
    let before = rates::ports_of(earlier);
    let nothing = datapath::stats::PortStats::default();
    let sample = |port: &datapath::stats::PortStats| {
        // A new port has counted from 0 since it was added.
        let before = before.get(&(port.port, port.name.as_str())).copied().unwrap_or(&nothing);
        let (drops, drop_reasons) = drop_rates(&port.drops, &before.drops, seconds);
        let (rx, tx) = (rates::added(port.rx, before.rx), rates::added(port.tx, before.tx));
        PortSample {
            name: port.name.clone(),
            logical_switch: port.logical_switch.clone(),
            state: port.state.clone(),
            traffic: Traffic::new(rx, tx, seconds),
            drops,
            drop_reasons,
        }
    };
    later.ports.iter().map(sample).collect()
}

/// The rates of the uplink: the sum over all end points, and tagged frames.
fn uplink(earlier: &Snapshot, later: &Snapshot, seconds: f64) -> PortSample {
    let (now, before) = (&later.uplink, &earlier.uplink);
    let (drops, drop_reasons) = drop_rates(&now.drops, &before.drops, seconds);
    let (mut rx, mut tx) = (rates::added(now.rx, before.rx), rates::added(now.tx, before.tx));
    for (more_rx, more_tx, _) in endpoints(earlier, later) {
        rx += more_rx;
        tx += more_tx;
    }
    PortSample {
        name: format!("uplink {}", now.device),
        logical_switch: String::new(),
        state: now.state.clone(),
        traffic: Traffic::new(rx, tx, seconds),
        drops,
        drop_reasons,
    }
}

/// The traffic received from and sent to each end point between two snapshots.
fn endpoints<'a>(
    earlier: &'a Snapshot,
    later: &'a Snapshot,
) -> impl Iterator<Item = (PacketCount, PacketCount, &'a datapath::stats::EndpointStats)> {
    let key = |end: &'a datapath::stats::EndpointStats| (&*end.tunnel, end.local, end.remote);
    let before: std::collections::HashMap<_, _> =
        earlier.endpoints.iter().map(|end| (key(end), (end.rx, end.tx))).collect();
    later.endpoints.iter().map(move |end| {
        let (rx, tx) = before.get(&key(end)).copied().unwrap_or_default();
        (rates::added(end.rx, rx), rates::added(end.tx, tx), end)
    })
}

fn tunnels(earlier: &Snapshot, later: &Snapshot, seconds: f64) -> Vec<TunnelSample> {
    let sample = |(rx, tx, end): (_, _, &datapath::stats::EndpointStats)| TunnelSample {
        tunnel: end.tunnel.clone(),
        remote: end.remote.to_string(),
        neighbour: end.neighbour.clone(),
        path_mtu: end.path_mtu,
        traffic: Traffic::new(rx, tx, seconds),
    };
    endpoints(earlier, later).map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::histogram::HistogramCounts;
    use datapath::stats::{EndpointStats, PortStats};

    fn count(packets: u64, bytes: u64) -> PacketCount {
        PacketCount { packets, bytes }
    }

    fn reading(pid: u32, uptime_ms: u64, packets: u64, cpu_s: f64) -> Reading {
        let port = |(port, name, factor): (u32, &str, u64)| PortStats {
            port,
            name: name.to_owned(),
            state: "up".to_owned(),
            rx: count(packets * factor, packets * factor * 125),
            drops: Drops::from([
                ("acl_drop".to_owned(), packets / 10),
                ("hairpin".to_owned(), packets / 5),
            ]),
            ..PortStats::default()
        };
        let mut snapshot = Snapshot {
            pid,
            uptime_ms,
            ports: [(1, "a", 1), (2, "b", 3)].map(port).into(),
            endpoints: vec![EndpointStats {
                tunnel: "geneve".to_owned(),
                local: [192, 0, 2, 1].into(),
                remote: [192, 0, 2, 2].into(),
                neighbour: "kernel".to_owned(),
                refused: false,
                path_mtu: 1500,
                path_mtu_report: None,
                rx: count(packets, packets * 1000),
                tx: PacketCount::default(),
            }],
            ..Snapshot::default()
        };
        snapshot.megaflows.lookups = packets;
        snapshot.megaflows.exact_hits = packets * 3 / 4;
        snapshot.uplink.device = "eth0".to_owned();
        let counts = vec![packets / 2, packets / 2];
        snapshot.upcalls.waits_ns =
            HistogramCounts { bounds: vec![10], counts, sum: packets * 4000 };
        Reading { snapshot, cpu_s: Some(cpu_s) }
    }

    #[test]
    fn rates_are_differences_by_the_clock_of_the_daemon() {
        let sample =
            Sample::between(&reading(7, 1000, 1000, 1.0), &reading(7, 3000, 1200, 1.5)).unwrap();
        assert_eq!((sample.seconds, sample.cpu_percent), (2.0, Some(25.0)));
        assert_eq!(sample.ports[0].traffic.rx_packets, 100.0);
        assert_eq!(sample.ports[1].traffic.rx_bits, 300.0 * 125.0 * 8.0);
        assert_eq!(sample.ports[0].drops, 30.0);
        let reasons = [("hairpin".to_owned(), 20.0), ("acl_drop".to_owned(), 10.0)];
        assert_eq!(sample.ports[0].drop_reasons, reasons);
        assert!(sample.ports[2].drops.is_sign_positive(), "no drops are 0, not -0");
        // The traffic of the uplink is the sum over its end points.
        assert_eq!(sample.ports[2].name, "uplink eth0");
        assert_eq!(sample.ports[2].traffic.rx_packets, 100.0);
        assert_eq!(sample.tunnels[0].traffic.rx_bits, 100.0 * 8000.0);
        assert_eq!((sample.lookups, sample.hit_percent), (100.0, Some(75.0)));
        assert_eq!((sample.upcalls, sample.upcall_wait_us), (100.0, Some(4.0)));
        assert_eq!(sample.drops, 60.0);
    }

    #[test]
    fn there_are_no_rates_between_two_daemons() {
        let old = reading(7, 60_000, 1000, 1.0);
        assert_eq!(Sample::between(&old, &reading(8, 61_000, 2000, 1.0)), None);
        assert_eq!(Sample::between(&old, &reading(7, 500, 10, 0.0)), None);
        assert_eq!(Sample::between(&old, &old), None);
    }

    #[test]
    fn restarted_counters_give_no_huge_rates() {
        // The ports were removed and added: their counters are lower than before.
        let sample =
            Sample::between(&reading(7, 1000, 1000, 1.0), &reading(7, 2000, 40, 1.0)).unwrap();
        assert_eq!(sample.ports[0].traffic.rx_packets, 40.0);
        assert_eq!(sample.ports[0].drops, 12.0);
        let mut now = reading(7, 2000, 1000, 1.0);
        now.snapshot.ports[1].name = "c".to_owned();
        let sample = Sample::between(&reading(7, 1000, 1000, 1.0), &now).unwrap();
        let rates: Vec<_> = sample.ports.iter().map(|port| port.traffic.rx_packets).collect();
        assert_eq!(rates, [0.0, 3000.0, 0.0]);
    }

    #[test]
    fn processor_time_is_unknown_when_the_process_is_not_weft() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 150 75 0 0 20 0 9 0 100 1 2 3";
        assert_eq!(cpu_of(stat), Some(2.25));
        assert_eq!((cpu_of("7 (a) S 1"), cpu_of("")), (None, None));
        // The first process is never weft.
        assert_eq!(cpu_seconds(1), None);
    }
}
