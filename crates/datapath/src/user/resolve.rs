//! The Ethernet addresses toward STT end points, and the links that the datapath stands on.
//!
//! UDP and GRE sockets let the kernel route. STT's super-segments leave through the uplink as whole frames, so the
//! next hop's MAC address has to be in them: routes and neighbours are read by netlink, kept up to date by its
//! notifications, and the kernel is asked to resolve (and to keep resolved) what is missing.
//!
//! All of this happens between frames, so it comes in portions: however many end points there are and however often
//! routes change, a tick has one batch of lookups, and a notification about a neighbour touches only the end points
//! behind it. A notification about a link only says that the link has to be read: after a loss, those that are still
//! queued are older than the truth.

use super::forward::Forwarder;
use super::vif::Vif;
use flow::{EndpointId, EndpointTable, NextHop, TunnelType};
use netdev::{Error, Event, Ifindex, Link, Monitor, Neighbour, NeighbourState, Netlink};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use wire::MacAddr;

/// Ticks between two rounds in which neighbours in use are confirmed, so that the kernel does not forget them.
const CONFIRM_TICKS: u32 = 30;
/// End points whose route is looked up in one tick, and next hops that the kernel is asked to resolve: some milliseconds.
const BATCH: usize = 256;

#[derive(Debug)]
pub(super) struct Resolver {
    netlink: Netlink,
    monitor: Monitor,
    uplink: Ifindex,
    uplink_mac: MacAddr,
    /// STT end points with the address of the router or host that a frame to them goes to next; `None` without a route.
    next_hops: Vec<(EndpointId, Option<IpAddr>)>,
    /// The end points behind each next hop.
    behind: HashMap<IpAddr, Vec<EndpointId>>,
    /// How many routes have yet to be read, the first at `cursor` and the others behind it, round the end.
    stale: usize,
    cursor: usize,
    /// Where the next round of asking begins, so that it is not always the same next hops that have to wait.
    ask_cursor: usize,
    /// There has been a batch since the last tick.
    batch_done: bool,
    ticks: u32,
}

impl Resolver {
    pub(super) fn open(uplink: Ifindex, endpoints: &EndpointTable) -> Result<Self, Error> {
        let netlink = Netlink::open()?;
        let monitor = Monitor::open()?;
        let uplink_mac = netlink.link_by_index(uplink)?.mac;
        let next_hops = endpoints
            .iter()
            .filter(|(_, _, endpoint)| endpoints.class(endpoint).0.tunnel == TunnelType::Stt)
            .map(|(id, _, _)| (id, None))
            .collect();
        Ok(Self {
            netlink,
            monitor,
            uplink,
            uplink_mac,
            next_hops,
            behind: HashMap::new(),
            stale: 0,
            cursor: 0,
            ask_cursor: 0,
            batch_done: false,
            ticks: 0,
        })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }

    /// Reads routes and neighbours of all STT end points, however long that takes: nothing is forwarded yet.
    pub(super) fn begin(&mut self, endpoints: &mut EndpointTable) {
        self.stale = self.next_hops.len();
        let asked = self.read_routes(endpoints, usize::MAX);
        self.apply_neighbours(endpoints, &asked);
    }

    /// Routes may have changed: reads a batch of them now if that has not been done since the last tick, and the others
    /// in the ticks that follow.
    pub(super) fn refresh(&mut self, endpoints: &mut EndpointTable) {
        self.stale = self.next_hops.len();
        if !self.batch_done {
            self.batch(endpoints);
        }
    }

    fn batch(&mut self, endpoints: &mut EndpointTable) {
        self.batch_done = true;
        let confirm = self.read_routes(endpoints, BATCH);
        self.apply_neighbours(endpoints, &confirm);
    }

    /// Reads at most `limit` of the routes that are to be read. Returns the next hops.
    fn read_routes(&mut self, endpoints: &EndpointTable, limit: usize) -> HashSet<IpAddr> {
        let mut read = HashSet::new();
        let mut changed = false;
        for _ in 0..self.stale.min(limit) {
            self.stale -= 1;
            let place = self.cursor;
            self.cursor = (place + 1) % self.next_hops.len();
            let (id, known) = self.next_hops[place];
            let next_hop = self.next_hop(endpoints, id);
            self.next_hops[place].1 = next_hop;
            changed |= next_hop != known;
            read.extend(next_hop);
        }
        if changed {
            self.behind.clear();
            for &(id, next_hop) in &self.next_hops {
                if let Some(next_hop) = next_hop {
                    self.behind.entry(next_hop).or_default().push(id);
                }
            }
        }
        read
    }

    fn next_hop(&self, endpoints: &EndpointTable, id: EndpointId) -> Option<IpAddr> {
        let endpoint = endpoints.get(id)?;
        let (remote, local) = (endpoint.remote(), endpoints.class(endpoint).1);
        let path = self.netlink.route_get(remote, Some(local)).ok()?;
        let leaves = path.oif == self.uplink && !path.local;
        leaves.then(|| path.gateway.unwrap_or(remote))
    }

