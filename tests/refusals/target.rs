//! The daemon under test, and checks that are common to all tunnel types.

use crate::common::frames::{FrameSocket, contains, note};
use crate::common::outer::{CE, Outer};
use crate::common::{Daemon, GUEST_DEVICE, Lab, PATIENCE, Setup};
use datapath::stats::Drops;
use testkit::host::wait_until;
use wire::MacAddr;

/// The payload of every frame that must not arrive.
pub const FORBIDDEN: &str = "FORBIDDEN";
/// A MAC address that no port has.
pub const NOBODY: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x99]);
/// The EtherType of Transparent Ethernet Bridging, for Ethernet frames in GRE and Geneve.
pub const TEB: u16 = 0x6558;

/// The daemon of `h1`, whose guest is `g1`. The tests send packets from the uplink of `h2`, where
/// no daemon runs.
pub struct Target {
    pub lab: Lab,
    pub daemon: Daemon,
    pub guest: FrameSocket,
    pub wire: FrameSocket,
    pub outer: Outer,
    fences: u32,
}

/// Encapsulates a frame correctly. Each invalid packet differs from such a packet in one detail.
pub type Wrap = fn(&Outer, &[u8]) -> Vec<u8>;

impl Target {
    pub fn new(setup: Setup) -> Self {
        Self::on(Lab::new(setup))
    }

    /// Starts the daemon of `h1` in a lab.
    pub fn on(lab: Lab) -> Self {
        let daemon = lab.start(0);
        let guest = FrameSocket::open(&lab.guests[0].netns, GUEST_DEVICE);
        let wire = FrameSocket::open(&lab.hosts[1].netns, &lab.hosts[1].uplink.name);
        let outer = Outer::between(&lab.hosts[1], &lab.hosts[0], lab.family());
        Self { lab, daemon, guest, wire, outer, fences: 0 }
    }

    /// The MAC address of `g1`, the guest of the daemon.
    pub fn near(&self) -> MacAddr {
        self.lab.guests[0].mac
    }

    /// The MAC address of `g2`, which is on `h2` according to the network file.
    pub fn far(&self) -> MacAddr {
        self.lab.guests[1].mac
    }

    /// An inner frame for the guest that must not reach it.
    pub fn forbidden(&self) -> Vec<u8> {
        note(self.near(), self.far(), FORBIDDEN)
    }

    pub fn dropped(&self) -> Drops {
        self.daemon.show().uplink.drops
    }

    /// Sends `packets`, and then a valid frame. Returns all frames that the guest received up to
    /// that frame.
    pub fn seen(&mut self, wrap: Wrap, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.fences += 1;
        let fence = format!("fence {};", self.fences);
        packets.iter().for_each(|packet| self.wire.send(packet));
        self.wire.send(&wrap(&self.outer, &note(self.near(), self.far(), &fence)));
        self.guest.until_note(&fence)
    }

    /// Sends `packets`. The guest must receive none of them, and the daemon must count all of them
    /// under `reason` and drop nothing else. With `None`, the kernel drops them, and the daemon
    /// counts nothing.
    pub fn refuses(&mut self, wrap: Wrap, what: &str, reason: Option<&str>, packets: &[Vec<u8>]) {
        let mut expected = self.dropped();
        if let Some(reason) = reason {
            *expected.entry(reason.to_owned()).or_default() += packets.len() as u64;
        }
        let mut seen = self.seen(wrap, packets);
        let mut dropped = Drops::new();
        // The daemon reads some kernel counters only every half second.
        wait_until(PATIENCE, &format!("{what} counts as {reason:?}"), || {
            dropped = self.dropped();
            dropped.values().sum::<u64>() >= expected.values().sum()
        });
        assert_eq!(dropped, expected, "{what}");
        // Packets that need an upcall may be overtaken by later ones.
        seen.extend(self.seen(wrap, &[]));
        assert!(!seen.iter().any(|frame| contains(frame, FORBIDDEN)), "{what} was delivered");
    }

    /// Sends `packet`, which is unusual but valid. The guest must receive exactly `inner`.
    pub fn delivers(&mut self, wrap: Wrap, what: &str, packet: &[u8], inner: &[u8]) {
        let before = self.dropped();
        self.wire.send(packet);
        self.guest.until(what, |frame| frame == inner);
        self.seen(wrap, &[]);
        assert_eq!(self.dropped(), before, "{what}");
    }

    /// Sends many unusual but valid packets, each with its inner frame. The guest must receive
    /// every inner frame exactly once, and the daemon must drop nothing.
    pub fn delivers_all(&mut self, wrap: Wrap, what: &str, packets: &[(Vec<u8>, Vec<u8>)]) {
        let before = self.dropped();
        packets.iter().for_each(|(packet, _)| self.wire.send(packet));
        let mut seen = Vec::new();
        // A punted packet may be overtaken by later ones.
        wait_until(PATIENCE, &format!("{what}: all arrive"), || {
            seen.extend(self.seen(wrap, &[]));
            packets.iter().all(|(_, inner)| seen.contains(inner))
        });
        for (packet, inner) in packets {
            let times = seen.iter().filter(|frame| *frame == inner).count();
            assert_eq!(times, 1, "{what}: {packet:02x?}");
        }
        assert_eq!(self.dropped(), before, "{what}");
    }

