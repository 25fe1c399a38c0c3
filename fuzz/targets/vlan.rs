//! Frames with one or two tags, from the uplink to the guests.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = weft_fuzz::tunnels::tagged(bytes);
});
