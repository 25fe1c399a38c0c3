//! Limits which files a thread may change, by Landlock (landlock(7)).

use crate::{Error, Result};
use landlock::{
    ABI, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus,
};
use std::io;
use std::path::{Path, PathBuf};

/// A place where files may be changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileAccess {
    /// Existing files may be written: this one, or all in and below this directory.
    Write(PathBuf),
    /// Files and directories may be created, written and removed below this directory.
    Change(PathBuf),
    /// Files may be removed from this directory, and those below it.
    RemoveFiles(PathBuf),
    /// Sockets may be created in this directory, and files removed from it.
    Sockets(PathBuf),
    /// Empty directories may be removed below this directory.
    RemoveFolders(PathBuf),
}

/// Whether changes of files are limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileLimit {
    /// Only the named files can be changed, and no program can be started.
    Full,
    /// This kernel can limit only some kinds of changes, and allows all others.
    Partial,
    /// This kernel has no Landlock, or it is not enabled.
    None,
}

/// Limits the kinds of access that Landlock knows since Linux 6.2. Older kernels know fewer of
/// them, and limit only these. Newer kernels can also limit ioctl, but the seccomp filter does
/// that.
const VERSION: ABI = ABI::V3;

impl FileAccess {
    fn rule(&self) -> (&Path, BitFlags<AccessFs>) {
        let write = AccessFs::WriteFile | AccessFs::Truncate;
        match self {
            Self::Write(path) => (path, write),
            Self::Change(path) => (path, AccessFs::from_write(VERSION)),
            Self::RemoveFiles(path) => (path, AccessFs::RemoveFile.into()),
            Self::Sockets(path) => (path, AccessFs::RemoveFile | AccessFs::MakeSock),
            Self::RemoveFolders(path) => (path, AccessFs::RemoveDir.into()),
        }
    }
}

/// Limits this thread, and those that it starts later, to changes of `allowed`. A path that does
/// not exist is ignored. Reading is not limited.
pub(super) fn limit(allowed: &[FileAccess]) -> Result<FileLimit> {
    let failed = |error: RulesetError| Error::os("limit access to files", io::Error::other(error));
    let limited = AccessFs::from_write(VERSION) | AccessFs::Execute;
    let mut rules =
        Ruleset::default().handle_access(limited).map_err(failed)?.create().map_err(failed)?;
    for access in allowed {
        let (path, kinds) = access.rule();
        let Ok(place) = PathFd::new(path) else { continue };
        rules = rules.add_rule(PathBeneath::new(place, kinds)).map_err(failed)?;
    }
    Ok(match rules.restrict_self().map_err(failed)?.ruleset {
        RulesetStatus::FullyEnforced => FileLimit::Full,
        RulesetStatus::PartiallyEnforced => FileLimit::Partial,
        RulesetStatus::NotEnforced => FileLimit::None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::ErrorKind;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    #[test]
    fn only_named_files_can_be_changed() {
        let folder = std::env::temp_dir().join(format!("weft-files-{}", std::process::id()));
        for sub in ["free", "sockets", "empty/below", "other", "bridges"] {
            fs::create_dir_all(folder.join(sub)).unwrap();
        }
        let path = |name: &str| folder.join(name);
        for file in ["free/old", "sockets/socket", "settings", "other/file"] {
            fs::write(path(file), "old").unwrap();
        }
        let allowed = [
            FileAccess::Change(path("free")),
            FileAccess::RemoveFiles(path("sockets")),
            FileAccess::Sockets(path("bridges")),
            FileAccess::RemoveFolders(path("empty")),
            FileAccess::Write(path("settings")),
            FileAccess::Write(path("missing")),
        ];
        let denied = |result: io::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
        };
        let work = || {
            if limit(&allowed).unwrap() == FileLimit::None {
                return;
            }
            fs::write(path("free/new"), "new").unwrap();
            fs::create_dir(path("free/folder")).unwrap();
            fs::remove_file(path("free/old")).unwrap();
            fs::write(path("settings"), "new").unwrap();
            denied(fs::write(path("sockets/socket"), "new"));
            fs::remove_file(path("sockets/socket")).unwrap();
            drop(UnixListener::bind(path("bridges/socket")).unwrap());
            fs::remove_file(path("bridges/socket")).unwrap();
            denied(fs::write(path("bridges/file"), "new"));
            denied(UnixListener::bind(path("sockets/socket")).map(drop));
            fs::remove_dir(path("empty/below")).unwrap();
            denied(fs::create_dir(path("empty/again")));
            assert_eq!(fs::read_to_string(path("other/file")).unwrap(), "old");
            denied(fs::write(path("other/file"), "new"));
            denied(fs::write(path("other/new"), "new"));
            denied(fs::remove_file(path("other/file")));
            denied(fs::remove_dir(path("other")));
            denied(fs::write("/proc/self/comm", "new"));
            denied(Command::new("/bin/true").status().map(drop));
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap());
        fs::write(path("other/file"), "other threads are not limited").unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
