//! Log messages on standard error. A separate thread writes them. If the reader of standard error
//! stops reading, forwarding, signals and the exit do not block.

mod format;
mod limit;

pub use format::LogFormat;

use crate::log_queue::LogQueue;
use anyhow::{Context, Result};
use format::{Fields, LineFormat};
use limit::Limiter;
use messages::tracing::{Event, Subscriber};
use messages::{FAILED, LOG_LIMITED, Message, PANICKED};
use netdev::sandbox::Sandbox;
use std::backtrace::Backtrace;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context as LayerContext, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// How long the process waits for standard error when it exits.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

static QUEUE: LogQueue = LogQueue::new();
static IS_STARTED: AtomicBool = AtomicBool::new(false);
static FORMAT: OnceLock<LineFormat> = OnceLock::new();
static LIMITER: Mutex<Limiter> = Mutex::new(Limiter::new());

/// Logs the messages that `filter` selects. Panics are logged as well.
///
/// # Errors
/// The thread that writes cannot be started.
pub fn init(filter: Targets, format: LogFormat) -> Result<()> {
    let _ = FORMAT.set(format.resolve());
    let (ready, is_ready) = sync_channel(1);
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || write_lines(&ready))
        .context("cannot start the thread that writes the log")?;
    // Waits until the thread has dropped its privileges. It cannot do that once the daemon filters
    // system calls.
    let _ = is_ready.recv();
    IS_STARTED.store(true, Ordering::Relaxed);
    tracing_subscriber::registry().with(Lines).with(filter).init();
    std::panic::set_hook(Box::new(|panic| {
        let text = format!("{panic}\n{}", Backtrace::capture());
        push(&PANICKED, &Fields::of_text(&text));
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

/// Writes the last message of a command. Uses the log if it is started, so that the process exits
/// even if nobody reads standard error.
pub fn print_last(message: &str) {
    if IS_STARTED.load(Ordering::Relaxed) {
        push(&FAILED, &Fields::of_text(message));
    } else {
        eprintln!("{message}");
    }
}

/// Waits until all messages are written, for at most a second. Call it before the process exits.
pub fn flush() {
    if IS_STARTED.load(Ordering::Relaxed) {
        report_left_out(None);
    }
    QUEUE.flush(EXIT_LIMIT);
}

/// The number of messages that could not be written to standard error.
pub fn not_written() -> u64 {
    QUEUE.not_written()
}

/// The number of messages that were left out because of their kind's rate limit.
pub fn limited() -> u64 {
    LIMITER.lock().unwrap_or_else(PoisonError::into_inner).total_left_out()
}

fn write_lines(ready: &SyncSender<()>) {
    // This thread starts before the daemon blocks its signals and drops its privileges, so it does
    // both itself. If that fails, it keeps the default signal actions and its privileges.
    let _ = netdev::signal::block_in_this_thread();
    let _ = Sandbox::default().enter_thread();
    let _ = ready.send(());
    let mut out = io::stderr();
    loop {
        QUEUE.write_next(&mut out, |lost| {
            messages::log!(
                LOG_LOST,
                "{lost} log messages are lost: standard error was not read in time"
            );
        });
    }
}

fn push(message: &Message, fields: &Fields) {
    let format = FORMAT.get().copied().unwrap_or_default();
    QUEUE.push(format.line(SystemTime::now(), message, fields).as_bytes());
}

/// Logs how many messages the rate limit suppressed: in intervals that have ended at `now`, or in
/// all.
fn report_left_out(now: Option<Instant>) {
    let left_out = LIMITER.lock().unwrap_or_else(PoisonError::into_inner).take_left_out(now);
    for (id, count) in left_out {
        let text = format!("left out {count} messages of one kind");
        push(&LOG_LIMITED, &Fields::of_text(&text).with("of", id));
    }
}

/// A tracing layer that pushes a line for each event to the queue.
struct Lines;

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: LayerContext<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let known = messages::ALL.iter().find(|message| message.id == fields.id);
        // Only libraries log without an identifier.
        let message = known.copied().unwrap_or(Message {
            id: "library",
            level: *event.metadata().level(),
            meaning: "",
            action: "",
        });
        let now = Instant::now();
        report_left_out(Some(now));
        if LIMITER.lock().unwrap_or_else(PoisonError::into_inner).admit(message.id, now) {
            push(&message, &fields);
        }
    }
}
