//! Answers the requests about tracked connections.

use super::Daemon;
use super::deployment::{Deployment, list_names};
use crate::control::replies::{
    ConnectionEnds, ConnectionRow, ConnectionTotals, ConnectionUse, FlushReply,
};
use crate::control::{Connection as Client, ConnectionFilter};
use chassis::BalancedPair;
use conntrack::{
    Connection, CtDrop, Cursor, Invalid, LimitUsage, ProtocolState, SctpState, TcpState, Tuple,
    Zone,
};
use datapath::tracker::{Tracker, Usage};
use flow::PortNo;
use pipeline::{CtZones, ZoneUser};
use serde_json::json;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use wire::ip::Protocol;

/// The names of protocols.
const PROTOCOLS: [(Protocol, &str); 5] = [
    (Protocol::TCP, "tcp"),
    (Protocol::UDP, "udp"),
    (Protocol::SCTP, "sctp"),
    (Protocol::ICMP, "icmp"),
    (Protocol::ICMPV6, "icmp6"),
];

/// The states of TCP and SCTP that a connection in the table can have.
const STATES: [&str; 16] = [
    TcpState::SynSent.name(),
    TcpState::SynRecv.name(),
    TcpState::Established.name(),
    TcpState::FinWait.name(),
    TcpState::CloseWait.name(),
    TcpState::LastAck.name(),
    TcpState::TimeWait.name(),
    TcpState::Close.name(),
    TcpState::SynSent2.name(),
    SctpState::Closed.name(),
    SctpState::CookieWait.name(),
    SctpState::CookieEchoed.name(),
    SctpState::ShutdownSent.name(),
    SctpState::ShutdownReceived.name(),
    SctpState::ShutdownAckSent.name(),
    SctpState::HeartbeatSent.name(),
];
/// The states of connections of other protocols.
const OTHER_STATES: [&str; 3] = ["UNREPLIED", "REPLIED", "ASSURED"];

/// The users of zones, by number.
struct ZoneNames(HashMap<u16, String>);

impl ZoneNames {
    fn new(zones: &CtZones) -> Self {
        let name = |user: &ZoneUser| match user {
            ZoneUser::Port { datapath, port } => format!("{datapath}/{port}"),
            ZoneUser::Dnat(router) => format!("{router} dnat"),
            ZoneUser::Snat(router) => format!("{router} snat"),
            ZoneUser::Hairpin(switch) => format!("{switch} hairpin"),
            ZoneUser::Bridge { datapath, zone } => format!("{datapath} zone {zone}"),
        };
        Self(zones.iter().map(|(user, zone)| (zone, name(user))).collect())
    }

    fn name(&self, zone: Zone) -> Option<&str> {
        self.0.get(&zone.0).map(String::as_str)
    }
}

/// An end of a connection, or a condition for one: an IP address and a port, each optional.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct End {
    pub ip: Option<IpAddr>,
    pub port: Option<u16>,
}

impl End {
    fn parse(text: &str) -> Result<Self, String> {
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return Ok(Self { ip: Some(socket.ip()), port: Some(socket.port()) });
        }
        if let Some(Ok(port)) = text.strip_prefix(':').map(str::parse) {
            return Ok(Self { ip: None, port: Some(port) });
        }
        text.parse().map(|ip| Self { ip: Some(ip), port: None }).map_err(|_| {
            format!(
                "`{text}` is no address: write for example 10.0.0.1, 10.0.0.1:80, [fd00::1]:80 \
                 or :80"
            )
        })
    }

    /// Source and destination of packets with this tuple.
    pub fn of(tuple: &Tuple) -> [Self; 2] {
        let ports = tuple.has_ports().then(|| tuple.ports());
        [
            Self { ip: Some(tuple.src()), port: ports.map(|(src, _)| src) },
            Self { ip: Some(tuple.dst()), port: ports.map(|(_, dst)| dst) },
        ]
    }

    /// Whether the end `own` of a connection meets this condition. A missing member matches every
    /// value.
    pub fn accepts(self, own: Self) -> bool {
        (self.ip.is_none() || self.ip == own.ip) && (self.port.is_none() || self.port == own.port)
    }
}

