//! Whether this process may do what a command needs.

use anyhow::{Result, bail};
use netdev::capability::{self, Capability};

/// # Errors
/// One sentence, when this process lacks one of `needed`; `what` is what for.
pub fn check(what: &str, needed: &[Capability]) -> Result<()> {
    if let Some(name) = capability::missing(needed) {
        bail!("{what} needs the privilege {name}: run the command as root, for example with sudo");
    }
    Ok(())
}
