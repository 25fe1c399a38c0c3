//! Checks of logical routers: links, addresses, routes.

use super::services::check_home_host;
use crate::connectivity::Connectivity;
use crate::errors::ProblemCollector;
use crate::read::{
    LinkDraft, RouteDraft, RouterDraft, RouterPortDraft, Setting, SwitchDraft, Unique,
};
use crate::section::Located;
use crate::{
    FileLine, ForceSnat, IpNet, LogicalRouter, Prefix, Route, RouterIndex, RouterLink, RouterPort,
    SwitchIndex, suggest,
};
use flow::PortKey;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use wire::MacAddr;

/// The result of the checks of routers.
pub(super) struct CheckedRouters {
    /// `None` when something is missing or invalid, which has been reported.
    pub(super) finished: Option<Vec<LogicalRouter>>,
    /// The connectivity of switches through routers.
    pub(super) connectivity: Connectivity,
    /// For each switch, the addresses of router ports in it.
    pub(super) addresses: Vec<Vec<Located<IpNet>>>,
}

/// A router port: the index of its router, and its index there.
type PortIndex = (usize, usize);

/// Checks the routers.
pub(super) fn routers(
    report: &mut ProblemCollector<'_>,
    switches: &[SwitchDraft],
    drafts: Vec<RouterDraft>,
) -> CheckedRouters {
    let mut checker = RouterChecker::new(switches, &drafts);
    unique_in_switches(report, switches, &drafts);
    let finished: Vec<_> = drafts
        .iter()
        .enumerate()
        .map(|(index, draft)| checker.router(report, index, draft))
        .collect();
    CheckedRouters {
        finished: finished.into_iter().collect(),
        connectivity: checker.connectivity,
        addresses: checker.addresses,
    }
}

/// Unused port keys of a switch, from the last one down.
struct FreeKeys {
    taken: HashSet<PortKey>,
    next: u16,
}

impl FreeKeys {
    fn of(switch: &SwitchDraft) -> Self {
        let taken = switch.ports.iter().map(|port| port.key).collect();
        Self { taken, next: PortKey::MAX_PORT }
    }

    fn take(&mut self) -> Option<PortKey> {
        while let Some(key) = PortKey::new(self.next) {
            self.next -= 1;
            if !self.taken.contains(&key) {
                return Some(key);
            }
        }
        None
    }
}

struct RouterChecker<'d> {
    switches: &'d [SwitchDraft],
    drafts: &'d [RouterDraft],
    port_by_name: HashMap<&'d str, PortIndex>,
    /// For each switch, the keys left for router ports.
    free: Vec<FreeKeys>,
    connectivity: Connectivity,
    addresses: Vec<Vec<Located<IpNet>>>,
}

impl<'d> RouterChecker<'d> {
    fn new(switches: &'d [SwitchDraft], drafts: &'d [RouterDraft]) -> Self {
        let mut port_by_name = HashMap::new();
        for (router, draft) in drafts.iter().enumerate() {
            for (index, port) in draft.ports.iter().enumerate() {
                if let Some(name) = &port.name {
                    port_by_name.insert(name.as_str(), (router, index));
                }
            }
        }
        Self {
            switches,
            drafts,
            port_by_name,
            free: switches.iter().map(FreeKeys::of).collect(),
            connectivity: Connectivity::new(switches.len(), drafts.len()),
            addresses: vec![Vec::new(); switches.len()],
        }
    }

    fn router(
        &mut self,
        report: &mut ProblemCollector<'_>,
        index: usize,
        draft: &'d RouterDraft,
    ) -> Option<LogicalRouter> {
        let connected = ConnectedNetworks::new(report, &draft.ports);
        let keys = (1..=PortKey::MAX_PORT).filter_map(PortKey::new);
        let ports: Vec<_> =
            keys.zip(&draft.ports).map(|(key, port)| self.port(report, index, key, port)).collect();
        let mut prefixes = Unique::new();
        let routes: Vec<_> = draft
            .routes
            .iter()
            .map(|route| self.route(report, draft, &connected, route, &mut prefixes))
            .collect();
        let lb_force_snat = force_snat(report, draft, &connected, &draft.lb_force_snat);
        let dnat_force_snat = force_snat(report, draft, &connected, &draft.dnat_force_snat);
        Some(LogicalRouter {
            name: draft.name.clone()?,
            home: match draft.home {
                Setting::Default => None,
                Setting::Given(home) => Some(home.value),
                Setting::Wrong => return None,
            },
            ports: ports.into_iter().collect::<Option<_>>()?,
            routes: routes.into_iter().collect::<Option<_>>()?,
            lb_force_snat: lb_force_snat?,
            dnat_force_snat: dnat_force_snat?,
            line: FileLine(report.line(draft.at)),
        })
    }

