//! [`Timers`]: finds expired connections, with bounded work per call.
//!
//! The timers are a ring of buckets, one per second. A packet that prolongs the life of its
//! connection only writes the new deadline into the entry. When the time of its bucket comes, the
//! entry moves to the bucket of its deadline. Entries with deadlines beyond the ring are in its
//! last bucket.

use crate::entry::NONE;
use crate::slab::Slab;

const BUCKETS: u32 = 1024;
const TICK_MS: u64 = 1000;

#[derive(Debug)]
pub(crate) struct Timers {
    heads: Vec<u32>,
    /// The next tick to look at. All entries are in buckets of this tick or later.
    cursor: u32,
}

impl Timers {
    pub fn new(now_ms: u64) -> Self {
        Self { heads: vec![NONE; BUCKETS as usize], cursor: tick_of(now_ms) }
    }

    /// Adds an entry to the bucket of its deadline.
    pub fn insert(&mut self, slab: &mut Slab, slot: u32) {
        let Some(entry) = slab.get_mut(slot) else { return };
        // The tick is the one after the deadline's, so that the deadline has passed when it comes.
        // It is at least one after the cursor, so that a bucket does not grow while it is emptied.
        let due = tick_of(entry.deadline_ms).saturating_add(1);
        let tick = due.clamp(self.cursor + 1, self.cursor + BUCKETS - 1);
        let head = &mut self.heads[(tick % BUCKETS) as usize];
        entry.tick = tick;
        entry.previous = NONE;
        entry.next = *head;
        let next = std::mem::replace(head, slot);
        if let Some(next) = slab.get_mut(next) {
            next.previous = slot;
        }
    }

    pub fn remove(&mut self, slab: &mut Slab, slot: u32) {
        let Some(entry) = slab.get(slot) else { return };
        let (previous, next, tick) = (entry.previous, entry.next, entry.tick);
        match slab.get_mut(previous) {
            Some(previous) => previous.next = next,
            None => self.heads[(tick % BUCKETS) as usize] = next,
        }
        if let Some(next) = slab.get_mut(next) {
            next.previous = previous;
        }
    }

    /// Moves an entry whose deadline has become earlier. An entry whose deadline has become later
    /// stays in its bucket.
    pub fn deadline_changed(&mut self, slab: &mut Slab, slot: u32) {
        let Some(entry) = slab.get(slot) else { return };
        if tick_of(entry.deadline_ms).saturating_add(1) < entry.tick {
            self.remove(slab, slot);
            self.insert(slab, slot);
        }
    }

    /// The next entry whose bucket's time has come.
    pub fn due(&mut self, now_ms: u64) -> Option<u32> {
        let now = tick_of(now_ms);
        if now.saturating_sub(self.cursor) > BUCKETS {
            // Every bucket is visited once; its entries then expire or move to new buckets.
            self.cursor = now - BUCKETS;
        }
        while self.cursor <= now {
            let head = self.heads[(self.cursor % BUCKETS) as usize];
            if head != NONE {
                return Some(head);
            }
            self.cursor += 1;
        }
        None
    }
}

/// The tick of a time. Times beyond 136 years saturate.
fn tick_of(ms: u64) -> u32 {
    // The limit leaves room for additions to ticks.
    (ms / TICK_MS).min(u64::from(u32::MAX - 4 * BUCKETS)) as u32
}
