//! [`Engine`]: the switch without its threads.

use crate::config::{Config, Limits};
use crate::enforce::Confirmed;
use crate::fusions::{self, ByConnection, Fusions};
use crate::held::HeldPackets;
use crate::learn_journal::LearnJournal;
use crate::origin::Origin;
use crate::probe::ReceivedProbe;
use crate::records::{Deciseconds, Records};
use crate::revalidate_signal::RevalidateSignal;
use crate::self_check::SelfCheck;
use crate::stats::{Counters, SwitchStats};
use datapath::megaflow::{Megaflow, MegaflowId, Usage};
use datapath::provider::{Datapath, DatapathError, DumpCursor, FusedMegaflows};
use flow::{PortNo, TunnelInfo};
use packet::PacketBuf;
use pipeline::{
    Affinity, AffinityKey, FdbKey, FdbPort, Flow, IngressPort, InjectionPort, LearnEvent,
    LearnedTables, MacBindingKey, NextHopKey, Op, PortUsage, Program, StateQuery, translate,
    translate_ops, translate_originated,
};
use std::fmt;
use std::sync::OnceLock;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use wire::MacAddr;

/// A copy of a packet that the program has sent to the controller.
#[derive(Debug)]
pub struct ControllerCopy {
    /// The port by which it arrived.
    pub port: PortNo,
    /// The frame; of a longer one, such as a super-packet, the first 1,514 bytes.
    pub frame: Vec<u8>,
}

/// A published program.
#[derive(Debug)]
pub(crate) struct PublishedProgram {
    /// The number of its generation.
    pub number: u64,
    /// When it was published.
    pub since: Instant,
    pub program: Program,
}

/// A megaflow with its counters and its origin.
#[derive(Clone, Debug)]
pub struct FlowRow {
    /// Match and actions.
    pub megaflow: Megaflow,
    /// Its counters.
    pub usage: Usage,
    /// Time since it was installed.
    pub age: Duration,
    /// Time since the last hit, or since it was installed.
    pub idle: Duration,
    /// The generation of the program that produced it.
    pub generation: u64,
    /// The flows of the program that matched, in order.
    pub flows: Vec<Arc<Flow>>,
}

/// The switch without its threads: the caller of [`handle`](Self::handle) and
/// [`sweep`](Self::sweep) passes the time.
///
/// # Why no stale megaflow stays
///
/// Every megaflow has a record with its origin: the generation of the program, and of each piece of
/// learned state that the translation read. A megaflow is recorded and installed in the datapath
/// under one lock, and it is not installed if a record with another origin exists. So the records
/// describe exactly the megaflows of the datapath, and a sweep over the records finds every stale
/// one. That includes a megaflow that was translated before a change, but installed only after the
/// sweep that followed the change.
pub struct Engine {
    pub(crate) datapath: Arc<dyn Datapath>,
    /// Executes fused megaflows; `None` if the datapath cannot.
    pub(crate) fused: Option<Arc<dyn FusedMegaflows>>,
    pub(crate) limits: Limits,
    pub(crate) published: Mutex<Arc<PublishedProgram>>,
    pub(crate) confirmed: Confirmed,
    learned: RwLock<LearnedTables>,
    configured: Mutex<Vec<LearnEvent>>,
    /// Lock order: before `published` and `learned`.
    records: Mutex<Records>,
    /// The number of the last round of revalidation. Its lock allows one sweep at a time.
    pub(crate) round: Mutex<u32>,
    /// Lock order: before `records`.
    pub(crate) self_check: Mutex<SelfCheck>,
    pub(crate) counters: Counters,
    pub(crate) revalidate_signal: Arc<RevalidateSignal>,
    pub(crate) probes: OnceLock<SyncSender<ReceivedProbe>>,
    pub(crate) controller: OnceLock<SyncSender<ControllerCopy>>,
    pub(crate) journal: LearnJournal,
    pub(crate) held: HeldPackets,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Makes a switch without megaflows and learned state.
    pub fn new(datapath: Arc<dyn Datapath>, program: Program, config: &Config) -> Self {
        let limits = config.limits;
        let revalidate_signal = Arc::<RevalidateSignal>::default();
        let connections = Arc::<ByConnection>::default();
        let fused = fusions::begin(&*datapath, &connections, &revalidate_signal);
        Self {
            datapath,
            fused,
            limits,
            published: Mutex::new(Arc::new(PublishedProgram {
                number: 1,
                since: Instant::now(),
                program,
            })),
            confirmed: Confirmed::default(),
            learned: RwLock::new(LearnedTables::new(config.learn)),
            configured: Mutex::default(),
            records: Mutex::new(Records::new(&limits, Fusions::new(connections))),
            round: Mutex::new(0),
            self_check: Mutex::default(),
            counters: Counters::default(),
            revalidate_signal,
            probes: OnceLock::new(),
            controller: OnceLock::new(),
            journal: LearnJournal::default(),
            held: HeldPackets::new(limits.held_packets),
        }
    }

