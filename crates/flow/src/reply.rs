//! Packets generated from other packets ([`Reply::build`]), and the resulting flow key
//! ([`Reply::key_edits`]).

use crate::{DropReason, Reply, sctp_abort};
use packet::{Checksum, PacketBuf, first_segment};
use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};
use wire::checksum::Sum;
use wire::icmp::nd::{self, NdOption, NdOptions, NdRepr};
use wire::{
    ArpOperation, ArpPacket, ArpRepr, EtherType, Fragment, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet,
    Icmpv6Repr, Ipv4Options, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, Located, MacAddr,
    Protocol, TcpFlags, TcpOptions, TcpPacket, TcpRepr, arp, icmp, ipv4, ipv6, tcp,
    transport_offset, vlan,
};

/// TTL and hop limit of generated ICMP messages.
pub(crate) const ICMP_TTL: u8 = 255;
/// TTL and hop limit of generated TCP resets and SCTP ABORTs: the value of RFC 1700.
pub(crate) const TCP_TTL: u8 = 64;
/// The longest ICMP error, in bytes of IPv4 packet (RFC 1812 section 4.3.2.3).
const MAX_ICMP4_ERROR: usize = 576;
/// The longest ICMPv6 error, in bytes of IPv6 packet: the minimum MTU (RFC 4443 section 2.4 c).
const MAX_ICMP6_ERROR: usize = 1280;
/// Code of both "host unreachable" (ICMP) and "administratively prohibited" (ICMPv6).
const CODE: u8 = 1;

impl Reply {
    /// Generates the reply to `packet`, with all checksums.
    ///
    /// # Errors
    /// [`DropReason::NotApplicable`] when the reply does not fit the packet or must not be sent:
    ///
    /// - an ICMP error about an ICMP error, a later fragment, a multicast destination or a source
    ///   that is not a single host (RFC 1122 section 3.2.2, RFC 4443 section 2.4 e)
    /// - a reset that answers a reset, a fragment or a multicast packet (RFC 9293 section 3.10.7.1,
    ///   RFC 1122 section 4.2.3.10)
    /// - an ABORT that answers an ABORT, a fragment or a multicast packet (RFC 9260 section 8.4)
    /// - an advertisement that answers an invalid solicitation (RFC 4861 section 7.1.1)
    /// - a solicitation for a multicast address
    ///
    /// [`DropReason::Malformed`] for headers that do not parse, and [`DropReason::Segmentation`]
    /// for a super-packet that cannot be segmented.
    pub fn build(self, packet: &PacketBuf) -> Result<PacketBuf, DropReason> {
        let original = OriginalPacket::new(packet)?;
        match self {
            Self::Arp => original.arp(),
            Self::NeighbourAdvert { router } => original.neighbour_advert(router),
            Self::NeighbourSolicit => original.neighbour_solicit(),
            Self::Icmp4 => original.icmp4(packet),
            Self::Icmp6 => original.icmp6(packet),
            Self::TcpReset => original.tcp_reset(),
            Self::SctpAbort => original.sctp_abort(),
        }
    }
}

const fn refuse_unless(fits: bool) -> Result<(), DropReason> {
    if fits { Ok(()) } else { Err(DropReason::NotApplicable) }
}

/// The headers before the network header of a new frame.
#[derive(Clone, Copy)]
pub(crate) struct LinkHeader<'a> {
    pub dst: MacAddr,
    pub src: MacAddr,
    /// The VLAN tags, encoded.
    pub tags: &'a [u8],
}

/// The packet that a reply is generated from.
pub(crate) struct OriginalPacket<'a> {
    frame: Cow<'a, [u8]>,
    pub at: Located,
}

impl<'a> OriginalPacket<'a> {
    pub(crate) fn new(packet: &'a PacketBuf) -> Result<Self, DropReason> {
        let frame = if packet.is_linear() {
            Cow::Borrowed(packet.head())
        } else {
            Cow::Owned(packet.to_vec())
        };
        let at = transport_offset(&frame).map_err(|_| DropReason::Malformed)?;
        Ok(Self { frame, at })
    }

