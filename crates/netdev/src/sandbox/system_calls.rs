//! The system calls that a sandboxed switch may make, as a filter that the kernel runs
//! (seccomp(2)).
//!
//! A refused call fails with EPERM, and the kernel writes a line about it to the audit log. The
//! process is not killed: otherwise a call that is missing in this table would stop all traffic.
//!
//! For calls that are allowed with all arguments, the kernel caches the decision. So it runs no
//! filter for the calls that workers make for each packet.

use crate::{Error, Result};
use libc::{c_int, c_long};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use std::io;

/// Calls that only some configurations need.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SystemCalls {
    /// bpf(2), to fill maps and to attach programs. Programs and maps cannot be loaded any more.
    pub bpf: bool,
    /// setns(2) into network namespaces, for devices of guests. Other kinds of namespaces cannot be
    /// entered, and none can be created.
    pub network_namespaces: bool,
}

/// Calls that are allowed with all arguments.
const ALLOWED: &[c_long] = &[
    // Packets and the control socket. `conditions` limits the families of new sockets.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_listen,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    // Files: the network file, /proc, /sys, pins in the BPF file system, the control socket.
    // Landlock limits which ones can be changed.
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_dup,
    // Reserves space in the file of saved connections.
    libc::SYS_fallocate,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_getcwd,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    // Memory. Pages that can be executed cannot be made: see `conditions`.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Threads. Other processes cannot be started: see `conditions`.
    libc::SYS_futex,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Allowed here because the filter of `without_clone3` makes it fail with ENOSYS.
    libc::SYS_clone3,
    // Signals.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    // Facts about the machine and this process.
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_capget,
];

/// Older equivalents of the calls in `ALLOWED`, which some C libraries use.
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// The families of sockets: control socket and locks, underlay, netlink, devices.
const FAMILIES: &[c_int] =
    &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET];

const SIOCETHTOOL: u64 = 0x8946;
/// The ioctl requests. TIOCSTI, which types into a terminal, is not among them.
const REQUESTS: &[u64] = &[
    // TAP devices.
    libc::TUNSETIFF,
    libc::TUNGETIFF,
    libc::TUNSETPERSIST,
    libc::TUNSETOFFLOAD,
    libc::TUNSETVNETHDRSZ,
    // Offloads of a device, and its index by name.
    SIOCETHTOOL,
    libc::SIOCGIFINDEX,
    // The standard library and the C library: non-blocking, close on exec, is it a terminal?
    libc::FIONBIO,
    libc::FIOCLEX,
    libc::TCGETS,
];

/// `enum bpf_cmd` of linux/bpf.h.
const BPF_COMMANDS: &[u64] = &[
    1,  // BPF_MAP_LOOKUP_ELEM
    2,  // BPF_MAP_UPDATE_ELEM
    3,  // BPF_MAP_DELETE_ELEM
    4,  // BPF_MAP_GET_NEXT_KEY
    6,  // BPF_OBJ_PIN
    7,  // BPF_OBJ_GET
    10, // BPF_PROG_TEST_RUN: runs a program that changes several maps at once
    13, // BPF_PROG_GET_FD_BY_ID: the name of a program attached before ours, with CAP_SYS_ADMIN
    15, // BPF_OBJ_GET_INFO_BY_FD
    16, // BPF_PROG_QUERY: programs attached to a device
    24, // BPF_MAP_LOOKUP_BATCH
    26, // BPF_MAP_UPDATE_BATCH
    28, // BPF_LINK_CREATE
    29, // BPF_LINK_UPDATE
    30, // BPF_LINK_GET_FD_BY_ID: detaches a left-over program, with CAP_SYS_ADMIN
    34, // BPF_LINK_DETACH
];

/// `PR_SET_VMA`: the C library names its memory.
const NAME_MEMORY: c_int = 0x5356_4d41;

fn is(argument: u8, value: u64) -> SeccompCondition {
    masked(argument, u64::from(u32::MAX), value)
}

/// The condition `argument & mask == value`. The kernel passes an `int` in the lower half of a
/// register, so conditions on an `int` have a mask without the upper half.
fn masked(argument: u8, mask: u64, value: u64) -> SeccompCondition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), value)
        .expect("a system call has six arguments")
}

fn rule(conditions: Vec<SeccompCondition>) -> SeccompRule {
    SeccompRule::new(conditions).expect("there is a condition")
}

/// Rules that allow each of `values` as the argument.
fn one_of<T: Copy + Into<i64>>(argument: u8, values: &[T]) -> Vec<SeccompRule> {
    let low = |value: T| value.into().cast_unsigned() & u64::from(u32::MAX);
    values.iter().map(|&value| rule(vec![is(argument, low(value))])).collect()
}

