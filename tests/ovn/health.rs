//! Tests health checks of OVN, whose results are in the table `Service_Monitor`.

use super::clients::{backends_of, wait_accepted};
use super::{Hosts, balanced, lab_of, metrics_socket};
use crate::commands::call::weft;
use crate::common::traffic::EchoServer;
use crate::common::{Guest, PATIENCE};
use crate::metrics::scrape;
use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::time::Duration;
use testkit::host::wait_until;
use testkit::ovn::Ovn;

const BACKEND_PORT: u16 = 8080;
/// The source address of the checks.
const SOURCE: &str = "192.168.7.250";

/// The status in the row of a guest and protocol; empty before the first check.
fn status(ovn: &Ovn, guest: &Guest, protocol: &str) -> String {
    let row = format!("logical_port={} protocol={protocol}", guest.name);
    ovn.sbctl(&format!("--bare --columns=status find Service_Monitor {row}")).trim().to_owned()
}

fn wait_status(ovn: &Ovn, guest: &Guest, protocol: &str, expected: &str) {
    let what = format!("{} is {expected}", guest.name);
    wait_until(PATIENCE, &what, || {
        let is_expected = status(ovn, guest, protocol) == expected;
        if !is_expected {
            // A check takes a second, and each query starts a program.
            std::thread::sleep(Duration::from_millis(150));
        }
        is_expected
    });
}

#[test]
fn backend_of_an_ovn_gets_no_connections_while_its_health_checks_fail() {
    require_ovn!();
    let lab = lab_of(2, 1);
    let ovn = Ovn::start("health");
    let [client, near, far] = &lab.guests[..] else { panic!("three guests") };
    balanced::configure(&ovn, &lab, &[near, far]);
    let mapping =
        |guest: &Guest| format!("'ip_port_mappings:{}=\"{}:{SOURCE}\"'", guest.ip4, guest.name);
    let mappings = format!("{} {}", mapping(near), mapping(far));
    let options = "options:interval=1 options:timeout=1 options:failure_count=2";
    let mut commands = vec![format!(
        "lb-add dns 10.9.9.9:53 {}:53,{}:53 udp -- ls-lb-add blue dns",
        near.ip4, far.ip4
    )];
    for (balancer, port) in [("web", 80), ("dns", 53)] {
        commands.push(format!(
            "--id=@{balancer} create Load_Balancer_Health_Check 'vip=\"10.9.9.9:{port}\"' \
             {options} -- add Load_Balancer {balancer} health_check @{balancer} -- \
             set Load_Balancer {balancer} {mappings}"
        ));
    }
    ovn.configure(&commands);
    let hosts = Hosts::start(&lab, &ovn);
    let serve = |guest: &Guest| EchoServer::start(guest, 4, BACKEND_PORT);
    let served = || backends_of(client, balanced::vip(4), 16);
    let both = BTreeSet::from([near.name.clone(), far.name.clone()]);
    for (stopped, other) in [(near, far), (far, near)] {
        let (server, _other) = (serve(stopped), serve(other));
        for guest in [near, far] {
            wait_status(&ovn, guest, "tcp", "online");
        }
        wait_until(PATIENCE, "both serve", || served() == both);
        drop(server);
        wait_status(&ovn, stopped, "tcp", "offline");
        wait_accepted(client, balanced::vip(4));
        assert_eq!(served(), BTreeSet::from([other.name.clone()]));
        // The host of the backend performs the checks.
        let at = lab.control(stopped.host);
        let (_, shown, _) = weft(&at, &["show"]);
        let row = format!(
            "backend {}:{BACKEND_PORT}  port {}  tcp offline: refused",
            stopped.ip4, stopped.name
        );
        assert!(shown.lines().any(|line| line == row), "{shown}");
        let name = format!(
            "weft_backend_online{{load_balancer=\"\",backend=\"{}:{BACKEND_PORT}\",port=\"{}\"}}",
            stopped.ip4, stopped.name
        );
        assert_eq!(scrape(&metrics_socket(&lab, stopped.host))[name.as_str()], 0.0);
        let _server = serve(stopped);
        wait_status(&ovn, stopped, "tcp", "online");
    }
    // A closed UDP port is detected by an ICMP error. An open one does not respond.
    wait_status(&ovn, far, "udp", "offline");
    let address = (far.ip(4), 53);
    let bound = far.netns.run(|| UdpSocket::bind(address)).expect("a socket");
    wait_status(&ovn, far, "udp", "online");
    drop(bound);
    wait_status(&ovn, far, "udp", "offline");
    hosts.stop(&ovn);
}
