//! Tests of `weft support`.

use crate::common::daemon::WEFT;
use crate::common::{Daemon, Lab, Setup, TempDir};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::require_root;

/// Runs `weft support` for a network file; returns its JSON output.
fn support(control: &Path, archive: &Path, network: &Path) -> Value {
    let mut command = Command::new(WEFT);
    command.args(["support", "--json", "--control"]).arg(control).arg("-o").arg(archive);
    let output = command.arg(network).output().expect("weft starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Unpacks an archive; returns the directory that it contains.
fn unpacked(archive: &Path, into: &TempDir) -> PathBuf {
    let mut tar = Command::new("tar");
    let done = tar.arg("-xzf").arg(archive).arg("-C").arg(into.path()).status();
    assert!(done.expect("tar starts").success());
    let inside = |entry: fs::DirEntry| entry.path().is_dir().then(|| entry.path());
    let mut entries = fs::read_dir(into.path()).expect("a directory").flatten();
    entries.find_map(inside).expect("one directory is in the archive")
}

/// The names of the parts that the archive lacks.
fn missing(report: &Value) -> Vec<&str> {
    let parts = report["missing"].as_array().expect("a list");
    parts.iter().map(|part| part["part"].as_str().expect("a name")).collect()
}

#[test]
fn archive_has_all_views_when_a_daemon_runs() {
    require_root!();
    let lab = Lab::new(Setup::new("geneve"));
    let daemon = lab.start(0);
    let folder = TempDir::new();
    let archive = folder.path().join("all.tar.gz");
    let report = support(&lab.control(0), &archive, &lab.network_file());
    // These parts need systemd, which this machine may lack.
    let systemd = ["units.txt", "log.txt"];
    let lacks: Vec<_> =
        missing(&report).into_iter().filter(|part| !systemd.contains(part)).collect();
    assert!(lacks.is_empty(), "{report}");
    assert_eq!(fs::metadata(&archive).expect("the archive").mode() & 0o777, 0o600);
    let inside = unpacked(&archive, &folder);
    let read = |part: &str| fs::read_to_string(inside.join(part)).expect("a part");
    let show: Value = serde_json::from_str(&read("show.json")).expect("JSON");
    assert_eq!(show["ports"][0]["port"], daemon.show().ports[0].port);
    let network = fs::read_to_string(lab.network_file()).expect("the network file");
    assert_eq!(read("network.toml"), network);
    assert!(read("logical-flows.json").contains("\"stage\""));
    assert!(read("kernel.txt").starts_with("Linux "));
    Daemon::stop(daemon);
}

#[test]
fn archive_has_the_flow_files_of_bridges_and_no_other_file() {
    let folder = TempDir::new();
    let write = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).expect("a file can be written");
    };
    let bridge = |name: &str, flows: &str| {
        format!("[[bridge]]\nname = \"{name}\"\nhost = \"h1\"\nflows = \"{flows}\"\n")
    };
    let network = "[[host]]\nname = \"h1\"\nuplink = \"eth0\"\n".to_owned()
        + &bridge("br0", "br0.flows")
        + &bridge("br1", "none.flows");
    write("network.toml", &network);
    write("br0.flows", "actions=drop # of br0\n");
    write("key.pem", "SECRET");
    let archive = folder.path().join("bridges.tar.gz");
    let report = support(Path::new("/nowhere.sock"), &archive, &folder.path().join("network.toml"));
    assert!(missing(&report).contains(&"bridge-2-br1.flows"), "{report}");
    let into = TempDir::new();
    let inside = unpacked(&archive, &into);
    let read = |part: &str| fs::read_to_string(inside.join(part)).expect("a part");
    assert_eq!(read("bridge-1-br0.flows"), "actions=drop # of br0\n");
    assert_eq!(read("network.toml"), network);
    for entry in fs::read_dir(&inside).expect("a directory").flatten() {
        let bytes = fs::read(entry.path()).expect("a part");
        assert!(!bytes.windows(6).any(|window| window == b"SECRET"), "{:?}", entry.path());
    }
}

#[test]
fn archive_says_what_is_missing_when_no_daemon_runs() {
    let folder = TempDir::new();
    let archive = folder.path().join("none.tar.gz");
    let report = support(Path::new("/nowhere.sock"), &archive, Path::new("/nowhere.toml"));
    for part in ["show.json", "ports.json", "network.toml"] {
        assert!(missing(&report).contains(&part), "{part}: {report}");
    }
    let inside = unpacked(&archive, &folder);
    assert!(inside.join("os-release.txt").exists());
    let list = fs::read_to_string(inside.join("missing.txt")).expect("the list");
    assert!(list.contains("show.json: weft: ") && list.contains("/nowhere.sock"), "{list}");
}

#[test]
fn archive_is_refused_when_it_exists_or_cannot_be_written() {
    let folder = TempDir::new();
    let file = folder.path().join("file");
    fs::write(&file, "text").expect("a file can be written");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&file, &link).expect("a link can be made");
    for (archive, why) in [
        (Path::new("/nowhere/a.tar.gz"), "No such file"),
        (&*file, "File exists"),
        (&*link, "File exists"),
    ] {
        let mut command = Command::new(WEFT);
        command.args(["support", "--control", "/nowhere.sock", "-o"]).arg(archive);
        let output = command.output().expect("weft starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let wanted = format!("cannot write {}: {why}", archive.display());
        assert!(stderr.contains(&wanted), "{stderr}");
    }
    assert_eq!(fs::read_to_string(&file).expect("it stays"), "text");
    assert!(link.is_symlink());
}
