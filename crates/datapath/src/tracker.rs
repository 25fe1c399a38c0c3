//! [`Tracker`]: the connections of a datapath, shared by its workers.
//!
//! The two directions of a connection may arrive at different workers, and with address translation
//! no hash of a packet tells which worker has the other direction. So there is one table behind a
//! lock, which a worker takes only for packets that the pipeline tracks.

use crate::saved_connections::{Area, ConnectionFile, Restored};
use crate::upcall::Tracking;
use conntrack::{
    Commit, Config, ConnKey, ConnRef, Connection, CtDrop, Cursor, Headers, LimitUsage, Masked, Nat,
    NatKind, NatSpec, PortChoice, Seed, State, Stats, Table, Tracked, Zone,
};
use flow::{CtAction, CtCommit, CtNat, CtProgress, DropReason, Field, FlowKey, NatRange, PortNo};
use packet::reassembly::{FragmentContext, FragmentDrop, FragmentProgress};
use packet::{IpReassembler, PacketBuf};
use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;
use wire::Fragment;

/// How many connections each zone and each port has, with the limits.
#[derive(Default, Debug)]
pub struct Usage {
    /// The zones that have any connection.
    pub zones: Vec<(Zone, LimitUsage)>,
    /// The ports that opened any.
    pub ports: Vec<(PortNo, LimitUsage)>,
}

/// The most connections that are visited while the table is locked.
const BATCH: u32 = 256;

/// The connections of a datapath.
#[derive(Debug)]
pub struct Tracker {
    /// Limits and timeouts of the table, also before it exists.
    config: Mutex<Config>,
    /// Made for the first tracked packet: the table takes memory.
    table: OnceLock<Mutex<Table>>,
    started: Instant,
    fusing: OnceLock<FusionListener>,
    saved: OnceLock<ConnectionFile>,
    /// Fragments of packets that are to be tracked. The fragments of one datagram may reach several
    /// workers.
    fragments: Mutex<IpReassembler>,
}

/// A callback for fused connections that have changed.
type Notify = dyn Fn(&[ConnKey]) + Send + Sync;

struct FusionListener(Box<Notify>);

impl fmt::Debug for FusionListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FusionListener")
    }
}

impl Tracker {
    /// A tracker without connections.
    pub fn new(config: Config) -> Self {
        let (table, fusing, saved) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let (started, fragments, config) = (Instant::now(), Mutex::default(), Mutex::new(config));
        Self { config, table, started, fusing, saved, fragments }
    }

    /// Continues the connections of an earlier daemon, and saves all connections in their file from
    /// now on. Call it before the first packet is tracked; later calls have no effect.
    pub fn restore(&self, restored: Restored) {
        let Restored { file, table } = restored;
        if let Some(file) = file {
            let _ = self.saved.set(file);
        }
        if let Some(table) = table {
            let _ = self.table.set(Mutex::new(table));
        }
    }

    /// Saves the names of zones and ports. Call it before the program that uses their numbers is in
    /// force.
    pub fn save_names(
        &self,
        zones: impl IntoIterator<Item = (u32, String)>,
        ports: impl IntoIterator<Item = (u32, String)>,
    ) {
        if let Some(saved) = self.saved.get() {
            saved.set_names(Area::Zones, zones);
            saved.set_names(Area::Ports, ports);
        }
    }

    /// The number of times that a connection could not be saved.
    pub fn save_failures(&self) -> u64 {
        self.saved.get().map_or(0, ConnectionFile::failures)
    }

    /// The table, which is made at the first call.
    fn table(&self) -> &Mutex<Table> {
        self.table.get_or_init(|| {
            let mut table = Table::new(self.config(), Seed::random(), self.now_ms());
            if let Some(saved) = self.saved.get() {
                table.save_in(Box::new(saved.clone()));
            }
            Mutex::new(table)
        })
    }

