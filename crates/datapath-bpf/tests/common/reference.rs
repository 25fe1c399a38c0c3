//! Executes actions on a frame with [`flow::execute`], the reference for the programs.

use flow::{Action, ActionOutput, DropReason, Encapsulated, EndpointTable, PortNo, execute};
use packet::PacketBuf;

/// The result of executing actions: frames that leave, and drops.
#[derive(Default)]
pub struct Leaves {
    /// Frames with their port; `None` is the underlay.
    pub frames: Vec<(Option<PortNo>, PacketBuf)>,
    pub drops: Vec<DropReason>,
}

impl ActionOutput for Leaves {
    fn port(&mut self, port: PortNo, packet: &mut PacketBuf) -> Result<(), DropReason> {
        self.frames.push((Some(port), packet.clone()));
        Ok(())
    }

    fn underlay(&mut self, outer: &Encapsulated, packet: &mut PacketBuf) -> Result<(), DropReason> {
        let mut packet = packet.clone();
        if packet.offload.gso.is_none() {
            outer.finish(&mut packet);
        }
        self.frames.push((None, packet));
        Ok(())
    }

    fn dropped(&mut self, reason: DropReason, _: &PacketBuf) {
        self.drops.push(reason);
    }
}

/// Executes actions on a copy of a frame.
pub fn reference(actions: &[Action], frame: &PacketBuf, endpoints: &mut EndpointTable) -> Leaves {
    let mut leaves = Leaves::default();
    let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
    packet.append(&frame.to_vec());
    packet.offload = frame.offload;
    execute(actions, &mut packet, endpoints, &mut leaves);
    leaves
}
