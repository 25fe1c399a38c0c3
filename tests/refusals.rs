//! What must not reach a guest: real packets, written by hand and sent over the wire to a running daemon. Each is dropped and
//! counted under its name, the guest sees nothing of it, and what is good still arrives afterwards.

mod common;

use common::frames::{EXPERIMENT, FrameSocket, contains, frame, note};
use common::outer::{CE, GRE, Outer, SttSegment, UDP, stt_header};
use common::{
    Attachment, Daemon, GUEST_DEVICE, INNER_VLAN, Lab, PATIENCE, Setup, VLAN, VNI, traffic,
};
use datapath::stats::Drops;
use std::net::UdpSocket;
use testkit::host::wait_until;
use testkit::require_root;
use wire::MacAddr;

/// Stands in every frame that must not arrive.
const FORBIDDEN: &str = "FORBIDDEN";
const VXLAN_PORT: u16 = 4789;
const GENEVE_PORT: u16 = 6081;
const STT_PORT: u16 = 7471;
/// Belongs to no port.
const NOBODY: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x99]);
const TEB: u16 = 0x6558;

/// The daemon of `h1` with guest `g1` behind it, and the wire of `h2` to throw things from. No daemon runs on `h2`.
struct Target {
    lab: Lab,
    daemon: Daemon,
    guest: FrameSocket,
    wire: FrameSocket,
    outer: Outer,
    fences: u32,
}

/// Wraps a frame as the daemon expects it: the good case that each bad one departs from.
type Wrap = fn(&Outer, &[u8]) -> Vec<u8>;

impl Target {
    fn new(setup: Setup) -> Self {
        let lab = Lab::new(setup);
        let daemon = lab.start(0);
        let guest = FrameSocket::open(&lab.guests[0].netns, GUEST_DEVICE);
        let wire = FrameSocket::open(&lab.hosts[1].netns, &lab.hosts[1].uplink.name);
        let outer = Outer::between(&lab.hosts[1], &lab.hosts[0], lab.family());
        Self { lab, daemon, guest, wire, outer, fences: 0 }
    }

    /// `g1`, the guest behind the daemon.
    fn near(&self) -> MacAddr {
        self.lab.guests[0].mac
    }

    /// `g2`, the guest that `h2` would have.
    fn far(&self) -> MacAddr {
        self.lab.guests[1].mac
    }

    /// An inner frame for the guest that must not reach it.
    fn forbidden(&self) -> Vec<u8> {
        note(self.near(), self.far(), FORBIDDEN)
    }

    fn dropped(&self) -> Drops {
        self.daemon.show().uplink.drops
    }

    /// Sends `packets`, then a good frame, and returns what the guest has seen until that arrived.
    fn seen(&mut self, wrap: Wrap, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.fences += 1;
        let fence = format!("fence {};", self.fences);
        packets.iter().for_each(|packet| self.wire.send(packet));
        self.wire.send(&wrap(&self.outer, &note(self.near(), self.far(), &fence)));
        self.guest.until_note(&fence)
    }

    /// Sends `packets`: the guest sees nothing of them, and the daemon counts all of them under `reason` and nothing
    /// else (`None`: nothing at all, because the kernel has dropped them).
    fn refuses(&mut self, wrap: Wrap, what: &str, reason: Option<&str>, packets: &[Vec<u8>]) {
        let mut expected = self.dropped();
        if let Some(reason) = reason {
            *expected.entry(reason.to_owned()).or_default() += packets.len() as u64;
        }
        let mut seen = self.seen(wrap, packets);
        let mut dropped = Drops::new();
        // Some counters of the kernel are only read every half second.
        wait_until(PATIENCE, &format!("{what} counts as {reason:?}"), || {
            dropped = self.dropped();
            dropped.values().sum::<u64>() >= expected.values().sum()
        });
        assert_eq!(dropped, expected, "{what}");
        // What nobody had decided about yet may have been overtaken.
        seen.extend(self.seen(wrap, &[]));
        assert!(!seen.iter().any(|frame| contains(frame, FORBIDDEN)), "{what} was delivered");
    }