    fn mac(&self, at: usize) -> MacAddr {
        MacAddr(
            self.frame.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default(),
        )
    }

    fn eth_dst(&self) -> MacAddr {
        self.mac(0)
    }

    fn eth_src(&self) -> MacAddr {
        self.mac(6)
    }

    /// An Ethernet II header with these addresses and the tags of this frame. A SNAP header is not
    /// repeated: every host receives Ethernet II (RFC 1122 section 2.3.3).
    fn link(&self, dst: MacAddr, src: MacAddr) -> LinkHeader<'_> {
        LinkHeader {
            dst,
            src,
            tags: self.frame.get(vlan::ETHERTYPE_OFFSET..self.at.type_offset()).unwrap_or_default(),
        }
    }

    /// The Ethernet header of this frame.
    pub(crate) fn same_link(&self) -> LinkHeader<'_> {
        self.link(self.eth_dst(), self.eth_src())
    }

    pub(crate) fn ip4(&self) -> Result<Ipv4Packet<&[u8]>, DropReason> {
        refuse_unless(self.at.ethertype == EtherType::IPV4)?;
        Ipv4Packet::new_checked(&self.frame[self.at.l3..self.at.l3_end])
            .map_err(|_| DropReason::Malformed)
    }

    pub(crate) fn ip6(&self) -> Result<Ipv6Packet<&[u8]>, DropReason> {
        refuse_unless(self.at.ethertype == EtherType::IPV6)?;
        Ipv6Packet::new_checked(&self.frame[self.at.l3..self.at.l3_end])
            .map_err(|_| DropReason::Malformed)
    }

    /// The bytes after the IP headers, if they belong to `protocol`.
    pub(crate) fn transport(&self, protocol: Protocol) -> Result<&[u8], DropReason> {
        let l4 = self.at.l4.filter(|_| self.at.protocol == protocol);
        l4.and_then(|l4| self.frame.get(l4..self.at.l3_end)).ok_or(DropReason::NotApplicable)
    }

    /// The type of an ICMP or ICMPv6 message, if the packet is one of `protocol`.
    fn icmp_type(&self, protocol: Protocol) -> Option<u8> {
        self.transport(protocol).ok()?.first().copied()
    }

    fn arp(&self) -> Result<PacketBuf, DropReason> {
        let ip = self.ip4()?;
        let arp = ArpRepr {
            operation: ArpOperation::Request,
            sender_mac: self.eth_src(),
            sender_ip: ip.src(),
            target_mac: MacAddr::ZERO,
            target_ip: ip.dst(),
        };
        let link = self.link(MacAddr::BROADCAST, self.eth_src());
        Ok(new_frame(link, EtherType::ARP, arp::PACKET_LEN, |packet| {
            arp.emit(&mut ArpPacket::new_unchecked(packet));
        }))
    }

    fn neighbour_advert(&self, router: bool) -> Result<PacketBuf, DropReason> {
        let ip = self.ip6()?;
        refuse_unless(self.at.fragment == Fragment::Whole)?;
        let message = self.transport(Protocol::ICMPV6)?;
        let message = Icmpv6Packet::new_checked(message).map_err(|_| DropReason::Malformed)?;
        let Ok(NdRepr::NeighborSolicitation { target, .. }) =
            NdRepr::parse(&message, ip.hop_limit())
        else {
            return Err(DropReason::NotApplicable);
        };
        // RFC 4861 section 7.2.4: a node that solicits from the unspecified address is answered at
        // the all-nodes address.
        let (solicited, dst, eth_dst) = if ip.src().is_unspecified() {
            (false, ALL_NODES, group_mac(ALL_NODES))
        } else {
            (true, ip.src(), self.eth_src())
        };
        let eth_src = self.eth_dst();
        let (mut room, option) = ([0; 8], NdOption::TargetLinkLayer(eth_src));
        let options =
            NdOptions::write(&[option], &mut room).map_err(|_| DropReason::NotApplicable)?;
        let nd =
            NdRepr::NeighborAdvertisement { router, solicited, replace: true, target, options };
        Ok(neighbour(self.link(eth_dst, eth_src), (target, dst), nd))
    }

    fn neighbour_solicit(&self) -> Result<PacketBuf, DropReason> {
        let target = self.ip6()?.dst();
        refuse_unless(!target.is_multicast())?;
        let (eth_src, dst) = (self.eth_src(), solicited_node(target));
        let (mut room, option) = ([0; 8], NdOption::SourceLinkLayer(eth_src));
        let options =
            NdOptions::write(&[option], &mut room).map_err(|_| DropReason::NotApplicable)?;
        let nd = NdRepr::NeighborSolicitation { target, options };
        Ok(neighbour(self.link(group_mac(dst), eth_src), (link_local(eth_src), dst), nd))
    }

    fn icmp4(&self, packet: &PacketBuf) -> Result<PacketBuf, DropReason> {
        let ip = self.ip4()?;
        self.refuse_error_v4(&ip)?;
        let quoted = self.quoted_v4(packet)?;
        let message = Icmpv4Repr::Unreachable { code: CODE, quoted: &quoted };
        Ok(error_v4(self.same_link(), (ip.src(), ip.dst()), &message))
    }

    fn icmp6(&self, packet: &PacketBuf) -> Result<PacketBuf, DropReason> {
        let ip = self.ip6()?;
        refuse_unless(self.at.fragment != Fragment::Later)?;
        self.refuse_error_v6(&ip)?;
        let quoted = self.quoted_v6(packet)?;
        let message = Icmpv6Repr::Unreachable { code: CODE, quoted: &quoted };
        Ok(error_v6(self.same_link(), (ip.src(), ip.dst()), &message))
    }

    /// Fails unless an ICMP error about the packet is allowed (RFC 1122 section 3.2.2, RFC 1812
    /// section 4.3.2.7).
    pub(crate) fn refuse_error_v4(&self, ip: &Ipv4Packet<&[u8]>) -> Result<(), DropReason> {
        refuse_unless(
            !self.icmp_type(Protocol::ICMP).is_some_and(is_error_v4)
                && self.at.fragment != Fragment::Later
                && !self.eth_dst().is_multicast()
                && is_host_v4(ip.src())
                && !ip.src().is_loopback()
                && is_host_v4(ip.dst()),
        )
    }

    /// Fails unless an ICMPv6 error about the packet is allowed (RFC 4443 section 2.4 e).
    pub(crate) fn refuse_error_v6(&self, ip: &Ipv6Packet<&[u8]>) -> Result<(), DropReason> {
        refuse_unless(
            !self.icmp_type(Protocol::ICMPV6).is_some_and(is_error_v6)
                && !self.eth_dst().is_multicast()
                && !ip.src().is_unspecified()
                && !ip.src().is_multicast()
                && !ip.dst().is_multicast(),
        )
    }

    /// The part of the packet that an ICMP error quotes.
    pub(crate) fn quoted_v4(&self, packet: &PacketBuf) -> Result<Vec<u8>, DropReason> {
        self.quoted(packet, MAX_ICMP4_ERROR - ipv4::MIN_HEADER_LEN - icmp::HEADER_LEN)
    }

    /// The part of the packet that an ICMPv6 error quotes.
    pub(crate) fn quoted_v6(&self, packet: &PacketBuf) -> Result<Vec<u8>, DropReason> {
        self.quoted(packet, MAX_ICMP6_ERROR - ipv6::HEADER_LEN - icmp::HEADER_LEN)
    }

    /// The beginning of the IP packet as sent on a wire, at most `room` bytes. For a super-packet,
    /// the beginning of its first segment.
    fn quoted(&self, packet: &PacketBuf, room: usize) -> Result<Vec<u8>, DropReason> {
        let first = first_segment(packet).map_err(|_| match packet.offload.gso {
            Some(_) => DropReason::Segmentation,
            None => DropReason::Malformed,
        })?;
        let end = self.at.l3_end.min(self.at.l3 + room).min(first.len());
        Ok(first.head().get(self.at.l3..end).unwrap_or_default().to_vec())
    }

    fn tcp_reset(&self) -> Result<PacketBuf, DropReason> {
        let segment = self.transport(Protocol::TCP)?;
        refuse_unless(self.at.fragment == Fragment::Whole && !self.eth_dst().is_multicast())?;
        let segment = TcpPacket::new_checked(segment).map_err(|_| DropReason::Malformed)?;
        refuse_unless(!segment.flags().contains(TcpFlags::RST))?;
        let reset = reset(&segment);
        let emit = |bytes: &mut [u8], pseudo| {
            let mut tcp = TcpPacket::new_unchecked(bytes);
            reset.emit(&mut tcp);
            tcp.fill_checksum(pseudo);
        };
        self.refusal(Protocol::TCP, tcp::MIN_HEADER_LEN, emit)
    }

    fn sctp_abort(&self) -> Result<PacketBuf, DropReason> {
        let packet = self.transport(Protocol::SCTP)?;
        refuse_unless(self.at.fragment == Fragment::Whole && !self.eth_dst().is_multicast())?;
        let abort = sctp_abort::answer(packet)?;
        self.refusal(Protocol::SCTP, abort.len(), |bytes: &mut [u8], _| {
            bytes.copy_from_slice(&abort)
        })
    }

    /// A reset or ABORT with the addresses of this packet. `emit` writes its transport header of
    /// `len` bytes.
    fn refusal(
        &self,
        protocol: Protocol,
        len: usize,
        emit: impl FnOnce(&mut [u8], Sum),
    ) -> Result<PacketBuf, DropReason> {
        let header = (protocol, TCP_TTL);
        if let Ok(ip) = self.ip4() {
            refuse_unless(is_host_v4(ip.src()) && is_host_v4(ip.dst()))?;
            let addresses = (ip.src(), ip.dst());
            return Ok(new_v4(self.same_link(), addresses, header, len, emit));
        }
        let ip = self.ip6()?;
        let (src, dst) = (ip.src(), ip.dst());
        refuse_unless(!src.is_multicast() && !src.is_unspecified() && !dst.is_multicast())?;
        Ok(new_v6(self.same_link(), (src, dst), header, len, emit))
    }
}

