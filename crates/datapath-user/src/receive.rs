//! Receives from tunnels: checks the sender of a packet, decapsulates it, and coalesces segments
//! into super-packets.

use super::BATCH;
use super::counter_delta::CounterDelta;
use super::forward::Forwarder;
use super::stt::SttReceiver;
use datapath::config::TunnelConfig;
use flow::{
    Carrier, DecapOptions, Decapped, DropCounters, DropReason, EndpointId, EndpointTable,
    OptionKind, OuterIp, PortNo, TunnelInfo, TunnelKey, TunnelType, propagate_ecn,
    propagate_ecn_in_slice, strip_outer, tun_flags,
};
use netdev::af_packet::{PacketOptions, PacketRx, PacketSocket};
use netdev::filter::SocketFilter;
use netdev::raw_ip::PROTOCOL_GRE;
use netdev::udp::{RxUdpBatch, UdpOptions, UdpUnderlay};
use netdev::{Error, Ifindex};
use packet::{Checksum, Coalescer, PacketBuf, coalesce_ranges, infer_offload, infer_partial};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use wire::{Protocol, ipv4, ipv6, udp};

/// The sender and tunnel metadata of a frame. Only frames that agree in it are coalesced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TunnelSource {
    endpoint: EndpointId,
    info: TunnelInfo,
}

/// The local end of one tunnel type at one address.
#[derive(Debug)]
pub(super) struct Receiver {
    tunnel: TunnelConfig,
    /// The path MTU less the IP and UDP headers, in bytes.
    max_payload_len: usize,
    socket: ReceiveSocket,
    batch: Batch,
    overruns: CounterDelta,
    malformed: CounterDelta,
}

#[derive(Debug)]
enum ReceiveSocket {
    Udp {
        socket: UdpUnderlay,
        trains: Vec<RxUdpBatch>,
    },
    /// A packet socket rather than a raw IP socket, because only a packet socket reports how the
    /// kernel's GRO has merged the segments inside GRE.
    Gre {
        socket: PacketSocket,
        heads: Vec<PacketRx>,
    },
    Stt(Box<SttReceiver>),
    /// No socket: eBPF programs punt the packets of GRE.
    Punted,
}

/// The receive buffers, and the frames that wait to be coalesced.
#[derive(Debug)]
struct Batch {
    packets: Vec<PacketBuf>,
    /// Buffers for reuse.
    spare: Vec<PacketBuf>,
    coalescer: Coalescer<TunnelSource>,
    frames: Vec<Range<usize>>,
}

impl Receiver {
    /// Opens the local end of a tunnel for `count` workers. All packets of a flow reach the same
    /// worker; packets to a multicast group all reach the first. The sockets accept only packets
    /// that arrive by the device `uplink`, because packets from elsewhere are forged.
    ///
    /// With `punted`, eBPF programs see each packet first and punt those that a packet socket would
    /// receive. UDP sockets bind to `socket_port` if it is given, else to the tunnel's port.
    pub(super) fn open_group(
        tunnel: &TunnelConfig,
        uplink: Ifindex,
        count: usize,
        punted: bool,
        socket_port: Option<u16>,
    ) -> Result<Vec<Self>, Error> {
        let TunnelConfig { spec, local, .. } = tunnel;
        let sockets: Vec<ReceiveSocket> = match spec.tunnel.carrier() {
            Carrier::Gre if punted => (0..count).map(|_| ReceiveSocket::Punted).collect(),
            Carrier::Gre => {
                let filter = SocketFilter::protocol_to(*local, PROTOCOL_GRE);
                let options = PacketOptions::default();
                let sockets = PacketSocket::open_group(uplink, &filter, options, count)?;
                let heads = || vec![PacketRx::default(); BATCH];
                sockets
                    .into_iter()
                    .map(|socket| ReceiveSocket::Gre { socket, heads: heads() })
                    .collect()
            }
            Carrier::TcpLike => {
                let receivers = SttReceiver::open_group(tunnel, uplink, count)?;
                receivers.into_iter().map(|stt| ReceiveSocket::Stt(Box::new(stt))).collect()
            }
            Carrier::Tags => Vec::new(),
            Carrier::Udp => {
                let options = UdpOptions {
                    // GRO on the socket makes datagrams bypass the programs. They could then be
                    // overtaken by datagrams that the programs forward.
                    gro: !punted,
                    // RFC 6936: a tunnel over IPv6 may omit the UDP checksum if both ends agree.
                    zero_checksum_v6: !spec.checksum,
                    device: Some(uplink),
                    ..UdpOptions::default()
                };
                let address = SocketAddr::new(tunnel.address(), socket_port.unwrap_or(spec.port));
                let sockets = match tunnel.group {
                    Some(_) => vec![UdpUnderlay::join(address, uplink, options)?],
                    None => UdpUnderlay::bind_group(address, options, count)?,
                };
                let trains = || vec![RxUdpBatch::EMPTY; BATCH];
                sockets
                    .into_iter()
                    .map(|socket| ReceiveSocket::Udp { socket, trains: trains() })
                    .collect()
            }
        };
        Ok(sockets.into_iter().map(|socket| Self::new(*tunnel, socket)).collect())
    }

