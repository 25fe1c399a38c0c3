//! [`Switch`]: an [`Engine`], the threads that answer upcalls with it, and its revalidator thread.

use crate::config::Config;
use crate::engine::{Engine, lock};
use crate::revalidate_signal::WakeReason;
use datapath::provider::{Datapath, DatapathError};
use pipeline::Program;
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

/// The most upcalls answered together.
const BATCH: usize = 64;
/// How long a thread waits for upcalls before it checks whether the switch is stopping.
const UPCALL_WAIT: Duration = Duration::from_millis(100);
/// After a revalidation, the thread pauses for four times as long as it took, within these bounds.
/// So continuous changes cost about a fifth of a processor while a revalidation takes at most
/// 12.5 ms, and a single change does not wait long.
const PAUSE_BOUNDS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// How long a stop waits for the threads to end.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// A running switch. It dereferences to its [`Engine`].
#[derive(Debug)]
pub struct Switch {
    engine: Arc<Engine>,
    threads: Mutex<Vec<(JoinHandle<()>, Arc<TurnStart>)>>,
}

/// When a thread began its current turn, the current iteration of its loop: `at_ms` milliseconds
/// after `epoch`.
#[derive(Debug)]
struct TurnStart {
    epoch: Instant,
    at_ms: AtomicU64,
}

impl TurnStart {
    fn new() -> Self {
        Self { epoch: Instant::now(), at_ms: AtomicU64::new(0) }
    }

    fn since_epoch(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn note(&self) {
        self.at_ms.store(self.since_epoch().as_millis() as u64, Ordering::Relaxed);
    }

    fn elapsed(&self) -> Duration {
        let begun = Duration::from_millis(self.at_ms.load(Ordering::Relaxed));
        self.since_epoch().saturating_sub(begun)
    }
}

impl Switch {
    /// Starts the threads that answer a datapath's upcalls, and the thread that revalidates its
    /// megaflows.
    ///
    /// # Errors
    /// A thread cannot be started. Those already started are stopped.
    pub fn start(
        datapath: Arc<dyn Datapath>,
        program: Program,
        config: &Config,
    ) -> io::Result<Self> {
        let engine = Arc::new(Engine::new(datapath, program, config));
        let switch = Self { engine: Arc::clone(&engine), threads: Mutex::default() };
        // On an error, dropping `switch` stops the threads already started.
        for number in 0..config.limits.upcall_workers.max(1) {
            switch.spawn(format!("upcall-{number}"), answer_upcalls)?;
        }
        switch.spawn("revalidate".to_owned(), revalidate)?;
        Ok(switch)
    }

    fn spawn(&self, name: String, run: fn(&Engine, &TurnStart)) -> io::Result<()> {
        let engine = Arc::clone(&self.engine);
        let start = Arc::new(TurnStart::new());
        let turn = Arc::clone(&start);
        let thread = std::thread::Builder::new().name(name).spawn(move || run(&engine, &turn))?;
        lock(&self.threads).push((thread, start));
        Ok(())
    }

    /// How long the slowest thread has been in the current iteration of its loop. Without work, an
    /// iteration takes up to [`Limits::revalidate`](crate::Limits::revalidate). A thread that hangs
    /// never ends it.
    pub fn longest_turn(&self) -> Duration {
        lock(&self.threads).iter().map(|(_, turn)| turn.elapsed()).max().unwrap_or_default()
    }

    /// True if a thread has ended, because the datapath has stopped or the thread has panicked.
    pub fn has_ended(&self) -> bool {
        lock(&self.threads).iter().any(|(thread, _)| thread.is_finished())
    }

    /// Stops the threads and waits up to a few seconds for them. The datapath continues to forward
    /// with its megaflows.
    pub fn stop(&self) {
        self.engine.revalidate_signal.stop();
        let end = Instant::now() + STOP_LIMIT;
        for (thread, _) in lock(&self.threads).drain(..) {
            while !thread.is_finished() && Instant::now() < end {
                sleep(Duration::from_millis(1));
            }
            if !thread.is_finished() {
                messages::log!(
                    SWITCH_THREAD_LATE,
                    "a thread of the switch did not stop within {STOP_LIMIT:?}"
                );
            } else if thread.join().is_err() {
                messages::log!(SWITCH_THREAD_PANICKED, "a thread of the switch has panicked");
            }
        }
    }
}

impl Deref for Switch {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop();
    }
}

fn answer_upcalls(engine: &Engine, turn: &TurnStart) {
    let mut upcalls = Vec::with_capacity(BATCH);
    while engine.datapath.upcalls(BATCH, UPCALL_WAIT, &mut upcalls)
        && !engine.revalidate_signal.is_stopped()
    {
        turn.note();
        if !upcalls.is_empty() && log_error(engine.handle(&mut upcalls, Instant::now())).is_none() {
            break;
        }
    }
}

fn revalidate(engine: &Engine, turn: &TurnStart) {
    let mut due = Instant::now() + engine.limits.revalidate;
    let mut earliest = Instant::now();
    loop {
        turn.note();
        let reason = engine.revalidate_signal.wait(due, earliest);
        let begin = Instant::now();
        let done = match reason {
            WakeReason::Stop => return,
            WakeReason::Changed => engine.revalidate(),
            WakeReason::ConnectionChanged => engine.end_outdated_fusions(),
            WakeReason::Due => {
                due = begin + engine.limits.revalidate;
                engine.sweep(begin)
            }
        };
        if log_error(done).is_none() {
            return;
        }
        earliest = Instant::now() + (begin.elapsed() * 4).clamp(PAUSE_BOUNDS.0, PAUSE_BOUNDS.1);
    }
}

/// Logs an error. `None` if the datapath has stopped.
fn log_error(result: Result<(), DatapathError>) -> Option<()> {
    match result {
        Ok(()) => Some(()),
        Err(DatapathError::Stopped) => None,
        Err(error) => {
            messages::log!(REVALIDATION_FAILED, "{error}");
            Some(())
        }
    }
}
