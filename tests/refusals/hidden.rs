//! Guests that hide headers from access control lists and port security, behind stacked priority
//! tags or a SNAP header (CVE-2021-27853, CVE-2021-27861).

use super::target::FORBIDDEN;
use crate::common::daemon::port;
use crate::common::frames::{FrameSocket, contains, frame};
use crate::common::outer::{Outer, TCP};
use crate::common::{Daemon, Datapath, GUEST_DEVICE, Guest, Lab, PATIENCE, Setup};
use datapath::stats::Drops;
use std::net::IpAddr;
use testkit::host::wait_until;
use testkit::require_root;

/// Drops Telnet.
const LIST: &str = "[[acl]]\nswitch = \"blue\"\ndirection = \"from-port\"\npriority = 1000\n\
                    match = 'tcp.dst == 23'\naction = \"drop\"\n";
const TELNET: u16 = 23;
const ALLOWED: u16 = 2323;
const ARP: u16 = 0x0806;
/// The tags that a flow key holds.
const SHOWN_TAGS: usize = 2;

/// Two guests of `h1` and one of `h2`, with port security and an access control list.
struct Guests {
    lab: Lab,
    daemons: [Daemon; 2],
    sender: FrameSocket,
    /// The sockets of the second and the third guest.
    receivers: [FrameSocket; 2],
    fences: u32,
}

impl Guests {
    fn new(datapath: Datapath) -> Self {
        let lab =
            Lab::new(Setup::new("geneve").guests(2, 1).secured().more(LIST).datapath(datapath));
        let daemons = lab.start_both();
        let open = |guest: usize| FrameSocket::open(&lab.guests[guest].netns, GUEST_DEVICE);
        let (sender, receivers) = (open(0), [open(1), open(2)]);
        Self { lab, daemons, sender, receivers, fences: 0 }
    }

    fn guest(&self, number: usize) -> &Guest {
        &self.lab.guests[number]
    }

    /// A SYN from the address `src` of the first guest to another guest, with `text` behind it.
    fn syn_from(&self, src: IpAddr, to: usize, dst_port: u16, text: &str) -> Vec<u8> {
        let mut segment = [40_000, dst_port].map(u16::to_be_bytes).concat();
        segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0, 0, 0, 0, 0]);
        segment.extend(text.as_bytes());
        let family = if src.is_ipv4() { 4 } else { 6 };
        let (src_mac, dst_mac) = (self.guest(0).mac, self.guest(to).mac);
        let dst = self.guest(to).ip(family);
        Outer { src_mac, dst_mac, src, dst, traffic_class: 0 }.packet(TCP, &segment)
    }

    fn syn(&self, family: u8, to: usize, dst_port: u16, text: &str) -> Vec<u8> {
        self.syn_from(self.guest(0).ip(family), to, dst_port, text)
    }

    /// An ARP reply of the first guest to the second that claims the address of guest `number`.
    fn arp(&self, number: usize) -> Vec<u8> {
        let [a, b] = [0, 1].map(|number| self.guest(number));
        let claimed = self.guest(number).ip4.octets();
        let head = [0, 1, 8, 0, 6, 4, 0, 2];
        let body = [&head[..], &a.mac.0, &claimed, &b.mac.0, &b.ip4.octets()].concat();
        frame(b.mac, a.mac, ARP, &[&body, FORBIDDEN.as_bytes()].concat())
    }

    fn dropped(&self) -> Drops {
        port(&self.daemons[0], "g1").drops
    }

    /// Sends a frame and then a valid one to each other guest. Returns what these received.
    fn seen(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.fences += 1;
        let fence = format!("fence {};", self.fences);
        self.sender.send(bytes);
        let mut seen = Vec::new();
        for (number, receiver) in (1..).zip(&self.receivers) {
            self.sender.send(&self.syn(4, number, ALLOWED, &fence));
            seen.extend(receiver.until_note(&fence));
        }
        seen
    }

    /// Sends a frame twice, so that the second one can meet a megaflow of the first. Both must be
    /// dropped under `reason` and no other.
    fn refuses(&mut self, what: &str, reason: &str, bytes: &[u8]) {
        for round in 1..=2 {
            let mut expected = self.dropped();
            *expected.entry(reason.to_owned()).or_default() += 1;
            let mut seen = self.seen(bytes);
            wait_until(PATIENCE, &format!("{what}, {round}, counts as {reason}"), || {
                self.dropped().values().sum::<u64>() >= expected.values().sum()
            });
            assert_eq!(self.dropped(), expected, "{what}, {round}");
            // A frame that is punted may be overtaken by later ones.
            seen.extend(self.seen(&self.syn(4, 1, ALLOWED, "later")));
            let passed = seen.iter().any(|frame| contains(frame, FORBIDDEN));
            assert!(!passed, "{what} was delivered in round {round}");
        }
    }

    /// Sends a frame to guest `to` twice. Both must arrive unchanged.
    fn delivers(&self, what: &str, to: usize, bytes: &[u8]) {
        for _ in 0..2 {
            self.sender.send(bytes);
            self.receivers[to - 1].until(what, |frame| frame == bytes);
        }
    }

    fn finish(self) {
        self.daemons.into_iter().for_each(Daemon::stop);
    }
}

