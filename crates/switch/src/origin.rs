//! Where a megaflow comes from: which flows decided, and what they asked. Many megaflows have one origin in common.

use ahash::RandomState;
use datapath::megaflow::Usage;
use flow::{Field, FlowKey, FlowMask};
use hashbrown::HashTable;
use pipeline::{Dependency, Flow, Learned, Question};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

/// Who chooses the packets must not be able to choose masks and origins of one hash.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The number of a mask: a hash. It only serves for counting masks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct MaskNo(u64);

impl MaskNo {
    pub fn of(mask: &FlowMask) -> Self {
        Self(SEED.hash_one(mask))
    }
}

/// A question about learnt state, and its answer's generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Asked {
    pub dependency: Dependency,
    /// Packets of the megaflow show that the answer still holds.
    pub confirms: bool,
}

impl Asked {
    /// A station lives as long as *it* sends: what is sent to it shows nothing. A binding is confirmed by its use.
    fn new(dependency: Dependency, key: &FlowKey) -> Self {
        let confirms = match dependency.question {
            Question::Binding(_) => true,
            Question::Station(station) => {
                let [_, _, source @ ..] = (key.get(Field::EthSrc) as u64).to_be_bytes();
                station.mac.0 == source
            }
        };
        Self { dependency, confirms }
    }
}

/// What an origin is to be, before it is known whether there is one like it.
#[derive(Clone, Debug)]
pub(crate) struct Candidate<'p> {
    generation: u64,
    pub flows: Vec<&'p Arc<Flow>>,
    pub asked: Vec<Asked>,
    hash: u64,
}

impl<'p> Candidate<'p> {
    /// Of a megaflow for packets with that key, as a generation of the program has translated it.
    pub fn new(
        generation: u64,
        flows: Vec<&'p Arc<Flow>>,
        dependencies: &[Dependency],
        key: &FlowKey,
    ) -> Self {
        let asked: Vec<_> = dependencies.iter().map(|asked| Asked::new(*asked, key)).collect();
        let mut hasher = SEED.build_hasher();
        (generation, &asked).hash(&mut hasher);
        flows.iter().for_each(|flow| hasher.write_usize(Arc::as_ptr(flow).addr()));
        Self { generation, flows, asked, hash: hasher.finish() }
    }

    /// True when all answers are as they were.
    pub fn is_current(&self, learned: &Learned) -> bool {
        is_current(&self.asked, learned)
    }
}

fn is_current(asked: &[Asked], learned: &Learned) -> bool {
    let same = |a: &Asked| learned.is_current(&a.dependency.question, a.dependency.generation);
    asked.iter().all(same)
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Origin {
    /// The generation of the program.
    pub generation: u64,
    /// The flows that decided, in order.
    pub flows: Box<[Arc<Flow>]>,
    pub asked: Box<[Asked]>,
    hash: u64,
    /// Counted by megaflows, but not yet by the flows.
    packets: AtomicI64,
    bytes: AtomicI64,
    /// Once out of date, always out of date.
    stale: AtomicBool,
    /// The last round of revalidation that found it up to date.
    checked: AtomicU32,
}

impl Origin {
    /// True when a candidate would be this origin.
    pub fn is(&self, candidate: &Candidate<'_>) -> bool {
        self.hash == candidate.hash
            && self.generation == candidate.generation
            && *self.asked == *candidate.asked
            && self.flows.len() == candidate.flows.len()
            && self.flows.iter().zip(&candidate.flows).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// True when the program or an answer has changed since. Looked at once in every `round`, and remembered.
    pub fn is_stale(&self, generation: u64, learned: &Learned, round: u32) -> bool {
        if self.is_known_stale() {
            return true;
        }
        if self.checked.load(Ordering::Relaxed) == round {
            return false;
        }
        let is_stale = self.generation != generation || !is_current(&self.asked, learned);
        if is_stale {
            self.stale.store(true, Ordering::Relaxed);
        } else {
            self.checked.store(round, Ordering::Relaxed);
        }
        is_stale
    }

    /// True when it was found to be out of date.
    pub fn is_known_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// Adds what a megaflow has counted: `to` beyond `from`.
    pub fn count(&self, from: (u64, u64), to: &Usage) {
        // Less than before is possible in between, while the counts of several workers are summed up anew.
        self.add(to.packets.wrapping_sub(from.0), to.bytes.wrapping_sub(from.1));
    }

    /// Adds packets and bytes; wrapping.
    pub fn add(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets as i64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as i64, Ordering::Relaxed);
    }

    /// True when the flows have not been told everything.
    pub fn has_pending(&self) -> bool {
        self.packets.load(Ordering::Relaxed) > 0
    }

    /// Tells the flows what the megaflows have counted. False when that was nothing.
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

/// All origins, each once.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    table: HashTable<Arc<Origin>>,
}

impl Origins {
    /// The origin that the candidate is, new or not.
    pub fn intern(&mut self, candidate: &Candidate<'_>) -> Arc<Origin> {
        if let Some(origin) = self.table.find(candidate.hash, |origin| origin.is(candidate)) {
            return Arc::clone(origin);
        }
        let origin = Arc::new(Origin {
            generation: candidate.generation,
            flows: candidate.flows.iter().map(|flow| Arc::clone(flow)).collect(),
            asked: candidate.asked.as_slice().into(),
            hash: candidate.hash,
            packets: AtomicI64::new(0),
            bytes: AtomicI64::new(0),
            stale: AtomicBool::new(false),
            checked: AtomicU32::new(0),
        });
        self.table.insert_unique(candidate.hash, Arc::clone(&origin), |origin| origin.hash);
        origin
    }

    /// Forgets those that nobody else has, after their flows have been told the last.
    pub fn tidy(&mut self) {
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
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }
}