    fn port(
        &mut self,
        report: &mut ProblemCollector<'_>,
        router: usize,
        key: PortKey,
        draft: &RouterPortDraft,
    ) -> Option<RouterPort> {
        let link = match draft.link.as_ref()? {
            LinkDraft::Switch(switch) => {
                self.connectivity.link_switch(router, switch.value.value());
                self.switch_port(report, *switch, &draft.addresses)
            }
            LinkDraft::Peer(peer) => self.peer(report, router, draft, peer),
        };
        Some(RouterPort {
            name: draft.name.clone()?,
            key,
            mac: draft.mac?.value,
            addresses: draft.addresses.iter().map(|located| located.value).collect(),
            link: link?,
            line: FileLine(report.line(draft.at)),
        })
    }

    /// Creates the switch port that leads to a router port.
    fn switch_port(
        &mut self,
        report: &mut ProblemCollector<'_>,
        switch: Located<SwitchIndex>,
        addresses: &[Located<IpNet>],
    ) -> Option<RouterLink> {
        let index = switch.value.value();
        self.addresses.get_mut(index)?.extend(addresses);
        let Some(key) = self.free.get_mut(index)?.take() else {
            let guests = self.switches.get(index)?.ports.len();
            report.error(
                switch.at,
                format!(
                    "a logical switch has at most {} ports, including those of logical routers, \
                     and this one \
                     already has {guests}; move ports to another switch",
                    PortKey::MAX_PORT
                ),
            );
            return None;
        };
        Some(RouterLink::Switch { switch: switch.value, key })
    }

    /// The port named `peer.value`, which must name this one as its peer.
    fn peer(
        &mut self,
        report: &mut ProblemCollector<'_>,
        router: usize,
        draft: &RouterPortDraft,
        peer: &Located<String>,
    ) -> Option<RouterLink> {
        let name = peer.value.as_str();
        let Some(&(other, index)) = self.port_by_name.get(name) else {
            let known = self.drafts.iter().flat_map(|router| &router.ports);
            if known.clone().all(|port| port.name.is_some()) {
                let known = known.filter_map(|port| port.name.as_deref());
                let hint = suggest::hint(name, known, "ports of logical routers");
                report.error(peer.at, format!("unknown port of a logical router {name:?}{hint}"));
            }
            return None;
        };
        let own = draft.name.as_deref()?;
        if other == router {
            report.error(
                peer.at,
                format!("`{name}` is a port of the same router; name one of another router"),
            );
            return None;
        }
        let there = self.drafts.get(other)?.ports.get(index)?;
        match &there.link {
            Some(LinkDraft::Peer(back)) if back.value == own => {
                self.connectivity.link_routers(router, other);
                let port = PortKey::new(u16::try_from(index + 1).ok()?)?;
                Some(RouterLink::Router { router: RouterIndex(other), port })
            }
            // An invalid link there has been reported.
            None => None,
            Some(_) => {
                let line = report.line(there.at);
                report.error(
                    peer.at,
                    format!(
                        "port `{name}` in line {line} is not linked to `{own}`; write peer = \
                         \"{own}\" there"
                    ),
                );
                None
            }
        }
    }

    fn route(
        &self,
        report: &mut ProblemCollector<'_>,
        router: &RouterDraft,
        connected: &ConnectedNetworks,
        draft: &RouteDraft,
        prefixes: &mut Unique<Prefix>,
    ) -> Option<Route> {
        if let Some(Located { value: prefix, at }) = draft.prefix
            && let Some(first) = prefixes.insert(prefix, at)
        {
            let line = report.line(first);
            report.error(at, format!("line {line} already has a route to {prefix}; keep one"));
        }
        let (prefix, next_hop) = (draft.prefix?.value, draft.next_hop?);
        let Located { value: addr, at } = next_hop;
        if prefix.is_ipv4() != addr.is_ipv4() {
            let family = if prefix.is_ipv4() { "IPv4" } else { "IPv6" };
            report.error(
                at,
                format!(
                    "{addr} is of another address family than {prefix}; write an {family} \
                         address"
                ),
            );
            return None;
        }
        let found = connected.find(addr);
        if let Some((_, net)) = found
            && net.addr() == addr
        {
            report.error(
                at,
                format!(
                    "{addr} is this router's own address; write the address of the next \
                         router"
                ),
            );
            return None;
        }
        let configured = match &draft.port {
            None => None,
            Some(name) => Some(named_port(report, router, name)?),
        };
        match found {
            Some((index, net)) if configured.is_none_or(|configured| configured == index) => {
                Some(Route {
                    prefix,
                    next_hop: addr,
                    port: PortKey::new(u16::try_from(index + 1).ok()?)?,
                    source: net.addr(),
                    line: FileLine(report.line(draft.at)),
                })
            }
            _ if connected.is_incomplete => None,
            _ => {
                report.error(at, unreachable(addr, router, configured));
                None
            }
        }
    }
}

/// Checks the forced SNAT address of a router. `None` if it is wrong, which has been reported.
fn force_snat(
    report: &mut ProblemCollector<'_>,
    router: &RouterDraft,
    connected: &ConnectedNetworks,
    setting: &Setting<Located<ForceSnat>>,
) -> Option<Option<ForceSnat>> {
    let Located { value, at } = match setting {
        Setting::Default => return Some(None),
        Setting::Wrong => return None,
        Setting::Given(given) => given,
    };
    let mut is_right = check_home_host(report, (*at, "translates source addresses"), router);
    if let ForceSnat::Addresses(addresses) = value {
        for addr in addresses {
            let Some((_, net)) = connected.find(*addr) else { continue };
            if net.addr() != *addr {
                let (own, net) = (net.addr(), Prefix::from(net));
                report.error(
                    *at,
                    format!(
                        "{addr} is in the network {net} of this router, but is not its address \
                         there; write {own}"
                    ),
                );
                is_right = false;
            }
        }
    }
    is_right.then(|| Some(value.clone()))
}

