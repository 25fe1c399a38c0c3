//! Tests senders that need short segments: for a peer with a small MSS, for a path with a small
//! MTU, and for UDP super-packets with datagrams of any length. The limits on super-packets must
//! not affect them.

use crate::common::{Daemon, Datapath, Guest, Lab, PATIENCE, Setup, traffic};
use datapath::stats::Drops;
use netdev::udp::{TxOptions, TxPool, TxUdpBatch, UdpOptions, UdpUnderlay};
use packet::PacketBuf;
use std::io::IoSlice;
use std::net::SocketAddr;
use testkit::host::wait_until;
use testkit::{require_program, require_root};

const MEGABYTE: usize = 1 << 20;

/// A lab with two guests that have exchanged packets, and a third guest on the host of the first.
fn lab(tunnel: &str, datapath: Datapath) -> (Lab, [Daemon; 2]) {
    let lab = Lab::new(Setup::new(tunnel).guests(2, 1).datapath(datapath));
    let daemons = lab.start_both();
    for to in [1, 2] {
        for family in [4, 6] {
            traffic::ping(&lab.guests[0].netns, lab.guests[to].ip(family));
        }
    }
    (lab, daemons)
}

fn drops(daemons: &[Daemon; 2]) -> [Drops; 2] {
    [daemons[0].drops(), daemons[1].drops()]
}

/// Changes the metrics of a guest's route to the others, in the syntax of `ip route`.
fn change_route(guest: &Guest, metrics: &[&str]) {
    let mut command = guest.netns.program("ip");
    command.args(["route", "change", "192.168.7.0/24", "dev", "eth0"]).args(metrics);
    let output = command.output().expect("ip can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn tcp_loses_nothing_when_its_segments_have_500_bytes_or_more() {
    require_root!();
    require_program!("ip", "iproute2");
    for datapath in Datapath::BOTH {
        let (lab, daemons) = lab("vxlan", datapath);
        let [from, near, far] = &lab.guests[..] else { panic!("there are three guests") };
        let before = drops(&daemons);
        for to in [near, far] {
            change_route(to, &["advmss", "536"]);
            traffic::tcp(from, to, 4, 8 * MEGABYTE);
            change_route(to, &["advmss", "1460"]);
        }
        // 552 is the lowest path MTU that Linux accepts. Segments for this MTU, with timestamps, do
        // not count as short.
        for mtu in ["576", "552"] {
            change_route(from, &["mtu", "lock", mtu]);
            for to in [near, far] {
                traffic::tcp(from, to, 4, 8 * MEGABYTE);
            }
        }
        assert_eq!(drops(&daemons), before, "{datapath:?}");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// The rate of such short segments is limited, so some super-packets are dropped. TCP retransmits
/// them.
#[test]
fn tcp_is_only_slowed_when_its_segments_have_88_or_48_bytes() {
    require_root!();
    require_program!("ip", "iproute2");
    for datapath in Datapath::BOTH {
        let (lab, daemons) = lab("vxlan", datapath);
        let [from, near, far] = &lab.guests[..] else { panic!("there are three guests") };
        let [mut before, far_before] = drops(&daemons);
        for to in [near, far] {
            // 88 is the smallest MSS that an application can request, 48 the smallest one that
            // Linux accepts.
            for (mss, len) in [("88", 4 * MEGABYTE), ("48", MEGABYTE)] {
                change_route(to, &["advmss", mss]);
                traffic::tcp(from, to, 4, len);
            }
        }
        let [mut after, far_after] = drops(&daemons);
        let limited = after.remove("segment_limit");
        println!("{datapath:?}: {limited:?} super-packets were dropped");
        before.remove("segment_limit");
        assert_eq!([after, far_after], [before, far_before], "{datapath:?}");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

/// Sends datagrams as a UDP super-packet, and waits until all of them have arrived.
fn udp_train(from: &TxPool, to: &UdpUnderlay, dst: SocketAddr, size: u16, count: usize) {
    let bytes = traffic::noise(usize::from(size) * count, 3);
    let train = TxUdpBatch { dst, entropy: 0, tos: 0, ttl: None, gso_size: Some(size) };
    assert_eq!(
        from.send(&train, &[IoSlice::new(&bytes)]).expect("a UDP batch is sent"),
        bytes.len()
    );
    let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
    let mut received = Vec::new();
    wait_until(PATIENCE, &format!("{count} datagrams of {size} bytes at {dst}"), || {
        loop {
            packet.reset(PacketBuf::HEADROOM);
            match to.recv(&mut packet).expect("a socket can be read") {
                Some(_) => received.extend(packet.to_vec()),
                None => return received.len() >= bytes.len(),
            }
        }
    });
    assert!(received == bytes, "{count} datagrams of {size} bytes arrive in order");
}

/// QUIC sends datagrams of 1,200 to 1,400 bytes in this way, and other protocols send shorter ones.
/// The receiver need not support merged datagrams (`UDP_GRO`).
#[test]
fn datagrams_of_any_length_arrive_when_they_are_sent_as_super_packets() {
    require_root!();
    for (datapath, tunnel) in Datapath::BOTH
        .into_iter()
        .flat_map(|datapath| ["vxlan", "geneve", "gre", "vlan"].map(|tunnel| (datapath, tunnel)))
    {
        let (lab, daemons) = lab(tunnel, datapath);
        let [from, near, far] = &lab.guests[..] else { panic!("there are three guests") };
        let before = drops(&daemons);
        for family in [4, 6] {
            let options = TxOptions { count: 1, ..TxOptions::default() };
            let local = from.ip(family);
            let pool = from.netns.run(|| TxPool::new(local, options)).expect("a sender");
            for (to, gro) in [(near, false), (far, false), (near, true), (far, true)] {
                println!("{datapath:?}, {tunnel}, IPv{family}, to {}, {gro}", to.name);
                // A process that another test starts may hold a copy of the previous socket for a
                // moment, so the port alternates.
                let dst = SocketAddr::new(to.ip(family), 4433 + u16::from(gro));
                let options = UdpOptions { gro, ..UdpOptions::default() };
                let socket = to.netns.run(|| UdpUnderlay::bind(dst, options)).expect("a receiver");
                for size in [1, 20, 36, 100, 499, 500, 1200] {
                    let most = pool.max_segments().min(60_000 / usize::from(size));
                    for count in [1, 2, most] {
                        udp_train(&pool, &socket, dst, size, count);
                    }
                }
            }
        }
        assert_eq!(drops(&daemons), before, "{datapath:?}, {tunnel}");
        daemons.into_iter().for_each(Daemon::stop);
    }
}
