//! Child processes of a lab. Each has its own process group, so that Ctrl-C reaches only this
//! program, which then stops them in order. The last lines of their output are kept.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Error, Result, Stop};

/// How long a process may take to end after SIGTERM before it is killed.
const TERM_GRACE: Duration = Duration::from_secs(3);
/// How often an ending process is polled.
const POLL: Duration = Duration::from_millis(5);
/// The last lines of output that are kept, and the longest line in bytes.
const TAIL_LINES: usize = 40;
const TAIL_LINE_BYTES: u64 = 1000;

/// A running process. Dropping it ends it: SIGTERM, and SIGKILL if it is still there after 3 s.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: std::process::Child,
    tail: Arc<Mutex<VecDeque<String>>>,
    reader: JoinHandle<()>,
    status: Option<ExitStatus>,
    is_sigterm_sent: bool,
}

impl Process {
    /// Starts `command` in the namespaces of the calling thread; error messages use `name`.
    ///
    /// # Errors
    /// The program is absent or not executable.
    pub fn spawn(name: impl Into<String>, mut command: Command) -> Result<Self> {
        let name = name.into();
        let failed = |e| Error::io(format!("start {name}"))(e);
        let (output, input) = std::io::pipe().map_err(failed)?;
        let stdout = input.try_clone().map_err(failed)?;
        command.stdin(Stdio::null()).stdout(stdout).stderr(input).process_group(0);
        let child = command.spawn().map_err(failed)?;
        // `command` holds the write end of the pipe. That end must close when the process ends.
        drop(command);
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&tail);
        let reader = std::thread::spawn(move || keep_tail(output, &kept));
        Ok(Self { name, child, tail, reader, status: None, is_sigterm_sent: false })
    }

    /// The process identifier.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The name that error messages use.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The last lines of standard output and standard error.
    pub fn output_tail(&self) -> String {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// # Errors
    /// [`Error::Process`] when the process has ended, whatever its exit status.
    pub fn check_running(&mut self) -> Result<()> {
        match self.poll()? {
            None => Ok(()),
            Some(status) => Err(self.failure(format!("ended with {status}"))),
        }
    }

    /// Waits until the process ends, and returns the last lines of its output.
    ///
    /// # Errors
    /// [`Error::Process`] when it reports failure or does not end within `limit`;
    /// [`Error::Interrupted`].
    pub fn finish(mut self, limit: Duration, stop: &Stop) -> Result<String> {
        let end = Instant::now() + limit;
        loop {
            match self.poll()? {
                Some(status) if status.success() => return Ok(self.last_output()),
                Some(status) => return Err(self.failure(format!("ended with {status}"))),
                None if Instant::now() >= end => {
                    let how = format!("did not end within {:.1} s", limit.as_secs_f64());
                    return Err(self.failure(how));
                }
                None => stop.sleep(POLL)?,
            }
        }
    }

    /// Ends the process: SIGTERM, and SIGKILL after 3 s. A process that SIGTERM ends after its
    /// cleanup, such as the daemons of Open vSwitch, counts as a success.
    ///
    /// # Errors
    /// [`Error::Process`] when it had to be killed or reported failure.
    pub fn stop(mut self) -> Result<()> {
        let ended_as_requested = |status: &ExitStatus| {
            status.success() || status.signal() == Some(Signal::SIGTERM as i32)
        };
        match self.terminate() {
            Some(status) if ended_as_requested(&status) => Ok(()),
            Some(status) => Err(self.failure(format!("was stopped and ended with {status}"))),
            None => Err(self.failure("did not end after SIGTERM and was killed".into())),
        }
    }

    /// Kills the process at once (SIGKILL) and waits for its end.
    ///
    /// # Errors
    /// The process had ended before.
    pub fn kill(mut self) -> Result<()> {
        self.check_running()?;
        let what = || format!("kill {}", self.name);
        self.child.kill().map_err(|e| Error::io(what())(e))?;
        self.status = Some(self.child.wait().map_err(|e| Error::io(what())(e))?);
        Ok(())
    }

    /// The exit status, once there is one.
    fn poll(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            let what = || format!("wait for {}", self.name);
            self.status = self.child.try_wait().map_err(|e| Error::io(what())(e))?;
        }
        Ok(self.status)
    }

    fn failure(&mut self, how: String) -> Error {
        Error::Process { name: self.name.clone(), how, output: self.last_output() }
    }

    /// The last lines of the output. They are complete once the process has ended.
    fn last_output(&self) -> String {
        // The pipe may still hold output. It ends with the process, unless a grandchild keeps the
        // pipe open, so the wait is bounded.
        let patience = Instant::now() + Duration::from_millis(300);
        while self.status.is_some() && !self.reader.is_finished() && Instant::now() < patience {
            std::thread::sleep(POLL);
        }
        self.output_tail()
    }

    /// Sends SIGTERM once and does not wait. Call [`Process::stop`] afterwards.
    pub(crate) fn end_soon(&mut self) {
        // Until a child is reaped, its process identifier is not reused.
        if let (false, Ok(None), Ok(pid)) =
            (self.is_sigterm_sent, self.poll(), i32::try_from(self.child.id()))
        {
            self.is_sigterm_sent = kill(Pid::from_raw(pid), Signal::SIGTERM).is_ok();
        }
    }

    /// Sends SIGTERM, then SIGKILL, and reaps the process; `None` when SIGKILL was necessary.
    fn terminate(&mut self) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.poll() {
            return Some(status);
        }
        self.end_soon();
        let end = Instant::now() + TERM_GRACE;
        while Instant::now() < end {
            if let Ok(Some(status)) = self.poll() {
                return Some(status);
            }
            std::thread::sleep(POLL);
        }
        let _ = self.child.kill();
        self.status = self.child.wait().ok();
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.terminate();
    }
}

