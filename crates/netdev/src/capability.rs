//! Capabilities of this process (capabilities(7)), so that a command can name a missing one before
//! it changes anything.

use caps::CapSet;
pub use caps::Capability;

/// The first of `needed` that the effective set of this thread lacks.
///
/// Returns `None` when it has them all, and also when the kernel does not report the set: the
/// operation itself then fails with its own error.
pub fn missing(needed: &[Capability]) -> Option<Capability> {
    let lacks =
        |one: &Capability| matches!(caps::has_cap(None, CapSet::Effective, *one), Ok(false));
    needed.iter().copied().find(lacks)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (missing(&[]), missing(&needed[..1]))
        });
        assert_eq!(seen.join().unwrap(), (None, None));
    }
}
