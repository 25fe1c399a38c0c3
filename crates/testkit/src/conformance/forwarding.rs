//! Tests generated megaflows with frames that are received on ports.

use super::actions::{self, Kinds};
use super::compare::{self, Seen};
use super::lab::{Lab, Limits, eventually, port_stats};
use super::reference::{ExpectedUpcall, Outcome, Reference};
use super::watching::Watchers;
use super::{PORTS, Provider, UPLINK, links, tunnels};
use crate::frames::{self, FrameKinds};
use crate::random::Random;
use datapath::DumpCursor;
use datapath::config::EndpointConfig;
use datapath::megaflow::{Megaflow, MegaflowId, Usage};
use datapath::solicit::Solicitations;
use datapath::stats::Snapshot;
use datapath::upcall::{Answer, Upcall, UpcallReason};
use flow::{Action, EndpointTable, PortNo, extract};
use packet::PacketBuf;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of frames in each case.
const FRAMES: usize = 40;
/// The number of packets in each case that are passed to the provider together with actions,
/// without a lookup.
const EXECUTED: usize = 6;

/// The provider under test, and the reference with which it is compared.
pub(super) struct Bench {
    pub lab: Lab,
    pub reference: Reference,
    pub endpoints: Arc<[EndpointConfig]>,
    /// The same end points from the perspective of the other hosts.
    pub others: EndpointTable,
    /// The packet watchers.
    pub watchers: Option<Watchers>,
}

impl Bench {
    pub fn new(provider: Provider<'_>) -> Self {
        Self::with(provider, Limits::default())
    }

    pub fn with(provider: Provider<'_>, limits: Limits) -> Self {
        let lab = Lab::new(provider, limits);
        let endpoints: Arc<[EndpointConfig]> = provider.endpoints().into();
        let (mut reference, others) = (Reference::new(&endpoints), tunnels::others(&endpoints));
        reference.solicitations = Solicitations::new(limits.solicit);
        Self { lab, reference, endpoints, others, watchers: None }
    }

    /// Adds a random megaflow that matches `upcall` to the reference, and returns it. The caller
    /// installs it in the provider. `None` if it would overlap an existing one.
    pub fn add_megaflow(
        &mut self,
        random: &mut Random,
        upcall: &ExpectedUpcall,
        kinds: Kinds,
    ) -> Option<Megaflow> {
        let condition = actions::condition(random, &upcall.key);
        if self.reference.overlaps(&condition) {
            return None;
        }
        let megaflow = Megaflow::new(condition, actions::list(random, kinds));
        self.reference.megaflows.push((megaflow.clone(), (0, 0)));
        Some(megaflow)
    }

    pub fn put(&self, megaflows: Vec<Megaflow>) {
        self.lab.datapath.put(megaflows).expect("the provider runs");
        // Requests of one thread are executed in order, so the megaflows are installed when this
        // returns.
        self.lab.snapshot();
    }

    /// Sends frames and compares the results. Returns the upcalls that wait for a response.
    pub fn pass(
        &mut self,
        sent: &[(PortNo, PacketBuf)],
        seen: &mut Seen,
    ) -> Result<Vec<Upcall>, String> {
        let mut outcome = Outcome::default();
        let mut received: BTreeMap<PortNo, u64> = BTreeMap::new();
        for (port, packet) in sent {
            *received.entry(*port).or_default() += 1;
            self.reference.receive(*port, None, packet, &mut outcome);
            outcome.received.push((*port, packet.clone()));
        }
        seen.frames += sent.len() as u64;
        let before = self.lab.snapshot();
        for (port, packet) in sent {
            self.lab.send(*port, packet);
        }
        self.lab.wait_received(&before, &received);
        let upcalls = self.compare(&outcome, &before, seen)?;
        Ok(upcalls.into_iter().filter(|upcall| upcall.reason == UpcallReason::Miss).collect())
    }

