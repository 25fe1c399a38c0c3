//! Toward the underlay: a frame with its outer header becomes a UDP_SEGMENT train, a batch of GRE packets, one TCP-shaped
//! super-segment, or tagged frames on the uplink.

use super::config::TunnelConfig;
use flow::{DropReason, Encapsulated, TunnelType, finish_gre};
use netdev::Error;
use netdev::batch::{Messages, Pieces};
use netdev::io_error::IoError;
use netdev::raw_ip::{PROTOCOL_GRE, RawIp, RawTx};
use netdev::udp::{MAX_TRAIN_BYTES, TxOptions, TxPool, TxTrain};
use packet::{PacketBuf, SegmentChecksum, SegmentError, Segmenter};
use std::net::{IpAddr, SocketAddr};

/// The sending halves of all tunnels.
#[derive(Debug)]
pub(super) struct Transmit {
    /// Source ports of each address.
    entropy_ports: u16,
    udp: Vec<UdpTx>,
    gre: Vec<(IpAddr, RawIp)>,
    segmenter: Segmenter,
}

#[derive(Debug)]
struct UdpTx {
    local: IpAddr,
    checksum: bool,
    pool: TxPool,
}

impl Transmit {
    pub(super) fn new(entropy_ports: u16) -> Self {
        let (udp, gre, segmenter) = (Vec::new(), Vec::new(), Segmenter::new());
        Self { entropy_ports, udp, gre, segmenter }
    }

    /// Opens what a tunnel is sent from: source ports for UDP, a raw socket for GRE (which also keeps the host's own stack from
    /// answering).
    pub(super) fn open(&mut self, tunnel: &TunnelConfig) -> Result<(), Error> {
        let TunnelConfig { spec, local, .. } = *tunnel;
        if spec.tunnel == TunnelType::Gre && self.gre.iter().all(|(other, _)| *other != local) {
            self.gre.push((local, RawIp::open(local, PROTOCOL_GRE)?));
        }
        if !is_udp(tunnel) {
            return Ok(());
        }
        if self.udp.iter().any(|tx| tx.local == local && tx.checksum == spec.checksum) {
            return Ok(());
        }
        let options = TxOptions {
            count: self.entropy_ports,
            zero_checksum: !spec.checksum,
            ..TxOptions::default()
        };
        let pool = TxPool::new(local, options)?;
        self.udp.push(UdpTx { local, checksum: spec.checksum, pool });
        Ok(())
    }

    /// Closes what none of these tunnels is sent from.
    pub(super) fn retain(&mut self, tunnels: &[TunnelConfig]) {
        let used = |local: IpAddr, is: &dyn Fn(&TunnelConfig) -> bool| {
            tunnels.iter().any(|tunnel| tunnel.local == local && is(tunnel))
        };
        self.gre.retain(|(local, _)| used(*local, &|t| t.spec.tunnel == TunnelType::Gre));
        self.udp.retain(|tx| used(tx.local, &|t| is_udp(t) && t.spec.checksum == tx.checksum));
    }

    /// Sends a frame in a UDP tunnel: a super-packet as trains, as few as their limits allow.
    pub(super) fn udp(
        &mut self,
        outer: &Encapsulated,
        packet: &mut PacketBuf,
    ) -> Result<(), DropReason> {
        let (local, remote) = outer.addresses(packet);
        let tx = self.udp.iter().find(|tx| tx.local == local && tx.checksum == outer.checksum);
        let pool = &tx.ok_or(DropReason::EndpointUnresolved)?.pool;
        packet.linearize();
        // The kernel writes the outer headers up to UDP's.
        packet.pull_front(outer.tunnel_header);
        let sent = self.segmenter.segment(
            packet,
            outer.outer_len - outer.tunnel_header,
            SegmentChecksum::Complete,
            |_| {},
        );
        let result = sent.map_err(segmentation).and_then(|segments| {
            let train = |size: Option<usize>| TxTrain {
                dst: SocketAddr::new(remote, outer.port),
                entropy: outer.entropy,
                tos: outer.traffic_class,
                ttl: Some(outer.ttl),
                gso_size: size.map(|size| size as u16),
            };
            for group in segments.trains(pool.max_segments(), MAX_TRAIN_BYTES) {
                let size = (group.len() > 1).then_some(group.segment_len());
                let mut pieces = Pieces::new();
                if !pieces.extend(group.flat_map(|(header, payload)| [header, payload])) {
                    return Err(DropReason::Segmentation);
                }
                pool.send(&train(size), pieces.as_slice()).map_err(refused)?;
            }
            Ok(())
        });
        // Room for the pulled bytes is there: they have just been taken off.
        let _ = packet.push_front(outer.tunnel_header);
        result
    }

    /// Sends a frame in GRE, each segment in a packet of its own.
    pub(super) fn gre(
        &mut self,
        outer: &Encapsulated,
        packet: &mut PacketBuf,
    ) -> Result<(), DropReason> {
        let (local, remote) = outer.addresses(packet);
        let socket = self.gre.iter().find(|(address, _)| *address == local);
        let (_, socket) = socket.ok_or(DropReason::EndpointUnresolved)?;
        packet.linearize();
        packet.pull_front(outer.tunnel_header);
        let header_len = outer.outer_len - outer.tunnel_header;
        let sent =
            self.segmenter.segment(packet, header_len, SegmentChecksum::Complete, |segment| {
                finish_gre(segment.header, segment.payload, segment.index as u32);
            });
        let tx = RawTx { dst: remote, tos: outer.traffic_class, ttl: Some(outer.ttl) };
        let result = sent.map_err(segmentation).and_then(|segments| {
            for group in segments.trains(Messages::MAX, usize::MAX) {
                let mut messages = Messages::new();
                for (header, payload) in group {
                    if !messages.push([header, payload]) {
                        return Err(DropReason::Segmentation);
                    }
                }
                let sent = socket.send_batch(&tx, &messages).map_err(refused)?;
                if sent < messages.len() {
                    return Err(DropReason::QueueFull);
                }
            }
            Ok(())
        });
        let _ = packet.push_front(outer.tunnel_header);
        result
    }
}

fn is_udp(tunnel: &TunnelConfig) -> bool {
    matches!(tunnel.spec.tunnel, TunnelType::Vxlan | TunnelType::Geneve)
}

fn segmentation(_: SegmentError) -> DropReason {
    DropReason::Segmentation
}

pub(super) fn refused(error: IoError) -> DropReason {
    match error {
        IoError::Full => DropReason::QueueFull,
        IoError::LinkDown | IoError::DeviceGone => DropReason::UplinkDown,
        IoError::TooBig => DropReason::UnderlayTooBig,
        IoError::Unreachable => DropReason::UnderlayUnreachable,
        _ => DropReason::DeviceError,
    }
}
