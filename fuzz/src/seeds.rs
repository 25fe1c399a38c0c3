//! The seed corpora: for each target, at least one valid input of each type that it accepts.

mod host;

use crate::frames::{
    self, Ends, GRE, GUESTS_V4, GUESTS_V6, TYPE_IPV6, UDP, UNDERLAY_V4, UNDERLAY_V6, arp_request,
    ethernet, geneve, geneve_option, gre, join, stt, tag, vxlan,
};
use crate::{connections, database, execution, lists, megaflows};

use std::net::Ipv4Addr;

/// A seed, which is the file `corpus/TARGET/NAME`.
pub struct Seed {
    pub target: &'static str,
    pub name: &'static str,
    pub bytes: Vec<u8>,
}

/// All seeds of all targets.
pub fn all() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (target, group) in [
        ("bpf_parser", keys()),
        ("wire_frame", plain()),
        ("flow_key", keys()),
        ("vxlan", vxlans()),
        ("geneve", geneves()),
        ("gre", gres()),
        ("stt", stts()),
        ("stt_reassembly", stt_trains()),
        ("ip_reassembly", fragments()),
        ("vlan", tagged()),
        ("offload", offloads()),
        ("coalesce", segments()),
        ("conntrack", connections()),
        ("control_request", host::control_requests()),
        ("dhcp4", dhcp4_requests()),
        ("dhcp6", dhcp6_requests()),
        ("dns", dns_questions()),
        ("execute", rewrites()),
        ("health_answer", health_answers()),
        ("network_toml", networks()),
        ("logical_match", matches()),
        ("logical_actions", actions()),
        ("ofctl_flows", flows()),
        ("megaflow_cache", megaflows()),
        ("openflow_request", openflow_requests()),
        ("ovn_dump", host::ovn_dumps()),
        ("ovn_flow_list", host::ovn_lists()),
        ("ovsdb_schema", schemas()),
        ("ovsdb_stream", database_streams()),
        ("ovsdb_update", database_updates()),
        ("pinned_megaflow", host::pinned_megaflows()),
        ("probe", probes()),
        ("router_solicitation", router_solicitations()),
    ] {
        seeds.extend(group.into_iter().map(|(name, bytes)| Seed { target, name, bytes }));
    }
    seeds
}

