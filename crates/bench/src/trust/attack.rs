//! The packets of a hostile guest, and the network configurations in which they cost the switch
//! most.

use std::fmt::Write;
use std::net::Ipv4Addr;

use network::TunnelType;
use packet::LEAST_SEGMENT_LEN;
use wire::MacAddr;

use crate::lab::{Guest, Lab, network_toml};
use crate::random::scramble;
use crate::traffic::connections::{Change, acl, connection, connection_lists, connections};
use crate::traffic::frames::Frame;

/// The router of the port scan, in the switch of the guests.
const ROUTER: (MacAddr, Ipv4Addr) =
    (MacAddr([0x02, 0x77, 0, 0, 0xff, 1]), Ipv4Addr::new(10, 77, 0, 1));
/// The addresses and ports that the ACL of the tuple-space attack matches.
const LISTED: (Ipv4Addr, Ipv4Addr, u16, u16) =
    (Ipv4Addr::new(10, 201, 170, 85), Ipv4Addr::new(10, 202, 85, 170), 0x5a5a, 0xa5a5);

/// A type of attack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attack {
    /// Every packet is a new connection, and an ACL makes each one need a separate megaflow.
    UpcallFlood,
    /// TCP SYNs to every address of a /16 behind a router, which must resolve each address.
    PortScan,
    /// Every packet differs from each field of an ACL in another bit, and so needs a new megaflow
    /// mask.
    TupleSpace,
    /// TCP SYNs of tracked connections; no second packet follows on any of them.
    SynFlood,
    /// ARP requests for random addresses, and replies of random senders to a router.
    ArpStorm,
    /// Frames from random MAC addresses, on a port that learns.
    MacFlood,
    /// TCP super-packets of the shortest segments that weft accepts, and of shorter ones.
    ShortSegments,
    /// Frames that request a checksum at a random place.
    Checksums,
}

impl Attack {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::UpcallFlood,
        Self::PortScan,
        Self::TupleSpace,
        Self::SynFlood,
        Self::ArpStorm,
        Self::MacFlood,
        Self::ShortSegments,
        Self::Checksums,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UpcallFlood => "upcall-flood",
            Self::PortScan => "port-scan",
            Self::TupleSpace => "tuple-space",
            Self::SynFlood => "syn-flood",
            Self::ArpStorm => "arp-storm",
            Self::MacFlood => "mac-flood",
            Self::ShortSegments => "short-segments",
            Self::Checksums => "checksums",
        }
    }

    /// The network file for the attack.
    pub fn network(self, lab: &Lab<'_>) -> String {
        let mut text = network_toml(lab, TunnelType::Geneve);
        match self {
            // The ACL entries that all attacks share suffice.
            Self::UpcallFlood | Self::ShortSegments | Self::Checksums => {}
            Self::PortScan | Self::ArpStorm => text += &wide(lab),
            Self::MacFlood => text = learning(&text, lab.guest(0, 0)),
            Self::TupleSpace => text += &crossed_lists(),
            Self::SynFlood => return text + &stateful_lists(),
        }
        text + &connection_lists()
    }

    /// The first packet from `from`, and the function that generates the next ones. `to` is the
    /// target, if the attack has one.
    pub fn packets(self, from: &Guest, to: &Guest) -> (Vec<u8>, Change) {
        let (source, target) = ((from.mac(), from.ip4()), (to.mac(), to.ip4()));
        match self {
            // No guest listens on this port, so that arriving packets cost the guest little.
            Self::UpcallFlood => connections(from, to, 9, 0),
            Self::PortScan => {
                (Frame::syn_template(source, (ROUTER.0, target.1)), Box::new(scan_next))
            }
            Self::TupleSpace => (Frame::udp_template(source, target), Box::new(use_next_mask)),
            Self::SynFlood => {
                let change = move |number: u64, bytes: &mut [u8]| {
                    let mut frame = Frame::of(bytes);
                    let (host, port) = connection(number);
                    frame.set_addresses(host, target.1);
                    frame.set_ports(port, 9);
                };
                (Frame::syn_template(source, target), Box::new(change))
            }
            Self::ArpStorm => {
                let change = move |number, bytes: &mut [u8]| send_next_arp(source.0, number, bytes);
                (Frame::arp_template(source, target), Box::new(change))
            }
            Self::MacFlood => {
                let change = move |number: u64, bytes: &mut [u8]| {
                    let [.., a, b, c, d] = scramble(number).to_be_bytes();
                    Frame::of(bytes).set_macs(MacAddr([0x02, 0x66, a, b, c, d]), target.0);
                };
                (Frame::udp_template(source, target), Box::new(change))
            }
            Self::ShortSegments => {
                let change = |number: u64, bytes: &mut [u8]| {
                    let len = if number.is_multiple_of(2) { LEAST_SEGMENT_LEN } else { 8 };
                    Frame::of(bytes).set_segment_len(len);
                };
                (Frame::super_packet_template(source, target), Box::new(change))
            }
            Self::Checksums => {
                let change = |number: u64, bytes: &mut [u8]| {
                    let which = scramble(number);
                    let (start, offset) = (14 + which % 28, (which >> 8) % 18);
                    Frame::of(bytes).set_checksum_place(start as u16, offset as u16);
                };
                (Frame::udp_template(source, target), Box::new(change))
            }
        }
    }
}

