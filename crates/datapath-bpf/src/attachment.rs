//! [`Attachment`]: a program attached to the tc ingress hook of a device.

use crate::object::LoadedObject;
use crate::pin::Pins;
use crate::sys::{self, AttachedProgram};
use libbpf_rs::{PrintLevel, TC_EGRESS, TC_INGRESS, TcHook};
use netdev::{Ifindex, Link, Netlink};
use std::fmt;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Once};

/// How a program is attached. Dropping this detaches it.
#[derive(Debug)]
pub(crate) enum Attachment {
    /// A tcx link, which Linux has since 6.6. It coexists with programs of others.
    Tcx {
        link: OwnedFd,
        /// The pin that keeps the link when the process dies.
        pin: Option<PathBuf>,
    },
    /// A filter of the clsact qdisc. It always outlives the process.
    Clsact { ifindex: Ifindex, priority: u32, pins: Option<Arc<Pins>> },
}

/// Filter priorities: the first free one is used.
const PRIORITIES: RangeInclusive<u32> = 1..=16;
/// Filters of weft have this handle ("weft") and one of these programs.
const HANDLE: u32 = 0x7765_6674;
const PROGRAMS: [&str; 2] = ["weft_vif", "weft_uplink"];
const EINVAL: i32 = 22;

impl Attachment {
    /// Attaches a program to a device of this thread's network namespace. It atomically replaces
    /// the program that a killed process left there.
    ///
    /// # Errors
    /// The device does not exist, or the process lacks a privilege.
    pub(crate) fn new(
        program: BorrowedFd<'_>,
        device: &Link,
        pins: Option<&Arc<Pins>>,
    ) -> io::Result<Self> {
        let ifindex = device.index.0;
        let pin = pins.map(|pins| pins.link(ifindex));
        let attached = sys::attached_programs(ifindex)?;
        // The pin may be stale: a device that moved to another namespace keeps its link, and
        // another may now have its ifindex.
        let is_here = |link: &OwnedFd| {
            let id = sys::link_id(link.as_fd());
            id.is_ok_and(|id| attached.iter().any(|attached| attached.link == id))
        };
        let pinned = pin.as_deref().and_then(|pin| sys::pinned(pin).ok()).filter(is_here);
        remove_left_over_programs(device, &attached, pinned.as_ref());
        if let Some(link) = pinned {
            sys::update_link(link.as_fd(), program)?;
            return Ok(Self::Tcx { link, pin });
        }
        match sys::attach_tcx(program, ifindex) {
            Ok(link) => {
                let pin = pin.filter(|pin| match Pins::replace_pin(link.as_fd(), pin) {
                    Ok(()) => true,
                    Err(error) => {
                        messages::log!(
                            LINK_NOT_PINNED,
                            device = %device.name,
                            "cannot pin the link: {error}; the program ends with the process"
                        );
                        false
                    }
                });
                Ok(Self::Tcx { link, pin })
            }
            // The kernel does not support tcx.
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
            messages::log!(
                QDISC_NOT_RECORDED,
                "cannot record the clsact qdisc: {error}; it will not be removed"
            );
        }
        let priority = match find_filter(ifindex) {
            Some(ours) => {
                hook(program, ifindex, ours).replace(true).attach().map_err(io::Error::other)?;
                ours
            }
            None => add_filter(program, ifindex)?,
        };
        Ok(Self::Clsact { ifindex, priority, pins })
    }

    /// Programs of others that run before this one, in order.
    pub(crate) fn programs_before(&self, ifindex: Ifindex) -> io::Result<Vec<String>> {
        let name = |id| sys::program_name(id).unwrap_or_else(|_| format!("program {id}"));
        let attached = sys::attached_programs(ifindex.0)?;
        let tcx = attached.iter().map(|attached| name(attached.program));
        Ok(match self {
            Self::Tcx { link, .. } => {
                let ours = sys::link_id(link.as_fd())?;
                let before = attached.iter().take_while(|attached| attached.link != ours);
                before.map(|attached| name(attached.program)).collect()
            }
            Self::Clsact { priority, .. } => {
                let filters =
                    (*PRIORITIES.start()..*priority).map(|priority| format!("filter {priority}"));
                tcx.chain(filters).collect()
            }
        })
    }
}

