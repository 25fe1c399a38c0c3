//! Errors of requests to the kernel: the operation, its object, and the reason.

use std::borrow::Cow;
use std::io;

/// The result of a request to the kernel.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed request. The text names the operation and its object, so callers need not add them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// Operation and object, such as `open /dev/net/tun`.
        what: Cow<'static, str>,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The kernel refused a netlink request with a text (extended acknowledgement).
    #[error("{what}: {source}: {reason}")]
    Refused {
        /// Operation and object, such as `create vxlan link vx0`.
        what: Cow<'static, str>,
        /// The error of the operating system.
        source: io::Error,
        /// The kernel's text.
        reason: String,
    },
    /// The object does not exist.
    #[error("{what}: no such {object}")]
    NotFound {
        /// Operation and object, such as `look up link eth7`.
        what: Cow<'static, str>,
        /// The kind of the missing object: `link`, `namespace`, `feature`.
        object: &'static str,
    },
    /// An invalid argument, found before any request to the kernel.
    #[error("{what}: {reason}")]
    Invalid {
        /// Operation and object.
        what: Cow<'static, str>,
        /// The fault of the argument, and the expected value.
        reason: Cow<'static, str>,
    },
    /// A reply of the kernel in an unexpected format.
    #[error("{what}: unexpected answer: {reason}")]
    Malformed {
        /// Operation and object.
        what: Cow<'static, str>,
        /// What was found.
        reason: Cow<'static, str>,
    },
}

impl Error {
    /// A failed system call. `what` is operation and object, `error` an [`io::Error`] or an errno.
    ///
    /// ```
    /// let error = netdev::Error::os("open /dev/net/tun", nix::errno::Errno::EPERM);
    /// assert_eq!(error.to_string(), "open /dev/net/tun: Operation not permitted (os error 1)");
    /// ```
    pub fn os(what: impl Into<Cow<'static, str>>, error: impl Into<io::Error>) -> Self {
        Self::Os { what: what.into(), source: error.into() }
    }

    /// The system call that just failed on this thread (`errno`).
    pub fn last_os(what: impl Into<Cow<'static, str>>) -> Self {
        Self::os(what, io::Error::last_os_error())
    }

    /// An object that does not exist.
    pub fn not_found(what: impl Into<Cow<'static, str>>, object: &'static str) -> Self {
        Self::NotFound { what: what.into(), object }
    }

    /// An invalid argument.
    pub fn invalid(
        what: impl Into<Cow<'static, str>>,
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::Invalid { what: what.into(), reason: reason.into() }
    }

    /// A reply of the kernel in an unexpected format.
    pub fn malformed(
        what: impl Into<Cow<'static, str>>,
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::Malformed { what: what.into(), reason: reason.into() }
    }

    /// The errno, where there is one (`libc::EEXIST` and so on).
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Os { source, .. } | Self::Refused { source, .. } => source.raw_os_error(),
            Self::NotFound { .. } | Self::Invalid { .. } | Self::Malformed { .. } => None,
        }
    }

    /// True when the operation failed because its object does not exist, or no longer does.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
            || matches!(self.errno(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::ESRCH))
    }

    /// True when the kernel has no route to a destination: none matches, or the one that does is
    /// of the type `unreachable`, `prohibit` (EACCES) or `blackhole` (EINVAL). The kernel also
    /// returns EINVAL for a source address that the host does not have.
    pub fn is_unreachable(&self) -> bool {
        let errnos = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL];
        self.errno().is_some_and(|errno| errnos.contains(&errno))
    }

    /// True when the caller lacks a capability.
    pub fn is_permission(&self) -> bool {
        matches!(self.errno(), Some(libc::EPERM | libc::EACCES))
    }

    /// True when the object to be created already exists.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }

    /// True when a table is full, for example when a bridge has its maximum of ports.
    pub fn is_full(&self) -> bool {
        self.errno() == Some(libc::EXFULL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_operation_object_and_reason_when_the_kernel_refuses() {
        let error = Error::Refused {
            what: "create link vx0".into(),
            source: io::Error::from_raw_os_error(libc::EEXIST),
            reason: "a VXLAN device with the specified VNI already exists".into(),
        };
        assert_eq!(
            error.to_string(),
            "create link vx0: File exists (os error 17): \
             a VXLAN device with the specified VNI already exists"
        );
        assert!(error.is_exists() && !error.is_not_found() && !error.is_permission());
    }

    #[test]
    fn missing_objects_are_recognised_when_errno_or_variant_says_so() {
        assert!(Error::os("delete link a", nix::errno::Errno::ENODEV).is_not_found());
        assert!(Error::not_found("look up link a", "link").is_not_found());
        assert!(!Error::invalid("set mtu", "0 is too small").is_not_found());
    }
}
