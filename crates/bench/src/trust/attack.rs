//! The packets of a hostile guest, and the network configurations in which they cost the switch
//! most.

use std::fmt::Write;
use std::net::Ipv4Addr;

use network::TunnelType;
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
}

impl Attack {
    /// The network file for the attack.
    pub fn network(self, lab: &Lab<'_>) -> String {
        let mut text = network_toml(lab, TunnelType::Geneve);
        match self {
            // The ACL entries that all attacks share suffice.
            Self::UpcallFlood => {}
            Self::PortScan => text += &wide(lab),
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
                let change = |number: u64, bytes: &mut [u8]| {
                    let mut frame = Frame::of(bytes);
                    let [high, low] = (scramble(number) as u16).to_be_bytes();
                    frame.set_addresses(Ipv4Addr::from(SCANNER), Ipv4Addr::new(10, 78, high, low));
                    frame.set_ports(40_000 + (number % 10_000) as u16, 22);
                };
                (Frame::syn_template(source, (ROUTER.0, target.1)), Box::new(change))
            }
            Self::SynFlood => {
                let to_ip = to.ip4();
                let change = move |number: u64, bytes: &mut [u8]| {
                    let mut frame = Frame::of(bytes);
                    let (host, port) = connection(number);
                    frame.set_addresses(host, to_ip);
                    frame.set_ports(port, 9);
                };
                (Frame::syn_template(source, target), Box::new(change))
            }
            Self::TupleSpace => {
                let change = |number: u64, bytes: &mut [u8]| {
                    let mut frame = Frame::of(bytes);
                    let which = scramble(number);
                    let (src, dst, src_port, dst_port) = LISTED;
                    // One bit of each field differs from the ACL's value. Its position determines
                    // the length of the matched prefix.
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

    /// A packet from `from` that costs the switch as little as possible. It ends like the packets
    /// of the attack: at `to`, or for the scan as a drop, because most of its targets do not exist.
    pub fn harmless(self, from: &Guest, to: &Guest) -> Vec<u8> {
        let mac = match self {
            Self::UpcallFlood | Self::TupleSpace | Self::SynFlood => to.mac(),
            Self::PortScan => NOBODY,
        };
        let mut bytes = Frame::udp_template((from.mac(), from.ip4()), (mac, to.ip4()));
        if self == Self::SynFlood {
            // The switch does not track frames that are not IP.
            Frame::of(&mut bytes).set_ethertype(LOCAL_EXPERIMENT);
        }
        bytes
    }
}

/// The EtherType for local experiments (IEEE 802 clause 9.2.3). Guests ignore it.
const LOCAL_EXPERIMENT: u16 = 0x88b5;

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

/// A destination MAC address that no port has. The switch drops frames to it at once.
const NOBODY: MacAddr = MacAddr([0x02, 0x77, 0, 0, 0xfe, 0xfe]);
/// The scanner's address, that of the first guest of the first host.
const SCANNER: [u8; 4] = [10, 77, 0, 11];

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
