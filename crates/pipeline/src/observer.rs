//! [`Observer`]: is notified of each step of a translation, for `weft trace` and tests.

use crate::flow::Flow;
use crate::op::{CtBackend, Direction};
use crate::program::TableId;
use flow::{
    CtCommit, CtNat, DatapathKey, DropReason, EndpointId, Field, FlowKey, PortKey, PortNo,
    TrackResult,
};
use services::Destination;

/// A step of a translation.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The packet enters a pipeline of a logical datapath.
    Pipeline {
        /// The datapath.
        datapath: DatapathKey,
        /// Ingress or egress.
        direction: Direction,
        /// The logical ingress port.
        inport: Option<PortKey>,
        /// The logical egress port; known in an egress pipeline only.
        outport: Option<PortKey>,
    },
    /// A lookup in a table.
    Lookup {
        /// The datapath of the table.
        datapath: DatapathKey,
        /// The table.
        table: TableId,
        /// The flow that matched.
        flow: Option<&'a Flow>,
        /// The flow key that was looked up.
        key: &'a FlowKey,
    },
    /// The value of a field changes.
    Change {
        /// The field.
        field: Field,
        /// The value of the whole field before.
        before: u128,
        /// The value of the whole field after.
        after: u128,
    },
    /// Steps on another packet begin. They end with [`Event::Leave`].
    Enter(Nested),
    /// The steps on the other packet end.
    Leave,
    /// The packet is sent out of a datapath port.
    Output {
        /// The datapath port.
        port: PortNo,
        /// The logical port, for a packet in a logical datapath.
        logical: Option<(DatapathKey, PortKey)>,
        /// The flow key with the headers that are sent.
        key: &'a FlowKey,
    },
    /// The packet is sent through a tunnel.
    Encap {
        /// The tunnel end point.
        endpoint: EndpointId,
        /// The logical port or multicast group, for a packet in a logical datapath.
        logical: Option<(DatapathKey, PortKey)>,
        /// The flow key with the headers that are sent.
        key: &'a FlowKey,
    },
    /// A remark for the reader of a trace.
    Note(&'a str),
    /// The packet, or this copy of it, is dropped.
    Drop(DropReason),
}

/// The packet that nested steps work on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nested {
    /// A copy, made by `clone`.
    Clone,
    /// A new packet that is generated from the current one.
    Reply(flow::Reply),
    /// A copy for a member of a multicast group.
    Member {
        /// The datapath of the port.
        datapath: DatapathKey,
        /// The port.
        port: PortKey,
    },
    /// A copy that is output. The steps after the output work on the original.
    Output,
    /// The branch for frames longer than this many bytes.
    Longer(u16),
    /// The branch for frames that are not longer than this many bytes.
    NotLonger(u16),
    /// The branch in which this service answers, and the answer goes to this destination.
    Answered(&'static str, Destination),
    /// The branch for packets that this service does not answer.
    Unanswered(&'static str),
    /// A copy that has passed the connection tracker, with the state that the observer assumes.
    Tracked {
        /// The bits of `ct_state`.
        state: u8,
    },
}

/// A packet is about to pass the connection tracker.
#[derive(Clone, Copy, Debug)]
pub struct TrackRequest<'a> {
    /// The zone.
    pub zone: u16,
    /// Network address translation.
    pub nat: Option<&'a CtNat>,
    /// The commit of the connection, if the action commits it.
    pub commit: Option<&'a CtCommit>,
    /// The tracker must ignore the results of earlier passes.
    pub fresh: bool,
    /// False for an action that only commits: the packet has no next pass.
    pub recirculates: bool,
    /// True when no step of the program is left in this pass.
    pub is_last_step: bool,
    /// True for a load balancer that has chosen a backend.
    pub balances: bool,
    /// The present `ct_state` of the packet.
    pub state: u8,
}

/// How a translation continues when a packet is passed to the connection tracker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterTracking {
    /// The translation ends. The datapath tracks the packet and begins its next pass.
    Suspend,
    /// It continues with this `ct_state`, for a trace.
    Assume(u8),
    /// It continues with this result, which is the same for all such packets. The pass must be the
    /// last step of the packet, unless it only commits.
    Known(TrackResult),
}

/// Is notified of each step of a translation.
pub trait Observer {
    /// False for an observer that ignores all events, so that their text is not formatted.
    const ENABLED: bool = true;

    /// Called for each step, in order.
    fn event(&mut self, event: Event<'_>);

    /// The index of the choice that a `select` makes; `None` leaves it to the hash of the packet.
    /// `choices` (value and weight) has at least one element.
    fn select(&mut self, _choices: &[(u16, u16)]) -> Option<usize> {
        None
    }

    /// The index of the backend that a load balancer chooses; `None` leaves it to the hash of the
    /// packet.
    fn balance(&mut self, _backends: &[CtBackend]) -> Option<usize> {
        None
    }

    /// How the translation continues after the connection tracker.
    fn track(&mut self, _request: &TrackRequest<'_>) -> AfterTracking {
        AfterTracking::Suspend
    }
}

/// Ignores all events.
impl Observer for () {
    const ENABLED: bool = false;

    #[inline]
    fn event(&mut self, _: Event<'_>) {}
}
