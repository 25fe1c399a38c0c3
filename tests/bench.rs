//! `weft bench`, as a user calls it, and its emulated machine.

use bench::exact::{self, Kernel, Rounds, Wire};
use bench::{Stop, lab::Contender};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use testkit::{require_program, require_root, require_vm};

const WEFT: &str = env!("CARGO_BIN_EXE_weft");
const KERNEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/guest-kernel");

/// A kept run of all studies.
const RESULTS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/2026-11-23-bench/results.json");

/// Exit code, standard output and standard error.
fn weft(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(WEFT).args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

/// As [`weft`], as soon as no other lab holds the machine.
fn weft_when_free(arguments: &[&str]) -> (i32, String, String) {
    let end = Instant::now() + Duration::from_secs(180);
    loop {
        let said = weft(arguments);
        if !said.2.contains("another demo or study is running") || Instant::now() > end {
            return said;
        }
    }
}

#[test]
fn digits_are_the_same_when_the_input_is() {
    require_vm!();
    let kernel = Kernel::open(Path::new(KERNEL)).unwrap();
    let rounds = Rounds { stream_kib: 256, ..Rounds::SHORT };
    let wires =
        [("bridge", Wire::Copies), ("weft-user-geneve", Wire::Shared)].map(|(name, wire)| {
            let (contender, weft): (Contender, _) = (name.parse().unwrap(), Path::new(WEFT));
            let measure =
                || exact::measure(contender, &kernel, weft, rounds, wire, &Stop::new()).unwrap();
            let (first, second) = (measure(), measure());
            assert_eq!(first, second);
            let switching = first.switching();
            assert!(
                switching.tcp > 500.0 && switching.udp > 500.0,
                "{name} is not free: {first:?}"
            );
            first.wire
        });
    // A datagram is nobody else's anyway; a head is cleared and copied where a segment is.
    let [copies, shared] = wires;
    assert!(copies.tcp > shared.tcp + 1000.0, "{copies:?} {shared:?}");
    assert!(copies.udp < shared.udp + 500.0, "{copies:?} {shared:?}");
}

#[test]
fn names_that_are_none_are_answered_with_those_that_are() {
    for (arguments, valid) in [
        (&["bench", "run", "foo"][..], "software-tunnelling, jumbo-frames"),
        (&["bench", "run", "all", "--contender", "foo"], "kernel-vxlan"),
        (&["bench", "run", "all", "--profile", "foo"], "full, tso, none"),
        (
            &["bench", "run", "entropy", "--contender", "weft-user-qinq"],
            "no chosen scenario has weft-user-qinq; those that the chosen ones have are bridge, kernel-vxlan",
        ),
        (&["bench", "client", "localhost", "--pattern", "foo"], "tcp_stream, tcp_reverse"),
        (&["bench", "client", "localhost", "--connections", "641"], "1 to 640"),
    ] {
        let (code, _, error) = weft(arguments);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(valid), "{arguments:?}: {error}");
    }
}

