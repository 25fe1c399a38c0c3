//! Formatting, clippy and documentation, with warnings as errors. In CI,
//! [`crate::test::build_and_check`] does the work of the last two.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::packages;
use crate::run::{COMPILER_FLAGS, cargo, run, target_dir};
use crate::test::cargo_for_tests;

/// Formats the workspace, or checks that it is formatted.
pub fn fmt(check: bool) -> Result<()> {
    let mut command = cargo(&["fmt", "--all"]);
    if check {
        command.arg("--check");
    }
    run(&mut command)
}

/// Runs clippy on every target of every crate.
pub fn clippy() -> Result<()> {
    packages::ensure(&[&packages::BUILD[..], &packages::FUZZ].concat())?;
    let mut command = cargo(&["clippy", "--workspace", "--all-targets"]);
    command.args(["--features", "weft-fuzz/libfuzzer", "--", "-D", "warnings"]);
    run(&mut command)
}

/// Builds the documentation, including private items: it is written for developers of weft, and may
/// link from a public item to a private one.
pub fn doc() -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
    for variable in COMPILER_FLAGS {
        command.env_remove(variable);
    }
    run(command.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links"))
}

/// The pages in `docs` that are generated.
const PAGES: [&str; 4] = ["commands.md", "log-messages.md", "metrics.md", "network.schema.json"];

/// Writes [`PAGES`], and writes the man pages and shell completions into the target directory.
pub fn docs_generate() -> Result<()> {
    packages::ensure(&packages::BUILD)?;
    let reference = reference()?;
    for page in PAGES {
        let path = format!("docs/{page}");
        fs::copy(reference.join(page), &path).with_context(|| path.clone())?;
    }
    println!("wrote docs/{}; the rest is in {}", PAGES.join(", docs/"), reference.display());
    Ok(())
}

/// Generates [`PAGES`], `man` and `completions`. Returns their directory. The generators are tests
/// of `cli` and `network`, so that they are not part of the daemon.
pub fn reference() -> Result<PathBuf> {
    let directory = std::path::absolute(target_dir())?.join("reference");
    // With `--workspace`, dependencies have the same features as in the tests, so they are not
    // compiled again.
    let words = ["test", "--workspace", "--lib", "--", "reference::", "json_schema::"];
    let mut command = cargo_for_tests(&words)?;
    run(command.env("WEFT_WRITE_REFERENCE", &directory))?;
    Ok(directory)
}
