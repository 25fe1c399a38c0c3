//! The cost of tracking a packet in tables of 1 to 1,000,000 connections, of a new connection, and
//! of expiry; and the memory of a connection.
//!
//! `WEFT_CT_MEMORY=1` measures only the memory, because the other measurements use memory too.
//! `WEFT_CT_COUNT=N` only tracks 1000 packets in a table of N connections, so that callgrind can
//! count the instructions of the function `counted`.

use std::fs;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use conntrack::{Commit, Config, Headers, Nat, NatSpec, Seed, Table, Zone};
use criterion::{BatchSize, Criterion, criterion_group};
use flow::PortNo;
use packet::PacketBuf;
use wire::TcpFlags;
use wire::checksum::checksum;

const MILLION: u32 = 1_000_000;
/// The connections that the tracked packets belong to, evenly spread over the table.
const KEYS: u32 = 1000;

/// A TCP segment of connection `number`, or of its reply.
fn segment(number: u32, reply: bool, flags: TcpFlags) -> Headers {
    let client = Ipv4Addr::from_bits(0x0a00_0000 + number / 50_000);
    let server = Ipv4Addr::new(192, 168, 0, 1);
    let (client_port, server_port) = (10_000 + (number % 50_000) as u16, 443_u16);
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    let (src, dst) = if reply { (server, client) } else { (client, server) };
    frame.extend(src.octets());
    frame.extend(dst.octets());
    let sum = checksum(&frame[14..34]).to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
    let ports = if reply { [server_port, client_port] } else { [client_port, server_port] };
    frame.extend(ports.map(u16::to_be_bytes).concat());
    let (seq, ack) = match (reply, flags.contains(TcpFlags::SYN)) {
        (false, true) => (0, 0),
        (true, true) => (0, 1),
        _ => (1_u32, 1_u32),
    };
    frame.extend(seq.to_be_bytes());
    frame.extend(ack.to_be_bytes());
    frame.extend([0x50, flags.0, 0xff, 0xff, 0, 0, 0, 0]);
    Headers::parse(&PacketBuf::from_bytes(&frame)).expect("the packet is IP")
}

/// A table with established connections, with source NAT if `nat`.
fn table(connections: u32, nat: bool) -> Table {
    let mut table = Table::new(Config::default(), Seed([1, 2, 3, 4]), 0);
    for number in 0..connections {
        open(&mut table, number, nat);
    }
    table
}

fn open(table: &mut Table, number: u32, nat: bool) {
    let zone = Zone(1);
    let address = IpAddr::from(Ipv4Addr::from_bits(0xcb00_7100 + number / 50_000));
    let commit = Commit { nat: nat.then(|| NatSpec::source(address)), ..Commit::default() };
    let syn = segment(number, false, TcpFlags::SYN);
    let tracked = table.track(0, zone, &syn, Nat::Apply);
    table.commit(0, &tracked, &syn, PortNo(1), &commit).expect("there is room");
    if !nat {
        table.track(0, zone, &segment(number, true, TcpFlags::SYN | TcpFlags::ACK), Nat::Apply);
        table.track(0, zone, &segment(number, false, TcpFlags::ACK), Nat::Apply);
    }
}

fn track(c: &mut Criterion) {
    let mut group = c.benchmark_group("track");
    for connections in [1, 1000, 100_000, MILLION] {
        let mut table = table(connections, false);
        let packets = packets(connections);
        let mut next = 0;
        group.bench_function(format!("{connections} connections"), |b| {
            b.iter(|| {
                next = (next + 1) % packets.len();
                black_box(table.track(1, Zone(1), black_box(&packets[next]), Nat::Apply))
            });
        });
    }
    group.finish();
}

fn commit(c: &mut Criterion) {
    let syn = segment(900_000, false, TcpFlags::SYN);
    let mut table = table(100_000, false);
    c.bench_function("new connection", |b| {
        b.iter(|| {
            let tracked = table.track(1, Zone(1), &syn, Nat::Apply);
            let committed = table.commit(1, &tracked, &syn, PortNo(1), &Commit::default());
            let connection = committed.expect("there is room").connection;
            table.remove_connection(connection.expect("it was committed"))
        });
    });
}

fn expire(c: &mut Criterion) {
    let mut group = c.benchmark_group("expire");
    group.sample_size(10);
    group.bench_function("100,000 connections at once", |b| {
        b.iter_batched_ref(
            || table(100_000, false),
            |table| table.expire(u64::from(u32::MAX) * 1000, u32::MAX),
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

/// Established packets of [`KEYS`] connections, evenly spread over a table of `connections`.
fn packets(connections: u32) -> Vec<Headers> {
    let step = (connections / KEYS).max(1);
    (0..KEYS).map(|key| segment(key * step % connections, false, TcpFlags::ACK)).collect()
}

#[inline(never)]
fn counted(table: &mut Table, packets: &[Headers]) -> u32 {
    packets.iter().map(|packet| table.track(1, Zone(1), packet, Nat::Apply).mark).sum()
}

/// The resident memory of this process in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has VmRSS");
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number");
    kib * 1024
}

fn memory() {
    for (name, nat) in [("without NAT", false), ("with source NAT", true)] {
        let before = resident();
        let table = table(MILLION, nat);
        let bytes = resident() - before;
        let each = bytes / u64::from(table.len());
        println!("memory of {} connections {name}: {bytes} bytes, {each} each", table.len());
    }
}

criterion_group!(benches, track, commit, expire);

fn main() {
    if std::env::var_os("WEFT_CT_MEMORY").is_some() {
        return memory();
    }
    if let Ok(connections) = std::env::var("WEFT_CT_COUNT") {
        let connections = connections.parse().expect("a number of connections");
        let mut table = table(connections, false);
        black_box(counted(&mut table, &packets(connections)));
        return;
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
