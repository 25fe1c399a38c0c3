//! Faults that a test cannot make on the machine it runs on: the facts of such a host, and what is said of them.

use doctor::facts::{
    Feature, Features, HostFacts, Kernel, KernelVersion, Memlock, NicFacts, Ports, Rss, Socket,
    TunnelDevice,
};
use doctor::judge::reach::{Received, old_firewall, ports};
use doctor::judge::tunnel::Outer;
use doctor::judge::{host, nic};
use doctor::{Finding, Level};
use flow::TunnelType;
use netdev::ethtool::hardware::{Channels, FlowType, HashFields};
use netdev::{RxQueue, Steering, XdpMode};

/// A host with nothing wrong.
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
        may_load_programs: true,
        sysctls: sysctls.into_iter().map(pairs).collect(),
        mitigations: mitigations.into_iter().map(pairs).collect(),
        memlock: Some(Memlock { soft: 8 << 20, hard: 8 << 20 }),
        backlog_drops: Some(0),
        ..HostFacts::default()
    }
}

/// A card with four queues and everything on.
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
    findings.extend(nic::findings(card, facts, &[TunnelType::Vlan], Outer::DEFAULT));
    findings.extend(old_firewall(&facts.old_tables));
    findings.into_iter().filter(|finding| finding.level > Level::Pass).collect()
}

/// A change to a host, the check that names it, how bad it is, and a part of the command that mends it.
type Fault = (fn(&mut HostFacts), &'static str, Level, &'static str);

fn set(host: &mut HostFacts, key: &str, value: &str) {
    host.sysctls.insert(key.to_owned(), value.to_owned());
}

fn mitigate(host: &mut HostFacts, fault: &str, how: &str) {
    host.mitigations.insert(fault.to_owned(), how.to_owned());
}

/// Old, but with memory enough.
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
fn single_fault_of_a_host_is_named_alone() {
    assert_eq!(wrong(&healthy(), &card()), []);
    for (number, (fault, check, level, command)) in FAULTS.iter().enumerate() {
        let mut host = healthy();
        fault(&mut host);
        let found = wrong(&host, &card());
        let [finding] = found.as_slice() else { panic!("{number} {check}: {found:#?}") };
        assert_eq!((finding.check, finding.level), (*check, *level), "{number}");
        let mend = finding.mend.as_ref().unwrap().command();
        assert!(mend.contains(command), "{number} {check}: {mend}");
    }
}

