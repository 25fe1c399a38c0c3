//! Interned action lists: equal lists are stored once.

use super::slab::Slab;
use ahash::RandomState;
use flow::Action;
use hashbrown::HashTable;
use std::sync::Arc;

struct InternedList {
    hash: u64,
    actions: Arc<[Action]>,
    /// The number of megaflows with this list. Other holders of the `Arc` do not count.
    users: usize,
}

/// The number of a list; valid while a megaflow has the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ListNo(pub(super) u32);

/// The interned lists. Many megaflows have equal lists, so this saves most of their memory.
#[derive(Default)]
pub(super) struct Interner {
    lists: Slab<InternedList>,
    numbers: HashTable<ListNo>,
    seed: RandomState,
}

/// The hash of an interned list.
fn hash_of(lists: &Slab<InternedList>, ListNo(number): ListNo) -> u64 {
    lists.get(number).map_or(0, |list| list.hash)
}

impl Interner {
    /// The list with this number.
    #[inline]
    pub(super) fn get(&self, ListNo(number): ListNo) -> Option<&Arc<[Action]>> {
        Some(&self.lists.get(number)?.actions)
    }

    /// Interns `actions` for one more megaflow.
    pub(super) fn acquire(&mut self, actions: &Arc<[Action]>) -> ListNo {
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
        let number =
            ListNo(lists.insert(InternedList { hash, actions: actions.clone(), users: 1 }));
        numbers.insert_unique(hash, number, |&number| hash_of(lists, number));
        number
    }

    /// Releases a list for one megaflow. A list without megaflows is removed.
    pub(super) fn release(&mut self, number: ListNo) {
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

    /// The number of different lists.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Size of the tables and lists in bytes, without the data that single actions point to.
    pub(super) fn memory_bytes(&self) -> usize {
        // An `Arc` stores two reference counts with the list.
        let list_bytes =
            |(_, list): (u32, &InternedList)| size_of_val(&*list.actions) + 2 * size_of::<usize>();
        self.lists.memory_bytes()
            + self.numbers.allocation_size()
            + self.lists.iter_from(0).map(list_bytes).sum::<usize>()
    }
}
