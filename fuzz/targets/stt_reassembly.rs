//! STT segments put together, in any order and with any gaps.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weft_fuzz::reassembly::list(bytes);
});
