//! [`Vm`]: a virtual machine with Debian's kernel and busybox under QEMU, which acts as a guest.
//!
//! `scripts/fetch-guest-kernel.sh` downloads the kernel. This module builds the root file system
//! from busybox and the modules of a virtio network card. The machine boots in seconds without KVM,
//! which may not work inside another virtual machine. Commands and their output pass through the
//! serial port, so that the network card is free for the test.
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
use netdev::child::killed_with_parent;
use std::env;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const QEMU: &str = "qemu-system-x86_64";
/// The directory that `scripts/fetch-guest-kernel.sh` creates.
const KERNEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/guest-kernel");
/// The environment variable for another directory, such as one of `scripts/fetch-other-kernel.sh`.
/// It may lack modules that are built into that kernel.
const OTHER_KERNEL: &str = "WEFT_TEST_KERNEL";
/// The kernel's command line. Its last five options save time. Without the first four of these, the
/// kernel tests its cryptographic algorithms and waits for three timers. The waits are loops of
/// `pause` or of device reads, which are slow in the emulator. Without the last one, each start of
/// a program has other addresses, and the emulator translates the whole program again.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 cryptomgr.notests=1 nolapic_timer \
                            no_timer_check initcall_blacklist=hpet_init norandmaps";
/// Timeout for booting, and for each command, on a busy host.
const PATIENCE: Duration = Duration::from_secs(90);
/// ASCII's record separator. It ends the output of a command, and the exit code and a newline
/// follow it.
const END: u8 = 0x1e;

/// The init process. It executes each line from the second serial port. Kernel messages go to the
/// first one.
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

/// The directory that contains the kernel.
fn kernel() -> PathBuf {
    env::var_os(OTHER_KERNEL).map_or_else(|| KERNEL.into(), PathBuf::from)
}

/// Returns true, and records a [`report::skip`], when the kernel for the machine is missing.
#[must_use]
pub fn lacks_kernel(test: &str) -> bool {
    let lacks = !kernel().join("vmlinux").exists();
    if lacks {
        report::skip(test, "needs what scripts/fetch-guest-kernel.sh target/guest-kernel gets");
    }
    lacks
}

/// The contents of a machine in addition to busybox.
#[derive(Clone, Copy, Default, Debug)]
pub struct Extra<'a> {
    /// Programs of this host, which are copied with their libraries; each with its path in the
    /// machine.
    pub programs: &'a [(&'a str, &'a Path)],
    /// Files of this host, which have the same path in the machine.
    pub files: &'a [&'a str],
    /// Kernel modules, each after its dependencies.
    pub modules: &'a [&'a str],
}

/// The path of the program in a [`SharedVm`].
const PROGRAM_NAME: &str = "/bin/program";
/// QEMU's options for a clock that advances one nanosecond per instruction.
const COUNTING: [&str; 6] = ["-icount", "shift=0,sleep=off", "-smp", "1", "-m", "2048"];

/// A running machine with one network card, `eth0`, which is down at first. Dropping it stops the
/// machine. When a test fails, its kernel messages are printed.
#[derive(Debug)]
pub struct Vm {
    child: Child,
    console: UnixStream,
    /// The messages of QEMU, and of the machine's kernel.
    logs: [File; 2],
    patience: Duration,
}

impl Vm {
    /// Boots a machine that uses the TAP device `tap` of `host`. Its network card has the address
    /// `mac` and the MTU `mtu` in bytes.
    ///
    /// # Panics
    /// When it does not boot within `PATIENCE`; check with [`require_vm!`](crate::require_vm)
    /// first.
    pub fn start(host: &TestHost, tap: &str, mac: &str, mtu: u16) -> Self {
        let netdev = format!("tap,id=net0,ifname={tap},script=no,downscript=no");
        let device = format!("virtio-net-pci,netdev=net0,mac={mac},host_mtu={mtu},romfile=");
        let network = ["-netdev", netdev.as_str(), "-device", device.as_str()];
        let root = root_file_system(&Extra::default());
        Self::boot(host.program(QEMU), &root, &network, PATIENCE)
    }

    /// Boots a machine with one CPU, whose clock advances one nanosecond per instruction. So
    /// measurements are reproducible, and timeouts in it do not depend on the load of this host. It
    /// has no network card; `extra` is added to its contents.
    ///
    /// # Panics
    /// As [`Vm::start`].
    pub fn counting(host: &TestHost, extra: &Extra<'_>) -> Self {
        Self::boot(host.program(QEMU), &root_file_system(extra), &COUNTING, 8 * PATIENCE)
    }

    fn boot(
        mut command: Command,
        root_bytes: &[u8],
        arguments: &[&str],
        patience: Duration,
    ) -> Self {
        let directory = Directory::new();
        let root = directory.0.join("root.cpio");
        fs::write(&root, root_bytes).expect("a file can be written");
        let (console, other_end) = UnixStream::pair().expect("a pair of sockets");
        let other_end = OwnedFd::from(other_end);
        let [(qemu_log, _), (kernel_log, kernel_path)] = ["qemu.log", "kernel.log"].map(|name| {
            let path = directory.0.join(name);
            let file = File::options().read(true).append(true).create_new(true).open(&path);
            (file.expect("a file can be made"), path)
        });
        // Without the CPU features ERMS and FSRM, the kernel copies and clears memory by words.
        // With them it uses string instructions, which the emulator executes byte by byte.
        command
            .args(["-accel", "tcg", "-cpu", "max,-erms,-fsrm", "-m", "256", "-no-reboot"])
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .arg("-kernel")
            .arg(kernel().join("vmlinux"))
            .arg("-initrd")
            .arg(&root)
            .args(["-append", COMMAND_LINE])
            .arg("-serial")
            .arg(format!("file:{}", kernel_path.display()))
            .args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"])
            .args(arguments)
            .stdin(other_end.try_clone().expect("a socket can be shared"))
            .stdout(other_end)
            .stderr(qemu_log.try_clone().expect("a file can be shared"));
        let child = spawn_on_a_lasting_thread(command).expect("QEMU can be started");
        let mut vm = Self { child, console, logs: [qemu_log, kernel_log], patience };
        vm.answer("boot");
        // QEMU has opened all files, so the temporary directory can be removed.
        vm
    }