    /// Sends received probes to `receiver` from now on; only the first call has an effect. Probes
    /// are dropped before that, and while the receiver's queue is full: their sender retries on
    /// timeout.
    pub fn set_probe_receiver(&self, receiver: SyncSender<ReceivedProbe>) {
        // Fails if a receiver is set already.
        let _ = self.probes.set(receiver);
    }

    /// Sends copies of packets for the controller to `receiver` from now on; only the first call
    /// has an effect. Copies are dropped and counted while the receiver's queue is full.
    pub fn set_controller(&self, receiver: SyncSender<ControllerCopy>) {
        // Fails if a receiver is set already.
        let _ = self.controller.set(receiver);
    }

    /// Sends a frame as if it had arrived by `port`, or through `tunnel` if given: the program
    /// decides where it goes. The datapath executes the actions on behalf of its port `device`.
    ///
    /// # Errors
    /// The datapath has ended.
    pub fn originate(
        &self,
        frame: &[u8],
        (port, tunnel): (PortNo, Option<&TunnelInfo>),
        device: PortNo,
    ) -> Result<(), DatapathError> {
        let packet = PacketBuf::from_bytes(frame);
        let Ok(key) = flow::extract(&packet, port, tunnel) else { return Ok(()) };
        let published = self.published();
        let translation = translate(&published.program, &key, &*self.learned(), &mut ());
        self.datapath.execute(device, packet, translation.actions.into())
    }

    /// Executes steps on a frame as if it had arrived by `port`, a port of a bridge. The flows that
    /// it matches count it, and `normal` learns from it. A malformed frame is ignored.
    ///
    /// # Errors
    /// The datapath has ended.
    pub fn execute_ops(&self, frame: &[u8], port: PortNo, ops: &[Op]) -> Result<(), DatapathError> {
        let packet = PacketBuf::from_bytes(frame);
        let Ok(key) = flow::extract(&packet, port, None) else { return Ok(()) };
        let published = self.published();
        let translation = translate_ops(&published.program, &key, ops, &*self.learned());
        for flow in &translation.flows {
            flow.counters.add(1, frame.len() as u64);
        }
        self.learn(&translation.learn_events, translation.ingress, Instant::now());
        self.datapath.execute(port, packet, translation.actions.into())
    }

    /// Sends a frame as if it had arrived by a logical port, which may be one of a router. The
    /// switch learns from it. The datapath executes the actions on behalf of its port `device`.
    ///
    /// # Errors
    /// The datapath has ended.
    pub fn originate_by(
        &self,
        frame: &[u8],
        from: InjectionPort,
        device: PortNo,
    ) -> Result<(), DatapathError> {
        let packet = PacketBuf::from_bytes(frame);
        let Ok(key) = flow::extract(&packet, device, None) else { return Ok(()) };
        let published = self.published();
        let translation = translate_originated(&published.program, &key, from, &*self.learned());
        self.learn(&translation.learn_events, translation.ingress, Instant::now());
        self.datapath.execute(device, packet, translation.actions.into())
    }

    /// Keeps the learn events of packets for [`take_learn_events`](Self::take_learn_events) from
    /// now on, up to a limit for each port. Calls `notify` when there is something to take. Only
    /// the first call has an effect.
    pub fn record_learn_events(&self, notify: impl Fn() + Send + Sync + 'static) {
        self.journal.open(Box::new(notify));
    }

    /// The learn events of packets since the last call: new stations and bindings, and values that
    /// differ from configured ones.
    pub fn take_learn_events(&self) -> Vec<LearnEvent> {
        self.journal.take()
    }

    /// Replaces the configured MAC bindings and stations.
    pub fn configure(&self, entries: Vec<LearnEvent>) {
        let mut configured = lock(&self.configured);
        let mut learned = self.learned_mut();
        let mut gone: std::collections::HashSet<StateQuery> =
            configured.iter().map(LearnEvent::query).collect();
        for entry in &entries {
            gone.remove(&entry.query());
            learned.configure(*entry);
        }
        gone.iter().for_each(|query| learned.forget(query));
        drop(learned);
        let now = Instant::now();
        entries.iter().for_each(|entry| self.held.release(&entry.query(), now));
        *configured = entries;
        drop(configured);
        self.revalidate_signal.changed();
        if gone.iter().any(|query| matches!(query, StateQuery::MacBinding(_))) {
            // Fails only if the datapath has ended.
            let _ = self.datapath.forget_solicitations();
        }
        // Fails only if the datapath has ended.
        let _ = self.handle_released(now);
    }

