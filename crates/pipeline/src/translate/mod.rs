//! [`translate()`]: turns the flow key of a packet into datapath actions and a megaflow mask.
//!
//! ```text
//! key -> entry (datapath, logical port) -> tables, one flow after another -> actions
//!           \____________ every bit read is recorded ____________/            + mask
//! ```
//!
//! The `Translator` executes the steps of flows on a `RecordedKey`. Header changes stay in the key
//! until the packet is sent somewhere; then module `emit` turns them into actions. Module `output`
//! sends packets to egress pipelines, other datapaths, ports and tunnels. Module `learned` queries
//! learned state and reports learn events; module `clients` does so for load balancers and routers.
//! Module `bridge` forwards in provider bridges.
//!
//! A packet that passes the connection tracker is translated in several passes. Each pass is a
//! translation of its own. Module `conntrack` saves the state at the end of one and restores it in
//! the next.
//!
//! The mask is sound because the translator is a deterministic function of the program, the answers
//! of [`LearnedState`], and the key bits that it reads, and every read records its bits. Another
//! packet that agrees on the recorded bits takes the translator through the same steps.

mod bridge;
mod clients;
mod conntrack;
mod emit;
mod entry;
mod learned;
mod output;
mod presence;
mod reply;
mod select;
mod serve;
mod steady;
mod translator;

use crate::flow::Flow;
use crate::observer::Observer;
use crate::op::Op;
use crate::program::Program;
use crate::reads::ProgramReads;
use crate::state::{Dependency, IngressPort, LearnEvent, LearnedState};
use ::flow::{Action, DropReason, FlowKey, FlowMask};
pub use entry::InjectionPort;
use std::sync::Arc;
pub use steady::translate_steady;
use translator::{LimitExceeded, Translator};

/// The limit on steps for one packet: table lookups and executed steps of flows. Each copy for a
/// member of a multicast group has its own limit.
pub const MAX_STEPS: u32 = 4096;
/// The limit on steps for one translation, including all copies.
pub const MAX_TOTAL_STEPS: u32 = 64 * MAX_STEPS;
/// The limit on the nesting of copies, replies, group members and unfinished flows.
pub const MAX_DEPTH: usize = 64;

/// The result of a translation.
#[derive(Clone, Debug)]
pub struct Translation<'p> {
    /// The mask of the megaflow: every bit of the packet that the translation depended on.
    /// Registers are not part of it.
    pub mask: FlowMask,
    /// The actions for every packet that agrees with this one on the bits of the mask. Never empty:
    /// a packet that goes nowhere has [`Action::Drop`].
    pub actions: Vec<Action>,
    /// The queries of learned state that the translation depended on.
    pub dependencies: Vec<Dependency>,
    /// True when the result holds for this packet only, and must not become a megaflow: there was
    /// no room to save a state, or the packet's saved state is gone.
    pub is_transient: bool,
    /// The facts that the switch is to learn from this packet.
    pub learn_events: Vec<LearnEvent>,
    /// The port that the learn events count against. Like the events, it depends only on the bits
    /// of the mask.
    pub ingress: IngressPort,
    /// The flows that the packet hit, in order.
    pub flows: Vec<&'p Arc<Flow>>,
    /// The other parts of the program that the translation depended on.
    pub reads: ProgramReads,
}

/// Translates the packet with this key; its `in_port` is the ingress port. If its `recirc_id` is
/// not 0, this is a later pass. A megaflow of the result serves either first passes or later ones,
/// never both: the datapath must keep them apart.
pub fn translate<'p>(
    program: &'p Program,
    key: &FlowKey,
    state: &impl LearnedState,
    observer: &mut impl Observer,
) -> Translation<'p> {
    retranslate(program, key, FlowMask::default(), state, observer)
}

/// Translates a packet that enters a bridge and executes `ops` instead of a flow of the first table
/// (`packet-out` of ovs-ofctl). The result must not become a megaflow. A packet that does not enter
/// a bridge is translated as by [`translate`].
pub fn translate_ops<'p>(
    program: &'p Program,
    key: &FlowKey,
    ops: &'p [Op],
    state: &impl LearnedState,
) -> Translation<'p> {
    let mut observer = ();
    let mut translator = Translator::new(program, state, &mut observer);
    translator.first_ops = Some(ops);
    let actions = match translator.translate_packet(key) {
        Ok(actions) => actions,
        Err(LimitExceeded(reason)) => vec![Action::Drop(reason)],
    };
    translator.finish(actions)
}

/// Translates a packet that this host generates, from the logical port `from`. The result is for
/// this packet only.
pub fn translate_originated<'p>(
    program: &'p Program,
    key: &FlowKey,
    from: InjectionPort,
    state: &impl LearnedState,
) -> Translation<'p> {
    let observer = &mut ();
    let mut translator = Translator::new(program, state, observer);
    let actions = match translator.translate_originated(key, from) {
        Ok(actions) => actions,
        Err(LimitExceeded(reason)) => vec![Action::Drop(reason)],
    };
    translator.finish(actions)
}

/// Translates a megaflow again, from its own key and its mask `known`.
///
/// The bits of `known` are in the resulting mask in any case, and lookups prefer them over other
/// bits. The new mask is therefore no larger than `known` as long as all packets of the megaflow
/// still have the same actions.
pub fn retranslate<'p>(
    program: &'p Program,
    key: &FlowKey,
    known: FlowMask,
    state: &impl LearnedState,
    observer: &mut impl Observer,
) -> Translation<'p> {
    let mut translator = Translator::new(program, state, observer);
    translator.read = known;
    let actions = match translator.translate_packet(key) {
        Ok(actions) => actions,
        Err(LimitExceeded(reason)) => vec![Action::Drop(reason)],
    };
    translator.finish(actions)
}

impl Translation<'_> {
    /// The drop reason of a packet that is sent nowhere.
    pub fn dropped(&self) -> Option<DropReason> {
        match self.actions.split_last() {
            Some((Action::Drop(reason), before)) if !before.iter().any(entry::sends_or_drops) => {
                Some(*reason)
            }
            _ => None,
        }
    }
}
