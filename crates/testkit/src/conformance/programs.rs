//! Tests programs: megaflows with the masks and actions of `translate`, as a switch creates them.
//!
//! The programs of these tests learn nothing. The result depends only on program and packet, so
//! each packet can be translated separately.

use super::actions::KEPT;
use super::compare::{self, Seen};
use super::forwarding::Bench;
use super::lab::eventually;
use super::megaflows::{self, Translated};
use super::reference::{ExpectedUpcall, Frame, Outcome};
use super::sources::Source;
use super::tunnels::{Inner, decapped, encapsulated, key, wait_arrived};
use super::{PORTS, Provider, UPLINK, links, tunnel_port};
use crate::frames::{self, FrameKinds};
use crate::random::{Random, environment};
use datapath::config::EndpointConfig;
use datapath::megaflow::Megaflow;
use datapath::stats::Snapshot;
use datapath::upcall::{Upcall, UpcallReason};
use datapath::{Datapath, DumpCursor};
use flow::{
    Action, ActionOutput, DropReason, Encapsulated, EndpointTable, Field, FlowKey, PortNo,
    TunnelInfo, TunnelKey, execute, extract,
};
use packet::{Offload, PacketBuf, complete_checksum};
use pipeline::{LearnLimits, Program, TableLimit, translate};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use switch::{Config, Engine, Limits};

/// The default number of programs, half of all; `WEFT_CASES` overrides it.
const CASES: u64 = 38;
const FRAMES: usize = 40;
/// The number of variants that are generated for each frame; some of them are sent.
const TRIES: usize = 8;
/// The number of upcalls that are passed to the switch together.
const BATCH: usize = 32;
/// The fields of a super-packet whose change leaves it a valid super-packet.
const OF_SUPERS: [Field; 9] = [
    Field::EthSrc,
    Field::EthDst,
    Field::Ip4Src,
    Field::Ip4Dst,
    Field::Ip6Src,
    Field::Ip6Dst,
    Field::IpTtl,
    Field::TpSrc,
    Field::TpDst,
];

/// Tests programs with the megaflows that a switch creates from them; see [`crate::conformance`].
///
/// # Panics
/// When the provider does not conform; the message contains the program.
pub fn programs(provider: Provider<'_>) {
    provider.report_lacks("conformance of programs");
    let cases = environment("WEFT_CASES", CASES);
    let first = provider.first_seed(CASES);
    let (mut bench, mut seen, mut rounds) = (Bench::new(provider), Seen::default(), [0; 2]);
    for seed in first..first + cases {
        let mut random = Random::new(seed);
        let sources = [(); 2].map(|()| Source::random(&mut random, provider));
        let mut case = Case::new(&bench, sources);
        if let Err(fault) = case.check(&mut bench, &mut random, &mut seen, &mut rounds) {
            let text = &case.sources[case.current].text;
            panic!("WEFT_SEED={seed} WEFT_CASES=1: {fault}\nof the program\n{text}");
        }
    }
    let [hits, misses] = rounds;
    if cases >= CASES {
        let parts = [seen.sent, seen.supers, seen.outer, seen.dropped];
        let all_there = parts.into_iter().all(|part| 20 * part > seen.frames);
        let both = 10 * hits.min(misses) > hits + misses && 8 * (hits + misses) > seen.frames;
        assert!(all_there && both, "{seen:?}, {hits} hits, {misses} misses");
    }
}

/// The link or tunnel from which a frame arrives.
#[derive(Clone)]
enum FrameOrigin {
    Port(PortNo),
    Tunnel(EndpointConfig, TunnelKey),
}

/// A frame and its origin.
#[derive(Clone)]
struct IncomingFrame {
    origin: FrameOrigin,
    frame: PacketBuf,
}

/// A frame that is sent on a link, and the packet that the datapath receives.
struct Arrival {
    wire: PortNo,
    packet: PacketBuf,
    port: PortNo,
    inner: Result<(Option<TunnelInfo>, PacketBuf), DropReason>,
    /// True if it is counted for an end point instead of a port.
    by_end_point: bool,
}

fn origin(random: &mut Random, endpoints: &[EndpointConfig]) -> FrameOrigin {
    if !endpoints.is_empty() && random.once_in(4) {
        let endpoint = random.pick(endpoints);
        return FrameOrigin::Tunnel(endpoint, key(random, endpoint.spec.tunnel));
    }
    FrameOrigin::Port(random.pick(&PORTS))
}

impl IncomingFrame {
    fn random(random: &mut Random, endpoints: &[EndpointConfig]) -> Self {
        let mut origin = origin(random, endpoints);
        let supers = matches!(origin, FrameOrigin::Port(_));
        let max_payload = if supers { 9000 } else { 1300 };
        let mut frame =
            frames::frame(random, FrameKinds { supers, snap: true, malformed: true, max_payload });
        if supers && random.once_in(6) && links::add_tags(random, &mut frame) {
            origin = FrameOrigin::Port(UPLINK);
        }
        Self { origin, frame }
    }

