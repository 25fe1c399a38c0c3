//! Packets that are too long for a path, tested with real guest kernels. The kernels accept the
//! ICMP errors and reassemble the fragments, and their connections continue.
//!
//! A thread connects two guests and handles each frame like a tunnel. Its path has a lower MTU than
//! the guests' interfaces.

use flow::{ReplyAddresses, clamp_mss, too_big};
use netdev::tap::Tap;
use netdev::{Dad, IpNet};
use packet::{Fit, Fragmenter, PacketBuf, fit, wire_len};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use testkit::host::{TestHost, wait_until};
use wire::{EthernetPacket, MacAddr};

const PATIENCE: Duration = Duration::from_secs(20);
/// The longest frame of the path: an MTU of 1400 for guests without tags.
const MAX_FRAME_LEN: usize = 1414;

/// The number of packets for each action of the path.
#[derive(Debug, Default)]
struct Counters {
    resized: AtomicUsize,
    fragmented: AtomicUsize,
    answered: AtomicUsize,
    clamped: AtomicUsize,
}

/// Two guests, and the path between them.
struct Lab {
    guests: [TestHost; 2],
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
    path: Option<JoinHandle<()>>,
}

fn address(guest: usize, v6: bool) -> IpAddr {
    let number = guest as u16 + 1;
    if v6 {
        Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, number).into()
    } else {
        Ipv4Addr::new(10, 99, 0, number as u8).into()
    }
}

impl Lab {
    /// `clamp`: whether the path lowers the MSS. `may_fragment`: whether guests leave out "don't
    /// fragment".
    fn new(clamp: bool, may_fragment: bool) -> Self {
        let guests = [TestHost::new("g0"), TestHost::new("g1")];
        let taps = [0, 1].map(|i| {
            let guest = &guests[i];
            if may_fragment {
                guest.sysctl("net/ipv4/ip_no_pmtu_disc", "1").unwrap();
            }
            let tap = guest.run(|| Tap::open("eth0")).unwrap();
            let (netlink, index) = (guest.netlink(), guest.run(|| tap.ifindex()).unwrap());
            netlink.set_mac(index, mac(i)).unwrap();
            netlink.set_up(index).unwrap();
            for v6 in [false, true] {
                let prefix = IpNet::new(address(i, v6), if v6 { 64 } else { 24 }).unwrap();
                netlink.add_address(index, prefix, Dad::Skip).unwrap();
                netlink.set_neighbour(index, address(1 - i, v6), mac(1 - i)).unwrap();
            }
            tap
        });
        let (counters, stop) = (Arc::<Counters>::default(), Arc::<AtomicBool>::default());
        let path = {
            let (counters, stop) = (counters.clone(), stop.clone());
            std::thread::spawn(move || forward(&taps, clamp, &counters, &stop))
        };
        Self { guests, counters, stop, path: Some(path) }
    }

    fn path_mtu(&self, v6: bool) -> u32 {
        self.guests[0].netlink().route_get(address(1, v6), None).unwrap().mtu
    }

    fn count(&self, counter: impl Fn(&Counters) -> &AtomicUsize) -> usize {
        counter(&self.counters).load(Ordering::Relaxed)
    }

    /// Sends 4 MB over one TCP connection; returns the largest segment of the sender.
    fn tcp(&self, v6: bool) -> u32 {
        // A free port: a process that another test forks keeps the sockets of a fixed one open
        // until it executes its program.
        let listener = self.guests[1].run(|| TcpListener::bind((address(1, v6), 0))).unwrap();
        let to = listener.local_addr().unwrap();
        let sent: Vec<u8> = (0..4_000_000_u32).map(|i| (i % 251) as u8).collect();
        let receiver = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        let mut stream = self.guests[0].run(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&sent).unwrap();
        let mss = nix::sys::socket::getsockopt(&stream, nix::sys::socket::sockopt::TcpMaxSeg);
        drop(stream);
        assert!(receiver.join().unwrap() == sent, "what is received is what was sent");
        mss.unwrap()
    }

    /// Sends datagrams of `len` bytes of payload until one arrives.
    fn udp(&self, v6: bool, len: usize) {
        let receiver = self.guests[1].run(|| UdpSocket::bind((address(1, v6), 0))).unwrap();
        let to = receiver.local_addr().unwrap();
        let sender = self.guests[0].run(|| UdpSocket::bind((address(0, v6), 0))).unwrap();
        receiver.set_nonblocking(true).unwrap();
        let payload: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let mut bytes = vec![0; 65_536];
        wait_until(PATIENCE, "a datagram", || {
            // The send fails once, because the kernel has learnt the path MTU.
            let _ = sender.send_to(&payload, to);
            std::thread::sleep(Duration::from_millis(20));
            receiver.recv(&mut bytes).is_ok_and(|len| bytes[..len] == payload)
        });
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Err(panic)) = self.path.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

fn mac(guest: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, guest as u8 + 1])
}

