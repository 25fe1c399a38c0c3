//! Tests of faults that a test cannot cause on its machine: the checks run on constructed facts.

use doctor::checks::tunnel::OuterHeaders;
use doctor::checks::tunnel_reception::{ReceivedTunnel, legacy_firewall, ports};
use doctor::checks::{host, nic};
use doctor::facts::{
    BoundSocket, Feature, Features, HostFacts, Kernel, KernelVersion, Memlock, NicFacts, Rss,
    TunnelDevice, TunnelListeners,
};
use doctor::{Finding, Level};
use flow::TunnelType;
use netdev::ethtool::hardware::{Channels, FlowType, HashFields};
use netdev::{RxQueue, Steering, XdpMode};

/// A host without faults.
fn healthy() -> HostFacts {
    let sysctls = [
        ("net/core/netdev_max_backlog", "10000"),
        ("net/ipv4/tcp_congestion_control", "cubic"),
        ("net/ipv4/ip_no_pmtu_disc", "0"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/eth0/rp_filter", "2"),
        ("net/bridge/bridge-nf-call-iptables", "1"),
        ("net/netfilter/nf_conntrack_count", "100"),
        ("net/netfilter/nf_conntrack_max", "262144"),
    ];
    let mitigations = [
        ("meltdown", "Not affected"),
        ("retbleed", "Not affected"),
        ("spectre_v2", "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional; RSB filling"),
        ("spec_rstack_overflow", "Not affected"),
    ];
    let pairs = |(a, b): (&str, &str)| (a.to_owned(), b.to_owned());
    HostFacts {
        cpus: (0..4).collect(),
        kernel: Kernel {
            release: "6.12.1".to_owned(),
            version: KernelVersion::new(6, 12),
            btf: true,
            jit: Some(true),
            tcx: true,
            clsact: true,
            kfuncs: Vec::new(),
            tun_tunnel_gso: Some(false),
        },
        sysctls: sysctls.into_iter().map(pairs).collect(),
        mitigations: mitigations.into_iter().map(pairs).collect(),
        memlock: Some(Memlock { soft: 8 << 20, hard: 8 << 20 }),
        backlog_drops: Some(0),
        ipsec_policies: Some(0),
        ..HostFacts::default()
    }
}

/// A NIC with four queues and all offloads on.
fn card() -> NicFacts {
    let on = Feature { on: true, fixed: false, wanted: true };
    let names = ["rx-gro", "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-udp-segmentation"];
    NicFacts {
        name: "eth0".to_owned(),
        mtu: 1500,
        up: true,
        carrier: true,
        rx_queues: 4,
        features: Features(names.into_iter().map(|name| (name.to_owned(), on)).collect()),
        channels: Some(Channels { rx: 4, tx: 4, rx_max: 4, tx_max: 4 }),
        steering: Some(Steering { rx: vec![RxQueue::default(); 4], tx: Vec::new() }),
        ..NicFacts::default()
    }
}

fn wrong(facts: &HostFacts, card: &NicFacts) -> Vec<Finding> {
    let mut findings = host::findings(facts, std::slice::from_ref(card));
    findings.extend(nic::findings(card, facts, &[TunnelType::Vlan], OuterHeaders::DEFAULT));
    findings.extend(legacy_firewall(&facts.old_tables));
    findings.into_iter().filter(|finding| finding.level > Level::Pass).collect()
}

/// A change to a host, the check that finds it, its severity, and a part of the fixing command.
type Fault = (fn(&mut HostFacts), &'static str, Level, &'static str);

fn set(host: &mut HostFacts, key: &str, value: &str) {
    host.sysctls.insert(key.to_owned(), value.to_owned());
}

fn mitigate(host: &mut HostFacts, fault: &str, how: &str) {
    host.mitigations.insert(fault.to_owned(), how.to_owned());
}

/// An old kernel without a limit on locked memory.
fn old_kernel(host: &mut HostFacts) {
    host.kernel.version = KernelVersion::new(5, 4);
    host.memlock = None;
}

const FAULTS: &[Fault] = &[
    (old_kernel, "kernel", Level::Fail, "install Linux 5.6"),
    (|h| h.missing = vec!["CAP_NET_RAW".to_owned()], "privileges", Level::Warn, "sudo weft doctor"),
    (|h| h.kernel.btf = false, "bpf", Level::Warn, "CONFIG_DEBUG_INFO_BTF=y"),
    (|h| h.kernel.jit = Some(false), "bpf", Level::Warn, "sysctl -w net.core.bpf_jit_enable=1"),
    (
        |h| set(h, "net/core/netdev_max_backlog", "1000"),
        "backlog",
        Level::Warn,
        "sysctl -w net.core.netdev_max_backlog=10000",
    ),
    (
        |h| set(h, "net/ipv4/tcp_congestion_control", "bbr"),
        "congestion_control",
        Level::Warn,
        "sysctl -w net.ipv4.tcp_congestion_control=cubic",
    ),
    (
        |h| set(h, "net/ipv4/conf/eth0/rp_filter", "1"),
        "rp_filter",
        Level::Warn,
        "sysctl -w net.ipv4.conf.eth0.rp_filter=2",
    ),
    (
        |h| h.bridges = vec!["br0".to_owned()],
        "bridge_filter",
        Level::Warn,
        "sysctl -w net.bridge.bridge-nf-call-iptables=0",
    ),
    (
        |h| set(h, "net/netfilter/nf_conntrack_count", "230000"),
        "conntrack",
        Level::Warn,
        "sysctl -w net.netfilter.nf_conntrack_max=1048576",
    ),
    (
        |h| set(h, "net/netfilter/nf_conntrack_count", "262144"),
        "conntrack",
        Level::Fail,
        "sysctl -w net.netfilter.nf_conntrack_max=1048576",
    ),
    (|h| h.ipsec_policies = Some(3), "ipsec", Level::Warn, "weft run --datapath user"),
    (|h| mitigate(h, "meltdown", "Mitigation: PTI"), "mitigations", Level::Warn, "pti=off"),
    (|h| mitigate(h, "retbleed", "Mitigation: IBRS"), "mitigations", Level::Warn, "retbleed=off"),
    (
        |h| mitigate(h, "retbleed", "Mitigation: untrained return thunk; SMT vulnerable"),
        "mitigations",
        Level::Warn,
        "retbleed=off",
    ),
    (
        |h| mitigate(h, "spec_rstack_overflow", "Mitigation: Safe RET"),
        "mitigations",
        Level::Warn,
        "spec_rstack_overflow=off",
    ),
    (
        |h| h.old_tables = vec!["ip filter".to_owned()],
        "firewall_legacy",
        Level::Warn,
        "iptables-legacy-save",
    ),
];

#[test]
fn single_fault_of_a_host_gives_one_finding() {
    assert_eq!(wrong(&healthy(), &card()), []);
    for (number, (fault, check, level, command)) in FAULTS.iter().enumerate() {
        let mut host = healthy();
        fault(&mut host);
        let found = wrong(&host, &card());
        let [finding] = found.as_slice() else { panic!("{number} {check}: {found:#?}") };
        assert_eq!((finding.check, finding.level), (*check, *level), "{number}");
        let fix = finding.fix.as_ref().unwrap().command();
        assert!(fix.contains(command), "{number} {check}: {fix}");
    }
}

#[test]
fn locked_memory_is_checked_on_kernels_that_account_it() {
    let old = |limit| {
        let mut host = healthy();
        host.kernel.version = KernelVersion::new(5, 10);
        host.memlock = Some(Memlock { soft: limit, hard: limit });
        wrong(&host, &card()).iter().map(|finding| finding.check).collect::<Vec<_>>()
    };
    assert_eq!(old(64 << 10), ["memlock"]);
    assert_eq!(old(u64::MAX), Vec::<&str>::new());
}

#[test]
fn receiving_on_one_cpu_is_found() {
    let steering = |masks: &[usize]| {
        let queue = |cpus: &usize| RxQueue { rps_cpus: (0..*cpus).collect(), rps_flows: 0 };
        Some(Steering { rx: masks.iter().map(queue).collect(), tx: Vec::new() })
    };
    // RPS sends the packets of all four queues to one CPU.
    let crowded = NicFacts { steering: steering(&[1, 1, 1, 1]), ..card() };
    let found = wrong(&healthy(), &crowded);
    assert_eq!(found[0].check, "rx_spreading");
    let command = found[0].fix.as_ref().unwrap().command();
    assert!(
        command.starts_with("echo f > /sys/class/net/eth0/queues/rx-0/rps_cpus; "),
        "{command}"
    );
    assert_eq!(wrong(&healthy(), &NicFacts { steering: steering(&[4, 4, 4, 4]), ..card() }), []);
    // No finding: a host with one CPU cannot spread packets, and a veth receives on the sender's
    // CPU.
    let alone = HostFacts { cpus: [0].into_iter().collect(), ..healthy() };
    assert_eq!(wrong(&alone, &crowded), []);
    let veth = NicFacts { kind: Some("veth".to_owned()), channels: None, rx_queues: 1, ..card() };
    assert_eq!(wrong(&healthy(), &veth), []);
}

#[test]
fn nic_is_checked_for_ipv6_when_the_underlay_is_ipv6() {
    let fields = |udp4, udp6| {
        let of = |bits| HashFields(bits);
        [(FlowType::Udp4, of(udp4)), (FlowType::Udp6, of(udp6))].into()
    };
    let rss = |fields| Some(Rss { table: vec![0, 1, 2, 3], fields });
    let outer = OuterHeaders::of(network::UnderlayFamily::V6);
    let tunnels = [TunnelType::Geneve];
    let recommended = |card: &NicFacts, outer| {
        let findings = nic::findings(card, &healthy(), &tunnels, outer);
        let worse = findings.into_iter().find(|finding| finding.level > Level::Pass);
        worse.map(|finding| finding.fix.unwrap().command())
    };
    let crowded = NicFacts { rss: rss(fields(0xf0, 0x30)), ..card() };
    assert_eq!(recommended(&crowded, OuterHeaders::DEFAULT), None);
    assert_eq!(
        recommended(&crowded, outer).as_deref(),
        Some("ethtool -N eth0 rx-flow-hash udp6 sdfn")
    );
    let spread = NicFacts { rss: rss(fields(0x30, 0xf0)), ..card() };
    assert_eq!(recommended(&spread, outer), None);
}

#[test]
fn unreadable_values_of_a_nic_are_findings_beside_the_other_checks() {
    let unread = vec![("-g", "read the rings of link 3: Input/output error".to_owned())];
    let found = wrong(&healthy(), &NicFacts { unread, carrier: false, ..card() });
    assert_eq!(found.iter().map(|f| f.check).collect::<Vec<_>>(), ["link", "nic"]);
    assert!(found[1].seen.starts_with("cannot be read: read the rings"), "{found:#?}");
    assert_eq!(found[1].fix.as_ref().unwrap().command(), "ethtool -g eth0");
}

#[test]
fn xdp_program_is_found() {
    let found = wrong(&healthy(), &NicFacts { xdp_program: Some(XdpMode::Generic), ..card() });
    let [finding] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((finding.check, finding.level), ("xdp", Level::Warn));
    assert!(
        finding.fix.as_ref().unwrap().command().ends_with("ip link set dev eth0 xdpgeneric off")
    );
}

#[test]
fn bond_port_without_carrier_is_a_warning() {
    let found = wrong(&healthy(), &NicFacts { carrier: false, is_bonded: true, ..card() });
    assert_eq!((found[0].check, found[0].level, found.len()), ("link", Level::Warn, 1));
}

#[test]
fn missing_carrier_is_a_failure() {
    for (up, carrier, command) in [(false, false, "ip link set eth0 up"), (true, false, "cable")] {
        let found = wrong(&healthy(), &NicFacts { up, carrier, ..card() });
        assert_eq!((found[0].check, found[0].level, found.len()), ("link", Level::Fail, 1));
        assert!(found[0].fix.as_ref().unwrap().command().contains(command));
    }
}

#[test]
fn owner_of_a_tunnel_port_is_named() {
    let vxlan = ReceivedTunnel::standard(TunnelType::Vxlan, &[]).unwrap();
    let gre = ReceivedTunnel::standard(TunnelType::Gre, &[]).unwrap();
    let check_port = |held: &TunnelListeners, tunnel: &ReceivedTunnel| {
        let found = ports(held, std::slice::from_ref(tunnel)).remove(0);
        (found.level, found.seen, found.fix.map(|fix| fix.command()))
    };
    let socket = |inode| BoundSocket { protocol: 17, port: 4789, inode };
    let device = |name: &str, kind: &str, port, up| TunnelDevice {
        name: name.to_owned(),
        kind: kind.to_owned(),
        port,
        up,
    };
    let by = |program: &str| TunnelListeners {
        sockets: vec![socket(7)],
        programs: vec![(7, 42, program.to_owned())],
        ..TunnelListeners::default()
    };
    assert_eq!(check_port(&TunnelListeners::default(), &vxlan).1, "UDP port 4789 is free");
    let (level, seen, fix) = check_port(&by("ovs-vswitchd"), &vxlan);
    let look = "ps -o user=,args= -p 42; then stop that program, or set another udp_port in \
                network.toml";
    assert_eq!((level, fix.as_deref()), (Level::Fail, Some(look)));
    assert_eq!(seen, "UDP port 4789 is used by ovs-vswitchd (process 42)");
    assert_eq!(check_port(&by("weft"), &vxlan).0, Level::Pass, "it is ours");
    // Without CAP_SYS_PTRACE, the owner of a socket is unknown, even if it is weft.
    let unseen = |sees_all_processes| TunnelListeners {
        sockets: vec![socket(7)],
        sees_all_processes,
        ..TunnelListeners::default()
    };
    let (level, seen, fix) = check_port(&unseen(false), &vxlan);
    assert_eq!((level, fix.as_deref()), (Level::Warn, Some("sudo weft doctor")), "{seen}");
    let (level, seen, fix) = check_port(&unseen(true), &vxlan);
    assert!(level == Level::Warn && fix.unwrap().starts_with("ss -lunpt"), "{seen}");
    let kernel = TunnelListeners { sockets: vec![socket(0)], ..TunnelListeners::default() };
    assert_eq!(check_port(&kernel, &vxlan).0, Level::Fail);
    let ovs = TunnelListeners {
        devices: vec![device("vxlan_sys_4789", "vxlan", Some(4789), true)],
        ..kernel
    };
    assert!(check_port(&ovs, &vxlan).2.unwrap().starts_with("ovs-vsctl del-port"));
    let down = TunnelListeners {
        devices: vec![device("vx0", "vxlan", Some(4789), false)],
        ..TunnelListeners::default()
    };
    assert_eq!(check_port(&down, &vxlan).0, Level::Pass, "a device that is down has no socket");
    let tap = TunnelListeners {
        devices: vec![device("gre1", "gretap", None, true)],
        ..TunnelListeners::default()
    };
    assert_eq!(check_port(&tap, &gre).2.as_deref(), Some("ip link del gre1"));
}
