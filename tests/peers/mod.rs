//! Other people's switches, dissectors and packet builders, as the tests need them: the kernel's VXLAN ([`kernel`]),
//! Open vSwitch ([`open_vswitch`]), tcpdump and tshark ([`capture`]); and the programs that they are ([`testkit::program`]).
//!
//! Everything started is owned by a value that ends it when dropped, also when a test fails.

pub mod capture;
pub mod kernel;
pub mod open_vswitch;
pub mod stack;

use crate::common::{Daemon, Host, Lab, traffic};
use netdev::Netns;
pub use testkit::program;
use testkit::report;

/// The MTU of the guests: what fits in every tunnel, over IPv6 too. Weft sets that of its guests, the peer's needs one.
pub const MTU: u16 = 1400;
/// Bytes that cross a tunnel each way.
pub const TRANSFER_LEN: usize = 10_000_000;

/// What a device does for its senders and readers beyond carrying frames.
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

/// Makes a device carry only frames as a wire would: no super-packets, and all checksums complete. Open vSwitch's
/// userspace datapath needs that of everything it reads from, because a packet socket without virtio-net headers does
/// not say that a checksum is still to be completed.
pub fn carry_wire_frames(netns: &Netns, device: &str) {
    let wanted: Vec<_> = OFFLOADS.iter().map(|&name| (name, false)).collect();
    let ethtool = netns.ethtool().expect("an ethtool socket can be opened");
    let unchanged = ethtool.set_features(device, &wanted).expect("features can be set");
    assert!(unchanged.is_empty(), "features of {device} that cannot be off: {unchanged:?}");
}

/// The same for the wire between the hosts.
pub fn carry_wire_frames_between(hosts: &[Host; 2]) {
    hosts.iter().for_each(|host| carry_wire_frames(&host.netns, &host.uplink.name));
}

/// Pings and streams of [`TRANSFER_LEN`] bytes, every byte compared, in both directions and both IP versions, between a
/// guest of weft on `h1` and one of a peer on `h2`.
pub fn guests_talk(lab: &Lab) {
    guests_exchange(lab, TRANSFER_LEN);
}

/// The same with streams of `len` bytes.
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

/// Notes for the report of the tests what a peer was tried with, and with which datapath.
pub fn tried(daemon: &Daemon, peer: &str, what: &str) {
    report::peer(peer, &format!("{what}; {} datapath", daemon.show().datapath));
}

/// Nothing that the peer sent was refused. Queues that overflow while the machine is busy are no refusals; TCP repeats.
pub fn nothing_was_refused(daemon: &Daemon) {
    let mut drops = daemon.drops();
    drops.retain(|reason, _| !matches!(reason.as_str(), "receive_overrun" | "queue_full"));
    assert!(drops.is_empty(), "{drops:?}");
}
