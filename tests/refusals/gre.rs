//! Invalid GRE packets.

use super::target::{TEB, Target, Wrap};
use crate::common::frames::note;
use crate::common::outer::{GRE, Outer};
use crate::common::{Setup, VNI};
use testkit::require_root;
use wire::checksum::Sum;

const GRE_CHECKSUM: u16 = 0x8000;
const GRE_KEY: u16 = 0x2000;
const GRE_SEQUENCE: u16 = 0x1000;

fn gre_packet(outer: &Outer, flags: u16, protocol: u16, fields: &[u32], inner: &[u8]) -> Vec<u8> {
    let mut header = [flags, protocol].map(u16::to_be_bytes).concat();
    fields.iter().for_each(|field| header.extend(field.to_be_bytes()));
    outer.packet(GRE, &[&header[..], inner].concat())
}

pub fn gre(outer: &Outer, inner: &[u8]) -> Vec<u8> {
    gre_packet(outer, GRE_KEY, TEB, &[VNI], inner)
}

/// An NVGRE packet. Its key consists of the VSID and the 8-bit FlowID.
pub fn nvgre(outer: &Outer, inner: &[u8]) -> Vec<u8> {
    gre_packet(outer, GRE_KEY, TEB, &[VNI << 8 | 7], inner)
}

#[test]
fn gre_packets_are_dropped_when_they_are_invalid() {
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
        // Version 1 is PPTP. Flag 0x4000 means source routing (RFC 1701), which RFC 2784 removed.
        let strange = [GRE_KEY | 1, GRE_KEY | 0x4000].map(|flags| packet(flags, TEB, &[VNI]));
        target.refuses(gre, "another GRE", Some("malformed_tunnel"), &strange);
        let full = [&[0x20, 0, 0x65, 0x58][..], &VNI.to_be_bytes(), &forbidden].concat();
        target.refuses_cuts(gre, &full, 8, |outer, bytes| outer.packet(GRE, bytes));
        if family == 4 {
            let good = gre(&outer, &forbidden);
            let mut damaged = good.clone();
            damaged[14 + 10] ^= 1;
            target.refuses(gre, "a wrong IPv4 header sum", Some("outer_checksum"), &[damaged]);
            // Sets the IPv4 flag "more fragments" (0x2000) and adjusts the header checksum.
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
fn gre_packets_are_dropped_when_they_have_an_unexpected_key() {
    require_root!();
    let keyless: Wrap = |outer, inner| gre_packet(outer, 0, TEB, &[], inner);
    let mut target = Target::new(Setup::new("gre").options("key = false").without_key());
    let packets =
        [0, VNI].map(|key| gre_packet(&target.outer, GRE_KEY, TEB, &[key], &target.forbidden()));
    target.refuses(keyless, "a key", Some("unknown_datapath"), &packets);
    target.finish();
}

/// A GRE packet with these flags, the fields that they announce, and a correct checksum if it has
/// one.
fn gre_with(outer: &Outer, flags: u16, inner: &[u8]) -> Vec<u8> {
    let mut fields = Vec::new();
    fields.extend((flags & GRE_CHECKSUM != 0).then_some(0));
    fields.extend((flags & GRE_KEY != 0).then_some(VNI));
    fields.extend((flags & GRE_SEQUENCE != 0).then_some(0x1234_5678));
    if flags & GRE_CHECKSUM != 0 {
        let header = [flags, TEB].map(u16::to_be_bytes).concat();
        let words: Vec<u8> = fields.iter().flat_map(|field| field.to_be_bytes()).collect();
        let sum = Sum::of(&[&header[..], &words, inner].concat()).checksum();
        fields[0] = u32::from(sum) << 16;
    }
    gre_packet(outer, flags, TEB, &fields, inner)
}

/// Every combination of checksum, key and sequence number.
fn combinations() -> [u16; 8] {
    let flag = |number: u16, bit: u16, flag: u16| if number & bit == 0 { 0 } else { flag };
    std::array::from_fn(|number| {
        let number = number as u16;
        flag(number, 1, GRE_CHECKSUM) | flag(number, 2, GRE_KEY) | flag(number, 4, GRE_SEQUENCE)
    })
}

#[test]
fn gre_packets_are_read_in_every_combination_of_fields() {
    require_root!();
    let keyless: Wrap = |outer, inner| gre_packet(outer, 0, TEB, &[], inner);
    for (family, has_key) in [(4, true), (4, false), (6, true), (6, false)] {
        let setup = Setup::new("gre").family(family);
        let (setup, wrap): (_, Wrap) = match has_key {
            true => (setup, gre),
            false => (setup.options("key = false").without_key(), keyless),
        };
        let mut target = Target::new(setup);
        let (near, far, outer) = (target.near(), target.far(), target.outer);
        let (fit, others): (Vec<_>, Vec<_>) =
            combinations().into_iter().partition(|flags| (flags & GRE_KEY != 0) == has_key);
        let valid: Vec<_> = fit
            .iter()
            .map(|&flags| {
                let inner = note(near, far, &format!("flags {flags:04x}"));
                (gre_with(&outer, flags, &inner), inner)
            })
            .collect();
        let what = format!("a key: {has_key}, IPv{family}");
        target.delivers_all(wrap, &what, &valid);
        let forbidden = target.forbidden();
        let reason = if has_key { "gre_no_key" } else { "unknown_datapath" };
        let packets: Vec<_> =
            others.iter().map(|&flags| gre_with(&outer, flags, &forbidden)).collect();
        target.refuses(wrap, &format!("not {what}"), Some(reason), &packets);
        let wrong_sums: Vec<_> = fit
            .iter()
            .filter(|&flags| flags & GRE_CHECKSUM != 0)
            .map(|&flags| {
                let mut packet = gre_with(&outer, flags, &forbidden);
                // The checksum follows the flags and the protocol type.
                let at = if family == 4 { 14 + 20 + 4 } else { 14 + 40 + 4 };
                packet[at] ^= 1;
                packet
            })
            .collect();
        target.refuses(wrap, &format!("wrong sums, {what}"), Some("gre_checksum"), &wrong_sums);
        // Version 1 is PPTP (RFC 2637). The other versions do not exist.
        let versions: Vec<_> = combinations()
            .iter()
            .flat_map(|flags| (1..8).map(move |version| flags | version))
            .map(|flags| gre_with(&outer, flags, &forbidden))
            .collect();
        target.refuses(wrap, &format!("versions, {what}"), Some("malformed_tunnel"), &versions);
        target.finish();
    }
}