/// A frame with `len` bytes of payload, which `emit` writes.
fn new_frame(
    link: LinkHeader<'_>,
    ethertype: EtherType,
    len: usize,
    emit: impl FnOnce(&mut [u8]),
) -> PacketBuf {
    let header = [&link.dst.0[..], &link.src.0, link.tags, &ethertype.0.to_be_bytes()].concat();
    let mut frame = PacketBuf::with_capacity(PacketBuf::HEADROOM, header.len() + len);
    frame.set_len(header.len() + len);
    let (link, payload) = frame.head_mut().split_at_mut(header.len());
    link.copy_from_slice(&header);
    emit(payload);
    frame.offload.checksum = Checksum::Verified;
    frame
}

/// An IPv4 packet with `len` bytes of payload, which `emit` writes. `emit` gets the sum of the
/// pseudo header.
pub(crate) fn new_v4(
    link: LinkHeader<'_>,
    (src, dst): (Ipv4Addr, Ipv4Addr),
    (protocol, ttl): (Protocol, u8),
    len: usize,
    emit: impl FnOnce(&mut [u8], Sum),
) -> PacketBuf {
    // RFC 6864 section 4.1: a packet that is never fragmented needs no identification.
    let ip = Ipv4Repr {
        tos: 0,
        payload_len: len as u16,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset_bytes: 0,
        ttl,
        protocol,
        src,
        dst,
        options: Ipv4Options::default(),
    };
    new_frame(link, EtherType::IPV4, ipv4::MIN_HEADER_LEN + len, |packet| {
        ip.emit(&mut Ipv4Packet::new_unchecked(&mut *packet));
        emit(&mut packet[ipv4::MIN_HEADER_LEN..], ip.pseudo_header());
    })
}