/// Detaches weft's tcx programs from a device unless their link is pinned here. A previous daemon
/// with another BPF file system left them, and they would consume packets. It cannot be running,
/// because this process holds the `NamespaceClaim`.
fn remove_left_over_programs(
    device: &Link,
    attached: &[AttachedProgram],
    pinned: Option<&OwnedFd>,
) {
    let pinned = pinned.and_then(|link| sys::link_id(link.as_fd()).ok());
    let is_left_over = |attached: &&AttachedProgram| {
        attached.link != 0
            && Some(attached.link) != pinned
            && sys::program_name(attached.program).is_ok_and(|name| PROGRAMS.contains(&&*name))
    };
    for left_over in attached.iter().filter(is_left_over) {
        let device = &device.name;
        match sys::detach_link(left_over.link) {
            Ok(()) => messages::log!(
                FOREIGN_PROGRAM_DETACHED,
                %device,
                "detached a program of another weft, which is pinned in another BPF file system: \
                 `weft stop --purge --bpf-fs` removes what is left there"
            ),
            Err(error) => {
                messages::log!(
                    FOREIGN_PROGRAM_LEFT,
                    %device,
                    "cannot detach a program of another weft, which consumes packets: {error}"
                );
            }
        }
    }
}

/// Reads the names of programs while the process has the privilege: those of weft, which it may
/// read in any case, and those of others, for messages. [`find_filter`] recognizes weft's filters
/// by them.
pub(crate) fn remember_programs(loaded: &LoadedObject, pins: Option<&Pins>) {
    sys::remember_all_programs();
    for name in PROGRAMS {
        let previous = pins.map(Pins::sets).unwrap_or_default().into_iter();
        let previous = previous.filter_map(|set| sys::pinned(&set.join(name)).ok());
        let ours = loaded.own_program(name);
        for program in previous.chain(ours) {
            // Without the name, a filter is not recognized, and stays.
            if let Err(error) = sys::remember_program(program.as_fd()) {
                messages::log!(PROGRAM_NAME_UNKNOWN, "cannot read the name of a program: {error}");
            }
        }
    }
}

/// Detaches the left-over programs of all devices of this thread's network namespace. The process
/// cannot do that any more when it has given up CAP_SYS_ADMIN.
pub(crate) fn remove_all_left_over_programs(pins: Option<&Pins>) {
    let links = Netlink::open().and_then(|netlink| netlink.links());
    for device in links.unwrap_or_default() {
        let attached = sys::attached_programs(device.index.0).unwrap_or_default();
        let pinned = pins.and_then(|pins| sys::pinned(&pins.link(device.index.0)).ok());
        remove_left_over_programs(&device, &attached, pinned.as_ref());
    }
}

fn hook(program: BorrowedFd<'_>, ifindex: Ifindex, priority: u32) -> TcHook {
    let mut hook = TcHook::new(program);
    hook.ifindex(ifindex.0.cast_signed()).attach_point(TC_INGRESS);
    hook.priority(priority).handle(HANDLE);
    hook
}

/// Adds a filter at the first free priority. The kernel rejects a priority that has a filter of
/// another kind or protocol.
fn add_filter(program: BorrowedFd<'_>, ifindex: Ifindex) -> io::Result<u32> {
    silence_libbpf();
    let mut refused = io::Error::from(io::ErrorKind::AddrInUse);
    for priority in PRIORITIES {
        match hook(program, ifindex, priority).attach() {
            Ok(_) => return Ok(priority),
            Err(error) => refused = io::Error::other(error),
        }
    }
    Err(refused)
}

