//! [`MappedFile`]: words in a file that outlive the process.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::mman::{self, MapFlags, ProtFlags};
use nix::unistd::geteuid;

use crate::regular_file;

/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// The number of bytes for which space in the file system is reserved at a time.
const BLOCK: usize = 1 << 16;
/// The time after which space is requested again if the file system was full.
const PAUSE: Duration = Duration::from_secs(1);

/// Opens a file of this process's user for reading.
///
/// # Errors
/// The file cannot be opened, is a symbolic link or not a regular file, another user may have
/// written it, or a process has it open as a [`MappedFile`].
pub fn open_own(path: &Path) -> io::Result<File> {
    if path.symlink_metadata()?.is_symlink() {
        return Err(io::Error::other("it is a symbolic link"));
    }
    let file = regular_file::open(path)?;
    file.try_lock()?;
    let metadata = file.metadata()?;
    let others = metadata.mode() & 0o022 != 0;
    if metadata.uid() != geteuid().as_raw() || others {
        return Err(io::Error::other("another user may have written it"));
    }
    Ok(file)
}

/// A file mapped into memory. Stored words survive even if the process is killed at once. On a file
/// system in memory, such as `/run`, a store costs as much as any other store to memory.
#[derive(Debug)]
pub struct MappedFile {
    file: File,
    at: NonNull<AtomicU64>,
    bytes: NonZeroUsize,
    /// Whether space in the file system is reserved for a block. If the file system is full, access
    /// to any other block could kill the process: even a read needs a page there.
    reserved: Box<[bool]>,
    /// When space may be requested again, if the file system was full.
    retry_at: Option<Instant>,
}

impl MappedFile {
    /// Creates a file of zeros that only its owner may open, and locks it. The file is sparse: it
    /// takes space only where something is stored.
    ///
    /// # Errors
    /// The file exists, or cannot be created or mapped, or `words` is 0.
    pub fn create(path: &Path, words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(WORD).and_then(NonZeroUsize::new);
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        file.try_lock()?;
        file.set_len(bytes.get() as u64)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so no other memory is replaced.
        let at = unsafe { mman::mmap(None, bytes, access, MapFlags::MAP_SHARED, &file, 0) }?;
        let reserved = vec![false; bytes.get().div_ceil(BLOCK)].into_boxed_slice();
        Ok(Self { file, at: at.cast(), bytes, reserved, retry_at: None })
    }

    /// Stores `words` from word `at` on.
    ///
    /// # Errors
    /// The file system is full, or the file too short. Nothing was stored.
    pub fn store(&mut self, at: usize, words: &[u64]) -> io::Result<()> {
        self.reserve(at, words.len())?;
        for (word, &value) in self.words()[at..].iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The word `at`; 0 beyond the end.
    pub fn load(&self, at: usize) -> u64 {
        // Blocks that are not reserved were never written, so they contain zeros.
        let is_reserved = self.reserved.get(at / (BLOCK / WORD)) == Some(&true);
        let word = if is_reserved { self.words().get(at) } else { None };
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has these words and exists as long as `self`. It begins at a page,
        // so it is aligned. Others who open the file can only change values, which are atomic.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.bytes.get() / WORD) }
    }

    /// Reserves space in the file system for `count` words from word `at` on.
    fn reserve(&mut self, at: usize, count: usize) -> io::Result<()> {
        let end = at.checked_add(count).filter(|end| *end <= self.bytes.get() / WORD);
        let end = end.ok_or(io::ErrorKind::InvalidInput)? * WORD;
        for block in at * WORD / BLOCK..end.div_ceil(BLOCK) {
            if !self.reserved[block] {
                if self.retry_at.is_some_and(|at| Instant::now() < at) {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                let (from, len) = ((block * BLOCK) as i64, BLOCK as i64);
                let flags = FallocateFlags::FALLOC_FL_KEEP_SIZE;
                if let Err(error) = fallocate(&self.file, flags, from, len) {
                    self.retry_at = Some(Instant::now() + PAUSE);
                    return Err(error.into());
                }
                self.reserved[block] = true;
            }
        }
        Ok(())
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: `create` has mapped it, and no reference to it is left.
        let _ = unsafe { mman::munmap(self.at.cast(), self.bytes.get()) };
    }
}

// SAFETY: the memory belongs to the process and is accessed by atomic operations only.
unsafe impl Send for MappedFile {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn words_are_in_the_file_when_stored() {
        let path = std::env::temp_dir().join(format!("weft-shared-{}", std::process::id()));
        let mut shared = MappedFile::create(&path, 100_000).unwrap();
        shared.store(99_998, &[7, u64::MAX]).unwrap();
        assert_eq!(shared.store(99_999, &[1, 2]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(
            [99_997, 99_998, 99_999, 100_000].map(|at| shared.load(at)),
            [0, 7, u64::MAX, 0]
        );
        assert!(open_own(&path).is_err(), "it is in use");
        drop(shared);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 800_000);
        assert_eq!(bytes[799_984..], [[7, 0, 0, 0, 0, 0, 0, 0], [0xff; 8]].concat());
        // The words of an earlier process are not overwritten by accident.
        let again = MappedFile::create(&path, 100_000).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert!(open_own(&path).is_ok());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o620)).unwrap();
        assert!(open_own(&path).is_err());
        std::fs::remove_file(&path).unwrap();
    }

    /// Even a read of a page that was never written needs space.
    #[test]
    fn nothing_is_accessed_without_room_when_the_file_system_is_full() {
        testkit::require_root!();
        let folder = std::env::temp_dir().join(format!("weft-full-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("none"), &folder, Some("tmpfs"), flags, Some("size=256k")).unwrap();
        let mut shared = MappedFile::create(&folder.join("shared"), 1 << 20).unwrap();
        let each = BLOCK / WORD;
        let stored = (0..16).filter(|block| shared.store(block * each, &[1]).is_ok()).count();
        assert!((1..=4).contains(&stored), "{stored}");
        let found = (0..16).filter(|block| shared.load(block * each) == 1).count();
        assert_eq!(found, stored);
        drop(shared);
        nix::mount::umount(&folder).unwrap();
        std::fs::remove_dir(&folder).unwrap();
    }
}
