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

use super::config::EndpointConfig;
use flow::{EndpointId, NextHop, TunnelType};
use netdev::{Error, Event, Ifindex, Monitor, Neighbour, NeighbourState, Netlink};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use wire::MacAddr;

/// Ticks between two rounds in which neighbours in use are confirmed, so that the kernel does not forget them.
const CONFIRM_TICKS: u32 = 30;
/// End points whose route is looked up in one tick, and next hops that the kernel is asked to resolve: some milliseconds.
const BATCH: usize = 256;

/// The Ethernet addresses toward an end point; `None` when they are not known.
pub(super) type Resolved = (EndpointId, Option<NextHop>);

/// An end point of STT.
#[derive(Clone, Debug)]
struct Target {
    id: EndpointId,
    local: IpAddr,
    remote: IpAddr,
    /// The router or host that a frame to it goes to next; `None` without a route.
    next_hop: Option<IpAddr>,
    hop: Option<NextHop>,
}

impl Target {
    fn is_same(&self, other: &Self) -> bool {
        (self.id, self.local, self.remote) == (other.id, other.local, other.remote)
    }
}

/// Those of the end points to which frames leave whole.
fn targets(endpoints: &[EndpointConfig]) -> impl Iterator<Item = Target> + '_ {
    endpoints.iter().filter(|endpoint| endpoint.spec.tunnel == TunnelType::Stt).map(|endpoint| {
        let EndpointConfig { id, local, remote, .. } = *endpoint;
        Target { id, local, remote, next_hop: None, hop: None }
    })
}

/// What has to be looked at beside routes and neighbours.
#[derive(Debug, Default)]
pub(super) struct LinkNews {
    /// Links that have changed or are gone.
    pub(super) links: BTreeSet<Ifindex>,
    /// Messages were lost: every link may have changed.
    pub(super) all: bool,
}

