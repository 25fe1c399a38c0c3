//! The megaflows of a worker, by pass.
//!
//! A megaflow serves either first passes of packets or later ones. They are kept apart: a megaflow
//! of a first pass says nothing about the fields of connection tracking, so it would match packets
//! in later passes as well. Packets that are not tracked never search among later passes.

use super::cache::{Cache, CacheLimits, CacheStats, PutRefused};
use datapath::Cursor;
use datapath::megaflow::{Megaflow, MegaflowId, Usage};
use flow::Field;

/// The caches of a worker.
#[derive(Debug)]
pub(super) struct PassCaches {
    limits: CacheLimits,
    /// Megaflows of first passes.
    pub(super) first: Cache,
    /// Megaflows of later passes; made when the first one is installed, because a cache takes
    /// memory.
    later: Option<Box<Cache>>,
}

/// Marks cursors in the cache of later passes.
const LATER: u32 = 1 << 31;

impl PassCaches {
    /// Empty caches, each with these limits.
    pub(super) fn new(limits: CacheLimits) -> Self {
        Self { limits, first: Cache::new(limits), later: None }
    }

    /// The cache of later passes, if it has ever had a megaflow.
    pub(super) fn later(&mut self) -> Option<&mut Cache> {
        self.later.as_deref_mut()
    }

    /// Adds a megaflow to its cache.
    ///
    /// # Errors
    /// As [`Cache::put`].
    pub(super) fn put(&mut self, megaflow: &Megaflow) -> Result<(), PutRefused> {
        if megaflow.condition.mask().get(Field::RecircId) == 0 {
            return self.first.put(megaflow);
        }
        let limits = self.limits;
        self.later.get_or_insert_with(|| Box::new(Cache::new(limits))).put(megaflow)
    }

    /// Begins an epoch in both caches.
    pub(super) fn begin_epoch(&mut self) {
        self.all().for_each(Cache::begin_epoch);
    }

    /// Moves a megaflow to the current epoch, if it is in force.
    pub(super) fn confirm(&mut self, id: MegaflowId) {
        self.all().for_each(|cache| cache.confirm(id));
    }

    /// Puts the megaflows of earlier epochs out of force in both caches.
    pub(super) fn withdraw_unconfirmed(&mut self) {
        self.all().for_each(Cache::withdraw_unconfirmed);
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Cache> {
        std::iter::once(&mut self.first).chain(self.later.as_deref_mut())
    }

    /// Removes a megaflow and returns its counters.
    pub(super) fn delete(&mut self, id: MegaflowId) -> Option<Usage> {
        self.first.delete(id).or_else(|| self.later.as_mut()?.delete(id))
    }

    /// A megaflow and its counters.
    pub(super) fn get(&self, id: MegaflowId) -> Option<(Megaflow, Usage)> {
        self.first.get(id).or_else(|| self.later.as_ref()?.get(id))
    }

    /// A portion of all megaflows; see [`Cache::dump`].
    pub(super) fn dump(
        &self,
        from: Cursor,
        most: usize,
        out: &mut Vec<(Megaflow, Usage)>,
    ) -> Option<Cursor> {
        self.walk(from, |cache, from| cache.dump(from, most, out))
    }

    /// A portion of the counters of all megaflows; see [`Cache::usage`].
    pub(super) fn usage(
        &self,
        from: Cursor,
        most: usize,
        out: &mut Vec<(MegaflowId, Usage)>,
    ) -> Option<Cursor> {
        self.walk(from, |cache, from| cache.usage(from, most, out))
    }

    fn walk(
        &self,
        from: Cursor,
        walk: impl FnOnce(&Cache, Cursor) -> Option<Cursor>,
    ) -> Option<Cursor> {
        let in_later = |cursor: Cursor| Cursor(cursor.0 | LATER);
        if from.0 & LATER != 0 {
            return walk(self.later.as_ref()?, Cursor(from.0 & !LATER)).map(in_later);
        }
        let next = walk(&self.first, from);
        next.or_else(|| self.later.as_ref().map(|_| in_later(Cursor::default())))
    }

    /// Sorts the masks of both caches; see [`Cache::maintain`].
    pub(super) fn maintain(&mut self) {
        self.all().for_each(Cache::maintain);
    }

    /// The number of megaflows, of masks, and the counters of lookups.
    pub(super) fn totals(&self) -> (usize, usize, CacheStats) {
        let mut stats = self.first.stats();
        let (mut megaflows, mut masks) = (self.first.len(), self.first.mask_count());
        if let Some(later) = &self.later {
            let CacheStats { lookups, exact_hits, search_hits, mask_probes } = later.stats();
            stats.lookups += lookups;
            stats.exact_hits += exact_hits;
            stats.search_hits += search_hits;
            stats.mask_probes += mask_probes;
            megaflows += later.len();
            masks += later.mask_count();
        }
        (megaflows, masks, stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{Action, DropReason, FlowKey, FlowMask, Match};

    fn megaflow(recirc_id: u128, port: u128) -> Megaflow {
        let (mut key, mut mask) = (FlowKey::default(), FlowMask::default());
        key.set(Field::RecircId, recirc_id);
        key.set(Field::TpDst, port);
        mask.add(Field::TpDst);
        if recirc_id != 0 {
            mask.add(Field::RecircId);
        }
        Megaflow::new(Match::new(&key, mask), [Action::Drop(DropReason::NoFlow)].into())
    }

    #[test]
    fn later_pass_never_finds_a_megaflow_of_a_first_pass() {
        let mut caches = PassCaches::new(CacheLimits::default());
        let (first, later) = (megaflow(0, 80), megaflow(7, 80));
        caches.put(&first).expect("there is room");
        let mut key = FlowKey::default();
        key.set(Field::TpDst, 80);
        assert_eq!(caches.first.look_up(&key, 1, 1).map(|hit| hit.id), Some(first.id));
        key.set(Field::RecircId, 7);
        assert!(caches.later().is_none());
        caches.put(&later).expect("there is room");
        let cache = caches.later().expect("it has a megaflow");
        let hit = cache.look_up_recirculated(&key, 1, 1).map(|hit| hit.id);
        assert_eq!(hit, Some(later.id));
        key.set(Field::RecircId, 8);
        assert!(cache.look_up_recirculated(&key, 1, 1).is_none());
    }

    #[test]
    fn walk_returns_the_megaflows_of_both_caches_once() {
        let mut caches = PassCaches::new(CacheLimits::default());
        let all: Vec<_> = (0..10).map(|n| megaflow(n / 5 * 3, n)).collect();
        all.iter().for_each(|megaflow| caches.put(megaflow).expect("there is room"));
        let (mut found, mut next) = (Vec::new(), Some(Cursor::default()));
        while let Some(from) = next {
            next = caches.usage(from, 3, &mut found);
        }
        let mut found: Vec<_> = found.into_iter().map(|(id, _)| id).collect();
        let mut expected: Vec<_> = all.iter().map(|megaflow| megaflow.id).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!((found, caches.totals().0), (expected, 10));
        assert!(all.iter().all(|megaflow| caches.get(megaflow.id).is_some()));
        assert!(all.iter().all(|megaflow| caches.delete(megaflow.id).is_some()));
        assert_eq!(caches.totals().0, 0);
    }
}
