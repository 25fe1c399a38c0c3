//! Checks the Linux capabilities that a command needs.

use anyhow::{Result, bail};
use netdev::capability::{self, Capability};

/// Checks that this process has all of `needed`; `what` names the command in the error.
///
/// # Errors
/// A capability is missing.
pub fn require(what: &str, needed: &[Capability]) -> Result<()> {
    if let Some(name) = capability::missing(needed) {
        bail!("{what} needs the capability {name}: run the command as root, for example with sudo");
    }
    Ok(())
}