/// Forwards frames from each guest to the other.
fn forward(taps: &[Tap; 2], clamp: bool, counters: &Counters, stop: &AtomicBool) {
    let mut packet = PacketBuf::with_capacity(PacketBuf::HEADROOM, PacketBuf::MAX_FRAME);
    let mut fragmenter = Fragmenter::new();
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        for (from, to) in [(&taps[0], &taps[1]), (&taps[1], &taps[0])] {
            while let Ok(Some(())) = from.recv(&mut packet) {
                idle = false;
                if clamp && clamp_mss(&mut packet, MAX_FRAME_LEN) {
                    counters.clamped.fetch_add(1, Ordering::Relaxed);
                }
                forward_frame(&mut packet, (from, to), &mut fragmenter, counters);
            }
        }
        if idle {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

fn forward_frame(
    packet: &mut PacketBuf,
    (from, to): (&Tap, &Tap),
    fragmenter: &mut Fragmenter,
    counters: &Counters,
) {
    let send = |packet: &PacketBuf| {
        assert!(wire_len(packet) <= MAX_FRAME_LEN);
        let _ = to.send(packet);
    };
    match fit(packet, MAX_FRAME_LEN) {
        Fit::Fits => send(packet),
        Fit::Resize(resize) => {
            counters.resized.fetch_add(1, Ordering::Relaxed);
            resize.apply(packet);
            send(packet);
        }
        Fit::Fragment { mtu } => {
            counters.fragmented.fetch_add(1, Ordering::Relaxed);
            fragmenter.fragment(packet, mtu.into(), |fragment| send(fragment)).unwrap();
        }
        Fit::TooBig { mtu } => {
            counters.answered.fetch_add(1, Ordering::Relaxed);
            let ethernet = EthernetPacket::new_checked(packet.head()).unwrap();
            let back =
                ReplyAddresses { eth_dst: ethernet.src(), eth_src: ethernet.dst(), tags: &[] };
            let _ = from.send(&too_big(packet, mtu, &back).unwrap());
        }
        Fit::Never => panic!("every packet can be resized, fragmented or answered"),
    }
}

#[test]
fn guest_learns_the_path_mtu_from_the_icmp_error_for_a_datagram() {
    testkit::require_root!();
    for v6 in [false, true] {
        let lab = Lab::new(false, false);
        assert_eq!(lab.path_mtu(v6), 1500);
        lab.udp(v6, 1400);
        assert_eq!(lab.path_mtu(v6), 1400);
        assert!(lab.count(|c| &c.answered) > 0);
        // The guest's kernel now fragments.
        lab.udp(v6, 20_000);
        assert_eq!(lab.count(|c| &c.fragmented), 0);
    }
}

#[test]
fn connection_continues_when_its_segments_are_too_long() {
    testkit::require_root!();
    for v6 in [false, true] {
        let lab = Lab::new(false, false);
        let mss = lab.tcp(v6);
        assert_eq!(lab.path_mtu(v6), 1400);
        // Timestamps take twelve bytes of each segment.
        assert_eq!(mss, 1400 - if v6 { 60 } else { 40 } - 12);
        assert!(lab.count(|c| &c.answered) > 0);
        assert_eq!(lab.count(|c| &c.resized), 0);
    }
}

#[test]
fn no_packet_is_too_long_when_the_mss_is_clamped() {
    testkit::require_root!();
    for v6 in [false, true] {
        let lab = Lab::new(true, false);
        let mss = lab.tcp(v6);
        assert_eq!(mss, 1400 - if v6 { 60 } else { 40 } - 12);
        // SYN and SYN-ACK. On a busy machine, either may be retransmitted.
        assert!(lab.count(|c| &c.clamped) >= 2);
        assert_eq!(lab.count(|c| &c.answered), 0);
        assert_eq!(lab.path_mtu(v6), 1500, "no guest learned a lower path MTU");
    }
}

#[test]
fn path_fragments_packets_when_guests_allow_it() {
    testkit::require_root!();
    let lab = Lab::new(false, true);
    lab.udp(false, 1472);
    // The guest's kernel fragments for the MTU of its interface. The path fragments again.
    lab.udp(false, 20_000);
    assert!(lab.count(|c| &c.fragmented) > 10);
    lab.tcp(false);
    assert!(lab.count(|c| &c.resized) > 0);
    assert_eq!((lab.path_mtu(false), lab.count(|c| &c.answered)), (1500, 0));
}
