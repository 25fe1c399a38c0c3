//! Sends encapsulated frames to the underlay: in UDP tunnels as UDP batches (`UDP_SEGMENT`), in GRE
//! as batches of packets.

use datapath::config::TunnelConfig;
use flow::{Carrier, DropReason, Encapsulated};
use netdev::batch::{IoSlices, MessageBatch};
use netdev::io_error::IoError;
use netdev::raw_ip::{PROTOCOL_GRE, RawIp, RawTx};
use netdev::udp::{MAX_UDP_BATCH_BYTES, TxOptions, TxPool, TxUdpBatch};
use netdev::{Error, Ifindex};
use packet::{PacketBuf, SegmentChecksum, SegmentError, Segmenter};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use wire::tunnel::GrePacket;

/// The range of outer UDP source ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourcePorts {
    pub(super) base: u16,
    /// A power of two.
    pub(super) count: u16,
}

/// The sockets that send for a tunnel, shared by all workers.
#[derive(Clone, Debug)]
pub(super) enum Sender {
    /// One socket for each outer source port.
    Udp {
        /// This host's address.
        local: IpAddr,
        /// Whether the outer UDP header has a checksum.
        checksum: bool,
        pool: Arc<TxPool>,
    },
    /// A raw socket. While it exists, the host does not answer GRE with "protocol unreachable".
    Gre { local: IpAddr, socket: Arc<RawIp> },
}

impl Sender {
    /// Opens the sockets that send for a tunnel, with source ports from this range. `None` for STT,
    /// which is sent by the uplink's packet socket.
    pub(super) fn open(tunnel: &TunnelConfig, ports: &SourcePorts) -> Result<Option<Self>, Error> {
        let TunnelConfig { spec, local, .. } = *tunnel;
        let SourcePorts { base, count } = *ports;
        Ok(match spec.tunnel.carrier() {
            Carrier::Gre => {
                Some(Self::Gre { local, socket: Arc::new(RawIp::open(local, PROTOCOL_GRE)?) })
            }
            Carrier::Udp => {
                let zero_checksum = !spec.checksum;
                let options = TxOptions {
                    base_port_hint: base,
                    count,
                    zero_checksum,
                    ..TxOptions::default()
                };
                let pool = Arc::new(TxPool::new(local, options)?);
                let (first, _) = pool.ports();
                if first != base {
                    messages::log!(
                        SOURCE_PORTS_TAKEN,
                        %local,
                        "some of the UDP source ports {base} to {} are in use, so tunnels use \
                         ports from {first} on and ICMP errors about their path MTU are ignored: \
                         free these ports and restart",
                        base.saturating_add(count - 1)
                    );
                }
                Some(Self::Udp { local, checksum: spec.checksum, pool })
            }
            Carrier::TcpLike | Carrier::Tags => None,
        })
    }

    /// Makes the device `uplink` send the packets to multicast groups.
    pub(super) fn reach_groups(&self, uplink: Ifindex) -> Result<(), Error> {
        match self {
            Self::Udp { pool, .. } => pool.set_multicast_uplink(uplink),
            Self::Gre { .. } => Ok(()),
        }
    }

    /// True if this sends for `tunnel`. It may send for several tunnels.
    pub(super) fn is_for(&self, tunnel: &TunnelConfig) -> bool {
        let TunnelConfig { spec, local: from, .. } = tunnel;
        match (self, spec.tunnel.carrier()) {
            (Self::Udp { local, checksum, .. }, Carrier::Udp) => {
                local == from && *checksum == spec.checksum
            }
            (Self::Gre { local, .. }, Carrier::Gre) => local == from,
            _ => false,
        }
    }
}

/// The sending sockets of all tunnels.
#[derive(Debug)]
pub(super) struct Transmit {
    senders: Vec<Sender>,
    segmenter: Segmenter,
}

impl Transmit {
    pub(super) fn new() -> Self {
        Self { senders: Vec::new(), segmenter: Segmenter::new() }
    }

