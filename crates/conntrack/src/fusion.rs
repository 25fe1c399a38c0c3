//! Fusion: a datapath forwards packets of an established connection without the table.
//!
//! A datapath may combine the passes of such packets into one cached decision. It tells the table
//! with [`Table::fuse`]. From then on the table reports each change of the connection, so that the
//! datapath can end the decision ([`Table::take_outdated`]), and the datapath reports that the
//! connection is in use ([`Table::prolong`]).
//!
//! The table does not see fused packets, so it does not know the TCP windows. Until the datapath
//! has called [`Table::end_fusion`], a packet that does reach the table may have any sequence
//! number. Linux does the same for connections in a flow table (`flow_offload_fixup_tcp`).

use crate::entry::{Entry, Status};
use crate::tracked::{ConnId, ConnRef};
use crate::{Direction, Table};

/// Whether packets of a connection are fused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Fusion {
    #[default]
    None,
    Fused,
    /// The connection has changed, and the datapath has not ended the fusion yet.
    Outdated,
}

/// A connection, whatever its state. Unlike a [`ConnId`], it never stands for another connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnKey {
    slot: u32,
    /// Unique in the table.
    serial: u64,
}

/// Milliseconds between two proposals of one direction, as a power of two.
const PROPOSAL_SHIFT: u32 = 7;

impl Entry {
    /// Notes that the connection has changed. Returns its key if that has to be reported.
    #[must_use]
    pub fn outdate(&mut self, slot: u32) -> Option<ConnKey> {
        let is_fused = self.fusion == Fusion::Fused;
        is_fused.then(|| {
            self.fusion = Fusion::Outdated;
            ConnKey { slot, serial: self.serial }
        })
    }

    /// Whether a steady packet of this direction proposes fusion now.
    pub fn is_proposed(&mut self, now_ms: u64, direction: Direction) -> bool {
        // The unit wraps. 0 would be taken for a proposal that was made.
        let now = (now_ms >> PROPOSAL_SHIFT) as u8 | 0x80;
        let last = &mut self.proposed[direction.index()];
        self.fusion != Fusion::Outdated && std::mem::replace(last, now) != now
    }
}

impl Table {
    /// Begins to fuse packets of these connections, all of them or none. Returns their keys, or
    /// `None` if one of them is not what it was, or no longer steady.
    pub fn fuse(&mut self, connections: &[ConnRef]) -> Option<Box<[ConnKey]>> {
        let key = |connection: &ConnRef| {
            let entry = self.slab.get(connection.id.0)?;
            let is_same = entry.generation == connection.generation
                && entry.status.has(Status::ASSURED)
                && entry.fusion != Fusion::Outdated;
            is_same.then_some(ConnKey { slot: connection.id.0, serial: entry.serial })
        };
        let keys: Box<[ConnKey]> = connections.iter().map(key).collect::<Option<_>>()?;
        for key in &keys {
            if let Some(entry) = self.slab.get_mut(key.slot) {
                entry.fusion = Fusion::Fused;
            }
        }
        Some(keys)
    }

    /// Ends fusion: the datapath has no cached decision for the connection any more.
    pub fn end_fusion(&mut self, key: ConnKey) {
        if let Some(entry) = self.by_key(key) {
            entry.fusion = Fusion::None;
            entry.machine.forget_window();
        }
    }

    /// Notes that the datapath has forwarded fused packets of the connection.
    pub fn prolong(&mut self, now_ms: u64, key: ConnKey) {
        let Some(entry) = self.slab.get(key.slot).filter(|entry| entry.serial == key.serial) else {
            return;
        };
        // A connection that has changed has a timeout of its own.
        if entry.fusion != Fusion::Fused {
            return;
        }
        let deadline_ms = now_ms + self.config.timeouts.ms(entry.machine.steady_timeout());
        if let Some(entry) = self.by_key(key) {
            entry.deadline_ms = entry.deadline_ms.max(deadline_ms);
        }
    }

    /// The fused connections that have changed or ended since the last call.
    pub fn take_outdated(&mut self) -> Vec<ConnKey> {
        std::mem::take(&mut self.outdated)
    }

    /// What [`Table::take_outdated`] would return.
    pub fn outdated(&self) -> &[ConnKey] {
        &self.outdated
    }

    fn by_key(&mut self, key: ConnKey) -> Option<&mut Entry> {
        self.slab.get_mut(key.slot).filter(|entry| entry.serial == key.serial)
    }
}

impl ConnKey {
    /// The place of the connection.
    pub const fn id(self) -> ConnId {
        ConnId(self.slot)
    }
}
