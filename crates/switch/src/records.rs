//! What the switch keeps of each megaflow: little, because there may be hundreds of thousands. Condition and actions are in the
//! datapath; what many megaflows have in common is in their [`Origin`].

use crate::origin::{Candidate, MaskNo, Origin, Origins};
use ahash::RandomState;
use datapath::megaflow::{MegaflowId, Usage};
use flow::PortNo;
use hashbrown::HashTable;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

type Map<K, V> = HashMap<K, V, RandomState>;

/// A time on the datapath's clock, in tenths of a second: 13 years fit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Tenths(u32);

impl Tenths {
    pub fn of_ms(ms: u64) -> Self {
        Self(u32::try_from(ms / 100).unwrap_or(u32::MAX))
    }

    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::from(self.0.saturating_sub(earlier.0)) * 100)
    }
}

/// One megaflow.
#[derive(Debug)]
pub(crate) struct Record {
    pub id: MegaflowId,
    /// Packets and bytes that its origin was told of.
    packets: u64,
    bytes: u64,
    /// `None` for a place that is free.
    origin: Option<Arc<Origin>>,
    pub created: Tenths,
    /// When it was hit last, or created.
    pub used: Tenths,
    /// The last sweep that found it in the datapath, or during which it was put.
    seen: u32,
}

impl Record {
    pub fn origin(&self) -> Option<&Arc<Origin>> {
        self.origin.as_ref()
    }
}

/// A megaflow no more on record, whose last packets have yet to be counted.
#[derive(Debug)]
pub(crate) struct Removed {
    pub id: MegaflowId,
    packets: u64,
    bytes: u64,
    pub origin: Arc<Origin>,
}

impl Removed {
    /// Tells the origin what the datapath had counted in the end.
    pub fn count(&self, last: &Usage) {
        self.origin.count((self.packets, self.bytes), last);
    }
}

/// What became of a megaflow that was to be put on record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entered {
    /// It is there now.
    New,
    /// It was there, with the same origin.
    Again,
    /// It is there with another origin: one of the two is out of date. The next revalidation finds out; until then the datapath
    /// must not be given the other one, or what is on record would no longer be what it has.
    Outdated,
    /// There are too many, of this port or of all.
    Full,
}

/// What a port has.
#[derive(Debug, Default)]
struct PortUse {
    megaflows: usize,
    /// How many megaflows have each mask, without the mask for single packets.
    masks: Map<MaskNo, u32>,
}

/// Records to a chunk: chunks are not moved when there are more of them, and a walk stops between two.
const CHUNK: usize = 1024;

/// All megaflows. A record stays in its place as long as it is there.
#[derive(Debug)]
pub(crate) struct Records {
    max: usize,
    max_masks: usize,
    chunks: Vec<Vec<Record>>,
    free: Vec<u32>,
    index: HashTable<u32>,
    ports: Map<PortNo, PortUse>,
    origins: Origins,
    sweep: u32,
}

