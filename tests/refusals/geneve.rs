//! Invalid Geneve packets.

use super::target::{TEB, Target, kernel_refuses};
use crate::common::frames::note;
use crate::common::outer::Outer;
use crate::common::{Setup, VNI};
use testkit::require_root;

pub const GENEVE_PORT: u16 = 6081;
const LOGICAL_PORTS: [u8; 4] = [0x01, 0x02, 0x80, 1];

/// A Geneve header with `options`. `flags` is its second byte.
pub fn geneve_header(version: u8, flags: u8, protocol: u16, vni: u32, options: &[u8]) -> Vec<u8> {
    let words = (options.len() / 4) as u8;
    let mut header = vec![version << 6 | words, flags];
    header.extend(protocol.to_be_bytes());
    header.extend((vni << 8).to_be_bytes());
    header.extend(options);
    header
}

pub fn logical_ports(ingress: u16, egress: u16) -> Vec<u8> {
    [&LOGICAL_PORTS[..], &ingress.to_be_bytes(), &egress.to_be_bytes()].concat()
}

/// A Geneve packet without logical ports, so that the daemon forwards it by MAC address.
pub fn geneve(outer: &Outer, inner: &[u8]) -> Vec<u8> {
    outer.udp(GENEVE_PORT, &[&geneve_header(0, 0, TEB, VNI, &[])[..], inner].concat())
}

#[test]
fn geneve_packets_are_dropped_when_they_are_invalid() {
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
        // Logical port 1 is on this host, port 2 is not. 0 and 0x7fff mean "no port".
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

/// Options of the maximum length of 128 bytes each, and a shorter one for the rest: `words` words
/// in total. `last` is the type of the last option, with the critical bit.
fn long_options(words: usize, last: u8) -> Vec<u8> {
    const LONGEST: usize = 32;
    let mut options = Vec::new();
    let mut rest = words;
    while rest > 0 {
        let len = rest.min(LONGEST);
        rest -= len;
        let kind = if rest == 0 { last } else { 5 };
        options.extend([0x12, 0x34, kind, (len - 1) as u8]);
        options.resize(options.len() + (len - 1) * 4, 0xa5);
    }
    options
}

#[test]
fn geneve_options_of_every_length_are_skipped_or_refused() {
    require_root!();
    const CRITICAL: u8 = 0x40;
    /// The maximum of the header's option length field: 252 bytes.
    const MOST_WORDS: usize = 63;
    // The types of unknown options. The second one is critical.
    const PLAIN: u8 = 5;
    const URGENT: u8 = 0x85;
    for family in [4, 6] {
        let mut target = Target::new(Setup::new("geneve").family(family));
        let (near, far, outer) = (target.near(), target.far(), target.outer);
        let packet = |flags, options: &[u8], inner: &[u8]| {
            let header = geneve_header(0, flags, TEB, VNI, options);
            outer.udp(GENEVE_PORT, &[&header[..], inner].concat())
        };
        let mut valid = Vec::new();
        let mut deliver = |flags, options: &[u8]| {
            let inner = note(near, far, &format!("{flags}, {options:02x?}"));
            let pair = (packet(flags, options, &inner), inner);
            // Short lists of options can be equal, so duplicates are skipped.
            if !valid.contains(&pair) {
                valid.push(pair);
            }
        };
        for words in 0..=MOST_WORDS {
            deliver(0, &long_options(words, PLAIN));
            deliver(0, &[0x12, 0x34, PLAIN, 0].repeat(words));
            // The option for logical ports, which weft supports, has two words.
            let Some(others) = words.checked_sub(2) else { continue };
            let (ports, others) = (logical_ports(2, 1), long_options(others, PLAIN));
            deliver(CRITICAL, &[&ports[..], &others].concat());
            deliver(CRITICAL, &[&others[..], &ports].concat());
        }
        target.delivers_all(geneve, "unknown options", &valid);

        let forbidden = target.forbidden();
        let refused = |flags, options: &dyn Fn(usize) -> Vec<u8>| -> Vec<_> {
            let lengths = 1..=MOST_WORDS;
            lengths.map(|words| packet(flags, &options(words), &forbidden)).collect()
        };
        for flags in [0, CRITICAL] {
            let critical = refused(flags, &|words| long_options(words, URGENT));
            let reason = Some("geneve_critical_option");
            target.refuses(geneve, "a critical option at the end", reason, &critical);
            let critical = refused(flags, &|words| {
                [&[0x12, 0x34, URGENT, 0][..], &long_options(words - 1, PLAIN)].concat()
            });
            target.refuses(geneve, "a critical option at the start", reason, &critical);
        }
        // The last option exceeds the options' total length: by one word, or by the maximum.
        for more in [1, 31] {
            let beyond = refused(0, &|words| {
                let start = [0x12, 0x34, PLAIN, 0].repeat(words - 1);
                [&start[..], &[0x12, 0x34, PLAIN, more]].concat()
            });
            let what = format!("an option that is {more} words too long");
            target.refuses(geneve, &what, Some("malformed_tunnel"), &beyond);
        }
        target.finish();
    }
}
