//! Traffic between guests: pings, TCP streams and UDP datagrams, with ordinary sockets in their
//! namespaces.

use super::{Guest, PATIENCE};
use bench::Stop;
use bench::traffic::ping::Pinger;
use netdev::Netns;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testkit::host::TestHost;

/// How long a TCP stream or a datagram may make no progress.
const STALL: Duration = Duration::from_secs(40);

/// How long to wait for the first reply. On a busy machine, the kernel detects the carrier of a
/// device late, and adds the route of its IPv6 address only then. Without that route, a guest
/// responds to neighbour solicitations, but not to pings.
const FIRST_REPLY: Duration = Duration::from_secs(60);

/// Sends pings until the first reply.
///
/// # Panics
/// No reply arrives within a minute.
pub fn ping(from: &TestHost, to: IpAddr) {
    ping_within(from, to, FIRST_REPLY)
        .unwrap_or_else(|error| panic!("no answer from {to}: {error}"));
}

/// Sends pings until the first reply, for at most `limit`.
///
/// # Errors
/// No reply arrives.
pub fn ping_within(from: &TestHost, to: IpAddr, limit: Duration) -> bench::Result<()> {
    let deadline = Instant::now() + limit;
    // Without a route, the socket cannot be opened. The kernel adds the route of an IPv6 address
    // only after it has detected the carrier of the device, which takes a while on a busy machine.
    let mut pinger = loop {
        match from.run(|| Pinger::open(to)) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            opened => break opened?,
        }
    };
    pinger.wait_for_answer(deadline.saturating_duration_since(Instant::now()), &Stop::new())
}

/// Pseudo-random bytes that depend only on the seed. They repeat after a prime number of bytes, so
/// the segments of a stream differ. Generating all bytes of a stream in a build without
/// optimization would take longer than sending them.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    static ONE_PERIOD: OnceLock<Vec<u8>> = OnceLock::new();
    let period = ONE_PERIOD.get_or_init(random_period);
    let start = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) % NOISE_PERIOD as u64;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let part = &period[(start as usize + bytes.len()) % NOISE_PERIOD..];
        bytes.extend_from_slice(&part[..part.len().min(len - bytes.len())]);
    }
    bytes
}

/// A prime number of bytes, after which the noise repeats.
const NOISE_PERIOD: usize = 65_521;

/// Pseudo-random bytes (xorshift64).
fn random_period() -> Vec<u8> {
    let mut state = 1_u64;
    let mut bytes = Vec::with_capacity(NOISE_PERIOD + 8);
    while bytes.len() < NOISE_PERIOD {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(NOISE_PERIOD);
    bytes
}

/// Sends broadcast datagrams in the network of the guests until `to` receives one. Without packet
/// loss, the first one is enough.
///
/// # Panics
/// None arrives within [`PATIENCE`].
pub fn broadcast(from: &Guest, to: &Guest) {
    const EVERYBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 168, 7, 255)), 9);
    const TEXT: &[u8] = b"to whom it may concern";
    let listener = to.netns.run(|| UdpSocket::bind(EVERYBODY)).expect("a UDP socket");
    listener.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout can be set");
    let own = from.ip4;
    let socket = from.netns.run(|| UdpSocket::bind((own, 0))).expect("a UDP socket");
    socket.set_broadcast(true).expect("a socket may broadcast");
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        socket.send_to(TEXT, EVERYBODY).expect("a datagram is sent");
        let mut bytes = [0; 64];
        if let Ok((len, sender)) = listener.recv_from(&mut bytes) {
            return assert_eq!((&bytes[..len], sender.ip()), (TEXT, from.ip(4)));
        }
    }
    panic!("{} heard no broadcast of {}", to.name, from.name);
}

/// Sends `len` bytes over TCP and compares all received bytes with them.
///
/// # Panics
/// The stream stalls for 40 s, breaks, or delivers other bytes.
pub fn tcp(from: &Guest, to: &Guest, family: u8, len: usize) {
    let what = format!("{len} bytes over TCP from {} to {}, IPv{family}", from.name, to.name);
    let sent = noise(len, 7);
    let to_ip = to.ip(family);
    let listener = to.netns.run(|| TcpListener::bind((to_ip, 0))).expect("a TCP listener");
    let address = listener.local_addr().expect("a listener has an address");
    let received = std::thread::scope(|scope| {
        let (sent, netns) = (&sent, Netns::clone(&from.netns));
        let send = move || netns.run_in(|| tcp_send(address, sent)).expect("a namespace");
        let sender = scope.spawn(send);
        let received = tcp_receive(&listener, len);
        sender.join().expect("the sender does not panic").expect("all bytes can be sent");
        received
    });
    let received = received.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(received.len(), len, "{what}: the length");
    // Without optimization, finding the first difference takes far longer than comparing all bytes
    // at once.
    if sent != received {
        let place = sent.iter().zip(&received).position(|(a, b)| a != b);
        panic!("{what}: byte {place:?} differs");
    }
}

fn tcp_send(to: SocketAddr, bytes: &[u8]) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, STALL)?;
    stream.set_write_timeout(Some(STALL))?;
    stream.write_all(bytes)?;
    stream.shutdown(Shutdown::Write)
}