    pub(super) fn add(&mut self, sender: Sender) {
        self.senders.push(sender);
    }

    /// Closes the sockets that none of these tunnels uses.
    pub(super) fn retain(&mut self, tunnels: &[TunnelConfig]) {
        self.senders.retain(|sender| tunnels.iter().any(|tunnel| sender.is_for(tunnel)));
    }

    /// Sends a frame in a UDP tunnel. `packet` begins with the tunnel header. A super-packet
    /// becomes as few UDP batches (`UDP_SEGMENT`) as possible.
    pub(super) fn send_udp(
        &mut self,
        outer: &Encapsulated,
        packet: &mut PacketBuf,
    ) -> Result<(), DropReason> {
        let pool = self.senders.iter().find_map(|sender| match sender {
            Sender::Udp { local: from, checksum, pool } => {
                (*from == outer.local && *checksum == outer.checksum).then_some(pool)
            }
            Sender::Gre { .. } => None,
        });
        let pool = pool.ok_or(DropReason::EndpointUnresolved)?;
        packet.linearize();
        let sent =
            self.segmenter.segment(packet, outer.outer_len, SegmentChecksum::Complete, |_| {});
        sent.map_err(segmentation).and_then(|segments| {
            let train = |size: Option<usize>| TxUdpBatch {
                dst: SocketAddr::new(outer.remote, outer.port),
                entropy: outer.entropy,
                tos: outer.traffic_class,
                ttl: Some(outer.ttl),
                gso_size: size.map(|size| size as u16),
            };
            for group in segments.trains(pool.max_segments(), MAX_UDP_BATCH_BYTES) {
                let size = (group.len() > 1).then_some(group.segment_len());
                let mut pieces = IoSlices::new();
                if !pieces.extend(group.flat_map(|(header, payload)| [header, payload])) {
                    return Err(DropReason::Segmentation);
                }
                pool.send(&train(size), pieces.as_slice()).map_err(send_error)?;
            }
            Ok(())
        })
    }

    /// Sends a frame in GRE, with one packet for each segment. `packet` begins with the GRE header.
    pub(super) fn send_gre(
        &mut self,
        outer: &Encapsulated,
        packet: &mut PacketBuf,
    ) -> Result<(), DropReason> {
        let socket = self.senders.iter().find_map(|sender| match sender {
            Sender::Gre { local: from, socket } => (*from == outer.local).then_some(socket),
            Sender::Udp { .. } => None,
        });
        let socket = socket.ok_or(DropReason::EndpointUnresolved)?;
        packet.linearize();
        let outer_len = outer.outer_len;
        let sent =
            self.segmenter.segment(packet, outer_len, SegmentChecksum::Complete, |segment| {
                GrePacket::new_unchecked(segment.header)
                    .finish_segment(segment.payload, segment.index as u32);
            });
        let tx = RawTx { dst: outer.remote, tos: outer.traffic_class, ttl: Some(outer.ttl) };
        sent.map_err(segmentation).and_then(|segments| {
            for group in segments.trains(MessageBatch::MAX, usize::MAX) {
                let mut messages = MessageBatch::new();
                for (header, payload) in group {
                    if !messages.push([header, payload]) {
                        return Err(DropReason::Segmentation);
                    }
                }
                let sent = socket.send_batch(&tx, &messages).map_err(send_error)?;
                if sent < messages.len() {
                    return Err(DropReason::QueueFull);
                }
            }
            Ok(())
        })
    }
}

fn segmentation(_: SegmentError) -> DropReason {
    DropReason::Segmentation
}

pub(super) fn send_error(error: IoError) -> DropReason {
    match error {
        IoError::Full => DropReason::QueueFull,
        IoError::LinkDown | IoError::DeviceGone => DropReason::UplinkDown,
        IoError::TooBig => DropReason::UnderlayTooBig,
        IoError::Unreachable => DropReason::UnderlayUnreachable,
        _ => DropReason::DeviceError,
    }
}
