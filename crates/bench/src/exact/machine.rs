//! An emulated machine with one processor, whose clock counts instructions, one per nanosecond.
//! Runs of the same image give identical results.
//!
//! It has no external input: no network, no disk, no wall-clock time, and no random numbers except
//! from a seed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use netdev::child::killed_with_parent;

use crate::lab::scratch::Scratch;
use crate::process::Process;
use crate::{Error, Result, Stop};

const QEMU: &str = "qemu-system-x86_64";
/// The kernel's parameters. The last four shorten a boot. Without them the kernel tests its
/// cryptography, and waits for three timers. The waits are loops of `pause` or of device reads,
/// which are slow in the emulator.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 nokaslr norandmaps \
                            random.trust_cpu=on cryptomgr.notests=1 nolapic_timer \
                            no_timer_check initcall_blacklist=hpet_init";
/// QEMU's options for the clock: an instruction takes a nanosecond, and idle time is skipped. A
/// separate thread of QEMU skips it. That thread may see that the processor halts before its last
/// instructions are counted, and then the clock goes wrong. This happened in 23 of 40 machines that
/// halted 60,000 times. It happened in none of 80 while QEMU recorded, because that thread waits
/// then. The record is not needed.
const CLOCK: &str = "shift=0,sleep=off,rr=record,rrfile=/dev/null";
/// The marker of the last output line; the exit code of the measurement follows it.
const END: &str = "weft-exact-end ";

/// The kernel of the emulated machine, in a directory that `scripts/fetch-guest-kernel.sh` makes.
#[derive(Clone, Debug)]
pub struct Kernel(PathBuf);

impl Kernel {
    /// The kernel in `directory`.
    ///
    /// # Errors
    /// [`Error::Missing`] when the kernel or the emulator is not installed.
    pub fn open(directory: &Path) -> Result<Self> {
        if !directory.join("complete").exists() {
            return Err(Error::Missing {
                what: format!(
                    "there is no kernel for the emulated machine in {}",
                    directory.display()
                ),
                how: format!("get it with scripts/fetch-guest-kernel.sh {}", directory.display()),
            });
        }
        let found = std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(QEMU).is_file()));
        if !found {
            return Err(Error::Missing {
                what: format!("the emulated machine needs {QEMU}"),
                how: "install Debian's package qemu-system-x86".into(),
            });
        }
        Ok(Self(directory.to_owned()))
    }

    /// The kernel's version, as the name of Debian's package.
    ///
    /// # Errors
    /// The file with the version cannot be read.
    pub fn version(&self) -> Result<String> {
        let path = self.0.join("complete");
        let text =
            fs::read_to_string(&path).map_err(Error::io(format!("read {}", path.display())))?;
        Ok(text.trim().to_owned())
    }

    pub(super) fn directory(&self) -> &Path {
        &self.0
    }

    /// Boots the root file system `root` with random numbers from `seed`, and waits until the
    /// machine has ended. Returns the output of the measurement, and its result: an error if the
    /// emulator does not start, it takes longer than `limit`, or the measurement fails.
    pub(super) fn run(
        &self,
        root: &[u8],
        seed: u32,
        limit: Duration,
        stop: &Stop,
    ) -> (String, Result<()>) {
        let scratch = match Scratch::create_anywhere() {
            Ok(scratch) => scratch,
            Err(error) => return (String::new(), Err(error)),
        };
        let read = |name| {
            let bytes = fs::read(scratch.path().join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let ended = self.emulate(root, seed, scratch.path(), limit, stop);
        let (output, log) = (read("output.log"), read("kernel.log"));
        let failed = |how: &str, output: &str| {
            let output = format!("{output}\n{}", tail(&log));
            Error::Process { name: "the emulated machine".into(), how: how.into(), output }
        };
        let ended = ended.and_then(|()| match output.rsplit_once(END) {
            Some((_, code)) if code.trim() == "0" => Ok(()),
            Some(_) => Err(failed("could not measure", &output)),
            None => Err(failed("ended before the measurement did", &output)),
        });
        (output, ended)
    }

    /// Runs the emulator to its end. Leaves `output.log` and `kernel.log` in `directory`.
    fn emulate(
        &self,
        root: &[u8],
        seed: u32,
        directory: &Path,
        limit: Duration,
        stop: &Stop,
    ) -> Result<()> {
        let file = |name: &str| directory.join(name);
        let image = file("root.cpio");
        fs::write(&image, root).map_err(Error::io(format!("write {}", image.display())))?;
        let mut command = Command::new(QEMU);
        command
            .args(["-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", "1024"])
            .args(["-icount", CLOCK, "-seed", &seed.to_string()])
            .args(["-rtc", "base=2026-01-01T00:00:00,clock=vm"])
            .args(["-no-reboot", "-nodefaults", "-no-user-config", "-display", "none"])
            .arg("-kernel")
            .arg(self.0.join("vmlinux"))
            .arg("-initrd")
            .arg(&image)
            .args(["-append", COMMAND_LINE])
            .arg("-serial")
            .arg(format!("file:{}", file("kernel.log").display()))
            .arg("-serial")
            .arg(format!("file:{}", file("output.log").display()));
        Process::spawn(QEMU, killed_with_parent(command))?.finish(limit, stop).map(drop)
    }
}

/// The last lines of a log.
fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines.get(lines.len().saturating_sub(20)..).unwrap_or_default().join("\n")
}
