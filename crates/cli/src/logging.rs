//! Log messages on standard error. A thread of its own writes them, so that a reader of standard
//! error that stops reading never blocks forwarding, signals or the exit.

use crate::log_queue::LogQueue;
use anyhow::{Context, Result};
use netdev::sandbox::Sandbox;
use std::backtrace::Backtrace;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How long the process waits for standard error when it exits.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

static QUEUE: LogQueue = LogQueue::new();
static IS_STARTED: AtomicBool = AtomicBool::new(false);

/// Logs the messages that `filter` selects. Panics are logged as well.
///
/// # Errors
/// The thread that writes cannot be started.
pub fn init(filter: Targets) -> Result<()> {
    let (ready, is_ready) = sync_channel(1);
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || write_lines(&ready))
        .context("cannot start the thread that writes the log")?;
    // After the daemon filters system calls, the thread could not give up its privileges.
    let _ = is_ready.recv();
    IS_STARTED.store(true, Ordering::Relaxed);
    let lines = tracing_subscriber::fmt::layer().with_writer(|| QueueWriter);
    let lines = lines.with_target(false).with_ansi(false);
    tracing_subscriber::registry().with(lines).with(filter).init();
    std::panic::set_hook(Box::new(|panic| {
        QUEUE.push(format!("{panic}\n{}\n", Backtrace::capture()).as_bytes());
        flush();
    }));
    Ok(())
}

/// The filter in `WEFT_LOG`; without one, messages of level `info` and above.
///
/// # Errors
/// The filter is invalid.
pub fn filter() -> Result<Targets> {
    let text = std::env::var("WEFT_LOG").unwrap_or_default();
    if text.is_empty() {
        return Ok(Targets::new().with_default(LevelFilter::INFO));
    }
    text.parse().with_context(|| {
        format!(
            "the environment variable WEFT_LOG has no valid filter, but {text:?}: give a level, \
             such as debug, or levels of crates, such as info,datapath=trace"
        )
    })
}

/// Writes the last message of a command: through the log if there is one, so that the process
/// exits even when nobody reads standard error.
pub fn print_last(message: &str) {
    if IS_STARTED.load(Ordering::Relaxed) {
        QUEUE.push(format!("{message}\n").as_bytes());
    } else {
        eprintln!("{message}");
    }
}

/// Waits until all messages are written, for at most a second. Call it before the process exits.
pub fn flush() {
    QUEUE.flush(EXIT_LIMIT);
}

/// The number of messages that standard error did not take.
pub fn not_written() -> u64 {
    QUEUE.not_written()
}

fn write_lines(ready: &SyncSender<()>) {
    // This thread starts before the daemon takes its signals and gives up its privileges. Failures
    // leave the default action and the privileges.
    let _ = netdev::signal::block_in_this_thread();
    let _ = Sandbox::default().enter_thread();
    let _ = ready.send(());
    let mut out = io::stderr();
    loop {
        QUEUE.write_next(&mut out, |lost| {
            tracing::warn!("{lost} log messages are lost: standard error was not read in time");
        });
    }
}

/// Pushes each message to the queue. The subscriber writes a whole line at once.
struct QueueWriter;

impl Write for QueueWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        QUEUE.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
