//! [`Attached`]: a program at the tc ingress of a device.

use crate::pin::Pins;
use crate::sys;
use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook};
use netdev::{Ifindex, Link, Netlink};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// How a program is attached: detached again when this is dropped.
#[derive(Debug)]
pub(crate) enum Attached {
    /// By tcx, which Linux has since 6.6: as a link of its own, beside the programs of others.
    Tcx {
        #[allow(dead_code, reason = "it is there to be dropped")]
        link: OwnedFd,
        /// The name by which the link outlives the process.
        pin: Option<PathBuf>,
    },
    /// As a filter of the queueing discipline clsact, which outlives the process in any case.
    Clsact { ifindex: Ifindex, pins: Option<Arc<Pins>> },
}

/// Of filters; the first.
const PRIORITY: u32 = 1;
/// By it and the name of its program a filter of ours is known: `weft`.
const HANDLE: u32 = 0x7765_6674;
const PROGRAMS: [&str; 2] = ["weft_vif", "weft_uplink"];
const EINVAL: i32 = 22;

impl Attached {
    /// Attaches it to a device of this thread's network namespace, in the place of the one that a process has left there which was
    /// killed: no packet passes without one of the two.
    ///
    /// # Errors
    /// There is no such device, or no right to do so.
    pub(crate) fn new(
        program: BorrowedFd<'_>,
        device: &Link,
        pins: Option<&Arc<Pins>>,
    ) -> io::Result<Self> {
        let ifindex = device.index.0;
        let pin = pins.map(|pins| pins.link(ifindex));
        if let Some(link) = pin.as_deref().and_then(|pin| sys::pinned(pin).ok())
            && sys::device_of(link.as_fd()).is_ok_and(|device| device == Some(ifindex))
        {
            sys::update_link(link.as_fd(), program)?;
            return Ok(Self::Tcx { link, pin });
        }
        match sys::attach_tcx(program, ifindex) {
            Ok(link) => {
                let pin = pin.filter(|pin| match Pins::pin_anew(link.as_fd(), pin) {
                    Ok(()) => true,
                    Err(error) => {
                        tracing::warn!(device = %device.name, "the program goes with the process, its link cannot be pinned: {error}");
                        false
                    }
                });
                Ok(Self::Tcx { link, pin })
            }
            // The kernel does not know this kind of link.
            Err(error) if error.raw_os_error() == Some(EINVAL) => {
                Self::clsact(program, device.index, pins.cloned())
            }
            Err(error) => Err(error),
        }
    }

    fn clsact(
        program: BorrowedFd<'_>,
        ifindex: Ifindex,
        pins: Option<Arc<Pins>>,
    ) -> io::Result<Self> {
        if sys::create_clsact(ifindex.0)?
            && let Some(pins) = &pins
            && let Err(error) = pins.note_clsact(ifindex.0)
        {
            tracing::debug!("a queueing discipline will stay: {error}");
        }
        hook(program, ifindex).replace(true).attach().map_err(io::Error::other)?;
        Ok(Self::Clsact { ifindex, pins })
    }
}

fn hook(program: BorrowedFd<'_>, ifindex: Ifindex) -> TcHook {
    let mut hook = TcHook::new(program);
    hook.ifindex(ifindex.0.cast_signed()).attach_point(TC_INGRESS);
    hook.priority(PRIORITY).handle(HANDLE);
    hook
}

/// Removes the filter that one of our programs is at a device, whichever process has put it there; true when there was one.
fn remove_filter(ifindex: Ifindex) -> io::Result<bool> {
    // No program is asked for where one is looked for.
    let mut hook = hook(io::stdin().as_fd(), ifindex);
    let Ok(id) = hook.query() else { return Ok(false) };
    if !sys::program_name(id).is_ok_and(|name| PROGRAMS.contains(&name.as_str())) {
        return Ok(false);
    }
    hook.detach().map_err(io::Error::other)?;
    Ok(true)
}

/// Removes the queueing discipline that was made for our filter, unless others use it now.
fn remove_clsact(ifindex: Ifindex, pins: &Pins) -> io::Result<()> {
    if !pins.forget_clsact(ifindex.0) {
        return Ok(());
    }
    let filters = Netlink::open().and_then(|netlink| netlink.filters(ifindex));
    if filters.map_err(io::Error::other)? == 0 {
        let mut hook = TcHook::new(io::stdin().as_fd());
        hook.ifindex(ifindex.0.cast_signed()).attach_point(TC_INGRESS | TC_EGRESS);
        hook.destroy().map_err(io::Error::other)?;
    }
    Ok(())
}

/// Where programs of ours stand in this thread's network namespace, whichever process has attached them: by links that are pinned, or as
/// filters.
pub(crate) fn devices(pins: &Pins) -> Vec<Ifindex> {
    let links = Netlink::open().and_then(|netlink| netlink.links()).unwrap_or_default();
    let is_ours = |index: &Ifindex| {
        let id = hook(io::stdin().as_fd(), *index).query();
        id.is_ok_and(|id| sys::program_name(id).is_ok_and(|name| PROGRAMS.contains(&&*name)))
    };
    let filtered = links.iter().map(|link| link.index).filter(is_ours);
    pins.linked().into_iter().chain(filtered).collect()
}

