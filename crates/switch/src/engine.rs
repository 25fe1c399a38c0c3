//! [`Engine`]: the switch without its threads.

use crate::alarm::Alarm;
use crate::config::{Config, Limits};
use crate::origin::Origin;
use crate::probe::Arrived;
use crate::records::{Records, Tenths};
use crate::stats::{Counters, SwitchStats};
use datapath::megaflow::{Megaflow, MegaflowId, Usage};
use datapath::provider::{Datapath, DatapathError, DumpCursor};
use pipeline::{
    FdbKey, FdbPort, Flow, IngressPort, LearnEvent, LearnedTables, MacBindingKey, PortUsage,
    Program, StateQuery,
};
use std::fmt;
use std::sync::OnceLock;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use wire::MacAddr;

/// A program that was published.
#[derive(Debug)]
pub(crate) struct Published {
    /// Its generation.
    pub number: u64,
    pub program: Program,
}

/// A megaflow, and all that is known of it.
#[derive(Clone, Debug)]
pub struct FlowRow {
    /// Condition and actions.
    pub megaflow: Megaflow,
    /// How often it was hit.
    pub usage: Usage,
    /// Since it was put.
    pub age: Duration,
    /// Since it was hit last, or put.
    pub idle: Duration,
    /// The generation of the program that decided.
    pub generation: u64,
    /// The flows that decided, in order.
    pub flows: Vec<Arc<Flow>>,
}

