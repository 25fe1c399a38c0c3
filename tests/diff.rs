//! Tests of `weft diff` without a daemon. `commands/reload.rs` tests that its predictions are the
//! same as what a reload does.

use crate::common::TempDir;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const EXAMPLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/vxlan.toml"));
const SERVICES: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/services.toml"));

/// Runs `weft diff`. Returns exit code, standard output and standard error.
fn diff(args: &[&str], old: &Path, new: &Path) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let output = command.arg("diff").args(args).args([old, new]).output().expect("weft starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

/// Two files in a directory.
struct Files {
    _directory: TempDir,
    old: PathBuf,
    new: PathBuf,
}

impl Files {
    fn new(old: &str, new: &str) -> Self {
        let directory = TempDir::new();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).expect("a file can be written");
            path
        };
        let (old, new) = (write("old.toml", old), write("new.toml", new));
        Self { _directory: directory, old, new }
    }

    fn text(&self, args: &[&str]) -> (i32, String) {
        let (code, printed, errors) = diff(args, &self.old, &self.new);
        assert_eq!(errors, "");
        (code, printed)
    }

    fn json(&self) -> (i32, Value) {
        let (code, printed) = self.text(&["--json"]);
        (code, serde_json::from_str(&printed).expect("JSON"))
    }
}

/// The example with the text `from`, which it must contain, replaced by `to`.
fn example_with(from: &str, to: &str) -> String {
    assert!(EXAMPLE.contains(from), "{from}");
    EXAMPLE.replace(from, to)
}

#[test]
fn nothing_differs_when_only_comments_do() {
    let files = Files::new(EXAMPLE, &format!("# Another comment.\n\n{EXAMPLE}"));
    let expected = "host h1: nothing differs\nhost h2: nothing differs\n";
    assert_eq!(files.text(&[]), (0, expected.to_owned()));
}

#[test]
fn each_host_says_what_is_interrupted_when_a_device_changes() {
    let changed = example_with("tap = \"web0\"", "tap = \"web1\"");
    let files = Files::new(EXAMPLE, &changed);
    let expected = "host h1: weft reload applies the new file\n  \
                    ports                 1 changed (web), 0 kept\n  \
                    traffic stops at      port web\n\
                    host h2: weft reload applies the new file\n";
    assert_eq!(files.text(&[]), (0, expected.to_owned()));
    let (_, only_h2) = files.text(&["--host", "h2"]);
    assert_eq!(only_h2, "host h2: weft reload applies the new file\n");
}

#[test]
fn restart_is_demanded_when_an_uplink_or_its_address_changes() {
    for (from, to, reason) in [
        ("\"192.0.2.1\"", "\"192.0.2.7\"", "underlay address of h1 is 192.0.2.1, but 192.0.2.7"),
        (
            "name = \"h1\"\nuplink = \"eth0\"",
            "name = \"h1\"\nuplink = \"eth9\"",
            "uplink of h1 is eth0, but eth9",
        ),
    ] {
        let files = Files::new(EXAMPLE, &example_with(from, to));
        let (code, report) = files.json();
        assert_eq!((code, &report["hosts"][0]["step"]), (1, &json!("restart")), "{report}");
        let why = report["hosts"][0]["reason"].as_str().expect("a reason");
        assert!(why.contains(reason) && !why.contains("nothing was changed"), "{why}");
        assert_eq!(report["hosts"][1]["reason"], Value::Null);
    }
}

#[test]
fn hosts_start_or_stop_when_only_one_file_has_them() {
    let third = format!(
        "{EXAMPLE}\n[[host]]\nname = \"h3\"\nuplink = \"eth0\"\nunderlay = [\"192.0.2.3\"]\n"
    );
    let steps = |files: Files| {
        let (code, report) = files.json();
        (code, report["hosts"][2]["step"].clone())
    };
    assert_eq!(steps(Files::new(EXAMPLE, &third)), (0, json!("start")));
    assert_eq!(steps(Files::new(&third, EXAMPLE)), (0, json!("stop")));
}

