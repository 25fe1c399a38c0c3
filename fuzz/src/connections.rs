//! Target: tracks the frames of a list in one table, with source NAT, and translates them. The
//! reversed tuple of a translated packet must be that of the connection's other direction.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use conntrack::{
    Commit, Config, Direction, Headers, Limits, Nat, NatSpec, Seed, State, Table, Tracked, Zone,
};
use flow::PortNo;
use packet::PacketBuf;

use crate::lists;

/// The IPv4 address after source NAT.
pub const NAT_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
/// The IPv6 address after source NAT.
pub const NAT_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);

const ZONE: Zone = Zone(1);

/// Tracks all frames of a list. Returns the number of frames that belong to a connection or open
/// one.
pub fn list(bytes: &[u8]) -> usize {
    let limits = Limits { connections: 16, per_zone: 8, ..Limits::default() };
    let mut table = Table::new(Config { limits, ..Config::default() }, Seed([1, 2, 3, 4]), 0);
    let mut tracked = 0;
    for (at, frame) in lists::read(bytes).into_iter().enumerate() {
        let now_ms = 1000 * at as u64;
        let mut packet = PacketBuf::from_bytes(frame);
        let Some(headers) = Headers::parse(&packet) else { continue };
        let result = pass(&mut table, now_ms, &headers);
        if let Some(translation) = result.translation {
            translation.apply(&mut packet).expect("the packet is whole");
            assert_translated(&table, &headers, &result, &packet);
        }
        tracked += usize::from(!result.state.contains(State::INV));
        table.expire(now_ms, 3);
        assert_eq!(table.len() as usize, table.iter().count());
    }
    tracked
}

fn pass(table: &mut Table, now_ms: u64, headers: &Headers) -> Tracked {
    let tracked = table.track(now_ms, ZONE, headers, Nat::Apply);
    let Some(tuple) = headers.tuple().filter(|_| tracked.state.contains(State::NEW)) else {
        return tracked;
    };
    let address: IpAddr = if tuple.is_v4() { NAT_V4.into() } else { NAT_V6.into() };
    let commit = Commit { nat: Some(NatSpec::source(address)), ..Commit::default() };
    table.commit(now_ms, &tracked, headers, PortNo(1), &commit).unwrap_or(tracked)
}

/// Checks the tuple of a translated packet. ICMP errors are skipped, because their tuple is that of
/// the quoted packet.
fn assert_translated(table: &Table, before: &Headers, result: &Tracked, after: &PacketBuf) {
    if before.tuple().is_none() {
        return;
    }
    let Some(connection) = result.connection.and_then(|c| table.connection(c.id)) else { return };
    let seen = Headers::parse(after).and_then(|headers| headers.tuple());
    let seen = seen.expect("a translated packet is as valid as before");
    let expected = match result.direction() {
        Direction::Original => connection.reply,
        Direction::Reply => connection.original,
    };
    assert_eq!(seen.reversed(), Some(expected));
}
