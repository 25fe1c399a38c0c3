//! Raw Ethernet frames of guests, with any addresses and ports.

use std::net::Ipv4Addr;

use netdev::Netns;
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use wire::MacAddr;
use wire::checksum::checksum;

use crate::Result;
use crate::lab::{GUEST_DEVICE, Guest};

/// Bytes of the virtio-net header before each frame. A header of zeros requests no offload.
const VNET_LEN: usize = 10;
const ETHERNET: usize = VNET_LEN;
const IP: usize = ETHERNET + 14;
const IP_LEN: usize = 20;
const TRANSPORT: usize = IP + IP_LEN;
/// Bytes of the shortest Ethernet frame, without its frame check sequence.
pub const FRAME_LEN: usize = 60;
/// Bytes of the super-packets, without the virtio-net header.
const SUPER_PACKET_LEN: usize = 20_000;
const UDP: u8 = 17;
const TCP: u8 = 6;

/// A socket that sends frames from the device of `guest` and bypasses its queueing discipline.
///
/// # Errors
/// The guest has no device.
pub fn socket(guest: &Guest) -> Result<PacketSocket> {
    Ok(guest.run(open)??)
}

/// Like [`socket`], for the guest in this namespace.
///
/// # Errors
/// The guest has no device.
pub fn socket_in(netns: &Netns) -> Result<PacketSocket> {
    Ok(netns.run_in(open)??)
}

fn open() -> netdev::Result<PacketSocket> {
    let options = PacketOptions { qdisc_bypass: true, ..PacketOptions::default() };
    PacketSocket::open_name(GUEST_DEVICE, &SocketFilter::nothing(), options)
}

/// An IPv4 frame of minimum length after a virtio-net header, in the form that [`socket`] sends.
#[derive(Debug)]
pub struct Frame<'a>(&'a mut [u8]);

impl<'a> Frame<'a> {
    /// A UDP packet without a checksum (RFC 768).
    pub fn udp_template(from: (MacAddr, Ipv4Addr), to: (MacAddr, Ipv4Addr)) -> Vec<u8> {
        let mut bytes = vec![0; VNET_LEN + FRAME_LEN];
        bytes[ETHERNET..][..6].copy_from_slice(&to.0.0);
        bytes[ETHERNET + 6..][..6].copy_from_slice(&from.0.0);
        bytes[ETHERNET + 12..][..2].copy_from_slice(&[0x08, 0x00]);
        let ip_len = (FRAME_LEN - 14) as u16;
        bytes[IP] = 0x45;
        bytes[IP + 2..][..2].copy_from_slice(&ip_len.to_be_bytes());
        bytes[IP + 8] = 64;
        bytes[IP + 9] = UDP;
        bytes[TRANSPORT + 4..][..2].copy_from_slice(&(ip_len - IP_LEN as u16).to_be_bytes());
        let mut frame = Frame::of(&mut bytes);
        frame.set_addresses(from.1, to.1);
        bytes
    }

    /// A TCP SYN.
    pub fn syn_template(from: (MacAddr, Ipv4Addr), to: (MacAddr, Ipv4Addr)) -> Vec<u8> {
        let mut bytes = Self::udp_template(from, to);
        bytes[IP + 9] = TCP;
        bytes[TRANSPORT..].fill(0);
        // The header is 20 bytes long, with the flag SYN and a window. No receiver verifies the
        // checksum.
        bytes[TRANSPORT + 12..][..4].copy_from_slice(&[0x50, 0x02, 0xff, 0xff]);
        // A SYN has no payload: the IP packet is shorter than the padded frame.
        bytes[IP + 2..][..2].copy_from_slice(&40_u16.to_be_bytes());
        Frame::of(&mut bytes).set_addresses(from.1, to.1);
        bytes
    }

