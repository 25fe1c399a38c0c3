//! The megaflow cache of a forwarding worker.
//!
//! It belongs to one thread, so it needs no locks or atomics. A lookup has two steps:
//!
//! 1. *Exact match.* A table maps the hash of a key to the megaflow that served it last. This is
//!    only a hint: the megaflow's mask and values are compared with the key, so hash collisions and
//!    stale entries are harmless.
//! 2. *Tuple space search.* There is one subtable for each mask, and those with the most hits are
//!    tried first. The first match wins, because megaflows that overlap have the same effect.
//!
//! The hashes are seeded, so a sender cannot choose packets that collide, and a lookup costs at
//! most one probe for each mask.
//!
//! A megaflow keeps its slot while it is cached. So a walk in portions ([`Cache::dump`],
//! [`Cache::usage`]) neither misses nor repeats one.

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
use hash::HashSecret;
use index::Index;
use interner::Interner;
use slab::Slab;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use store::{Chunk, Slot, Store, StoredMegaflow};
use subtable::Subtable;

/// The size limits of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheLimits {
    /// The most megaflows, at most 2^24 - 2. Further ones are refused.
    pub megaflows: usize,
}

impl CacheLimits {
    /// A record has 24 bits for the number of its action list, and in the worst case every megaflow
    /// has a list of its own.
    const MAX_MEGAFLOWS: usize = (1 << StoredMegaflow::LIST_BITS) - 2;
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self { megaflows: 200_000 }
    }
}

/// Why a megaflow was not cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PutRefused {
    /// The limit is reached.
    #[error("the cache is full")]
    Full,
    /// A megaflow with another match has the same number.
    #[error("another megaflow has the same number")]
    Collision,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug)]
pub struct CacheHit<'a> {
    /// The megaflow's number.
    pub id: MegaflowId,
    /// The actions to execute.
    pub actions: &'a Arc<[Action]>,
}

/// A mask and the number of its megaflows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MaskUse {
    /// The mask.
    pub mask: FlowMask,
    /// At least 1.
    pub megaflows: usize,
}

/// Counters of lookups.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CacheStats {
    /// Packets looked up.
    pub lookups: u64,
    /// Packets found in the exact-match cache.
    pub exact_hits: u64,
    /// Packets found by the search through the masks. The rest are misses.
    pub search_hits: u64,
    /// Masks tried by searches.
    pub mask_probes: u64,
}

/// The megaflows of one worker.
pub struct Cache {
    limits: CacheLimits,
    secret: HashSecret,
    exact: ExactCache,
    store: Store,
    subtables: Slab<Subtable>,
    /// The subtables in search order.
    order: Vec<u32>,
    masks: HashMap<FlowMask, u32, RandomState>,
    ids: Index,
    lists: Interner,
    len: usize,
    stats: CacheStats,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret must not be shown, and the megaflows are too many.
        let mut show = f.debug_struct("Cache");
        show.field("len", &self.len).field("masks", &self.order.len()).field("stats", &self.stats);
        show.finish_non_exhaustive()
    }
}

impl Cache {
    /// Makes an empty cache with a random secret.
    pub fn new(limits: CacheLimits) -> Self {
        Self {
            limits: CacheLimits { megaflows: limits.megaflows.min(CacheLimits::MAX_MEGAFLOWS) },
            secret: HashSecret::new(),
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

    /// Looks up the megaflow for a packet of `bytes` bytes with that key, and counts the hit at
    /// `now_ms` (milliseconds since the datapath started). `None` if there is none.
    #[inline]
    pub fn look_up(&mut self, key: &FlowKey, bytes: usize, now_ms: u64) -> Option<CacheHit<'_>> {
        let hash = self.secret.of_packet(key);
        self.look_up_hashed(key, hash, bytes, now_ms)
    }

    /// As [`look_up`](Self::look_up), for a packet in a later pass. A cache serves either first
    /// passes or later ones.
    pub fn look_up_recirculated(
        &mut self,
        key: &FlowKey,
        bytes: usize,
        now_ms: u64,
    ) -> Option<CacheHit<'_>> {
        let hash = self.secret.of_recirculated(key);
        self.look_up_hashed(key, hash, bytes, now_ms)
    }

