//! The counters of a lab: underlay frames, and retransmitted TCP segments.

use super::host::Guest;
use crate::{Error, Result};

/// Counters of one end of the underlay. A super-packet counts as one frame on a veth device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WireCounters {
    /// Frames in both directions.
    pub frames: u64,
    /// Bytes in both directions.
    pub bytes: u64,
    /// Frames dropped in both directions.
    pub dropped: u64,
}

/// TCP segments that the namespace of `guest` has retransmitted (RetransSegs of RFC 4022).
///
/// # Errors
/// The kernel's statistics cannot be read.
pub fn retransmitted(guest: &Guest) -> Result<u64> {
    // /proc/self would name the process, which is in another namespace than this thread.
    let path = "/proc/thread-self/net/snmp";
    let text =
        guest.run(|| std::fs::read_to_string(path))?.map_err(Error::io(format!("read {path}")))?;
    tcp_counter(&text, "RetransSegs")
        .ok_or_else(|| Error::Other(format!("{path} has no TCP counter RetransSegs")))
}

/// A counter of the two `Tcp:` lines of `/proc/net/snmp`: names in the first, values in the second.
fn tcp_counter(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut pairs = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
    pairs.find(|(found, _)| *found == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_counter_is_found_by_its_name() {
        let text = "Ip: A B\nIp: 1 2\nTcp: MaxConn RetransSegs\nTcp: -1 42\nUdp: X\nUdp: 9\n";
        assert_eq!(tcp_counter(text, "RetransSegs"), Some(42));
        assert_eq!((tcp_counter(text, "Other"), tcp_counter(text, "MaxConn")), (None, None));
        assert_eq!(tcp_counter("Tcp: RetransSegs\n", "RetransSegs"), None);
    }
}
