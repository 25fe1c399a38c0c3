//! The uplink as a device: receives and sends frames with VLAN tags, and sends STT packets.

use super::restore_tag;
use super::segmented_send::{SegmentedSender, needs_segmentation};
use super::transmit::send_error;
use datapath::config::{TunnelConfig, Underlay};
use flow::{Carrier, DropCounters, DropReason, Encapsulated, PacketCounter, TagLinks};
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use netdev::io_error::IoError;
use netdev::{Error, Ifindex};
use packet::PacketBuf;

/// The sockets that are bound to the uplink.
#[derive(Debug, Default)]
pub(super) struct UplinkSockets {
    /// Receives tagged frames. `None` if no logical switch uses VLAN tags on the uplink, or if eBPF
    /// programs punt these frames.
    pub(super) tags: Option<PacketSocket>,
    /// Sends frames and receives none.
    sender: Option<PacketSocket>,
}

impl UplinkSockets {
    /// Opens the sockets of `count` workers. All tagged frames of a flow reach the same worker.
    /// `receives_tags` is false if eBPF programs punt the tagged frames.
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

/// The uses of the uplink that need packet sockets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct UplinkNeeds {
    pub(super) tags: bool,
    pub(super) stt: bool,
}

impl UplinkNeeds {
    pub(super) fn of(underlay: &Underlay) -> Self {
        let is_stt = |tunnel: &TunnelConfig| tunnel.spec.tunnel.carrier() == Carrier::TcpLike;
        Self { tags: !underlay.links.is_empty(), stt: underlay.tunnels.iter().any(is_stt) }
    }
}

/// The sockets and counters of the uplink of one worker.
#[derive(Debug, Default)]
pub(super) struct Uplink {
    sockets: UplinkSockets,
    /// The VLAN tags of logical switches on the uplink, and the ingress port of each.
    pub(super) links: TagLinks,
    segmented_sender: SegmentedSender,
    /// The kernel would drop what it sends, because its link is not running.
    pub(super) is_down: bool,
    pub(super) rx: PacketCounter,
    pub(super) tx: PacketCounter,
    pub(super) drops: DropCounters,
    overruns_seen: u64,
}

impl Uplink {
    /// An uplink without sockets.
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Replaces the sockets.
    pub(super) fn replace(&mut self, sockets: UplinkSockets) {
        self.sockets = sockets;
        self.overruns_seen = 0;
    }

    /// Reads the next tagged frame, with all tags in its bytes. False when no frame waits.
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
            // The worker drops an empty frame as malformed, and counts it.
            Err(IoError::Malformed | IoError::Truncated | IoError::Offload(_)) => {
                packet.set_len(0);
                true
            }
            // The device is down or gone. The control thread notices when it is back.
            Err(_) => false,
        }
    }

    /// Fails if the link of the uplink is not running.
    pub(super) fn check_link(&self) -> Result<(), DropReason> {
        if self.is_down { Err(DropReason::UplinkDown) } else { Ok(()) }
    }

    /// Sends a frame whose tags are in its bytes.
    pub(super) fn send_tagged(&mut self, packet: &mut PacketBuf) -> Result<(), DropReason> {
        if needs_segmentation(packet) {
            let socket = self.sockets.sender.as_ref().ok_or(DropReason::NoSuchPort)?;
            let sent = self.segmented_sender.send(packet, |segment| socket.send(segment));
            sent?.map_err(send_error)?;
        } else {
            self.send(packet)?;
        }
        self.tx.add(packet.len());
        Ok(())
    }

    /// Sends an STT packet as one TCP-like super-packet.
    pub(super) fn send_stt(
        &mut self,
        outer: &Encapsulated,
        packet: &mut PacketBuf,
    ) -> Result<(), DropReason> {
        if outer.resolved { self.send(packet) } else { Err(DropReason::EndpointUnresolved) }
    }

    fn send(&mut self, packet: &PacketBuf) -> Result<(), DropReason> {
        let socket = self.sockets.sender.as_ref().ok_or(DropReason::NoSuchPort)?;
        socket.send(packet).map_err(send_error)
    }

    /// Counts frames that the kernel dropped at the socket.
    pub(super) fn tick(&mut self) {
        let Some(stats) = self.sockets.tags.as_ref().and_then(|socket| socket.stats().ok()) else {
            return;
        };
        self.drops
            .add(DropReason::ReceiveOverrun, stats.dropped.saturating_sub(self.overruns_seen));
        self.overruns_seen = stats.dropped;
    }
}

/// Opens the sockets for tagged frames. They are promiscuous, because the frames carry the guests'
/// MAC addresses.
fn open_tags(uplink: Ifindex, count: usize) -> Result<Vec<PacketSocket>, Error> {
    let promiscuous = PacketOptions { promiscuous: true, ..PacketOptions::default() };
    PacketSocket::open_group(uplink, &SocketFilter::vlan_tagged(), promiscuous, count)
}
