//! Tests the errors of commands for invalid input, and when no daemon is running.

use super::call::weft;
use crate::common::daemon::WEFT;
use crate::common::{Lab, Setup};
use std::path::Path;
use std::process::Command;
use testkit::require_root;

#[test]
fn commands_exit_with_code_2_when_the_input_is_invalid() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    let daemon = lab.start(0);
    let control = &lab.control(0);
    let cases: [(&[&str], &str); 9] = [
        (&["capture", "g9", "-w", "/nowhere.pcap"], "no port `g9` on host h1: use one of g1"),
        (&["capture", "g1", "-w", "/nowhere/x.pcap"], "cannot write /nowhere/x.pcap"),
        (&["capture", "g1", "--snap", "3", "-w", "-"], "14..="),
        (&["monitor", "--drops", "--port", "g9"], "no port `g9`"),
        (&["monitor", "--drops", "--reason", "rain"], "hairpin"),
        (&["monitor"], "--drops"),
        (&["flows", "--port", "g9"], "no port `g9`"),
        (&["flows", "--logical", "--datapath", "red"], "router `red` on host h1: use one of blue"),
        (&["fdb", "--forget", "02:00"], "02:00"),
    ];
    for (args, fault) in cases {
        let (code, out, stderr) = weft(control, args);
        assert!(stderr.contains(fault), "{args:?}: {stderr}");
        assert_eq!((code, &*out), (2, ""), "{args:?}: {stderr}");
    }
    assert!(!Path::new("/nowhere.pcap").exists());
    daemon.stop();
    for command in [&["ports"][..], &["fdb"], &["tunnels"], &["flows"], &["monitor", "--drops"]] {
        let (code, _, stderr) = weft(control, command);
        assert_eq!((code, stderr.contains("weft run")), (1, true), "{command:?}: {stderr}");
    }
}

#[test]
fn run_exits_with_code_2_when_the_log_filter_is_invalid() {
    let mut run = Command::new(WEFT);
    run.args(["run", "--host", "h1", "/nowhere.toml"]).env("WEFT_LOG", "a=b=c");
    let output = run.output().expect("weft starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("WEFT_LOG has no valid filter, but \"a=b=c\""), "{stderr}");
    assert_eq!(output.status.code(), Some(2), "{stderr}");
}