    /// A TCP super-packet of [`SUPER_PACKET_LEN`] bytes. It requests its checksum and segmentation;
    /// [`Frame::set_segment_len`] sets the length of the segments.
    pub fn super_packet_template(from: (MacAddr, Ipv4Addr), to: (MacAddr, Ipv4Addr)) -> Vec<u8> {
        let mut bytes = Self::syn_template(from, to);
        bytes.resize(VNET_LEN + SUPER_PACKET_LEN, 0);
        // ACK and PSH in place of SYN.
        bytes[TRANSPORT + 13] = 0x18;
        bytes[IP + 2..][..2].copy_from_slice(&((SUPER_PACKET_LEN - 14) as u16).to_be_bytes());
        // VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_TCPV4, and the length of the headers.
        bytes[..2].copy_from_slice(&[1, 1]);
        bytes[2..4].copy_from_slice(&((TRANSPORT - ETHERNET + 20) as u16).to_ne_bytes());
        let mut frame = Frame::of(&mut bytes);
        frame.set_checksum_place((TRANSPORT - ETHERNET) as u16, 16);
        frame.update_checksum();
        bytes
    }

    /// An ARP packet for IPv4 over Ethernet (RFC 826), of which [`Frame::set_arp`] sets the rest.
    pub fn arp_template(from: (MacAddr, Ipv4Addr), to: (MacAddr, Ipv4Addr)) -> Vec<u8> {
        let mut bytes = Self::udp_template(from, to);
        bytes[IP..].fill(0);
        bytes[ETHERNET + 12..][..2].copy_from_slice(&[0x08, 0x06]);
        bytes[IP..][..6].copy_from_slice(&[0, 1, 0x08, 0, 6, 4]);
        bytes[IP + 8..][..6].copy_from_slice(&from.0.0);
        bytes
    }

    /// The frame in `bytes`, which one of the templates created.
    pub fn of(bytes: &'a mut [u8]) -> Self {
        Self(bytes)
    }

    /// Resizes the IP packet of a UDP template to `ip_len` bytes, at least 28, padded with zeros,
    /// and sets DF (RFC 791 section 3.1).
    pub fn set_length(bytes: &mut Vec<u8>, ip_len: u16) {
        bytes.resize(IP + usize::from(ip_len.max(28)), 0);
        bytes[IP + 2..][..2].copy_from_slice(&ip_len.to_be_bytes());
        bytes[IP + 6] = 0x40;
        bytes[TRANSPORT + 4..][..2].copy_from_slice(&(ip_len - IP_LEN as u16).to_be_bytes());
        Frame::of(bytes).update_checksum();
    }

    /// Sets both MAC addresses.
    pub fn set_macs(&mut self, from: MacAddr, to: MacAddr) {
        self.0[ETHERNET..][..6].copy_from_slice(&to.0);
        self.0[ETHERNET + 6..][..6].copy_from_slice(&from.0);
    }

    /// Sets both IP addresses, and updates the header checksum.
    pub fn set_addresses(&mut self, from: Ipv4Addr, to: Ipv4Addr) {
        let header = &mut self.0[IP..][..IP_LEN];
        header[12..16].copy_from_slice(&from.octets());
        header[16..20].copy_from_slice(&to.octets());
        self.update_checksum();
    }

    /// Sets the operation, the sender's and the target's address of an ARP packet.
    pub fn set_arp(&mut self, operation: u16, sender: Ipv4Addr, target: Ipv4Addr) {
        let packet = &mut self.0[IP..];
        packet[6..8].copy_from_slice(&operation.to_be_bytes());
        packet[14..18].copy_from_slice(&sender.octets());
        packet[24..28].copy_from_slice(&target.octets());
    }

    /// Sets the payload of each segment of a super-packet, in bytes.
    pub fn set_segment_len(&mut self, len: u16) {
        self.0[4..6].copy_from_slice(&len.to_ne_bytes());
    }

    /// Requests that the sum from byte `start` on be written to the byte `offset` after it.
    pub fn set_checksum_place(&mut self, start: u16, offset: u16) {
        self.0[0] = 1;
        self.0[6..8].copy_from_slice(&start.to_ne_bytes());
        self.0[8..10].copy_from_slice(&offset.to_ne_bytes());
    }

