//! Tests that tshark dissects the packets between two hosts with weft correctly, for every tunnel
//! type.
//!
//! Each test makes two captures. With the offloads of the uplinks enabled, super-packets are not
//! segmented, and the test ignores the lengths and checksums that a network card would complete.
//! With the offloads disabled, every frame is complete, and every outer and inner checksum must be
//! correct.

use crate::common::{Daemon, Datapath, Guest, INNER_VLAN, Lab, Setup, VLAN, VNI, traffic};
use crate::peers::capture::{Capture, Joined, dissect};
use crate::peers::carry_wire_frames_between;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use testkit::{report, require_program, require_root};

/// Length of a TCP stream in each direction: several super-packets.
const TRANSFER_LEN: usize = 300_000;
/// The longest frame with an MTU of 1500, without the frame check sequence.
pub const WIRE_FRAME_LEN: usize = 1514;
/// The limited broadcast address of the guests' network.
const BROADCAST: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 255);
/// The port number of the multicast group that contains all ports of a logical switch.
const FLOOD: u16 = 0x8000;

/// The two highest severities of expert information in tshark: PI_WARN and PI_ERROR.
const WARNING: u32 = 0x0060_0000;
const ERROR: u32 = 0x0080_0000;
/// The group of expert information about TCP sequence numbers (PI_SEQUENCE): lost, retransmitted
/// and reordered segments, full windows. This information depends on the kernels of the guests and
/// the load of the machine, not on the format of a frame.
const TCP_COURSE: u32 = 0x0200_0000;
/// The group of expert information about checksums (PI_CHECKSUM).
const CHECKSUM_GROUP: u32 = 0x0100_0000;

/// Options that make tshark try STT before TCP. By default it does not, because both are IP
/// protocol 6.
const STT_FIRST: &[&str] = &[
    "-o",
    "ip.try_heuristic_first:TRUE",
    "-o",
    "ipv6.try_heuristic_first:TRUE",
    "--enable-heuristic",
    "stt_ip",
];
/// Enables checksum verification, which is off by default.
pub const VERIFY: &[&str] = &[
    "-o",
    "ip.check_checksum:TRUE",
    "-o",
    "udp.check_checksum:TRUE",
    "-o",
    "tcp.check_checksum:TRUE",
];
/// The fields with the results of checksum verification, and their value "Good".
pub const CHECKSUM_STATUS: &[&str] = &[
    "ip.checksum.status",
    "udp.checksum.status",
    "tcp.checksum.status",
    "icmp.checksum.status",
    "icmpv6.checksum.status",
    "gre.checksum.status",
];
const GOOD: &str = "1";
const BAD: &str = "0";
/// The number of elements of [`CHECKSUM_STATUS`], from the first on, whose checksums a device
/// completes.
const OFFLOADED: usize = 3;
/// Makes hosts send outer checksums. By default they may omit them, see `tests/commands/chosen.rs`.
const CHECKSUM: &str = "checksum = true";
/// The value "Not present" of a [`CHECKSUM_STATUS`] field.
const NOT_PRESENT: &str = "3";

