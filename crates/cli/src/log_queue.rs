//! [`LogQueue`]: the queue of log lines that wait to be written to standard error.
//!
//! Standard error may be a pipe that nobody reads, or a file on a hung file system. A thread that
//! writes to it can block for ever. Threads that forward packets or handle signals must not block,
//! so they push lines to this queue, and one thread writes them. The queue is bounded: a line that
//! does not fit is counted, and the count is reported once there is room again.

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The maximum size of the queue. The writer can hold the same number of bytes in addition.
const MAX_QUEUE_BYTES: usize = 256 << 10;
/// Pause before the next attempt when standard error is non-blocking and full.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// A bounded queue of lines with one writer.
pub struct LogQueue {
    state: Mutex<QueuedLines>,
    changed: Condvar,
}

struct QueuedLines {
    lines: VecDeque<Vec<u8>>,
    /// The length of all `lines`.
    bytes: usize,
    /// The writer has taken lines from the queue and has not written all of them yet.
    is_writing: bool,
    /// Lines that did not fit.
    refused: u64,
    /// The value of `refused` at the last report.
    reported: u64,
    /// Lines that could not be written.
    failed: u64,
}

impl LogQueue {
    pub const fn new() -> Self {
        Self {
            state: Mutex::new(QueuedLines {
                lines: VecDeque::new(),
                bytes: 0,
                is_writing: false,
                refused: 0,
                reported: 0,
                failed: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// Adds a line, or counts it when the queue is full. Never waits for the writer.
    pub fn push(&self, line: &[u8]) {
        let mut state = self.state();
        if state.bytes + line.len() > MAX_QUEUE_BYTES {
            state.refused += 1;
            return;
        }
        state.bytes += line.len();
        state.lines.push_back(line.to_vec());
        drop(state);
        self.changed.notify_all();
    }

    /// The number of lines that were not written: those that did not fit, and those that the
    /// writer failed to write.
    pub fn not_written(&self) -> u64 {
        let state = self.state();
        state.refused + state.failed
    }

    /// Waits until all lines are written, for at most `limit`. Returns true if they are written.
    pub fn flush(&self, limit: Duration) -> bool {
        let is_busy = |state: &mut QueuedLines| state.is_writing || !state.lines.is_empty();
        let waited = self.changed.wait_timeout_while(self.state(), limit, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Waits for lines and writes them to `out`. When the queue is empty after lines were refused,
    /// passes `report` the number of lines refused since the last report. It may push a line about
    /// them.
    pub fn write_next(&self, out: &mut impl Write, report: impl FnOnce(u64)) {
        let is_idle = |state: &mut QueuedLines| state.lines.is_empty();
        let waited = self.changed.wait_while(self.state(), is_idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let lines = std::mem::take(&mut state.lines);
        (state.bytes, state.is_writing) = (0, true);
        drop(state);
        let failed = lines.iter().filter(|line| !write_line(out, line)).count();
        let mut state = self.state();
        state.failed += failed as u64;
        let refused = state.refused - state.reported;
        if state.lines.is_empty() && refused > 0 {
            state.reported = state.refused;
            drop(state);
            report(refused);
            state = self.state();
        }
        state.is_writing = false;
        drop(state);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, QueuedLines> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes all of `line`, without a time limit. False if it cannot be written.
fn write_line(out: &mut impl Write, mut line: &[u8]) -> bool {
    while !line.is_empty() {
        match out.write(line) {
            Ok(0) => return false,
            Ok(written) => line = line.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Another process may have made the terminal or pipe non-blocking.
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY_PAUSE),
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

    /// A writer that sends every line to a channel, then blocks until the reader has taken it.
    struct Slow(Sender<String>, Receiver<()>);

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.send(String::from_utf8_lossy(line).into_owned()).map_err(io::Error::other)?;
            self.1.recv().map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn push_and_flush_return_when_the_output_is_blocked_and_lost_lines_are_reported() {
        static QUEUE: LogQueue = LogQueue::new();
        let (lines, written) = channel();
        let (go, gate) = channel();
        std::thread::spawn(move || {
            let mut out = Slow(lines, gate);
            loop {
                QUEUE.write_next(&mut out, |lost| QUEUE.push(format!("{lost} lost").as_bytes()));
            }
        });
        let wait = Duration::from_secs(10);
        QUEUE.push(b"first");
        assert_eq!(written.recv_timeout(wait).as_deref(), Ok("first"), "and it blocks");
        let line = [b'x'; 1024];
        for _ in 0..300 {
            QUEUE.push(&line);
        }
        assert_eq!(QUEUE.not_written(), 300 - 256);
        let started = Instant::now();
        assert!(!QUEUE.flush(Duration::from_millis(100)));
        assert!(started.elapsed() < wait);
        // The reader reads again.
        (0..300).for_each(|_| go.send(()).unwrap());
        let rest: Vec<_> = (0..257).map(|_| written.recv_timeout(wait).unwrap()).collect();
        assert_eq!(rest.last().map(String::as_str), Some("44 lost"));
        assert!(QUEUE.flush(wait), "everything is written");
        assert_eq!(QUEUE.not_written(), 44);
    }

    #[test]
    fn lines_are_counted_when_the_output_is_closed() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(ErrorKind::BrokenPipe.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let queue = LogQueue::new();
        queue.push(b"a");
        queue.push(b"b");
        queue.write_next(&mut Closed, |_| panic!("none were refused"));
        assert_eq!(queue.not_written(), 2);
        assert!(queue.flush(Duration::ZERO));
    }

    #[test]
    fn lines_are_complete_when_the_output_takes_them_in_parts() {
        /// A writer that accepts one byte at each second call, and would block at the other calls.
        struct Narrow(Vec<u8>, bool);
        impl Write for Narrow {
            fn write(&mut self, line: &[u8]) -> io::Result<usize> {
                self.1 = !self.1;
                if self.1 {
                    return Err(ErrorKind::WouldBlock.into());
                }
                self.0.push(line[0]);
                Ok(1)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (queue, mut out) = (LogQueue::new(), Narrow(Vec::new(), false));
        queue.push(b"ab\n");
        queue.write_next(&mut out, |_| {});
        assert_eq!((out.0.as_slice(), queue.not_written()), (&b"ab\n"[..], 0));
    }
}
