//! [`Usage`]: the number of connections of each zone or port, and its limit.

use std::collections::HashMap;
use std::hash::Hash;

use ahash::RandomState;

/// Connections and limits by zone or by port. Only zones and ports with a connection or with a
/// limit of their own take memory.
#[derive(Debug)]
pub(crate) struct Usage<K> {
    counts: HashMap<K, u32, RandomState>,
    limits: HashMap<K, u32, RandomState>,
    default_limit: u32,
}

impl<K: Copy + Eq + Hash> Usage<K> {
    pub fn new(default_limit: u32, hasher: &RandomState) -> Self {
        Self {
            counts: HashMap::with_hasher(hasher.clone()),
            limits: HashMap::with_hasher(hasher.clone()),
            default_limit,
        }
    }

    pub fn count(&self, owner: K) -> u32 {
        self.counts.get(&owner).copied().unwrap_or(0)
    }

    pub fn limit(&self, owner: K) -> u32 {
        self.limits.get(&owner).copied().unwrap_or(self.default_limit)
    }

    /// The limit of this zone or port, if it has one of its own.
    pub fn own_limit(&self, owner: K) -> Option<u32> {
        self.limits.get(&owner).copied()
    }

    /// Sets the limit of zones or ports without one of their own. Existing connections stay.
    pub fn set_default_limit(&mut self, limit: u32) {
        self.default_limit = limit;
    }

    /// Sets the limit of a zone or port; `None` restores the default. Existing connections stay.
    pub fn set_limit(&mut self, owner: K, limit: Option<u32>) {
        match limit {
            Some(limit) => self.limits.insert(owner, limit),
            None => self.limits.remove(&owner),
        };
    }

    /// The number of connections of a zone or port, and its limit.
    pub fn usage(&self, owner: K) -> (u32, u32) {
        (self.count(owner), self.limit(owner))
    }

    pub fn is_full(&self, owner: K) -> bool {
        self.count(owner) >= self.limit(owner)
    }

    pub fn add(&mut self, owner: K) {
        *self.counts.entry(owner).or_insert(0) += 1;
    }

    pub fn remove(&mut self, owner: K) {
        if let Some(count) = self.counts.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&owner);
            }
        }
    }

    /// Every zone or port with connections, and their number.
    pub fn iter(&self) -> impl Iterator<Item = (K, u32)> + '_ {
        self.counts.iter().map(|(&owner, &count)| (owner, count))
    }
}