    /// Compares all results since `before`.
    pub fn compare(
        &mut self,
        outcome: &Outcome,
        before: &Snapshot,
        seen: &mut Seen,
    ) -> Result<Vec<Upcall>, String> {
        self.compare_frames(outcome, before, seen)?;
        let upcalls = self.lab.upcalls(outcome.misses.len() + outcome.copies.len());
        compare::upcalls(outcome, &upcalls)?;
        eventually(&*self.lab.datapath, |_| self.compare_megaflows())?;
        Ok(upcalls)
    }

    /// Compares frames and counters since `before`.
    pub fn compare_frames(
        &mut self,
        outcome: &Outcome,
        before: &Snapshot,
        seen: &mut Seen,
    ) -> Result<(), String> {
        seen.note(outcome);
        let counts = compare::counts(&outcome.expected);
        compare::frames(&outcome.expected, self.lab.collect(&counts))?;
        eventually(&*self.lab.datapath, |after| {
            compare::dropped(outcome, before, after)?;
            PORTS.into_iter().try_for_each(|port| {
                let tx = |of| port_stats(of, port).map_or(0, |stats| stats.tx.packets);
                let (sent, expected) =
                    (tx(after) - tx(before), counts.get(&port).copied().unwrap_or(0));
                if sent == expected as u64 {
                    return Ok(());
                }
                Err(format!("port {port} has counted {sent} sent frames, not {expected}"))
            })
        })?;
        self.watchers.as_ref().map_or(Ok(()), |watchers| watchers.compare(outcome))
    }

    /// All megaflows of the provider, from all its threads, with counters.
    fn dump(&self) -> Result<Vec<(Megaflow, Usage)>, String> {
        let (mut dumped, mut at) = (Vec::new(), Some(DumpCursor::default()));
        while let Some(from) = at {
            let portion = self.lab.datapath.dump(from, 16);
            let (portion, next) = portion.map_err(|error| error.to_string())?;
            dumped.extend(portion);
            at = next;
        }
        Ok(dumped)
    }

    /// All megaflows of the provider, without counters.
    pub fn megaflows(&self) -> Result<Vec<Megaflow>, String> {
        Ok(self.dump()?.into_iter().map(|(megaflow, _)| megaflow).collect())
    }

    /// Checks that the provider has the megaflows of the reference, with the same counters.
    fn compare_megaflows(&self) -> Result<(), String> {
        let mut sums: BTreeMap<MegaflowId, (Megaflow, (u64, u64))> = BTreeMap::new();
        for (megaflow, Usage { packets, bytes, .. }) in self.dump()? {
            let (_, sum) = sums.entry(megaflow.id).or_insert((megaflow, (0, 0)));
            (sum.0, sum.1) = (sum.0 + packets, sum.1 + bytes);
        }
        for expected in &self.reference.megaflows {
            let seen = sums.remove(&expected.0.id);
            if seen.as_ref() != Some(expected) {
                return Err(format!("a megaflow is\n {seen:?}\ninstead of\n {expected:?}"));
            }
        }
        match sums.pop_first() {
            Some((_, left)) => Err(format!("the reference has no such megaflow: {left:?}")),
            None => Ok(()),
        }
    }

    /// Deletes all megaflows, and compares the counters that are returned.
    pub fn clear(&mut self) -> Result<(), String> {
        let counted = self.lab.datapath.delete(self.reference.ids()).expect("the provider runs");
        let mut sums: BTreeMap<MegaflowId, (u64, u64)> = BTreeMap::new();
        for (id, Usage { packets, bytes, .. }) in counted {
            let sum = sums.entry(id).or_default();
            *sum = (sum.0 + packets, sum.1 + bytes);
        }
        for (megaflow, usage) in self.reference.megaflows.drain(..) {
            if sums.remove(&megaflow.id) != Some(usage) {
                return Err(format!("deleting {megaflow:?} did not return {usage:?}"));
            }
        }
        self.compare_megaflows()
    }