#[test]
fn locked_memory_counts_on_kernels_that_count_it() {
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
fn processors_that_receive_nothing_are_found() {
    let steering = |masks: &[usize]| {
        let queue = |cpus: &usize| RxQueue { rps_cpus: (0..*cpus).collect(), rps_flows: 0 };
        Some(Steering { rx: masks.iter().map(queue).collect(), tx: Vec::new() })
    };
    // All four queues handed to one processor.
    let crowded = NicFacts { steering: steering(&[1, 1, 1, 1]), ..card() };
    let found = wrong(&healthy(), &crowded);
    assert_eq!(found[0].check, "rx_spreading");
    let command = found[0].mend.as_ref().unwrap().command();
    assert!(
        command.starts_with("echo f > /sys/class/net/eth0/queues/rx-0/rps_cpus; "),
        "{command}"
    );
    assert_eq!(wrong(&healthy(), &NicFacts { steering: steering(&[4, 4, 4, 4]), ..card() }), []);
    // One processor has nobody to share with; a veth receives where it is sent.
    let alone = HostFacts { cpus: [0].into_iter().collect(), ..healthy() };
    assert_eq!(wrong(&alone, &crowded), []);
    let veth = NicFacts { kind: Some("veth".to_owned()), channels: None, rx_queues: 1, ..card() };
    assert_eq!(wrong(&healthy(), &veth), []);
}

#[test]
fn cards_over_ipv6_are_judged_as_such() {
    let fields = |udp4, udp6| {
        let of = |bits| HashFields(bits);
        [(FlowType::Udp4, of(udp4)), (FlowType::Udp6, of(udp6))].into()
    };
    let rss = |fields| Some(Rss { table: vec![0, 1, 2, 3], fields });
    let outer = Outer::of(network::Family::V6);
    let tunnels = [TunnelType::Geneve];
    let said = |card: &NicFacts, outer| {
        let findings = nic::findings(card, &healthy(), &tunnels, outer);
        let worse = findings.into_iter().find(|finding| finding.level > Level::Pass);
        worse.map(|finding| finding.mend.unwrap().command())
    };
    let crowded = NicFacts { rss: rss(fields(0xf0, 0x30)), ..card() };
    assert_eq!(said(&crowded, Outer::DEFAULT), None);
    assert_eq!(said(&crowded, outer).as_deref(), Some("ethtool -N eth0 rx-flow-hash udp6 sdfn"));
    let spread = NicFacts { rss: rss(fields(0x30, 0xf0)), ..card() };
    assert_eq!(said(&spread, outer), None);
}

#[test]
fn what_could_not_be_read_of_a_card_is_said_and_the_rest_is_judged() {
    let unread = vec![("-g", "measure the rings of link 3: Input/output error".to_owned())];
    let found = wrong(&healthy(), &NicFacts { unread, carrier: false, ..card() });
    assert_eq!(found.iter().map(|f| f.check).collect::<Vec<_>>(), ["link", "nic"]);
    assert!(found[1].seen.starts_with("could not be examined: measure the rings"), "{found:#?}");
    assert_eq!(found[1].mend.as_ref().unwrap().command(), "ethtool -g eth0");
}

#[test]
fn program_at_xdp_is_named() {
    let found = wrong(&healthy(), &NicFacts { xdp_program: Some(XdpMode::Generic), ..card() });
    let [finding] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((finding.check, finding.level), ("xdp", Level::Warn));
    assert!(
        finding.mend.as_ref().unwrap().command().ends_with("ip link set dev eth0 xdpgeneric off")
    );
}

#[test]
fn port_of_a_bond_without_cable_is_no_failure() {
    let found = wrong(&healthy(), &NicFacts { carrier: false, is_bonded: true, ..card() });
    assert_eq!((found[0].check, found[0].level, found.len()), ("link", Level::Warn, 1));
}

#[test]
fn cable_that_is_not_there_is_a_failure() {
    for (up, carrier, command) in [(false, false, "ip link set eth0 up"), (true, false, "cable")] {
        let found = wrong(&healthy(), &NicFacts { up, carrier, ..card() });
        assert_eq!((found[0].check, found[0].level, found.len()), ("link", Level::Fail, 1));
        assert!(found[0].mend.as_ref().unwrap().command().contains(command));
    }
}

#[test]
fn whoever_has_the_port_of_a_tunnel_is_named() {
    let vxlan = Received::standard(TunnelType::Vxlan, &[]).unwrap();
    let gre = Received::standard(TunnelType::Gre, &[]).unwrap();
    let said = |held: &Ports, tunnel: &Received| {
        let found = ports(held, std::slice::from_ref(tunnel)).remove(0);
        (found.level, found.seen, found.mend.map(|mend| mend.command()))
    };
    let socket = |inode| Socket { protocol: 17, port: 4789, inode };
    let device = |name: &str, kind: &str, port, up| TunnelDevice {
        name: name.to_owned(),
        kind: kind.to_owned(),
        port,
        up,
    };
    let by = |program: &str| Ports {
        sockets: vec![socket(7)],
        programs: vec![(7, 42, program.to_owned())],
        ..Ports::default()
    };
    assert_eq!(said(&Ports::default(), &vxlan).1, "UDP port 4789 is free");
    let (level, seen, mend) = said(&by("ovs-vswitchd"), &vxlan);
    let look = "ps -o user=,args= -p 42; another udp_port in network.toml, or end that program by its own means";
    assert_eq!((level, mend.as_deref()), (Level::Fail, Some(look)));
    assert_eq!(seen, "UDP port 4789 is taken by ovs-vswitchd (process 42)");
    assert_eq!(said(&by("weft"), &vxlan).0, Level::Pass, "it is ours");
    // Without a privilege weft's own looks like anybody's.
    let unseen = |sees_all| Ports { sockets: vec![socket(7)], sees_all, ..Ports::default() };
    let (level, seen, mend) = said(&unseen(false), &vxlan);
    assert_eq!((level, mend.as_deref()), (Level::Warn, Some("sudo weft doctor")), "{seen}");
    let (level, seen, mend) = said(&unseen(true), &vxlan);
    assert!(level == Level::Warn && mend.unwrap().starts_with("ss -lunpt"), "{seen}");
    let kernel = Ports { sockets: vec![socket(0)], ..Ports::default() };
    assert_eq!(said(&kernel, &vxlan).0, Level::Fail);
    let ovs =
        Ports { devices: vec![device("vxlan_sys_4789", "vxlan", Some(4789), true)], ..kernel };
    assert!(said(&ovs, &vxlan).2.unwrap().starts_with("ovs-vsctl del-port"));
    let down =
        Ports { devices: vec![device("vx0", "vxlan", Some(4789), false)], ..Ports::default() };
    assert_eq!(said(&down, &vxlan).0, Level::Pass, "a device that is down has no socket");
    let tap = Ports { devices: vec![device("gre1", "gretap", None, true)], ..Ports::default() };
    assert_eq!(said(&tap, &gre).2.as_deref(), Some("ip link del gre1"));
}
