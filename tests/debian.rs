//! Tests in an emulated machine with the kernel of Debian 12. This kernel has no tcx, so eBPF
//! programs are attached with clsact. It has modules for Geneve, GRE and Open vSwitch, which the
//! host's kernel may lack.
//!
//! The ignored tests run inside the machine. The other tests boot it and run the ignored ones. The
//! clock of the machine counts instructions, so timeouts there do not depend on the load of this
//! host.

mod doctor;

use crate::common::daemon::WEFT;
use crate::common::{Daemon, Datapath, Host, Lab, Setup, traffic};
use crate::peers::open_vswitch::{Counted, OpenVswitch, Tunnel};
use crate::peers::{MTU, guests_exchange, kernel, nothing_was_refused, tried};
use crate::refusals::checksums;
use std::path::Path;
use std::time::Duration;
use testkit::host::TestHost;
use testkit::vm::{Extra, Vm};
use testkit::{report, require_program, require_vm};

/// Length of a stream in bytes: several super-packets.
const LEN: usize = 1 << 20;

/// Kernel modules for the namespaces of a lab and for the kernel datapath.
const SWITCH: &[&str] = &["veth", "tun", "sch_ingress", "cls_bpf"];
/// Kernel modules of tunnel devices.
const TUNNELS: &[&str] =
    &["bridge", "udp_tunnel", "ip6_udp_tunnel", "vxlan", "geneve", "ip_tunnel", "gre", "ip_gre"];
/// Kernel modules for connection tracking.
const CONNTRACK: &[&str] = &[
    "crc32c_generic",
    "libcrc32c",
    "nf_defrag_ipv4",
    "nf_defrag_ipv6",
    "nf_conntrack",
    "nfnetlink",
    "nf_conntrack_netlink",
];
/// Kernel modules of Open vSwitch.
const OVS: &[&str] = &[
    "crc32c_generic",
    "libcrc32c",
    "nsh",
    "nf_defrag_ipv4",
    "nf_defrag_ipv6",
    "nf_conntrack",
    "nf_nat",
    "nf_conncount",
    "nfnetlink",
    "nf_conntrack_netlink",
    "openvswitch",
    "vport-geneve",
    "vport-gre",
    "vport-vxlan",
];
const OVS_PROGRAMS: [&str; 6] =
    ["ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl", "ovs-appctl"];
