//! The cost of saving connections: opening and removing a connection with and without a file, and
//! restoring 200,000 connections with source NAT. The files are in /dev/shm, which is a tmpfs as
//! /run is.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use conntrack::{Commit, Config, Headers, Nat, NatSpec, Seed, Table, Zone};
use criterion::{Criterion, criterion_group, criterion_main};
use datapath::saved_connections::{ConnectionFile, Restored, SavedState};
use flow::PortNo;
use packet::PacketBuf;
use wire::checksum::checksum;

const RESTORED: u32 = 200_000;
const PORTS: u32 = 50_000;

fn path(name: &str) -> PathBuf {
    Path::new("/dev/shm").join(format!("weft-{name}-{}", std::process::id()))
}

fn nat_address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0xcb00_7100 + number / PORTS)
}

/// A datagram of connection `number`, or its reply to the translated source.
fn datagram(number: u32, is_reply: bool) -> Headers {
    let client = Ipv4Addr::from_bits(0x0a00_0000 + number / PORTS);
    let server = Ipv4Addr::new(192, 168, 0, 1);
    let (port, server_port) = (10_000 + (number % PORTS) as u16, 53_u16);
    let (ends, ports) = match is_reply {
        false => ([client, server], [port, server_port]),
        true => ([server, nat_address(number)], [server_port, port]),
    };
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(ends.map(|end| end.octets()).concat());
    let sum = checksum(&frame[14..34]).to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
    frame.extend(ports.map(u16::to_be_bytes).concat());
    frame.extend([0, 8, 0, 0]);
    Headers::parse(&PacketBuf::from_bytes(&frame)).expect("the packet is IP")
}

/// Opens and answers a connection with source NAT.
fn open(table: &mut Table, number: u32, [first, reply]: &[Headers; 2]) {
    let nat = Some(NatSpec::source(IpAddr::from(nat_address(number))));
    let commit = Commit { nat, ..Commit::default() };
    let tracked = table.track(1, Zone(1), first, Nat::Apply);
    table.commit(1, &tracked, first, PortNo(1), &commit).expect("there is room");
    table.track(1, Zone(1), reply, Nat::Apply);
}

fn new_table(file: Option<&ConnectionFile>) -> Table {
    let mut table = Table::new(Config::default(), Seed([1, 2, 3, 4]), 0);
    if let Some(file) = file {
        table.save_in(Box::new(file.clone()));
    }
    table
}

fn opened(c: &mut Criterion) {
    let path = path("opened");
    let file = ConnectionFile::create(&path, 1000, None).expect("/dev/shm has room");
    let packets = [datagram(0, false), datagram(0, true)];
    for (name, file) in [("not saved", None), ("saved", Some(&file))] {
        let mut table = new_table(file);
        c.bench_function(&format!("open, answer and remove, {name}"), |b| {
            b.iter(|| {
                open(&mut table, 0, black_box(&packets));
                let connection = table.iter().next().expect("it was opened");
                table.remove_connection(connection.reference)
            });
        });
    }
    std::fs::remove_file(path).expect("the file is there");
}

fn restored(c: &mut Criterion) {
    let (before, after) = (path("before"), path("after"));
    let file = ConnectionFile::create(&before, RESTORED, None).expect("/dev/shm has room");
    let mut table = new_table(Some(&file));
    for number in 0..RESTORED {
        open(&mut table, number, &[datagram(number, false), datagram(number, true)]);
    }
    assert_eq!((table.len(), file.failures()), (RESTORED, 0));
    let mut group = c.benchmark_group("restore");
    group.sample_size(10);
    group.bench_function(format!("{RESTORED} connections"), |b| {
        b.iter(|| {
            let earlier = SavedState::read(&before).expect("it can be read").expect("it is there");
            let _ = std::fs::remove_file(&after);
            let file = ConnectionFile::create(&after, RESTORED, None).expect("/dev/shm has room");
            let records = earlier.records.into_iter().map(|record| (record, record.opener()));
            let (restored, lost) =
                Restored::new(Some(file), &Config::default(), records, Duration::ZERO);
            assert_eq!((restored.len(), lost.len()), (RESTORED, 0));
        });
    });
    group.finish();
    [before, after].iter().for_each(|path| std::fs::remove_file(path).expect("it is there"));
}

criterion_group!(benches, opened, restored);
criterion_main!(benches);
