//! Resolves the next hops of end points, and reports changes of links.
//!
//! If the underlay checks the reverse path, it also reports to which end points a route leads over
//! the uplink: packets of others are dropped.
//!
//! UDP and GRE sockets let the kernel route. STT packets, and all packets that eBPF programs
//! encapsulate, are sent as whole frames and need the MAC address of the next hop. So routes and
//! neighbours are read by netlink and kept up to date by its notifications. The kernel is asked to
//! resolve missing neighbours, and to confirm those in use.
//!
//! The work is done in batches with a pause after each, however many end points there are and
//! however often routes change. A change of a neighbour costs only as much as the end points behind
//! it. A notification about a link only causes the link to be read: after a loss of notifications,
//! those still queued are out of date.

use super::fast_path::{ResolvedNextHop, RouteChange};
use datapath::config::{EndpointConfig, Underlay};
use flow::{Carrier, EndpointId, NextHop};
use netdev::{
    Error, Ifindex, Monitor, Neighbour, NeighbourState, Netlink, NetlinkEvent, RoutePath,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use wire::MacAddr;

/// Ticks between two confirmations of all neighbours in use, so that the kernel keeps them.
const CONFIRM_TICKS: u32 = 30;
/// Routes looked up in one batch, which takes some milliseconds.
const ROUTES: usize = 1024;
/// The pause between two batches.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// Routes looked up at the start, before anything is forwarded. Packets to further end points take
/// the slow path for a while. STT has no slow path, so its end points come first.
const ROUTES_AT_START: usize = 16_384;
/// Next hops that the kernel is asked to resolve in one batch.
const MAX_REQUESTS: usize = 256;

/// An end point whose next hop must be resolved.
#[derive(Clone, Debug)]
struct ResolveTarget {
    id: EndpointId,
    local: IpAddr,
    remote: IpAddr,
    /// The gateway, or the end point itself if it is on-link; `None` without a route.
    next_hop: Option<IpAddr>,
    hop: Option<NextHop>,
    /// Its route was read.
    is_read: bool,
}

impl ResolveTarget {
    fn is_same(&self, other: &Self) -> bool {
        (self.id, self.local, self.remote) == (other.id, other.local, other.remote)
    }
}

/// The end points whose next hops must be resolved; those of STT first.
fn targets(
    endpoints: &[EndpointConfig],
    scope: ResolveScope,
) -> impl Iterator<Item = ResolveTarget> + '_ {
    let is_stt = |endpoint: &&EndpointConfig| endpoint.spec.tunnel.carrier() == Carrier::TcpLike;
    let is_other = move |endpoint: &&EndpointConfig| {
        scope == ResolveScope::All && !is_stt(endpoint) && !endpoint.remote.is_multicast()
    };
    let others = endpoints.iter().filter(is_other);
    endpoints.iter().filter(is_stt).chain(others).map(|endpoint| {
        let EndpointConfig { id, local, remote, .. } = *endpoint;
        ResolveTarget { id, local, remote, next_hop: None, hop: None, is_read: false }
    })
}

/// The next hop of the route to `remote`; `None` without a route over the uplink.
///
/// # Errors
/// The route is not known: the kernel had no memory for its answer, or a link has just vanished.
fn next_hop(
    path: Result<RoutePath, Error>,
    remote: IpAddr,
    uplink: Ifindex,
) -> Result<Option<IpAddr>, Error> {
    match path {
        Ok(path) => {
            let leaves = path.oif == uplink && !path.local;
            Ok(leaves.then(|| path.gateway.unwrap_or(remote)))
        }
        Err(error) if error.is_unreachable() => Ok(None),
        Err(error) => Err(error),
    }
}

/// A next hop and the end points behind it.
#[derive(Debug, Default)]
struct NextHopEntry {
    /// Indices of the targets behind it.
    targets: BTreeSet<usize>,
    hop: Option<NextHop>,
    /// Ask the kernel to confirm it, even if it is known.
    confirm: bool,
}

/// The end points whose next hops are resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ResolveScope {
    /// Those of STT.
    Stt,
    /// All, because programs encapsulate.
    All,
}

/// Links whose state must be read.
#[derive(Debug, Default)]
pub(super) struct LinkChanges {
    /// Links that have changed or are gone.
    pub(super) links: BTreeSet<Ifindex>,
    /// Notifications were lost, so every link may have changed.
    pub(super) all: bool,
}

