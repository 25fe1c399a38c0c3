//! The facts of the host, or of the network namespace in which they are read.

use super::Kernel;
use netdev::capability::{self, Capability};
use netdev::{CpuMask, Link};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The limit on locked memory (RLIMIT_MEMLOCK) in bytes; `u64::MAX` for no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memlock {
    /// The soft limit.
    pub soft: u64,
    /// The hard limit.
    pub hard: u64,
}

/// The facts of a host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostFacts {
    /// The CPUs that may process packets.
    pub cpus: CpuMask,
    /// The kernel.
    pub kernel: Kernel,
    /// The capabilities that `weft run` needs and this process lacks.
    pub missing: Vec<String>,
    /// The capabilities that loading BPF programs needs and this process lacks.
    pub missing_for_programs: Vec<String>,
    /// Sysctls by key (parts joined by `/`). Keys that do not exist or cannot be read are absent.
    pub sysctls: BTreeMap<String, String>,
    /// The kernel's mitigation of each CPU vulnerability.
    pub mitigations: BTreeMap<String, String>,
    /// The limit on locked memory.
    pub memlock: Option<Memlock>,
    /// Packets dropped on full backlog queues since boot, of all CPUs.
    pub backlog_drops: Option<u64>,
    /// Names of Linux bridges.
    pub bridges: Vec<String>,
    /// Tables of legacy iptables, whose rules the doctor does not read.
    pub old_tables: Vec<String>,
    /// The number of IPsec policies; `None` if it cannot be read.
    pub ipsec_policies: Option<u32>,
}

/// The sysctls that the checks use, except those of single devices.
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
    /// Reads the facts of the calling thread's namespace. `links` are all its devices, `nics` the
    /// devices whose sysctls are read. Values that cannot be read are left out.
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
        Self {
            // With an unknown CPU set, no check recommends spreading packets over CPUs.
            cpus: CpuMask::allowed().unwrap_or_default(),
            kernel: Kernel::read(),
            missing: missing.map(|capability| capability.to_string()).collect(),
            missing_for_programs: datapath_bpf::missing_capabilities()
                .iter()
                .map(ToString::to_string)
                .collect(),
            sysctls: sysctls.collect(),
            mitigations: mitigations(),
            memlock: netdev::limits::locked_memory()
                .ok()
                .map(|(soft, hard)| Memlock { soft, hard }),
            backlog_drops: backlog_drops(),
            old_tables: old_tables(),
            ipsec_policies: netdev::ipsec_policies().ok(),
            bridges: links
                .iter()
                .filter(|link| link.kind.as_deref() == Some("bridge"))
                .map(|link| link.name.clone())
                .collect(),
        }
    }

    /// The value of a numeric sysctl.
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

/// The tables of legacy iptables, of both IP versions.
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

/// Sums the second column of `/proc/net/softnet_stat`: hexadecimal, one line per CPU.
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
