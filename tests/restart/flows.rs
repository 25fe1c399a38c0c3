//! UDP flows of numbered packets whose losses are counted, and TCP streams.

use crate::common::{Guest, PATIENCE};
use netdev::Netns;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testkit::host::wait_until;

/// The source ports of the flows in one direction. Each sends to all of [`DESTINATIONS`].
const SOURCES: std::ops::Range<u16> = 20_000..20_250;
/// The destination ports of the flows in one direction.
const DESTINATIONS: std::ops::Range<u16> = 30_000..30_020;
/// The number of flows in both directions. Each has a separate megaflow.
pub const COUNT: u64 = 10_000;
/// The option of `weft run` that allows enough megaflows for all flows.
pub const LIMIT: &[&str] = &["--megaflows", "16384"];
/// Packets per second in one direction.
const RATE: u64 = 10_000;
/// Packets per burst.
const BURST: u64 = 20;
const STREAMS: u16 = 8;
const CHUNK: usize = 16 * 1024;

/// Access control list entries that match ports, so that each flow has its own megaflow on both
/// hosts.
pub fn policy() -> String {
    let set = |ports: std::ops::Range<u16>| {
        let ports: Vec<_> = ports.map(|port| port.to_string()).collect();
        format!("{{{}}}", ports.join(", "))
    };
    let mut text = String::new();
    for direction in ["from-port", "to-port"] {
        writeln!(
            text,
            "[[acl]]\nswitch = \"blue\"\ndirection = \"{direction}\"\npriority = 1000\n\
             match = 'udp.src == {} && udp.dst == {}'\naction = \"allow\"",
            set(SOURCES),
            set(DESTINATIONS)
        )
        .expect("writing to a String cannot fail");
    }
    text
}

/// Packet counters of the flows of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    pub sent: u64,
    /// Packets that the receiver did not get.
    pub lost: u64,
    /// Packets that reached the receiver's host while the socket buffer was full. They also count
    /// as lost.
    pub overflowed: u64,
}

/// UDP flows from one guest to another. Dropping the value ends them.
pub struct Flows {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    received: Arc<Mutex<Received>>,
    /// The namespace of the receiving guest.
    receiver: Netns,
    threads: Vec<JoinHandle<()>>,
}

/// The state of the receivers.
#[derive(Default)]
struct Received {
    /// The number of the last packet of each flow, by source and destination port.
    last: HashMap<(u16, u16), u64>,
    /// The number of packets that are missing between two received packets of a flow, since
    /// `is_counting` was set.
    gaps: u64,
    is_counting: bool,
    /// If set, packets of a flow must arrive in order. Before that, upcalls may delay packets.
    is_established: bool,
}

impl Flows {
    pub fn start(from: &Guest, to: &Guest) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let received = Arc::new(Mutex::new(Received::default()));
        let mut threads = Vec::new();
        let (from_ip, to_ip, receiver) = (from.ip4, to.ip4, Netns::clone(&to.netns));
        for port in DESTINATIONS {
            let socket = to.netns.run(|| UdpSocket::bind((to_ip, port))).expect("a UDP socket");
            socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a time limit");
            let (stop, received) = (Arc::clone(&stop), Arc::clone(&received));
            threads.push(std::thread::spawn(move || receive(&socket, port, &stop, &received)));
        }
        let bind = |port| UdpSocket::bind((from_ip, port)).expect("a UDP socket");
        let sockets: Vec<_> = from.netns.run(|| SOURCES.map(bind).collect());
        let (to, stopped, count) = (IpAddr::from(to_ip), Arc::clone(&stop), Arc::clone(&sent));
        threads.push(std::thread::spawn(move || send(&sockets, to, &stopped, &count)));
        Self { stop, sent, received, receiver, threads }
    }

    fn received(&self) -> std::sync::MutexGuard<'_, Received> {
        self.received.lock().expect("no thread has panicked")
    }

    /// Waits until every flow has delivered a packet and no packet is lost for two seconds.
    pub fn wait_established(&self) {
        let all = SOURCES.len() * DESTINATIONS.len();
        wait_until(6 * PATIENCE, "all flows deliver", || self.received().last.len() == all);
        self.received().is_counting = true;
        wait_until(6 * PATIENCE, "no packet is lost any more", || {
            let before = self.received().gaps;
            std::thread::sleep(Duration::from_secs(2));
            self.received().gaps == before
        });
        self.received().is_established = true;
    }

    /// The counters so far. Packets that are missing at the end of a flow are only counted by
    /// [`Flows::stop`], because they may still be in flight.
    pub fn counts(&self) -> Counts {
        Counts {
            sent: self.sent.load(Ordering::Relaxed),
            lost: self.received().gaps,
            overflowed: counter(&self.receiver, "Udp:", "RcvbufErrors"),
        }
    }

    /// The counters since `before`.
    pub fn since(&self, before: &Counts) -> Counts {
        let now = self.counts();
        Counts {
            sent: now.sent - before.sent,
            lost: now.lost - before.lost,
            overflowed: now.overflowed - before.overflowed,
        }
    }

    /// Ends the flows. Returns the counters since `before`, including the packets of flows that
    /// have stopped delivering.
    pub fn stop(mut self, before: &Counts) -> Counts {
        self.end();
        let counts = self.since(before);
        Counts { lost: counts.lost + self.missing_at_the_end(), ..counts }
    }

    /// The number of packets that were sent after the last received packet of each flow. Call it
    /// after the flows have ended.
    fn missing_at_the_end(&self) -> u64 {
        let sent = self.sent.load(Ordering::Relaxed);
        let received = self.received();
        let flows = (SOURCES.len() * DESTINATIONS.len()) as u64;
        let missing = (0..flows).map(|flow| {
            let sent_of_flow = (sent + flows - 1 - flow) / flows;
            let next = received.last.get(&ports(flow)).map_or(0, |last| last + 1);
            sent_of_flow - next
        });
        missing.sum()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The sender is the last thread, so it is joined first. The receivers then read the packets
        // that are still in flight.
        for thread in self.threads.drain(..).rev() {
            let joined = thread.join();
            assert!(joined.is_ok() || std::thread::panicking(), "a thread of the flows panicked");
        }
    }
}