/// The name of a field with logical ports, and the function that formats the ingress and the egress
/// port.
type PortsField = (&'static str, fn(u16, u16) -> String);

/// The expected dissection of tunnelled frames.
struct Tunnel {
    setup: Setup,
    /// The layers before the inner network packet, in the format of `frame.protocols`.
    layers: &'static str,
    /// Fields of the outermost header and their values.
    outer: Vec<(&'static str, String)>,
    /// Fields that occur once, and their values.
    once: Vec<(&'static str, String)>,
    /// Fields that occur once, and the beginnings of their values.
    starts: Vec<(&'static str, String)>,
    /// The field with the logical ports.
    ports: Option<PortsField>,
    is_stt: bool,
}

impl Tunnel {
    fn new(tunnel: &str, layers: &'static str) -> Self {
        Self {
            setup: Setup::new(tunnel),
            layers,
            outer: Vec::new(),
            once: Vec::new(),
            starts: Vec::new(),
            ports: None,
            is_stt: tunnel == "stt",
        }
    }

    /// A tunnel over IP.
    fn over(tunnel: &str, family: u8, [layers4, layers6]: [&'static str; 2]) -> Self {
        let this = Self::new(tunnel, if family == 4 { layers4 } else { layers6 });
        let outer: &[_] = match family {
            // The flag "don't fragment" is set.
            4 => &[("ip.flags", "0x02"), ("ip.ttl", "64")],
            _ => &[("ipv6.hlim", "64")],
        };
        let outer = outer.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        Self { setup: this.setup.clone().family(family), outer, ..this }
    }

    fn options(self, options: &str) -> Self {
        Self { setup: self.setup.clone().options(options), ..self }
    }

    fn outer(mut self, name: &'static str, value: impl ToString) -> Self {
        self.outer.push((name, value.to_string()));
        self
    }

    fn once(mut self, name: &'static str, value: impl ToString) -> Self {
        self.once.push((name, value.to_string()));
        self
    }

    fn starts(mut self, name: &'static str, value: impl ToString) -> Self {
        self.starts.push((name, value.to_string()));
        self
    }

    fn ports(self, name: &'static str, value: fn(u16, u16) -> String) -> Self {
        Self { ports: Some((name, value)), ..self }
    }

    /// Captures traffic with and without offloads and checks both captures. `what` describes the
    /// test in the report.
    fn dissects(&self, what: &str) {
        let lab = Lab::new(self.setup.clone());
        let daemons = lab.start_both();
        let whole = capture(&lab, "whole");
        carry_wire_frames_between(&lab.hosts);
        let wire = capture(&lab, "wire");
        let by = daemons[0].show().datapath;
        daemons.into_iter().for_each(Daemon::stop);

        let both = Joined::new(&whole, &wire);
        self.check_frames(&both, self.may_lack_checksums(&by), &lab.guests);
        if self.is_stt {
            every_checksum_is_good(&wire);
            let [of_whole, of_wire] = stt_frames(&both);
            super_segments_are_whole(of_whole);
            segments_make_up_their_frames(of_wire);
        }
        report::peer("tshark", &format!("{what}; {by} datapath"));
    }

    /// Whether outer UDP checksums may be zero. eBPF programs cannot request checksums for the
    /// segments of a super-packet, and over IPv4 they are optional (RFC 7348 section 5, RFC 8926
    /// section 3.3).
    fn may_lack_checksums(&self, datapath: &str) -> bool {
        let is_udp = self.layers.starts_with("eth:ethertype:ip:udp:");
        is_udp && datapath == Datapath::Kernel.name()
    }

    /// Checks the layers, expert information and fields of all frames. The second capture contains
    /// frames as they are on the wire, so their lengths and checksums are checked too. `may_lack`
    /// says whether outer UDP checksums of TCP segments may be zero. One run of tshark dissects
    /// both captures, because its start takes longer than the dissection.
    fn check_frames(&self, both: &Joined, may_lack: bool, guests: &[Guest]) {
        let first: &[&str] = if self.is_stt { STT_FIRST } else { &[] };
        // In STT the inner transport checksum is partial by design; the receiver completes it.
        let options = if self.is_stt { &VERIFY[..2] } else { VERIFY };
        let mut names = [Marks::FIELDS, CHECKSUM_STATUS].concat();
        names.extend(self.outer.iter().map(|(name, _)| *name));
        names.extend(self.once.iter().map(|(name, _)| *name));
        names.extend(self.starts.iter().map(|(name, _)| *name));
        names.extend(self.ports.map(|(name, _)| name));
        let mut found = [(); 2].map(|()| (BTreeSet::new(), BTreeSet::new()));
        for row in dissect(&both.file, &[first, options].concat(), "", &names) {
            let (marks, fields) = row.split_at(Marks::FIELDS.len());
            let (statuses, fields) = fields.split_at(CHECKSUM_STATUS.len());
            let marks = Marks(marks);
            let is_on_wire = marks.number() > both.first_len;
            if is_on_wire {
                marks.check();
                assert!(marks.frame_len() <= WIRE_FRAME_LEN, "{marks} is too long for the wire");
                if !self.is_stt {
                    marks.check_checksums(statuses, may_lack);
                }
            } else {
                marks.check_before_offload(statuses);
            }
            let (kinds, ports) = &mut found[usize::from(is_on_wire)];
            let protocols = marks.protocols();
            let Some(inner) = protocols.strip_prefix(self.layers) else {
                assert!(is_from_a_host(protocols), "{marks} is not in the tunnel");
                continue;
            };
            let (outer, fields) = fields.split_at(self.outer.len());
            for ((name, value), found) in self.outer.iter().zip(outer) {
                assert_eq!(found.first(), Some(value), "{name} of {marks}");
            }
            let Some(inner) = inner.strip_prefix(if self.is_stt { "eth:ethertype:" } else { "" })
            else {
                // tshark dissects the content of an STT frame only at the last segment of the
                // frame.
                assert_eq!(inner, "data", "{marks}");
                continue;
            };
            for ((name, value), found) in self.once.iter().zip(fields) {
                assert_eq!(found, std::slice::from_ref(value), "{name} of {marks}");
            }
            let fields = &fields[self.once.len()..];
            for ((name, value), found) in self.starts.iter().zip(fields) {
                assert!(found.len() == 1 && found[0].starts_with(value), "{name} of {marks}");
            }
            ports.extend(fields[self.starts.len()..].concat());
            kinds.insert(inner.to_owned());
        }
        for (kinds, ports) in found {
            for wanted in ["arp", "ip:icmp", "ip:tcp", "ip:udp", "ipv6:icmpv6", "ipv6:tcp"] {
                let found = kinds.iter().any(|kind: &String| kind.starts_with(wanted));
                assert!(found, "no {wanted} in the tunnel, only {kinds:?}");
            }
            if let Some((name, value)) = self.ports {
                let [a, b] = [guests[0].port_key, guests[1].port_key];
                let wanted = [(a, b), (a, FLOOD), (b, a), (b, FLOOD)].map(|(i, e)| value(i, e));
                assert_eq!(ports, BTreeSet::from(wanted), "{name}");
            }
        }
    }
}

/// True for packets of the hosts themselves: ARP, neighbour discovery, multicast membership.
fn is_from_a_host(protocols: &str) -> bool {
    matches!(
        protocols,
        "eth:ethertype:arp"
            | "eth:ethertype:ipv6:icmpv6"
            | "eth:ethertype:ipv6:ipv6.hopopts:icmpv6"
    )
}

/// The dissection of a frame by tshark.
pub struct Marks<'a>(pub &'a [Vec<String>]);

/// The message of tshark for a TCP checksum of zero that is sent as 0xffff. Linux does this when it
/// completes a checksum instead of a NIC (`skb_checksum_help`), once in 65,535 segments.
const ZERO_AS_ALL_ONES: &str = "TCP Checksum 0xffff instead of 0x0000";

impl Marks<'_> {
    pub const FIELDS: &'static [&'static str] = &[
        "frame.number",
        "frame.protocols",
        "_ws.malformed",
        "_ws.expert.severity",
        "_ws.expert.group",
        "_ws.expert.message",
        "frame.len",
        "stt.seg_off",
        "stt.pkt_len",
    ];

    pub fn protocols(&self) -> &str {
        self.0[1].first().expect("every frame has protocols")
    }

    /// The number of the frame in the capture, from 1.
    fn number(&self) -> usize {
        self.0[0].concat().parse().expect("a number")
    }

    /// Checks that the frame is not malformed and has no error or warning about its format.
    pub fn check(&self) {
        self.check_besides(None);
    }

    /// Checks a frame whose IP, UDP and TCP checksums a device would complete. `statuses` are the
    /// values of the fields [`CHECKSUM_STATUS`].
    fn check_before_offload(&self, statuses: &[Vec<String>]) {
        self.check_besides(Some(CHECKSUM_GROUP));
        for (name, values) in CHECKSUM_STATUS.iter().zip(statuses).skip(OFFLOADED) {
            assert!(!values.iter().any(|value| value == BAD), "{name} of {self}");
        }
    }

    /// Checks the expert information that does not belong to the group `ignored`.
    fn check_besides(&self, ignored: Option<u32>) {
        assert!(self.0[2].is_empty(), "{self} is malformed: {:?}", self.0[5]);
        let number = |text: &String| text.parse::<u32>().expect("tshark prints numbers");
        for (index, (severity, group)) in self.0[3].iter().zip(&self.0[4]).enumerate() {
            let (severity, group) = (number(severity), number(group));
            let is_course = group == TCP_COURSE && severity < ERROR;
            let message = self.0[5].get(index);
            let is_zero = message.is_some_and(|message| message.starts_with(ZERO_AS_ALL_ONES));
            let is_ignored = Some(group) == ignored;
            if severity >= WARNING
                && !is_ignored
                && !is_course
                && !is_zero
                && !self.is_misread_end()
            {
                panic!("{self} has a mark: {message:?}");
            }
        }
    }

    pub fn frame_len(&self) -> usize {
        self.0[6].concat().parse().expect("a length")
    }

    /// Checks that the results of [`CHECKSUM_STATUS`] are all good. With `may_lack`, the outer UDP
    /// checksums of TCP segments may be zero.
    pub fn check_checksums(&self, statuses: &[Vec<String>], may_lack: bool) {
        let protocols = self.protocols();
        let is_zero = self.0[5].iter().any(|message| message.starts_with(ZERO_AS_ALL_ONES));
        let count = statuses.iter().flatten().count();
        assert!(count > 0 || protocols.ends_with(":arp"), "no checksum in {self}");
        for (name, values) in CHECKSUM_STATUS.iter().zip(statuses) {
            let lacks = may_lack && *name == "udp.checksum.status" && protocols.contains(":tcp");
            let is_zero = is_zero && *name == "tcp.checksum.status";
            let is_good =
                |value: &String| value == GOOD || is_zero || (lacks && value == NOT_PRESENT);
            assert!(values.iter().all(is_good), "{name} of {self}: {values:?}");
        }
    }

    /// True for a misread STT segment. tshark 4.0 adds the 20 bytes of the TCP-like header to the
    /// length of an STT segment. If fewer than 20 bytes follow, it takes a segment for the last one
    /// and reports an incomplete frame. [`segments_make_up_their_frames`] checks that no bytes are
    /// missing.
    fn is_misread_end(&self) -> bool {
        let number = |column: usize| self.0[column].first().and_then(|text| text.parse().ok());
        let (Some(len), Some(offset), Some(frame_len)) = (number(6), number(7), number(8)) else {
            return false;
        };
        let end: usize = offset + len - stt_headers_len(self.protocols());
        end < frame_len && end + 20 >= frame_len
    }
}

impl std::fmt::Display for Marks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "frame {} ({})", self.0[0].concat(), self.protocols())
    }
}

