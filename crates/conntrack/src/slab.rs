//! [`Slab`]: the memory of the entries.
//!
//! It grows by chunks of constant size, so that growing never moves an entry and never needs the
//! memory twice. It does not shrink: the memory of removed connections is reused for new ones.

use crate::entry::{Entry, NONE};

const CHUNK_BITS: u32 = 8;
const CHUNK_LEN: usize = 1 << CHUNK_BITS;

#[derive(Debug, Default)]
pub(crate) struct Slab {
    chunks: Vec<Box<[Entry]>>,
    /// The first of the free slots, which are linked by `chain[0]`.
    free: Option<u32>,
}

impl Slab {
    /// The number of slots, used and free.
    pub fn places(&self) -> u32 {
        (self.chunks.len() * CHUNK_LEN) as u32
    }

    #[inline]
    pub fn get(&self, slot: u32) -> Option<&Entry> {
        let chunk = self.chunks.get((slot >> CHUNK_BITS) as usize)?;
        chunk.get(slot as usize % CHUNK_LEN).filter(|entry| !entry.is_free())
    }

    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Entry> {
        let chunk = self.chunks.get_mut((slot >> CHUNK_BITS) as usize)?;
        chunk.get_mut(slot as usize % CHUNK_LEN).filter(|entry| !entry.is_free())
    }

    fn place(&mut self, slot: u32) -> Option<&mut Entry> {
        self.chunks.get_mut((slot >> CHUNK_BITS) as usize)?.get_mut(slot as usize % CHUNK_LEN)
    }

    /// Stores an entry, whose generation must not be 0.
    pub fn insert(&mut self, entry: Entry) -> u32 {
        let slot = match self.free {
            Some(slot) => slot,
            None => self.grow(),
        };
        if let Some(place) = self.place(slot) {
            let next = place.chain[0];
            *place = entry;
            self.free = Some(next).filter(|&next| next != NONE);
        }
        slot
    }

    pub fn remove(&mut self, slot: u32) {
        let next = self.free.unwrap_or(NONE);
        if let Some(place) = self.place(slot) {
            *place = Entry { chain: [next, NONE], ..Entry::FREE };
            self.free = Some(slot);
        }
    }

    /// Adds a chunk and returns its first slot.
    fn grow(&mut self) -> u32 {
        let first = self.places();
        let mut chunk = vec![Entry::FREE; CHUNK_LEN].into_boxed_slice();
        for (slot, entry) in (first + 1..).zip(chunk.iter_mut()) {
            entry.chain[0] = slot;
        }
        if let Some(last) = chunk.last_mut() {
            last.chain[0] = NONE;
        }
        self.chunks.push(chunk);
        first
    }
}
