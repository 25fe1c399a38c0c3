//! Tests that watchers receive every dropped packet with its reason and megaflow, and every frame
//! of a port.

use super::compare::Seen;
use super::forwarding::{self, Bench};
use super::lab::LATENESS;
use super::reference::Outcome;
use super::{PORTS, Provider, conforms, tunnels};
use crate::random::Random;
use datapath::Datapath;
use datapath::watch::{CaptureDirection, CapturedFrame, DroppedPacket, WatchReceiver};
use flow::PortNo;
use packet::{Checksum, PacketBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

const WATCHED: PortNo = PORTS[1];
/// The maximum number of captured bytes: less than the length of most frames.
const SNAP_BYTES: usize = 200;
const CASES: u64 = 20;

/// The watchers of a bench.
#[derive(Debug)]
pub(super) struct Watchers {
    drops: WatchReceiver<DroppedPacket>,
    frames: WatchReceiver<CapturedFrame>,
}

/// Each watcher receives dropped packets and the frames of a port exactly once. A watcher that has
/// stopped receives nothing.
///
/// # Panics
/// When the provider does not conform.
pub fn watchers_receive_frames_and_drops(provider: Provider<'_>) {
    provider.report_lacks("conformance of watching");
    let (mut bench, mut seen) = (Bench::new(provider), Seen::default());
    for seed in 1..=CASES {
        // Of two watchers, one stops half-way.
        let other = Watchers::new(&*bench.lab.datapath);
        bench.watchers = Some(Watchers::new(&*bench.lab.datapath));
        let mut random = Random::new(seed);
        conforms(forwarding::check(&mut bench, &mut random, &mut seen));
        drop(other);
        conforms(tunnels::singles(&mut bench, &mut random, &mut seen));
    }
    assert!(seen.dropped > CASES && seen.sent > CASES, "{seen:?}");
}

impl Watchers {
    fn new(datapath: &dyn Datapath) -> Self {
        Self {
            drops: datapath.watch_drops().expect("the provider runs"),
            frames: datapath.watch_frames(WATCHED, SNAP_BYTES).expect("the provider runs"),
        }
    }

    /// Checks that the watchers received exactly the expected packets.
    pub fn compare(&self, outcome: &Outcome) -> Result<(), String> {
        each_once(&self.drops, &outcome.drop_events, |seen, expected| {
            (seen.port, seen.reason, seen.megaflow)
                == (expected.port, expected.reason, expected.megaflow)
                && seen.missed == 0
                && has_equal_start(&expected.packet, seen.len, &seen.head)
        })
        .map_err(|fault| format!("a watcher of drops {fault}"))?;
        let of_port = |(port, _): &&(PortNo, PacketBuf)| *port == WATCHED;
        let from = outcome.received.iter().filter(of_port);
        let from = from.map(|(_, packet)| (CaptureDirection::FromGuest, packet.clone()));
        let to = outcome.output.iter().filter(of_port);
        let to = to.map(|(_, packet)| (CaptureDirection::ToGuest, packet.clone()));
        let expected: Vec<(CaptureDirection, PacketBuf)> = from.chain(to).collect();
        each_once(&self.frames, &expected, |seen, (direction, packet)| {
            seen.direction == *direction
                && seen.missed == 0
                && seen.bytes.len() == SNAP_BYTES.min(packet.len())
                && has_equal_start(packet, seen.len, &seen.bytes)
        })
        .map_err(|fault| format!("a watcher of a port {fault}"))
    }
}

/// Checks that each of the `expected` packets was received exactly once, in any order.
fn each_once<S: std::fmt::Debug, E: std::fmt::Debug>(
    copies: &WatchReceiver<S>,
    expected: &[E],
    is_of: impl Fn(&S, &E) -> bool,
) -> Result<(), String> {
    let mut open: Vec<&E> = expected.iter().collect();
    loop {
        let patience = if open.is_empty() { Duration::ZERO } else { LATENESS };
        match copies.recv_timeout(patience) {
            Ok(copy) => match open.iter().position(|expected| is_of(&copy, expected)) {
                Some(at) => drop(open.swap_remove(at)),
                None => return Err(format!("is shown\n {copy:?}\nbut there were left\n {open:?}")),
            },
            Err(RecvTimeoutError::Timeout) if open.is_empty() => return Ok(()),
            Err(_) => return Err(format!("is not shown\n {open:?}")),
        }
    }
}

/// True when the first bytes are equal, except for a checksum that is partial on one side.
fn has_equal_start(packet: &PacketBuf, len: usize, head: &[u8]) -> bool {
    let checksum_at = match packet.offload.checksum {
        Checksum::Partial { start, offset } => Some(usize::from(start + offset)),
        _ => None,
    };
    let is_checksum = |at: usize| {
        checksum_at.is_some_and(|checksum_at| at == checksum_at || at == checksum_at + 1)
    };
    let bytes = packet.to_vec();
    len == bytes.len()
        && head.len() <= len
        && head.iter().zip(&bytes).enumerate().all(|(at, (a, b))| a == b || is_checksum(at))
}
