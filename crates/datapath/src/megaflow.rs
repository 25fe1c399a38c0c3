//! Megaflows: cached forwarding decisions, each with the match that says which packets it serves.

use ahash::RandomState;
use flow::{Action, Match};
use std::fmt;
use std::sync::{Arc, LazyLock};

/// The number of a megaflow: a hash of its match.
///
/// The hash is seeded anew in every process. Within one process, the same match always has the same
/// number, whichever thread made the megaflow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MegaflowId(pub u64);

/// 16 hexadecimal digits.
impl fmt::Display for MegaflowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A random seed, so that a sender cannot choose packets whose megaflows collide in their numbers.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A cached decision: the actions for every packet whose key meets the match.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Megaflow {
    /// Its number, derived from `condition`.
    pub id: MegaflowId,
    /// The packets that it serves.
    pub condition: Match,
    /// What is done with these packets.
    pub actions: Arc<[Action]>,
}

impl Megaflow {
    /// Makes a megaflow; its number follows from `condition`.
    pub fn new(condition: Match, actions: Arc<[Action]>) -> Self {
        Self { id: MegaflowId(SEED.hash_one(&condition)), condition, actions }
    }
}

/// How often a megaflow was hit, and when it was hit last.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Packets; a super-packet counts as one.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Time of the last hit, in milliseconds since the datapath started; 0 if there was none.
    pub used_ms: u64,
}