#[test]
fn logical_flows_are_listed_when_an_acl_is_new() {
    let acl = "\n[[acl]]\nswitch = \"blue\"\ndirection = \"to-port\"\npriority = 10\n\
               match = \"udp.dst == 7\"\naction = \"drop\"\n";
    let files = Files::new(EXAMPLE, &format!("{EXAMPLE}{acl}"));
    let (code, printed) = files.text(&["--flows"]);
    assert_eq!(code, 0);
    assert!(printed.contains("all hosts\n  switch blue: "), "{printed}");
    let is_new = |line: &str| line.starts_with("    +table=") && line.contains("udp.dst == 7");
    assert!(printed.lines().any(is_new), "{printed}");
    let (_, report) = files.json();
    let steps = report["hosts"].as_array().expect("hosts").iter().map(|host| &host["step"]);
    assert!(steps.into_iter().all(|step| step == "reload"), "{report}");
}

#[test]
fn load_balancers_are_named_when_their_backends_change() {
    let backend = "10.0.1.12:8080";
    assert!(SERVICES.contains(backend), "{SERVICES}");
    let files = Files::new(SERVICES, &SERVICES.replace(backend, "10.0.1.13:8080"));
    let (code, report) = files.json();
    assert_eq!(code, 0, "{report}");
    assert_eq!(report["load_balancers"]["changed"].as_array().map(Vec::len), Some(1), "{report}");
}

#[test]
fn errors_name_the_file_when_it_is_invalid_or_lacks_the_host() {
    let files = Files::new(EXAMPLE, "tunnel = \"none\"\n");
    let (code, printed, errors) = diff(&[], &files.old, &files.new);
    assert_eq!((code, printed.as_str()), (2, ""));
    assert!(errors.contains("new.toml:1:"), "{errors}");
    let files = Files::new(EXAMPLE, EXAMPLE);
    let (code, _, errors) = diff(&["--host", "h9"], &files.old, &files.new);
    assert_eq!(code, 2);
    assert!(errors.contains("has no host \"h9\": use one of"), "{errors}");
}

/// Neither change affects a port, a tunnel or an end point of host h1. It needs a reload
/// nevertheless, because its flows change.
#[test]
fn reload_is_due_when_a_guest_moves_between_other_hosts_or_a_vni_changes() {
    let third = r#"
[[host]]
name = "h3"
uplink = "eth0"
underlay = ["192.0.2.3"]

[[logical_switch]]
name = "green"
vni = 5002

  [[logical_switch.port]]
  name = "one"
  host = "h1"
  mac = "02:00:00:00:00:11"
  device = { tap = "one0" }

  [[logical_switch.port]]
  name = "two"
  host = "h3"
  mac = "02:00:00:00:00:12"
  device = { tap = "two0", netns = "two" }

  [[logical_switch.port]]
  name = "three"
  host = "h2"
  mac = "02:00:00:00:00:13"
  device = { tap = "three0" }
"#;
    let old = format!("{EXAMPLE}{third}");
    let (before, after) = old.split_at(old.find("name = \"db\"").expect("a port"));
    let moved = before.to_owned() + &after.replacen("host = \"h2\"", "host = \"h3\"", 1);
    let other_vni = old.replace("vni = 5001", "vni = 5003");
    for (new, list, name) in
        [(moved, "moved_ports", "db"), (other_vni, "renumbered", "switch blue")]
    {
        let (code, report) = Files::new(&old, &new).json();
        assert_eq!((code, &report["hosts"][0]["step"]), (0, &json!("reload")), "{report}");
        for what in ["ports", "endpoints"] {
            assert_eq!(report["hosts"][0][what]["changed"], json!([]), "{what}: {report}");
        }
        assert_eq!(report[list], json!([name]), "{report}");
    }
}

#[test]
fn tunnel_is_interrupted_when_its_checksum_is_set() {
    let options = "\n[tunnel_options.vxlan]\nchecksum = ";
    for value in ["true", "false"] {
        // The example does not have this table, so it is appended.
        let files = Files::new(EXAMPLE, &format!("{EXAMPLE}{options}{value}\n"));
        let (code, printed) = files.text(&["--host", "h1"]);
        assert_eq!(code, 0);
        assert!(printed.contains("traffic stops at      tunnel vxlan"), "{value}: {printed}");
    }
}

#[test]
fn restart_is_demanded_when_the_daemon_gave_up_a_privilege() {
    let tap = "device = { tap = \"web0\", netns = \"web\" }";
    let plain = example_with(tap, "device = { interface = \"web0\" }");
    let (code, report) = Files::new(&plain, EXAMPLE).json();
    let why = report["hosts"][0]["reason"].as_str().unwrap_or_default();
    assert!(code == 1 && why.contains("CAP_SYS_ADMIN"), "{report}");
    assert_eq!(Files::new(EXAMPLE, &plain).json().0, 0);
}
