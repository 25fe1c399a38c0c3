//! The origin of a megaflow: the flows of the program that matched, and the learned state that they
//! read. Many megaflows share one origin.

use crate::carry::Successor;
use ahash::RandomState;
use datapath::megaflow::Usage;
use flow::FlowMask;
use hashbrown::HashTable;
use pipeline::{Carried, Dependency, Flow, IngressPort, LearnEvent, LearnedTables, ProgramReads};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher};
use std::mem::{Discriminant, discriminant};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

/// A random seed, so that a sender cannot choose packets whose masks or origins collide.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The number of a mask: a hash of it. It serves only to count different masks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct MaskNo(u64);

impl MaskNo {
    pub fn of(mask: &FlowMask) -> Self {
        Self(SEED.hash_one(mask))
    }
}

/// The learned state that a translation has read. If a learn event about the same state was
/// refused, the packets do not confirm that state, so that it expires.
fn state_reads(dependencies: Vec<Dependency>, refused: &[LearnEvent]) -> Vec<Dependency> {
    let read = |mut read: Dependency| {
        read.confirms &= refused.iter().all(|event| event.query() != read.query);
        read
    };
    dependencies.into_iter().map(read).collect()
}

/// Learn events that were refused.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RefusedEvents {
    events: Vec<LearnEvent>,
    ingress: IngressPort,
}

impl RefusedEvents {
    /// `None` without events, which is the usual case.
    pub fn new(events: Vec<LearnEvent>, ingress: IngressPort) -> Option<Box<Self>> {
        (!events.is_empty()).then(|| Box::new(Self { events, ingress }))
    }
}

/// The refused learn events that a sweep retries: for each kind and port, no more than there is
/// room for. Otherwise each entry that becomes free would make all refused packets raise upcalls.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    left: HashMap<(Discriminant<LearnEvent>, IngressPort), usize, RandomState>,
}

impl Retries {
    /// True if one of the events is to be retried, because it would be accepted now.
    fn take(&mut self, refused: &RefusedEvents, learned: &LearnedTables) -> bool {
        refused.events.iter().any(|event| {
            let Ok(room) = learned.capacity_for(event, refused.ingress) else { return false };
            let left = match self.left.entry((discriminant(event), refused.ingress)) {
                Entry::Occupied(left) => left.into_mut(),
                Entry::Vacant(first) => first.insert(room),
            };
            let is_one_left = *left > 0;
            *left = left.saturating_sub(1);
            is_one_left
        })
    }
}

/// A candidate for an origin. An equal origin may exist already.
#[derive(Clone, Debug)]
pub(crate) struct NewOrigin<'p> {
    /// The generation of the program.
    pub generation: u64,
    /// The generation whose publication began the datapath's epoch of the megaflow.
    pub epoch: u64,
    is_carried: bool,
    pub flows: Vec<&'p Arc<Flow>>,
    pub state_reads: Vec<Dependency>,
    reads: Arc<ProgramReads>,
    refused: Option<Box<RefusedEvents>>,
    hash: u64,
}

