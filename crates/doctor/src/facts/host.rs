//! The facts of the host, or of the network namespace in which they are read.

use super::Kernel;
use netdev::capability::{self, Capability};
use netdev::{CpuMask, Link};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// How much memory a process may lock, in bytes; `u64::MAX` for any amount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memlock {
    /// What it may.
    pub soft: u64,
    /// What it may raise that to.
    pub hard: u64,
}

/// What is known of a host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostFacts {
    /// Processors that may be given work.
    pub cpus: CpuMask,
    /// The kernel.
    pub kernel: Kernel,
    /// The privileges that `weft run` needs and this process lacks.
    pub missing: Vec<String>,
    /// This process may load programs into the kernel.
    pub may_load_programs: bool,
    /// Sysctls by their keys, parts joined by `/`; those that are not there, or may not be read, are missing.
    pub sysctls: BTreeMap<String, String>,
    /// What the kernel does against faults of processors, by fault.
    pub mitigations: BTreeMap<String, String>,
    /// How much memory may be locked.
    pub memlock: Option<Memlock>,
    /// Packets dropped because a backlog queue was full, of all processors, since boot.
    pub backlog_drops: Option<u64>,
    /// Names of Linux bridges.
    pub bridges: Vec<String>,
    /// Tables of the old iptables, of which rules are not read here.
    pub old_tables: Vec<String>,
}

/// The sysctls that are looked at, but for those of devices.
const SYSCTLS: [&str; 10] = [
    "net/core/netdev_max_backlog",
    "net/core/rps_sock_flow_entries",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_allowed_congestion_control",
    "net/ipv4/ip_no_pmtu_disc",
    "net/ipv4/conf/all/rp_filter",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
];

impl HostFacts {
    /// Reads the facts of the calling thread's namespace, which has the devices `links`; `nics` are those whose settings are of
    /// interest. What may not be read is left out.
    pub fn read(nics: &[String], links: &[Link]) -> Self {
        let of_nics = nics.iter().map(|nic| format!("net/ipv4/conf/{nic}/rp_filter"));
        let keys = SYSCTLS.iter().map(ToString::to_string).chain(of_nics);
        let sysctls = keys.filter_map(|key| {
            let value = fs::read_to_string(Path::new("/proc/sys").join(&key)).ok()?;
            Some((key, value.trim_end().to_owned()))
        });
        let needed =
            [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW, Capability::CAP_SYS_ADMIN];
        let lacks = |capability: Capability| capability::missing(&[capability]).is_some();
        let missing = needed.into_iter().filter(|capability| lacks(*capability));
        let may_load = !lacks(Capability::CAP_NET_ADMIN)
            && (!lacks(Capability::CAP_BPF) || !lacks(Capability::CAP_SYS_ADMIN));
        Self {
            // Where that is not told, nobody is told to spread packets over several.
            cpus: CpuMask::allowed().unwrap_or_default(),
            kernel: Kernel::read(),
            missing: missing.map(|capability| capability.to_string()).collect(),
            may_load_programs: may_load,
            sysctls: sysctls.collect(),
            mitigations: mitigations(),
            memlock: netdev::limits::locked_memory()
                .ok()
                .map(|(soft, hard)| Memlock { soft, hard }),
            backlog_drops: backlog_drops(),
            old_tables: old_tables(),
            bridges: links
                .iter()
                .filter(|link| link.kind.as_deref() == Some("bridge"))
                .map(|link| link.name.clone())
                .collect(),
        }
    }

    /// The number in a sysctl.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.sysctls.get(key)?.trim().parse().ok()
    }
}

fn mitigations() -> BTreeMap<String, String> {
    let entries = fs::read_dir("/sys/devices/system/cpu/vulnerabilities").into_iter().flatten();
    entries
        .flatten()
        .filter_map(|entry| {
            let text = fs::read_to_string(entry.path()).ok()?;
            Some((entry.file_name().into_string().ok()?, text.trim().to_owned()))
        })
        .collect()
}

/// The tables that the old iptables has made, of both IP versions.
fn old_tables() -> Vec<String> {
    let mut tables = Vec::new();
    for version in ["ip", "ip6"] {
        let path = format!("/proc/thread-self/net/{version}_tables_names");
        let names = fs::read_to_string(path).unwrap_or_default();
        tables.extend(names.lines().map(|name| format!("{version} {name}")));
    }
    tables
}

fn backlog_drops() -> Option<u64> {
    fs::read_to_string("/proc/net/softnet_stat").ok().and_then(|text| drops_in(&text))
}

/// The second column of `/proc/net/softnet_stat`, in hexadecimal, one line for each processor.
fn drops_in(text: &str) -> Option<u64> {
    let lines = text.lines().map(|line| u64::from_str_radix(line.split(' ').nth(1)?, 16).ok());
    lines.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backlog_drops_of_all_processors_are_added() {
        assert_eq!(drops_in("00000010 0000000a 0\n00000010 00000001 0\n"), Some(11));
        assert_eq!(drops_in("00000010\n"), None);
    }
}
