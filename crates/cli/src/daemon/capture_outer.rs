//! Captures the frames of one guest on the underlay, in both directions, with their outer headers.
//!
//! A packet socket on the uplink receives every packet. The capture keeps the packets between known
//! end points that carry a frame of the guest. Such a frame has the guest's MAC address, is a
//! broadcast or multicast in its logical switch, or is a routed packet with one of its IP
//! addresses. For STT, the first segment of a frame decides about the other segments.

use super::Daemon;
use super::deployment::Deployment;
use super::watch::{CLOSE_CHECK_INTERVAL, epoch_ns, to_hex};
use crate::control::Connection;
use crate::control::replies::{CaptureStart, FrameRow};
use datapath::config::{EndpointConfig, Underlay};
use flow::{
    Carrier, DatapathKey, DecapOptions, OuterIp, SttSegment, TagLinks, TunnelSpec, TunnelType,
};
use netdev::af_packet::{PacketOptions, PacketRx, PacketSocket};
use netdev::epoll::{Epoll, EpollEvents};
use netdev::filter::SocketFilter;
use netdev::io_error::IoError;
use network::Network;
use packet::PacketBuf;
use packet::stt::SttFrameKey;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::time::{Instant, SystemTime};
use wire::{EtherType, EthernetPacket, Ipv4Packet, Ipv6Packet, MacAddr, Protocol, UdpPacket};

/// Maximum number of STT frames whose later segments are recognized.
const MAX_STT_FRAMES: usize = 1024;
/// The length of the STT header with its two bytes of padding (draft-davie-stt section 3.1).
const STT_HEADER_LEN: usize = 18;

impl Daemon {
    /// Streams the frames of a guest as the uplink sends and receives them.
    pub(super) fn capture_outer(
        &self,
        port: &str,
        snap_bytes: usize,
        client: &mut Connection,
    ) -> io::Result<()> {
        let deployment = self.deployment();
        if let Err(error) = deployment.port(port) {
            return client.reject(&error);
        }
        let Some(mut guest) = GuestFilter::new(&deployment, port) else {
            return client.fail(&format!("a reload has removed port {port} from its switch"));
        };
        let uplink = &deployment.config.uplink;
        let options = PacketOptions { outgoing: true, ..PacketOptions::default() };
        let opened = PacketSocket::open_name(uplink, &SocketFilter::everything(), options);
        let (socket, epoll) = match opened.and_then(|socket| Ok((socket, Epoll::new()?))) {
            Ok(both) => both,
            Err(error) => return client.fail(&error.to_string()),
        };
        if let Err(error) = epoll.add(&socket, 0) {
            return client.fail(&error.to_string());
        }
        let what = format!("port {port} of host {} on the underlay, at {uplink}", self.host);
        client.ok(&CaptureStart { what })?;
        client.flush()?;
        stream(&socket, &epoll, &mut guest, snap_bytes, client)
    }
}

/// Streams the frames of the guest until the client closes the connection or the uplink is removed.
fn stream(
    socket: &PacketSocket,
    epoll: &Epoll,
    guest: &mut GuestFilter,
    snap_bytes: usize,
    client: &mut Connection,
) -> io::Result<()> {
    let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
    let mut events = EpollEvents::new();
    let mut next_check = Instant::now() + CLOSE_CHECK_INTERVAL;
    let mut lost = 0;
    let mut reported = 0;
    while epoll.wait(&mut events, Some(CLOSE_CHECK_INTERVAL)).is_ok() {
        loop {
            match socket.recv(&mut packet) {
                Ok(Some(received)) => {
                    if let Some(direction) = guest.direction_of(&mut packet, received) {
                        let dropped = socket.stats().map_or(0, |stats| stats.dropped);
                        let missed = lost + dropped - reported;
                        reported += missed;
                        let bytes = packet.to_vec();
                        client.row(&FrameRow {
                            time_ns: epoch_ns(SystemTime::now()),
                            direction: direction.to_owned(),
                            len: bytes.len(),
                            bytes: to_hex(bytes.get(..snap_bytes).unwrap_or(&bytes)),
                            missed,
                        })?;
                    }
                }
                Ok(None) => break,
                Err(IoError::DeviceGone) => return Ok(()),
                Err(IoError::Malformed | IoError::Truncated) => lost += 1,
                Err(_) => break,
            }
            if Instant::now() >= next_check {
                break;
            }
        }
        client.flush()?;
        if Instant::now() >= next_check {
            if client.is_closed() {
                return Ok(());
            }
            next_check = Instant::now() + CLOSE_CHECK_INTERVAL;
        }
    }
    Ok(())
}

