//! Compiles the programs of `bpf/` and generates Rust's view of them: a skeleton for each object, with every layout that
//! the two share.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::Linker;

/// Debian 12 has it. What the verifier makes of a program depends on the compiler, so it is always the same.
const CLANG: &str = "clang-19";
const CLANG_ARGS: [&str; 6] =
    ["-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-mcpu=v3"];

/// Each object and the sources that are linked into it.
const OBJECTS: [(&str, &[&str]); 4] = [
    ("control", &["control"]),
    ("datapath", &["control", "vif", "uplink"]),
    ("test_extract", &["test_extract"]),
    ("test_lookup", &["control", "test_lookup"]),
];

fn main() -> Result<()> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    println!("cargo:rerun-if-changed={}", sources.display());
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