    /// Forgets a learned station or binding.
    pub fn forget(&self, query: &StateQuery) {
        self.learned_mut().forget(query);
        self.revalidate_signal.changed();
        let _ = self.datapath.forget_solicitations();
    }

    /// The current program. The clone shares everything, including the counters of its flows.
    pub fn program(&self) -> Program {
        self.published().program.clone()
    }

    /// The time since a station or binding was last learned or used; `None` if it is unknown or
    /// configured.
    pub fn learned_since(&self, query: &StateQuery) -> Option<Duration> {
        let last = self.learned().last_used(query)?;
        Some(Instant::now().saturating_duration_since(last))
    }

    /// All known stations.
    pub fn fdb(&self) -> Vec<(FdbKey, FdbPort)> {
        self.learned().fdb().map(|(key, port)| (*key, port)).collect()
    }

    /// All known MAC bindings.
    pub fn bindings(&self) -> Vec<(MacBindingKey, MacAddr)> {
        self.learned().mac_bindings().map(|(key, mac)| (*key, mac)).collect()
    }

    /// The backends of all clients of load balancers with source-address affinity.
    pub fn affinities(&self) -> Vec<(AffinityKey, Affinity)> {
        self.learned().affinities().map(|(key, affinity)| (*key, affinity)).collect()
    }

    /// The next hops through which connections were opened.
    pub fn next_hops(&self) -> Vec<(NextHopKey, MacAddr)> {
        self.learned().next_hops().map(|(key, mac)| (*key, mac)).collect()
    }

    /// Returns up to `most` megaflows from `from` on, and where the next ones begin; `None` after
    /// the last. A megaflow of several workers is returned once for each.
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
        let found: Vec<Option<(Deciseconds, Arc<Origin>)>> = {
            let records = self.records();
            let known = megaflows.iter().map(|(megaflow, _)| records.get(megaflow.id));
            known
                .map(|record| record.and_then(|r| Some((r.created, Arc::clone(r.origin()?)))))
                .collect()
        };
        let rows = megaflows.into_iter().zip(found).map(|((megaflow, usage), found)| {
            let now = Deciseconds::of_ms(now_ms);
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

    /// The flows of the program behind a megaflow, in order; `None` if the megaflow has no record.
    pub fn decided_by(&self, megaflow: MegaflowId) -> Option<Vec<Arc<Flow>>> {
        let origin = Arc::clone(self.records().origin(megaflow)?);
        Some(origin.flows.to_vec())
    }

    /// The ports behind which stations were learned.
    pub fn ports_of_stations(&self) -> Vec<(IngressPort, PortUsage)> {
        self.learned().fdb_usage().collect()
    }

    /// The ports by which MAC bindings were learned.
    pub fn ports_of_bindings(&self) -> Vec<(IngressPort, PortUsage)> {
        self.learned().mac_binding_usage().collect()
    }

    /// The ports from whose packets affinities were learned.
    pub fn ports_of_affinities(&self) -> Vec<(IngressPort, PortUsage)> {
        self.learned().affinity_usage().collect()
    }

    /// The ports from whose packets next hops were learned.
    pub fn ports_of_next_hops(&self) -> Vec<(IngressPort, PortUsage)> {
        self.learned().next_hop_usage().collect()
    }

    /// All counters.
    pub fn stats(&self) -> SwitchStats {
        let (learned, refused) = {
            let learned = self.learned();
            (learned.len(), learned.refusals())
        };
        let (megaflows, fused, origins) = {
            let records = self.records();
            (records.len(), records.fusions.len(), records.origins())
        };
        SwitchStats {
            generation: self.published().number,
            megaflows: megaflows as u64,
            fused: fused as u64,
            origins: origins as u64,
            learned: learned as u64,
            learn_refused_configured: refused.configured,
            learn_refused_port_full: refused.port_full,
            learn_refused_table_full: refused.table_full,
            ..self.counters.stats()
        }
    }

    pub(crate) fn published(&self) -> Arc<PublishedProgram> {
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

/// Locks a mutex even if a thread has panicked with it: one failed request must not stop the
/// others.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
