//! Forged outer sources: packets from the address of a known host, although the route to that host
//! does not lead over the uplink. And packets that IPsec forbids.

use super::gre::gre;
use super::stt::stt;
use super::target::{FORBIDDEN, Target, Wrap};
use super::vxlan::{VXLAN_PORT, vxlan};
use crate::common::daemon::WEFT;
use crate::common::frames::{contains, note};
use crate::common::{Datapath, PATIENCE, Setup};
use std::process::Command;
use testkit::host::wait_until;
use testkit::require_root;

const PACKETS: u64 = 20;
/// An interface of the target beside its uplink.
const OTHER: &str = "other0";

/// Applies the network file with or without the check.
fn reload(target: &Target, original: &str, is_checked: bool) {
    let more = if is_checked { "[underlay]\nauthenticate = \"reverse-path\"\n" } else { "" };
    let file = target.lab.network_file();
    std::fs::write(&file, format!("{original}\n{more}")).expect("a file can be written");
    let mut weft = Command::new(WEFT);
    weft.arg("reload").arg("--control").arg(target.lab.control(0)).arg(file);
    let output = weft.output().expect("weft can be started");
    assert!(output.status.success(), "{output:?}");
}

/// Adds or deletes a route to the other host by [`OTHER`].
fn route(target: &Target, change: &str) {
    let host = &target.lab.hosts[0].netns;
    let remote = target.lab.hosts[1].underlay(target.lab.family());
    let mut ip = host.program("ip");
    ip.args(["route", change, &remote.to_string(), "dev", OTHER]);
    let output = ip.output().expect("ip can be started");
    assert!(output.status.success(), "{output:?}");
}

fn wait_refused(target: &Target, is_refused: bool) {
    wait_until(PATIENCE, "the daemon has read the route", || {
        target.daemon.show().endpoints[0].refused == is_refused
    });
}

fn delivers(target: &mut Target, wrap: Wrap, what: &str) {
    let inner = note(target.near(), target.far(), what);
    let packet = wrap(&target.outer, &inner);
    target.delivers(wrap, what, &packet, &inner);
}

/// Sends packets that must be dropped as those of an unknown host are.
fn refuses(target: &Target, wrap: Wrap) {
    let refused =
        |target: &Target| target.dropped().get("unknown_endpoint").copied().unwrap_or_default();
    let before = refused(target);
    let forged = wrap(&target.outer, &target.forbidden());
    (0..PACKETS).for_each(|_| target.wire.send(&forged));
    wait_until(PATIENCE, "all are counted", || refused(target) >= before + PACKETS);
    assert_eq!(refused(target), before + PACKETS);
}

#[test]
fn packets_of_a_known_host_are_dropped_when_the_route_to_it_leads_elsewhere() {
    require_root!();
    for (tunnel, wrap, family) in [("vxlan", vxlan as Wrap, 4), ("gre", gre, 6), ("stt", stt, 4)] {
        let setup = Setup::new(tunnel).family(family);
        // The packets of these tests name no logical ports.
        let has_ports = tunnel == "stt";
        let setup = if has_ports { setup.options("logical_ports = false") } else { setup };
        let mut target = Target::new(setup);
        let host = &target.lab.hosts[0].netns;
        let script = format!(
            "ip link add {OTHER} type veth peer name other1 && \
             ip link set {OTHER} up && ip link set other1 up"
        );
        let made = host.program("sh").args(["-c", &script]).status().expect("sh can be started");
        assert!(made.success());
        let file = target.lab.network_file();
        let original = std::fs::read_to_string(file).expect("a network file");
        delivers(&mut target, wrap, "by the uplink");
        route(&target, "add");
        delivers(&mut target, wrap, "unchecked");
        reload(&target, &original, true);
        wait_refused(&target, true);
        target.daemon.wait_says("the route to an end point does not lead over the uplink");
        refuses(&target, wrap);
        route(&target, "del");
        wait_refused(&target, false);
        let seen = target.seen(wrap, &[]);
        assert!(!seen.iter().any(|frame| contains(frame, FORBIDDEN)), "{tunnel}: delivered");
        delivers(&mut target, wrap, "by the uplink again");
        route(&target, "add");
        wait_refused(&target, true);
        refuses(&target, wrap);
        reload(&target, &original, false);
        wait_refused(&target, false);
        delivers(&mut target, wrap, "unchecked again");
        target.finish();
    }
}

/// Packets that the policies of IPsec have blocked on the way in.
fn blocked(target: &Target) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/xfrm_stat");
    let text = target.lab.hosts[0].netns.run(read).expect("the counters of IPsec");
    let line = text.lines().find(|line| line.starts_with("XfrmInPolBlock"));
    let count = line.and_then(|line| line.split_whitespace().last()?.parse().ok());
    count.expect("a count")
}

/// The level of the doctor's finding about IPsec on the target, and what it has seen.
fn ipsec_finding(target: &Target) -> (String, String) {
    let mut weft = target.lab.hosts[0].netns.program(WEFT);
    weft.args(["doctor", "--json", "--nic"]).arg(&target.lab.hosts[0].uplink.name);
    let output = weft.output().expect("weft can be started");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    let findings = report["findings"].as_array().expect("findings");
    let finding = findings.iter().find(|finding| finding["check"] == "ipsec").expect("the check");
    let text = |key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    (text("level"), text("seen"))
}

/// IPsec below the tunnels depends on it.
#[test]
fn packets_that_a_policy_of_ipsec_forbids_are_dropped_when_threads_forward() {
    require_root!();
    let mut target = Target::new(Setup::new("vxlan").datapath(Datapath::User));
    delivers(&mut target, vxlan, "without a policy");
    let (src, dst) = (target.outer.src, target.outer.dst);
    let policy = format!("dir in src {src} dst {dst} proto udp dport {VXLAN_PORT}");
    let host = &target.lab.hosts[0].netns;
    let mut ip = host.program("ip");
    ip.args(["xfrm", "policy", "add"]).args(policy.split(' ')).args(["action", "block"]);
    assert!(ip.status().expect("ip can be started").success(), "a policy can be added");
    let before = blocked(&target);
    let plain = vxlan(&target.outer, &target.forbidden());
    (0..PACKETS).for_each(|_| target.wire.send(&plain));
    wait_until(PATIENCE, "all are blocked", || blocked(&target) >= before + PACKETS);
    assert_eq!(ipsec_finding(&target), ("warn".to_owned(), "IPsec policies: 1".to_owned()));
    let mut ip = target.lab.hosts[0].netns.program("ip");
    ip.args(["xfrm", "policy", "flush"]);
    assert!(ip.status().expect("ip can be started").success(), "policies can be removed");
    assert_eq!(ipsec_finding(&target), ("pass".to_owned(), "IPsec policies: 0".to_owned()));
    let seen = target.seen(vxlan, &[]);
    assert!(!seen.iter().any(|frame| contains(frame, FORBIDDEN)), "delivered");
    target.finish();
}