/// Recognizes the frames of one guest among the packets of the uplink.
struct GuestFilter {
    mac: MacAddr,
    addresses: HashSet<IpAddr>,
    /// Every logical switch by its tunnel key. The value is true for the guest's switch.
    switches: HashMap<(TunnelType, DatapathKey), bool>,
    /// The MAC addresses of logical router ports.
    routers: HashSet<MacAddr>,
    underlay: Underlay,
    links: TagLinks,
    /// The directions of recent STT frames, oldest first.
    stt_frames: VecDeque<(SttFrameKey, &'static str)>,
}

const SENT: &str = "sent";
const RECEIVED: &str = "received";

impl GuestFilter {
    fn new(deployment: &Deployment, name: &str) -> Option<Self> {
        let network: &Network = deployment.network.as_ref()?;
        let mut ports = network
            .logical_switches()
            .iter()
            .flat_map(|switch| switch.ports.iter().map(move |port| (switch, port)));
        let (own, port) = ports.find(|(_, port)| port.name == name)?;
        let switches = network.logical_switches().iter();
        let links = deployment.config.underlay.links.iter();
        let router_ports = network.logical_routers().iter().flat_map(|router| &router.ports);
        Some(Self {
            mac: port.mac,
            addresses: port.addresses.iter().map(|net| net.addr()).collect(),
            switches: switches
                .map(|switch| ((switch.tunnel, switch.datapath_key), switch.name == own.name))
                .collect(),
            routers: router_ports.map(|port| port.mac).collect(),
            underlay: deployment.config.underlay.clone(),
            links: links.map(|link| (link.link, link.port)).collect(),
            stt_frames: VecDeque::new(),
        })
    }

    /// The direction of a frame of the guest; `None` for other packets. Puts back a VLAN tag that
    /// the kernel has moved from the frame to its metadata.
    fn direction_of(&mut self, packet: &mut PacketBuf, received: PacketRx) -> Option<&'static str> {
        packet.linearize();
        if let Some(tag) = received.vlan {
            let tag = wire::vlan::Tag::from_tci(EtherType(tag.tpid), tag.tci);
            flow::push_vlan(packet, tag).ok()?;
        }
        let mut inside = packet.clone();
        if let Ok((link, _)) = self.links.decap(&mut inside) {
            return self.frame_direction(
                link.tunnel(),
                link.key(),
                inside.head(),
                inside.len(),
                None,
            );
        }
        let outer = flow::strip_outer(&mut inside).ok()?;
        let sent = self.outer_direction(outer.source, outer.destination)?;
        match outer.protocol {
            Protocol::UDP | Protocol::GRE => {
                let (spec, bytes) = self.header_of(&outer, inside.head())?;
                // Skips the checksum verification: a capture also shows packets with a wrong
                // checksum.
                let expected = DecapOptions { key: spec.key, skip_checksum: true };
                let decapped = spec.tunnel.decap(bytes, &expected).ok()?;
                let frame = bytes.get(decapped.inner..)?;
                let datapath = decapped.key.datapath;
                self.frame_direction(spec.tunnel, datapath, frame, frame.len(), Some(sent))
            }
            Protocol::TCP => self.stt_direction(packet.clone(), sent),
            _ => None,
        }
    }