/// The priority of weft's filter at a device, whichever process added it.
fn find_filter(ifindex: Ifindex) -> Option<u32> {
    silence_libbpf();
    // A query needs no program, but the API wants a descriptor.
    let at = |priority| hook(io::stdin().as_fd(), ifindex, priority).query();
    PRIORITIES.into_iter().find(|&priority| {
        at(priority).is_ok_and(|id| {
            sys::program_name(id).is_ok_and(|name| PROGRAMS.contains(&name.as_str()))
        })
    })
}

/// libbpf prints the kernel's error message to stderr for each priority without a matching filter.
/// These are expected here, so they only go to the debug log.
fn silence_libbpf() {
    fn print(_: PrintLevel, text: String) {
        if text.contains("Kernel error message") {
            messages::log!(LIBBPF_DETAIL, "{}", text.trim_end());
        } else if messages::is_logging() {
            messages::log!(LIBBPF_WARNING, "{}", text.trim_end());
        } else {
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Info, print)));
    });
}

/// Removes weft's filter. Returns false if there was none.
fn remove_filter(ifindex: Ifindex) -> io::Result<bool> {
    let Some(priority) = find_filter(ifindex) else { return Ok(false) };
    hook(io::stdin().as_fd(), ifindex, priority).detach().map_err(io::Error::other)?;
    Ok(true)
}

/// Removes the clsact qdisc that weft added, unless others use it now.
fn remove_clsact(ifindex: Ifindex, pins: &Pins) -> io::Result<()> {
    if !pins.forget_clsact(ifindex.0) {
        return Ok(());
    }
    let filters = Netlink::open().and_then(|netlink| netlink.tc_filter_count(ifindex));
    if filters.map_err(io::Error::other)? == 0 {
        let mut hook = TcHook::new(io::stdin().as_fd());
        hook.ifindex(ifindex.0.cast_signed()).attach_point(TC_INGRESS | TC_EGRESS);
        hook.destroy().map_err(io::Error::other)?;
    }
    Ok(())
}

/// The devices of this thread's network namespace with programs of weft, by pinned link or as
/// filters.
pub(crate) fn devices(pins: &Pins) -> Vec<Ifindex> {
    let filtered = || {
        let netlink = Netlink::open()?;
        let has_filters =
            |link: &&Link| netlink.tc_filter_count(link.index).is_ok_and(|count| count > 0);
        let links = netlink.links()?;
        let indexes = links.iter().filter(has_filters).map(|link| link.index);
        Ok::<_, netdev::Error>(indexes.filter(|index| find_filter(*index).is_some()).collect())
    };
    pins.linked().into_iter().chain(filtered().unwrap_or_else(|_| Vec::new())).collect()
}