/// Runs a program to its end, as [`Process::finish`] does.
///
/// # Errors
/// As [`Process::spawn`] and [`Process::finish`].
pub fn run(name: &str, command: Command, limit: Duration, stop: &Stop) -> Result<String> {
    Process::spawn(name, command)?.finish(limit, stop)
}

/// Reads `stream` to its end and keeps the last lines. A line longer than the limit is split.
fn keep_tail(stream: impl Read, tail: &Mutex<VecDeque<String>>) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match stream.by_ref().take(TAIL_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn failure_carries_the_output_when_a_process_ends_early() {
        let mut process = Process::spawn("thing", shell("echo one >&2; echo two; exit 3")).unwrap();
        let stop = Stop::new();
        let error = stop
            .wait_for("the end", Duration::from_secs(10), || Ok(process.check_running().err()))
            .unwrap();
        assert_eq!(error.to_string(), "thing ended with exit status: 3:\none\ntwo");
    }

    #[test]
    fn stop_is_clean_when_the_process_obeys_sigterm() {
        let process = Process::spawn(
            "s",
            shell("trap 'exit 0' TERM; echo up >&2; while :; do sleep 0.01; done"),
        )
        .unwrap();
        Stop::new()
            .wait_for("trap set", Duration::from_secs(10), || {
                Ok((process.output_tail() == "up").then_some(()))
            })
            .unwrap();
        process.stop().unwrap();
    }

    #[test]
    fn process_is_gone_when_dropped() {
        let process = Process::spawn("sleep", shell("exec sleep 1000")).unwrap();
        let pid = process.pid();
        drop(process);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn finish_reports_the_deadline_when_a_process_hangs() {
        let result = run("hang", shell("exec sleep 1000"), Duration::from_millis(20), &Stop::new());
        assert_eq!(result.unwrap_err().to_string(), "hang did not end within 0.0 s");
    }

    #[test]
    fn tail_is_bounded_when_the_output_is_long() {
        let tail = Mutex::new(VecDeque::new());
        let text = format!("{}{}\n", "x\n".repeat(100), "y".repeat(2500));
        keep_tail(text.as_bytes(), &tail);
        let tail = tail.into_inner().unwrap();
        assert_eq!(tail.len(), TAIL_LINES);
        assert_eq!(
            tail.iter().rev().map(String::len).take(4).collect::<Vec<_>>(),
            [500, 1000, 1000, 1]
        );
    }
}
