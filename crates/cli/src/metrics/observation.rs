//! [`Observation`]: a snapshot of all values that metrics report.

use crate::control::replies::{ConnectionTotals, ConnectionUse, TunnelsReply};
use datapath::stats::{Drops, PortStats, Snapshot};
use std::collections::HashMap;
use std::fs;
use std::time::Duration;
use switch::SwitchStats;

/// The source of all metrics: replies of the control socket, and facts about the process.
#[derive(Default)]
pub struct Observation {
    /// The reply for `weft show --json`, without end points.
    pub show: Snapshot,
    /// Drops of all ports, including removed ones.
    pub port_drops: Drops,
    /// The reply for `weft tunnels --json`.
    pub tunnels: TunnelsReply,
    /// The last line of `weft flows --json`.
    pub switch: SwitchStats,
    /// The maximum number of megaflows.
    pub megaflow_limit: usize,
    /// The last line of `weft ct --stats --json`. The lines before it are in `connection_use`.
    pub connections: ConnectionTotals,
    pub connection_use: Vec<ConnectionUse>,
    /// `None` without OVN.
    pub ovn: Option<OvnFacts>,
    /// `None` if `/proc` cannot be read.
    pub process: Option<ProcessFacts>,
    /// How long the observation took.
    pub took: Duration,
}

/// Sums the drops of all ports. The counters of a port are lost when it is removed, but the sum
/// must never decrease, so the last values of removed ports are kept.
#[derive(Debug, Default)]
pub struct PortDrops {
    /// The counters of each present port at the last observation.
    present: HashMap<String, Drops>,
    /// The last counters of all ports that were removed since the start, summed.
    removed: Drops,
}

impl PortDrops {
    /// Stores the counters of the present ports, and returns the sums.
    pub fn sums(&mut self, ports: &[PortStats]) -> Drops {
        let mut earlier = std::mem::take(&mut self.present);
        for port in ports {
            if let Some(drops) = earlier.remove(&port.name)
                && drops.iter().any(|(reason, count)| port.drops.get(reason) < Some(count))
            {
                // The counters have decreased: a new port has the same name.
                add_drops(&mut self.removed, &drops);
            }
            self.present.insert(port.name.clone(), port.drops.clone());
        }
        earlier.values().for_each(|drops| add_drops(&mut self.removed, drops));
        let mut sums = self.removed.clone();
        ports.iter().for_each(|port| add_drops(&mut sums, &port.drops));
        sums
    }
}

/// Adds the counts of `more` to `sums`.
pub(super) fn add_drops(sums: &mut Drops, more: &Drops) {
    for (reason, count) in more {
        *sums.entry(reason.clone()).or_default() += count;
    }
}

/// The state of the databases of OVN.
#[derive(Clone, Copy, Default)]
pub struct OvnFacts {
    pub is_local_connected: bool,
    pub is_southbound_connected: bool,
    /// The daemon has the lock of the local database.
    pub has_lock: bool,
    /// The last network stays in use, because the southbound database is empty.
    pub holds_network: bool,
    /// The generation of the network that was read from the database.
    pub read_nb_cfg: Option<i64>,
    /// The generation of the network that is installed.
    pub installed_nb_cfg: Option<i64>,
    /// The age of the oldest change that was read and is not installed yet.
    pub lag: Duration,
    /// The number of installed logical flows.
    pub flows: usize,
    /// The number of logical flows that the daemon cannot compile.
    pub bad_flows: usize,
    /// The number of installations of a network.
    pub installed: u64,
    /// The number of failed installations.
    pub failed: u64,
}

/// The resources that this process uses.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ProcessFacts {
    pub resident_bytes: u64,
    pub peak_resident_bytes: u64,
    pub virtual_bytes: u64,
    pub cpu_seconds: f64,
    pub threads: u64,
    pub open_files: u64,
    pub open_files_limit: u64,
}

impl ProcessFacts {
    /// Reads the facts of this process; `None` if `/proc` is not mounted.
    pub fn read() -> Option<Self> {
        let text = |name| fs::read_to_string(format!("/proc/self/{name}")).ok();
        let open_files = fs::read_dir("/proc/self/fd").ok()?.count() as u64;
        Self::parse(&text("status")?, &text("stat")?, &text("limits")?, open_files)
    }

    fn parse(status: &str, stat: &str, limits: &str, open_files: u64) -> Option<Self> {
        /// USER_HZ: 100 on every Linux architecture that weft is built for.
        const TICKS_PER_SECOND: f64 = 100.0;
        let number = |name: &str| {
            let rest = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            rest?.split_whitespace().next()?.parse::<u64>().ok()
        };
        let kilobytes = |name| number(name)?.checked_mul(1024);
        // The program's name, in parentheses, may contain spaces. User and system time are fields
        // 14 and 15.
        let fields = stat.rsplit_once(") ")?.1.split(' ').skip(11).take(2);
        let ticks: Option<Vec<f64>> = fields.map(|field| field.parse().ok()).collect();
        let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        Some(Self {
            resident_bytes: kilobytes("VmRSS")?,
            peak_resident_bytes: kilobytes("VmHWM")?,
            virtual_bytes: kilobytes("VmSize")?,
            cpu_seconds: ticks?.iter().sum::<f64>() / TICKS_PER_SECOND,
            threads: number("Threads")?,
            open_files,
            open_files_limit: files.split_whitespace().next()?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_drops_do_not_fall_when_ports_go_or_are_replaced() {
        let mut drops = PortDrops::default();
        let mut sum = |ports: &[(&str, u64)]| {
            let port = |&(name, count): &(&str, u64)| PortStats {
                name: name.to_owned(),
                drops: Drops::from([("malformed".to_owned(), count)]),
                ..PortStats::default()
            };
            let ports: Vec<_> = ports.iter().map(port).collect();
            drops.sums(&ports).get("malformed").copied().unwrap_or_default()
        };
        assert_eq!(sum(&[("a", 5), ("b", 2)]), 7);
        assert_eq!(sum(&[("a", 6), ("b", 2)]), 8);
        assert_eq!(sum(&[("b", 3)]), 9);
        assert_eq!(sum(&[("b", 1)]), 10);
        assert_eq!(sum(&[("a", 1), ("b", 1)]), 11);
        assert_eq!(sum(&[]), 11);
    }

    #[test]
    fn resources_are_read_from_the_texts_of_the_kernel() {
        let status = "Name:\tweft\nVmSize:\t  2048 kB\nVmHWM:\t 64 kB\nVmRSS:\t      32 kB\n\
                      Threads:\t9\n";
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 150 75 0 0 20 0 9 0 100 1 2 3";
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 4096                 files\n";
        let found = ProcessFacts::parse(status, stat, limits, 5).unwrap();
        let expected = ProcessFacts {
            resident_bytes: 32 << 10,
            peak_resident_bytes: 64 << 10,
            virtual_bytes: 2 << 20,
            cpu_seconds: 2.25,
            threads: 9,
            open_files: 5,
            open_files_limit: 1024,
        };
        assert_eq!(found, expected);
        assert_eq!(ProcessFacts::parse("", stat, limits, 5), None);
        let own = ProcessFacts::read().unwrap();
        assert!(own.resident_bytes > 100_000 && own.open_files >= 3 && own.threads >= 1);
    }
}
