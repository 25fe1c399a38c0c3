//! Tests of the codecs through their public API: byte vectors written by hand from the standards,
//! round trips, truncation at every byte, and comparison with `etherparse`.

mod arp;
mod checksum;
mod ecn;
mod geneve;
mod gre;
mod hostile;
mod icmp;
mod ip;
mod link;
mod locate;
mod nd;
mod stt;
mod too_big;
mod transport;
mod vxlan;

/// Asserts that `parse` accepts `bytes` and rejects every proper prefix of them without panicking.
fn refuses_every_truncation<'a, T: std::fmt::Debug>(
    bytes: &'a [u8],
    parse: impl Fn(&'a [u8]) -> Result<T, wire::ParseError>,
) {
    parse(bytes).expect("the whole header is accepted");
    for len in 0..bytes.len() {
        if let Ok(value) = parse(&bytes[..len]) {
            panic!("{len} of {} bytes were accepted as {value:?}", bytes.len());
        }
    }
}

/// Initial buffer for emit tests; a field that is not written keeps this value.
fn dirty(len: usize) -> Vec<u8> {
    vec![0xa5; len]
}
