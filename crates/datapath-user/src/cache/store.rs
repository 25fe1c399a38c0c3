//! The storage of megaflows: chunks of up to 64 megaflows with one mask. A megaflow never moves.

use super::interner::ListNo;
use super::slab::Slab;
use super::subtable::MaskWord;
use datapath::megaflow::{MegaflowId, Usage};
use flow::FlowKey;
use std::num::NonZero;

/// Megaflows of a chunk, one for each bit of a word. Larger chunks would be emptier, because a
/// chunk serves one mask.
const CHUNK: u32 = u64::BITS;

/// The location of a megaflow: the number of its chunk, and its position in the chunk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Slot(pub(super) u32);

impl Slot {
    pub(super) const fn new(chunk: u32, at: usize) -> Self {
        Self(chunk * CHUNK + at as u32)
    }

    #[inline]
    pub(super) const fn chunk(self) -> u32 {
        self.0 / CHUNK
    }

    #[inline]
    pub(super) const fn at(self) -> usize {
        (self.0 % CHUNK) as usize
    }
}

/// A megaflow without its match.
pub(super) struct StoredMegaflow {
    pub(super) id: MegaflowId,
    packets: u64,
    bytes: u64,
    /// The lower bits are the number of the action list plus 1, so that it is never 0. The upper
    /// bits are the time of the last hit in milliseconds, enough for 34 years.
    list_and_used: NonZero<u64>,
}

// There are hundreds of thousands of records, so their size matters.
const _: () = assert!(size_of::<Option<StoredMegaflow>>() == 32);

impl StoredMegaflow {
    /// Bits of the number of a list.
    pub(super) const LIST_BITS: u32 = 24;

    /// Makes a record without hits.
    pub(super) const fn new(id: MegaflowId, list: ListNo) -> Self {
        Self { id, packets: 0, bytes: 0, list_and_used: Self::pack(list, 0) }
    }

    const fn pack(ListNo(number): ListNo, used_ms: u64) -> NonZero<u64> {
        let list = (number as u64 + 1) & ((1 << Self::LIST_BITS) - 1);
        match NonZero::new(list | used_ms << Self::LIST_BITS) {
            Some(packed) => packed,
            None => NonZero::<u64>::MIN,
        }
    }

    /// Counts a packet.
    #[inline]
    pub(super) const fn hit(&mut self, bytes: u64, now_ms: u64) {
        self.packets += 1;
        self.bytes += bytes;
        self.list_and_used = Self::pack(self.list(), now_ms);
    }

    #[inline]
    pub(super) const fn list(&self) -> ListNo {
        let list = self.list_and_used.get() & ((1 << Self::LIST_BITS) - 1);
        ListNo((list as u32).wrapping_sub(1))
    }

    /// Replaces the action list.
    pub(super) const fn set_list(&mut self, list: ListNo) {
        self.list_and_used = Self::pack(list, self.usage().used_ms);
    }

    pub(super) const fn usage(&self) -> Usage {
        let used_ms = self.list_and_used.get() >> Self::LIST_BITS;
        Usage { packets: self.packets, bytes: self.bytes, used_ms }
    }
}

/// Up to 64 megaflows with one mask.
pub(super) struct Chunk {
    /// The subtable of that mask.
    pub(super) subtable: u32,
    /// A one for every used position.
    taken: u64,
    /// A one for every megaflow that lookups find.
    in_force: u64,
    /// A one for every megaflow of the current epoch.
    confirmed: u64,
    /// The masked words of each position's match.
    values: Vec<u64>,
    records: Vec<Option<StoredMegaflow>>,
}

impl Chunk {
    /// Makes an empty chunk.
    pub(super) const fn new(subtable: u32) -> Self {
        Self {
            subtable,
            taken: 0,
            in_force: 0,
            confirmed: 0,
            values: Vec::new(),
            records: Vec::new(),
        }
    }

    pub(super) const fn is_full(&self) -> bool {
        self.taken == u64::MAX
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.taken == 0
    }

    #[inline]
    pub(super) fn record(&self, at: usize) -> Option<&StoredMegaflow> {
        self.records.get(at)?.as_ref()
    }

