//! Tests address translation by a gateway router of an OVN.

use super::{Hosts, lab_of};
use crate::common::{GUEST_DEVICE, Guest, Lab, PATIENCE, traffic};
use crate::peers::carry_wire_frames;
use netdev::{Dad, IpNet, Route};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use testkit::ovn::Ovn;
use traffic::EchoServer;

/// The gateway's addresses in the network outside. They are the source of guests that have no
/// external address.
pub const OUTSIDE: [&str; 2] = ["172.16.9.1", "fd16::1"];
/// The external addresses of `g3`, for both directions.
pub const FLOATING: [&str; 2] = ["172.16.9.20", "fd16::20"];
/// External addresses that are translated to `g1`, and are not used as a source.
pub const FORWARDED: [&str; 2] = ["172.16.9.30", "fd16::30"];
/// The external addresses of a load balancer.
const BALANCED: [&str; 2] = ["172.16.9.40", "fd16::40"];
/// The gateway's addresses in the network of `g1` and `g3`.
const INSIDE: [&str; 2] = ["192.168.7.254", "fd77::fe"];
/// The addresses of the guest outside.
pub const SERVER: [&str; 2] = ["172.16.9.10", "fd16::10"];
const STREAM: usize = 300_000;

/// The element of `of` for an IP version: 4 or 6.
pub fn ip(of: [&str; 2], family: u8) -> IpAddr {
    of[usize::from(family == 6)].parse().expect("an address")
}

/// Configures a gateway router on `h2`. It connects the logical switch of `g1` (on `h1`) and `g3`
/// (on `h2`) with the network outside, in which `g2` is (on `h1`).
fn configure(ovn: &Ovn, [first, outside, second]: [&Guest; 3]) {
    let inside = [first, second];
    ovn.configure(&super::switch("blue", &inside));
    let [out4, out6] = OUTSIDE;
    let [server4, server6] = SERVER;
    let mut commands = vec![
        "ls-add out".to_owned(),
        format!("lsp-add out {}", outside.name),
        format!("lsp-set-addresses {} '{} {server4} {server6}'", outside.name, outside.mac),
        "lr-add gr -- set Logical_Router gr options:chassis=h2".to_owned(),
        "lrp-add gr gr-blue 02:00:00:00:ff:01 192.168.7.254/24 fd77::fe/64".to_owned(),
        format!("lrp-add gr gr-out 02:00:00:00:ff:02 {out4}/24 {out6}/64"),
    ];
    for (switch, port) in [("blue", "gr-blue"), ("out", "gr-out")] {
        commands.push(format!(
            "lsp-add {switch} {switch}-gr -- lsp-set-type {switch}-gr router -- \
             lsp-set-addresses {switch}-gr router -- \
             lsp-set-options {switch}-gr router-port={port}"
        ));
    }
    for (family, subnet) in [(4, "192.168.7.0/24"), (6, "fd77::/64")] {
        commands.extend([
            format!("lr-nat-add gr snat {} {subnet}", ip(OUTSIDE, family)),
            format!("lr-nat-add gr dnat_and_snat {} {}", ip(FLOATING, family), second.ip(family)),
            format!("lr-nat-add gr dnat {} {}", ip(FORWARDED, family), first.ip(family)),
        ]);
    }
    ovn.configure(&commands);
}

/// Assigns the guests their addresses and routes.
pub fn address([first, outside, second]: [&Guest; 3]) {
    for guest in [first, second] {
        for (network, gateway) in [("172.16.9.0/24", "192.168.7.254"), ("fd16::/64", "fd77::fe")] {
            let network = network.parse().expect("a prefix");
            let route = Route::via(network, gateway.parse().expect("an address"));
            guest.netns.netlink().add_route(&route).expect("a route can be added");
        }
    }
    let netlink = outside.netns.netlink();
    let index = netlink.index_of(GUEST_DEVICE).expect("a guest has its device");
    for (family, len) in [(4, 24), (6, 64)] {
        let inside = IpNet::new(outside.ip(family), len).expect("a prefix");
        netlink.delete_address(index, inside).expect("the address is there");
        let own = IpNet::new(ip(SERVER, family), len).expect("a prefix");
        netlink.add_address(index, own, Dad::Skip).expect("an address can be added");
    }
}