/// Calls that are allowed with some arguments only.
fn conditions(calls: SystemCalls) -> BTreeMap<c_long, Vec<SeccompRule>> {
    let numbers = |argument, values: &[u64]| -> Vec<SeccompRule> {
        values.iter().map(|&value| rule(vec![is(argument, value)])).collect()
    };
    let not_executable = || vec![rule(vec![masked(2, libc::PROT_EXEC as u64, 0)])];
    let own_pid = [std::process::id().cast_signed()];
    let mut rules = BTreeMap::from([
        (libc::SYS_socket, one_of(0, FAMILIES)),
        (libc::SYS_socketpair, one_of(0, &[libc::AF_UNIX])),
        (libc::SYS_ioctl, numbers(1, REQUESTS)),
        (libc::SYS_mmap, not_executable()),
        (libc::SYS_mprotect, not_executable()),
        // A new thread, but no new process. CLONE_THREAD excludes new user and process namespaces;
        // the others would need CAP_SYS_ADMIN.
        (libc::SYS_clone, vec![rule(vec![masked(0, THREAD_ONLY, libc::CLONE_THREAD as u64)])]),
        (libc::SYS_prctl, one_of(0, &[libc::PR_SET_NAME, NAME_MEMORY])),
        // The limit on open files, of this process.
        (libc::SYS_prlimit64, one_of(0, &[0])),
        // abort(3) after a panic, in this process.
        (libc::SYS_tgkill, one_of(0, &own_pid)),
    ]);
    if calls.bpf {
        rules.insert(libc::SYS_bpf, numbers(0, BPF_COMMANDS));
    }
    if calls.network_namespaces {
        rules.insert(libc::SYS_setns, one_of(1, &[libc::CLONE_NEWNET]));
    }
    rules
}

/// The flag that a new thread has, and the flags for new namespaces that it must not have.
const THREAD_ONLY: u64 = (libc::CLONE_THREAD
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: TargetArch = TargetArch::aarch64;
#[cfg(target_arch = "riscv64")]
const ARCHITECTURE: TargetArch = TargetArch::riscv64;

impl SystemCalls {
    /// Refuses all calls outside the tables in all threads of this process, for good. Needs
    /// no_new_privs, which the other threads get as well. False if the kernel has no seccomp
    /// filters.
    pub(super) fn filter_all_threads(self) -> Result<bool> {
        if !has_filters() {
            return Ok(false);
        }
        let all = libc::SECCOMP_FILTER_FLAG_TSYNC;
        install(&without_clone3(), all)?;
        install(&self.filter(), all | libc::SECCOMP_FILTER_FLAG_LOG)?;
        Ok(true)
    }

    fn filter(self) -> BpfProgram {
        let mut rules = conditions(self);
        for &call in ALLOWED.iter().chain(OLDER) {
            let with_conditions = rules.insert(call, Vec::new());
            debug_assert!(with_conditions.is_none(), "call {call} is in the table twice");
        }
        let refused = SeccompAction::Errno(libc::EPERM as u32);
        compile(rules, refused, SeccompAction::Allow)
    }
}

/// Makes clone3 fail with ENOSYS: a filter cannot read its arguments, which are in memory. The C
/// library then uses clone, whose flags are in a register.
fn without_clone3() -> BpfProgram {
    let missing = SeccompAction::Errno(libc::ENOSYS as u32);
    compile(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), SeccompAction::Allow, missing)
}

fn compile(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> BpfProgram {
    SeccompFilter::new(rules, otherwise, matched, ARCHITECTURE)
        .and_then(TryInto::try_into)
        .expect("a fixed table of a few hundred conditions")
}

/// True if the kernel has seccomp filters that return an error.
fn has_filters() -> bool {
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the kernel reads four bytes from the pointer.
    let found = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action)
    };
    found == 0
}

