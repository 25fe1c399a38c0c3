//! [`Table::commit`]: creates connections, and sets marks and labels of existing ones.

use flow::PortNo;

use crate::entry::{Entry, Machine, Status};
use crate::headers::{Content, Headers, Transport};
use crate::index::Found;
use crate::nat::{self, Choices};
use crate::table::{describe, error_translation, packet_translation, translate};
use crate::tracked::{Commit, Tracked};
use crate::{CtDrop, Direction, State, Table, Tuple, Zone};

impl Table {
    /// Commits the connection of a packet, after [`Table::track`] has returned `tracked` for it.
    ///
    /// - **New**: creates the connection, with NAT if `commit` says so. `opener` is the packet's
    ///   ingress port; the connection counts against its limit.
    /// - **Existing**: sets mark and label. With [`Commit::nat`], applies the connection's
    ///   translation to the packet.
    /// - **Invalid**: does nothing.
    ///
    /// `headers` must be those of the packet when it was tracked, before any translation.
    ///
    /// # Errors
    /// [`CtDrop`] when a limit is reached or NAT finds no free port. Nothing has changed then.
    pub fn commit(
        &mut self,
        now_ms: u64,
        tracked: &Tracked,
        headers: &Headers,
        opener: PortNo,
        commit: &Commit,
    ) -> Result<Tracked, CtDrop> {
        let Ok(content) = &headers.content else { return Ok(*tracked) };
        if tracked.state.contains(State::INV) {
            return Ok(*tracked);
        }
        let committed = match self.existing(now_ms, tracked, content) {
            Some(found) if commit.force && found.direction == Direction::Reply => {
                if matches!(content.transport, Transport::Error { .. }) {
                    return Ok(*tracked);
                }
                self.stats.replaced += 1;
                self.remove(found.slot);
                self.create(now_ms, tracked.zone, content, opener, commit)
            }
            Some(found) => Ok(self.update(tracked, content, found, commit)),
            None if tracked.state.contains(State::NEW) => {
                self.create(now_ms, tracked.zone, content, opener, commit)
            }
            None => Ok(*tracked),
        };
        if let Err(refused) = committed {
            self.stats.count_refused(refused);
        }
        committed
    }

    /// The connection of a tracked packet. For a packet that was tracked as new, another packet may
    /// have committed it meanwhile.
    fn existing(&mut self, now_ms: u64, tracked: &Tracked, content: &Content) -> Option<Found> {
        if let Some(connection) = tracked.connection
            && self.entry(connection).is_some()
        {
            return Some(Found { slot: connection.id.0, direction: tracked.direction() });
        }
        if !tracked.state.contains(State::NEW) {
            return None;
        }
        self.find(now_ms, &content.tuple.in_zone(tracked.zone))
    }

    fn update(
        &mut self,
        tracked: &Tracked,
        content: &Content,
        found: Found,
        commit: &Commit,
    ) -> Tracked {
        let generation = self.next_generation();
        let Some(entry) = self.slab.get_mut(found.slot) else { return *tracked };
        let mark = commit.mark.map_or(entry.mark, |mark| mark.apply(entry.mark));
        let label = commit.label.map_or(entry.label(), |label| label.apply(entry.label()));
        if (mark, label) != (entry.mark, entry.label()) {
            entry.mark = mark;
            entry.set_label(label);
            entry.generation = generation;
            self.outdated.extend(entry.outdate(found.slot));
        }
        let direction = State::RPL | State::TRK | State::SNAT | State::DNAT;
        let mut updated = describe(entry, found, tracked.state.without(direction));
        updated.is_steady = tracked.is_steady && entry.generation != generation;
        updated.proposes = tracked.proposes;
        if commit.nat.is_some() {
            let translation = match content.transport {
                Transport::Error { .. } => {
                    error_translation(entry, found.direction, &content.tuple)
                }
                _ => packet_translation(entry, found.direction),
            };
            translate(&mut updated, translation);
        }
        if updated.connection.is_some_and(|it| it.generation == generation) {
            self.write_record(found.slot);
        }
        updated
    }