/// Accepts a connection and reads it to its end. `len` is the expected number of bytes.
///
/// # Errors
/// The connection stalls for [`STALL`], or breaks.
pub fn tcp_receive(listener: &TcpListener, len: usize) -> std::io::Result<Vec<u8>> {
    // `accept` has no timeout.
    listener.set_nonblocking(true)?;
    let mut accepted = None;
    testkit::host::wait_until(2 * STALL, "a TCP connection arrives", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let Some((mut stream, _)) = accepted else { unreachable!("the wait ends with a connection") };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STALL))?;
    let mut bytes = Vec::with_capacity(len);
    stream.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A TCP server in a guest. It reads each connection to its end. Then it sends a line with the name
/// of the guest and the address of the client, followed by the bytes that it has read. Dropping it
/// stops it.
pub struct EchoServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EchoServer {
    /// Listens on a port of the guest; `family` is the IP version.
    pub fn start(guest: &Guest, family: u8, port: u16) -> Self {
        Self::start_at(guest, SocketAddr::new(guest.ip(family), port))
    }

    /// Listens at an address of the guest.
    pub fn start_at(guest: &Guest, address: SocketAddr) -> Self {
        let mut bound = guest.netns.run(|| TcpListener::bind(address));
        // When another test starts a program at this moment, the child holds a copy of an old
        // listener until it executes the program. So a used port is tried again.
        for _ in 0..100 {
            match &bound {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                _ => break,
            }
            std::thread::sleep(Duration::from_millis(20));
            bound = guest.netns.run(|| TcpListener::bind(address));
        }
        let listener = bound.expect("a TCP listener");
        listener.set_nonblocking(true).expect("a listener can be made non-blocking");
        let (stop, name) = (Arc::new(AtomicBool::new(false)), guest.name.clone());
        let is_stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !is_stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    // Errors are ignored: the client notices a broken connection.
                    Ok((stream, _)) => drop(echo(stream, &name)),
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Errors are ignored: the test's output contains the panic message of the thread.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn echo(mut stream: TcpStream, name: &str) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    stream.write_all(format!("{name} {}\n", stream.peer_addr()?.ip()).as_bytes())?;
    stream.write_all(&bytes)
}

/// The line that an [`EchoServer`] sends.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Answer {
    /// The name of the guest that serves.
    pub server: String,
    /// The address of the client, as the server sees it.
    pub client: IpAddr,
}

/// Sends `len` bytes to an [`EchoServer`], and compares the bytes that it returns.
///
/// # Panics
/// The connection is refused, stalls, breaks, or delivers other bytes.
pub fn tcp_echo(from: &Guest, to: SocketAddr, len: usize) -> Answer {
    let sent = noise(len, 11);
    let received = from.netns.run(|| -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&to, STALL)?;
        stream.set_read_timeout(Some(STALL))?;
        stream.set_write_timeout(Some(STALL))?;
        stream.write_all(&sent)?;
        stream.shutdown(Shutdown::Write)?;
        let mut received = Vec::with_capacity(len + 16);
        stream.read_to_end(&mut received)?;
        Ok(received)
    });
    let what = format!("{len} bytes over TCP from {} to {to}", from.name);
    let received = received.unwrap_or_else(|error| panic!("{what}: {error}"));
    let end = received.iter().position(|byte| *byte == b'\n');
    let (line, rest) = received.split_at(end.unwrap_or_else(|| panic!("{what}: no answer")));
    assert!(rest[1..] == sent, "{what}: {} other bytes came back", rest.len() - 1);
    let (server, client) = std::str::from_utf8(line)
        .ok()
        .and_then(|line| line.split_once(' '))
        .unwrap_or_else(|| panic!("{what}: no line"));
    Answer { server: server.to_owned(), client: client.parse().expect("an address") }
}

/// Sends one datagram with `len` bytes of payload, and expects the same bytes back.
///
/// # Panics
/// One of the two datagrams is lost or altered.
pub fn udp_echo(from: &Guest, to: &Guest, family: u8, len: usize) {
    let what = format!("{len} bytes over UDP from {} to {}, IPv{family}", from.name, to.name);
    let (near, far) = (udp_socket(from, family), udp_socket(to, family));
    let sent = noise(len, len as u64);
    let mut bytes = vec![0; 65_536];
    near.send_to(&sent, far.local_addr().expect("an address")).expect("a datagram is sent");
    let (got, source) = receive(&far, &mut bytes).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(bytes[..got] == sent, "{what}: {got} other bytes arrived");
    assert_eq!(source, near.local_addr().expect("an address"), "{what}: the source");
    far.send_to(&bytes[..got], source).expect("a datagram is sent");
    let (got, _) = receive(&near, &mut bytes).unwrap_or_else(|e| panic!("{what}, back: {e}"));
    assert!(bytes[..got] == sent, "{what}: {got} other bytes came back");
}

/// Receives a datagram. A read with a timeout is interrupted when the kernel freezes or traces the
/// process for a moment, so an interrupted one is repeated.
pub fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> std::io::Result<(usize, SocketAddr)> {
    loop {
        match socket.recv_from(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// A UDP socket at the address of a guest, with a receive timeout.
pub fn udp_socket(guest: &Guest, family: u8) -> UdpSocket {
    let ip = guest.ip(family);
    let socket = guest.netns.run(|| UdpSocket::bind((ip, 0))).expect("a UDP socket");
    socket.set_read_timeout(Some(STALL)).expect("a time limit can be set");
    socket
}
