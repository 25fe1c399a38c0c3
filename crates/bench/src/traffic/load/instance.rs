//! The thread of one instance (one connection of a load), on the client or the server. Every wait
//! ends within [`WAIT`], to check whether the run is over.
//!
//! Buffers are allocated and written before `start` lets the instance begin. If hundreds of threads
//! had page faults at once on few processors, they would delay each other for minutes.

use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, recvmmsg, setsockopt, sockopt};
use nix::sys::time::TimeVal;

use super::histogram::Histogram;
use super::placement::Placement;

/// How long a thread blocks before it checks whether the run is over.
pub(super) const WAIT: Duration = Duration::from_millis(20);
/// How long a response over TCP may take, including retransmissions.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long a response over UDP may take before it counts as lost.
const DATAGRAM_LIMIT: Duration = Duration::from_millis(200);
/// The stack of a thread, in bytes. There may be many threads, and buffers are on the heap.
pub(super) const STACK_BYTES: usize = 256 << 10;
/// Bytes of one read: more than what usually arrives before a wake-up.
const READ_LEN: usize = 128 << 10;
/// Datagrams received with one system call.
const BATCH: usize = 32;
/// The longest delay for which a sender catches up.
const CATCH_UP: Duration = Duration::from_millis(20);

/// The state shared by all threads of a client or of a server.
#[derive(Debug, Default)]
pub(super) struct InstanceState {
    pub(super) done: AtomicBool,
    pub(super) measuring: AtomicBool,
    pub(super) received_bytes: AtomicU64,
    pub(super) received_messages: AtomicU64,
    pub(super) transactions: AtomicU64,
    pub(super) lost: AtomicU64,
    failure: Mutex<Option<String>>,
    go: Mutex<bool>,
    gone: Condvar,
}

impl InstanceState {
    /// Wakes the threads that wait in [`InstanceState::wait_for_go`].
    pub(super) fn go(&self) {
        *self.go.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.gone.notify_all();
    }

