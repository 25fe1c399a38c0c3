//! A sender of small packets, many in one system call, at full speed or at a steady rate.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netdev::cpu::pin_current_thread;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, sendmmsg};
use nix::time::ClockId;

use crate::{Error, Result};

/// Packets sent with one system call.
const BATCH: usize = 64;
/// How long a sender sleeps when it is ahead of its rate.
const SLEEP: Duration = Duration::from_micros(200);
/// How long a sender sleeps when its device is full or missing.
const PAUSE: Duration = Duration::from_micros(50);
/// The time between two attempts to replace the socket of a missing device.
const REOPEN: Duration = Duration::from_millis(5);
/// The longest delay for which a sender catches up. More would be a burst.
const CATCH_UP: Duration = Duration::from_millis(20);

/// How fast packets are sent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// As many packets as the sender can send.
    FlatOut,
    /// Packets per second.
    PerSecond(f64),
    /// As many packets as the sending thread can send in this share of a processor's time, 0 to 1.
    CpuShare(f64),
}

/// A running sender. Dropping it ends it.
#[derive(Debug)]
pub struct Blast {
    shared: Arc<SenderState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct SenderState {
    done: AtomicBool,
    paused: AtomicBool,
    sent: AtomicU64,
    refused: AtomicU64,
    cpu_ns: AtomicU64,
}

impl Blast {
    /// Sends copies of `template` on `socket`, which is bound to its destination, from a thread
    /// that runs on the processor `cpu`, or on any. `change` is called with the number of each
    /// packet, from 0, and turns the bytes of an earlier packet into those of this one.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        socket: impl AsFd + Send + 'static,
        template: Vec<u8>,
        change: impl FnMut(u64, &mut [u8]) + Send + 'static,
        pace: Pace,
        cpu: impl Into<Option<usize>>,
    ) -> Result<Self> {
        Self::start_reopening(socket, || None, template, change, pace, cpu)
    }

