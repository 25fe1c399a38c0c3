//! The Ethernet addresses toward STT end points.
//!
//! UDP and GRE sockets let the kernel route. STT's super-segments leave through the uplink as whole frames, so the
//! next hop's MAC address has to be in them: routes and neighbours are read by netlink, kept up to date by its
//! notifications, and the kernel is asked to resolve (and to keep resolved) what is missing.

use super::forward::Forwarder;
use super::uplink::State;
use flow::{EndpointId, EndpointTable, NextHop, TunnelType};
use netdev::{Error, Event, Ifindex, Monitor, Neighbour, NeighbourState, Netlink};
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use wire::MacAddr;

/// Ticks between two rounds in which neighbours in use are confirmed, so that the kernel does not forget them.
const CONFIRM_TICKS: u32 = 30;

#[derive(Debug)]
pub(super) struct Resolver {
    netlink: Netlink,
    monitor: Monitor,
    uplink: Ifindex,
    uplink_mac: MacAddr,
    /// STT end points with the address of the router or host that a frame to them goes to next; `None` without a route.
    next_hops: Vec<(EndpointId, Option<IpAddr>)>,
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
        Ok(Self { netlink, monitor, uplink, uplink_mac, next_hops, ticks: 0 })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }

    /// Reads routes and neighbours of all STT end points anew.
    pub(super) fn refresh(&mut self, endpoints: &mut EndpointTable) {
        for (id, next_hop) in &mut self.next_hops {
            let Some(endpoint) = endpoints.get(*id) else { continue };
            let (remote, local) = (endpoint.remote(), endpoints.class(endpoint).1);
            let path = self.netlink.route_get(remote, Some(local)).ok();
            *next_hop = path
                .filter(|path| path.oif == self.uplink && !path.local)
                .map(|path| path.gateway.unwrap_or(remote));
        }
        self.apply_neighbours(endpoints, true);
    }

    /// Takes over the neighbours that the kernel knows; `confirm`s them, too.
    fn apply_neighbours(&self, endpoints: &mut EndpointTable, confirm: bool) {
        if self.next_hops.is_empty() {
            return;
        }
        let known: HashMap<IpAddr, Neighbour> = match self.netlink.neighbours(Some(self.uplink)) {
            Ok(neighbours) => neighbours.into_iter().map(|n| (n.ip, n)).collect(),
            Err(error) => return tracing::warn!("cannot read neighbours: {error}"),
        };
        for (id, next_hop) in &self.next_hops {
            let neighbour = next_hop.and_then(|ip| known.get(&ip));
            let mac = neighbour.and_then(Neighbour::usable_mac);
            let hop = mac.map(|destination| NextHop { source: self.uplink_mac, destination });
            endpoints.resolve(*id, hop);
            let settled = neighbour.is_some_and(|n| n.state == NeighbourState::Permanent);
            if let Some(ip) = next_hop
                && !settled
                && (confirm || hop.is_none())
            {
                // A refusal shows as an end point that stays unresolved.
                let _ = self.netlink.use_neighbour(self.uplink, *ip);
            }
        }
    }

    /// Takes over what the kernel says has changed.
    pub(super) fn drain(&mut self, forwarder: &mut Forwarder) {
        let events = match self.monitor.drain() {
            Ok(events) => events,
            Err(error) => return tracing::warn!("cannot follow routes and neighbours: {error}"),
        };
        let mut routes = false;
        for event in events {
            match event {
                Event::LinkChanged(link) if link.index == self.uplink => {
                    let up = link.up && link.running;
                    forwarder.out.uplink.set_state(if up { State::Up } else { State::Down });
                    self.uplink_mac = link.mac;
                    routes = true;
                }
                Event::LinkRemoved { index, .. } if index == self.uplink => {
                    forwarder.out.uplink.set_state(State::Gone);
                    routes = true;
                }
                Event::NeighbourChanged(neighbour) => self.neighbour_changed(&neighbour, forwarder),
                Event::RouteChanged(_)
                | Event::RouteRemoved(_)
                | Event::AddressChanged(_)
                | Event::AddressRemoved(_)
                | Event::Lost => routes = true,
                _ => {}
            }
        }
        if routes {
            self.refresh(&mut forwarder.endpoints);
        }
    }

    fn neighbour_changed(&self, neighbour: &Neighbour, forwarder: &mut Forwarder) {
        if neighbour.index != self.uplink {
            return;
        }
        let mac = neighbour.usable_mac();
        let hop = mac.map(|destination| NextHop { source: self.uplink_mac, destination });
        for (id, _) in self.next_hops.iter().filter(|(_, next)| *next == Some(neighbour.ip)) {
            forwarder.endpoints.resolve(*id, hop);
        }
    }

    /// Follows the device `uplink` instead of the one that is gone. Returns its state.
    ///
    /// # Errors
    /// It is gone, too.
    pub(super) fn follow(&mut self, uplink: Ifindex) -> Result<State, Error> {
        let link = self.netlink.link_by_index(uplink)?;
        (self.uplink, self.uplink_mac) = (uplink, link.mac);
        Ok(if link.up && link.running { State::Up } else { State::Down })
    }

    /// Asks again for what is missing, and now and then for everything.
    pub(super) fn tick(&mut self, endpoints: &mut EndpointTable) {
        self.ticks = self.ticks.wrapping_add(1);
        if self.ticks.is_multiple_of(CONFIRM_TICKS) {
            self.refresh(endpoints);
        } else if self
            .next_hops
            .iter()
            .any(|(id, _)| endpoints.get(*id).is_some_and(|e| !e.resolved))
        {
            self.apply_neighbours(endpoints, false);
        }
    }
}