const OVS_SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Runs ignored tests in a machine with these kernel modules. Copies the peers (real
/// implementations) that they report into the report of this run.
fn in_the_machine(tests: &[&str], modules: &[&str], programs: &[(&str, &Path)], files: &[&str]) {
    let host = TestHost::new("debian");
    let this = std::env::current_exe().expect("this program has a path");
    let programs =
        [&[("/bin/program", this.as_path()), (WEFT, Path::new(WEFT))], programs].concat();
    let modules = [SWITCH, modules].concat();
    let mut vm = Vm::counting(&host, &Extra { programs: &programs, files, modules: &modules });
    vm.run("mount -t tmpfs run /run");
    let release = vm.run("uname -r");
    let names: Vec<_> = tests.iter().map(|test| format!("debian::{test}")).collect();
    let names = names.join(" ");
    let (code, printed) =
        vm.try_run(&format!("/bin/program --ignored --exact {names} --nocapture --test-threads 1"));
    println!("Linux {release}{printed}");
    let passed = printed.contains(&format!("{} passed", tests.len()));
    assert!(code == 0 && passed, "one of {names} failed under Linux {release}");
    // On a test's first line, the output of the test harness precedes `PEER`.
    for line in printed.lines().filter_map(|line| line.split_once("PEER ").map(|(_, line)| line)) {
        let (name, what) = line.split_once(": ").expect("a peer and what was exchanged");
        report::peer(name, &format!("{what}; Linux {}", release.trim()));
    }
}

/// The number of packets that the eBPF programs punted to the only daemon of the host.
fn punted(host: &Host) -> u64 {
    let links = host.netns.netlink().links().expect("the links of the host");
    let device = links.iter().find(|link| link.name.starts_with("weft-up"));
    device.expect("the TAP device for punts").stats.tx_packets
}

/// All tests that need no other program share one machine, because a boot takes as long as starting
/// two daemons.
#[test]
fn programs_tunnels_and_the_doctor_are_right_under_debians_kernel() {
    require_vm!();
    let tests = [
        "programs_forward",
        "checksums_are_completed_before_the_lookup",
        "guests_talk_when_the_peers_are_tunnel_devices",
        "doctor::segments_behind_tags_are_merged_as_predicted",
        "doctor::single_fault_of_the_machine_gives_one_finding_and_its_command_fixes_it",
    ];
    in_the_machine(&tests, &[CONNTRACK, TUNNELS].concat(), &[], &[]);
}

// Loading the eBPF programs in the machine takes 4 s of processor time, because the verifier is
// emulated too. So each test here has only the cases that are specific to this kernel.

/// Tests two hosts with the kernel datapath. A super-packet counts as one packet, so the numbers of
/// packets are small.
#[test]
#[ignore = "runs in the machine with Debian's kernel"]
fn programs_forward() {
    for family in [4, 6] {
        // The setup selects no datapath. This kernel supports the kernel datapath, so weft must
        // choose it.
        let lab = Lab::new(Setup::new("vxlan").family(family).mtu(MTU).guests(2, 1));
        let daemons = lab.start_both();
        for daemon in &daemons {
            assert_eq!(daemon.show().datapath, "kernel");
            daemon.wait_says("by clsact");
        }
        let drops = daemons.each_ref().map(Daemon::drops);
        guests_exchange(&lab, LEN);
        // The programs punt fragments, and then for one second all packets of the same megaflow.
        std::thread::sleep(Duration::from_millis(1500));
        let served: Vec<u64> = (lab.hosts.iter().zip(&daemons))
            .map(|(host, daemon)| {
                let before = punted(host);
                let rx = || daemon.show().ports.iter().map(|port| port.rx.packets).sum::<u64>();
                let (a, b) = lab.ends();
                let counted = rx();
                traffic::tcp(a, b, 4, LEN);
                let (all, handed) = (rx() - counted, punted(host) - before);
                println!("{all} packets of guests, {handed} punted");
                all.saturating_sub(handed)
            })
            .collect();
        // Over IPv6 every segment needs an outer UDP checksum. eBPF programs cannot request this
        // for super-packets, so the super-packets of h1 are punted.
        let first = usize::from(family == 6);
        let few = served[first..].iter().any(|&served| served <= 10);
        assert!(!few, "over IPv{family}, programs served {served:?}");
        // Traffic between guests of one host uses no tunnel.
        traffic::tcp(&lab.guests[0], &lab.guests[1], 6, LEN);
        assert_eq!(daemons.each_ref().map(Daemon::drops), drops, "something was dropped");
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
#[ignore = "runs in the machine with Debian's kernel"]
fn checksums_are_completed_before_the_lookup() {
    // eBPF programs complete a checksum before they know the tunnel type, so one type suffices
    // here. A test with the kernel of this host covers all types.
    let setup = Setup::new("geneve").datapath(Datapath::Kernel);
    checksums::are_completed_before_the_lookup(setup, 2, "geneve");
}

#[test]
#[ignore = "runs in the machine with Debian's kernel"]
fn guests_talk_when_the_peers_are_tunnel_devices() {
    // The module `kernel_vxlan` tests VXLAN, which does not need this machine.
    let with_kernel =
        [("geneve", 4), ("geneve", 6), ("gre", 4)].map(|peer| (peer, Datapath::Kernel));
    let with_user = [("geneve", 4), ("gre", 4)].map(|peer| (peer, Datapath::User));
    for ((tunnel, family), datapath) in with_kernel.into_iter().chain(with_user) {
        let setup = Setup::new(tunnel).family(family).mtu(MTU).datapath(datapath);
        let setup = if tunnel == "geneve" { setup.options("logical_ports = false") } else { setup };
        let lab = Lab::new(setup);
        lab.ends().1.attach(&lab.hosts[1], MTU);
        match tunnel {
            "geneve" => kernel::attach_geneve(&lab, true),
            _ => kernel::attach_gre(&lab),
        }
        let daemon = lab.start(0);
        guests_exchange(&lab, LEN);
        nothing_was_refused(&daemon);
        tried(&daemon, &format!("Linux kernel {tunnel}"), &format!("over IPv{family}"));
        daemon.stop();
    }
}

#[test]
fn guests_talk_when_the_peer_is_ovs_with_its_kernel_module() {
    require_vm!();
    require_program!("ovs-vswitchd", "openvswitch-switch");
    let found =
        OVS_PROGRAMS.map(|name| report::find_program(name).expect("all come with one package"));
    let programs: Vec<(&str, &Path)> =
        found.iter().map(|path| (path.to_str().expect("ASCII"), path.as_path())).collect();
    let modules = [TUNNELS, OVS].concat();
    in_the_machine(&["guests_talk_when_the_peer_is_ovs"], &modules, &programs, &[OVS_SCHEMA]);
}

#[test]
#[ignore = "runs in the machine with Debian's kernel"]
fn guests_talk_when_the_peer_is_ovs() {
    // Open vSwitch 3.1 detects the processors of a machine only ten seconds after its boot.
    std::thread::sleep(Duration::from_secs(12));
    let plain = Tunnel {
        kind: "",
        options: &["options:csum=true"],
        logical_ports: false,
        datapath: Datapath::Kernel,
    };
    // With GRE, Open vSwitch sends checksums but drops packets that contain one: ip_tunnel_rcv()
    // uses the device of Open vSwitch, which has no checksum flag. So weft sends none here. The
    // tests of `ovs` use the userspace datapath of Open vSwitch as the peer, also over IPv6.
    for (kind, family) in [("geneve", 4), ("vxlan", 4), ("gre", 4)] {
        let setup = Setup::new(kind).family(family).mtu(MTU).datapath(Datapath::Kernel);
        let lab = Lab::new(setup);
        let tunnel = Tunnel { kind, logical_ports: kind == "geneve", ..plain };
        let peer = OpenVswitch::start(&lab, tunnel);
        let daemon = lab.start(0);
        guests_exchange(&lab, LEN);
        nothing_was_refused(&daemon);
        let [unicast, unexpected] = peer.packets([Counted::Unicast, Counted::Unexpected]);
        assert!(unicast > 10, "few packets had the right keys");
        assert_eq!(unexpected, 0, "packets with other keys arrived");
        tried(&daemon, "Open vSwitch's kernel module", &format!("{kind} over IPv{family}"));
        daemon.stop();
    }
}
