//! [`Attached`]: a program at the tc ingress of a device.

use crate::sys;
use libbpf_rs::{TC_INGRESS, TcHook};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How a program is attached: detached again when this is dropped.
#[derive(Debug)]
pub(crate) enum Attached {
    /// By tcx, which Linux has since 6.6: as a link of its own, beside the programs of others.
    Tcx(#[allow(dead_code, reason = "it is there to be dropped")] OwnedFd),
    /// As a filter of the queueing discipline clsact.
    Clsact { ifindex: i32, handle: u32, program: OwnedFd },
}

/// Of filters; the first.
const PRIORITY: u32 = 1;
const EINVAL: i32 = 22;

impl Attached {
    /// Attaches it to a device of this thread's network namespace.
    ///
    /// # Errors
    /// There is no such device, or no right to do so.
    pub(crate) fn new(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<Self> {
        match sys::attach_tcx(program, ifindex) {
            Ok(link) => Ok(Self::Tcx(link)),
            // The kernel does not know this kind of link.
            Err(error) if error.raw_os_error() == Some(EINVAL) => Self::clsact(program, ifindex),
            Err(error) => Err(error),
        }
    }

    fn clsact(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<Self> {
        let ifindex = ifindex.cast_signed();
        let mut hook = TcHook::new(program);
        hook.ifindex(ifindex).attach_point(TC_INGRESS).priority(PRIORITY).replace(false);
        let attached = hook.create().and_then(|mut hook| hook.attach());
        let attached = attached.map_err(io::Error::other)?;
        let program = program.try_clone_to_owned()?;
        Ok(Self::Clsact { ifindex, handle: attached.get_handle(), program })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let Self::Clsact { ifindex, handle, program } = self else { return };
        let mut hook = TcHook::new(program.as_fd());
        hook.ifindex(*ifindex).attach_point(TC_INGRESS).priority(PRIORITY).handle(*handle);
        if let Err(error) = hook.detach() {
            // With the device, the filter is gone, too.
            tracing::debug!("cannot detach a program: {error}");
        }
    }
}

/// `tcx` or `clsact`.
impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcx(_) => "tcx",
            Self::Clsact { .. } => "clsact",
        })
    }
}