    fn new(tunnel: TunnelConfig, socket: ReceiveSocket) -> Self {
        let (buffers, udp_len) = match socket {
            ReceiveSocket::Udp { .. } => (BATCH, udp::HEADER_LEN),
            ReceiveSocket::Gre { .. } => (BATCH, 0),
            ReceiveSocket::Punted => (1, 0),
            ReceiveSocket::Stt(_) => (0, 0),
        };
        let ip_len = if tunnel.local.is_ipv4() { ipv4::MIN_HEADER_LEN } else { ipv6::HEADER_LEN };
        let path_mtu = usize::from(tunnel.spec.path_mtu_bytes);
        Self {
            tunnel,
            max_payload_len: path_mtu.saturating_sub(ip_len + udp_len),
            socket,
            batch: Batch {
                packets: (0..buffers).map(|_| new_buffer()).collect(),
                spare: Vec::new(),
                coalescer: Coalescer::new(COALESCED_FLOWS),
                frames: Vec::new(),
            },
            overruns: CounterDelta::default(),
            malformed: CounterDelta::default(),
        }
    }

    /// The tunnel of which this is the local end.
    pub(super) fn tunnel(&self) -> &TunnelConfig {
        &self.tunnel
    }

    /// The socket to poll; `None` if packets are punted.
    pub(super) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(match &self.socket {
            ReceiveSocket::Udp { socket, .. } => socket.as_fd(),
            ReceiveSocket::Gre { socket, .. } => socket.as_fd(),
            ReceiveSocket::Stt(stt) => stt.as_fd(),
            ReceiveSocket::Punted => return None,
        })
    }

    /// Receives and forwards up to a batch of packets.
    pub(super) fn receive(&mut self, forwarder: &mut Forwarder) {
        match &mut self.socket {
            ReceiveSocket::Udp { socket, trains } => {
                let count = socket.recv_batch(&mut self.batch.packets, trains).unwrap_or(0);
                for (index, train) in trains.iter().take(count).enumerate() {
                    if train.source == RxUdpBatch::EMPTY.source {
                        continue; // Unreadable; the socket has counted it.
                    }
                    let from = Arrival {
                        port: self.tunnel.port,
                        tunnel: self.tunnel.spec.tunnel,
                        keyed: self.tunnel.spec.key,
                        local: self.tunnel.local,
                        destination: self.tunnel.address(),
                        remote: train.source.ip(),
                        traffic_class: train.tos,
                        ttl: 0,
                        dont_fragment: false,
                        max_payload_len: self.max_payload_len,
                    };
                    match train.gso_size {
                        Some(size) if usize::from(size) < train.len => {
                            self.batch.train(index, usize::from(size), from, forwarder);
                        }
                        _ => self.batch.single(index, from, forwarder),
                    }
                }
                self.batch.flush(self.tunnel.port, forwarder);
            }
            ReceiveSocket::Gre { socket, heads } => {
                let count = socket.recv_batch(&mut self.batch.packets, heads).unwrap_or(0);
                for index in 0..count {
                    let packet = &mut self.batch.packets[index];
                    if packet.is_empty() {
                        continue; // Unreadable; the socket has counted it.
                    }
                    match strip_outer(packet) {
                        Ok(outer) => {
                            let from = Arrival::of(&self.tunnel, &outer, self.max_payload_len);
                            self.batch.single(index, from, forwarder);
                        }
                        Err(reason) => forwarder.count_uplink_drop(reason),
                    }
                }
                self.batch.flush(self.tunnel.port, forwarder);
            }
            ReceiveSocket::Stt(stt) => stt.receive(forwarder),
            ReceiveSocket::Punted => {}
        }
    }

    /// True for the local end of the tunnel that carries this punted packet: IP protocol 47 to its
    /// address, from a sender of its type.
    pub(super) fn receives_punted(&self, outer: &OuterIp, endpoints: &EndpointTable) -> bool {
        let arrival = Arrival::of(&self.tunnel, outer, 0);
        let is_here =
            matches!(self.socket, ReceiveSocket::Punted) && self.tunnel.local == outer.destination;
        is_here && !arrival.is_of_another_type(endpoints)
    }

    /// Forwards a punted packet whose outer IP header was removed. The buffer in `packet` is
    /// exchanged. The last packets of a batch wait for [`flush_punted`](Self::flush_punted).
    pub(super) fn receive_punted(
        &mut self,
        outer: &OuterIp,
        packet: &mut PacketBuf,
        forwarder: &mut Forwarder,
    ) {
        let from = Arrival::of(&self.tunnel, outer, self.max_payload_len);
        if let Some(slot) = self.batch.packets.first_mut() {
            std::mem::swap(slot, packet);
            self.batch.single(0, from, forwarder);
        }
    }

    /// Forwards the punted packets that wait to be coalesced.
    pub(super) fn flush_punted(&mut self, forwarder: &mut Forwarder) {
        if matches!(self.socket, ReceiveSocket::Punted) {
            self.batch.flush(self.tunnel.port, forwarder);
        }
    }

    /// Expires incomplete STT frames and counts packets that the kernel dropped at the socket.
    pub(super) fn tick(&mut self, time_ms: u64, drops: &mut DropCounters) {
        let (overruns, malformed) = match &mut self.socket {
            ReceiveSocket::Udp { socket, .. } => (socket.dropped(), socket.malformed()),
            ReceiveSocket::Gre { socket, .. } => {
                let dropped = socket.stats().map_or(0, |stats| stats.dropped);
                drops.add(DropReason::ReceiveOverrun, self.overruns.advance_to(dropped));
                drops.add(
                    DropReason::Malformed,
                    self.malformed.advance_wrapping_to(socket.malformed()),
                );
                return;
            }
            ReceiveSocket::Stt(stt) => return stt.tick(time_ms, drops),
            ReceiveSocket::Punted => return,
        };
        if let Ok(overruns) = overruns {
            drops.add(DropReason::ReceiveOverrun, self.overruns.advance_wrapping_to(overruns));
        }
        drops.add(DropReason::Malformed, self.malformed.advance_wrapping_to(malformed));
    }
}