fn install(program: &BpfProgram, flags: libc::c_ulong) -> Result<()> {
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut().cast::<libc::sock_filter>(),
    };
    // SAFETY: `program` describes instructions of the kernel's layout that outlive the call. The
    // kernel copies them, and writes nothing.
    let done = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    let what = "filter the system calls of this process";
    match done {
        0 => Ok(()),
        ..0 => Err(Error::last_os(what)),
        thread => {
            let why = format!("thread {thread} has another filter");
            Err(Error::os(what, io::Error::other(why)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use nix::sched::{CloneFlags, setns, unshare};
    use std::collections::BTreeSet;
    use std::fs::File;
    use std::process::Command;
    use std::{mem, ptr, thread};

    /// Runs `work` on a thread of its own with the filter.
    fn filtered<R: Send>(calls: SystemCalls, work: impl FnOnce() -> R + Send) -> R {
        let work = || {
            nix::sys::prctl::set_no_new_privs().unwrap();
            install(&without_clone3(), 0).unwrap();
            install(&calls.filter(), 0).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    fn bpf(command: c_int) -> io::Error {
        // SAFETY: an attribute of length 0, which no command accepts.
        let done = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::null::<u8>(), 0) };
        assert!(done < 0);
        io::Error::last_os_error()
    }

    #[test]
    fn table_has_each_call_once() {
        let all = SystemCalls { bpf: true, network_namespaces: true };
        let calls: Vec<_> = ALLOWED.iter().chain(OLDER).copied().collect();
        let once: BTreeSet<_> = calls.iter().copied().chain(conditions(all).into_keys()).collect();
        assert_eq!(once.len(), calls.len() + conditions(all).len());
    }

    #[test]
    fn threads_files_and_sockets_work_under_the_filter() {
        filtered(SystemCalls::default(), || {
            let child = thread::Builder::new().name("child".to_owned()).spawn(|| 7).unwrap();
            assert_eq!(child.join().unwrap(), 7);
            std::fs::read_dir("/proc").unwrap().next().unwrap().unwrap();
            std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            std::os::unix::net::UnixStream::pair().unwrap();
            let large = vec![1_u8; 64 << 20];
            assert_eq!(large.iter().step_by(1 << 20).map(|&one| u32::from(one)).sum::<u32>(), 64);
            assert!(thread::spawn(|| panic!("of the test")).join().is_err());
        });
    }

    #[test]
    fn calls_outside_the_table_fail_with_eperm() {
        testkit::require_root!();
        let here = File::open("/proc/thread-self/ns/net").unwrap();
        let mounts = File::open("/proc/thread-self/ns/mnt").unwrap();
        filtered(SystemCalls::default(), || {
            assert_eq!(unshare(CloneFlags::CLONE_NEWNET), Err(Errno::EPERM));
            assert_eq!(unshare(CloneFlags::CLONE_NEWUSER), Err(Errno::EPERM));
            assert_eq!(setns(&here, CloneFlags::CLONE_NEWNET), Err(Errno::EPERM));
            assert_eq!(bpf(1).raw_os_error(), Some(libc::EPERM));
            let started = Command::new("/bin/true").status().unwrap_err();
            assert_eq!(started.raw_os_error(), Some(libc::EPERM));
            // SAFETY: new anonymous pages, which nothing uses.
            let executable = unsafe {
                let (read, execute) = (libc::PROT_READ, libc::PROT_EXEC);
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                libc::mmap(ptr::null_mut(), 4096, read | execute, flags, -1, 0)
            };
            assert_eq!(executable, libc::MAP_FAILED);
            // SAFETY: no pointers.
            let socket = unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0) };
            assert_eq!((socket, Errno::last()), (-1, Errno::EPERM));
            // SAFETY: the request reads one byte.
            let typed = unsafe { libc::ioctl(0, libc::TIOCSTI, c"x".as_ptr()) };
            assert_eq!((typed, Errno::last()), (-1, Errno::EPERM));
            // SAFETY: signal 0 only checks.
            let killed = unsafe { libc::syscall(libc::SYS_tgkill, 1, 1, 0) };
            assert_eq!((killed, Errno::last()), (-1, Errno::EPERM));
        });
        let all = SystemCalls { bpf: true, network_namespaces: true };
        filtered(all, || {
            setns(&here, CloneFlags::CLONE_NEWNET).unwrap();
            assert_eq!(setns(&mounts, CloneFlags::CLONE_NEWNS), Err(Errno::EPERM));
            assert_eq!(unshare(CloneFlags::CLONE_NEWNS), Err(Errno::EPERM));
            // The kernel itself refuses the empty attribute.
            assert_ne!(bpf(1).raw_os_error(), Some(libc::EPERM), "BPF_MAP_LOOKUP_ELEM");
            for load in [0, 5] {
                assert_eq!(bpf(load).raw_os_error(), Some(libc::EPERM), "{load}");
            }
        });
        // Other threads are not filtered.
        thread::scope(|scope| {
            scope.spawn(|| unshare(CloneFlags::CLONE_NEWNET).unwrap()).join().unwrap();
        });
    }

    #[test]
    fn instructions_have_the_layout_of_the_kernel() {
        assert_eq!(
            mem::size_of::<libc::sock_filter>(),
            mem::size_of_val(&SystemCalls::default().filter()[0])
        );
    }
}
