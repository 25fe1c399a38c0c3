//! The uplink as a device: tagged frames in and out (VLAN, QinQ), and STT's super-segments out.

use super::restore_tag;
use super::segmented_send::{SegmentedSender, needs_segmentation};
use super::transmit::refused;
use datapath::config::{TunnelConfig, Underlay};
use flow::{Carrier, DropCounters, DropReason, Encapsulated, TagLinks, Traffic};
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::Filter;
use netdev::io_error::IoError;
use netdev::{Error, Ifindex};
use packet::PacketBuf;

/// The sockets that are bound to the uplink.
#[derive(Debug, Default)]
pub(super) struct UplinkSockets {
    /// Receives tagged frames; only where a logical switch is linked by tags.
    pub(super) tags: Option<PacketSocket>,
    /// Sends whole frames and receives nothing.
    sender: Option<PacketSocket>,
}

impl UplinkSockets {
    /// Opens those for `count` workers: all tagged frames of a flow are received by one of them, unless programs hand them over.
    pub(super) fn open_group(
        needs: UplinkNeeds,
        uplink: Ifindex,
        count: usize,
        receives_tags: bool,
    ) -> Result<Vec<Self>, Error> {
        let UplinkNeeds { tags, stt } = needs;
        let receives = tags && receives_tags;
        let mut tags_group = if receives { open_tags(uplink, count)? } else { Vec::new() };
        let mut group = Vec::new();
        for _ in 0..count {
            let sender = (stt || tags).then(|| PacketSocket::open_sender(uplink)).transpose()?;
            group.push(Self { tags: tags_group.pop(), sender });
        }
        Ok(group)
    }
}

/// What the uplink is used for beside the tunnels that have sockets of their own.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct UplinkNeeds {
    pub(super) tags: bool,
    pub(super) stt: bool,
}

impl UplinkNeeds {
    pub(super) fn of(underlay: &Underlay) -> Self {
        let is_stt = |tunnel: &TunnelConfig| tunnel.spec.tunnel.carrier() == Carrier::TcpShaped;
        Self { tags: !underlay.links.is_empty(), stt: underlay.tunnels.iter().any(is_stt) }
    }
}

/// The uplink as a worker knows it.
#[derive(Debug, Default)]
pub(super) struct Uplink {
    sockets: UplinkSockets,
    /// Which tagged frames are listened to.
    pub(super) links: TagLinks,
    segmented: SegmentedSender,
    pub(super) rx: Traffic,
    pub(super) tx: Traffic,
    pub(super) drops: DropCounters,
    overruns_seen: u64,
}

impl Uplink {
    /// One that is closed.
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Goes over to another device.
    pub(super) fn replace(&mut self, sockets: UplinkSockets) {
        self.sockets = sockets;
        self.overruns_seen = 0;
    }

    /// Reads the next tagged frame, all tags in its bytes; false when there is none.
    pub(super) fn recv_tagged(&mut self, packet: &mut PacketBuf) -> bool {
        let Some(socket) = &self.sockets.tags else { return false };
        match socket.recv(packet) {
            Ok(Some(received)) => {
                if let Some(tag) = received.vlan {
                    restore_tag(packet, tag);
                }
                self.rx.add(packet.len());
                true
            }
            Ok(None) => false,
            // Refused as malformed, because nothing is left of it.
            Err(IoError::Malformed | IoError::Truncated | IoError::Offload(_)) => {
                packet.set_len(0);
                true
            }
            // The monitor tells when the link is back.
            Err(_) => false,
        }
    }

    /// Sends a frame with its tags.
    pub(super) fn send_tagged(&mut self, packet: &mut PacketBuf) -> Result<(), DropReason> {
        if needs_segmentation(packet) {
            let socket = self.sockets.sender.as_ref().ok_or(DropReason::NoSuchPort)?;
            let sent = self.segmented.send(packet, |segment| socket.send(segment));
            sent?.map_err(refused)?;
        } else {
            self.send(packet)?;
        }
        self.tx.add(packet.len());
        Ok(())
    }

    /// Sends an STT frame as one TCP-shaped super-segment.
    pub(super) fn send_stt(
        &mut self,
        outer: &Encapsulated,
        packet: &mut PacketBuf,
    ) -> Result<(), DropReason> {
        if outer.resolved { self.send(packet) } else { Err(DropReason::EndpointUnresolved) }
    }

    fn send(&mut self, packet: &PacketBuf) -> Result<(), DropReason> {
        let socket = self.sockets.sender.as_ref().ok_or(DropReason::NoSuchPort)?;
        socket.send(packet).map_err(refused)
    }

    /// Takes over what the kernel dropped before it could be read.
    pub(super) fn tick(&mut self) {
        let Some(stats) = self.sockets.tags.as_ref().and_then(|socket| socket.stats().ok()) else {
            return;
        };
        self.drops
            .add(DropReason::ReceiveOverrun, stats.dropped.saturating_sub(self.overruns_seen));
        self.overruns_seen = stats.dropped;
    }
}

/// What receives tagged frames. They are for guests, and carry the guests' MAC addresses.
fn open_tags(uplink: Ifindex, count: usize) -> Result<Vec<PacketSocket>, Error> {
    let promiscuous = PacketOptions { promiscuous: true, ..PacketOptions::default() };
    PacketSocket::open_group(uplink, &Filter::vlan_tagged(), promiscuous, count)
}
