//! What a guest sends that means ill, and the network in which it hurts most.

use std::fmt::Write;
use std::net::Ipv4Addr;

use network::TunnelType;
use wire::MacAddr;

use crate::lab::{Guest, Lab, network_toml};
use crate::random::scramble;
use crate::traffic::connections::{Change, acl, connection_lists, connections};
use crate::traffic::frames::Frame;

/// The router of the port scan, on the side of the guests.
const ROUTER: (MacAddr, Ipv4Addr) =
    (MacAddr([0x02, 0x77, 0, 0, 0xff, 1]), Ipv4Addr::new(10, 77, 0, 1));
/// What the lists of the tuple space are about.
const LISTED: (Ipv4Addr, Ipv4Addr, u16, u16) =
    (Ipv4Addr::new(10, 201, 170, 85), Ipv4Addr::new(10, 202, 85, 170), 0x5a5a, 0xa5a5);

/// A guest that means ill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attack {
    /// Every packet is another connection, and a list sees to it that each needs a megaflow of its own.
    UpcallFlood,
    /// TCP to one port of every address of a /16 behind a router, which has to ask for each of them.
    PortScan,
    /// Every packet differs from what lists are about in another bit of each field: another mask.
    TupleSpace,
}

impl Attack {
    /// The network file in which it is made.
    pub fn network(self, lab: &Lab<'_>) -> String {
        let mut text = network_toml(lab, TunnelType::Geneve);
        match self {
            // B sets up connections by the same lists in all of them.
            Self::UpcallFlood => {}
            Self::PortScan => text += &wide(lab),
            Self::TupleSpace => text += &crossed_lists(),
        }
        text + &connection_lists()
    }

    /// The first packet from `from`, behind `to` where it matters, and how the others are made.
    pub fn packets(self, from: &Guest, to: &Guest) -> (Vec<u8>, Change) {
        let (source, target) = ((from.mac(), from.ip4()), (to.mac(), to.ip4()));
        match self {
            // To a port where nobody listens: what arrives costs the guest little.
            Self::UpcallFlood => connections(from, to, 9, 0),
            Self::PortScan => {
                let change = |number: u64, bytes: &mut [u8]| {
                    let mut frame = Frame::of(bytes);
                    let [high, low] = (scramble(number) as u16).to_be_bytes();
                    frame.set_addresses(Ipv4Addr::from(SCANNER), Ipv4Addr::new(10, 78, high, low));
                    frame.set_ports(40_000 + (number % 10_000) as u16, 22);
                };
                (Frame::syn_template(source, (ROUTER.0, target.1)), Box::new(change))
            }
            Self::TupleSpace => {
                let change = |number: u64, bytes: &mut [u8]| {
                    let mut frame = Frame::of(bytes);
                    let which = scramble(number);
                    let (src, dst, src_port, dst_port) = LISTED;
                    // One bit of each field, on which the prefix that has to be looked at depends.
                    let bit32 = |shift: u32| 1_u32 << (which >> shift & 31);
                    let bit16 = |shift: u32| 1_u16 << (which >> shift & 15);
                    let flip =
                        |address: Ipv4Addr, bit: u32| Ipv4Addr::from(u32::from(address) ^ bit);
                    frame.set_addresses(flip(src, bit32(0)), flip(dst, bit32(5)));
                    frame.set_ports(src_port ^ bit16(10), dst_port ^ bit16(14));
                };
                (Frame::udp_template(source, target), Box::new(change))
            }
        }
    }

    /// A packet from `from` that costs the switch as little as one can that ends where those of the attack end: with `to`, or, as there
    /// is nobody at most addresses of a scan, nowhere.
    pub fn harmless(self, from: &Guest, to: &Guest) -> Vec<u8> {
        let mac = match self {
            Self::UpcallFlood | Self::TupleSpace => to.mac(),
            Self::PortScan => NOBODY,
        };
        Frame::udp_template((from.mac(), from.ip4()), (mac, to.ip4()))
    }
}

/// Frames to it are dropped at once.
const NOBODY: MacAddr = MacAddr([0x02, 0x77, 0, 0, 0xfe, 0xfe]);
/// The scanner's address: that of the first guest of the first host.
const SCANNER: [u8; 4] = [10, 77, 0, 11];

/// One list for each field, so that packets are told from each of them by as many bits as they have in common with it.
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

/// A router to a /16 with one guest in it.
fn wide(lab: &Lab<'_>) -> String {
    let guest = lab.guest(1, 0);
    let mut text = format!(
        "\n[[logical_switch]]\nname = \"wide\"\nvni = 101\n\n[[logical_switch.port]]\nname = \"wide1\"\nhost = \"h2\"\n\
         mac = \"02:77:00:00:fe:01\"\naddresses = [\"10.78.0.2/16\"]\ndevice = {{ tap = \"eth1\", netns = \"{}\" }}\n\
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
            "\n[[logical_router.port]]\nname = \"{name}\"\nswitch = \"{switch}\"\nmac = \"{mac}\"\naddresses = [\"{address}\"]\n"
        );
    }
    text
}
