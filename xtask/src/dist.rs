//! `cargo xtask dist`: builds the release. It consists of stripped programs and separate debug
//! information.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::architecture::Architecture;
use crate::demo::release_build;
use crate::packages;
use crate::run::run;

/// The maximum size of the stripped daemon for amd64, in bytes.
const DAEMON_BYTES: u64 = 10_000_000;

/// Builds `weft`, `weft-bench` and `weft-cni`, and writes them into `target/dist`, or into
/// `target/dist-arm64`. The `.debug` files are there too; debuggers find them by the name in each
/// program's `.gnu_debuglink`. Returns the directory.
pub fn dist(architecture: Architecture) -> Result<PathBuf> {
    packages::ensure(&architecture.packages())?;
    let mut build = release_build();
    architecture.configure(&mut build)?;
    run(&mut build)?;
    let directory = architecture.output("dist");
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    for name in ["weft", "weft-bench", "weft-cni"] {
        let stripped = directory.join(name);
        strip(architecture, &architecture.released().join(name), &stripped)?;
        let debug = stripped.with_extension("debug");
        println!("{}: {}, {}", stripped.display(), size(&stripped)?, size(&debug)?);
    }
    let bytes = bytes(&directory.join("weft"))?;
    if architecture == Architecture::Amd64 && bytes > DAEMON_BYTES {
        bail!(
            "the stripped daemon has {bytes} bytes, more than {DAEMON_BYTES}: remove code or \
             dependencies from the crate cli"
        );
    }
    Ok(directory)
}

/// Writes `program` without debug information to `stripped`, and the debug information next to it.
fn strip(architecture: Architecture, program: &Path, stripped: &Path) -> Result<()> {
    let debug = stripped.with_extension("debug");
    let mut keep = architecture.binutil("objcopy");
    keep.args(["--only-keep-debug", "--compress-debug-sections"]).arg(program).arg(&debug);
    run(&mut keep)?;
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(&debug);
    let mut strip = architecture.binutil("objcopy");
    run(strip.arg("--strip-unneeded").arg(link).arg(program).arg(stripped))
}

fn size(path: &Path) -> Result<String> {
    Ok(format!("{:.1} MB", bytes(path)? as f64 / 1e6))
}

fn bytes(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len())
}
