//! Every header that is reachable from an Ethernet frame.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weft_fuzz::headers::frame(bytes);
});
