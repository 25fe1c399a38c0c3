//! [`Vm`]: a virtual machine with Debian's kernel and busybox under QEMU, as a guest.
//!
//! `scripts/fetch-guest-kernel.sh` fetches the kernel. The root file system is built here from
//! busybox and the modules of a virtio network card. The machine boots in seconds without KVM,
//! which may not work inside another virtual machine. Commands and their output pass through the
//! serial port, so that the network is left to the test.
//!
//! ```no_run
//! use testkit::{host::TestHost, require_vm, vm::Vm};
//!
//! fn a_machine_speaks() {
//!     require_vm!();
//!     let host = TestHost::new("h1");
//!     // The TAP must exist.
//!     let mut vm = Vm::start(&host, "tap7", "02:00:00:00:01:0a", 1442);
//!     vm.run("ip addr add 10.0.0.1/24 dev eth0 && ip link set eth0 up");
//!     assert!(vm.run("uname -r").starts_with('6'));
//! }
//! ```

use crate::host::TestHost;
use crate::report;
use initramfs::Archive;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{self, Child};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const QEMU: &str = "qemu-system-x86_64";
/// The directory of `scripts/fetch-guest-kernel.sh`.
const KERNEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/guest-kernel");
/// Timeout for booting, and for each command, on a busy host.
const PATIENCE: Duration = Duration::from_secs(90);
/// ASCII's record separator, which ends the output of a command; its exit code and a newline
/// follow.
const END: u8 = 0x1e;

/// The init process. It runs each line from the second serial port; the first one has kernel
/// messages.
const INIT: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /lib/modules); do insmod /lib/$module.ko || echo \"no module $module\"; done
ip link set lo up
stty -F /dev/ttyS1 raw -echo
exec </dev/ttyS1 >/dev/ttyS1
printf '\\0360\\n'
while read -r line; do
    sh -c \"$line\" </dev/null >/tmp/output 2>&1
    code=$?
    cat /tmp/output
    printf '\\036%d\\n' $code
done
";

/// Skips the calling test, recorded in the [`report`], unless a [`Vm`] can be started.
#[macro_export]
macro_rules! require_vm {
    () => {
        $crate::require_root!();
        $crate::require_program!("qemu-system-x86_64", "qemu-system-x86");
        $crate::require_program!("busybox", "busybox-static");
        if !$crate::host::may_run($crate::test_name!(), $crate::vm::lacks_kernel) {
            return;
        }
    };
}

/// True, after a [`report::skip`], when the kernel for the machine is missing.
#[must_use]
pub fn lacks_kernel(test: &str) -> bool {
    let lacks = !Path::new(KERNEL).join("vmlinux").exists();
    if lacks {
        report::skip(test, "needs what scripts/fetch-guest-kernel.sh target/guest-kernel gets");
    }
    lacks
}

/// Contents of a machine besides busybox.
#[derive(Clone, Copy, Default, Debug)]
pub struct Extra<'a> {
    /// Programs of this host with their libraries, each with its path in the machine.
    pub programs: &'a [(&'a str, &'a Path)],
    /// Files of this host, with the same path in the machine.
    pub files: &'a [&'a str],
    /// Kernel modules, each after its dependencies.
    pub modules: &'a [&'a str],
}

/// The path of the program of [`Vm::counting`].
const PROGRAM_NAME: &str = "/bin/program";

/// A running machine with one network card, `eth0`, which is down. It is stopped when dropped. Its
/// kernel messages are printed when a test fails.
#[derive(Debug)]
pub struct Vm {
    child: Child,
    console: UnixStream,
    directory: PathBuf,
    patience: Duration,
}

impl Vm {
    /// Boots a machine on `host` with the unused TAP `tap` of that host. Its network card has the
    /// address `mac` and the MTU `mtu` in bytes.
    ///
    /// # Panics
    /// When it does not boot within `PATIENCE`; check with [`require_vm!`](crate::require_vm)
    /// first.
    pub fn start(host: &TestHost, tap: &str, mac: &str, mtu: u16) -> Self {
        let netdev = format!("tap,id=net0,ifname={tap},script=no,downscript=no");
        let device = format!("virtio-net-pci,netdev=net0,mac={mac},host_mtu={mtu},romfile=");
        let network = ["-netdev", netdev.as_str(), "-device", device.as_str()];
        Self::boot(host, &root_file_system(&Extra::default()), &network, PATIENCE)
    }

    /// Boots a machine with one CPU whose clock advances one nanosecond per instruction, so that
    /// measurements repeat exactly. It has no network card. `program` and its libraries are in it
    /// as `/bin/program`.
    ///
    /// # Panics
    /// As [`Vm::start`].
    pub fn counting(host: &TestHost, program: &Path) -> Self {
        Self::counting_with(
            host,
            &Extra { programs: &[(PROGRAM_NAME, program)], ..Extra::default() },
        )
    }

    /// The same with additional contents. Timeouts in it count instructions, however busy this host
    /// is.
    ///
    /// # Panics
    /// As [`Vm::start`].
    pub fn counting_with(host: &TestHost, extra: &Extra<'_>) -> Self {
        let counting = ["-icount", "shift=0,sleep=off", "-smp", "1", "-m", "2048"];
        Self::boot(host, &root_file_system(extra), &counting, 8 * PATIENCE)
    }