    /// Sends `packet`, which is unusual but right: the guest receives exactly `inner`, and nothing is dropped.
    fn delivers(&mut self, wrap: Wrap, what: &str, packet: &[u8], inner: &[u8]) {
        let before = self.dropped();
        self.wire.send(packet);
        self.guest.until(what, |frame| frame == inner);
        self.seen(wrap, &[]);
        assert_eq!(self.dropped(), before, "{what}");
    }

    /// What every tunnel refuses, whatever its header.
    fn refuses_in_any_tunnel(&mut self, wrap: Wrap) {
        let (near, far, outer) = (self.near(), self.far(), self.outer);
        let stranger = wrap(&outer.as_stranger(), &self.forbidden());
        self.refuses(wrap, "an unknown end point", Some("unknown_endpoint"), &[stranger]);
        self.refuses_frames(wrap);
        // RFC 6040 section 4.2: what experienced congestion outside cannot say so inside.
        let inner = ip_frame(near, far, 0, FORBIDDEN);
        let marked = wrap(&outer.traffic_class(CE), &inner);
        self.refuses(wrap, "CE outside, Not-ECT inside", Some("ecn_not_capable"), &[marked]);
        let capable = wrap(&outer.traffic_class(CE), &ip_frame(near, far, 2, "capable"));
        let inner = ip_frame(near, far, CE, "capable");
        self.delivers(wrap, "CE outside, ECT(0) inside", &capable, &inner);
    }

    /// Inner frames that belong to nobody here.
    fn refuses_frames(&mut self, wrap: Wrap) {
        let (near, far, outer) = (self.near(), self.far(), self.outer);
        let unknown = wrap(&outer, &note(NOBODY, far, FORBIDDEN));
        self.refuses(wrap, "an unknown MAC address", Some("flow_drop"), &[unknown]);
        let group = MacAddr([3, 0, 0, 0, 0, 2]);
        let packets =
            [group, MacAddr::BROADCAST].map(|src| wrap(&outer, &note(near, src, FORBIDDEN)));
        self.refuses(wrap, "a group address as source", Some("flow_drop"), &packets);
        // It came from the host that it is for: split horizon.
        let back = wrap(&outer, &note(far, near, FORBIDDEN));
        self.refuses(wrap, "a frame for where it came from", Some("hairpin"), &[back]);
    }

