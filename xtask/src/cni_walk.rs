//! `cargo xtask cni-walk`: tests the plugin `weft-cni` with `cnitool`, the program of the CNI
//! project that acts as a container runtime.

use std::path::absolute;
use std::process::Command;

use anyhow::Result;

use crate::packages;
use crate::run::{cargo, run, target_dir};

/// The version of the CNI project that provides `cnitool`. Its specification is 1.1.
const CNITOOL: &str = "github.com/containernetworking/cni/cnitool@v1.3.0";

/// Builds `cnitool` with Go, and runs the tests that use it.
pub fn walk() -> Result<()> {
    packages::ensure(&[&packages::BUILD[..], &packages::TEST].concat())?;
    let directory = absolute(target_dir())?.join("cnitool");
    run(Command::new("go").args(["install", CNITOOL]).env("GOBIN", &directory))?;
    run(&mut cargo(&["build", "--package", "weft", "--package", "cni"]))?;
    let mut test = cargo(&["test", "--package", "cni", "--test", "cni", "cnitool", "--"]);
    test.args(["--ignored", "--nocapture", "--test-threads=1"]);
    run(test.env("WEFT_TEST_CNITOOL", directory.join("cnitool")))
}
