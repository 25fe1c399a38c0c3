//! Runs scripts that use scapy.

use super::program::{command, run};
use std::process::Command;

/// Runs a script of this directory with Debian's Python, which has Debian's scapy. The first Python
/// in PATH may be another one. Returns the output of the script.
pub fn run_script(script: &str, arguments: &[&str], input: &str) -> String {
    let mut python = python();
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/peers");
    python.arg("-I").arg(format!("{directory}/{script}")).args(arguments);
    run(python, input.as_bytes())
}

/// Debian's Python, or the one in PATH.
pub fn python() -> Command {
    let debian = "/usr/bin/python3";
    match std::fs::exists(debian) {
        Ok(true) => Command::new(debian),
        _ => command("python3"),
    }
}

/// The bytes that a script has written in hexadecimal.
pub fn bytes_of(hexadecimal: &str) -> Vec<u8> {
    let digits = hexadecimal.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.map(byte).collect::<Option<_>>().expect("scapy writes hexadecimal")
}
