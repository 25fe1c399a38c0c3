//! The conformance suite of datapaths: whatever moves the packets, what leaves is what the reference executor says.
//!
//! [`run`] starts a provider between veth pairs whose other ends the suite holds. It sends generated frames in, super-packets and
//! malformed ones among them, and takes what comes out with its virtio-net header, so that it sees which frames are whole and what is
//! still owed to them. Beside the provider runs the reference: a list of megaflows, and [`flow::execute()`].
//!
//! # What is equal
//!
//! - **A frame**: byte for byte, after a checksum that is still owed has been computed, on both sides.
//! - **A super-packet** that leaves by a port, or as one of STT: byte for byte with the headers as they are, the kind of segments
//!   and their size. One that leaves in another tunnel is compared after it has been cut, packet by packet, because there it is
//!   the sender that cuts.
//! - **An outer packet**: byte for byte but for what no two senders have in common: the identification of IPv4, the outer source
//!   port (the packets of one flow have one), STT's packet identifier (its acknowledgement number), and the checksums over these,
//!   which have to be right.
//! - **What came out of a tunnel**: after it has been cut, because how much of a train is joined is up to the provider.
//! - **Order**: that of the packets which came in by one port and belong to one flow.
//! - **Counters**: drops by port and reason, packets and bytes of each megaflow, received and sent frames of each port. Not of what
//!   came out of a tunnel as a train.
//!
//! What is not compared: meters (which need a clock), log records, transmit queues, and what a key says about the outer IP header
//! beside addresses and traffic class, because a socket does not tell.
//!
//! # Running it
//!
//! `WEFT_CASES` says how many generated programs there are; a failure names the seed with which `WEFT_SEED` repeats it.

mod actions;
mod compare;
mod forwarding;
mod lab;
mod lifecycle;
mod links;
mod reference;
mod tunnels;

use crate::random::{Random, environment};
use datapath::Datapath;
use datapath::user::Config;
use flow::{Dscp, EndpointId, Field, PortNo, Ttl, TunnelSpec, TunnelType};
use std::net::IpAddr;
use std::sync::Arc;

/// Makes the provider, in the network namespace of the calling thread.
pub type Start<'a> = &'a (dyn Fn(Config) -> Arc<dyn Datapath> + Sync);

/// The uplink, where frames come and go with tags.
const UPLINK: PortNo = PortNo(0);
/// The ports that have wires.
const PORTS: [PortNo; 4] = [PortNo(1), PortNo(2), PortNo(3), PortNo(4)];
/// The first outer source port.
const BASE: u16 = 49_152;
/// What a key says of the outer IP header, and a socket does not tell.
const UNTOLD: [Field; 2] = [Field::TunTtl, Field::TunFlags];
/// Programs that are tried unless `WEFT_CASES` says otherwise.
const CASES: u64 = 200;

/// The end points: one of each type, but no two numbers next to each other.
fn endpoints() -> impl Iterator<Item = (EndpointId, TunnelSpec, IpAddr)> {
    let types = [TunnelType::Vxlan, TunnelType::Geneve, TunnelType::Gre, TunnelType::Stt];
    types.into_iter().enumerate().map(|(number, tunnel)| {
        let spec = TunnelSpec {
            tunnel,
            port: match tunnel {
                TunnelType::Vxlan => 4789,
                TunnelType::Geneve => 6081,
                _ => 7471,
            },
            checksum: true,
            ttl: if tunnel == TunnelType::Vxlan { Ttl::Inherit } else { Ttl::Fixed(60) },
            dscp: if tunnel == TunnelType::Geneve { Dscp::Fixed(12) } else { Dscp::Inherit },
            key: true,
            // Frames of several ports are numbered in an order that nobody has promised.
            sequence: false,
            path_mtu_bytes: if tunnel == TunnelType::Geneve { 9000 } else { 1500 },
            clamp_mss: tunnel == TunnelType::Gre,
        };
        let remote = IpAddr::from([192, 0, 2, 10 + number as u8]);
        (EndpointId(2 * number as u32), spec, remote)
    })
}

/// The port by which packets come out of tunnels.
const fn tunnel_port(tunnel: TunnelType) -> PortNo {
    PortNo(0xffff_ff00 + tunnel as u32)
}

/// Runs the whole suite. It needs the privilege to make network namespaces.
///
/// # Panics
/// When the provider does not conform; the message says in which way.
pub fn run(start: Start<'_>) {
    generated(start);
    puts_and_deletes_take_effect(start);
    upcall_queues_are_bounded(start);
    ports_come_and_go(start);
}

/// Generated megaflows and traffic, from ports and out of tunnels.
///
/// # Panics
/// See [`run`].
pub fn generated(start: Start<'_>) {
    let cases = environment("WEFT_CASES", CASES);
    let first = environment("WEFT_SEED", 1);
    let mut seen = compare::Seen::default();
    // A provider serves several programs, one after another: what is left of one would be found by the next.
    let mut bench = forwarding::Bench::new(start);
    for seed in first..first + cases {
        let mut random = Random::new(seed);
        let fault = forwarding::check(&mut bench, &mut random, &mut seen)
            .and_then(|()| tunnels::check(&mut bench, &mut random, &mut seen));
        if let Err(fault) = fault {
            panic!("WEFT_SEED={seed} WEFT_CASES=1: {fault}");
        }
    }
    if cases >= CASES {
        seen.assert_not_trivial();
    }
}

pub use lifecycle::{ports_come_and_go, puts_and_deletes_take_effect, upcall_queues_are_bounded};