    fn boot(host: &TestHost, root_bytes: &[u8], arguments: &[&str], patience: Duration) -> Self {
        let directory = new_directory();
        let root = directory.join("root.cpio");
        fs::write(&root, root_bytes).expect("a file can be written");
        let (console, other_end) = UnixStream::pair().expect("a pair of sockets");
        let other_end = OwnedFd::from(other_end);
        let mut command = host.program(QEMU);
        command
            .args(["-accel", "tcg", "-cpu", "max", "-m", "256", "-no-reboot"])
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .arg("-kernel")
            .arg(Path::new(KERNEL).join("vmlinux"))
            .arg("-initrd")
            .arg(&root)
            .args(["-append", "console=ttyS0 quiet panic=-1"])
            .arg("-serial")
            .arg(format!("file:{}", directory.join("kernel.log").display()))
            .args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"])
            .args(arguments)
            .stdin(other_end.try_clone().expect("a socket can be shared"))
            .stdout(other_end)
            .stderr(File::create(directory.join("qemu.log")).expect("a file can be made"));
        let child = command.spawn().expect("QEMU can be started");
        let mut vm = Self { child, console, directory, patience };
        vm.answer("boot");
        vm
    }

    /// Runs a line of shell and returns its standard output and standard error. A background
    /// command (`&`) must redirect both.
    ///
    /// # Panics
    /// When it fails or takes longer than `PATIENCE`.
    pub fn run(&mut self, line: &str) -> String {
        let (code, printed) = self.try_run(line);
        assert_eq!(code, 0, "{line:?} failed in the machine:\n{printed}");
        printed
    }

    /// Like [`Vm::run`], but returns the exit code instead of panicking on failure.
    ///
    /// # Panics
    /// When it takes longer than `PATIENCE`.
    pub fn try_run(&mut self, line: &str) -> (i32, String) {
        assert!(!line.contains('\n'), "{line:?} is one line");
        self.console.write_all(format!("{line}\n").as_bytes()).expect("the machine runs");
        self.answer(line)
    }

    /// Reads the output of `line`.
    fn answer(&mut self, line: &str) -> (i32, String) {
        let patience = self.patience;
        let deadline = Instant::now() + patience;
        let mut bytes = Vec::new();
        loop {
            if let Some(answer) = parse_answer(&bytes) {
                return answer;
            }
            let printed = String::from_utf8_lossy(&bytes);
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{line:?} takes longer than {patience:?}:\n{printed}");
            self.console.set_read_timeout(Some(left)).expect("a socket has timeouts");
            let mut more = [0; 4096];
            match self.console.read(&mut more) {
                Ok(0) => panic!("the machine has ended:\n{printed}\n{}", self.log("qemu.log")),
                Ok(len) => bytes.extend_from_slice(&more[..len]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => panic!("the console of the machine: {error}"),
            }
        }
    }

    fn log(&self, name: &str) -> String {
        let bytes = fs::read(self.directory.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // kill fails when it has ended already; wait reaps it anyway.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!(
                "--- QEMU\n{}--- its kernel\n{}",
                self.log("qemu.log"),
                self.log("kernel.log")
            );
        }
        // Files that cannot be removed are temporary files.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn new_directory() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let unique = COUNT.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("weft-vm-{}-{unique}", process::id()));
    fs::create_dir_all(&directory).expect("a directory can be made");
    directory
}

/// The exit code and output, once complete.
fn parse_answer(bytes: &[u8]) -> Option<(i32, String)> {
    let end = bytes.iter().position(|&byte| byte == END)?;
    let code = bytes[end + 1..].strip_suffix(b"\n")?;
    let code = str::from_utf8(code).ok()?.parse().ok()?;
    Some((code, String::from_utf8_lossy(&bytes[..end]).into_owned()))
}

/// The initramfs: busybox, modules, init, and the extra contents.
fn root_file_system(extra: &Extra<'_>) -> Vec<u8> {
    let kernel = Path::new(KERNEL);
    let read = |path: &Path| fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut archive = Archive::default();
    for directory in ["bin", "dev", "lib", "proc", "run", "sys", "tmp"] {
        archive.directory(directory);
    }
    let busybox = report::find_program("busybox").expect("busybox is installed");
    archive.file("bin/busybox", &read(&busybox));
    archive.file("init", INIT.as_bytes());
    let of_a_card = String::from_utf8(read(&kernel.join("modules"))).expect("names of modules");
    let modules: Vec<&str> =
        of_a_card.split_whitespace().chain(extra.modules.iter().copied()).collect();
    archive.file("lib/modules", modules.join(" ").as_bytes());
    for module in modules {
        let file = format!("{module}.ko");
        archive.file(&format!("lib/{file}"), &read(&kernel.join(&file)));
    }
    for (name, program) in extra.programs {
        archive.program(name, program).unwrap_or_else(|error| panic!("{error}"));
    }
    extra.files.iter().for_each(|path| archive.file(path, &read(Path::new(path))));
    archive.end().expect("an archive is below 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_complete_when_its_exit_code_is() {
        assert_eq!(parse_answer(b"text"), None);
        assert_eq!(parse_answer(b"text\n\x1e12"), None);
        assert_eq!(parse_answer(b"text\n\x1e12\n"), Some((12, "text\n".to_owned())));
    }

    #[test]
    fn machine_runs_commands_when_it_has_booted() {
        crate::require_vm!();
        let host = TestHost::new("vm");
        // QEMU creates the TAP.
        let mut vm = Vm::start(&host, "tap7", "02:00:00:00:01:0a", 1400);
        assert_eq!(vm.run("cat /sys/class/net/eth0/address").trim(), "02:00:00:00:01:0a");
        assert_eq!(vm.run("cat /sys/class/net/eth0/mtu").trim(), "1400");
        assert_eq!(vm.try_run("echo text; exit 3"), (3, "text\n".to_owned()));
    }
}
