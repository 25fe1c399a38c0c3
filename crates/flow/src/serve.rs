//! Answers of services to frames ([`answer`]), and the resulting flow key ([`answer_edits`]).

use crate::Field;
use crate::key_edit::KeyEdit;
use crate::reply::{ALL_NODES, OriginalPacket, neighbour, new_v4, new_v6};
use packet::PacketBuf;
use services::{Destination, Service, dhcp4, dhcp6, dns, router};
use std::net::Ipv4Addr;
use wire::checksum::Sum;
use wire::icmp::nd;
use wire::{Fragment, Icmpv6Packet, NdRepr, Protocol, UdpPacket, UdpRepr, udp};

/// TTL and hop limit of UDP answers: the value of RFC 1700.
const TTL: u8 = 64;
/// The ICMPv6 type of a router advertisement.
const ROUTER_ADVERTISEMENT: u128 = 134;

/// The answer of a service to a frame, with all checksums. `None` for another protocol, for a
/// fragment, and for a request that the service does not answer.
///
/// The answer keeps the Ethernet addresses, the tags, the IP addresses and the UDP ports of the
/// request, with the exceptions that [`answer_edits`] names. The actions that follow set them.
pub fn answer(service: &Service, packet: &PacketBuf) -> Option<(Destination, PacketBuf)> {
    let request = Request::new(packet)?;
    match service {
        Service::Dhcp4(server) => request.dhcp4(server),
        Service::Dhcp6(server) => Some((Destination::Client, request.dhcp6(server)?)),
        Service::Router(router) => request.router(router),
        Service::Dns(resolver) => Some((Destination::Client, request.dns(resolver)?)),
    }
}

/// The changes, in order, that turn the key of a request into the key of the answer. Fields outside
/// the frame stay as they are.
pub fn answer_edits(service: &Service, destination: Destination) -> Vec<KeyEdit> {
    let load = |field: Field, value: u128| KeyEdit::Load { to: field.into(), value };
    let mut edits = vec![
        load(Field::IpDscp, 0),
        load(Field::IpEcn, 0),
        load(Field::IpTtl, TTL.into()),
        load(Field::IpFrag, 0),
    ];
    match (service, destination) {
        (Service::Dhcp4(server), destination) => {
            let address = dhcp4_destination(server, destination);
            edits.push(load(Field::Ip4Dst, address.to_bits().into()));
        }
        (Service::Dhcp6(_) | Service::Dns(_), _) => edits.push(load(Field::Ip6Label, 0)),
        (Service::Router(_), destination) => {
            edits.extend([
                load(Field::Ip6Label, 0),
                load(Field::IpTtl, nd::HOP_LIMIT.into()),
                load(Field::IcmpType, ROUTER_ADVERTISEMENT),
                load(Field::IcmpCode, 0),
            ]);
            // A later action copies the source address to the destination. RFC 4861 section 6.2.6:
            // a host without an address is answered at the all-nodes address.
            if destination == Destination::Broadcast {
                edits.push(load(Field::Ip6Src, ALL_NODES.to_bits()));
            }
        }
    }
    edits
}

const fn dhcp4_destination(server: &dhcp4::Server, destination: Destination) -> Ipv4Addr {
    match destination {
        Destination::Client => server.address(),
        Destination::Broadcast => Ipv4Addr::BROADCAST,
    }
}

/// A frame that may contain a request.
struct Request<'a>(OriginalPacket<'a>);

impl<'a> Request<'a> {
    fn new(packet: &'a PacketBuf) -> Option<Self> {
        let original = OriginalPacket::new(packet).ok()?;
        // A super-packet is not a single datagram.
        let is_whole = original.at.fragment == Fragment::Whole && packet.offload.gso.is_none();
        is_whole.then_some(Self(original))
    }

    fn udp(&self) -> Option<UdpPacket<&[u8]>> {
        UdpPacket::new_checked(self.0.transport(Protocol::UDP).ok()?).ok()
    }

    fn dhcp4(&self, server: &dhcp4::Server) -> Option<(Destination, PacketBuf)> {
        let (ip, udp) = (self.0.ip4().ok()?, self.udp()?);
        let dhcp4::Answer { payload, destination } = server.answer(udp.payload())?;
        let made = datagram(&udp, &payload)?;
        let addresses = (ip.src(), dhcp4_destination(server, destination));
        let (link, header) = (self.0.same_link(), (Protocol::UDP, TTL));
        Some((destination, new_v4(link, addresses, header, made.len(), emit(&made))))
    }

    fn dhcp6(&self, server: &dhcp6::Server) -> Option<PacketBuf> {
        let (ip, udp) = (self.0.ip6().ok()?, self.udp()?);
        let payload = server.answer(udp.payload())?;
        let made = datagram(&udp, &payload)?;
        let (link, header) = (self.0.same_link(), (Protocol::UDP, TTL));
        Some(new_v6(link, (ip.src(), ip.dst()), header, made.len(), emit(&made)))
    }

    fn dns(&self, resolver: &dns::Resolver) -> Option<PacketBuf> {
        let udp = self.udp()?;
        let payload = resolver.answer(udp.payload())?;
        let made = datagram(&udp, &payload)?;
        let (link, header) = (self.0.same_link(), (Protocol::UDP, TTL));
        if let Ok(ip) = self.0.ip4() {
            return Some(new_v4(link, (ip.src(), ip.dst()), header, made.len(), emit(&made)));
        }
        let ip = self.0.ip6().ok()?;
        Some(new_v6(link, (ip.src(), ip.dst()), header, made.len(), emit(&made)))
    }

    fn router(&self, router: &router::Router) -> Option<(Destination, PacketBuf)> {
        let ip = self.0.ip6().ok()?;
        let message = self.0.transport(Protocol::ICMPV6).ok()?;
        let message = Icmpv6Packet::new_checked(message).ok()?;
        let Ok(NdRepr::RouterSolicitation { options }) = NdRepr::parse(&message, ip.hop_limit())
        else {
            return None;
        };
        let is_unspecified = ip.src().is_unspecified();
        // RFC 4861 section 6.1.1.
        if is_unspecified && options.source_link_layer().is_some() {
            return None;
        }
        let (destination, src) = match is_unspecified {
            true => (Destination::Broadcast, ALL_NODES),
            false => (Destination::Client, ip.src()),
        };
        let addresses = (src, ip.dst());
        Some((destination, neighbour(self.0.same_link(), addresses, router.advertisement())))
    }
}

/// A datagram with the ports of a request, without a checksum. `None` if it is too long.
fn datagram(request: &UdpPacket<&[u8]>, payload: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = [&[0; udp::HEADER_LEN], payload].concat();
    let header = UdpRepr {
        src_port: request.src_port(),
        dst_port: request.dst_port(),
        length: u16::try_from(bytes.len()).ok()?,
    };
    header.emit(&mut UdpPacket::new_unchecked(&mut bytes[..]));
    Some(bytes)
}

/// Writes a datagram, and its checksum.
fn emit(datagram: &[u8]) -> impl FnOnce(&mut [u8], Sum) + use<'_> {
    |bytes, pseudo| {
        bytes.copy_from_slice(datagram);
        UdpPacket::new_unchecked(bytes).fill_checksum(pseudo);
    }
}
