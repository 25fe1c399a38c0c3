//! `cargo xtask deb-test`: tests the packages in a booted Debian with its own kernel and systemd,
//! under QEMU. `packaging/test.sh` runs in that machine.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::architecture::Architecture;
use crate::deb::{self, Inputs, assemble};
use crate::demo::commit;
use crate::packages;
use crate::run::{cargo, run, show, target_dir};

/// The packages of the machine in addition to a minimal Debian: those of a typical host, and the
/// tools of the test. Nothing is downloaded while the test runs.
const IN_THE_MACHINE: &str = "dbus,initramfs-tools,iproute2,iputils-ping,kmod,linux-image-amd64,\
                              nftables,openvswitch-switch,ovn-central,procps,prometheus,\
                              systemd-sysv,udev,zstd";
/// The script that prepares a fresh Debian; its argument is the root directory.
const PREPARE: &str = "packaging/machine.sh";
/// The time limit of the machine, in seconds.
const LIMIT_S: &str = "5400";

/// The options of `cargo xtask deb-test`.
#[derive(Args)]
pub struct Options {
    /// Upgrade from the packages in this directory, such as those of an earlier commit. Without it,
    /// the same programs get an older version
    #[arg(long, value_name = "DIRECTORY")]
    from: Option<PathBuf>,
    /// The least number of packets of each of four flows during each event
    #[arg(long, value_name = "N", default_value_t = 2000)]
    packets: u32,
    /// Keep the log in this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// Builds the packages, boots the machine, and runs the test in it.
pub fn test(options: &Options) -> Result<()> {
    packages::ensure(&[&packages::BUILD[..], &packages::DEB, &packages::DEB_TEST].concat())?;
    let directory = std::path::absolute(target_dir())?.join("deb-test");
    fs::create_dir_all(&directory)?;
    let machine = Machine::prepare(&directory)?;
    let old = match &options.from {
        Some(old) => deb::files(old)?,
        None => {
            let version = format!("{}~older", deb::version()?);
            assemble(&Inputs::build(Architecture::Amd64)?, &version, &directory.join("old"))?
        }
    };
    let new = deb::deb(Architecture::Amd64)?;
    let disk = directory.join("disk");
    if disk.exists() {
        fs::remove_dir_all(&disk)?;
    }
    deb::copy(&old, &disk.join("old"))?;
    deb::copy(&new, &disk.join("new"))?;
    deb::copy(&["packaging/test.sh".into(), flows()?], &disk)?;
    let start = format!("bash /mnt/test.sh {} 2>&1; echo \"exit code $?\"\n", options.packets);
    fs::write(disk.join("start.sh"), start)?;
    let disk_image = directory.join("disk.img");
    make_image(&disk, &disk_image, "256M")?;
    let mut log = vec![header(options)?];
    machine.run(&disk_image, &mut log)?;
    if let Some(path) = &options.log {
        fs::write(path, log.join("\n") + "\n").with_context(|| path.display().to_string())?;
    }
    match log.last().map(String::as_str) {
        Some("exit code 0") => Ok(()),
        _ => bail!(
            "the test in the machine failed; the messages of its kernel are in {}",
            machine.console.display()
        ),
    }
}

/// Builds the program that sends many flows. It needs only the libraries that weft needs.
fn flows() -> Result<PathBuf> {
    run(&mut cargo(&["build", "--package", "xtask", "--example", "flows"]))?;
    Ok(target_dir().join("debug/examples/flows"))
}

/// The first line of the log: the date, the commit, and the command.
fn header(options: &Options) -> Result<String> {
    let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%MZ"]).output().context("date")?;
    let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
    let from = match &options.from {
        Some(_) => "packages of an earlier commit",
        None => "the same programs as an older version",
    };
    let commit = commit().unwrap_or_default();
    let packets = options.packets;
    Ok(format!("{date}, commit {commit}, cargo xtask deb-test --packets {packets}, from {from}"))
}

/// A Debian system that has never been booted.
struct Machine {
    root: PathBuf,
    image: PathBuf,
    console: PathBuf,
}

impl Machine {
    /// Installs Debian, unless an earlier run has done so.
    fn prepare(directory: &Path) -> Result<Self> {
        let (root, image) = (directory.join("root"), directory.join("debian.img"));
        let console = directory.join("console.log");
        if !image.exists() {
            if root.exists() {
                fs::remove_dir_all(&root)?;
            }
            let mut install = Command::new("mmdebstrap");
            install.args(["--variant=minbase", "--include", IN_THE_MACHINE]);
            install.arg(format!("--customize-hook={PREPARE} \"$1\""));
            run(install.arg("bookworm").arg(&root))?;
            make_image(&root, &image, "3G")?;
        }
        Ok(Self { root, image, console })
    }

    /// Boots the machine, prints the output of the test, and adds it to `log`. Changes of both
    /// disks are discarded.
    fn run(&self, disk: &Path, log: &mut Vec<String>) -> Result<()> {
        let boot = self.root.join("boot");
        let of_kernel = |prefix: &str| -> Result<PathBuf> {
            let mut files = deb::files(&boot)?.into_iter();
            let is_it = |file: &PathBuf| {
                file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
            };
            files.find(is_it).with_context(|| format!("no {prefix} in {}", boot.display()))
        };
        let drive =
            |file: &Path| format!("file={},if=virtio,format=raw,snapshot=on", file.display());
        let mut machine = Command::new("timeout");
        machine.args(["--kill-after=10", LIMIT_S, "qemu-system-x86_64"]);
        machine.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2048"]);
        machine.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        machine.arg("-kernel").arg(of_kernel("vmlinuz-")?);
        machine.arg("-initrd").arg(of_kernel("initrd.img-")?);
        machine.args(["-append", "root=/dev/vda rw console=ttyS0 cryptomgr.notests=1 panic=-1"]);
        machine.args(["-drive", &drive(&self.image), "-drive", &drive(disk)]);
        machine.arg("-serial").arg(format!("file:{}", self.console.display()));
        machine.args(["-serial", "stdio"]).stdin(Stdio::null()).stdout(Stdio::piped());
        show(&machine);
        let mut running = machine.spawn().context("cannot start timeout")?;
        let stdout = running.stdout.take().context("QEMU has no output")?;
        for line in BufReader::new(stdout).lines() {
            let line = line.context("cannot read the output of QEMU")?.trim_end().to_owned();
            writeln!(std::io::stdout(), "{line}")?;
            log.push(line);
        }
        let status = running.wait()?;
        if !status.success() {
            log.push(format!("QEMU ended with {status}"));
        }
        Ok(())
    }
}

/// Creates a file system image of `size` with the contents of a directory.
fn make_image(directory: &Path, image: &Path, size: &str) -> Result<()> {
    let unfinished = image.with_extension("unfinished");
    File::create(&unfinished).with_context(|| unfinished.display().to_string())?;
    let mut make = Command::new("mkfs.ext4");
    run(make.arg("-q").arg("-d").arg(directory).arg(&unfinished).arg(size))?;
    fs::rename(&unfinished, image).with_context(|| image.display().to_string())
}
