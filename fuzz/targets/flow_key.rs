//! The flow key of a frame.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weft_fuzz::keys::frame(bytes);
});
