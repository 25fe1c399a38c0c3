//! Tests the announcements that a host of an OVN sends without a request: addresses to physical
//! networks, and router advertisements to guests.

use super::localnet::{add_provider, add_router, start_one};
use super::{Hosts, lab, lab_of, switch};
use crate::common::frames::FrameSocket;
use crate::common::{GUEST_DEVICE, Guest, PATIENCE};
use crate::ovn::nat::{FLOATING, FORWARDED, OUTSIDE};
use crate::peers::program::{command, run};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;
use testkit::host::wait_until;
use testkit::ovn::Ovn;
use wire::{ArpPacket, ArpRepr, EtherType, EthernetPacket, MacAddr};
use wire::{Icmpv6Packet, Icmpv6Repr, Ipv6Packet, NdRepr};

/// The MAC address of the router port toward the physical network.
const ROUTER: &str = "02:00:00:00:ff:02";
/// A MAC address that no device has.
const WRONG: &str = "02:00:00:00:99:99";

/// The MAC and IP address that a frame announces.
fn announced(frame: &[u8]) -> Option<(MacAddr, IpAddr)> {
    let ethernet = EthernetPacket::new_checked(frame).ok()?;
    match ethernet.ethertype() {
        EtherType::ARP => {
            let arp = ArpRepr::parse(&ArpPacket::new_checked(ethernet.payload()).ok()?).ok()?;
            (arp.sender_ip == arp.target_ip).then_some((arp.sender_mac, arp.sender_ip.into()))
        }
        EtherType::IPV6 => {
            let (_, target) = discovery(&ethernet)?;
            target.map(|target| (ethernet.src(), target.into()))
        }
        _ => None,
    }
}

/// The source of a neighbour discovery message, with the announced address if it is an unsolicited
/// advertisement. `None` for other frames, except router advertisements.
fn discovery(ethernet: &EthernetPacket<&[u8]>) -> Option<(Ipv6Addr, Option<Ipv6Addr>)> {
    let ip = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
    let icmp = Icmpv6Packet::new_checked(ip.payload()).ok()?;
    match Icmpv6Repr::parse(&icmp, ip.pseudo_header(), ip.hop_limit()).ok()? {
        Icmpv6Repr::Nd(NdRepr::NeighborAdvertisement { solicited: false, target, .. }) => {
            Some((ip.src(), Some(target)))
        }
        Icmpv6Repr::Nd(NdRepr::RouterAdvertisement { .. }) => Some((ip.src(), None)),
        _ => None,
    }
}

fn ip(guest: &Guest, arguments: &str) -> String {
    let mut ip = guest.netns.command(command("ip"));
    ip.args(arguments.split_whitespace());
    run(ip, b"")
}

