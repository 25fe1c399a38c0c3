//! Invalid Geneve packets.

use super::target::{TEB, Target, kernel_refuses};
use crate::common::frames::note;
use crate::common::outer::Outer;
use crate::common::{Setup, VNI};
use testkit::require_root;

pub const GENEVE_PORT: u16 = 6081;
const LOGICAL_PORTS: [u8; 4] = [0x01, 0x02, 0x80, 1];

/// A Geneve header with `options`; its third byte is that of the flags.
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

/// A Geneve packet without logical ports, so that the daemon uses the MAC address.
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
        // Port 1 is on this host, port 2 is not. 0 and 0x7fff mean "no port".
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
