//! Running other programs: what is run is shown, and its failure is told in one line.

use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A program that ended, but not well.
#[derive(Debug)]
pub struct Failed {
    program: String,
    status: ExitStatus,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed ({})", self.program, self.status)
    }
}

impl std::error::Error for Failed {}

/// A cargo command; the same cargo that built xtask.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// Shows `command`, runs it to its end, and fails if it does.
pub fn run(command: &mut Command) -> Result<()> {
    show(command);
    let status = command.status().with_context(|| format!("cannot start {}", name(command)))?;
    succeeded(command, status)
}

/// A program that runs beside others. What it prints is kept until it has ended.
#[derive(Debug)]
pub struct Background {
    command: Command,
    child: Child,
    /// What it printed, and how long it ran.
    printed: JoinHandle<std::io::Result<(Vec<u8>, Duration)>>,
}

impl Background {
    /// Starts `command`.
    pub fn start(mut command: Command) -> Result<Self> {
        let (mut reader, writer) = std::io::pipe().context("a pipe")?;
        command.stdout(writer.try_clone().context("a pipe")?).stderr(writer);
        let start = Instant::now();
        let child = command.spawn().with_context(|| format!("cannot start {}", name(&command)))?;
        // The command still holds the writing end, and the pipe ends only when nobody does.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let printed = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes)?;
            Ok((bytes, start.elapsed()))
        });
        Ok(Self { command, child, printed })
    }

    /// Waits for its end. Returns what it printed and how long it ran, and fails if it did.
    pub fn finish(mut self) -> (String, Result<()>) {
        let status = self.child.wait();
        let printed = self.printed.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let text = |bytes: &[u8], time: Duration| {
            let command = typed(&self.command);
            format!("{command}{}({:.0} s)\n", String::from_utf8_lossy(bytes), time.as_secs_f64())
        };
        match (status, printed) {
            (Ok(status), Ok((bytes, time))) => {
                (text(&bytes, time), succeeded(&self.command, status))
            }
            (Err(error), _) | (_, Err(error)) => {
                let failed = format!("cannot wait for {}", name(&self.command));
                (String::new(), Err(error).context(failed))
            }
        }
    }
}

/// Prints `command` as one could type it.
pub fn show(command: &Command) {
    eprint!("{}", typed(command));
}

/// The line in which one could type `command`.
fn typed(command: &Command) -> String {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    format!("$ {} {}\n", name(command), words.join(" "))
}

/// Turns an end other than success into [`Failed`].
pub fn succeeded(command: &Command, status: ExitStatus) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    let task = command.get_args().next().map(|word| format!(" {}", word.to_string_lossy()));
    Err(Failed { program: name(command) + &task.unwrap_or_default(), status }.into())
}

/// The exit code for `error`: 2, which says that something of the host is missing, is handed on;
/// all else is 1.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref::<Failed>().and_then(|failed| failed.status.code()) {
        Some(2) => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

/// The variables that tell cargo how to compile, which a task that sets its own must not inherit.
pub const COMPILER_FLAGS: [&str; 2] = ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"];

fn name(command: &Command) -> String {
    let program: OsString = command.get_program().into();
    PathBuf::from(program).file_name().unwrap_or_default().to_string_lossy().into_owned()
}
