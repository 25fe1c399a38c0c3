//! The server: it responds to requests, counts received data, and sends data when the client
//! requests it.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use netdev::cpu::{CpuTimes, ticks_per_second};
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use nix::sys::time::TimeVal;

use super::instance::{self, InstanceState, STACK_BYTES, WAIT};
use super::pattern::{MAX_CONNECTIONS, Pattern};
use super::placement::Placement;
use super::protocol::{self, Request};
use crate::{Error, Result};

/// The default TCP port of `weft bench serve`.
pub const DEFAULT_PORT: u16 = 7070;
/// The largest number of connections: those of a load, those of an earlier load that is ending, and
/// those of counter requests.
const LIMIT: usize = 2 * MAX_CONNECTIONS + 20;
/// The receive buffer of datagrams, in bytes.
const QUEUE_BYTES: usize = 16 << 20;
/// Seconds without data before a TCP keepalive probe. The third lost probe ends the connection.
const KEEPALIVE_SECONDS: u32 = 10;

/// A server on one address. Dropping it ends it with all its connections.
#[derive(Debug)]
pub struct Server {
    shared: Arc<InstanceState>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` in the network namespace of the calling thread. Port 0 lets the kernel
    /// choose. All threads use `placement`.
    ///
    /// # Errors
    /// The port is in use, or the address does not belong to this host.
    pub fn start(address: SocketAddr, placement: Placement) -> Result<Self> {
        let failed = |e| Error::io(format!("listen on {address}"))(e);
        let listener = TcpListener::bind(address).map_err(failed)?;
        setsockopt(&listener, sockopt::ReceiveTimeout, &TimeVal::new(0, WAIT.as_micros() as _))
            .map_err(|e| failed(e.into()))?;
        placement.choose_congestion_control(&listener).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(InstanceState::default());
        let accepting = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("serve".into())
            .stack_size(STACK_BYTES)
            .spawn(move || accept(&listener, &accepting, placement))
            .map_err(Error::io("start a traffic thread"))?;
        Ok(Self { shared, address, thread: Some(thread) })
    }

    /// The address and port on which it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Signals all connections to end, without waiting for their end.
    pub fn end_soon(&self) {
        self.shared.done.store(true, Ordering::Relaxed);
    }

    /// Payload bytes and datagrams received.
    pub fn received(&self) -> (u64, u64) {
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        (of(&self.shared.received_bytes), of(&self.shared.received_messages))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end_soon();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<InstanceState>, placement: Placement) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while !shared.is_done() {
        match listener.accept() {
            Ok((stream, client)) => {
                threads.retain(|thread| !thread.is_finished());
                if threads.len() >= LIMIT {
                    refuse(&stream, client, &format!("{LIMIT} connections are open"));
                    continue;
                }
                let stream = Arc::new(stream);
                let (shared, served) = (Arc::clone(shared), Arc::clone(&stream));
                let work = move || {
                    if let Err(error) = placement.pin().and_then(|()| serve(&served, &shared)) {
                        tracing::debug!(%client, %error, "an instance has ended");
                    }
                };
                let builder = std::thread::Builder::new().name("serve".into());
                match builder.stack_size(STACK_BYTES).spawn(work) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => refuse(&stream, client, &format!("no more threads: {error}")),
                }
            }
            Err(error) if instance::is_timeout(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                std::thread::sleep(WAIT);
            }
        }
    }
    for thread in threads {
        let _ = thread.join();
    }
}

fn refuse(stream: &TcpStream, client: SocketAddr, why: &str) {
    tracing::warn!(%client, "refused: {why}");
    // The line fits into the empty send buffer, so this does not block.
    let _ = protocol::send(stream, &format!("error {why}\n"));
}

/// Serves the client of `stream` until it ends.
fn serve(stream: &TcpStream, shared: &Arc<InstanceState>) -> Result<()> {
    keep_alive(stream)?;
    let request = match protocol::read_line(stream).and_then(|line| Request::parse(&line)) {
        Ok(request) => request,
        Err(error) => {
            let _ = protocol::send(stream, &format!("error {error}\n"));
            return Err(error);
        }
    };
    match request {
        Request::Counters => send_counters(stream, shared),
        Request::Traffic { pattern, size_bytes, rate_bps } => {
            let rate_bps = (rate_bps > 0.0).then_some(rate_bps);
            let served = traffic(stream, pattern, size_bytes, rate_bps, shared);
            served.map_err(Error::io(format!("serve {pattern}")))
        }
    }
}

fn traffic(
    stream: &TcpStream,
    pattern: Pattern,
    size: usize,
    rate_bps: Option<f64>,
    shared: &Arc<InstanceState>,
) -> std::io::Result<()> {
    let ok =
        |port: u16| protocol::send(stream, &format!("ok {port}\n")).map_err(std::io::Error::other);
    let go = || wait_for_go(stream, shared);
    let address = || stream.local_addr().map(|at| SocketAddr::new(at.ip(), 0));
    match pattern {
        Pattern::TcpStream => {
            ok(0)?;
            instance::read_stream(stream, shared, go)
        }
        Pattern::TcpReverse => {
            ok(0)?;
            instance::write_stream(stream, size, rate_bps, shared, go)
        }
        Pattern::TcpBidirectional => {
            let writer = stream.try_clone()?;
            let writing = Arc::clone(shared);
            let (start, started) = std::sync::mpsc::channel();
            let write = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
                let go = || started.recv().map_err(std::io::Error::other);
                // Errors are ignored: if the peer closes the connection, the reading thread reports
                // it.
                let _ = instance::write_stream(&writer, size, rate_bps, &writing, go);
            })?;
            let go = || go().and_then(|()| start.send(()).map_err(std::io::Error::other));
            let read = ok(0).and_then(|()| instance::read_stream(stream, shared, go));
            // A writer that has not started ends when the channel closes.
            drop(start);
            let _ = stream.shutdown(std::net::Shutdown::Both);
            let _ = write.join();
            read
        }
        Pattern::TcpRr => {
            ok(0)?;
            instance::answer(stream, size, shared, go)
        }
        Pattern::TcpCrr => {
            let listener = TcpListener::bind(address()?)?;
            ok(listener.local_addr()?.port())?;
            go()?;
            instance::answer_connections(&listener, size, shared, || is_there(stream))
        }
        Pattern::UdpRr => {
            let socket = UdpSocket::bind(address()?)?;
            ok(socket.local_addr()?.port())?;
            go()?;
            instance::answer_datagrams(&socket, size, shared, || is_there(stream))
        }
        Pattern::UdpStream => {
            let socket = UdpSocket::bind(address()?)?;
            // Errors are ignored: without the capability, the default buffer size is used.
            let _ = setsockopt(&socket, sockopt::RcvBufForce, &QUEUE_BYTES);
            ok(socket.local_addr()?.port())?;
            go()?;
            instance::count_datagrams(&socket, size, shared, || is_there(stream))
        }
    }
}

/// Waits for the line `go`, which the client sends when all of its connections are established.
fn wait_for_go(stream: &TcpStream, shared: &InstanceState) -> std::io::Result<()> {
    stream.set_read_timeout(Some(WAIT))?;
    let mut line = [0; protocol::GO.len()];
    let is_go =
        instance::read_message(stream, &mut line, shared)? && line == *protocol::GO.as_bytes();
    is_go.then_some(()).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

/// Responds to each line with the received bytes and datagrams, and with busy and total processor
/// seconds.
fn send_counters(stream: &TcpStream, shared: &InstanceState) -> Result<()> {
    protocol::send(stream, "ok 0\n")?;
    while !shared.is_done() && is_there(stream) {
        if !has_more(stream) {
            std::thread::sleep(WAIT / 10);
            continue;
        }
        protocol::read_line(stream)?;
        let (bytes, messages) = (
            shared.received_bytes.load(Ordering::Relaxed),
            shared.received_messages.load(Ordering::Relaxed),
        );
        let cpu = CpuTimes::now()?;
        let seconds = |ticks: u64| ticks as f64 / ticks_per_second() as f64;
        let (busy, total) = (seconds(cpu.busy()), seconds(cpu.total()));
        protocol::send(stream, &format!("{bytes} {messages} {busy} {total}\n"))?;
    }
    Ok(())
}

/// Enables TCP keepalive, which detects that the host of a silent client is gone.
fn keep_alive(stream: &TcpStream) -> Result<()> {
    let set = || {
        setsockopt(stream, sockopt::KeepAlive, &true)?;
        setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE_SECONDS)?;
        setsockopt(stream, sockopt::TcpKeepInterval, &KEEPALIVE_SECONDS)?;
        setsockopt(stream, sockopt::TcpKeepCount, &3)
    };
    set().map_err(Error::io("ask for keepalive"))
}

/// Checks for unread bytes of the peer, without reading them; 0 means the end of the stream.
fn pending(stream: &TcpStream) -> Result<usize, nix::errno::Errno> {
    let mut byte = [0];
    recv(stream.as_raw_fd(), &mut byte, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT)
}

/// False after the client has closed the connection, or when its host does not respond to
/// keepalives.
fn is_there(stream: &TcpStream) -> bool {
    matches!(pending(stream), Ok(1..) | Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR))
}

fn has_more(stream: &TcpStream) -> bool {
    matches!(pending(stream), Ok(1..))
}