/// Removes weft's filters, and the qdiscs that it added, from all devices except `keep`. Returns
/// the devices. Programs attached by tcx end when their links' pins are removed. An error for one
/// device is returned after all others are done.
pub(crate) fn remove_filters(pins: Option<&Pins>, keep: &[Ifindex]) -> io::Result<Vec<Ifindex>> {
    let netlink = Netlink::open().map_err(io::Error::other)?;
    let links = netlink.links().map_err(io::Error::other)?;
    let (mut removed, mut refused) = (Vec::new(), None);
    for link in links.iter().filter(|link| !keep.contains(&link.index)) {
        // A device that is gone has no filters.
        if netlink.tc_filter_count(link.index).is_ok_and(|filters| filters > 0) {
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

impl Drop for Attachment {
    fn drop(&mut self) {
        let removed = match self {
            Self::Tcx { pin: Some(pin), .. } => std::fs::remove_file(pin),
            Self::Tcx { pin: None, .. } => Ok(()),
            Self::Clsact { ifindex, pins, .. } => remove_filter(*ifindex)
                .and_then(|_| pins.as_ref().map_or(Ok(()), |pins| remove_clsact(*ifindex, pins))),
        };
        if let Err(error) = removed {
            // Deleting a device has already deleted its filters.
            messages::log!(PROGRAM_NOT_DETACHED, "cannot detach a program: {error}");
        }
    }
}

/// `tcx` or `clsact`.
impl fmt::Display for Attachment {
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
    use crate::load::{MapSizes, load};
    use flow::EntropySeed;
    use libbpf_rs::ObjectBuilder;
    use netdev::{LinkKind, LinkSpec, Netns};
    use testkit::host::TestHost;

    fn programs() -> LoadedObject {
        load(MapSizes::new(16, 16), &EntropySeed::random()).expect("the kernel takes the programs")
    }

    fn device(host: &TestHost) -> Link {
        let netlink = host.netlink();
        let index = netlink.create(&LinkSpec::new("d0"), &LinkKind::Bridge).expect("a device");
        netlink.link_by_index(index).expect("it is there")
    }

    /// Leaves a program attached, as a killed process does.
    fn leave_attached(attached: Attachment) {
        std::mem::forget(attached);
    }

    #[test]
    fn filter_of_a_killed_process_is_replaced_and_removed() {
        testkit::require_root!();
        let (host, loaded) = (TestHost::new("clsact"), programs());
        let index = device(&host).index;
        let (vif, uplink) =
            (loaded.program("weft_vif").unwrap(), loaded.program("weft_uplink").unwrap());
        // Reads the namespace of the calling thread.
        let count = || Netlink::open().unwrap().tc_filter_count(index).unwrap();
        let name = || {
            let id = hook(io::stdin().as_fd(), index, 1).query().expect("there is one");
            sys::program_name(id).expect("it has a name")
        };
        host.run(|| {
            assert_eq!(count(), 0);
            leave_attached(Attachment::clsact(vif, index, None).unwrap());
            assert_eq!((count(), name().as_str()), (1, "weft_vif"));
            let attached = Attachment::clsact(uplink, index, None).unwrap();
            assert_eq!(
                (count(), name().as_str()),
                (1, "weft_uplink"),
                "the new program replaces the old one"
            );
            drop(attached);
            assert_eq!(count(), 0);
            leave_attached(Attachment::clsact(vif, index, None).unwrap());
            assert_eq!(remove_filters(None, &[index]).unwrap(), []);
            assert_eq!(remove_filters(None, &[]).unwrap(), [index]);
            assert_eq!(count(), 0);
            assert!(!sys::create_clsact(index.0).unwrap(), "the queueing discipline is left alone");
        });
    }

    /// Adds a filter that is not weft's at the first priority.
    fn add_foreign(device: &str) {
        let script = format!(
            "tc filter add dev {device} ingress pref 1 protocol ip bpf bytecode '1,6 0 0 0,'"
        );
        let done = std::process::Command::new("sh").args(["-c", &script]).status().unwrap();
        assert!(done.success());
    }

    #[test]
    fn foreign_filter_stays_when_it_has_the_first_priority() {
        testkit::require_root!();
        testkit::require_program!("tc", "iproute2");
        let (host, loaded) = (TestHost::new("foreign"), programs());
        let index = device(&host).index;
        let vif = loaded.program("weft_vif").unwrap();
        host.run(|| {
            let count = || Netlink::open().unwrap().tc_filter_count(index).unwrap();
            assert!(sys::create_clsact(index.0).unwrap());
            add_foreign("d0");
            let before = count();
            leave_attached(Attachment::clsact(vif, index, None).unwrap());
            let attached = Attachment::clsact(vif, index, None).unwrap();
            assert_eq!(count(), before + 1, "one filter is added, the other stays");
            assert_eq!(attached.programs_before(index).unwrap(), ["filter 1"]);
            drop(attached);
            assert_eq!(count(), before);
            assert_eq!(find_filter(index), None);
        });
    }

    #[test]
    fn program_pinned_in_another_file_system_is_detached_when_ours_is_attached() {
        testkit::require_root!();
        let (host, loaded) = (TestHost::new("left-over"), programs());
        let link = device(&host);
        let vif = loaded.program("weft_vif").unwrap();
        host.run(|| {
            let left_over = sys::attach_tcx(vif, link.index.0).unwrap();
            if sys::attached_programs(link.index.0).unwrap().is_empty() {
                return;
            }
            let attached = Attachment::new(vif, &link, None).unwrap();
            assert_eq!(
                sys::attached_programs(link.index.0).unwrap().len(),
                1,
                "the left-over program is gone"
            );
            assert_eq!(attached.programs_before(link.index).unwrap(), Vec::<String>::new());
            assert_eq!(sys::device_of(left_over.as_fd()).unwrap(), None);
        });
    }

    #[test]
    fn foreign_program_stays_and_is_reported_when_it_runs_first() {
        testkit::require_root!();
        let (host, loaded) = (TestHost::new("front"), programs());
        let link = device(&host);
        let vif = loaded.program("weft_vif").unwrap();
        let object = concat!(env!("OUT_DIR"), "/test_extract.bpf.o");
        let object = ObjectBuilder::default().open_file(object).unwrap().load().unwrap();
        let foreign = object.progs().find(|program| program.name() == "test_extract").unwrap();
        let foreign = foreign.as_fd();
        host.run(|| {
            let standing = || sys::attached_programs(link.index.0).unwrap().len();
            let _theirs = sys::attach_tcx(foreign, link.index.0).unwrap();
            if standing() == 0 {
                return;
            }
            let attached = Attachment::new(vif, &link, None).unwrap();
            assert_eq!(standing(), 2);
            assert_eq!(attached.programs_before(link.index).unwrap(), ["test_extract"]);
            drop(attached);
            assert_eq!(standing(), 1, "it is not ours to detach");
        });
    }

    #[test]
    fn program_is_attached_to_a_device_that_reuses_an_ifindex() {
        testkit::require_root!();
        let (host, other, loaded) = (TestHost::new("moved"), TestHost::new("there"), programs());
        let path = std::env::temp_dir().join(format!("weft-moved-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let (vif, there) = (loaded.program("weft_vif").unwrap(), Netns::clone(&other));
        host.run(|| {
            let pins = Arc::new(Pins::open(&path).unwrap());
            let netlink = Netlink::open().unwrap();
            let make = |name: &str| {
                let index = netlink
                    .create(&LinkSpec::new(name), &LinkKind::Veth { peer: LinkSpec::new("peer") });
                netlink.link_by_index(index.expect("a device")).expect("it is there")
            };
            let gone = make("d0");
            leave_attached(Attachment::new(vif, &gone, Some(&pins)).unwrap());
            if sys::attached_programs(gone.index.0).unwrap().is_empty() {
                return;
            }
            // Simulates that another device gets the ifindex: the pin has the old number.
            let next = {
                netlink.move_to(gone.index, &there).unwrap();
                netlink.delete(netlink.index_of("peer").unwrap()).ok();
                make("d1")
            };
            std::fs::rename(pins.link(gone.index.0), pins.link(next.index.0)).unwrap();
            let attached = Attachment::new(vif, &next, Some(&pins)).unwrap();
            assert_eq!(sys::attached_programs(next.index.0).unwrap().len(), 1, "{attached}");
        });
        let unmounted = std::process::Command::new("umount").arg(&path).status().unwrap();
        assert!(unmounted.success());
        std::fs::remove_dir(&path).unwrap();
    }

    #[test]
    fn qdisc_is_removed_when_weft_added_it_and_it_is_unused() {
        testkit::require_root!();
        let (host, loaded) = (TestHost::new("qdisc"), programs());
        let index = device(&host).index;
        let folder = std::env::temp_dir().join(format!("weft-qdisc-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let vif = loaded.program("weft_vif").unwrap();
        host.run(|| {
            let pins = Arc::new(Pins::open(&folder).unwrap());
            let attach = || Attachment::clsact(vif, index, Some(Arc::clone(&pins))).unwrap();
            drop(attach());
            assert!(sys::create_clsact(index.0).unwrap(), "it was gone");
            drop(attach());
            assert!(!sys::create_clsact(index.0).unwrap(), "the qdisc of another program stays");
        });
        let unmounted = std::process::Command::new("umount").arg(&folder).status().unwrap();
        assert!(unmounted.success());
        std::fs::remove_dir(&folder).unwrap();
    }
}