    #[inline]
    pub(super) fn record_mut(&mut self, at: usize) -> Option<&mut StoredMegaflow> {
        self.records.get_mut(at)?.as_mut()
    }

    /// The masked words of a megaflow's match, one for each word of the mask.
    #[inline]
    fn values(&self, at: usize, mask_words: &[MaskWord]) -> Option<&[u64]> {
        self.values.get(at * mask_words.len()..)?.get(..mask_words.len())
    }

    /// True if the key meets the match of the position's megaflow, and it is in force.
    #[inline]
    pub(super) fn matches(&self, at: usize, mask_words: &[MaskWord], key: &FlowKey) -> bool {
        let Some(values) = self.values(at, mask_words) else { return false };
        // There is no early exit, because almost always all words agree.
        let differ = mask_words
            .iter()
            .zip(values)
            .fold(0, |all, (mask_word, v)| all | (mask_word.of(key) ^ v));
        differ == 0 && self.is_in_force(at)
    }

    /// True if lookups find the position's megaflow.
    #[inline]
    pub(super) const fn is_in_force(&self, at: usize) -> bool {
        self.in_force >> at & 1 == 1
    }

    /// The match's values as a key.
    pub(super) fn key(&self, at: usize, mask_words: &[MaskWord]) -> FlowKey {
        let mut key = FlowKey::default();
        for (mask_word, value) in
            mask_words.iter().zip(self.values(at, mask_words).unwrap_or_default())
        {
            key.words_mut()[mask_word.word] = *value;
        }
        key
    }

    /// Adds a megaflow to a chunk that is not full; returns its position.
    pub(super) fn insert(
        &mut self,
        mask_words: &[MaskWord],
        key: &FlowKey,
        record: StoredMegaflow,
    ) -> usize {
        let at = self.taken.trailing_ones() as usize;
        self.taken |= 1 << at;
        self.enforce(at);
        let values = mask_words.iter().map(|mask_word| mask_word.of(key));
        if let Some(place) = self.records.get_mut(at) {
            *place = Some(record);
            let places = self.values.iter_mut().skip(at * mask_words.len());
            places.zip(values).for_each(|(place, value)| *place = value);
            return at;
        }
        if self.records.len() == self.records.capacity() {
            let more = self.records.len().max(1);
            self.records.reserve_exact(more);
            self.values.reserve_exact(more * mask_words.len());
        }
        self.records.push(Some(record));
        self.values.extend(values);
        at
    }

    pub(super) fn remove(&mut self, at: usize) -> Option<StoredMegaflow> {
        let record = self.records.get_mut(at)?.take()?;
        let others = !(1 << at);
        self.taken &= others;
        self.in_force &= others;
        self.confirmed &= others;
        Some(record)
    }

    /// Begins an epoch.
    pub(super) const fn begin_epoch(&mut self) {
        self.confirmed = 0;
    }

    /// Puts a megaflow in force, in the current epoch.
    pub(super) const fn enforce(&mut self, at: usize) {
        self.confirmed |= 1 << at;
        self.in_force |= 1 << at;
    }

    /// Moves a megaflow that is in force to the current epoch.
    pub(super) const fn confirm(&mut self, at: usize) {
        self.confirmed |= self.in_force & 1 << at;
    }

    /// Puts the megaflows of earlier epochs out of force.
    pub(super) const fn withdraw_unconfirmed(&mut self) {
        self.in_force &= self.confirmed;
    }

    /// The megaflows from a position on, with their positions.
    pub(super) fn iter_from(&self, first: usize) -> impl Iterator<Item = (usize, &StoredMegaflow)> {
        let records = self.records.iter().enumerate().skip(first);
        records.filter_map(|(at, record)| Some((at, record.as_ref()?)))
    }

    /// Bytes allocated by the chunk.
    fn memory_bytes(&self) -> usize {
        self.values.capacity() * size_of::<u64>()
            + self.records.capacity() * size_of::<Option<StoredMegaflow>>()
    }
}

/// All chunks.
pub(super) type Store = Slab<Chunk>;

/// Bytes allocated by all chunks.
pub(super) fn memory_bytes(store: &Store) -> usize {
    let chunks = store.iter_from(0).map(|(_, chunk)| chunk.memory_bytes());
    store.memory_bytes() + chunks.sum::<usize>()
}
