//! Options of the linker for the program `weft`: see ADR 0021.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A relative relocation takes 24 bytes in the file, a packed one less than a byte. Needs glibc
    // 2.36.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    // Rust links with LLD on this architecture. This option lets LLD merge identical functions.
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
