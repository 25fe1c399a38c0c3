//! Upcalls: packets for which the datapath has no megaflow, on their way to whoever translates them.
//!
//! Each port has a queue of its own with a limit, and the queues take turns: a guest that sends nothing but new flows fills
//! its own queue, and the others' packets do not wait behind it.

use crate::megaflow::{Megaflow, MegaflowId};
use ahash::HashMap;
use flow::{Action, FlowKey, PortNo};
use packet::PacketBuf;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why a packet comes up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UpcallReason {
    /// No megaflow matches it: it waits for its [`Answer`].
    Miss,
    /// A copy, by [`Action::Controller`]: nobody waits for an answer.
    Controller,
}

/// The forwarding worker that an upcall came from, and its answer goes to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct WorkerId(pub u16);

/// A packet that comes up.
#[derive(Debug)]
pub struct Upcall {
    /// The packet as it came in: nothing of it has been changed but that its tunnel was taken off.
    pub packet: PacketBuf,
    /// What was extracted from it.
    pub key: FlowKey,
    /// Where it came in.
    pub port: PortNo,
    /// Why.
    pub reason: UpcallReason,
    /// From whom.
    pub worker: WorkerId,
}

/// What becomes of a packet that came up.
#[derive(Debug)]
pub struct Answer {
    /// The packet.
    pub upcall: Upcall,
    /// What to do with it.
    pub actions: Arc<[Action]>,
    /// What to do with others from now on; it is in place before the packet is sent.
    pub megaflow: Option<Box<Megaflow>>,
    /// The megaflow that stands for this decision, new or not; for who watches drops.
    pub decided_by: Option<MegaflowId>,
}

/// How much may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UpcallLimits {
    /// Packets of one port.
    pub packets: usize,
    /// Bytes of one port's packets. One packet may wait whatever its length.
    pub bytes: usize,
}

impl Default for UpcallLimits {
    fn default() -> Self {
        Self { packets: 512, bytes: 1 << 20 }
    }
}

impl UpcallLimits {
    /// Adds a packet of `len` bytes to what waits; false when there is no room for it.
    pub(crate) fn admit(&self, waiting: &mut Waiting, len: usize) -> bool {
        let bytes = waiting.bytes.saturating_add(len);
        let has_room = waiting.packets < self.packets && bytes <= self.bytes;
        if waiting.packets > 0 && !has_room {
            return false;
        }
        waiting.packets += 1;
        waiting.bytes = bytes;
        true
    }
}

/// What waits of one port.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Waiting {
    packets: usize,
    bytes: usize,
}

/// The queues of all ports; see the module. Workers push, upcall handlers take, each from any thread.
#[derive(Debug)]
pub struct UpcallQueues {
    limits: UpcallLimits,
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queues: HashMap<PortNo, Queue>,
    /// The ports whose queue is not empty, in the order of their turns.
    turns: VecDeque<PortNo>,
    stopped: bool,
}

#[derive(Debug, Default)]
struct Queue {
    upcalls: VecDeque<Upcall>,
    waiting: Waiting,
}

impl UpcallQueues {
    /// Empty ones.
    pub fn new(limits: UpcallLimits) -> Self {
        Self { limits, state: Mutex::default(), ready: Condvar::new() }
    }

    /// How much there may be of each port.
    pub(crate) const fn limits(&self) -> UpcallLimits {
        self.limits
    }

    /// What waits of a port at this moment.
    pub(crate) fn waiting(&self, port: PortNo) -> Waiting {
        self.lock().queues.get(&port).map_or_else(Waiting::default, |queue| queue.waiting)
    }

    /// Queues what `upcalls` holds, which is empty then. What finds its port's queue full is given to `refused`.
    pub fn push(&self, upcalls: &mut Vec<Upcall>, mut refused: impl FnMut(Upcall)) {
        if upcalls.is_empty() {
            return;
        }
        let mut state = self.lock();
        let State { queues, turns, .. } = &mut *state;
        for upcall in upcalls.drain(..) {
            let queue = queues.entry(upcall.port).or_default();
            if !self.limits.admit(&mut queue.waiting, upcall.packet.len()) {
                refused(upcall);
                continue;
            }
            if queue.upcalls.is_empty() {
                turns.push_back(upcall.port);
            }
            queue.upcalls.push_back(upcall);
        }
        drop(state);
        self.ready.notify_one();
    }

