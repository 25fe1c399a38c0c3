//! Tests of the switch with a datapath in memory.

mod adopting;
mod counting;
mod enforcing;
mod fake;
mod guests;
mod learning;
mod limits;
mod model;
mod publishing;
mod races;
mod self_check;
mod threads;

use datapath::provider::Datapath;
use fake::Fake;
use flow::PortNo;
use ofctl::Bridge;
use pipeline::Program;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use switch::{Config, Engine};

/// An engine, its datapath, and their common clock.
struct Rig {
    fake: Arc<Fake>,
    engine: Arc<Engine>,
    start: Instant,
}

impl Rig {
    fn new(program: Program, config: &Config) -> Self {
        Self::with_workers(1, program, config)
    }

    fn with_workers(workers: usize, program: Program, config: &Config) -> Self {
        let fake = Fake::new(workers);
        let datapath: Arc<dyn Datapath> = Arc::<Fake>::clone(&fake);
        let engine = Arc::new(Engine::new(datapath, program, config));
        Self { fake, engine, start: Instant::now() }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.fake.now_ms.load(Ordering::Relaxed))
    }

    fn wait(&self, ms: u64) {
        self.fake.now_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// Receives a packet at worker 0. Returns its output ports, and true if it caused an upcall.
    fn send(&self, port: u32, frame: &[u8]) -> (Vec<u32>, bool) {
        self.send_at(0, port, frame)
    }

    fn send_at(&self, worker: u16, port: u32, frame: &[u8]) -> (Vec<u32>, bool) {
        match self.fake.receive(worker, port, frame) {
            Some(ports) => (ports, false),
            None => (self.answer(), true),
        }
    }

    /// Handles all pending upcalls as one batch. Returns the output ports.
    fn answer(&self) -> Vec<u32> {
        self.engine.handle(&mut self.fake.take_upcalls(), self.now()).unwrap();
        self.fake.take_sent()
    }

    fn sweep(&self) {
        self.engine.sweep(self.now()).unwrap();
    }
}

/// A bridge with the ports 1 to 4.
fn bridge(flows: &str) -> Bridge {
    let ports = (1..=4).map(|number| Bridge::device(PortNo(number), &format!("p{number}")));
    let mut bridge = Bridge::new("br0", ports).unwrap();
    bridge.apply(flows, "flows.txt", 0).unwrap_or_else(|error| panic!("{error}"));
    bridge
}

fn program(flows: &str) -> Program {
    bridge(flows).program().clone()
}

/// A UDP packet over IPv4 between two stations whose MAC addresses end in these numbers.
fn udp(from: u8, to: u8, ports: (u16, u16)) -> Vec<u8> {
    ipv4((from, to), [10, 0, 0, from], [10, 0, 0, to], ports)
}

fn ipv4(macs: (u8, u8), from: [u8; 4], to: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, macs.1, 2, 0, 0, 0, 0, macs.0, 8, 0];
    frame.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend(from);
    frame.extend(to);
    frame.extend(ports.0.to_be_bytes());
    frame.extend(ports.1.to_be_bytes());
    frame.extend([0, 8, 0, 0]);
    frame
}