/// A [`ConnectionFilter`], checked.
struct Matcher {
    zone: Option<Zone>,
    opener: Option<PortNo>,
    address: Option<End>,
    /// Source and destination of the original direction, and of replies.
    ends: [End; 4],
    protocol: Option<Protocol>,
    state: Option<&'static str>,
}

impl Matcher {
    fn new(
        filter: &ConnectionFilter,
        deployment: &Deployment,
        zones: &ZoneNames,
    ) -> Result<Self, String> {
        let ConnectionFilter {
            zone,
            port,
            address,
            src,
            dst,
            reply_src,
            reply_dst,
            protocol,
            state,
        } = filter;
        let end = |text: &Option<String>| text.as_deref().map_or(Ok(End::default()), End::parse);
        Ok(Self {
            zone: zone.as_deref().map(|zone| parse_zone(zone, zones)).transpose()?,
            opener: port.as_deref().map(|name| deployment.any_port(name)).transpose()?,
            address: address.as_deref().map(End::parse).transpose()?,
            ends: [end(src)?, end(dst)?, end(reply_src)?, end(reply_dst)?],
            protocol: protocol.as_deref().map(parse_protocol).transpose()?,
            state: state.as_deref().map(parse_state).transpose()?,
        })
    }

    fn accepts(&self, connection: &Connection) -> bool {
        let Connection { original, reply, .. } = connection;
        let [[src, dst], [reply_src, reply_dst]] = [original, reply].map(End::of);
        let own = [src, dst, reply_src, reply_dst];
        self.zone.is_none_or(|zone| zone == connection.zone)
            && self.opener.is_none_or(|opener| opener == connection.opener)
            && self.protocol.is_none_or(|protocol| protocol == original.protocol())
            && self.address.is_none_or(|end| own.into_iter().any(|own| end.accepts(own)))
            && self.ends.iter().zip(own).all(|(end, own)| end.accepts(own))
            && self.state.is_none_or(|state| state == state_name(connection))
    }
}

fn parse_zone(text: &str, zones: &ZoneNames) -> Result<Zone, String> {
    if let Ok(number) = text.parse() {
        return Ok(Zone(number));
    }
    let found = zones.0.iter().find(|(_, name)| *name == text).map(|(zone, _)| Zone(*zone));
    found.ok_or_else(|| {
        format!(
            "there is no zone `{text}`: write its number, or its user as SWITCH/PORT, \
             `ROUTER dnat`, `ROUTER snat`, `SWITCH hairpin` or `BRIDGE zone N`"
        )
    })
}

fn parse_protocol(text: &str) -> Result<Protocol, String> {
    let named = PROTOCOLS.iter().find(|(_, name)| *name == text).map(|(protocol, _)| *protocol);
    named.or_else(|| text.parse().ok().map(Protocol)).ok_or_else(|| {
        format!("unknown protocol `{text}`: write tcp, udp, sctp, icmp, icmp6 or a number")
    })
}

fn parse_state(text: &str) -> Result<&'static str, String> {
    let mut known = STATES.iter().chain(&OTHER_STATES);
    known.find(|known| known.eq_ignore_ascii_case(text)).copied().ok_or_else(|| {
        let known: Vec<_> = STATES.iter().chain(&OTHER_STATES).copied().collect();
        format!("unknown state `{text}`: use one of {}", list_names(&known))
    })
}

fn protocol_name(protocol: Protocol) -> String {
    let named = PROTOCOLS.iter().find(|(known, _)| *known == protocol);
    named.map_or_else(|| protocol.0.to_string(), |(_, name)| (*name).to_owned())
}

const fn state_name(connection: &Connection) -> &'static str {
    match connection.state {
        ProtocolState::Tcp(state) => state.name(),
        ProtocolState::Sctp(state) => state.name(),
        ProtocolState::Udp(_) | ProtocolState::Icmp | ProtocolState::Other => {
            match (connection.seen_reply, connection.assured) {
                (false, false) => OTHER_STATES[0],
                (true, false) => OTHER_STATES[1],
                (_, true) => OTHER_STATES[2],
            }
        }
    }
}

