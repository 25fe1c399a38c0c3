//! Tests that the self-check detects damage in the maps of the running eBPF programs.

use super::{Pinning, traffic};
use crate::common::Setup;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::path::PathBuf;
use testkit::require_root;

/// The offset of the first action's port in a `struct weft_action_list`.
const PORT_AT: usize = 16 + 4;

/// Flips a bit in the first action of every action list that a host's programs use. Returns their
/// number.
fn damage_actions(maps: &[PathBuf]) -> usize {
    let mut damaged = 0;
    for path in maps.iter().filter(|path| path.ends_with("weft_actions")) {
        let map = MapHandle::from_pinned_path(path).expect("a map");
        for key in map.keys().take(64) {
            let mut list = map.lookup(&key, MapFlags::ANY).expect("a read").expect("a list");
            if list[..4] != [0; 4] {
                list[PORT_AT] ^= 1;
                map.update(&key, &list, MapFlags::ANY).expect("a write");
                damaged += 1;
            }
        }
    }
    damaged
}

#[test]
fn damaged_action_lists_are_found_while_packets_pass() {
    require_root!();
    let pinning = Pinning::new(Setup::new("vxlan"));
    let mut daemons = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    traffic::udp_echo(a, b, 4, 100);
    assert!(damage_actions(&pinning.pinned()) > 0);
    for daemon in &mut daemons {
        daemon.wait_finds_fault();
    }
    traffic::udp_echo(a, b, 4, 100);
}