    /// Executes a line of shell and returns its standard output and standard error. A background
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
                Ok(0) => panic!("the machine has ended:\n{printed}\n{}", text(&self.logs[0])),
                Ok(len) => bytes.extend_from_slice(&more[..len]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => panic!("the console of the machine: {error}"),
            }
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // kill fails if QEMU has ended already; wait reaps it in any case.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let [qemu, kernel] = &self.logs;
            eprintln!("--- QEMU\n{}--- its kernel\n{}", text(qemu), text(kernel));
        }
    }
}

/// A machine of [`Vm::counting`] that the tests of a process share, because a boot takes longer
/// than most of them. It ends with the process.
#[derive(Debug, Default)]
pub struct SharedVm(Mutex<Option<Vm>>);

impl SharedVm {
    /// A machine that is not booted yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Waits until no other test uses the machine. Boots it first if necessary, as with
    /// [`Vm::counting`]. It contains `program` as `/bin/program` with its libraries, and these
    /// kernel modules.
    ///
    /// # Panics
    /// As [`Vm::start`].
    pub fn lock(&self, program: &Path, modules: &[&str]) -> SharedVmGuard<'_> {
        let mut vm = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        vm.get_or_insert_with(|| {
            let extra = Extra { programs: &[(PROGRAM_NAME, program)], files: &[], modules };
            let command = killed_with_parent(Command::new(QEMU));
            Vm::boot(command, &root_file_system(&extra), &COUNTING, 8 * PATIENCE)
        });
        SharedVmGuard(vm)
    }
}

/// Exclusive use of a [`SharedVm`]. After a failed test the machine is stopped, and its kernel
/// messages are printed.
#[derive(Debug)]
pub struct SharedVmGuard<'a>(MutexGuard<'a, Option<Vm>>);

impl Deref for SharedVmGuard<'_> {
    type Target = Vm;

    fn deref(&self) -> &Vm {
        self.0.as_ref().expect("the machine is booted")
    }
}

impl DerefMut for SharedVmGuard<'_> {
    fn deref_mut(&mut self) -> &mut Vm {
        self.0.as_mut().expect("the machine is booted")
    }
}

impl Drop for SharedVmGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            *self.0 = None;
        }
    }
}

/// A temporary directory, which is removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weft-vm-{}-{unique}", process::id()));
        fs::create_dir_all(&path).expect("a directory can be made");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Errors are ignored: the remaining files are temporary.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts a program on a thread that lives as long as this process. With a parent death signal, the
/// kernel kills a program when the *thread* that started it ends, such as the thread of a test.
fn spawn_on_a_lasting_thread(mut command: Command) -> io::Result<Child> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        // The receiver is waiting, so this cannot fail.
        let _ = sender.send(command.spawn());
        // The command holds sockets and files, which must be closed when the program ends.
        drop(command);
        loop {
            thread::park();
        }
    });
    receiver.recv().expect("the thread sends")
}

/// The whole text of a log.
fn text(mut log: &File) -> String {
    let mut bytes = Vec::new();
    // Errors are ignored, so that the failure itself is reported even without its log.
    let _ = log.rewind().and_then(|()| log.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The exit code and the output, once both are complete.
fn parse_answer(bytes: &[u8]) -> Option<(i32, String)> {
    let end = bytes.iter().position(|&byte| byte == END)?;
    let code = bytes[end + 1..].strip_suffix(b"\n")?;
    let code = str::from_utf8(code).ok()?.parse().ok()?;
    Some((code, String::from_utf8_lossy(&bytes[..end]).into_owned()))
}

/// The initramfs: busybox, kernel modules, the init script, and the extra contents.
fn root_file_system(extra: &Extra<'_>) -> Vec<u8> {
    let kernel = kernel();
    let is_other = env::var_os(OTHER_KERNEL).is_some();
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
    let is_there = |module: &&str| !is_other || kernel.join(format!("{module}.ko")).exists();
    let modules: Vec<&str> = modules.into_iter().filter(is_there).collect();
    archive.file("lib/modules", modules.join(" ").as_bytes());
    for module in modules {
        let file = format!("{module}.ko");
        archive.module(&format!("lib/{file}"), &read(&kernel.join(&file)));
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
        // QEMU creates the TAP device.
        let mut vm = Vm::start(&host, "tap7", "02:00:00:00:01:0a", 1400);
        assert_eq!(vm.run("cat /sys/class/net/eth0/address").trim(), "02:00:00:00:01:0a");
        assert_eq!(vm.run("cat /sys/class/net/eth0/mtu").trim(), "1400");
        assert_eq!(vm.try_run("echo text; exit 3"), (3, "text\n".to_owned()));
    }
}