    /// Responds to upcalls and compares the results. Some responses contain megaflows.
    pub fn answer(
        &mut self,
        random: &mut Random,
        upcalls: Vec<Upcall>,
        kinds: Kinds,
        seen: &mut Seen,
    ) -> Result<(), String> {
        let mut outcome = Outcome::default();
        let mut answers = Vec::new();
        let before = self.lab.snapshot();
        for upcall in upcalls {
            let expected = ExpectedUpcall {
                port: upcall.port,
                key: upcall.key.clone(),
                packet: upcall.packet.clone(),
            };
            let megaflow = self.add_megaflow(random, &expected, kinds);
            let actions: Arc<[Action]> = match &megaflow {
                Some(megaflow) => Arc::clone(&megaflow.actions),
                None => actions::list(random, kinds),
            };
            let decided_by = megaflow.as_ref().map(|megaflow| megaflow.id);
            self.reference.execute(&expected, &actions, decided_by, &mut outcome);
            answers.push(Answer { upcall, actions, megaflow: megaflow.map(Box::new), decided_by });
        }
        self.lab.datapath.answer(answers).expect("the provider runs");
        self.compare(&outcome, &before, seen)?;
        // The thread that receives a response installs the response's megaflow. All megaflows are
        // installed in all threads, because the next packets may arrive at other threads.
        self.put(self.reference.megaflows.iter().map(|(megaflow, _)| megaflow.clone()).collect());
        self.compare_megaflows()
    }

    /// Passes packets to the provider with actions, without a lookup, and compares the results.
    fn execute(
        &mut self,
        random: &mut Random,
        packets: &[(PortNo, PacketBuf)],
        seen: &mut Seen,
    ) -> Result<(), String> {
        let mut outcome = Outcome::default();
        let before = self.lab.snapshot();
        for (port, packet) in packets {
            let Ok(key) = extract(packet, *port, None) else { continue };
            let actions = actions::list(random, Kinds::EachSegment);
            let upcall = ExpectedUpcall { port: *port, key, packet: packet.clone() };
            self.reference.execute(&upcall, &actions, None, &mut outcome);
            let done = self.lab.datapath.execute(*port, packet.clone(), actions);
            done.expect("the provider runs");
        }
        self.compare(&outcome, &before, seen).map(drop)
    }
}

/// Runs one case: sends frames, most of which match a megaflow; responds to the upcalls; sends all
/// frames again; and executes actions on some frames without a lookup.
pub(super) fn check(bench: &mut Bench, random: &mut Random, seen: &mut Seen) -> Result<(), String> {
    let sent: Vec<(PortNo, PacketBuf)> = (0..FRAMES).map(|_| frame(random)).collect();
    let mut megaflows = Vec::new();
    for (port, packet) in &sent {
        if let Some(upcall) = links::expected_upcall(*port, packet)
            && !random.once_in(3)
        {
            megaflows.extend(bench.add_megaflow(random, &upcall, Kinds::All));
        }
    }
    bench.put(megaflows);
    let misses = bench.pass(&sent, seen).map_err(|fault| format!("first time: {fault}"))?;
    let answered = bench.answer(random, misses, Kinds::All, seen);
    answered.map_err(|fault| format!("answers: {fault}"))?;
    bench.pass(&sent, seen).map_err(|fault| format!("second time: {fault}"))?;
    let executed = bench.execute(random, &sent[..EXECUTED], seen);
    executed.map_err(|fault| format!("executed: {fault}"))?;
    bench.clear()
}

/// A random frame and its ingress port. Only tagged frames go to the uplink, which accepts no
/// others.
fn frame(random: &mut Random) -> (PortNo, PacketBuf) {
    let kinds = FrameKinds { supers: true, snap: true, malformed: true, max_payload: 9000 };
    let mut packet = frames::frame(random, kinds);
    let is_tagged = random.once_in(6) && links::add_tags(random, &mut packet);
    (if is_tagged { UPLINK } else { random.pick(&PORTS) }, packet)
}