    /// Takes over the neighbours that the kernel knows. Asks for those that are missing, and for those to `confirm`.
    fn apply_neighbours(&mut self, endpoints: &mut EndpointTable, confirm: &HashSet<IpAddr>) {
        if self.next_hops.is_empty() {
            return;
        }
        let known: HashMap<IpAddr, Neighbour> = match self.netlink.neighbours(Some(self.uplink)) {
            Ok(neighbours) => neighbours.into_iter().map(|n| (n.ip, n)).collect(),
            Err(error) => return tracing::warn!("cannot read neighbours: {error}"),
        };
        let mut asked = HashSet::new();
        let (later, first) = self.next_hops.split_at(self.ask_cursor);
        for (place, &(id, next_hop)) in (self.ask_cursor..).zip(first.iter().chain(later)) {
            let neighbour = next_hop.and_then(|ip| known.get(&ip));
            let hop = self.hop(neighbour);
            endpoints.resolve(id, hop);
            let settled = neighbour.is_some_and(|n| n.state == NeighbourState::Permanent);
            if let Some(ip) = next_hop
                && !settled
                && (hop.is_none() || confirm.contains(&ip))
                && asked.len() < BATCH
                && asked.insert(ip)
            {
                // A refusal shows as an end point that stays unresolved.
                let _ = self.netlink.use_neighbour(self.uplink, ip);
                self.ask_cursor = (place + 1) % self.next_hops.len();
            }
        }
    }

    fn hop(&self, neighbour: Option<&Neighbour>) -> Option<NextHop> {
        let mac = neighbour.and_then(Neighbour::usable_mac);
        mac.map(|destination| NextHop { source: self.uplink_mac, destination })
    }

    /// Takes over what the kernel says has changed.
    pub(super) fn drain(&mut self, forwarder: &mut Forwarder) {
        let events = match self.monitor.drain() {
            Ok(events) => events,
            Err(error) => return tracing::warn!("cannot follow routes and neighbours: {error}"),
        };
        let mut routes = false;
        let mut links = BTreeSet::new();
        let mut neighbours = HashMap::new();
        for event in events {
            match event {
                Event::LinkChanged(link) => drop(links.insert(link.index)),
                Event::LinkRemoved { index, .. } => drop(links.insert(index)),
                Event::NeighbourChanged(neighbour) if neighbour.index == self.uplink => {
                    neighbours.insert(neighbour.ip, neighbour);
                }
                Event::RouteChanged(_)
                | Event::RouteRemoved(_)
                | Event::AddressChanged(_)
                | Event::AddressRemoved(_) => routes = true,
                Event::Lost => {
                    routes = true;
                    links.insert(self.uplink);
                    links.extend(forwarder.out.vifs.iter().filter_map(Vif::ifindex));
                }
                _ => {}
            }
        }
        for index in links {
            routes |= self.read_link(index, forwarder);
        }
        for (ip, neighbour) in &neighbours {
            for &id in self.behind.get(ip).into_iter().flatten() {
                forwarder.endpoints.resolve(id, self.hop(Some(neighbour)));
            }
        }
        if routes {
            self.refresh(&mut forwarder.endpoints);
        }
    }

    /// Reads a link that has changed. True when it is the uplink.
    fn read_link(&mut self, index: Ifindex, forwarder: &mut Forwarder) -> bool {
        let is_uplink = index == self.uplink;
        let mut vifs =
            forwarder.out.vifs.iter_mut().filter(|vif| vif.ifindex() == Some(index)).peekable();
        if !is_uplink && vifs.peek().is_none() {
            return false;
        }
        let link = match self.netlink.link_by_index(index) {
            Ok(link) => Some(link),
            Err(error) if error.is_not_found() => None,
            Err(error) => {
                tracing::warn!("cannot follow a link: {error}");
                return false;
            }
        };
        vifs.for_each(|vif| vif.observe(link.as_ref()));
        if is_uplink {
            forwarder.out.uplink.observe(link.as_ref());
            self.uplink_mac = link.map_or(self.uplink_mac, |link| link.mac);
        }
        is_uplink
    }

    /// Follows the device `uplink`, instead of the one that is gone if there was one. Returns what it is like.
    ///
    /// # Errors
    /// It is gone, too.
    pub(super) fn follow(&mut self, uplink: Ifindex) -> Result<Link, Error> {
        let link = self.netlink.link_by_index(uplink)?;
        (self.uplink, self.uplink_mac) = (uplink, link.mac);
        Ok(link)
    }

    /// Goes on with what is to be read, asks again for what is missing, and now and then for everything.
    pub(super) fn tick(&mut self, endpoints: &mut EndpointTable) {
        self.ticks = self.ticks.wrapping_add(1);
        self.batch_done = false;
        if self.ticks.is_multiple_of(CONFIRM_TICKS) {
            self.stale = self.next_hops.len();
        }
        let missing = |(id, _): &(EndpointId, _)| endpoints.get(*id).is_some_and(|e| !e.resolved);
        if self.stale > 0 || self.next_hops.iter().any(missing) {
            self.batch(endpoints);
        }
    }
}
