//! Adaptive timeouts: connections that are opening or closing live shorter while a limit is near.
//!
//! At a limit the table refuses all new connections. Several senders may share a limit: for
//! example, all senders behind a tunnel share the limit of the tunnel port. A sender of a SYN flood
//! would then use the whole limit for two minutes. The timeout is therefore a few seconds once more
//! than half of a port's or a zone's limit is used, or three quarters of the table's, and shrinks
//! in proportion to the free part. pf has such timeouts too (`adaptive.start`). Established TCP and
//! SCTP connections and UDP streams keep their timeouts: no flood can end them. Connections of
//! other protocols, such as ESP and GRE, get the short timeouts.

use flow::PortNo;

use crate::entry::{Entry, Status};
use crate::{Table, Timeout, Zone};

/// The timeout when half of a limit is used. It is short, because a flood uses the other half
/// within seconds, and each connection keeps the timeout that it began with.
const CROWDED_MS: u64 = 4000;
/// The shortest timeout. A handshake takes less time, and timers have a resolution of one second.
const LEAST_MS: u64 = 1000;

impl Table {
    /// The milliseconds of a timeout for a connection of this zone and port.
    pub(crate) fn timeout_ms(&self, timeout: Timeout, zone: Zone, opener: PortNo) -> u64 {
        let full_ms = self.config.timeouts.ms(timeout);
        if !self.config.adaptive {
            return full_ms;
        }
        let limit = self.config.limits.connections;
        // By default, one port can use half of the table. That must not shorten the timeouts of
        // others.
        let of_table = crowded_ms(full_ms, (self.len, limit), limit - limit / 4);
        let uses = [self.zones.usage(zone), self.connections_and_limit(opener)];
        let others = uses.map(|(used, limit)| crowded_ms(full_ms, (used, limit), limit / 2));
        others.into_iter().fold(of_table, u64::min)
    }

    /// The number of connections that a port has opened, and its limit. Some ports, such as those
    /// of tunnels, receive packets of many senders; they may open three quarters of all
    /// connections.
    pub(crate) fn connections_and_limit(&self, opener: PortNo) -> (u32, u32) {
        let limits = &self.config.limits;
        let (first, last) = limits.limited_ports;
        if (first..=last).contains(&opener) {
            return self.ports.usage(opener);
        }
        let most = limits.connections - limits.connections / 4;
        (self.ports.count(opener), most)
    }

    /// Shortens the life of a connection that is opening or closing, if a limit is near. `timeout`
    /// is the timeout that it has just received.
    #[inline]
    pub(crate) fn shorten_if_crowded(&mut self, now_ms: u64, slot: u32, timeout: Timeout) {
        let Some(entry) = self.slab.get(slot).filter(|entry| is_transient(entry, timeout)) else {
            return;
        };
        let timeout_ms = self.timeout_ms(timeout, entry.keys[0].zone(), entry.opener);
        if let Some(entry) = self.slab.get_mut(slot) {
            entry.deadline_ms = entry.deadline_ms.min(now_ms.saturating_add(timeout_ms));
        }
    }
}

/// True when the connection has not been established yet, or is closed at both ends.
fn is_transient(entry: &Entry, timeout: Timeout) -> bool {
    let is_closed = matches!(timeout, Timeout::TcpTimeWait | Timeout::TcpClose);
    is_closed || !entry.status.has(Status::ASSURED)
}

/// The timeout that replaces `full_ms` when `used` of `limit` connections exist: unchanged up to
/// `start`, at most [`CROWDED_MS`] above `start`, and [`LEAST_MS`] at the limit.
fn crowded_ms(full_ms: u64, (used, limit): (u32, u32), start: u32) -> u64 {
    if used <= start {
        return full_ms;
    }
    let free = u64::from(limit.saturating_sub(used));
    let range = u64::from(limit.saturating_sub(start)).max(1);
    (CROWDED_MS * free / range).max(LEAST_MS).min(full_ms)
}

#[cfg(test)]
mod tests {
    use super::crowded_ms;

    #[test]
    fn timeout_shrinks_in_proportion_to_the_free_places() {
        for (used, expected) in
            [(0, 120_000), (500, 120_000), (501, 3992), (750, 2000), (999, 1000), (2000, 1000)]
        {
            assert_eq!(crowded_ms(120_000, (used, 1000), 500), expected, "{used}");
        }
        assert_eq!(crowded_ms(120_000, (751, 1000), 750), 3984);
        assert_eq!(crowded_ms(300, (1000, 1000), 500), 300, "never longer than without a limit");
        assert_eq!(crowded_ms(2000, (501, 1000), 500), 2000);
        assert_eq!(crowded_ms(432_000_000, (u32::MAX, u32::MAX), u32::MAX / 2), 1000);
        assert_eq!(crowded_ms(5000, (1, 1), 0), 1000);
        assert_eq!(crowded_ms(5000, (1, 0), 0), 1000);
        assert_eq!(crowded_ms(5000, (0, 0), 0), 5000);
    }
}
