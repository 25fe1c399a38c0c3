//! The conformance suite of datapaths. A *provider* is an implementation of the trait [`Datapath`].
//! It must send what the reference executor sends.
//!
//! [`run`] starts a provider between veth pairs whose other ends belong to the suite. The suite
//! sends generated frames, including super-packets and malformed frames. It receives the output
//! with virtio-net headers, so that it sees super-packets and partial checksums
//! (`CHECKSUM_PARTIAL`). The reference is a list of megaflows and [`flow::execute()`].
//!
//! # What is compared
//!
//! - **A frame**: byte for byte, after completing partial checksums on both sides.
//! - **A super-packet** sent on a port, or in STT: byte for byte without segmentation, including
//!   GSO type and segment size. In other tunnels it is compared after segmentation, because the
//!   sender segments there.
//! - **An outer packet**: byte for byte, except for fields that senders choose: IPv4
//!   identification, outer source port (equal for all packets of a flow), STT packet identifier
//!   (acknowledgement number), GRE sequence number (increasing within a flow). Checksums over these
//!   must be correct. A checksum that the tunnel does not require may be present.
//! - **A decapsulated packet**: after segmentation, because the provider chooses how much to
//!   coalesce.
//! - **Order**: within the packets of one flow from one ingress port.
//! - **Counters**: drops by port and reason; packets and bytes of each megaflow; received and sent
//!   frames of each port. Counters are not compared for the segments of a decapsulated
//!   super-packet: the provider chooses into how many frames it coalesces them.
//!
//! The limits on neighbour solicitations ([`Config::solicit`]) apply only in
//! [`solicitations_are_limited`], whose result does not depend on the clock. The suite does not
//! compare meters (which need a clock), log records, transmit queues, and most fields of the outer
//! IP header in the key. A socket reports only the addresses and the traffic class of that header.
//!
//! # Parts
//!
//! - [`generated`]: megaflows and actions of every kind, on frames received from ports and tunnels,
//!   over IPv4 and IPv6.
//! - [`programs()`]: pipeline programs (tables of rules), with the masks and actions to which a
//!   `switch` translates them. Each frame must get the actions that translating it separately
//!   gives. After each round the provider's megaflows are read back:
//!   - A megaflow must match every frame. Each megaflow that matches a frame must have the actions
//!     that translating this frame separately gives, and these may depend only on bits of the mask.
//!     The mask must contain all bits that the translation of the original frame read. Additional
//!     bits are no error: the megaflow just matches fewer packets. A missing bit is an error, even
//!     if no frame has differed in it yet.
//!   - A packet without upcall must match a megaflow that existed before. So a lookup that ignores
//!     a bit is detected as soon as a frame differs in this bit. Some frames differ from others in
//!     one bit, inside or outside of the mask.
//! - [`puts_and_deletes_take_effect`], [`withdrawn_megaflows_execute_nothing`],
//!   [`upcall_queues_are_bounded`], [`solicitations_are_limited`], [`ports_come_and_go`],
//!   [`underlays_change`], [`watchers_receive_frames_and_drops`] and
//!   [`planted_megaflows_are_found`].
//!
//! # Requirements on a provider
//!
//! The provider runs in a network namespace with a device for each port
//! ([`DeviceConfig::Interface`]). The devices are veth interfaces with the largest MTU. The uplink
//! has an IPv4 and an IPv6 address and permanent neighbours. In particular:
//!
//! - [`Provider::start`] creates the provider with the ports and end points of the [`Config`], and
//!   without megaflows. It may ignore `workers`.
//! - It accepts the offload state of guests' frames and passes it on: super-packets stay whole, and
//!   partial checksums are completed or stay partial.
//! - Counters and frames may lag some seconds behind, but requests of one thread are executed in
//!   order. A megaflow is installed when a later snapshot returns, and gone when its deletion
//!   returns.
//! - Each thread may count its megaflows separately: a dump may list a megaflow several times, and
//!   the suite adds up its counters. A megaflow in the response to an upcall may exist only in the
//!   thread that received the response.
//! - It executes all actions. A slower path executes those that its fast path does not support.
//!   Features that it does not support at all are declared in [`Provider::lacks`], and reported
//!   with the reason.
//!
//! # Running it
//!
//! [`conformance_tests!`](crate::conformance_tests) defines a test for each part, so that no
//! provider omits one.
//!
//! `WEFT_CASES` sets the number of generated cases. A failure names the seed; `WEFT_SEED` repeats
//! it.

mod actions;
mod compare;
mod forwarding;
mod lab;
mod lifecycle;
mod links;
mod megaflows;
mod order;
mod planted;
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

