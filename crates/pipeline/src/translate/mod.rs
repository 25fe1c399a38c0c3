//! [`translate()`]: what a program does with a packet, as actions, and the bits of the packet that this depended on.
//!
//! ```text
//! key -> entry (which datapath, which logical port) -> tables, one flow after another -> actions
//!           \______________ every bit read is recorded ______________/                 + mask
//! ```
//!
//! The translation is a machine (`machine`) that executes the steps of flows on a `RecordedKey`. A change of a header is kept
//! in the key until the packet is sent somewhere (`emit`). Output means the egress pipeline, another datapath, a port or a
//! tunnel (`output`). `learned` asks for, and reports, what the switch learns.
//!
//! Why the mask is right: the machine is a deterministic function of the program, the answers of [`LearnedState`], and the bits of the key
//! that it reads, and it can read them only in ways that record them. Another packet that agrees on the recorded bits
//! drives the machine through the same steps.

mod emit;
mod entry;
mod learned;
mod machine;
mod output;
mod presence;
mod select;

use crate::flow::Flow;
use crate::observer::Observer;
use crate::program::Program;
use crate::state::{Dependency, IngressPort, LearnEvent, LearnedState};
use ::flow::{Action, DropReason, FlowKey, FlowMask};
use machine::{Abort, Machine};
use std::sync::Arc;

/// Steps that a packet may take: flows looked up and steps of flows executed. Each copy for a member of a multicast group may take
/// as many from there.
pub const MAX_STEPS: u32 = 4096;
/// Steps that one translation may take, with all its copies.
pub const MAX_TOTAL_STEPS: u32 = 64 * MAX_STEPS;
/// How deep copies, replies, group members and unfinished flows may be nested.
pub const MAX_DEPTH: usize = 64;

/// What a program does with a packet.
#[derive(Clone, Debug)]
pub struct Translation<'p> {
    /// The bits of the packet that it depended on: the mask of the megaflow. The pipeline's registers are not in it.
    pub mask: FlowMask,
    /// What to do with the packet, and with every other that agrees on the bits of the mask; never empty, the last resort is
    /// [`Action::Drop`].
    pub actions: Vec<Action>,
    /// The answers about learnt state that it depended on.
    pub dependencies: Vec<Dependency>,
    /// What is to be learnt from this packet.
    pub learn_events: Vec<LearnEvent>,
    /// Who teaches it. As the lessons, it depends on nothing but the bits of the mask.
    pub ingress: IngressPort,
    /// The flows that decided, in order.
    pub flows: Vec<&'p Arc<Flow>>,
}

/// Translates the packet with this key. `key.in_port` says where it came in.
pub fn translate<'p>(
    program: &'p Program,
    key: &FlowKey,
    state: &impl LearnedState,
    observer: &mut impl Observer,
) -> Translation<'p> {
    retranslate(program, key, FlowMask::default(), state, observer)
}

/// As [`translate`], of a packet of which the bits in `known` have been read already: they are in the mask in any case, and what can be
/// told by them takes no others. So a megaflow is translated again: by its own key and mask, for all packets that it serves. The
/// mask that comes out is no larger than the megaflow's as long as they are treated alike.
pub fn retranslate<'p>(
    program: &'p Program,
    key: &FlowKey,
    known: FlowMask,
    state: &impl LearnedState,
    observer: &mut impl Observer,
) -> Translation<'p> {
    let mut machine = Machine::new(program, state, observer);
    machine.read = known;
    let actions = match machine.run_packet(key) {
        Ok(actions) => actions,
        Err(Abort(reason)) => vec![Action::Drop(reason)],
    };
    machine.finish(actions)
}

impl Translation<'_> {
    /// The reason, of a packet that is sent nowhere.
    pub fn dropped(&self) -> Option<DropReason> {
        match self.actions.split_last() {
            Some((Action::Drop(reason), before)) if !before.iter().any(entry::decides) => {
                Some(*reason)
            }
            _ => None,
        }
    }
}
