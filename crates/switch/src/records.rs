//! What the switch keeps of each megaflow: little, because there may be hundreds of thousands. Condition and actions are in the
//! datapath; what many megaflows have in common is in their [`Origin`].

use crate::config::Limits;
use crate::origin::{Candidate, MaskNo, Origin, Origins};
use ahash::RandomState;
use datapath::megaflow::{MegaflowId, Usage};
use flow::PortNo;
use hashbrown::HashTable;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
    port: PortNo,
    /// Which of its port's masks it has.
    mask: MaskAt,
    /// The last sweep that found it in the datapath, or during which it was put. Each goes through all, so that numbers that come again
    /// do no harm.
    seen: u16,
}

// Hundreds of thousands of them.
const _: () = assert!(size_of::<Record>() == 48);

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
#[derive(Debug)]
pub(crate) enum Entered {
    /// It is there, now or with the same origin before.
    Here(Arc<Origin>),
    /// It is there with another origin: one of the two is out of date. The next revalidation finds out; until then the datapath
    /// must not be given the other one, or what is on record would no longer be what it has.
    Outdated,
    /// There are too many, of this port or of all.
    Full,
}

/// A place among the masks of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MaskAt(u16);

impl MaskAt {
    /// The mask for single packets, which every port may have besides.
    const EXACT: Self = Self(u16::MAX);
}

/// What a port has.
#[derive(Debug, Default)]
struct PortUse {
    megaflows: usize,
    /// Its masks, and how many megaflows have each; none has one whose place is free.
    masks: Vec<(MaskNo, u32)>,
}

impl PortUse {
    /// The place of a mask that it has.
    fn place(&self, mask: MaskNo) -> Option<usize> {
        self.masks.iter().position(|&(other, count)| other == mask && count > 0)
    }

    /// How many masks it has.
    fn masks(&self) -> usize {
        self.masks.iter().filter(|(_, count)| *count > 0).count()
    }

    /// One more megaflow has the mask. True when it is the port's first.
    fn add(&mut self, mask: MaskNo) -> (MaskAt, bool) {
        let had = self.place(mask);
        let free = || self.masks.iter().position(|&(_, count)| count == 0);
        let place = had.or_else(free).unwrap_or(self.masks.len());
        match self.masks.get_mut(place) {
            Some((_, count @ 1..)) => *count += 1,
            Some(free) => *free = (mask, 1),
            None => self.masks.push((mask, 1)),
        }
        (MaskAt(place as u16), had.is_none())
    }
}

/// Records to a chunk: chunks are not moved when there are more of them, and a walk stops between two.
const CHUNK: usize = 1024;

/// All megaflows. A record stays in its place as long as it is there.
#[derive(Debug)]
pub(crate) struct Records {
    max: usize,
    max_masks: usize,
    max_masks_per_port: usize,
    chunks: Vec<Vec<Record>>,
    free: Vec<u32>,
    index: HashTable<u32>,
    ports: Map<PortNo, PortUse>,
    /// The masks of all ports, and how many of these have each.
    masks: Map<MaskNo, u32>,
    origins: Origins,
    sweep: u16,
}

impl Records {
    pub fn new(limits: &Limits) -> Self {
        Self {
            max: limits.megaflows.min(u32::MAX as usize),
            max_masks: limits.masks,
            max_masks_per_port: limits.masks_per_port.min(MaskAt::EXACT.0.into()),
            chunks: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            ports: Map::default(),
            masks: Map::default(),
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
        let port = self.ports.get(&port);
        if port.is_some_and(|port| port.place(mask).is_some()) {
            return true;
        }
        let (has, is_there) = (port.map_or(0, PortUse::masks), self.masks.contains_key(&mask));
        let free = self.max_masks.saturating_sub(self.masks.len());
        has < self.max_masks_per_port && (is_there || has < free)
    }

    /// Puts a megaflow on record: of a port, with one of its masks, or that for single packets.
    pub fn enter(
        &mut self,
        id: MegaflowId,
        (number, mask): (PortNo, Option<MaskNo>),
        candidate: &Candidate<'_>,
        now: Tenths,
    ) -> Entered {
        if let Some(record) = self.get(id) {
            return match &record.origin {
                Some(origin) if origin.is(candidate) => Entered::Here(Arc::clone(origin)),
                _ => Entered::Outdated,
            };
        }
        let port = self.ports.get(&number).map_or(0, |port| port.megaflows);
        if port >= self.max.saturating_sub(self.len()) {
            return Entered::Full;
        }
        let port = self.ports.entry(number).or_default();
        port.megaflows += 1;
        let mask = mask.map_or(MaskAt::EXACT, |mask| {
            let (at, is_first) = port.add(mask);
            if is_first {
                *self.masks.entry(mask).or_default() += 1;
            }
            at
        });
        let origin = self.origins.intern(candidate);
        let slot = self.store(Record {
            id,
            packets: 0,
            bytes: 0,
            origin: Some(Arc::clone(&origin)),
            created: now,
            used: now,
            port: number,
            mask,
            seen: self.sweep,
        });
        let chunks = &self.chunks;
        self.index.insert_unique(id.0, slot, |&slot| at(chunks, slot).map_or(0, |r| r.id.0));
        Entered::Here(origin)
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

    /// Gives a megaflow another origin.
    pub fn replace(&mut self, id: MegaflowId, candidate: &Candidate<'_>) {
        let origin = self.origins.intern(candidate);
        if let Some(record) = self.get_mut(id) {
            record.origin = Some(origin);
        }
    }

    /// Takes a megaflow out.
    pub fn remove(&mut self, id: MegaflowId) -> Option<Removed> {
        let chunks = &self.chunks;
        let is = |slot: &u32| at(chunks, *slot).is_some_and(|record| record.id == id);
        let (slot, _) = self.index.find_entry(id.0, is).ok()?.remove();
        self.free.push(slot);
        let record = at_mut(&mut self.chunks, slot)?;
        let (packets, bytes, port, mask) = (record.packets, record.bytes, record.port, record.mask);
        let origin = record.origin.take()?;
        self.leave(port, mask);
        if self.index.is_empty() {
            // What a flood has taken is given back.
            self.chunks = Vec::new();
            self.free = Vec::new();
            self.index = HashTable::new();
        }
        Some(Removed { id, packets, bytes, origin })
    }

    fn leave(&mut self, number: PortNo, mask: MaskAt) {
        let Some(port) = self.ports.get_mut(&number) else { return };
        port.megaflows -= 1;
        if let Some((mask, count)) = port.masks.get_mut(usize::from(mask.0)) {
            *count -= 1;
            if *count == 0
                && let Entry::Occupied(mut ports) = self.masks.entry(*mask)
            {
                *ports.get_mut() -= 1;
                if *ports.get() == 0 {
                    ports.remove();
                }
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
