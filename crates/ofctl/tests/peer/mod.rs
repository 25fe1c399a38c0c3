//! Compares the accepted syntax and the execution of flows with Open vSwitch.

mod datapath;
mod open_vswitch;
mod random;

use crate::{bridge, ports};
use datapath::{Sent, of_ours, of_theirs};
use ofctl::{parse_line, parse_packet_flow};
use open_vswitch::{OpenVswitch, canonical};
use pipeline::{Event, Observer, translate};
use random::Random;
use std::collections::{BTreeMap, BTreeSet};
use testkit::{report, require_program};

/// Lines that both accept. Open vSwitch parses weft's canonical form as the same flow.
const ALIKE: &str = include_str!("alike.txt");
/// Lines that only Open vSwitch accepts, grouped by reason.
const STRICTER: &str = include_str!("stricter.txt");

/// Lines that only weft accepts, grouped by reason.
const LAXER: &str = include_str!("laxer.txt");
/// Lines that both reject.
const REFUSED: &str = include_str!("refused.txt");

/// The lines of a list that are not comments.
fn lines(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[test]
fn canonical_text_means_the_same_to_ovs() {
    require_program!("ovs-ofctl", "openvswitch-switch");
    let ports = ports();
    let mut count = 0;
    for line in lines(ALIKE) {
        let ours = parse_line(line, &ports).unwrap_or_else(|problem| panic!("{line}\n{problem}"));
        let theirs = canonical(line).unwrap_or_else(|error| panic!("{line}\n{error}"));
        assert_eq!(canonical(&ours.to_string()).as_ref(), Ok(&theirs), "{line}\n{ours}");
        count += 1;
    }
    report::peer("ovs-ofctl", &format!("{count} flows mean the same as written and as shown"));
}

#[test]
fn flows_that_ovs_refuses_are_refused() {
    require_program!("ovs-ofctl", "openvswitch-switch");
    let ports = ports();
    let count = lines(REFUSED)
        .inspect(|line| {
            assert!(canonical(line).is_err(), "Open vSwitch accepts {line}");
            assert!(parse_line(line, &ports).is_err(), "accepted: {line}");
        })
        .count();
    report::peer("ovs-ofctl", &format!("{count} flows are refused by both"));
}

/// Also fails if both treat a listed line alike, so that the lists stay correct.
#[test]
fn flows_that_only_one_of_the_two_accepts_are_listed() {
    require_program!("ovs-ofctl", "openvswitch-switch");
    let ports = ports();
    for (list, ours) in [(STRICTER, false), (LAXER, true)] {
        let count = lines(list)
            .inspect(|line| {
                assert_eq!(canonical(line).is_ok(), !ours, "Open vSwitch, {line}");
                assert_eq!(parse_line(line, &ports).is_ok(), ours, "weft, {line}");
            })
            .count();
        let who = if ours { "weft" } else { "Open vSwitch" };
        report::peer("ovs-ofctl", &format!("{count} flows that only {who} accepts"));
    }
}

/// Known differences between weft and Open vSwitch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Difference {
    /// A packet whose TTL expires in a table reached by `resubmit`: Open vSwitch continues after
    /// the `resubmit`, weft drops the packet.
    TtlRunsOutInResubmit,
    /// A third VLAN tag: Open vSwitch pushes it and no longer tracks the innermost tag; weft drops
    /// the packet and counts it.
    ThirdTag,
}

/// Detects the known differences.
#[derive(Default)]
struct Watch(Option<Difference>);

impl Observer for Watch {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Note(text) if text.contains("expired") => {
                self.0 = Some(Difference::TtlRunsOutInResubmit);
            }
            Event::Drop(flow::DropReason::VlanDepth) => self.0 = Some(Difference::ThirdTag),
            _ => {}
        }
    }
}

/// Runs packets on weft and Open vSwitch. Returns for each packet the known difference, if the
/// results differ.
fn compare(ovs: &OpenVswitch, flows: &str, packets: &[String]) -> Vec<Option<Difference>> {
    let mut bridge = bridge();
    bridge.apply(flows, "random", 0).unwrap_or_else(|error| panic!("{error}\n{flows}"));
    ovs.replace_flows(flows);
    let mut differences = Vec::new();
    for packet in packets {
        let key = parse_packet_flow(packet, bridge.ports())
            .unwrap_or_else(|problem| panic!("{packet}: {problem}"));
        let mut watch = Watch::default();
        let translation = translate(bridge.program(), &key, &(), &mut watch);
        let ours = sorted(of_ours(&key, &translation.actions));
        let trace = ovs.trace(packet);
        let theirs = sorted(of_theirs(&key, &trace));
        if ours == theirs {
            differences.push(None);
        } else {
            assert!(
                watch.0.is_some(),
                "{packet}\nours {:?}\n{ours:#?}\ntheirs {trace}\n{theirs:#?}\n{flows}",
                translation.actions
            );
            differences.push(watch.0);
        }
    }
    differences
}

