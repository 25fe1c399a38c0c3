//! Guests with port security and an access control list. The first guest attacks the others.

use super::target::FORBIDDEN;
use crate::common::daemon::port;
use crate::common::frames::{FrameSocket, contains, frame};
use crate::common::outer::{Outer, TCP};
use crate::common::{Daemon, GUEST_DEVICE, Guest, Lab, PATIENCE, Setup};
use datapath::stats::Drops;
use packet::PacketBuf;
use std::net::IpAddr;
use testkit::host::wait_until;

/// An access control list that drops Telnet.
const LIST: &str = "[[acl]]\nswitch = \"blue\"\ndirection = \"from-port\"\npriority = 1000\n\
                    match = 'tcp.dst == 23'\naction = \"drop\"\n";
/// The port that the access control list forbids.
pub const TELNET: u16 = 23;
/// A port that the access control list allows.
pub const ALLOWED: u16 = 2323;
const ARP: u16 = 0x0806;

/// Two guests of `h1` and one of `h2`, with port security and an access control list.
pub struct Guests {
    pub lab: Lab,
    pub daemons: [Daemon; 2],
    sender: FrameSocket,
    /// The sockets of the second and the third guest.
    receivers: [FrameSocket; 2],
    fences: u32,
}

impl Guests {
    pub fn new(setup: Setup) -> Self {
        let lab = Lab::new(setup.guests(2, 1).secured().more(LIST));
        let daemons = lab.start_both();
        let open = |guest: usize| FrameSocket::open(&lab.guests[guest].netns, GUEST_DEVICE);
        let (sender, receivers) = (open(0), [open(1), open(2)]);
        Self { lab, daemons, sender, receivers, fences: 0 }
    }

    pub fn guest(&self, number: usize) -> &Guest {
        &self.lab.guests[number]
    }

    /// A TCP SYN from the first guest with the source address `src` to another guest, followed by
    /// `text`.
    pub fn syn_from(&self, src: IpAddr, to: usize, dst_port: u16, text: &str) -> Vec<u8> {
        let mut segment = [40_000, dst_port].map(u16::to_be_bytes).concat();
        segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0, 0, 0, 0, 0]);
        segment.extend(text.as_bytes());
        let family = if src.is_ipv4() { 4 } else { 6 };
        let (src_mac, dst_mac) = (self.guest(0).mac, self.guest(to).mac);
        let dst = self.guest(to).ip(family);
        Outer { src_mac, dst_mac, src, dst, traffic_class: 0 }.packet(TCP, &segment)
    }

    pub fn syn(&self, family: u8, to: usize, dst_port: u16, text: &str) -> Vec<u8> {
        self.syn_from(self.guest(0).ip(family), to, dst_port, text)
    }

    /// An ARP reply from the first guest to guest `to`, with the sender address of guest `number`.
    pub fn arp(&self, number: usize, to: usize) -> Vec<u8> {
        let [a, b] = [0, to].map(|number| self.guest(number));
        let claimed = self.guest(number).ip4.octets();
        let head = [0, 1, 8, 0, 6, 4, 0, 2];
        let body = [&head[..], &a.mac.0, &claimed, &b.mac.0, &b.ip4.octets()].concat();
        frame(b.mac, a.mac, ARP, &[&body, FORBIDDEN.as_bytes()].concat())
    }

    fn dropped(&self) -> Drops {
        port(&self.daemons[0], "g1").drops
    }

    /// Sends a frame, and then a valid frame to each other guest. Returns the frames that these
    /// guests received.
    pub fn seen(&mut self, packet: &PacketBuf) -> Vec<Vec<u8>> {
        self.fences += 1;
        let fence = format!("fence {};", self.fences);
        self.sender.send_packet(packet);
        let mut seen = Vec::new();
        for (number, receiver) in (1..).zip(&self.receivers) {
            self.sender.send(&self.syn(4, number, ALLOWED, &fence));
            seen.extend(receiver.until_note(&fence));
        }
        seen
    }

    /// Sends a frame twice, so that the second one can match a megaflow of the first. Both must be
    /// dropped under `reason`, and nothing else may be dropped.
    pub fn refuses(&mut self, what: &str, reason: &str, bytes: &[u8]) {
        self.refuses_packet(what, reason, &PacketBuf::from_bytes(bytes));
    }

    /// Like [`Guests::refuses`], for a frame with offloads.
    pub fn refuses_packet(&mut self, what: &str, reason: &str, packet: &PacketBuf) {
        for round in 1..=2 {
            let mut expected = self.dropped();
            *expected.entry(reason.to_owned()).or_default() += 1;
            let mut seen = self.seen(packet);
            wait_until(PATIENCE, &format!("{what}, {round}, counts as {reason}"), || {
                self.dropped().values().sum::<u64>() >= expected.values().sum()
            });
            assert_eq!(self.dropped(), expected, "{what}, {round}");
            // A punted frame may be overtaken by later ones.
            let later = PacketBuf::from_bytes(&self.syn(4, 1, ALLOWED, "later"));
            seen.extend(self.seen(&later));
            let passed = seen.iter().any(|frame| contains(frame, FORBIDDEN));
            assert!(!passed, "{what} was delivered in round {round}");
        }
    }

    /// Sends a frame to guest `to` twice. Both must arrive unchanged.
    pub fn delivers(&self, what: &str, to: usize, bytes: &[u8]) {
        for _ in 0..2 {
            self.sender.send(bytes);
            self.receivers[to - 1].until(what, |frame| frame == bytes);
        }
    }

    pub fn finish(self) {
        self.daemons.into_iter().for_each(Daemon::stop);
    }
}
