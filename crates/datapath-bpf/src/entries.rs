//! [`FreeEntries`] records which entries of a BPF map are free. [`set`] writes to a table in
//! userspace that has one element for each entry of a map.
//!
//! The memory of both grows with the highest entry in use. So a large map costs none until it is
//! used.

/// The free entries of a map.
#[derive(Debug)]
pub(crate) struct FreeEntries {
    /// Entries that were used and are free again. The last one is used next.
    returned: Vec<u32>,
    /// One more than the highest entry that was ever used.
    end: u32,
    /// One more than the highest entry of the map.
    limit: u32,
}

impl FreeEntries {
    /// A map whose entries from `first` to `limit` - 1 are free.
    pub const fn new(first: u32, limit: u32) -> Self {
        Self { returned: Vec::new(), end: first, limit }
    }

    /// The entry that [`take`](Self::take) takes; `None` if no entry is free.
    pub fn next(&self) -> Option<u32> {
        self.returned.last().copied().or_else(|| (self.end < self.limit).then_some(self.end))
    }

    /// Takes the entry that [`next`](Self::next) returns.
    pub fn take(&mut self) {
        if self.returned.pop().is_none() && self.end < self.limit {
            self.end += 1;
        }
    }

    /// Makes these entries free again.
    pub fn release(&mut self, entries: impl IntoIterator<Item = u32>) {
        self.returned.extend(entries);
    }

    /// The number of free entries.
    pub const fn len(&self) -> usize {
        // The cast is lossless on all architectures that have BPF.
        self.returned.len() + (self.limit - self.end) as usize
    }

    /// One more than the highest entry that was ever used.
    pub const fn end(&self) -> u32 {
        self.end
    }

    /// One more than the highest entry of the map.
    pub const fn limit(&self) -> u32 {
        self.limit
    }
}

/// Sets the value of an entry in a table, which grows to its index. Entries without a value are
/// `None` or beyond the end of the table.
pub(crate) fn set<T>(table: &mut Vec<Option<T>>, entry: u32, value: T) -> &mut T {
    let index = entry as usize;
    if table.len() <= index {
        table.resize_with(index + 1, || None);
    }
    table[index].insert(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_taken_once_and_again_after_their_return() {
        let mut free = FreeEntries::new(1, 4);
        let take = |free: &mut FreeEntries| {
            let next = free.next();
            free.take();
            next
        };
        assert_eq!((free.len(), free.end()), (3, 1));
        assert_eq!([take(&mut free), take(&mut free)], [Some(1), Some(2)]);
        free.release([1]);
        assert_eq!((free.len(), free.end()), (2, 3));
        assert_eq!([take(&mut free), take(&mut free), take(&mut free)], [Some(1), Some(3), None]);
        assert_eq!((free.len(), free.end(), free.limit()), (0, 4, 4));
        free.release([3, 2]);
        assert_eq!([take(&mut free), take(&mut free), take(&mut free)], [Some(2), Some(3), None]);
    }

    #[test]
    fn tables_grow_to_the_highest_entry() {
        let mut table = Vec::new();
        set(&mut table, 2, 'a');
        *set(&mut table, 0, 'b') = 'c';
        assert_eq!(table, [Some('c'), None, Some('a')]);
    }
}