/// Removes our filters from all devices of this thread's network namespace but those of `keep`, and the queueing disciplines that were
/// made for them. Those of tcx go with the names of their links. Returns the devices. What the kernel refuses for one device is said when
/// all others are done.
pub(crate) fn remove_filters(pins: Option<&Pins>, keep: &[Ifindex]) -> io::Result<Vec<Ifindex>> {
    let netlink = Netlink::open().map_err(io::Error::other)?;
    let links = netlink.links().map_err(io::Error::other)?;
    let (mut removed, mut refused) = (Vec::new(), None);
    for link in links.iter().filter(|link| !keep.contains(&link.index)) {
        // One that is gone by now has none.
        if netlink.filters(link.index).is_ok_and(|filters| filters > 0) {
            match remove_filter(link.index) {
                Ok(true) => removed.push(link.index),
                Ok(false) => {}
                Err(error) => refused = Some(error),
            }
        }
        if let Some(Err(error)) = pins.map(|pins| remove_clsact(link.index, pins)) {
            refused = Some(error);
        }
    }
    refused.map_or(Ok(removed), Err)
}

impl Drop for Attached {
    fn drop(&mut self) {
        let removed = match self {
            Self::Tcx { pin: Some(pin), .. } => std::fs::remove_file(pin),
            Self::Tcx { pin: None, .. } => Ok(()),
            Self::Clsact { ifindex, pins } => remove_filter(*ifindex)
                .and_then(|_| pins.as_ref().map_or(Ok(()), |pins| remove_clsact(*ifindex, pins))),
        };
        if let Err(error) = removed {
            // With the device, the filter is gone, too.
            tracing::debug!("cannot detach a program: {error}");
        }
    }
}

/// `tcx` or `clsact`.
impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcx { .. } => "tcx",
            Self::Clsact { .. } => "clsact",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Room, load};
    use crate::pieces::Pieces;
    use flow::EntropySeed;
    use netdev::{LinkKind, LinkSpec};
    use testkit::host::TestHost;

    fn programs() -> Pieces {
        load(Room::new(16, 16), &EntropySeed::random()).expect("the kernel takes the programs")
    }

    fn device(host: &TestHost) -> Link {
        let netlink = host.netlink();
        let index = netlink.create(&LinkSpec::new("d0"), &LinkKind::Bridge).expect("a device");
        netlink.link_by_index(index).expect("it is there")
    }

    /// As a killed process does not.
    fn never_dropped(attached: Attached) {
        std::mem::forget(attached);
    }

    #[test]
    fn filter_of_a_killed_process_is_replaced_and_removed() {
        testkit::require_root!();
        let (host, pieces) = (TestHost::new("clsact"), programs());
        let index = device(&host).index;
        let (vif, uplink) =
            (pieces.program("weft_vif").unwrap(), pieces.program("weft_uplink").unwrap());
        // In the namespace of whoever asks.
        let count = || Netlink::open().unwrap().filters(index).unwrap();
        let name = || {
            let id = hook(io::stdin().as_fd(), index).query().expect("there is one");
            sys::program_name(id).expect("it has a name")
        };
        host.run(|| {
            assert_eq!(count(), 0);
            never_dropped(Attached::clsact(vif, index, None).unwrap());
            assert_eq!((count(), name().as_str()), (1, "weft_vif"));
            let attached = Attached::clsact(uplink, index, None).unwrap();
            assert_eq!((count(), name().as_str()), (1, "weft_uplink"), "in its place");
            drop(attached);
            assert_eq!(count(), 0);
            never_dropped(Attached::clsact(vif, index, None).unwrap());
            assert_eq!(remove_filters(None, &[index]).unwrap(), []);
            assert_eq!(remove_filters(None, &[]).unwrap(), [index]);
            assert_eq!(count(), 0);
            assert!(!sys::create_clsact(index.0).unwrap(), "the queueing discipline is left alone");
        });
    }

    #[test]
    fn queueing_discipline_is_removed_when_we_have_made_it_and_nobody_else_uses_it() {
        testkit::require_root!();
        let (host, pieces) = (TestHost::new("qdisc"), programs());
        let index = device(&host).index;
        let folder = std::env::temp_dir().join(format!("weft-qdisc-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let vif = pieces.program("weft_vif").unwrap();
        host.run(|| {
            let pins = Arc::new(Pins::open(&folder).unwrap());
            let attach = || Attached::clsact(vif, index, Some(Arc::clone(&pins))).unwrap();
            drop(attach());
            assert!(sys::create_clsact(index.0).unwrap(), "it was gone");
            drop(attach());
            assert!(!sys::create_clsact(index.0).unwrap(), "it was somebody else's");
        });
        let unmounted = std::process::Command::new("umount").arg(&folder).status().unwrap();
        assert!(unmounted.success());
        std::fs::remove_dir(&folder).unwrap();
    }
}
