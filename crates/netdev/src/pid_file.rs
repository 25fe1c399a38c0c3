//! [`PidFile`]: tells tools the process ID of a daemon, as the daemons of Open vSwitch do.

use nix::fcntl::{FcntlArg, fcntl};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that contains the process ID of this process. Its lock (fcntl(2)) shows that the process
/// is running. The file is removed on drop.
///
/// The lock ends when this process closes any descriptor of the file, so nothing else may open it.
#[derive(Debug)]
pub struct PidFile {
    _locked: File,
    path: PathBuf,
}

impl PidFile {
    /// Creates the file, or takes over the file of a process that has ended.
    ///
    /// # Errors
    /// A running process has locked the file ([`io::ErrorKind::WouldBlock`]), or it cannot be
    /// written.
    pub fn create(path: &Path) -> io::Result<Self> {
        for _ in 0..MAX_ATTEMPTS {
            let mut file = open_locked(path)?;
            // Another process may have removed the file after it was opened and before it was
            // locked. Then no tool would find the opened file.
            if is_at(&file, path)? {
                file.set_len(0)?;
                writeln!(file, "{}", std::process::id())?;
                return Ok(Self { _locked: file, path: path.to_owned() });
            }
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "other processes remove it all the time"))
    }
}

/// How many times the file may be removed while it is created.
const MAX_ATTEMPTS: usize = 10;

fn open_locked(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o644);
    // O_NONBLOCK: opening a FIFO would block.
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_SETLK(&lock))?;
    Ok(file)
}

/// Whether the open file is the one at `path`.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let opened = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Fails only if the file is already gone.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn file_names_this_process_and_is_removed_on_drop() {
        let path = std::env::temp_dir().join(format!("weft-pid-{}", std::process::id()));
        fs::write(&path, "123456789 of a process that has ended\n").unwrap();
        let file = PidFile::create(&path).unwrap();
        // Another process cannot lock it.
        let script = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), \
                      fcntl.LOCK_EX | fcntl.LOCK_NB)";
        let python = |path: &Path| Command::new("python3").args(["-c", script]).arg(path).output();
        if let Ok(other) = python(&path) {
            assert!(!other.status.success(), "{other:?}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn file_is_recognized_when_another_has_its_place() {
        let path = std::env::temp_dir().join(format!("weft-pid-place-{}", std::process::id()));
        let first = open_locked(&path).unwrap();
        assert!(is_at(&first, &path).unwrap());
        fs::remove_file(&path).unwrap();
        assert!(!is_at(&first, &path).unwrap());
        let second = open_locked(&path).unwrap();
        assert!(!is_at(&first, &path).unwrap());
        assert!(is_at(&second, &path).unwrap());
        fs::remove_file(&path).unwrap();
    }
}