    /// Tracks a packet that arrived by `port`, translates its addresses, and commits its
    /// connection, as the action says. `before` is the result of an earlier pass in the same zone.
    ///
    /// # Errors
    /// The connection cannot be committed, or the packet cannot be translated.
    pub fn track(
        &self,
        action: &CtAction,
        before: Option<&Tracking>,
        packet: &mut PacketBuf,
        port: PortNo,
    ) -> Result<Tracking, DropReason> {
        let found = match before {
            Some(before) => before.result.map(|(headers, tracked)| (headers, Some(tracked))),
            None => Headers::parse(packet).map(|headers| (headers, None)),
        };
        let zone = action.zone;
        let Some((headers, earlier)) = found else {
            return Ok(Tracking { zone, result: None, is_translated: false });
        };
        let was_translated = before.is_some_and(|before| before.is_translated);
        let nat = action.nat.as_ref().filter(|_| !was_translated);
        let tracked = self.run(action, nat, (&headers, earlier.as_ref()), port)?;
        if let Some(translation) = &tracked.translation {
            translation.apply(packet)?;
        }
        let is_translated = was_translated || tracked.translation.is_some();
        Ok(Tracking { zone, result: Some((headers, tracked)), is_translated })
    }

    /// Holds a fragment that arrived by `port`. If the fragment completes its datagram, `packet`
    /// becomes the datagram. Other packets are unchanged.
    ///
    /// # Errors
    /// The fragment must be dropped.
    pub fn reassemble(
        &self,
        zone: u16,
        port: PortNo,
        packet: &mut PacketBuf,
    ) -> Result<CtProgress, DropReason> {
        if packet.located().is_ok_and(|at| at.fragment == Fragment::Whole) {
            return Ok(CtProgress::Done);
        }
        let context = FragmentContext { source: port.0, zone };
        match lock(&self.fragments).push(context, packet, self.now_ms()) {
            Ok(FragmentProgress::Whole | FragmentProgress::Complete) => Ok(CtProgress::Done),
            Ok(FragmentProgress::Held) => Ok(CtProgress::Held),
            Err(reason) => Err(reason_of(reason)),
        }
    }

    /// Drops fragments that have waited too long. Calls `count` with the numbers of held fragments
    /// that were dropped since the last call: port, reason and number.
    pub fn expire_fragments(&self, mut count: impl FnMut(PortNo, DropReason, u64)) {
        let mut fragments = lock(&self.fragments);
        if fragments.is_idle() {
            return;
        }
        fragments.expire(self.now_ms());
        for (port, reason, lost) in fragments.take_dropped() {
            count(PortNo(port), reason_of(reason), lost);
        }
    }

    /// Tracks and commits. `earlier` is the result of an earlier pass.
    fn run(
        &self,
        action: &CtAction,
        nat: Option<&CtNat>,
        (headers, earlier): (&Headers, Option<&Tracked>),
        port: PortNo,
    ) -> Result<Tracked, DropReason> {
        let apply = if nat.is_some() { Nat::Apply } else { Nat::Ignore };
        let now_ms = self.now_ms();
        self.with_table(self.table(), |table| {
            let tracked = match earlier {
                None => table.track(now_ms, Zone(action.zone), headers, apply),
                Some(earlier) => {
                    let mut current = table.current(earlier);
                    // The earlier pass has already translated the packet.
                    current.translation = None;
                    current
                }
            };
            let commit = match (&action.commit, nat) {
                (Some(commit), nat) => commit_of(commit, nat),
                // An existing connection keeps its translation, which is applied to the packet.
                (None, Some(_)) if earlier.is_some() && tracked.connection.is_some() => {
                    commit_of(&CtCommit::default(), Some(&CtNat::Existing))
                }
                (None, _) => return Ok(tracked),
            };
            table.commit(now_ms, &tracked, headers, port, &commit).map_err(CtDrop::drop_reason)
        })
    }

    /// Removes expired connections.
    pub fn expire(&self) {
        if let Some(saved) = self.saved.get() {
            saved.heartbeat();
        }
        let Some(table) = self.table.get() else { return };
        let now_ms = self.now_ms();
        while self.with_table(table, |table| table.expire(now_ms, BATCH)) == BATCH {}
    }

