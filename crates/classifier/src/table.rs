//! A persistent hash table: clones share the pages that neither of them has changed.
//!
//! The table consists of pages of some hundred entries. A change copies one page and the list of
//! pages if a clone holds them. The table grows by linear hashing, one page at a time, so that no
//! single insertion pays for moving everything. A page is an open-addressed table. Beside its
//! entries it keeps a tag for each, 16 bits of its hash, in groups that are compared at once. The
//! list of pages has a filter for each page, so that looking up an absent entry seldom touches a
//! page.

use crate::Rank;
use std::sync::Arc;

/// An entry of a [`Table`].
pub(crate) trait Entry: Clone {
    /// The hash under which the entry is stored.
    fn hash(&self) -> u64;
    /// The rank of the entry; the table knows the best rank of its entries.
    fn rank(&self) -> Rank;
}

/// The average number of entries for each page above which the table grows by a page.
const PAGE_ENTRIES: usize = 80;
const GROUP: usize = 8;
/// Average number of occupied places in a group, of eight, above which a page is rebuilt larger.
const GROUP_LOAD: usize = 5;

#[derive(Clone)]
pub(crate) struct Table<E> {
    pages: Vec<Page<E>>,
    /// The number of pages rounded up to a power of two, less one: the mask of page numbers.
    all: usize,
    len: usize,
}

/// A page. Clones of the table share the groups.
#[derive(Clone)]
struct Page<E> {
    groups: Arc<[Group<E>]>,
    len: usize,
    best: Option<Rank>,
    filter: Filter,
}

/// Eight places; the tag of a free place is 0.
#[derive(Clone)]
struct Group<E> {
    tags: [u16; GROUP],
    entries: [Option<E>; GROUP],
}

/// A Bloom filter of one page: two bits in one word for each entry, chosen by its tag. It answers
/// 98 of 100 lookups of absent entries. The pages are spread over memory, but the filters of all
/// tables of a classifier fit into a processor's cache.
#[derive(Clone, Copy, Default)]
struct Filter([u64; 32]);

impl Filter {
    #[inline]
    const fn place(tag: u16) -> (usize, u64) {
        ((tag >> 11) as usize, 1 << (tag >> 5 & 63) | 1 << (tag & 31))
    }

    #[inline]
    const fn add(&mut self, tag: u16) {
        let (word, bits) = Self::place(tag);
        self.0[word] |= bits;
    }

    #[inline]
    const fn may_have(&self, tag: u16) -> bool {
        let (word, bits) = Self::place(tag);
        self.0[word] & bits == bits
    }
}

impl<E> Default for Table<E> {
    fn default() -> Self {
        Self { pages: Vec::new(), all: 0, len: 0 }
    }
}

impl<E> Table<E> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &E> {
        self.pages.iter().flat_map(Page::iter)
    }

    /// The best rank of all entries.
    pub(crate) fn best(&self) -> Option<Rank> {
        self.pages.iter().filter_map(|page| page.best).max()
    }

    /// The page for a hash: the upper half of the hash selects the page, the lower half the group.
    #[inline]
    const fn page_of(&self, hash: u64) -> usize {
        let hash = (hash >> 32) as usize;
        // Linear hashing: a page number that does not exist yet falls back to the page it will
        // split from.
        let page = hash & self.all;
        if page < self.pages.len() { page } else { page & self.all >> 1 }
    }

    /// False when no entry has this hash; true otherwise, with rare false positives.
    #[inline]
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        self.pages.get(self.page_of(hash)).is_some_and(|page| page.filter.may_have(tag(hash)))
    }

    /// The entry with this hash for which `is_equal` holds.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_equal: impl Fn(&E) -> bool) -> Option<&E> {
        let page = self.pages.get(self.page_of(hash))?;
        let (group, place) = page.find(hash, is_equal)?;
        page.groups[group].entries[place].as_ref()
    }
}

impl<E: Entry> Table<E> {
    /// Changes the entry for which `is_equal` holds, if there is one.
    pub(crate) fn update<R>(
        &mut self,
        hash: u64,
        is_equal: impl Fn(&E) -> bool,
        change: impl FnOnce(&mut E) -> R,
    ) -> Option<R> {
        let at = self.page_of(hash);
        let page = self.pages.get_mut(at)?;
        let (group, place) = page.find(hash, is_equal)?;
        let entry = Arc::make_mut(&mut page.groups)[group].entries[place].as_mut()?;
        let before = entry.rank();
        let result = change(entry);
        let after = entry.rank();
        if Some(after) >= page.best {
            page.best = Some(after);
        } else if Some(before) == page.best {
            page.best = page.find_best();
        }
        Some(result)
    }

