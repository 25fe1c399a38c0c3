//! Tests of `weft-bench run` and `weft-bench list`, called in the way a user does.

use super::{WEFT_BENCH, run, run_when_free, weft};
use bench::Stop;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use testkit::program::copy_program;
use testkit::require_root;

#[test]
fn unknown_name_is_refused_with_the_valid_ones() {
    for (arguments, valid) in [
        (&["run", "foo"][..], "software-tunnelling, jumbo-frames"),
        (&["run", "all", "--contender", "foo"], "kernel-vxlan"),
        (&["run", "all", "--profile", "foo"], "full, tso, none"),
        (
            &["run", "entropy", "--contender", "weft-user-qinq"],
            "no selected scenario has the contender weft-user-qinq; the selected ones have bridge, \
             kernel-vxlan",
        ),
        (&["client", "localhost", "--pattern", "foo"], "tcp_stream, tcp_reverse"),
        (&["client", "localhost", "--connections", "641"], "1 to 640"),
    ] {
        let (code, _, error) = run(arguments);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(valid), "{arguments:?}: {error}");
    }
}

#[test]
fn studies_and_contenders_are_listed_with_reasons() {
    require_root!();
    let (code, text, error) = run(&["list"]);
    assert_eq!(code, 0, "{error}");
    for part in ["tcp_rr-1024B-64i", "geneve-vs-vxlan", "kernel-vxlan         found"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let reasons = text.lines().filter_map(|line| line.split_once("skipped: "));
    assert!(reasons.clone().count() > 0, "{text}");
    assert!(reasons.clone().all(|(_, why)| why.len() > 10), "{text}");
}

#[test]
fn study_is_run_judged_and_reported_when_two_contenders_take_part() {
    require_root!();
    let directory = std::env::temp_dir().join(format!("weft-bench-{}", std::process::id()));
    let out = directory.to_str().unwrap();
    let (code, text, error) = run_when_free(&[
        "run",
        "software-tunnelling",
        "--quick",
        "--seconds",
        "0.6",
        "--blocks",
        "2",
        "--contender",
        "weft-user-stt",
        "--profile",
        "full",
        "--scenario",
        "1i",
        "--out",
        out,
    ]);
    assert_eq!(code, 0, "{text}\n{error}");
    assert!(text.contains("C1 ") && text.contains("C17 "), "{text}");
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    let results: Value = serde_json::from_str(&read("results.json")).unwrap();
    assert_eq!((&results["schema"], &results["complete"]), (&3.into(), &true.into()));
    let samples = results["samples"].as_array().unwrap();
    let failed: Vec<_> = samples.iter().filter(|s| !s["failure"].is_null()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    let moved = |s: &Value| s["figures"]["gbps"].as_f64() > Some(0.0);
    assert!(samples.iter().any(|s| s["contender"] == "weft-user-stt" && moved(s)));
    for name in ["report.html", "report.md"] {
        assert!(read(name).contains("weft user stt"), "{name}");
    }
    let verdicts = results["verdicts"].as_array().unwrap();
    assert_eq!(verdicts.len(), 17);
    for verdict in verdicts {
        assert!(verdict["verdict"].is_string() && verdict["why"].as_str() > Some(""), "{verdict}");
    }
    let json = directory.join("results.json");
    let (code, text, error) = run(&["compare", json.to_str().unwrap(), json.to_str().unwrap()]);
    assert_eq!(code, 0, "{error}");
    assert!(text.contains("+0.0 %") && !text.contains("different"), "{text}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn list_names_what_needs_root_when_the_user_is_not_root() {
    require_root!();
    // Other users may have no access to the build directory, so the programs are copied.
    let directory = std::env::temp_dir().join(format!("weft-list-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    copy_program(WEFT_BENCH, directory.join("weft-bench"));
    copy_program(weft(), directory.join("weft"));
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"])
        .arg(directory.join("weft-bench"))
        .arg("list")
        .output()
        .unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("kernel-vxlan         skipped: not known without root"), "{text}");
    assert!(text.contains("As root, `weft bench run` can measure"), "{text}");
    assert!(!text.contains("this kernel has no such devices"), "{text}");
}

/// The child processes of all threads of `parent`.
pub fn children(parent: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    // A thread may have ended since the directory was read.
    let of_each = |thread: std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("children")).unwrap_or_default()
    };
    let text: String = threads.map(of_each).collect();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

pub fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Starts a long run when no other process holds the lock of labs, and waits until it has saved
/// three measurements.
fn start_a_long_run(directory: &Path) -> (Child, Value) {
    let results = directory.join("results.json");
    let end = Instant::now() + Duration::from_secs(180);
    loop {
        let mut child = Command::new(WEFT_BENCH)
            .args([
                "run",
                "software-tunnelling",
                "--quick",
                "--blocks",
                "1000",
                "--profile",
                "full",
            ])
            .args(["--contender", "direct", "--scenario", "tcp_stream", "--quiet", "--out"])
            .arg(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The run ends at once when another process holds the lock of labs.
        while child.try_wait().unwrap().is_none() {
            let kept = std::fs::read_to_string(&results).ok();
            let kept: Option<Value> = kept.map(|text| serde_json::from_str(&text).unwrap());
            if let Some(kept) = kept
                && kept["samples"].as_array().unwrap().len() >= 3
            {
                return (child, kept);
            }
            if Instant::now() > end {
                child.kill().unwrap();
                panic!("no measurement was kept");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(Instant::now() < end, "the machine is busy with other labs");
    }
}

/// The daemons of weft among the children of `run`.
fn daemons(run: u32) -> Vec<u32> {
    let is_daemon = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).any(|argument| argument == b"run")
    };
    children(run).into_iter().filter(is_daemon).collect()
}

#[test]
fn row_names_the_killed_process_when_a_contender_dies_during_a_measurement() {
    require_root!();
    let directory = std::env::temp_dir().join(format!("weft-died-{}", std::process::id()));
    let results = directory.join("results.json");
    let arguments = "run software-tunnelling --quick --blocks 1 --profile full --seconds 4 \
                     --scenario tcp_stream \
                     --contender weft-user-gre --quiet --out";
    let end = Instant::now() + Duration::from_secs(240);
    let results: Value = loop {
        assert!(Instant::now() < end, "no contender was killed");
        let mut run = Command::new(WEFT_BENCH)
            .args(arguments.split_whitespace())
            .arg(&directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Two seconds after both daemons started, the run is measuring.
        let (mut since, mut is_killed) = (None::<Instant>, false);
        while !is_killed && run.try_wait().unwrap().is_none() {
            let daemons = daemons(run.id());
            since = since.or((daemons.len() == 2).then(Instant::now));
            if since.is_some_and(|since| since.elapsed() > Duration::from_secs(2))
                && let Some(&daemon) = daemons.first()
            {
                kill(Pid::from_raw(daemon as i32), Signal::SIGKILL).unwrap();
                is_killed = true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let ended = run.wait_with_output().unwrap();
        let stderr = String::from_utf8(ended.stderr).unwrap();
        if is_killed {
            // A failed row does not fail the run.
            assert_eq!(ended.status.code(), Some(0), "{stderr}");
            break serde_json::from_str(&std::fs::read_to_string(&results).unwrap()).unwrap();
        }
        assert!(stderr.contains("another demo or study is running"), "{stderr}");
    };
    std::fs::remove_dir_all(&directory).unwrap();
    let samples = results["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 3, "the bridge twice: {samples:?}");
    for sample in samples {
        let failure = sample["failure"].as_str();
        let is_weft = sample["contender"] == "weft-user-gre";
        assert_eq!(failure.is_some(), is_weft, "{sample}");
        assert!(
            failure.is_none_or(|why| why.contains("weft run") && why.contains("signal: 9")),
            "{sample}"
        );
    }
    assert_eq!(results["complete"], true);
}

#[test]
fn measurements_are_kept_when_a_run_is_killed_or_interrupted() {
    require_root!();
    let directory = std::env::temp_dir().join(format!("weft-kept-{}", std::process::id()));
    let (mut child, kept) = start_a_long_run(&directory);
    child.kill().unwrap();
    child.wait().unwrap();
    bench::lab::remove_stale(&Stop::new()).unwrap();
    assert_eq!(kept["complete"], false);
    let (json, out) = (directory.join("results.json"), directory.join("report"));
    std::fs::create_dir_all(&out).unwrap();
    let (json, out) = (json.to_str().unwrap(), out.to_str().unwrap());
    let (code, _, error) = run(&["report", json, "--out", out]);
    assert_eq!(code, 0, "{error}");
    std::fs::remove_dir_all(&directory).unwrap();

    let (mut child, _) = start_a_long_run(&directory);
    let pid = child.id();
    kill(Pid::from_raw(pid as i32), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    for name in ["results.json", "report.html", "report.md"] {
        assert!(std::fs::metadata(directory.join(name)).unwrap().len() > 1000, "{name}");
    }
    let left = netdev::Netns::list().unwrap();
    let left: Vec<_> =
        left.iter().filter(|name| name.starts_with(&format!("weft-{pid}-"))).collect();
    assert!(left.is_empty(), "{left:?}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn flows_are_one_on_the_wire_when_tunnels_have_one_source_port() {
    require_root!();
    let directory = std::env::temp_dir().join(format!("weft-entropy-{}", std::process::id()));
    let out = directory.to_str().unwrap();
    let contenders = ["kernel-vxlan", "weft-user-vxlan", "weft-kernel-vxlan"];
    let mut arguments =
        vec!["run", "entropy", "--quick", "--blocks", "1", "--scenario", "spread", "--out", out];
    arguments.extend(contenders.iter().flat_map(|name| ["--contender", name]));
    let (code, text, error) = run_when_free(&arguments);
    assert_eq!(code, 0, "{text}\n{error}");
    let results = std::fs::read_to_string(directory.join("results.json")).unwrap();
    let results: Value = serde_json::from_str(&results).unwrap();
    let samples = results["samples"].as_array().unwrap();
    for contender in contenders {
        let flows = |one: bool| -> Vec<f64> {
            let is = |s: &&Value| {
                s["contender"] == contender
                    && s["shape"]["one_source_port"] == one
                    && s["again"] == false
            };
            let flows = |s: &Value| {
                s["figures"]["more"]["outer_flows"].as_f64().unwrap_or_else(|| panic!("{s}"))
            };
            samples.iter().filter(is).map(flows).collect()
        };
        assert_eq!(flows(true), [1.0, 1.0], "{contender}: with RPS and without");
        // The guest has 64 flows, which the tunnel sends from 64 ports or more.
        assert!(
            flows(false).len() == 2 && flows(false).iter().all(|&f| f > 16.0),
            "{contender}: {:?}",
            flows(false)
        );
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A directory with a copy of `weft`, and of `weft-bench` if `both`.
fn installed(name: &str, both: bool) -> std::path::PathBuf {
    let directory = std::env::temp_dir().join(format!("weft-{name}-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    copy_program(weft(), directory.join("weft"));
    if both {
        copy_program(WEFT_BENCH, directory.join("weft-bench"));
    }
    directory
}

#[test]
fn weft_passes_arguments_and_exit_code_on_when_weft_bench_is_installed() {
    let directory = installed("pair", true);
    let weft = |arguments: &[&str]| {
        let output = Command::new(directory.join("weft")).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), text)
    };
    let (code, text) = weft(&["bench", "run", "foo"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("weft-bench: unknown study \"foo\""), "{text}");
    for (arguments, expected) in [
        (&["demo", "--help"][..], "--seconds <N>"),
        (&["bench", "--help"], "Commands:"),
        (&["bench", "trust", "--help"], "--attack-pps <N>"),
    ] {
        let (code, text) = weft(arguments);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn weft_names_what_to_install_when_weft_bench_is_missing() {
    let directory = installed("alone", false);
    for command in ["demo", "bench"] {
        let mut weft = Command::new(directory.join("weft"));
        let output = weft.args([command, "--help"]).env("PATH", "/nonexistent").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("cannot find the program weft-bench"), "{text}");
        assert!(text.contains("--package bench"), "{text}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn demo_says_in_one_sentence_when_rights_are_missing() {
    require_root!();
    let directory = installed("rights", true);
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"])
        .arg(directory.join("weft"))
        .arg("demo")
        .output()
        .unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(text.trim_end().lines().count(), 1, "one sentence: {text}");
    assert!(text.contains("CAP_NET_ADMIN") && text.contains("as root"), "{text}");
    assert!(output.stdout.is_empty(), "{output:?}");
}
