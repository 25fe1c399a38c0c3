//! Carrying megaflows over to a new program.
//!
//! Most changes of a program concern few megaflows. The other megaflows need no translation:
//! everything that theirs read is the same in the new program. [`Engine::carry_over`] finds them by
//! their origins, without a request to the datapath. They stay as they are in the datapath, and
//! never stop serving packets.
//!
//! For some origins the comparison depends on the match of the megaflow. They get a [`Successor`],
//! with which the revalidator checks their megaflows without translating them.

use crate::engine::{Engine, PublishedProgram};
use crate::origin::{NewOrigin, Origin};
use crate::records::Records;
use ahash::RandomState;
use datapath::megaflow::Megaflow;
use flow::{Field, PortNo};
use pipeline::{Carried, ProgramDiff};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The time limit for comparing origins. Megaflows of the remaining origins are translated again.
const TIME_LIMIT: Duration = Duration::from_millis(100);

/// The result of carrying an origin over to a new program, for the megaflows whose match excludes
/// all conflicts.
#[derive(Debug)]
pub(crate) struct Successor {
    /// The generation of the new program.
    pub generation: u64,
    carried: Carried,
    /// The ports whose role has changed.
    changed_ports: Arc<HashSet<PortNo>>,
    /// The new origin of megaflows that stay installed.
    origin: OnceLock<Arc<Origin>>,
}

impl Successor {
    /// True if the megaflow, whose origin has this successor, need not be translated again.
    pub fn is_of(&self, generation: u64, megaflow: &Megaflow) -> bool {
        // The cast is lossless: the field has 32 bits.
        let port = PortNo(megaflow.condition.key().get(Field::InPort) as u32);
        let excludes = |conflict| megaflow.condition.excludes(conflict);
        self.generation == generation
            && !self.changed_ports.contains(&port)
            && self.carried.conflicts.iter().all(excludes)
    }

    /// The new origin for megaflows with the origin `of`, which has this successor.
    pub fn candidate(&self, of: &Origin) -> NewOrigin<'_> {
        NewOrigin::carried(self.generation, of, &self.carried)
    }

    /// Like [`candidate`](Self::candidate), interned.
    pub fn origin(&self, of: &Origin, records: &mut Records) -> Arc<Origin> {
        let origin = self.origin.get_or_init(|| records.intern(&self.candidate(of)));
        match origin.is_known_stale() {
            false => Arc::clone(origin),
            true => records.intern(&self.candidate(of)),
        }
    }
}

impl Engine {
    /// Assigns those megaflows of `old` to `new` that `new` would translate to the same result. The
    /// caller holds the lock of `round`.
    pub(crate) fn carry_over(&self, old: &PublishedProgram, new: &PublishedProgram) {
        let mut diff = ProgramDiff::new(&old.program, &new.program);
        let changed_ports = Arc::new(diff.changed_ports());
        let mut all: HashMap<usize, Carried, RandomState> = HashMap::default();
        let origins = self.records().origins_of(old.number);
        let end = Instant::now() + TIME_LIMIT;
        for origin in &origins {
            if Instant::now() > end {
                break;
            }
            // The publisher may have changed learned state. The revalidator checks megaflows that
            // depend on it.
            if !origin.has_read_current(&self.learned()) {
                continue;
            }
            let Some(carried) = diff.carry(&origin.flows, &origin.reads) else { continue };
            if carried.conflicts.is_empty() {
                all.insert(Arc::as_ptr(origin).addr(), carried);
                continue;
            }
            let (changed_ports, origin_of) = (Arc::clone(&changed_ports), OnceLock::new());
            let generation = new.number;
            let successor = Successor { generation, carried, changed_ports, origin: origin_of };
            // Fails if an earlier program has set a successor: then the megaflows are translated
            // again.
            let _ = origin.successor.set(successor);
        }
        let mut carried_over = 0;
        for number in 0.. {
            let mut records = self.records();
            if records.is_outdated(new.number) {
                break;
            }
            let replace = |port: PortNo, origin: &Arc<Origin>| {
                let carried = all.get(&Arc::as_ptr(origin).addr())?;
                let is_same = !changed_ports.contains(&port);
                is_same.then(|| NewOrigin::carried(new.number, origin, carried))
            };
            match records.replace_in_chunk(number, replace) {
                Some(replaced) => carried_over += replaced,
                None => break,
            }
        }
        self.counters.carried_over.add(carried_over);
    }
}
