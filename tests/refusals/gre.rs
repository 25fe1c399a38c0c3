//! Invalid GRE packets.

use super::target::{TEB, Target, Wrap};
use crate::common::outer::{GRE, Outer};
use crate::common::{Setup, VNI};
use testkit::require_root;

const GRE_CHECKSUM: u16 = 0x8000;
const GRE_KEY: u16 = 0x2000;

fn gre_packet(outer: &Outer, flags: u16, protocol: u16, fields: &[u32], inner: &[u8]) -> Vec<u8> {
    let mut header = [flags, protocol].map(u16::to_be_bytes).concat();
    fields.iter().for_each(|field| header.extend(field.to_be_bytes()));
    outer.packet(GRE, &[&header[..], inner].concat())
}

pub fn gre(outer: &Outer, inner: &[u8]) -> Vec<u8> {
    gre_packet(outer, GRE_KEY, TEB, &[VNI], inner)
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
        // Version 1 is PPTP. Bit 1 announces source routing (RFC 1701), which RFC 2784 removed.
        let strange = [GRE_KEY | 1, GRE_KEY | 0x4000].map(|flags| packet(flags, TEB, &[VNI]));
        target.refuses(gre, "another GRE", Some("malformed_tunnel"), &strange);
        let full = [&[0x20, 0, 0x65, 0x58][..], &VNI.to_be_bytes(), &forbidden].concat();
        target.refuses_cuts(gre, &full, 8, |outer, bytes| outer.packet(GRE, bytes));
        if family == 4 {
            let good = gre(&outer, &forbidden);
            let mut damaged = good.clone();
            damaged[14 + 10] ^= 1;
            target.refuses(gre, "a wrong IPv4 header sum", Some("outer_checksum"), &[damaged]);
            // Sets the flag "more fragments" (0x2000) and adjusts the checksum.
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
