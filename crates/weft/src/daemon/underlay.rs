//! Frames of one guest as they are on the underlay: with their true outer headers, both ways.
//!
//! A packet socket on the uplink sees everything; shown is what comes from a known end point, or goes to one, and carries a
//! frame of the guest: one with its MAC address, a broadcast in its logical switch, or a routed packet with one of its IP
//! addresses. Of an STT frame in several segments, the first one tells.

use super::Daemon;
use super::deployed::Deployed;
use super::watch::{LOOK, hexadecimal, nanos};
use crate::control::Client;
use crate::control::answers::{CaptureStart, FrameRow};
use datapath::config::Underlay;
use flow::{DatapathKey, SttSegment, TagLinks, TunnelType, decap_geneve, decap_gre, decap_vxlan};
use netdev::af_packet::{PacketOptions, PacketRx, PacketSocket};
use netdev::epoll::{Epoll, Events};
use netdev::filter::Filter;
use netdev::io_error::IoError;
use network::Network;
use packet::PacketBuf;
use packet::stt::SttFrameKey;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::time::{Instant, SystemTime};
use wire::{EtherType, EthernetPacket, Ipv4Packet, Ipv6Packet, MacAddr, Protocol, UdpPacket};

/// STT frames of which further segments are waited for.
const STT_FRAMES: usize = 1024;
/// An STT header with its padding.
const STT_HEADER_LEN: usize = 18;

impl Daemon {
    /// Streams the frames of a guest as they are on the underlay.
    pub(super) fn capture_outer(
        &self,
        port: &str,
        snap_bytes: usize,
        client: &mut Client,
    ) -> io::Result<()> {
        let in_use = self.in_use();
        if let Err(error) = in_use.port(port) {
            return client.refuse(&error);
        }
        let Some(mut guest) = Guest::find(&in_use, port) else {
            return client.fail(&format!("port {port} is in no logical switch any more"));
        };
        let uplink = &in_use.config.uplink;
        let options = PacketOptions { outgoing: true, ..PacketOptions::default() };
        let opened = PacketSocket::open_name(uplink, &Filter::everything(), options);
        let (socket, epoll) = match opened.and_then(|socket| Ok((socket, Epoll::new()?))) {
            Ok(both) => both,
            Err(error) => return client.fail(&error.to_string()),
        };
        if let Err(error) = epoll.add(&socket, 0) {
            return client.fail(&error.to_string());
        }
        let what = format!("port {port} of {}: frames on the underlay, at {uplink}", self.host);
        client.ok(&CaptureStart { what })?;
        client.flush()?;
        stream(&socket, &epoll, &mut guest, snap_bytes, client)
    }
}

/// Hands on what the guest sends and gets, until the client hangs up or the uplink is gone.
fn stream(
    socket: &PacketSocket,
    epoll: &Epoll,
    guest: &mut Guest,
    snap_bytes: usize,
    client: &mut Client,
) -> io::Result<()> {
    let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
    let mut events = Events::new();
    let mut look = Instant::now() + LOOK;
    let mut lost = 0;
    let mut told = 0;
    while epoll.wait(&mut events, Some(LOOK)).is_ok() {
        loop {
            match socket.recv(&mut packet) {
                Ok(Some(received)) => {
                    if let Some(direction) = guest.sees(&mut packet, received) {
                        let missed = lost + socket.stats().map_or(0, |stats| stats.dropped) - told;
                        told += missed;
                        let bytes = packet.to_vec();
                        client.row(&FrameRow {
                            time_ns: nanos(SystemTime::now()),
                            direction: direction.to_owned(),
                            len: bytes.len(),
                            bytes: hexadecimal(bytes.get(..snap_bytes).unwrap_or(&bytes)),
                            missed,
                        })?;
                    }
                }
                Ok(None) => break,
                Err(IoError::DeviceGone) => return Ok(()),
                Err(IoError::Malformed | IoError::Truncated) => lost += 1,
                Err(_) => break,
            }
            if Instant::now() >= look {
                break;
            }
        }
        client.flush()?;
        if Instant::now() >= look {
            if client.has_hung_up() {
                return Ok(());
            }
            look = Instant::now() + LOOK;
        }
    }
    Ok(())
}

/// Which frames are those of a guest.
struct Guest {
    mac: MacAddr,
    addresses: HashSet<IpAddr>,
    /// Every logical switch on the wire; true for that of the guest.
    switches: HashMap<(TunnelType, DatapathKey), bool>,
    routers: HashSet<MacAddr>,
    underlay: Underlay,
    links: TagLinks,
    stt_frames: VecDeque<(SttFrameKey, &'static str)>,
}

const SENT: &str = "sent";
const RECEIVED: &str = "received";

impl Guest {
    fn find(in_use: &Deployed, name: &str) -> Option<Self> {
        let network: &Network = &in_use.network;
        let mut ports = network
            .logical_switches()
            .iter()
            .flat_map(|switch| switch.ports.iter().map(move |port| (switch, port)));
        let (own, port) = ports.find(|(_, port)| port.name == name)?;
        let switches = network.logical_switches().iter();
        let links = in_use.config.underlay.links.iter();
        let router_ports = network.logical_routers().iter().flat_map(|router| &router.ports);
        Some(Self {
            mac: port.mac,
            addresses: port.addresses.iter().map(|net| net.addr()).collect(),
            switches: switches
                .map(|switch| ((switch.tunnel, switch.datapath_key), switch.name == own.name))
                .collect(),
            routers: router_ports.map(|port| port.mac).collect(),
            underlay: in_use.config.underlay.clone(),
            links: links.map(|link| (link.link, link.port)).collect(),
            stt_frames: VecDeque::new(),
        })
    }

