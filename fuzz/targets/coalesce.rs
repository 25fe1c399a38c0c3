//! Segments joined into super-packets.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weft_fuzz::coalescing::list(bytes);
});