/// Puts `count` priority tags (VID 0) into a frame.
fn priority_tagged(count: usize, frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, 0].repeat(count), &frame[12..]].concat()
}

/// Makes an IEEE 802.3 frame of an Ethernet II frame: length, LLC, SNAP with OUI 0, EtherType.
fn in_snap(frame: &[u8]) -> Vec<u8> {
    let llc = [0xaa, 0xaa, 3, 0, 0, 0];
    let length = (llc.len() + frame[12..].len()) as u16;
    [&frame[..12], &length.to_be_bytes(), &llc, &frame[12..]].concat()
}

#[test]
fn lists_and_port_security_apply_when_a_guest_stacks_priority_tags() {
    require_root!();
    for datapath in Datapath::BOTH {
        let mut guests = Guests::new(datapath);
        // Ordinary packets leave megaflows, which the others must not meet.
        guests.delivers("an untagged SYN", 1, &guests.syn(4, 1, ALLOWED, "allowed"));
        for tags in 0..=5 {
            let reason = if tags <= SHOWN_TAGS { "flow_drop" } else { "tags_too_deep" };
            let what = |of: &str| format!("{datapath:?}: {of} behind {tags} priority tags");
            for (family, to) in [(4, 1), (4, 2), (6, 1)] {
                let hidden = priority_tagged(tags, &guests.syn(family, to, TELNET, FORBIDDEN));
                guests.refuses(&what("Telnet"), reason, &hidden);
            }
            let forged = priority_tagged(tags, &guests.arp(2));
            guests.refuses(&what("ARP of another guest"), reason, &forged);
            let other = guests.guest(2).ip(4);
            let forged = priority_tagged(tags, &guests.syn_from(other, 1, ALLOWED, FORBIDDEN));
            guests.refuses(&what("another guest's address"), reason, &forged);
        }
        for tags in 0..=SHOWN_TAGS {
            let allowed = |to| priority_tagged(tags, &guests.syn(4, to, ALLOWED, "allowed"));
            guests.delivers("a SYN behind tags", 1, &allowed(1));
            guests.delivers("a SYN behind tags to another host", 2, &allowed(2));
        }
        guests.finish();
    }
}

#[test]
fn lists_and_port_security_apply_when_a_guest_sends_snap() {
    require_root!();
    for datapath in Datapath::BOTH {
        let mut guests = Guests::new(datapath);
        for (to, bytes) in [1, 2].map(|to| (to, guests.syn(4, to, ALLOWED, "allowed"))) {
            guests.delivers("a SYN in Ethernet II", to, &bytes);
            guests.delivers("a SYN in SNAP", to, &in_snap(&bytes));
        }
        for tags in 0..=SHOWN_TAGS {
            let what = |of: &str| format!("{datapath:?}: {of} in SNAP behind {tags} priority tags");
            let hidden = |bytes: &[u8]| priority_tagged(tags, &in_snap(bytes));
            for (family, to) in [(4, 1), (4, 2), (6, 1)] {
                let telnet = hidden(&guests.syn(family, to, TELNET, FORBIDDEN));
                guests.refuses(&what("Telnet"), "flow_drop", &telnet);
            }
            let forged = hidden(&guests.arp(2));
            guests.refuses(&what("ARP of another guest"), "flow_drop", &forged);
            guests.delivers(&what("a SYN"), 1, &hidden(&guests.syn(4, 1, ALLOWED, "allowed")));
            guests.delivers(&what("ARP"), 1, &hidden(&guests.arp(0)));
        }
        let telnet = guests.syn(4, 1, TELNET, FORBIDDEN);
        let what = format!("{datapath:?}: SNAP behind three tags");
        guests.refuses(&what, "tags_too_deep", &priority_tagged(3, &in_snap(&telnet)));
        let what = format!("{datapath:?}: a tag behind SNAP");
        guests.refuses(&what, "tags_too_deep", &in_snap(&priority_tagged(1, &telnet)));
        // Some hosts ignore the length.
        for length in [0, 8, 30, 1500_u16] {
            let mut wrong = in_snap(&telnet);
            wrong[12..14].copy_from_slice(&length.to_be_bytes());
            let what = format!("{datapath:?}: SNAP with the length {length}");
            guests.refuses(&what, "malformed", &wrong);
        }
        guests.finish();
    }
}