/// An IPv6 packet with `len` bytes of payload, which `emit` writes. `emit` gets the sum of the
/// pseudo header.
pub(crate) fn new_v6(
    link: LinkHeader<'_>,
    (src, dst): (Ipv6Addr, Ipv6Addr),
    (next_header, hop_limit): (Protocol, u8),
    len: usize,
    emit: impl FnOnce(&mut [u8], Sum),
) -> PacketBuf {
    let payload_len = len as u16;
    let ip =
        Ipv6Repr { traffic_class: 0, flow_label: 0, payload_len, next_header, hop_limit, src, dst };
    new_frame(link, EtherType::IPV6, ipv6::HEADER_LEN + len, |packet| {
        ip.emit(&mut Ipv6Packet::new_unchecked(&mut *packet));
        emit(&mut packet[ipv6::HEADER_LEN..], ip.pseudo_header());
    })
}

pub(crate) fn neighbour(
    link: LinkHeader<'_>,
    addresses: (Ipv6Addr, Ipv6Addr),
    message: NdRepr<'_>,
) -> PacketBuf {
    let message = Icmpv6Repr::Nd(message);
    let header = (Protocol::ICMPV6, nd::HOP_LIMIT);
    new_v6(link, addresses, header, message.message_len(), |bytes, pseudo| {
        message.emit(&mut Icmpv6Packet::new_unchecked(bytes), pseudo);
    })
}

