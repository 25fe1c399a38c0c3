//! Tests that end points can be added and removed under traffic. Remaining end points lose no
//! packet. Packets of the others are dropped and counted.

use super::compare;
use super::forwarding::Bench;
use super::lab::{LATENESS, PATIENCE, port_stats, underlay};
use super::reference::{Expected, Frame, ObservedFrame, Outcome};
use super::tunnels::{decapped, encapsulated};
use super::{PORTS, Provider, UPLINK, conforms, tunnel_port};
use crate::frames::{self, FrameKinds};
use crate::host::wait_until;
use crate::random::Random;
use datapath::config::EndpointConfig;
use datapath::megaflow::Megaflow;
use datapath::stats::Snapshot;
use flow::{
    Action, DatapathKey, DropReason, EndpointId, Field, Match, PortNo, TunnelInfo, TunnelKey,
};
use packet::PacketBuf;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

const FROM: PortNo = PORTS[0];
const TO: PortNo = PORTS[1];
const ROUNDS: usize = 12;
/// The number of frames in each direction during the change, and again after it.
const FRAMES: usize = 60;
/// The drop reasons of frames whose end point was removed, or was added and is not resolved yet.
const REFUSALS: [DropReason; 2] = [DropReason::UnknownEndpoint, DropReason::EndpointUnresolved];

/// End points and tunnels are removed and added while frames are sent to and received from all of
/// them. All frames of remaining end points arrive in order. Frames of the others are dropped with
/// the correct reason.
///
/// # Panics
/// When the provider does not conform.
pub fn underlays_change(provider: Provider<'_>) {
    provider.report_lacks("conformance while the underlay changes");
    let (mut bench, mut random) = (Bench::new(provider), Random::new(4));
    // Group end points are left out: their members are added and removed independently.
    let is_single = |end: &&EndpointConfig| !end.remote.is_multicast();
    let all: Vec<EndpointConfig> = bench.endpoints.iter().filter(is_single).copied().collect();
    let megaflows: Vec<Megaflow> = all.iter().flat_map(megaflows_of).collect();
    // Each tunnel type has two end points, whose megaflows can be equal.
    let once: BTreeMap<_, Megaflow> = megaflows.into_iter().map(|m| (m.id, m)).collect();
    bench.reference.megaflows = once.into_values().map(|megaflow| (megaflow, (0, 0))).collect();
    bench.put(bench.reference.megaflows.iter().map(|(megaflow, _)| megaflow.clone()).collect());
    let mut now = all.clone();
    for round in 0..ROUNDS {
        // Every second round removes all end points of one address family, so that whole tunnels
        // are removed too.
        let keep = |random: &mut Random, end: &EndpointConfig| match round % 4 {
            1 => end.local.is_ipv4(),
            3 => end.local.is_ipv6(),
            _ => !random.once_in(3),
        };
        let next: Vec<EndpointConfig> =
            all.iter().filter(|end| keep(&mut random, end)).copied().collect();
        let change = Change { all: &all, now: &now, next: &next };
        conforms(change.under_traffic(&mut bench, &mut random));
        now = next;
        let still = Change { all: &all, now: &now, next: &now };
        conforms(still.settled(&mut bench, &mut random));
    }
}

/// The MAC address of frames to an end point.
fn mac_of(id: EndpointId) -> [u8; 6] {
    [2, 0, 0, 0, 9, id.0 as u8]
}

const KEY: TunnelKey = TunnelKey { datapath: DatapathKey(7), ports: None };

fn megaflows_of(end: &EndpointConfig) -> [Megaflow; 2] {
    let condition = |fields: &[(Field, u128)]| {
        let mut condition = Match::any();
        for &(field, value) in fields {
            assert!(condition.require(field, value, field.all_ones()));
        }
        condition
    };
    let [a, b, c, d, e, f] = mac_of(end.id);
    let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    let out = condition(&[(Field::InPort, FROM.0.into()), (Field::EthDst, mac.into())]);
    let back = condition(&[(Field::InPort, tunnel_port(end.spec.tunnel).0.into())]);
    [
        Megaflow::new(out, [Action::Encap { endpoint: end.id, key: KEY }].into()),
        Megaflow::new(back, [Action::Output(TO)].into()),
    ]
}

