//! Checks of load balancers and network address translation.

use super::health::Guests;
use super::router::CheckedRouters;
use crate::errors::ProblemCollector;
use crate::read::{
    LinkDraft, LoadBalancerDraft, NatDraft, RouterDraft, Setting, SwitchDraft, Unique,
};
use crate::section::Located;
use crate::{IpNet, LoadBalancer, Nat, NatKind};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// The load balancers; `None` when one is invalid, which has been reported. `hosts` is
/// the number of hosts.
pub(super) fn load_balancers(
    report: &mut ProblemCollector<'_>,
    drafts: Vec<LoadBalancerDraft>,
    switches: &[SwitchDraft],
    (routers, hosts): (&CheckedRouters, usize),
) -> Option<Vec<LoadBalancer>> {
    let routed = &routers.addresses;
    let mut taken = Unique::new();
    let finished: Vec<_> = drafts
        .into_iter()
        .map(|draft| {
            let (vip, backends) = (draft.vip?, draft.backends?);
            let affinity_s = match draft.affinity_s {
                Setting::Default => None,
                Setting::Given(seconds) => Some(seconds),
                Setting::Wrong => return None,
            };
            let mut is_right = is_of_family(report, vip.value.ip(), &backends);
            for switch in draft.switches.iter().flatten() {
                let index = switch.value.value();
                is_right &= is_outside(report, vip, &switches[index], &routed[index]);
            }
            let on_switches = draft.switches.iter().flatten();
            let on_switches = on_switches.map(|it| ("switch", it.value.value(), it.at));
            let on_routers = draft.routers.iter().flatten();
            let on_routers = on_routers.map(|it| ("router", it.value.value(), it.at));
            for (kind, index, at) in on_switches.chain(on_routers) {
                let key = (kind, index, draft.protocol?.name(), vip.value);
                if let Some(first) = taken.insert(key, vip.at) {
                    let line = report.line(first);
                    let vip = vip.value;
                    report.error(
                        at,
                        format!("{vip} is already balanced in this {kind}, see line {line}"),
                    );
                    is_right = false;
                }
            }
            let guests = Guests { switches, routers, hosts };
            let health = match &draft.health {
                Setting::Default => None,
                Setting::Wrong => return None,
                Setting::Given(health) => {
                    let (switches, routers) = (draft.switches.as_ref()?, draft.routers.as_ref()?);
                    let places = guests.places(switches, routers);
                    let protocol = draft.protocol?;
                    Some(guests.checks(report, health, protocol, (&backends, &places))?)
                }
            };
            Some(LoadBalancer {
                name: draft.name.filter(|_| is_right)?,
                switches: draft.switches?.into_iter().map(|switch| switch.value).collect(),
                routers: draft.routers?.into_iter().map(|router| router.value).collect(),
                protocol: draft.protocol?,
                vip: vip.value,
                backends: backends.into_iter().map(|backend| backend.value).collect(),
                affinity_s,
                health,
                offline: BTreeSet::new(),
                line: draft.line,
            })
        })
        .collect();
    finished.into_iter().collect()
}

fn is_of_family(
    report: &mut ProblemCollector<'_>,
    vip: IpAddr,
    backends: &[Located<SocketAddr>],
) -> bool {
    let other = backends.iter().find(|backend| backend.value.is_ipv4() != vip.is_ipv4());
    if let Some(Located { value, at }) = other {
        let family = if vip.is_ipv4() { "IPv4" } else { "IPv6" };
        report.error(
            *at,
            format!(
                "{} is of another address family than {vip}; write an {family} address",
                value.ip()
            ),
        );
    }
    other.is_none()
}

/// Checks that clients send packets for the virtual address to a router, because their switch does
/// not answer ARP for it.
fn is_outside(
    report: &mut ProblemCollector<'_>,
    vip: Located<SocketAddr>,
    switch: &SwitchDraft,
    routed: &[Located<IpNet>],
) -> bool {
    let guests = switch.ports.iter().flat_map(|port| &port.addresses);
    let inside = guests.chain(routed).find(|net| net.value.contains(&vip.value.ip()));
    if let Some(net) = inside {
        let (ip, line) = (vip.value.ip(), report.line(net.at));
        report.error(
            vip.at,
            format!(
                "{ip} is in the network of an address in line {line}, so clients would send ARP \
                 requests for it; choose a virtual address that clients reach through a router"
            ),
        );
    }
    inside.is_none()
}

