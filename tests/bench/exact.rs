//! `weft-bench exact`: instruction counts in an emulated machine.

use super::{WEFT_BENCH, weft};
use crate::studies::{children, wait_until};
use bench::Stop;
use bench::exact::{self, Kernel, Programs, Wire, Workload};
use bench::lab::Contender;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::require_vm;

const KERNEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/guest-kernel");

#[test]
fn counts_are_identical_when_the_input_is() {
    require_vm!();
    let kernel = Kernel::open(Path::new(KERNEL)).unwrap();
    let programs = Programs { weft: weft(), weft_bench: WEFT_BENCH.into() };
    // The bridge needs no weft. Without that program the image is smaller, and the machine boots
    // faster.
    let without_weft = Programs { weft: WEFT_BENCH.into(), ..programs.clone() };
    // A single differing instruction changes the counts, so few messages suffice.
    let workload = Workload { warm_up: 100, measured: 500, stream_kib: 256 };
    let measure = |name: &str, programs: &Programs, wire| {
        let contender: Contender = name.parse().unwrap();
        let (rows, ended) =
            exact::measure(&[contender], &kernel, programs, workload, wire, 1, &Stop::new());
        ended.unwrap();
        let row = rows.into_iter().next().unwrap();
        let switching = row.switching();
        assert!(switching.tcp > 500.0 && switching.udp > 500.0, "{name} is not free: {row:?}");
        row
    };
    let (copies, first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| measure("weft-user-geneve", &programs, Wire::Shared));
        let first = measure("weft-user-geneve", &programs, Wire::Shared);
        let copies = measure("bridge", &without_weft, Wire::Copies).veth_pair;
        (copies, first, second.join().unwrap())
    });
    assert_eq!(first, second);
    // UDP datagrams are not shared with a socket. So only TCP segments cost a copy of their
    // headers.
    let shared = first.veth_pair;
    assert!(copies.tcp > shared.tcp + 1000.0, "{copies:?} {shared:?}");
    assert!(copies.udp < shared.udp + 500.0, "{copies:?} {shared:?}");
}

#[test]
fn counts_are_kept_and_the_emulator_is_gone_when_exact_is_interrupted() {
    require_vm!();
    let json = std::env::temp_dir().join(format!("weft-counts-{}.json", std::process::id()));
    // The contender `weft-user-geneve` fails at once on this wire, so its row exists when the count
    // of the bridge is interrupted.
    let mut child = Command::new(WEFT_BENCH)
        .args(["exact", "--kernel", KERNEL, "--wire", "copies"])
        .args(["--contender", "bridge", "--contender", "weft-user-geneve", "--json"])
        .arg(&json)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    wait_until("no emulator starts", || json.exists() && !children(pid).is_empty());
    let emulator = children(pid);
    kill(Pid::from_raw(pid as i32), Signal::SIGINT).unwrap();
    wait_until("it does not end", || child.try_wait().unwrap().is_some());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let error = String::from_utf8(ended.stderr).unwrap();
    assert!(error.contains("interrupted: ") && error.contains("has 1 of 2 contenders"), "{error}");
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    assert_eq!((&kept["schema"], &kept["complete"]), (&2.into(), &false.into()));
    let rows = kept["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["contender"]), (1, &"weft-user-geneve".into()));
    assert!(rows[0]["failure"].as_str().unwrap().contains("count it on the shared one"), "{kept}");
    let alive = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
    assert!(!emulator.iter().any(alive), "the emulator has outlived it");
    let ours = format!("weft-{pid}-");
    let left = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.starts_with(&ours)), "{left:?}");
}