const COALESCED_FLOWS: usize = 8;

pub(super) fn new_buffer() -> PacketBuf {
    PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME)
}

/// The outer headers of a received packet, and the settings of its tunnel.
#[derive(Clone, Copy)]
struct Arrival {
    port: PortNo,
    tunnel: TunnelType,
    keyed: bool,
    /// This host's address in the tunnel's configuration.
    local: IpAddr,
    /// The outer destination: `local`, or a multicast group.
    destination: IpAddr,
    remote: IpAddr,
    traffic_class: u8,
    /// 0 if the socket does not report it.
    ttl: u8,
    /// False if the socket does not report it.
    dont_fragment: bool,
    /// The path MTU less the IP and UDP headers, in bytes.
    max_payload_len: usize,
}

impl Arrival {
    /// The arrival of a GRE packet.
    fn of(tunnel: &TunnelConfig, outer: &OuterIp, max_payload_len: usize) -> Self {
        Self {
            port: tunnel.port,
            tunnel: tunnel.spec.tunnel,
            keyed: tunnel.spec.key,
            local: tunnel.local,
            destination: outer.destination,
            remote: outer.source,
            traffic_class: outer.traffic_class,
            ttl: outer.ttl,
            dont_fragment: outer.dont_fragment,
            max_payload_len,
        }
    }

    /// True when the sender has an end point of another tunnel type whose packets look the same:
    /// IP protocol 47 has no ports, so the receivers of all its types get every packet.
    #[cold]
    fn is_of_another_type(&self, endpoints: &EndpointTable) -> bool {
        let knows = |tunnel| endpoints.find(tunnel, self.local, self.remote).is_ok();
        let is_other =
            |tunnel: &TunnelType| *tunnel != self.tunnel && tunnel.carrier() == Carrier::Gre;
        self.tunnel.carrier() == Carrier::Gre
            && !knows(self.tunnel)
            && TunnelType::ALL.into_iter().filter(is_other).any(knows)
    }

    fn info(&self, key: &TunnelKey) -> TunnelInfo {
        let outer = OuterIp {
            source: self.remote,
            destination: self.destination,
            protocol: self.tunnel.carrier().protocol().unwrap_or(Protocol::NO_NEXT_HEADER),
            traffic_class: self.traffic_class,
            ttl: self.ttl,
            dont_fragment: self.dont_fragment,
        };
        let mut info = TunnelInfo::new(self.tunnel, &outer, key);
        if self.tunnel.has_option(OptionKind::Key) && !self.keyed {
            info.flags &= !tun_flags::KEY;
        }
        info
    }
}

fn decap(arrival: &Arrival, bytes: &[u8], skip_checksum: bool) -> Result<Decapped, DropReason> {
    arrival.tunnel.decap(bytes, &DecapOptions { key: arrival.keyed, skip_checksum })
}

