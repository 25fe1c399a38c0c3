//! The megaflow cache of a forwarding worker.
//!
//! It belongs to one thread: there is no lock and no atomic. A packet's key is looked up in two steps:
//!
//! 1. *Exact match.* An array says which megaflow served the last packet with the hash of this key. That is a guess: the
//!    megaflow's own mask and values are compared, so that neither two keys with one hash nor an entry that has become stale can
//!    lead to a megaflow that is not for this packet.
//! 2. *Tuple search.* One subtable for every mask, those that were hit often first. The first megaflow whose condition the key
//!    meets is the answer: megaflows that overlap do the same with the packets that both are for.
//!
//! Hashes are seeded: packets cannot be chosen to collide, so that a lookup costs at most one probe for every mask.
//!
//! A megaflow stays in its slot as long as it is cached. That is why a walk in portions ([`Cache::dump`], [`Cache::usage`]) misses
//! none and names none twice.

mod exact;
mod hash;
mod index;
mod interner;
mod slab;
mod store;
mod subtable;
#[cfg(test)]
mod tests;

use ahash::RandomState;
use datapath::Cursor;
use datapath::megaflow::{Megaflow, MegaflowId, Usage};
use exact::ExactCache;
use flow::{Action, FlowKey, FlowMask, Match};
use hash::Secret;
use index::Index;
use interner::Interner;
use slab::Slab;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use store::{Chunk, Record, Slot, Store};
use subtable::Subtable;

/// How large a cache may become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheLimits {
    /// Megaflows; what comes when there are so many is refused. No cache takes more than 2^24 - 2.
    pub megaflows: usize,
}

impl CacheLimits {
    /// In the worst case every megaflow has a list of actions for itself, which a record must be able to name. (Slots have 32 bits, which is
    /// enough for as many chunks.)
    const MOST: usize = (1 << Record::LIST_BITS) - 2;
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self { megaflows: 200_000 }
    }
}

/// Why a megaflow was not cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PutRefused {
    /// There are as many as the limit allows.
    #[error("the cache is full")]
    Full,
    /// Another condition has the same number.
    #[error("another megaflow has the same number")]
    Collision,
}

/// The megaflow for a packet.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    /// Its number.
    pub id: MegaflowId,
    /// What is to be done with the packet.
    pub actions: &'a Arc<[Action]>,
}

/// A mask, and how many megaflows have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MaskUse {
    /// The mask.
    pub mask: FlowMask,
    /// At least 1.
    pub megaflows: usize,
}

/// What the cache has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CacheStats {
    /// Packets that were looked up.
    pub lookups: u64,
    /// Those that the exact-match cache had the answer for.
    pub exact_hits: u64,
    /// Those that the search through the masks found an answer for. The rest are misses.
    pub search_hits: u64,
    /// Masks that searches have tried.
    pub mask_probes: u64,
}

/// See the module.
pub struct Cache {
    limits: CacheLimits,
    secret: Secret,
    exact: ExactCache,
    store: Store,
    subtables: Slab<Subtable>,
    /// The subtables in the order of the search.
    order: Vec<u32>,
    masks: HashMap<FlowMask, u32, RandomState>,
    ids: Index,
    lists: Interner,
    len: usize,
    stats: CacheStats,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the secret nor 200,000 megaflows.
        let mut show = f.debug_struct("Cache");
        show.field("len", &self.len).field("masks", &self.order.len()).field("stats", &self.stats);
        show.finish_non_exhaustive()
    }
}

impl Cache {
    /// An empty cache with a secret of its own.
    pub fn new(limits: CacheLimits) -> Self {
        Self {
            limits: CacheLimits { megaflows: limits.megaflows.min(CacheLimits::MOST) },
            secret: Secret::new(),
            exact: ExactCache::new(),
            store: Store::default(),
            subtables: Slab::default(),
            order: Vec::new(),
            masks: HashMap::default(),
            ids: Index::default(),
            lists: Interner::default(),
            len: 0,
            stats: CacheStats::default(),
        }
    }

