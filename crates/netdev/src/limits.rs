//! What the system grants a process, as far as a switch with many ports can run into it.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{Error, Result};

/// Raises the number of files that this process may have open from the soft limit to the hard one, and returns what it is then.
///
/// The soft limit is kept low, usually at 1024, for programs that use `select`; others are meant to raise it.
///
/// # Errors
/// [`Error::Os`] when the kernel refuses, as a sandbox may make it.
pub fn raise_open_files() -> Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)
        .map_err(|e| Error::os("read the limit of open files", e))?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
            .map_err(|e| Error::os(format!("raise the limit of open files to {hard}"), e))?;
    }
    Ok(hard)
}

/// How much memory this process may lock, in bytes: the soft limit and the hard one.
///
/// # Errors
/// [`Error::Os`] when the kernel refuses, as a sandbox may make it.
pub fn locked_memory() -> Result<(u64, u64)> {
    getrlimit(Resource::RLIMIT_MEMLOCK).map_err(|e| Error::os("read the limit of locked memory", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_limited_by_the_hard_limit_when_raised() {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // Low enough to be told from the hard one, and enough for the tests beside this one.
        setrlimit(Resource::RLIMIT_NOFILE, soft.min(hard - 1), hard).unwrap();
        assert_eq!(raise_open_files().unwrap(), hard);
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
        assert_eq!(raise_open_files().unwrap(), hard, "there is nothing left to raise");
    }
}
