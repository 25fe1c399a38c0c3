//! The interruptions of `weft-bench trust`, short.

use testkit::require_root;

use crate::{run_when_free, weft};

/// The same program counts as an older one: another build is not at hand in this test.
fn interrupt(datapath: &str) {
    let program = weft();
    let program = program.to_str().expect("a path of UTF-8");
    let arguments = ["--weft", program, "trust", "interruption", "--flows", "300"];
    let more = ["--datapath", datapath, "--old", program];
    let (code, said, errors) = run_when_free(&[&arguments[..], &more].concat());
    assert_eq!(code, 0, "{said}{errors}");
    for name in ["reload", "kill -9", "stop and start", "crash loop", "downgrade", "upgrade"] {
        assert!(said.contains(&format!("{name}, longest gap")), "{name}: {said}");
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
