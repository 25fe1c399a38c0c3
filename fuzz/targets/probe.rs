//! The frames by which hosts find out what the way between them carries.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weft_fuzz::probes::frame(bytes);
});
