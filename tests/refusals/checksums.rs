//! Tests guests that try to change a header of their frame after the switch has made its decision.
//! Such a guest requests a partial checksum, and names a header field as the place where the
//! checksum is to be stored.

use super::secured::{ALLOWED, Guests, TELNET};
use crate::common::{Datapath, Setup, TUNNELS};
use packet::{Checksum, PacketBuf, complete_checksum};
use testkit::require_root;

const L3: usize = 14;
/// The smallest offset at which the checksummed bytes may begin. New kernels refuse smaller ones.
const LEAST_START: usize = 20;
/// The offset of the transport header behind an IPv4 header without options.
const L4: usize = L3 + 20;
/// The offset of the transport header behind an IPv6 header.
const L4_V6: usize = L3 + 40;
const TAG_LEN: usize = 4;
/// A text whose last word balances the sum.
const TEXT: &str = "FORBIDDEN.\0\0";

/// `frame` with a partial checksum over the bytes from `start` on. Completing it writes `value` at
/// the offset `field`. To get that value, the last two bytes of the frame are changed.
fn writes(mut frame: Vec<u8>, start: usize, field: usize, value: u16) -> PacketBuf {
    let partial = |frame: &[u8]| {
        let mut packet = PacketBuf::from_bytes(frame);
        let offset = (field - start) as u16;
        packet.offload.checksum = Checksum::Partial { start: start as u16, offset };
        packet
    };
    let completed = |frame: &[u8]| {
        let mut packet = partial(frame);
        complete_checksum(&mut packet).expect("the field is in the frame");
        u16::from_be_bytes(packet.to_vec()[field..field + 2].try_into().expect("two bytes"))
    };
    let end = frame.len() - 2;
    frame[end..].fill(0);
    let (balance, carry) = completed(&frame).overflowing_add(!value);
    frame[end..].copy_from_slice(&(balance + u16::from(carry)).to_be_bytes());
    assert_eq!(completed(&frame), value, "completing it writes the value");
    partial(&frame)
}

fn tagged(count: usize, frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, 0].repeat(count), &frame[12..]].concat()
}

/// A frame that the switch allows, and that becomes a forbidden one when its checksum is completed.
struct Disguise {
    what: &'static str,
    allowed: Vec<u8>,
    start: usize,
    field: usize,
    value: [u8; 2],
}

impl Disguise {
    /// The frame with `count` priority tags.
    fn tagged(&self, count: usize) -> PacketBuf {
        let skip = count * TAG_LEN;
        let (frame, value) = (tagged(count, &self.allowed), u16::from_be_bytes(self.value));
        writes(frame, self.start + skip, self.field + skip, value)
    }
}

/// Frames that the first guest sends to guest `to`, which pretend to be from the other guest or go
/// to a forbidden port once their checksum is completed.
fn disguises(guests: &Guests, to: usize) -> Vec<Disguise> {
    let other = guests.guest(3 - to);
    let last = |octets: &[u8]| [octets[octets.len() - 2], octets[octets.len() - 1]];
    let (ip4, ip6) = (last(&other.ip4.octets()), last(&other.ip6.octets()));
    let syn = |family| guests.syn(family, to, ALLOWED, TEXT);
    let telnet = TELNET.to_be_bytes();
    let disguise =
        |what, allowed, start, field, value| Disguise { what, allowed, start, field, value };
    vec![
        disguise("ARP of another guest", guests.arp(0, to), LEAST_START, L3 + 16, ip4),
        disguise("another IPv4 source", syn(4), LEAST_START, L3 + 14, ip4),
        disguise("Telnet", syn(4), L4, L4 + 2, telnet),
        disguise("Telnet, summed from the IP header on", syn(4), LEAST_START, L4 + 2, telnet),
        disguise("another IPv6 source", syn(6), LEAST_START, L3 + 22, ip6),
        disguise("Telnet over IPv6", syn(6), L4_V6, L4_V6 + 2, telnet),
    ]
}

/// Checks that no frame arrives from a forbidden source or at a forbidden port, on the same host
/// and on another one.
pub fn are_completed_before_the_lookup(setup: Setup, most_tags: usize, what: &str) {
    let mut guests = Guests::new(setup);
    for host in &guests.lab.hosts {
        let ethtool = host.netns.ethtool().expect("an ethtool socket");
        // Without this offload, the kernel completes the checksums of frames that leave by the
        // uplink.
        let off = [("tx-checksum-ip-generic", false)];
        ethtool.set_features(&host.uplink.name, &off).expect("features are set");
    }
    for to in [1, 2] {
        for disguise in disguises(&guests, to) {
            for tags in 0..=most_tags {
                let partial = disguise.tagged(tags);
                let what = format!("{what}: {} behind {tags} tags, to guest {to}", disguise.what);
                // This creates a megaflow that the disguised frame matches.
                guests.delivers(&what, to, &partial.to_vec());
                guests.refuses_packet(&what, "flow_drop", &partial);
            }
        }
    }
    guests.finish();
}

#[test]
fn headers_stay_as_they_were_matched_when_a_guest_misplaces_a_checksum() {
    require_root!();
    for datapath in Datapath::BOTH {
        for tunnel in TUNNELS {
            let setup = Setup::new(tunnel).datapath(datapath);
            // With `vlan` and `qinq`, the headers have no room for more tags; one type with tags
            // suffices.
            let most_tags = if tunnel == "geneve" { 2 } else { 0 };
            let what = format!("{datapath:?}, {tunnel}");
            are_completed_before_the_lookup(setup, most_tags, &what);
        }
    }
}
