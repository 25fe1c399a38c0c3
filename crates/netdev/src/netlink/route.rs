//! Routes: add, delete, look up.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol,
    RouteScope, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::address::family_of;
use super::{Ifindex, Netlink};
use crate::{Error, Result};

/// A unicast route. Routes are added to and deleted from the main table; events of a
/// [`Monitor`](crate::Monitor) report routes of all tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The destination network; host bits are ignored.
    pub destination: IpNet,
    /// The next hop; `None` when the destination is on the link. It may be of the other IP family
    /// (RFC 5549).
    pub gateway: Option<IpAddr>,
    /// The outgoing link; the kernel can derive it from the gateway.
    pub oif: Option<Ifindex>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
    /// The MTU of this route in bytes, where it is less than the link's.
    pub mtu: Option<u32>,
    /// Its metric; among equal prefixes the lowest wins.
    pub metric: Option<u32>,
}

impl Route {
    /// A route to `destination` through a gateway.
    pub const fn via(destination: IpNet, gateway: IpAddr) -> Self {
        Self { gateway: Some(gateway), ..Self::new(destination) }
    }

    /// A route to `destination`, which is on the link `oif`.
    pub const fn on_link(destination: IpNet, oif: Ifindex) -> Self {
        Self { oif: Some(oif), ..Self::new(destination) }
    }

    const fn new(destination: IpNet) -> Self {
        Self { destination, gateway: None, oif: None, source: None, mtu: None, metric: None }
    }

    /// `None` for a family other than IP, and for a route that is not unicast.
    pub(super) fn from_message(message: &RouteMessage) -> Option<Self> {
        let header = &message.header;
        let any = match header.address_family {
            AddressFamily::Inet => IpAddr::from([0; 4]),
            AddressFamily::Inet6 => IpAddr::from([0; 16]),
            _ => return None,
        };
        if header.kind != RouteType::Unicast {
            return None;
        }
        let facts = RouteAttributes::of(&message.attributes);
        let destination = facts.destination.unwrap_or(any);
        Some(Self {
            destination: IpNet::new(destination, header.destination_prefix_length).ok()?,
            gateway: facts.gateway,
            oif: facts.oif,
            source: facts.source,
            mtu: facts.mtu,
            metric: facts.metric,
        })
    }

    fn message(&self) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = family_of(self.destination.addr());
        message.header.destination_prefix_length = self.destination.prefix_len();
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        let attributes = &mut message.attributes;
        attributes.push(RouteAttribute::Destination(self.destination.network().into()));
        attributes.extend(self.gateway.map(|gateway| match (self.destination.addr(), gateway) {
            (IpAddr::V4(_), IpAddr::V6(gateway)) => RouteAttribute::Via(RouteVia::Inet6(gateway)),
            _ => RouteAttribute::Gateway(gateway.into()),
        }));
        attributes.extend(self.oif.map(|index| RouteAttribute::Oif(index.0)));
        attributes.extend(self.source.map(|source| RouteAttribute::PrefSource(source.into())));
        attributes.extend(self.metric.map(RouteAttribute::Priority));
        message
    }
}

/// The result of a route lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoutePath {
    /// The outgoing link.
    pub oif: Ifindex,
    /// The source address.
    pub source: Option<IpAddr>,
    /// The next hop; `None` when the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The path MTU in bytes: the least of the link's, the route's, and what path MTU discovery
    /// found.
    pub mtu: u32,
    /// The destination is an address of this namespace.
    pub local: bool,
}