    /// Waits for [`InstanceState::go`].
    pub(super) fn wait_for_go(&self) {
        let go = self.go.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.gone.wait_while(go, |go| !*go));
    }

    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// Records the first failure of an instance, unless the run is over.
    pub(super) fn fail(&self, what: &str, error: &io::Error) {
        if !self.is_done() {
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert_with(|| format!("{what}: {error}"));
        }
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn completed(&self, sent_at: Instant, times: &mut Histogram) {
        self.transactions.fetch_add(1, Ordering::Relaxed);
        if self.measuring.load(Ordering::Relaxed) {
            times.add(u64::try_from(sent_at.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
    }
}

/// Limits a sender to its rate. The first messages of many senders are distributed over the
/// interval between two messages, so that they are not sent in one burst.
struct Pacer {
    bytes_per_second: Option<f64>,
    start: Instant,
    sent: f64,
}

impl Pacer {
    /// A pacer for messages of `size` bytes.
    fn new(rate_bps: Option<f64>, size: usize) -> Self {
        // The fractional parts of the multiples of this number are evenly distributed.
        const GOLDEN_RATIO: f64 = 1.618_033_988_749_895;
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let part = (f64::from(COUNT.fetch_add(1, Ordering::Relaxed)) * GOLDEN_RATIO).fract();
        let bytes_per_second = rate_bps.map(|rate| rate / 8.0);
        Self { bytes_per_second, start: Instant::now(), sent: -part * size as f64 }
    }

    /// Sleeps until `bytes` more may be sent, and returns true. Returns false if that takes longer
    /// than [`WAIT`].
    fn admit(&mut self, bytes: usize) -> bool {
        let Some(rate) = self.bytes_per_second else { return true };
        let due = self.start.elapsed().as_secs_f64() * rate;
        self.sent = self.sent.max(due - CATCH_UP.as_secs_f64() * rate - bytes as f64);
        let early = (self.sent + bytes as f64 - due) / rate;
        if early > 0.0 {
            let sleep = Duration::from_secs_f64(early.min(WAIT.as_secs_f64()));
            std::thread::sleep(sleep);
            if sleep >= WAIT {
                return false;
            }
        }
        self.sent += bytes as f64;
        true
    }
}

pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Writes messages of `size` bytes until the run is over.
pub(super) fn write_stream(
    mut stream: &TcpStream,
    size: usize,
    rate_bps: Option<f64>,
    shared: &InstanceState,
    start: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let message = vec![0x5a; size];
    start()?;
    let mut pacer = Pacer::new(rate_bps, size);
    stream.set_write_timeout(Some(WAIT))?;
    while !shared.is_done() {
        if !pacer.admit(size) {
            continue;
        }
        let mut rest = &message[..];
        while !rest.is_empty() && !shared.is_done() {
            match stream.write(rest) {
                Ok(len) => rest = rest.get(len..).unwrap_or_default(),
                Err(e) if is_timeout(&e) => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}

/// Reads until the run is over or the peer closes the connection.
pub(super) fn read_stream(
    mut stream: &TcpStream,
    shared: &InstanceState,
    start: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0x5a; READ_LEN];
    start()?;
    stream.set_read_timeout(Some(WAIT))?;
    while !shared.is_done() {
        match stream.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => shared.received(len),
            Err(e) if is_timeout(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Fills `message` from `stream`; returns false if the run ends first.
pub(super) fn read_message(
    mut stream: &TcpStream,
    message: &mut [u8],
    shared: &InstanceState,
) -> io::Result<bool> {
    let mut filled = 0;
    while filled < message.len() {
        match stream.read(message.get_mut(filled..).unwrap_or_default()) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => filled += len,
            Err(e) if is_timeout(&e) && shared.is_done() => return Ok(false),
            Err(e) if is_timeout(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// Sends every message of `size` bytes back.
pub(super) fn answer(
    mut stream: &TcpStream,
    size: usize,
    shared: &InstanceState,
    start: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let mut message = vec![0x5a; size];
    start()?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(WAIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    while !shared.is_done() && read_message(stream, &mut message, shared)? {
        shared.received(size);
        stream.write_all(&message)?;
    }
    Ok(())
}

/// Sends requests one after the other, and records the time of each transaction.
pub(super) fn ask(
    mut stream: &TcpStream,
    size: usize,
    shared: &InstanceState,
    times: &mut Histogram,
) -> io::Result<()> {
    let mut message = vec![0x5a; size];
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    shared.wait_for_go();
    while !shared.is_done() {
        let sent_at = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        shared.completed(sent_at, times);
    }
    Ok(())
}

/// Accepts connections, responds to one message on each, and closes it, while `alive` returns true.
///
/// The server closes first, so that its side keeps the TIME-WAIT state (RFC 9293 section 3.6.1) and
/// the client does not run out of ports.
pub(super) fn answer_connections(
    listener: &TcpListener,
    size: usize,
    shared: &InstanceState,
    alive: impl Fn() -> bool,
) -> io::Result<()> {
    let mut message = vec![0; size];
    setsockopt(listener, sockopt::ReceiveTimeout, &TimeVal::new(0, WAIT.as_micros() as _))?;
    while !shared.is_done() {
        match listener.accept() {
            Ok((mut stream, _)) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(WAIT))?;
                stream.set_write_timeout(Some(ANSWER_LIMIT))?;
                // Errors of the connection are ignored, because the client reports them.
                if read_message(&stream, &mut message, shared).unwrap_or(false) {
                    shared.received(size);
                    let _ = stream.write_all(&message);
                }
            }
            Err(e) if is_timeout(&e) && alive() => {}
            Err(e) if is_timeout(&e) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Makes transactions one after the other, each on a new connection.
pub(super) fn ask_connecting(
    server: SocketAddr,
    placement: Placement,
    size: usize,
    shared: &InstanceState,
    times: &mut Histogram,
) -> io::Result<()> {
    let mut message = vec![0x5a; size];
    shared.wait_for_go();
    while !shared.is_done() {
        let sent_at = Instant::now();
        let mut stream = placement.connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        if stream.read(&mut [0])? != 0 {
            return Err(ErrorKind::InvalidData.into());
        }
        drop(stream);
        shared.completed(sent_at, times);
    }
    Ok(())
}

/// Sends every datagram back to its sender, while `alive` returns true.
pub(super) fn answer_datagrams(
    socket: &UdpSocket,
    size: usize,
    shared: &InstanceState,
    alive: impl Fn() -> bool,
) -> io::Result<()> {
    let mut message = vec![0; size];
    socket.set_read_timeout(Some(WAIT))?;
    while !shared.is_done() {
        match socket.recv_from(&mut message) {
            Ok((len, from)) => {
                shared.received(len);
                // Errors are ignored: a response that cannot be sent counts as lost.
                let _ = socket.send_to(message.get(..len).unwrap_or_default(), from);
            }
            Err(e) if is_timeout(&e) && alive() => {}
            Err(e) if is_timeout(&e) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Sends numbered requests one after the other. A lost request is not repeated.
pub(super) fn ask_datagrams(
    socket: &UdpSocket,
    size: usize,
    shared: &InstanceState,
    times: &mut Histogram,
) -> io::Result<()> {
    let (mut request, mut response) = (vec![0x5a; size], vec![0; size]);
    socket.set_read_timeout(Some(DATAGRAM_LIMIT))?;
    shared.wait_for_go();
    let mut number = 0_u64;
    while !shared.is_done() {
        number += 1;
        if let Some(place) = request.first_chunk_mut() {
            *place = number.to_be_bytes();
        }
        let sent_at = Instant::now();
        socket.send(&request)?;
        loop {
            match socket.recv(&mut response) {
                // A late response, whose request already counts as lost.
                Ok(_) if response.first_chunk::<8>() != request.first_chunk::<8>() => {}
                Ok(_) => {
                    shared.completed(sent_at, times);
                    break;
                }
                Err(e) if is_timeout(&e) => {
                    shared.lost.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}

/// Counts datagrams of up to `size` bytes, while `alive` returns true.
pub(super) fn count_datagrams(
    socket: &UdpSocket,
    size: usize,
    shared: &InstanceState,
    alive: impl Fn() -> bool,
) -> io::Result<()> {
    socket.set_read_timeout(Some(WAIT))?;
    let mut headers = MultiHeaders::<()>::preallocate(BATCH, None);
    let mut messages = vec![vec![0; size]; BATCH];
    while !shared.is_done() {
        let mut slices: Vec<_> = messages.iter_mut().map(|m| [IoSliceMut::new(m)]).collect();
        let flags = MsgFlags::MSG_WAITFORONE;
        match recvmmsg(socket.as_raw_fd(), &mut headers, &mut slices, flags, None) {
            Ok(received) => {
                let (mut count, mut bytes) = (0, 0);
                for message in received {
                    (count, bytes) = (count + 1, bytes + message.bytes);
                }
                shared.received(bytes);
                shared.received_messages.fetch_add(count, Ordering::Relaxed);
            }
            Err(Errno::EAGAIN) if alive() => {}
            Err(Errno::EAGAIN) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pacer_admits_no_more_than_is_due() {
        let mut pacer = Pacer::new(Some(8e6), 1000);
        let start = Instant::now();
        let mut sent = 0;
        while sent < 100_000 {
            sent += if pacer.admit(1000) { 1000 } else { 0 };
        }
        // At 1 MB/s this takes 100 ms, minus the allowed catch-up.
        assert!(start.elapsed() >= Duration::from_millis(75), "{:?}", start.elapsed());
        assert!(Pacer::new(None, 1).admit(usize::MAX));
    }

    #[test]
    fn messages_are_due_one_after_the_other_when_many_senders_begin_together() {
        let sent = |_| Pacer::new(Some(8e6), 1000).sent;
        let mut due: Vec<f64> = (0..100).map(sent).map(|sent| 1000.0 + sent).collect();
        due.sort_by(f64::total_cmp);
        assert!((0.0..50.0).contains(&due[0]) && (950.0..=1000.0).contains(&due[99]), "{due:?}");
        assert!(due.windows(2).all(|next| next[1] - next[0] < 50.0), "{due:?}");
    }
}
