//! Upcalls: packets for which the datapath has no megaflow, passed to the switch for translation.

use crate::megaflow::{Megaflow, MegaflowId};
use conntrack::{ConnRef, Headers, Tracked, Translation};
use flow::{Action, CtAction, FlowKey, PortNo, Recirculation, Rewrite, SteadyPass, TrackResult};
use packet::PacketBuf;
use std::sync::Arc;
use std::time::Instant;

/// Why a packet is passed to the switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UpcallReason {
    /// No megaflow matches the packet. It is held until its [`Answer`] arrives.
    Miss,
    /// [`Action::Controller`] copied the packet. No answer is expected.
    Controller,
    /// The passes of the packet may be fused into one megaflow. The packet has been forwarded and
    /// is not part of the upcall. No answer is expected.
    Fuse(Box<FuseProposal>),
}

/// The connection-tracking passes of a packet that a fused megaflow may replace.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FuseProposal {
    /// The passes, in order.
    pub passes: Vec<SteadyPass>,
    /// The connections, in their state at that time.
    pub connections: Vec<ConnRef>,
}

/// The forwarding worker that raised an upcall; the answer goes back to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct WorkerId(pub u16);

/// A packet that a worker passes to the switch.
#[derive(Debug)]
pub struct Upcall {
    /// The packet as received, after decapsulation and before any other change. In a later pass, as
    /// changed by the actions of the earlier passes.
    pub packet: PacketBuf,
    /// The flow key that was extracted from it.
    pub key: FlowKey,
    /// The ingress port.
    pub port: PortNo,
    /// Why it was raised.
    pub reason: UpcallReason,
    /// The worker that raised it.
    pub worker: WorkerId,
    /// When it was raised.
    pub raised: Instant,
    /// `Some` in a later pass of the packet.
    pub recirculated: Option<Box<Recirculated>>,
}

/// A packet in a later pass, after connection tracking.
#[derive(Clone, Debug)]
pub struct Recirculated {
    /// Keeps the saved state in which the pass begins, until the answer arrives.
    pub recirculation: Recirculation,
    /// How many passes the packet has made before.
    pub passes: u8,
    /// The result of connection tracking.
    pub tracking: Tracking,
}

/// A packet as the connection tracker saw it, and the result.
#[derive(Clone, Debug)]
pub struct Tracking {
    /// The zone.
    pub zone: u16,
    /// The headers that the packet had then, and the result; `None` for a packet that is not IP.
    pub result: Option<(Headers, Tracked)>,
    /// True if the NAT of its connection was applied to the packet.
    pub is_translated: bool,
}

impl FuseProposal {
    /// Adds a pass. `None` if later packets like this one may have another result.
    #[must_use]
    pub fn with_pass(mut self, action: &CtAction, tracking: &Tracking) -> Option<Self> {
        let (_, tracked) = tracking.result.as_ref().filter(|(_, tracked)| tracked.is_steady)?;
        let rewrite = match &tracked.translation {
            None => Rewrite::default(),
            // An ICMP message: a fused megaflow does not rewrite these fields.
            Some(rewrite) if rewrite.ident.is_some() || rewrite.quoted.is_some() => return None,
            // Without another pass, the pipeline does not see that the packet was rewritten.
            Some(_) if action.recirculation.is_none() => return None,
            Some(Translation { src, dst, src_port, dst_port, .. }) => {
                Rewrite { src: *src, dst: *dst, src_port: *src_port, dst_port: *dst_port }
            }
        };
        self.connections.push(tracked.connection?);
        self.passes.push(SteadyPass {
            zone: action.zone,
            nat: action.nat,
            commit: action.commit,
            fresh: action.fresh,
            recirculates: action.recirculation.is_some(),
            result: TrackResult {
                state: tracked.state.0,
                mark: tracked.mark,
                label: tracked.label,
                rewrite,
            },
        });
        Some(self)
    }
}

/// The switch's decision about a packet that missed.
#[derive(Debug)]
pub struct Answer {
    /// The upcall that is answered, with its packet.
    pub upcall: Upcall,
    /// The actions to execute on that packet.
    pub actions: Arc<[Action]>,
    /// A megaflow to install for later packets. The worker installs it before it sends the packet.
    pub megaflow: Option<Box<Megaflow>>,
    /// The megaflow that stands for this decision, whether new or not. Drop watchers show it.
    pub decided_by: Option<MegaflowId>,
}

/// How many packets of one port may wait for the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UpcallLimits {
    /// Packets of one port.
    pub packets: usize,
    /// Bytes of one port's packets. A single packet may wait whatever its length.
    pub bytes: usize,
    /// Segments of one port's packets: a super-packet counts by its segments. A single packet may
    /// wait whatever their number.
    pub segments: usize,
}

impl Default for UpcallLimits {
    fn default() -> Self {
        Self { packets: 512, bytes: 1 << 20, segments: 4096 }
    }
}
