//! A worker's queue of punted frames: reads them, and reports its progress to the programs, which
//! limit how many frames of each port wait (`bpf/punt_queue.h`).

use super::punt_interface::ALL_READ;
use super::{FastPath, punt};
use flow::PortNo;
use netdev::io_error::IoResult;
use netdev::tap::Tap;
use packet::PacketBuf;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A frame that waited longer is dropped: its sender has sent it again, as TCP does after one
/// second (RFC 6298 section 2), or given up. A busy host may let a thread wait for a second.
const MAX_AGE: Duration = Duration::from_secs(2);

/// How far all workers have read.
#[derive(Debug)]
struct Progress {
    fast_path: Arc<dyn FastPath>,
    /// For each worker: the time when the last frame that it has handled was punted.
    workers: Vec<AtomicU64>,
}

impl Progress {
    fn publish(&self, worker: usize, until_ns: u64) {
        if let Some(own) = self.workers.get(worker) {
            own.store(until_ns, Ordering::Relaxed);
        }
        let all = self.workers.iter().map(|worker| worker.load(Ordering::Relaxed));
        self.fast_path.punted_read_until(all.min().unwrap_or(ALL_READ));
    }
}

/// A worker's queue of the TAP.
#[derive(Debug)]
pub(crate) struct PuntReader {
    tap: Tap,
    worker: usize,
    progress: Arc<Progress>,
    started: Instant,
    clock: PuntClock,
    /// When the frame read last was punted; 0 if no frame of this batch carries the time.
    newest_ns: u64,
}

/// The ingress port of a punted frame, and how long it has waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Punted {
    pub(crate) port: PortNo,
    pub(crate) is_expired: bool,
}

impl PuntReader {
    /// A reader for each queue of a TAP. All frames that were punted before count as read.
    pub(crate) fn group(queues: Vec<Tap>, fast_path: &Arc<dyn FastPath>) -> Vec<Self> {
        let workers = queues.iter().map(|_| AtomicU64::new(ALL_READ)).collect();
        let progress = Arc::new(Progress { fast_path: Arc::clone(fast_path), workers });
        progress.publish(0, ALL_READ);
        let reader = |(worker, tap)| {
            let (progress, clock) = (Arc::clone(&progress), PuntClock::default());
            Self { tap, worker, progress, started: Instant::now(), clock, newest_ns: 0 }
        };
        queues.into_iter().enumerate().map(reader).collect()
    }

    /// Reads the next frame, with its punt header.
    pub(crate) fn recv(&self, packet: &mut PacketBuf) -> IoResult<Option<()>> {
        punt::recv(&self.tap, packet)
    }

    /// Removes the punt header; `None` if it is invalid.
    pub(crate) fn decode(&mut self, packet: &mut PacketBuf) -> Option<Punted> {
        let punt::PuntHeader { port, punted_ns } = punt::decode(packet)?;
        // Read for each frame rather than once for each batch: see `PuntClock::age`.
        let now_ns = self.started.elapsed().as_nanos() as u64;
        let age = punted_ns.map_or(Duration::ZERO, |punted_ns| {
            self.newest_ns = punted_ns;
            self.clock.age(punted_ns, now_ns)
        });
        Some(Punted { port, is_expired: age > MAX_AGE })
    }

    /// All frames that were read have been handled. `saw_empty`: the last read found no frame.
    pub(crate) fn finish_batch(&mut self, saw_empty: bool) {
        let newest_ns = std::mem::take(&mut self.newest_ns);
        // If the batch ended with the last frame of the queue, nothing wakes the worker again, and
        // its time would hold back the time of all workers.
        if saw_empty || !self.tap.has_frame() {
            self.progress.publish(self.worker, ALL_READ);
        } else if newest_ns > 0 {
            self.progress.publish(self.worker, newest_ns);
        }
    }
}

impl AsFd for PuntReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }
}

/// Compares the time of the programs with another clock.
///
/// Both run at the same speed, but a time namespace may shift one of them. So the frame with the
/// least difference is assumed not to have waited.
#[derive(Debug, Default)]
struct PuntClock {
    least_difference_ns: Option<i64>,
}

