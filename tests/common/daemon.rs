//! Runs `weft run` as a child process and reads its state.

use super::{Host, PATIENCE, traffic};
use datapath::stats::{Drops, PortStats, Snapshot};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use testkit::host::{TestHost, wait_until};

/// Path of the program under test.
pub const WEFT: &str = env!("CARGO_BIN_EXE_weft");

/// How long a daemon may take to stop on a busy machine.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// The time within which the self-check finds every fault.
const FAULT_LIMIT: Duration = Duration::from_secs(60);
/// How long a test waits for a reply that must not arrive.
const SILENCE: Duration = Duration::from_millis(300);

/// A running `weft run`. Dropping it stops the daemon. If a test fails, its standard error is
/// printed.
pub struct Daemon {
    host: &'static str,
    child: Child,
    control: PathBuf,
    stderr: PathBuf,
    /// True if the test has injected a fault, which the self-check finds.
    has_fault: bool,
    /// The kernel log since the start of the daemon; `None` if it cannot be read.
    kernel_log: Option<File>,
}

/// The log message of the self-check.
const FAULT: &str = "self-check: deleted";

impl Daemon {
    /// Starts the daemon of `host` with additional `arguments`.
    pub fn spawn(host: &Host, network: &Path, control: &Path, arguments: &[&str]) -> Self {
        Self::spawn_with_environment(host, network, control, arguments, &[])
    }

    /// Like [`Daemon::spawn`], with additional environment variables.
    pub fn spawn_with_environment(
        host: &Host,
        network: &Path,
        control: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let stderr = stderr_file(control);
        let file = File::create(&stderr).expect("a file can be made");
        let mut command = run(control, &["--host", host.name]);
        command.arg(network).args(arguments).envs(environment.iter().copied());
        Self::start(host, command, control, file.into(), stderr)
    }

    /// Starts the daemon of a host that joins OVN. `database` is the address of the host's local
    /// database.
    pub fn join_ovn(host: &Host, database: &str, control: &Path, arguments: &[&str]) -> Self {
        let stderr = stderr_file(control);
        let file = File::create(&stderr).expect("a file can be made");
        let mut command = run(control, &["--ovn", database]);
        command.args(arguments);
        Self::start(host, command, control, file.into(), stderr)
    }

    /// Starts the daemon of `host` with `stderr` as its standard error. [`Daemon::stderr`] is then
    /// empty.
    pub fn spawn_with_stderr(
        host: &Host,
        network: &Path,
        control: &Path,
        arguments: &[&str],
        stderr: Stdio,
    ) -> Self {
        let mut command = run(control, &["--host", host.name]);
        command.arg(network).args(arguments);
        Self::start(host, command, control, stderr, PathBuf::new())
    }

    /// Starts `command`, whose standard error is the file `stderr`.
    fn start(
        host: &Host,
        mut command: Command,
        control: &Path,
        stderr: Stdio,
        path: PathBuf,
    ) -> Self {
        if !command.get_args().any(|argument| argument == MEGAFLOWS[0]) {
            command.args(MEGAFLOWS);
        }
        command.env_remove("WEFT_LOG").stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let kernel_log = end_of_kernel_log();
        // The child inherits the namespace of this thread. `Netns::command` would fork this large
        // process, which takes far longer.
        let child = host.netns.run(|| command.spawn()).expect("weft can be started");
        let control = control.to_owned();
        Self { host: host.name, child, control, stderr: path, has_fault: false, kernel_log }
    }

    /// Waits until the daemon responds and all its ports are up.
    ///
    /// # Panics
    /// The daemon is not ready within [`PATIENCE`].
    pub fn wait_ready(&self) {
        wait_until(PATIENCE, "the daemon answers and its ports are up", || {
            self.try_show().is_ok_and(|now| now.ports.iter().all(|port| port.state == "up"))
        });
    }

