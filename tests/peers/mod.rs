//! Independent peers (other implementations): the tunnel devices of the kernel ([`kernel`]), Open
//! vSwitch ([`open_vswitch`]), tcpdump and tshark ([`capture`]), and scapy. [`testkit::program`]
//! runs their programs.
//!
//! Dropping a value stops the programs that it has started, even if a test fails.

pub mod capture;
pub mod kernel;
pub mod open_vswitch;
pub mod scapy;
pub mod stack;

use crate::common::{Daemon, Host, Lab, traffic};
use netdev::Netns;
pub use testkit::program;
use testkit::report;

/// An MTU of guests that fits every tunnel, even over IPv6. weft sets it on its guests, and the
/// tests set it on the guests of the peer.
pub const MTU: u16 = 1400;
/// Length of a TCP stream in each direction, in bytes: thousands of segments.
pub const TRANSFER_LEN: usize = 4_000_000;

/// The offloads of a device.
const OFFLOADS: &[&str] = &[
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
    "tx-udp-segmentation",
    "tx-generic-segmentation",
    "tx-checksum-ip-generic",
    "rx-gro",
];

/// Disables the offloads of a device: no super-packets, and all checksums complete. The userspace
/// datapath of Open vSwitch needs this on every device. Its packet sockets have no virtio-net
/// headers, and so cannot transfer partial checksums.
pub fn carry_wire_frames(netns: &Netns, device: &str) {
    let wanted: Vec<_> = OFFLOADS.iter().map(|&name| (name, false)).collect();
    let ethtool = netns.ethtool().expect("an ethtool socket can be opened");
    let unchanged = ethtool.set_features(device, &wanted).expect("features can be set");
    assert!(unchanged.is_empty(), "features of {device} that cannot be off: {unchanged:?}");
}

/// Disables the offloads of both uplinks.
pub fn carry_wire_frames_between(hosts: &[Host; 2]) {
    hosts.iter().for_each(|host| carry_wire_frames(&host.netns, &host.uplink.name));
}

/// Exchanges pings and streams of [`TRANSFER_LEN`] bytes between a guest of weft on `h1` and one of
/// a peer on `h2`, in both directions and with both IP versions. Every byte is compared.
pub fn guests_talk(lab: &Lab) {
    guests_exchange(lab, TRANSFER_LEN);
}

/// Like [`guests_talk`], with streams of `len` bytes.
pub fn guests_exchange(lab: &Lab, len: usize) {
    let (near, far) = lab.ends();
    for (from, to) in [(near, far), (far, near)] {
        for family in [4, 6] {
            traffic::ping(&from.netns, to.ip(family));
        }
    }
    traffic::tcp(near, far, 4, len);
    traffic::tcp(far, near, 4, len);
    traffic::tcp(near, far, 6, len / 10);
    traffic::tcp(far, near, 6, len / 10);
}

/// Records in the test report which peer was tested with which datapath.
pub fn tried(daemon: &Daemon, peer: &str, what: &str) {
    report::peer(peer, &format!("{what}; {} datapath", daemon.show().datapath));
}

/// Checks that weft dropped no packet of the peer as invalid. On a busy machine, a full queue may
/// drop packets, which TCP retransmits. Packets that a guest sends before the kernel reports the
/// carrier of the uplink may be dropped, too.
pub fn nothing_was_refused(daemon: &Daemon) {
    let mut drops = daemon.drops();
    let may_happen = ["receive_overrun", "queue_full", "uplink_down"];
    drops.retain(|reason, _| !may_happen.contains(&reason.as_str()));
    assert!(drops.is_empty(), "{drops:?}");
}
