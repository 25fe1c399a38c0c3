//! The cost of setting up, keeping and revalidating megaflows of a large network of logical
//! switches.
//!
//! `cargo bench -p switch`; `-- setup` or `-- keep`, and `-- ports` or `-- pairs`, select a part of
//! it. All times are CPU times of one thread.

#[path = "../tests/fake.rs"]
#[allow(dead_code)]
mod fake;
#[path = "../../lflow/benches/large/mod.rs"]
#[allow(dead_code)]
mod large;

use datapath::provider::Datapath;
use datapath::upcall::{Upcall, UpcallReason, WorkerId};
use fake::Fake;
use flow::{Field, FlowKey, PortNo};
use packet::PacketBuf;
use pipeline::{Program, translate};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use switch::{Config, Engine, Limits};

const MEGAFLOWS: u32 = 100_000;
const BATCH: usize = 64;

/// Returns the key of the packet with a number.
type Keys = fn(u32) -> FlowKey;

const KINDS: [(&str, Keys); 2] = [("ports", by_port), ("pairs", pair)];
const PARTS: [&str; 2] = ["setup", "keep"];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let has = |arg: &str| args.iter().any(|a| a == arg);
    let kinds = KINDS.into_iter().filter(|(name, _)| has(name));
    let parts = PARTS.into_iter().filter(|part| has(part));
    match (&kinds.collect::<Vec<_>>()[..], &parts.collect::<Vec<_>>()[..]) {
        (&[(name, key)], &[part]) => {
            let program = large::load().program();
            if part == "setup" {
                translation(&program, name, key);
                setup(&program, name, key);
            } else {
                keep(&program, name, key);
            }
        }
        _ => each_in_a_process_of_its_own(&has),
    }
}

/// Runs each measurement in a process of its own, because the resident memory of the process shows
/// how much memory the measurement takes. In one process, it would reuse memory that an earlier one
/// has freed.
fn each_in_a_process_of_its_own(has: &impl Fn(&str) -> bool) {
    let is_selected = |what: &str, all: &[&str]| has(what) || !all.iter().any(|other| has(other));
    let names = KINDS.map(|(name, _)| name);
    let program = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
    for name in names.into_iter().filter(|name| is_selected(name, &names)) {
        for part in PARTS.into_iter().filter(|part| is_selected(part, &PARTS)) {
            let ended = std::process::Command::new(&program).args([name, part]).status();
            assert!(ended.is_ok_and(|status| status.success()), "{name} {part}");
        }
    }
}

fn mac(text: &str) -> u128 {
    text.split(':').fold(0, |bits, byte| bits << 8 | u128::from_str_radix(byte, 16).unwrap_or(0))
}

fn packet(switch: u32, (from, to): (u32, u32), ports: (u16, u16)) -> FlowKey {
    let mut key = FlowKey::default();
    let ip = |guest: u32| {
        let text = large::guest_ip4(switch, guest);
        u128::from(text.parse().map_or(0, |address: std::net::Ipv4Addr| address.to_bits()))
    };
    for (field, value) in [
        (Field::InPort, large::guest_port(switch, from).0.into()),
        (Field::EthSrc, mac(&large::guest_mac(switch, from))),
        (Field::EthDst, mac(&large::guest_mac(switch, to))),
        (Field::EthType, 0x0800),
        (Field::Ip4Src, ip(from)),
        (Field::Ip4Dst, ip(to)),
        (Field::IpProto, 6),
        (Field::IpTtl, 64),
        (Field::TpSrc, ports.0.into()),
        (Field::TpDst, ports.1.into()),
    ] {
        key.set(field, value);
    }
    key
}

/// A packet to guest 0 of a switch, whose ACL matches on the port. There are 11,000 pairs of
/// guests, and ten ports for each pair. Each port first differs from the ACL's port in another bit,
/// so its mask has a prefix of another length.
fn by_port(number: u32) -> FlowKey {
    let (pair, port) = (number % 11_000, number / 11_000);
    packet(pair / 11, (1 + pair % 11, 0), (40_000, 22 ^ 1 << port))
}