    /// Checks packets that every tunnel type must drop.
    pub fn refuses_in_any_tunnel(&mut self, wrap: Wrap) {
        let (near, far, outer) = (self.near(), self.far(), self.outer);
        let stranger = wrap(&outer.as_stranger(), &self.forbidden());
        self.refuses(wrap, "an unknown end point", Some("unknown_endpoint"), &[stranger]);
        self.refuses_frames(wrap);
        // RFC 6040 section 4.2: a CE-marked packet is dropped if its inner header is not
        // ECN-capable.
        let inner = ip_frame(near, far, 0, FORBIDDEN);
        let marked = wrap(&outer.traffic_class(CE), &inner);
        self.refuses(wrap, "CE outside, Not-ECT inside", Some("ecn_not_capable"), &[marked]);
        let capable = wrap(&outer.traffic_class(CE), &ip_frame(near, far, 2, "capable"));
        let inner = ip_frame(near, far, CE, "capable");
        self.delivers(wrap, "CE outside, ECT(0) inside", &capable, &inner);
    }

    /// Checks inner frames that are for no guest of this host.
    pub fn refuses_frames(&mut self, wrap: Wrap) {
        let (near, far, outer) = (self.near(), self.far(), self.outer);
        let unknown = wrap(&outer, &note(NOBODY, far, FORBIDDEN));
        self.refuses(wrap, "an unknown MAC address", Some("unknown_mac"), &[unknown]);
        let mut tagged = note(near, far, FORBIDDEN);
        tagged.splice(12..12, [0x81, 0, 0, 0].repeat(3));
        let packets = [wrap(&outer, &tagged)];
        self.refuses(wrap, "three priority tags inside", Some("tags_too_deep"), &packets);
        let group = MacAddr([3, 0, 0, 0, 0, 2]);
        let packets =
            [group, MacAddr::BROADCAST].map(|src| wrap(&outer, &note(near, src, FORBIDDEN)));
        self.refuses(wrap, "a group address as source", Some("flow_drop"), &packets);
        // The receiver is on the host that sent the frame, so split horizon drops it.
        let back = wrap(&outer, &note(far, near, FORBIDDEN));
        self.refuses(wrap, "a frame for where it came from", Some("hairpin"), &[back]);
    }

    /// Checks every truncation of a tunnel header of `header` bytes and of the inner Ethernet
    /// header. `put` builds a packet from the truncated bytes.
    pub fn refuses_cuts(
        &mut self,
        wrap: Wrap,
        full: &[u8],
        header: usize,
        put: impl Fn(&Outer, &[u8]) -> Vec<u8>,
    ) {
        let cut = |range: std::ops::Range<usize>| {
            range.map(|len| put(&self.outer, &full[..len])).collect::<Vec<_>>()
        };
        let (in_header, in_frame) = (cut(0..header), cut(header..header + 14));
        self.refuses(wrap, "a cut tunnel header", Some("malformed_tunnel"), &in_header);
        self.refuses(wrap, "a cut inner Ethernet header", Some("malformed"), &in_frame);
    }

    /// Checks that the daemon still runs and stops without an error.
    pub fn finish(self) {
        self.daemon.stop();
    }
}

/// An Ethernet frame with an IPv4 packet to another guest, with this traffic class.
pub fn ip_frame(dst_mac: MacAddr, src_mac: MacAddr, traffic_class: u8, text: &str) -> Vec<u8> {
    let [src, dst] = [[192, 168, 7, 2], [192, 168, 7, 1]].map(Into::into);
    Outer { src_mac, dst_mac, src, dst, traffic_class }.udp(9, text.as_bytes())
}

/// The UDP counter `name` in the kernel of the target host, for the IP version of the underlay.
pub fn kernel_count(target: &Target, name: &str) -> u64 {
    kernel_counter(target, "Udp", name)
}

/// The counter `name` of a protocol in the kernel of the target host, for the IP version of the
/// underlay. TCP has the same counters for both versions.
pub fn kernel_counter(target: &Target, protocol: &str, name: &str) -> u64 {
    let family = target.lab.family();
    let read = |file| move || std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    let netns = &target.lab.hosts[0].netns;
    if family == 6 && protocol != "Tcp" {
        let text = netns.run(read("snmp6")).expect("the kernel's counters");
        let line = text.lines().find(|line| line.starts_with(&format!("{protocol}6{name} ")));
        return line
            .and_then(|line| line.split_whitespace().last()?.parse().ok())
            .expect("a count");
    }
    let text = netns.run(read("snmp")).expect("the kernel's counters");
    let mut lines = text.lines().filter(|line| line.starts_with(&format!("{protocol}: ")));
    let [names, values] = [lines.next(), lines.next()].map(|line| line.expect("two lines of it"));
    let place = names.split(' ').position(|column| column == name).expect("a column of that name");
    values.split(' ').nth(place).and_then(|value| value.parse().ok()).expect("a count")
}

/// Checks that the kernel drops a datagram before weft receives it, and counts it under `name`.
pub fn kernel_refuses(target: &mut Target, wrap: Wrap, what: &str, name: &str, packet: Vec<u8>) {
    let before = kernel_count(target, name);
    target.refuses(wrap, what, None, &[packet]);
    assert_eq!(kernel_count(target, name), before + 1, "{what}: {name} of the kernel");
}
