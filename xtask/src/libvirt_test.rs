//! `cargo xtask libvirt-test`: tests virtual machines of libvirt on weft, with each datapath.
//! `packaging/libvirt-test.sh` runs once for each, in separate namespaces.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::packages::{self, GUEST_KERNEL};
use crate::run::{cargo, run, target_dir};
use crate::walk::{self, Walk};

/// The script that creates the hosts and the machines, and checks them.
const SCRIPT: &str = "packaging/libvirt-test.sh";
/// The time limit with one datapath, in seconds. The machines are emulated.
const LIMIT_S: &str = "600";

/// The options of `cargo xtask libvirt-test`.
#[derive(Args)]
pub struct Options {
    /// Test only this datapath
    #[arg(long)]
    datapath: Option<Datapath>,
    /// Keep the table in this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// The datapath of weft.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Datapath {
    Kernel,
    User,
}

impl Datapath {
    const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::User => "user",
        }
    }
}

/// Builds weft, runs the script with each datapath, and prints a table.
pub fn test(options: &Options) -> Result<()> {
    packages::ensure(&[&packages::BUILD[..], &packages::LIBVIRT_TEST].concat())?;
    packages::fetch_guest_kernel()?;
    run(&mut cargo(&["build", "--package", "weft"]))?;
    let weft = std::path::absolute(target_dir())?.join("debug/weft");
    let kernel = std::path::absolute(GUEST_KERNEL)?;
    let base = std::env::temp_dir().join(format!("libvirt-test-{}", std::process::id()));
    let datapaths = options
        .datapath
        .map_or_else(|| vec![Datapath::Kernel, Datapath::User], |datapath| vec![datapath]);
    let mut outcomes = Vec::new();
    for datapath in datapaths {
        let directory = base.join(datapath.name());
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        let arguments = [&directory, &weft, &kernel].map(|path| path.display().to_string());
        let mut arguments = arguments.to_vec();
        arguments.push(format!("--datapath={}", datapath.name()));
        let walk = Walk { variant: datapath.name(), script: SCRIPT, arguments, limit_s: LIMIT_S };
        outcomes.push(walk.run()?);
    }
    walk::report("libvirt-test", &outcomes, options.log.as_ref())?;
    if !outcomes.iter().all(|outcome| outcome.has_passed) {
        bail!("libvirt does not work as it should; the logs are in {}", base.display());
    }
    fs::remove_dir_all(&base).with_context(|| base.display().to_string())
}
