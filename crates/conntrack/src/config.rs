//! [`Config`], [`Limits`] and [`CtDrop`].

use std::fmt;

use flow::{DropReason, PortNo};

use crate::Timeouts;

/// The options of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The limits on connections.
    pub limits: Limits,
    /// The timeouts of connections.
    pub timeouts: Timeouts,
    /// Accept TCP segments outside the window. For networks where some packets of a connection take
    /// another path.
    pub liberal_tcp: bool,
    /// Track TCP connections whose handshake was not seen, from the first segment with ACK on.
    /// Their windows are not checked.
    pub pick_up: bool,
    /// Shorten the timeouts of connections that are opening or closing when more than half of a
    /// limit is used, in proportion to the free part. The connections of a SYN flood then expire
    /// quickly, and cannot keep other senders under the same limit from opening connections. Linux
    /// has no such option.
    pub adaptive: bool,
}

impl Default for Config {
    /// The defaults of Linux: windows are checked, and connections are picked up.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            liberal_tcp: false,
            pick_up: true,
            adaptive: false,
        }
    }
}

/// Limits on the number of connections. At a limit, existing connections stay and new ones are
/// refused: an attacker who opens connections cannot displace those of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The limit of the whole table; at most [`Limits::MAX_CONNECTIONS`]. The table's index is
    /// allocated for this number, 16 bytes each, and cannot grow later.
    pub connections: u32,
    /// The limit of a zone that has no limit of its own.
    pub per_zone: u32,
    /// The limit of a port, for connections that it opened, if it has no limit of its own.
    pub per_port: u32,
    /// The first and the last port that [`Limits::per_port`] applies to. Each other port, such as
    /// that of a tunnel type, receives packets of many senders, and may open three quarters of all
    /// connections.
    pub limited_ports: (PortNo, PortNo),
}

impl Limits {
    /// The highest possible limit.
    pub const MAX_CONNECTIONS: u32 = 1 << 26;
}

impl Default for Limits {
    /// One million connections. Zones and ports are not limited further.
    fn default() -> Self {
        Self {
            connections: 1_000_000,
            per_zone: u32::MAX,
            per_port: u32::MAX,
            limited_ports: (PortNo(0), PortNo(u32::MAX)),
        }
    }
}

/// The reason why a connection cannot be committed. The packet must be dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CtDrop {
    /// The table has reached [`Limits::connections`].
    TableFull,
    /// The zone has reached its limit.
    ZoneLimit,
    /// The port has reached its limit.
    PortLimit,
    /// NAT found no free port or address: all replies could be confused with those of another
    /// connection.
    NatExhausted,
    /// Another connection would have the same replies, and the commit is without NAT.
    Clash,
}

impl CtDrop {
    /// Every reason.
    pub const ALL: &[Self] =
        &[Self::TableFull, Self::ZoneLimit, Self::PortLimit, Self::NatExhausted, Self::Clash];

    /// The reason under which the datapath counts the packet.
    pub const fn drop_reason(self) -> DropReason {
        match self {
            Self::TableFull => DropReason::CtTableFull,
            Self::ZoneLimit => DropReason::CtZoneLimit,
            Self::PortLimit => DropReason::CtPortLimit,
            Self::NatExhausted => DropReason::CtNatExhausted,
            Self::Clash => DropReason::CtClash,
        }
    }
}

impl fmt::Display for CtDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.drop_reason().meaning())
    }
}

impl std::error::Error for CtDrop {}
