//! `cargo xtask kernels`: tests the eBPF programs on other kernels of Debian, in a virtual machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::packages;
use crate::run::{cargo, run, target_dir};

/// The tested kernels: a name, the suite of Debian, and its metapackage. Debian's archive has no
/// Linux 6.6.
const KERNELS: [(&str, &str, &str); 2] = [
    ("6.12", "bookworm-security", "linux-image-6.12-amd64"),
    ("newest", "trixie-backports", "linux-image-amd64"),
];
/// The tests of `datapath-bpf` that boot a machine and do not count its instructions. They load all
/// programs, compare the verifier's work with docs/results/bpf-verifier.md, and compare the
/// programs with the reference executor.
const TESTS: [&str; 4] = [
    "verifier::verifier_of_debians_kernel_goes_through_what_is_recorded",
    "debian::",
    "programs::programs_do_the_same_on_debians_kernel",
    "port_redirect::datagrams_are_redirected_on_debians_kernel",
];

/// The options of `cargo xtask kernels`.
#[derive(Args)]
pub struct Options {
    /// Use only this kernel, 6.12 or newest
    kernel: Option<String>,
    /// Use the kernel in this directory instead, as scripts/fetch-other-kernel.sh makes it
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "kernel")]
    directory: Option<PathBuf>,
}

/// Downloads each kernel, and runs the tests of the eBPF programs on it.
pub fn check(options: &Options) -> Result<()> {
    packages::ensure(&[&packages::BUILD[..], &packages::TEST, &["zstd"]].concat())?;
    if let Some(directory) = &options.directory {
        return check_one(&std::path::absolute(directory)?);
    }
    let is_chosen = |name: &str| options.kernel.as_deref().is_none_or(|chosen| chosen == name);
    let chosen: Vec<_> = KERNELS.iter().filter(|(name, ..)| is_chosen(name)).collect();
    if chosen.is_empty() {
        bail!("no such kernel: use one of {}", KERNELS.map(|(name, ..)| name).join(", "));
    }
    for (name, suite, package) in chosen {
        let directory = std::path::absolute(target_dir())?.join("kernels").join(name);
        let mut fetch = Command::new("scripts/fetch-other-kernel.sh");
        run(fetch.arg(&directory).args([suite, package]))?;
        check_one(&directory)?;
    }
    Ok(())
}

fn check_one(directory: &Path) -> Result<()> {
    let complete = directory.join("complete");
    let kernel = fs::read_to_string(&complete)
        .with_context(|| format!("{} holds no kernel", directory.display()))?;
    println!("{}", kernel.trim());
    let mut test = cargo(&["test", "--workspace", "--test", "main", "--"]);
    test.args(TESTS).args(["--nocapture", "--test-threads", "1"]);
    run(test.env("WEFT_TEST_KERNEL", directory))
}
