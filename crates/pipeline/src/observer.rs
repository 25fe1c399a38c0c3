//! Watching a translation, for `weft trace`.

use crate::flow::Flow;
use crate::op::Direction;
use crate::program::TableId;
use flow::{DatapathKey, DropReason, EndpointId, Field, FlowKey, PortKey, PortNo};

/// What happens in a translation, in order.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A pipeline of a logical datapath begins.
    Pipeline {
        /// Which.
        datapath: DatapathKey,
        /// Ingress or egress.
        direction: Direction,
        /// The logical port that the packet came in by.
        inport: Option<PortKey>,
        /// The logical port that it is to leave by, in an egress pipeline.
        outport: Option<PortKey>,
    },
    /// A lookup in a table.
    Lookup {
        /// In whose table.
        datapath: DatapathKey,
        /// Which table.
        table: TableId,
        /// The flow, or none.
        flow: Option<&'a Flow>,
        /// The key that was looked up.
        key: &'a FlowKey,
    },
    /// A field got another value.
    Change {
        /// Which field.
        field: Field,
        /// All of the field, before.
        before: u128,
        /// All of the field, now.
        after: u128,
    },
    /// Nested steps begin; they end with [`Event::Leave`].
    Enter(Nested),
    /// Nested steps end.
    Leave,
    /// The packet, with this key, leaves by a port of the datapath.
    Output {
        /// The port of the datapath.
        port: PortNo,
        /// The logical port, in a logical pipeline.
        logical: Option<(DatapathKey, PortKey)>,
        /// Its headers then.
        key: &'a FlowKey,
    },
    /// The packet leaves through a tunnel.
    Encap {
        /// Where to.
        endpoint: EndpointId,
        /// The logical port or multicast group, in a logical pipeline.
        logical: Option<(DatapathKey, PortKey)>,
        /// Its headers then.
        key: &'a FlowKey,
    },
    /// Something worth a line.
    Note(&'a str),
    /// The packet, or this copy, ends here.
    Drop(DropReason),
}

/// Steps on another packet than the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nested {
    /// A copy.
    Clone,
    /// A new packet.
    Reply(flow::Reply),
    /// A copy for a member of a multicast group.
    Member {
        /// Whose port it is.
        datapath: DatapathKey,
        /// The port.
        port: PortKey,
    },
    /// A copy that goes on by itself: what follows the output works on the packet as it was.
    Output,
    /// The case of a frame longer than so many bytes.
    Longer(u16),
    /// The case of a frame that is not.
    NotLonger(u16),
}

/// Is told what happens in a translation.
pub trait Observer {
    /// False for an observer that looks at nothing, so that nothing is prepared for it.
    const ENABLED: bool = true;

    /// Something happened.
    fn event(&mut self, event: Event<'_>);

    /// Which of `choices` (at least one) a `select` takes; `None` leaves it to the packet's hash.
    fn select(&mut self, _choices: &[(u16, u16)]) -> Option<usize> {
        None
    }
}

/// Watches nothing.
impl Observer for () {
    const ENABLED: bool = false;

    #[inline]
    fn event(&mut self, _: Event<'_>) {}
}