impl<'p> NewOrigin<'p> {
    /// Makes the origin of a megaflow that is to be installed, from what its translation has read:
    /// flows, learned state, and other parts of the program.
    pub fn new(
        generation: u64,
        (flows, dependencies, reads): (Vec<&'p Arc<Flow>>, Vec<Dependency>, ProgramReads),
        refused: Option<Box<RefusedEvents>>,
    ) -> Self {
        let events = refused.as_ref().map_or(&[][..], |refused| &refused.events);
        let state_reads = state_reads(dependencies, events);
        Self::of(generation, (flows, state_reads, Arc::new(reads)), refused)
    }

    fn of(
        generation: u64,
        (flows, state_reads, reads): (Vec<&'p Arc<Flow>>, Vec<Dependency>, Arc<ProgramReads>),
        refused: Option<Box<RefusedEvents>>,
    ) -> Self {
        let mut hasher = SEED.build_hasher();
        (generation, &state_reads, &reads, &refused).hash(&mut hasher);
        flows.iter().for_each(|flow| hasher.write_usize(Arc::as_ptr(flow).addr()));
        let hash = hasher.finish();
        let (epoch, is_carried) = (generation, false);
        Self { generation, epoch, is_carried, flows, state_reads, reads, refused, hash }
    }

    /// The origin of a megaflow that stays installed under a new program.
    pub fn carried(generation: u64, origin: &Origin, carried: &'p Carried) -> Self {
        let flows = carried.flows.iter().collect();
        let reads = (flows, origin.state_reads.to_vec(), Arc::clone(&origin.reads));
        let new = Self::of(generation, reads, origin.refused.clone());
        Self { is_carried: true, ..new.in_epoch(origin.epoch) }
    }

    /// The same origin for a megaflow of another epoch of the datapath.
    pub fn in_epoch(self, epoch: u64) -> Self {
        Self { epoch, ..self }
    }

    /// True if all learned state that was read is unchanged.
    pub fn is_current(&self, learned: &LearnedTables) -> bool {
        is_current(&self.state_reads, learned)
    }
}

fn is_current(state_reads: &[Dependency], learned: &LearnedTables) -> bool {
    let same = |a: &Dependency| learned.is_current(&a.query, a.generation);
    state_reads.iter().all(same)
}

/// The origin of one or more megaflows.
#[derive(Debug)]
pub(crate) struct Origin {
    /// The generation of the program.
    pub generation: u64,
    /// The generation whose publication began the datapath's epoch of the megaflows. It is lower
    /// for those that were carried over to a new program.
    pub epoch: u64,
    /// The megaflows were carried over: the program of this generation has not translated them.
    pub is_carried: bool,
    /// The flows that matched, in order.
    pub flows: Box<[Arc<Flow>]>,
    pub state_reads: Box<[Dependency]>,
    /// The other parts of the program that the translation has read. Equal ones are shared.
    pub reads: Arc<ProgramReads>,
    /// The result of carrying this origin over to a later program, if it is not valid for all of
    /// its megaflows.
    pub successor: OnceLock<Successor>,
    refused: Option<Box<RefusedEvents>>,
    hash: u64,
    /// Counts of the megaflows that were not yet added to the flows.
    packets: AtomicI64,
    bytes: AtomicI64,
    /// Set once the origin is stale; it never becomes current again.
    stale: AtomicBool,
    /// The last round of revalidation that found it current.
    checked: AtomicU32,
}

impl Origin {
    /// True if all learned state that was read is unchanged.
    pub fn has_read_current(&self, learned: &LearnedTables) -> bool {
        is_current(&self.state_reads, learned)
    }

    /// True if the candidate equals this origin, except perhaps in the epoch.
    pub fn is(&self, candidate: &NewOrigin<'_>) -> bool {
        self.hash == candidate.hash
            && self.generation == candidate.generation
            && *self.state_reads == *candidate.state_reads
            && (Arc::ptr_eq(&self.reads, &candidate.reads) || self.reads == candidate.reads)
            && self.refused == candidate.refused
            && self.flows.len() == candidate.flows.len()
            && self.flows.iter().zip(&candidate.flows).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// Marks all megaflows of this origin for another translation.
    pub fn make_stale(&self) {
        self.stale.store(true, Ordering::Relaxed);
    }

    /// True if the program or learned state has changed since. Checked once in every `round`.
    pub fn is_stale(&self, generation: u64, learned: &LearnedTables, round: u32) -> bool {
        if self.is_known_stale() {
            return true;
        }
        if self.checked.load(Ordering::Relaxed) == round {
            return false;
        }
        let is_stale = self.generation != generation || !is_current(&self.state_reads, learned);
        if is_stale {
            self.stale.store(true, Ordering::Relaxed);
        } else {
            self.checked.store(round, Ordering::Relaxed);
        }
        is_stale
    }

    /// True if neither the program nor learned state has changed since.
    pub fn is_current(&self, generation: u64, learned: &LearnedTables) -> bool {
        !self.is_known_stale()
            && self.generation == generation
            && is_current(&self.state_reads, learned)
    }

    /// Returns true if packets should raise upcalls to retry a refused learn event; from then on
    /// the origin is stale. Called in a sweep.
    pub fn retries_learning(&self, learned: &LearnedTables, retries: &mut Retries) -> bool {
        let Some(refused) = &self.refused else { return false };
        let retries_learning = retries.take(refused, learned);
        if retries_learning {
            self.stale.store(true, Ordering::Relaxed);
        }
        retries_learning
    }

    /// True if it was found stale.
    pub fn is_known_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// Adds the growth of a megaflow's counters from `from` to `to`.
    pub fn count(&self, from: (u64, u64), to: &Usage) {
        // The growth may be negative for a while, until the counts of all workers are summed up.
        self.add(to.packets.wrapping_sub(from.0), to.bytes.wrapping_sub(from.1));
    }

    /// Adds packets and bytes; wrapping.
    pub fn add(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets as i64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as i64, Ordering::Relaxed);
    }

    /// True if there are counts that were not yet added to the flows.
    pub fn has_pending(&self) -> bool {
        self.packets.load(Ordering::Relaxed) > 0
    }

    /// Adds the pending counts to the flows. False if there were none.
    pub fn flush(&self) -> bool {
        let take = |pending: &AtomicI64| {
            let value = pending.swap(0, Ordering::Relaxed);
            if value < 0 {
                pending.fetch_add(value, Ordering::Relaxed);
            }
            value.max(0) as u64
        };
        let (packets, bytes) = (take(&self.packets), take(&self.bytes));
        if packets > 0 || bytes > 0 {
            self.flows.iter().for_each(|flow| flow.counters.add(packets, bytes));
        }
        packets > 0
    }
}

/// The interned origins.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    table: HashTable<Arc<Origin>>,
    reads: HashSet<Arc<ProgramReads>, RandomState>,
}

impl Origins {
    /// The origin equal to the candidate, made if there is none. A stale origin is never reused,
    /// even if it is equal: its refused learn events were retried.
    pub fn intern(&mut self, candidate: &NewOrigin<'_>) -> Arc<Origin> {
        let is_same = |origin: &Arc<Origin>| {
            !origin.is_known_stale()
                && (origin.epoch, origin.is_carried) == (candidate.epoch, candidate.is_carried)
                && origin.is(candidate)
        };
        if let Some(origin) = self.table.find(candidate.hash, is_same) {
            return Arc::clone(origin);
        }
        let reads = match self.reads.get(&candidate.reads) {
            Some(known) => Arc::clone(known),
            None => {
                self.reads.insert(Arc::clone(&candidate.reads));
                Arc::clone(&candidate.reads)
            }
        };
        let origin = Arc::new(Origin {
            generation: candidate.generation,
            epoch: candidate.epoch,
            is_carried: candidate.is_carried,
            flows: candidate.flows.iter().map(|flow| Arc::clone(flow)).collect(),
            state_reads: candidate.state_reads.as_slice().into(),
            reads,
            successor: OnceLock::new(),
            refused: candidate.refused.clone(),
            hash: candidate.hash,
            packets: AtomicI64::new(0),
            bytes: AtomicI64::new(0),
            stale: AtomicBool::new(false),
            checked: AtomicU32::new(0),
        });
        self.table.insert_unique(candidate.hash, Arc::clone(&origin), |origin| origin.hash);
        origin
    }

    /// Removes origins without megaflows, after adding their pending counts to the flows.
    pub fn remove_unused(&mut self) {
        self.table.retain(|origin| {
            let is_in_use = Arc::strong_count(origin) > 1;
            if !is_in_use {
                origin.flush();
            }
            is_in_use
        });
        if self.table.len() < self.table.capacity() / 4 {
            self.table.shrink_to_fit(|origin| origin.hash);
        }
        self.reads.retain(|reads| Arc::strong_count(reads) > 1);
        if self.reads.len() < self.reads.capacity() / 4 {
            self.reads.shrink_to_fit();
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Origin>> {
        self.table.iter()
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }
}