    /// The frame as sent on its link or through its tunnel; `None` if that is not possible.
    fn arrival(&self, others: &mut EndpointTable) -> Option<Arrival> {
        match &self.origin {
            FrameOrigin::Port(wire) => {
                let packet = self.frame.clone();
                let (port, inner) = match links::arrived(*wire, &packet) {
                    Ok((port, info, inner)) => (port, Ok((info, inner))),
                    Err(reason) => (*wire, Err(reason)),
                };
                Some(Arrival { wire: *wire, packet, port, inner, by_end_point: false })
            }
            FrameOrigin::Tunnel(endpoint, key) => {
                let (_, mut outer) = encapsulated(others, endpoint, key, self.frame.clone())?;
                let (packet, tunnel) = (outer.pop()?, endpoint.spec.tunnel);
                let inner = decapped(tunnel, &packet);
                let inner = inner.map(|(info, frame): Inner| (Some(info), frame));
                let port = tunnel_port(tunnel);
                Some(Arrival { wire: UPLINK, packet, port, inner, by_end_point: true })
            }
        }
    }

    /// The actions of the program for the frame; `None` if the frame is not looked up.
    fn actions(&self, bench: &mut Bench, program: &Program) -> Option<Vec<Action>> {
        let arrival = self.arrival(&mut bench.others)?;
        let (info, packet) = arrival.inner.ok()?;
        let key = extract(&packet, arrival.port, info.as_ref()).ok()?;
        Some(translate(program, &key, &(), &mut ()).actions)
    }

    /// A variant of the frame. It differs in its origin, or in one bit inside or outside of the
    /// mask.
    fn sibling(&self, random: &mut Random, bench: &mut Bench, program: &Program) -> Option<Self> {
        let arrival = self.arrival(&mut bench.others)?;
        let (info, packet) = arrival.inner.ok()?;
        let known = extract(&packet, arrival.port, info.as_ref()).ok()?;
        let is_super = self.frame.offload.gso.is_some();
        if random.once_in(5) {
            let origin = if is_super {
                FrameOrigin::Port(random.pick(&PORTS))
            } else {
                origin(random, &bench.endpoints)
            };
            return Some(Self { origin, frame: self.frame.clone() });
        }
        let mask = translate(program, &known, &(), &mut ()).mask;
        let wants_read = random.once_in(2);
        let changeable = |field: &Field| {
            if is_super {
                OF_SUPERS.contains(field)
            } else {
                field.is_header() && !KEPT.contains(field)
            }
        };
        // Chooses the field first, so that wide fields are not chosen more often.
        let fields: Vec<(Field, u128)> = Field::ALL
            .iter()
            .filter(|field| changeable(field))
            .map(|&field| (field, mask.get(field) ^ if wants_read { 0 } else { field.all_ones() }))
            .filter(|(_, bits)| *bits != 0)
            .collect();
        if fields.is_empty() {
            return None;
        }
        let (field, bits) = random.pick(&fields);
        let bits: Vec<u128> =
            (0..field.width()).map(|bit| 1 << bit).filter(|bit| bits & bit != 0).collect();
        let bit = random.pick(&bits);
        let frame = flipped(&self.frame, field, bit, &known)?;
        Some(Self { origin: self.origin.clone(), frame })
    }
}

/// The frame with one bit of a field inverted; `None` if the frame does not have the field.
fn flipped(frame: &PacketBuf, field: Field, bit: u128, key: &FlowKey) -> Option<PacketBuf> {
    #[derive(Default)]
    struct LastOutput(Option<PacketBuf>);
    impl ActionOutput for LastOutput {
        fn port(&mut self, _: PortNo, packet: &mut PacketBuf) -> Result<(), DropReason> {
            self.0 = Some(packet.clone());
            Ok(())
        }
        fn underlay(&mut self, _: &Encapsulated, _: &mut PacketBuf) -> Result<(), DropReason> {
            Ok(())
        }
        fn dropped(&mut self, _: DropReason, _: &PacketBuf) {}
    }
    let mut frame = frame.clone();
    if frame.offload.gso.is_none() {
        // The change may have moved the headers, so the checksum is completed and the offload state
        // reset.
        if frame.offload.checksum != packet::Checksum::Unverified {
            complete_checksum(&mut frame).ok()?;
        }
        frame.offload = Offload::default();
    }
    let value = !key.get(field) & bit;
    let list = [Action::Set { field, value, mask: bit }, Action::Output(PORTS[0])];
    let mut output = LastOutput::default();
    let before = frame.to_vec();
    execute(&list, &mut frame, &mut EndpointTable::new(0, 1), &mut output);
    output.0.filter(|frame| frame.to_vec() != before)
}

