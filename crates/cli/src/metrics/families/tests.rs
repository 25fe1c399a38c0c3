use super::*;
use crate::control::replies::{ConnectionTotals, ConnectionUse, LocalEnd, RemoteEnd, TunnelsReply};
use crate::metrics::exposition::{Format, MAX_SAMPLES, render};
use crate::metrics::{OvnFacts, PortDrops, ProcessFacts};
use datapath::stats::{
    BackendHealth, Drops, EndpointStats, MapUse, PacketCount, PathMtuReport, PortStats,
    SlowPathStats, Snapshot,
};
use std::collections::BTreeSet;

/// An observation with values for all metrics, this many ports, and two end points.
fn observation(ports: u32) -> Observation {
    let count = PacketCount { packets: 5, bytes: 500 };
    let reasons = |names: &[&str]| -> Drops {
        (1..).zip(names).map(|(count, name)| ((*name).to_owned(), count)).collect()
    };
    let port = |number: u32| PortStats {
        port: number,
        name: format!("vm{number}"),
        logical_switch: "blue".to_owned(),
        device: format!("vif{number}"),
        state: if number == 2 { "down: no device" } else { "up" }.to_owned(),
        rx: count,
        tx: count,
        drops: reasons(&["malformed", "unknown_mac", "flow_drop"]),
        slow_path: SlowPathStats {
            upcalls: 3,
            upcall_cpu_ns: 250_000_000,
            upcall_cpu_limit_percent: 25,
            punted: 4,
            punted_cpu_ns: 500_000_000,
        },
    };
    let uses = |number: u32| {
        ["zone", "port"].map(|what| ConnectionUse {
            what: what.to_owned(),
            name: format!("vm{number}"),
            connections: 9,
            limit: (what == "port").then_some(100),
        })
    };
    let limited = ConnectionUse { limit: Some(7), ..uses(0)[0].clone() };
    let end = |number: u8| RemoteEnd {
        host: (number == 1).then(|| "h2".to_owned()),
        stats: EndpointStats {
            tunnel: "geneve".to_owned(),
            local: [192, 0, 2, 1].into(),
            remote: [192, 0, 2, 10 + number].into(),
            neighbour: if number == 1 { "resolved" } else { "unresolved" }.to_owned(),
            refused: false,
            path_mtu: 1500,
            path_mtu_report: (number == 1).then_some(PathMtuReport {
                mtu: 1400,
                router: Some([192, 0, 2, 254].into()),
                age_s: 4,
            }),
            rx: count,
            tx: count,
        },
    };
    let mut show = Snapshot {
        ports: (1..=ports).map(port).collect(),
        maps: vec![MapUse { name: "weft_flows".to_owned(), entries: 3, limit: 10 }],
        ..Snapshot::default()
    };
    show.uplink.drops = reasons(&["malformed"]);
    show.health.backends = vec![BackendHealth {
        balancer: "web".to_owned(),
        backend: ([10, 0, 1, 11], 80).into(),
        port: "web1".to_owned(),
        kind: "tcp".to_owned(),
        status: "offline".to_owned(),
        failure: Some("refused".to_owned()),
    }];
    let local = LocalEnd { tunnel: "geneve".into(), local: [192, 0, 2, 1].into(), port: 6081 };
    Observation {
        port_drops: PortDrops::default().sums(&show.ports),
        show,
        tunnels: TunnelsReply {
            local: vec![local],
            endpoints: vec![end(1), end(2)],
            ..TunnelsReply::default()
        },
        connections: ConnectionTotals {
            refused: reasons(&["ct_table_full"]),
            invalid: reasons(&["checksum"]),
            ..ConnectionTotals::default()
        },
        connection_use: (1..=ports).flat_map(uses).chain([limited]).collect(),
        ovn: Some(OvnFacts {
            read_nb_cfg: Some(8),
            installed_nb_cfg: Some(7),
            ..OvnFacts::default()
        }),
        process: Some(ProcessFacts::default()),
        ..Observation::default()
    }
}

/// The samples of a text: name with labels, and value.
fn samples(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap()).collect()
}

