//! The `network.toml` of a lab: two hosts made of network namespaces, joined by an underlay.

use std::fmt::Write;

use network::{Carrier, NetworkId, TunnelType};

use super::contender::{LAB_INNER_VLAN, LAB_VNI};
use super::host::{GUEST_DEVICE, UPLINK};
use super::names::UPLINK_PORT;
use super::shape::IpVersion;
use super::underlay::Lab;

/// A line for the start of a network file: one port may use all processors for packets without a
/// megaflow. For scenarios in which one guest stands for those of a whole host.
pub const NO_CPU_LIMIT: &str = "upcall_cpu_percent = 6400\n";

/// The network file of `lab`: both hosts, and one logical switch with all guests, whose frames
/// travel by `tunnel`.
pub fn network_toml(lab: &Lab<'_>, tunnel: TunnelType) -> String {
    flat_network(lab, tunnel, "")
}

/// Like [`network_toml`], with the additional lines `switch_lines` in the logical switch.
pub(super) fn flat_network(lab: &Lab<'_>, tunnel: TunnelType, switch_lines: &str) -> String {
    let shape = lab.shape();
    let mut text = format!("tunnel = \"{tunnel}\"\nunderlay_mtu = {}\n", lab.uplink_mtu());
    // By default, weft decides about outer checksums for each host. In a lab, the kernel's VXLAN
    // and Geneve devices send one unless `outer_checksum` is false, so weft does the same.
    let is_udp = tunnel.carrier() == Carrier::Udp;
    if let Some(checksum) = shape.outer_checksum.or(is_udp.then_some(true)) {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n[tunnel_options.{tunnel}]\nchecksum = {checksum}\n");
    }
    for host in lab.hosts() {
        let name = host.name();
        let underlay = match shape.family {
            IpVersion::V4 => format!("\"{}\", \"{}\"", host.underlay4(), host.underlay6()),
            IpVersion::V6 => format!("\"{}\"", host.underlay6()),
        };
        let _ = write!(
            text,
            "\n[[host]]\nname = \"{name}\"\nuplink = \"{UPLINK}\"\nunderlay = [{underlay}]\n"
        );
    }
    let segment = segment(tunnel, 0);
    let _ = write!(text, "\n[[logical_switch]]\nname = \"lab\"\n{segment}\n{switch_lines}");
    if let Some(mtu) = shape.guest_mtu {
        let _ = writeln!(text, "mtu = {mtu}");
    }
    for guest in lab.guests() {
        let (name, host) = (guest.name(), lab.hosts()[guest.host()].name());
        let (mac, ip4, ip6) = (guest.mac(), guest.ip4(), guest.ip6());
        let netns = guest.netns();
        let _ = write!(
            text,
            "\n[[logical_switch.port]]\nname = \"{name}\"\nhost = \"{host}\"\nmac = \"{mac}\"\n\
             addresses = [\"{ip4}/24\", \"{ip6}/64\"]\n\
             device = {{ tap = \"{GUEST_DEVICE}\", netns = \"{netns}\" }}\n"
        );
    }
    text
}

/// The network file of one bridge per host. The bridge's ports are the guests and the network card
/// that leads to the other host. The flows in `tags.flows` tag the frames between the hosts, and
/// `mtu` leaves room for these tags. weft uses no tunnel in this setup, so the uplink in its
/// configuration is `lo`.
pub(super) fn bridges_toml(lab: &Lab<'_>, mtu: u16) -> String {
    let mut text = String::new();
    for host in lab.hosts() {
        let name = host.name();
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n[[host]]\nname = \"{name}\"\nuplink = \"lo\"\n\
             \n[[bridge]]\nname = \"br-{name}\"\nhost = \"{name}\"\nflows = \"tags.flows\"\n\
             mtu = {mtu}\n\
             \n[[bridge.port]]\nname = \"uplink-{name}\"\nnumber = {UPLINK_PORT}\n\
             device = {{ interface = \"{UPLINK}\" }}\n"
        );
        for guest in lab.guests().iter().filter(|guest| guest.host() == host.index) {
            let (name, number, netns) = (guest.name(), guest.number() + 1, guest.netns());
            let (mac, ip4, ip6) = (guest.mac(), guest.ip4(), guest.ip6());
            let _ = write!(
                text,
                "\n[[bridge.port]]\nname = \"{name}\"\nnumber = {number}\nmac = \"{mac}\"\n\
                 addresses = [\"{ip4}/24\", \"{ip6}/64\"]\n\
                 device = {{ tap = \"{GUEST_DEVICE}\", netns = \"{netns}\" }}\n"
            );
        }
    }
    text
}

/// The line of `network.toml` that identifies a logical switch on the wire: its VNI, its VLAN, or
/// its pair of VLANs. `number` counts the logical switches from 0.
pub(super) fn segment(tunnel: TunnelType, number: u32) -> String {
    match tunnel.descriptor().network_id {
        NetworkId::Vni { .. } => format!("vni = {}", LAB_VNI + number),
        NetworkId::Vlan => format!("vlan = {}", LAB_VNI + number),
        NetworkId::VlanPair => format!(
            "vlan = {{ outer = {LAB_VNI}, inner = {} }}",
            u32::from(LAB_INNER_VLAN) + number
        ),
    }
}
