//! Lists of actions, each kept once.

use super::slab::Slab;
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

/// The number of a list, as long as a megaflow has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ListNo(pub(super) u32);

/// Gives equal lists one number, because most megaflows do what many others do.
#[derive(Default)]
pub(super) struct Interner {
    lists: Slab<List>,
    numbers: HashTable<ListNo>,
    seed: RandomState,
}

/// The hash of a list that is there.
fn hash_of(lists: &Slab<List>, ListNo(number): ListNo) -> u64 {
    lists.get(number).map_or(0, |list| list.hash)
}

impl Interner {
    /// A list.
    #[inline]
    pub(super) fn get(&self, ListNo(number): ListNo) -> Option<&Arc<[Action]>> {
        Some(&self.lists.get(number)?.actions)
    }

    /// The number of a list equal to `actions`, for one more megaflow.
    pub(super) fn take(&mut self, actions: &Arc<[Action]>) -> ListNo {
        let hash = self.seed.hash_one(actions);
        let Self { lists, numbers, .. } = self;
        let is = |&ListNo(number): &ListNo| {
            lists.get(number).is_some_and(|list| list.hash == hash && list.actions == *actions)
        };
        if let Some(&number) = numbers.find(hash, is) {
            if let Some(list) = lists.get_mut(number.0) {
                list.users += 1;
            }
            return number;
        }
        let number = ListNo(lists.insert(List { hash, actions: actions.clone(), users: 1 }));
        numbers.insert_unique(hash, number, |&number| hash_of(lists, number));
        number
    }

    /// One megaflow less has the list; without any, it is forgotten.
    pub(super) fn give_back(&mut self, number: ListNo) {
        let Self { lists, numbers, .. } = self;
        let Some(list) = lists.get_mut(number.0) else { return };
        list.users -= 1;
        if list.users > 0 {
            return;
        }
        if let Ok(found) = numbers.find_entry(list.hash, |&other| other == number) {
            found.remove();
        }
        lists.remove(number.0);
        let len = numbers.len();
        if len < numbers.capacity() / 8 {
            numbers.shrink_to(2 * len, |&number| hash_of(lists, number));
        }
    }

    /// Different lists.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Bytes of the tables and of the lists, without what hangs on single actions.
    pub(super) fn memory_bytes(&self) -> usize {
        // Beside a list stand its two counts.
        let list_bytes =
            |(_, list): (u32, &List)| size_of_val(&*list.actions) + 2 * size_of::<usize>();
        self.lists.memory_bytes()
            + self.numbers.allocation_size()
            + self.lists.iter_from(0).map(list_bytes).sum::<usize>()
    }
}
