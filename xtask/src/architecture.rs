//! The processor architectures of the packages.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;

use crate::packages;
use crate::run::{run, target_dir};

/// The names of arm64 in Rust and in GNU tools.
const RUST_ARM64: &str = "aarch64-unknown-linux-gnu";
pub const GNU_ARM64: &str = "aarch64-linux-gnu";

/// A processor architecture, with Debian's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Architecture {
    /// The architecture of the build machine.
    Amd64,
    /// Cross-compiled.
    Arm64,
}

impl Architecture {
    /// The target triple of the architecture in Rust.
    pub fn triple(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => RUST_ARM64,
        }
    }

    /// The Debian packages that compile for this architecture.
    pub fn packages(self) -> Vec<&'static str> {
        match self {
            Self::Amd64 => packages::BUILD.to_vec(),
            Self::Arm64 => [&packages::BUILD[..], &packages::ARM64].concat(),
        }
    }

    /// The directory `name` in the target directory, with a separate one for each architecture.
    pub fn output(self, name: &str) -> PathBuf {
        target_dir().join(match self {
            Self::Amd64 => name.to_owned(),
            Self::Arm64 => format!("{name}-arm64"),
        })
    }

    /// The directory in which cargo writes the programs of the release.
    pub fn released(self) -> PathBuf {
        match self {
            Self::Amd64 => target_dir().join("release"),
            Self::Arm64 => target_dir().join(RUST_ARM64).join("release"),
        }
    }

    /// Makes a cargo command compile for this architecture.
    ///
    /// # Errors
    /// Rust's standard library for the architecture cannot be installed.
    pub fn configure(self, cargo: &mut Command) -> Result<()> {
        if self == Self::Arm64 {
            run(Command::new("rustup").args(["target", "add", RUST_ARM64]))?;
            let linker = format!("{GNU_ARM64}-gcc");
            cargo.args(["--target", RUST_ARM64]);
            cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", linker);
        }
        Ok(())
    }

    /// A command of GNU binutils for this architecture.
    pub fn binutil(self, name: &str) -> Command {
        match self {
            Self::Amd64 => Command::new(name),
            Self::Arm64 => Command::new(format!("{GNU_ARM64}-{name}")),
        }
    }

    /// The command that runs `debian/rules binary` for this architecture.
    pub fn rules(self) -> Command {
        let rules = "debian/rules binary";
        let mut command = Command::new("dpkg-architecture");
        let name = match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        };
        command.args(["--host-arch", name, "--command", rules]);
        command
    }
}
