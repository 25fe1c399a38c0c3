//! [`purge`]: removes all that a kernel datapath has left whose process was killed.

use crate::attachment::remove_filters;
use crate::pin::{Namespace, PinError, Pins};
use crate::previous::PreviousState;
use datapath_user::fast_path::remove_orphaned_devices;
use std::collections::HashSet;
use std::path::Path;

/// What was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Purged {
    /// Programs that were detached from devices.
    pub programs: usize,
    /// Megaflows that could be read.
    pub megaflows: u64,
    /// Pairs that were made for guests.
    pub devices: usize,
}

/// Removes what a killed process has left in this thread's network namespace: programs, filters, queueing disciplines, megaflows, pairs
/// that it made for guests; and leaves the devices of other ports as an orderly end does. `bpf_fs` is where it was pinned.
///
/// # Errors
/// [`PinError::Taken`] when the process runs; nothing was removed then. Otherwise the kernel refuses something.
pub fn purge(bpf_fs: &Path) -> Result<Purged, PinError> {
    let _namespace = Namespace::claim()?;
    let pins = Pins::find(bpf_fs)?;
    let mut purged = Purged::default();
    let refused = |error| PinError::Refused { folder: bpf_fs.to_owned(), error };
    let mut devices = remove_filters(pins.as_ref(), &[]).map_err(refused)?;
    if let Some(pins) = &pins {
        let previous = PreviousState::read(pins);
        purged.megaflows = previous.megaflows() as u64 + previous.unreadable;
        devices.extend(pins.linked());
        pins.remove_all().map_err(refused)?;
        previous.close_devices(&devices, &HashSet::new());
    }
    devices.sort_unstable();
    devices.dedup();
    purged.programs = devices.len();
    purged.devices += remove_orphaned_devices()?;
    Ok(purged)
}
