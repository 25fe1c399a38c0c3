//! Probes between hosts.

use switch::probe::Probe;

/// Parses a frame. A probe must survive emitting and parsing again. Returns whether it is a reply.
pub fn frame(bytes: &[u8]) -> Option<bool> {
    let probe = Probe::parse(bytes)?;
    assert_eq!(Probe::parse(&probe.emit(bytes.len())), Some(probe));
    Some(probe.is_reply)
}
