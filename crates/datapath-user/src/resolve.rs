//! The Ethernet addresses toward end points, and the links that the datapath stands on.
//!
//! UDP and GRE sockets let the kernel route. STT's super-segments leave through the uplink as whole frames, and programs send all
//! that they encapsulate so: the next hop's MAC address has to be in them. So routes and neighbours are read by netlink, kept up to date by its
//! notifications, and the kernel is asked to resolve (and to keep resolved) what is missing.
//!
//! All of this happens between frames, so it comes in portions: however many end points there are and however often
//! routes change, there is a pause after a portion of lookups, and news of a neighbour touch only the end points behind it. A notification about a link only says that the link has to be read: after a loss, those that are still
//! queued are older than the truth.

use super::fast_path::Resolved;
use datapath::config::EndpointConfig;
use flow::{Carrier, EndpointId, NextHop};
use netdev::{Error, Event, Ifindex, Monitor, Neighbour, NeighbourState, Netlink};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use wire::MacAddr;

/// Ticks between two rounds in which neighbours in use are confirmed, so that the kernel does not forget them.
const CONFIRM_TICKS: u32 = 30;
/// End points whose route is looked up in one portion: some milliseconds.
const ROUTES: usize = 1024;
/// The pause between two portions.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// The same before anything is forwarded. Packets of those behind them take the slow path for a while; those of STT have none, and
/// are never behind them.
const ROUTES_AT_START: usize = 16_384;
/// Next hops that the kernel is asked to resolve in one portion.
const ASKED: usize = 256;

/// An end point to which whole frames are sent.
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

/// Those of the end points to which frames leave whole; those of STT first.
fn targets(endpoints: &[EndpointConfig], of: Whole) -> impl Iterator<Item = Target> + '_ {
    let is_stt = |endpoint: &&EndpointConfig| endpoint.spec.tunnel.carrier() == Carrier::TcpShaped;
    let is_other = move |endpoint: &&EndpointConfig| {
        of == Whole::All && !is_stt(endpoint) && !endpoint.remote.is_multicast()
    };
    let others = endpoints.iter().filter(is_other);
    endpoints.iter().filter(is_stt).chain(others).map(|endpoint| {
        let EndpointConfig { id, local, remote, .. } = *endpoint;
        Target { id, local, remote, next_hop: None, hop: None }
    })
}

/// What is known of a next hop.
#[derive(Debug, Default)]
struct Neighbourhood {
    /// The targets behind it, by their places.
    behind: BTreeSet<usize>,
    hop: Option<NextHop>,
    /// The kernel is to be asked for it, even if it is known.
    confirm: bool,
}

/// What leaves as whole frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whole {
    /// STT alone.
    Stt,
    /// What programs encapsulate, too.
    All,
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
    whole: Whole,
    targets: Vec<Target>,
    next_hops: BTreeMap<IpAddr, Neighbourhood>,
    /// What has changed and nobody has been told yet.
    news: Vec<Resolved>,
    /// How many routes have yet to be read, the first at `cursor` and the others behind it, round the end.
    stale: usize,
    cursor: usize,
    /// Behind which the next round of asking begins, so that it is not always the same next hops that have to wait.
    asked: Option<IpAddr>,
    /// There has been a portion since the last pause.
    portion_done: bool,
    ticks: u32,
}

