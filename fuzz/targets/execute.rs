//! Fields rewritten in frames, and packets made from them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weft_fuzz::execution::frame(bytes);
});
