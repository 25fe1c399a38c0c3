//! Compiles the programs of `bpf/` and generates Rust's view of them: a skeleton for each object, with every layout that
//! the two share.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::Linker;

/// Debian 12 has it. What the verifier makes of a program depends on the compiler, so it is always the same.
const CLANG: &str = "clang-19";
const CLANG_ARGS: [&str; 6] =
    ["-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-mcpu=v3"];

/// Each object and the sources that are linked into it.
const OBJECTS: [(&str, &[&str]); 5] = [
    ("control", &["control"]),
    ("datapath", &["control", "vif", "uplink"]),
    ("lab_unclone", &["lab_unclone"]),
    ("test_extract", &["test_extract"]),
    ("test_lookup", &["control", "test_lookup"]),
];

fn main() -> Result<()> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    println!("cargo:rerun-if-changed={}", sources.display());
    println!("cargo:rustc-env=WEFT_LAYOUT={:016x}", layout(&sources)?);
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    for (name, parts) in OBJECTS {
        let object = out.join(format!("{name}.bpf.o"));
        let mut linker = Linker::new(&object)?;
        for part in parts {
            let compiled = out.join(format!("{part}.part.o"));
            SkeletonBuilder::new()
                .source(sources.join(format!("{part}.bpf.c")))
                .obj(&compiled)
                .clang(CLANG)
                .clang_args(CLANG_ARGS)
                .build()
                .with_context(|| format!("{part}: needs {CLANG} of the Debian package {CLANG}"))?;
            linker.add_file(&compiled)?;
        }
        linker.link().with_context(|| format!("linking {name}"))?;
        SkeletonBuilder::new().obj(&object).generate(out.join(format!("{name}.skel.rs")))?;
    }
    Ok(())
}

/// A number for all layouts that programs and daemon share, whatever comments say: FNV-1a of their source.
fn layout(sources: &Path) -> Result<u64> {
    let preprocessed = Command::new(CLANG)
        .args(["-E", "-P", "-include"])
        .arg(sources.join("vmlinux.h"))
        .arg(sources.join("intf.h"))
        .output()
        .with_context(|| format!("cannot run {CLANG}"))?;
    ensure!(preprocessed.status.success(), "{}", String::from_utf8_lossy(&preprocessed.stderr));
    let constants = std::fs::read_to_string(sources.join("intf.h"))?;
    let constants = constants.lines().filter(|line| line.starts_with("#define"));
    let constants =
        constants.flat_map(|line| line.split("/*").next().unwrap_or("").split_whitespace());
    let text = String::from_utf8_lossy(&preprocessed.stdout);
    let words = text.split_whitespace().chain(constants);
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    Ok(words.flat_map(|word| word.bytes().chain([b' '])).fold(0xcbf2_9ce4_8422_2325, hash))
}
