//! Tests load balancers and stateful ACLs of an OVN.

use super::{Hosts, lab_of, switch};
use crate::commands::call::weft;
use crate::common::{GUEST_DEVICE, Guest, Lab, PATIENCE, traffic};
use crate::peers::carry_wire_frames;
use netdev::Route;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use testkit::host::wait_until;
use testkit::ovn::Ovn;
use traffic::{Answer, EchoServer};

/// The addresses of the load balancer, which no guest has.
const VIPS: [&str; 2] = ["10.9.9.9", "fd99::9"];
/// The router's addresses in the network of the guests.
const GATEWAYS: [&str; 2] = ["192.168.7.254", "fd77::fe"];
/// The port that the backends listen on.
const BACKEND_PORT: u16 = 8080;
const STREAM: usize = 300_000;

/// Configures a router on the guests' logical switch, a load balancer on that switch with these
/// backends, and ACLs. The ACLs let guests open connections only to port 8080 of `far`.
pub fn configure(ovn: &Ovn, lab: &Lab, backends: &[&Guest]) {
    let guests: Vec<&Guest> = lab.guests.iter().collect();
    let (_, far) = lab.ends();
    ovn.configure(&switch("blue", &guests));
    let [gateway4, gateway6] = GATEWAYS;
    let backends = |family: u8| {
        let all = backends.iter().map(|it| SocketAddr::new(it.ip(family), BACKEND_PORT));
        all.map(|it| it.to_string()).collect::<Vec<_>>().join(",")
    };
    let [vip4, vip6] = VIPS;
    ovn.configure(&[
        format!("lr-add r0 -- lrp-add r0 r0-blue 02:00:00:00:ff:01 {gateway4}/24 {gateway6}/64"),
        "lsp-add blue blue-r0 -- lsp-set-type blue-r0 router -- lsp-set-addresses blue-r0 router \
         -- lsp-set-options blue-r0 router-port=r0-blue"
            .to_owned(),
        format!("lb-add web {vip4}:80 {} tcp", backends(4)),
        format!("lb-add web [{vip6}]:80 {} tcp", backends(6)),
        "ls-lb-add blue web".to_owned(),
        format!(
            "acl-add blue to-lport 1000 'outport == \"{}\" && tcp.dst == 8080' allow-related",
            far.name
        ),
        format!("acl-add blue to-lport 900 'outport == \"{}\" && ip' drop", far.name),
    ]);
    for guest in guests {
        for (vip, gateway) in VIPS.iter().zip(GATEWAYS) {
            let prefix = format!("{vip}/{}", if vip.contains(':') { 128 } else { 32 });
            let route = Route::via(prefix.parse().expect("a prefix"), gateway.parse().expect("IP"));
            guest.netns.netlink().add_route(&route).expect("a route can be added");
        }
    }
}

pub fn vip(family: u8) -> SocketAddr {
    let text = VIPS[usize::from(family == 6)];
    SocketAddr::new(text.parse().expect("an address"), 80)
}

#[test]
fn load_balancer_spreads_connections_and_acls_follow_them() {
    require_ovn!();
    let lab = lab_of(2, 1);
    let ovn = Ovn::start("balanced");
    let [client, near, far] = &lab.guests[..] else { panic!("three guests") };
    configure(&ovn, &lab, &[near, far]);
    let hosts = Hosts::start(&lab, &ovn);
    ovn.nbctl("--wait=hv sync");
    for offloads in [true, false] {
        if !offloads {
            // Without offloads, the kernel of each guest verifies every checksum.
            lab.guests.iter().for_each(|guest| carry_wire_frames(&guest.netns, GUEST_DEVICE));
        }
        for family in [4, 6] {
            let _servers = [near, far].map(|guest| EchoServer::start(guest, family, BACKEND_PORT));
            for from in [client, near, far] {
                let answers = (0..16).map(|_| traffic::tcp_echo(from, vip(family), STREAM));
                let answers: BTreeSet<Answer> = answers.collect();
                // A backend that connects to itself sees the load balancer's address as the source.
                let seen = |by: &Guest| match by.name == from.name {
                    true => vip(family).ip(),
                    false => from.ip(family),
                };
                let expected = [near, far];
                let expected =
                    expected.map(|by| Answer { server: by.name.clone(), client: seen(by) });
                assert_eq!(answers, BTreeSet::from(expected), "{} IPv{family}", from.name);
            }
        }
    }
    assert_new_connections_are_refused(&lab);
    hosts.stop(&ovn);
}

/// The backends of the tracked connections on a host whose destination is the load balancer's IPv4
/// address.
fn tracked_backends(lab: &Lab) -> BTreeSet<String> {
    let (_, shown, _) = weft(&lab.control(0), &["ct"]);
    let to_vip = format!("-> {} ", vip(4));
    let rows = shown.lines().filter(|row| row.contains(&to_vip));
    let backend = |row: &str| Some(row.split_once("reply ")?.1.split_once(':')?.0.to_owned());
    rows.filter_map(backend).collect()
}

#[test]
fn connections_to_a_removed_backend_end_when_the_load_balancer_says_so() {
    require_ovn!();
    let lab = lab_of(2, 1);
    let ovn = Ovn::start("flush");
    let [client, near, far] = &lab.guests[..] else { panic!("three guests") };
    configure(&ovn, &lab, &[near, far]);
    let hosts = Hosts::start(&lab, &ovn);
    ovn.nbctl("--wait=hv sync");
    let _servers = [near, far].map(|guest| EchoServer::start(guest, 4, BACKEND_PORT));
    let both = BTreeSet::from([near.ip4.to_string(), far.ip4.to_string()]);
    let without = |option: &str, removed: &Guest, kept: &Guest| {
        ovn.nbctl(&format!("--wait=hv set Load_Balancer web options:ct_flush={option}"));
        wait_until(PATIENCE, "both backends have connections", || {
            traffic::tcp_echo(client, vip(4), 100);
            tracked_backends(&lab).is_superset(&both)
        });
        let vip = vip(4);
        ovn.nbctl(&format!(
            "--wait=hv set Load_Balancer web 'vips:\"{vip}\"=\"{}:{BACKEND_PORT}\"'",
            kept.ip4
        ));
        let left = tracked_backends(&lab);
        ovn.nbctl(&format!(
            "--wait=hv set Load_Balancer web 'vips:\"{vip}\"=\"{0}:{BACKEND_PORT},{1}:{BACKEND_PORT}\"'",
            removed.ip4, kept.ip4
        ));
        left
    };
    // By default, connections to a removed backend continue.
    assert_eq!(without("false", near, far), both);
    assert_eq!(without("true", near, far), BTreeSet::from([far.ip4.to_string()]));
    assert_eq!(without("true", far, near), BTreeSet::from([near.ip4.to_string()]));
    ovn.nbctl("--wait=hv lb-del web");
    assert_eq!(tracked_backends(&lab), BTreeSet::new());
    hosts.stop(&ovn);
}

/// Checks that no guest can open a connection to another port of the guest that the ACLs protect.
fn assert_new_connections_are_refused(lab: &Lab) {
    let (near, far) = lab.ends();
    let _server = EchoServer::start(far, 4, BACKEND_PORT + 1);
    let to = SocketAddr::new(far.ip(4), BACKEND_PORT + 1);
    let refused = near.netns.run(|| TcpStream::connect_timeout(&to, Duration::from_millis(1500)));
    assert_eq!(refused.expect_err("the ACL drops").kind(), ErrorKind::TimedOut);
}
