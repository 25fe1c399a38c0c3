//! A guest that is a trunk: a machine behind it sends and receives frames, to which the guest adds
//! VLAN tags.
//!
//! The machine is a namespace, connected by a veth pair to the namespace of the guest. A thread
//! there pushes and pops the tags. Kernel devices would not do, because some kernels have no 802.1Q
//! devices, and none supports every TPID. Super-packets are not segmented.

use super::{GUEST_DEVICE, Guest};
use netdev::Netns;
use netdev::af_packet::{PacketOptions, PacketSocket};
use netdev::epoll::{Epoll, EpollEvents};
use netdev::filter::SocketFilter;
use netdev::io_error::IoError;
use packet::PacketBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use wire::EtherType;
use wire::vlan::Tag;

/// The name of the veth end in the namespace of the guest.
const LOWER: &str = "lower";
/// The difference between the number of the machine and that of the guest.
const NUMBER: u8 = 100;
/// How often the thread checks whether it must stop.
const LOOK: Duration = Duration::from_millis(50);

/// A trunk guest and the machine behind it.
pub struct Trunk {
    /// The machine behind the guest: a namespace with the MAC address of the guest.
    pub inside: Guest,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Trunk {
    /// Turns `guest`, whose interface exists, into a trunk with these tags (TPID and VLAN),
    /// outermost first.
    pub fn new(guest: &Guest, tags: &[(u16, u16)]) -> Self {
        let number = guest.mac.0[5];
        let inside = Guest { mac: guest.mac, ..Guest::new(number + NUMBER, guest.host) };
        let device = guest.netns.netlink().link(GUEST_DEVICE).expect("the guest has an interface");
        inside.join(&guest.netns, LOWER, device.mtu as u16 - 4 * tags.len() as u16);
        let tags: Vec<Tag> =
            tags.iter().map(|&(tpid, tci)| Tag::from_tci(EtherType(tpid), tci)).collect();
        let open = |device| {
            let options = PacketOptions { promiscuous: true, ..PacketOptions::default() };
            PacketSocket::open_name(device, &SocketFilter::everything(), options)
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

    /// Disables segmentation offload of the machine behind the guest, so that it sends no
    /// super-packets.
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

/// Forwards frames until `stop` is set.
fn relay(lower: &PacketSocket, upper: &PacketSocket, tags: &[Tag], stop: &AtomicBool) {
    let epoll = Epoll::new().expect("an epoll set");
    for (socket, token) in [(lower, 0), (upper, 1)] {
        epoll.add(socket, token).expect("a socket can be waited for");
    }
    let mut events = EpollEvents::new();
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
            // Frames with other tags are addressed to the guest itself, and are not forwarded.
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
        // The interface is missing when weft has stopped and removed it.
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
