//! The privileges of this process, by which a command that needs some can say so before it begins.

use std::fs;

/// A privilege of a process (capabilities(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    /// Its name, such as `CAP_NET_ADMIN`.
    pub name: &'static str,
    /// Its number in linux/capability.h: the bit of the effective set.
    bit: u32,
}

impl Capability {
    /// To make devices and give them addresses.
    pub const NET_ADMIN: Self = Self { name: "CAP_NET_ADMIN", bit: 12 };
    /// To open packet and raw sockets.
    pub const NET_RAW: Self = Self { name: "CAP_NET_RAW", bit: 13 };
    /// To make network namespaces and to enter them.
    pub const SYS_ADMIN: Self = Self { name: "CAP_SYS_ADMIN", bit: 21 };
    /// To look at processes of others.
    pub const SYS_PTRACE: Self = Self { name: "CAP_SYS_PTRACE", bit: 19 };
    /// To load programs that see packets into the kernel, together with CAP_NET_ADMIN; part of CAP_SYS_ADMIN before
    /// Linux 5.8.
    pub const BPF: Self = Self { name: "CAP_BPF", bit: 39 };
    /// To load programs of which the verifier does not ask what it asks of those of strangers; part of CAP_SYS_ADMIN before
    /// Linux 5.8.
    pub const PERFMON: Self = Self { name: "CAP_PERFMON", bit: 38 };
}

/// The first of `needed` that this process lacks; `None` when it has them all, and where the kernel does not tell (no `/proc`):
/// it refuses later, then, and says what.
pub fn missing(needed: &[Capability]) -> Option<Capability> {
    missing_in(&fs::read_to_string("/proc/self/status").unwrap_or_default(), needed)
}

/// The first of `needed` that the effective set in the text of `/proc/PID/status` lacks.
fn missing_in(status: &str, needed: &[Capability]) -> Option<Capability> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(line.trim(), 16).ok()?;
    needed.iter().copied().find(|capability| effective & (1 << capability.bit) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_is_the_first_when_privileges_lack() {
        const ADMIN: Capability = Capability::NET_ADMIN;
        const RAW: Capability = Capability::NET_RAW;
        const SYS: Capability = Capability::SYS_ADMIN;
        for (status, lacks) in [
            ("Name:\tx\nCapEff:\t000001ffffffffff\n", None),
            ("Name:\tx\nCapEff:\t0000000000001000\n", Some(RAW)),
            ("CapEff:\t0000000000003000\n", Some(SYS)),
            ("CapEff:\t0000000000000000\n", Some(ADMIN)),
            ("CapEff:\tnothing\n", None),
            ("", None),
        ] {
            assert_eq!(missing_in(status, &[ADMIN, RAW, SYS]), lacks, "{status:?}");
        }
        assert_eq!(missing_in("CapEff:\t0000000000000000\n", &[]), None, "nothing is needed");
    }
}