    fn update_checksum(&mut self) {
        let header = &mut self.0[IP..][..IP_LEN];
        header[10..12].fill(0);
        let sum = checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }

    /// Sets both ports.
    pub fn set_ports(&mut self, from: u16, to: u16) {
        self.0[TRANSPORT..][..2].copy_from_slice(&from.to_be_bytes());
        self.0[TRANSPORT + 2..][..2].copy_from_slice(&to.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{
        ArpPacket, ArpRepr, EthernetPacket, EthernetRepr, Ipv4Packet, TcpPacket, TcpRepr, UdpPacket,
    };

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    #[test]
    fn frames_are_valid_when_changed() {
        let (from, to) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        for template in [Frame::udp_template, Frame::syn_template] {
            let mut bytes = template((A, from), (A, from));
            let mut frame = Frame::of(&mut bytes);
            frame.set_macs(A, B);
            frame.set_addresses(from, to);
            frame.set_ports(7, 9);
            let ethernet = EthernetPacket::new_checked(&bytes[VNET_LEN..]).unwrap();
            assert_eq!(
                EthernetRepr::parse(&ethernet),
                EthernetRepr { dst: B, src: A, ethertype: wire::EtherType(0x0800) }
            );
            let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
            assert!(ip.verify_checksum());
            assert_eq!((ip.src(), ip.dst()), (from, to));
            let ports = match ip.protocol().0 {
                UDP => {
                    let udp = UdpPacket::new_checked(ip.payload()).unwrap();
                    (udp.src_port(), udp.dst_port())
                }
                _ => {
                    let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
                    let repr = TcpRepr::parse(&tcp).unwrap();
                    (repr.src_port, repr.dst_port)
                }
            };
            assert_eq!(ports, (7, 9));
        }
    }

    #[test]
    fn super_packet_has_its_headers_where_its_offloads_say() {
        let at = (A, Ipv4Addr::new(10, 0, 0, 1));
        let mut bytes = Frame::super_packet_template(at, at);
        Frame::of(&mut bytes).set_segment_len(36);
        let words = bytes[2..VNET_LEN].chunks_exact(2).filter_map(<[u8]>::first_chunk);
        let words: Vec<u16> = words.map(|word| u16::from_ne_bytes(*word)).collect();
        // The length of the headers, that of the segments, and the place of the TCP checksum.
        assert_eq!((&bytes[..2], words.as_slice()), (&[1, 1][..], &[54, 36, 34, 16][..]));
        let (ip, rest) = bytes[VNET_LEN + 14..].split_at(IP_LEN);
        assert_eq!(checksum(ip), 0);
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), IP_LEN + rest.len());
        assert_eq!(rest[12..14], [0x50, 0x18]);
    }

    #[test]
    fn arp_packet_is_read_back() {
        let mut bytes = Frame::arp_template((A, Ipv4Addr::LOCALHOST), (B, Ipv4Addr::LOCALHOST));
        let (sender, target) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        Frame::of(&mut bytes).set_arp(1, sender, target);
        let ethernet = EthernetPacket::new_checked(&bytes[VNET_LEN..]).unwrap();
        assert_eq!(EthernetRepr::parse(&ethernet).ethertype, wire::EtherType(0x0806));
        let arp = ArpRepr::parse(&ArpPacket::new_checked(ethernet.payload()).unwrap()).unwrap();
        assert_eq!((arp.sender_mac, arp.sender_ip, arp.target_ip), (A, sender, target));
    }

    #[test]
    fn packet_is_valid_when_it_is_made_longer() {
        let at = (A, Ipv4Addr::new(10, 0, 0, 1));
        let mut bytes = Frame::udp_template(at, at);
        Frame::set_length(&mut bytes, 9001);
        let ethernet = EthernetPacket::new_checked(&bytes[VNET_LEN..]).unwrap();
        let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
        assert!(ip.verify_checksum());
        let udp = UdpPacket::new_checked(ip.payload()).unwrap();
        assert_eq!((bytes.len() - VNET_LEN, udp.payload().len()), (9015, 8973));
    }
}