fn ends(tuple: &Tuple) -> ConnectionEnds {
    let ports = tuple.has_ports().then(|| tuple.ports());
    let icmp = tuple.icmp_fields();
    ConnectionEnds {
        src: tuple.src(),
        dst: tuple.dst(),
        src_port: ports.map(|(src, _)| src),
        dst_port: ports.map(|(_, dst)| dst),
        icmp_id: icmp.map(|(.., id)| id),
        icmp_type: icmp.map(|(kind, ..)| kind),
        icmp_code: icmp.map(|(_, code, _)| code),
    }
}

fn row(
    connection: &Connection,
    expires_ms: u64,
    deployment: &Deployment,
    zones: &ZoneNames,
) -> ConnectionRow {
    ConnectionRow {
        zone: connection.zone.0,
        user: zones.name(connection.zone).map(str::to_owned),
        protocol: protocol_name(connection.original.protocol()),
        original: ends(&connection.original),
        reply: ends(&connection.reply),
        state: state_name(connection).to_owned(),
        source_nat: connection.source_nat,
        destination_nat: connection.destination_nat,
        mark: connection.mark,
        label: format!("{:#x}", connection.label),
        port: deployment.port_name(connection.opener),
        expires_ms,
    }
}

impl Daemon {
    /// Streams the connections.
    pub(super) fn connections(
        &self,
        filter: &ConnectionFilter,
        client: &mut Client,
    ) -> io::Result<()> {
        let zones = ZoneNames::new(self.switch.program().zones());
        let matcher = match Matcher::new(filter, &self.deployment(), &zones) {
            Ok(matcher) => matcher,
            Err(error) => return client.reject(&error),
        };
        client.ok(&json!({}))?;
        self.visit_connections(|connection, expires_ms, deployment| {
            match matcher.accepts(connection) {
                true => client.row(&row(connection, expires_ms, deployment, &zones)),
                false => Ok(()),
            }
        })?;
        client.end(&self.connection_totals())
    }

    /// Calls `visit` for each connection, with the milliseconds until it expires. Stops when
    /// `visit` fails.
    fn visit_connections<E>(
        &self,
        mut visit: impl FnMut(&Connection, u64, &Deployment) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut next = Some(Cursor::default());
        while let (Some(from), Some(tracker)) = (next.take(), self.datapath.tracker()) {
            let (found, then) = tracker.batch(from);
            let deployment = self.deployment();
            for (connection, expires_ms) in found {
                visit(&connection, expires_ms, &deployment)?;
            }
            next = then;
        }
        Ok(())
    }

