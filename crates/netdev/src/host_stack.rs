//! [`silence_host_stack`]: keeps the host's IP stack off an interface that belongs to the switch.

use crate::{Error, Result};
use std::fs;
use std::io::ErrorKind;

/// No IPv6 and no router advertisements; no ARP replies for any local address; strict reverse-path
/// filtering, which drops all packets because no route leads out of the interface.
const SETTINGS: [(&str, &str, &str); 3] =
    [("ipv6", "disable_ipv6", "1"), ("ipv4", "arp_ignore", "8"), ("ipv4", "rp_filter", "1")];

/// Keeps the IP stack of this thread's namespace from answering packets received on the interface
/// `name`. Call it before the interface is up.
///
/// # Errors
/// [`Error::Os`] when a sysctl cannot be written. Missing IPv6 sysctls are no error: the kernel may
/// lack IPv6.
pub fn silence_host_stack(name: &str) -> Result<()> {
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
