//! Flows in the syntax of ovs-ofctl.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weft_fuzz::ofctl::file(bytes);
});
