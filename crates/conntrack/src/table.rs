//! [`Table`]: the connections, and how a packet is tracked.

use ahash::RandomState;
use flow::PortNo;

use crate::entry::{Entry, Outcome, Status};
use crate::fusion::{ConnKey, FusionState};
use crate::headers::{Content, Headers, Transport};
use crate::index::{Found, Index};
use crate::record::Store;
use crate::slab::Slab;
use crate::timers::Timers;
use crate::tracked::{ConnId, ConnRef, Nat, Tracked};
use crate::translation::{Manipulated, Translation};
use crate::usage::Usage;
use crate::{Config, Direction, Invalid, Limits, State, Stats, Tuple, Zone};

/// The seed of a table's hash functions. It must be secret, because guests choose the keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seed(pub [u64; 4]);

impl Seed {
    /// A seed from the operating system's random numbers.
    pub fn random() -> Self {
        let state = RandomState::new();
        Self([0, 1, 2, 3].map(|number: u64| state.hash_one(number)))
    }
}

/// The connections of all zones.
///
/// Times are milliseconds of any clock that does not go back.
#[derive(Debug)]
pub struct Table {
    pub(crate) config: Config,
    pub(crate) slab: Slab,
    pub(crate) index: Index,
    pub(crate) timers: Timers,
    pub(crate) zones: Usage<Zone>,
    pub(crate) ports: Usage<PortNo>,
    pub(crate) len: u32,
    pub(crate) stats: Stats,
    /// Fused connections that have changed since they were last taken.
    pub(crate) outdated: Vec<ConnKey>,
    /// Where connections are saved.
    pub(crate) store: Option<Box<dyn Store>>,
    /// The last generation given to a connection.
    generation: u64,
    /// The state of the random numbers for [`PortChoice::Random`](crate::PortChoice::Random).
    pub(crate) random: u64,
}

impl Table {
    /// An empty table. [`Limits::connections`] above the maximum is reduced to it.
    pub fn new(mut config: Config, seed: Seed, now_ms: u64) -> Self {
        let [a, b, c, d] = seed.0;
        let hasher = RandomState::with_seeds(a, b, c, d);
        config.limits.connections = config.limits.connections.min(Limits::MAX_CONNECTIONS);
        Self {
            slab: Slab::default(),
            zones: Usage::new(config.limits.per_zone, &hasher),
            ports: Usage::new(config.limits.per_port, &hasher),
            random: hasher.hash_one(d),
            index: Index::new(config.limits.connections, hasher),
            timers: Timers::new(now_ms),
            len: 0,
            stats: Stats::default(),
            outdated: Vec::new(),
            store: None,
            generation: 0,
            config,
        }
    }

    /// The number of connections, expired ones included until [`Table::expire`] removes them.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// True when there is no connection.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The counters.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The configuration.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Tracks a packet: finds its connection, runs the state machine of its protocol, and returns
    /// the packet's state. A connection that does not exist is not created; see [`Table::commit`].
    ///
    /// Each packet must be tracked only once in a zone. A second time, translated or not, it could
    /// look like a retransmission or like a packet of another connection. A pipeline that visits
    /// the zone again uses [`Table::current`] with the first result.
    pub fn track(&mut self, now_ms: u64, zone: Zone, headers: &Headers, nat: Nat) -> Tracked {
        let tracked = match &headers.content {
            Ok(content) => self.track_content(now_ms, zone, content, nat),
            Err(invalid) => Tracked::invalid(zone, *invalid),
        };
        if let Some(invalid) = tracked.invalid {
            self.stats.count_invalid(invalid);
        }
        tracked
    }

    fn track_content(&mut self, now_ms: u64, zone: Zone, content: &Content, nat: Nat) -> Tracked {
        if let Transport::Error { is_redirect } = content.transport {
            return self.track_error(now_ms, zone, content, is_redirect, nat);
        }
        let key = content.tuple.in_zone(zone);
        if let Some(found) = self.find(now_ms, &key)
            && let Some(tracked) = self.track_found(now_ms, zone, content, found, nat)
        {
            return tracked;
        }
        match crate::entry::Machine::begin(content, &self.config, now_ms) {
            Ok(_) => Tracked::first(zone, content.tuple),
            Err(invalid) => Tracked::invalid(zone, invalid),
        }
    }