    /// Adds an entry. The caller has made sure that no equal entry exists.
    pub(crate) fn insert(&mut self, entry: E) {
        if self.len >= self.pages.len() * PAGE_ENTRIES {
            self.split_page();
        }
        let at = self.page_of(entry.hash());
        if let Some(page) = self.pages.get_mut(at) {
            page.insert(entry);
            self.len += 1;
        }
    }

    /// Removes the entry for which `is_equal` holds.
    pub(crate) fn remove(&mut self, hash: u64, is_equal: impl Fn(&E) -> bool) -> Option<E> {
        let at = self.page_of(hash);
        let page = self.pages.get_mut(at)?;
        let (group, place) = page.find(hash, is_equal)?;
        let entry = page.remove(group, place)?;
        self.len -= 1;
        // Half of the limit for growing, so that a rule that comes and goes does not split and join
        // a page each time.
        if self.len <= (self.pages.len() - 1) * PAGE_ENTRIES / 2 {
            self.join_page();
        }
        Some(entry)
    }

    /// Adds a page and moves entries to it, all of them from one page.
    fn split_page(&mut self) {
        let new = self.pages.len();
        self.pages.push(Page::new(Vec::new()));
        self.all = self.pages.len().next_power_of_two() - 1;
        // The page to split has the number of the new page without its highest bit.
        let Some(old) = (new > 0).then(|| new ^ 1 << new.ilog2()) else { return };
        let entries = self.pages[old].take();
        let (stay, go) = entries.into_iter().partition(|entry| self.page_of(entry.hash()) == old);
        self.pages[old] = Page::new(stay);
        self.pages[new] = Page::new(go);
    }

    /// Removes the last page and moves its entries back to the page that it was split from.
    fn join_page(&mut self) {
        let Some(mut last) = self.pages.pop() else { return };
        self.all = self.pages.len().next_power_of_two() - 1;
        for entry in last.take() {
            let at = self.page_of(entry.hash());
            if let Some(page) = self.pages.get_mut(at) {
                page.insert(entry);
            }
        }
    }
}

const fn tag(hash: u64) -> u16 {
    let tag = (hash >> 16) as u16;
    if tag == 0 { 1 } else { tag }
}

/// True when the group has this tag. Branch-free, so that the compiler compares all tags at once.
#[inline]
fn has(group: &[u16; GROUP], tag: u16) -> bool {
    group.iter().fold(false, |found, &other| found | (other == tag))
}

impl<E> Page<E> {
    fn iter(&self) -> impl Iterator<Item = &E> {
        self.groups.iter().flat_map(|group| group.entries.iter().flatten())
    }

    /// The groups where an entry may be, in probing order.
    #[inline]
    fn places(&self, hash: u64) -> impl Iterator<Item = usize> + use<E> {
        let groups = self.groups.len();
        (0..groups).map(move |step| (hash as usize).wrapping_add(step) & (groups - 1))
    }

    /// The group and place of the entry for which `is_equal` holds.
    #[inline]
    fn find(&self, hash: u64, is_equal: impl Fn(&E) -> bool) -> Option<(usize, usize)> {
        let tag = tag(hash);
        for at in self.places(hash) {
            let group = &self.groups[at];
            if has(&group.tags, tag) {
                let mut entries = group.tags.iter().zip(&group.entries);
                let place = entries.position(|(&other, entry)| {
                    other == tag && entry.as_ref().is_some_and(&is_equal)
                });
                if let Some(place) = place {
                    return Some((at, place));
                }
            }
            if has(&group.tags, 0) {
                return None;
            }
        }
        None
    }
}

impl<E: Entry> Page<E> {
    /// A page with these entries and space for one more.
    fn new(entries: Vec<E>) -> Self {
        let groups = (entries.len() + 1).div_ceil(GROUP_LOAD).next_power_of_two();
        let free = || Group { tags: [0; GROUP], entries: [const { None }; GROUP] };
        let mut page = Self {
            groups: (0..groups).map(|_| free()).collect(),
            len: 0,
            best: None,
            filter: Filter::default(),
        };
        entries.into_iter().for_each(|entry| page.put(entry));
        page
    }

    fn find_best(&self) -> Option<Rank> {
        self.iter().map(E::rank).max()
    }

