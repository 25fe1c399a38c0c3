//! Tests the rate limit of neighbour solicitations that routers send.

use super::compare::Seen;
use super::forwarding::Bench;
use super::lab::Limits;
use super::{PORTS, Provider, conforms};
use crate::frames::{self, FrameKinds};
use crate::random::Random;
use datapath::megaflow::Megaflow;
use datapath::solicit::SolicitLimits;
use flow::{Action, DropReason, Field, Match, PortNo, Reply};
use std::time::Duration;

const FRAMES: usize = 60;
/// The limit of each port during the test.
const LIMITS: SolicitLimits =
    SolicitLimits { again_after: Duration::from_secs(3600), neighbours: 12 };

/// A neighbour is solicited once per interval, no matter which packet is first. The packets of a
/// port cause a limited number of solicitations, independently of other ports. Packets above the
/// limit are counted.
///
/// # Panics
/// When the provider does not conform.
pub fn solicitations_are_limited(provider: Provider<'_>) {
    let [gateway, scanner, twice, to] = PORTS;
    let limits = Limits { solicit: LIMITS, ..Limits::default() };
    let (mut bench, mut random) = (Bench::with(provider, limits), Random::new(7));
    let out = |port| vec![Action::Output(port)];
    let megaflows = vec![
        // All packets go to one next hop, whatever their destination.
        megaflow(gateway, vec![solicit(next_hop(out(to)))]),
        megaflow(scanner, vec![solicit(out(to))]),
        // Solicits the same addresses in two logical switches.
        megaflow(twice, vec![solicit(next_hop(out(to))), solicit(next_hop(out(scanner)))]),
    ];
    bench.reference.megaflows = megaflows.iter().map(|new| (new.clone(), (0, 0))).collect();
    bench.put(megaflows);
    let (kinds, mut seen) = (
        FrameKinds { supers: true, snap: true, malformed: false, max_payload: 1500 },
        Seen::default(),
    );
    for port in [gateway, scanner, twice, scanner, gateway] {
        let sent = (0..FRAMES).map(|_| (port, frames::frame(&mut random, kinds)));
        let sent: Vec<_> = sent.collect();
        assert_eq!(conforms(bench.pass(&sent, &mut seen)).len(), 0);
    }
    let ports = bench.lab.snapshot().ports;
    for reason in [DropReason::NeighbourAsked, DropReason::SolicitLimit] {
        let counts = ports.iter().filter_map(|port| port.drops.get(reason.name()));
        let total: u64 = counts.sum();
        assert!(total > 10, "{} {ports:?}", reason.name());
    }
}

/// A megaflow for all packets received on a port.
fn megaflow(port: PortNo, actions: Vec<Action>) -> Megaflow {
    let mut condition = Match::any();
    assert!(condition.require(Field::InPort, port.0.into(), Field::InPort.all_ones()));
    Megaflow::new(condition, actions.into())
}

/// The action of a router for a packet whose next hop is not resolved yet.
fn solicit(solicitation: Vec<Action>) -> Action {
    Action::Reply { reply: Reply::Arp, actions: solicitation.into() }
}

/// A solicitation that one router sends for another.
fn next_hop(send: Vec<Action>) -> Vec<Action> {
    let set = |field: Field, value| Action::Set { field, value, mask: field.all_ones() };
    let addresses = [(Field::ArpSpa, 0x0a00_0063), (Field::ArpTpa, 0x0a00_0001)];
    let mut list: Vec<Action> = addresses.map(|(field, address)| set(field, address)).into();
    list.push(set(Field::EthSrc, 0x0600_0000_0063));
    // VLAN tags are removed, so that all solicitations are equal.
    list.extend([Action::PopVlan, Action::PopVlan, Action::PopVlan]);
    list.extend(send);
    list
}