    /// The connections in the next slots of the table, each with the time in milliseconds until it
    /// expires, and where to continue; `None` at the end. Connections that are committed or removed
    /// between two calls may be left out. At most 256 connections, so that the workers wait for the
    /// table only briefly.
    pub fn batch(&self, from: Cursor) -> (Vec<(Connection, u64)>, Option<Cursor>) {
        let Some(table) = self.table.get() else { return (Vec::new(), None) };
        let (now_ms, mut found) = (self.now_ms(), Vec::new());
        let next = lock(table).walk(from, BATCH, |connection| {
            if connection.deadline_ms > now_ms {
                found.push((connection, connection.deadline_ms - now_ms));
            }
        });
        (found, next)
    }

    /// The number of connections of each zone and of each port that has any, with the limits.
    pub fn usage(&self) -> Usage {
        let Some(table) = self.table.get() else { return Usage::default() };
        let table = lock(table);
        Usage {
            zones: table.zones().map(|(zone, _)| (zone, table.zone_usage(zone))).collect(),
            ports: table.ports().map(|(port, _)| (port, table.port_usage(port))).collect(),
        }
    }

    /// Removes the connections that `is_selected` accepts, and returns how many.
    pub fn flush(&self, mut is_selected: impl FnMut(&Connection) -> bool) -> u64 {
        let Some(table) = self.table.get() else { return 0 };
        let (mut removed, mut next) = (0, Some(Cursor::default()));
        while let Some(cursor) = next {
            next = self.with_table(table, |table| {
                table.flush(cursor, BATCH, |connection| {
                    let is_selected = is_selected(connection);
                    removed += u64::from(is_selected);
                    is_selected
                })
            });
        }
        removed
    }

    /// Removes the connections of these zones.
    pub fn flush_zones(&self, zones: &[u16]) -> u64 {
        if zones.is_empty() { 0 } else { self.flush(|it| zones.contains(&it.zone.0)) }
    }

    /// The number of connections, and the counters.
    pub fn stats(&self) -> (u32, Stats) {
        let Some(table) = self.table.get() else { return (0, Stats::default()) };
        let table = lock(table);
        (table.len(), table.stats().clone())
    }

    /// Fuses the passes of established connections from now on. Calls `notify` with fused
    /// connections that have changed, before the packet or the request that changed them continues.
    /// Only the first call has an effect: its result is true.
    pub fn begin_fusing(&self, notify: impl Fn(&[ConnKey]) + Send + Sync + 'static) -> bool {
        self.fusing.set(FusionListener(Box::new(notify))).is_ok()
    }

    /// Whether passes are fused.
    pub fn is_fusing(&self) -> bool {
        self.fusing.get().is_some()
    }

    /// Begins to fuse packets of these connections, as [`Table::fuse`] does.
    pub fn fuse(&self, connections: &[ConnRef]) -> Option<Box<[ConnKey]>> {
        lock(self.table.get()?).fuse(connections)
    }

    /// Notes that no cached decision depends on these connections any more.
    pub fn end_fusion(&self, connections: impl IntoIterator<Item = ConnKey>) {
        let Some(table) = self.table.get() else { return };
        let mut table = lock(table);
        connections.into_iter().for_each(|key| table.end_fusion(key));
    }

    /// Notes that no cached decision was made for these connections.
    pub fn cancel_fusion(&self, connections: impl IntoIterator<Item = ConnKey>) {
        let Some(table) = self.table.get() else { return };
        let mut table = lock(table);
        connections.into_iter().for_each(|key| table.cancel_fusion(key));
    }

    /// True while all of these connections are fused and have not changed.
    pub fn are_fused(&self, connections: &[ConnKey]) -> bool {
        let Some(table) = self.table.get() else { return false };
        let table = lock(table);
        connections.iter().all(|key| table.is_fused(*key))
    }

