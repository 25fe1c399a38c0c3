//! The switch's record of each megaflow. It is small, because there may be hundreds of thousands:
//! match and actions are in the datapath, and data that many megaflows share are in their
//! [`Origin`].

use crate::config::Limits;
use crate::fusions::Fusions;
use crate::origin::{MaskNo, NewOrigin, Origin, Origins};
use ahash::RandomState;
use conntrack::ConnKey;
use datapath::megaflow::{Fusion, MegaflowId, Usage};
use flow::PortNo;
use hashbrown::HashTable;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

type Map<K, V> = HashMap<K, V, RandomState>;

/// A time on the datapath's clock in tenths of a second, enough for 13 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Deciseconds(u32);

impl Deciseconds {
    pub fn of_ms(ms: u64) -> Self {
        Self(u32::try_from(ms / 100).unwrap_or(u32::MAX))
    }

    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::from(self.0.saturating_sub(earlier.0)) * 100)
    }
}

/// The record of one megaflow.
#[derive(Debug)]
pub(crate) struct MegaflowRecord {
    pub id: MegaflowId,
    /// Packets and bytes already added to the origin.
    packets: u64,
    bytes: u64,
    /// `None` in a free slot.
    origin: Option<Arc<Origin>>,
    pub created: Deciseconds,
    /// Time of the last hit, or of the creation.
    pub used: Deciseconds,
    pub port: PortNo,
    /// The index of its mask among the port's masks.
    mask: MaskIndex,
    /// The last sweep that found it in the datapath, or during which it was recorded. Every sweep
    /// visits all records, so the number may wrap.
    seen: u16,
}

// There are hundreds of thousands of records, so their size matters.
const _: () = assert!(size_of::<MegaflowRecord>() == 48);

impl MegaflowRecord {
    pub fn origin(&self) -> Option<&Arc<Origin>> {
        self.origin.as_ref()
    }
}

/// A removed megaflow whose final counters were not added yet.
#[derive(Debug)]
pub(crate) struct RemovedMegaflow {
    pub id: MegaflowId,
    packets: u64,
    bytes: u64,
    pub origin: Arc<Origin>,
    /// The passes and connections of a fused megaflow.
    pub fusion: Option<Arc<Fusion>>,
}

impl RemovedMegaflow {
    /// Adds the final counters to the origin.
    pub fn count(&self, last: &Usage) {
        self.origin.count((self.packets, self.bytes), last);
    }
}

/// The result of recording a megaflow.
#[derive(Debug)]
pub(crate) enum InsertResult {
    /// It is recorded, or was recorded before with the same origin.
    Recorded(Arc<Origin>),
    /// It is recorded in place of a withdrawn megaflow of an earlier program, which several workers
    /// may have.
    Replaced(Arc<Origin>),
    /// A megaflow with another origin is recorded, so one of the two is stale; the next
    /// revalidation decides. Until then the new one must not be installed, because records and
    /// datapath must agree. Also returned if a newer program was published meanwhile.
    Conflict,
    /// The limit of this port or of all ports is reached.
    Full,
}

/// An index into the masks of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MaskIndex(u16);

impl MaskIndex {
    /// The exact-match mask, which every port may use in addition.
    const EXACT: Self = Self(u16::MAX);
}

/// The megaflows and masks of a port.
#[derive(Debug, Default)]
struct PortMegaflows {
    megaflows: usize,
    /// Its masks and the number of megaflows of each; 0 in a free entry.
    masks: Vec<(MaskNo, u32)>,
    /// Its megaflows in [`Records::neighbours`].
    neighbours: usize,
}

impl PortMegaflows {
    /// The index of a mask that is in use.
    fn index_of(&self, mask: MaskNo) -> Option<usize> {
        self.masks.iter().position(|&(other, count)| other == mask && count > 0)
    }

    /// The number of masks in use.
    fn masks(&self) -> usize {
        self.masks.iter().filter(|(_, count)| *count > 0).count()
    }

    /// Counts one more megaflow with the mask. True if it is the first of this port.
    fn add(&mut self, mask: MaskNo) -> (MaskIndex, bool) {
        let had = self.index_of(mask);
        let free = || self.masks.iter().position(|&(_, count)| count == 0);
        let index = had.or_else(free).unwrap_or(self.masks.len());
        match self.masks.get_mut(index) {
            Some((_, count @ 1..)) => *count += 1,
            Some(free) => *free = (mask, 1),
            None => self.masks.push((mask, 1)),
        }
        (MaskIndex(index as u16), had.is_none())
    }
}

