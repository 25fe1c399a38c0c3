//! Finds out which received segments the kernel's GRO merges.

use crate::host::{TestHost, WireEnd, pair};
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::filter::SocketFilter;
use packet::{Checksum, Gso, GsoKind, PacketBuf};
use std::time::{Duration, Instant};

/// The payload of [`super_packet`] in bytes.
pub const PAYLOAD: usize = 20_000;
/// The segment size of a [`super_packet`] in bytes.
pub const MSS: u16 = 1400;
/// The longest frame that is a single segment, with two tags and some reserve. Longer frames are
/// merged.
const WHOLE: usize = 1600;
/// The number of attempts. Segments that do not arrive together are not merged, so one attempt is
/// not conclusive.
const TRIES: usize = 20;
const PATIENCE: Duration = Duration::from_secs(5);
/// The features that are disabled on the sender: a veth does not merge when its peer has
/// segmentation offload.
const SEGMENTATION: [&str; 4] = [
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
];

/// Two hosts: one segments in software, the other merges with GRO.
#[derive(Debug)]
pub struct Merging {
    /// The host that merges.
    pub receiver: TestHost,
    ends: (WireEnd, WireEnd),
    near: PacketSocket,
    far: PacketSocket,
    _sender: TestHost,
}

impl Merging {
    /// Creates the hosts.
    ///
    /// # Panics
    /// Without root.
    #[must_use]
    pub fn new() -> Self {
        let (sender, receiver) = (TestHost::new("cuts"), TestHost::new("merges"));
        let ends = pair(&sender, &receiver);
        let set = |host: &TestHost, name: &str, features: &[(&str, bool)]| {
            // Each feature is set after the features that it depends on.
            let _ = host
                .ethtool()
                .expect("ethtool")
                .set_features(name, features)
                .expect("features can be set");
        };
        set(&sender, &ends.0.name, &SEGMENTATION.map(|name| (name, false)));
        set(&receiver, &ends.1.name, &[("rx-gro", true)]);
        let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
        let near = sender.run(|| PacketSocket::open_sender(ends.0.index)).expect("a packet socket");
        let far = receiver
            .run(|| PacketSocket::open(ends.1.index, &SocketFilter::everything(), options))
            .expect("a packet socket");
        Self { receiver, ends, near, far, _sender: sender }
    }

    /// The device of the host that merges.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.ends.1.name
    }

    /// Whether TCP segments with these VLAN tags (TPIDs, the outer one first) in the frame are
    /// merged.
    ///
    /// # Panics
    /// When they do not arrive.
    #[must_use]
    pub fn merges(&self, tags: &[u16]) -> bool {
        (0..TRIES).any(|_| self.longest(tags) > WHOLE)
    }

    /// The length of the longest frame that is received when one super-packet is sent.
    fn longest(&self, tags: &[u16]) -> usize {
        self.near.send(&super_packet(&self.ends, tags)).expect("a super-packet can be sent");
        let end = Instant::now() + PATIENCE;
        let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
        let (mut longest, mut bytes) = (0, 0);
        while bytes < PAYLOAD {
            match self.far.recv(&mut packet) {
                Ok(Some(_)) if is_of_super_packet(&packet.to_vec()) => {
                    longest = longest.max(packet.len());
                    bytes += packet.len();
                }
                Ok(Some(_)) => {}
                _ => std::thread::sleep(Duration::from_micros(100)),
            }
            assert!(Instant::now() < end, "waited in vain: {bytes} of {PAYLOAD} bytes came");
        }
        longest
    }
}

impl Default for Merging {
    fn default() -> Self {
        Self::new()
    }
}

/// True for frames of the super-packet; other frames of the hosts are shorter.
fn is_of_super_packet(frame: &[u8]) -> bool {
    frame.len() > 200 && frame.ends_with(&[7; 100])
}

/// A TCP super-packet of [`PAYLOAD`] bytes with a partial checksum, behind these tags.
#[must_use]
pub fn super_packet((near, far): &(WireEnd, WireEnd), tags: &[u16]) -> PacketBuf {
    let mut bytes = [far.mac.0, near.mac.0].concat();
    for tpid in tags {
        bytes.extend(tpid.to_be_bytes());
        bytes.extend([0, 7]);
    }
    bytes.extend([0x08, 0x00]);
    let total = (40 + PAYLOAD) as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip.extend(near.ip4.octets());
    ip.extend(far.ip4.octets());
    let sum = wire::checksum::checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(&ip);
    let start = bytes.len() as u16;
    bytes.extend([0xc0, 0, 0x1d, 0x2f, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.resize(bytes.len() + PAYLOAD, 7);
    let mut packet = PacketBuf::from_bytes(&bytes);
    packet.offload.checksum = Checksum::Partial { start, offset: 16 };
    packet.offload.gso = Some(Gso { kind: GsoKind::TcpV4, size: MSS, ecn: false });
    packet
}