    /// Waits until the daemon responds, whatever the state of its ports.
    ///
    /// # Panics
    /// As [`Daemon::wait_ready`].
    pub fn wait_answers(&self) {
        wait_until(PATIENCE, "the daemon answers", || self.try_show().is_ok());
    }

    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time that all threads have used so far.
    pub fn cpu_time(&self) -> Duration {
        /// USER_HZ: 100 on every Linux architecture except Alpha.
        const TICKS_PER_SECOND: u64 = 100;
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("a process");
        // The program name is in parentheses and may contain spaces. User and system time are
        // fields 14 and 15.
        let (_, fields) = stat.rsplit_once(") ").expect("a name in brackets");
        let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>());
        let ticks: u64 = ticks.map(|ticks| ticks.expect("a number of ticks")).sum();
        Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
    }

    /// The output of `weft show --json`.
    pub fn show(&self) -> Snapshot {
        let shown = self.try_show();
        shown.unwrap_or_else(|error| panic!("the daemon of {} does not answer: {error}", self.host))
    }

    /// The data of `weft show --json`, without starting that program, which would take longer.
    fn try_show(&self) -> Result<Snapshot, String> {
        let mut reply = self.request(r#"{"command":"show"}"#).map_err(|error| error.to_string())?;
        match reply.get_mut("ok") {
            Some(shown) => Ok(serde_json::from_value(shown.take()).expect("a snapshot")),
            None => Err(reply.to_string()),
        }
    }

    /// The switches, routers, ports and hosts that the daemon knows.
    pub fn topology(&self) -> Value {
        let mut reply = self.request(r#"{"command":"topology"}"#).expect("the daemon answers");
        reply["ok"].take()
    }

    fn request(&self, request: &str) -> std::io::Result<Value> {
        self::request(&self.control, request)
    }

    /// The drops of the uplink and all ports, summed by reason.
    pub fn drops(&self) -> Drops {
        let snapshot = self.show();
        let mut sum = snapshot.uplink.drops;
        for (reason, count) in snapshot.ports.into_iter().flat_map(|port| port.drops) {
            *sum.entry(reason).or_default() += count;
        }
        sum
    }

    /// The daemon's standard error so far.
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process number is positive");
        kill(Pid::from_raw(pid), signal).expect("a child can be sent a signal");
    }

    /// Waits up to `limit` until the daemon exits.
    pub fn wait_end(&mut self, limit: Duration) -> ExitStatus {
        let mut status = None;
        wait_until(limit, "the daemon ends", || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        status.expect("wait_until returns only on success")
    }

    /// Waits until the daemon has written `text` to standard error.
    pub fn wait_says(&self, text: &str) {
        wait_until(PATIENCE, &format!("weft run, {}, says {text:?}", self.host), || {
            self.stderr().contains(text)
        });
    }

    /// How often its self-check has reported faults.
    pub fn faults(&self) -> usize {
        self.stderr().matches(FAULT).count()
    }

    /// Waits until its self-check has found a fault that the test has planted. It had reported
    /// `before`.
    pub fn wait_finds_fault(&mut self, before: usize) {
        self.has_fault = true;
        wait_until(FAULT_LIMIT, &format!("weft run, {}, finds the fault", self.host), || {
            self.faults() > before
        });
    }

    /// Stops the daemon with SIGTERM.
    ///
    /// # Panics
    /// It does not exit in time, or exits with an error.
    pub fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.wait_end(STOP_LIMIT);
        assert!(status.success(), "weft run ended with {status}:\n{}", self.stderr());
    }

    /// The devices, addresses, neighbours and packet sockets in the daemon's namespace.
    fn network(&self) -> String {
        let pid = self.child.id();
        let ask = |arguments: &str| {
            let arguments = arguments.split(' ');
            let mut enter = Command::new("nsenter");
            let out = enter.arg("-t").arg(pid.to_string()).arg("-n").args(arguments).output();
            out.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default()
        };
        let packet = std::fs::read_to_string(format!("/proc/{pid}/net/packet"));
        [
            "ip -statistics address",
            "ip neigh",
            "tc -statistics filter show dev eth0 ingress",
            "ss -uanp",
        ]
        .map(ask)
        .into_iter()
        .chain(packet)
        .collect::<Vec<_>>()
        .join("\n")
    }

    fn running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

/// Sends a request to a control socket, and returns the first line of the reply. This is faster
/// than starting a weft command that does the same.
pub fn request(control: &Path, request: &str) -> std::io::Result<Value> {
    let mut line = String::new();
    send_request(control, request)?.read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Sends a request that must succeed to a control socket, and returns the result in the reply.
pub fn reply(control: &Path, text: &str) -> Value {
    let mut line = request(control, text).expect("the daemon answers");
    assert!(line["ok"] != Value::Null, "{text}: {line}");
    line["ok"].take()
}

/// Sends a request whose reply is a finite stream of lines, and returns the last line.
pub fn end_of_reply(control: &Path, request: &str) -> Value {
    let lines = send_request(control, request).expect("the daemon answers").lines();
    let last = lines.map(|line| line.expect("a line")).last().expect("a reply");
    let mut last: Value = serde_json::from_str(&last).expect("JSON");
    assert!(last["end"] != Value::Null, "{request}: {last}");
    last["end"].take()
}

fn send_request(control: &Path, request: &str) -> std::io::Result<BufReader<UnixStream>> {
    let mut stream = UnixStream::connect(control)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    writeln!(stream, "{request}")?;
    Ok(BufReader::new(stream))
}

/// The path of a new file for the standard error of a daemon.
fn stderr_file(control: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let unique = COUNT.fetch_add(1, Ordering::Relaxed);
    control.with_extension(format!("stderr-{unique}"))
}

/// The default limit of megaflows for tests. The kernel datapath allocates memory for all of them
/// when it starts. With the limit of 200,000, that takes several percent of the processor time of
/// these tests.
pub const MEGAFLOWS: [&str; 2] = ["--megaflows", "2048"];

/// The command `weft run` with this control socket and these arguments.
fn run(control: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(WEFT);
    command.args(["run", "--control"]).arg(control).args(arguments);
    command
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let show = Command::new(WEFT).args(["show", "--control"]).arg(&self.control).output();
            let show = show.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
            eprintln!("--- weft show, {}\n{}", self.host, show.unwrap_or_default());
            eprintln!("--- standard error of weft run, {}\n{}", self.host, self.stderr());
            eprintln!("--- network of {}\n{}", self.host, self.network());
        }
        if self.running() {
            self.signal(Signal::SIGTERM);
            let end = std::time::Instant::now() + STOP_LIMIT;
            while self.running() && std::time::Instant::now() < end {
                std::thread::sleep(Duration::from_millis(10));
            }
            // Killing fails if the daemon has exited in the meantime; it must be reaped in any
            // case.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if !std::thread::panicking() {
            let refused = self.kernel_log.take().map(|log| refused_calls(log, self.pid()));
            assert_eq!(refused.unwrap_or_default(), "", "system calls that seccomp has refused");
            let stderr = self.stderr();
            assert_eq!(stderr.contains(FAULT), self.has_fault, "{stderr}");
        }
    }
}

