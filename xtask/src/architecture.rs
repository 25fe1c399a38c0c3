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

/// An architecture, by its name in Debian.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Architecture {
    /// That of the machine that builds.
    Amd64,
    /// Cross-compiled.
    Arm64,
}

impl Architecture {
    /// What Rust calls it.
    pub fn triple(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => RUST_ARM64,
        }
    }

    /// The packages of Debian that compile for it.
    pub fn packages(self) -> Vec<&'static str> {
        match self {
            Self::Amd64 => packages::BUILD.to_vec(),
            Self::Arm64 => [&packages::BUILD[..], &packages::ARM64].concat(),
        }
    }

    /// `name` in the target directory, a directory of its own for each architecture.
    pub fn output(self, name: &str) -> PathBuf {
        target_dir().join(match self {
            Self::Amd64 => name.to_owned(),
            Self::Arm64 => format!("{name}-arm64"),
        })
    }

    /// Where cargo puts the programs of the release.
    pub fn released(self) -> PathBuf {
        match self {
            Self::Amd64 => target_dir().join("release"),
            Self::Arm64 => target_dir().join(RUST_ARM64).join("release"),
        }
    }

    /// Makes a command of cargo compile for it.
    ///
    /// # Errors
    /// Rust's standard library for it cannot be installed.
    pub fn configure(self, cargo: &mut Command) -> Result<()> {
        if self == Self::Arm64 {
            run(Command::new("rustup").args(["target", "add", RUST_ARM64]))?;
            let linker = format!("{GNU_ARM64}-gcc");
            cargo.args(["--target", RUST_ARM64]);
            cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", linker);
        }
        Ok(())
    }

    /// A program of GNU binutils for it.
    pub fn binutil(self, name: &str) -> Command {
        match self {
            Self::Amd64 => Command::new(name),
            Self::Arm64 => Command::new(format!("{GNU_ARM64}-{name}")),
        }
    }

    /// The command that runs `debian/rules binary` for it.
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
