//! External programs that run to completion, or until they are dropped. Every wait has a timeout.

use crate::host::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How often a running program is checked for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Timeout for a program to stop after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(20);
/// Timeout for a program to complete, on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(40);

/// A command for the program `name`, which may be in a system directory that `PATH` lacks.
pub fn command(name: &str) -> Command {
    Command::new(crate::report::find_program(name).unwrap_or_else(|| name.into()))
}

/// Copies the program `from` to `to`, where it can be executed.
///
/// Another process (`cp`) writes the copy. If this process did, a child that another thread forks
/// meanwhile would hold the copy open for writing, and the kernel would refuse to execute it
/// (ETXTBSY).
///
/// # Panics
/// When it cannot be copied.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let mut copy = command("cp");
    copy.arg(from.as_ref()).arg(to.as_ref());
    run(copy, &[]);
}

/// Waits until a server accepts connections on the Unix socket `path`. The socket file may exist
/// slightly earlier.
///
/// # Panics
/// When no server listens within [`LIMIT`].
pub fn wait_for_server(path: &Path) {
    let what = format!("a server listens on {}", path.display());
    wait_until(LIMIT, &what, || UnixStream::connect(path).is_ok());
}

/// Runs `command` to completion with `input` on its standard input; returns its standard output.
///
/// # Panics
/// When it fails or takes longer than [`LIMIT`]; the message contains its standard error.
pub fn run(mut command: Command, input: &[u8]) -> String {
    let name = format!("{command:?}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut stdin = child.stdin.take().expect("standard input is piped");
    let stdout = child.stdout.take().expect("standard output is piped");
    let stderr = child.stderr.take().expect("standard error is piped");
    thread::scope(|scope| {
        // Errors are ignored: a program that ends early closes its standard input, and its exit
        // status shows why.
        scope.spawn(move || drop(stdin.write_all(input)));
        let stdout = scope.spawn(|| read_all(stdout));
        let stderr = scope.spawn(|| read_all(stderr));
        let success = end_of(&mut child, LIMIT).is_some_and(|status| status.success());
        // The readers would otherwise wait forever for a program that hangs.
        let _ = child.kill();
        let _ = child.wait();
        let [stdout, stderr] = [stdout, stderr].map(|text| text.join().expect("a reader"));
        assert!(success, "{name} failed or took longer than {LIMIT:?}:\n{stderr}");
        stdout
    })
}

fn read_all(mut stream: impl Read) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("a pipe can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn end_of(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait().expect("a child can be waited for") {
            None if Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
            status => return status,
        }
    }
}

/// A running program, which is stopped when dropped. Its output is printed when a test fails.
pub struct Running {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts `command` with its output in `directory/NAME.log`.
    pub fn start(name: &'static str, mut command: Command, directory: &Path) -> Self {
        let log = directory.join(name).with_extension("log");
        let output = File::create(&log).expect("a log file can be made");
        let errors = output.try_clone().expect("a file can be shared");
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name, child, log }
    }

    /// The process identifier.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its output so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Stops it and returns its output.
    pub fn stop(mut self) -> String {
        self.terminate();
        self.output()
    }

    /// Kills the program (SIGKILL), so that it cannot clean up.
    pub fn kill(mut self) {
        // Fails if the program has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn terminate(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // The process identifier stays valid until the child is reaped.
            let pid = i32::try_from(self.child.id()).expect("a process number is positive");
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            end_of(&mut self.child, PATIENCE);
        }
        // kill fails if the program has ended already; wait reaps it in any case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.terminate();
        if thread::panicking() {
            eprintln!("--- output of {}\n{}", self.name, self.output());
        }
    }
}