type Group = Vec<(&'static str, Vec<u8>)>;

/// The requests of ovs-ofctl that read flows and groups, and add a flow.
fn openflow_requests() -> Group {
    let message = |version: u8, kind: u8, body: &[u8]| {
        let len = u8::try_from(8 + body.len()).unwrap_or(u8::MAX);
        join(&[&[version, kind, 0, len, 0, 0, 0, 7], body])
    };
    let any = [0, 1, 0, 4, 0, 0, 0, 0];
    let stats = [0xff, 0xff, 0, 0, 0, 0, 0x23, 0x20, 0, 0, 0, 0, 0, 0, 0, 0];
    let flows_13 = join(&[&[0, 1, 0, 0, 0, 0, 0, 0, 255, 0, 0, 0], &[0xff; 8], &[0; 20], &any]);
    let normal_10 = [0, 0, 0, 8, 0xff, 0xfa, 0, 0];
    let add_10 = join(&[&[0, 0x38, 0x20, 0xff], &[0; 44], &[0; 16], &normal_10]);
    let normal_13 = [0, 4, 0, 24, 0, 0, 0, 0, 0, 0, 0, 16, 0xff, 0xff, 0xff, 0xfa];
    let add_13 = join(&[&[0; 40], &any, &normal_13, &[0; 8]]);
    vec![
        ("add-10", message(1, 14, &add_10)),
        ("add-13", message(4, 14, &add_13)),
        ("barrier-10", message(1, 18, &[])),
        ("echo", message(4, 2, b"abc")),
        ("features", message(4, 5, &[])),
        ("flows-10", message(1, 16, &join(&[&stats, &[0xff, 0xff, 0, 0, 255, 0, 0, 0]]))),
        ("flows-13", message(4, 18, &flows_13)),
        ("format", message(1, 4, &[0, 0, 0x23, 0x20, 0, 0, 0, 12, 0, 0, 0, 2])),
        ("groups-13", message(4, 18, &[0, 7, 0, 0, 0, 0, 0, 0])),
        ("hello", message(6, 0, &[0, 1, 0, 8, 0, 0, 0, 0x12])),
        ("tables-10", message(1, 16, &[0, 3, 0, 0])),
    ]
}

/// A path probe that requests a reply of 1400 bytes, and replies with and without the ICMP message
/// of a router.
fn probes() -> Group {
    let mac = [0x02, 0x77, 0x65, 0x66, 0x74, 0x01];
    let probe = |kind: u8, mtu: u16, router: &[u8]| {
        let head = [1, kind, 0x05, 0x78];
        let mut frame = join(&[
            &mac,
            &mac,
            &[0x88, 0xb5],
            b"weft",
            &head,
            &7u64.to_be_bytes(),
            &9u32.to_be_bytes(),
            &mtu.to_be_bytes(),
            &[0, 0],
            router,
        ]);
        frame.resize(60, 0);
        frame
    };
    let mapped = join(&[&[0; 10], &[0xff, 0xff, 192, 0, 2, 1]]);
    vec![
        ("ask", probe(1, 0, &[0; 16])),
        ("reply", probe(2, 0, &[0; 16])),
        ("reply-told", probe(2, 1400, &mapped)),
    ]
}

/// Messages of a DHCP client. The server in the target assigns it the address 10.0.0.5.
fn dhcp4_requests() -> Group {
    let message = |kind: u8, ciaddr: [u8; 4], options: &[u8]| {
        let mac = [2, 0, 0, 0, 0, 5];
        join(&[
            &[1, 1, 6, 0, 1, 2, 3, 4, 0, 0, 0x80, 0],
            &ciaddr,
            &[0; 12],
            &mac,
            &[0; 202],
            &[99, 130, 83, 99, 53, 1, kind],
            options,
            &[255],
        ])
    };
    let wanted = [50, 4, 10, 0, 0, 5, 55, 3, 1, 3, 6];
    vec![
        ("decline", message(4, [0; 4], &wanted)),
        ("discover", message(1, [0; 4], &[61, 7, 1, 2, 0, 0, 0, 0, 5, 0, 0, 175, 0])),
        ("inform", message(8, [10, 0, 0, 5], &[])),
        ("renew", message(3, [10, 0, 0, 5], &[])),
        ("request", message(3, [0; 4], &wanted)),
        ("request-other", message(3, [10, 0, 0, 6], &[])),
    ]
}

/// Messages of a DHCPv6 client. The server in the target has the MAC address 02:00:00:00:00:01.
fn dhcp6_requests() -> Group {
    let association = [0, 3, 0, 12, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0];
    let server = [0, 2, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 1];
    let message = |kind: u8, options: &[u8]| {
        join(&[&[kind, 1, 2, 3, 0, 1, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 5], options])
    };
    let name_and_class = [0, 39, 0, 5, 1, 2, b'v', b'm', 0, 0, 15, 0, 6, 0, 4, 105, 80, 88, 69];
    vec![
        ("information", message(11, &[0, 6, 0, 2, 0, 23])),
        ("release", message(8, &join(&[&server, &association]))),
        ("renew", message(5, &join(&[&server, &association]))),
        ("request-other", message(3, &join(&[&[0, 2, 0, 1, 7], &association]))),
        ("solicit", message(1, &join(&[&association, &name_and_class]))),
    ]
}

/// DNS queries for the names `vm.example` and `4.0.0.10.in-addr.arpa`, and for an unknown name.
fn dns_questions() -> Group {
    let question = |name: &[u8], kind: u8, more: &[u8]| {
        let additional = u8::from(!more.is_empty());
        let head = [0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, additional];
        join(&[&head, name, &[0, kind, 0, 1], more])
    };
    let name = b"\x02VM\x07example\0";
    let extension = [0, 0, 41, 4, 0xd0, 0, 0, 0, 0, 0, 0];
    vec![
        ("a", question(name, 1, &extension)),
        ("aaaa", question(name, 28, &[])),
        ("any", question(name, 255, &[])),
        ("ptr", question(b"\x014\x010\x010\x0210\x07in-addr\x04arpa\0", 12, &[])),
        ("unknown", question(b"\x05other\0", 1, &[])),
    ]
}

/// Replies to health checks. The target inserts the acknowledgement numbers.
fn health_answers() -> Group {
    let ethernet = |kind: [u8; 2]| join(&[&[2, 0, 0, 0, 0, 2], &[2, 0, 0, 0, 0, 1], &kind]);
    let ipv4 = |protocol: u8, payload: &[u8], addresses: [u8; 8]| {
        let len = 20 + payload.len() as u8;
        let head = [0x45, 0, 0, len, 0, 0, 0, 0, 64, protocol, 0, 0];
        join(&[&head, &addresses, payload])
    };
    let from_backend = [10, 0, 0, 11, 10, 0, 0, 254];
    let segment = |seq: u8, flags: u8, payload: &[u8]| {
        let ports = [0, 80, 0x9c, 0x40];
        join(&[&ports, &[0, 0, 0, seq], &[0; 4], &[0x50, flags, 0xff, 0xff, 0, 0, 0, 0], payload])
    };
    let tcp4 =
        |flags: u8| join(&[&ethernet([8, 0]), &ipv4(6, &segment(9, flags, &[]), from_backend)]);
    let tcp6 = |seq: u8, flags: u8, payload: &[u8]| {
        let segment = segment(seq, flags, payload);
        let head = [0x60, 0, 0, 0, 0, segment.len() as u8, 6, 64];
        let backend = join(&[&[0xfd], &[0; 14], &[0x0b]]);
        let source = join(&[&[0xfd], &[0; 14], &[0xfe]]);
        join(&[&ethernet([0x86, 0xdd]), &head, &backend, &source, &segment])
    };
    let datagram = [0x9c, 0x40, 0, 80, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let quoted = ipv4(17, &datagram, [10, 0, 0, 254, 10, 0, 0, 11]);
    let error = ipv4(1, &join(&[&[3, 3, 0, 0, 0, 0, 0, 0], &quoted]), from_backend);
    let list = |kind: u8, frames: &[Vec<u8>]| {
        let frames = frames.iter().map(|frame| join(&[&[0, frame.len() as u8], frame]));
        join(&[&[kind], &frames.collect::<Vec<_>>().concat()])
    };
    let (syn_ack, reset, ack, fin) = (0x12, 0x14, 0x10, 0x11);
    vec![
        ("accepted", list(0, &[tcp4(syn_ack)])),
        ("refused", list(0, &[tcp4(reset)])),
        (
            "http",
            list(
                1,
                &[tcp6(9, syn_ack, &[]), tcp6(10, ack, b"HTTP/1."), tcp6(17, ack, b"1 200 OK")],
            ),
        ),
        ("http-status", list(1, &[tcp6(9, syn_ack, &[]), tcp6(10, fin, b"HTTP/1.0 503 X")])),
        ("unreachable", list(2, &[join(&[&ethernet([8, 0]), &error])])),
    ]
}

/// Router solicitations in frames, with and without a source address.
fn router_solicitations() -> Group {
    // The switch's services do not verify the checksum of packets that guests on this host send.
    let frame = |src: &[u8; 16], options: &[u8]| {
        let dst = join(&[&[0xff, 2], &[0; 13], &[2]]);
        let len = 8 + options.len() as u8;
        let message = join(&[&[133, 0, 0, 0], &[0; 4], options]);
        let ip = join(&[&[0x60, 0, 0, 0, 0, len, 58, 255], src, &dst, &message]);
        ethernet(TYPE_IPV6, &ip)
    };
    let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
    vec![
        ("link-local", frame(&link_local, &[1, 1, 2, 0, 0, 0, 0, 5])),
        ("unspecified", frame(&[0; 16], &[])),
    ]
}

/// A guest's TCP segment with the timestamp option.
fn guest_tcp(ends: Ends) -> Vec<u8> {
    ends.tcp(1000, 0x18, &[1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8], b"GET / HTTP/1.0\r\n\r\n")
}

fn guest_udp(ends: Ends) -> Vec<u8> {
    ends.udp((40_000, 53), true, b"a question")
}

fn plain() -> Group {
    let Ends::V4(src, dst) = GUESTS_V4 else { return Vec::new() };
    let Ends::V6(src6, dst6) = GUESTS_V6 else { return Vec::new() };
    let router_alert = [0x94, 4, 0, 0];
    let with_options = frames::ipv4(src, dst, UDP, &router_alert, &guest_udp(GUESTS_V4)[34..]);
    let hop_by_hop = [60, 0, 5, 2, 0, 0, 1, 0];
    let destination = [44, 0, 1, 4, 0, 0, 0, 0];
    let atomic_fragment = [UDP, 0, 0, 0, 0, 0, 0, 7];
    let datagram = &guest_udp(GUESTS_V6)[54..];
    let extended = join(&[&hop_by_hop, &destination, &atomic_fragment, datagram]);
    let target: &[u8] = &dst6.octets();
    let solicitation = join(&[&[0; 4], target, &[1, 1, 2, 0, 0, 0, 0, 1]]);
    let advertisement = join(&[&[0x60, 0, 0, 0], target, &[2, 1, 2, 0, 0, 0, 0, 2]]);
    let syn_options = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
    vec![
        ("arp-request", arp_request()),
        ("ipv4-tcp", guest_tcp(GUESTS_V4)),
        ("ipv4-tcp-syn", GUESTS_V4.tcp(1, 2, &syn_options, &[])),
        ("ipv4-options-udp", ethernet(frames::TYPE_IPV4, &with_options)),
        ("ipv4-echo", GUESTS_V4.icmp(8, 0, &[0, 1, 0, 1, 0xaa, 0xbb])),
        ("ipv4-too-big", GUESTS_V4.icmp(3, 4, &join(&[&[0, 0, 5, 0x78], &with_options]))),
        ("ipv6-tcp", guest_tcp(GUESTS_V6)),
        ("ipv6-extensions-udp", ethernet(TYPE_IPV6, &frames::ipv6(src6, dst6, 0, &extended))),
        ("ipv6-solicitation", GUESTS_V6.icmp(135, 0, &solicitation)),
        ("ipv6-advertisement", GUESTS_V6.icmp(136, 0, &advertisement)),
        ("qinq-ipv4-tcp", tag(&tag(&guest_tcp(GUESTS_V4), 0x8100, 20), 0x88a8, 0x6064)),
    ]
}

/// The IPv4 frame with `word` as its flags and fragment offset.
fn fragment(mut frame: Vec<u8>, word: u16) -> Vec<u8> {
    frame[20..22].copy_from_slice(&word.to_be_bytes());
    frame
}

/// Frames whose keys contain fields that the keys of [`plain`] frames lack.
fn keys() -> Group {
    let (tcp, udp) = (guest_tcp(GUESTS_V4), guest_udp(GUESTS_V6));
    let fragment_header = |offset: u8| join(&[&[UDP, 0, 0, offset, 0, 0, 0, 7], &udp[54..]]);
    let sctp = join(&[&[0x9c, 0x40, 0x13, 0xc4], &[0; 8]]);
    let snap = join(&[&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0], &tcp[14..]]);
    let padding = [0x5a; 20];
    let padded = ethernet((snap.len() + 6) as u16, &join(&[&snap, &padding]));
    let mut reverse = arp_request();
    reverse[12..14].copy_from_slice(&[0x80, 0x35]);
    reverse[21] = 3;
    let mut group = plain();
    group.extend([
        ("ipv4-first-fragment", fragment(tcp.clone(), 0x2000)),
        ("ipv4-later-fragment", fragment(tcp.clone(), 0x2001)),
        ("ipv6-first-fragment", GUESTS_V6.frame(44, &fragment_header(1))),
        ("ipv6-later-fragment", GUESTS_V6.frame(44, &fragment_header(8))),
        ("ipv4-sctp", GUESTS_V4.frame(132, &sctp)),
        ("ipv4-padded", join(&[&GUESTS_V4.frame(2, &[0x16, 0, 0, 0]), &[0x5a; 22]])),
        ("snap", ethernet(snap.len() as u16, &snap)),
        ("snap-qinq-padded", tag(&tag(&padded, 0x8100, 20), 0x88a8, 0x6064)),
        ("rarp", reverse),
        ("three-tags", tag(&tag(&tag(&tcp, 0x8100, 3), 0x8100, 2), 0x88a8, 1)),
    ]);
    group
}

fn vxlans() -> Group {
    let outer = |ends: Ends, checksum, vni, frame: &[u8]| {
        ends.udp((50_000, 4789), checksum, &vxlan(vni, frame))
    };
    let (tcp, tcp6) = (guest_tcp(GUESTS_V4), guest_tcp(GUESTS_V6));
    let nested = outer(GUESTS_V4, false, 7, &tcp);
    vec![
        ("ipv4", outer(UNDERLAY_V4, false, 5001, &tcp)),
        ("ipv6-checksum", outer(UNDERLAY_V6, true, 5001, &tcp6)),
        ("arp", outer(UNDERLAY_V4, false, 5001, &arp_request())),
        ("unknown-vni", outer(UNDERLAY_V4, false, 0xff_ffff, &tcp)),
        ("tunnel-inside", outer(UNDERLAY_V4, false, 5001, &nested)),
    ]
}

fn geneves() -> Group {
    const CRITICAL: u8 = 0x40;
    let ports = geneve_option(0x0102, 0x80, &[0, 3, 0, 4]);
    let unknown = geneve_option(0xfff0, 1, &[0xaa; 8]);
    let unknown_critical = geneve_option(0xfff0, 0x81, &[]);
    let several = join(&[&unknown, &ports, &geneve_option(0xfff0, 2, &[])]);
    let outer = |ends: Ends, flags, options: &[u8], frame: &[u8]| {
        ends.udp((50_000, 6081), true, &geneve(5001, flags, options, frame))
    };
    let (tcp, tcp6) = (guest_tcp(GUESTS_V4), guest_tcp(GUESTS_V6));
    vec![
        ("ipv4", outer(UNDERLAY_V4, 0, &[], &tcp)),
        ("ipv4-logical-ports", outer(UNDERLAY_V4, CRITICAL, &ports, &tcp)),
        ("ipv6-several-options", outer(UNDERLAY_V6, CRITICAL, &several, &tcp6)),
        ("unknown-critical", outer(UNDERLAY_V4, CRITICAL, &unknown_critical, &tcp)),
        ("control", outer(UNDERLAY_V4, 0x80, &[], &tcp)),
    ]
}

fn gres() -> Group {
    let (tcp, tcp6) = (guest_tcp(GUESTS_V4), guest_tcp(GUESTS_V6));
    let nvgre = Some(5001 << 8 | 0x2a);
    vec![
        ("ipv4-key", UNDERLAY_V4.frame(GRE, &gre(false, Some(5001), None, &tcp))),
        ("ipv4-all", UNDERLAY_V4.frame(GRE, &gre(true, Some(5001), Some(9), &tcp))),
        ("ipv6-checksum", UNDERLAY_V6.frame(GRE, &gre(true, Some(5001), None, &tcp6))),
        ("ipv4-no-key", UNDERLAY_V4.frame(GRE, &gre(false, None, None, &tcp))),
        ("ipv4-nvgre", UNDERLAY_V4.frame(GRE, &gre(false, nvgre, None, &tcp))),
    ]
}

/// The STT context ID of datapath 5001, egress port 4, ingress port 3.
const CONTEXT: u64 = 3 << 40 | 4 << 24 | 5001;

fn stt_super_frame() -> Vec<u8> {
    // IPv4 and TCP with a partial checksum; the segment size is 1000 bytes.
    let guest = GUESTS_V4.tcp(1, 0x18, &[], &[0x5a; 2500]);
    stt(0b1110, 34, 1000, 0, CONTEXT, &guest)
}

fn stts() -> Group {
    let whole = |ends: Ends, frame: Vec<u8>| ends.stt_segment(77, frame.len() as u16, 0, &frame);
    let (tcp, tcp6) = (guest_tcp(GUESTS_V4), guest_tcp(GUESTS_V6));
    vec![
        ("ipv4-verified", whole(UNDERLAY_V4, stt(0b1101, 34, 0, 0, CONTEXT, &tcp))),
        ("ipv6-tagged", whole(UNDERLAY_V6, stt(0b1001, 54, 0, 0x1064, CONTEXT, &tcp6))),
        ("ipv4-super", whole(UNDERLAY_V4, stt_super_frame())),
        ("ipv4-arp", whole(UNDERLAY_V4, stt(0, 0, 0, 0, CONTEXT, &arp_request()))),
    ]
}

/// `frame` as STT segments of 1400 bytes.
fn stt_cut(ends: Ends, id: u32, frame: &[u8]) -> Vec<Vec<u8>> {
    let total = frame.len() as u16;
    let part =
        |(index, part): (usize, &[u8])| ends.stt_segment(id, total, (index * 1400) as u16, part);
    frame.chunks(1400).enumerate().map(part).collect()
}

fn stt_trains() -> Group {
    let in_order = stt_cut(UNDERLAY_V4, 1, &stt_super_frame());
    let mut reversed = stt_cut(UNDERLAY_V6, 2, &stt_super_frame());
    reversed.reverse();
    let mut two = stt_cut(UNDERLAY_V4, 3, &stt_super_frame());
    two.splice(1..1, stt_cut(UNDERLAY_V4, 4, &stt_super_frame()));
    vec![
        ("in-order", lists::build(&in_order)),
        ("reversed", lists::build(&reversed)),
        ("two-frames", lists::build(&two)),
    ]
}

/// A fragment of the datagram with the identification `ident`.
fn fragment_of(ends: Ends, ident: u8, (offset, more): (u16, bool), payload: &[u8]) -> Vec<u8> {
    const FRAGMENT_HEADER: u8 = 44;
    let more = u16::from(more);
    match ends {
        Ends::V4(..) => {
            let mut frame = ends.frame(UDP, payload);
            frame.splice(18..20, [0, ident]);
            frame.splice(20..22, ((more << 13) | (offset / 8)).to_be_bytes());
            frame
        }
        Ends::V6(..) => {
            let [high, low] = (offset | more).to_be_bytes();
            let header = [UDP, 0, high, low, 0, 0, 0, ident];
            ends.frame(FRAGMENT_HEADER, &join(&[&header, payload]))
        }
    }
}

fn fragments() -> Group {
    let datagram = |ends, ident| {
        [((0, true), 24), ((24, true), 24), ((48, false), 5)]
            .map(|(place, len)| fragment_of(ends, ident, place, &vec![ident; len]))
    };
    let [first, second, last] = datagram(GUESTS_V6, 2);
    let mut two = datagram(GUESTS_V4, 3).to_vec();
    two.splice(1..1, datagram(GUESTS_V6, 4));
    vec![
        ("ipv4-in-order", lists::build(&datagram(GUESTS_V4, 1))),
        ("ipv6-reversed", lists::build(&[last, second, first])),
        ("two-datagrams", lists::build(&two)),
    ]
}

fn tagged() -> Group {
    let (tcp, tcp6) = (guest_tcp(GUESTS_V4), guest_tcp(GUESTS_V6));
    vec![
        ("vlan", tag(&tcp, 0x8100, 0x2064)),
        ("qinq", tag(&tag(&tcp6, 0x8100, 20), 0x88a8, 100)),
        ("qinq-8100", tag(&tag(&tcp, 0x8100, 20), 0x8100, 100)),
        ("qinq-9100", tag(&tag(&tcp, 0x8100, 20), 0x9100, 100)),
        ("priority", tag(&tcp, 0x8100, 0xe000)),
        ("guest-tag-inside", tag(&tag(&tag(&tcp, 0x8100, 7), 0x8100, 20), 0x88a8, 100)),
    ]
}

/// A virtio-net header of 12 bytes: flags, GSO type, header length, GSO size, checksum start and
/// offset. The last byte is unused by virtio-net and selects a tunnel.
fn vnet(flags: u8, gso: u8, words: [u16; 4], tunnel: u8, frame: &[u8]) -> Vec<u8> {
    let words = words.map(u16::to_le_bytes).concat();
    join(&[&[flags, gso], &words, &[0, tunnel], frame])
}

fn offloads() -> Group {
    let payload = [0x5a; 3000];
    let (tcp, tcp6) =
        (GUESTS_V4.tcp(1, 0x19, &[], &payload), GUESTS_V6.tcp(1, 0x99, &[], &payload));
    let udp = GUESTS_V4.udp((40_000, 443), true, &payload);
    let small = guest_udp(GUESTS_V6);
    let tagged = tag(&tcp, 0x8100, 20);
    vec![
        ("none", vnet(0, 0, [0; 4], 0, &small)),
        ("verified", vnet(2, 0, [0; 4], 1, &small)),
        ("partial", vnet(1, 0, [0, 0, 54, 6], 2, &small)),
        ("tcp4", vnet(1, 1, [54, 1000, 34, 16], 3, &tcp)),
        ("tcp4-tagged", vnet(1, 1, [58, 1000, 38, 16], 7, &tagged)),
        ("tcp6-ecn", vnet(1, 0x84, [74, 1000, 54, 16], 5, &tcp6)),
        ("udp", vnet(1, 5, [42, 1000, 34, 6], 6, &udp)),
    ]
}

/// Every plain frame and a super-packet, each with rewrites. Some of the rewrites apply to each
/// frame.
fn rewrites() -> Group {
    use flow::Field;
    let sets = join(&[
        &[6],
        &execution::set_bytes(Field::EthDst, 0x0200_0000_0009),
        &execution::set_bytes(Field::Ip4Dst, 0xc000_0263),
        &execution::set_bytes(Field::Ip6Src, 0xfd00 << 112 | 7),
        &execution::set_bytes(Field::TpDst, 8080),
        &execution::set_bytes(Field::IpTtl, 3),
        &execution::set_bytes(Field::ArpTpa, 0x0a00_0063),
    ]);
    let program = |vnet: &[u8], frame: &[u8]| join(&[vnet, &sets, frame]);
    let none = vnet(0, 0, [0; 4], 0, &[]);
    let mut seeds: Group =
        plain().into_iter().map(|(name, frame)| (name, program(&none, &frame))).collect();
    let tcp = GUESTS_V4.tcp(1, 0x19, &[], &[0x5a; 3000]);
    let sctp = [0x30, 0x39, 0, 80, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0, 3, 0, 8, 1, 1, 1, 1];
    seeds.push(("tcp4-super", program(&vnet(1, 1, [54, 1000, 34, 16], 0, &[]), &tcp)));
    seeds.push(("ipv6-sctp", program(&none, &GUESTS_V6.frame(132, &sctp))));
    seeds
}

fn segments() -> Group {
    let train = |ends: Ends| -> Vec<_> {
        let sequence = |index: u32| 1000 + index * 500;
        (0..4).map(|index| ends.tcp(sequence(index), 0x10, &[], &[index as u8; 500])).collect()
    };
    let mut with_a_gap = train(GUESTS_V4);
    with_a_gap.remove(2);
    let last = GUESTS_V4.tcp(1500, 0x19, &[], &[9; 100]);
    with_a_gap.push(last);
    vec![
        ("ipv4", lists::build(&train(GUESTS_V4))),
        ("ipv6", lists::build(&train(GUESTS_V6))),
        ("gap-and-end", lists::build(&with_a_gap)),
        ("mixed", lists::build(&[guest_tcp(GUESTS_V4), guest_udp(GUESTS_V4), arp_request()])),
    ]
}

/// Packets of guests, replies to the translated address, and ICMP errors about the translated
/// packet.
fn connections() -> Group {
    let (client, server) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let outside = Ends::V4(connections::NAT_V4, server);
    let back = Ends::V4(server, connections::NAT_V4);
    let question = outside.udp((40_000, 53), true, b"a question");
    let quote = join(&[&[0; 4], &question[14..]]);
    let answer = back.udp((53, 40_000), true, b"an answer");
    let syn = GUESTS_V4.tcp(1000, 0x02, &[2, 4, 5, 0xb4, 1, 3, 3, 7], b"");
    let echo = |ends: Ends, kind| ends.icmp(kind, 0, &[0, 9, 0, 1]);
    let translated = Ends::V6(GUESTS_V6.v6_dst(), connections::NAT_V6);
    let init = [&[0x9c, 0x40, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20][..], &[7; 16]].concat();
    vec![
        ("udp", lists::build(&[guest_udp(GUESTS_V4), answer])),
        ("error", lists::build(&[guest_udp(Ends::V4(client, server)), back.icmp(3, 3, &quote)])),
        ("tcp", lists::build(&[syn.clone(), syn, guest_tcp(GUESTS_V6)])),
        ("echo", lists::build(&[echo(GUESTS_V6, 128), echo(translated, 129)])),
        ("sctp", lists::build(&[GUESTS_V4.frame(132, &init)])),
    ]
}

fn networks() -> Group {
    let vxlan = r#"
[[host]]
name = "h1"
uplink = "eth0"
underlay = ["192.0.2.1", "2001:db8::1"]
[[host]]
name = "h2"
uplink = "eth0"
underlay = ["192.0.2.2", "2001:db8::2"]
[[logical_switch]]
name = "blue"
tunnel = "vxlan"
vni = 5001
[[logical_switch.port]]
name = "a"
host = "h1"
mac = "02:00:00:00:00:01"
addresses = ["10.0.0.1/24", "fd00::1/64"]
device = { tap = "a0" }
[[logical_switch.port]]
name = "b"
host = "h2"
mac = "02:00:00:00:00:02"
addresses = ["10.0.0.2/24"]
device = { tap = "b0" }
"#;
    let vlan = vxlan.replace("\"vxlan\"", "\"vlan\"").replace("vni = 5001", "vlan = 100");
    vec![("vxlan", vxlan.as_bytes().to_vec()), ("vlan", vlan.into_bytes())]
}

fn matches() -> Group {
    [
        (
            "fields",
            "inport == \"vm1\" && eth.src == {00:00:00:00:00:01} && ip4.src == 10.0.0.0/24 \
             && tcp.dst[0..7] == 80",
        ),
        ("sets", r#"(ip4.src == {$as, 1.2.3.4} || outport == @pg) && is_chassis_resident("lrp")"#),
        ("orders", r#"1 <= vlan.pcp < 4 && !(udp.src > 1024 || ip6.dst != ff02::/16) && !reg0[5]"#),
        (
            "predicates",
            r#"nd_ns && nd.target == fe80::1 && !ip6.mcast_flood && (ct.est || !ip.first_frag)"#,
        ),
    ]
    .map(|(name, text)| (name, text.as_bytes().to_vec()))
    .into()
}

fn actions() -> Group {
    [
        (
            "control",
            "next; next(3); next(pipeline=egress, table=5); clone { ct_clear; output; \
             }; output;",
        ),
        ("drop", "drop;"),
        (
            "loads",
            "reg0 = 10.0.0.1; eth.dst = ff:ff:ff:ff:ff:ff; xxreg0 = fd00::1/64; outport = \
             \"_MC_flood\";",
        ),
        (
            "moves",
            "eth.dst <-> eth.src; arp.tha = arp.sha; push(xxreg1); xxreg1 = ct_label; \
             pop(xxreg1); ip.ttl--;",
        ),
        (
            "replies",
            "icmp4_error { icmp4.frag_mtu = 1400; /* Too big. */ output; }; \
             nd_na_router { nd.tll = xreg0[0..47]; };",
        ),
        (
            "learning",
            "reg9[2] = lookup_nd(inport, ip6.src, nd.sll); put_arp(inport, arp.spa, \
             arp.sha); outport = get_fdb(eth.dst);",
        ),
        (
            "choices",
            "reg8[16..31] = select(1=50, 2); fwd_group(liveness=\"true\", \
             childports=\"a\", \"b\");",
        ),
        (
            "connections",
            "ct_commit { ct_mark.blocked = 1; }; ct_commit(ct_mark=1/1, \
             ct_label=2); ct_snat(172.16.0.1,1-3000);",
        ),
        (
            "load-balancers",
            "ct_lb_mark(backends=[fd00::3]:80,10.0.0.1; hash_fields=\"ip_dst\"; \
             skip_snat); commit_lb_aff(vip = \"[::1]:80\", backend = \
             \"[::2]:80\", proto = tcp, timeout = 60);",
        ),
        (
            "dialogues",
            "reg0[3] = put_dhcp_opts(offerip = 10.0.0.3, dns_server = {8.8.8.8, \
             7.7.7.7}, wpad = \"x\"); reg0[4] = dns_lookup();",
        ),
        (
            "events",
            "trigger_event(event = \"empty_lb_backends\", vip = \"10.0.0.1:80\"); \
             sample(probability=65535,obs_point=$cookie);",
        ),
        (
            "logs",
            "log(name=\"a1\", severity=alert, verdict=allow, meter=\"m1\"); \
             set_meter(1000, 500); set_queue(1);",
        ),
    ]
    .map(|(name, text)| (name, text.as_bytes().to_vec()))
    .to_vec()
}

fn flows() -> Group {
    [
        (
            "study",
            "in_port=2 action=push_vlan:0x88a8,mod_vlan_vid:1,output:1\n\
             in_port=1,dl_vlan=1 action=pop_vlan,output:2\n\
             ---\n\
             in_port=2,tcp,nw_src=10.0.0.1,tp_dst=80\n\
             in_port=1,dl_vlan=1,udp",
        ),
        (
            "tables",
            "# Comment.\n\
             cookie=0x5,table=0,priority=10,tcp,nw_dst=10.0.0.0/24,tcp_flags=+syn-ack \
             actions=load:7->reg0[0..3],resubmit(,1)\n\
             table=1,ip,reg0=7/0xf actions=dec_ttl,clone(set_field:1.2.3.4->ip_src,2),\
             move:reg0[0..3]->eth_dst[4..7],normal\n\
             ---\n\
             in_port=1,tcp,nw_dst=10.0.0.9,tcp_flags=syn,nw_ttl=3",
        ),
        (
            "neighbours",
            "icmp6,icmpv6_type=135,nd_target=fe80::/10,nd_sll=02:00:00:00:00:01 \
             actions=controller(max_len=64,userdata=00.01),in_port\n\
             arp,arp_op=1,arp_tpa=10.0.0.1 actions=push:arp_spa,pop:arp_tpa,set_field:2->arp_op,\
             in_port",
        ),
        (
            "changes",
            "priority=1,ip actions=1\nidle_timeout=9,ipv6,nw_frag=later actions=flood\n\
             modify_strict priority=1,ip actions=check_pkt_larger(1500)->reg1[0],\
             write_metadata:3/7,goto_table:2\n\
             flow delete cookie=0/-1,ipv6",
        ),
        (
            "tunnels",
            "tun_id=5/0xff,tun_dst=10.222.0.1,tun_metadata0=3,tun_flags=+oam \
             actions=set_tunnel:7,set_field:fd00::1->tun_ipv6_dst,p3",
        ),
    ]
    .map(|(name, text)| (name, text.as_bytes().to_vec()))
    .to_vec()
}

/// Steps for the megaflow cache. In each seed, a lookup hits after the cache has changed.
fn megaflows() -> Group {
    use megaflows::step;
    let (put, delete, look_up) = (0, 1, 2);
    let in_port = step(put, 0x01, 0, 0x0001);
    let looked_up = step(look_up, 0, 0, 0x5551);
    vec![
        ("replaced", [in_port, looked_up, step(5, 0x01, 0, 0x0001), looked_up].concat()),
        ("deleted", [in_port, looked_up, step(delete, 0x01, 0, 0x0001), looked_up].concat()),
        (
            "masks",
            [step(put, 0x88, 0x80, 0x4040), in_port, looked_up, step(3, 0, 0, 0), looked_up]
                .concat(),
        ),
        (
            "full",
            (0..40)
                .map(|n| step(put, 0xff, 0, n))
                .chain([step(look_up, 0, 0, 7)])
                .flatten()
                .collect(),
        ),
    ]
}

/// Two schemas: that of the other two database targets, and one with constraints.
fn schemas() -> Group {
    let constraints = r#"{"name":"d","tables":{"T":{"isRoot":true,"maxRows":1,"indexes":[["a"]],
        "columns":{"a":{"type":{"key":{"type":"string","enum":["set",["x","y"]]}}},
        "r":{"type":{"key":{"type":"real","minReal":0.5},"min":0,"max":3}},
        "l":{"type":{"key":{"type":"string","minLength":1,"maxLength":9},
        "value":{"type":"uuid","refTable":"T","refType":"weak"},"max":"unlimited"}}}}}}"#;
    vec![("plain", database::SCHEMA.into()), ("constraints", constraints.into())]
}

