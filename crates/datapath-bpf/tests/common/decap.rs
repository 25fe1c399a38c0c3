//! Decides about tunnel packets as userspace does: the reference for the program of the uplink.

use super::frames::{has_snap, is_neighbour_discovery};
use super::outer::L3;
use super::switch::Switch;
use super::tunnels::Tunnel;
use flow::{
    Carrier, DecapOptions, DropReason, EndpointTable, FlowKey, OptionKind, OuterIp, TunnelInfo,
    TunnelType, extract, propagate_ecn_in_slice, strip_outer, tun_flags,
};
use packet::PacketBuf;
use std::net::IpAddr;
use wire::checksum::{pseudo_v4, pseudo_v6};
use wire::udp::{UdpPacket, ZeroChecksum};
use wire::{EthernetPacket, Protocol};

/// The tunnels of a host.
pub struct Receiver<'a> {
    pub tunnels: &'a [Tunnel],
    pub endpoints: &'a EndpointTable,
}

/// A frame that userspace forwards to a guest.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// The tunnel whose other end sent it.
    pub tunnel: &'a Tunnel,
    pub key: FlowKey,
    pub frame: Vec<u8>,
}

/// Why userspace forwards no frame.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    /// The packet is not for a tunnel of this host.
    NotOurs,
    /// The outer IP or UDP header is invalid.
    Outer(DropReason),
    /// The packet is for this tunnel, or for one with the same local end, and userspace drops it.
    Inside(Carrier, DropReason, Tunnel),
}

/// See [`unusual`].
pub const SHORT_FRAME: &str = "short inner frame";

impl<'a> Receiver<'a> {
    /// Decapsulates as `datapath-user` does. The host's network stack passes UDP payloads to its
    /// sockets. Programs do not verify the outer UDP checksum, so this does not either.
    pub fn decide(&self, bytes: &[u8]) -> Result<Delivery<'a>, Refusal> {
        let ethernet = EthernetPacket::new_checked(bytes).map_err(|_| Refusal::NotOurs)?;
        if !matches!(ethernet.ethertype().0, 0x0800 | 0x86dd) {
            return Err(Refusal::NotOurs);
        }
        let mut packet = PacketBuf::from_bytes(bytes);
        let ip = strip_outer(&mut packet).map_err(Refusal::Outer)?;
        let (carrier, port, payload) = match ip.protocol {
            Protocol::GRE => (Carrier::Gre, 0, packet.head()),
            Protocol::UDP => {
                let udp = UdpPacket::new_checked(packet.head())
                    .map_err(|_| Refusal::Outer(DropReason::Malformed))?;
                (Carrier::Udp, udp.dst_port(), udp.payload())
            }
            _ => return Err(Refusal::NotOurs),
        };
        let is_for = |tunnel: &&Tunnel| {
            let has_port = carrier == Carrier::Gre || tunnel.spec.port == port;
            tunnel.local == ip.destination && tunnel.spec.tunnel.carrier() == carrier && has_port
        };
        let local = self.tunnels.iter().find(is_for).ok_or(Refusal::NotOurs)?;
        // RFC 6935 section 5: the host's stack drops these.
        if carrier == Carrier::Udp
            && ip.destination.is_ipv6()
            && local.spec.checksum
            && packet.head()[6..8] == [0, 0]
        {
            return Err(Refusal::Outer(DropReason::OuterChecksum));
        }
        self.decapsulate(local, ip, payload)
            .map_err(|reason| Refusal::Inside(carrier, reason, *local))
    }

    fn decapsulate(
        &self,
        local: &Tunnel,
        ip: OuterIp,
        payload: &[u8],
    ) -> Result<Delivery<'a>, DropReason> {
        let spec = &local.spec;
        let sender = self.endpoints.find(spec.tunnel, local.local, ip.source)?;
        let tunnel = self.tunnels.iter().find(|tunnel| tunnel.id == sender);
        let tunnel = tunnel.ok_or(DropReason::UnknownEndpoint)?;
        let expected = DecapOptions { key: spec.key, skip_checksum: false };
        let decapped = spec.tunnel.decap(payload, &expected)?;
        let mut frame = payload[decapped.inner..].to_vec();
        propagate_ecn_in_slice(ip.traffic_class, &mut frame)?;
        let mut info = TunnelInfo::new(spec.tunnel, &ip, &decapped.key);
        if spec.tunnel.carrier() == Carrier::Udp {
            // A socket reports neither.
            info.ttl = 0;
            info.flags &= !tun_flags::DF;
        }
        if spec.tunnel.has_option(OptionKind::Key) && !spec.key {
            info.flags &= !tun_flags::KEY;
        }
        let key = extract(&PacketBuf::from_bytes(&frame), Switch::TUNNEL, Some(&info));
        let key = key.map_err(|_| DropReason::Malformed)?;
        Ok(Delivery { tunnel, key, frame })
    }

    /// Whether the packet's source and destination address are those of a tunnel of this host,
    /// whatever its other headers are.
    pub fn knows_sender(&self, bytes: &[u8]) -> bool {
        let is_between = |tunnel: &Tunnel| {
            let (ethertype, at) =
                if tunnel.local.is_ipv4() { ([8, 0], L3 + 12) } else { ([0x86, 0xdd], L3 + 8) };
            let addresses = [tunnel.remote, tunnel.local].map(super::outer::octets).concat();
            bytes.get(12..14) == Some(&ethertype)
                && bytes.get(at..).is_some_and(|bytes| bytes.starts_with(&addresses))
        };
        self.tunnels.iter().any(is_between)
    }
}

