//! `cargo xtask lxd-test`: tests LXD with its OVN network type, on the stock chassis and on weft.
//! `packaging/lxd-test.sh` runs once for each, in separate namespaces.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::packages;
use crate::run::{cargo, run, target_dir};
use crate::walk::{self, Outcome, Walk};

/// The script that creates the network and the containers, and checks them.
const SCRIPT: &str = "packaging/lxd-test.sh";
/// The time limit for one chassis, in seconds.
const LIMIT_S: &str = "420";

/// The options of `cargo xtask lxd-test`.
#[derive(Args)]
pub struct Options {
    /// Test only this chassis
    #[arg(long)]
    chassis: Option<Chassis>,
    /// Keep the table in this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// The software that makes the host a chassis of OVN.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Chassis {
    /// ovn-controller, and ovs-vswitchd with the userspace datapath
    Stock,
    /// weft with the kernel datapath
    Weft,
    /// weft with the user datapath
    WeftUser,
}

impl Chassis {
    const ALL: [Self; 3] = [Self::Stock, Self::Weft, Self::WeftUser];

    const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Weft => "weft",
            Self::WeftUser => "weft-user",
        }
    }

    /// The arguments of the script that follow the directory.
    fn arguments(self, weft: &Path) -> Vec<String> {
        let weft = weft.display().to_string();
        match self {
            Self::Stock => Vec::new(),
            Self::Weft => vec![weft, "--datapath=kernel".to_owned()],
            Self::WeftUser => vec![weft, "--datapath=user".to_owned()],
        }
    }
}

/// Builds weft, runs the script for each chassis, and prints a table.
pub fn test(options: &Options) -> Result<()> {
    packages::ensure(&[&packages::BUILD[..], &packages::LXD_TEST].concat())?;
    run(&mut cargo(&["build", "--package", "weft"]))?;
    let weft = std::path::absolute(target_dir())?.join("debug/weft");
    // LXD creates its sockets in this directory. The length of socket paths is limited, so it is
    // short.
    let base = std::env::temp_dir().join(format!("lxd-test-{}", std::process::id()));
    let all: Vec<_> = match options.chassis {
        Some(chassis) => vec![chassis],
        None => Chassis::ALL.to_vec(),
    };
    let mut outcomes = Vec::new();
    for chassis in all {
        let directory = base.join(chassis.name());
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        outcomes.push(walk(chassis, &directory, &weft)?);
    }
    walk::report("lxd-test", &outcomes, options.log.as_ref())?;
    if !outcomes.iter().all(|outcome| outcome.has_passed) {
        bail!("LXD does not work as it should; the logs are in {}", base.display());
    }
    fs::remove_dir_all(&base).with_context(|| base.display().to_string())
}

fn walk(chassis: Chassis, directory: &Path, weft: &Path) -> Result<Outcome> {
    let kind = if chassis == Chassis::Stock { "stock" } else { "weft" };
    let mut arguments = vec![kind.to_owned(), directory.display().to_string()];
    arguments.extend(chassis.arguments(weft));
    Walk { variant: chassis.name(), script: SCRIPT, arguments, limit_s: LIMIT_S }.run()
}
