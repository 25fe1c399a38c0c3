//! Resource limits of a process (getrlimit(2)).

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{Error, Result};

/// Raises the limit on open files from the soft to the hard limit, and returns the hard limit.
///
/// The soft limit is usually 1024, for programs that use select(2); other programs may raise it.
///
/// # Errors
/// [`Error::Os`] when the kernel refuses, for example in a sandbox.
pub fn raise_open_files() -> Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)
        .map_err(|e| Error::os("read the limit of open files", e))?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
            .map_err(|e| Error::os(format!("raise the limit of open files to {hard}"), e))?;
    }
    Ok(hard)
}

/// The soft and hard limit on locked memory, in bytes.
///
/// # Errors
/// [`Error::Os`] when the kernel refuses, for example in a sandbox.
pub fn locked_memory() -> Result<(u64, u64)> {
    getrlimit(Resource::RLIMIT_MEMLOCK).map_err(|e| Error::os("read the limit of locked memory", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_limited_by_the_hard_limit_when_raised() {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // Below the hard limit, but enough for the tests that run at the same time.
        setrlimit(Resource::RLIMIT_NOFILE, soft.min(hard - 1), hard).unwrap();
        assert_eq!(raise_open_files().unwrap(), hard);
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
        assert_eq!(raise_open_files().unwrap(), hard, "there is nothing left to raise");
    }
}
