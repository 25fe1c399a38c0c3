//! The book: the documents in `docs/`, rendered by mdBook.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::run::{cargo, run, show, target_dir};

/// The release of mdBook that renders the book.
const VERSION: &str = "0.5.4";

/// Installs mdBook into the target directory if it is not there, and renders the book.
///
/// # Errors
/// mdBook cannot be installed, or it prints a warning or an error.
pub fn book() -> Result<()> {
    let root = target_dir().join(format!("mdbook-{VERSION}"));
    let program = root.join("bin/mdbook");
    if !program.exists() {
        // A development build renders this book in less time than a release build takes to compile,
        // and debug information takes longer still.
        let mut install =
            cargo(&["install", "mdbook", "--version", VERSION, "--locked", "--debug"]);
        install.args(["--no-default-features", "--quiet", "--root"]).arg(&root);
        install.env("CARGO_PROFILE_DEV_DEBUG", "false");
        run(&mut install)?;
    }
    let mut build = Command::new(&program);
    build.args(["build", "docs"]);
    show(&build);
    let output = build.output().with_context(|| format!("cannot start {}", program.display()))?;
    let log = String::from_utf8_lossy(&output.stderr);
    print!("{log}");
    ensure!(output.status.success(), "mdbook failed ({})", output.status);
    ensure!(!log.contains("WARN") && !log.contains("ERROR"), "mdbook has warnings");
    Ok(())
}
