//! Tests of the documentation. The commands of the first chapter work. Other pages name the tests
//! of their commands. The published results contain the figures of the README. The list of drop
//! reasons is complete.

use crate::common::daemon::WEFT;
use flow::DropReason;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::{require_program, require_root};

/// Arguments of `unshare` that give a script its own mount and process namespaces, and a time
/// limit. Namespace names and control sockets of the script are then invisible outside. Processes
/// that the script leaves behind end with its process namespace.
const ISOLATED: [&str; 6] = ["--mount", "--pid", "--fork", "--kill-child", "timeout", "120"];
/// The first lines of a script. They make it end at the first command that fails, and print each
/// command before it runs. At the end it prints the logs of daemons.
const PREAMBLE: &str = "set -euxo pipefail
trap 'tail --lines=50 *.log >&2 || true' EXIT
mount -t proc proc /proc
mkdir -p /run/netns /run/weft
mount -t tmpfs tmpfs /run/netns
mount -t tmpfs tmpfs /run/weft
";

/// The beginning of the line before a block of commands that names its test. The test executes the
/// block, or equivalent commands with other directories, addresses and services.
const MARK: &str = "<!-- tested by ";
/// The beginning of the line before a block that names equivalent steps of CI.
const CI_MARK: &str = "<!-- run by CI: ";
/// The beginning of the line before a block that was part of a kept run in docs/results.
const RUN_MARK: &str = "<!-- run in results/";
/// The beginning of the line before a block that says why nothing runs it.
const NOT_RUN_MARK: &str = "<!-- not run: ";

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The code blocks of a document: the language of each, and its text.
fn code_blocks(text: &str) -> Vec<(&str, &str)> {
    let blocks = text.split("\n```").skip(1).step_by(2);
    blocks.filter_map(|block| block.split_once('\n')).collect()
}

/// Makes a script from the code blocks of a document, in order. TOML blocks are appended to
/// `network.toml`. Text blocks are examples of output.
fn script(text: &str) -> String {
    let mut script = PREAMBLE.to_owned();
    for (language, block) in code_blocks(text) {
        match language {
            "sh" => _ = writeln!(script, "{block}"),
            "toml" => {
                let _ = writeln!(script, "cat >>network.toml <<'END'\n{block}\n\nEND");
            }
            "text" => {}
            other => panic!("a block of {other:?} is neither run nor read by anything"),
        }
    }
    script
}

/// A line with its numbers replaced by `#`, and with single spaces: what examples of output have in
/// common with the output of other runs.
fn shape(line: &str) -> String {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut shape = String::new();
    for c in line.split_whitespace().collect::<Vec<_>>().join(" ").chars() {
        match c {
            '0'..='9' if !shape.ends_with('#') => shape.push('#'),
            c if is_number(c) && shape.ends_with('#') => {}
            c => shape.push(c),
        }
    }
    shape
}

/// Executes the commands of a document. Returns their output and their log.
fn type_commands(name: &str) -> (String, String) {
    let text = document(name);
    assert!(code_blocks(&text).len() >= 10, "the chapter has its blocks");
    let directory = std::env::temp_dir().join(format!("weft-book-{}-{name}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory can be made");
    let programs: PathBuf = Path::new(WEFT).parent().expect("a program is in a directory").into();
    // The system directories come first in the path: a wrapper of Python elsewhere starts more
    // slowly than Python.
    let path = std::env::var("PATH").expect("there is a PATH");
    let path = format!("{}:/usr/bin:/bin:{path}", programs.display());
    let output = Command::new("unshare")
        .args(ISOLATED)
        .args(["bash", "-c", &script(&text)])
        .env("PATH", path)
        .current_dir(&directory)
        .output()
        .expect("unshare can be started");
    fs::remove_dir_all(&directory).expect("the directory can be removed");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}\n{printed}\n{log}", output.status);
    let shapes: Vec<_> = printed.lines().map(shape).collect();
    let examples = code_blocks(&text).into_iter().filter(|(language, _)| *language == "text");
    for line in examples.flat_map(|(_, block)| block.lines()).filter(|line| *line != "...") {
        assert!(shapes.contains(&shape(line)), "docs/{name}: no line is like {line:?}\n{printed}");
    }
    (printed, log)
}

#[test]
fn first_chapter_works_when_its_commands_are_typed() {
    require_root!();
    require_program!("unshare", "util-linux");
    require_program!("ping", "iputils-ping");
    let (printed, log) = type_commands("first-network.md");
    assert!(printed.contains("3 packets transmitted, 3 received"), "{printed}\n{log}");
    assert!(printed.contains("flow_drop"), "the ACL dropped nothing:\n{printed}\n{log}");
}

