//! The devices that are attached to ports of pools, and the directory that stores this list.
//!
//! The directory is next to the control socket and has one file for each port, with the port's
//! name. A daemon that is killed while it writes leaves an incomplete file, which is not valid JSON
//! and is ignored. The next daemon attaches the same devices again. A reboot empties `/run`.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The suffix that turns the path of the control socket into that of the directory.
pub const SUFFIX: &str = ".ports";
/// The longest file that is read. The daemon writes only shorter ones.
const MAX_FILE_BYTES: u64 = 4096;

/// A device that is attached to a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attached {
    /// The name of the interface.
    pub device: String,
    /// Identifies the requester that has attached it; any text.
    pub owner: String,
}

/// The attached devices by the name of their port.
pub type AttachedPorts = BTreeMap<String, Attached>;

/// The directory for the daemon of a control socket.
pub fn folder(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(SUFFIX);
    path.into()
}

/// Reads the list that earlier daemons stored. Skips a file that cannot be read, with a warning.
///
/// # Errors
/// The directory cannot be read.
pub fn load(folder: &Path) -> Result<AttachedPorts> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(AttachedPorts::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", folder.display()));
        }
    };
    let mut ports = AttachedPorts::new();
    for entry in entries.flatten() {
        let Ok(port) = entry.file_name().into_string() else { continue };
        match read(&entry.path()) {
            Ok(attached) => {
                ports.insert(port, attached);
            }
            Err(error) => messages::log!(
                ATTACHED_FILE_UNREADABLE,
                "port {port} stays without a device: {error:#}"
            ),
        }
    }
    Ok(ports)
}

fn read(path: &Path) -> Result<Attached> {
    let failed = || format!("cannot read {}", path.display());
    let mut bytes = Vec::new();
    let file = netdev::regular_file::open(path).with_context(failed)?;
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).with_context(failed)?;
    serde_json::from_slice(&bytes).with_context(failed)
}

/// Creates the directory if it is missing, with access for its owner only.
///
/// # Errors
/// The directory cannot be created.
pub fn prepare(folder: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot make {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Stores the device of a port.
///
/// # Errors
/// The file cannot be written. A partly written file has been removed.
pub fn save(folder: &Path, port: &str, attached: &Attached) -> Result<()> {
    let path = folder.join(port);
    let written = fs::write(&path, serde_json::to_vec(attached)?);
    if written.is_err() {
        forget(folder, port)?;
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// True if a device is stored for this port.
pub fn is_known(folder: &Path, port: &str) -> bool {
    folder.join(port).exists()
}

/// Removes the stored device of a port.
///
/// # Errors
/// The file cannot be removed.
pub fn forget(folder: &Path, port: &str) -> Result<()> {
    let path = folder.join(port);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Removes the directory of a control socket if it is empty.
pub fn remove_empty(control: &Path) {
    // Fails if the directory is missing or not empty, which is no fault.
    let _ = fs::remove_dir(folder(control));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_files_are_read_when_others_are_damaged() {
        let control = std::env::temp_dir().join(format!("weft-attached-{}", std::process::id()));
        let folder = folder(&control);
        assert_eq!(load(&folder).unwrap(), AttachedPorts::new());
        prepare(&folder).unwrap();
        prepare(&folder).unwrap();
        let attached = Attached { device: "veth1".to_owned(), owner: "me".to_owned() };
        save(&folder, "pods.h1.1", &attached).unwrap();
        save(&folder, "pods.h1.2", &attached).unwrap();
        fs::write(folder.join("pods.h1.3"), "").unwrap();
        fs::write(folder.join("pods.h1.4"), "{\"device\":\"a\"").unwrap();
        fs::create_dir(folder.join("pods.h1.5")).unwrap();
        forget(&folder, "pods.h1.2").unwrap();
        forget(&folder, "pods.h1.2").unwrap();
        let expected = AttachedPorts::from([("pods.h1.1".to_owned(), attached)]);
        remove_empty(&control);
        assert_eq!(load(&folder).unwrap(), expected);
        fs::remove_dir_all(&folder).unwrap();
    }
}
