//! One flow of a program.

use crate::op::Op;
use crate::predicate::Predicate;
use crate::program::TableId;
use ::flow::{DropReason, NamedMeter};
use classifier::Rank;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a flow: unique in its program, and stable as long as the flow exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FlowId(pub u64);

/// A flow: a match, a priority, and the steps to execute. The match is split between the rows of
/// the table's classifier and `residual`.
#[derive(Debug)]
pub struct Flow {
    /// The number.
    pub id: FlowId,
    /// The table.
    pub table: TableId,
    /// The priority, 0 to 65,535; the highest wins.
    pub priority: u16,
    /// The part of the match that the classifier cannot express.
    pub residual: Option<Box<Predicate>>,
    /// The steps to execute.
    pub ops: Arc<[Op]>,
    /// The drop reason of packets that these steps send nowhere.
    pub drop_reason: DropReason,
    /// The text, for display.
    pub text: FlowText,
    /// Packets and bytes that hit this flow.
    pub counters: FlowCounters,
}

impl Flow {
    /// The rank among the flows of the table.
    pub const fn rank(&self) -> Rank {
        Rank { priority: self.priority as u32, id: self.id.0 }
    }
}

/// The text of a flow, for display.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowText {
    /// The match, in its language.
    pub condition: Arc<str>,
    /// The actions, in their language.
    pub actions: Arc<str>,
    /// The stage's name, such as `ls_in_l2_lkup`; empty in a bridge.
    pub stage: Arc<str>,
    /// Where it was defined: `northd.c:7342`, `flows.txt:12`, `network.toml:31`.
    pub source: Arc<str>,
    /// The cookie; for a flow of an OVN database the first 32 bits of its UUID; else 0.
    pub cookie: u64,
    /// The meter that limits the packets that the flow passes to services of the switch.
    pub meter: Option<Arc<NamedMeter>>,
}

/// How many packets and bytes a flow has handled.
#[derive(Debug, Default)]
pub struct FlowCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    /// A flow whose counters are used instead of these. That flow uses its own.
    shared: Option<Arc<Flow>>,
}

impl FlowCounters {
    /// Shares the counters of another flow: both were compiled from one logical flow, for different
    /// datapaths, and share one count.
    pub fn of(flow: &Arc<Flow>) -> Self {
        let counting = flow.counters.shared.as_ref().unwrap_or(flow);
        Self { shared: Some(Arc::clone(counting)), ..Self::default() }
    }

    fn counting(&self) -> &Self {
        self.shared.as_ref().map_or(self, |flow| &flow.counters)
    }

    /// Adds packets and bytes that a megaflow has counted.
    pub fn add(&self, packets: u64, bytes: u64) {
        let counting = self.counting();
        counting.packets.fetch_add(packets, Ordering::Relaxed);
        counting.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The packets and bytes so far.
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
