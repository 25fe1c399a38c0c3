//! What a guest's virtio-net header asks for.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weft_fuzz::offload::frame(bytes);
});
