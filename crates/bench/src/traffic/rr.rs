//! Requests and responses over TCP: one byte each way, the next request after the response, on several connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netdev::cpu::pin_current_thread;

use crate::lab::Guest;
use crate::{Error, Result, Stop};

/// How long a connection may take to be established.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a response may take; a lost one comes after a retransmission.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the other side waits before it looks whether the run is over.
const WAIT: Duration = Duration::from_millis(100);
/// Transactions before those that count.
const WARM_UP: Duration = Duration::from_millis(200);

/// What a run of transactions has shown.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Transactions {
    /// All connections together.
    pub per_second: f64,
    /// Half of the transactions took no longer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// Transactions from one guest to another at `address`, on `connections` connections at once, for `duration`.
///
/// # Errors
/// A connection fails or is not answered; [`Error::Interrupted`].
pub fn run(
    (from, to): (&Guest, &Guest),
    address: IpAddr,
    connections: usize,
    duration: Duration,
    stop: &Stop,
) -> Result<Transactions> {
    let failed =
        |e: std::io::Error| Error::io(format!("transactions from {} to {address}", from.name()))(e);
    let listener = to.run(|| TcpListener::bind((address, 0)))?.map_err(failed)?;
    let target = listener.local_addr().map_err(failed)?;
    let done = Arc::new(AtomicBool::new(false));
    let mut answering = Joined { done: Arc::clone(&done), threads: Vec::new() };
    let mut clients = Vec::new();
    for _ in 0..connections {
        let client = from.run(|| TcpStream::connect_timeout(&target, CONNECT_TIMEOUT))?;
        let client = client.map_err(failed)?;
        let (server, _) = listener.accept().map_err(failed)?;
        for stream in [&client, &server] {
            stream.set_nodelay(true).map_err(failed)?;
        }
        client.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
        server.set_read_timeout(Some(WAIT)).map_err(failed)?;
        let (done, cpu) = (Arc::clone(&done), to.cpu());
        let thread =
            std::thread::spawn(move || pin_current_thread(cpu).is_ok() && answer(server, &done));
        answering.threads.push(thread);
        clients.push(client);
    }
    let start = Instant::now() + WARM_UP;
    let asking: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let (stop, cpu) = (stop.clone(), from.cpu());
            std::thread::spawn(move || {
                let _ = pin_current_thread(cpu);
                ask(client, start, start + duration, &stop)
            })
        })
        .collect();
    let mut times_ns = Vec::new();
    let mut result = Ok(());
    for thread in asking {
        match thread.join() {
            Ok(Ok(times)) => times_ns.extend(times),
            Ok(Err(error)) => result = Err(failed(error)),
            Err(_) => result = Err(Error::Traffic("a traffic thread has panicked".into())),
        }
    }
    stop.check()?;
    result?;
    summary(times_ns, duration).ok_or_else(|| Error::Traffic("no transaction was completed".into()))
}

/// Threads that are told to end, and waited for, when this is dropped.
struct Joined {
    done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<bool>>,
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Sends every byte back until the other side or the run ends.
fn answer(mut stream: TcpStream, done: &AtomicBool) -> bool {
    let mut byte = [0];
    while !done.load(Ordering::Relaxed) {
        match stream.read(&mut byte) {
            Ok(1..) if stream.write_all(&byte).is_ok() => {}
            Ok(_) => return true,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Nanoseconds of each transaction between `start` and `end`.
fn ask(
    mut stream: TcpStream,
    start: Instant,
    end: Instant,
    stop: &Stop,
) -> std::io::Result<Vec<u32>> {
    let mut times_ns = Vec::new();
    let mut byte = [0x5a];
    loop {
        let asked = Instant::now();
        if asked >= end || stop.is_raised() {
            return Ok(times_ns);
        }
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        if asked >= start {
            times_ns.push(u32::try_from(asked.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
    }
}

fn summary(mut times_ns: Vec<u32>, duration: Duration) -> Option<Transactions> {
    times_ns.sort_unstable();
    let last = times_ns.len().checked_sub(1)?;
    let at = |part: f64| f64::from(times_ns[(last as f64 * part) as usize]) / 1000.0;
    Some(Transactions {
        per_second: times_ns.len() as f64 / duration.as_secs_f64(),
        p50_us: at(0.5),
        p99_us: at(0.99),
        max_us: at(1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let times = (1..=100).rev().map(|us| us * 1000).collect();
        let summary = summary(times, Duration::from_secs(2)).unwrap();
        let expected = Transactions { per_second: 50.0, p50_us: 50.0, p99_us: 99.0, max_us: 100.0 };
        assert_eq!(summary, expected);
        assert_eq!(super::summary(Vec::new(), Duration::from_secs(1)), None);
    }
}