/// Records of a chunk. Chunks are not moved when more are added, and a walk releases the lock
/// between two of them.
const CHUNK: usize = 1024;

/// The records of all megaflows. A record never moves.
#[derive(Debug)]
pub(crate) struct Records {
    max: usize,
    max_masks: usize,
    max_masks_per_port: usize,
    chunks: Vec<Vec<MegaflowRecord>>,
    free: Vec<u32>,
    index: HashTable<u32>,
    ports: Map<PortNo, PortMegaflows>,
    /// The masks of all ports, and the number of ports that use each.
    masks: Map<MaskNo, u32>,
    origins: Origins,
    pub fusions: Fusions,
    /// The megaflows whose first packet was ARP or neighbour discovery. They stay longer.
    neighbours: HashSet<MegaflowId, RandomState>,
    max_neighbours_per_port: usize,
    sweep: u16,
    /// The generation of the current program. Megaflows of an older one are not recorded.
    current: u64,
    /// Megaflows are being carried over to the current program.
    is_carrying: bool,
    /// The oldest epoch in force: the datapath has withdrawn the megaflows of older ones.
    in_force: u64,
    /// The oldest generation whose decisions the datapath may execute.
    enforced: u64,
}

impl Records {
    pub fn new(limits: &Limits, fusions: Fusions) -> Self {
        Self {
            max: limits.megaflows.min(u32::MAX as usize),
            max_masks: limits.masks,
            max_masks_per_port: limits.masks_per_port.min(MaskIndex::EXACT.0.into()),
            chunks: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            ports: Map::default(),
            masks: Map::default(),
            origins: Origins::default(),
            fusions,
            neighbours: HashSet::default(),
            max_neighbours_per_port: limits.neighbours_per_port,
            sweep: 0,
            current: 0,
            is_carrying: false,
            in_force: 0,
            enforced: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    pub fn is_nearly_full(&self) -> bool {
        self.len() > self.max - self.max / 8
    }

    /// True if the limits allow the port a megaflow with that mask.
    pub fn may_add_mask(&self, port: PortNo, mask: MaskNo) -> bool {
        let port = self.ports.get(&port);
        if port.is_some_and(|port| port.index_of(mask).is_some()) {
            return true;
        }
        let (has, is_there) =
            (port.map_or(0, PortMegaflows::masks), self.masks.contains_key(&mask));
        let free = self.max_masks.saturating_sub(self.masks.len());
        has < self.max_masks_per_port && (is_there || has < free)
    }

    /// Records a megaflow of a port; a `mask` of `None` is the exact-match mask.
    pub fn insert(
        &mut self,
        id: MegaflowId,
        (number, mask): (PortNo, Option<MaskNo>),
        candidate: &NewOrigin<'_>,
        now: Deciseconds,
    ) -> InsertResult {
        if candidate.generation < self.current {
            return InsertResult::Conflict;
        }
        if let Some(origin) = self.get(id).and_then(MegaflowRecord::origin) {
            let is_withdrawn = self.is_withdrawn(origin);
            if origin.is(candidate) && !is_withdrawn {
                return InsertResult::Recorded(Arc::clone(origin));
            }
            let replaced = if is_withdrawn { self.replace(id, candidate) } else { None };
            return replaced.map_or(InsertResult::Conflict, InsertResult::Replaced);
        }
        let port = self.ports.get(&number).map_or(0, |port| port.megaflows);
        if port >= self.max.saturating_sub(self.len()) {
            return InsertResult::Full;
        }
        let port = self.ports.entry(number).or_default();
        port.megaflows += 1;
        let mask = mask.map_or(MaskIndex::EXACT, |mask| {
            let (at, is_first) = port.add(mask);
            if is_first {
                *self.masks.entry(mask).or_default() += 1;
            }
            at
        });
        let origin = self.origins.intern(candidate);
        let slot = self.store(MegaflowRecord {
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
        InsertResult::Recorded(origin)
    }

    /// Keeps a recorded megaflow longer than others, because its first packet was ARP or neighbour
    /// discovery, if its port has not too many of them.
    pub fn keep_longer(&mut self, id: MegaflowId, port: PortNo) {
        let most = self.max_neighbours_per_port;
        let Some(port) = self.ports.get_mut(&port).filter(|port| port.neighbours < most) else {
            return;
        };
        if self.neighbours.insert(id) {
            port.neighbours += 1;
        }
    }

    /// Whether a megaflow stays longer than others.
    pub fn is_kept_longer(&self, id: MegaflowId) -> bool {
        self.neighbours.contains(&id)
    }

    fn store(&mut self, record: MegaflowRecord) -> u32 {
        if let Some(slot) = self.free.pop()
            && let Some(free) = at_mut(&mut self.chunks, slot)
        {
            *free = record;
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

    pub fn get(&self, id: MegaflowId) -> Option<&MegaflowRecord> {
        let is = |slot: &u32| at(&self.chunks, *slot).is_some_and(|record| record.id == id);
        at(&self.chunks, *self.index.find(id.0, is)?)
    }

    fn get_mut(&mut self, id: MegaflowId) -> Option<&mut MegaflowRecord> {
        let is = |slot: &u32| at(&self.chunks, *slot).is_some_and(|record| record.id == id);
        let slot = *self.index.find(id.0, is)?;
        at_mut(&mut self.chunks, slot)
    }

    /// The origin of a megaflow.
    pub fn origin(&self, id: MegaflowId) -> Option<&Arc<Origin>> {
        self.get(id)?.origin.as_ref()
    }

    /// True if the megaflow is recorded with an origin that was found stale, and the datapath
    /// executes it.
    pub fn is_executed_stale(&self, id: MegaflowId) -> bool {
        let is_executed = |origin: &Origin| origin.is_known_stale() && !self.is_withdrawn(origin);
        self.origin(id).is_some_and(|origin| is_executed(origin))
    }

    /// The least epoch that the datapath executes.
    pub fn withdrawn(&self) -> u64 {
        self.in_force
    }

    /// The origin equal to the candidate, made if there is none.
    pub fn intern(&mut self, candidate: &NewOrigin<'_>) -> Arc<Origin> {
        self.origins.intern(candidate)
    }

    /// Gives a megaflow another origin.
    pub fn set_origin(&mut self, id: MegaflowId, origin: Arc<Origin>) {
        if let Some(record) = self.get_mut(id) {
            record.origin = Some(origin);
        }
    }

    /// Replaces the origin of a megaflow; returns the new one. `None` if there is no record.
    pub fn replace(&mut self, id: MegaflowId, candidate: &NewOrigin<'_>) -> Option<Arc<Origin>> {
        let origin = self.origins.intern(candidate);
        self.get_mut(id)?.origin = Some(Arc::clone(&origin));
        Some(origin)
    }

    /// Begins the epoch of a new program.
    ///
    /// Until [`Records::end_carrying`], no walk may look for stale megaflows: it would find those
    /// that are about to be carried over.
    pub fn begin_epoch(&mut self, generation: u64) {
        self.current = generation;
        self.is_carrying = true;
    }

    /// Notes that megaflows were carried over to this generation of the program.
    pub fn end_carrying(&mut self, generation: u64) {
        self.is_carrying &= generation < self.current;
    }

    /// True if stale megaflows may be looked for, under this generation of the program.
    pub fn may_search(&self, generation: u64) -> bool {
        generation == self.current.max(1) && !self.is_carrying
    }

    /// True if a later program than this one is current.
    pub fn is_outdated(&self, generation: u64) -> bool {
        generation < self.current
    }

    /// The megaflows that the current program has not confirmed, and that the datapath still
    /// executes.
    pub fn unconfirmed(&self) -> Vec<MegaflowId> {
        let is_of =
            |origin: &Origin| origin.generation < self.current && !self.is_withdrawn(origin);
        let records = self.chunks.iter().flatten();
        let unconfirmed = records.filter(|it| it.origin().is_some_and(|origin| is_of(origin)));
        unconfirmed.map(|record| record.id).collect()
    }

    /// Notes that the datapath has withdrawn all megaflows of earlier epochs. Those that were
    /// carried over to the current program have to be installed again.
    pub fn withdraw_unconfirmed(&mut self) {
        self.in_force = self.current;
        self.enforced = self.current;
        let is_withdrawn = |origin: &&Arc<Origin>| origin.epoch < self.in_force;
        self.origins.iter().filter(is_withdrawn).for_each(|origin| origin.make_stale());
    }

    /// Notes that the datapath executes no decision of earlier programs any more.
    pub fn enforce(&mut self) {
        self.enforced = self.current;
    }

    /// True if no decision of this generation of the program may be executed any more.
    pub fn is_superseded(&self, generation: u64) -> bool {
        generation < self.enforced
    }

    /// True if the datapath has withdrawn the megaflows of this origin.
    pub fn is_withdrawn(&self, origin: &Origin) -> bool {
        origin.epoch < self.in_force
    }

    /// The origins of this generation that are not known to be stale.
    pub fn origins_of(&self, generation: u64) -> Vec<Arc<Origin>> {
        let origins = self.origins.iter();
        let is_of = |it: &&Arc<Origin>| it.generation == generation && !it.is_known_stale();
        origins.filter(is_of).map(Arc::clone).collect()
    }

    /// Replaces the origins of the megaflows in chunk `number` by those that `of` returns for their
    /// ports and present origins. Returns how many; `None` after the last chunk.
    pub fn replace_in_chunk<'c>(
        &mut self,
        number: usize,
        mut of: impl FnMut(PortNo, &Arc<Origin>) -> Option<NewOrigin<'c>>,
    ) -> Option<usize> {
        let chunk = self.chunks.get_mut(number)?;
        let mut replaced = 0;
        // Adjacent records often share an origin.
        let mut last: Option<(Arc<Origin>, PortNo, Arc<Origin>)> = None;
        for record in chunk {
            let Some(origin) = &mut record.origin else { continue };
            if let Some((old, port, new)) = &last
                && Arc::ptr_eq(old, origin)
                && *port == record.port
            {
                *origin = Arc::clone(new);
                replaced += 1;
            } else if let Some(candidate) = of(record.port, origin) {
                let new = self.origins.intern(&candidate);
                let old = std::mem::replace(origin, Arc::clone(&new));
                last = Some((old, record.port, new));
                replaced += 1;
            }
        }
        Some(replaced)
    }

    /// Removes the record of a megaflow.
    pub fn remove(&mut self, id: MegaflowId) -> Option<RemovedMegaflow> {
        let chunks = &self.chunks;
        let is = |slot: &u32| at(chunks, *slot).is_some_and(|record| record.id == id);
        let (slot, _) = self.index.find_entry(id.0, is).ok()?.remove();
        self.free.push(slot);
        let record = at_mut(&mut self.chunks, slot)?;
        let (packets, bytes, port, mask) = (record.packets, record.bytes, record.port, record.mask);
        let origin = record.origin.take()?;
        if self.neighbours.remove(&id)
            && let Some(port) = self.ports.get_mut(&port)
        {
            port.neighbours -= 1;
        }
        self.release_mask(port, mask);
        if self.index.is_empty() {
            // Release the memory that a flood of megaflows may have taken.
            self.chunks = Vec::new();
            self.free = Vec::new();
            self.index = HashTable::new();
        }
        let fusion = self.fusions.remove(id);
        Some(RemovedMegaflow { id, packets, bytes, origin, fusion })
    }

    fn release_mask(&mut self, number: PortNo, mask: MaskIndex) {
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

    /// Starts a sweep. Megaflows that were recorded earlier, and that it does not find, have
    /// vanished.
    pub fn begin_sweep(&mut self) {
        self.sweep = self.sweep.wrapping_add(1);
    }

    /// Adds a worker's counters of a megaflow to its record, and the connections of a fused
    /// megaflow to `in_use` if it has served packets. False if there is no record.
    pub fn add_usage(&mut self, id: MegaflowId, usage: &Usage, in_use: &mut Vec<ConnKey>) -> bool {
        let sweep = self.sweep;
        let fusion = self.fusions.get(id).cloned();
        let Some(record) = self.get_mut(id) else { return false };
        if let Some(fusion) = fusion
            && usage.packets != record.packets
        {
            in_use.extend(&fusion.connections);
        }
        // The counters of several workers are summed up.
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
        record.used = record.used.max(Deciseconds::of_ms(usage.used_ms));
        true
    }

    /// The records of chunk `number`, counted from 0; `None` after the last chunk.
    pub fn chunk(
        &self,
        number: usize,
    ) -> Option<impl Iterator<Item = (&MegaflowRecord, &Arc<Origin>)>> {
        let chunk = self.chunks.get(number)?;
        Some(chunk.iter().filter_map(|record| Some((record, record.origin.as_ref()?))))
    }

    /// True if the current sweep did not find the megaflow in the datapath.
    pub fn has_vanished(&self, record: &MegaflowRecord) -> bool {
        record.seen != self.sweep
    }

    /// Removes origins without megaflows.
    pub fn remove_unused(&mut self) {
        self.origins.remove_unused();
    }

    /// The number of origins.
    pub fn origins(&self) -> usize {
        self.origins.len()
    }
}

fn at(chunks: &[Vec<MegaflowRecord>], slot: u32) -> Option<&MegaflowRecord> {
    chunks.get(slot as usize / CHUNK)?.get(slot as usize % CHUNK)
}

fn at_mut(chunks: &mut [Vec<MegaflowRecord>], slot: u32) -> Option<&mut MegaflowRecord> {
    chunks.get_mut(slot as usize / CHUNK)?.get_mut(slot as usize % CHUNK)
}
