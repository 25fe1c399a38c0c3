//! Checks of NICs whose `ethtool -k` output was published. Each file in `recorded/` names its
//! source.
//!
//! No complete output was found for bnxt_en, and for i40e only that of a virtual function.

use doctor::Level;
use doctor::checks::nic::findings;
use doctor::checks::tunnel::{OuterHeaders, PerformedBy, tunnel_support};
use doctor::facts::{Feature, Features, HostFacts, NicFacts, Rss};
use flow::TunnelType;
use netdev::ethtool::hardware::{FlowType, HashFields};
use netdev::{RxQueue, Steering};

/// Features that `ethtool` shows under another name than the kernel.
const ALIASES: [(&str, &str); 8] = [
    ("rx-checksumming", "rx-checksum"),
    ("generic-segmentation-offload", "tx-generic-segmentation"),
    ("generic-receive-offload", "rx-gro"),
    ("large-receive-offload", "rx-lro"),
    ("rx-vlan-offload", "rx-vlan-hw-parse"),
    ("tx-vlan-offload", "tx-vlan-hw-insert"),
    ("ntuple-filters", "rx-ntuple-filter"),
    ("receive-hashing", "rx-hashing"),
];
/// Lines that summarise several features. They are skipped.
const SUMS: [&str; 3] = ["tx-checksumming", "scatter-gather", "tcp-segmentation-offload"];

/// Parses the `driver:` line of `ethtool -i` and the output of `ethtool -k`.
fn recorded(text: &str) -> NicFacts {
    let mut nic = NicFacts { up: true, carrier: true, mtu: 1500, ..NicFacts::default() };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    for (name, value) in lines.filter_map(|line| line.trim().split_once(':')) {
        let value = value.trim();
        if name == "driver" {
            nic.driver.driver = value.to_owned();
        } else if name.starts_with("Features for") {
            nic.name = name.rsplit(' ').next().unwrap().to_owned();
        } else if !SUMS.contains(&name) {
            let known = ALIASES.iter().find(|(alias, _)| *alias == name);
            let (on, note) = value.split_once(' ').unwrap_or((value, ""));
            let on = on == "on";
            let wanted = on || note == "[requested on]";
            let feature = Feature { on, fixed: note == "[fixed]", wanted };
            nic.features.0.insert(known.map_or(name, |(_, kernel)| kernel).to_owned(), feature);
        }
    }
    assert!(nic.features.0.len() > 40 && !nic.driver.driver.is_empty(), "{nic:?}");
    nic
}

/// The same NIC with RSS over 8 queues. Most drivers hash only the addresses of UDP by default.
fn eight_queues(nic: NicFacts, udp: u64) -> NicFacts {
    let fields = |bits| HashFields(bits);
    let rss = Rss {
        table: (0..128).map(|n| n % 8).collect(),
        fields: [(FlowType::Tcp4, fields(0xf0)), (FlowType::Udp4, fields(udp))].into(),
    };
    let steering = Steering { rx: vec![RxQueue::default(); 8], tx: Vec::new() };
    NicFacts { rss: Some(rss), steering: Some(steering), ..nic }
}

const ADDRESSES: u64 = 0x30;
const AND_PORTS: u64 = 0xf0;

const YES: PerformedBy = PerformedBy::Yes;
const SOFT: PerformedBy = PerformedBy::InSoftware;

/// The results for each tunnel type with outer checksums: segmentation for the user datapath, and
/// for the kernel datapath.
fn segmentation(nic: &NicFacts) -> Vec<(PerformedBy, Option<PerformedBy>)> {
    let outer = OuterHeaders { v6: false, checksum: true };
    let supports = TunnelType::ALL.map(|tunnel| tunnel_support(nic, tunnel, outer));
    let kernel = |v: &doctor::checks::tunnel::TunnelSupport| {
        v.kernel_segmentation.as_ref().map(|kernel| kernel.outcome)
    };
    supports.iter().map(|v| (v.segmentation.outcome, kernel(v))).collect()
}

/// The checks that are worse than PASS, for all tunnels.
fn wrong(nic: &NicFacts) -> Vec<&'static str> {
    let host = HostFacts { cpus: (0..8).collect(), ..HostFacts::default() };
    let findings = findings(nic, &host, &TunnelType::ALL, OuterHeaders::DEFAULT);
    findings.iter().filter(|f| f.level > Level::Pass).map(|f| f.check).collect()
}

#[test]
fn mlx5_segments_everything_except_two_tags() {
    let nic = recorded(include_str!("recorded/mlx5_core.txt"));
    let expected = [
        (YES, Some(YES)),
        (YES, Some(YES)),
        (PerformedBy::No, Some(YES)),
        (PerformedBy::No, Some(YES)),
        (YES, None),
        (YES, Some(YES)),
        (SOFT, Some(SOFT)),
    ];
    assert_eq!(segmentation(&nic), expected);
    let nic = eight_queues(nic, AND_PORTS);
    assert_eq!(wrong(&nic), Vec::<&str>::new());
    let spreads = |tunnel| tunnel_support(&nic, tunnel, OuterHeaders::DEFAULT).spreading.outcome;
    assert_eq!(spreads(TunnelType::Gre), YES, "it hashes the inner headers");
}

