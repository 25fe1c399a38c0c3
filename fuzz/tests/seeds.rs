//! Checks that each seed is valid for its target, and that the committed seeds are current.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use weft_fuzz::seeds::{self, Seed};
use weft_fuzz::{
    actions, coalescing, connections, control, database, execution, expressions, headers, keys,
    megaflows, network, ofctl, offload, ovn, pins, probes, programs, reassembly, services, targets,
    tunnels,
};

#[test]
fn every_target_has_seeds_and_every_corpus_a_target() {
    let corpora: BTreeSet<_> = seeds::all().into_iter().map(|seed| seed.target).collect();
    assert_eq!(corpora, targets::ALL.iter().map(|(name, _)| *name).collect());
}

fn seeds_of(target: &str) -> impl Iterator<Item = Seed> {
    seeds::all().into_iter().filter(move |seed| seed.target == target)
}

#[test]
fn corpora_are_current_when_compared_with_the_generator() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut committed = BTreeMap::new();
    for target in fs::read_dir(&corpus).unwrap() {
        for seed in fs::read_dir(target.unwrap().path()).unwrap() {
            let path = seed.unwrap().path();
            let name = path.strip_prefix(&corpus).unwrap().to_str().unwrap().to_owned();
            committed.insert(name, fs::read(path).unwrap());
        }
    }
    let generated: BTreeMap<_, _> = seeds::all()
        .into_iter()
        .map(|seed| (format!("{}/{}", seed.target, seed.name), seed.bytes))
        .collect();
    assert!(committed == generated, "run `cargo xtask fuzz-seeds`");
}

#[test]
fn every_header_is_valid_when_the_frame_is_a_seed() {
    for seed in seeds_of("wire_frame") {
        let expected = match seed.name {
            "arp-request" => 2,
            "qinq-ipv4-tcp" => 4,
            _ => 3,
        };
        assert_eq!(headers::frame(&seed.bytes), expected, "{}", seed.name);
    }
}

#[test]
fn frames_have_keys_when_they_are_seeds() {
    for seed in seeds_of("flow_key") {
        let is_shown = seed.name != "three-tags";
        assert_eq!(keys::frame(&seed.bytes).is_some(), is_shown, "{}", seed.name);
    }
}

#[test]
fn tunnels_are_decapped_or_refused_for_the_right_reason_when_the_frame_is_a_seed() {
    for target in ["vxlan", "geneve", "gre", "stt", "vlan"] {
        for seed in seeds_of(target) {
            let outcome = match target {
                "vxlan" => tunnels::vxlan(&seed.bytes),
                "geneve" => tunnels::geneve(&seed.bytes),
                "gre" => tunnels::gre(&seed.bytes),
                "stt" => tunnels::stt(&seed.bytes),
                _ => tunnels::tagged(&seed.bytes),
            };
            let refused = outcome.err().map(|reason| reason.name());
            let expected = match seed.name {
                "unknown-critical" => Some("geneve_critical_option"),
                "control" => Some("geneve_control"),
                "ipv4-no-key" => Some("gre_no_key"),
                "unknown-vni" | "ipv4-nvgre" | "priority" | "qinq-9100" => Some("unknown_datapath"),
                _ => None,
            };
            assert_eq!(refused, expected, "{target}/{}", seed.name);
        }
    }
}

#[test]
fn super_packets_are_segmented_when_the_offload_is_a_seed() {
    for seed in seeds_of("offload") {
        let expected = if matches!(seed.name, "none" | "verified" | "partial") { 1 } else { 3 };
        assert_eq!(offload::frame(&seed.bytes), Some(expected), "{}", seed.name);
    }
}

#[test]
fn fields_are_rewritten_and_replies_made_when_the_frame_is_a_seed() {
    for seed in seeds_of("execute") {
        // The rewrites set the destination MAC address, an IP address and TTL, and a port. The
        // replies are an ARP reply or neighbour advertisement, an ICMP error (not for an ICMP
        // error), and a TCP reset or an SCTP ABORT.
        let expected = match seed.name {
            "arp-request" => (2, 0),
            "ipv4-echo" | "ipv6-advertisement" | "ipv6-solicitation" => (3, 2),
            "ipv4-too-big" => (3, 1),
            "ipv4-options-udp" | "ipv6-extensions-udp" => (4, 2),
            _ => (4, 3),
        };
        assert_eq!(execution::frame(&seed.bytes), Some(expected), "{}", seed.name);
    }
}

#[test]
fn trains_are_joined_when_they_are_seeds() {
    for seed in seeds_of("coalesce") {
        let expected = match seed.name {
            "ipv4" | "ipv6" => 1,
            "gap-and-end" => 3,
            _ => 3,
        };
        assert_eq!(coalescing::list(&seed.bytes), expected, "{}", seed.name);
    }
}

#[test]
fn packets_belong_to_connections_when_they_are_seeds() {
    for seed in seeds_of("conntrack") {
        let expected = match seed.name {
            "tcp" => 3,
            "sctp" => 1,
            _ => 2,
        };
        assert_eq!(connections::list(&seed.bytes), expected, "{}", seed.name);
    }
}

