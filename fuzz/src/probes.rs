//! Target: path probes between hosts.

use switch::probe::Probe;

/// Parses a frame. Emitting a probe and parsing the result must give the same probe. Returns
/// whether it is a reply.
pub fn frame(bytes: &[u8]) -> Option<bool> {
    let probe = Probe::parse(bytes)?;
    assert_eq!(Probe::parse(&probe.emit(bytes.len())), Some(probe));
    Some(probe.is_reply)
}
