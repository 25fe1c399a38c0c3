//! Planted faults: a switch finds megaflows in the datapath that its program would not make.

use super::forwarding::Bench;
use super::lab::eventually;
use super::programs::misses;
use super::{PORTS, Provider, conforms};
use datapath::megaflow::Megaflow;
use datapath::stats::Snapshot;
use datapath::{Datapath, DumpCursor};
use flow::{Action, Field, Match, PortNo};
use ofctl::Bridge;
use packet::PacketBuf;
use pipeline::Program;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use switch::{Config, Engine};

const FROM: PortNo = PORTS[0];
/// Where datagrams to [`CHOSEN`] go, and where all others go.
const TO: PortNo = PORTS[1];
const OTHER: PortNo = PORTS[2];
/// Two UDP ports that differ in one bit.
const CHOSEN: u16 = 53;
const NEXT: u16 = 52;
/// Sweeps in which a few megaflows are checked, whatever copies the datapath has of them.
const SWEEPS: usize = 8;

/// A switch deletes a megaflow whose mask lacks a bit, and one that is left of an earlier program.
/// Until then, the provider executes both: so they were planted indeed.
///
/// # Panics
/// When the provider does not conform.
pub fn planted_megaflows_are_found(provider: Provider<'_>) {
    let mut bench = Bench::new(provider);
    let datapath = Arc::clone(&bench.lab.datapath);
    let engine = Engine::new(Arc::clone(&datapath), program(), &Config::default());
    let mut exits = |port, expected| {
        assert_eq!(exit(&mut bench, &engine, port, expected), [expected], "to UDP port {port}");
    };
    exits(CHOSEN, TO);
    sweep_until(&engine, 0);
    plant(&*datapath, |megaflow| {
        // As if the translation had not recorded the lowest bit of the port.
        let mut mask = megaflow.condition.mask().clone();
        mask.set(Field::TpDst, !1 & 0xffff);
        let condition = Match::new(megaflow.condition.key(), mask);
        Megaflow { condition, ..megaflow }
    });
    exits(NEXT, TO);
    sweep_until(&engine, 1);
    exits(NEXT, OTHER);
    exits(CHOSEN, TO);
    plant(&*datapath, |megaflow| Megaflow { actions: [Action::Output(OTHER)].into(), ..megaflow });
    exits(CHOSEN, OTHER);
    sweep_until(&engine, 2);
    exits(CHOSEN, TO);
}

/// Changes the megaflow of datagrams to [`CHOSEN`] behind the switch's back.
fn plant(datapath: &dyn Datapath, change: impl Fn(Megaflow) -> Megaflow) {
    let (held, _) = datapath.dump(DumpCursor::default(), 64).expect("the provider runs");
    let forwards = |megaflow: &Megaflow| *megaflow.actions == [Action::Output(TO)];
    let mut held = held.into_iter().map(|(megaflow, _)| megaflow);
    let megaflow = held.find(forwards).expect("it was made for a datagram");
    datapath.delete(vec![megaflow.id]).expect("the provider runs");
    datapath.put(vec![change(megaflow)]).expect("the provider runs");
    // Requests of one thread are executed in order.
    datapath.snapshot().expect("the provider runs");
}

/// Sweeps until the switch has found this many faults, and checks that it finds no more.
fn sweep_until(engine: &Engine, faults: u64) {
    for _ in 0..SWEEPS {
        engine.sweep(Instant::now()).expect("the provider runs");
    }
    assert_eq!(engine.stats().self_check_faults, faults);
}

fn program() -> Program {
    let devices = PORTS.map(|port| Bridge::device(port, &format!("p{port}")));
    let mut bridge = Bridge::new("br0", devices).expect("ports that can be");
    let flows = format!("udp,tp_dst={CHOSEN},actions=output:{TO}\nactions=output:{OTHER}\n");
    bridge.apply(&flows, "flows", 0).unwrap_or_else(|fault| panic!("{fault}\n{flows}"));
    bridge.program().clone()
}

/// A UDP datagram without checksum.
fn datagram(port: u16) -> PacketBuf {
    let mut frame = b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x08\0".to_vec();
    frame.extend([0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = wire::checksum::checksum(&frame[14..]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend([0x9c, 0x40]);
    frame.extend(port.to_be_bytes());
    frame.extend([0, 26, 0, 0]);
    frame.extend([7; 18]);
    PacketBuf::from_bytes(&frame)
}

/// Sends a datagram to a UDP port, and answers its upcall if it raises one. Returns the ports that
/// it leaves by.
fn exit(bench: &mut Bench, engine: &Engine, port: u16, expected: PortNo) -> Vec<PortNo> {
    let before = bench.lab.snapshot();
    bench.lab.send(FROM, &datagram(port));
    let is_looked_up = |now: &Snapshot| {
        let lookups = now.megaflows.lookups - before.megaflows.lookups;
        (lookups == 1).then_some(()).ok_or(format!("{lookups} looked up, not 1"))
    };
    conforms(eventually(&*bench.lab.datapath, is_looked_up));
    if misses(&bench.lab.snapshot()) > misses(&before) {
        let mut upcalls = bench.lab.upcalls(1);
        engine.handle(&mut upcalls, Instant::now()).expect("the provider runs");
    }
    let left = bench.lab.collect(&BTreeMap::from([(expected, 1)]));
    left.into_iter().filter(|(_, frames)| !frames.is_empty()).map(|(port, _)| port).collect()
}
