//! `cargo xtask arm64`: runs the tests of the crates without I/O, compiled for arm64, in QEMU's
//! emulation of user processes. Also compares the BPF objects of both architectures. CI does not
//! run this task, because the emulation takes minutes.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::architecture::{Architecture, GNU_ARM64};
use crate::packages;
use crate::run::{cargo, run, show, succeeded};

/// The crates without I/O, and those whose tests do only a little I/O.
const CRATES: [&str; 18] = [
    "messages",
    "wire",
    "packet",
    "services",
    "flow",
    "classifier",
    "conntrack",
    "pipeline",
    "lflow",
    "ofctl",
    "openflow",
    "ovsdb",
    "southbound",
    "datapath",
    "switch",
    "network",
    "chassis",
    "doctor",
];

/// Tests that are too slow under emulation. All except the last one have a time limit.
const SLOW: [&str; 3] = [
    "bounds::hundred_thousand_flows_in_one_table_are_loaded_and_found",
    "rows::deep_mixtures_are_bounded",
    "cuts::replica_is_the_same_when_the_connection_ends_at_any_byte",
];

/// Runs the tests, and compares the objects.
pub fn test() -> Result<()> {
    let architecture = Architecture::Arm64;
    packages::ensure(&[&packages::BUILD[..], &packages::ARM64].concat())?;
    compare_bpf_objects(architecture)?;
    let mut tests = cargo(&["test", "--no-fail-fast", "--lib", "--tests"]);
    tests.args(CRATES.iter().flat_map(|name| ["--package", name]));
    architecture.configure(&mut tests)?;
    tests.arg("--").args(SLOW.iter().flat_map(|name| ["--skip", name]));
    // QEMU does not support all system calls of the tests that need root. Without capabilities,
    // these tests report that they are skipped.
    let runner = "setpriv --bounding-set=-all --inh-caps=-all qemu-aarch64";
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner).env_remove("CI");
    // With this number of random cases, the soundness tests already take minutes. They detect a
    // fault with far fewer.
    run(tests.env("WEFT_CASES", "20000"))
}

/// Compares each BPF object with that of the build machine, byte by byte.
fn compare_bpf_objects(architecture: Architecture) -> Result<()> {
    let (native, other) = (bpf_objects(Architecture::Amd64)?, bpf_objects(architecture)?);
    let mut differing = Vec::new();
    for object in &native {
        let name = object.file_name().context("an object has a name")?;
        let (one, two) = (fs::read(object)?, fs::read(other[0].with_file_name(name))?);
        println!("{}: {} bytes", name.display(), one.len());
        if one != two {
            differing.push(name.display().to_string());
        }
    }
    if !differing.is_empty() {
        bail!("these BPF objects of {GNU_ARM64} differ: {}", differing.join(", "));
    }
    println!("all {} BPF objects are identical", native.len());
    Ok(())
}

/// The linked BPF objects of a build for `architecture`, sorted.
fn bpf_objects(architecture: Architecture) -> Result<Vec<PathBuf>> {
    let mut build = cargo(&["build", "--package", "datapath-bpf", "--message-format", "json"]);
    architecture.configure(&mut build)?;
    show(&build);
    let output = build.stderr(std::process::Stdio::inherit()).output().context("cargo")?;
    succeeded(&build, output.status)?;
    let text = String::from_utf8(output.stdout)?;
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_ours = |message: &Value| {
        let package = message["package_id"].as_str().unwrap_or_default();
        message["reason"] == "build-script-executed" && package.contains("crates/datapath-bpf#")
    };
    let mut directories = messages.filter(is_ours);
    let message = directories.next().context("cargo names no output of datapath-bpf/build.rs")?;
    let directory = message["out_dir"].as_str().context("a directory")?;
    let mut objects = crate::deb::files(directory.as_ref())?;
    objects.retain(|path| path.to_string_lossy().ends_with(".bpf.o"));
    if objects.is_empty() {
        bail!("there are no BPF objects in {directory}");
    }
    Ok(objects)
}