    /// Notes that fused packets of these connections were forwarded.
    pub fn prolong(&self, connections: impl IntoIterator<Item = ConnKey>) {
        let Some(table) = self.table.get() else { return };
        let (now_ms, mut table) = (self.now_ms(), lock(table));
        connections.into_iter().for_each(|key| table.prolong(now_ms, key));
    }

    /// The fused connections that have changed or ended since the last call.
    pub fn take_outdated(&self) -> Vec<ConnKey> {
        self.table.get().map_or_else(Vec::new, |table| lock(table).take_outdated())
    }

    /// Puts connections back, so that [`Tracker::take_outdated`] returns them again.
    pub fn put_back(&self, outdated: Vec<ConnKey>) {
        if let Some(table) = self.table.get() {
            lock(table).put_back(outdated);
        }
    }

    /// Runs `change` on the locked table, and reports fused connections that it has changed.
    fn with_table<R>(&self, table: &Mutex<Table>, change: impl FnOnce(&mut Table) -> R) -> R {
        let mut table = lock(table);
        let before = table.outdated().len();
        let result = change(&mut table);
        let Some(FusionListener(notify)) = self.fusing.get() else { return result };
        let changed = table.outdated().get(before..).unwrap_or_default().to_vec();
        drop(table);
        if !changed.is_empty() {
            notify(&changed);
        }
        result
    }

    /// Limits and timeouts.
    pub fn config(&self) -> Config {
        lock(&self.config).clone()
    }

    /// Changes limits and timeouts, as [`Table::set_config`] does.
    pub fn set_config(&self, mut config: Config) {
        let mut current = lock(&self.config);
        config.limits.connections = current.limits.connections;
        current.clone_from(&config);
        // A table that another thread creates now may have the earlier options until the next
        // change.
        if let Some(table) = self.table.get() {
            lock(table).set_config(config);
        }
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics halfway through a change, so a poisoned table is consistent.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tracking {
    /// Writes the fields of connection tracking into the key of the packet's next pass.
    pub fn write_to(&self, key: &mut FlowKey) {
        // A packet that is not IP cannot be tracked.
        let (state, mark, label) = match &self.result {
            Some((_, tracked)) => (tracked.state, tracked.mark, tracked.label),
            None => (State::TRK | State::INV, 0, 0),
        };
        key.set(Field::CtState, state.0.into());
        key.set(Field::CtZone, self.zone.into());
        key.set(Field::CtMark, mark.into());
        key.set(Field::CtLabel, label);
    }
}

fn reason_of(reason: FragmentDrop) -> DropReason {
    match reason {
        FragmentDrop::Malformed => DropReason::Malformed,
        FragmentDrop::Overlap => DropReason::FragmentOverlap,
        FragmentDrop::Expired => DropReason::FragmentExpired,
        FragmentDrop::Memory => DropReason::FragmentMemory,
    }
}

fn commit_of(commit: &CtCommit, nat: Option<&CtNat>) -> Commit {
    let CtCommit { mark, mark_mask, label, label_mask, force } = *commit;
    let range = |kind, range: &NatRange| {
        let ports = range.ports.map(|(first, last)| first..=last);
        let keeps_address = range.first.is_unspecified();
        NatSpec {
            choice: if range.random { PortChoice::Random } else { PortChoice::Hash },
            persistent: range.persistent,
            ..NatSpec::new(kind, (!keeps_address).then_some(range.first..=range.last), ports)
        }
    };
    Commit {
        mark: (mark_mask != 0).then_some(Masked { value: mark, mask: mark_mask }),
        label: (label_mask != 0).then_some(Masked { value: label, mask: label_mask }),
        nat: nat.map(|nat| match nat {
            // A new connection keeps its addresses, and gets another port only if its own is in
            // use.
            CtNat::Existing => NatSpec::new(NatKind::Source, None, None),
            CtNat::Source(addresses) => range(NatKind::Source, addresses),
            CtNat::Destination(addresses) => range(NatKind::Destination, addresses),
        }),
        force,
    }
}