fn named_port(
    report: &mut ProblemCollector<'_>,
    router: &RouterDraft,
    name: &Located<String>,
) -> Option<usize> {
    let names = || router.ports.iter().map(|port| port.name.as_deref());
    let found = names().position(|known| known == Some(name.value.as_str()));
    if found.is_none() && names().all(|known| known.is_some()) {
        let hint = suggest::hint(&name.value, names().flatten(), "ports of this router");
        report.error(name.at, format!("unknown port {:?}{hint}", name.value));
    }
    found
}

fn unreachable(addr: IpAddr, router: &RouterDraft, port: Option<usize>) -> String {
    let (whose, ports) = match port.and_then(|port| router.ports.get(port)) {
        Some(port) => ("that port", std::slice::from_ref(port)),
        None => ("this router's ports", router.ports.as_slice()),
    };
    let nets: Vec<String> = ports
        .iter()
        .flat_map(|port| &port.addresses)
        .map(|net| Prefix::from(net.value).to_string())
        .collect();
    let nets = suggest::list(nets.iter().map(String::as_str)).unwrap_or_default();
    format!("{addr} is in no network of {whose}, which are {nets}")
}

/// The networks of a router's ports in order; they must not overlap.
struct ConnectedNetworks {
    nets: Vec<(Prefix, usize, IpNet)>,
    /// A port address was invalid, which has been reported.
    is_incomplete: bool,
}

impl ConnectedNetworks {
    fn new(report: &mut ProblemCollector<'_>, ports: &[RouterPortDraft]) -> Self {
        let mut nets: Vec<_> = ports
            .iter()
            .enumerate()
            .flat_map(|(index, port)| port.addresses.iter().map(move |net| (index, *net)))
            .map(|(index, net)| (Prefix::from(net.value), index, net))
            .collect();
        // In this order, networks inside a larger network come directly after it. So each network
        // needs to be compared only with the last one that is not inside another.
        nets.sort_by_key(|(prefix, index, net)| (*prefix, *index, net.at));
        let mut is_incomplete = ports.iter().any(|port| port.addresses.is_empty());
        let mut outer: Option<(Prefix, usize)> = None;
        for (prefix, _, net) in &nets {
            match outer {
                Some((other, first)) if other.overlaps(*prefix) => {
                    is_incomplete = true;
                    let (first, second) = (first.min(net.at), first.max(net.at));
                    let line = report.line(first);
                    report.error(
                        second,
                        format!(
                            "{prefix} and {other} of this router overlap (line {line}); each \
                             network belongs \
                             to one port of a router, once"
                        ),
                    );
                }
                _ => outer = Some((*prefix, net.at)),
            }
        }
        let nets = nets.into_iter().map(|(prefix, index, net)| (prefix, index, net.value));
        Self { nets: nets.collect(), is_incomplete }
    }

    /// The port whose network contains `addr`, and the port's address there.
    fn find(&self, addr: IpAddr) -> Option<(usize, IpNet)> {
        let after = self.nets.partition_point(|(prefix, ..)| prefix.addr() <= addr);
        let (prefix, index, net) = self.nets.get(after.checked_sub(1)?)?;
        prefix.contains(addr).then_some((*index, *net))
    }
}

/// Two ports of a switch, of guests or routers, must not have the same MAC or IP address.
fn unique_in_switches(
    report: &mut ProblemCollector<'_>,
    switches: &[SwitchDraft],
    routers: &[RouterDraft],
) {
    let mut by_switch: Vec<Vec<&RouterPortDraft>> = vec![Vec::new(); switches.len()];
    for port in routers.iter().flat_map(|router| &router.ports) {
        if let Some(LinkDraft::Switch(switch)) = &port.link
            && let Some(ports) = by_switch.get_mut(switch.value.value())
        {
            ports.push(port);
        }
    }
    for (switch, ports) in switches.iter().zip(by_switch).filter(|(_, ports)| !ports.is_empty()) {
        let mut macs: Unique<MacAddr> = Unique::new();
        let mut addresses: Unique<IpAddr> = Unique::new();
        for port in &switch.ports {
            port.mac.map(|mac| macs.insert(mac.value, mac.at));
            for net in &port.addresses {
                addresses.insert(net.value.addr(), net.at);
            }
        }
        for port in ports {
            if let Some(mac) = port.mac
                && let Some(first) = macs.insert(mac.value, mac.at)
            {
                report.mac_taken(mac.at, mac.value, first);
            }
            for net in &port.addresses {
                if let Some(first) = addresses.insert(net.value.addr(), net.at) {
                    report.address_taken(net.at, net.value.addr(), first);
                }
            }
        }
    }
}