impl Records {
    pub fn new(max: usize, max_masks: usize) -> Self {
        Self {
            max: max.min(u32::MAX as usize),
            max_masks,
            chunks: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            ports: Map::default(),
            origins: Origins::default(),
            sweep: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    pub fn is_nearly_full(&self) -> bool {
        self.len() > self.max - self.max / 8
    }

    /// True when the port may have a megaflow with that mask.
    pub fn takes_mask(&self, port: PortNo, mask: MaskNo) -> bool {
        let Some(port) = self.ports.get(&port) else { return self.max_masks > 0 };
        port.masks.len() < self.max_masks || port.masks.contains_key(&mask)
    }

    /// Puts a megaflow on record.
    pub fn enter(&mut self, id: MegaflowId, candidate: &Candidate<'_>, now: Tenths) -> Entered {
        if let Some(record) = self.get(id) {
            let is_same = record.origin.as_ref().is_some_and(|origin| origin.is(candidate));
            return if is_same { Entered::Again } else { Entered::Outdated };
        }
        let port = self.ports.get(&candidate.port).map_or(0, |port| port.megaflows);
        if port >= self.max.saturating_sub(self.len()) {
            return Entered::Full;
        }
        let port = self.ports.entry(candidate.port).or_default();
        port.megaflows += 1;
        if candidate.mask != MaskNo::EXACT {
            *port.masks.entry(candidate.mask).or_default() += 1;
        }
        let origin = Some(self.origins.intern(candidate));
        let seen = self.sweep;
        let record = Record { id, packets: 0, bytes: 0, origin, created: now, used: now, seen };
        let slot = self.store(record);
        let chunks = &self.chunks;
        self.index.insert_unique(id.0, slot, |&slot| at(chunks, slot).map_or(0, |r| r.id.0));
        Entered::New
    }

    fn store(&mut self, record: Record) -> u32 {
        if let Some(slot) = self.free.pop()
            && let Some(place) = at_mut(&mut self.chunks, slot)
        {
            *place = record;
            return slot;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let Some(chunk) = self.chunks.last_mut() else { return 0 };
        chunk.push(record);
        (before + chunk.len() - 1) as u32
    }

    pub fn get(&self, id: MegaflowId) -> Option<&Record> {
        let is = |slot: &u32| at(&self.chunks, *slot).is_some_and(|record| record.id == id);
        at(&self.chunks, *self.index.find(id.0, is)?)
    }

    fn get_mut(&mut self, id: MegaflowId) -> Option<&mut Record> {
        let is = |slot: &u32| at(&self.chunks, *slot).is_some_and(|record| record.id == id);
        let slot = *self.index.find(id.0, is)?;
        at_mut(&mut self.chunks, slot)
    }

    /// The origin of a megaflow.
    pub fn origin(&self, id: MegaflowId) -> Option<&Arc<Origin>> {
        self.get(id)?.origin.as_ref()
    }

    /// Gives a megaflow another origin, of the same port and mask, if it still has the old one.
    pub fn replace(
        &mut self,
        id: MegaflowId,
        old: &Arc<Origin>,
        candidate: &Candidate<'_>,
    ) -> bool {
        if !self.origin(id).is_some_and(|origin| Arc::ptr_eq(origin, old)) {
            return false;
        }
        let origin = self.origins.intern(candidate);
        if let Some(record) = self.get_mut(id) {
            record.origin = Some(origin);
        }
        true
    }

    /// Takes a megaflow out.
    pub fn remove(&mut self, id: MegaflowId) -> Option<Removed> {
        let chunks = &self.chunks;
        let is = |slot: &u32| at(chunks, *slot).is_some_and(|record| record.id == id);
        let (slot, _) = self.index.find_entry(id.0, is).ok()?.remove();
        self.free.push(slot);
        let record = at_mut(&mut self.chunks, slot)?;
        let (packets, bytes) = (record.packets, record.bytes);
        let origin = record.origin.take()?;
        self.leave(origin.port, origin.mask);
        if self.index.is_empty() {
            // What a flood has taken is given back.
            self.chunks = Vec::new();
            self.free = Vec::new();
            self.index = HashTable::new();
        }
        Some(Removed { id, packets, bytes, origin })
    }

    fn leave(&mut self, number: PortNo, mask: MaskNo) {
        let Some(port) = self.ports.get_mut(&number) else { return };
        port.megaflows -= 1;
        if let Some(count) = port.masks.get_mut(&mask) {
            *count -= 1;
            if *count == 0 {
                port.masks.remove(&mask);
            }
        }
        if port.megaflows == 0 {
            self.ports.remove(&number);
        }
    }

    /// A sweep begins: megaflows that were there before are to be seen in it.
    pub fn begin_sweep(&mut self) {
        self.sweep = self.sweep.wrapping_add(1);
    }

    /// Notes what a worker of the datapath has counted for a megaflow. False when there is none on record.
    pub fn note(&mut self, id: MegaflowId, usage: &Usage) -> bool {
        let sweep = self.sweep;
        let Some(record) = self.get_mut(id) else { return false };
        // What several workers have counted is summed up.
        let is_first = record.seen != sweep;
        record.seen = sweep;
        let before = if is_first { (record.packets, record.bytes) } else { (0, 0) };
        if let Some(origin) = &record.origin {
            origin.count(before, usage);
        }
        if is_first {
            (record.packets, record.bytes) = (usage.packets, usage.bytes);
        } else {
            record.packets = record.packets.wrapping_add(usage.packets);
            record.bytes = record.bytes.wrapping_add(usage.bytes);
        }
        record.used = record.used.max(Tenths::of_ms(usage.used_ms));
        true
    }

    /// Records next to each other, of part `number` counted from 0; `None` behind the last part.
    pub fn part(&self, number: usize) -> Option<impl Iterator<Item = (&Record, &Arc<Origin>)>> {
        let chunk = self.chunks.get(number)?;
        Some(chunk.iter().filter_map(|record| Some((record, record.origin.as_ref()?))))
    }

    /// True when this sweep should have found the megaflow in the datapath, and did not.
    pub fn has_vanished(&self, record: &Record) -> bool {
        record.seen != self.sweep
    }

    /// Forgets origins that nothing comes from any more.
    pub fn tidy(&mut self) {
        self.origins.tidy();
    }

    /// How many origins there are.
    pub fn origins(&self) -> usize {
        self.origins.len()
    }
}

fn at(chunks: &[Vec<Record>], slot: u32) -> Option<&Record> {
    chunks.get(slot as usize / CHUNK)?.get(slot as usize % CHUNK)
}

fn at_mut(chunks: &mut [Vec<Record>], slot: u32) -> Option<&mut Record> {
    chunks.get_mut(slot as usize / CHUNK)?.get_mut(slot as usize % CHUNK)
}