/// The kernel log, positioned so that only later messages are read.
fn end_of_kernel_log() -> Option<File> {
    /// Nonblocking, because a read at the end would wait for the next line.
    const FLAGS: i32 = nix::libc::O_NONBLOCK;
    let mut log = File::options().read(true).custom_flags(FLAGS).open("/dev/kmsg").ok()?;
    log.seek(SeekFrom::End(0)).ok().map(|_| log)
}

/// The later messages of the kernel log about system calls of process `pid` that a seccomp filter
/// has refused. Empty if there are none.
fn refused_calls(mut log: File, pid: u32) -> String {
    let (mut line, mut found) = ([0; 8192], String::new());
    let by = format!(" pid={pid} ");
    loop {
        let text = match log.read(&mut line) {
            Ok(0) => return found,
            Ok(len) => String::from_utf8_lossy(&line[..len]),
            // The kernel has overwritten the next messages. Reading continues with the oldest one.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => continue,
            Err(_) => return found,
        };
        if text.contains("audit: type=1326") && text.contains(&by) {
            found += &text;
        }
    }
}

/// The state of a port in the daemon's reply.
pub fn port(daemon: &Daemon, name: &str) -> PortStats {
    let ports = daemon.show().ports;
    ports.into_iter().find(|port| port.name == name).expect("a port of that name")
}

/// Waits until `holds` returns true for a port.
pub fn wait_port(daemon: &Daemon, name: &str, what: &str, holds: impl Fn(&PortStats) -> bool) {
    wait_until(PATIENCE, &format!("port {name} is {what}"), || holds(&port(daemon, name)));
}

/// Checks that `to` does not reply to a ping, and that no daemon uses much processor time
/// meanwhile.
pub fn no_answer(from: &TestHost, to: IpAddr, daemons: &[Daemon; 2]) {
    let before = daemons.each_ref().map(Daemon::cpu_time);
    assert!(traffic::ping_within(from, to, SILENCE).is_err(), "{to} answers");
    for (daemon, before) in daemons.iter().zip(before) {
        let used = daemon.cpu_time() - before;
        assert!(used < SILENCE / 4, "{used:?} of processor time in {SILENCE:?} of waiting");
    }
}
