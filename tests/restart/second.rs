//! Tests a second daemon, and `weft stop --purge`, in the network namespace of a running daemon.

use super::Pinning;
use crate::common::daemon::WEFT;
use crate::common::{Daemon, PATIENCE, Setup, traffic};
use std::fs;
use testkit::require_root;

#[test]
fn running_daemon_is_not_disturbed_by_a_second_daemon_or_a_purge() {
    require_root!();
    let pinning = Pinning::new(Setup::new("vxlan"));
    let daemons = pinning.start_both();
    let (a, b) = pinning.lab.ends();
    let devices = pinning.devices(0);
    assert!(devices.iter().any(|name| name.starts_with("weft-")), "{devices:?}");
    // An empty BPF file system contains no pins that would reveal the running daemon.
    let elsewhere = pinning.lab.dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory can be made");
    let elsewhere = elsewhere.to_str().expect("a path");
    let owner = format!(
        "another weft (process {}) runs the kernel datapath of this network namespace",
        daemons[0].pid()
    );
    let host = &pinning.lab.hosts[0];
    let mut purge = host.netns.program(WEFT);
    purge.args(["stop", "--purge", "--control", "/nonexistent", "--bpf-fs", elsewhere]);
    let output = purge.output().expect("weft can be started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains(&owner), "{stderr}");
    let other = pinning.lab.dir.path().join("other.sock");
    for datapath in ["user", "kernel", "auto"] {
        let options = ["--datapath", datapath, "--bpf-fs", elsewhere];
        let mut second = Daemon::spawn(host, &pinning.lab.network_file(), &other, &options);
        assert!(!second.wait_end(PATIENCE).success(), "{datapath}");
        let stderr = second.stderr();
        assert!(stderr.contains(&owner), "{datapath}: {stderr}");
    }
    assert_eq!(pinning.devices(0), devices);
    traffic::udp_echo(a, b, 4, 100);
    daemons.into_iter().for_each(Daemon::stop);
    let _ = std::process::Command::new("umount").arg("--lazy").arg(elsewhere).status();
}
