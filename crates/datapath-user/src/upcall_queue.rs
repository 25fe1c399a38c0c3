//! The queues of upcalls between the workers and the switch.
//!
//! Each port has a bounded queue of its own, and the queues are served round-robin. A guest that
//! sends only new flows fills its own queue and does not delay the upcalls of other ports. A port
//! that has used up its processor time ([`CpuBudgets`]) gets no turn until it is out of debt.

use super::cpu_budget::{CpuBudgets, MAX_DEBT};
use ahash::HashMap;
use datapath::histogram::{Histogram, QUEUE_LENGTHS};
use datapath::stats::UpcallStats;
use datapath::upcall::{Upcall, UpcallLimits, UpcallReason};
use flow::PortNo;
use packet::{PacketBuf, segment_count};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The packets of one port that wait in its queue.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Backlog {
    packets: usize,
    bytes: usize,
    segments: usize,
}

impl Backlog {
    /// Adds a packet; false when that would exceed the limits.
    pub(super) fn admit(&mut self, limits: UpcallLimits, packet: &PacketBuf) -> bool {
        let bytes = self.bytes.saturating_add(packet.len());
        let segments = self.segments.saturating_add(segment_count(packet));
        let has_room =
            self.packets < limits.packets && bytes <= limits.bytes && segments <= limits.segments;
        if self.packets > 0 && !has_room {
            return false;
        }
        self.packets += 1;
        (self.bytes, self.segments) = (bytes, segments);
        true
    }

    /// Removes a packet that was admitted.
    fn remove(&mut self, packet: &PacketBuf) {
        self.packets -= 1;
        self.bytes -= packet.len();
        self.segments -= segment_count(packet);
    }
}

/// The upcall queues of all ports. Workers push and upcall handlers take, each from any thread.
#[derive(Debug)]
pub(super) struct UpcallQueues {
    limits: UpcallLimits,
    /// The processor time of each port.
    pub(super) budgets: CpuBudgets,
    state: Mutex<QueueTable>,
    ready: Condvar,
    lengths: Histogram,
    waits: Histogram,
    copies_lost: AtomicU64,
}

#[derive(Debug, Default)]
struct QueueTable {
    queues: HashMap<PortNo, PortQueue>,
    /// The ports whose queue is not empty, in round-robin order.
    turns: VecDeque<PortNo>,
    /// The ports in debt whose queue is not empty, each with the time of its next turn.
    in_debt: Vec<(Instant, PortNo)>,
    stopped: bool,
}

#[derive(Debug, Default)]
struct PortQueue {
    upcalls: VecDeque<Upcall>,
    backlog: Backlog,
}

impl PortQueue {
    /// Removes the first upcall if it is one of those.
    fn pop(&mut self, is_one: impl Fn(&Upcall) -> bool) -> Option<Upcall> {
        let upcall = self.upcalls.pop_front_if(|upcall| is_one(upcall))?;
        self.backlog.remove(&upcall.packet);
        Some(upcall)
    }
}

impl QueueTable {
    /// Gives ports a turn whose debt should be paid by now. Returns the time until the next one.
    fn end_debts(&mut self, now: Instant) -> Option<Duration> {
        let Self { turns, in_debt, .. } = self;
        in_debt.retain(|&(until, port)| {
            let is_paid = until <= now;
            if is_paid {
                turns.push_back(port);
            }
            !is_paid
        });
        in_debt.iter().map(|(until, _)| until.saturating_duration_since(now)).min()
    }

    /// Gives ports in debt a turn at once if `is_one` says so. If they are still in debt then, they
    /// wait again.
    fn recall(&mut self, is_one: impl Fn(PortNo) -> bool) {
        let recalled = self.in_debt.extract_if(.., |(_, port)| is_one(*port));
        self.turns.extend(recalled.map(|(_, port)| port));
    }
}

impl UpcallQueues {
    /// Makes empty queues.
    pub(super) fn new(limits: UpcallLimits, budgets: CpuBudgets) -> Self {
        Self {
            limits,
            budgets,
            state: Mutex::default(),
            ready: Condvar::new(),
            lengths: Histogram::new(QUEUE_LENGTHS),
            waits: Histogram::default(),
            copies_lost: AtomicU64::new(0),
        }
    }

    /// Changes the processor time that each port may use. Ports in debt get a turn at once, because
    /// their debts take another time now.
    pub(super) fn set_percent(&self, percent: u32) {
        self.budgets.set_percent(percent);
        self.lock().recall(|_| true);
        self.ready.notify_one();
    }