    /// The megaflow for a packet of `bytes` with that key, which is counted as used at `now_ms` (milliseconds since the datapath
    /// started). `None` when there is none: the packet is for the slow path.
    #[inline]
    pub fn look_up(&mut self, key: &FlowKey, bytes: usize, now_ms: u64) -> Option<Hit<'_>> {
        self.stats.lookups += 1;
        let hash = self.secret.of_packet(key);
        let (store, subtables) = (&self.store, &self.subtables);
        let slot = match self.exact.find(hash, |slot| is_hit(store, subtables, slot, key)) {
            Some(slot) => {
                self.stats.exact_hits += 1;
                slot
            }
            None => self.search(key, hash)?,
        };
        let record = self.store.get_mut(slot.chunk())?.record_mut(slot.at())?;
        record.hit(bytes as u64, now_ms);
        Some(Hit { id: record.id, actions: self.lists.get(record.list())? })
    }

    /// Tries one mask after another.
    #[inline(never)]
    fn search(&mut self, key: &FlowKey, hash: u64) -> Option<Slot> {
        for &number in &self.order {
            let Some(subtable) = self.subtables.get_mut(number) else { continue };
            self.stats.mask_probes += 1;
            let (lanes, store) = (&*subtable.lanes, &self.store);
            let masked_hash = self.secret.of_lanes(lanes, key);
            let is = |slot: Slot| {
                store.get(slot.chunk()).is_some_and(|chunk| chunk.matches(slot.at(), lanes, key))
            };
            if let Some(slot) = subtable.index.find(masked_hash, is) {
                subtable.hits += 1;
                self.stats.search_hits += 1;
                self.exact.note(hash, slot);
                return Some(slot);
            }
        }
        None
    }

    /// Caches a megaflow. One with the same condition gets the new actions and keeps its counters.
    ///
    /// # Errors
    /// [`PutRefused`]; nothing is changed then.
    pub fn put(&mut self, megaflow: &Megaflow) -> Result<(), PutRefused> {
        if let Some(slot) = self.slot_of(megaflow.id) {
            return self.replace(slot, megaflow);
        }
        if self.len >= self.limits.megaflows {
            return Err(PutRefused::Full);
        }
        let number = self.subtable_for(megaflow.condition.mask());
        let Some(subtable) = self.subtables.get_mut(number) else { return Err(PutRefused::Full) };
        let chunk_number = subtable.open.last().copied().unwrap_or_else(|| {
            let new = self.store.insert(Chunk::new(number));
            subtable.open.push(new);
            new
        });
        let Some(chunk) = self.store.get_mut(chunk_number) else { return Err(PutRefused::Full) };
        let key = megaflow.condition.key();
        let record = Record::new(megaflow.id, self.lists.take(&megaflow.actions));
        let slot = Slot::new(chunk_number, chunk.insert(&subtable.lanes, key, record));
        if chunk.is_full() {
            subtable.open.pop();
        }
        subtable.index.insert(self.secret.of_lanes(&subtable.lanes, key), slot);
        subtable.len += 1;
        self.ids.insert(megaflow.id.0, slot);
        self.len += 1;
        Ok(())
    }

    fn replace(&mut self, slot: Slot, megaflow: &Megaflow) -> Result<(), PutRefused> {
        if self.condition(slot).as_ref() != Some(&megaflow.condition) {
            return Err(PutRefused::Collision);
        }
        let record = self.store.get_mut(slot.chunk()).and_then(|chunk| chunk.record_mut(slot.at()));
        if let Some(record) = record {
            // First the new one: it may be the old one.
            let old = record.list();
            record.set_list(self.lists.take(&megaflow.actions));
            self.lists.give_back(old);
        }
        Ok(())
    }

    /// The subtable of a mask, made if there is none.
    fn subtable_for(&mut self, mask: &FlowMask) -> u32 {
        if let Some(&number) = self.masks.get(mask) {
            return number;
        }
        let number = self.subtables.insert(Subtable::new(mask));
        self.masks.insert(mask.clone(), number);
        self.order.push(number);
        number
    }

    /// Forgets a megaflow, and says how often it was hit since it was cached. `None` when there is none.
    pub fn delete(&mut self, id: MegaflowId) -> Option<Usage> {
        let slot = self.slot_of(id)?;
        let chunk = self.store.get_mut(slot.chunk())?;
        let number = chunk.subtable;
        let subtable = self.subtables.get_mut(number)?;
        let hash = self.secret.of_lanes(&subtable.lanes, &chunk.key(slot.at(), &subtable.lanes));
        let was_full = chunk.is_full();
        let record = chunk.remove(slot.at())?;
        let is_empty = chunk.is_empty();
        if was_full {
            subtable.open.push(slot.chunk());
        }
        if is_empty {
            subtable.open.retain(|&open| open != slot.chunk());
            self.store.remove(slot.chunk());
        }
        subtable.index.remove(hash, slot);
        subtable.len -= 1;
        if subtable.len == 0 {
            self.remove_subtable(number);
        }
        self.ids.remove(id.0, slot);
        self.lists.give_back(record.list());
        self.len -= 1;
        Some(record.usage())
    }

    fn remove_subtable(&mut self, number: u32) {
        if let Some(subtable) = self.subtables.remove(number) {
            self.masks.remove(&subtable.mask());
            self.order.retain(|&other| other != number);
        }
    }

    fn slot_of(&self, id: MegaflowId) -> Option<Slot> {
        let is = |slot: Slot| {
            let chunk = self.store.get(slot.chunk());
            chunk.and_then(|chunk| chunk.record(slot.at())).is_some_and(|record| record.id == id)
        };
        self.ids.find(id.0, is)
    }

    fn condition(&self, slot: Slot) -> Option<Match> {
        let chunk = self.store.get(slot.chunk())?;
        let subtable = self.subtables.get(chunk.subtable)?;
        Some(Match::new(&chunk.key(slot.at(), &subtable.lanes), subtable.mask()))
    }

    /// A megaflow and how often it was hit.
    pub fn get(&self, id: MegaflowId) -> Option<(Megaflow, Usage)> {
        let slot = self.slot_of(id)?;
        self.megaflow(slot, self.store.get(slot.chunk())?.record(slot.at())?)
    }

    fn megaflow(&self, slot: Slot, record: &Record) -> Option<(Megaflow, Usage)> {
        let condition = self.condition(slot)?;
        let actions = self.lists.get(record.list())?.clone();
        Some((Megaflow { id: record.id, condition, actions }, record.usage()))
    }

    /// Adds the next portion of all megaflows to `out`, `most` of them but at least one, and says where the next portion begins;
    /// `None` at the end. Megaflows that are cached from the first portion to the last are in exactly one; one that comes or goes in
    /// between may be missing, and one that goes and comes again may be there twice.
    pub fn dump(
        &self,
        from: Cursor,
        most: usize,
        out: &mut Vec<(Megaflow, Usage)>,
    ) -> Option<Cursor> {
        self.walk(from, most, |slot, record| out.extend(self.megaflow(slot, record)))
    }

    /// As [`dump`](Self::dump), without the conditions and actions, which makes it much cheaper.
    pub fn usage(
        &self,
        from: Cursor,
        most: usize,
        out: &mut Vec<(MegaflowId, Usage)>,
    ) -> Option<Cursor> {
        self.walk(from, most, |_, record| out.push((record.id, record.usage())))
    }

    fn walk(
        &self,
        from: Cursor,
        most: usize,
        mut each: impl FnMut(Slot, &Record),
    ) -> Option<Cursor> {
        let (mut left, from) = (most.max(1), Slot(from.0));
        for (number, chunk) in self.store.iter_from(from.chunk()) {
            let skip = if number == from.chunk() { from.at() } else { 0 };
            for (at, record) in chunk.iter_from(skip) {
                let slot = Slot::new(number, at);
                if left == 0 {
                    return Some(Cursor(slot.0));
                }
                each(slot, record);
                left -= 1;
            }
        }
        None
    }

    /// What is to be done now and then, such as twice a second: the masks that were hit most in the last while are tried first
    /// from now on.
    pub fn maintain(&mut self) {
        let subtables = &self.subtables;
        let hits = |&number: &u32| subtables.get(number).map_or(0, |subtable| subtable.hits);
        self.order.sort_by_key(|number| std::cmp::Reverse(hits(number)));
        for &number in &self.order {
            if let Some(subtable) = self.subtables.get_mut(number) {
                subtable.hits /= 2;
            }
        }
    }

    /// Forgets all megaflows. What was counted by [`stats`](Self::stats) stays.
    pub fn clear(&mut self) {
        *self = Self { stats: self.stats, ..Self::new(self.limits) };
    }

    /// How many megaflows there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True when there is none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many masks there are: so many probes a miss costs.
    pub const fn mask_count(&self) -> usize {
        self.order.len()
    }

    /// Every mask in the order of the search. A mask without megaflows is forgotten.
    pub fn masks(&self) -> impl Iterator<Item = MaskUse> {
        let subtables = self.order.iter().filter_map(|&number| self.subtables.get(number));
        subtables.map(|subtable| MaskUse { mask: subtable.mask(), megaflows: subtable.len })
    }

    /// How many different lists of actions the megaflows have.
    pub fn action_lists(&self) -> usize {
        self.lists.len()
    }

    /// What has been done so far.
    pub const fn stats(&self) -> CacheStats {
        self.stats
    }

    /// Bytes of memory that the cache has allocated, room not yet used included. Of the actions, what they point to in turn is left
    /// out: lists within lists, log records.
    pub fn memory_bytes(&self) -> usize {
        let subtables = self.subtables.iter_from(0).map(|(_, subtable)| subtable.memory_bytes());
        // A hash map has at most 8/7 as many buckets as its capacity, each with one byte of control.
        let mask_bytes = size_of::<(FlowMask, u32)>() + 1;
        self.exact.memory_bytes()
            + store::memory_bytes(&self.store)
            + self.subtables.memory_bytes()
            + subtables.sum::<usize>()
            + self.order.capacity() * size_of::<u32>()
            + self.masks.capacity() * mask_bytes * 8 / 7
            + self.ids.memory_bytes()
            + self.lists.memory_bytes()
    }
}

/// True when there is a megaflow in the slot, and it is for packets with that key.
#[inline]
fn is_hit(store: &Store, subtables: &Slab<Subtable>, slot: Slot, key: &FlowKey) -> bool {
    let Some(chunk) = store.get(slot.chunk()) else { return false };
    let Some(subtable) = subtables.get(chunk.subtable) else { return false };
    chunk.matches(slot.at(), &subtable.lanes, key)
}
