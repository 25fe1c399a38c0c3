//! [`Switch`]: the engine on threads of its own.

use crate::alarm::Call;
use crate::config::Config;
use crate::engine::{Engine, lock};
use datapath::provider::{Datapath, DatapathError};
use pipeline::Program;
use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Packets answered together.
const BATCH: usize = 64;
/// How long an upcall worker waits before it looks whether everything ends.
const UPCALL_WAIT: Duration = Duration::from_millis(100);
/// Revalidations are at least so far apart, however much changes.
const PAUSE: Duration = Duration::from_millis(50);
/// How long the end of the threads is waited for.
const END: Duration = Duration::from_secs(5);

/// A running switch. Everything that its [`Engine`] can be asked, it can be asked.
#[derive(Debug)]
pub struct Switch {
    engine: Arc<Engine>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Switch {
    /// Starts the threads that answer the upcalls of a datapath, and the one that revalidates its megaflows.
    ///
    /// # Errors
    /// A thread cannot be started; none is left then.
    pub fn start(
        datapath: Arc<dyn Datapath>,
        program: Program,
        config: &Config,
    ) -> io::Result<Self> {
        let engine = Arc::new(Engine::new(datapath, program, config));
        let switch = Self { engine: Arc::clone(&engine), threads: Mutex::default() };
        // On an error, dropping `switch` ends those that run.
        for number in 0..config.limits.upcall_workers.max(1) {
            switch.spawn(format!("upcall-{number}"), answer_upcalls)?;
        }
        switch.spawn("revalidate".to_owned(), revalidate)?;
        Ok(switch)
    }

    fn spawn(&self, name: String, run: fn(&Engine)) -> io::Result<()> {
        let engine = Arc::clone(&self.engine);
        let thread = std::thread::Builder::new().name(name).spawn(move || run(&engine))?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// True when a thread has ended: the datapath has, or something is wrong.
    pub fn has_ended(&self) -> bool {
        lock(&self.threads).iter().any(JoinHandle::is_finished)
    }

    /// Ends the threads and waits for them, a few seconds at most. The datapath goes on with what it has.
    pub fn stop(&self) {
        self.engine.alarm.stop();
        let end = Instant::now() + END;
        for thread in lock(&self.threads).drain(..) {
            while !thread.is_finished() && Instant::now() < end {
                sleep(Duration::from_millis(1));
            }
            if !thread.is_finished() {
                tracing::warn!("a thread of the switch does not end");
            } else if thread.join().is_err() {
                tracing::error!("a thread of the switch has panicked");
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

fn answer_upcalls(engine: &Engine) {
    let mut upcalls = Vec::with_capacity(BATCH);
    while engine.datapath.upcalls(BATCH, UPCALL_WAIT, &mut upcalls) && !engine.alarm.is_stopped() {
        if !upcalls.is_empty() && goes_on(engine.handle(&mut upcalls, Instant::now())).is_none() {
            break;
        }
    }
}

fn revalidate(engine: &Engine) {
    let mut due = Instant::now() + engine.limits.revalidate;
    let mut earliest = Instant::now();
    loop {
        let done = match engine.alarm.wait(due, earliest) {
            Call::Stop => return,
            Call::Changed => engine.revalidate(),
            Call::Due => {
                due = Instant::now() + engine.limits.revalidate;
                engine.sweep(Instant::now())
            }
        };
        if goes_on(done).is_none() {
            return;
        }
        earliest = Instant::now() + PAUSE;
    }
}

/// `None` once the datapath has ended.
fn goes_on(result: Result<(), DatapathError>) -> Option<()> {
    match result {
        Ok(()) => Some(()),
        Err(DatapathError::Stopped) => None,
        Err(error) => {
            tracing::warn!("{error}");
            Some(())
        }
    }
}