/// Sends pings, streams and broadcast datagrams, and captures them on the uplink of `h1`.
fn capture(lab: &Lab, name: &str) -> PathBuf {
    let capture = Capture::start(&lab.hosts[0], lab.dir.path(), name);
    let (a, b) = lab.ends();
    for (from, to) in [(a, b), (b, a)] {
        forget_neighbours(from);
        send_to_everybody(from);
        for family in [4, 6] {
            traffic::ping(&from.netns, to.ip(family));
        }
    }
    traffic::tcp(a, b, 4, TRANSFER_LEN);
    traffic::tcp(b, a, 6, TRANSFER_LEN);
    capture.stop()
}

/// Makes the guest resolve its neighbours again.
fn forget_neighbours(guest: &Guest) {
    let netlink = guest.netns.netlink();
    let index = netlink.index_of(crate::common::GUEST_DEVICE).expect("a guest has a device");
    for neighbour in netlink.neighbours(Some(index)).expect("neighbours can be listed") {
        // Fails if the kernel has just removed the entry itself.
        let _ = netlink.delete_neighbour(index, neighbour.ip);
    }
}

fn send_to_everybody(guest: &Guest) {
    let from = guest.ip4;
    let socket = guest.netns.run(|| UdpSocket::bind((from, 0))).expect("a UDP socket");
    socket.set_broadcast(true).expect("a socket may broadcast");
    socket.send_to(b"to whom it may concern", (BROADCAST, 9)).expect("a datagram is sent");
}

