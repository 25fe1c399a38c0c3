//! The reference executor: what a list of actions means.

use crate::{Action, DropReason, Encapsulated, EndpointId, EndpointTable, PortNo, TunnelKey};
use packet::PacketBuf;
use wire::{EtherType, vlan};

/// Where the executor hands frames to. A frame is lent for the time of the call, because the actions that follow go on
/// with the same frame.
pub trait Output {
    /// Sends the frame out of `port`.
    ///
    /// # Errors
    /// The reason under which the executor then counts the frame.
    fn port(&mut self, port: PortNo, packet: &mut PacketBuf) -> Result<(), DropReason>;

    /// Sends an encapsulated frame to the underlay. `packet` begins with the outer Ethernet header.
    ///
    /// # Errors
    /// The reason under which the executor then counts the frame.
    fn underlay(&mut self, outer: &Encapsulated, packet: &mut PacketBuf) -> Result<(), DropReason>;

    /// Counts a frame that is not delivered.
    fn dropped(&mut self, reason: DropReason, packet: &PacketBuf);
}

/// Executes `actions` in order on `packet`. What one output refuses is counted and the rest go on: a full port must not
/// keep a broadcast from the others.
pub fn execute(
    actions: &[Action],
    packet: &mut PacketBuf,
    endpoints: &mut EndpointTable,
    output: &mut impl Output,
) {
    for action in actions {
        let done = match action {
            Action::Output(port) => output.port(*port, packet),
            Action::Encap { endpoint, key } => encap(*endpoint, key, packet, endpoints, output),
            Action::PushVlan(tag) => match push_vlan(packet, *tag) {
                Ok(()) => Ok(()),
                Err(reason) => {
                    // Without its tag the frame would reach another network: nothing that follows may run.
                    output.dropped(reason, packet);
                    return;
                }
            },
            Action::PopVlan => {
                pop_vlan(packet);
                Ok(())
            }
            Action::Drop(reason) => {
                output.dropped(*reason, packet);
                return;
            }
            _ => todo!("being written"),
        };
        if let Err(reason) = done {
            output.dropped(reason, packet);
        }
    }
}

/// Sends a frame to an end point, and leaves it as it was.
fn encap(
    endpoint: EndpointId,
    key: &TunnelKey,
    packet: &mut PacketBuf,
    endpoints: &mut EndpointTable,
    output: &mut impl Output,
) -> Result<(), DropReason> {
    let Some(limits) = endpoints.split_limits(endpoint, packet) else {
        let outer = endpoints.encap(endpoint, key, packet)?;
        let sent = output.underlay(&outer, packet);
        outer.undo(packet);
        return sent;
    };
    // The rare super-packet that the tunnel cannot carry whole: copied, because cutting shortens it.
    let mut first = packet.clone();
    let rest = packet::split(&mut first, limits).map_err(|_| DropReason::Segmentation)?;
    for mut part in std::iter::once(first).chain(rest) {
        let sent = endpoints.encap(endpoint, key, &mut part);
        if let Err(reason) = sent.and_then(|outer| output.underlay(&outer, &mut part)) {
            output.dropped(reason, &part);
        }
    }
    Ok(())
}

const ADDRESSES_LEN: usize = 12;

/// Puts a tag between the MAC addresses and the EtherType.
///
/// # Errors
/// [`DropReason::Malformed`] for a frame without a whole Ethernet header, [`DropReason::Headroom`]; the frame is
/// unchanged then.
pub fn push_vlan(packet: &mut PacketBuf, tag: vlan::Tag) -> Result<(), DropReason> {
    if packet.head().len() < ADDRESSES_LEN + 2 {
        return Err(DropReason::Malformed);
    }
    packet.push_front(vlan::TAG_LEN).map_err(|_| DropReason::Headroom)?;
    let head = packet.head_mut();
    head.copy_within(vlan::TAG_LEN..vlan::TAG_LEN + ADDRESSES_LEN, 0);
    head[ADDRESSES_LEN..ADDRESSES_LEN + vlan::TAG_LEN].copy_from_slice(&tag.to_bytes());
    Ok(())
}

/// Takes the outermost tag off, if there is one.
fn pop_vlan(packet: &mut PacketBuf) {
    let head = packet.head_mut();
    let Some(tpid) = head.get(ADDRESSES_LEN..ADDRESSES_LEN + 2) else { return };
    let untagged_len = ADDRESSES_LEN + vlan::TAG_LEN + 2;
    if !EtherType(u16::from_be_bytes([tpid[0], tpid[1]])).is_vlan() || head.len() < untagged_len {
        return;
    }
    head.copy_within(0..ADDRESSES_LEN, vlan::TAG_LEN);
    packet.pull_front(vlan::TAG_LEN);
}
