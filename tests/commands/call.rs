//! Runs commands of weft.

use crate::common::PATIENCE;
use crate::common::daemon::WEFT;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use testkit::host::wait_until;

/// Runs a weft command for the daemon with this control socket. Returns its exit code, standard
/// output and standard error.
pub fn weft(control: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(WEFT);
    let output = command.args(args).arg("--control").arg(control).output().expect("weft starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

/// Runs a command that must succeed and print one JSON value.
pub fn weft_json(control: &Path, args: &[&str]) -> Value {
    let (code, out, stderr) = weft(control, &[args, &["--json"]].concat());
    assert_eq!((code, &*stderr), (0, ""), "{args:?}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error}\n{out}"))
}

/// A running command, and the lines that it prints.
pub struct Watch {
    child: Child,
    pub lines: Receiver<String>,
    stderr: Receiver<String>,
}

impl Watch {
    pub fn start(control: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(WEFT);
        command.args(args).arg("--control").arg(control);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("weft starts");
        let lines = lines_of(child.stdout.take().expect("a pipe"));
        let stderr = lines_of(child.stderr.take().expect("a pipe"));
        Self { child, lines, stderr }
    }

    /// Starts a capture and waits until it runs.
    pub fn capture(control: &Path, args: &[&str]) -> Self {
        let watch = Self::start(control, &[&["capture"], args].concat());
        let stderr = watch.stderr.recv_timeout(PATIENCE).expect("it says that it has begun");
        assert!(stderr.contains("press Ctrl-C to stop"), "{stderr}");
        watch
    }

    /// Ends the command like Ctrl-C. Returns its exit code and its remaining output.
    pub fn interrupt(mut self) -> (Option<i32>, String) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a process number"));
        kill(pid, Signal::SIGINT).expect("a child can be sent a signal");
        self.end()
    }

    /// Waits until the command exits.
    pub fn end(&mut self) -> (Option<i32>, String) {
        let mut status = None;
        wait_until(PATIENCE, "the command ends", || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        let stderr: Vec<String> = self.stderr.iter().collect();
        (status.and_then(|status| status.code()), stderr.join("\n"))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Fails if the command has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines_of(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(pipe).lines().map_while(Result::ok);
        lines.take_while(|line| sender.send(line.clone()).is_ok()).count()
    });
    receiver
}