    /// An ICMP error about a packet of a connection. It does not change the connection.
    fn track_error(
        &mut self,
        now_ms: u64,
        zone: Zone,
        content: &Content,
        is_redirect: bool,
        nat: Nat,
    ) -> Tracked {
        let key = content.tuple.reversed().map(|tuple| tuple.in_zone(zone));
        let Some(found) = key.and_then(|key| self.find(now_ms, &key)) else {
            return Tracked::invalid(zone, Invalid::Quote);
        };
        let Some(entry) = self.slab.get(found.slot) else {
            return Tracked::invalid(zone, Invalid::Quote);
        };
        let mut tracked = describe(entry, found, State::REL);
        let translation = error_translation(entry, found.direction, &content.tuple);
        if is_redirect && translation.is_some() {
            return Tracked::invalid(zone, Invalid::Quote);
        }
        if nat == Nat::Apply {
            translate(&mut tracked, translation);
        }
        tracked
    }

    /// Tracks a packet whose tuple was found. `None` when the packet begins a new connection, which
    /// replaces the one found.
    fn track_found(
        &mut self,
        now_ms: u64,
        zone: Zone,
        content: &Content,
        found: Found,
        nat: Nat,
    ) -> Option<Tracked> {
        let Found { slot, direction } = found;
        let entry = self.slab.get_mut(slot)?;
        if entry.fusion != FusionState::None {
            entry.machine.forget_window();
            // A RST or a FIN may end the connection without a change of its state.
            if !entry.machine.is_steady(content) {
                self.outdated.extend(entry.outdate(slot));
            }
        }
        let before = (entry.status, machine_state(entry));
        let is_est = direction == Direction::Reply || entry.status.has(Status::SEEN_REPLY);
        let outcome = entry.machine.track(direction, content, entry.status, &self.config, now_ms);
        match outcome {
            Outcome::Accept { timeout, assure } => {
                if assure {
                    entry.status.set(Status::ASSURED);
                }
                if let Some(timeout) = timeout {
                    entry.deadline_ms = now_ms.saturating_add(self.config.timeouts.ms(timeout));
                }
            }
            Outcome::Ignore | Outcome::Abort => {}
            Outcome::Reopen => {
                self.stats.replaced += 1;
                self.remove(slot);
                return None;
            }
            Outcome::Invalid(invalid, timeout) => {
                // An SCTP packet may have valid chunks before an invalid one.
                let has_changed = before != (entry.status, machine_state(entry));
                self.shorten(now_ms, slot, timeout);
                if has_changed {
                    self.write_record(slot);
                }
                return Some(Tracked::invalid(zone, invalid));
            }
        }
        let entry = self.slab.get_mut(slot)?;
        if direction == Direction::Reply {
            entry.status.set(Status::SEEN_REPLY);
        }
        let has_changed = before != (entry.status, machine_state(entry));
        if has_changed {
            self.generation += 1;
            entry.generation = self.generation;
            entry.proposals = [0; 2];
            self.outdated.extend(entry.outdate(slot));
        }
        if self.config.adaptive
            && let Outcome::Accept { timeout: Some(timeout), .. } = outcome
        {
            self.shorten_if_crowded(now_ms, slot, timeout);
        }
        let entry = self.slab.get_mut(slot)?;
        let state = if is_est { State::EST } else { State::NEW };
        let mut tracked = describe(entry, found, state);
        tracked.is_steady = is_est
            && !has_changed
            && entry.status.has(Status::ASSURED)
            && entry.machine.is_steady(content);
        tracked.proposes = tracked.is_steady && entry.is_proposed(now_ms, direction);
        if nat == Nat::Apply && is_est {
            translate(&mut tracked, packet_translation(entry, direction));
        }
        if outcome == Outcome::Abort {
            // No later packet finds the connection, but a commit of this packet still translates
            // it.
            self.generation += 1;
            entry.generation = self.generation;
            self.outdated.extend(entry.outdate(slot));
            entry.deadline_ms = now_ms;
        }
        self.timers.deadline_changed(&mut self.slab, slot);
        if has_changed {
            self.write_record(slot);
        }
        Some(tracked)
    }

    /// Reduces the remaining time of a connection to at most this timeout.
    fn shorten(&mut self, now_ms: u64, slot: u32, timeout: Option<crate::Timeout>) {
        let Some(entry) = self.slab.get_mut(slot) else { return };
        if let Some(timeout) = timeout {
            let deadline_ms = now_ms.saturating_add(self.config.timeouts.ms(timeout));
            entry.deadline_ms = entry.deadline_ms.min(deadline_ms);
            self.timers.deadline_changed(&mut self.slab, slot);
        }
    }

    /// Updates mark, label and generation in a result of [`Table::track`] to those that the
    /// connection has now. The state stays. If the connection was removed meanwhile, the result has
    /// no connection.
    pub fn current(&self, tracked: &Tracked) -> Tracked {
        let Some(connection) = tracked.connection else { return *tracked };
        match self.entry(connection) {
            Some(entry) => Tracked {
                mark: entry.mark,
                label: entry.label(),
                connection: Some(ConnRef { generation: entry.generation, ..connection }),
                ..*tracked
            },
            None => Tracked { connection: None, ..*tracked },
        }
    }