/// Checks that every checksum in a capture of STT is correct.
fn every_checksum_is_good(file: &Path) {
    // This dissects STT as TCP: tshark 4.0 compares the checksum of STT with the sum over all bytes
    // including the checksum, which is zero.
    let fields = [Marks::FIELDS, CHECKSUM_STATUS].concat();
    for row in dissect(file, VERIFY, "", &fields) {
        let (marks, statuses) = row.split_at(Marks::FIELDS.len());
        Marks(marks).check_checksums(statuses, false);
    }
}

/// Length of the headers of an STT segment: Ethernet, IP and TCP-like header.
fn stt_headers_len(protocols: &str) -> usize {
    if protocols.starts_with("eth:ethertype:ipv6:") { 14 + 40 + 20 } else { 14 + 20 + 20 }
}

/// The offset and the length of each segment of an STT frame, and the length of the frame.
type SttFrame = (Vec<(usize, usize)>, usize);

/// STT frames by sender and packet ID.
type SttFrames = BTreeMap<[String; 2], SttFrame>;

/// The STT frames of each capture.
fn stt_frames(both: &Joined) -> [SttFrames; 2] {
    let fields = [
        "eth.src",
        "stt.pkt_id",
        "stt.seg_off",
        "stt.pkt_len",
        "frame.len",
        "frame.protocols",
        "frame.number",
    ];
    let options = [STT_FIRST, &["-o", "stt.reassemble:FALSE"]].concat();
    let mut frames = [(); 2].map(|()| SttFrames::new());
    for row in dissect(&both.file, &options, "stt", &fields) {
        let first = |column: usize| row[column][0].clone();
        let number = |column: usize| -> usize { first(column).parse().expect("a number") };
        let of_capture = &mut frames[usize::from(number(6) > both.first_len)];
        let (segments, _) =
            of_capture.entry([first(0), first(1)]).or_insert_with(|| (Vec::new(), number(3)));
        segments.push((number(2), number(4) - stt_headers_len(&first(5))));
    }
    frames
}