#[derive(Debug)]
pub(super) struct Resolver {
    netlink: Netlink,
    monitor: Monitor,
    uplink: Ifindex,
    uplink_mac: MacAddr,
    targets: Vec<Target>,
    /// The targets behind each next hop.
    behind: HashMap<IpAddr, Vec<usize>>,
    /// What has changed and nobody has been told yet.
    news: Vec<Resolved>,
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
    pub(super) fn open(uplink: Ifindex) -> Result<Self, Error> {
        let netlink = Netlink::open()?;
        let monitor = Monitor::open()?;
        let uplink_mac = netlink.link_by_index(uplink)?.mac;
        Ok(Self {
            netlink,
            monitor,
            uplink,
            uplink_mac,
            targets: Vec::new(),
            behind: HashMap::new(),
            news: Vec::new(),
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

    /// Goes over to other end points. What is known of those that stay is told again: they may be new to whoever listens.
    pub(super) fn follow_endpoints(&mut self, endpoints: &[EndpointConfig]) {
        let known: HashMap<EndpointId, Target> =
            self.targets.drain(..).map(|target| (target.id, target)).collect();
        self.targets.extend(targets(endpoints).map(|target| {
            let same = known.get(&target.id).filter(|known| known.is_same(&target));
            same.cloned().unwrap_or(target)
        }));
        let hops = self.targets.iter().filter(|target| target.hop.is_some());
        self.news = hops.map(|target| (target.id, target.hop)).collect();
        self.behind.clear();
        for (place, target) in self.targets.iter().enumerate() {
            if let Some(next_hop) = target.next_hop {
                self.behind.entry(next_hop).or_default().push(place);
            }
        }
        (self.cursor, self.ask_cursor) = (0, 0);
        self.refresh();
    }

    /// What has changed since this was asked last.
    pub(super) fn news(&mut self) -> Vec<Resolved> {
        std::mem::take(&mut self.news)
    }

    /// Reads routes and neighbours of all STT end points, however long that takes: nothing is forwarded yet.
    pub(super) fn begin(&mut self) {
        self.stale = self.targets.len();
        let asked = self.read_routes(usize::MAX);
        self.apply_neighbours(&asked);
    }

    /// Routes may have changed: reads a batch of them now if that has not been done since the last tick, and the others
    /// in the ticks that follow.
    pub(super) fn refresh(&mut self) {
        self.stale = self.targets.len();
        if !self.batch_done {
            self.batch();
        }
    }

    fn batch(&mut self) {
        self.batch_done = true;
        let confirm = self.read_routes(BATCH);
        self.apply_neighbours(&confirm);
    }

    /// Reads at most `limit` of the routes that are to be read. Returns the next hops.
    fn read_routes(&mut self, limit: usize) -> HashSet<IpAddr> {
        let mut read = HashSet::new();
        let mut changed = false;
        for _ in 0..self.stale.min(limit) {
            self.stale -= 1;
            let place = self.cursor;
            self.cursor = (place + 1) % self.targets.len();
            let next_hop = self.next_hop(&self.targets[place]);
            changed |= next_hop != self.targets[place].next_hop;
            self.targets[place].next_hop = next_hop;
            read.extend(next_hop);
        }
        if changed {
            self.behind.clear();
            for (place, target) in self.targets.iter().enumerate() {
                if let Some(next_hop) = target.next_hop {
                    self.behind.entry(next_hop).or_default().push(place);
                }
            }
        }
        read
    }

    fn next_hop(&self, target: &Target) -> Option<IpAddr> {
        let path = self.netlink.route_get(target.remote, Some(target.local)).ok()?;
        let leaves = path.oif == self.uplink && !path.local;
        leaves.then(|| path.gateway.unwrap_or(target.remote))
    }

    fn resolve(&mut self, place: usize, hop: Option<NextHop>) {
        let target = &mut self.targets[place];
        if target.hop != hop {
            target.hop = hop;
            self.news.push((target.id, hop));
        }
    }

    /// Takes over the neighbours that the kernel knows. Asks for those that are missing, and for those to `confirm`.
    fn apply_neighbours(&mut self, confirm: &HashSet<IpAddr>) {
        if self.targets.is_empty() {
            return;
        }
        let known: HashMap<IpAddr, Neighbour> = match self.netlink.neighbours(Some(self.uplink)) {
            Ok(neighbours) => neighbours.into_iter().map(|n| (n.ip, n)).collect(),
            Err(error) => return tracing::warn!("cannot read neighbours: {error}"),
        };
        let mut asked = HashSet::new();
        let (count, first) = (self.targets.len(), self.ask_cursor);
        for place in (first..count).chain(0..first) {
            let next_hop = self.targets[place].next_hop;
            let neighbour = next_hop.and_then(|ip| known.get(&ip));
            let hop = self.hop(neighbour);
            self.resolve(place, hop);
            let settled = neighbour.is_some_and(|n| n.state == NeighbourState::Permanent);
            if let Some(ip) = next_hop
                && !settled
                && (hop.is_none() || confirm.contains(&ip))
                && asked.len() < BATCH
                && asked.insert(ip)
            {
                // A refusal shows as an end point that stays unresolved.
                let _ = self.netlink.use_neighbour(self.uplink, ip);
                self.ask_cursor = (place + 1) % count;
            }
        }
    }

    fn hop(&self, neighbour: Option<&Neighbour>) -> Option<NextHop> {
        let mac = neighbour.and_then(Neighbour::usable_mac);
        mac.map(|destination| NextHop { source: self.uplink_mac, destination })
    }

    /// Takes over what the kernel says has changed of routes and neighbours; links are for the caller.
    pub(super) fn drain(&mut self) -> LinkNews {
        let mut links = LinkNews::default();
        let events = match self.monitor.drain() {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!("cannot follow routes and neighbours: {error}");
                return links;
            }
        };
        let mut routes = false;
        let mut neighbours = HashMap::new();
        for event in events {
            match event {
                Event::LinkChanged(link) => drop(links.links.insert(link.index)),
                Event::LinkRemoved { index, .. } => drop(links.links.insert(index)),
                Event::NeighbourChanged(neighbour) if neighbour.index == self.uplink => {
                    neighbours.insert(neighbour.ip, neighbour);
                }
                Event::RouteChanged(_)
                | Event::RouteRemoved(_)
                | Event::AddressChanged(_)
                | Event::AddressRemoved(_) => routes = true,
                Event::Lost => (routes, links.all) = (true, true),
                _ => {}
            }
        }
        for (ip, neighbour) in &neighbours {
            let hop = self.hop(Some(neighbour));
            for place in self.behind.get(ip).cloned().unwrap_or_default() {
                self.resolve(place, hop);
            }
        }
        if routes {
            self.refresh();
        }
        links
    }

    /// Follows the device `uplink`, which has this address now.
    pub(super) fn follow(&mut self, uplink: Ifindex, mac: MacAddr) {
        (self.uplink, self.uplink_mac) = (uplink, mac);
    }

    /// Goes on with what is to be read, asks again for what is missing, and now and then for everything.
    pub(super) fn tick(&mut self) {
        self.ticks = self.ticks.wrapping_add(1);
        self.batch_done = false;
        if self.ticks.is_multiple_of(CONFIRM_TICKS) {
            self.stale = self.targets.len();
        }
        if self.stale > 0 || self.targets.iter().any(|target| target.hop.is_none()) {
            self.batch();
        }
    }
}
