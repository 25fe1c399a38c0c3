//! Flows with numbered packets, and TCP streams.

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

/// Source ports, and destination ports, of the flows in one direction: each source sends to each destination.
const SOURCES: std::ops::Range<u16> = 20_000..20_250;
const DESTINATIONS: std::ops::Range<u16> = 30_000..30_020;
/// Flows of both directions: each is a megaflow.
pub const COUNT: u64 = 10_000;
/// Packets each second of one direction.
const RATE: u64 = 10_000;
/// Packets sent together.
const BURST: u64 = 20;
const STREAMS: u16 = 8;
const CHUNK: usize = 16 * 1024;

/// Entries by which each flow is a megaflow of its own, where it comes from and where it goes to.
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
        .expect("a String takes all");
    }
    text
}

/// What became of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fate {
    pub sent: u64,
    /// Numbers that were not heard.
    pub unheard: u64,
    /// Packets that had arrived, but found the socket of the test full.
    pub overflown: u64,
}

/// Flows from one guest to another, as long as this is there.
pub struct Flows {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    heard: Arc<Mutex<Heard>>,
    /// Where they are heard.
    far: Netns,
    threads: Vec<JoinHandle<()>>,
}

/// By source and destination, the number of the packet that was heard last; and gaps, since it was asked to count them.
#[derive(Default)]
struct Heard {
    last: HashMap<(u16, u16), u64>,
    received: u64,
    gaps: u64,
    counts: bool,
}

/// A moment, by what has been counted.
pub type Mark = Fate;

impl Flows {
    pub fn start(from: &Guest, to: &Guest) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let heard = Arc::new(Mutex::new(Heard::default()));
        let mut threads = Vec::new();
        let (from_ip, to_ip, to_netns) = (from.ip4, to.ip4, Netns::clone(&to.netns));
        for port in DESTINATIONS {
            let socket = to.netns.run(|| UdpSocket::bind((to_ip, port))).expect("a UDP socket");
            socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a time limit");
            let (stop, heard) = (Arc::clone(&stop), Arc::clone(&heard));
            threads.push(std::thread::spawn(move || receive(&socket, port, &stop, &heard)));
        }
        let bind = |port| UdpSocket::bind((from_ip, port)).expect("a UDP socket");
        let sockets: Vec<_> = from.netns.run(|| SOURCES.map(bind).collect());
        let (to, stopped, count) = (IpAddr::from(to_ip), Arc::clone(&stop), Arc::clone(&sent));
        threads.push(std::thread::spawn(move || send(&sockets, to, &stopped, &count)));
        Self { stop, sent, heard, far: Netns::clone(&to_netns), threads }
    }

    fn heard(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.heard.lock().expect("nobody has panicked")
    }

    /// Waits until a packet of every flow has been heard, and of every flow one after the other for a second.
    pub fn wait_established(&self) {
        let all = SOURCES.len() * DESTINATIONS.len();
        wait_until(6 * PATIENCE, "all flows are heard", || self.heard().last.len() == all);
        self.heard().counts = true;
        wait_until(6 * PATIENCE, "no packet is lost any more", || {
            let before = self.heard().gaps;
            std::thread::sleep(Duration::from_secs(2));
            self.heard().gaps == before
        });
    }

    pub fn mark(&self) -> Mark {
        Fate {
            sent: self.sent.load(Ordering::Relaxed),
            unheard: self.heard().gaps,
            overflown: counter(&self.far, "Udp:", "RcvbufErrors"),
        }
    }

    pub fn since(&self, before: &Mark) -> Fate {
        let now = self.mark();
        Fate {
            sent: now.sent - before.sent,
            unheard: now.unheard - before.unheard,
            overflown: now.overflown - before.overflown,
        }
    }

    /// What became of all packets since.
    pub fn stop(mut self, before: &Mark) -> Fate {
        self.end();
        self.since(before)
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..).rev() {
            // Whoever panics has failed the test.
            let _ = thread.join();
        }
    }
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
            let flow = (number % flows) as usize;
            let socket = &sockets[flow % sockets.len()];
            let port = DESTINATIONS.start + (flow / sockets.len()) as u16;
            // Each flow's packets are numbered from 0.
            let bytes = (number / flows).to_be_bytes();
            socket.send_to(&bytes, (to, port)).expect("a datagram is sent");
            number += 1;
        }
        sent.store(number, Ordering::Relaxed);
        let due = begin + Duration::from_nanos(number * 1_000_000_000 / RATE);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn receive(socket: &UdpSocket, port: u16, stop: &AtomicBool, heard: &Mutex<Heard>) {
    let mut bytes = [0; 64];
    loop {
        let Ok((len, from)) = socket.recv_from(&mut bytes) else {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            continue;
        };
        let number = u64::from_be_bytes(bytes[..len].try_into().expect("a number"));
        let mut heard = heard.lock().expect("nobody has panicked");
        heard.received += 1;
        let before = heard.last.insert((from.port(), port), number);
        if heard.counts
            && let Some(before) = before
        {
            heard.gaps += number.saturating_sub(before + 1);
            assert!(number > before, "packets of a flow keep their order");
        }
    }
}

/// TCP streams from one guest to another, at a steady pace.
pub struct Streams {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Streams {
    pub fn start(from: &Guest, to: &Guest) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
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
            threads.push(std::thread::spawn(move || pump(stream, &stopped)));
            threads.push(std::thread::spawn(move || drain(far)));
        }
        Self { stop, threads }
    }

    /// Ends them; the bytes that were received, all in order.
    pub fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().expect("a stream is whole")).sum()
    }
}

fn pump(mut stream: TcpStream, stop: &AtomicBool) -> u64 {
    let mut number = 0_u8;
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&[number; CHUNK]).expect("the stream goes on");
        number = number.wrapping_add(1);
        std::thread::sleep(Duration::from_millis(20));
    }
    0
}

fn drain(mut stream: TcpStream) -> u64 {
    let (mut bytes, mut received) = (vec![0; CHUNK], 0);
    loop {
        match stream.read(&mut bytes).expect("the stream goes on") {
            0 => return received,
            len => {
                for &byte in &bytes[..len] {
                    assert_eq!(usize::from(byte), received as usize / CHUNK % 256, "in order");
                    received += 1;
                }
            }
        }
    }
}

/// Segments that TCP has retransmitted in a namespace.
pub fn retransmitted(netns: &Netns) -> u64 {
    counter(netns, "Tcp:", "RetransSegs")
}

/// A counter of a namespace (RFC 1213).
fn counter(netns: &Netns, protocol: &str, name: &str) -> u64 {
    let text = netns.run_in(|| std::fs::read_to_string("/proc/thread-self/net/snmp"));
    let text = text.expect("a namespace").expect("the counters can be read");
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut columns = names.split(' ').zip(values.split(' '));
    let (_, value) = columns.find(|(column, _)| *column == name).expect("a counter");
    value.parse().expect("a number")
}