/// Checks that the segments of each STT frame contain every byte of the frame exactly once.
fn segments_make_up_their_frames(frames: SttFrames) {
    let in_pieces = frames.values().filter(|(segments, _)| segments.len() > 1).count();
    assert!(in_pieces > 0, "no frame needed more than one segment");
    for (id, (mut segments, len)) in frames {
        segments.sort_unstable();
        let end = segments.iter().fold(0, |end, &(offset, len)| {
            assert_eq!(offset, end, "STT frame {id:?} has a gap or an overlap: {segments:?}");
            end + len
        });
        assert_eq!(end, len, "STT frame {id:?}: {segments:?}");
    }
}

/// Checks that each STT frame is sent as one segment.
fn super_segments_are_whole(frames: SttFrames) {
    let longest = frames.values().map(|(_, len)| *len).max();
    assert!(longest > Some(WIRE_FRAME_LEN), "no super-segment among {} frames", frames.len());
    for (id, (segments, len)) in frames {
        assert_eq!(segments, [(0, len)], "STT frame {id:?}");
    }
}

/// Skips the calling test unless tcpdump and tshark are installed.
macro_rules! require_tshark {
    () => {
        require_root!();
        require_program!("tcpdump", "tcpdump");
        require_program!("tshark", "tshark");
    };
}