    /// Every cut of a tunnel header of `header` bytes and of the inner Ethernet header behind it. `put` makes a packet of
    /// what is left.
    fn refuses_cuts(
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

    /// The daemon runs on, and ends as it should.
    fn finish(self) {
        self.daemon.stop();
    }
}

/// An IPv4 packet for another guest, with this traffic class, in an Ethernet frame.
fn ip_frame(dst_mac: MacAddr, src_mac: MacAddr, traffic_class: u8, text: &str) -> Vec<u8> {
    let [src, dst] = [[192, 168, 7, 2], [192, 168, 7, 1]].map(Into::into);
    Outer { src_mac, dst_mac, src, dst, traffic_class }.udp(9, text.as_bytes())
}

/// The number that the kernel of the target counts under `name`, one of UDP's (the same name in both families).
fn kernel_count(target: &Target, name: &str) -> u64 {
    let family = target.lab.family();
    let read = |file| move || std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    let netns = &target.lab.hosts[0].netns;
    if family == 6 {
        let text = netns.run(read("snmp6")).expect("the kernel's counters");
        let line = text.lines().find(|line| line.starts_with(&format!("Udp6{name} ")));
        return line
            .and_then(|line| line.split_whitespace().last()?.parse().ok())
            .expect("a count");
    }
    let text = netns.run(read("snmp")).expect("the kernel's counters");
    let mut lines = text.lines().filter(|line| line.starts_with("Udp: "));
    let [names, values] = [lines.next(), lines.next()].map(|line| line.expect("two lines of UDP"));
    let place = names.split(' ').position(|column| column == name).expect("a column of that name");
    values.split(' ').nth(place).and_then(|value| value.parse().ok()).expect("a count")
}

/// A datagram that the kernel refuses before weft could see it, counted there under `name`.
fn kernel_refuses(target: &mut Target, wrap: Wrap, what: &str, name: &str, packet: Vec<u8>) {
    let before = kernel_count(target, name);
    target.refuses(wrap, what, None, &[packet]);
    assert_eq!(kernel_count(target, name), before + 1, "{what}: {name} of the kernel");
}

fn vxlan_header(flags: u8, vni: u32) -> Vec<u8> {
    [&[flags, 0, 0, 0][..], &(vni << 8).to_be_bytes()].concat()
}

fn vxlan(outer: &Outer, inner: &[u8]) -> Vec<u8> {
    outer.udp(VXLAN_PORT, &[&vxlan_header(8, VNI)[..], inner].concat())
}

#[test]
fn vxlan_packets_are_refused_when_they_are_wrong() {
    require_root!();
    for family in [4, 6] {
        let mut target = Target::new(Setup::new("vxlan").family(family));
        let (outer, forbidden) = (target.outer, target.forbidden());
        let packet = |flags, vni| {
            outer.udp(VXLAN_PORT, &[&vxlan_header(flags, vni)[..], &forbidden].concat())
        };
        let vnis = [packet(8, VNI + 1), packet(8, 0), packet(8, 0xff_ffff)];
        target.refuses(vxlan, "another VNI", Some("unknown_datapath"), &vnis);
        target.refuses(
            vxlan,
            "no I flag",
            Some("vxlan_no_vni"),
            &[packet(0, VNI), packet(0xf7, VNI)],
        );
        let payload = [&vxlan_header(8, VNI)[..], &forbidden].concat();
        target.refuses_cuts(vxlan, &payload, 8, |outer, bytes| outer.udp(VXLAN_PORT, bytes));
        let elsewhere = outer.udp(VXLAN_PORT + 1, &payload);
        kernel_refuses(&mut target, vxlan, "another port", "NoPorts", elsewhere);
        let mut datagram = outer.datagram(VXLAN_PORT, &payload);
        datagram[6] ^= 1;
        let broken = outer.packet(UDP, &datagram);
        kernel_refuses(&mut target, vxlan, "a wrong outer checksum", "InCsumErrors", broken);
        // RFC 7348 section 5: reserved bits are ignored.
        let inner = note(target.near(), target.far(), "reserved bits");
        let header = [0xff, 0xff, 0xff, 0xff, 0, (VNI >> 8) as u8, VNI as u8, 0xff];
        let odd = outer.udp(VXLAN_PORT, &[&header[..], &inner].concat());
        target.delivers(vxlan, "reserved bits", &odd, &inner);
        target.refuses_in_any_tunnel(vxlan);
        target.finish();
    }
}

/// A guest on an interface of the host can speak to the host's own stack. What it forges there in the name of a remote end
/// point did not come by the uplink.
#[test]
fn tunnel_packets_are_refused_when_a_guest_forges_them() {
    require_root!();
    let setup = Setup::new("vxlan").guests(2, 1).mtu(1450).attachment(Attachment::Veth);
    let mut target = Target::new(setup);
    let (near, far) = (target.near(), target.far());
    let attacker = target.lab.guests_of(0).nth(1).expect("two guests are on h1");
    let device = attacker.host_device();
    let netlink = target.lab.hosts[0].netns.netlink();
    let dst_mac = netlink.link(&device).expect("the attacker's interface on the host").mac;
    let forged = Outer { src_mac: attacker.mac, dst_mac, ..target.outer };
    let socket = FrameSocket::open(&attacker.netns, GUEST_DEVICE);
    let before = kernel_count(&target, "NoPorts");
    for _ in 0..10 {
        socket.send(&vxlan(&forged, &note(near, far, FORBIDDEN)));
    }
    wait_until(PATIENCE, "the host's stack has refused all ten", || {
        kernel_count(&target, "NoPorts") == before + 10
    });
    let seen = target.seen(vxlan, &[]);
    assert!(!seen.iter().any(|frame| contains(frame, FORBIDDEN)), "a forged frame was delivered");
    target.finish();
}

const LOGICAL_PORTS: [u8; 4] = [0x01, 0x02, 0x80, 1];

/// A Geneve header with `options`; its third byte is that of the flags.
fn geneve_header(version: u8, flags: u8, protocol: u16, vni: u32, options: &[u8]) -> Vec<u8> {
    let words = (options.len() / 4) as u8;
    let mut header = vec![version << 6 | words, flags];
    header.extend(protocol.to_be_bytes());
    header.extend((vni << 8).to_be_bytes());
    header.extend(options);
    header
}

fn logical_ports(ingress: u16, egress: u16) -> Vec<u8> {
    [&LOGICAL_PORTS[..], &ingress.to_be_bytes(), &egress.to_be_bytes()].concat()
}

/// Without logical ports, so that the daemon looks at the MAC address.
fn geneve(outer: &Outer, inner: &[u8]) -> Vec<u8> {
    outer.udp(GENEVE_PORT, &[&geneve_header(0, 0, TEB, VNI, &[])[..], inner].concat())
}

#[test]
fn geneve_packets_are_refused_when_they_are_wrong() {
    require_root!();
    const CRITICAL: u8 = 0x40;
    const CONTROL: u8 = 0x80;
    for family in [4, 6] {
        let mut target = Target::new(Setup::new("geneve").family(family));
        let (outer, forbidden) = (target.outer, target.forbidden());
        let packet = |header: Vec<u8>| outer.udp(GENEVE_PORT, &[&header[..], &forbidden].concat());
        let header = |flags, options: &[u8]| geneve_header(0, flags, TEB, VNI, options);
        let vni = packet(geneve_header(0, 0, TEB, VNI + 1, &[]));
        target.refuses(geneve, "another VNI", Some("unknown_datapath"), &[vni]);
        let control = packet(header(CONTROL, &[]));
        target.refuses(geneve, "a control message", Some("geneve_control"), &[control]);
        let unknown = [0x12, 0x34, 0x85, 1, 0, 0, 0, 0];
        let critical = [packet(header(CRITICAL, &unknown)), packet(header(0, &unknown))];
        target.refuses(geneve, "a critical option", Some("geneve_critical_option"), &critical);
        let protocol = [0x0800, 0x86dd].map(|ip| packet(geneve_header(0, 0, ip, VNI, &[])));
        target.refuses(geneve, "something not Ethernet", Some("tunnel_protocol"), &protocol);
        let version = packet(geneve_header(1, 0, TEB, VNI, &[]));
        let beyond = packet(header(0, &[0x12, 0x34, 0x05, 2, 0, 0, 0, 0]));
        target.refuses(geneve, "nonsense", Some("malformed_tunnel"), &[version, beyond]);
        // Of the ports 1 and 2 the first is here; 0 and 0x7fff stand for none.
        let egress = [0, 3, 0x7fff, 0x8001]
            .map(|egress| packet(header(CRITICAL, &logical_ports(2, egress))));
        target.refuses(geneve, "no such egress port", Some("unknown_logical_port"), &egress);
        let back = [packet(header(CRITICAL, &logical_ports(2, 2)))];
        target.refuses(geneve, "an egress port where it came from", Some("hairpin"), &back);
        let full = [&header(CRITICAL, &logical_ports(2, 1))[..], &forbidden].concat();
        target.refuses_cuts(geneve, &full, 16, |outer, bytes| outer.udp(GENEVE_PORT, bytes));
        let elsewhere = outer.udp(GENEVE_PORT + 1, &full);
        kernel_refuses(&mut target, geneve, "another port", "NoPorts", elsewhere);

        let inner = note(target.near(), target.far(), "with options");
        let optional = [&[0x12, 0x34, 0x05, 1, 0, 0, 0, 0][..], &logical_ports(2, 1)].concat();
        let odd = [&header(CRITICAL, &optional)[..], &inner].concat();
        target.delivers(geneve, "an unknown option", &outer.udp(GENEVE_PORT, &odd), &inner);
        target.refuses_in_any_tunnel(geneve);
        target.finish();
    }
}

const GRE_CHECKSUM: u16 = 0x8000;
const GRE_KEY: u16 = 0x2000;

fn gre_packet(outer: &Outer, flags: u16, protocol: u16, fields: &[u32], inner: &[u8]) -> Vec<u8> {
    let mut header = [flags, protocol].map(u16::to_be_bytes).concat();
    fields.iter().for_each(|field| header.extend(field.to_be_bytes()));
    outer.packet(GRE, &[&header[..], inner].concat())
}

fn gre(outer: &Outer, inner: &[u8]) -> Vec<u8> {
    gre_packet(outer, GRE_KEY, TEB, &[VNI], inner)
}

#[test]
fn gre_packets_are_refused_when_they_are_wrong() {
    require_root!();
    for family in [4, 6] {
        let mut target = Target::new(Setup::new("gre").family(family));
        let (outer, forbidden) = (target.outer, target.forbidden());
        let packet = |flags, protocol, fields: &[u32]| {
            gre_packet(&outer, flags, protocol, fields, &forbidden)
        };
        let key = packet(GRE_KEY, TEB, &[VNI + 1]);
        target.refuses(gre, "another key", Some("unknown_datapath"), &[key]);
        target.refuses(gre, "no key", Some("gre_no_key"), &[packet(0, TEB, &[])]);
        let checksum = packet(GRE_CHECKSUM | GRE_KEY, TEB, &[0x1234_0000, VNI]);
        target.refuses(gre, "a wrong checksum", Some("gre_checksum"), &[checksum]);
        let protocol = [0x0800, 0x880b].map(|protocol| packet(GRE_KEY, protocol, &[VNI]));
        target.refuses(gre, "something not Ethernet", Some("tunnel_protocol"), &protocol);
        // Version 1 is PPTP's; bit 1 announces routing (RFC 1701), which nobody speaks.
        let strange = [GRE_KEY | 1, GRE_KEY | 0x4000].map(|flags| packet(flags, TEB, &[VNI]));
        target.refuses(gre, "another GRE", Some("malformed_tunnel"), &strange);
        let full = [&[0x20, 0, 0x65, 0x58][..], &VNI.to_be_bytes(), &forbidden].concat();
        target.refuses_cuts(gre, &full, 8, |outer, bytes| outer.packet(GRE, bytes));
        if family == 4 {
            let good = gre(&outer, &forbidden);
            let mut damaged = good.clone();
            damaged[14 + 10] ^= 1;
            target.refuses(gre, "a wrong IPv4 header sum", Some("outer_checksum"), &[damaged]);
            // More fragments: the flag is bit 0x2000 of its word, taken off the sum.
            let mut fragment = good;
            (fragment[14 + 6], fragment[14 + 10]) =
                (fragment[14 + 6] | 0x20, fragment[14 + 10].wrapping_sub(0x20));
            target.refuses(gre, "a fragment", Some("outer_fragment"), &[fragment]);
        }
        target.refuses_in_any_tunnel(gre);
        target.finish();
    }
}

#[test]
fn gre_packets_are_refused_when_they_have_a_key_that_nobody_wants() {
    require_root!();
    let keyless: Wrap = |outer, inner| gre_packet(outer, 0, TEB, &[], inner);
    let mut target = Target::new(Setup::new("gre").options("key = false").without_key());
    let packets =
        [0, VNI].map(|key| gre_packet(&target.outer, GRE_KEY, TEB, &[key], &target.forbidden()));
    target.refuses(keyless, "a key", Some("unknown_datapath"), &packets);
    target.finish();
}

/// STT's context of a frame from port 2 to port 1.
fn context(vni: u32, ingress: u16, egress: u16) -> u64 {
    u64::from(vni) | u64::from(egress) << 24 | u64::from(ingress) << 40
}

fn stt_frame(outer: &Outer, id: u32, context: u64, inner: &[u8]) -> Vec<u8> {
    let payload = [&stt_header(context)[..], inner].concat();
    let total = payload.len() as u16;
    SttSegment { id, total, offset: 0, flags: SttSegment::FLAGS }.frame(outer, STT_PORT, &payload)
}

/// Without logical ports, so that the daemon looks at the MAC address.
fn stt(outer: &Outer, inner: &[u8]) -> Vec<u8> {
    stt_frame(outer, 7, context(VNI, 0, 0), inner)
}

#[test]
fn stt_frames_are_refused_when_they_are_wrong() {
    require_root!();
    for family in [4, 6] {
        let mut target =
            Target::new(Setup::new("stt").family(family).options("logical_ports = false"));
        let (outer, forbidden) = (target.outer, target.forbidden());
        let contexts = [context(VNI + 1, 0, 0), 1 << 63 | u64::from(VNI)];
        let contexts = contexts.map(|context| stt_frame(&outer, 1, context, &forbidden));
        target.refuses(stt, "another context", Some("unknown_datapath"), &contexts);

        let payload = [&stt_header(context(VNI, 0, 0))[..], &forbidden].concat();
        let total = payload.len() as u16;
        let whole = SttSegment { id: 2, total, offset: 0, flags: SttSegment::FLAGS };
        // A reset would be the host's own stack's business, were this TCP.
        let flags = [0x02, 0x12, 0x11, 0x14]
            .map(|flags| SttSegment { flags, ..whole }.frame(&outer, STT_PORT, &payload));
        target.refuses(stt, "real TCP", Some("stt_frame"), &flags);
        let lengths = [
            SttSegment { total: total - 1, ..whole }.frame(&outer, STT_PORT, &payload),
            SttSegment { offset: total, ..whole }.frame(&outer, STT_PORT, &payload),
            SttSegment { total: 17, ..whole }.frame(&outer, STT_PORT, &payload[..17]),
            whole.frame(&outer, STT_PORT, &[]),
        ];
        target.refuses(stt, "impossible lengths", Some("stt_frame"), &lengths);
        let mut segment = whole.segment(&outer, STT_PORT, &payload);
        segment[16] ^= 1;
        let checksum = outer.packet(common::outer::TCP, &segment);
        target.refuses(stt, "a wrong outer checksum", Some("outer_checksum"), &[checksum]);
        let elsewhere = whole.frame(&outer, STT_PORT + 1, &payload);
        target.refuses(stt, "another port", None, &[elsewhere]);
        let version = [&[1][..], &payload[1..]].concat();
        let version = whole.frame(&outer, STT_PORT, &version);
        target.refuses(stt, "another version", Some("malformed_tunnel"), &[version]);
        let short = [18, 31].map(|len| {
            let total = len as u16;
            SttSegment { total, ..whole }.frame(&outer, STT_PORT, &payload[..len])
        });
        target.refuses(stt, "a cut inner Ethernet header", Some("malformed_tunnel"), &short);
        target.refuses_in_any_tunnel(stt);
        target.finish();
    }
}

#[test]
fn stt_segments_are_refused_when_they_overlap_or_disagree() {
    require_root!();
    let mut target = Target::new(Setup::new("stt").options("logical_ports = false"));
    let outer = target.outer;
    let payload = [&stt_header(context(VNI, 0, 0))[..], &target.forbidden()].concat();
    let total = payload.len() as u16;
    let piece = |id, total, range: std::ops::Range<usize>| {
        let offset = range.start as u16;
        let segment = SttSegment { id, total, offset, flags: SttSegment::FLAGS };
        segment.frame(&outer, STT_PORT, &payload[range])
    };
    // The first of each waits for the rest, so it is the others that are counted.
    target.wire.send(&piece(10, total, 0..30));
    let overlaps = [piece(10, total, 0..30), piece(10, total, 29..40), piece(10, total, 10..20)];
    target.refuses(stt, "segments that overlap", Some("stt_overlap"), &overlaps);
    target.wire.send(&piece(11, total, 0..30));
    let other = [piece(11, total + 1, 30..40)];
    target.refuses(stt, "two lengths of one frame", Some("stt_frame"), &other);
    // A frame that arrives in pieces in the wrong order is whole all the same.
    let inner = note(target.near(), target.far(), "in pieces");
    let whole = [&stt_header(context(VNI, 0, 0))[..], &inner].concat();
    let part = |range: std::ops::Range<usize>| {
        let (total, offset) = (whole.len() as u16, range.start as u16);
        let segment = SttSegment { id: 12, total, offset, flags: SttSegment::FLAGS };
        segment.frame(&outer, STT_PORT, &whole[range])
    };
    target.wire.send(&part(40..whole.len()));
    target.wire.send(&part(0..20));
    target.delivers(stt, "pieces in disorder", &part(20..40), &inner);
    target.finish();
}

#[test]
fn stt_memory_stays_bounded_when_frames_are_never_completed() {
    require_root!();
    /// The daemon keeps 4 MiB of incomplete frames: 64 of the longest.
    const KEPT: usize = 64;
    const SENT: usize = 200;
    let mut target = Target::new(Setup::new("stt").options("logical_ports = false"));
    let payload = [&stt_header(context(VNI, 0, 0))[..], &target.forbidden()].concat();
    let first = |id| {
        let segment = SttSegment { id, total: 65_535, offset: 0, flags: SttSegment::FLAGS };
        segment.frame(&target.outer, STT_PORT, &payload)
    };
    let flood: Vec<_> = (100..).map(first).take(SENT).collect();
    let seen = target.seen(stt, &flood);
    assert!(!seen.iter().any(|frame| contains(frame, FORBIDDEN)));
    wait_until(PATIENCE, "what was evicted is counted", || {
        target.dropped().get("stt_memory").is_some_and(|&count| count as usize >= SENT - KEPT)
    });
    let evicted = target.dropped()["stt_memory"] as usize;
    assert_eq!(target.dropped().len(), 1, "{:?}", target.dropped());
    assert!(evicted <= SENT - KEPT + 1, "{evicted} evicted: 64 frames fit");
    target.finish();
}

fn tagged(tags: &[(u16, u16)], inner: &[u8]) -> Vec<u8> {
    let tags: Vec<u8> =
        tags.iter().flat_map(|&(tpid, tci)| [tpid, tci]).flat_map(u16::to_be_bytes).collect();
    [&inner[..12], &tags, &inner[12..]].concat()
}

#[test]
fn tagged_frames_are_refused_when_the_vlan_is_another() {
    require_root!();
    let wrap: Wrap = |_, inner| tagged(&[(0x8100, VLAN)], inner);
    let mut target = Target::new(Setup::new("vlan"));
    let forbidden = target.forbidden();
    let others = [
        tagged(&[(0x8100, VLAN + 1)], &forbidden),
        tagged(&[(0x8100, 0)], &forbidden),
        tagged(&[(0x8100, 4095)], &forbidden),
        tagged(&[(0x88a8, VLAN)], &forbidden),
        tagged(&[(0x9100, VLAN)], &forbidden),
    ];
    target.refuses(wrap, "another VLAN", Some("unknown_datapath"), &others);
    target.refuses(wrap, "no tag", None, std::slice::from_ref(&forbidden));
    target.refuses_frames(wrap);
    // The priority does not matter.
    let inner = note(target.near(), target.far(), "priority 7");
    target.delivers(wrap, "priority 7", &tagged(&[(0x8100, 7 << 13 | VLAN)], &inner), &inner);
    target.finish();
}

#[test]
fn tagged_frames_are_refused_when_the_pair_is_another() {
    require_root!();
    let wrap: Wrap = |_, inner| tagged(&[(0x88a8, VLAN), (0x8100, INNER_VLAN)], inner);
    let mut target = Target::new(Setup::new("qinq"));
    let forbidden = target.forbidden();
    let others = [
        tagged(&[(0x88a8, VLAN)], &forbidden),
        tagged(&[(0x88a8, VLAN), (0x8100, INNER_VLAN + 1)], &forbidden),
        tagged(&[(0x88a8, VLAN + 1), (0x8100, INNER_VLAN)], &forbidden),
        tagged(&[(0x8100, VLAN), (0x8100, INNER_VLAN)], &forbidden),
        tagged(&[(0x8100, INNER_VLAN), (0x88a8, VLAN)], &forbidden),
        tagged(&[(0x8100, INNER_VLAN)], &forbidden),
    ];
    target.refuses(wrap, "another pair", Some("unknown_datapath"), &others);
    target.refuses_frames(wrap);
    target.finish();
}

#[test]
fn tunnels_stay_closed_when_a_guest_sends_tunnel_packets() {
    require_root!();
    for (tunnel, header) in [
        ("vxlan", vxlan_header(8, VNI)),
        ("geneve", geneve_header(0, 0, TEB, VNI, &[])),
        ("geneve", geneve_header(0, 0x40, TEB, VNI, &logical_ports(1, 2))),
    ] {
        let lab = Lab::new(Setup::new(tunnel).guests(2, 2));
        let daemons = lab.start_both();
        let [a, b, c, _] = &lab.guests[..] else { panic!("there are four guests") };
        for (to, other) in [(c, b), (b, c)] {
            traffic::ping(&a.netns, to.ip(4));
            let sockets = [to, other].map(|guest| FrameSocket::open(&guest.netns, GUEST_DEVICE));
            // Were it taken out of its tunnel again, it would reach the other guest, or both.
            let inner =
                [other.mac, MacAddr::BROADCAST, to.mac].map(|dst| note(dst, a.mac, FORBIDDEN));
            for port in [VXLAN_PORT, GENEVE_PORT] {
                let address = (to.ip(4), port);
                let receiver = to.netns.run(|| UdpSocket::bind(address)).expect("a UDP socket");
                receiver.set_read_timeout(Some(PATIENCE)).expect("a time limit");
                let sender = traffic::udp_socket(a, 4);
                for inner in &inner {
                    let sent = [&header[..], inner].concat();
                    sender.send_to(&sent, address).expect("a datagram is sent");
                    let mut bytes = [0; 2000];
                    let (len, _) = receiver.recv_from(&mut bytes).expect("the datagram arrives");
                    assert!(bytes[..len] == sent, "{tunnel}: the datagram was altered");
                }
            }
            let fence = FrameSocket::open(&a.netns, GUEST_DEVICE);
            for (guest, socket) in [to, other].into_iter().zip(&sockets) {
                fence.send(&note(guest.mac, a.mac, "the end"));
                let mut seen = socket.until_note("the end");
                seen.retain(|frame| frame[12..14] == EXPERIMENT.to_be_bytes());
                assert_eq!(seen.len(), 1, "{tunnel}: {} saw what was inside", guest.name);
            }
        }
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn tunnel_packets_to_the_host_stay_frames_when_they_come_out_of_a_tunnel() {
    require_root!();
    let mut target = Target::new(Setup::new("vxlan"));
    // The inner packet is addressed as the outer one is: to the tunnel end point itself.
    let outer = target.outer;
    let inner = Outer { dst_mac: target.near(), src_mac: target.far(), ..outer };
    let nested = vxlan(&inner, &note(target.near(), target.far(), "nested"));
    let seen = target.seen(vxlan, &[vxlan(&outer, &nested)]);
    let seen: Vec<_> = seen.iter().filter(|frame| contains(frame, "nested")).collect();
    assert_eq!(seen, [&nested], "the guest gets the packet, and only once");
    target.finish();
}

#[test]
fn frames_are_refused_when_a_guest_may_not_send_them() {
    require_root!();
    let lab = Lab::new(Setup::new("geneve").guests(2, 1));
    let daemons = lab.start_both();
    let [a, b, c] = &lab.guests[..] else { panic!("there are three guests") };
    let sockets: Vec<_> =
        lab.guests.iter().map(|guest| FrameSocket::open(&guest.netns, GUEST_DEVICE)).collect();
    let cases = [
        ("flow_drop", note(NOBODY, a.mac, FORBIDDEN)),
        ("flow_drop", note(b.mac, MacAddr([1, 0, 0x5e, 0, 0, 9]), FORBIDDEN)),
        ("flow_drop", note(c.mac, MacAddr::BROADCAST, FORBIDDEN)),
        ("hairpin", note(a.mac, a.mac, FORBIDDEN)),
        // It says that it is IPv4, and is not.
        ("malformed", frame(b.mac, a.mac, 0x0800, FORBIDDEN.as_bytes())),
    ];
    let mut expected = daemons[0].show().ports.swap_remove(0).drops;
    for (reason, frame) in cases {
        sockets[0].send(&frame);
        *expected.entry(reason.to_owned()).or_default() += 1;
    }
    for (guest, socket) in [b, c].into_iter().zip(&sockets[1..]) {
        sockets[0].send(&note(guest.mac, a.mac, "the end"));
        let seen = socket.until_note("the end");
        assert!(!seen.iter().any(|frame| contains(frame, FORBIDDEN)), "{} saw it", guest.name);
    }
    let dropped = daemons[0].show().ports.swap_remove(0).drops;
    assert_eq!(dropped, expected, "counted at the guest's port");
    daemons.into_iter().for_each(Daemon::stop);
}
