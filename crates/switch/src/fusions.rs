//! Fused megaflows: how they are made, and how they end when a connection changes.
//!
//! # Why no fused megaflow outlives its connections
//!
//! A fused megaflow is recorded, announced to the tracker and given to the datapath under the lock
//! of the records. After that, any change of one of its connections makes the tracker report that
//! connection. The datapath then punts the packets of the megaflow at once, if the megaflow is
//! already installed. [`Engine::end_outdated_fusions`] takes the report, finds the megaflow in the
//! records and deletes it. Only then does it tell the tracker that the fusion has ended.

use crate::engine::{Engine, PublishedProgram, lock};
use crate::handler::Decision;
use crate::records::{Deciseconds, Records, RemovedMegaflow};
use crate::revalidate_signal::RevalidateSignal;
use crate::revalidator::remove_records;
use ahash::RandomState;
use conntrack::ConnKey;
use datapath::megaflow::{Fusion, Megaflow, MegaflowId};
use datapath::provider::{Datapath, DatapathError, FusedMegaflows};
use datapath::upcall::{FuseProposal, Upcall};
use flow::{FlowKey, FlowMask, Match};
use pipeline::{LearnedState, Program, Translation, retranslate, translate_steady};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Changed connections whose megaflows are deleted at a time.
const CONNECTIONS: usize = 1024;

/// The fused megaflows of each connection. Its lock is the last in the lock order.
pub(crate) type ByConnection = Mutex<HashMap<ConnKey, Vec<MegaflowId>, RandomState>>;

/// The fused megaflows in the records.
#[derive(Debug, Default)]
pub(crate) struct Fusions {
    megaflows: HashMap<MegaflowId, Arc<Fusion>, RandomState>,
    connections: Arc<ByConnection>,
}

impl Fusions {
    /// Makes an empty table, which enters the connections of its megaflows in `connections`.
    pub fn new(connections: Arc<ByConnection>) -> Self {
        Self { megaflows: HashMap::default(), connections }
    }

    /// Adds a megaflow. Returns the passes and connections of an existing one that it replaces.
    fn insert(&mut self, id: MegaflowId, fusion: &Arc<Fusion>) -> Option<Arc<Fusion>> {
        let before = self.remove(id);
        let mut connections = lock(&self.connections);
        for &key in &fusion.connections {
            connections.entry(key).or_default().push(id);
        }
        self.megaflows.insert(id, Arc::clone(fusion));
        before
    }

    /// Removes a megaflow, if it is fused, and returns its passes and connections.
    pub fn remove(&mut self, id: MegaflowId) -> Option<Arc<Fusion>> {
        // Most switches have no fused megaflows.
        if self.megaflows.is_empty() {
            return None;
        }
        let fusion = self.megaflows.remove(&id)?;
        let mut connections = lock(&self.connections);
        for key in &fusion.connections {
            if let Some(megaflows) = connections.get_mut(key) {
                megaflows.retain(|other| *other != id);
                if megaflows.is_empty() {
                    connections.remove(key);
                }
            }
        }
        Some(fusion)
    }

    /// The passes and connections of a megaflow, if it is fused.
    pub fn get(&self, id: MegaflowId) -> Option<&Arc<Fusion>> {
        if self.megaflows.is_empty() { None } else { self.megaflows.get(&id) }
    }

    /// The number of fused megaflows.
    pub fn len(&self) -> usize {
        self.megaflows.len()
    }

    /// Whether any fused megaflow depends on the connection.
    fn uses(&self, key: ConnKey) -> bool {
        lock(&self.connections).contains_key(&key)
    }
}

/// The fused megaflows of these connections.
pub(crate) fn of_connections(of: &ByConnection, keys: &[ConnKey]) -> Vec<MegaflowId> {
    let of = lock(of);
    keys.iter().filter_map(|key| of.get(key)).flatten().copied().collect()
}

/// Makes the tracker propose passes to fuse, if the datapath can execute fused megaflows. When a
/// connection changes, the datapath no longer executes its megaflows, and `signal` is raised.
/// Returns the part of the datapath that executes them.
pub(crate) fn begin(
    datapath: &dyn Datapath,
    connections: &Arc<ByConnection>,
    signal: &Arc<RevalidateSignal>,
) -> Option<Arc<dyn FusedMegaflows>> {
    let (tracker, fused) = (datapath.tracker()?, datapath.fused()?);
    let (connections, signal) = (Arc::clone(connections), Arc::clone(signal));
    let suspender = Arc::clone(&fused);
    let is_begun = tracker.begin_fusing(move |changed| {
        suspender.suspend(&of_connections(&connections, changed));
        signal.connection_changed();
    });
    is_begun.then_some(fused)
}