#[test]
fn studies_and_contenders_are_listed_with_reasons() {
    require_root!();
    let (code, text, error) = weft(&["bench", "list"]);
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
    let (code, text, error) = weft_when_free(&[
        "bench",
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
    assert!(samples.iter().any(|s| s["contender"] == "weft-user-stt" && s["figures"]["gbps"].as_f64() > Some(0.0)));
    for name in ["report.html", "report.md"] {
        assert!(read(name).contains("weft user stt"), "{name}");
    }
    let verdicts = results["verdicts"].as_array().unwrap();
    assert_eq!(verdicts.len(), 17);
    for verdict in verdicts {
        assert!(verdict["verdict"].is_string() && verdict["why"].as_str() > Some(""), "{verdict}");
    }
    let json = directory.join("results.json");
    let (code, text, error) =
        weft(&["bench", "compare", json.to_str().unwrap(), json.to_str().unwrap()]);
    assert_eq!(code, 0, "{error}");
    assert!(text.contains("+0.0 %") && !text.contains("different"), "{text}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn list_says_what_root_adds_when_somebody_else_asks() {
    require_root!();
    let place = std::env::temp_dir().join(format!("weft-list-{}", std::process::id()));
    std::fs::copy(WEFT, &place).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"])
        .arg(&place)
        .args(["bench", "list"])
        .output()
        .unwrap();
    std::fs::remove_file(&place).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("kernel-vxlan         skipped: not known without root"), "{text}");
    assert!(text.contains("As root, `weft bench run` can measure"), "{text}");
    assert!(!text.contains("this kernel has no such devices"), "{text}");
}

/// The processes that `parent` has started, in whichever of its threads.
fn children(parent: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    // A thread that has ended meanwhile has none.
    let of_each = |thread: std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("children")).unwrap_or_default()
    };
    let text: String = threads.map(of_each).collect();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn counts_are_kept_and_the_emulator_is_gone_when_exact_is_interrupted() {
    require_vm!();
    let json = std::env::temp_dir().join(format!("weft-counts-{}.json", std::process::id()));
    // Of the two, one is refused on this wire at once: its row is there when the other is interrupted.
    let mut child = Command::new(WEFT)
        .args(["bench", "exact", "--kernel", KERNEL, "--wire", "copies"])
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
    assert!(error.contains("interrupted: what was counted is kept, 1 of 2 contenders"), "{error}");
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

/// Starts a run of some seconds, as soon as no other lab holds the machine, and waits until it has kept three measurements.
fn start_a_long_run(directory: &Path) -> (Child, Value) {
    let results = directory.join("results.json");
    let end = Instant::now() + Duration::from_secs(180);
    loop {
        let mut child = Command::new(WEFT)
            .args([
                "bench",
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
        // Another lab on the machine ends it at once.
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

/// The daemons of weft that `run` has started.
fn daemons(run: u32) -> Vec<u32> {
    let is_daemon = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).any(|argument| argument == b"run")
    };
    children(run).into_iter().filter(is_daemon).collect()
}

#[test]
fn row_says_who_died_when_a_contender_is_killed_while_it_is_measured() {
    require_root!();
    let directory = std::env::temp_dir().join(format!("weft-died-{}", std::process::id()));
    let results = directory.join("results.json");
    let arguments = "bench run software-tunnelling --quick --blocks 1 --profile full --seconds 4 --scenario tcp_stream \
                     --contender weft-user-gre --quiet --out";
    let end = Instant::now() + Duration::from_secs(240);
    let results: Value = loop {
        assert!(Instant::now() < end, "no contender was killed");
        let mut run = Command::new(WEFT)
            .args(arguments.split_whitespace())
            .arg(&directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Both hosts' daemons, for a while: a measurement has begun, and lasts.
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
        let said = String::from_utf8(ended.stderr).unwrap();
        if is_killed {
            // A row that failed is no failure of the run.
            assert_eq!(ended.status.code(), Some(0), "{said}");
            break serde_json::from_str(&std::fs::read_to_string(&results).unwrap()).unwrap();
        }
        assert!(said.contains("another demo or study is running"), "{said}");
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
    let (code, _, error) = weft(&["bench", "report", json, "--out", out]);
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
    let mut arguments = vec![
        "bench",
        "run",
        "entropy",
        "--quick",
        "--blocks",
        "1",
        "--scenario",
        "spread",
        "--out",
        out,
    ];
    arguments.extend(contenders.iter().flat_map(|name| ["--contender", name]));
    let (code, text, error) = weft_when_free(&arguments);
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
        // 64 flows of a guest, over 64 ports or more.
        assert!(
            flows(false).len() == 2 && flows(false).iter().all(|&f| f > 16.0),
            "{contender}: {:?}",
            flows(false)
        );
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn client_says_what_is_wrong_when_nobody_serves() {
    // Bound, but nobody accepts and nobody answers: a wait that has to end.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    let (code, _, error) =
        weft(&["bench", "client", "127.0.0.1", "--port", &port, "--seconds", "1"]);
    assert_eq!(code, 1);
    assert!(!error.is_empty());
    drop(silent);
    let (code, _, error) =
        weft(&["bench", "client", "127.0.0.1", "--port", &port, "--seconds", "1"]);
    assert_eq!(code, 1);
    assert!(error.contains("refused"), "{error}");
}

#[test]
fn port_in_use_is_named_when_serve_starts() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, _, error) = weft(&["bench", "serve", "--address", "127.0.0.1", "--port", &port]);
    assert_eq!(code, 1);
    assert!(error.contains(&port) && error.contains("in use"), "{error}");
}

/// Looks for what is wider than its place: the page itself, and text of charts.
const LOOK: &str = "<script>addEventListener('load', () => {
    const found = [];
    const page = document.documentElement;
    if (page.scrollWidth > page.clientWidth) found.push('the page is ' + page.scrollWidth + ' wide, its window ' + page.clientWidth);
    for (const text of document.querySelectorAll('svg text')) {
        const box = text.getBBox(), view = text.ownerSVGElement.viewBox.baseVal;
        const inside = box.x >= 0 && box.y >= 0 && box.x + box.width <= view.width && box.y + box.height <= view.height;
        if (!inside) found.push('text of a chart: ' + text.textContent);
    }
    for (const cell of document.querySelectorAll('td, th, p, li, h1, h2, h3')) {
        if (cell.scrollWidth > cell.clientWidth + 1 && !cell.closest('.scroll')) found.push('cut off: ' + cell.textContent.slice(0, 60));
    }
    const last = document.querySelector('.claims tr:last-child').getBoundingClientRect().bottom;
    if (innerWidth > 1000 && last > innerHeight) found.push('verdicts end at ' + last + ', the first screen at ' + innerHeight);
    document.body.dataset.looked = found.length ? found.join('; ') : 'nothing overflows';
});</script>";

#[test]
fn nothing_overflows_when_a_browser_shows_the_report() {
    require_root!();
    require_program!("chromium", "chromium");
    let directory = std::env::temp_dir().join(format!("weft-report-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let out = directory.to_str().unwrap();
    let (code, _, error) = weft(&["bench", "report", RESULTS, "--out", out]);
    assert_eq!(code, 0, "{error}");
    let report = std::fs::read_to_string(directory.join("report.html")).unwrap();
    assert!(!report.contains("http://") && !report.contains("https://"), "it needs no network");
    assert!(report.matches("<svg").count() > 10, "every scenario has a chart");
    let page = directory.join("looked.html");
    std::fs::write(&page, report.replace("</body>", &format!("{LOOK}</body>"))).unwrap();
    for width in [1400, 800, 500] {
        let browser = Command::new("timeout")
            .args(["120", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu"])
            .arg(format!("--user-data-dir={}", directory.join("profile").display()))
            .arg(format!("--window-size={width},1000"))
            .arg("--dump-dom")
            .arg(format!("file://{}", page.display()))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&browser.stdout).into_owned();
        let looked = text.split("data-looked=\"").nth(1).and_then(|rest| rest.split('"').next());
        assert_eq!(looked, Some("nothing overflows"), "at a width of {width}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
