//! Geneve packets, from the outer header to the guests.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = weft_fuzz::tunnels::geneve(bytes);
});
