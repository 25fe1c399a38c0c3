//! Sending a frame through a tunnel: made to fit what the path carries, put into outer headers, handed to the underlay.

use crate::{DropReason, EndpointId, EndpointTable, Output, TunnelKey, clamp_mss};
use packet::{Fit, Fragmenter, PacketBuf, fit, wire_len};

/// Sends a frame to an end point, and leaves it as it was. What the path cannot carry is cut where its sender allows it, and
/// otherwise the sender is told ([`Output::too_big`]).
pub(crate) fn send(
    endpoint: EndpointId,
    key: &TunnelKey,
    packet: &mut PacketBuf,
    endpoints: &mut EndpointTable,
    output: &mut impl Output,
) -> Result<(), DropReason> {
    let limit = endpoints.max_frame_len(endpoint, key)?;
    if wire_len(packet) > limit {
        return send_too_long(limit, endpoint, key, packet, endpoints, output);
    }
    // STT carries all: there is nothing to clamp to.
    if limit < usize::MAX && endpoints.clamps_mss(endpoint) && crate::mss::is_syn(packet) {
        let mut copy = packet.clone();
        clamp_mss(&mut copy, limit);
        return carry(endpoint, key, &mut copy, endpoints, output);
    }
    carry(endpoint, key, packet, endpoints, output)
}

/// The rare frame that is too long.
fn send_too_long(
    limit: usize,
    endpoint: EndpointId,
    key: &TunnelKey,
    packet: &mut PacketBuf,
    endpoints: &mut EndpointTable,
    output: &mut impl Output,
) -> Result<(), DropReason> {
    match fit(packet, limit) {
        Fit::Fits => carry(endpoint, key, packet, endpoints, output),
        Fit::Resize(resize) => {
            // Copied, because the actions that follow go on with the frame as it is.
            let mut copy = packet.clone();
            resize.apply(&mut copy);
            carry(endpoint, key, &mut copy, endpoints, output)
        }
        Fit::Fragment { mtu } => {
            let each = |fragment: &mut PacketBuf| {
                if let Err(reason) = carry(endpoint, key, fragment, endpoints, output) {
                    output.dropped(reason, fragment);
                }
            };
            let done = Fragmenter::new().fragment(packet, mtu.into(), each);
            done.map(drop).map_err(|_| DropReason::UnderlayTooBig)
        }
        Fit::TooBig { mtu } => {
            output.too_big(packet, mtu);
            Err(DropReason::UnderlayTooBig)
        }
        Fit::Never => Err(DropReason::UnderlayTooBig),
    }
}

/// Sends a frame that fits.
fn carry(
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
