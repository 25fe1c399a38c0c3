//! Checks that the decisions which `weft show` reports agree with the packets between the hosts.

use super::call::{weft, weft_json};
use crate::common::frames::{FrameSocket, contains};
use crate::common::{Daemon, Lab, PATIENCE, Setup, traffic};
use serde_json::Value;
use std::net::UdpSocket;
use testkit::host::wait_until;
use testkit::require_root;

/// Longer than any packet of the underlay.
const WHOLE: usize = 1600;
/// Length of a stream in bytes: several super-packets.
const LEN: usize = 1 << 20;
/// Length of the Ethernet, IPv4, UDP and VXLAN headers.
const OUTER: usize = 14 + 20 + 8 + 8;

/// The `how` and `why` of one decision.
fn decision(shown: &Value, what: &str) -> [String; 2] {
    let all = shown["decisions"].as_array().expect("a list");
    let found = all.iter().find(|chosen| chosen["what"] == what);
    let found = found.unwrap_or_else(|| panic!("no decision about {what}: {all:#?}"));
    ["how", "why"].map(|part| found[part].as_str().expect("a text").to_owned())
}

fn u16_at(frame: &[u8], at: usize) -> usize {
    u16::from_be_bytes([frame[at], frame[at + 1]]).into()
}

/// The outer UDP checksum of a frame over IPv4.
fn checksum(frame: &[u8]) -> usize {
    u16_at(frame, 40)
}

/// Two VXLAN frames over IPv4 that reach the other host: a short one, and the longest of a TCP
/// stream.
fn sent(lab: &Lab) -> [Vec<u8>; 2] {
    let (a, b) = lab.ends();
    let wire = FrameSocket::open(&lab.hosts[1].netns, &lab.hosts[1].uplink.name);
    let is_ours = |frame: &[u8]| frame.len() > OUTER + 14 + 20 && u16_at(frame, 36) == 4789;
    let from = a.ip4;
    let socket = a.netns.run(|| UdpSocket::bind((from, 0))).expect("a UDP socket");
    let say = |words: &str| {
        socket.send_to(words.as_bytes(), (b.ip4, 9)).expect("a datagram is sent");
        wire.until(words, |frame| is_ours(frame) && contains(frame, words))
    };
    let short = say("what was chosen is what is sent").pop().expect("the last one");
    traffic::tcp(a, b, 4, LEN);
    let stream = say("that was all").into_iter().filter(|frame| is_ours(frame));
    [short, stream.max_by_key(Vec::len).expect("there are some")]
}

#[test]
fn frames_agree_with_the_reported_decisions() {
    require_root!();
    for (configured, offload) in
        [(None, true), (None, false), (Some(true), true), (Some(false), true)]
    {
        let options = configured.map_or(String::new(), |on| format!("checksum = {on}"));
        let lab = Lab::new(Setup::new("vxlan").options(&options));
        let [near, _] = &lab.hosts;
        let ethtool = near.netns.ethtool().expect("ethtool");
        if !offload {
            let sums = [("tx-checksum-ip-generic", false)];
            let _ = ethtool.set_features(&near.uplink.name, &sums).expect("it can be switched");
        }
        let merges = [("rx-gro", offload)];
        let _ = ethtool.set_features(&near.uplink.name, &merges).expect("it can be switched");
        let daemons = lab.start_both();
        let (a, b) = lab.ends();
        traffic::ping(&a.netns, b.ip(4));
        let shown = weft_json(&lab.control(0), &["show"]);
        let by_programs = shown["datapath"] == "kernel";
        let [datapath, _] = decision(&shown, "datapath");
        assert_eq!(datapath.starts_with("kernel"), by_programs, "{datapath}");
        let [decap, _] = decision(&shown, "decap");
        assert_eq!(decap.starts_with("programs at tc"), by_programs, "{decap}");

        if by_programs {
            // tests/overlay.rs checks how many frames the guest receives.
            let [received, why] = decision(&shown, "vxlan received");
            let ways = ["segments one by one", "segments joined before programs"];
            assert_eq!(received, ways[usize::from(offload)], "{why}");
        }

        let is_super = |frame: &[u8]| u16_at(frame, OUTER + 14 + 2) > WHOLE;
        let mut frames = sent(&lab);
        if by_programs && offload {
            // The user datapath sends the first packets, until the eBPF programs have a megaflow.
            wait_until(PATIENCE, "programs send super-packets", || {
                frames = sent(&lab);
                is_super(&frames[1])
            });
        }
        let [short, long] = frames;
        let [how, why] = decision(&shown, "vxlan checksum");
        let what = format!(
            "asked {configured:?}, offload {offload}, by programs {by_programs}: {how}; {why}"
        );
        let on = match configured {
            Some(on) => on,
            None => offload && !by_programs,
        };
        assert_eq!(how.starts_with("on"), on, "{what}");
        assert_eq!(checksum(&short) != 0, on, "{what}");
        assert_eq!(how.contains("except for"), !on || by_programs, "{what}");
        assert_eq!(why == "as configured", configured.is_some(), "{what}");

        let [how, why] = decision(&shown, "vxlan");
        let ways = ["UDP batches (UDP_SEGMENT)", "super-packets inside the outer headers"];
        assert_eq!(how, ways[usize::from(by_programs)], "{why}");
        // A device without checksum offload has no segmentation offload: all frames are short.
        assert_eq!(why.starts_with("eth0 segments them"), offload, "{why}");
        assert_eq!(long.len() > WHOLE, offload, "{why}");
        if offload {
            // Each datagram of a UDP batch has its own tunnel header. A super-packet has one tunnel
            // header and no checksum.
            assert_eq!(is_super(&long), by_programs, "{how}; {why}");
            assert_eq!(checksum(&long) != 0, !by_programs, "{what}");
        }
        let (_, text, _) = weft(&lab.control(0), &["show"]);
        assert!(text.contains(&format!("\nvxlan: {how}; {why}\n")), "{text}");
        let [port, _] = decision(&shown, "port g1");
        assert_eq!(port, "super-packets whole");
        daemons.into_iter().for_each(Daemon::stop);
    }
}