#[test]
fn stt_frames_are_complete_when_their_segments_are_seeds() {
    for seed in seeds_of("stt_reassembly") {
        let expected = if seed.name == "two-frames" { 2 } else { 1 };
        assert_eq!(reassembly::list(&seed.bytes), expected, "{}", seed.name);
    }
}

#[test]
fn datagrams_are_complete_when_their_fragments_are_seeds() {
    for seed in seeds_of("ip_reassembly") {
        let expected = if seed.name == "two-datagrams" { 2 } else { 1 };
        assert_eq!(reassembly::fragments(&seed.bytes), expected, "{}", seed.name);
    }
}

#[test]
fn networks_are_accepted_when_they_are_seeds() {
    for seed in seeds_of("network_toml") {
        assert!(network::file(&seed.bytes), "{}", seed.name);
    }
}

#[test]
fn expressions_are_accepted_when_they_are_seeds() {
    for seed in seeds_of("logical_match") {
        assert!(expressions::text(&seed.bytes), "{}", seed.name);
    }
}

#[test]
fn actions_are_accepted_when_they_are_seeds() {
    for seed in seeds_of("logical_actions") {
        assert!(actions::text(&seed.bytes), "{}", seed.name);
    }
}

#[test]
fn flows_are_accepted_when_they_are_seeds() {
    for seed in seeds_of("ofctl_flows") {
        assert!(ofctl::file(&seed.bytes), "{}", seed.name);
    }
}

#[test]
fn megaflows_are_found_when_they_were_put() {
    for seed in seeds_of("megaflow_cache") {
        let expected = if matches!(seed.name, "replaced" | "masks") { 2 } else { 1 };
        assert_eq!(megaflows::steps(&seed.bytes), expected, "{}", seed.name);
    }
}

#[test]
fn probes_are_read_when_the_frame_is_a_seed() {
    for seed in seeds_of("probe") {
        assert_eq!(probes::frame(&seed.bytes), Some(seed.name != "ask"), "{}", seed.name);
    }
}

#[test]
fn requests_are_answered_when_they_are_seeds() {
    for seed in seeds_of("dhcp4") {
        assert_eq!(services::dhcp4(&seed.bytes), seed.name != "decline", "{}", seed.name);
    }
    for seed in seeds_of("dhcp6") {
        assert_eq!(services::dhcp6(&seed.bytes), seed.name != "request-other", "{}", seed.name);
    }
    for seed in seeds_of("dns") {
        assert_eq!(services::dns(&seed.bytes), seed.name != "unknown", "{}", seed.name);
    }
    for seed in seeds_of("router_solicitation") {
        assert!(services::router(&seed.bytes), "{}", seed.name);
    }
}

#[test]
fn schemas_are_accepted_when_they_are_seeds() {
    for seed in seeds_of("ovsdb_schema") {
        assert!(database::schema(&seed.bytes), "{}", seed.name);
    }
}

#[test]
fn replica_is_complete_when_the_stream_is_a_whole_seed() {
    for seed in seeds_of("ovsdb_stream") {
        let outcome = database::stream(&seed.bytes).unwrap();
        assert_eq!(outcome.is_ready, seed.name == "old-server", "{}: {outcome:?}", seed.name);
    }
}

#[test]
fn updates_are_applied_when_they_are_seeds() {
    for seed in seeds_of("ovsdb_update") {
        let expected = match seed.name {
            "insert" => Some(2),
            "delete" => Some(0),
            _ => Some(1),
        };
        assert_eq!(database::update(&seed.bytes), expected, "{}", seed.name);
    }
}

#[test]
fn health_seeds_decide_about_the_backend() {
    for seed in seeds_of("health_answer") {
        let is_good = ["accepted", "http"].contains(&seed.name);
        assert_eq!(services::health(&seed.bytes), is_good, "{}", seed.name);
    }
    // A missing reply is a success only with UDP.
    assert!(!services::health(&[0]) && services::health(&[2]));
}

#[test]
fn control_requests_are_valid_when_they_are_seeds() {
    for seed in seeds_of("control_request") {
        let is_view = matches!(seed.name, "show" | "flows" | "connections");
        assert_eq!(control::request(&seed.bytes), Some(!is_view), "{}", seed.name);
    }
}

#[test]
fn dumps_and_lists_of_ovn_are_read_when_they_are_seeds() {
    for seed in seeds_of("ovn_dump") {
        let rows = if seed.name == "network" { 6 } else { 1 };
        assert_eq!(ovn::dump(&seed.bytes), Some((rows, true)), "{}", seed.name);
    }
    for seed in seeds_of("ovn_flow_list") {
        assert_eq!(ovn::list(&seed.bytes), (5, 0), "{}", seed.name);
    }
}

#[test]
fn megaflows_are_read_from_pinned_maps_when_they_are_seeds() {
    for seed in seeds_of("pinned_megaflow") {
        assert!(pins::megaflow(&seed.bytes).is_some(), "{}", seed.name);
    }
}

#[test]
fn programs_and_userspace_agree_when_the_frame_is_a_seed() {
    testkit::require_root!();
    for seed in seeds_of(targets::NEEDS_ROOT) {
        let expected = match seed.name {
            "snap" | "snap-qinq-padded" => None,
            name => Some(name != "three-tags"),
        };
        assert_eq!(programs::parser(&seed.bytes), expected, "{}", seed.name);
    }
}