    #[inline]
    fn look_up_hashed(
        &mut self,
        key: &FlowKey,
        hash: u64,
        bytes: usize,
        now_ms: u64,
    ) -> Option<CacheHit<'_>> {
        self.stats.lookups += 1;
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
        Some(CacheHit { id: record.id, actions: self.lists.get(record.list())? })
    }

    /// Searches the subtables one after the other.
    #[inline(never)]
    fn search(&mut self, key: &FlowKey, hash: u64) -> Option<Slot> {
        for &number in &self.order {
            let Some(subtable) = self.subtables.get_mut(number) else { continue };
            self.stats.mask_probes += 1;
            let (mask_words, store) = (&*subtable.mask_words, &self.store);
            let masked_hash = self.secret.of_mask_words(mask_words, key);
            let is = |slot: Slot| {
                store
                    .get(slot.chunk())
                    .is_some_and(|chunk| chunk.matches(slot.at(), mask_words, key))
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

    /// Adds a megaflow. An existing one with the same match gets the new actions and keeps its
    /// counters.
    ///
    /// # Errors
    /// [`PutRefused`]; the cache is unchanged.
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
        let record = StoredMegaflow::new(megaflow.id, self.lists.acquire(&megaflow.actions));
        let slot = Slot::new(chunk_number, chunk.insert(&subtable.mask_words, key, record));
        if chunk.is_full() {
            subtable.open.pop();
        }
        subtable.index.insert(self.secret.of_mask_words(&subtable.mask_words, key), slot);
        subtable.len += 1;
        self.ids.insert(megaflow.id.0, slot);
        self.len += 1;
        Ok(())
    }

    fn replace(&mut self, slot: Slot, megaflow: &Megaflow) -> Result<(), PutRefused> {
        if self.condition(slot).as_ref() != Some(&megaflow.condition) {
            return Err(PutRefused::Collision);
        }
        let Some(chunk) = self.store.get_mut(slot.chunk()) else { return Ok(()) };
        chunk.enforce(slot.at());
        if let Some(record) = chunk.record_mut(slot.at()) {
            // Take the new list before releasing the old one: they may be equal.
            let old = record.list();
            record.set_list(self.lists.acquire(&megaflow.actions));
            self.lists.release(old);
        }
        Ok(())
    }

    /// The subtable of a mask, made if it does not exist.
    fn subtable_for(&mut self, mask: &FlowMask) -> u32 {
        if let Some(&number) = self.masks.get(mask) {
            return number;
        }
        let number = self.subtables.insert(Subtable::new(mask));
        self.masks.insert(mask.clone(), number);
        self.order.push(number);
        number
    }

    /// Begins an epoch: megaflows that are put or confirmed from now on belong to it.
    pub fn begin_epoch(&mut self) {
        self.store.values_mut().for_each(Chunk::begin_epoch);
    }

    /// Moves a megaflow to the current epoch, if it is in force.
    pub fn confirm(&mut self, id: MegaflowId) {
        if let Some(slot) = self.slot_of(id)
            && let Some(chunk) = self.store.get_mut(slot.chunk())
        {
            chunk.confirm(slot.at());
        }
    }

    /// True if lookups find the megaflow.
    pub fn is_in_force(&self, id: MegaflowId) -> bool {
        let is_in_force = |slot: Slot| Some(self.store.get(slot.chunk())?.is_in_force(slot.at()));
        self.slot_of(id).and_then(is_in_force).unwrap_or(false)
    }

    /// Puts the megaflows of earlier epochs out of force: lookups do not find them. It takes a few
    /// nanoseconds for 64 of them.
    pub fn withdraw_unconfirmed(&mut self) {
        self.store.values_mut().for_each(Chunk::withdraw_unconfirmed);
    }

    /// Removes a megaflow and returns its counters. `None` if it does not exist.
    pub fn delete(&mut self, id: MegaflowId) -> Option<Usage> {
        let slot = self.slot_of(id)?;
        let chunk = self.store.get_mut(slot.chunk())?;
        let number = chunk.subtable;
        let subtable = self.subtables.get_mut(number)?;
        let hash = self
            .secret
            .of_mask_words(&subtable.mask_words, &chunk.key(slot.at(), &subtable.mask_words));
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
        self.lists.release(record.list());
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
        Some(Match::new(&chunk.key(slot.at(), &subtable.mask_words), subtable.mask()))
    }

    /// A megaflow and its counters.
    pub fn get(&self, id: MegaflowId) -> Option<(Megaflow, Usage)> {
        let slot = self.slot_of(id)?;
        self.megaflow(slot, self.store.get(slot.chunk())?.record(slot.at())?)
    }

    fn megaflow(&self, slot: Slot, record: &StoredMegaflow) -> Option<(Megaflow, Usage)> {
        let condition = self.condition(slot)?;
        let actions = self.lists.get(record.list())?.clone();
        Some((Megaflow { id: record.id, condition, actions, fusion: None }, record.usage()))
    }

    /// Adds up to `most` megaflows (at least one) from `from` on to `out`, and returns where the
    /// next portion begins; `None` at the end. A megaflow that is cached from the first portion to
    /// the last is in exactly one of them. One that is added or removed meanwhile may be missing,
    /// and one that is removed and added again may be there twice.
    pub fn dump(
        &self,
        from: Cursor,
        most: usize,
        out: &mut Vec<(Megaflow, Usage)>,
    ) -> Option<Cursor> {
        self.walk(from, most, |slot, record| out.extend(self.megaflow(slot, record)))
    }

    /// Like [`dump`](Self::dump), without matches and actions, which makes it much cheaper.
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
        mut each: impl FnMut(Slot, &StoredMegaflow),
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

    /// Sorts the masks by their recent hits, so that busy ones are tried first. Call it about twice
    /// a second.
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

    /// Removes all megaflows. The counters of [`stats`](Self::stats) stay.
    pub fn clear(&mut self) {
        *self = Self { stats: self.stats, ..Self::new(self.limits) };
    }

    /// The number of megaflows.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of masks, which is the number of probes of a miss.
    pub const fn mask_count(&self) -> usize {
        self.order.len()
    }

    /// The masks in search order. There is none without megaflows.
    pub fn masks(&self) -> impl Iterator<Item = MaskUse> {
        let subtables = self.order.iter().filter_map(|&number| self.subtables.get(number));
        subtables.map(|subtable| MaskUse { mask: subtable.mask(), megaflows: subtable.len })
    }

    /// The number of different action lists.
    #[cfg(test)]
    pub fn action_lists(&self) -> usize {
        self.lists.len()
    }

    /// The counters of lookups.
    pub const fn stats(&self) -> CacheStats {
        self.stats
    }

    /// Bytes allocated by the cache, including unused capacity. Data that actions point to, such as
    /// nested lists and log records, is not counted.
    pub fn memory_bytes(&self) -> usize {
        let subtables = self.subtables.iter_from(0).map(|(_, subtable)| subtable.memory_bytes());
        // A hash map has up to 8/7 buckets for each element of its capacity, each with a control
        // byte.
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

/// True if the slot has a megaflow that matches the key.
#[inline]
fn is_hit(store: &Store, subtables: &Slab<Subtable>, slot: Slot, key: &FlowKey) -> bool {
    let Some(chunk) = store.get(slot.chunk()) else { return false };
    let Some(subtable) = subtables.get(chunk.subtable) else { return false };
    chunk.matches(slot.at(), &subtable.mask_words, key)
}