    /// Forgets the budget of a port that was removed. What waits in its queue gets its turn at
    /// once: later, another port may have the number.
    pub(super) fn forget(&self, port: PortNo) {
        self.budgets.remove(port);
        self.lock().recall(|other| other == port);
        self.ready.notify_one();
    }

    /// The limits of each port's queue.
    pub(super) const fn limits(&self) -> UpcallLimits {
        self.limits
    }

    /// The packets that wait in a port's queue at this moment.
    pub(super) fn backlog(&self, port: PortNo) -> Backlog {
        self.lock().queues.get(&port).map_or_else(Backlog::default, |queue| queue.backlog)
    }

    /// The number of packets that wait now, and the distributions of queue lengths and waiting
    /// times.
    pub(super) fn stats(&self) -> UpcallStats {
        let waiting: usize = self.lock().queues.values().map(|queue| queue.backlog.packets).sum();
        UpcallStats {
            waiting: waiting as u64,
            port_limit: self.limits.packets as u64,
            queue_lengths: self.lengths.counts(),
            waits_ns: self.waits.counts(),
            copies_lost: self.copies_lost.load(Ordering::Relaxed),
        }
    }

    /// Discards an upcall that was refused or has expired. Returns it if it is a packet without a
    /// megaflow, which the caller must count as dropped. Copies for the controller are counted
    /// here. Other upcalls have no packet: a later packet proposes the same.
    pub(super) fn discard(&self, upcall: Upcall) -> Option<Upcall> {
        match upcall.reason {
            UpcallReason::Miss => return Some(upcall),
            UpcallReason::Controller => {
                self.copies_lost.fetch_add(1, Ordering::Relaxed);
            }
            UpcallReason::Fuse(_) => {}
        }
        None
    }

    /// Queues and drains `upcalls`. Those whose queue is full are passed to `refused`.
    pub(super) fn push(&self, upcalls: &mut Vec<Upcall>, mut refused: impl FnMut(Upcall)) {
        if upcalls.is_empty() {
            return;
        }
        let mut state = self.lock();
        let QueueTable { queues, turns, .. } = &mut *state;
        for upcall in upcalls.drain(..) {
            let queue = queues.entry(upcall.port).or_default();
            if !queue.backlog.admit(self.limits, &upcall.packet) {
                refused(upcall);
                continue;
            }
            if queue.upcalls.is_empty() {
                turns.push_back(upcall.port);
            }
            self.lengths.add(queue.backlog.packets as u64);
            queue.upcalls.push_back(upcall);
        }
        drop(state);
        self.ready.notify_one();
    }