/// Checks the routers of load balancers. Each must have a home host. It answers ARP for virtual
/// addresses in its networks, so no guest there may have such an address.
pub(super) fn balancing_routers(
    report: &mut ProblemCollector<'_>,
    drafts: &[LoadBalancerDraft],
    switches: &[SwitchDraft],
    routers: &[RouterDraft],
) {
    for draft in drafts {
        for router in draft.routers.iter().flatten() {
            let at = router.at;
            let router = &routers[router.value.value()];
            check_home_host(report, (at, "balances connections"), router);
            let Some(vip) = draft.vip else { continue };
            let on_switch = router.ports.iter().filter_map(|port| match &port.link {
                Some(LinkDraft::Switch(switch)) => switches.get(switch.value.value()),
                _ => None,
            });
            let mut guests = on_switch.flat_map(|it| &it.ports).flat_map(|port| &port.addresses);
            if let Some(net) = guests.find(|net| net.value.addr() == vip.value.ip()) {
                let (ip, line) = (vip.value.ip(), report.line(net.at));
                report.error(
                    vip.at,
                    format!(
                        "{ip} is the address of a guest in line {line}; choose another virtual \
                         address"
                    ),
                );
            }
        }
    }
}

/// The rules of network address translation; `None` when one is invalid, which has been reported.
pub(super) fn nats(
    report: &mut ProblemCollector<'_>,
    drafts: Vec<NatDraft>,
    routers: &[RouterDraft],
) -> Option<Vec<Nat>> {
    let mut targets = Unique::new();
    let mut sources = Unique::new();
    let finished: Vec<_> = drafts
        .into_iter()
        .map(|draft| {
            let (router, kind) = (draft.router?, draft.kind?);
            let (external, internal) = (draft.external?, draft.internal?);
            let mut is_right = check_home_host(
                report,
                (router.at, "translates addresses"),
                &routers[router.value.value()],
            );
            let prefix = internal.value;
            if prefix.is_ipv4() != external.value.is_ipv4() {
                let family = if external.value.is_ipv4() { "IPv4" } else { "IPv6" };
                report.error(
                    internal.at,
                    format!(
                        "{prefix} is of another address family than {}; write an {family} address",
                        external.value
                    ),
                );
                is_right = false;
            }
            if kind != NatKind::Snat && !prefix.is_single() {
                let name = kind.name();
                report.error(
                    internal.at,
                    format!(
                        "{prefix} is a network; {name} translates one address, such as \
                         \"10.0.1.11\""
                    ),
                );
                is_right = false;
            }
            let key = router.value.value();
            let mut doubles = Vec::new();
            if kind.translates_destination() {
                let first = targets.insert((key, external.value), external.at);
                doubles.push((first, external.at, external.value.to_string()));
            }
            if kind.translates_source() {
                let first = sources.insert((key, prefix), internal.at);
                doubles.push((first, internal.at, prefix.to_string()));
            }
            for (first, at, what) in doubles {
                if let Some(first) = first {
                    let line = report.line(first);
                    report.error(at, format!("line {line} already translates {what}; keep one"));
                    is_right = false;
                }
            }
            is_right.then_some(Nat {
                router: router.value,
                kind,
                external: external.value,
                internal: prefix,
                line: draft.line,
            })
        })
        .collect();
    finished.into_iter().collect()
}

/// Checks that a router has a home host. Connections are tracked on one host, so all packets of a
/// connection must pass that host.
pub(super) fn check_home_host(
    report: &mut ProblemCollector<'_>,
    (at, does): (usize, &str),
    router: &RouterDraft,
) -> bool {
    if matches!(router.home, Setting::Default) {
        report.error(
            at,
            format!(
                "a router that {does} runs on one host; give [[logical_router]] a `host`, such as \
                 host = \"h1\""
            ),
        );
        return false;
    }
    true
}

/// Checks that a router with a home host is linked to switches only, because the other hosts reach
/// it through the tunnels of these switches.
pub(super) fn check_home_links(report: &mut ProblemCollector<'_>, routers: &[RouterDraft]) {
    for router in routers {
        let Setting::Given(_) = router.home else { continue };
        for port in &router.ports {
            if let Some(LinkDraft::Peer(peer)) = &port.link {
                report.error(
                    peer.at,
                    "a router with `host` has no `peer`: the other hosts could not reach it; link \
                     both routers to a logical switch",
                );
            }
        }
    }
}
