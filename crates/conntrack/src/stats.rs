//! [`Stats`]: the counters of a table.

use crate::{CtDrop, Invalid};

/// Counters since the table was created.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Connections committed.
    pub committed: u64,
    /// Connections removed because their timeout expired, or because a RST ended them early.
    pub expired: u64,
    /// Connections removed by a packet: a reopened connection, a forced commit, or NAT that reused
    /// the ports of a closed connection.
    pub replaced: u64,
    /// Connections removed by request.
    pub flushed: u64,
    invalid: [u64; Invalid::ALL.len()],
    refused: [u64; CtDrop::ALL.len()],
}

impl Stats {
    /// Packets that were invalid for this reason.
    pub const fn invalid(&self, reason: Invalid) -> u64 {
        self.invalid[reason as usize]
    }

    /// Commits refused for this reason.
    pub const fn refused(&self, reason: CtDrop) -> u64 {
        self.refused[reason as usize]
    }

    pub(crate) const fn count_invalid(&mut self, reason: Invalid) {
        self.invalid[reason as usize] += 1;
    }

    pub(crate) const fn count_refused(&mut self, reason: CtDrop) {
        self.refused[reason as usize] += 1;
    }
}
