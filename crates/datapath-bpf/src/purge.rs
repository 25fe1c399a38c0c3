//! [`purge`]: removes everything that a killed kernel datapath left behind.

use crate::attachment::remove_filters;
use crate::pin::{NamespaceClaim, PinError, Pins};
use crate::previous::PreviousState;
use datapath_user::fast_path::remove_orphaned_devices;
use std::collections::HashSet;
use std::path::Path;

/// The objects that [`purge`] removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PurgeResult {
    /// Programs detached from devices.
    pub programs: usize,
    /// Megaflows.
    pub megaflows: u64,
    /// Veth pairs created for guests.
    pub devices: usize,
}

/// Removes what a killed process left in this thread's network namespace: programs, filters,
/// qdiscs, megaflows, and the veth pairs created for guests. It also undoes changes to the devices
/// of other ports. `bpf_fs` is the BPF file system that it was pinned in.
///
/// # Errors
/// [`PinError::Taken`] if that process still runs; then nothing is removed. Otherwise the kernel's
/// error.
pub fn purge(bpf_fs: &Path) -> Result<PurgeResult, PinError> {
    let _namespace = NamespaceClaim::claim()?;
    let pins = Pins::find(bpf_fs)?;
    let mut purged = PurgeResult::default();
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
