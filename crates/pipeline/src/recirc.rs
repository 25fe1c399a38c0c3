//! Saved states of packets that pass the connection tracker: [`SuspendedState`], and
//! [`RecircTable`], which numbers them.
//!
//! A translation ends when a packet is passed to the tracker. The next pass of the packet is
//! another translation, which begins in the saved state. Equal states have one number, so that all
//! packets in one state share the megaflows of their next pass.
//!
//! A state lives as long as a [`Recirculation`] with its number: in a megaflow of the pass before,
//! or with a packet between two passes. So the limits on megaflows bound the number of states as
//! well. A number is never used again. A megaflow of a later pass matches its number exactly, and
//! once the state is gone, no packet has that number.

use crate::program::TableId;
use crate::recorder::SavedWord;
use crate::state::IngressPort;
use flow::{DatapathKey, RecircId, Recirculation, WeakRecirculation};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Map<K, V> = std::collections::HashMap<K, V, ahash::RandomState>;

/// The state in which the next pass of a packet begins. It depends only on the program and on the
/// bits that the earlier translations have recorded.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SuspendedState {
    /// The datapath.
    pub(crate) datapath: DatapathKey,
    /// The table in which the pass begins.
    pub(crate) table: TableId,
    /// True for a packet from a tunnel, which this host may not send into a tunnel again.
    pub(crate) from_tunnel: bool,
    /// The port that learn events count against.
    pub(crate) ingress: IngressPort,
    /// Registers, and metadata that the program has written.
    pub(crate) words: Box<[SavedWord]>,
    /// The stack of `push` and `pop`.
    pub(crate) stack: Box<[u128]>,
}

/// Numbers saved states. Threads may share it.
pub struct RecircTable {
    inner: Mutex<Inner>,
    limit: usize,
}

struct Inner {
    by_state: Map<Arc<SuspendedState>, RecircId>,
    by_id: Map<RecircId, (Arc<SuspendedState>, WeakRecirculation)>,
    next: u64,
    /// The number of states at which unused states are next removed.
    purge_at: usize,
}

/// Unused states are not removed while there are fewer states than this.
const MIN_PURGE: usize = 1024;

impl RecircTable {
    /// The default limit of states.
    pub const DEFAULT_LIMIT: usize = 1 << 18;

    /// An empty table for at most `limit` states.
    pub fn new(limit: usize) -> Self {
        let (by_state, by_id) = (Map::default(), Map::default());
        let inner = Inner { by_state, by_id, next: 1, purge_at: MIN_PURGE.min(limit) };
        Self { inner: Mutex::new(inner), limit }
    }

    /// The number of a state. `None` when the table is full.
    pub fn suspend(&self, state: SuspendedState) -> Option<Recirculation> {
        let mut inner = self.lock();
        if let Some(id) = inner.by_state.get(&state).copied() {
            let used = inner.by_id.get(&id).and_then(|(_, weak)| weak.upgrade());
            if used.is_some() {
                return used;
            }
            inner.remove(id);
        }
        if inner.by_id.len() >= inner.purge_at {
            inner.purge(self.limit);
        }
        if inner.by_id.len() >= self.limit {
            return None;
        }
        let id = RecircId::new(inner.next)?;
        inner.next += 1;
        let (state, recirculation) = (Arc::new(state), Recirculation::new(id));
        inner.by_state.insert(Arc::clone(&state), id);
        inner.by_id.insert(id, (state, recirculation.downgrade()));
        Some(recirculation)
    }

    /// The state with this number. `None` when it no longer exists.
    pub fn state(&self, id: RecircId) -> Option<Arc<SuspendedState>> {
        let inner = self.lock();
        let (state, used) = inner.by_id.get(&id)?;
        used.is_used().then(|| Arc::clone(state))
    }

    /// The number of states in use.
    pub fn len(&self) -> usize {
        self.lock().by_id.values().filter(|(_, weak)| weak.is_used()).count()
    }

    /// True if no state is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code panics halfway through a change, so a poisoned table is consistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn remove(&mut self, id: RecircId) {
        if let Some((state, _)) = self.by_id.remove(&id) {
            self.by_state.remove(&state);
        }
    }

    /// Removes unused states. It runs again only when the number of states may have doubled, so
    /// that each state costs little however many there are.
    fn purge(&mut self, limit: usize) {
        self.by_id.retain(|_, (_, weak)| weak.is_used());
        let Self { by_state, by_id, .. } = self;
        by_state.retain(|_, id| by_id.contains_key(id));
        self.purge_at = MIN_PURGE.max(2 * self.by_id.len()).min(limit);
    }
}

impl Default for RecircTable {
    fn default() -> Self {
        Self::new(Self::DEFAULT_LIMIT)
    }
}

impl fmt::Debug for RecircTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecircTable").field("limit", &self.limit).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Program;
    use crate::state::FdbPort;
    use flow::PortNo;

    fn state(number: u128) -> SuspendedState {
        SuspendedState {
            datapath: DatapathKey(1),
            table: TableId::FIRST,
            from_tunnel: false,
            ingress: IngressPort { datapath: Program::BRIDGE, port: FdbPort::Port(PortNo(1)) },
            words: Box::default(),
            stack: [number].into(),
        }
    }

    #[test]
    fn equal_states_share_a_number_while_it_is_used() {
        let table = RecircTable::new(10);
        let first = table.suspend(state(1)).expect("there is room");
        assert_eq!(table.suspend(state(1)), Some(first.clone()));
        assert_ne!(table.suspend(state(2)), Some(first.clone()));
        let id = first.id();
        assert_eq!(table.state(id).as_deref(), Some(&state(1)));
        drop(first);
        assert_eq!(table.state(id), None);
        let again = table.suspend(state(1)).expect("there is room");
        assert_ne!(again.id(), id, "a number is never used again");
    }

    #[test]
    fn table_is_full_only_while_its_states_are_used() {
        let table = RecircTable::new(3);
        let mut used: Vec<_> = (0..3).filter_map(|n| table.suspend(state(n))).collect();
        assert_eq!((used.len(), table.suspend(state(9)), table.len()), (3, None, 3));
        used.pop();
        assert!(table.suspend(state(9)).is_some());
        used.clear();
        assert!((0..100).all(|n| table.suspend(state(n)).is_some()));
        assert!(table.is_empty());
    }
}
