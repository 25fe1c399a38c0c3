//! The match expressions of logical flows.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weft_fuzz::expressions::text(bytes);
});