#[test]
fn physical_network_learns_the_addresses_of_a_host_without_asking() {
    require_ovn!();
    let lab = lab_of(4, 0);
    let ovn = Ovn::start("announced");
    let [first, outside, second, plain] = [0, 1, 2, 3].map(|at| &lab.guests[at]);
    add_router(&ovn, [first, second], "lrp-set-gateway-chassis lr0-out h1");
    ovn.configure(&[
        "set Logical_Switch_Port out-lr0 options:nat-addresses=router".to_owned(),
        format!("lsp-add out {}", plain.name),
        format!("lsp-set-addresses {0} '{1} {2} {3}'", plain.name, plain.mac, plain.ip4, plain.ip6),
    ]);
    let (database, daemon) = start_one(&lab, &ovn, &[first, second, plain]);
    // The neighbour entries of the machine outside are wrong until the announcements correct them.
    let stale: [String; 2] = [OUTSIDE[0].to_owned(), plain.ip6.to_string()];
    for address in &stale {
        ip(
            outside,
            &format!("neigh replace {address} lladdr {WRONG} dev {GUEST_DEVICE} nud stale"),
        );
    }
    let socket = FrameSocket::open(&outside.netns, GUEST_DEVICE);
    add_provider(&database, &[&outside.host_device()]);
    let router: MacAddr = ROUTER.parse().expect("a MAC address");
    let of = |mac: MacAddr, ip: &str| (mac, ip.parse::<IpAddr>().expect("an address"));
    let mut expected = BTreeSet::from([
        of(router, OUTSIDE[0]),
        of(router, FLOATING[0]),
        of(router, FORWARDED[0]),
        (plain.mac, plain.ip(4)),
        (plain.mac, plain.ip(6)),
    ]);
    let mut seen = BTreeSet::new();
    let mut wait_for = |what: &str, expected: &BTreeSet<(MacAddr, IpAddr)>| {
        wait_until(PATIENCE, what, || {
            seen.extend(socket.pending().iter().filter_map(|frame| announced(frame)));
            expected.is_subset(&seen)
        });
        seen.clone()
    };
    wait_for("all addresses are announced", &expected);
    let known = |address: &str| ip(outside, &format!("neigh show {address}"));
    wait_until(PATIENCE, "the machine outside knows the router", || {
        known(&stale[0]).contains(ROUTER)
    });
    wait_until(PATIENCE, "the machine outside knows the guest", || {
        known(&stale[1]).contains(&plain.mac.to_string())
    });
    // An address that is added later must be announced too.
    ovn.nbctl(&format!("lr-nat-add lr0 dnat_and_snat 172.16.9.77 {}", plain.ip4));
    expected.insert(of(router, "172.16.9.77"));
    let seen = wait_for("the new address is announced", &expected);
    // Addresses of guests behind the router are not announced to the physical network.
    let hidden = [first.mac, second.mac];
    assert!(seen.iter().all(|(mac, _)| !hidden.contains(mac)), "{seen:?}");
    // The announcements must end. The last one is due 31 seconds after the first.
    std::thread::sleep(Duration::from_secs(33));
    socket.pending();
    std::thread::sleep(Duration::from_secs(17));
    let late: Vec<_> = socket.pending().iter().filter_map(|frame| announced(frame)).collect();
    assert_eq!(late, []);
    daemon.stop();
}

#[test]
fn router_advertises_itself_to_the_guests_of_each_host() {
    require_ovn!();
    let lab = lab();
    let ovn = Ovn::start("periodic");
    let (near, far) = lab.ends();
    ovn.configure(&switch("blue", &[near, far]));
    ovn.configure(&[
        "lr-add r0 -- lrp-add r0 r0-blue 02:00:00:00:ff:01 fd55::fe/64".to_owned(),
        "lsp-add blue blue-r0 -- lsp-set-type blue-r0 router -- lsp-set-addresses blue-r0 router \
         -- lsp-set-options blue-r0 router-port=r0-blue"
            .to_owned(),
        "set Logical_Router_Port r0-blue ipv6_ra_configs:address_mode=slaac \
         ipv6_ra_configs:send_periodic=true ipv6_ra_configs:max_interval=4 \
         ipv6_ra_configs:min_interval=3 ipv6_ra_configs:mtu=1400"
            .to_owned(),
    ]);
    let sockets = [near, far].map(|guest| {
        // The kernel does not solicit routers, but accepts their advertisements.
        for (key, value) in
            [("router_solicitations", "0"), ("accept_ra", "1"), ("addr_gen_mode", "0")]
        {
            let key = format!("net/ipv6/conf/{GUEST_DEVICE}/{key}");
            guest.netns.sysctl(&key, value).expect("a sysctl can be set");
        }
        FrameSocket::open(&guest.netns, GUEST_DEVICE)
    });
    let hosts = Hosts::start(&lab, &ovn);
    ovn.nbctl("--wait=hv sync");
    for guest in [near, far] {
        wait_until(PATIENCE, "the guest has an address of the router's prefix", || {
            ip(guest, &format!("-6 address show dev {GUEST_DEVICE}")).contains("fd55::")
        });
        let route = ip(guest, "-6 route show default");
        assert!(route.contains("via fe80::ff:fe00:ff01"), "{route}");
    }
    // Each host sends advertisements only to its own guests: three to five in this time.
    sockets.iter().for_each(|socket| drop(socket.pending()));
    std::thread::sleep(Duration::from_millis(12_500));
    let counts = sockets.each_ref().map(|socket| {
        let frames = socket.pending();
        let adverts = frames.iter().filter_map(|frame| {
            let ethernet = EthernetPacket::new_checked(&frame[..]).ok()?;
            discovery(&ethernet).filter(|(_, target)| target.is_none())
        });
        adverts.count()
    });
    assert!(counts.iter().all(|count| (3..=5).contains(count)), "{counts:?}");
    hosts.stop(&ovn);
}
