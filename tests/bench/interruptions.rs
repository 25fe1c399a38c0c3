//! A short run of the interruptions of `weft-bench trust`.

use testkit::require_root;

use crate::{run_when_free, weft};

/// Uses the same program as the older program, because this test has no other build.
fn interrupt(datapath: &str) {
    let program = weft();
    let program = program.to_str().expect("a path of UTF-8");
    let arguments = ["--weft", program, "trust", "interruption", "--flows", "300"];
    let more = ["--datapath", datapath, "--old", program];
    let (code, stdout, errors) = run_when_free(&[&arguments[..], &more].concat());
    // Gaps can also be caused by the sender, which shares its processors with other tests. So they
    // are not judged.
    let failed = |line: &&str| line.starts_with("  FAIL ");
    let (gaps, others): (Vec<_>, Vec<_>) =
        stdout.lines().filter(failed).partition(|line| line.contains(", longest gap: "));
    let is_right = others.is_empty() && code == i32::from(!gaps.is_empty());
    assert!(is_right, "code {code}\n{stdout}{errors}");
    for name in ["reload", "kill -9", "stop and start", "crash loop", "downgrade", "upgrade"] {
        assert!(stdout.contains(&format!("{name}, longest gap")), "{name}: {stdout}");
    }
}

#[test]
fn no_flow_stays_interrupted_when_the_daemon_is_replaced_behind_programs() {
    require_root!();
    interrupt("kernel");
}

#[test]
fn no_flow_stays_interrupted_when_the_daemon_of_the_user_datapath_is_replaced() {
    require_root!();
    interrupt("user");
}
