//! A directory for the files of a lab's processes.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::names;
use crate::{Error, Result};

/// The parent directory. Only root can write there, so no other user can replace the files.
pub(super) const PARENT: &str = "/run";

/// A new directory that only this user can read. Dropping it removes it with its content.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// A directory in [`PARENT`]. Its name belongs to this session, so that a later session can
    /// remove it if this one is killed.
    pub(crate) fn create() -> Result<Self> {
        Self::create_in(Path::new(PARENT))
    }

    /// A directory in the temporary directory, for users other than root.
    pub(crate) fn create_anywhere() -> Result<Self> {
        Self::create_in(&std::env::temp_dir())
    }

    fn create_in(parent: &Path) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{}{number}", names::prefix()));
        let what = format!("create the directory {}", path.display());
        DirBuilder::new().mode(0o700).create(&path).map_err(Error::io(what))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(Error::io(format!("write {}", path.display())))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "directory left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_gone_when_dropped() {
        let scratch = Scratch::create_in(&std::env::temp_dir()).unwrap();
        let file = scratch.write("a", "b").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "b");
        drop(scratch);
        assert!(!file.parent().unwrap().exists());
    }
}
