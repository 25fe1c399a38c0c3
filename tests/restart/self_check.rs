//! Tests that the self-check detects damage in the maps of the running eBPF programs.

use super::{Pinning, traffic};
use crate::common::{Daemon, PATIENCE, Setup};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testkit::host::wait_until;
use testkit::require_root;

/// The offset of the first action's port in a `struct weft_action_list`.
const PORT_AT: usize = 16 + 4;
/// Where the key of a megaflow, and a mask, has the lowest byte of the ingress port.
const IN_PORT_AT: usize = 4;
/// Where a `struct weft_flow` has its generation, and its action list.
const GENERATION_AT: usize = 160;
const LIST_AT: usize = GENERATION_AT + 16;
/// Entries that are read of each map: those in use are the first.
const READ: usize = 64;

/// An entry of a map: the map, its key and its value.
type Entry = (PathBuf, Vec<u8>, Vec<u8>);

/// The first entries of all maps with this name.
fn entries(maps: &[PathBuf], name: &str) -> Vec<Entry> {
    let mut found = Vec::new();
    for path in maps.iter().filter(|path| path.ends_with(name)) {
        let map = MapHandle::from_pinned_path(path).expect("a map");
        for key in map.keys().take(READ) {
            let value = map.lookup(&key, MapFlags::ANY).expect("a read").expect("an entry");
            found.push((path.clone(), key, value));
        }
    }
    found
}

fn write((path, key, value): &Entry) {
    let map = MapHandle::from_pinned_path(path).expect("a map");
    map.update(key, value, MapFlags::ANY).expect("a write");
}

/// Flips a bit in each entry that is in use.
fn flip(maps: &[PathBuf], name: &str, byte: usize, is_used: impl Fn(&[u8]) -> bool) {
    let used = entries(maps, name).into_iter().filter(|(.., value)| is_used(value));
    let flipped = used.map(|mut entry| {
        entry.2[byte] ^= 1;
        write(&entry);
    });
    assert!(flipped.count() > 0, "{name} is empty");
}

fn is_live(flow: &[u8]) -> bool {
    flow[GENERATION_AT..GENERATION_AT + 8] != [0; 8]
}

/// Plants a fault in the maps of both hosts, and waits until both daemons have found it.
fn plant(daemons: &mut [Daemon; 2], plant: impl FnOnce()) {
    let before = daemons.each_ref().map(Daemon::faults);
    plant();
    for (daemon, before) in daemons.iter_mut().zip(before) {
        daemon.wait_finds_fault(before);
    }
}

#[test]
fn damaged_maps_are_found_while_packets_pass() {
    require_root!();
    let pinning = Pinning::new(Setup::new("vxlan"));
    let mut daemons = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    let maps = pinning.pinned();
    let has_bits = |value: &[u8]| value.iter().any(|byte| *byte != 0);
    traffic::udp_echo(a, b, 4, 100);
    plant(&mut daemons, || flip(&maps, "weft_actions", PORT_AT, has_bits));
    traffic::udp_echo(a, b, 4, 100);
    // Masks that are too wide: they lack a bit of the ingress port.
    plant(&mut daemons, || flip(&maps, "weft_masks", IN_PORT_AT, has_bits));
    traffic::udp_echo(a, b, 4, 100);
    plant(&mut daemons, || flip(&maps, "weft_flows", IN_PORT_AT, is_live));
    traffic::udp_echo(a, b, 4, 100);
}

/// An access control list that allows or drops datagrams to port 9.
fn list(action: &str) -> String {
    format!(
        "[[acl]]\nswitch = \"blue\"\ndirection = \"from-port\"\npriority = 1000\n\
         match = 'udp.dst == 9'\naction = \"{action}\"\n"
    )
}

#[test]
fn stale_entry_is_found_when_it_forwards_what_is_forbidden_by_now() {
    require_root!();
    let mut pinning = Pinning::new(Setup::new("vxlan").more(&list("allow")));
    let [mut first, _second] = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    let near = traffic::udp_socket(a, 4);
    let to = (b.ip4, 9);
    let far = b.netns.run(|| UdpSocket::bind(to)).expect("a socket");
    far.set_read_timeout(Some(Duration::from_millis(300))).expect("a limit");
    let arrives = || {
        near.send_to(b"forbidden?", to).expect("a datagram is sent");
        far.recv(&mut [0; 100]).is_ok()
    };
    assert!(arrives());
    let maps = pinning.pinned();
    let allowed = entries(&maps, "weft_flows");
    pinning.lab.change_setup(|setup| setup.more(&list("drop")));
    let mut reload = Command::new(super::WEFT);
    reload.args(["reload", "--control"]).arg(pinning.lab.control(0));
    let output = reload.arg(pinning.lab.network_file()).output().expect("weft can be started");
    assert!(output.status.success(), "{output:?}");
    let list_of = |value: &[u8]| value[LIST_AT..LIST_AT + 4].to_vec();
    let replaced = || -> Vec<Entry> {
        let now = entries(&maps, "weft_flows");
        let both = allowed.iter().zip(&now);
        let is_replaced = |(old, new): &(&Entry, &Entry)| {
            is_live(&old.2) && is_live(&new.2) && list_of(&old.2) != list_of(&new.2)
        };
        both.filter(is_replaced).map(|(old, _)| old.clone()).collect()
    };
    wait_until(PATIENCE, "the megaflow has other actions", || !replaced().is_empty());
    assert!(!arrives());
    let before = first.faults();
    replaced().iter().for_each(write);
    first.wait_finds_fault(before);
    assert!(!arrives());
}