const VXLAN: [&str; 2] =
    ["eth:ethertype:ip:udp:vxlan:eth:ethertype:", "eth:ethertype:ipv6:udp:vxlan:eth:ethertype:"];
const GENEVE: [&str; 2] =
    ["eth:ethertype:ip:udp:geneve:eth:ethertype:", "eth:ethertype:ipv6:udp:geneve:eth:ethertype:"];
const GRE: [&str; 2] =
    ["eth:ethertype:ip:gre:eth:ethertype:", "eth:ethertype:ipv6:gre:eth:ethertype:"];
const STT: [&str; 2] = ["eth:ethertype:ip:stt:", "eth:ethertype:ipv6:stt:"];

#[test]
fn frames_dissect_when_the_tunnel_is_vxlan() {
    require_tshark!();
    for family in [4, 6] {
        Tunnel::over("vxlan", family, VXLAN)
            .options(CHECKSUM)
            .outer("udp.dstport", 4789)
            .once("vxlan.flags", "0x0800")
            .once("vxlan.vni", VNI)
            .dissects(&format!("VXLAN over IPv{family}: VNI, checksums"));
    }
}

#[test]
fn frames_dissect_when_the_tunnel_is_geneve() {
    require_tshark!();
    for family in [4, 6] {
        Tunnel::over("geneve", family, GENEVE)
            .options(CHECKSUM)
            .outer("udp.dstport", 6081)
            // Only the C flag is set: a critical option is present.
            .once("geneve.flags", "0x40")
            .once("geneve.proto_type", "0x6558")
            .once("geneve.vni", format!("{VNI:#08x}"))
            .once("geneve.option.class", "0x0102")
            .once("geneve.option.type", "0x80")
            .ports("geneve.option.unknown.data", |ingress, egress| {
                format!("{ingress:04x}{egress:04x}")
            })
            .dissects(&format!("Geneve over IPv{family}: VNI, option, checksums"));
    }
    Tunnel::over("geneve", 4, GENEVE)
        .options(&format!("{CHECKSUM}\nlogical_ports = false"))
        .once("geneve.flags", "0x00")
        .once("geneve.vni", format!("{VNI:#08x}"))
        .dissects("Geneve without options: VNI, checksums");
}

#[test]
fn frames_dissect_when_the_tunnel_is_gre() {
    require_tshark!();
    Tunnel::over("gre", 4, GRE)
        .once("gre.flags_and_version", "0x2000")
        .once("gre.proto", "0x6558")
        .once("gre.key", format!("{VNI:#010x}"))
        .dissects("GRE over IPv4: key, checksums");
    Tunnel::over("gre", 6, GRE)
        .options("checksum = true\nsequence = true")
        .once("gre.flags_and_version", "0xb000")
        .once("gre.proto", "0x6558")
        .once("gre.key", format!("{VNI:#010x}"))
        .dissects("GRE over IPv6 with checksum and sequence number: key, checksums");
}

#[test]
fn frames_dissect_when_the_tunnel_is_nvgre() {
    require_tshark!();
    for family in [4, 6] {
        Tunnel::over("nvgre", family, GRE)
            // NVGRE always has a key, and never a checksum or sequence number (RFC 7637 section
            // 3.2).
            .once("gre.flags_and_version", "0x2000")
            .once("gre.proto", "0x6558")
            // The VSID has 24 bits. The other 8 bits contain the FlowID.
            .starts("gre.key", format!("{VNI:#08x}"))
            .dissects(&format!("NVGRE over IPv{family}: VSID, checksums"));
    }
}