/// The upcalls that are expected in a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// All frames cause upcalls.
    First,
    /// Some frames cause upcalls.
    Mixed,
    /// No frame causes an upcall, because all have been sent before.
    Again,
}

struct Case {
    sources: [Source; 2],
    /// The index of the program in use.
    current: usize,
    engine: Engine,
}

impl Case {
    fn new(bench: &Bench, sources: [Source; 2]) -> Self {
        let nothing = TableLimit { total: 0, per_port: 0 };
        let learn = LearnLimits { mac_bindings: nothing, fdb: nothing, ..LearnLimits::default() };
        // Each upcall must create a megaflow. So no packet may be held until a next hop is
        // resolved.
        let limits = Limits { held_packets: 0, ..Limits::default() };
        let config = Config { learn, limits };
        let program = sources[0].program.clone();
        let engine = Engine::new(Arc::clone(&bench.lab.datapath), program, &config);
        Self { sources, current: 0, engine }
    }

    /// Sends frames twice, then variants of them, then both again, and both once more after a
    /// change of the program.
    fn check(
        &mut self,
        bench: &mut Bench,
        random: &mut Random,
        seen: &mut Seen,
        rounds: &mut [u64; 2],
    ) -> Result<(), String> {
        let endpoints = Arc::clone(&bench.endpoints);
        let first: Vec<IncomingFrame> =
            (0..FRAMES).map(|_| IncomingFrame::random(random, &endpoints)).collect();
        self.pass(bench, &first, Round::First, seen).map_err(|fault| format!("first: {fault}"))?;
        // The second packet of a flow may take another path through the caches.
        self.pass(bench, &first, Round::Again, seen).map_err(|fault| format!("twice: {fault}"))?;
        let program = &self.sources[0].program;
        let (mut siblings, mut all) = (Vec::new(), Vec::new());
        for incoming in &first {
            let variants: Vec<IncomingFrame> =
                (0..TRIES).filter_map(|_| incoming.sibling(random, bench, program)).collect();
            // Prefer variants with other actions.
            let actions = incoming.actions(bench, program);
            let other = variants.iter().find(|sibling| sibling.actions(bench, program) != actions);
            let chosen =
                [other, variants.first(), variants.last()].map(Option::<&IncomingFrame>::cloned);
            let chosen: Vec<IncomingFrame> = chosen.into_iter().flatten().collect();
            // Similar frames follow each other, so that their upcalls are processed together.
            all.push(incoming.clone());
            all.extend_from_slice(&chosen);
            siblings.extend(chosen);
        }
        let (hits, misses) = self
            .pass(bench, &siblings, Round::Mixed, seen)
            .map_err(|fault| format!("siblings: {fault}"))?;
        rounds[0] += hits;
        rounds[1] += misses;
        self.pass(bench, &all, Round::Again, seen).map_err(|fault| format!("again: {fault}"))?;
        self.current = 1;
        self.engine.publish(self.sources[1].program.clone());
        self.engine.revalidate().map_err(|error| error.to_string())?;
        self.pass(bench, &all, Round::Mixed, seen)
            .map_err(|fault| format!("after revalidation: {fault}"))?;
        bench.delete_all()
    }

    /// Sends frames, processes their upcalls with the engine, and compares the result with a
    /// separate translation of each frame. Returns the number of cache hits and of upcalls.
    fn pass(
        &self,
        bench: &mut Bench,
        incoming: &[IncomingFrame],
        round: Round,
        seen: &mut Seen,
    ) -> Result<(u64, u64), String> {
        let arrivals: Vec<Arrival> =
            incoming.iter().filter_map(|incoming| incoming.arrival(&mut bench.others)).collect();
        let mut outcome = Outcome::default();
        bench.reference.unordered = round == Round::Mixed;
        let packets = self.expect(bench, &arrivals, &mut outcome);
        bench.reference.unordered = false;
        let had = bench.megaflows()?;
        megaflows::are_correct(&had, &packets, self.program())?;
        let before = bench.lab.snapshot();
        send(bench, &arrivals, &before);
        let looked_up = packets.len() as u64;
        eventually(&*bench.lab.datapath, |now| {
            let lookups = now.megaflows.lookups - before.megaflows.lookups;
            (lookups == looked_up)
                .then_some(())
                .ok_or(format!("{lookups} looked up, not {looked_up}"))
        })?;
        let now = bench.lab.snapshot();
        let missed = misses(&now) - misses(&before);
        let expected = match round {
            Round::First => looked_up,
            Round::Mixed => missed,
            Round::Again => 0,
        };
        if missed != expected {
            return Err(format!("{missed} of {looked_up} frames come up, not {expected}"));
        }
        self.answer(bench, &packets, &had, missed, &mut outcome)?;
        let have = bench.megaflows()?;
        megaflows::serve(&have, &packets)?;
        megaflows::are_correct(&have, &packets, self.program())?;
        megaflows::were_made_for(&packets, &have, &had)?;
        seen.frames += arrivals.len() as u64;
        bench.compare_frames(&outcome, &before, seen)?;
        Ok((looked_up - missed, missed))
    }