impl Resolver {
    pub(super) fn open(uplink: Ifindex, whole: Whole) -> Result<Self, Error> {
        let netlink = Netlink::open()?;
        let monitor = Monitor::open()?;
        let uplink_mac = netlink.link_by_index(uplink)?.mac;
        Ok(Self {
            netlink,
            monitor,
            uplink,
            uplink_mac,
            whole,
            targets: Vec::new(),
            next_hops: BTreeMap::new(),
            news: Vec::new(),
            stale: 0,
            cursor: 0,
            asked: None,
            portion_done: false,
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
        // The way to whoever had the number of another end point before is not the way to this one.
        let mut news = Vec::new();
        self.targets.extend(targets(endpoints, self.whole).map(|target| {
            match known.get(&target.id) {
                Some(known) if known.is_same(&target) => return known.clone(),
                Some(_) => news.push((target.id, None)),
                None => {}
            }
            target
        }));
        let hops = self.targets.iter().filter(|target| target.hop.is_some());
        news.extend(hops.map(|target| (target.id, target.hop)));
        self.news = news;
        let known = std::mem::take(&mut self.next_hops);
        for (place, target) in self.targets.iter().enumerate() {
            if let Some(ip) = target.next_hop {
                let entry = self.next_hops.entry(ip).or_insert_with(|| {
                    let hop = known.get(&ip).and_then(|known| known.hop);
                    Neighbourhood { hop, ..Neighbourhood::default() }
                });
                entry.behind.insert(place);
            }
        }
        self.cursor = 0;
        self.refresh();
    }

    /// What has changed since this was asked last.
    pub(super) fn news(&mut self) -> Vec<Resolved> {
        std::mem::take(&mut self.news)
    }

    /// Reads routes and neighbours of all STT end points, however long that takes, and of many others: nothing is forwarded yet.
    pub(super) fn begin(&mut self, endpoints: &[EndpointConfig]) {
        self.stale = self.targets.len();
        self.read_routes(targets(endpoints, Whole::Stt).count().max(ROUTES_AT_START));
        self.apply_neighbours();
    }

    /// Routes may have changed: reads a portion of them now if that has not been done since the last pause, and the others
    /// later.
    pub(super) fn refresh(&mut self) {
        self.stale = self.targets.len();
        if !self.portion_done {
            self.portion();
        }
    }

    fn portion(&mut self) {
        self.portion_done = true;
        self.read_routes(ROUTES);
        self.apply_neighbours();
    }

    /// Reads at most `limit` of the routes that are to be read.
    fn read_routes(&mut self, limit: usize) {
        for _ in 0..self.stale.min(limit) {
            self.stale -= 1;
            let place = self.cursor;
            self.cursor = (place + 1) % self.targets.len();
            let next_hop = self.next_hop(&self.targets[place]);
            self.route(place, next_hop);
        }
    }

    /// Takes over by which next hop a target is reached.
    fn route(&mut self, place: usize, next_hop: Option<IpAddr>) {
        let before = std::mem::replace(&mut self.targets[place].next_hop, next_hop);
        if before == next_hop {
            return;
        }
        if let Some(ip) = before
            && let Some(entry) = self.next_hops.get_mut(&ip)
        {
            entry.behind.remove(&place);
            if entry.behind.is_empty() {
                self.next_hops.remove(&ip);
            }
        }
        let hop = next_hop.and_then(|ip| {
            let entry = self.next_hops.entry(ip).or_default();
            entry.behind.insert(place);
            entry.hop
        });
        self.resolve(place, hop);
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

    /// Takes over how a next hop is reached.
    fn reach(&mut self, ip: IpAddr, hop: Option<NextHop>) {
        let Some(entry) = self.next_hops.get_mut(&ip).filter(|entry| entry.hop != hop) else {
            return;
        };
        entry.hop = hop;
        let behind = std::mem::take(&mut entry.behind);
        behind.iter().for_each(|place| self.resolve(*place, hop));
        if let Some(entry) = self.next_hops.get_mut(&ip) {
            entry.behind = behind;
        }
    }

    /// Takes over the neighbours that the kernel knows. Asks for those that are missing, and for those to be confirmed.
    fn apply_neighbours(&mut self) {
        if self.next_hops.is_empty() {
            return;
        }
        let known: HashMap<IpAddr, Neighbour> = match self.netlink.neighbours(Some(self.uplink)) {
            Ok(neighbours) => neighbours.into_iter().map(|n| (n.ip, n)).collect(),
            Err(error) => return tracing::warn!("cannot read neighbours: {error}"),
        };
        let next_hops: Vec<IpAddr> = self.next_hops.keys().copied().collect();
        for &ip in &next_hops {
            self.reach(ip, self.hop(known.get(&ip)));
        }
        let first = next_hops.partition_point(|ip| self.asked.is_some_and(|asked| *ip <= asked));
        let mut left = ASKED;
        for ip in next_hops[first..].iter().chain(&next_hops[..first]) {
            let Some(entry) = self.next_hops.get_mut(ip) else { continue };
            let settled = known.get(ip).is_some_and(|n| n.state == NeighbourState::Permanent);
            if settled {
                entry.confirm = false;
            }
            if settled || (entry.hop.is_some() && !entry.confirm) {
                continue;
            }
            if left == 0 {
                return;
            }
            left -= 1;
            entry.confirm = false;
            self.asked = Some(*ip);
            // A refusal shows as an end point that stays unresolved.
            let _ = self.netlink.use_neighbour(self.uplink, *ip);
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
            self.reach(*ip, self.hop(Some(neighbour)));
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

    /// True while there are routes to be read: [`go_on`](Self::go_on) after a [`PAUSE`].
    pub(super) fn is_behind(&self) -> bool {
        self.stale > 0
    }

    /// Reads the next portion.
    pub(super) fn go_on(&mut self) {
        self.portion_done = false;
        if self.is_behind() {
            self.portion();
        }
    }

    /// Goes on with what is to be read, asks again for what is missing, and now and then for everything.
    pub(super) fn tick(&mut self) {
        self.ticks = self.ticks.wrapping_add(1);
        self.portion_done = false;
        if self.ticks.is_multiple_of(CONFIRM_TICKS) {
            self.stale = self.targets.len();
            self.next_hops.values_mut().for_each(|entry| entry.confirm = true);
        }
        let is_open = |entry: &Neighbourhood| entry.confirm || entry.hop.is_none();
        if self.stale > 0 || self.next_hops.values().any(is_open) {
            self.portion();
        }
    }
}
