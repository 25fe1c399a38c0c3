//! The program `weft`. Its code is in the library `cli`, which is compiled for size.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
