//! One flow of a program.

use crate::op::Op;
use crate::predicate::Predicate;
use crate::program::TableId;
use ::flow::DropReason;
use classifier::Rank;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a flow; unique in its program, and stable for as long as the flow is there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FlowId(pub u64);

/// A flow: what it matches is in the classifier it belongs to, and in `residual`.
#[derive(Debug)]
pub struct Flow {
    /// Its number.
    pub id: FlowId,
    /// The table it is in.
    pub table: TableId,
    /// Higher wins; 0 to 65,535.
    pub priority: u16,
    /// The part of the match that is not in the classifier.
    pub residual: Option<Box<Predicate>>,
    /// What it does.
    pub ops: Arc<[Op]>,
    /// What packets are counted as that these actions send nowhere.
    pub drop_reason: DropReason,
    /// What is shown to people.
    pub text: FlowText,
    /// Packets and bytes that it decided.
    pub counters: FlowCounters,
}

impl Flow {
    /// Its place among other flows of its table.
    pub const fn rank(&self) -> Rank {
        Rank { priority: self.priority as u32, id: self.id.0 }
    }
}

/// A flow as people wrote it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowText {
    /// The match, in its language.
    pub condition: Arc<str>,
    /// The actions, in their language.
    pub actions: Arc<str>,
    /// The stage's name, such as `ls_in_l2_lkup`; empty in a bridge.
    pub stage: Arc<str>,
    /// Where it was written: `northd.c:7342`, `flows.txt:12`, `network.toml:31`.
    pub source: Arc<str>,
    /// The cookie, 0 without; of a flow of an OVN database the first 32 bits of its UUID.
    pub cookie: u64,
}

/// How often a flow decided.
#[derive(Debug, Default)]
pub struct FlowCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    /// The flow that counts for this one. It counts for itself.
    shared: Option<Arc<Flow>>,
}

impl FlowCounters {
    /// Those of another flow, for one that is the same to people: a logical flow that has been compiled differently for other datapaths.
    pub fn of(flow: &Arc<Flow>) -> Self {
        let counting = flow.counters.shared.as_ref().unwrap_or(flow);
        Self { shared: Some(Arc::clone(counting)), ..Self::default() }
    }

    fn counting(&self) -> &Self {
        self.shared.as_ref().map_or(self, |flow| &flow.counters)
    }

    /// Adds what a megaflow has counted.
    pub fn add(&self, packets: u64, bytes: u64) {
        let counting = self.counting();
        counting.packets.fetch_add(packets, Ordering::Relaxed);
        counting.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Packets and bytes.
    pub fn get(&self) -> (u64, u64) {
        let counting = self.counting();
        (counting.packets.load(Ordering::Relaxed), counting.bytes.load(Ordering::Relaxed))
    }
}

impl fmt::Display for FlowText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.stage, self.source, self.condition)
    }
}