/// The source and destination port of a flow. Packet `n` of a direction belongs to flow `n` modulo
/// the number of flows.
fn ports(flow: u64) -> (u16, u16) {
    let sources = SOURCES.len() as u64;
    (SOURCES.start + (flow % sources) as u16, DESTINATIONS.start + (flow / sources) as u16)
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.end();
    }
}

fn send(sockets: &[UdpSocket], to: IpAddr, stop: &AtomicBool, sent: &AtomicU64) {
    let (begin, mut number) = (Instant::now(), 0_u64);
    let flows = (sockets.len() * DESTINATIONS.len()) as u64;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BURST {
            let (source, port) = ports(number % flows);
            let socket = &sockets[usize::from(source - SOURCES.start)];
            // The packets of each flow are numbered from 0.
            let bytes = (number / flows).to_be_bytes();
            socket.send_to(&bytes, (to, port)).expect("a datagram is sent");
            number += 1;
        }
        sent.store(number, Ordering::Relaxed);
        let due = begin + Duration::from_nanos(number * 1_000_000_000 / RATE);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn receive(socket: &UdpSocket, port: u16, stop: &AtomicBool, received: &Mutex<Received>) {
    let mut bytes = [0; 64];
    loop {
        let Ok((len, from)) = socket.recv_from(&mut bytes) else {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            continue;
        };
        let number = u64::from_be_bytes(bytes[..len].try_into().expect("a number"));
        let mut received = received.lock().expect("no thread has panicked");
        let Some(&before) = received.last.get(&(from.port(), port)) else {
            received.last.insert((from.port(), port), number);
            continue;
        };
        let is_in_order = number > before || !received.is_established;
        assert!(is_in_order, "packet {number} of an established flow arrived after {before}");
        received.last.insert((from.port(), port), number.max(before));
        if received.is_counting {
            received.gaps += number.saturating_sub(before + 1);
        }
    }
}

/// TCP streams from one guest to another, at a fixed rate.
pub struct Streams {
    stop: Arc<AtomicBool>,
    senders: Vec<JoinHandle<u64>>,
    receivers: Vec<JoinHandle<u64>>,
}

impl Streams {
    pub fn start(from: &Guest, to: &Guest) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        let to_ip = to.ip4;
        for _ in 0..STREAMS {
            let listener = to.netns.run(|| TcpListener::bind((to_ip, 0))).expect("a listener");
            let address = listener.local_addr().expect("an address");
            let stream = from.netns.run(|| TcpStream::connect(address)).expect("a connection");
            let (far, _) = listener.accept().expect("a connection");
            for end in [&stream, &far] {
                end.set_read_timeout(Some(PATIENCE)).expect("a time limit");
                end.set_write_timeout(Some(PATIENCE)).expect("a time limit");
            }
            let stopped = Arc::clone(&stop);
            senders.push(std::thread::spawn(move || pump(stream, &stopped)));
            receivers.push(std::thread::spawn(move || drain(far)));
        }
        Self { stop, senders, receivers }
    }

    /// Ends the streams and checks that every byte has arrived, in order. Returns the number of
    /// bytes.
    pub fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let bytes = |threads: Vec<JoinHandle<u64>>| -> u64 {
            threads.into_iter().map(|thread| thread.join().expect("the stream works")).sum()
        };
        let sent = bytes(self.senders);
        assert_eq!(bytes(self.receivers), sent, "bytes received and sent");
        sent
    }
}

/// Sends until `stop` is set. Returns the number of bytes.
fn pump(mut stream: TcpStream, stop: &AtomicBool) -> u64 {
    let mut chunks = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&[chunks as u8; CHUNK]).expect("the stream can be written");
        chunks += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    chunks * CHUNK as u64
}

/// Receives until the end of the stream and checks each byte. Returns the number of bytes.
fn drain(mut stream: TcpStream) -> u64 {
    let (mut bytes, mut received) = (vec![0; CHUNK], 0);
    loop {
        match stream.read(&mut bytes).expect("the stream can be read") {
            0 => return received,
            len => {
                // Compares up to the end of the chunk, and then the rest. Without optimization,
                // comparing single bytes takes far longer.
                let place = received as usize % CHUNK;
                let (this, next) = bytes[..len].split_at(len.min(CHUNK - place));
                for part in [this, next] {
                    let expected = [(received as usize / CHUNK) as u8; CHUNK];
                    assert_eq!(part, &expected[..part.len()], "in order");
                    received += part.len() as u64;
                }
            }
        }
    }
}

/// TCP segments retransmitted in a namespace.
pub fn retransmitted(netns: &Netns) -> u64 {
    counter(netns, "Tcp:", "RetransSegs")
}

/// A counter of /proc/net/snmp (RFC 1213) in a namespace.
fn counter(netns: &Netns, protocol: &str, name: &str) -> u64 {
    let text = netns.run_in(|| std::fs::read_to_string("/proc/thread-self/net/snmp"));
    let text = text.expect("a namespace").expect("the counters can be read");
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut columns = names.split(' ').zip(values.split(' '));
    let (_, value) = columns.find(|(column, _)| *column == name).expect("a counter");
    value.parse().expect("a number")
}
