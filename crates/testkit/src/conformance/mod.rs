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
//!   port (the packets of one flow have one), STT's packet identifier (its acknowledgement number), GRE's sequence number (it grows
//!   from packet to packet of a flow), and the checksums over these, which have to be right. One that the tunnel does not ask for
//!   may be there.
//! - **What came out of a tunnel**: after it has been cut, because how much of a train is joined is up to the provider.
//! - **Order**: that of the packets which came in by one port and belong to one flow.
//! - **Counters**: drops by port and reason, packets and bytes of each megaflow, received and sent frames of each port. Not of what
//!   came out of a tunnel as a train.
//!
//! How often routers ask for neighbours ([`Config::solicit`]) is compared where the clock has no part in it; elsewhere nothing limits it.
//! What is not compared: meters (which need a clock), log records, transmit queues, and what a key says about the outer IP header
//! beside addresses and traffic class, because a socket does not tell.
//!
//! # What is tried
//!
//! - [`generated`]: megaflows and actions of every kind, on frames from ports and out of tunnels, over IPv4 and IPv6.
//! - [`programs()`]: programs, with the masks and actions that a `switch` makes of them. What leaves is what the translation of each
//!   frame by itself says. After each round the provider's megaflows are read back:
//!   - Every frame is served by one, and each that serves it has the actions of the frame's own translation, all of which can be told
//!     by the bits of its mask. The frame for which it was made has read no other bits. A bit more is no fault: the megaflow serves
//!     fewer packets then. A bit less is one, whether a frame has met it or not.
//!   - What did not come up was served by a megaflow that was there before: so a lookup that passes over a bit shows as soon as
//!     a frame differs in it. Some frames differ from others in one bit, one that the mask has or one that it has not.
//! - [`puts_and_deletes_take_effect`], [`upcall_queues_are_bounded`], [`solicitations_are_limited`], [`ports_come_and_go`],
//!   [`underlays_change`] and [`watchers_are_told`].
//!
//! # What a provider has to offer
//!
//! Nothing but the trait, in a network namespace that has a device for each port ([`DeviceConfig::Interface`]), all of them veth
//! interfaces with the longest MTU, and an uplink with an IPv4 and an IPv6 address and permanent neighbours. In particular:
//!
//! - [`Provider::start`] makes it, with the ports and end points of the [`Config`] and no megaflow. It may ignore `workers`.
//! - What a guest has left to its device is taken as it is, and handed on: super-packets come and leave whole, and what is owed is
//!   either done or still owed.
//! - A counter may be some seconds behind what it counts, and so may a frame; what one thread asks for is done in
//!   that order. A megaflow is in place when a snapshot returns that was asked for afterwards, and is gone when its deletion returns.
//! - Megaflows are counted by who has them: one may be met several times in a dump, and its counters are added up. A
//!   megaflow that came with an answer may be nowhere but where the answer went.
//! - What its fast path cannot do it hands to a slower one: no action may be missing. What it cannot do at all it says
//!   ([`Provider::lacks`]), and the report of the tests has it, with the reason.
//!
//! # Running it
//!
//! [`conformance_tests!`](crate::conformance_tests) makes a test of each part, so that no provider leaves one out.
//!
//! `WEFT_CASES` says how many generated cases there are; a failure names the seed with which `WEFT_SEED` repeats it.

mod actions;
mod compare;
mod forwarding;
mod lab;
mod lifecycle;
mod links;
mod megaflows;
mod programs;
mod reference;
mod solicitations;
mod sources;
mod tunnels;
mod underlays;
mod watching;

use crate::random::{Random, environment};
use crate::report;
use datapath::Datapath;
#[cfg(doc)]
use datapath::config::DeviceConfig;
use datapath::config::{Config, EndpointConfig};
use flow::{Dscp, EndpointId, Field, PortNo, Ttl, TunnelSpec, TunnelType};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Makes a test of each part of the suite, for a provider with one worker and for the same with several. Both are functions that return
/// a [`Provider`], as modules beside them call them.
///
/// Two parts are for one worker only: they say which of many packets is too late, and several workers receive a port's packets in any order.
#[macro_export]
macro_rules! conformance_tests {
    ($one:path, $several:path) => {
        mod one_worker {
            $crate::conformance_tests! { $one:
                upcalls_are_counted_when_their_ports_queue_is_full: upcall_queues_are_bounded,
                packets_are_counted_when_routers_have_asked_for_their_neighbours: solicitations_are_limited,
            }
            $crate::conformance_tests! { $one }
        }

        mod several_workers {
            $crate::conformance_tests! { $several }
        }
    };
    ($provider:path) => {
        $crate::conformance_tests! { $provider:
            what_leaves_is_what_the_reference_says: generated,
            what_leaves_is_what_programs_say_when_a_switch_makes_the_megaflows: programs,
            puts_and_deletes_take_effect_when_they_return: puts_and_deletes_take_effect,
            ports_are_closed_when_removed_and_open_when_added: ports_come_and_go,
            end_points_that_stay_lose_nothing_when_others_come_and_go: underlays_change,
            watchers_see_frames_and_drops_when_they_happen: watchers_are_told,
        }
    };
    ($provider:path: $($name:ident: $part:ident,)*) => {
        $(#[test]
        fn $name() {
            $crate::require_root!();
            $crate::conformance::$part($provider());
        })*
    };
}

