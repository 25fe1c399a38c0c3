//! Formatting, clippy and documentation, each with warnings denied.

use anyhow::Result;

use crate::run::{COMPILER_FLAGS, cargo, run, target_dir};
use crate::{fuzz, packages};

/// Formats the workspace and the fuzz targets, or checks that they are formatted.
pub fn fmt(check: bool) -> Result<()> {
    for scope in ["--all", fuzz::MANIFEST] {
        let mut command = cargo(&["fmt", scope]);
        if check {
            command.arg("--check");
        }
        run(&mut command)?;
    }
    Ok(())
}

/// Runs clippy on every target of every crate.
pub fn clippy() -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    let warnings = ["--", "-D", "warnings"];
    run(cargo(&["clippy", "--workspace", "--all-targets"]).args(warnings))?;
    packages::ensure(&packages::FUZZ)?;
    let target_dir = fuzz::target_dir();
    run(cargo(&["clippy", fuzz::MANIFEST, "--all-targets", "--all-features", "--target-dir"])
        .arg(target_dir)
        .args(warnings))
}

/// Builds the documentation, private items included: the comments are written for who works on the
/// code, and may lead from a public item to a private one.
pub fn doc() -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
    for variable in COMPILER_FLAGS {
        command.env_remove(variable);
    }
    run(command.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links"))
}

/// Writes docs/commands.md, and the man pages in the target directory under `man`. The generator is
/// part of a test of `weft`, so that the daemon does not link it.
pub fn docs_generate() -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    let man = std::path::absolute(target_dir())?.join("man");
    let mut command = cargo(&["test", "--package", "weft", "--bins", "reference::"]);
    run(command.env("WEFT_WRITE_MAN_PAGES", &man))?;
    println!("wrote docs/commands.md and the man pages in {}", man.display());
    Ok(())
}