/// An ICMP error from the first address to the second.
pub(crate) fn error_v4(
    link: LinkHeader<'_>,
    addresses: (Ipv4Addr, Ipv4Addr),
    message: &Icmpv4Repr<'_>,
) -> PacketBuf {
    let header = (Protocol::ICMP, ICMP_TTL);
    new_v4(link, addresses, header, message.message_len(), |bytes, _| {
        message.emit(&mut Icmpv4Packet::new_unchecked(bytes));
    })
}

/// An ICMPv6 error from the first address to the second.
pub(crate) fn error_v6(
    link: LinkHeader<'_>,
    addresses: (Ipv6Addr, Ipv6Addr),
    message: &Icmpv6Repr<'_>,
) -> PacketBuf {
    let header = (Protocol::ICMPV6, ICMP_TTL);
    new_v6(link, addresses, header, message.message_len(), |bytes, pseudo| {
        message.emit(&mut Icmpv6Packet::new_unchecked(bytes), pseudo);
    })
}

/// The reset that answers a segment without a connection (RFC 9293 section 3.10.7.1).
fn reset(segment: &TcpPacket<&[u8]>) -> TcpRepr<'static> {
    let flags = segment.flags();
    let (seq, ack, reset_flags) = if flags.contains(TcpFlags::ACK) {
        (segment.ack(), 0, TcpFlags::RST)
    } else {
        // SYN and FIN occupy one sequence number each.
        let len = segment.payload().len() as u32
            + u32::from(flags.contains(TcpFlags::SYN))
            + u32::from(flags.contains(TcpFlags::FIN));
        (0, segment.seq().wrapping_add(len), TcpFlags::RST | TcpFlags::ACK)
    };
    TcpRepr {
        src_port: segment.dst_port(),
        dst_port: segment.src_port(),
        seq,
        ack,
        flags: reset_flags,
        window: 0,
        urgent: 0,
        options: TcpOptions::default(),
    }
}

/// True for ICMP error types: unreachable, source quench, redirect, time exceeded, parameter
/// problem (RFC 1122 section 3.2.2).
const fn is_error_v4(kind: u8) -> bool {
    matches!(kind, 3 | 4 | 5 | 11 | 12)
}

/// True for ICMPv6 error types and redirect (RFC 4443 section 2.4 e).
const fn is_error_v6(kind: u8) -> bool {
    kind < 128 || kind == 137
}

/// True for an address that can be a single host: outside 0/8, 224/4 and 240/4.
const fn is_host_v4(address: Ipv4Addr) -> bool {
    matches!(address.octets()[0], 1..224)
}

pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The solicited-node multicast address (RFC 4291 section 2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(SOLICITED_NODE | address.to_bits() & 0xff_ffff)
}

pub(crate) const SOLICITED_NODE: u128 = 0xff02 << 112 | 0x1_ff00_0000;

/// The Ethernet address of an IPv6 multicast group (RFC 2464 section 7).
fn group_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

/// The link-local address of a station, from its Ethernet address (RFC 2464 sections 4 and 5).
fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