    /// The program in use.
    fn program(&self) -> &Program {
        &self.sources[self.current].program
    }

    /// Computes the expected results; returns the frames that are looked up.
    fn expect(
        &self,
        bench: &mut Bench,
        arrivals: &[Arrival],
        outcome: &mut Outcome,
    ) -> Vec<Translated> {
        let mut packets = Vec::new();
        for Arrival { port, inner, .. } in arrivals {
            match inner {
                Err(reason) => outcome.drops.entry(UPLINK).or_default().add(*reason, 1),
                Ok((info, packet)) => match extract(packet, *port, info.as_ref()) {
                    Err(error) => bench.reference.malformed(*port, error, packet, outcome),
                    Ok(key) => {
                        let upcall = ExpectedUpcall { port: *port, key, packet: packet.clone() };
                        let translated = Translated::new(self.program(), upcall);
                        let Translated { upcall, actions, .. } = &translated;
                        bench.reference.execute(upcall, actions, None, outcome);
                        packets.push(translated);
                    }
                },
            }
        }
        packets
    }

    /// Receives the upcalls of `missed` packets and of copies, and processes them with the engine.
    /// `had` contains the megaflows that existed before.
    fn answer(
        &self,
        bench: &Bench,
        packets: &[Translated],
        had: &[Megaflow],
        missed: u64,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        let is_miss = |upcall: &Upcall| upcall.reason == UpcallReason::Miss;
        let count =
            |upcalls: &[Upcall]| upcalls.iter().filter(|upcall| is_miss(upcall)).count() as u64;
        let upcalls = bench.lab.upcalls_until(|upcalls| count(upcalls) >= missed);
        let (misses, mut copies): (Vec<Upcall>, Vec<Upcall>) =
            upcalls.into_iter().partition(is_miss);
        if misses.len() as u64 != missed {
            return Err(format!("{} upcalls, not {missed}", misses.len()));
        }
        megaflows::serve(had, megaflows::not_among(&misses, packets)?)?;
        let mut misses = misses.into_iter().peekable();
        while misses.peek().is_some() {
            let mut batch: Vec<Upcall> = misses.by_ref().take(BATCH).collect();
            self.engine.handle(&mut batch, Instant::now()).map_err(|error| error.to_string())?;
        }
        let left = outcome.copies.len().saturating_sub(copies.len());
        copies.extend(bench.lab.upcalls(left));
        // Copies of cache hits come before copies from processed upcalls, so the order is not
        // compared.
        outcome.copies.sort_by_cached_key(|upcall| frame_of(&upcall.key, &upcall.packet).bytes);
        copies.sort_by_cached_key(|upcall| frame_of(&upcall.key, &upcall.packet).bytes);
        compare::upcalls(outcome, &copies)
    }
}

fn frame_of(key: &FlowKey, packet: &PacketBuf) -> Frame {
    compare::raised(key, packet).1
}

/// Lookups that found no megaflow.
pub(super) fn misses(snapshot: &Snapshot) -> u64 {
    let stats = snapshot.megaflows;
    stats.lookups - stats.exact_hits - stats.search_hits
}

/// Sends all frames, and waits until they have been received.
fn send(bench: &Bench, arrivals: &[Arrival], before: &Snapshot) {
    let (mut received, mut decapped) = (BTreeMap::<PortNo, u64>::new(), 0);
    for Arrival { wire, packet, inner, by_end_point, .. } in arrivals {
        if !by_end_point {
            *received.entry(*wire).or_default() += 1;
        } else if inner.is_ok() {
            decapped += 1;
        }
        bench.lab.send(*wire, packet);
    }
    bench.lab.wait_received(before, &received);
    wait_arrived(bench, before, decapped);
}

impl Bench {
    /// Deletes all megaflows.
    fn delete_all(&self) -> Result<(), String> {
        let datapath: &dyn Datapath = &*self.lab.datapath;
        let (mut ids, mut at) = (Vec::new(), Some(DumpCursor::default()));
        while let Some(from) = at {
            let (portion, next) = datapath.usage(from, 100).map_err(|error| error.to_string())?;
            ids.extend(portion.into_iter().map(|(id, _)| id));
            at = next;
        }
        datapath.delete(ids).map_err(|error| error.to_string())?;
        eventually(datapath, |now| {
            let left = now.megaflows.megaflows;
            (left == 0).then_some(()).ok_or(format!("{left} megaflows are left"))
        })
    }
}
