//! [`Connection`]: the properties of a connection that commands show. Also operations on many
//! connections.

use flow::PortNo;

use crate::entry::{Entry, Machine, Status};
use crate::sctp::SctpState;
use crate::tcp::TcpState;
use crate::tracked::{ConnId, ConnRef};
use crate::{Direction, Table, Tuple, Zone};

/// The state of a connection's protocol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ProtocolState {
    /// TCP.
    Tcp(TcpState),
    /// UDP; true for a stream.
    Udp(bool),
    /// ICMP and ICMPv6.
    Icmp,
    /// SCTP.
    Sctp(SctpState),
    /// Any other protocol.
    Other,
}

/// The properties of a connection that commands show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// The connection and its generation.
    pub reference: ConnRef,
    /// Zone.
    pub zone: Zone,
    /// The tuple of packets in the original direction, before NAT.
    pub original: Tuple,
    /// The tuple of packets in the reply direction, before NAT is undone.
    pub reply: Tuple,
    /// The state of its protocol.
    pub state: ProtocolState,
    /// Packets of both directions were seen.
    pub seen_reply: bool,
    /// The handshake is complete, or packets flowed in both directions for a while.
    pub assured: bool,
    /// Source NAT.
    pub source_nat: bool,
    /// Destination NAT.
    pub destination_nat: bool,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
    /// The port that opened it.
    pub opener: PortNo,
    /// The time when it expires without further packets.
    pub deadline_ms: u64,
}

impl Connection {
    fn new(slot: u32, entry: &Entry) -> Self {
        let state = match &entry.machine {
            Machine::Tcp(tcp) => ProtocolState::Tcp(tcp.state()),
            Machine::Udp { .. } => ProtocolState::Udp(entry.status.has(Status::ASSURED)),
            Machine::Icmp => ProtocolState::Icmp,
            Machine::Sctp(sctp) => ProtocolState::Sctp(sctp.state()),
            Machine::Other => ProtocolState::Other,
        };
        Self {
            reference: ConnRef { id: ConnId(slot), generation: entry.generation },
            zone: entry.keys[0].zone(),
            original: entry.keys[0].without_zone(),
            reply: entry.keys[1].without_zone(),
            state,
            seen_reply: entry.status.has(Status::SEEN_REPLY),
            assured: entry.status.has(Status::ASSURED),
            source_nat: entry.status.has(Status::SOURCE_NAT),
            destination_nat: entry.status.has(Status::DESTINATION_NAT),
            mark: entry.mark,
            label: entry.label(),
            opener: entry.opener,
            deadline_ms: entry.deadline_ms,
        }
    }
}

/// The position of a walk through the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor(u32);

/// The number of connections of a zone or port, and its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitUsage {
    /// Connections.
    pub connections: u32,
    /// The limit; `u32::MAX` for no limit.
    pub limit: u32,
}

impl Table {
    /// All connections, expired ones included until [`Table::expire`] removes them.
    pub fn iter(&self) -> impl Iterator<Item = Connection> + '_ {
        (0..self.slab.places()).filter_map(|slot| self.connection_at(slot))
    }

    fn connection_at(&self, slot: u32) -> Option<Connection> {
        Some(Connection::new(slot, self.slab.get(slot)?))
    }

    /// The connection in this slot.
    pub fn connection(&self, id: ConnId) -> Option<Connection> {
        self.connection_at(id.0)
    }

    /// The connection that packets with this tuple belong to, and their direction.
    pub fn look_up(
        &self,
        now_ms: u64,
        zone: Zone,
        tuple: &Tuple,
    ) -> Option<(Connection, Direction)> {
        let found = self.index.find(&self.slab, &tuple.in_zone(zone))?;
        let connection = self.connection_at(found.slot)?;
        (connection.deadline_ms > now_ms).then_some((connection, found.direction))
    }

    /// Visits up to `max` places of the table from `cursor` on. Returns where to continue, `None`
    /// at the end. Connections that are committed or removed meanwhile may be visited or not; all
    /// others are visited once.
    pub fn walk(
        &self,
        cursor: Cursor,
        max: u32,
        mut visit: impl FnMut(Connection),
    ) -> Option<Cursor> {
        let end = cursor.0.saturating_add(max).min(self.slab.places());
        for slot in cursor.0..end {
            if let Some(connection) = self.connection_at(slot) {
                visit(connection);
            }
        }
        (end < self.slab.places()).then_some(Cursor(end))
    }

    /// Removes the connections that `is_selected` accepts, among up to `max` slots from `cursor`
    /// on. Returns where to continue, or `None` at the end.
    pub fn flush(
        &mut self,
        cursor: Cursor,
        max: u32,
        mut is_selected: impl FnMut(&Connection) -> bool,
    ) -> Option<Cursor> {
        let end = cursor.0.saturating_add(max).min(self.slab.places());
        for slot in cursor.0..end {
            if self.connection_at(slot).is_some_and(|connection| is_selected(&connection)) {
                self.stats.flushed += 1;
                self.remove(slot);
            }
        }
        (end < self.slab.places()).then_some(Cursor(end))
    }

    /// Removes one connection, as [`Table::flush`] does. Returns false when it is gone already. The
    /// daemon has no such command; benchmarks need it, which measure one connection in many.
    pub fn remove_connection(&mut self, reference: ConnRef) -> bool {
        let is_there = self.entry(reference).is_some();
        if is_there {
            self.stats.flushed += 1;
            self.remove(reference.id.0);
        }
        is_there
    }

    /// Use and limit of a zone.
    pub fn zone_usage(&self, zone: Zone) -> LimitUsage {
        LimitUsage { connections: self.zones.count(zone), limit: self.zones.limit() }
    }

    /// The number of connections that a port has opened, and its limit.
    pub fn port_usage(&self, port: PortNo) -> LimitUsage {
        let (connections, limit) = (self.ports.count(port), self.connections_and_limit(port).1);
        LimitUsage { connections, limit }
    }

    /// Every zone that has connections, and their number.
    pub fn zones(&self) -> impl Iterator<Item = (Zone, u32)> + '_ {
        self.zones.iter()
    }

    /// Every port that has opened connections, and their number.
    pub fn ports(&self) -> impl Iterator<Item = (PortNo, u32)> + '_ {
        self.ports.iter()
    }

    /// Changes the options. Existing connections stay, and receive new timeouts with their next
    /// packets. [`Limits::connections`](crate::Limits::connections) cannot be changed.
    pub fn set_config(&mut self, config: crate::Config) {
        let connections = self.config.limits.connections;
        self.zones.set_limit(config.limits.per_zone);
        self.ports.set_limit(config.limits.per_port);
        self.config = config;
        self.config.limits.connections = connections;
    }
}