/// Makes a provider, in the network namespace of the calling thread.
pub type Start<'a> = &'a (dyn Fn(Config) -> Arc<dyn Datapath> + Sync);

/// A provider under test.
#[derive(Clone, Copy)]
pub struct Provider<'a> {
    /// Makes it.
    pub start: Start<'a>,
    /// What it cannot do, and why not. That is left out, and printed.
    pub lacks: &'a [(Ability, &'a str)],
}

/// What a provider may lack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ability {
    /// Tunnels of a type.
    Tunnel(TunnelType),
    /// Tunnels over IPv6.
    Ip6Underlay,
    /// A multicast group in the underlay as an end point.
    Group,
    /// An outer checksum of UDP on the packets of super-packets that the device cuts.
    SuperPacketChecksum,
}

impl<'a> Provider<'a> {
    /// One that can do everything.
    pub fn complete(start: Start<'a>) -> Self {
        Self { start, lacks: &[] }
    }

    fn has(&self, ability: Ability) -> bool {
        self.lacks.iter().all(|(lacking, _)| *lacking != ability)
    }

    /// Those of the end points that it can have.
    fn endpoints(&self) -> Vec<EndpointConfig> {
        let can = |endpoint: &EndpointConfig| {
            self.has(Ability::Tunnel(endpoint.spec.tunnel))
                && (endpoint.local.is_ipv4() || self.has(Ability::Ip6Underlay))
                && (!endpoint.remote.is_multicast() || self.has(Ability::Group))
        };
        endpoints().filter(can).collect()
    }

    fn report_lacks(&self, part: &str) {
        for (ability, why) in self.lacks {
            report::lacking(&format!("{part}: {ability:?}"), why);
        }
    }
}

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

/// The end points: one of each type and address family, but no two numbers next to each other; and last a group that the first of
/// them is in, too.
fn endpoints() -> impl Iterator<Item = EndpointConfig> {
    let [local, _] = lab::LOCAL;
    let group = EndpointConfig {
        id: EndpointId(101),
        spec: spec(TunnelType::Vxlan, local),
        local,
        remote: IpAddr::from([239, 1, 2, 3]),
    };
    single_endpoints().chain([group])
}

/// The tunnel types that have end points.
fn endpoint_types() -> impl Iterator<Item = TunnelType> {
    TunnelType::ALL.into_iter().filter(|tunnel| tunnel.has_endpoints())
}

fn single_endpoints() -> impl Iterator<Item = EndpointConfig> {
    let both = endpoint_types().flat_map(|tunnel| lab::LOCAL.map(|local| (tunnel, local)));
    both.zip(0..).map(|((tunnel, local), number)| EndpointConfig {
        id: EndpointId(2 * number),
        spec: spec(tunnel, local),
        local,
        remote: match local {
            IpAddr::V4(_) => IpAddr::from([192, 0, 2, 10 + number as u8]),
            IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 1, number as u16).into(),
        },
    })
}

/// Over the two address families, tunnels differ in what is optional.
fn spec(tunnel: TunnelType, local: IpAddr) -> TunnelSpec {
    let is_v4 = local.is_ipv4();
    TunnelSpec {
        checksum: match tunnel {
            TunnelType::Vxlan | TunnelType::Gre => !is_v4,
            _ => is_v4,
        },
        ttl: if tunnel == TunnelType::Vxlan { Ttl::Inherit } else { Ttl::Fixed(60) },
        dscp: if tunnel == TunnelType::Geneve { Dscp::Fixed(12) } else { Dscp::Inherit },
        sequence: tunnel == TunnelType::Gre && !is_v4,
        path_mtu_bytes: if tunnel == TunnelType::Geneve { 9000 } else { 1500 },
        clamp_mss: tunnel == TunnelType::Gre,
        ..TunnelSpec::new(tunnel, &tunnel.descriptor().default_settings())
    }
}

/// The port by which packets come out of tunnels.
const fn tunnel_port(tunnel: TunnelType) -> PortNo {
    PortNo(0xffff_ff00 + tunnel as u32)
}

/// Runs the whole suite. It needs the privilege to make network namespaces.
///
/// # Panics
/// When the provider does not conform; the message says in which way.
pub fn run(provider: Provider<'_>) {
    generated(provider);
    programs(provider);
    puts_and_deletes_take_effect(provider);
    upcall_queues_are_bounded(provider);
    solicitations_are_limited(provider);
    ports_come_and_go(provider);
    underlays_change(provider);
    watchers_are_told(provider);
}

/// Generated megaflows and traffic, from ports and out of tunnels.
///
/// # Panics
/// See [`run`].
pub fn generated(provider: Provider<'_>) {
    provider.report_lacks("conformance");
    let cases = environment("WEFT_CASES", CASES);
    let first = environment("WEFT_SEED", 1);
    let mut seen = compare::Seen::default();
    // A provider serves several programs, one after another: what is left of one would be found by the next.
    let mut bench = forwarding::Bench::new(provider);
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
pub use programs::programs;
pub use solicitations::solicitations_are_limited;
pub use underlays::underlays_change;
pub use watching::watchers_are_told;

/// What conforms.
fn conforms<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|fault| panic!("{fault}"))
}