/// The switch without its threads: whoever calls [`handle`](Self::handle) and [`sweep`](Self::sweep) brings the time.
///
/// # Why nothing stale stays
///
/// A megaflow is on record with its origin: the generation of the program and of every answer that it rests on. Who puts a
/// megaflow enters the record and gives the megaflow to the datapath under one lock, and whoever finds a record of another origin
/// gives the datapath nothing. So what the datapath has is what is on record, and a sweep that looks at the records finds
/// everything that is out of date, also what was translated before the change and put after the last sweep.
pub struct Engine {
    pub(crate) datapath: Arc<dyn Datapath>,
    pub(crate) limits: Limits,
    published: Mutex<Arc<Published>>,
    learned: RwLock<LearnedTables>,
    configured: Mutex<Vec<LearnEvent>>,
    /// Taken before `learned` where both are.
    records: Mutex<Records>,
    /// One sweep at a time: the number of the last round of revalidation.
    pub(crate) round: Mutex<u32>,
    pub(crate) counters: Counters,
    pub(crate) alarm: Alarm,
    pub(crate) probes: OnceLock<SyncSender<Arrived>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Engine {
    /// A switch that has cached and learnt nothing.
    pub fn new(datapath: Arc<dyn Datapath>, program: Program, config: &Config) -> Self {
        let limits = config.limits;
        Self {
            datapath,
            limits,
            published: Mutex::new(Arc::new(Published { number: 1, program })),
            learned: RwLock::new(LearnedTables::new(config.learn)),
            configured: Mutex::default(),
            records: Mutex::new(Records::new(&limits)),
            round: Mutex::new(0),
            counters: Counters::default(),
            alarm: Alarm::default(),
            probes: OnceLock::new(),
        }
    }

    /// Has probes that come in sent there from now on; the first one who asks gets them. Those for which there is no room, and all
    /// as long as nobody asks, are dropped: who sent them asks again.
    pub fn give_probes_to(&self, receiver: SyncSender<Arrived>) {
        // Whoever comes second is told nothing.
        let _ = self.probes.set(receiver);
    }

    /// Publishes another program, and returns the number of its generation. Translations that have begun go on with the old one,
    /// whole; what they put is found by the next revalidation, which is called for at once.
    pub fn publish(&self, program: Program) -> u64 {
        let mut published = lock(&self.published);
        let number = published.number + 1;
        let old = std::mem::replace(&mut *published, Arc::new(Published { number, program }));
        drop(published);
        self.alarm.changed();
        // A large program takes its time to go.
        drop(old);
        number
    }

    /// Says which bindings and stations are configured, in the place of those that were until now.
    pub fn configure(&self, lessons: Vec<LearnEvent>) {
        let mut configured = lock(&self.configured);
        let mut learned = self.learned_mut();
        let mut gone: std::collections::HashSet<StateQuery> =
            configured.iter().map(LearnEvent::query).collect();
        for lesson in &lessons {
            gone.remove(&lesson.query());
            learned.configure(*lesson);
        }
        gone.iter().for_each(|question| learned.forget(question));
        drop(learned);
        *configured = lessons;
        drop(configured);
        self.alarm.changed();
    }

    /// Forgets something learnt.
    pub fn forget(&self, question: &StateQuery) {
        self.learned_mut().forget(question);
        self.alarm.changed();
    }

    /// The program that is in use. A clone shares everything, the counters of its flows too.
    pub fn program(&self) -> Program {
        self.published().program.clone()
    }

    /// How long ago something was learnt last, or in use; `None` when it is not known, or configured.
    pub fn learnt_since(&self, question: &StateQuery) -> Option<Duration> {
        let last = self.learned().last_used(question)?;
        Some(Instant::now().saturating_duration_since(last))
    }

    /// Every station that is known.
    pub fn fdb(&self) -> Vec<(FdbKey, FdbPort)> {
        self.learned().fdb().map(|(key, place)| (*key, place)).collect()
    }

    /// Every binding that is known.
    pub fn bindings(&self) -> Vec<(MacBindingKey, MacAddr)> {
        self.learned().mac_bindings().map(|(key, mac)| (*key, mac)).collect()
    }

    /// Some of the megaflows, from `from` on, and where the next ones are; `None` behind the last. A megaflow that several workers
    /// of the datapath have is there once for each.
    ///
    /// # Errors
    /// The datapath has ended, or does not answer.
    pub fn flows(
        &self,
        from: DumpCursor,
        most: usize,
    ) -> Result<(Vec<FlowRow>, Option<DumpCursor>), DatapathError> {
        let (megaflows, next) = self.datapath.dump(from, most)?;
        let now_ms = self.datapath.now_ms();
        let found: Vec<Option<(Tenths, Arc<Origin>)>> = {
            let records = self.records();
            let known = megaflows.iter().map(|(megaflow, _)| records.get(megaflow.id));
            known
                .map(|record| record.and_then(|r| Some((r.created, Arc::clone(r.origin()?)))))
                .collect()
        };
        let rows = megaflows.into_iter().zip(found).map(|((megaflow, usage), found)| {
            let now = Tenths::of_ms(now_ms);
            let age = found.as_ref().map_or(Duration::ZERO, |(created, _)| now.since(*created));
            let unused = Duration::from_millis(now_ms.saturating_sub(usage.used_ms));
            FlowRow {
                megaflow,
                usage,
                age,
                idle: if usage.used_ms == 0 { age } else { unused },
                generation: found.as_ref().map_or(0, |(_, origin)| origin.generation),
                flows: found.map_or_else(Vec::new, |(_, origin)| origin.flows.to_vec()),
            }
        });
        Ok((rows.collect(), next))
    }

    /// The flows that decided what a megaflow does, in order; `None` when it is not on record.
    pub fn decided_by(&self, megaflow: MegaflowId) -> Option<Vec<Arc<Flow>>> {
        let origin = Arc::clone(self.records().origin(megaflow)?);
        Some(origin.flows.to_vec())
    }

    /// The ports that have taught stations.
    pub fn ports_of_stations(&self) -> Vec<(IngressPort, PortUsage)> {
        self.learned().fdb_usage().collect()
    }

    /// The ports that have taught bindings.
    pub fn ports_of_bindings(&self) -> Vec<(IngressPort, PortUsage)> {
        self.learned().mac_binding_usage().collect()
    }

    /// Everything counted.
    pub fn stats(&self) -> SwitchStats {
        let (learned, refused) = {
            let learned = self.learned();
            (learned.len(), learned.refusals())
        };
        let (megaflows, origins) = {
            let records = self.records();
            (records.len(), records.origins())
        };
        SwitchStats {
            generation: self.published().number,
            megaflows: megaflows as u64,
            origins: origins as u64,
            learned: learned as u64,
            lessons_configured: refused.configured,
            lessons_port_full: refused.port_full,
            lessons_table_full: refused.table_full,
            ..self.counters.stats()
        }
    }

    pub(crate) fn published(&self) -> Arc<Published> {
        Arc::clone(&lock(&self.published))
    }

    pub(crate) fn learned(&self) -> RwLockReadGuard<'_, LearnedTables> {
        self.learned.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn learned_mut(&self) -> RwLockWriteGuard<'_, LearnedTables> {
        self.learned.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn records(&self) -> MutexGuard<'_, Records> {
        lock(&self.records)
    }
}

/// A thread that panics with one of these locks ends its own work, not the others'.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