    /// Moves up to `most` upcalls into `out`, one of each port in turn; waits up to `timeout` for the first. False once the
    /// datapath has [stopped](Self::stop).
    pub fn take(&self, most: usize, timeout: Duration, out: &mut Vec<Upcall>) -> bool {
        let end = Instant::now() + timeout;
        let mut state = self.lock();
        while state.turns.is_empty() && !state.stopped {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let waited = self.ready.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let State { queues, turns, stopped } = &mut *state;
        for _ in 0..most {
            let Some(port) = turns.pop_front() else { break };
            let Some(queue) = queues.get_mut(&port) else { continue };
            if let Some(upcall) = queue.upcalls.pop_front() {
                queue.waiting.packets -= 1;
                queue.waiting.bytes -= upcall.packet.len();
                out.push(upcall);
            }
            if queue.upcalls.is_empty() {
                // A port that is gone leaves nothing behind.
                queues.remove(&port);
            } else {
                turns.push_back(port);
            }
        }
        if !turns.is_empty() {
            // Another handler, if there is one, may take what is left.
            self.ready.notify_one();
        }
        !*stopped
    }

    /// Wakes everybody who waits; from now on nobody does.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.ready.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upcall(port: u32, len: usize) -> Upcall {
        Upcall {
            packet: PacketBuf::from_bytes(&vec![0; len]),
            key: FlowKey::default(),
            port: PortNo(port),
            reason: UpcallReason::Miss,
            worker: WorkerId(0),
        }
    }

    fn push(queues: &UpcallQueues, upcalls: impl IntoIterator<Item = Upcall>) -> usize {
        let mut refused = 0;
        queues.push(&mut upcalls.into_iter().collect(), |_| refused += 1);
        refused
    }

    fn take(queues: &UpcallQueues, most: usize) -> Vec<u32> {
        let mut out = Vec::new();
        assert!(queues.take(most, Duration::ZERO, &mut out));
        out.iter().map(|upcall| upcall.port.0).collect()
    }

    #[test]
    fn ports_take_turns_when_one_floods() {
        let queues = UpcallQueues::new(UpcallLimits::default());
        push(&queues, (0..100).map(|_| upcall(1, 60)));
        push(&queues, [upcall(2, 60), upcall(2, 60), upcall(3, 60)]);
        assert_eq!(take(&queues, 6), [1, 2, 3, 1, 2, 1]);
        assert_eq!(take(&queues, 1000).len(), 97);
        assert_eq!(take(&queues, 1), [0_u32; 0]);
    }

    #[test]
    fn packets_are_refused_when_their_ports_queue_is_full_and_only_then() {
        let queues = UpcallQueues::new(UpcallLimits { packets: 3, bytes: 1000 });
        assert_eq!(push(&queues, (0..5).map(|_| upcall(1, 60))), 2);
        assert_eq!(push(&queues, (0..3).map(|_| upcall(2, 60))), 0);
        // A packet that is longer than the limit waits alone.
        assert_eq!(push(&queues, [upcall(3, 5000), upcall(3, 1)]), 1);
        assert_eq!(take(&queues, 3), [1, 2, 3]);
        assert_eq!(push(&queues, [upcall(1, 60), upcall(1, 900)]), 1);
    }

    #[test]
    fn what_waits_foretells_what_is_refused() {
        let limits = UpcallLimits { packets: 4, bytes: 1000 };
        for lens in [[60; 6], [400; 6], [5000, 1, 1, 1, 1, 1], [1, 999, 0, 1, 0, 0]] {
            for before in 0..lens.len() {
                let queues = UpcallQueues::new(limits);
                push(&queues, lens[..before].iter().map(|&len| upcall(1, len)));
                let mut foreseen = queues.waiting(PortNo(1));
                for &len in &lens[before..] {
                    let admits = limits.admit(&mut foreseen, len);
                    assert_eq!(push(&queues, [upcall(1, len)]), usize::from(!admits), "{lens:?}");
                    assert_eq!(queues.waiting(PortNo(1)), foreseen);
                }
                let all = take(&queues, lens.len()).len();
                assert!(all > 0 && queues.waiting(PortNo(1)) == Waiting::default());
            }
        }
    }

    #[test]
    fn waiting_ends_when_the_datapath_stops() {
        let queues = Arc::new(UpcallQueues::new(UpcallLimits::default()));
        let waiting = Arc::clone(&queues);
        let waiter =
            std::thread::spawn(move || waiting.take(1, Duration::from_secs(60), &mut Vec::new()));
        queues.stop();
        assert!(!waiter.join().unwrap());
    }
}