/// Executes the blocks of this page that name this test.
#[test]
fn settings_of_interface_ports_can_be_made() {
    require_root!();
    require_program!("unshare", "util-linux");
    require_program!("sysctl", "procps");
    require_program!("ethtool", "ethtool");
    let text = document("network-toml.md");
    let mark = format!("{MARK}tests/book.rs::settings_of_interface_ports_can_be_made -->");
    let mut script = PREAMBLE.to_owned();
    script += "ip link add eth0 type veth peer name far\nip tuntap add dev tap7 mode tap\n";
    let marked: Vec<_> = text.split(&mark).skip(1).collect();
    assert_eq!(marked.len(), 2, "two blocks name this test");
    for block in marked {
        let (language, commands) = code_blocks(block)[0];
        assert_eq!(language, "sh");
        let _ = writeln!(script, "{commands}");
    }
    let mut unshare = Command::new("unshare");
    unshare.arg("--net").args(ISOLATED).args(["bash", "-c", &script]);
    let output = unshare.output().expect("unshare can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("net.ipv6.conf.tap7.disable_ipv6 = 1"), "{printed}");
}

/// Each block of commands is preceded by a line that names its test or its step of CI, or says why
/// there is none. Two chapters need no such lines, because all their commands are executed.
#[test]
fn commands_in_the_book_name_their_test() {
    const PROGRAMS: [&str; 8] =
        ["weft", "weft-bench", "make", "git", "cargo", "ip", "ovs-vsctl", "systemctl"];
    let is_command = |line: &str| PROGRAMS.contains(&line.split(' ').next().unwrap_or_default());
    let summary = document("SUMMARY.md");
    let pages = summary.split('(').skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let is_checked = |page: &&str| {
        // Help texts are checked where they are generated. Results and decisions are records, whose
        // commands are not repeated.
        !page.contains('/') && !["commands.md", "first-network.md", "services.md"].contains(page)
    };
    let mut count = 0;
    for page in pages.filter(is_checked).chain(["../README.md"]) {
        let text = document(page);
        let mut before = "";
        for part in text.split("```").enumerate() {
            match part {
                (index, prose) if index % 2 == 0 => {
                    let indented = prose.split("\n\n").find(|block| block.starts_with("    "));
                    assert_eq!(indented, None, "docs/{page}: a block of code needs a fence");
                    before =
                        prose.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("").trim();
                }
                (_, block) => {
                    let (language, lines) = block.split_once('\n').expect("a block has lines");
                    if language == "sh" {
                        count += usize::from(is_run(page, before));
                    } else if language == "text" {
                        let hidden = lines.lines().find(|line| is_command(line));
                        assert_eq!(hidden, None, "docs/{page}: a command in a block of output");
                    }
                }
            }
        }
    }
    assert!(count >= 13, "{count} blocks of commands are run");
}

/// True if the line before a block names a test, steps of CI or a kept run, which must exist.
/// Readers must judge whether it matches the block.
fn is_run(page: &str, mark: &str) -> bool {
    let after = |prefix| mark.strip_prefix(prefix).and_then(|rest: &str| rest.strip_suffix(" -->"));
    if let Some(reason) = after(NOT_RUN_MARK) {
        assert!(!reason.trim().is_empty(), "docs/{page}: {mark:?} gives no reason");
        return false;
    }
    if let Some(run) = after(RUN_MARK) {
        document(&format!("results/{run}"));
        return true;
    }
    if let Some(steps) = after(CI_MARK) {
        let ci = document("../xtask/src/ci.rs");
        for step in steps.split(", ") {
            assert!(ci.contains(&format!("({step:?}, ")), "docs/{page}: CI has no step {step:?}");
        }
        return true;
    }
    let (file, wanted) =
        if let Some((file, function)) = after(MARK).and_then(|named| named.split_once("::")) {
            (file, format!("fn {function}("))
        } else {
            panic!(
                "docs/{page}: write `{MARK}FILE::FUNCTION -->`, `{CI_MARK}STEP -->`, \
                 `{RUN_MARK}FILE -->` or \
             `{NOT_RUN_MARK}REASON -->` before the block, not {mark:?}"
            )
        };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let (before, _) =
        source.split_once(&wanted).unwrap_or_else(|| panic!("docs/{page}: {file} lacks {wanted}"));
    // A function's attributes follow the `}` that ends the previous function.
    let attributes = &before[before.rfind("\n}\n").unwrap_or(0)..];
    let is_test = attributes.contains("#[test]\n");
    assert!(is_test, "docs/{page}: {wanted} of {file} is no test");
    true
}

/// Compares only the words, because Graphviz, which draws the picture, is not installed everywhere.
#[test]
fn picture_has_the_labels_of_its_source() {
    let (source, picture) =
        (document("pictures/two-hosts.dot"), document("pictures/two-hosts.svg"));
    let labels = source.split("label = \"").skip(1).filter_map(|rest| rest.split_once('"'));
    let lines = labels.flat_map(|(label, _)| label.split("\\n"));
    let mut wanted: Vec<_> = lines.map(str::to_owned).collect();
    let texts = picture.split("</text>").filter_map(|part| part.rsplit_once('>'));
    let mut drawn: Vec<_> = texts.map(|(_, text)| text.to_owned()).collect();
    drawn.retain(|text| !text.trim().is_empty());
    wanted.sort();
    drawn.sort();
    assert_eq!(drawn, wanted, "draw docs/pictures/two-hosts.svg again");
}

#[test]
fn figures_of_the_readme_are_those_of_the_kept_runs() {
    let readme = document("../README.md");
    let demo = document("results/2026-11-26-demo.md");
    let blocks = code_blocks(&readme);
    let (_, shown) = blocks.iter().find(|(language, _)| *language == "text").expect("a demo");
    assert!(shown.lines().count() > 12, "{shown}");
    for line in shown.lines() {
        assert!(demo.contains(line), "the kept demo lacks {line:?}");
    }
    let counts = document("results/2026-11-29-exact-copies.json");
    let counts: serde_json::Value = serde_json::from_str(&counts).expect("JSON");
    let switching = |contender: &str| {
        let rows = counts["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["contender"] == contender).expect(contender);
        ["tcp", "udp"].map(|protocol| {
            let count = |of: &str| row[of][protocol].as_f64().expect("a count");
            count("total") - count("wire")
        })
    };
    let [bridge, _] = switching("bridge");
    let thousands = |count: f64| {
        let count = count.round() as u64;
        format!("{},{:03}", count / 1000, count % 1000)
    };
    for (title, contender) in [
        ("**weft, VLAN**", "weft-kernel-vlan"),
        ("**weft, QinQ**", "weft-kernel-qinq"),
        ("**weft, GRE**", "weft-kernel-gre"),
        ("**weft, NVGRE**", "weft-kernel-nvgre"),
        ("**weft, VXLAN**", "weft-kernel-vxlan"),
        ("**weft, Geneve with OVN's option**", "weft-kernel-geneve"),
        ("Linux bridge, no tunnel", "bridge"),
        ("kernel VXLAN and a bridge", "kernel-vxlan"),
        ("Open vSwitch kernel module, Geneve", "ovs-kernel-geneve"),
    ] {
        let [tcp, udp] = switching(contender);
        let (ratio, tcp, udp) = (tcp / bridge, thousands(tcp), thousands(udp));
        let row = format!("| {title} | {tcp} | {udp} | {ratio:.2} |");
        assert!(readme.contains(&row), "README.md lacks {row:?}");
    }
}

#[test]
fn chapter_about_services_works_when_its_commands_are_typed() {
    require_root!();
    require_program!("unshare", "util-linux");
    require_program!("ping", "iputils-ping");
    require_program!("python3", "python3");
    let (printed, log) = type_commands("services.md");
    assert!(printed.contains("3 packets transmitted, 3 received"), "{printed}\n{log}");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/services.toml");
    let example = fs::read_to_string(example).expect("the example is there");
    let text = document("services.md");
    let blocks = code_blocks(&text);
    let (_, network) = blocks.iter().find(|(language, _)| *language == "toml").expect("a network");
    assert!(
        example.ends_with(&format!("{}\n", network.trim_end())),
        "the example is the chapter's"
    );
    for server in ["\nweb1\n", "\nweb2\n"] {
        assert!(printed.contains(server), "{printed}\n{log}");
    }
    assert!(printed.contains("-> 10.9.0.1:80"), "{printed}\n{log}");
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

#[test]
fn tests_exist_when_the_page_about_trust_names_them() {
    let text = document("trust.md");
    let named: Vec<_> = text.split('`').filter_map(|code| code.split_once(".rs::")).collect();
    assert!(named.len() > 60, "{} tests are named", named.len());
    for (file, function) in named {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(format!("{file}.rs"));
        let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}.rs: {error}"));
        let wanted = format!("fn {function}(");
        let mut tests = source.split("#[test]\n").skip(1);
        let is_test = tests.any(|after| after.trim_start().starts_with(&wanted));
        assert!(is_test, "docs/trust.md: {file}.rs has no test {function}");
    }
}