/// Whether the outer UDP checksum is right or absent. Programs do not verify it.
pub fn has_right_checksum(bytes: &[u8], delivery: &Delivery<'_>) -> bool {
    let is_udp = delivery.tunnel.spec.tunnel.carrier() == Carrier::Udp;
    let mut packet = PacketBuf::from_bytes(bytes);
    let Ok(ip) = strip_outer(&mut packet) else { return false };
    let Ok(udp) = UdpPacket::new_checked(packet.head()) else { return !is_udp };
    let pseudo = match (ip.source, ip.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            pseudo_v4(source, destination, Protocol::UDP, udp.length())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            pseudo_v6(source, destination, Protocol::UDP, udp.length().into())
        }
        _ => return false,
    };
    !is_udp || udp.verify_checksum(pseudo, ZeroChecksum::Accept)
}

/// The reason why the program may leave a packet to userspace, which delivers it.
pub fn unusual(bytes: &[u8], delivery: &Delivery<'_>) -> Option<&'static str> {
    let word = |at: usize| bytes.get(at..at + 4).map(|word| word.try_into().unwrap_or_default());
    let word = |at: usize| word(at).map_or(0, u32::from_be_bytes);
    let is_ip6 = delivery.tunnel.local.is_ipv6();
    let (ip_len, total) = match is_ip6 {
        true => (40, 40 + (word(L3 + 4) >> 16) as usize),
        false => (20, (word(L3) & 0xffff) as usize),
    };
    let l4 = L3 + ip_len;
    if !is_ip6 && bytes[L3] != 0x45 {
        return Some("IPv4 options");
    }
    if is_ip6 && !matches!(bytes[L3 + 6], 17 | 47) {
        return Some("IPv6 extension headers");
    }
    if total != bytes.len() - L3 {
        return Some("padding");
    }
    let is_udp = delivery.tunnel.spec.tunnel.carrier() == Carrier::Udp;
    if is_udp && (word(l4 + 4) >> 16) as usize != bytes.len() - l4 {
        return Some("bytes after the UDP datagram");
    }
    let first = word(l4 + 8);
    let has_ports = first == 0x0240_6558 && word(l4 + 16) == 0x0102_8001;
    match delivery.tunnel.spec.tunnel {
        TunnelType::Geneve if first == 0x6558 => {}
        TunnelType::Geneve if has_ports && word(l4 + 20) >> 31 == 1 => {
            return Some("reserved bit of the logical ports");
        }
        TunnelType::Geneve if has_ports => {}
        TunnelType::Geneve => return Some("other Geneve options or flags"),
        TunnelType::Gre | TunnelType::Nvgre if word(l4) & 0xdfff_0000 != 0 => {
            return Some("GRE checksum, sequence number or reserved bits");
        }
        _ => {}
    }
    if has_snap(&delivery.frame) {
        return Some("inner SNAP");
    }
    if is_neighbour_discovery(&delivery.frame) {
        return Some("inner neighbour discovery");
    }
    (delivery.frame.len() < 14 + ip_len).then_some(SHORT_FRAME)
}
