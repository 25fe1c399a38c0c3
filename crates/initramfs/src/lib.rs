//! The root file system of a virtual machine: a cpio archive in the format "newc" (the kernel's
//! Documentation/driver-api/early-userspace/buffer-format.rst), which the kernel unpacks at boot.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::process::Command;

/// File modes, as in stat(2).
const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;

/// An archive. Its bytes depend only on the files and their order.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
    too_long: Option<String>,
}

impl Archive {
    /// Adds an executable file at an absolute path, and the directories above it. An existing file
    /// is kept.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        let path = path.trim_matches('/');
        if let Some((directory, _)) = path.rsplit_once('/') {
            self.directory(directory);
        }
        if self.names.insert(path.to_owned()) {
            self.entry(path, FILE, content);
        }
    }

    /// Adds a directory and those above it.
    pub fn directory(&mut self, path: &str) {
        let path = path.trim_matches('/');
        for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
            let part = path.get(..end).unwrap_or(path);
            if self.names.insert(part.to_owned()) {
                self.entry(part, DIRECTORY, &[]);
            }
        }
    }

    /// Adds a program of this host without its debug information, and its shared libraries at their
    /// paths on this host.
    ///
    /// # Errors
    /// A file cannot be read, or `ldd` or `strip` is not installed; the message names it.
    pub fn program(&mut self, path: &str, program: &Path) -> io::Result<()> {
        self.file(path, &without_debug_information(program)?);
        let libraries = Command::new("ldd").arg(program).output().map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("find the libraries of {}: {error}", program.display()),
            )
        })?;
        let text = String::from_utf8_lossy(&libraries.stdout);
        for library in text.split_whitespace().filter(|word| word.starts_with('/')) {
            self.file(library, &read(Path::new(library))?);
        }
        Ok(())
    }

    /// Adds a kernel module without its signature. A kernel that does not enforce signatures loads
    /// it anyway. Verifying thirty of them would take a third of the boot time of an emulated
    /// machine.
    pub fn module(&mut self, path: &str, content: &[u8]) {
        self.file(path, without_signature(content));
    }

    /// Ends the archive and returns its bytes.
    ///
    /// # Errors
    /// The name of a file that is too long for the format, which has 32 bits for lengths.
    pub fn end(mut self) -> Result<Vec<u8>, String> {
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
        // Inode, mode, user, group, links, time, size, device, special device, length of the name,
        // and no checksum.
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

/// The bytes of a program after `strip`. Debug information is most of a program, and an emulated
/// machine takes seconds to unpack it.
fn without_debug_information(program: &Path) -> io::Result<Vec<u8>> {
    let stripped = tempfile::NamedTempFile::new()?;
    let mut command = Command::new("strip");
    command.arg("--strip-debug").arg("-o").arg(stripped.path()).arg(program);
    let failed = |why: String| io::Error::other(format!("{}: strip: {why}", program.display()));
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    read(stripped.path())
}

/// The last bytes of a signed kernel module (the kernel's scripts/sign-file.c).
const SIGNED: &[u8] = b"~Module signature appended~\n";
/// Length of `struct module_signature`, which ends in the big-endian length of the signature.
const SIGNATURE_INFO_LEN: usize = 12;

/// A kernel module without the data that `sign-file` appends: the signature, a structure with its
/// length, and a text. An unsigned module is returned unchanged.
fn without_signature(module: &[u8]) -> &[u8] {
    let unsigned = || {
        let (rest, info) = module.strip_suffix(SIGNED)?.split_last_chunk::<SIGNATURE_INFO_LEN>()?;
        let signature_len = u32::from_be_bytes(*info.last_chunk()?);
        rest.get(..rest.len().checked_sub(usize::try_from(signature_len).ok()?)?)
    };
    unsigned().unwrap_or(module)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    std::fs::read(path).map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_added_once_and_before_their_files() {
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

    #[test]
    fn signature_is_removed_when_a_module_has_one() {
        let signed = |signature_len: u8| {
            let info = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, signature_len];
            [&b"module"[..], b"signature", &info, SIGNED].concat()
        };
        assert_eq!(without_signature(&signed(9)), b"module");
        let too_long = signed(16);
        assert_eq!(without_signature(&too_long), too_long);
        for unsigned in [&b"module"[..], SIGNED, b""] {
            assert_eq!(without_signature(unsigned), unsigned);
        }
    }

    #[test]
    fn program_is_added_with_its_shared_libraries() {
        let mut archive = Archive::default();
        archive.program("bin/sh", Path::new("/bin/sh")).unwrap();
        let names: Vec<_> = archive.names.iter().map(String::as_str).collect();
        assert!(
            names.contains(&"bin/sh") && names.iter().any(|n| n.contains("libc.so")),
            "{names:?}"
        );
        let error = archive.program("x", Path::new("/no/such")).unwrap_err().to_string();
        assert!(error.starts_with("/no/such: "), "{error}");
    }
}
