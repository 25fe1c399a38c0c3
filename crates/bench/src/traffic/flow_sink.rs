//! A receiver of numbered UDP packets of many flows. It records which packets have arrived, and the
//! longest pause of a flow.

use std::net::{IpAddr, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::MultiHeaders;

use super::sink::{BATCH, READ_LEN, receive_batch, start_receiver};
use crate::lab::Guest;
use crate::{Error, Result};

/// The highest packet number that is recorded. Higher ones are ignored.
const MAX_NUMBER: u64 = 1 << 30;

/// A running receiver. Dropping it ends it.
#[derive(Debug)]
pub struct FlowSink {
    shared: Arc<Shared>,
    port: u16,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    done: AtomicBool,
    arrivals: Mutex<Arrivals>,
}

/// The packets that have arrived. Packet `n` belongs to flow `n % flows`, and starts with `n` in
/// its first eight bytes.
#[derive(Debug)]
struct Arrivals {
    /// A bit for each packet number.
    seen: Vec<u64>,
    /// The arrival time of the last packet of each flow.
    last: Vec<Option<Instant>>,
    /// The longest pause between two packets of a flow, over all flows.
    longest_pause: Duration,
    duplicates: u64,
}

/// The losses among the packets of a window, which is a range of packet numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct FlowLosses {
    /// Packets of the window.
    pub packets: u64,
    /// Packets that did not arrive.
    pub lost: u64,
    /// Flows that lost packets.
    pub flows_with_losses: usize,
    /// The largest number of packets that one flow lost.
    pub most_of_a_flow: u64,
    /// Flows of which no packet arrived.
    pub silent_flows: usize,
}

impl Arrivals {
    fn new(flows: usize) -> Self {
        let last = vec![None; flows.max(1)];
        Self { seen: Vec::new(), last, longest_pause: Duration::ZERO, duplicates: 0 }
    }

    fn arrive(&mut self, number: u64, now: Instant) {
        if number >= MAX_NUMBER {
            return;
        }
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        self.duplicates += u64::from(self.seen[word] & bit != 0);
        self.seen[word] |= bit;
        let flow = (number % self.last.len() as u64) as usize;
        if let Some(before) = self.last[flow].replace(now) {
            self.longest_pause = self.longest_pause.max(now - before);
        }
    }

    fn has(&self, number: u64) -> bool {
        self.seen.get((number / 64) as usize).is_some_and(|word| word >> (number % 64) & 1 != 0)
    }

    fn losses(&self, window: Range<u64>) -> FlowLosses {
        let flows = self.last.len() as u64;
        let packets = window.end.saturating_sub(window.start);
        let mut losses = FlowLosses { packets, ..FlowLosses::default() };
        for first in window.start..window.end.min(window.start + flows) {
            let numbers = (first..window.end).step_by(flows as usize);
            let (mut sent, mut lost) = (0, 0);
            for number in numbers {
                sent += 1;
                lost += u64::from(!self.has(number));
            }
            losses.lost += lost;
            losses.flows_with_losses += usize::from(lost > 0);
            losses.most_of_a_flow = losses.most_of_a_flow.max(lost);
            losses.silent_flows += usize::from(lost == sent);
        }
        losses
    }
}

impl FlowSink {
    /// Receives the packets of `flows` flows at the IPv4 or IPv6 address `address` of `guest`.
    ///
    /// # Errors
    /// The socket or the thread cannot be created.
    pub fn start(guest: &Guest, address: IpAddr, flows: usize) -> Result<Self> {
        let what = format!("receive UDP on {address} of {}", guest.name());
        let failed = Error::io(what);
        let bound = guest.run(|| UdpSocket::bind((address, 0)))?;
        Self::on(bound, guest.cpu(), flows).map_err(failed)
    }

    fn on(socket: std::io::Result<UdpSocket>, cpu: usize, flows: usize) -> std::io::Result<Self> {
        let arrivals = Mutex::new(Arrivals::new(flows));
        let shared = Arc::new(Shared { done: AtomicBool::new(false), arrivals });
        let state = Arc::clone(&shared);
        let (port, thread) = start_receiver(socket?, cpu, move |socket| receive(socket, &state))?;
        Ok(Self { shared, port, thread: Some(thread) })
    }

    /// The UDP port at which packets are received.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Starts a window: resets the longest pause.
    pub fn begin_window(&self) {
        self.arrivals().longest_pause = Duration::ZERO;
    }

    /// The losses among the packets with these numbers.
    pub fn losses(&self, window: Range<u64>) -> FlowLosses {
        self.arrivals().losses(window)
    }

    /// The longest time between two packets of one flow since the window began. A pause that has
    /// not ended is measured up to now.
    pub fn longest_pause(&self) -> Duration {
        let (now, arrivals) = (Instant::now(), self.arrivals());
        let open = arrivals.last.iter().flatten().map(|last| now.saturating_duration_since(*last));
        open.max().unwrap_or_default().max(arrivals.longest_pause)
    }

    /// Packets that arrived more than once.
    pub fn duplicates(&self) -> u64 {
        self.arrivals().duplicates
    }

    fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.shared.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FlowSink {
    fn drop(&mut self) {
        self.shared.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

fn receive(socket: &UdpSocket, shared: &Shared) {
    let mut headers = MultiHeaders::<()>::preallocate(BATCH, None);
    let mut packets = vec![[0; READ_LEN]; BATCH];
    while !shared.done.load(Ordering::Relaxed) {
        let lengths = match receive_batch(socket, &mut headers, &mut packets) {
            Ok(lengths) => lengths,
            Err(Errno::EAGAIN | Errno::EINTR) => continue,
            Err(error) => return tracing::warn!(%error, "a receiver has ended"),
        };
        let now = Instant::now();
        let mut arrivals = shared.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        for (len, packet) in lengths.iter().zip(&packets) {
            if let Some(number) = packet[..(*len).min(READ_LEN)].first_chunk() {
                arrivals.arrive(u64::from_be_bytes(*number), now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_found_by_flow_when_packets_are_missing() {
        let mut arrivals = Arrivals::new(4);
        let start = Instant::now();
        // Flow 1 loses its second packet, and flow 3 all its packets.
        for number in (0..12).filter(|number| *number != 5 && number % 4 != 3) {
            arrivals.arrive(number, start + Duration::from_millis(number));
        }
        let losses = FlowLosses {
            packets: 12,
            lost: 4,
            flows_with_losses: 2,
            most_of_a_flow: 3,
            silent_flows: 1,
        };
        assert_eq!(arrivals.losses(0..12), losses);
        assert_eq!(arrivals.longest_pause, Duration::from_millis(8));
        let none = FlowLosses { packets: 2, ..FlowLosses::default() };
        assert_eq!(arrivals.losses(8..10), none);
        arrivals.arrive(0, start);
        assert_eq!(arrivals.duplicates, 1);
    }
}
