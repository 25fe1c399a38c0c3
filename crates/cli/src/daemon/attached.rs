//! The devices that are attached to ports of pools, and the directory that remembers them.
//!
//! The directory is beside the control socket and has one file for each port, named like it. A
//! daemon that is killed while it writes leaves an incomplete file, which is not valid JSON and is
//! ignored. The next daemon attaches the same devices again. A reboot empties `/run`.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The name of the directory is that of the control socket and this.
pub const SUFFIX: &str = ".ports";
/// Longer files are not of this program.
const MAX_FILE_BYTES: u64 = 4096;

/// A device that is attached to a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attached {
    /// The name of the interface.
    pub device: String,
    /// Who has attached it; any text.
    pub owner: String,
}

/// The attached devices by the name of their port.
pub type AttachedPorts = BTreeMap<String, Attached>;

/// The directory beside a control socket.
pub fn folder(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(SUFFIX);
    path.into()
}

/// Reads what earlier daemons have attached. A file that cannot be read is left out with a warning.
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

/// Makes the directory, if there is none, for root and the user of the daemon only.
///
/// # Errors
/// The directory cannot be made.
pub fn prepare(folder: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot make {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Remembers a device.
///
/// # Errors
/// The file cannot be written. Nothing has changed.
pub fn save(folder: &Path, port: &str, attached: &Attached) -> Result<()> {
    let path = folder.join(port);
    let written = fs::write(&path, serde_json::to_vec(attached)?);
    if written.is_err() {
        forget(folder, port)?;
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// True if a device of this port is remembered.
pub fn is_known(folder: &Path, port: &str) -> bool {
    folder.join(port).exists()
}

/// Forgets a device.
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

/// Removes the directory beside a control socket, unless it remembers devices.
pub fn remove_empty(control: &Path) {
    // It is no fault if there is none, or if it has files.
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
