//! Megaflows: cached decisions, each with the condition under which it holds.

use ahash::RandomState;
use flow::{Action, Match};
use std::fmt;
use std::sync::{Arc, LazyLock};

/// The number of a megaflow: a hash of its condition, seeded anew in every process. The same condition has the same number,
/// whoever made the megaflow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MegaflowId(pub u64);

/// 16 hexadecimal digits.
impl fmt::Display for MegaflowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Who chooses the packets must not be able to choose megaflows with one number.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A cached decision: what is done with every packet whose key meets the condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Megaflow {
    /// Its number.
    pub id: MegaflowId,
    /// Which packets it is about.
    pub condition: Match,
    /// What is done with them.
    pub actions: Arc<[Action]>,
}

impl Megaflow {
    /// A megaflow, with the number that its condition gives it.
    pub fn new(condition: Match, actions: Arc<[Action]>) -> Self {
        Self { id: MegaflowId(SEED.hash_one(&condition)), condition, actions }
    }
}

/// How often a megaflow was hit, and when last.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Packets; a super-packet is one.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When it was hit last: milliseconds since the datapath started; 0 as long as it was not.
    pub used_ms: u64,
}
