//! [`purge`]: removes all that a kernel datapath has left whose process was killed.

use crate::adopt::Old;
use crate::attach::remove_filters;
use crate::pin::{PinError, Pins};
use datapath::user::remove_pairs;
use netdev::tap::Tap;
use netdev::{Link, Netlink};
use std::path::Path;

/// What was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Purged {
    /// Programs that were detached from devices.
    pub programs: usize,
    /// Megaflows that could be read.
    pub megaflows: u64,
    /// Devices of guests.
    pub devices: usize,
}

/// Removes what a killed process has left in this thread's network namespace: programs, filters, queueing disciplines, megaflows, devices
/// that it made for guests; and devices that received all frames no longer do. `bpf_fs` is where it was pinned.
///
/// # Errors
/// [`PinError::Taken`] when the process runs; nothing was removed then. Otherwise the kernel refuses something.
pub fn purge(bpf_fs: &Path) -> Result<Purged, PinError> {
    let pins = Pins::find(bpf_fs)?;
    let mut purged = Purged::default();
    let netlink = Netlink::open()?;
    let refused = |error| PinError::Refused { folder: bpf_fs.to_owned(), error };
    let mut devices = remove_filters(pins.as_ref(), &[]).map_err(refused)?;
    if let Some(pins) = &pins {
        let old = Old::read(pins);
        purged.megaflows = old.megaflows() as u64 + old.unreadable;
        devices.extend(pins.linked());
        pins.remove_all().map_err(refused)?;
        let vifs = old.devices();
        for &index in &devices {
            if let Ok(link) = netlink.link_by_index(index) {
                let is_vif = vifs.contains(&index);
                purged.devices += usize::from(release(&netlink, &link, is_vif, old.has_links())?);
            }
        }
    }
    devices.sort_unstable();
    devices.dedup();
    purged.programs = devices.len();
    purged.devices += remove_pairs()?;
    Ok(purged)
}

/// Undoes what was done to a device that is not a pair; true when that removes it.
fn release(
    netlink: &Netlink,
    link: &Link,
    is_vif: bool,
    has_links: bool,
) -> Result<bool, netdev::Error> {
    if is_vif && link.kind.as_deref() == Some("tun") {
        return Tap::release(&link.name);
    }
    // The uplink was made to receive all frames for the sake of tags alone.
    if link.promiscuous && (is_vif || has_links) {
        netlink.set_promiscuous(link.index, false)?;
    }
    Ok(false)
}
