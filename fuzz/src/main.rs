//! The program for libFuzzer. The environment variable `WEFT_FUZZ_TARGET` names the target.
#![cfg_attr(feature = "libfuzzer", no_main)]

use std::sync::LazyLock;

use weft_fuzz::targets::{self, Body};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static BODY: LazyLock<Body> = LazyLock::new(|| {
        let name = std::env::var("WEFT_FUZZ_TARGET").unwrap_or_default();
        targets::body(&name).unwrap_or_else(|| {
            let names: Vec<_> = targets::ALL.iter().map(|(name, _)| *name).collect();
            panic!("WEFT_FUZZ_TARGET is {name:?}, and must be one of {}", names.join(", "))
        })
    });
    BODY(bytes);
});

/// Without libFuzzer, which has its own `main`, the program needs this one.
#[cfg(not(feature = "libfuzzer"))]
fn main() {
    eprintln!("libFuzzer is missing: call cargo xtask fuzz");
    std::process::exit(2);
}
