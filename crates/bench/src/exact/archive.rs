//! A cpio archive in the format "newc" (the kernel's Documentation/driver-api/early-userspace/buffer-format.rst), which the kernel
//! unpacks as its root file system.

use std::collections::BTreeSet;

/// Modes of files, as stat(2) has them.
const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;

/// An archive that grows. The same files in the same order give the same bytes.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
    too_long: Option<String>,
}

impl Archive {
    /// Adds a file that may be executed at an absolute path, with the directories above it, unless it is there.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) {
        let path = path.trim_matches('/');
        if let Some((directory, _)) = path.rsplit_once('/') {
            self.directory(directory);
        }
        if self.names.insert(path.to_owned()) {
            self.entry(path, FILE, content);
        }
    }

    /// Adds a directory and those above it, unless they are there.
    pub(super) fn directory(&mut self, path: &str) {
        let path = path.trim_matches('/');
        for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
            let part = path.get(..end).unwrap_or(path);
            if self.names.insert(part.to_owned()) {
                self.entry(part, DIRECTORY, &[]);
            }
        }
    }

    /// The whole archive.
    ///
    /// # Errors
    /// The name of what does not fit the format, which has 32 bits for lengths.
    pub(super) fn end(mut self) -> Result<Vec<u8>, String> {
        self.entry("TRAILER!!!", 0, &[]);
        self.too_long.map_or(Ok(self.bytes), Err)
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        let number = |length: usize| u32::try_from(length).ok();
        let numbers = (number(self.names.len()), number(content.len()), number(name.len() + 1));
        let (Some(number), Some(size), Some(name_size)) = numbers else {
            self.too_long.get_or_insert_with(|| name.to_owned());
            return;
        };
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
        archive.file("/a/b/c", b"text");
        archive.file("a/b/d", b"");
        archive.file("a/b/c", b"again");
        let bytes = archive.end().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let names: Vec<_> =
            text.split("070701").skip(1).map(|e| e[104..].split('\0').next().unwrap()).collect();
        assert_eq!(names, ["a", "a/b", "a/b/c", "a/b/d", "TRAILER!!!"]);
        assert!(text.contains("text") && !text.contains("again") && text.len().is_multiple_of(4));
    }
}