    /// Calls `visit` for each connection of a zone, or of all zones, with the names of its protocol
    /// and state. Stops when `visit` fails.
    pub(super) fn connections_in<E>(
        &self,
        zone: Option<Zone>,
        mut visit: impl FnMut(&Connection, &str, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        self.visit_connections(|connection, _, _| {
            if zone.is_some_and(|zone| zone != connection.zone) {
                return Ok(());
            }
            let protocol = protocol_name(connection.original.protocol());
            visit(connection, &protocol, state_name(connection))
        })
    }

    /// Removes the connections of a zone, or of all zones, that `is_selected` accepts. It gets the
    /// tuples of the original and of the reply direction.
    pub(super) fn flush_tuples(
        &self,
        zone: Option<Zone>,
        is_selected: impl Fn(&Tuple, &Tuple) -> bool,
    ) {
        if let Some(tracker) = self.datapath.tracker() {
            tracker.flush(|connection| {
                zone.is_none_or(|zone| zone == connection.zone)
                    && is_selected(&connection.original, &connection.reply)
            });
        }
    }

    /// Removes the connections to these backends of load balancers.
    pub(super) fn flush_backends(&self, backends: &BTreeSet<BalancedPair>) {
        let Some(tracker) = self.datapath.tracker().filter(|_| !backends.is_empty()) else {
            return;
        };
        let removed = tracker.flush(|connection| {
            let Connection { original, reply, .. } = connection;
            let ports = |tuple: &Tuple| if tuple.has_ports() { tuple.ports() } else { (0, 0) };
            let ((_, vip_port), (backend_port, _)) = (ports(original), ports(reply));
            let pair = BalancedPair {
                vip: (original.dst(), vip_port),
                backend: (reply.src(), backend_port),
                protocol: Some(original.protocol()),
            };
            let of_all_ports = BalancedPair {
                vip: (original.dst(), 0),
                backend: (reply.src(), 0),
                protocol: None,
            };
            backends.contains(&pair) || backends.contains(&of_all_ports)
        });
        messages::log!(BACKENDS_FLUSHED, "{removed} connections to removed backends have ended");
    }

    /// Streams the numbers of connections by zone and port.
    pub(super) fn connection_use(&self, client: &mut Client) -> io::Result<()> {
        client.ok(&json!({}))?;
        self.connection_use_rows().iter().try_for_each(|row| client.row(row))?;
        client.end(&self.connection_totals())
    }

    /// The numbers of connections for each zone and port that has connections.
    pub(super) fn connection_use_rows(&self) -> Vec<ConnectionUse> {
        let names = ZoneNames::new(self.switch.program().zones());
        let (deployment, tracker) = (self.deployment(), self.datapath.tracker());
        let Usage { mut zones, mut ports } = tracker.map(Tracker::usage).unwrap_or_default();
        zones.sort_unstable_by_key(|(zone, _)| zone.0);
        ports.sort_unstable_by_key(|(port, _)| *port);
        let row = |what: &str, name: String, used: LimitUsage| {
            let limit = Some(used.limit).filter(|limit| *limit != u32::MAX);
            ConnectionUse { what: what.to_owned(), name, connections: used.connections, limit }
        };
        let zones = zones.into_iter().map(|(zone, used)| {
            let name = names.name(zone).map_or_else(|| zone.0.to_string(), str::to_owned);
            row("zone", name, used)
        });
        let ports =
            ports.into_iter().map(|(port, used)| row("port", deployment.port_name(port), used));
        zones.chain(ports).collect()
    }

    /// Removes connections.
    pub(super) fn flush_connections(
        &self,
        filter: &ConnectionFilter,
        client: &mut Client,
    ) -> io::Result<()> {
        let zones = ZoneNames::new(self.switch.program().zones());
        let matcher = match Matcher::new(filter, &self.deployment(), &zones) {
            Ok(matcher) => matcher,
            Err(error) => return client.reject(&error),
        };
        let tracker = self.datapath.tracker();
        let removed = tracker.map_or(0, |tracker| tracker.flush(|it| matcher.accepts(it)));
        client.ok(&FlushReply { removed })
    }

    pub(super) fn connection_totals(&self) -> ConnectionTotals {
        let Some(tracker) = self.datapath.tracker() else { return ConnectionTotals::default() };
        let (connections, stats) = tracker.stats();
        let refused = CtDrop::ALL.iter().map(|it| (it.drop_reason().name(), stats.refused(*it)));
        let invalid = Invalid::ALL.iter().map(|it| (it.name(), stats.invalid(*it)));
        let owned = |(name, count): (&str, u64)| (count > 0).then(|| (name.to_owned(), count));
        ConnectionTotals {
            connections,
            limit: tracker.config().limits.connections,
            committed: stats.committed,
            expired: stats.expired,
            replaced: stats.replaced,
            flushed: stats.flushed,
            not_saved: tracker.save_failures(),
            refused: refused.filter_map(owned).collect(),
            invalid: invalid.filter_map(owned).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_accepts_what_has_its_address_and_port() {
        let tuple = |protocol| {
            let [src, dst] = [[10, 0, 0, 1], [10, 9, 0, 1]].map(IpAddr::from);
            End::of(&Tuple::new(src, dst, protocol, 4000, 80).expect("a tuple"))
        };
        for (text, of_tcp, of_gre) in [
            ("10.0.0.1", [true, false], [true, false]),
            ("10.0.0.1:4000", [true, false], [false, false]),
            ("10.0.0.1:80", [false, false], [false, false]),
            (":80", [false, true], [false, false]),
            ("[fd00::1]:80", [false, false], [false, false]),
        ] {
            let end = End::parse(text).expect(text);
            assert_eq!(tuple(Protocol::TCP).map(|own| end.accepts(own)), of_tcp, "{text}");
            assert_eq!(tuple(Protocol::GRE).map(|own| end.accepts(own)), of_gre, "{text}");
        }
        for wrong in ["", ":", "80", "10.0.0", "10.0.0.1:", ":65536"] {
            assert!(End::parse(wrong).is_err_and(|error| error.contains("no address")), "{wrong}");
        }
    }
}