#[test]
fn names_and_help_follow_the_rules_of_prometheus() {
    let mut names = BTreeSet::new();
    for Family { name, kind, labels, help, .. } in all() {
        assert!(names.insert(name), "{name} is in the table twice");
        assert!(name.starts_with("weft_"), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        for suffix in ["_total", "_info", "_count", "_sum", "_bucket", "_created"] {
            assert!(!name.ends_with(suffix), "{name}: the writer adds {suffix}");
        }
        for word in ["counter", "gauge", "histogram", "milliseconds", "_ms", "kilobytes"] {
            assert!(!name.contains(word), "{name}");
        }
        assert!(help.ends_with('.') && !help.contains('\n') && !help.contains('|'), "{help}");
        assert!(!labels.contains(&"le") && !labels.contains(&"instance"), "{name}");
        assert!(*kind != Kind::Info || !labels.is_empty(), "{name}");
    }
    assert!(names.len() > 90, "{} families", names.len());
}

#[test]
fn each_family_has_samples_when_the_daemon_knows_everything() {
    let everything = observation(3);
    for family in all() {
        let text = render([family], &everything, Format::Prometheus);
        assert!(!samples(&text).is_empty(), "{} has no sample", family.name);
    }
}

#[test]
fn samples_are_the_values_of_the_observation() {
    let text = render(all(), &observation(3), Format::OpenMetrics);
    for (sample, value) in [
        (r#"weft_port_info{port="vm1",logical_switch="blue",device="vif1"}"#, "1"),
        (r#"weft_port_up{port="vm1"}"#, "1"),
        (r#"weft_port_up{port="vm2"}"#, "0"),
        (r#"weft_port_receive_packets_total{port="vm3"}"#, "5"),
        (r#"weft_port_transmit_bytes_total{port="vm3"}"#, "500"),
        (r#"weft_port_drops_total{port="vm1",reason="unknown_mac"}"#, "2"),
        (r#"weft_port_upcall_cpu_seconds_total{port="vm1"}"#, "0.25"),
        (r#"weft_port_upcall_cpu_limit{port="vm1"}"#, "0.25"),
        (r#"weft_port_punted_packets_total{port="vm1"}"#, "4"),
        // One of the uplink, and one of each port.
        (r#"weft_drops_total{reason="malformed"}"#, "4"),
        (r#"weft_drops_total{reason="hairpin"}"#, "0"),
        ("weft_endpoints_unresolved", "1"),
        (
            r#"weft_endpoint_path_mtu_bytes{tunnel="geneve",host="h2",local="192.0.2.1",remote="192.0.2.11"}"#,
            "1500",
        ),
        (r#"weft_zone_connections{zone="vm1"}"#, "9"),
        (r#"weft_zone_connections_limit{zone="vm0"}"#, "7"),
        (r#"weft_port_connections_limit{port="vm2"}"#, "100"),
        (r#"weft_ovn_nb_cfg{stage="installed"}"#, "7"),
        (r#"weft_bpf_map_max_entries{map="weft_flows"}"#, "10"),
        ("weft_metrics_left_out_samples", "0"),
    ] {
        let found: Vec<_> =
            samples(&text).into_iter().filter(|(name, _)| *name == sample).collect();
        assert_eq!(found, [(sample, value)]);
    }
    assert!(!text.contains("weft_zone_connections_limit{zone=\"vm1\"}"), "it has no limit");
}

#[test]
fn number_of_samples_is_bounded_when_there_are_ten_thousand_ports() {
    const PORTS: u32 = 10_000;
    let text = render(all(), &observation(PORTS), Format::OpenMetrics);
    let samples = samples(&text);
    let distinct: BTreeSet<_> = samples.iter().map(|(name, _)| name).collect();
    assert_eq!(distinct.len(), samples.len(), "each sample is there once");
    let of_ports = samples.iter().filter(|(name, _)| name.contains("port=\"vm")).count();
    // Each port has eleven counters, three drop reasons, and two samples about connections.
    assert_eq!(of_ports, PORTS as usize * 16);
    // The zone of each port has one more sample.
    let others = samples.len() - of_ports - PORTS as usize;
    assert!(others < 400, "{others} samples do not depend on ports");
    assert!(PORTS as usize * 3 < MAX_SAMPLES, "nothing is left out");
    assert!(text.ends_with("weft_metrics_left_out_samples 0\n# EOF\n"));
}

#[test]
fn device_is_up_when_another_program_runs_before_that_of_weft() {
    for (state, is) in [
        ("up", true),
        ("up, behind cil_from_netdev", true),
        ("up, but the kernel refuses", true),
        ("down", false),
        ("down: no device", false),
        ("", false),
        ("upgrading", false),
    ] {
        assert_eq!(is_up(state), is, "{state}");
    }
}
