//! Sends a frame through a tunnel: fits it to the path MTU, encapsulates it, and sends it to the
//! underlay.

use crate::endpoint::PathLimit;
use crate::{
    ActionOutput, DropReason, Encapsulated, EndpointId, EndpointTable, TunnelKey, clamp_mss,
};
use packet::{Fit, Fragmenter, PacketBuf, fit, wire_len};
use wire::EtherType;
use wire::icmp::too_big::MIN_MTU_V6;

/// The tunnel that frames are sent through: an end point and a tunnel key.
pub(crate) struct TunnelSender<'a, O> {
    pub endpoint: EndpointId,
    pub key: &'a TunnelKey,
    pub endpoints: &'a mut EndpointTable,
    pub output: &'a mut O,
}

impl<O: ActionOutput> TunnelSender<'_, O> {
    /// Sends a frame and leaves the packet unchanged. A frame that exceeds the path MTU is
    /// fragmented if its sender allows that. Otherwise the sender is notified
    /// ([`ActionOutput::too_big`]).
    pub fn send(&mut self, packet: &mut PacketBuf) -> Result<(), DropReason> {
        // STT has no limit, because it segments frames itself.
        let Some(limit) = self.endpoints.path_limit(self.endpoint, self.key)? else {
            return self.encap_and_send(packet);
        };
        if wire_len(packet) > limit.max_frame_len {
            return self.send_too_long(packet, &limit);
        }
        if limit.clamp_mss && crate::mss::is_syn(packet) {
            let mut copy = packet.clone();
            clamp_mss(&mut copy, limit.max_frame_len);
            return self.encap_and_send(&mut copy);
        }
        self.encap_and_send(packet)
    }

    /// Handles a frame that is too long for the path, which is rare.
    fn send_too_long(
        &mut self,
        packet: &mut PacketBuf,
        limit: &PathLimit,
    ) -> Result<(), DropReason> {
        match fit(packet, limit.max_frame_len) {
            Fit::Fits => self.encap_and_send(packet),
            Fit::Resize(resize) => {
                // Resizes a copy, because later actions use the unchanged frame.
                let mut copy = packet.clone();
                resize.apply(&mut copy);
                self.encap_and_send(&mut copy)
            }
            Fit::Fragment { mtu } => {
                let each = |fragment: &mut PacketBuf| {
                    if let Err(reason) = self.encap_and_send(fragment) {
                        self.output.dropped(reason, fragment);
                    }
                };
                let done = Fragmenter::new().fragment(packet, mtu.into(), each);
                done.map(drop).map_err(|_| DropReason::UnderlayTooBig)
            }
            // IPv6 guests need not send packets shorter than the minimum MTU of IPv6 (RFC 8200
            // section 5). If the discovered path MTU is right, a router drops the packet. If it is
            // wrong, the packet arrives.
            Fit::TooBig { .. }
                if is_least_ipv6(packet) && wire_len(packet) <= limit.configured_frame_len =>
            {
                self.encap_and_send(packet)
            }
            Fit::TooBig { mtu } => {
                self.output.too_big(packet, mtu);
                Err(DropReason::UnderlayTooBig)
            }
            Fit::Never => Err(DropReason::UnderlayTooBig),
        }
    }

    /// Encapsulates and sends a frame that fits the path.
    fn encap_and_send(&mut self, packet: &mut PacketBuf) -> Result<(), DropReason> {
        let Some(limits) = self.endpoints.split_limits(self.endpoint, packet) else {
            let outer = self.encap(packet)?;
            let sent = self.output.underlay(&outer, packet);
            outer.undo(packet);
            return sent;
        };
        // The tunnel cannot carry this super-packet whole, which is rare. The frame is copied,
        // because splitting shortens it.
        let mut first = packet.clone();
        let rest = packet::split(&mut first, limits).map_err(|_| DropReason::Segmentation)?;
        for mut part in std::iter::once(first).chain(rest) {
            let sent = self.encap(&mut part);
            if let Err(reason) = sent.and_then(|outer| self.output.underlay(&outer, &mut part)) {
                self.output.dropped(reason, &part);
            }
        }
        Ok(())
    }

    /// Prepends the outer headers that the output expects.
    fn encap(&mut self, packet: &mut PacketBuf) -> Result<Encapsulated, DropReason> {
        self.endpoints.encap_with(self.endpoint, self.key, packet, O::OUTER_HEADERS)
    }
}

/// True for an IPv6 packet of at most 1280 bytes; for a super-packet, the length of its segments
/// counts.
fn is_least_ipv6(packet: &PacketBuf) -> bool {
    packet.located().is_ok_and(|at| {
        let len = wire_len(packet).min(at.l3_end).saturating_sub(at.l3);
        at.ethertype == EtherType::IPV6 && len <= usize::from(MIN_MTU_V6)
    })
}
