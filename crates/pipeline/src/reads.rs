//! The parts of a program that a translation has read: [`ProgramReads`].

use crate::program::TableId;
use flow::{DatapathKey, PortKey, TunnelType};

/// The parts of a program that a translation has read, except the role of the ingress port. Another
/// program gives the same translation if it has the same parts and its lookups find the same flows.
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
    /// The affinity rules of all flows.
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

    /// Removes repeated parts.
    pub(crate) fn compact(mut self) -> Self {
        self.parts.sort_unstable();
        self.parts.dedup();
        self
    }
}