/// Keeps the next hops of end points up to date.
#[derive(Debug)]
pub(super) struct Resolver {
    netlink: Netlink,
    monitor: Monitor,
    uplink: Ifindex,
    uplink_mac: MacAddr,
    scope: ResolveScope,
    checks_reverse_path: bool,
    targets: Vec<ResolveTarget>,
    next_hops: BTreeMap<IpAddr, NextHopEntry>,
    /// Changes that were not yet taken.
    changes: Vec<ResolvedNextHop>,
    route_changes: Vec<RouteChange>,
    /// The number of routes to read, from `cursor` on, wrapping around.
    stale: usize,
    cursor: usize,
    /// The next hop of the last request to the kernel. The next batch starts behind it, so that all
    /// take turns.
    last_requested: Option<IpAddr>,
    /// A batch was done since the last pause.
    batch_done: bool,
    ticks: u32,
}

impl Resolver {
    pub(super) fn open(uplink: Ifindex, scope: ResolveScope) -> Result<Self, Error> {
        let netlink = Netlink::open()?;
        let monitor = Monitor::open()?;
        let uplink_mac = netlink.link_by_index(uplink)?.mac;
        Ok(Self {
            netlink,
            monitor,
            uplink,
            uplink_mac,
            scope,
            checks_reverse_path: false,
            targets: Vec::new(),
            next_hops: BTreeMap::new(),
            changes: Vec::new(),
            route_changes: Vec::new(),
            stale: 0,
            cursor: 0,
            last_requested: None,
            batch_done: false,
            ticks: 0,
        })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }

    /// The end points whose routes are read.
    fn scope(&self) -> ResolveScope {
        if self.checks_reverse_path { ResolveScope::All } else { self.scope }
    }

    /// Replaces the end points. Known next hops of those that stay are reported again, because the
    /// end points may be new to the receivers of changes.
    pub(super) fn follow_endpoints(&mut self, underlay: &Underlay) {
        let checks = underlay.checks_reverse_path;
        let checked = std::mem::replace(&mut self.checks_reverse_path, checks);
        // What fails the check is logged when it is read.
        let is_new_check = checks && !checked;
        let known: HashMap<EndpointId, ResolveTarget> =
            self.targets.drain(..).map(|target| (target.id, target)).collect();
        // A number may have been reused for another end point, whose next hop is unknown then.
        let (mut changes, mut route_changes) = (Vec::new(), Vec::new());
        self.targets.extend(targets(&underlay.endpoints, self.scope()).map(|target| {
            match known.get(&target.id) {
                Some(known) if known.is_same(&target) => {
                    let is_read = known.is_read && !is_new_check;
                    return ResolveTarget { is_read, ..known.clone() };
                }
                Some(_) => {
                    changes.push((target.id, None));
                    route_changes.push((target.id, false));
                }
                None => {}
            }
            target
        }));
        let hops = self.targets.iter().filter(|target| target.hop.is_some());
        changes.extend(hops.map(|target| (target.id, target.hop)));
        self.changes = changes;
        let routed = self.targets.iter().filter(|target| target.next_hop.is_some());
        route_changes.extend(routed.map(|target| (target.id, true)));
        self.route_changes = route_changes;
        let known = std::mem::take(&mut self.next_hops);
        for (index, target) in self.targets.iter().enumerate() {
            if let Some(ip) = target.next_hop {
                let entry = self.next_hops.entry(ip).or_insert_with(|| {
                    let hop = known.get(&ip).and_then(|known| known.hop);
                    NextHopEntry { hop, ..NextHopEntry::default() }
                });
                entry.targets.insert(index);
            }
        }
        self.cursor = 0;
        self.refresh();
    }