/// The order of flooded copies does not matter.
fn sorted(mut sent: Vec<Sent>) -> Vec<Sent> {
    sent.sort_by_key(|sent| format!("{sent:?}"));
    sent
}

#[test]
fn packets_leave_by_the_ports_and_with_the_headers_that_ovs_gives_them() {
    const PROGRAMS: usize = 30;
    const PACKETS: usize = 15;
    require_program!("ovs-vswitchd", "openvswitch-switch");
    let ovs = OpenVswitch::start();
    let mut random = Random::new(0x5eed);
    let mut differences: BTreeMap<Difference, usize> = BTreeMap::new();
    let mut same = 0;
    for _ in 0..PROGRAMS {
        let flows = random.flows();
        let packets: Vec<String> = (0..PACKETS).map(|_| random.packet()).collect();
        for difference in compare(&ovs, &flows, &packets) {
            match difference {
                None => same += 1,
                Some(difference) => *differences.entry(difference).or_default() += 1,
            }
        }
    }
    assert!(same >= PROGRAMS * PACKETS * 9 / 10, "{same} alike, {differences:?}");
    report::peer(
        "Open vSwitch ofproto/trace",
        &format!("{same} packets through {PROGRAMS} random programs alike, else {differences:?}"),
    );
}

#[test]
fn rules_of_the_published_study_do_what_they_do_in_ovs() {
    require_program!("ovs-vswitchd", "openvswitch-switch");
    let ovs = OpenVswitch::start();
    let flows = "in_port=2 action=push_vlan:0x88a8,mod_vlan_vid:1,output:1\n\
                 in_port=1,dl_vlan=1 action=pop_vlan,output:2\n";
    let packets = [
        "in_port=2,tcp,nw_src=10.0.0.1,tp_dst=80",
        "in_port=2,dl_vlan=7,tcp,nw_src=10.0.0.1,tp_dst=80",
        "in_port=1,dl_vlan=1,udp,nw_src=10.0.0.1,udp_dst=80",
        "in_port=1,dl_vlan=2,udp,nw_src=10.0.0.1,udp_dst=80",
        "in_port=1,arp,arp_op=1,arp_tpa=10.0.0.1",
    ];
    let differences = compare(&ovs, flows, &packets.map(str::to_owned));
    assert_eq!(differences, [None; 5]);
    report::peer("Open vSwitch ofproto/trace", "the QinQ rules of the published study");
}

/// Flows whose canonical form is the same in weft and Open vSwitch.
const DUMPED: &str = "in_port=1,actions=output:2\n\
    cookie=0x5,table=1,priority=5,idle_timeout=60,hard_timeout=99,ct_state=+trk+est,ct_zone=4,\
    ct_mark=0x1/0x3,tcp,in_port=2,tp_dst=80,reg0=5,metadata=2,pkt_mark=3,tun_id=4,dl_vlan=5,\
    dl_src=02:00:00:00:00:01,nw_src=1.2.3.4,nw_tos=16 \
    actions=ct(commit,table=2,zone=1,nat(src=10.0.0.1-10.0.0.9:1000-2000)),NORMAL\n\
    priority=3,arp,arp_tpa=10.0.0.0/8,arp_op=1 actions=FLOOD\n\
    priority=2,ipv6,ipv6_dst=fd00::/8 actions=resubmit(,7),ct_clear,output:1\n\
    table=7,priority=0 actions=drop\n\
    priority=1,dl_vlan=7,dl_vlan_pcp=3 actions=mod_vlan_vid:8,IN_PORT\n\
    priority=65535,udp6,tp_src=53 actions=ct(nat,table=3)\n";

#[test]
fn flows_are_dumped_as_ovs_ofctl_dumps_them() {
    require_program!("ovs-vswitchd", "openvswitch-switch");
    let ovs = OpenVswitch::start();
    ovs.replace_flows(DUMPED);
    let mut bridge = bridge();
    bridge.apply(DUMPED, "dumped", 1000).unwrap_or_else(|error| panic!("{error}"));
    let all = bridge.selector("", false).expect("a selector of all flows");
    let lines = bridge.dump_flows(&all, true, 2500);
    assert!(lines.iter().all(|line| line.contains(" duration=1.500s, table=")), "{lines:#?}");
    let without_age = |lines: Vec<String>| -> BTreeSet<String> {
        let strip = |line: String| {
            let (before, rest) = line.split_once("duration=").expect("an age");
            let (_, after) = rest.split_once("s, ").expect("more behind the age");
            format!("{before}{after}")
        };
        lines.into_iter().map(strip).collect()
    };
    assert_eq!(without_age(lines), without_age(ovs.dump_flows()));
    report::peer("ovs-ofctl", "the output of dump-flows is the same");
}
