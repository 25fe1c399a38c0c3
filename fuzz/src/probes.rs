//! Probes between hosts.

use switch::probe::Probe;

/// Reads a frame; whether it is a question or an answer, if it is a probe. What was read is what is
/// read again after it was written.
pub fn frame(bytes: &[u8]) -> Option<bool> {
    let probe = Probe::parse(bytes)?;
    assert_eq!(Probe::parse(&probe.emit(bytes.len())), Some(probe));
    Some(probe.is_reply)
}
