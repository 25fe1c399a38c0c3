//! Whether this process may do what a command needs.

use anyhow::{Result, bail};

/// A privilege by its name and its number in linux/capability.h.
pub type Capability = (&'static str, u32);

/// To make devices and give them addresses.
pub const NET_ADMIN: Capability = ("CAP_NET_ADMIN", 12);
/// To open packet and raw sockets.
pub const NET_RAW: Capability = ("CAP_NET_RAW", 13);
/// To enter network namespaces.
pub const SYS_ADMIN: Capability = ("CAP_SYS_ADMIN", 21);

/// # Errors
/// One sentence, when this process lacks one of `needed`; `what` is what for.
pub fn check(what: &str, needed: &[Capability]) -> Result<()> {
    // A kernel that does not tell refuses later, and says what.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(name) = missing(&status, needed) {
        bail!("{what} needs the privilege {name}: run the command as root, for example with sudo");
    }
    Ok(())
}

/// The first of `needed` that the effective set in the text of `/proc/PID/status` lacks.
fn missing(status: &str, needed: &[Capability]) -> Option<&'static str> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(line.trim(), 16).ok()?;
    needed.iter().find(|(_, bit)| effective & (1 << bit) == 0).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_names_the_first_when_privileges_lack() {
        let needed = [NET_ADMIN, NET_RAW];
        assert_eq!(missing("CapEff:\t000001ffffffffff\n", &needed), None);
        assert_eq!(missing("Name:\tx\nCapEff:\t0000000000001000\n", &needed), Some("CAP_NET_RAW"));
        assert_eq!(missing("CapEff:\t0000000000000000\n", &needed), Some("CAP_NET_ADMIN"));
        assert_eq!(missing("", &needed), None, "the kernel will tell");
    }
}
