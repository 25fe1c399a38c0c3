//! The documents: the commands of the first chapter work, and the list of drop reasons is complete.

use crate::common::daemon::WEFT;
use flow::DropReason;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::{require_program, require_root};

/// Runs a script where the names of network namespaces and control sockets are its own. Processes
/// that the script leaves behind end with the shell's process namespace.
const ISOLATED: [&str; 6] = ["--mount", "--pid", "--fork", "--kill-child", "timeout", "120"];
/// Ends at the first command that fails, and shows each command before it runs.
const PREAMBLE: &str = "set -euxo pipefail
mount -t proc proc /proc
mkdir -p /run/netns /run/weft
mount -t tmpfs tmpfs /run/netns
mount -t tmpfs tmpfs /run/weft
";

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The code blocks of a document: the language of each, and its text.
fn code_blocks(text: &str) -> Vec<(&str, &str)> {
    let blocks = text.split("\n```").skip(1).step_by(2);
    blocks.filter_map(|block| block.split_once('\n')).collect()
}

/// Runs the shell blocks of a document in order. Blocks of TOML are appended to `network.toml`.
fn script(text: &str) -> String {
    let mut script = PREAMBLE.to_owned();
    for (language, block) in code_blocks(text) {
        match language {
            "sh" => _ = writeln!(script, "{block}"),
            "toml" => {
                let _ = writeln!(script, "cat >>network.toml <<'END'\n{block}\n\nEND");
            }
            other => panic!("a block of {other:?} is neither run nor read by anything"),
        }
    }
    script
}

#[test]
fn first_chapter_works_when_its_commands_are_typed() {
    require_root!();
    require_program!("unshare", "util-linux");
    require_program!("ping", "iputils-ping");
    let text = document("first-network.md");
    assert!(code_blocks(&text).len() >= 10, "the chapter has its blocks");
    let directory = std::env::temp_dir().join(format!("weft-book-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory can be made");
    let programs: PathBuf = Path::new(WEFT).parent().expect("a program is in a directory").into();
    let path = std::env::var("PATH").expect("there is a PATH");
    let output = Command::new("unshare")
        .args(ISOLATED)
        .args(["bash", "-c", &script(&text)])
        .env("PATH", format!("{}:{path}", programs.display()))
        .current_dir(&directory)
        .output()
        .expect("unshare can be started");
    fs::remove_dir_all(&directory).expect("the directory can be removed");
    let printed = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{printed}\n{log}", output.status);
    assert!(printed.contains("3 packets transmitted, 3 received"), "{printed}\n{log}");
    assert!(printed.contains("flow_drop"), "the ACL dropped nothing:\n{printed}\n{log}");
}

#[test]
fn every_drop_reason_is_explained_when_operators_look_it_up() {
    let text = document("operating.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let explained: Vec<_> = rows.map(|(name, _)| name).collect();
    for reason in DropReason::ALL {
        let rows = explained.iter().filter(|name| **name == reason.name()).count();
        assert_eq!(rows, 1, "docs/operating.md has {rows} rows for {}", reason.name());
    }
}
