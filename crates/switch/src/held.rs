//! [`HeldPackets`]: packets that wait until the MAC address of their next hop is known.
//!
//! A router requests the address, and the packet that caused the request is held, as RFC 1122
//! section 2.3.2.2 recommends. When the switch learns the address, it translates the packet again.

use crate::engine::lock;
use datapath::upcall::{Upcall, UpcallReason};
use flow::{Action, Reply};
use pipeline::{LearnedState, LearnedTables, StateQuery};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How many packets are held for one address.
const MAX_OF_ADDRESS: usize = 4;
/// How many packets of one port are held.
const MAX_OF_PORT: usize = 32;
/// How long a packet is held. RFC 4861 section 7.2.2 gives up after three requests, a second apart.
const MAX_AGE: Duration = Duration::from_secs(3);

/// The packets, oldest first.
#[derive(Debug)]
pub(crate) struct HeldPackets {
    inner: Mutex<Inner>,
    /// How many packets are held in all.
    limit: usize,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Held>,
    /// Packets whose address was learned since.
    ready: Vec<Upcall>,
}

#[derive(Debug)]
struct Held {
    since: Instant,
    query: StateQuery,
    upcall: Upcall,
}

/// The result of [`HeldPackets::hold`].
pub(crate) struct HoldResult {
    /// The number of other packets that are no longer held.
    pub evicted: usize,
    /// No other packet had to make room.
    pub had_room: bool,
}

/// The unknown address that a translation has read last; `None` if that address was known. It is
/// the next hop: the binding of the sender is read earlier.
pub(crate) fn unknown(
    queries: impl IntoIterator<Item = StateQuery>,
    learned: &LearnedTables,
) -> Option<StateQuery> {
    let bindings = queries.into_iter().filter_map(|query| match &query {
        StateQuery::MacBinding(key) => Some((learned.mac_binding(key).0.is_none(), query)),
        _ => None,
    });
    bindings.last().and_then(|(is_unknown, query)| is_unknown.then_some(query))
}

/// True if the actions request the address of a neighbour and do not send the packet itself. A
/// packet that they send, such as one to a multicast group, would arrive twice.
pub(crate) fn only_solicits(actions: &[Action]) -> bool {
    let is_solicitation = |action: &Action| match action {
        Action::Reply { reply, .. } => matches!(reply, Reply::Arp | Reply::NeighbourSolicit),
        _ => false,
    };
    actions.iter().any(is_solicitation) && !sends(actions)
}

/// True if the actions send the packet, or let a later pass decide about it.
fn sends(actions: &[Action]) -> bool {
    actions.iter().any(|action| match action {
        Action::Output(_) | Action::Encap { .. } => true,
        Action::Clone(actions) => sends(actions),
        Action::CheckLength { larger, otherwise, .. } => sends(larger) || sends(otherwise),
        // The service may answer the packet.
        Action::Serve { .. } => true,
        Action::Ct(ct) => ct.recirculation.is_some(),
        Action::PushVlan(_)
        | Action::PopVlan
        | Action::Drop(_)
        | Action::Set { .. }
        | Action::SetIcmpMtu(_)
        | Action::Reply { .. }
        | Action::Log(_)
        | Action::Controller
        | Action::Meter { .. }
        | Action::NamedMeter(_)
        | Action::SetQueue(_) => false,
    })
}

impl HeldPackets {
    /// Holds at most so many packets.
    pub fn new(limit: usize) -> Self {
        Self { inner: Mutex::default(), limit }
    }

    /// Holds a copy of the packet. Drops packets that have waited for too long, and the oldest one
    /// if there is no room.
    pub fn hold(&self, query: StateQuery, upcall: &Upcall, now: Instant) -> HoldResult {
        let upcall = Upcall {
            packet: upcall.packet.clone(),
            key: upcall.key.clone(),
            port: upcall.port,
            reason: UpcallReason::Miss,
            worker: upcall.worker,
            raised: upcall.raised,
            recirculated: upcall.recirculated.clone(),
        };
        let mut inner = lock(&self.inner);
        let before = inner.waiting.len();
        inner.waiting.retain(|held| now.saturating_duration_since(held.since) <= MAX_AGE);
        let is_of_address = |held: &Held| held.query == query;
        let is_of_port = |held: &Held| held.upcall.port == upcall.port;
        let count = |of: &dyn Fn(&Held) -> bool| inner.waiting.iter().filter(|it| of(it)).count();
        // The latest packets are the most useful ones.
        let oldest = if count(&is_of_address) >= MAX_OF_ADDRESS {
            inner.waiting.iter().position(is_of_address)
        } else if count(&is_of_port) >= MAX_OF_PORT {
            inner.waiting.iter().position(is_of_port)
        } else {
            (inner.waiting.len() >= self.limit).then_some(0)
        };
        oldest.map(|at| inner.waiting.remove(at));
        let evicted = before - inner.waiting.len();
        inner.waiting.push_back(Held { since: now, query, upcall });
        HoldResult { evicted, had_room: oldest.is_none() }
    }

    /// Releases the packets that wait for this query, because its answer has changed.
    pub fn release(&self, query: &StateQuery, now: Instant) {
        let mut inner = lock(&self.inner);
        if inner.waiting.iter().all(|held| held.query != *query) {
            return;
        }
        let (gone, kept) = std::mem::take(&mut inner.waiting)
            .into_iter()
            .partition::<VecDeque<_>, _>(|held| held.query == *query);
        inner.waiting = kept;
        // A packet that has waited for longer is of no use, and its port number may have been
        // reused.
        let gone = gone.into_iter().filter(|held| now.duration_since(held.since) <= MAX_AGE);
        let ready = gone.map(|held| Upcall { raised: now, ..held.upcall });
        inner.ready.extend(ready);
    }

    /// The packets that are ready.
    pub fn take_ready(&self) -> Vec<Upcall> {
        std::mem::take(&mut lock(&self.inner).ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::PortNo;

    fn solicit() -> Action {
        Action::Reply { reply: Reply::Arp, actions: Box::new([Action::Output(PortNo(1))]) }
    }

    #[test]
    fn packets_that_are_sent_as_well_are_not_held() {
        let output = Action::Output(PortNo(2));
        let copy = Action::Clone(Box::new([output.clone()]));
        let long = |larger: Action| Action::CheckLength {
            bytes: 1500,
            larger: Box::new([larger]),
            otherwise: Box::new([]),
        };
        assert!(only_solicits(&[solicit()]));
        assert!(only_solicits(&[Action::SetQueue(1), solicit(), Action::PopVlan]));
        assert!(only_solicits(&[Action::Clone(Box::new([Action::PopVlan])), solicit()]));
        assert!(!only_solicits(std::slice::from_ref(&output)));
        assert!(!only_solicits(&[output, solicit()]));
        assert!(!only_solicits(&[copy, solicit()]));
        assert!(!only_solicits(&[solicit(), long(Action::Output(PortNo(3)))]));
        assert!(only_solicits(&[solicit(), long(Action::PopVlan)]));
    }
}