    fn create(
        &mut self,
        now_ms: u64,
        zone: Zone,
        content: &Content,
        opener: PortNo,
        commit: &Commit,
    ) -> Result<Tracked, CtDrop> {
        let begun = Machine::begin(content, &self.config, now_ms);
        let (machine, timeout) = match begun {
            Ok(begun) => begun,
            // The packet was tracked as new, so this can only happen after a forced commit.
            Err(invalid) => return Ok(Tracked::invalid(zone, invalid)),
        };
        self.check_limits(zone, opener)?;
        let original = content.tuple.in_zone(zone);
        let translated = self.choose_nat(now_ms, &original, &machine, commit)?;
        let reply = translated.reversed().ok_or(CtDrop::Clash)?;
        let mut status = Status::default();
        status.set(Status::COMMITTED);
        if changes_source(&original, &translated) {
            status.set(Status::SOURCE_NAT);
        }
        if changes_destination(&original, &translated) {
            status.set(Status::DESTINATION_NAT);
        }
        let generation = self.next_generation();
        let mut entry = Entry {
            keys: [original, reply],
            generation,
            serial: generation,
            deadline_ms: now_ms.saturating_add(self.timeout_ms(timeout, zone, opener)),
            mark: commit.mark.map_or(0, |mark| mark.apply(0)),
            opener,
            status,
            machine,
            ..Entry::FREE
        };
        entry.set_label(commit.label.map_or(0, |label| label.apply(0)));
        let found = Found { slot: self.insert(entry), direction: Direction::Original };
        let mut created = describe(&entry, found, State::NEW);
        if commit.nat.is_some() {
            translate(&mut created, packet_translation(&entry, Direction::Original));
        }
        Ok(created)
    }

    pub(crate) fn check_limits(&self, zone: Zone, opener: PortNo) -> Result<(), CtDrop> {
        if self.len >= self.config.limits.connections {
            return Err(CtDrop::TableFull);
        }
        if self.zones.is_full(zone) {
            return Err(CtDrop::ZoneLimit);
        }
        let (used, limit) = self.connections_and_limit(opener);
        if used >= limit {
            return Err(CtDrop::PortLimit);
        }
        Ok(())
    }

    /// Adds an entry to all structures.
    pub(crate) fn insert(&mut self, entry: Entry) -> u32 {
        let slot = self.slab.insert(entry);
        self.index.insert(&mut self.slab, slot, Direction::Original);
        if !entry.is_self_connected() {
            self.index.insert(&mut self.slab, slot, Direction::Reply);
        }
        self.timers.insert(&mut self.slab, slot);
        self.zones.add(entry.keys[0].zone());
        self.ports.add(entry.opener);
        self.len += 1;
        self.stats.committed += 1;
        slot
    }

    /// The tuple that packets of the original direction have after NAT.
    fn choose_nat(
        &mut self,
        now_ms: u64,
        original: &Tuple,
        machine: &Machine,
        commit: &Commit,
    ) -> Result<Tuple, CtDrop> {
        let Some(spec) = &commit.nat else {
            let is_free = self.is_free(now_ms, original, machine, u32::MAX);
            return if is_free { Ok(*original) } else { Err(CtDrop::Clash) };
        };
        self.random = self.random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        let choices = Choices {
            by_source: self.index.hash((original.src_bits(), &spec.addresses)),
            by_tuple: self.index.hash((original, &spec.addresses, &spec.ports)),
            random: self.index.hash(self.random),
        };
        nat::choose(original, spec, &choices, |candidate, left| {
            self.is_free(now_ms, candidate, machine, left)
        })
        .ok_or(CtDrop::NatExhausted)
    }

    /// True when replies to packets with this tuple belong to no other connection. When few
    /// candidates are left, a closed connection with source NAT is removed to make room for a newer
    /// one.
    fn is_free(&mut self, now_ms: u64, tuple: &Tuple, machine: &Machine, left: u32) -> bool {
        /// The number of candidates left below which closed connections are removed.
        const FEW: u32 = 32;
        let Some(reply) = tuple.reversed() else { return false };
        let Some(found) = self.find(now_ms, &reply) else { return true };
        let Some(entry) = self.slab.get(found.slot) else { return true };
        let is_replaced = left < FEW
            && found.direction == Direction::Reply
            && entry.status.has(Status::SOURCE_NAT)
            && match (&entry.machine, machine) {
                (Machine::Tcp(old), Machine::Tcp(new)) => old.is_replaceable_by(new),
                _ => false,
            };
        if is_replaced {
            self.stats.replaced += 1;
            self.remove(found.slot);
        }
        is_replaced
    }
}

fn changes_source(original: &Tuple, translated: &Tuple) -> bool {
    original.src_bits() != translated.src_bits() || original.parts().0 != translated.parts().0
}

fn changes_destination(original: &Tuple, translated: &Tuple) -> bool {
    original.dst_bits() != translated.dst_bits() || original.parts().1 != translated.parts().1
}
