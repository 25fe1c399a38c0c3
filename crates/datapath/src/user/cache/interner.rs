//! Lists of actions, each kept once.

use ahash::RandomState;
use flow::Action;
use hashbrown::HashTable;
use std::sync::Arc;

struct List {
    hash: u64,
    actions: Arc<[Action]>,
    /// How many megaflows have it; others may hold it as well, and do not matter.
    users: usize,
}

/// Gives equal lists one place, because most megaflows do what many others do.
#[derive(Default)]
pub(super) struct Interner {
    lists: HashTable<List>,
    seed: RandomState,
}

impl Interner {
    /// A list equal to `actions`, for one more megaflow.
    pub(super) fn take(&mut self, actions: &Arc<[Action]>) -> Arc<[Action]> {
        let hash = self.seed.hash_one(actions);
        if let Some(list) = self.lists.find_mut(hash, |list| list.actions == *actions) {
            list.users += 1;
            return list.actions.clone();
        }
        let list = List { hash, actions: actions.clone(), users: 1 };
        self.lists.insert_unique(hash, list, |list| list.hash);
        actions.clone()
    }

    /// One megaflow less has the list; without any, it is forgotten.
    pub(super) fn give_back(&mut self, actions: &Arc<[Action]>) {
        let hash = self.seed.hash_one(actions);
        let is = |list: &List| Arc::ptr_eq(&list.actions, actions);
        let Ok(mut found) = self.lists.find_entry(hash, is) else { return };
        found.get_mut().users -= 1;
        if found.get().users > 0 {
            return;
        }
        found.remove();
        let len = self.lists.len();
        if len < self.lists.capacity() / 8 {
            self.lists.shrink_to(2 * len, |list| list.hash);
        }
    }

    /// Different lists.
    pub(super) fn len(&self) -> usize {
        self.lists.len()
    }

    /// Bytes of the table and of the lists, without what hangs on single actions.
    pub(super) fn memory_bytes(&self) -> usize {
        // Beside a list stand its two counts.
        let list_bytes = |list: &List| size_of_val(&*list.actions) + 2 * size_of::<usize>();
        self.lists.allocation_size() + self.lists.iter().map(list_bytes).sum::<usize>()
    }
}
