//! TCP streams: every connection has a thread that writes and a thread that reads, pinned to the cores of their ends.
//! Bytes count when the receiver has read them into memory.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use netdev::cpu::pin_current_thread;
use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};

use crate::lab::{CONGESTION_CONTROL, Guest};
use crate::{Error, Result, Stop};

/// Bytes of one write: two super-packets.
const WRITE_LEN: usize = 128 * 1024;
/// Bytes of one read: more than what one wake-up usually finds.
const READ_LEN: usize = 256 * 1024;
/// How long a connection may take to be established.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a thread blocks before it looks whether the run is over.
const IO_TIMEOUT: Duration = Duration::from_millis(100);

/// Connections from one guest to another.
#[derive(Clone, Copy, Debug)]
pub struct Route<'a> {
    /// Opens the connections and writes.
    pub from: &'a Guest,
    /// Accepts them and reads.
    pub to: &'a Guest,
    /// Where the receiver listens: an address of `to`.
    pub address: IpAddr,
    /// Number of connections, at least 1.
    pub connections: usize,
}

/// Running streams. Dropping them ends them.
#[derive(Debug)]
pub struct Streams {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads of a run share with its owner.
#[derive(Debug)]
struct Shared {
    done: AtomicBool,
    received: Vec<AtomicU64>,
    failure: Mutex<Option<String>>,
}

impl Streams {
    /// Establishes all connections of all `routes` and starts writing.
    ///
    /// # Errors
    /// A connection that is refused, or not established within 2 s; [`Error::Interrupted`].
    pub fn start(routes: &[Route<'_>], stop: &Stop) -> Result<Self> {
        let total = routes.iter().map(|route| route.connections).sum();
        let shared = Arc::new(Shared {
            done: AtomicBool::new(false),
            received: std::iter::repeat_with(AtomicU64::default).take(total).collect(),
            failure: Mutex::new(None),
        });
        let mut streams = Self { shared, threads: Vec::with_capacity(2 * total) };
        // All connections first: an early stream would keep a later one from being established.
        let mut pairs = Vec::with_capacity(total);
        for route in routes {
            connect(route, stop, |client, server| {
                pairs.push(((client, route.from.cpu()), (server, route.to.cpu())));
            })?;
        }
        for (index, (client, server)) in pairs.into_iter().enumerate() {
            streams.spawn(client, write_until_done)?;
            streams.spawn(server, move |stream, shared| read_until_done(stream, shared, index))?;
        }
        Ok(streams)
    }

    /// Bytes that the receiver of each connection has read so far.
    pub fn received(&self) -> Vec<u64> {
        self.shared.received.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect()
    }

    /// # Errors
    /// [`Error::Traffic`] once a connection has failed or ended.
    pub fn check(&self) -> Result<()> {
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone().map_or(Ok(()), |text| Err(Error::Traffic(text)))
    }

    /// Ends all connections and waits for their threads.
    ///
    /// # Errors
    /// As [`Streams::check`].
    pub fn finish(mut self) -> Result<()> {
        self.end();
        self.check()
    }

    fn end(&mut self) {
        self.shared.done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of the thread has been printed; its connection shows in the byte counts.
            let _ = thread.join();
        }
    }

    /// Starts a thread on `cpu` that works on `stream` until the run is over.
    fn spawn(
        &mut self,
        (stream, cpu): (TcpStream, usize),
        work: impl FnOnce(TcpStream, &Shared) -> std::io::Result<()> + Send + 'static,
    ) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("stream".into()).spawn(move || {
            let result = pin_current_thread(cpu)
                .map_err(|error| error.to_string())
                .and_then(|()| work(stream, &shared).map_err(|error| error.to_string()));
            if let Err(text) = result
                && !shared.is_done()
            {
                let mut failure = shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(format!("a TCP connection failed: {text}"));
            }
        });
        self.threads.push(thread.map_err(Error::io("start a traffic thread"))?);
        Ok(())
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }
}

/// Establishes the connections of `route` and hands out both ends of each. A socket stays in the namespace where it was
/// opened, so everything after this runs in any thread.
fn connect(
    route: &Route<'_>,
    stop: &Stop,
    mut hand_out: impl FnMut(TcpStream, TcpStream),
) -> Result<()> {
    let failed = |e| {
        let (from, to) = (route.from.name(), route.address);
        Error::io(format!("connect from {from} to {to}"))(e)
    };
    let listener = route.to.run(|| TcpListener::bind((route.address, 0)))?.map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address: SocketAddr = listener.local_addr().map_err(failed)?;
    for _ in 0..route.connections {
        stop.check()?;
        let client = route.from.run(|| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT))?;
        let client = client.map_err(failed)?;
        // Before the first byte. As a sysctl it would need a change of the whole machine: in a new namespace only what the
        // machine allows to everybody can be chosen.
        setsockopt(&client, TcpCongestion, &CONGESTION_CONTROL.into())
            .map_err(Error::io(format!("choose {CONGESTION_CONTROL} as congestion control")))?;
        let server =
            stop.wait_for("a TCP connection", CONNECT_TIMEOUT, || match listener.accept() {
                Ok((stream, _)) => Ok(Some(stream)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
                Err(e) => Err(failed(e)),
            })?;
        server.set_nonblocking(false).map_err(failed)?;
        hand_out(client, server);
    }
    Ok(())
}

fn write_until_done(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let buffer = vec![0x5a; WRITE_LEN];
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    while !shared.is_done() {
        match stream.write(&buffer) {
            Ok(_) => {}
            Err(e) if is_timeout(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn read_until_done(mut stream: TcpStream, shared: &Shared, index: usize) -> std::io::Result<()> {
    let mut buffer = vec![0; READ_LEN];
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    while !shared.is_done() {
        match stream.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                shared.received[index].fetch_add(len as u64, Ordering::Relaxed);
            }
            Err(e) if is_timeout(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// TCP segments that the namespace of `guest` has retransmitted since it was made (RetransSegs of RFC 4022).
///
/// # Errors
/// The kernel's statistics cannot be read.
pub fn retransmitted(guest: &Guest) -> Result<u64> {
    // Of the thread, not of the process: it is the thread that is in the namespace.
    let path = "/proc/thread-self/net/snmp";
    let text =
        guest.run(|| std::fs::read_to_string(path))?.map_err(Error::io(format!("read {path}")))?;
    tcp_counter(&text, "RetransSegs")
        .ok_or_else(|| Error::Traffic(format!("{path} has no TCP counter RetransSegs")))
}

/// A counter of the two `Tcp:` lines of `/proc/net/snmp`: names in the first, values in the second.
fn tcp_counter(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut pairs = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
    pairs.find(|(found, _)| *found == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_counter_is_found_by_its_name() {
        let text = "Ip: A B\nIp: 1 2\nTcp: MaxConn RetransSegs\nTcp: -1 42\nUdp: X\nUdp: 9\n";
        assert_eq!(tcp_counter(text, "RetransSegs"), Some(42));
        assert_eq!((tcp_counter(text, "Other"), tcp_counter(text, "MaxConn")), (None, None));
        assert_eq!(tcp_counter("Tcp: RetransSegs\n", "RetransSegs"), None);
    }
}