/// The end points before and after a change.
struct Change<'a> {
    all: &'a [EndpointConfig],
    now: &'a [EndpointConfig],
    next: &'a [EndpointConfig],
}

/// A frame, and its result while its end point exists.
struct SentFrame {
    wire: PortNo,
    packet: PacketBuf,
    end: EndpointConfig,
    expected: Vec<Expected>,
}

/// The expected result for frames of an end point.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Arrives,
    /// The frame may arrive or be dropped, because the end point is being added or removed.
    Either,
    Dropped,
}

impl Change<'_> {
    fn delivery(&self, end: &EndpointConfig) -> Delivery {
        match (self.now.contains(end), self.next.contains(end)) {
            (true, true) => Delivery::Arrives,
            (false, false) => Delivery::Dropped,
            _ => Delivery::Either,
        }
    }

    /// Frames to all end points, and frames from end points whose tunnel exists before and after
    /// the change. Packets for a removed tunnel go to the host's network stack.
    fn frames(&self, bench: &mut Bench, random: &mut Random) -> Vec<SentFrame> {
        let (before, after) = (underlay(self.now).tunnels, underlay(self.next).tunnels);
        let has_stable_tunnel = |end: &&EndpointConfig| {
            let mut both = before.iter().filter(|tunnel| after.contains(tunnel));
            both.any(|tunnel| (tunnel.spec, tunnel.local) == (end.spec, end.local))
        };
        let senders: Vec<&EndpointConfig> = self.all.iter().filter(has_stable_tunnel).collect();
        let kinds = FrameKinds { supers: false, snap: true, malformed: false, max_payload: 1000 };
        let mut frames = Vec::new();
        for _ in 0..FRAMES {
            let end = random.pick(self.all);
            let mut frame = frames::frame(random, kinds);
            frame.head_mut()[..6].copy_from_slice(&mac_of(end.id));
            let expected = expectation(bench, FROM, None, &frame);
            frames.push(SentFrame { wire: FROM, packet: frame, end, expected });
            if senders.is_empty() {
                continue;
            }
            let end = *random.pick(&senders);
            let frame = frames::frame(random, kinds);
            let outer = encapsulated(&mut bench.others, &end, &KEY, frame);
            let Some((_, outer)) = outer else { continue };
            for packet in outer {
                let Ok((info, inner)) = decapped(end.spec.tunnel, &packet) else { continue };
                let port = tunnel_port(end.spec.tunnel);
                let expected = expectation(bench, port, Some(&info), &inner);
                frames.push(SentFrame { wire: UPLINK, packet, end, expected });
            }
        }
        frames
    }

    fn under_traffic(&self, bench: &mut Bench, random: &mut Random) -> Result<(), String> {
        let frames = self.frames(bench, random);
        let before = bench.lab.snapshot();
        let lab = &bench.lab;
        std::thread::scope(|scope| {
            let (first, others) = frames.split_at(frames.len() / 4);
            let send = |frames: &[SentFrame]| {
                for sent_frame in frames {
                    lab.send(sent_frame.wire, &sent_frame.packet);
                    std::thread::sleep(Duration::from_micros(50));
                }
            };
            send(first);
            let (datapath, netns) = (&lab.datapath, lab.netns());
            let next = underlay(self.next);
            let changing = scope.spawn(move || netns.run_in(move || datapath.set_underlay(next)));
            send(others);
            let changed = changing.join().expect("it does not panic");
            changed.expect("a thread can enter the namespace")
        })
        .map_err(|error| error.to_string())?;
        self.judge(bench, &frames, &before)
    }

    /// Sends frames after the change, and checks them.
    fn settled(&self, bench: &mut Bench, random: &mut Random) -> Result<(), String> {
        wait_until(PATIENCE, "all end points are resolved", || {
            bench.lab.snapshot().endpoints.iter().all(|end| end.neighbour != "unresolved")
        });
        let there = bench.lab.snapshot().endpoints.len();
        if there != self.now.len() {
            return Err(format!("there are {there} end points, not {}", self.now.len()));
        }
        let frames = self.frames(bench, random);
        let before = bench.lab.snapshot();
        for sent_frame in &frames {
            bench.lab.send(sent_frame.wire, &sent_frame.packet);
        }
        self.judge(bench, &frames, &before)
    }

    /// Checks that every frame was sent or dropped, as is required for its end point.
    fn judge(
        &self,
        bench: &mut Bench,
        frames: &[SentFrame],
        before: &Snapshot,
    ) -> Result<(), String> {
        let (mut left, deadline) =
            (BTreeMap::<PortNo, Vec<ObservedFrame>>::new(), Instant::now() + LATENESS);
        let is_done = |left: &BTreeMap<PortNo, Vec<ObservedFrame>>, now: &Snapshot| {
            [(FROM, UPLINK), (UPLINK, TO)].into_iter().all(|(wire, at)| {
                let sent =
                    frames.iter().filter(|sent_frame| sent_frame.wire == wire).count() as u64;
                let arrived = left.get(&at).map_or(0, |list| list.len() as u64);
                arrived + refused(now, wire) - refused(before, wire) >= sent
            })
        };
        while !is_done(&left, &bench.lab.snapshot()) && Instant::now() < deadline {
            for (port, observed_frames) in bench.lab.collect(&BTreeMap::new()) {
                left.entry(port).or_default().extend(observed_frames);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.compare(frames, left)?;
        let now = bench.lab.snapshot();
        for wire in [FROM, UPLINK] {
            let grown = refused(&now, wire) - refused(before, wire);
            let of = |delivery: Delivery| {
                let there = |sent_frame: &&SentFrame| {
                    sent_frame.wire == wire && self.delivery(&sent_frame.end) == delivery
                };
                frames.iter().filter(there).count() as u64
            };
            let (least, most) =
                (of(Delivery::Dropped), of(Delivery::Dropped) + of(Delivery::Either));
            if !(least..=most).contains(&grown) {
                return Err(format!("port {wire}: {grown} drops, not {least} to {most}"));
            }
        }
        Ok(())
    }

    /// Checks the order of the frames that were sent.
    fn compare(
        &self,
        frames: &[SentFrame],
        left: BTreeMap<PortNo, Vec<ObservedFrame>>,
    ) -> Result<(), String> {
        // The number of received frames minus the number of required ones, for each frame.
        let mut more: HashMap<(PortNo, &Frame), i32> = HashMap::new();
        for (&port, observed_frames) in &left {
            for observed in observed_frames {
                *more.entry((port, &observed.frame)).or_default() += 1;
            }
        }
        let with_delivery = |delivery| {
            frames.iter().filter(move |sent_frame| self.delivery(&sent_frame.end) == delivery)
        };
        for expected in with_delivery(Delivery::Arrives).flat_map(|sent_frame| &sent_frame.expected)
        {
            *more.entry((expected.at, &expected.frame)).or_default() -= 1;
        }
        let mut expected = Vec::new();
        for sent_frame in frames {
            for one in &sent_frame.expected {
                let has_left = match self.delivery(&sent_frame.end) {
                    Delivery::Arrives => true,
                    Delivery::Dropped => false,
                    Delivery::Either => match more.get_mut(&(one.at, &one.frame)) {
                        Some(left) if *left > 0 => {
                            *left -= 1;
                            true
                        }
                        _ => false,
                    },
                };
                if has_left {
                    expected.push(one.clone());
                }
            }
        }
        compare::frames(&expected, left.clone())
    }
}

/// The number of frames received on a link and dropped because of their end point.
fn refused(snapshot: &Snapshot, wire: PortNo) -> u64 {
    let drops = match wire {
        UPLINK => Some(&snapshot.uplink.drops),
        port => port_stats(snapshot, port).map(|stats| &stats.drops),
    };
    let count = |reason: DropReason| drops.and_then(|drops| drops.get(reason.name())).copied();
    REFUSALS.into_iter().filter_map(count).sum()
}

fn expectation(
    bench: &mut Bench,
    port: PortNo,
    info: Option<&TunnelInfo>,
    packet: &PacketBuf,
) -> Vec<Expected> {
    let mut outcome = Outcome::default();
    bench.reference.receive(port, info, packet, &mut outcome);
    outcome.expected
}
