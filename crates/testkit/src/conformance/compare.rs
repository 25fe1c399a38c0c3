//! Compares the behaviour of a provider (an implementation of a datapath) with the results that the
//! reference expects.

use super::lab::port_stats;
use super::order::flow_of;
use super::reference::{Expected, ExpectedUpcall, Frame, ObservedFrame, Outcome};
use super::{PORTS, UNREPORTED_FIELDS, UPLINK};
use datapath::stats::{Drops, Snapshot, drops};
use datapath::upcall::{Upcall, UpcallReason};
use flow::{DropCounters, FlowKey, PortNo};
use packet::PacketBuf;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Statistics of the cases, which show that the suite tests every feature.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub frames: u64,
    pub sent: u64,
    pub supers: u64,
    pub outer: u64,
    pub dropped: u64,
    pub misses: u64,
    pub copies: u64,
    pub decapped: u64,
}

impl Seen {
    pub fn note(&mut self, outcome: &Outcome) {
        self.sent += outcome.expected.len() as u64;
        let count = |of: fn(&Expected) -> bool| outcome.expected.iter().filter(|e| of(e)).count();
        self.supers += count(|e| e.frame.gso.is_some()) as u64;
        self.outer += count(|e| e.entropy.is_some()) as u64;
        self.dropped += outcome.drops.values().map(DropCounters::total).sum::<u64>();
        self.misses += outcome.misses.len() as u64;
        self.copies += outcome.copies.len() as u64;
    }

    pub fn assert_not_trivial(&self) {
        let parts = [self.supers, self.outer, self.dropped, self.misses, self.decapped];
        let all_there = parts.iter().all(|&part| part * 20 > self.frames);
        assert!(all_there && 2 * self.sent > self.frames && self.copies > 0, "{self:?}");
    }
}

/// The number of expected frames on each link.
pub(super) fn counts(expected: &[Expected]) -> BTreeMap<PortNo, usize> {
    let mut counts = BTreeMap::new();
    expected.iter().for_each(|expected| *counts.entry(expected.at).or_default() += 1);
    counts
}

/// Checks that the frames sent are the expected ones, in order within each flow and path.
pub(super) fn frames(
    expected: &[Expected],
    seen: BTreeMap<PortNo, Vec<ObservedFrame>>,
) -> Result<(), String> {
    let (mut source_ports, mut sequences) = (HashMap::new(), HashMap::new());
    for (port, observed_frames) in seen {
        let mut open: HashMap<&Frame, VecDeque<usize>> = HashMap::new();
        for (at, expected) in expected.iter().enumerate().filter(|(_, e)| e.at == port) {
            open.entry(&expected.frame).or_default().push_back(at);
        }
        let ambiguous = |places: &VecDeque<usize>| {
            let path = |at: usize| (expected[at].flow, expected[at].path);
            places.iter().any(|&at| path(at) != path(places[0]))
        };
        let unclear: Vec<&Frame> =
            open.iter().filter(|(_, places)| ambiguous(places)).map(|(&frame, _)| frame).collect();
        let mut last = HashMap::new();
        for observed in &observed_frames {
            let frame = &observed.frame;
            let Some(at) = open.get_mut(frame).and_then(VecDeque::pop_front) else {
                return Err(unexpected(port, frame, &open));
            };
            let Expected { flow, path, entropy, .. } = expected[at];
            if unclear.contains(&frame) {
                continue;
            }
            if let Some(last) = last.insert((flow, path), at)
                && last > at
            {
                let [early, late] = [last, at].map(|at| show(&expected[at].frame));
                return Err(format!(
                    "port {port}: frame {at} came after frame {last}:\n {late}\nafter\n {early}"
                ));
            }
            if let Some(number) = observed.sequence
                && sequences.insert((flow, path), number).is_some_and(|last| last >= number)
            {
                return Err(format!("the number {number} out of order: {}", show(frame)));
            }
            let Some(((sender, source_port), entropy)) = observed.source_port.zip(entropy) else {
                continue;
            };
            let had = *source_ports.entry((sender, flow, entropy)).or_insert(source_port);
            if had != source_port {
                return Err(format!("outer source ports {had} and {source_port} of one flow"));
            }
        }
        if let Some((frame, _)) = open.iter().find(|(_, places)| !places.is_empty()) {
            let missing: usize = open.values().map(VecDeque::len).sum();
            return Err(format!("port {port}: {missing} frames lost: {}", show(frame)));
        }
    }
    Ok(())
}