    /// The tunnel of an IP packet with this payload, and the payload from the tunnel header on.
    fn header_of<'p>(&self, outer: &OuterIp, payload: &'p [u8]) -> Option<(TunnelSpec, &'p [u8])> {
        if outer.protocol == Protocol::GRE {
            // GRE has no ports, so the addresses identify the tunnel type.
            let is_between = |end: &&EndpointConfig| {
                let ends = [end.local, end.remote];
                end.spec.tunnel.carrier() == Carrier::Gre
                    && ends.contains(&outer.source)
                    && ends.contains(&outer.destination)
            };
            return Some((self.underlay.endpoints.iter().find(is_between)?.spec, payload));
        }
        let mut specs = self.underlay.tunnels.iter().map(|known| known.spec);
        let port = UdpPacket::new_header(payload).ok()?.dst_port();
        let is_of = |spec: &TunnelSpec| spec.tunnel.carrier() == Carrier::Udp && spec.port == port;
        Some((specs.find(is_of)?, payload.get(wire::udp::HEADER_LEN..)?))
    }

    /// The direction of an STT segment.
    fn stt_direction(&mut self, mut packet: PacketBuf, sent: &'static str) -> Option<&'static str> {
        let segment: SttSegment = flow::strip_stt_segment(&mut packet).ok()?;
        let is_stt = |known: &datapath::config::TunnelConfig| {
            known.spec.tunnel.carrier() == Carrier::TcpLike && known.spec.port == segment.port
        };
        if !self.underlay.tunnels.iter().any(is_stt) {
            return None;
        }
        if segment.place.offset > 0 {
            let known = self.stt_frames.iter().find(|(key, _)| *key == segment.key);
            return known.map(|(_, direction)| *direction);
        }
        let header = wire::tunnel::SttPacket::new_checked(packet.head()).ok()?;
        let datapath = DatapathKey(header.context_id() as u32 & 0xff_ffff);
        let frame = packet.head().get(STT_HEADER_LEN..)?;
        let len = usize::from(segment.place.total).saturating_sub(STT_HEADER_LEN);
        let direction = self.frame_direction(TunnelType::Stt, datapath, frame, len, Some(sent))?;
        self.stt_frames.push_back((segment.key, direction));
        if self.stt_frames.len() > MAX_STT_FRAMES {
            self.stt_frames.pop_front();
        }
        Some(direction)
    }

    /// The direction of an outer packet between two ends of a tunnel.
    fn outer_direction(&self, source: IpAddr, destination: IpAddr) -> Option<&'static str> {
        let to_group = self.underlay.tunnels.iter().any(|known| known.group == Some(destination));
        self.underlay.endpoints.iter().find_map(|end| {
            match (end.local == source, end.remote == source) {
                (true, _) if end.remote == destination => Some(SENT),
                (_, true) if end.local == destination || to_group => Some(RECEIVED),
                _ => None,
            }
        })
    }

    /// The direction of an inner frame if it belongs to the guest. The frame has `len` bytes and
    /// starts with `head`. `outer` is the direction of its outer packet; `None` for tagged frames,
    /// which have no outer packet.
    fn frame_direction(
        &self,
        tunnel: TunnelType,
        datapath: DatapathKey,
        head: &[u8],
        len: usize,
        outer: Option<&'static str>,
    ) -> Option<&'static str> {
        let is_own = *self.switches.get(&(tunnel, datapath))?;
        let ethernet = EthernetPacket::new_checked(head).ok()?;
        let (source, destination) = (ethernet.src(), ethernet.dst());
        let ip = || addresses(head, len);
        if is_own && source == self.mac {
            return Some(outer.unwrap_or(SENT));
        }
        if is_own && (destination == self.mac || destination.is_multicast() && outer != Some(SENT))
        {
            return Some(outer.unwrap_or(RECEIVED));
        }
        // A routed packet travels in another logical switch, with the MAC address of a router as
        // its source.
        if self.routers.contains(&source)
            && let Some((from, to)) = ip()
        {
            if self.addresses.contains(&from) {
                return Some(outer.unwrap_or(SENT));
            }
            if self.addresses.contains(&to) {
                return Some(outer.unwrap_or(RECEIVED));
            }
        }
        None
    }
}

/// The source and destination IP addresses of a frame that has `len` bytes and starts with `head`.
fn addresses(head: &[u8], len: usize) -> Option<(IpAddr, IpAddr)> {
    let located = wire::transport_offset_in(head, len.max(head.len())).ok()?;
    let ip = head.get(located.l3..)?;
    match located.ethertype {
        EtherType::IPV4 => {
            // transport_offset_in has checked that the header is complete.
            let ip = Ipv4Packet::new_unchecked(ip);
            Some((ip.src().into(), ip.dst().into()))
        }
        EtherType::IPV6 => {
            let ip = Ipv6Packet::new_unchecked(ip);
            Some((ip.src().into(), ip.dst().into()))
        }
        _ => None,
    }
}