    /// Takes the changes since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<ResolvedNextHop> {
        std::mem::take(&mut self.changes)
    }

    /// Takes the changes since the last call of whether routes lead over the uplink; none if the
    /// underlay does not check that.
    pub(super) fn take_route_changes(&mut self) -> Vec<RouteChange> {
        let changes = std::mem::take(&mut self.route_changes);
        if self.checks_reverse_path { changes } else { Vec::new() }
    }

    /// Reads routes and neighbours before anything is forwarded: of all STT end points and of many
    /// others.
    pub(super) fn start(&mut self, endpoints: &[EndpointConfig]) {
        self.stale = self.targets.len();
        self.read_routes(targets(endpoints, ResolveScope::Stt).count().max(ROUTES_AT_START));
        self.apply_neighbours();
    }

    /// Marks all routes as out of date, and reads a batch now if none was read since the last
    /// pause.
    pub(super) fn refresh(&mut self) {
        self.stale = self.targets.len();
        if !self.batch_done {
            self.run_batch();
        }
    }

    fn run_batch(&mut self) {
        self.batch_done = true;
        self.read_routes(ROUTES);
        self.apply_neighbours();
    }

    /// Reads up to `limit` of the routes that are out of date.
    fn read_routes(&mut self, limit: usize) {
        for _ in 0..self.stale.min(limit) {
            self.stale -= 1;
            let index = self.cursor;
            self.cursor = (index + 1) % self.targets.len();
            let target = &self.targets[index];
            let path = self.netlink.route_get(target.remote, Some(target.local));
            match next_hop(path, target.remote, self.uplink) {
                Ok(next_hop) => self.set_next_hop(index, next_hop),
                // What was known stays in force: the error says nothing about the route.
                Err(error) => messages::log!(
                    ROUTES_NOT_READ,
                    remote = %target.remote,
                    "cannot read the route to an end point, will retry: {error}"
                ),
            }
        }
    }

    /// Sets the next hop of a target.
    fn set_next_hop(&mut self, index: usize, next_hop: Option<IpAddr>) {
        let target = &mut self.targets[index];
        let before = std::mem::replace(&mut target.next_hop, next_hop);
        let was_read = std::mem::replace(&mut target.is_read, true);
        if self.checks_reverse_path && next_hop.is_none() && (before.is_some() || !was_read) {
            messages::log!(
                REVERSE_PATH_FAILS,
                remote = %target.remote,
                "the route to an end point does not lead over the uplink: its packets are dropped"
            );
        }
        if before == next_hop {
            return;
        }
        if before.is_some() != next_hop.is_some() {
            self.route_changes.push((target.id, next_hop.is_some()));
        }
        if let Some(ip) = before
            && let Some(entry) = self.next_hops.get_mut(&ip)
        {
            entry.targets.remove(&index);
            if entry.targets.is_empty() {
                self.next_hops.remove(&ip);
            }
        }
        let hop = next_hop.and_then(|ip| {
            let entry = self.next_hops.entry(ip).or_default();
            entry.targets.insert(index);
            entry.hop
        });
        self.set_target_hop(index, hop);
    }

    fn set_target_hop(&mut self, index: usize, hop: Option<NextHop>) {
        let target = &mut self.targets[index];
        if target.hop != hop {
            target.hop = hop;
            self.changes.push((target.id, hop));
        }
    }

    /// Sets the MAC addresses of a next hop.
    fn set_neighbour(&mut self, ip: IpAddr, hop: Option<NextHop>) {
        let Some(entry) = self.next_hops.get_mut(&ip).filter(|entry| entry.hop != hop) else {
            return;
        };
        entry.hop = hop;
        let targets = std::mem::take(&mut entry.targets);
        targets.iter().for_each(|index| self.set_target_hop(*index, hop));
        if let Some(entry) = self.next_hops.get_mut(&ip) {
            entry.targets = targets;
        }
    }

    /// Reads the kernel's neighbours, and asks the kernel to resolve missing ones and to confirm
    /// others.
    fn apply_neighbours(&mut self) {
        if self.next_hops.is_empty() {
            return;
        }
        let known: HashMap<IpAddr, Neighbour> = match self.netlink.neighbours(Some(self.uplink)) {
            Ok(neighbours) => neighbours.into_iter().map(|n| (n.ip, n)).collect(),
            Err(error) => {
                return messages::log!(NEIGHBOURS_NOT_READ, "cannot read neighbours: {error}");
            }
        };
        let next_hops: Vec<IpAddr> = self.next_hops.keys().copied().collect();
        for &ip in &next_hops {
            self.set_neighbour(ip, self.hop(known.get(&ip)));
        }
        let first =
            next_hops.partition_point(|ip| self.last_requested.is_some_and(|last| *ip <= last));
        let mut left = MAX_REQUESTS;
        for ip in next_hops[first..].iter().chain(&next_hops[..first]) {
            let Some(entry) = self.next_hops.get_mut(ip) else { continue };
            let is_permanent = known.get(ip).is_some_and(|n| n.state == NeighbourState::Permanent);
            if is_permanent {
                entry.confirm = false;
            }
            if is_permanent || (entry.hop.is_some() && !entry.confirm) {
                continue;
            }
            if left == 0 {
                return;
            }
            left -= 1;
            entry.confirm = false;
            self.last_requested = Some(*ip);
            // If the kernel refuses, the end point stays unresolved, which is visible in its
            // statistics.
            let _ = self.netlink.use_neighbour(self.uplink, *ip);
        }
    }

    fn hop(&self, neighbour: Option<&Neighbour>) -> Option<NextHop> {
        let mac = neighbour.and_then(Neighbour::usable_mac);
        mac.map(|destination| NextHop { source: self.uplink_mac, destination })
    }

    /// Handles notifications about routes and neighbours; returns the links that have changed.
    pub(super) fn drain(&mut self) -> LinkChanges {
        let mut links = LinkChanges::default();
        let events = match self.monitor.drain() {
            Ok(events) => events,
            Err(error) => {
                messages::log!(
                    ROUTES_NOT_READ,
                    "cannot read notifications about routes and neighbours: {error}"
                );
                return links;
            }
        };
        let mut routes = false;
        let mut neighbours = HashMap::new();
        for event in events {
            match event {
                NetlinkEvent::LinkChanged(link) => drop(links.links.insert(link.index)),
                NetlinkEvent::LinkRemoved { index, .. } => drop(links.links.insert(index)),
                NetlinkEvent::NeighbourChanged(neighbour) if neighbour.index == self.uplink => {
                    neighbours.insert(neighbour.ip, neighbour);
                }
                NetlinkEvent::RouteChanged(_)
                | NetlinkEvent::RouteRemoved(_)
                | NetlinkEvent::AddressChanged(_)
                | NetlinkEvent::AddressRemoved(_) => routes = true,
                NetlinkEvent::Lost => (routes, links.all) = (true, true),
                _ => {}
            }
        }
        for (ip, neighbour) in &neighbours {
            self.set_neighbour(*ip, self.hop(Some(neighbour)));
        }
        if routes {
            self.refresh();
        }
        links
    }

    /// Sets the uplink and its MAC address.
    pub(super) fn set_uplink(&mut self, uplink: Ifindex, mac: MacAddr) {
        (self.uplink, self.uplink_mac) = (uplink, mac);
    }

    /// True while routes are out of date: call [`resume`](Self::resume) after a [`PAUSE`].
    pub(super) fn is_behind(&self) -> bool {
        self.stale > 0
    }

    /// Reads the next batch of routes.
    pub(super) fn resume(&mut self) {
        self.batch_done = false;
        if self.is_behind() {
            self.run_batch();
        }
    }

    /// Runs a batch if anything is out of date or missing. Now and then it confirms everything.
    pub(super) fn tick(&mut self) {
        self.ticks = self.ticks.wrapping_add(1);
        self.batch_done = false;
        if self.ticks.is_multiple_of(CONFIRM_TICKS) {
            self.stale = self.targets.len();
            self.next_hops.values_mut().for_each(|entry| entry.confirm = true);
        }
        let is_open = |entry: &NextHopEntry| entry.confirm || entry.hop.is_none();
        if self.stale > 0 || self.next_hops.values().any(is_open) {
            self.run_batch();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_hop_is_none_without_a_route_over_the_uplink_and_unknown_after_other_errors() {
        let remote = IpAddr::from([192, 0, 2, 2]);
        let path =
            RoutePath { oif: Ifindex(3), source: None, gateway: None, mtu: 1500, local: false };
        assert_eq!(next_hop(Ok(path), remote, Ifindex(3)).unwrap(), Some(remote));
        assert_eq!(next_hop(Ok(path), remote, Ifindex(4)).unwrap(), None);
        let local = RoutePath { local: true, ..path };
        assert_eq!(next_hop(Ok(local), remote, Ifindex(3)).unwrap(), None);
        let failed = |errno: i32| {
            let source = std::io::Error::from_raw_os_error(errno);
            Error::Os { what: "find the route".into(), source }
        };
        // ENETUNREACH, and EINVAL of a blackhole route.
        for errno in [101, 22] {
            assert_eq!(next_hop(Err(failed(errno)), remote, Ifindex(3)).unwrap(), None);
        }
        // ENOBUFS, and ENODEV of a link that has vanished.
        for errno in [105, 19] {
            assert!(next_hop(Err(failed(errno)), remote, Ifindex(3)).is_err());
        }
    }
}
