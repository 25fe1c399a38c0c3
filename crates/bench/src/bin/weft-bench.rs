//! `weft-bench`: the demo, the studies and the instruction counts of weft. The commands are in
//! [`bench::cli`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::cli::main()
}
