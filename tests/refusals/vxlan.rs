//! Tests invalid VXLAN packets.

use super::target::{Target, kernel_refuses};
use crate::common::frames::note;
use crate::common::outer::{Outer, UDP};
use crate::common::{Datapath, Setup, VNI};
use testkit::require_root;

pub const VXLAN_PORT: u16 = 4789;

pub fn vxlan_header(flags: u8, vni: u32) -> Vec<u8> {
    [&[flags, 0, 0, 0][..], &(vni << 8).to_be_bytes()].concat()
}

pub fn vxlan(outer: &Outer, inner: &[u8]) -> Vec<u8> {
    outer.udp(VXLAN_PORT, &[&vxlan_header(8, VNI)[..], inner].concat())
}

#[test]
fn vxlan_packets_are_dropped_when_they_are_invalid() {
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
        // eBPF programs do not verify the outer checksum. RFC 7348 section 5 lets the receiver
        // choose.
        if target.daemon.show().datapath == Datapath::User.name() {
            kernel_refuses(&mut target, vxlan, "a wrong outer checksum", "InCsumErrors", broken);
        }
        // RFC 7348 section 5: reserved bits are ignored.
        let inner = note(target.near(), target.far(), "reserved bits");
        let header = [0xff, 0xff, 0xff, 0xff, 0, (VNI >> 8) as u8, VNI as u8, 0xff];
        let odd = outer.udp(VXLAN_PORT, &[&header[..], &inner].concat());
        target.delivers(vxlan, "reserved bits", &odd, &inner);
        target.refuses_in_any_tunnel(vxlan);
        target.finish();
    }
}
