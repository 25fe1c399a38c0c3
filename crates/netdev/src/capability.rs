//! Capabilities of this process (capabilities(7)): names a missing one before a command changes
//! anything, and gives up those that it no longer needs.

use crate::{Error, Result};
pub use caps::Capability;
use caps::errors::CapsError;
use caps::{CapSet, CapsHashSet};

/// The first of `needed` that the effective set of this thread lacks.
///
/// Returns `None` when it has them all, and also when the kernel does not report the set: the
/// operation itself then fails with its own error.
pub fn missing(needed: &[Capability]) -> Option<Capability> {
    all_missing(needed).first().copied()
}

/// All of `needed` that the effective set of this thread lacks; none when the kernel does not
/// report the set.
pub fn all_missing(needed: &[Capability]) -> Vec<Capability> {
    let lacks =
        |one: &Capability| matches!(caps::has_cap(None, CapSet::Effective, *one), Ok(false));
    needed.iter().copied().filter(lacks).collect()
}

/// Gives up all capabilities of this thread except `keep`, for good. Afterwards the effective and
/// the permitted set are `keep`, less what the thread did not have. The ambient, the inheritable
/// and the bounding set are empty.
///
/// Threads started later inherit the sets; other threads keep theirs. The kernel allows changes of
/// the bounding set only with CAP_SETPCAP. Without it, the set stays as it is, and only matters if
/// the thread starts another program.
///
/// # Errors
/// [`Error::Os`] when the kernel refuses; some sets may already be reduced.
pub fn keep_only(keep: &[Capability]) -> Result<()> {
    let failed = |what: &str| {
        let what = format!("give up {what} capabilities");
        move |error: CapsError| Error::os(what, std::io::Error::other(error))
    };
    caps::clear(None, CapSet::Ambient).map_err(failed("ambient"))?;
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).unwrap_or(false) {
        caps::clear(None, CapSet::Bounding).map_err(failed("bounding"))?;
    }
    let permitted = caps::read(None, CapSet::Permitted).map_err(failed("permitted"))?;
    let kept: CapsHashSet = keep.iter().copied().filter(|one| permitted.contains(one)).collect();
    // The effective set has to be within the permitted one at every step.
    caps::clear(None, CapSet::Inheritable).map_err(failed("inheritable"))?;
    caps::set(None, CapSet::Effective, &kept).map_err(failed("effective"))?;
    caps::set(None, CapSet::Permitted, &kept).map_err(failed("permitted"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::af_packet::PacketSocket;
    use crate::icmp::TooBigSocket;
    use crate::tap::Tap;
    use crate::{Ifindex, Netlink, Netns, bpf_fs};
    use std::net::Ipv4Addr;
    use std::process::Command;
    use testkit::host::TestHost;

    #[test]
    fn missing_is_the_first_that_was_dropped() {
        testkit::require_root!();
        let needed =
            [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW, Capability::CAP_SYS_ADMIN];
        assert_eq!(missing(&needed), None);
        // Capabilities belong to a thread: the other tests keep theirs.
        let seen = std::thread::spawn(move || {
            for dropped in [Capability::CAP_SYS_ADMIN, Capability::CAP_NET_RAW] {
                caps::drop(None, CapSet::Effective, dropped).unwrap();
                assert_eq!(missing(&needed), Some(dropped));
            }
            assert_eq!(all_missing(&needed), needed[1..]);
            (missing(&[]), missing(&needed[..1]))
        });
        assert_eq!(seen.join().unwrap(), (None, None));
    }

    /// Runs `work` on a thread of its own that has all capabilities except one.
    fn without<R: Send>(dropped: Capability, work: impl FnOnce() -> R + Send) -> R {
        let work = || {
            let all = caps::read(None, CapSet::Permitted).unwrap();
            keep_only(&all.into_iter().filter(|one| *one != dropped).collect::<Vec<_>>()).unwrap();
            work()
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    /// Tests the table of capabilities in docs/security.md.
    #[test]
    fn operations_of_a_switch_fail_without_the_capability_that_they_need() {
        testkit::require_root!();
        let host = TestHost::new("caps");
        let netns = Netns::open(host.name().unwrap()).unwrap();
        let loopback = Ifindex(1);
        let tap = || Tap::open("weft-caps%d").map(drop);
        let packets = || PacketSocket::open_sender(loopback).map(drop);
        let icmp = || TooBigSocket::open(Ipv4Addr::LOCALHOST.into(), None).map(drop);
        let link = || Netlink::open()?.set_up(loopback);
        let enter = || netns.enter_thread();
        let folder = std::env::temp_dir().join(format!("weft-caps-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let mount = || bpf_fs::open(&folder).map(drop);
        type Operation<'a> = &'a (dyn Fn() -> Result<()> + Sync);
        let table: [(Capability, Operation<'_>); 6] = [
            (Capability::CAP_NET_ADMIN, &tap),
            (Capability::CAP_NET_ADMIN, &link),
            (Capability::CAP_NET_RAW, &packets),
            (Capability::CAP_NET_RAW, &icmp),
            (Capability::CAP_SYS_ADMIN, &enter),
            (Capability::CAP_SYS_ADMIN, &mount),
        ];
        for (row, (needed, operation)) in table.into_iter().enumerate() {
            let error = host.run(|| without(needed, operation)).unwrap_err();
            assert!(error.is_permission(), "row {row}: {error}");
            // No other capability is needed, except CAP_NET_ADMIN for the large buffers of packet
            // sockets.
            if needed != Capability::CAP_SYS_ADMIN {
                host.run(|| {
                    std::thread::scope(|scope| {
                        let only = || {
                            keep_only(&[needed, Capability::CAP_NET_ADMIN])
                                .and_then(|()| operation())
                        };
                        scope.spawn(only).join().unwrap().unwrap_or_else(|e| panic!("{row}: {e}"));
                    });
                });
            }
        }
        std::fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn given_up_capabilities_cannot_be_regained_even_by_another_program() {
        testkit::require_root!();
        let sets = || {
            [CapSet::Permitted, CapSet::Effective, CapSet::Inheritable, CapSet::Bounding]
                .map(|set| caps::read(None, set).unwrap())
        };
        let work = || {
            caps::raise(None, CapSet::Inheritable, Capability::CAP_NET_RAW).unwrap();
            keep_only(&[Capability::CAP_NET_ADMIN]).unwrap();
            let kept = CapsHashSet::from([Capability::CAP_NET_ADMIN]);
            let none = CapsHashSet::new();
            assert_eq!(sets(), [kept.clone(), kept, none.clone(), none]);
            let raw = Capability::CAP_NET_RAW;
            for set in [CapSet::Permitted, CapSet::Effective] {
                assert!(caps::raise(None, set, raw).is_err(), "{set:?}");
            }
            assert!(caps::drop(None, CapSet::Bounding, raw).is_err(), "without CAP_SETPCAP");
            // A program that root starts gets all capabilities of the bounding set.
            let status = Command::new("grep").args(["^Cap", "/proc/self/status"]).output().unwrap();
            String::from_utf8(status.stdout).unwrap()
        };
        let status = std::thread::scope(|scope| scope.spawn(work).join().unwrap());
        assert_eq!(status.lines().count(), 5, "{status}");
        assert!(status.lines().all(|line| line.ends_with("\t0000000000000000")), "{status}");
    }
}
