//! `cargo xtask advisories`: checks the crates in Cargo.lock for known vulnerabilities, with
//! cargo-deny and RustSec's database.
//!
//! CI does not fetch the database. It only checks that Cargo.lock has the same crates of others as
//! at the last check.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::run::{cargo, run, target_dir};

const VERSION: &str = "0.20.2";
const DATABASE: &str = "https://github.com/RustSec/advisory-db";
/// The file that records the last check: a hash of the crates of others in Cargo.lock, and the
/// commit of the database.
const CHECKED: &str = "packaging/advisories.checked";

/// The options of `cargo xtask advisories`.
#[derive(Args)]
pub struct Options {
    /// A git clone of RustSec's advisory-db [default: the one on GitHub]
    #[arg(long, value_name = "DIRECTORY")]
    database: Option<PathBuf>,
}

/// Checks the crates, and records this in `packaging/advisories.checked`.
///
/// # Errors
/// A crate has an advisory or was yanked. cargo-deny prints the crate and the remedy.
pub fn check(options: &Options) -> Result<()> {
    let target = std::path::absolute(target_dir())?;
    let root = target.join(format!("cargo-deny-{VERSION}"));
    let program = root.join("bin/cargo-deny");
    if !program.exists() {
        let mut install = cargo(&["install", "cargo-deny", "--version", VERSION, "--locked"]);
        run(install.args(["--debug", "--quiet", "--root"]).arg(&root))?;
    }
    let clones = target.join("advisories");
    if clones.exists() {
        fs::remove_dir_all(&clones).with_context(|| clones.display().to_string())?;
    }
    let settings = target.join("deny.toml");
    let text = format!(
        "[advisories]\ndb-path = {:?}\ndb-urls = [{DATABASE:?}]\nunmaintained = \"workspace\"\n\
         yanked = \"deny\"\n",
        clones.display().to_string()
    );
    fs::write(&settings, text).with_context(|| settings.display().to_string())?;
    let mut deny = Command::new(program);
    if let Some(directory) = &options.database {
        // cargo-deny accepts no local path, but it uses git's settings, which can redirect the
        // address.
        let directory = fs::canonicalize(directory).context(directory.display().to_string())?;
        deny.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_VALUE_0", DATABASE);
        deny.env("GIT_CONFIG_KEY_0", format!("url.file://{}.insteadOf", directory.display()));
    }
    deny.arg("--all-features").arg("--config").arg(&settings).args(["check", "advisories"]);
    run(&mut deny)?;
    let mut clone = fs::read_dir(&clones)?.filter_map(|entry| Some(entry.ok()?.path()));
    let clone = clone.find(|path| path.is_dir()).context("no clone of the database")?;
    let database = git(&clone, &["log", "-1", "--format=%H of %cs"])?;
    let text = format!("crates {}\nadvisory-db {database}\n", crates_hash()?);
    fs::write(CHECKED, text).context(CHECKED)
}

/// Checks that the crates of others in Cargo.lock have not changed since they were checked.
///
/// # Errors
/// They have changed.
pub fn is_checked() -> Result<()> {
    let checked = fs::read_to_string(CHECKED).context(CHECKED)?;
    ensure!(
        checked.lines().next() == Some(format!("crates {}", crates_hash()?).as_str()),
        "crates in Cargo.lock have changed since they were checked: run cargo xtask advisories"
    );
    Ok(())
}

/// The SHA-256 of the entries in Cargo.lock that come from a registry or repository. The crates of
/// this workspace have no advisories.
fn crates_hash() -> Result<String> {
    let lock = fs::read_to_string("Cargo.lock").context("Cargo.lock")?;
    let crates = lock.split("[[package]]\n").filter(|entry| entry.contains("\nsource = "));
    let mut sum = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = sum.stdin.take().context("a pipe")?;
    crates.into_iter().try_for_each(|entry| input.write_all(entry.as_bytes()))?;
    drop(input);
    let output = sum.wait_with_output()?;
    ensure!(output.status.success(), "sha256sum failed");
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().next().context("sha256sum printed nothing")?.to_owned())
}

fn git(directory: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").current_dir(directory).args(arguments).output();
    let output = output.context("cannot start git")?;
    ensure!(output.status.success(), "git {} ended with {}", arguments.join(" "), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