    /// Finds a connection. Removes it if it has expired.
    pub(crate) fn find(&mut self, now_ms: u64, key: &Tuple) -> Option<Found> {
        let found = self.index.find(&self.slab, key)?;
        if self.slab.get(found.slot)?.deadline_ms <= now_ms {
            self.stats.expired += 1;
            self.remove(found.slot);
            return None;
        }
        Some(found)
    }

    /// The entry of a connection. It may have changed since `connection` was obtained; `None` if it
    /// was removed.
    pub(crate) fn entry(&self, connection: ConnRef) -> Option<&Entry> {
        self.slab.get(connection.id.0).filter(|entry| entry.serial <= connection.generation)
    }

    pub(crate) fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// Removes a connection from all structures.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.clear_record(slot);
        let Some(entry) = self.slab.get_mut(slot) else { return };
        self.outdated.extend(entry.outdate(slot));
        let (zone, opener) = (entry.keys[0].zone(), entry.opener);
        let is_self_connected = entry.is_self_connected();
        self.index.remove(&mut self.slab, slot, Direction::Original);
        if !is_self_connected {
            self.index.remove(&mut self.slab, slot, Direction::Reply);
        }
        self.timers.remove(&mut self.slab, slot);
        self.slab.remove(slot);
        self.zones.remove(zone);
        self.ports.remove(opener);
        self.len -= 1;
    }

    /// Removes expired connections. Examines up to `max` connections to find them, and returns the
    /// number examined. If that is `max`, more connections may have expired.
    ///
    /// Packets never find expired connections, but these count against limits until they are
    /// removed. Call this at least once a second.
    pub fn expire(&mut self, now_ms: u64, max: u32) -> u32 {
        let mut looked_at = 0;
        while looked_at < max
            && let Some(slot) = self.timers.due(now_ms)
        {
            looked_at += 1;
            let is_over = self.slab.get(slot).is_none_or(|entry| entry.deadline_ms <= now_ms);
            if is_over {
                self.stats.expired += 1;
                self.remove(slot);
            } else {
                self.timers.remove(&mut self.slab, slot);
                self.timers.insert(&mut self.slab, slot);
            }
        }
        looked_at
    }
}

/// The part of the state machine that affects later packets.
fn machine_state(entry: &Entry) -> (u8, u64) {
    match &entry.machine {
        crate::entry::Machine::Tcp(tcp) => (tcp.state() as u8, 0),
        crate::entry::Machine::Sctp(sctp) => {
            (sctp.state() as u8 | sctp.initiated() << 6, sctp.save())
        }
        _ => (0, 0),
    }
}

/// The result for a packet of an existing connection, with `state` in addition to direction and
/// [`State::TRK`].
pub(crate) fn describe(entry: &Entry, found: Found, state: State) -> Tracked {
    let direction = match found.direction {
        Direction::Original => State::default(),
        Direction::Reply => State::RPL,
    };
    Tracked {
        state: State::TRK | state | direction,
        zone: entry.keys[0].zone(),
        mark: entry.mark,
        label: entry.label(),
        original: Some(entry.keys[0].without_zone()),
        connection: Some(ConnRef { id: ConnId(found.slot), generation: entry.generation }),
        translation: None,
        invalid: None,
        is_steady: false,
        proposes: false,
        direction: found.direction,
    }
}

/// Adds a translation to a result, and to its state.
pub(crate) fn translate(tracked: &mut Tracked, translation: Option<Translation>) {
    tracked.translation = translation;
    if let Some(translation) = translation {
        tracked.state |= translation.state();
    }
}

fn manipulated(entry: &Entry, direction: Direction) -> Option<Manipulated> {
    let source = entry.status.has(Status::SOURCE_NAT);
    let destination = entry.status.has(Status::DESTINATION_NAT);
    (source || destination).then(|| Manipulated::new(source, destination, direction))
}

/// How NAT changes a packet of this direction: its tuple becomes the reverse of the tuple of the
/// other direction.
pub(crate) fn packet_translation(entry: &Entry, direction: Direction) -> Option<Translation> {
    let what = manipulated(entry, direction)?;
    let to = entry.keys[direction.reversed().index()].reversed()?;
    Some(Translation::of_packet(&entry.keys[direction.index()], &to, what))
}

/// How NAT changes an ICMP error of this direction, which quotes a packet with the tuple `quoted`.
pub(crate) fn error_translation(
    entry: &Entry,
    direction: Direction,
    quoted: &Tuple,
) -> Option<Translation> {
    let what = manipulated(entry, direction)?;
    let to = entry.keys[direction.reversed().index()];
    Some(Translation::of_error(quoted, &to, what))
}