/// Translates a megaflow again for a packet that it serves, as [`retranslate`] does. `None` for a
/// fused megaflow whose packets the program would now track differently.
pub(crate) fn translate_megaflow<'p>(
    program: &'p Program,
    megaflow: &Megaflow,
    packet: &FlowKey,
    learned: &impl LearnedState,
) -> Option<Translation<'p>> {
    let known: FlowMask = megaflow.condition.mask().clone();
    match &megaflow.fusion {
        None => Some(retranslate(program, packet, known, learned, &mut ())),
        Some(fusion) => translate_steady(program, packet, known, learned, &fusion.passes),
    }
}

impl Engine {
    /// Fuses the passes that `proposal` describes, if the program still tracks the packet in this
    /// way.
    pub(crate) fn fuse(
        &self,
        published: &PublishedProgram,
        upcall: &Upcall,
        proposal: &FuseProposal,
    ) {
        let (Some(tracker), Some(fast_path)) = (self.datapath.tracker(), &self.fused) else {
            return;
        };
        let translation = translate_steady(
            &published.program,
            &upcall.key,
            FlowMask::default(),
            &*self.learned(),
            &proposal.passes,
        );
        // A packet from which the switch learns must take its passes one by one.
        let Some(translation) = translation.filter(|it| it.learn_events.is_empty()) else {
            return self.counters.fusions_refused.add(1);
        };
        let condition = Match::new(&upcall.key, translation.mask.clone());
        let mut decision = Decision::new(published, upcall.worker, &upcall.key, translation);
        let created = Deciseconds::of_ms(self.datapath.now_ms());
        // This lock is held until the datapath has the megaflow, so that a change of a connection
        // finds it.
        let mut records = self.records();
        if records.is_outdated(published.number) {
            return;
        }
        let Some(connections) = tracker.fuse(&proposal.connections) else { return };
        let passes = proposal.passes.as_slice().into();
        let fusion = Arc::new(Fusion { passes, connections });
        let actions = Arc::clone(decision.actions());
        let megaflow = Box::new(Megaflow::fused(condition, actions, Arc::clone(&fusion)));
        let at = (upcall.port, &upcall.key);
        let megaflow = self.record_megaflow(&mut records, &mut decision, megaflow, at, created);
        let before = megaflow.as_ref().and_then(|it| records.fusions.insert(it.id, &fusion));
        match megaflow {
            Some(megaflow) if fast_path.put(&megaflow) => {
                self.counters.fusions.add(1);
                if !tracker.are_fused(&fusion.connections) {
                    // A change came before the datapath had the megaflow.
                    fast_path.suspend(&[megaflow.id]);
                }
            }
            refused => {
                let ids = refused.map(|megaflow| megaflow.id);
                // It has served no packets, so there are no counters to add.
                drop(remove_records(&mut records, ids.as_slice()));
                self.counters.fusions_refused.add(1);
                let is_unused = |key: &ConnKey| !records.fusions.uses(*key);
                tracker.cancel_fusion(fusion.connections.iter().copied().filter(is_unused));
            }
        }
        if let Some(before) = before {
            self.end_unused(&records, &before);
        }
    }

    /// Deletes the fused megaflows whose connections have changed.
    ///
    /// # Errors
    /// The datapath has ended, or does not answer; the next call does the rest.
    pub(crate) fn end_outdated_fusions(&self) -> Result<(), DatapathError> {
        let Some(tracker) = self.datapath.tracker() else { return Ok(()) };
        let outdated = tracker.take_outdated();
        for (number, some) in outdated.chunks(CONNECTIONS).enumerate() {
            let removed = {
                let mut records = self.records();
                let megaflows = of_connections(&records.fusions.connections, some);
                self.counters.fusions_ended.add(megaflows.len());
                remove_records(&mut records, &megaflows)
            };
            if let Err(error) = self.delete(removed) {
                tracker.put_back(outdated.iter().skip(number * CONNECTIONS).copied().collect());
                return Err(error);
            }
            // Ends the fusion of connections whose megaflows were deleted for another reason
            // meanwhile.
            let records = self.records();
            let is_unused = |key: &ConnKey| !records.fusions.uses(*key);
            tracker.end_fusion(some.iter().copied().filter(is_unused));
        }
        Ok(())
    }

    /// Tells the tracker that deleted megaflows no longer forward packets of their connections.
    pub(crate) fn end_fusions(&self, deleted: &[RemovedMegaflow]) {
        let mut fusions = deleted.iter().filter_map(|removed| removed.fusion.as_ref()).peekable();
        if fusions.peek().is_some() {
            let records = self.records();
            fusions.for_each(|fusion| self.end_unused(&records, fusion));
        }
    }

    fn end_unused(&self, records: &Records, fusion: &Fusion) {
        let Some(tracker) = self.datapath.tracker() else { return };
        let is_unused = |key: &ConnKey| !records.fusions.uses(*key);
        tracker.end_fusion(fusion.connections.iter().copied().filter(is_unused));
    }
}
