//! Calling a command.

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

/// Runs a command for a daemon: exit code, standard output, standard error.
pub fn weft(control: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(WEFT);
    let output = command.args(args).arg("--control").arg(control).output().expect("weft starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

/// The same for a command that succeeds and says one JSON object.
pub fn weft_json(control: &Path, args: &[&str]) -> Value {
    let (code, out, said) = weft(control, &[args, &["--json"]].concat());
    assert_eq!((code, &*said), (0, ""), "{args:?}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error}\n{out}"))
}

/// A command that goes on until it is ended, and the lines that it says.
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

    /// A capture that has begun.
    pub fn capture(control: &Path, args: &[&str]) -> Self {
        let watch = Self::start(control, &[&["capture"], args].concat());
        let said = watch.stderr.recv_timeout(PATIENCE).expect("it says that it has begun");
        assert!(said.contains("press Ctrl-C to stop"), "{said}");
        watch
    }

    /// Ends it as Ctrl-C does; returns its exit code and the rest of what it says.
    pub fn interrupt(mut self) -> (Option<i32>, String) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a process number"));
        kill(pid, Signal::SIGINT).expect("a child can be sent a signal");
        self.end()
    }

    /// Waits for its end.
    pub fn end(&mut self) -> (Option<i32>, String) {
        let mut status = None;
        wait_until(PATIENCE, "the command ends", || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        let said: Vec<String> = self.stderr.iter().collect();
        (status.and_then(|status| status.code()), said.join("\n"))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
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