impl PuntClock {
    /// `now_ns` must be read after the frame. An earlier time would leave a difference less than
    /// that of the clocks. After a pause of the process, all later frames would seem old.
    fn age(&mut self, punted_ns: u64, now_ns: u64) -> Duration {
        let difference = now_ns.wrapping_sub(punted_ns).cast_signed();
        let least = self.least_difference_ns.map_or(difference, |least| least.min(difference));
        self.least_difference_ns = Some(least);
        Duration::from_nanos(difference.abs_diff(least))
    }
}

#[cfg(test)]
mod tests {
    use super::super::PathMtu;
    use super::*;
    use flow::NextHop;
    use netdev::Link;
    use netdev::af_packet::PacketSocket;
    use std::sync::Mutex;
    use testkit::host::{TestHost, wait_until};

    /// Programs that remember until when userspace has read.
    #[derive(Debug, Default)]
    struct Programs(Mutex<u64>);

    impl FastPath for Programs {
        fn punt_device(&self, _: Option<netdev::Ifindex>) {}
        fn punted_read_until(&self, time_ns: u64) {
            *self.0.lock().unwrap() = time_ns;
        }
        fn uplink(&self, _: Option<&Link>) {}
        fn port(&self, _: PortNo, _: Option<&Link>) {}
        fn resolved(&self, _: &[(flow::EndpointId, Option<NextHop>)]) {}
        fn routed(&self, _: &[(flow::EndpointId, bool)]) {}
        fn path_mtus(&self, _: &[PathMtu]) {}
    }

    /// Sends frames that were punted at these times to the TAP.
    fn punt_at(sender: &PacketSocket, times_ns: &[u64]) {
        for time_ns in times_ns {
            let header =
                [&[0, 0, 0, 1][..], &time_ns.to_ne_bytes(), &punt::ETHERTYPE.0.to_be_bytes()];
            let frame = [&header.concat()[..], &[0; 60]].concat();
            sender.send(&PacketBuf::from_bytes(&frame)).unwrap();
        }
    }

    /// A worker gets no event for an empty queue. So it must not leave a time there that is older
    /// than the frames that another worker has read.
    #[test]
    fn queue_counts_as_read_when_a_batch_ends_with_its_last_frame() {
        testkit::require_root!();
        let host = TestHost::new("punts");
        let (queues, index) = host.run(|| punt::open("punts", 1)).unwrap();
        let sender = host.run(|| PacketSocket::open_sender(index)).unwrap();
        let programs = Arc::new(Programs::default());
        let fast_path: Arc<dyn FastPath> = programs.clone();
        let mut readers = PuntReader::group(queues, &fast_path);
        let [reader] = &mut readers[..] else { panic!("one queue") };
        let read_until = || *programs.0.lock().unwrap();
        assert_eq!(read_until(), ALL_READ);
        let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
        let mut read_one = |reader: &mut PuntReader| {
            wait_until(Duration::from_secs(20), "a frame", || {
                packet.reset(PacketBuf::HEADROOM);
                reader.recv(&mut packet).unwrap().is_some()
            });
            assert!(reader.decode(&mut packet).is_some_and(|punted| punted.port == PortNo(1)));
        };
        punt_at(&sender, &[5, 6, 7]);
        read_one(reader);
        read_one(reader);
        reader.finish_batch(false);
        assert_eq!(read_until(), 6, "one more waits");
        read_one(reader);
        reader.finish_batch(false);
        assert_eq!(read_until(), ALL_READ, "no other waits");
    }

    #[test]
    fn age_is_relative_to_the_frame_that_waited_least() {
        for shift in [0, 5_000_000_000_u64, 0_u64.wrapping_sub(5_000_000_000)] {
            let mut clock = PuntClock::default();
            let mut age =
                |punted: u64, now: u64| clock.age(punted, now.wrapping_add(shift)).as_nanos();
            assert_eq!(age(1_000, 4_000), 0, "nothing is known yet");
            assert_eq!(age(2_000, 3_000), 0, "it waited less");
            assert_eq!(age(3_000, 9_000), 5_000);
            assert_eq!(age(4_000, 2_000_005_000), 2_000_000_000);
            assert_eq!(age(2_000_000_000, 2_000_001_000), 0);
        }
    }
}