/// A packet between two guests. Each number is another pair of guests.
fn pair(number: u32) -> FlowKey {
    let (switch, pair) = (number % 1000, number / 1000);
    let (from, to) = (pair / 11 % 12, pair % 11);
    packet(switch, (from, if to < from { to } else { to + 1 }), (40_000, 2000))
}

fn upcall(key: FlowKey) -> Upcall {
    let port = PortNo(key.get(Field::InPort) as u32);
    let packet = PacketBuf::with_capacity(0, 0);
    Upcall {
        packet,
        key,
        port,
        reason: UpcallReason::Miss,
        worker: WorkerId(0),
        raised: Instant::now(),
        recirculated: None,
    }
}

fn engine(fake: &Arc<Fake>, program: &Program) -> Engine {
    let datapath: Arc<dyn Datapath> = Arc::<Fake>::clone(fake);
    let limits = Limits { revalidate: Duration::from_secs(60), ..Limits::default() };
    Engine::new(datapath, program.clone(), &Config { limits, ..Config::default() })
}

fn fill(engine: &Engine, key: Keys) -> Duration {
    let mut took = Duration::ZERO;
    let mut upcalls = Vec::with_capacity(BATCH);
    let now = Instant::now();
    for number in 0..MEGAFLOWS {
        upcalls.push(upcall(key(number)));
        if upcalls.len() == BATCH || number + 1 == MEGAFLOWS {
            let begin = busy();
            engine.handle(&mut upcalls, now).unwrap_or_else(|error| panic!("{error}"));
            took += busy() - begin;
        }
    }
    took
}

/// Measures the translation alone.
fn translation(program: &Program, name: &str, key: Keys) {
    let keys: Vec<FlowKey> = (0..MEGAFLOWS).map(key).collect();
    let begin = busy();
    for key in &keys {
        black_box(translate(program, black_box(key), &(), &mut ()));
    }
    let took = busy() - begin;
    println!("{name}: {} ns each to translate", took.as_nanos() / u128::from(MEGAFLOWS));
}

/// Measures the handler alone: the datapath takes the answers and does nothing.
fn setup(program: &Program, name: &str, key: Keys) {
    let fake = Fake::new(0);
    let engine = engine(&fake, program);
    let before = resident_bytes();
    let took = fill(&engine, key);
    let stats = engine.stats();
    let each = (resident_bytes() - before) / stats.megaflows.max(1);
    println!(
        "{name}: {} set up with {} origins, {} ns each, {each} bytes each in the switch",
        stats.megaflows,
        stats.origins,
        took.as_nanos() / u128::from(MEGAFLOWS),
    );
}

/// Measures sweeps and revalidations, with the cache of the user datapath.
fn keep(program: &Program, name: &str, key: Keys) {
    let fake = Fake::new(1);
    let engine = engine(&fake, program);
    let before = resident_bytes();
    fill(&engine, key);
    let megaflows = engine.stats().megaflows;
    println!("{name}: {} bytes each with the cache", (resident_bytes() - before) / megaflows);
    let timed = |what: &str, run: &dyn Fn()| {
        let begin = busy();
        run();
        println!("{name}: {megaflows} {what} in {:?}", busy() - begin);
    };
    let sweep = || engine.sweep(Instant::now()).unwrap_or_else(|error| panic!("{error}"));
    timed("swept", &sweep);
    for number in 0..MEGAFLOWS {
        fake.caches[0].lock().expect("a cache").look_up(&key(number), 100, 2000);
    }
    timed("swept, all of them hit,", &sweep);
    engine.publish(program.clone());
    timed("translated again", &|| {
        engine.revalidate().unwrap_or_else(|error| panic!("{error}"));
    });
    let stats = engine.stats();
    println!("{name}: {} deleted of {}", stats.deleted, stats.revalidated);
    fake.now_ms.fetch_add(60_000, Ordering::Relaxed);
    timed("deleted", &sweep);
}

/// The CPU time of this thread, which other load on the machine hardly changes.
fn busy() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

/// The resident memory of this process.
fn resident_bytes() -> u64 {
    const PAGE: u64 = 4096;
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE
}
