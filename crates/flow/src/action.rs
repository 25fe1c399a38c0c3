//! What a datapath does with a frame.

use crate::{DatapathKey, DropReason, EndpointId, PortKey, PortNo};
use wire::vlan::Tag;

/// The logical ports that a tunnelled frame carries with it (Geneve option class 0x0102 type 0x80; bits 24-54 of STT's
/// context).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LogicalPorts {
    /// Where the frame entered the logical switch; 15 bits on the wire. `None` is sent as 0.
    pub ingress: Option<PortKey>,
    /// Where it leaves: one port, or a multicast group.
    pub egress: PortKey,
}

/// What a tunnel header says beside the frame it carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TunnelKey {
    /// The logical switch: VNI, GRE key, or STT context.
    pub datapath: DatapathKey,
    /// `Some` where the tunnel carries logical ports.
    pub ports: Option<LogicalPorts>,
}

/// One step of what happens to a frame. A list of them is executed in order on one frame; a frame that is to go to several
/// places simply has several outputs in its list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send the frame, as it stands, out of a port.
    Output(PortNo),
    /// Send the frame to a remote end point. The frame itself is as before for the actions that follow.
    Encap {
        /// Where to.
        endpoint: EndpointId,
        /// What the tunnel header says.
        key: TunnelKey,
    },
    /// Put a tag in front of the others.
    PushVlan(Tag),
    /// Take the outermost tag off; nothing when there is none.
    PopVlan,
    /// Count the frame under a reason and end the list.
    Drop(DropReason),
}
