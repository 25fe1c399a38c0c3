//! What of the program a translation has read: [`ProgramReads`].

use crate::program::TableId;
use flow::{DatapathKey, PortKey, TunnelType};

/// What of the program a translation has read, besides the role of the ingress port. With the same
/// parts and the same flows found, another program gives the same translation.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct ProgramReads {
    pub(crate) lookups: Vec<TableLookup>,
    pub(crate) parts: Vec<ProgramPart>,
}

/// A lookup in a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TableLookup {
    pub datapath: DatapathKey,
    pub table: TableId,
    /// False if no flow matched. The flows that matched are in [`Translation::flows`], in order.
    ///
    /// [`Translation::flows`]: crate::Translation::flows
    pub is_hit: bool,
}

/// A part of the program outside its tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum ProgramPart {
    /// The datapath of a tunnel key.
    Tunnel(TunnelType, u64),
    /// A datapath without its logical ports, multicast groups and flows.
    Datapath(DatapathKey),
    /// The logical port and the multicast group with this key, and the port's zone.
    Port(DatapathKey, PortKey),
    /// All logical ports and multicast groups of a datapath.
    AllPorts(DatapathKey),
    /// The zones of connection tracking.
    Zones,
    /// The backends that flows give to clients for further connections.
    AffinityRules,
}

impl ProgramReads {
    pub(crate) fn add_lookup(&mut self, datapath: DatapathKey, table: TableId, is_hit: bool) {
        self.lookups.push(TableLookup { datapath, table, is_hit });
    }

    pub(crate) fn add(&mut self, part: ProgramPart) {
        // Most parts are read several times in a row.
        if self.parts.last() != Some(&part) {
            self.parts.push(part);
        }
    }

    /// The same without repetitions.
    pub(crate) fn compact(mut self) -> Self {
        self.parts.sort_unstable();
        self.parts.dedup();
        self
    }
}
