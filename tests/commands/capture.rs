//! Tests of `weft capture`.

use super::call::Watch;
use crate::common::frames::contains;
use crate::common::{Daemon, Lab, PATIENCE, Setup, TUNNELS, traffic};
use pcap_parser::PcapCapture;
use serde_json::json;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use testkit::host::wait_until;
use testkit::require_root;

/// The frames of a capture file.
pub fn frames_of(file: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(file).expect("a capture file");
    let capture = PcapCapture::from_file(&bytes).expect("it is whole");
    assert!(capture.header.is_nanosecond_precision());
    capture.blocks.iter().map(|block| block.data.to_vec()).collect()
}

#[test]
fn frames_are_captured_on_both_sides_of_every_tunnel() {
    require_root!();
    for tunnel in TUNNELS {
        let lab = Lab::new(Setup::new(tunnel));
        let daemons = lab.start_both();
        let (a, b) = lab.ends();
        traffic::ping(&a.netns, b.ip(4));
        for side in ["--inner", "--outer"] {
            let file = lab.dir.path().join(format!("{tunnel}{side}.pcap"));
            let path = file.to_str().expect("a path of ASCII");
            let capture = Watch::capture(&lab.control(0), &["g1", side, "-w", path]);
            traffic::ping(&a.netns, b.ip(4));
            // A TCP stream gives segments in the guests, and super-packets on the underlay.
            traffic::tcp(a, b, 4, 100_000);
            let (there, back) = ([b.mac.0, a.mac.0].concat(), [a.mac.0, b.mac.0].concat());
            let has = |macs: &[u8]| frames_of(&file).iter().any(|frame| contains(frame, macs));
            wait_until(PATIENCE, &format!("{tunnel}{side}: both directions are captured"), || {
                file.exists() && has(&there) && has(&back)
            });
            let (code, stderr) = capture.interrupt();
            let frames = frames_of(&file);
            assert_eq!(code, Some(0), "{stderr}");
            assert!(stderr.contains(&format!("{} packets", frames.len())), "{stderr}");
            // A frame between the two guests, or a broadcast or multicast frame.
            let is_inner = |frame: &Vec<u8>| {
                frame.starts_with(&there) || frame.starts_with(&back) || frame[0] & 1 == 1
            };
            let inside = frames.iter().filter(|frame| is_inner(frame)).count();
            match (side, tunnel) {
                ("--inner", _) => assert_eq!(inside, frames.len(), "{tunnel}"),
                // The VLAN tag follows the MAC addresses.
                (_, "vlan" | "qinq") => {
                    assert!(
                        frames.iter().all(|f| f[12..14] == [0x81, 0] || f[12..14] == [0x88, 0xa8])
                    );
                }
                _ => assert_eq!(inside, 0, "{tunnel}"),
            }
        }
        daemons.into_iter().for_each(Daemon::stop);
    }
}

#[test]
fn traffic_continues_when_a_capture_client_stops_reading() {
    require_root!();
    let lab = Lab::new(Setup::new("geneve"));
    let daemons = lab.start_both();
    let (a, b) = lab.ends();
    let mut idle_clients: Vec<_> = (0..3)
        .map(|_| {
            let mut stream = UnixStream::connect(lab.control(0)).expect("the daemon listens");
            let request = json!({ "command": "capture", "port": "g1", "snap_bytes": 65_557 });
            writeln!(stream, "{request}").expect("a request can be sent");
            stream
        })
        .collect();
    wait_until(PATIENCE, "three are served", || clients(&daemons[0]) == 3);
    traffic::tcp(a, b, 4, 20 << 20);
    daemons[0].show();
    idle_clients.clear();
    wait_until(PATIENCE, "their threads have ended", || clients(&daemons[0]) == 0);
    daemons.into_iter().for_each(Daemon::stop);
}

/// The threads of a daemon that serve clients of its control socket.
fn clients(daemon: &Daemon) -> usize {
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("a process");
    // A thread that has ended since the directory was read has no name.
    let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm")).ok();
    let names = threads.filter_map(|thread| name(thread.expect("an entry")));
    names.filter(|name| name.trim() == "client").count()
}
