//! [`keep_quiet`]: an interface that belongs to a switch is none of the host's own stack.

use crate::{Error, Result};
use std::fs;
use std::io::ErrorKind;

/// No address of IPv6 and no heed to router advertisements; no answers to ARP, for whatever address of the host; no packets from
/// addresses that are reached elsewhere, which are all.
const SETTINGS: [(&str, &str, &str); 3] =
    [("ipv6", "disable_ipv6", "1"), ("ipv4", "arp_ignore", "8"), ("ipv4", "rp_filter", "1")];

/// Keeps the stack of this thread's network namespace from answering what comes in by the interface `name`. To be called before
/// the interface is up.
///
/// # Errors
/// [`Error::Os`] when a setting cannot be written; one that the kernel does not have, because it is without IPv6, is no error.
pub fn keep_quiet(name: &str) -> Result<()> {
    for (family, key, value) in SETTINGS {
        let path = format!("/proc/sys/net/{family}/conf/{name}/{key}");
        match fs::write(&path, value) {
            Err(error) if error.kind() == ErrorKind::NotFound && family == "ipv6" => {}
            result => {
                result.map_err(|error| Error::os(format!("write {value} to {path}"), error))?
            }
        }
    }
    Ok(())
}
