//! Sends many UDP flows between two hosts and counts lost datagrams, for `cargo xtask deb-test`.
//!
//!     flows LOCAL REMOTE SOURCES RATE
//!
//! The program runs on both hosts. It sends RATE datagrams per second from SOURCES ports of the
//! address LOCAL to each of 50 ports of REMOTE in turn, and receives the datagrams of the other
//! host. A line on standard input starts a window, and the next line ends it. 10 s later the
//! program prints how many datagrams of that window it has sent and received, and the longest time
//! in milliseconds between two received ones.

use std::io::{self, BufRead};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The first source port of datagrams.
const FIRST_SOURCE: u16 = 20_000;
/// The destination ports of datagrams.
const DESTINATIONS: std::ops::Range<u16> = 30_000..30_050;
/// The number of datagrams that are sent without a pause.
const BURST: u64 = 10;
/// How long a datagram may be in flight.
const LATEST: Duration = Duration::from_secs(10);
/// The payload of a datagram outside of a window. Within a window, it is the window's number.
const NO_WINDOW: u8 = u8::MAX;

struct Shared {
    window: AtomicU8,
    /// The number of datagrams sent in this window.
    sent: AtomicU64,
    received: Mutex<Received>,
}

/// The datagrams of one window that have arrived.
struct Received {
    window: u8,
    datagrams: u64,
    last: Option<Instant>,
    longest_pause: Duration,
}

impl Received {
    fn nothing(window: u8) -> Self {
        Self { window, datagrams: 0, last: None, longest_pause: Duration::ZERO }
    }
}

impl Shared {
    fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a datagram. The other host may have started the window before this one.
    fn receive(&self, window: u8) {
        let mut received = self.received();
        if received.window != window {
            *received = Received::nothing(window);
        }
        let now = Instant::now();
        let pause = received.last.map(|last| now - last).unwrap_or_default();
        received.longest_pause = received.longest_pause.max(pause);
        received.last = Some(now);
        received.datagrams += 1;
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [local, remote, sources, rate] = arguments.as_slice() else {
        return Err("usage: flows LOCAL REMOTE SOURCES RATE".into());
    };
    let (local, remote): (IpAddr, IpAddr) = (local.parse()?, remote.parse()?);
    let (sources, rate): (u16, u64) = (sources.parse()?, rate.parse()?);
    let shared = Arc::new(Shared {
        window: AtomicU8::new(NO_WINDOW),
        sent: AtomicU64::new(0),
        received: Mutex::new(Received::nothing(NO_WINDOW)),
    });
    for port in DESTINATIONS {
        let (socket, shared) = (UdpSocket::bind((local, port))?, Arc::clone(&shared));
        thread::spawn(move || receive(&socket, &shared));
    }
    let bind = |offset| UdpSocket::bind((local, FIRST_SOURCE + offset));
    let sockets = (0..sources).map(bind).collect::<io::Result<Vec<_>>>()?;
    let sender = Arc::clone(&shared);
    thread::spawn(move || send(&sockets, remote, rate, &sender));
    let mut lines = io::stdin().lock().lines();
    for window in 0..NO_WINDOW {
        if lines.next().transpose()?.is_none() {
            break;
        }
        shared.sent.store(0, Ordering::Relaxed);
        shared.window.store(window, Ordering::Release);
        lines.next().transpose()?;
        shared.window.store(NO_WINDOW, Ordering::Release);
        thread::sleep(LATEST);
        let received = shared.received();
        let datagrams = if received.window == window { received.datagrams } else { 0 };
        let pause_ms = received.longest_pause.as_millis();
        println!("{} {datagrams} {pause_ms}", shared.sent.load(Ordering::Relaxed));
    }
    Ok(())
}

fn send(sockets: &[UdpSocket], remote: IpAddr, rate: u64, shared: &Shared) {
    let to: Vec<_> = DESTINATIONS.map(|port| SocketAddr::from((remote, port))).collect();
    let mut flows = (0..).map(|number: usize| {
        let at = number % (sockets.len() * to.len());
        (&sockets[at % sockets.len()], to[at / sockets.len()])
    });
    let mut due = Instant::now();
    loop {
        let window = shared.window.load(Ordering::Acquire);
        for (socket, to) in flows.by_ref().take(BURST as usize) {
            // Errors are ignored: a datagram that the kernel does not send counts as lost.
            let _ = socket.send_to(&[window], to);
            if window != NO_WINDOW {
                shared.sent.fetch_add(1, Ordering::Relaxed);
            }
        }
        // A sender that was delayed does not catch up.
        due = (due + Duration::from_secs(BURST) / rate as u32).max(Instant::now());
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn receive(socket: &UdpSocket, shared: &Shared) {
    let mut bytes = [NO_WINDOW; 2];
    loop {
        match socket.recv(&mut bytes) {
            Ok(1) if bytes[0] != NO_WINDOW => shared.receive(bytes[0]),
            _ => {}
        }
    }
}