#[test]
fn ixgbe_segments_everything_and_receives_udp_of_one_host_on_one_queue() {
    let nic = eight_queues(recorded(include_str!("recorded/ixgbe.txt")), ADDRESSES);
    let all = segmentation(&nic);
    assert!(all[..2].iter().all(|found| *found == (YES, Some(YES))), "{all:?}");
    let spreads = |tunnel| tunnel_support(&nic, tunnel, OuterHeaders::DEFAULT).spreading.outcome;
    assert_eq!(spreads(TunnelType::Vxlan), PerformedBy::No);
    assert_eq!(spreads(TunnelType::Stt), YES, "it looks like TCP");
    let host = HostFacts { cpus: (0..8).collect(), ..HostFacts::default() };
    let found =
        findings(&nic, &host, &[TunnelType::Vxlan, TunnelType::Geneve], OuterHeaders::DEFAULT);
    let crowded = found.iter().find(|f| f.level > Level::Pass).unwrap();
    assert_eq!(crowded.check, "rx_spreading");
    let command = crowded.fix.as_ref().unwrap().command();
    assert_eq!(command, "ethtool -N em1 rx-flow-hash udp4 sdfn");
    let fixed = eight_queues(nic, AND_PORTS);
    assert!(
        findings(&fixed, &host, &[TunnelType::Vxlan], OuterHeaders::DEFAULT)
            .iter()
            .all(|f| f.level == Level::Pass)
    );
}

#[test]
fn bnx2x_segments_in_software_when_tcp_segmentation_is_off() {
    let nic = recorded(include_str!("recorded/bnx2x.txt"));
    let expected = [
        (SOFT, Some(SOFT)),
        (SOFT, Some(SOFT)),
        (PerformedBy::No, Some(SOFT)),
        (PerformedBy::No, Some(SOFT)),
        (SOFT, None),
        (SOFT, Some(SOFT)),
        (SOFT, Some(SOFT)),
    ];
    assert_eq!(segmentation(&nic), expected);
    // An offload that the device never had (tx-udp-segmentation) is no fault of the host.
    assert_eq!(wrong(&eight_queues(nic.clone(), AND_PORTS))[..2], ["tx_tcp", "tx_tcp6"]);
    let checksum = tunnel_support(&nic, TunnelType::Vxlan, OuterHeaders::DEFAULT).checksum;
    assert_eq!(checksum.outcome, YES, "{checksum:?}");
}

#[test]
fn virtual_function_without_udp_segmentation_serves_the_kernel_datapath_and_stt() {
    let nic = recorded(include_str!("recorded/i40evf.txt"));
    let expected = [
        (SOFT, Some(YES)),
        (SOFT, Some(YES)),
        (PerformedBy::No, Some(YES)),
        (PerformedBy::No, Some(YES)),
        (YES, None),
        (YES, Some(YES)),
        (PerformedBy::Unknown, Some(PerformedBy::Unknown)),
    ];
    assert_eq!(segmentation(&nic), expected);
    let cost = tunnel_support(&nic, TunnelType::Vxlan, OuterHeaders::DEFAULT).cost.unwrap();
    assert_eq!(cost.at_least, 0.46);
    assert_eq!(wrong(&eight_queues(nic, AND_PORTS))[..1], ["rx_gro"]);
}

#[test]
fn ice_segments_and_checksums_everything_including_two_tags() {
    let nic = recorded(include_str!("recorded/ice.txt"));
    let expected = [
        (YES, Some(YES)),
        (YES, Some(YES)),
        (PerformedBy::No, Some(YES)),
        (PerformedBy::No, Some(YES)),
        (YES, None),
        (YES, Some(YES)),
        (YES, Some(YES)),
    ];
    assert_eq!(segmentation(&nic), expected);
    for tunnel in TunnelType::ALL {
        for v6 in [false, true] {
            let checksum =
                tunnel_support(&nic, tunnel, OuterHeaders { v6, checksum: false }).checksum;
            assert_eq!(checksum.outcome, YES, "{tunnel}: {checksum:?}");
        }
    }
    assert_eq!(wrong(&eight_queues(nic, ADDRESSES)), ["rx_spreading"]);
}

#[test]
fn single_queue_is_fixed_by_rps() {
    let mut nic = recorded(include_str!("recorded/ixgbe.txt"));
    nic.steering = Some(Steering { rx: vec![RxQueue::default()], tx: Vec::new() });
    nic.rx_queues = 1;
    let host = HostFacts { cpus: (0..8).collect(), ..HostFacts::default() };
    let found = findings(&nic, &host, &[TunnelType::Stt], OuterHeaders::DEFAULT);
    let crowded = found.iter().find(|f| f.level > Level::Pass).unwrap();
    let command = crowded.fix.as_ref().unwrap().command();
    assert_eq!(command, "echo ff > /sys/class/net/em1/queues/rx-0/rps_cpus");
    assert_eq!(
        Features::default().get("rx-gro"),
        Feature { on: false, fixed: true, wanted: false }
    );
}
