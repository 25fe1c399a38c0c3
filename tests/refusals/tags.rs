//! Tests frames with unknown VLAN tags.

use super::target::{Target, Wrap};
use crate::common::frames::note;
use crate::common::{INNER_VLAN, Setup, VLAN};
use testkit::require_root;

fn tagged(tags: &[(u16, u16)], inner: &[u8]) -> Vec<u8> {
    let tags: Vec<u8> =
        tags.iter().flat_map(|&(tpid, tci)| [tpid, tci]).flat_map(u16::to_be_bytes).collect();
    [&inner[..12], &tags, &inner[12..]].concat()
}

#[test]
fn tagged_frames_are_dropped_when_the_vlan_is_unknown() {
    require_root!();
    let wrap: Wrap = |_, inner| tagged(&[(0x8100, VLAN)], inner);
    let mut target = Target::new(Setup::new("vlan"));
    let forbidden = target.forbidden();
    let others = [
        tagged(&[(0x8100, VLAN + 1)], &forbidden),
        tagged(&[(0x8100, 0)], &forbidden),
        tagged(&[(0x8100, 4095)], &forbidden),
        tagged(&[(0x88a8, VLAN)], &forbidden),
        tagged(&[(0x9100, VLAN)], &forbidden),
    ];
    target.refuses(wrap, "another VLAN", Some("unknown_datapath"), &others);
    target.refuses(wrap, "no tag", None, std::slice::from_ref(&forbidden));
    target.refuses_frames(wrap);
    // Any priority is accepted.
    let inner = note(target.near(), target.far(), "priority 7");
    target.delivers(wrap, "priority 7", &tagged(&[(0x8100, 7 << 13 | VLAN)], &inner), &inner);
    target.finish();
}

#[test]
fn tagged_frames_are_dropped_when_the_pair_of_vlans_is_unknown() {
    require_root!();
    let wrap: Wrap = |_, inner| tagged(&[(0x88a8, VLAN), (0x8100, INNER_VLAN)], inner);
    let mut target = Target::new(Setup::new("qinq"));
    let forbidden = target.forbidden();
    let others = [
        tagged(&[(0x88a8, VLAN)], &forbidden),
        tagged(&[(0x88a8, VLAN), (0x8100, INNER_VLAN + 1)], &forbidden),
        tagged(&[(0x88a8, VLAN + 1), (0x8100, INNER_VLAN)], &forbidden),
        tagged(&[(0x8100, VLAN), (0x8100, INNER_VLAN)], &forbidden),
        tagged(&[(0x8100, INNER_VLAN), (0x88a8, VLAN)], &forbidden),
        tagged(&[(0x8100, INNER_VLAN)], &forbidden),
    ];
    target.refuses(wrap, "another pair", Some("unknown_datapath"), &others);
    target.refuses_frames(wrap);
    target.finish();
}
