//! The cache of megaflows, beside a list.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weft_fuzz::megaflows::steps(bytes);
});
