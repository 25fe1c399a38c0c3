//! Receives STT: reads TCP-like segments from a packet socket and reassembles the frames in them.
//!
//! The host's TCP stack must not answer these segments with resets, so a sink socket holds the
//! port.

use super::BATCH;
use super::counter_delta::CounterDelta;
use super::forward::Forwarder;
use super::receive::new_buffer;
use datapath::config::TunnelConfig;
use flow::{
    DropCounters, DropReason, OuterIp, PortNo, TunnelInfo, TunnelType, decap_stt, propagate_ecn,
    strip_stt_segment,
};
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use netdev::io_error::IoError;
use netdev::stt_sink::SttSink;
use netdev::{Error, Ifindex};
use packet::PacketBuf;
use packet::stt::{SttDrop, SttLimits, SttProgress, SttReassembler};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use wire::Protocol;

/// Frames that the reassembler drops by itself rather than because of the current segment.
const REASSEMBLER_DROPS: [(SttDrop, DropReason); 3] = [
    (SttDrop::Expired, DropReason::SttExpired),
    (SttDrop::Evicted, DropReason::SttMemory),
    (SttDrop::Superseded, DropReason::SttFrame),
];

/// The local end of STT at one address.
#[derive(Debug)]
pub(super) struct SttReceiver {
    port: PortNo,
    local: IpAddr,
    socket: PacketSocket,
    /// Keeps the host's TCP stack from answering.
    _sink: Arc<SttSink>,
    reassembler: SttReassembler,
    packet: PacketBuf,
    now_ms: u64,
    overruns: CounterDelta,
    reassembler_drops: [CounterDelta; REASSEMBLER_DROPS.len()],
}

impl SttReceiver {
    /// Opens the local end of a tunnel for `count` workers. All segments of a frame reach the same
    /// one.
    pub(super) fn open_group(
        tunnel: &TunnelConfig,
        uplink: Ifindex,
        count: usize,
    ) -> Result<Vec<Self>, Error> {
        let TunnelConfig { port, spec, local, .. } = *tunnel;
        let filter = SocketFilter::tcp_to(local, spec.port);
        let sockets = PacketSocket::open_group(uplink, &filter, PacketOptions::default(), count)?;
        let sink = Arc::new(SttSink::bind(SocketAddr::new(local, spec.port))?);
        let receiver = |socket| Self {
            port,
            local,
            socket,
            _sink: Arc::clone(&sink),
            reassembler: SttReassembler::new(SttLimits::default()),
            packet: new_buffer(),
            now_ms: 0,
            overruns: CounterDelta::default(),
            reassembler_drops: Default::default(),
        };
        Ok(sockets.into_iter().map(receiver).collect())
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn receive(&mut self, forwarder: &mut Forwarder) {
        for _ in 0..BATCH {
            match self.socket.recv(&mut self.packet) {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(IoError::Malformed | IoError::Truncated | IoError::Offload(_)) => {
                    forwarder.count_uplink_drop(DropReason::Malformed);
                    continue;
                }
                // The uplink is down; the control thread sees when it is back.
                Err(_) => return,
            }
            match self.add_segment(forwarder) {
                Ok(Some(info)) => forwarder.forward(self.port, Some(&info), &mut self.packet),
                Ok(None) => {}
                Err(reason) => forwarder.count_uplink_drop(reason),
            }
            // The buffer of the finished frame may be too short for the next segment.
            self.reassembler.restore_buffer(&mut self.packet);
        }
    }

    /// Adds the received segment to its frame. `Some` if that completes the frame, which `packet`
    /// then holds.
    fn add_segment(&mut self, forwarder: &mut Forwarder) -> Result<Option<TunnelInfo>, DropReason> {
        let packet = &mut self.packet;
        let segment = strip_stt_segment(packet)?;
        let endpoint = forwarder.endpoints.find(TunnelType::Stt, self.local, segment.key.src)?;
        let progress = self.reassembler.push(segment.key, segment.place, packet, self.now_ms);
        let SttProgress::Complete { ce } = progress.map_err(reason)? else { return Ok(None) };
        let key = decap_stt(packet)?;
        // Congestion Experienced (CE) sets both ECN bits and keeps the DSCP.
        let congested = segment.traffic_class | if ce { 3 } else { 0 };
        propagate_ecn(congested, packet)?;
        if let Some(endpoint) = forwarder.endpoints.get_mut(endpoint) {
            endpoint.rx.add(packet.len());
        }
        let outer = OuterIp {
            source: segment.key.src,
            destination: self.local,
            protocol: Protocol::TCP,
            traffic_class: congested,
            ttl: 0,
            dont_fragment: false,
        };
        Ok(Some(TunnelInfo::new(TunnelType::Stt, &outer, &key)))
    }

    /// Expires incomplete frames and counts drops since the last tick.
    pub(super) fn tick(&mut self, now_ms: u64, drops: &mut DropCounters) {
        self.now_ms = now_ms;
        self.reassembler.expire(now_ms);
        for ((drop, reason), reassembler_drops) in
            REASSEMBLER_DROPS.into_iter().zip(&mut self.reassembler_drops)
        {
            drops.add(reason, reassembler_drops.advance_to(self.reassembler.dropped(drop)));
        }
        let overruns = self.socket.stats().map_or(0, |stats| stats.dropped);
        drops.add(DropReason::ReceiveOverrun, self.overruns.advance_to(overruns));
    }
}

fn reason(drop: SttDrop) -> DropReason {
    match drop {
        SttDrop::Overlap => DropReason::SttOverlap,
        SttDrop::Expired => DropReason::SttExpired,
        SttDrop::Evicted | SttDrop::OverLimit => DropReason::SttMemory,
        SttDrop::Empty
        | SttDrop::TotalTooShort
        | SttDrop::BeyondTotal
        | SttDrop::InconsistentTotal
        | SttDrop::Scattered
        | SttDrop::Superseded => DropReason::SttFrame,
    }
}
