//! Fusion: a datapath forwards packets of an established connection without consulting the table.
//!
//! A datapath may combine the passes of such packets into one cached decision. It tells the table
//! with [`Table::fuse`]. From then on the table reports each change of the connection, so that the
//! datapath can end the decision ([`Table::take_outdated`]), and the datapath reports that the
//! connection is in use ([`Table::prolong`]).
//!
//! The table does not see fused packets, so it does not know the TCP windows. Until the datapath
//! has called [`Table::end_fusion`], a packet that does reach the table may have any sequence
//! number. Linux does the same for connections in a flow table (`flow_offload_fixup_tcp`). Numbers
//! outside the window are accepted even later: fused packets may have overtaken packets that were
//! on their way to the table. A window that begins with the overtaken packets would be too low.

use crate::entry::{Entry, Status};
use crate::tracked::{ConnId, ConnRef};
use crate::{Direction, Table};

/// Whether packets of a connection are fused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum FusionState {
    #[default]
    None,
    Fused,
    /// The connection has changed, and the datapath has not ended the fusion yet.
    Outdated,
}

/// Identifies a connection in all its states. Unlike a [`ConnId`], it is never reused for another
/// connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnKey {
    slot: u32,
    /// Unique in the table.
    serial: u64,
}

/// Steady packets of a direction that are tracked before the first proposal. A connection with one
/// request and one response has no more, and ends before a cached decision would pay for itself.
const EARLY: u8 = 4;
/// Milliseconds between the first two proposals of a direction, as a power of two. Each further
/// interval is twice as long, up to [`MAX_LEVEL`] times.
const PROPOSAL_SHIFT: u32 = 7;
const MAX_LEVEL: u8 = 6;
/// In a byte of [`Entry::proposals`], the bits from [`LEVEL_SHIFT`] on are the level. The bits
/// below are the time of the last proposal, in intervals of that level. Before the first proposal,
/// the level is [`EARLY_LEVEL`] and the bits below count the early packets. 0 means that there was
/// no packet yet.
const EARLY_LEVEL: u8 = 7;
const LEVEL_SHIFT: u32 = 5;
const BELOW_LEVEL: u8 = (1 << LEVEL_SHIFT) - 1;
/// The next steady packet proposes fusion.
const READY: u8 = EARLY_LEVEL << LEVEL_SHIFT | EARLY;

impl Entry {
    /// Records that the connection has changed. Returns its key if the change must be reported.
    #[must_use]
    pub fn outdate(&mut self, slot: u32) -> Option<ConnKey> {
        let is_fused = self.fusion == FusionState::Fused;
        is_fused.then(|| {
            self.fusion = FusionState::Outdated;
            ConnKey { slot, serial: self.serial }
        })
    }

    /// Whether a steady packet of this direction proposes fusion now.
    pub fn is_proposed(&mut self, now_ms: u64, direction: Direction) -> bool {
        let last = &mut self.proposals[direction.index()];
        if *last == 0 {
            *last = EARLY_LEVEL << LEVEL_SHIFT;
        }
        let level = *last >> LEVEL_SHIFT;
        let is_first = level == EARLY_LEVEL;
        if is_first && *last < READY {
            *last += 1;
            return false;
        }
        // The cast keeps the lowest bits: once in 32 intervals, a proposal waits for the next one.
        let time = |level: u8| (now_ms >> (PROPOSAL_SHIFT + u32::from(level))) as u8 & BELOW_LEVEL;
        if self.fusion == FusionState::Outdated
            || !is_first && *last == level << LEVEL_SHIFT | time(level)
        {
            return false;
        }
        let next = if is_first { 0 } else { MAX_LEVEL.min(level + 1) };
        // Not 0, which means that there was no packet yet.
        *last = (next << LEVEL_SHIFT | time(next)).max(1);
        true
    }
}

impl Table {
    /// Begins to fuse packets of these connections, all of them or none. Returns their keys, or
    /// `None` if one of them has changed or is not assured.
    pub fn fuse(&mut self, connections: &[ConnRef]) -> Option<Box<[ConnKey]>> {
        let key = |connection: &ConnRef| {
            let entry = self.slab.get(connection.id.0)?;
            let is_same = entry.generation == connection.generation
                && entry.status.has(Status::ASSURED)
                && entry.fusion != FusionState::Outdated;
            is_same.then_some(ConnKey { slot: connection.id.0, serial: entry.serial })
        };
        let keys: Box<[ConnKey]> = connections.iter().map(key).collect::<Option<_>>()?;
        for key in &keys {
            if let Some(entry) = self.slab.get_mut(key.slot) {
                entry.fusion = FusionState::Fused;
            }
        }
        Some(keys)
    }

    /// Ends fusion: the datapath no longer has a cached decision for the connection.
    pub fn end_fusion(&mut self, key: ConnKey) {
        if let Some(entry) = self.by_key(key) {
            entry.fusion = FusionState::None;
            entry.proposals = [READY; 2];
            entry.machine.forget_window();
        }
    }

    /// Ends fusion before any packet was forwarded by the cached decision, so that the TCP window
    /// is still known.
    pub fn cancel_fusion(&mut self, key: ConnKey) {
        if let Some(entry) = self.by_key(key) {
            entry.fusion = FusionState::None;
        }
    }

    /// True while the connection is fused and has not changed.
    pub fn is_fused(&self, key: ConnKey) -> bool {
        let entry = self.slab.get(key.slot);
        entry.is_some_and(|it| it.serial == key.serial && it.fusion == FusionState::Fused)
    }

    /// Extends the life of a connection of which the datapath has forwarded fused packets.
    pub fn prolong(&mut self, now_ms: u64, key: ConnKey) {
        // A connection that has changed has another timeout, which is not extended.
        if !self.is_fused(key) {
            return;
        }
        let Some(entry) = self.slab.get_mut(key.slot) else { return };
        let timeout_ms = self.config.timeouts.ms(entry.machine.steady_timeout());
        entry.deadline_ms = entry.deadline_ms.max(now_ms + timeout_ms);
    }

    /// The fused connections that have changed or ended since the last call.
    pub fn take_outdated(&mut self) -> Vec<ConnKey> {
        std::mem::take(&mut self.outdated)
    }

    /// Returns connections that [`Table::take_outdated`] is to return again.
    pub fn put_back(&mut self, outdated: Vec<ConnKey>) {
        self.outdated.extend(outdated);
    }

    /// The connections that [`Table::take_outdated`] would return.
    pub fn outdated(&self) -> &[ConnKey] {
        &self.outdated
    }

    fn by_key(&mut self, key: ConnKey) -> Option<&mut Entry> {
        self.slab.get_mut(key.slot).filter(|entry| entry.serial == key.serial)
    }
}

impl ConnKey {
    /// The connection's slot.
    pub const fn id(self) -> ConnId {
        ConnId(self.slot)
    }
}