    /// Moves up to `most` upcalls into `out`, one of each port in turn, and waits up to `timeout`
    /// for the first. Ports in debt get no turn; those of their upcalls that have waited too long
    /// are moved into `expired`. Returns false once the queues are [stopped](Self::stop).
    pub(super) fn take(
        &self,
        most: usize,
        timeout: Duration,
        out: &mut Vec<Upcall>,
        expired: &mut Vec<Upcall>,
    ) -> bool {
        let end = Instant::now() + timeout;
        let mut state = self.lock();
        let now = loop {
            let now = Instant::now();
            let next_turn = state.end_debts(now);
            if !state.turns.is_empty() || state.stopped {
                break now;
            }
            let left = end.saturating_duration_since(now);
            if left.is_zero() {
                return true;
            }
            let left = next_turn.map_or(left, |next| left.min(next));
            let waited = self.ready.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        let QueueTable { queues, turns, in_debt, stopped } = &mut *state;
        while out.len() < most {
            let Some(port) = turns.pop_front() else { break };
            let Some(queue) = queues.get_mut(&port) else { continue };
            let debt = self.budgets.debt(port, now);
            match debt {
                None => out.extend(queue.pop(|_| true)),
                Some(_) => {
                    while let Some(upcall) =
                        queue.pop(|upcall| now.saturating_duration_since(upcall.raised) > MAX_DEBT)
                    {
                        expired.push(upcall);
                    }
                }
            }
            if queue.upcalls.is_empty() {
                // Removed, so that ports that no longer exist do not accumulate.
                queues.remove(&port);
            } else if let Some(debt) = debt {
                in_debt.push((now + debt, port));
            } else {
                turns.push_back(port);
            }
        }
        for upcall in out.iter() {
            self.waits.add_duration(now.saturating_duration_since(upcall.raised));
        }
        if !turns.is_empty() {
            // Another handler may take the rest.
            self.ready.notify_one();
        }
        !*stopped
    }

    /// Wakes all waiting handlers; from now on [`take`](Self::take) returns at once.
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.ready.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, QueueTable> {
        // No code panics halfway through a change, so a poisoned state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu_budget::WorkKind;
    use datapath::cpu_meter::PortWork;
    use datapath::upcall::WorkerId;
    use flow::FlowKey;
    use packet::{Gso, GsoKind};
    use std::sync::Arc;

    /// Queues whose ports may use a quarter of a processor.
    fn new_queues(limits: UpcallLimits) -> UpcallQueues {
        let budgets = CpuBudgets::new(25, None);
        (1..=3).for_each(|port| budgets.add(PortNo(port), true));
        UpcallQueues::new(limits, budgets)
    }

    fn upcall(port: u32, len: usize) -> Upcall {
        Upcall {
            packet: PacketBuf::from_bytes(&vec![0; len]),
            key: FlowKey::default(),
            port: PortNo(port),
            reason: UpcallReason::Miss,
            worker: WorkerId(0),
            raised: Instant::now(),
            recirculated: None,
        }
    }

    fn push(queues: &UpcallQueues, upcalls: impl IntoIterator<Item = Upcall>) -> usize {
        let mut refused = 0;
        queues.push(&mut upcalls.into_iter().collect(), |_| refused += 1);
        refused
    }

    fn take(queues: &UpcallQueues, most: usize) -> Vec<u32> {
        let mut out = Vec::new();
        assert!(queues.take(most, Duration::ZERO, &mut out, &mut Vec::new()));
        out.iter().map(|upcall| upcall.port.0).collect()
    }

    #[test]
    fn ports_take_turns_when_one_floods() {
        let queues = new_queues(UpcallLimits::default());
        push(&queues, (0..100).map(|_| upcall(1, 60)));
        push(&queues, [upcall(2, 60), upcall(2, 60), upcall(3, 60)]);
        assert_eq!(take(&queues, 6), [1, 2, 3, 1, 2, 1]);
        assert_eq!(take(&queues, 1000).len(), 97);
        assert_eq!(take(&queues, 1), [0_u32; 0]);
    }

    #[test]
    fn waiting_packets_are_counted_by_the_length_of_their_queue() {
        let queues = new_queues(UpcallLimits { packets: 3, ..UpcallLimits::default() });
        push(&queues, (0..5).map(|_| upcall(1, 60)));
        push(&queues, [upcall(2, 60)]);
        take(&queues, 1);
        let found = queues.stats();
        assert_eq!((found.waiting, found.port_limit), (3, 3));
        // Two queues had one packet, one had two and then three; two packets found no room.
        assert_eq!(found.queue_lengths.counts[..4], [2, 1, 1, 0]);
        assert_eq!((found.queue_lengths.total(), found.waits_ns.total()), (4, 1));
    }

    #[test]
    fn packets_are_refused_only_when_their_own_port_queue_is_full() {
        let limits = UpcallLimits { packets: 3, bytes: 1000, segments: 100 };
        let queues = new_queues(limits);
        assert_eq!(push(&queues, (0..5).map(|_| upcall(1, 60))), 2);
        assert_eq!(push(&queues, (0..3).map(|_| upcall(2, 60))), 0);
        // A packet longer than the limit may wait alone.
        assert_eq!(push(&queues, [upcall(3, 5000), upcall(3, 1)]), 1);
        assert_eq!(take(&queues, 3), [1, 2, 3]);
        assert_eq!(push(&queues, [upcall(1, 60), upcall(1, 900)]), 1);
    }

    #[test]
    fn admit_predicts_what_push_refuses() {
        let limits = UpcallLimits { packets: 4, bytes: 1000, segments: 100 };
        for lens in [[60; 6], [400; 6], [5000, 1, 1, 1, 1, 1], [1, 999, 0, 1, 0, 0]] {
            for before in 0..lens.len() {
                let queues = new_queues(limits);
                push(&queues, lens[..before].iter().map(|&len| upcall(1, len)));
                let mut predicted = queues.backlog(PortNo(1));
                for &len in &lens[before..] {
                    let admits = predicted.admit(limits, &upcall(1, len).packet);
                    assert_eq!(push(&queues, [upcall(1, len)]), usize::from(!admits), "{lens:?}");
                    assert_eq!(queues.backlog(PortNo(1)), predicted);
                }
                let all = take(&queues, lens.len()).len();
                assert!(all > 0 && queues.backlog(PortNo(1)) == Backlog::default());
            }
        }
    }

    #[test]
    fn super_packets_count_by_their_segments() {
        let limits = UpcallLimits { packets: 100, bytes: 1 << 20, segments: 300 };
        let super_packet = |len, size| {
            let mut upcall = upcall(1, len);
            upcall.packet.offload.gso = Some(Gso { kind: GsoKind::TcpV4, size, ecn: false });
            upcall
        };
        let queues = new_queues(limits);
        assert_eq!(push(&queues, (0..10).map(|_| super_packet(10_000, 100))), 7);
        assert_eq!(push(&queues, [upcall(1, 60)]), 1, "it would be the 301st segment");
        assert_eq!(take(&queues, 1), [1]);
        assert_eq!(push(&queues, [upcall(1, 60)]), 0);
        // One alone may have more segments.
        let queues = new_queues(limits);
        assert_eq!(push(&queues, [super_packet(60_000, 36), upcall(1, 60)]), 1);
    }

    /// Charges a port for this much more than its burst.
    fn put_in_debt(queues: &UpcallQueues, port: u32, debt: Duration) {
        let cpu = Duration::from_millis(100) + debt;
        let work = PortWork { port: PortNo(port), packets: 1, misses: 1, cpu };
        queues.budgets.charge(&[work], WorkKind::Upcalls, Instant::now());
    }

    #[test]
    fn port_in_debt_waits_and_others_do_not() {
        let queues = new_queues(UpcallLimits::default());
        push(&queues, [upcall(1, 60), upcall(1, 60), upcall(2, 60)]);
        put_in_debt(&queues, 1, Duration::from_millis(25));
        let begin = Instant::now();
        assert_eq!(take(&queues, 10), [2]);
        assert_eq!(take(&queues, 10), [0_u32; 0]);
        let (mut out, mut expired) = (Vec::new(), Vec::new());
        assert!(queues.take(10, Duration::from_secs(20), &mut out, &mut expired));
        assert!(begin.elapsed() >= Duration::from_millis(90), "{:?}", begin.elapsed());
        assert_eq!((out.len(), expired.len()), (2, 0));
    }

    #[test]
    fn upcalls_of_a_port_in_debt_expire() {
        let queues = new_queues(UpcallLimits::default());
        let Some(long_ago) = Instant::now().checked_sub(MAX_DEBT + Duration::from_millis(1)) else {
            return;
        };
        push(&queues, [Upcall { raised: long_ago, ..upcall(1, 60) }, upcall(1, 61)]);
        put_in_debt(&queues, 1, Duration::from_secs(1));
        let (mut out, mut expired) = (Vec::new(), Vec::new());
        assert!(queues.take(10, Duration::ZERO, &mut out, &mut expired));
        let lens: Vec<usize> = expired.iter().map(|upcall| upcall.packet.len()).collect();
        assert_eq!((out.len(), lens), (0, vec![60]));
        assert_eq!(queues.stats().waiting, 1);
    }

    #[test]
    fn port_in_debt_gets_its_turn_at_once_when_its_share_becomes_larger() {
        let queues = new_queues(UpcallLimits::default());
        push(&queues, [upcall(1, 60)]);
        put_in_debt(&queues, 1, Duration::from_millis(400));
        assert_eq!(take(&queues, 10), [0_u32; 0]);
        // 1.6 s become 6 ms.
        queues.set_percent(6400);
        let (begin, mut out) = (Instant::now(), Vec::new());
        while out.is_empty() {
            assert!(queues.take(10, Duration::from_secs(20), &mut out, &mut Vec::new()));
        }
        assert!(out.len() == 1 && begin.elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn discarded_copies_for_the_controller_are_counted() {
        let queues = new_queues(UpcallLimits::default());
        let of = |reason| Upcall { reason, ..upcall(1, 60) };
        assert!(queues.discard(of(UpcallReason::Miss)).is_some());
        assert!(queues.discard(of(UpcallReason::Controller)).is_none());
        assert!(queues.discard(of(UpcallReason::Fuse(Box::default()))).is_none());
        assert_eq!(queues.stats().copies_lost, 1);
    }

    #[test]
    fn upcalls_of_a_removed_port_do_not_wait_for_the_end_of_its_debt() {
        let queues = new_queues(UpcallLimits::default());
        push(&queues, [upcall(1, 60), upcall(1, 60), upcall(2, 60)]);
        for port in [1, 2] {
            put_in_debt(&queues, port, Duration::from_secs(1));
        }
        assert_eq!(take(&queues, 10), [0_u32; 0]);
        queues.forget(PortNo(1));
        assert_eq!(take(&queues, 10), [1, 1]);
        assert_eq!(queues.stats().waiting, 1);
    }

    #[test]
    fn take_returns_when_the_queues_are_stopped() {
        let queues = Arc::new(new_queues(UpcallLimits::default()));
        let taken = Arc::clone(&queues);
        let taker = std::thread::spawn(move || {
            taken.take(1, Duration::from_secs(60), &mut Vec::new(), &mut Vec::new())
        });
        queues.stop();
        assert!(!taker.join().unwrap());
    }
}