    /// Which way a frame of the guest goes; `None` when it is no frame of the guest. A tag that the kernel has taken out is put
    /// back.
    fn sees(&mut self, packet: &mut PacketBuf, received: PacketRx) -> Option<&'static str> {
        packet.linearize();
        if let Some(tag) = received.vlan {
            let tag = wire::vlan::Tag::from_tci(EtherType(tag.tpid), tag.tci);
            flow::push_vlan(packet, tag).ok()?;
        }
        let mut inside = packet.clone();
        if let Ok((link, _)) = self.links.decap(&mut inside) {
            return self.frame(link.tunnel(), link.key(), inside.head(), inside.len(), None);
        }
        let outer = flow::strip_outer(&mut inside).ok()?;
        let sent = self.between(outer.source, outer.destination)?;
        match outer.protocol {
            Protocol::UDP => {
                let udp = UdpPacket::new_header(inside.head()).ok()?;
                let spec = |tunnel: TunnelType| {
                    let mut tunnels = self.underlay.tunnels.iter();
                    tunnels.any(|known| {
                        known.spec.tunnel == tunnel && known.spec.port == udp.dst_port()
                    })
                };
                let bytes = inside.head().get(wire::udp::HEADER_LEN..)?;
                let (tunnel, decapped) = if spec(TunnelType::Vxlan) {
                    (TunnelType::Vxlan, decap_vxlan(bytes).ok()?)
                } else if spec(TunnelType::Geneve) {
                    (TunnelType::Geneve, decap_geneve(bytes).ok()?)
                } else {
                    return None;
                };
                let frame = bytes.get(decapped.inner..)?;
                self.frame(tunnel, decapped.key.datapath, frame, frame.len(), Some(sent))
            }
            Protocol::GRE => {
                let gre =
                    |known: &&datapath::config::TunnelConfig| known.spec.tunnel == TunnelType::Gre;
                let keyed = self.underlay.tunnels.iter().find(gre)?.spec.key;
                // The checksum is not verified, as of a super-packet: whoever looks on wants to see wrong ones, too.
                let decapped = decap_gre(inside.head(), keyed, true).ok()?;
                let frame = inside.head().get(decapped.inner..)?;
                self.frame(TunnelType::Gre, decapped.key.datapath, frame, frame.len(), Some(sent))
            }
            Protocol::TCP => self.stt(packet.clone(), sent),
            _ => None,
        }
    }

    /// An STT segment.
    fn stt(&mut self, mut packet: PacketBuf, sent: &'static str) -> Option<&'static str> {
        let segment: SttSegment = flow::strip_stt_segment(&mut packet).ok()?;
        let is_stt = |known: &datapath::config::TunnelConfig| {
            known.spec.tunnel == TunnelType::Stt && known.spec.port == segment.port
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
        let direction = self.frame(TunnelType::Stt, datapath, frame, len, Some(sent))?;
        self.stt_frames.push_back((segment.key, direction));
        if self.stt_frames.len() > STT_FRAMES {
            self.stt_frames.pop_front();
        }
        Some(direction)
    }

    /// Which way between the two ends of a tunnel.
    fn between(&self, source: IpAddr, destination: IpAddr) -> Option<&'static str> {
        let to_group = self.underlay.tunnels.iter().any(|known| known.group == Some(destination));
        self.underlay.endpoints.iter().find_map(|end| {
            match (end.local == source, end.remote == source) {
                (true, _) if end.remote == destination => Some(SENT),
                (_, true) if end.local == destination || to_group => Some(RECEIVED),
                _ => None,
            }
        })
    }

    /// Which way a frame of `len` bytes that begins with `head` goes, of a logical switch, if it is the guest's.
    fn frame(
        &self,
        tunnel: TunnelType,
        datapath: DatapathKey,
        head: &[u8],
        len: usize,
        way: Option<&'static str>,
    ) -> Option<&'static str> {
        let is_own = *self.switches.get(&(tunnel, datapath))?;
        let ethernet = EthernetPacket::new_checked(head).ok()?;
        let (source, destination) = (ethernet.src(), ethernet.dst());
        let ip = || addresses(head, len);
        if is_own && source == self.mac {
            return Some(way.unwrap_or(SENT));
        }
        if is_own && (destination == self.mac || destination.is_multicast() && way != Some(SENT)) {
            return Some(way.unwrap_or(RECEIVED));
        }
        // Routed: the switch is another, and the source that of a router.
        if self.routers.contains(&source)
            && let Some((from, to)) = ip()
        {
            if self.addresses.contains(&from) {
                return Some(way.unwrap_or(SENT));
            }
            if self.addresses.contains(&to) {
                return Some(way.unwrap_or(RECEIVED));
            }
        }
        None
    }
}

/// The IP addresses of a frame.
fn addresses(head: &[u8], len: usize) -> Option<(IpAddr, IpAddr)> {
    let located = wire::transport_offset_in(head, len.max(head.len())).ok()?;
    let ip = head.get(located.l3..)?;
    match located.ethertype {
        EtherType::IPV4 => {
            // Its header is there, or the walk would not have got here.
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