/// Checks that the ICMP error about a datagram to a closed port arrives at the socket that sent the
/// datagram.
fn is_refused(from: &Guest, own: IpAddr, to: IpAddr) {
    let socket = from.netns.run(|| UdpSocket::bind((own, 0))).expect("a UDP socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
    socket.connect(SocketAddr::new(to, 9)).expect("a socket can be connected");
    socket.send(b"to a closed port").expect("a datagram is sent");
    let error = socket.recv(&mut [0; 16]).expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "from {own} to {to}");
}

#[test]
fn gateway_router_translates_addresses_in_both_directions() {
    require_ovn!();
    let lab: Lab = lab_of(2, 1);
    let ovn = Ovn::start("nat");
    let [first, outside, second] = [0, 1, 2].map(|at| &lab.guests[at]);
    configure(&ovn, [first, outside, second]);
    let hosts = Hosts::start(&lab, &ovn);
    address([first, outside, second]);
    ovn.nbctl("--wait=hv sync");
    for offloads in [true, false] {
        if !offloads {
            // Without offloads, the kernel of each guest verifies every checksum.
            lab.guests.iter().for_each(|guest| carry_wire_frames(&guest.netns, GUEST_DEVICE));
        }
        for family in [4, 6] {
            exchange([first, outside, second], family);
        }
    }
    assert_source_is_forced(&ovn, [first, outside, second]);
    hosts.stop(&ovn);
}

/// With `lb_force_snat_ip` and `dnat_force_snat_ip`, guests inside see the router as the client, so
/// that replies return through this router.
fn assert_source_is_forced(ovn: &Ovn, [first, outside, second]: [&Guest; 3]) {
    let [inside4, inside6] = INSIDE;
    let [vip4, vip6] = BALANCED;
    ovn.configure(&[
        format!("lb-add web {vip4}:80 {}:80", second.ip4),
        format!("lb-add web [{vip6}]:80 [{}]:80", second.ip6),
        "lr-lb-add gr web".to_owned(),
    ]);
    let addresses = format!("\"{inside4} {inside6}\"");
    for (options, balanced_by, forwarded_by) in [
        ("", SERVER, SERVER),
        ("lb_force_snat_ip=router_ip", INSIDE, SERVER),
        (&format!("lb_force_snat_ip={addresses}"), INSIDE, SERVER),
        (&format!("dnat_force_snat_ip={addresses}"), SERVER, INSIDE),
    ] {
        let others = "remove Logical_Router gr options lb_force_snat_ip dnat_force_snat_ip";
        let set = match options {
            "" => String::new(),
            options => format!(" -- set Logical_Router gr 'options:{options}'"),
        };
        ovn.nbctl(&format!("--wait=hv {others}{set}"));
        for family in [4, 6] {
            let _servers = [first, second].map(|guest| EchoServer::start(guest, family, 80));
            for (to, by, source) in [
                (BALANCED, second, balanced_by),
                (FORWARDED, first, forwarded_by),
                (FLOATING, second, forwarded_by),
            ] {
                let to = SocketAddr::new(ip(to, family), 80);
                let answer = traffic::tcp_echo(outside, to, STREAM);
                let expected = (by.name.clone(), ip(source, family));
                assert_eq!((answer.server, answer.client), expected, "to {to} with {options}");
            }
        }
    }
}

/// Exchanges packets through the gateway in both directions: `first` and `second` are inside,
/// `outside` is outside.
pub fn exchange([first, outside, second]: [&Guest; 3], family: u8) {
    let server = ip(SERVER, family);
    traffic::ping(&first.netns, server);
    traffic::ping(&second.netns, server);
    traffic::ping(&outside.netns, ip(FLOATING, family));
    traffic::ping(&outside.netns, ip(FORWARDED, family));
    let _outside = EchoServer::start_at(outside, SocketAddr::new(server, 80));
    let _inside = [first, second].map(|guest| EchoServer::start(guest, family, 80));
    for (from, to, by, source) in [
        (first, server, outside, ip(OUTSIDE, family)),
        (second, server, outside, ip(FLOATING, family)),
        (outside, ip(FLOATING, family), second, server),
        (outside, ip(FORWARDED, family), first, server),
        // A guest inside reaches another one by its external address.
        (first, ip(FLOATING, family), second, ip(OUTSIDE, family)),
    ] {
        let answer = traffic::tcp_echo(from, SocketAddr::new(to, 80), STREAM);
        assert_eq!((answer.server, answer.client), (by.name.clone(), source), "to {to}");
    }
    is_refused(first, first.ip(family), server);
    is_refused(second, second.ip(family), server);
    is_refused(outside, server, ip(FLOATING, family));
    is_refused(outside, server, ip(FORWARDED, family));
}
