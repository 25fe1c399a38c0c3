//! Runs other programs: prints each command, and reports its failure in one line.

use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A program that ended with a failure.
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

/// A cargo command, which uses the same cargo that built xtask.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// Prints `command`, runs it to its end, and fails if it fails.
pub fn run(command: &mut Command) -> Result<()> {
    show(command);
    let status = command.status().with_context(|| format!("cannot start {}", name(command)))?;
    succeeded(command, status)
}

/// A program that runs in the background. Its output is kept until it has ended.
#[derive(Debug)]
pub struct Background {
    command: Command,
    child: Child,
    /// The output of the program, and how long it ran.
    printed: JoinHandle<std::io::Result<(Vec<u8>, Duration)>>,
}

impl Background {
    /// Starts `command`.
    pub fn start(mut command: Command) -> Result<Self> {
        let (mut reader, writer) = std::io::pipe().context("a pipe")?;
        command.stdout(writer.try_clone().context("a pipe")?).stderr(writer);
        let start = Instant::now();
        let child = command.spawn().with_context(|| format!("cannot start {}", name(&command)))?;
        // `command` still holds the writing end. The pipe ends only when all copies of that end are
        // closed.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let printed = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes)?;
            Ok((bytes, start.elapsed()))
        });
        Ok(Self { command, child, printed })
    }

    /// Waits for the end of the program. Returns its output and how long it ran. Fails if the
    /// program failed.
    pub fn finish(mut self) -> (String, Duration, Result<()>) {
        let status = self.child.wait();
        let printed = self.printed.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let text = |bytes: &[u8], time: Duration| {
            let command = typed(&self.command);
            format!("{command}{}({:.0} s)\n", String::from_utf8_lossy(bytes), time.as_secs_f64())
        };
        match (status, printed) {
            (Ok(status), Ok((bytes, time))) => {
                (text(&bytes, time), time, succeeded(&self.command, status))
            }
            (Err(error), _) | (_, Err(error)) => {
                let failed = format!("cannot wait for {}", name(&self.command));
                (String::new(), Duration::ZERO, Err(error).context(failed))
            }
        }
    }
}

/// Prints `command` in a form that can be typed.
pub fn show(command: &Command) {
    eprint!("{}", typed(command));
}

/// The line that can be typed to run `command`.
fn typed(command: &Command) -> String {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    format!("$ {} {}\n", name(command), words.join(" "))
}

/// Returns [`Failed`] if `status` is not a success.
pub fn succeeded(command: &Command, status: ExitStatus) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    let task = command.get_args().next().map(|word| format!(" {}", word.to_string_lossy()));
    Err(Failed { program: name(command) + &task.unwrap_or_default(), status }.into())
}

/// The exit code for `error`. The exit code 2 of a program means that the host lacks a requirement,
/// so it is passed on. All other errors give 1.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref::<Failed>().and_then(|failed| failed.status.code()) {
        Some(2) => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

/// The directory in which cargo writes its output.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

/// Variables that add compiler flags. A task that sets its own flags must not inherit them.
pub const COMPILER_FLAGS: [&str; 2] = ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"];

fn name(command: &Command) -> String {
    let program: OsString = command.get_program().into();
    PathBuf::from(program).file_name().unwrap_or_default().to_string_lossy().into_owned()
}