/// Messages that a server sends after the connection. The first byte is the size of the parts.
fn database_streams() -> Group {
    let whole = [
        r#"{"id":0,"error":"unknown method"}"#,
        &format!(r#"{{"id":1,"result":{},"error":null}}"#, database::SCHEMA),
        r#"{"id":2,"result":{"T":{"aaaaaaaa-0000-4000-8000-000000000001":{"initial":{"s":"a"}}}}}"#,
        r#"{"id":"e","method":"echo","params":[]}"#,
        r#"{"id":null,"method":"update2","params":["data.0",{"T":{"#,
        r#""aaaaaaaa-0000-4000-8000-000000000001":{"modify":{"is":["set",[1,2]],"s":"b"}},"#,
        r#""bbbbbbbb-0000-4000-8000-000000000002":{"insert":{"m":["map",[["k",1.5]]]}}}}]}"#,
    ];
    let text = whole.concat();
    let server = r#"{"id":0,"result":{"Database":{"aaaaaaaa-0000-4000-8000-000000000003":{"initial":
        {"name":"d","model":"standalone","connected":true,"schema":"{}"}}}},"error":null}"#;
    let seed = |size: u8, text: &str| [&[size], text.as_bytes()].concat();
    vec![
        ("old-server", seed(7, &text)),
        ("cut", seed(1, text.get(..400).unwrap_or(&text))),
        ("server-row", seed(64, server)),
    ]
}

/// The tables of an update, for a replica with one row.
fn database_updates() -> Group {
    let row = database::ROW;
    let values = r#""s":"x\u00e4","i":-3,"r":1e3,"b":true,"u":["uuid","aaaaaaaa-0000-4000-8000-000000000009"],"is":["set",[1,5]],"m":["map",[["a",0.5],["k",2]]],"o":4"#;
    let update = |text: String| text.into_bytes();
    vec![
        ("modify", update(format!(r#"{{"T":{{"{row}":{{"modify":{{{values}}}}}}}}}"#))),
        (
            "insert",
            update(format!(
                r#"{{"T" : {{ "aaaaaaaa-0000-4000-8000-000000000005" : {{"insert":{{{values}}}}} , "{row}":{{"modify":{{}}}} }} }}"#
            )),
        ),
        ("delete", update(format!(r#"{{"T":{{"{row}":{{"delete":null}}}},"U":{{}}}}"#))),
        (
            "twice",
            update(format!(
                r#"{{"T":{{"{row}":{{"modify":{{"i":1}}}},"{row}":{{"modify":{{"is":3}}}}}}}}"#
            )),
        ),
    ]
}