/// Turns a packet into one to the next address of the scan.
fn scan_next(number: u64, bytes: &mut [u8]) {
    let mut frame = Frame::of(bytes);
    let [high, low] = (scramble(number) as u16).to_be_bytes();
    frame.set_addresses(SCANNER, Ipv4Addr::new(10, 78, high, low));
    frame.set_ports(40_000 + (number % 10_000) as u16, 22);
}

/// Turns a packet into one that needs another megaflow mask.
fn use_next_mask(number: u64, bytes: &mut [u8]) {
    let mut frame = Frame::of(bytes);
    let which = scramble(number);
    let (src, dst, src_port, dst_port) = LISTED;
    // One bit of each field differs from the ACL's value. Its position determines the length of
    // the matched prefix.
    let bit32 = |shift: u32| 1_u32 << (which >> shift & 31);
    let bit16 = |shift: u32| 1_u16 << (which >> shift & 15);
    let flip = |address: Ipv4Addr, bit: u32| Ipv4Addr::from(u32::from(address) ^ bit);
    frame.set_addresses(flip(src, bit32(0)), flip(dst, bit32(5)));
    frame.set_ports(src_port ^ bit16(10), dst_port ^ bit16(14));
}

/// Turns an ARP packet into a broadcast request for a random address, or into a reply of a random
/// sender to the router.
fn send_next_arp(own: MacAddr, number: u64, bytes: &mut [u8]) {
    let [high, low] = (scramble(number) as u16).to_be_bytes();
    let other = Ipv4Addr::new(10, 77, high, low);
    let mut frame = Frame::of(bytes);
    if number.is_multiple_of(2) {
        frame.set_macs(own, MacAddr::BROADCAST);
        frame.set_arp(ARP_REQUEST, SCANNER, other);
    } else {
        frame.set_macs(own, ROUTER.0);
        frame.set_arp(ARP_REPLY, other, ROUTER.1);
    }
}

const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;

/// The network file `text`, with a port that learns for `guest`.
fn learning(text: &str, guest: &Guest) -> String {
    let line = format!("[[logical_switch.port]]\nname = \"{}\"\n", guest.name());
    text.replace(&line, &format!("{line}learn = true\n"))
}

/// ACLs that track all connections in both directions.
fn stateful_lists() -> String {
    let list = |direction| {
        format!(
            "\n[[acl]]\nswitch = \"lab\"\ndirection = \"{direction}\"\npriority = 1000\n\
             match = 'ip'\naction = \"allow-related\"\n"
        )
    };
    list("from-port") + &list("to-port")
}

/// The scanner's address, that of the first guest of the first host.
const SCANNER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 11);

/// An ACL entry for each field. A megaflow's mask then depends on the length of the common prefix
/// with each entry.
fn crossed_lists() -> String {
    let (src, dst, src_port, dst_port) = LISTED;
    [
        acl(2000, &format!("ip4.src == {src}"), "drop"),
        acl(1900, &format!("ip4.dst == {dst}"), "drop"),
        acl(1800, &format!("udp.src == {src_port}"), "drop"),
        acl(1700, &format!("udp.dst == {dst_port}"), "drop"),
    ]
    .concat()
}

/// A logical router to a /16 with one guest in it.
fn wide(lab: &Lab<'_>) -> String {
    let guest = lab.guest(1, 0);
    let mut text = format!(
        "\n[[logical_switch]]\nname = \"wide\"\nvni = 101\n\
         \n[[logical_switch.port]]\nname = \"wide1\"\nhost = \"h2\"\n\
         mac = \"02:77:00:00:fe:01\"\naddresses = [\"10.78.0.2/16\"]\n\
         device = {{ tap = \"eth1\", netns = \"{}\" }}\n\
         \n[[logical_router]]\nname = \"core\"\n",
        guest.netns()
    );
    for (name, switch, mac, address) in [
        ("core-lab", "lab", ROUTER.0, format!("{}/24", ROUTER.1)),
        ("core-wide", "wide", MacAddr([0x02, 0x77, 0, 0, 0xff, 2]), "10.78.0.1/16".to_owned()),
    ] {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n[[logical_router.port]]\nname = \"{name}\"\nswitch = \"{switch}\"\n\
             mac = \"{mac}\"\naddresses = [\"{address}\"]\n"
        );
    }
    text
}
