//! [`IoError`]: failures of a read or write on the packet path, classified by how a forwarder has
//! to react.

use std::io;

use packet::vnet::VnetError;

/// The result of a read or a write on the packet path.
pub type IoResult<T> = std::result::Result<T, IoError>;

/// Why a frame could not be read or written. No variant allocates, so that a failure costs no more
/// than a success.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// The transmit queue is full (EAGAIN, ENOBUFS, ENOMEM). The frame was not sent; a later
    /// attempt can succeed.
    #[error("the transmit queue is full")]
    Full,
    /// The link is down (ENETDOWN; EIO from a TAP). The descriptor works again once the link is up.
    #[error("the link is down")]
    LinkDown,
    /// The device no longer exists (ENODEV, ENXIO, EBADFD). The descriptor is useless.
    #[error("the device is gone")]
    DeviceGone,
    /// The frame is longer than the MTU of the device (EMSGSIZE), or has too many pieces.
    #[error("the frame exceeds what the device carries")]
    TooBig,
    /// No route to the destination (ENETUNREACH, EHOSTUNREACH), or forbidden (EPERM, EACCES).
    #[error("the destination is unreachable")]
    Unreachable,
    /// A frame was longer than its receive buffer; it is lost.
    #[error("a frame longer than its buffer was received")]
    Truncated,
    /// A virtio-net header does not match its frame. A received frame is lost; a frame to send was
    /// not sent.
    #[error(transparent)]
    Offload(#[from] VnetError),
    /// A datagram with an invalid source address or segment size was received; it is lost.
    #[error("a datagram with an impossible source address or segment size was received")]
    Malformed,
    /// Any other errno.
    #[error("{0}")]
    Os(#[from] OsError),
}

/// An errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OsError(pub i32);

impl std::fmt::Display for OsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for OsError {}

impl IoError {
    /// Classifies an errno of the packet path.
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
