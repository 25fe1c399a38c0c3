//! Differences between two samples of counters. Counters restart at 0 with the daemon, and with a
//! port that is removed and added.

use datapath::stats::{Drops, PacketCount, PortStats, Snapshot};
use std::collections::HashMap;

/// The increment of a counter. A counter that is lower than before has restarted at 0.
pub const fn added_count(now: u64, before: u64) -> u64 {
    if now >= before { now - before } else { now }
}

/// The increments of packets and bytes in one direction. Both counters restart together.
pub const fn added(now: PacketCount, before: PacketCount) -> PacketCount {
    if now.packets < before.packets || now.bytes < before.bytes {
        return now;
    }
    PacketCount { packets: now.packets - before.packets, bytes: now.bytes - before.bytes }
}

/// The increments of drop counters, by reason.
pub fn added_drops(now: &Drops, before: &Drops) -> Drops {
    let added = now.iter().map(|(reason, &count)| {
        (reason.clone(), added_count(count, before.get(reason).copied().unwrap_or(0)))
    });
    added.filter(|(_, count)| *count != 0).collect()
}

/// Whether two samples are of one run of one daemon, in this order.
pub fn is_same_run(now: &Snapshot, before: &Snapshot) -> bool {
    now.pid == before.pid && now.uptime_ms >= before.uptime_ms
}

/// The ports of a sample by number and name. The name is needed because a new port may get the
/// number of a removed one.
pub fn ports_of(snapshot: &Snapshot) -> HashMap<(u32, &str), &PortStats> {
    snapshot.ports.iter().map(|port| ((port.port, port.name.as_str()), port)).collect()
}

/// Subtracts the traffic and drops of ports and uplink in an earlier sample of the same run.
pub fn subtract(snapshot: &mut Snapshot, earlier: &Snapshot) {
    let before = ports_of(earlier);
    for port in &mut snapshot.ports {
        let Some(before) = before.get(&(port.port, port.name.as_str())) else { continue };
        port.rx = added(port.rx, before.rx);
        port.tx = added(port.tx, before.tx);
        port.drops = added_drops(&port.drops, &before.drops);
        let (slow, before) = (&mut port.slow_path, &before.slow_path);
        slow.upcalls = slow.upcalls.saturating_sub(before.upcalls);
        slow.upcall_cpu_ns = slow.upcall_cpu_ns.saturating_sub(before.upcall_cpu_ns);
        slow.punted = slow.punted.saturating_sub(before.punted);
        slow.punted_cpu_ns = slow.punted_cpu_ns.saturating_sub(before.punted_cpu_ns);
    }
    let (uplink, before) = (&mut snapshot.uplink, &earlier.uplink);
    uplink.rx = added(uplink.rx, before.rx);
    uplink.tx = added(uplink.tx, before.tx);
    uplink.drops = added_drops(&uplink.drops, &before.drops);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(packets: u64, bytes: u64) -> PacketCount {
        PacketCount { packets, bytes }
    }

    fn sample(pid: u32, uptime_ms: u64, ports: &[(u32, &str, u64)]) -> Snapshot {
        let port = |&(port, name, packets): &(u32, &str, u64)| PortStats {
            port,
            name: name.to_owned(),
            rx: count(packets, packets * 100),
            drops: Drops::from([("acl_drop".to_owned(), packets / 2)]),
            ..PortStats::default()
        };
        let ports = ports.iter().map(port).collect();
        Snapshot { pid, uptime_ms, ports, ..Snapshot::default() }
    }

    #[test]
    fn restarted_counter_counts_from_zero() {
        assert_eq!(added(count(12, 900), count(10, 700)), count(2, 200));
        assert_eq!(added(count(3, 300), count(10, 700)), count(3, 300));
        // More packets than before, but fewer bytes: the counters have restarted.
        assert_eq!(added(count(11, 660), count(10, 15_000)), count(11, 660));
        assert_eq!(added_count(u64::MAX, 1), u64::MAX - 1);
        let before = Drops::from([("a".to_owned(), 5), ("b".to_owned(), 9), ("c".to_owned(), 1)]);
        let now = Drops::from([("a".to_owned(), 7), ("b".to_owned(), 2), ("c".to_owned(), 1)]);
        let added = Drops::from([("a".to_owned(), 2), ("b".to_owned(), 2)]);
        assert_eq!(added_drops(&now, &before), added);
    }

    #[test]
    fn another_port_with_the_same_number_has_all_its_traffic() {
        let before = sample(7, 1000, &[(1, "a", 10), (2, "b", 10)]);
        let mut now = sample(7, 2000, &[(1, "a", 14), (2, "c", 16)]);
        subtract(&mut now, &before);
        let packets: Vec<_> = now.ports.iter().map(|port| port.rx.packets).collect();
        assert_eq!(packets, [4, 16]);
        assert_eq!(now.ports[0].drops["acl_drop"], 2);
    }

    #[test]
    fn samples_of_two_daemons_are_told_apart() {
        let at = |pid, uptime_ms| sample(pid, uptime_ms, &[]);
        assert!(is_same_run(&at(7, 2000), &at(7, 1000)));
        assert!(!is_same_run(&at(8, 2000), &at(7, 1000)));
        // A process ID may be used again.
        assert!(!is_same_run(&at(7, 10), &at(7, 1000)));
    }
}