impl Batch {
    /// Decapsulates one datagram and passes it to the coalescer.
    fn single(&mut self, index: usize, arrival: Arrival, forwarder: &mut Forwarder) {
        let packet = &mut self.packets[index];
        let from = match decapsulate(arrival, packet, &forwarder.endpoints) {
            Ok(from) => from,
            Err(_) if arrival.is_of_another_type(&forwarder.endpoints) => return,
            Err(reason) => return forwarder.count_uplink_drop(reason),
        };
        let fresh = self.spare.pop().unwrap_or_else(new_buffer);
        let packet = std::mem::replace(packet, fresh);
        let spare = &mut self.spare;
        let emit = |from, mut packet| {
            forward(arrival.port, from, &mut packet, forwarder);
            spare.push(packet);
        };
        let free = self.coalescer.push(from, packet, emit);
        self.spare.extend(free);
    }

    /// Decapsulates a batch of datagrams that the kernel's GRO has joined, and coalesces their
    /// frames in place.
    fn train(&mut self, index: usize, size: usize, arrival: Arrival, forwarder: &mut Forwarder) {
        // Frames that arrived earlier must leave first.
        self.flush(arrival.port, forwarder);
        let packet = &mut self.packets[index];
        let endpoint = match forwarder.endpoints.find(arrival.tunnel, arrival.local, arrival.remote)
        {
            Ok(endpoint) => endpoint,
            Err(reason) => {
                let datagrams = packet.len().div_ceil(size);
                return (0..datagrams).for_each(|_| forwarder.count_uplink_drop(reason));
            }
        };
        let (headroom, len) = (packet.headroom(), packet.len());
        let mut run: Option<TunnelInfo> = None;
        self.frames.clear();
        for start in (0..len).step_by(size) {
            let end = len.min(start + size);
            let found =
                decap(&arrival, &packet.spare_mut()[start..end], false).and_then(|decapped| {
                    let frame = start + decapped.inner..end;
                    let bytes = &mut packet.spare_mut()[frame.clone()];
                    propagate_ecn_in_slice(arrival.traffic_class, bytes)?;
                    Ok((arrival.info(&decapped.key), frame))
                });
            match found {
                Ok((info, frame)) => {
                    if let Some(info) = run.filter(|previous| *previous != info) {
                        let from = TunnelSource { endpoint, info };
                        let frames = &self.frames;
                        forward_run(arrival.port, from, packet, headroom, frames, forwarder);
                        self.frames.clear();
                    }
                    run = Some(info);
                    self.frames.push(frame);
                }
                Err(reason) => forwarder.count_uplink_drop(reason),
            }
            packet.reset(headroom);
        }
        if let Some(info) = run {
            let from = TunnelSource { endpoint, info };
            forward_run(arrival.port, from, packet, headroom, &self.frames, forwarder);
        }
    }

    fn flush(&mut self, port: PortNo, forwarder: &mut Forwarder) {
        let spare = &mut self.spare;
        self.coalescer.flush(|from, mut packet| {
            forward(port, from, &mut packet, forwarder);
            spare.push(packet);
        });
        self.spare.truncate(BATCH);
    }
}

/// Coalesces frames of one source that lie in one buffer, and forwards the results.
fn forward_run(
    port: PortNo,
    from: TunnelSource,
    packet: &mut PacketBuf,
    headroom: usize,
    frames: &[Range<usize>],
    forwarder: &mut Forwarder,
) {
    let mut rest = frames;
    while !rest.is_empty() {
        packet.reset(headroom);
        let taken = coalesce_ranges(packet, rest, false);
        infer_partial(packet);
        forward(port, from, packet, forwarder);
        rest = &rest[taken.max(1)..];
    }
    packet.reset(headroom);
}

fn forward(port: PortNo, from: TunnelSource, packet: &mut PacketBuf, forwarder: &mut Forwarder) {
    if let Some(endpoint) = forwarder.endpoints.get_mut(from.endpoint) {
        endpoint.rx.add(packet.len());
    }
    forwarder.forward(port, Some(&from.info), packet);
}

/// Checks the sender, removes the tunnel header, and copies an ECN mark inward (RFC 6040).
fn decapsulate(
    arrival: Arrival,
    packet: &mut PacketBuf,
    endpoints: &EndpointTable,
) -> Result<TunnelSource, DropReason> {
    let endpoint = endpoints.find(arrival.tunnel, arrival.local, arrival.remote)?;
    let is_partial = matches!(packet.offload.checksum, Checksum::Partial { .. });
    let decapped = decap(&arrival, packet.head(), is_partial || packet.offload.gso.is_some())?;
    packet.pull_front(decapped.inner);
    propagate_ecn(arrival.traffic_class, packet)?;
    infer_offload(packet, arrival.max_payload_len.saturating_sub(decapped.inner))
        .map_err(|_| DropReason::Segmentation)?;
    Ok(TunnelSource { endpoint, info: arrival.info(&decapped.key) })
}
