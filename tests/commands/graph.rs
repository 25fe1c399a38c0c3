//! Tests of `weft graph`.

use super::call::weft;
use super::routed::{FAR, Routed};
use crate::common::daemon::WEFT;
use crate::common::{Daemon, PATIENCE, TempDir, traffic};
use crate::peers::scapy::python;
use serde_json::Value;
use std::io::Write;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use testkit::host::wait_until;
use testkit::{require_program, require_root};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
/// A script that prints the classes of lines and all texts of a picture, one per line.
const READ_SVG: &str = "
import sys, xml.etree.ElementTree as tree
root = tree.fromstring(sys.stdin.buffer.read())
name = '{http://www.w3.org/2000/svg}'
assert root.tag == name + 'svg', root.tag
for path in root.iter(name + 'path'):
    print(path.get('class'))
for text in root.iter(name + 'text'):
    print(text.text)
";

fn graph(args: &[&str]) -> Output {
    Command::new(WEFT).arg("graph").args(args).output().expect("weft starts")
}

/// Runs a program that must succeed, with `input` on standard input. Returns its standard output.
fn pipe(mut command: Command, input: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).expect("it reads its input");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{command:?}\n{input}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The classes of lines and the texts in a picture, extracted by an XML parser.
fn svg_lines(svg: &str) -> Vec<String> {
    let mut python = python();
    python.args(["-c", READ_SVG]);
    pipe(python, svg).lines().map(str::to_owned).collect()
}

/// Checks with Graphviz, if it is installed, that a graph is valid.
fn check_dot(dot: &str) {
    let mut command = Command::new("dot");
    command.args(["-Tsvg", "-o", "/dev/null"]);
    let is_installed = Command::new("dot").arg("-V").output().is_ok();
    if is_installed {
        pipe(command, dot);
    }
}

#[test]
fn examples_are_valid_svg_and_dot() {
    require_program!("python3", "python3");
    let directory = TempDir::new();
    for example in ["vxlan", "routed", "services", "bridge", "qinq"] {
        let file = format!("{EXAMPLES}/{example}.toml");
        let picture = directory.path().join("network.svg");
        let picture = picture.to_str().expect("UTF-8");
        let drawn = graph(&["-o", picture, &file]);
        assert!(drawn.status.success() && drawn.stdout.is_empty(), "{drawn:?}");
        let svg = std::fs::read_to_string(picture).expect("a picture");
        let lines = svg_lines(&svg);
        assert!(lines.contains(&format!("{example}.toml")), "{lines:?}");
        assert!(lines.contains(&"h1".to_owned()), "{lines:?}");
        let dot = graph(&["--format", "dot", &file]);
        assert!(dot.status.success(), "{dot:?}");
        check_dot(&String::from_utf8(dot.stdout).expect("UTF-8"));
    }
}

/// The picture in the manual is the current output of the command that the manual shows with it.
#[test]
fn picture_of_the_manual_is_up_to_date() {
    let directory = TempDir::new();
    let drawn = directory.path().join("drawn.svg");
    let output =
        graph(&["-o", drawn.to_str().expect("UTF-8"), &format!("{EXAMPLES}/services.toml")]);
    assert!(output.status.success(), "{output:?}");
    let drawn = std::fs::read_to_string(drawn).expect("a picture");
    let kept = Path::new(EXAMPLES).join("../docs/pictures/services-network.svg");
    let kept = std::fs::read_to_string(kept).expect("a picture");
    assert!(
        drawn == kept,
        "run weft graph -o docs/pictures/services-network.svg examples/services.toml again"
    );
}

#[test]
fn bad_usage_and_invalid_files_are_refused() {
    let directory = TempDir::new();
    let invalid = directory.path().join("network.toml");
    std::fs::write(&invalid, "[[host]]\nname = 7\n").expect("a file can be written");
    let invalid = invalid.to_str().expect("UTF-8");
    let example = format!("{EXAMPLES}/vxlan.toml");
    for (args, code, text) in [
        (&[invalid][..], 2, "network.toml:2"),
        (&["/nonexistent.toml"], 2, "/nonexistent.toml"),
        (&["--host", "h1", &example], 2, "cannot be used with"),
        (&["--interval", "1", &example], 2, "cannot be used with"),
        (&["--interval", "0", "--host", "h1"], 2, "1..=60"),
        (&["--format", "png", &example], 2, "possible values: svg, dot"),
        (&["-o", "/nonexistent/x.svg", &example], 1, "cannot write /nonexistent/x.svg"),
        (&["--control", "/nonexistent.sock"], 1, "cannot reach a daemon"),
    ] {
        let output = graph(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(text), "{args:?}: {stderr}");
    }
}

#[test]
fn running_switch_is_drawn_with_traffic_drops_and_ports_that_are_down() {
    require_root!();
    require_program!("python3", "python3");
    let routed = Routed::start();
    let near = &routed.near().netns;
    traffic::ping(near, FAR.into());
    let control = &routed.lab.control(0);
    let draw = |args: &[&str]| {
        let (code, out, stderr) = weft(control, &[&["graph"], args].concat());
        assert_eq!((code, &*stderr), (0, ""), "{args:?}");
        out
    };
    let lines = svg_lines(&draw(&[]));
    let has = |lines: &[String], text: &str| lines.iter().any(|line| line.contains(text));
    for text in ["this host, ", "core-web", "to h2", "line up", "switch, geneve vni 1", "packets"] {
        assert!(has(&lines, text), "{text}: {lines:?}");
    }
    assert!(!has(&lines, "line down"), "{lines:?}");
    check_dot(&draw(&["--format", "dot"]));

    // A UDP packet to port 53 is dropped by the ACL.
    let socket = near.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).expect("a socket");
    wait_until(PATIENCE, "the drop is drawn", || {
        socket.send_to(b"x", (Ipv4Addr::from(FAR), 53)).expect("a datagram is sent");
        let lines = svg_lines(&draw(&[]));
        has(&lines, "line drops") && has(&lines, "drops ")
    });

    // If no packet was dropped within the interval, no drops are drawn. The switch drops router
    // solicitations, which a guest's kernel sends every few seconds, so several intervals are
    // tried.
    wait_until(PATIENCE, "no drops are drawn", || {
        let lines = svg_lines(&draw(&["--interval", "1"]));
        assert!(has(&lines, "within 1 s") && has(&lines, "bit/s"), "{lines:?}");
        has(&lines, "line up") && !has(&lines, "line drops")
    });

    let topology: Value = routed.daemons[0].topology();
    assert_eq!(topology["switches"][0]["ports"][0]["name"], "g1", "{topology}");
    routed.daemons.into_iter().for_each(Daemon::stop);
}
