//! Reference model of the user datapath's decapsulation. Tests compare it with the eBPF program
//! `weft_uplink`.

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

/// A frame that the user datapath forwards to a guest.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// The tunnel whose remote end sent the packet.
    pub tunnel: &'a Tunnel,
    pub key: FlowKey,
    pub frame: Vec<u8>,
}

/// Why the user datapath does not forward a packet.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    /// The packet is not for a tunnel of this host.
    NotOurs,
    /// The outer IP or UDP header is invalid.
    Outer(DropReason),
    /// The packet is for this tunnel, or for another one with the same local end. The user datapath
    /// drops it.
    Inside(Carrier, DropReason, Tunnel),
}

/// The reason to punt a short inner frame: `bpf_skb_adjust_room()` fails if less than an Ethernet
/// header and one IP header of the outer family remains.
pub const SHORT_FRAME: &str = "short inner frame";

/// The first word of a Geneve header without options, for an inner Ethernet frame.
const GENEVE_WITHOUT_OPTIONS: u32 = 0x6558;
/// The first word of a Geneve header with two words of options, at least one of them critical.
const GENEVE_WITH_CRITICAL_OPTION: u32 = 0x0240_6558;
/// The first word of OVN's option with the logical ports: class 0x0102, critical type 0x80, one
/// word of data.
const LOGICAL_PORTS_OPTION: u32 = 0x0102_8001;
/// All flags in the first word of a GRE header except "key present", and the version. The program
/// reads only packets in which these bits are 0.
const OTHER_GRE_FLAGS: u32 = 0xdfff_0000;

impl<'a> Receiver<'a> {
    /// Decapsulates as `datapath-user` does, whose sockets get UDP payloads from the host's network
    /// stack. `weft_uplink` does not verify the outer UDP checksum, so this model does not either.
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
        let receiver = self.tunnels.iter().find(is_for).ok_or(Refusal::NotOurs)?;
        // The host's stack drops UDP over IPv6 without a checksum, unless the socket accepts it
        // (RFC 6935 section 5).
        if carrier == Carrier::Udp
            && ip.destination.is_ipv6()
            && receiver.spec.checksum
            && packet.head()[6..8] == [0, 0]
        {
            return Err(Refusal::Outer(DropReason::OuterChecksum));
        }
        self.decapsulate(receiver, ip, payload)
            .map_err(|reason| Refusal::Inside(carrier, reason, *receiver))
    }

    fn decapsulate(
        &self,
        receiver: &Tunnel,
        ip: OuterIp,
        payload: &[u8],
    ) -> Result<Delivery<'a>, DropReason> {
        let spec = &receiver.spec;
        let tunnel_type = spec.tunnel;
        let sender = self.endpoints.find(tunnel_type, receiver.local, ip.source)?;
        let tunnel = self.tunnels.iter().find(|tunnel| tunnel.id == sender);
        let tunnel = tunnel.ok_or(DropReason::UnknownEndpoint)?;
        let expected = DecapOptions { key: spec.key, skip_checksum: false };
        let decapped = tunnel_type.decap(payload, &expected)?;
        let mut frame = payload[decapped.inner..].to_vec();
        propagate_ecn_in_slice(ip.traffic_class, &mut frame)?;
        let mut info = TunnelInfo::new(tunnel_type, &ip, &decapped.key);
        if tunnel_type.carrier() == Carrier::Udp {
            // A UDP socket reports neither the TTL nor "don't fragment".
            info.ttl = 0;
            info.flags &= !tun_flags::DF;
        }
        if tunnel_type.has_option(OptionKind::Key) && !spec.key {
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

/// Whether the outer UDP checksum is right or absent. The program does not verify it.
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

/// The reason why the program may punt a packet that the user datapath delivers. `None` if the
/// program must deliver the packet itself.
pub fn reason_to_punt(bytes: &[u8], delivery: &Delivery<'_>) -> Option<&'static str> {
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
    // Offsets in a Geneve packet: UDP has 8 bytes, the Geneve header 8, the option's header 4.
    let geneve = word(l4 + 8);
    let has_logical_ports_option =
        geneve == GENEVE_WITH_CRITICAL_OPTION && word(l4 + 16) == LOGICAL_PORTS_OPTION;
    match delivery.tunnel.spec.tunnel {
        TunnelType::Geneve if geneve == GENEVE_WITHOUT_OPTIONS => {}
        TunnelType::Geneve if has_logical_ports_option && word(l4 + 20) >> 31 == 1 => {
            return Some("reserved bit of the logical ports");
        }
        TunnelType::Geneve if has_logical_ports_option => {}
        TunnelType::Geneve => return Some("other Geneve options or flags"),
        TunnelType::Gre | TunnelType::Nvgre if word(l4) & OTHER_GRE_FLAGS != 0 => {
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
