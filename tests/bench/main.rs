//! End-to-end tests of `weft-bench`, as one test program.
//!
//! They start `weft-bench` and, as contenders, the program `weft` in the same directory. `cargo
//! test -p bench` builds only `weft-bench`: run `cargo build -p weft` first.

mod exact;
mod interruptions;
mod lab;
mod remote;
mod report;
mod studies;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
const WEFT_BENCH: &str = env!("CARGO_BIN_EXE_weft-bench");

/// The program `weft`, which `weft-bench` runs as a contender.
fn weft() -> PathBuf {
    let weft = PathBuf::from(WEFT_BENCH).with_file_name("weft");
    assert!(weft.is_file(), "{} is missing: run `cargo build -p weft`", weft.display());
    weft
}

/// The exit code, standard output and standard error of `weft-bench`.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(WEFT_BENCH);
    let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

/// Like [`run`], but waits until no other process holds the lock of labs.
fn run_when_free(arguments: &[&str]) -> (i32, String, String) {
    let end = Instant::now() + Duration::from_secs(180);
    loop {
        let result = run(arguments);
        if !result.2.contains("another demo or study is running") || Instant::now() > end {
            return result;
        }
    }
}