    /// Like [`Blast::start`]. After the kernel has refused a packet, `reopen` may return a new
    /// socket: when a device was removed and created again, its old socket refuses all packets.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start_reopening<S: AsFd + Send + 'static>(
        mut socket: S,
        mut reopen: impl FnMut() -> Option<S> + Send + 'static,
        template: Vec<u8>,
        mut change: impl FnMut(u64, &mut [u8]) + Send + 'static,
        pace: Pace,
        cpu: impl Into<Option<usize>>,
    ) -> Result<Self> {
        let cpu = cpu.into();
        let shared = Arc::new(SenderState::default());
        let work = {
            let shared = Arc::clone(&shared);
            move || {
                if let Err(error) = cpu.map_or(Ok(()), pin_current_thread) {
                    return tracing::warn!(%error, "a sender stays where the kernel puts it");
                }
                let sockets = (&mut socket, &mut reopen);
                send(sockets, &template, &mut change, pace, &shared);
            }
        };
        let thread = std::thread::Builder::new().name("blast".into()).spawn(work);
        let thread = Some(thread.map_err(Error::io("start a traffic thread"))?);
        Ok(Self { shared, thread })
    }

    /// Packets that the kernel accepted.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Packets that the kernel refused, because the device was full or missing.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// The processor time of the sending thread so far. It includes what the kernel does for a
    /// packet before the system call returns.
    pub fn cpu_time(&self) -> Duration {
        Duration::from_nanos(self.shared.cpu_ns.load(Ordering::Relaxed))
    }

    /// The number of the next packet, which is the number of packets that were sent or refused.
    pub fn next_number(&self) -> u64 {
        self.sent() + self.refused()
    }

    /// Suspends the sender, or lets it continue with the next packet.
    pub fn set_paused(&self, paused: bool) {
        self.shared.paused.store(paused, Ordering::Relaxed);
    }

    /// Ends the sender. Returns how many packets the kernel accepted.
    pub fn finish(mut self) -> u64 {
        self.end();
        self.sent()
    }

    fn end(&mut self) {
        self.shared.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

impl Drop for Blast {
    fn drop(&mut self) {
        self.end();
    }
}

fn send<S: AsFd>(
    (socket, reopen): (&mut S, &mut impl FnMut() -> Option<S>),
    template: &[u8],
    change: &mut impl FnMut(u64, &mut [u8]),
    pace: Pace,
    shared: &SenderState,
) {
    let mut headers = MultiHeaders::<()>::preallocate(BATCH, None);
    let addresses = [None; BATCH];
    let mut packets = vec![template.to_vec(); BATCH];
    let mut clock = SendSchedule::new(pace);
    let mut number = 0;
    let mut reopened = Instant::now();
    while !shared.done.load(Ordering::Relaxed) {
        let cpu_time = current_thread_time();
        shared.cpu_ns.store(cpu_time.as_nanos() as u64, Ordering::Relaxed);
        let paused = shared.paused.load(Ordering::Relaxed);
        let count = if paused { 0 } else { clock.due(cpu_time).min(BATCH) };
        if count == 0 {
            std::thread::sleep(SLEEP);
            continue;
        }
        for (number, packet) in (number..).zip(&mut packets[..count]) {
            change(number, packet);
        }
        let slices: Vec<_> = packets[..count].iter().map(|p| [IoSlice::new(p)]).collect();
        let fd = socket.as_fd().as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let sent = match sendmmsg(fd, &mut headers, &slices, addresses, [], flags) {
            Ok(results) => results.count(),
            // Only the first packet of the batch was refused. It counts as lost.
            Err(Errno::EINTR) => continue,
            Err(error) => {
                shared.refused.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
                number += 1;
                clock.passed(1);
                let is_gone = matches!(error, Errno::ENXIO | Errno::ENETDOWN | Errno::ENODEV);
                if is_gone && reopened.elapsed() >= REOPEN {
                    reopened = Instant::now();
                    if let Some(opened) = reopen() {
                        *socket = opened;
                    }
                }
                continue;
            }
        };
        shared.sent.fetch_add(sent as u64, Ordering::Relaxed);
        number += sent as u64;
        clock.passed(sent);
    }
}

/// Decides how many packets are due.
struct SendSchedule {
    pace: Pace,
    start: Instant,
    /// What the schedule has used so far: packets, or seconds of processor time.
    used: f64,
    /// The processor time of the thread when `used` was updated last.
    cpu_time: Duration,
}

impl SendSchedule {
    fn new(pace: Pace) -> Self {
        Self { pace, start: Instant::now(), used: 0.0, cpu_time: Duration::ZERO }
    }

    /// The number of packets that may be sent now, by a thread that has used `cpu_time`.
    fn due(&mut self, cpu_time: Duration) -> usize {
        match self.pace {
            Pace::FlatOut => usize::MAX,
            Pace::PerSecond(rate) => self.unused(rate, 1.0) as usize,
            Pace::CpuShare(share) => {
                self.used += cpu_time.saturating_sub(self.cpu_time).as_secs_f64();
                self.cpu_time = cpu_time;
                if self.unused(share, 0.0) > 0.0 { usize::MAX } else { 0 }
            }
        }
    }

    /// What is left of `rate` times the elapsed time. At most the rate of [`CATCH_UP`] and `extra`
    /// may be left; what is beyond that is lost.
    fn unused(&mut self, rate: f64, extra: f64) -> f64 {
        let due = self.start.elapsed().as_secs_f64() * rate;
        let most = CATCH_UP.as_secs_f64() * rate + extra;
        self.used = self.used.max(due - most);
        (due - self.used).max(0.0)
    }

    fn passed(&mut self, packets: usize) {
        if let Pace::PerSecond(_) = self.pace {
            self.used += packets as f64;
        }
    }
}

/// The processor time that the calling thread has used.
fn current_thread_time() -> Duration {
    // The clock of the own thread always exists.
    ClockId::CLOCK_THREAD_CPUTIME_ID.now().map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn packets_are_numbered_from_zero_when_sent_in_batches() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let write = |number: u64, bytes: &mut [u8]| bytes.copy_from_slice(&number.to_be_bytes());
        let blast = Blast::start(sender, vec![0; 8], write, Pace::PerSecond(5000.0), 0).unwrap();
        let mut bytes = [0; 9];
        for number in 0..200_u64 {
            assert_eq!(receiver.recv(&mut bytes).unwrap(), 8);
            assert_eq!(bytes[..8], number.to_be_bytes());
        }
        assert!(blast.finish() >= 200);
    }

    #[test]
    fn delay_is_caught_up_on_only_for_a_moment() {
        let start = Instant::now() - Duration::from_secs(10);
        let mut clock = SendSchedule { start, ..SendSchedule::new(Pace::PerSecond(1000.0)) };
        assert!((20..=22).contains(&clock.due(Duration::ZERO)), "{}", clock.used);
        clock.passed(20);
        assert!(clock.due(Duration::ZERO) <= 2);
        assert_eq!(SendSchedule::new(Pace::FlatOut).due(Duration::ZERO), usize::MAX);
    }

    #[test]
    fn nothing_is_due_when_the_thread_has_used_its_share() {
        let start = Instant::now() - Duration::from_secs(10);
        let mut clock = SendSchedule { start, ..SendSchedule::new(Pace::CpuShare(0.1)) };
        assert_eq!(clock.due(Duration::ZERO), usize::MAX);
        // A tenth of the last 20 ms is 2 ms.
        assert_eq!(clock.due(Duration::from_millis(1)), usize::MAX);
        assert_eq!(clock.due(Duration::from_millis(100)), 0);
    }
}