impl Netlink {
    /// Adds a route to the main table.
    ///
    /// # Errors
    /// [`Error::is_exists`] when the table has a route with the same destination and metric;
    /// `ENETUNREACH` when the gateway is on no link.
    pub fn add_route(&self, route: &Route) -> Result<()> {
        let mut message = route.message();
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        if route.gateway.is_none() && route.destination.addr().is_ipv4() {
            message.header.scope = RouteScope::Link;
        }
        if let Some(bytes) = route.mtu {
            message.attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(bytes)]));
        }
        let what = format!("add a route to {}", route.destination);
        self.change(&what, RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Deletes the first route of the main table that has this destination and the other given
    /// values.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when there is none.
    pub fn delete_route(&self, route: &Route) -> Result<()> {
        let mut message = route.message();
        message.header.scope = RouteScope::NoWhere;
        let what = format!("delete the route to {}", route.destination);
        self.change(&what, RouteNetlinkMessage::DelRoute(message), 0)
    }

    /// Looks up the route of a packet to `destination`, optionally sent from the local address
    /// `source`.
    ///
    /// # Errors
    /// `ENETUNREACH` or `EHOSTUNREACH` without a route, `EINVAL` when `source` is not local.
    pub fn route_get(&self, destination: IpAddr, source: Option<IpAddr>) -> Result<RoutePath> {
        let what = format!("find the route to {destination}");
        let mut message = RouteMessage::default();
        message.header.address_family = family_of(destination);
        message.header.destination_prefix_length = IpNet::from(destination).prefix_len();
        message.attributes.push(RouteAttribute::Destination(destination.into()));
        if let Some(source) = source {
            message.header.source_prefix_length = IpNet::from(source).prefix_len();
            message.attributes.push(RouteAttribute::Source(source.into()));
        }
        let RouteNetlinkMessage::NewRoute(answer) =
            self.query(&what, RouteNetlinkMessage::GetRoute(message))?
        else {
            return Err(Error::malformed(what, "not a route"));
        };
        let facts = RouteAttributes::of(&answer.attributes);
        let oif = facts.oif.ok_or_else(|| Error::malformed(what, "a route without a link"))?;
        let link_mtu = self.link_by_index(oif)?.mtu;
        Ok(RoutePath {
            oif,
            source: facts.source.or(source),
            gateway: facts.gateway,
            mtu: facts.mtu.map_or(link_mtu, |mtu| mtu.min(link_mtu)),
            local: answer.header.kind == RouteType::Local,
        })
    }
}

/// The attributes of a route message that [`Route`] and [`RoutePath`] need.
#[derive(Default)]
struct RouteAttributes {
    destination: Option<IpAddr>,
    gateway: Option<IpAddr>,
    oif: Option<Ifindex>,
    source: Option<IpAddr>,
    mtu: Option<u32>,
    metric: Option<u32>,
}

impl RouteAttributes {
    fn of(attributes: &[RouteAttribute]) -> Self {
        let mut facts = Self::default();
        facts.take(attributes);
        facts
    }

    fn take(&mut self, attributes: &[RouteAttribute]) {
        for attribute in attributes {
            match attribute {
                RouteAttribute::Destination(address) => self.destination = ip_of(address),
                RouteAttribute::Gateway(address) => self.gateway = ip_of(address),
                RouteAttribute::Via(RouteVia::Inet(address)) => {
                    self.gateway = Some((*address).into());
                }
                RouteAttribute::Via(RouteVia::Inet6(address)) => {
                    self.gateway = Some((*address).into());
                }
                RouteAttribute::Oif(index) => self.oif = Some(Ifindex(*index)),
                RouteAttribute::PrefSource(address) => self.source = ip_of(address),
                RouteAttribute::Priority(metric) => self.metric = Some(*metric),
                RouteAttribute::Metrics(metrics) => {
                    self.mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(bytes) if *bytes != 0 => Some(*bytes),
                        _ => None,
                    });
                }
                // The first next hop of a multipath route represents all.
                RouteAttribute::MultiPath(hops) => {
                    if let Some(hop) = hops.first() {
                        self.oif = Some(Ifindex(hop.interface_index));
                        self.take(&hop.attributes);
                    }
                }
                _ => {}
            }
        }
    }
}

fn ip_of(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_keeps_what_matters_when_it_goes_through_a_message() {
        let route = Route {
            oif: Some(Ifindex(7)),
            source: Some("10.0.0.1".parse().unwrap()),
            metric: Some(50),
            ..Route::via("10.9.8.7/16".parse().unwrap(), "fe80::1".parse().unwrap())
        };
        let mut message = route.message();
        assert_eq!(Route::from_message(&message), None, "not yet a unicast route");
        message.header.kind = RouteType::Unicast;
        let expected = Route { destination: "10.9.0.0/16".parse().unwrap(), ..route };
        assert_eq!(Route::from_message(&message), Some(expected));
    }

    #[test]
    fn default_route_is_recognised_when_it_has_no_destination() {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet6;
        message.header.kind = RouteType::Unicast;
        let route = Route::from_message(&message).unwrap();
        assert_eq!(route.destination.to_string(), "::/0");
    }
}
