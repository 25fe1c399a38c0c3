//! A guest that is a trunk: what stands behind it sends and receives frames with tags of its own.
//!
//! It is made of a namespace whose interface ends in the guest's, where a thread puts the tags on and takes them off: not
//! every kernel has an 802.1Q device, and none has one for every TPID. Super-packets stay whole.

use super::{GUEST_DEVICE, Guest};
use netdev::Netns;
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::epoll::{Epoll, Events};
use netdev::filter::Filter;
use netdev::io_error::IoError;
use packet::PacketBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use wire::EtherType;
use wire::vlan::Tag;

/// The end of what stands behind it, in the namespace of the guest.
const LOWER: &str = "lower";
/// Added to the number of the guest.
const NUMBER: u8 = 100;
/// How soon the thread sees that it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// See the module.
pub struct Trunk {
    /// What stands behind it: a namespace of its own, with the MAC address of the guest.
    pub inside: Guest,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Trunk {
    /// Makes one of a guest that has its interface already, with these tags (TPID and VLAN), the outermost first.
    pub fn new(guest: &Guest, tags: &[(u16, u16)]) -> Self {
        let number = guest.mac.0[5];
        let inside = Guest { mac: guest.mac, ..Guest::new(number + NUMBER, guest.host) };
        let device = guest.netns.netlink().link(GUEST_DEVICE).expect("the guest has an interface");
        inside.join(&guest.netns, LOWER, device.mtu as u16 - 4 * tags.len() as u16);
        let tags: Vec<Tag> =
            tags.iter().map(|&(tpid, tci)| Tag::from_tci(EtherType(tpid), tci)).collect();
        let open = |device| {
            let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
            PacketSocket::open_name(device, &Filter::everything(), options)
        };
        let (lower, upper) = guest
            .netns
            .run(|| Ok::<_, netdev::Error>((open(LOWER)?, open(GUEST_DEVICE)?)))
            .expect("packet sockets can be opened");
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = std::thread::spawn(move || relay(&lower, &upper, &tags, &seen));
        Self { inside, stop, thread: Some(thread) }
    }

    /// Whatever stands behind it sends no super-packets.
    pub fn without_segmentation(&self) {
        let netns: &Netns = &self.inside.netns;
        let features = ["tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-generic-segmentation"];
        let off = features.map(|feature| (feature, false));
        let ethtool = netns.ethtool().expect("an ethtool socket");
        let unchanged = ethtool.set_features(GUEST_DEVICE, &off).expect("features are set");
        assert!(unchanged.is_empty(), "these features stay on: {unchanged:?}");
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

/// Moves frames until it is told to stop.
fn relay(lower: &PacketSocket, upper: &PacketSocket, tags: &[Tag], stop: &AtomicBool) {
    let epoll = Epoll::new().expect("an epoll set");
    for (socket, token) in [(lower, 0), (upper, 1)] {
        epoll.add(socket, token).expect("a socket can be waited for");
    }
    let mut events = Events::new();
    let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
    while !stop.load(Ordering::Relaxed) {
        epoll.wait(&mut events, Some(LOOK)).expect("an epoll set can be waited for");
        while receive(lower, &mut packet) {
            for &tag in tags.iter().rev() {
                flow::push_vlan(&mut packet, tag).expect("there is headroom");
            }
            send(upper, &packet);
        }
        while receive(upper, &mut packet) {
            // Others are for the guest itself.
            if tags.iter().all(|&tag| flow::pop_vlan(&mut packet) == Some(tag)) {
                send(lower, &packet);
            }
        }
    }
}

/// The next frame, with all its tags.
fn receive(socket: &PacketSocket, packet: &mut PacketBuf) -> bool {
    packet.reset(PacketBuf::HEADROOM);
    match socket.recv(packet) {
        Ok(Some(received)) => {
            if let Some(tag) = received.vlan {
                let tag = Tag::from_tci(EtherType(tag.tpid), tag.tci);
                flow::push_vlan(packet, tag).expect("there is headroom");
            }
            true
        }
        // The interface goes when weft ends.
        Ok(None) | Err(IoError::DeviceGone | IoError::LinkDown) => false,
        Err(error) => panic!("a packet socket fails: {error}"),
    }
}

fn send(socket: &PacketSocket, packet: &PacketBuf) {
    match socket.send(packet) {
        Ok(()) | Err(IoError::DeviceGone | IoError::LinkDown | IoError::Full) => {}
        Err(error) => panic!("a frame cannot be sent: {error}: {packet:?}"),
    }
}
