//! Tests guests that hide headers from access control lists and port security, behind stacked
//! priority tags or a SNAP header (CVE-2021-27853, CVE-2021-27861).

use super::secured::{ALLOWED, Guests, TELNET};
use super::target::FORBIDDEN;
use crate::common::{Datapath, Setup};
use testkit::require_root;

/// The maximum number of tags in a flow key.
const SHOWN_TAGS: usize = 2;

fn guests(datapath: Datapath) -> Guests {
    Guests::new(Setup::new("geneve").datapath(datapath))
}

/// Inserts `count` priority tags (VID 0) into a frame.
fn priority_tagged(count: usize, frame: &[u8]) -> Vec<u8> {
    tagged(&vec![0x8100; count], frame)
}

/// Inserts a priority tag with each of these TPIDs into a frame.
fn tagged(tpids: &[u16], frame: &[u8]) -> Vec<u8> {
    let tags: Vec<u8> =
        tpids.iter().flat_map(|tpid| [*tpid, 0]).flat_map(u16::to_be_bytes).collect();
    [&frame[..12], &tags, &frame[12..]].concat()
}

/// The TPIDs that weft supports: C-tags, S-tags, and S-tags of old switches.
const TPIDS: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// One or two tags with each TPID, in every order, and some stacks of three to five.
fn stacks() -> Vec<Vec<u16>> {
    let pairs = TPIDS.iter().flat_map(|outer| TPIDS.map(|inner| vec![*outer, inner]));
    let deep = (3..=5).flat_map(|depth| {
        (0..3).map(move |first| TPIDS.into_iter().cycle().skip(first).take(depth).collect())
    });
    TPIDS.into_iter().map(|tpid| vec![tpid]).chain(pairs).chain(deep).collect()
}

/// Converts an Ethernet II frame to an IEEE 802.3 frame: length, LLC, SNAP with OUI 0, EtherType.
fn in_snap(frame: &[u8]) -> Vec<u8> {
    let llc = [0xaa, 0xaa, 3, 0, 0, 0];
    let length = (llc.len() + frame[12..].len()) as u16;
    [&frame[..12], &length.to_be_bytes(), &llc, &frame[12..]].concat()
}

#[test]
fn lists_and_port_security_apply_when_a_guest_stacks_priority_tags() {
    require_root!();
    for datapath in Datapath::BOTH {
        let mut guests = guests(datapath);
        // Ordinary packets create megaflows, which the hidden headers must not match.
        guests.delivers("an untagged SYN", 1, &guests.syn(4, 1, ALLOWED, "allowed"));
        for tags in 0..=5 {
            let reason = if tags <= SHOWN_TAGS { "flow_drop" } else { "tags_too_deep" };
            let what = |of: &str| format!("{datapath:?}: {of} behind {tags} priority tags");
            for (family, to) in [(4, 1), (4, 2), (6, 1)] {
                let hidden = priority_tagged(tags, &guests.syn(family, to, TELNET, FORBIDDEN));
                guests.refuses(&what("Telnet"), reason, &hidden);
            }
            let forged = priority_tagged(tags, &guests.arp(2, 1));
            guests.refuses(&what("ARP of another guest"), reason, &forged);
            let other = guests.guest(2).ip(4);
            let forged = priority_tagged(tags, &guests.syn_from(other, 1, ALLOWED, FORBIDDEN));
            guests.refuses(&what("another guest's address"), reason, &forged);
        }
        for tags in 0..=SHOWN_TAGS {
            let allowed = |to| priority_tagged(tags, &guests.syn(4, to, ALLOWED, "allowed"));
            guests.delivers("a SYN behind tags", 1, &allowed(1));
            guests.delivers("a SYN behind tags to another host", 2, &allowed(2));
        }
        guests.finish();
    }
}

#[test]
fn lists_and_port_security_apply_when_a_guest_mixes_types_of_tags() {
    require_root!();
    for datapath in Datapath::BOTH {
        let mut guests = guests(datapath);
        guests.delivers("an untagged SYN", 1, &guests.syn(4, 1, ALLOWED, "allowed"));
        for tpids in stacks() {
            let is_shown = tpids.len() <= SHOWN_TAGS;
            let reason = if is_shown { "flow_drop" } else { "tags_too_deep" };
            let what = |of: &str| format!("{datapath:?}: {of} behind tags {tpids:04x?}");
            for (family, to) in [(4, 1), (6, 2)] {
                let hidden = tagged(&tpids, &guests.syn(family, to, TELNET, FORBIDDEN));
                guests.refuses(&what("Telnet"), reason, &hidden);
            }
            let forged = tagged(&tpids, &guests.arp(2, 1));
            guests.refuses(&what("ARP of another guest"), reason, &forged);
            for to in [1, 2].into_iter().filter(|_| is_shown) {
                let allowed = tagged(&tpids, &guests.syn(4, to, ALLOWED, "allowed"));
                guests.delivers(&what("a SYN"), to, &allowed);
            }
        }
        guests.finish();
    }
}

#[test]
fn lists_and_port_security_apply_when_a_guest_sends_snap() {
    require_root!();
    for datapath in Datapath::BOTH {
        let mut guests = guests(datapath);
        for (to, bytes) in [1, 2].map(|to| (to, guests.syn(4, to, ALLOWED, "allowed"))) {
            guests.delivers("a SYN in Ethernet II", to, &bytes);
            guests.delivers("a SYN in SNAP", to, &in_snap(&bytes));
        }
        for tags in 0..=SHOWN_TAGS {
            let what = |of: &str| format!("{datapath:?}: {of} in SNAP behind {tags} priority tags");
            let hidden = |bytes: &[u8]| priority_tagged(tags, &in_snap(bytes));
            for (family, to) in [(4, 1), (4, 2), (6, 1)] {
                let telnet = hidden(&guests.syn(family, to, TELNET, FORBIDDEN));
                guests.refuses(&what("Telnet"), "flow_drop", &telnet);
            }
            let forged = hidden(&guests.arp(2, 1));
            guests.refuses(&what("ARP of another guest"), "flow_drop", &forged);
            guests.delivers(&what("a SYN"), 1, &hidden(&guests.syn(4, 1, ALLOWED, "allowed")));
            guests.delivers(&what("ARP"), 1, &hidden(&guests.arp(0, 1)));
        }
        let telnet = guests.syn(4, 1, TELNET, FORBIDDEN);
        let what = format!("{datapath:?}: SNAP behind three tags");
        guests.refuses(&what, "tags_too_deep", &priority_tagged(3, &in_snap(&telnet)));
        let what = format!("{datapath:?}: a tag behind SNAP");
        guests.refuses(&what, "tags_too_deep", &in_snap(&priority_tagged(1, &telnet)));
        // Some hosts ignore the length field, so frames with a wrong length must not pass either.
        for length in [0, 8, 30, 1500_u16] {
            let mut wrong = in_snap(&telnet);
            wrong[12..14].copy_from_slice(&length.to_be_bytes());
            let what = format!("{datapath:?}: SNAP with the length {length}");
            guests.refuses(&what, "malformed", &wrong);
        }
        guests.finish();
    }
}