/// Defines a test for each part of the suite, for a provider with one worker and with several. The
/// arguments are functions that return a [`Provider`].
///
/// Three parts run with one worker only. Two check which of many packets is too late, but several
/// workers receive a port's packets in any order. One is about copies of one worker.
#[macro_export]
macro_rules! conformance_tests {
    ($one:path, $several:path) => {
        mod one_worker {
            $crate::conformance_tests! { $one:
                upcalls_are_counted_when_their_ports_queue_is_full: upcall_queues_are_bounded,
                packets_are_counted_when_solicitations_are_limited: solicitations_are_limited,
                wrong_megaflows_are_found_when_planted: planted_megaflows_are_found,
            }
            $crate::conformance_tests! { $one }
        }

        mod several_workers {
            $crate::conformance_tests! { $several }
        }
    };
    ($provider:path) => {
        $crate::conformance_tests! { $provider:
            output_agrees_with_the_reference_when_megaflows_are_generated: generated,
            output_agrees_with_programs_when_a_switch_makes_the_megaflows: programs,
            puts_and_deletes_take_effect_when_they_return: puts_and_deletes_take_effect,
            megaflows_execute_nothing_when_withdrawn: withdrawn_megaflows_execute_nothing,
            ports_are_closed_when_removed_and_open_when_added: ports_come_and_go,
            end_points_that_stay_lose_nothing_when_others_come_and_go: underlays_change,
            watchers_see_frames_and_drops_when_they_happen: watchers_receive_frames_and_drops,
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

/// Creates a provider in the network namespace of the calling thread.
pub type Start<'a> = &'a (dyn Fn(Config) -> Arc<dyn Datapath> + Sync);

/// A provider under test.
#[derive(Clone, Copy)]
pub struct Provider<'a> {
    /// The function that creates it.
    pub start: Start<'a>,
    /// The abilities that it lacks, and the reasons. The suite skips and reports them.
    pub lacks: &'a [(Ability, &'a str)],
    /// True if it gets the second half of the generated cases. To save time, a provider with one
    /// worker gets one half of the cases, and a provider with several workers gets the other half.
    pub second_half: bool,
}

/// An optional capability of a provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ability {
    /// Support for tunnels of a type.
    Tunnel(TunnelType),
    /// Support for tunnels over IPv6.
    Ip6Underlay,
    /// Support for a multicast group of the underlay as an end point.
    Group,
    /// Support for outer UDP checksums on super-packets that the device segments.
    SuperPacketChecksum,
}

impl<'a> Provider<'a> {
    /// A provider that has all abilities.
    pub fn complete(start: Start<'a>) -> Self {
        Self { start, lacks: &[], second_half: false }
    }

    fn has(&self, ability: Ability) -> bool {
        self.lacks.iter().all(|(lacking, _)| *lacking != ability)
    }

    /// The end points that it supports.
    fn endpoints(&self) -> Vec<EndpointConfig> {
        let can = |endpoint: &EndpointConfig| {
            self.has(Ability::Tunnel(endpoint.spec.tunnel))
                && (endpoint.local.is_ipv4() || self.has(Ability::Ip6Underlay))
                && (!endpoint.remote.is_multicast() || self.has(Ability::Group))
        };
        endpoints().filter(can).collect()
    }

    /// The first seed of `cases` cases, unless the environment variable `WEFT_SEED` is set.
    fn first_seed(&self, cases: u64) -> u64 {
        environment("WEFT_SEED", if self.second_half { 1 + cases } else { 1 })
    }

    fn report_lacks(&self, part: &str) {
        for (ability, why) in self.lacks {
            report::lacking(&format!("{part}: {ability:?}"), why);
        }
    }
}

/// The uplink, where frames are tagged.
const UPLINK: PortNo = PortNo(0);
/// The ports with links to the suite.
const PORTS: [PortNo; 4] = [PortNo(1), PortNo(2), PortNo(3), PortNo(4)];
/// The first outer source port.
const BASE: u16 = 49_152;
/// Fields of the outer IP header in the flow key that a socket does not report.
const UNREPORTED_FIELDS: [Field; 2] = [Field::TunTtl, Field::TunFlags];
/// The default number of cases, half of all; `WEFT_CASES` overrides it.
const CASES: u64 = 50;

/// The end points: one for each type and address family, with gaps in the numbers; the last one is
/// a multicast group, to which the first one belongs.
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

/// The options of a tunnel. The two address families test different optional features.
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

/// The datapath port for packets from tunnels.
const fn tunnel_port(tunnel: TunnelType) -> PortNo {
    PortNo(0xffff_ff00 + tunnel as u32)
}

/// Runs the whole suite. It needs root to create network namespaces.
///
/// # Panics
/// When the provider does not conform; the message says how.
pub fn run(provider: Provider<'_>) {
    generated(provider);
    programs(provider);
    puts_and_deletes_take_effect(provider);
    upcall_queues_are_bounded(provider);
    solicitations_are_limited(provider);
    ports_come_and_go(provider);
    underlays_change(provider);
    watchers_receive_frames_and_drops(provider);
    planted_megaflows_are_found(provider);
}

/// Tests generated megaflows with frames from ports and tunnels.
///
/// # Panics
/// See [`run`].
pub fn generated(provider: Provider<'_>) {
    provider.report_lacks("conformance");
    let cases = environment("WEFT_CASES", CASES);
    let first = provider.first_seed(CASES);
    let mut seen = compare::Seen::default();
    // All cases share a provider. So the suite detects state of one case that affects the next one.
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

pub use lifecycle::{
    ports_come_and_go, puts_and_deletes_take_effect, upcall_queues_are_bounded,
    withdrawn_megaflows_execute_nothing,
};
pub use planted::planted_megaflows_are_found;
pub use programs::programs;
pub use solicitations::solicitations_are_limited;
pub use underlays::underlays_change;
pub use watching::watchers_receive_frames_and_drops;

/// Panics with the message of an error.
fn conforms<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|fault| panic!("{fault}"))
}
