//! [`Usage`]: the number of connections of each zone or port, and its limit.

use std::collections::HashMap;
use std::hash::Hash;

use ahash::RandomState;

/// Connections by zone or by port, and their limit. Only owners with a connection take memory.
#[derive(Debug)]
pub(crate) struct Usage<K> {
    counts: HashMap<K, u32, RandomState>,
    limit: u32,
}

impl<K: Copy + Eq + Hash> Usage<K> {
    pub fn new(limit: u32, hasher: &RandomState) -> Self {
        Self { counts: HashMap::with_hasher(hasher.clone()), limit }
    }

    pub fn count(&self, owner: K) -> u32 {
        self.counts.get(&owner).copied().unwrap_or(0)
    }

    /// The limit of each owner.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Sets the limit. Existing connections stay.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// The number of connections of a zone or port, and its limit.
    pub fn usage(&self, owner: K) -> (u32, u32) {
        (self.count(owner), self.limit)
    }

    pub fn is_full(&self, owner: K) -> bool {
        self.count(owner) >= self.limit
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