#[test]
fn frames_dissect_when_the_tunnel_is_stt() {
    require_tshark!();
    for family in [4, 6] {
        Tunnel::over("stt", family, STT)
            .outer("stt.dport", 7471)
            .once("stt.version", 0)
            .ports("stt.context_id", |ingress, egress| {
                let ports = u64::from(ingress) << 40 | u64::from(egress) << 24;
                format!("{:#018x}", ports | u64::from(VNI))
            })
            .dissects(&format!("STT over IPv{family}: context, segments, checksums"));
    }
}

#[test]
fn outer_ttl_is_copied_from_the_inner_packet_when_it_is_inherited() {
    require_tshark!();
    for (tunnel, family) in
        [("vxlan", 4), ("vxlan", 6), ("geneve", 6), ("gre", 4), ("gre", 6), ("stt", 4)]
    {
        let lab = Lab::new(Setup::new(tunnel).family(family).options("ttl = \"inherit\""));
        for guest in &lab.guests {
            // This applies to interfaces that are created later.
            for (name, ttl) in
                [("net/ipv4/ip_default_ttl", "77"), ("net/ipv6/conf/default/hop_limit", "78")]
            {
                guest.netns.sysctl(name, ttl).expect("a sysctl can be set");
            }
        }
        let daemons = lab.start_both();
        let capture = Capture::start(&lab.hosts[0], lab.dir.path(), "ttl");
        let (a, b) = lab.ends();
        [4, 6].into_iter().for_each(|family| traffic::ping(&a.netns, b.ip(family)));
        let file = capture.stop();
        let by = daemons[0].show().datapath;
        daemons.into_iter().for_each(Daemon::stop);
        let (outer, field) = if family == 4 { ("ip", "ip.ttl") } else { ("ipv6", "ipv6.hlim") };
        let fields = [field, "frame.protocols"];
        let inner = "icmp || icmpv6.type == 128 || icmpv6.type == 129 || arp";
        let mut ttls = BTreeMap::<_, BTreeSet<String>>::new();
        for row in dissect(&file, STT_FIRST, &format!("{outer} && ({inner})"), &fields) {
            let protocols = row[1].concat();
            let (_, inner) = protocols.rsplit_once(":ethertype:").expect("an inner frame");
            let inner = inner.trim_end_matches(":data").to_owned();
            ttls.entry(inner).or_default().insert(row[0][0].clone());
        }
        let ttls: Vec<_> = ttls.iter().map(|(inner, ttls)| (&**inner, ttls)).collect();
        let one = |ttl: &str| BTreeSet::from([ttl.to_owned()]);
        let [arp, echo, echo6] = ["64", "77", "78"].map(one);
        let expected = [("arp", &arp), ("ip:icmp", &echo), ("ipv6:icmpv6", &echo6)];
        assert_eq!(ttls, expected, "{tunnel} over IPv{family}");
        report::peer("tshark", &format!("{tunnel} over IPv{family}: inherited TTL; {by} datapath"));
    }
}

#[test]
fn frames_dissect_when_the_tunnel_is_a_vlan() {
    require_tshark!();
    Tunnel::new("vlan", "eth:ethertype:vlan:ethertype:")
        .outer("eth.type", "0x8100")
        .once("vlan.id", VLAN)
        .dissects("VLAN: tag, checksums");
}

#[test]
fn frames_dissect_when_the_tunnel_is_qinq() {
    require_tshark!();
    Tunnel::new("qinq", "eth:ethertype:ieee8021ad:ethertype:vlan:ethertype:")
        .outer("eth.type", "0x88a8")
        .once("ieee8021ad.id", VLAN)
        .once("vlan.id", INNER_VLAN)
        .dissects("QinQ: both tags, checksums");
}
