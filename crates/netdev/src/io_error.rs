//! [`IoError`]: what a read or a write on the packet path can run into, in the words a forwarder acts on.

use std::io;

use packet::vnet::VnetError;

/// The result of a read or a write on the packet path.
pub type IoResult<T> = std::result::Result<T, IoError>;

/// Why a frame could not be read or written. Nothing here carries an allocation, so that refusals cost no more than
/// deliveries.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// The queue of the device or socket is full (EAGAIN, ENOBUFS, ENOMEM): the frame was not taken; trying again later
    /// can succeed.
    #[error("the transmit queue is full")]
    Full,
    /// The link is down (ENETDOWN; EIO from a TAP). The descriptor stays usable and works again once the link is up.
    #[error("the link is down")]
    LinkDown,
    /// The device no longer exists (ENODEV, ENXIO, EBADFD). The descriptor is of no further use.
    #[error("the device is gone")]
    DeviceGone,
    /// The frame or datagram exceeds what the device or the path carries (EMSGSIZE), or has more pieces than one call takes.
    #[error("the frame exceeds what the path carries")]
    TooBig,
    /// There is no route to the destination (ENETUNREACH, EHOSTUNREACH), or a rule of this host forbids it (EPERM, EACCES).
    #[error("the destination is unreachable")]
    Unreachable,
    /// A frame arrived longer than the buffer it was read into; it is lost.
    #[error("a frame longer than its buffer was received")]
    Truncated,
    /// A virtio-net header that does not fit its frame: a received frame that is lost, or one that was not sent.
    #[error(transparent)]
    Offload(#[from] VnetError),
    /// A received datagram whose source address or segment size makes no sense; it is lost.
    #[error("a datagram with an impossible source address or segment size was received")]
    Malformed,
    /// Any other refusal of the operating system.
    #[error("{0}")]
    Os(#[from] OsError),
}

/// An error number of the operating system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OsError(pub i32);

impl std::fmt::Display for OsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for OsError {}

impl IoError {
    /// The meaning of an error number on the packet path.
    pub(crate) fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => Self::Full,
            libc::ENETDOWN => Self::LinkDown,
            libc::ENODEV | libc::ENXIO | libc::EBADFD => Self::DeviceGone,
            libc::EMSGSIZE => Self::TooBig,
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EPERM | libc::EACCES => {
                Self::Unreachable
            }
            other => Self::Os(OsError(other)),
        }
    }
}

impl From<IoError> for io::Error {
    fn from(error: IoError) -> Self {
        match error {
            IoError::Os(OsError(errno)) => Self::from_raw_os_error(errno),
            other => Self::other(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_is_named_when_a_forwarder_acts_on_it() {
        assert!(matches!(IoError::from_errno(libc::ENOBUFS), IoError::Full));
        assert!(matches!(IoError::from_errno(libc::EBADFD), IoError::DeviceGone));
        assert!(matches!(IoError::from_errno(libc::EMSGSIZE), IoError::TooBig));
        assert!(matches!(IoError::from_errno(libc::EINVAL), IoError::Os(OsError(libc::EINVAL))));
    }
}