/// The error message for an unexpected frame. It contains the most similar expected frame.
fn unexpected(port: PortNo, frame: &Frame, open: &HashMap<&Frame, VecDeque<usize>>) -> String {
    let left = open.iter().filter(|(_, places)| !places.is_empty()).map(|(frame, _)| frame);
    let similarity = |other: &&&Frame| {
        let same = frame.bytes.iter().zip(&other.bytes).filter(|(a, b)| a == b).count();
        (frame.bytes.len() == other.bytes.len(), same)
    };
    let nearest = left.max_by_key(similarity).map(|frame| show(frame));
    let nearest = nearest.unwrap_or_else(|| "nothing".to_owned());
    let left = open.values().map(VecDeque::len).sum::<usize>();
    format!("port {port}: unexpected\n {}\ninstead of ({left} left)\n {nearest}", show(frame))
}

pub(super) fn show(frame: &Frame) -> String {
    let bytes: String = frame.bytes.iter().take(160).map(|byte| format!("{byte:02x}")).collect();
    format!("{} bytes, {:?}: {bytes}", frame.bytes.len(), frame.gso)
}

/// Checks that the upcalls are the expected ones.
pub(super) fn upcalls(outcome: &Outcome, upcalls: &[Upcall]) -> Result<(), String> {
    for (reason, expected) in
        [(UpcallReason::Miss, &outcome.misses), (UpcallReason::Controller, &outcome.copies)]
    {
        let ports: BTreeSet<PortNo> = expected
            .iter()
            .map(|upcall| upcall.port)
            .chain(upcalls.iter().map(|upcall| upcall.port))
            .collect();
        for port in ports {
            let mut expected: Vec<&ExpectedUpcall> =
                expected.iter().filter(|upcall| upcall.port == port).collect();
            let mut seen: Vec<&Upcall> = upcalls
                .iter()
                .filter(|upcall| upcall.reason == reason && upcall.port == port)
                .collect();
            // Upcalls are compared in order within each flow.
            expected.sort_by_cached_key(|upcall| flow_of(port, &upcall.key, &upcall.packet));
            seen.sort_by_cached_key(|upcall| flow_of(port, &upcall.key, &upcall.packet));
            if expected.len() != seen.len() {
                let (expected, seen) = (expected.len(), seen.len());
                return Err(format!("port {port}: {seen} upcalls ({reason:?}), not {expected}"));
            }
            for (expected, seen) in expected.into_iter().zip(seen) {
                let (wanted, got) =
                    (raised(&expected.key, &expected.packet), raised(&seen.key, &seen.packet));
                if wanted != got {
                    let [wanted, got] =
                        [wanted, got].map(|(key, frame)| format!("{key}\n  {}", show(&frame)));
                    return Err(format!(
                        "port {port}: upcall ({reason:?})\n {got}\ninstead of\n {wanted}"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// The key and the frame of an upcall, in a form in which equal packets compare equal.
pub(super) fn raised(key: &FlowKey, packet: &PacketBuf) -> (FlowKey, Frame) {
    let mut key = key.clone();
    UNREPORTED_FIELDS.into_iter().for_each(|field| key.set(field, 0));
    (key, ObservedFrame::whole(packet).frame)
}

/// Checks that the drop counters grew as expected since `before`.
pub(super) fn dropped(
    outcome: &Outcome,
    before: &Snapshot,
    after: &Snapshot,
) -> Result<(), String> {
    let of = |snapshot: &Snapshot, port: PortNo| -> Drops {
        if port == UPLINK {
            return snapshot.uplink.drops.clone();
        }
        port_stats(snapshot, port).map(|stats| stats.drops.clone()).unwrap_or_default()
    };
    for port in PORTS.into_iter().chain([UPLINK]) {
        let expected = outcome.drops.get(&port).map(drops).unwrap_or_default();
        let had = of(before, port);
        let grown = of(after, port)
            .into_iter()
            .map(|(reason, count)| (had.get(&reason).map_or(count, |had| count - had), reason))
            .filter(|(count, _)| *count > 0)
            .map(|(count, reason)| (reason, count));
        let seen: Drops = grown.collect();
        if seen != expected {
            return Err(format!("port {port}: drops {seen:?} instead of {expected:?}"));
        }
    }
    Ok(())
}
