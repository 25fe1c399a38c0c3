//! A cpio archive in the format "newc" (the kernel's Documentation/driver-api/early-userspace/buffer-format.rst), which the kernel
//! unpacks as its root file system.

use std::collections::BTreeSet;

use crate::{Error, Result};

/// Modes of files, as stat(2) has them.
const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;

/// An archive that grows. The same files in the same order give the same bytes.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Archive {
    /// Adds a file at an absolute path, with the directories above it, unless it is there.
    ///
    /// # Errors
    /// It does not fit the format, which has 32 bits for lengths.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) -> Result<()> {
        let path = path.trim_matches('/');
        if let Some((directory, _)) = path.rsplit_once('/') {
            self.directory(directory)?;
        }
        if self.names.insert(path.to_owned()) {
            self.entry(path, FILE, content)?;
        }
        Ok(())
    }

    /// Adds a directory and those above it, unless they are there.
    ///
    /// # Errors
    /// As [`Archive::file`].
    pub(super) fn directory(&mut self, path: &str) -> Result<()> {
        let path = path.trim_matches('/');
        for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
            let part = path.get(..end).unwrap_or(path);
            if self.names.insert(part.to_owned()) {
                self.entry(part, DIRECTORY, &[])?;
            }
        }
        Ok(())
    }

    /// The whole archive.
    ///
    /// # Errors
    /// As [`Archive::file`].
    pub(super) fn end(mut self) -> Result<Vec<u8>> {
        self.entry("TRAILER!!!", 0, &[])?;
        Ok(self.bytes)
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        let long = |_| Error::Traffic(format!("{name} is too long for an archive"));
        let number = u32::try_from(self.names.len()).map_err(long)?;
        let size = u32::try_from(content.len()).map_err(long)?;
        let name_size = u32::try_from(name.len() + 1).map_err(long)?;
        self.bytes.extend_from_slice(b"070701");
        // Inode, mode, user, group, links, time, size, device and what it stands for, length of the name, no checksum.
        for field in [number, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0] {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_once_and_before_what_is_in_them() {
        let mut archive = Archive::default();
        archive.file("/a/b/c", b"text").unwrap();
        archive.file("a/b/d", b"").unwrap();
        archive.file("a/b/c", b"again").unwrap();
        let bytes = archive.end().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let names: Vec<_> =
            text.split("070701").skip(1).map(|e| e[104..].split('\0').next().unwrap()).collect();
        assert_eq!(names, ["a", "a/b", "a/b/c", "a/b/d", "TRAILER!!!"]);
        assert!(text.contains("text") && !text.contains("again") && text.len().is_multiple_of(4));
    }
}
