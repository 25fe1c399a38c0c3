//! If a kernel device owns VXLAN's port, datagrams that the program does not handle are redirected
//! to the port of the user datapath's socket.

use crate::common::debian;
use crate::common::frames::udp4;
use crate::common::switch::{DROPPED, PASSED, RunResult, Switch, offsets};
use crate::common::tunnels::{self, Tunnel};
use flow::{DatapathKey, DropReason, TunnelKey, TunnelType};

const VXLAN: u16 = 4789;
const SOCKET: u16 = 40_001;
const ETHERNET: usize = wire::ethernet::HEADER_LEN;

fn with_redirect() -> Switch {
    let switch = Switch::load();
    let ports = [VXLAN.to_ne_bytes(), SOCKET.to_ne_bytes()].concat();
    switch.configure(offsets::VXLAN_PORTS, &ports);
    switch
}

/// A tunnel packet without a megaflow, and the offset of its UDP header.
fn packet(tunnel: &Tunnel) -> (Vec<u8>, usize) {
    let key = TunnelKey { datapath: DatapathKey(5), ports: None };
    let l4 = ETHERNET + if tunnel.local.is_ipv4() { 20 } else { 40 };
    (tunnels::outer(tunnel, &udp4(b"odd length"), &key), l4)
}

fn port(packet: &[u8], l4: usize) -> u16 {
    u16::from_be_bytes([packet[l4 + 2], packet[l4 + 3]])
}

/// The ones' complement sum over pseudo header and datagram: 0xffff if the checksum is correct.
fn sum(packet: &[u8], l4: usize) -> u32 {
    let addresses = if l4 == ETHERNET + 20 { l4 - 8..l4 } else { l4 - 32..l4 };
    let udp = &packet[l4..];
    let bytes =
        [&packet[addresses], &[0, 17], &(udp.len() as u16).to_be_bytes(), udp, &[0]].concat();
    let words = bytes.as_chunks::<2>().0.iter().map(|&word| u32::from(u16::from_be_bytes(word)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

#[test]
fn vxlan_datagram_is_redirected_with_a_correct_checksum() {
    testkit::require_root!();
    let mut switch = with_redirect();
    for tunnel in tunnels::add_every(&mut switch) {
        let (packet, l4) = packet(&tunnel);
        if tunnel.spec.tunnel.carrier() == flow::Carrier::Gre {
            continue;
        }
        let ran = switch.uplink(&packet);
        assert_eq!(ran.verdict, PASSED, "{tunnel:?}");
        if tunnel.spec.tunnel != TunnelType::Vxlan {
            assert_eq!(ran.bytes, packet, "{tunnel:?}");
            continue;
        }
        assert_eq!(port(&ran.bytes, l4), SOCKET, "{tunnel:?}");
        let has_sum = packet[l4 + 6..l4 + 8] != [0, 0];
        assert_eq!(has_sum, tunnel.spec.checksum);
        if has_sum {
            assert_eq!((sum(&packet, l4), sum(&ran.bytes, l4)), (0xffff, 0xffff), "{tunnel:?}");
        } else {
            assert_eq!(ran.bytes[l4 + 6..l4 + 8], [0, 0], "{tunnel:?}");
        }
        let (mut expected, new) = (packet.clone(), SOCKET.to_be_bytes());
        expected[l4 + 2..l4 + 4].copy_from_slice(&new);
        expected[l4 + 6..l4 + 8].copy_from_slice(&ran.bytes[l4 + 6..l4 + 8]);
        assert_eq!(ran.bytes, expected, "nothing else is changed");
    }
}

#[test]
fn first_fragments_are_redirected_and_later_fragments_are_not() {
    testkit::require_root!();
    let mut switch = with_redirect();
    let tunnels = tunnels::add_checked(&mut switch, 0);
    let (packet, l4) = packet(&tunnels[0]);
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = packet.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let from_unknown = with(ETHERNET + 12, &[198, 51, 100, 9]);
    assert_eq!(port(&switch.uplink(&from_unknown).bytes, l4), SOCKET);
    let first = with(ETHERNET + 6, &[0x20, 0]);
    assert_eq!(port(&switch.uplink(&first).bytes, l4), SOCKET);
    let later = with(ETHERNET + 6, &[0, 9]);
    assert_eq!(switch.uplink(&later), RunResult { verdict: PASSED, bytes: later });
    let other = with(l4 + 2, &53_u16.to_be_bytes());
    assert_eq!(switch.uplink(&other), RunResult { verdict: PASSED, bytes: other });
}

#[test]
fn datagram_to_the_sockets_port_is_dropped_and_counted() {
    testkit::require_root!();
    let mut switch = with_redirect();
    let tunnels = tunnels::add_checked(&mut switch, 0);
    for (count, tunnel) in (1..).zip(&tunnels[..2]) {
        let (mut packet, l4) = packet(tunnel);
        packet[l4 + 2..l4 + 4].copy_from_slice(&SOCKET.to_be_bytes());
        assert_eq!(switch.uplink(&packet).verdict, DROPPED);
        assert_eq!(switch.drops(Switch::UPLINK, DropReason::NoSuchPort), count);
    }
}

#[test]
fn datagrams_are_redirected_on_debians_kernel() {
    testkit::require_vm!();
    let mut vm = debian();
    let test = "vxlan_datagram_is_redirected_with_a_correct_checksum";
    let printed = vm.run(&format!("/bin/program --exact port_redirect::{test} --nocapture"));
    assert!(printed.contains("1 passed"), "{printed}");
}
