//! Megaflows: cached forwarding decisions, each with the match that says which packets it serves.

use ahash::RandomState;
use conntrack::ConnKey;
use flow::{Action, Match, SteadyPass};
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
    /// The actions for these packets.
    pub actions: Arc<[Action]>,
    /// For a fused megaflow: how its packets pass the connection tracker.
    pub fusion: Option<Arc<Fusion>>,
}

/// The passes and connections that a fused megaflow depends on.
///
/// A fused megaflow does at once what all passes of a packet through the connection tracker do. It
/// serves the packets of one direction of connections that do not change. It is in force until the
/// switch deletes it, because one of its connections has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fusion {
    /// The passes, in order.
    pub passes: Box<[SteadyPass]>,
    /// The connections, one or more. Those of different zones are different connections.
    pub connections: Box<[ConnKey]>,
}

impl Megaflow {
    /// Makes a megaflow; its number follows from `condition`.
    pub fn new(condition: Match, actions: Arc<[Action]>) -> Self {
        Self { id: MegaflowId(SEED.hash_one(&condition)), condition, actions, fusion: None }
    }

    /// Makes a fused megaflow. It has another number than a megaflow of first passes with the same
    /// condition.
    pub fn fused(condition: Match, actions: Arc<[Action]>, fusion: Arc<Fusion>) -> Self {
        let id = MegaflowId(SEED.hash_one((&condition, "fused")));
        Self { id, condition, actions, fusion: Some(fusion) }
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