    /// Takes the entries out; copies them if a clone of the table shares the page.
    fn take(&mut self) -> Vec<E> {
        let groups = Arc::make_mut(&mut self.groups).iter_mut();
        groups.flat_map(|group| group.entries.iter_mut().filter_map(Option::take)).collect()
    }

    fn insert(&mut self, entry: E) {
        if self.len >= self.groups.len() * GROUP_LOAD {
            *self = Self::new(self.take());
        }
        self.put(entry);
    }

    /// Adds an entry; the page has a free place.
    fn put(&mut self, entry: E) {
        let (tag, rank) = (tag(entry.hash()), entry.rank());
        let mut places = self.places(entry.hash());
        let Some(at) = places.find(|&at| has(&self.groups[at].tags, 0)) else { return };
        let group = &mut Arc::make_mut(&mut self.groups)[at];
        if let Some(place) = group.tags.iter().position(|&tag| tag == 0) {
            group.tags[place] = tag;
            group.entries[place] = Some(entry);
            self.len += 1;
            self.best = self.best.max(Some(rank));
            self.filter.add(tag);
        }
    }

    fn remove(&mut self, at: usize, place: usize) -> Option<E> {
        let group = &mut Arc::make_mut(&mut self.groups)[at];
        let entry = group.entries[place].take()?;
        let was_full = !has(&group.tags, 0);
        group.tags[place] = 0;
        self.len -= 1;
        if was_full {
            // Searches probed past the full group and would now stop there: rebuild the page.
            *self = Self::new(self.take());
            return Some(entry);
        }
        self.filter = Filter::default();
        let tags = self.groups.iter().flat_map(|group| group.tags);
        tags.filter(|&tag| tag != 0).for_each(|tag| self.filter.add(tag));
        if Some(entry.rank()) == self.best {
            self.best = self.find_best();
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[derive(Clone, PartialEq, Debug)]
    struct Number(u64, u32);

    impl Entry for Number {
        fn hash(&self) -> u64 {
            self.0
        }

        fn rank(&self) -> Rank {
            Rank { priority: self.1, id: 0 }
        }
    }

    fn mixed(number: u64) -> u64 {
        let product = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (product ^ product >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }

    fn check(hash: impl Fn(u64) -> u64, steps: u64, numbers: u64) {
        let (mut table, mut model) = (Table::default(), HashMap::new());
        let mut old = None;
        for step in 0..steps {
            let (number, priority) = (mixed(step) % numbers, mixed(step ^ 0x5555) as u32 % 1000);
            let hash = hash(number);
            let update = table.update(hash, |e: &Number| e.0 == hash, |e| e.1 = priority);
            assert_eq!(update.is_some(), model.contains_key(&hash));
            if mixed(step ^ 0xaaaa).is_multiple_of(3) {
                let removed = table.remove(hash, |e| e.0 == hash);
                assert_eq!(removed.is_some(), model.remove(&hash).is_some());
            } else if model.insert(hash, priority).is_none() {
                table.insert(Number(hash, priority));
            }
            assert_eq!(table.len(), model.len());
            let best = model.values().max().map(|&priority| Rank { priority, id: 0 });
            assert_eq!(table.best(), best);
            if step == steps / 2 {
                old = Some((table.clone(), model.clone()));
            }
        }
        for (table, model) in old.into_iter().chain([(table, model)]) {
            assert_eq!(table.iter().map(|e| (e.0, e.1)).collect::<HashMap<_, _>>(), model);
            for number in 0..numbers {
                let hash = hash(number);
                let found = table.find(hash, |e| e.0 == hash).map(|e| e.1);
                assert_eq!(found, model.get(&hash).copied());
                assert!(found.is_none() || table.may_have(hash));
            }
        }
    }

    #[test]
    fn table_is_a_map_when_it_grows_and_shrinks() {
        check(mixed, 6_000, 1_500);
        check(mixed, 2_000, 30);
    }

    #[test]
    fn table_is_a_map_when_hashes_are_bad() {
        check(|number| number << 60 | number, 1_000, 100);
        check(|number| number << 32, 1_000, 300);
        check(|number| number, 1_000, 300);
    }

    #[test]
    fn last_entry_gone_leaves_no_page() {
        let mut table = Table::default();
        (0..1_000).for_each(|n| table.insert(Number(mixed(n), 1)));
        assert!(table.pages.len() > 8);
        for n in 0..1_000 {
            assert_eq!(table.remove(mixed(n), |e| e.0 == mixed(n)), Some(Number(mixed(n), 1)));
        }
        assert_eq!((table.len(), table.best(), table.pages.len()), (0, None, 0));
    }
}
