//! Where a megaflow comes from: which flows decided, and what they asked. Many megaflows have one origin in common.

use ahash::RandomState;
use datapath::megaflow::Usage;
use flow::{Field, FlowKey, FlowMask};
use hashbrown::HashTable;
use pipeline::{Dependency, Flow, IngressPort, LearnEvent, LearnedTables, StateQuery};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash, Hasher};
use std::mem::{Discriminant, discriminant};
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
    /// A station lives as long as *it* sends: what is sent to it shows nothing. A binding is confirmed by its use. Packets that
    /// would have taught something else, and were refused, confirm nothing: the old answer comes to its end.
    fn new(dependency: Dependency, key: &FlowKey, refused: &[LearnEvent]) -> Self {
        let confirms = match dependency.query {
            question if refused.iter().any(|lesson| lesson.query() == question) => false,
            StateQuery::MacBinding(_) => true,
            StateQuery::Fdb(station) => {
                let [_, _, source @ ..] = (key.get(Field::EthSrc) as u64).to_be_bytes();
                station.mac.0 == source
            }
        };
        Self { dependency, confirms }
    }
}

/// What packets would have taught, had it not been refused.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Refused {
    lessons: Vec<LearnEvent>,
    teacher: IngressPort,
}

impl Refused {
    /// `None` without lessons, as mostly.
    pub fn new(lessons: Vec<LearnEvent>, teacher: IngressPort) -> Option<Box<Self>> {
        (!lessons.is_empty()).then(|| Box::new(Self { lessons, teacher }))
    }
}

/// Which lessons are tried again in a sweep: of each kind and port no more than there is room for, or each place that becomes free
/// would bring up all that was ever refused.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    left: HashMap<(Discriminant<LearnEvent>, IngressPort), usize, RandomState>,
}

impl Retries {
    /// True when one of the lessons is to be tried again: it would be learnt now.
    fn take(&mut self, refused: &Refused, learned: &LearnedTables) -> bool {
        refused.lessons.iter().any(|lesson| {
            let Ok(room) = learned.capacity_for(lesson, refused.teacher) else { return false };
            let left = match self.left.entry((discriminant(lesson), refused.teacher)) {
                Entry::Occupied(left) => left.into_mut(),
                Entry::Vacant(first) => first.insert(room),
            };
            let is_one_left = *left > 0;
            *left = left.saturating_sub(1);
            is_one_left
        })
    }
}

/// What an origin is to be, before it is known whether there is one like it.
#[derive(Clone, Debug)]
pub(crate) struct Candidate<'p> {
    generation: u64,
    pub flows: Vec<&'p Arc<Flow>>,
    pub asked: Vec<Asked>,
    refused: Option<Box<Refused>>,
    hash: u64,
}

impl<'p> Candidate<'p> {
    /// Of a megaflow for packets whose condition has that key, as a generation of the program has translated it.
    pub fn new(
        generation: u64,
        flows: Vec<&'p Arc<Flow>>,
        dependencies: &[Dependency],
        refused: Option<Box<Refused>>,
        key: &FlowKey,
    ) -> Self {
        let lessons = refused.as_ref().map_or(&[][..], |refused| &refused.lessons);
        let asked = dependencies.iter().map(|asked| Asked::new(*asked, key, lessons));
        let asked: Vec<_> = asked.collect();
        let mut hasher = SEED.build_hasher();
        (generation, &asked, &refused).hash(&mut hasher);
        flows.iter().for_each(|flow| hasher.write_usize(Arc::as_ptr(flow).addr()));
        Self { generation, flows, asked, refused, hash: hasher.finish() }
    }

    /// True when all answers are as they were.
    pub fn is_current(&self, learned: &LearnedTables) -> bool {
        is_current(&self.asked, learned)
    }
}

fn is_current(asked: &[Asked], learned: &LearnedTables) -> bool {
    let same = |a: &Asked| learned.is_current(&a.dependency.query, a.dependency.generation);
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
    refused: Option<Box<Refused>>,
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
            && self.refused == candidate.refused
            && self.flows.len() == candidate.flows.len()
            && self.flows.iter().zip(&candidate.flows).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// True when the program or an answer has changed since. Looked at once in every `round`, and remembered.
    pub fn is_stale(&self, generation: u64, learned: &LearnedTables, round: u32) -> bool {
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

    /// True when its packets are to come up, to teach what was refused before: a sweep asks. It is out of date then.
    pub fn tries_again(&self, learned: &LearnedTables, retries: &mut Retries) -> bool {
        let Some(refused) = &self.refused else { return false };
        let tries_again = retries.take(refused, learned);
        if tries_again {
            self.stale.store(true, Ordering::Relaxed);
        }
        tries_again
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
    /// The origin that the candidate is, new or not. Not one that was out of date, though all be as before: its lessons have been tried
    /// again.
    pub fn intern(&mut self, candidate: &Candidate<'_>) -> Arc<Origin> {
        let is_same = |origin: &Arc<Origin>| !origin.is_known_stale() && origin.is(candidate);
        if let Some(origin) = self.table.find(candidate.hash, is_same) {
            return Arc::clone(origin);
        }
        let origin = Arc::new(Origin {
            generation: candidate.generation,
            flows: candidate.flows.iter().map(|flow| Arc::clone(flow)).collect(),
            asked: candidate.asked.as_slice().into(),
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
