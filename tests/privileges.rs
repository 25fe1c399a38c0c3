//! Tests the privileges of a daemon: missing ones are named when it starts, every thread keeps only
//! those that it needs, and everything works with them.

use crate::commands::call::{weft, weft_json};
use crate::common::daemon::{MEGAFLOWS, WEFT, wait_port};
use crate::common::{Attachment, Daemon, Datapath, Lab, PATIENCE, Setup, traffic};
use netdev::capability::Capability;
use serde_json::json;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Output};
use testkit::host::wait_until;
use testkit::require_root;

/// The value of a line in `/proc/PID/task/TID/status`.
fn value<'s>(status: &'s str, name: &str) -> &'s str {
    let lines = &mut status.lines();
    let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("{name} in {status}")).trim()
}

/// The content of `/proc/PID/task/TID/status` for all threads, with their names.
fn threads(daemon: &Daemon) -> Vec<(String, String)> {
    let folder = PathBuf::from(format!("/proc/{}/task", daemon.pid()));
    let tasks = fs::read_dir(folder).expect("a process").map(|task| task.expect("a thread").path());
    // A thread that has ended since the directory was read has no status.
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.join("status")).ok());
    statuses.map(|status| (value(&status, "Name").to_owned(), status)).collect()
}

/// Checks that no thread of a daemon has other capabilities than `capabilities`. Returns the number
/// of threads.
fn assert_restricted(daemon: &Daemon, capabilities: &[Capability]) -> usize {
    let kept: u64 = capabilities.iter().map(Capability::bitmask).sum();
    let threads = threads(daemon);
    for (name, status) in &threads {
        let set = |set: &str| u64::from_str_radix(value(status, set), 16).expect("hexadecimal");
        let sets = ["CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb"].map(set);
        let expected = if name == "log" { 0 } else { kept };
        assert_eq!(sets, [expected, expected, 0, 0, 0], "thread {name}");
        assert_eq!(value(status, "NoNewPrivs"), "1", "thread {name}");
        assert_eq!(value(status, "Seccomp"), "2", "thread {name}");
    }
    threads.len()
}

fn kept(attachment: Attachment) -> &'static [Capability] {
    const BOTH: [Capability; 3] =
        [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW, Capability::CAP_SYS_ADMIN];
    match attachment {
        Attachment::Tap => &BOTH,
        Attachment::Veth => &BOTH[..2],
    }
}

#[test]
fn every_thread_keeps_only_what_it_needs_and_the_switch_works_with_that() {
    require_root!();
    for (datapath, attachment) in [
        (Datapath::User, Attachment::Tap),
        (Datapath::User, Attachment::Veth),
        (Datapath::Kernel, Attachment::Tap),
        (Datapath::Kernel, Attachment::Veth),
    ] {
        let setup = Setup::new("vxlan").guests(2, 1).mtu(1400);
        let lab = Lab::new(setup.attachment(attachment).datapath(datapath));
        let kept = kept(attachment);
        let (a, b) = lab.ends();
        for _start in 0..2 {
            let daemons = lab.start_both();
            let check = || {
                for daemon in &daemons {
                    let threads = assert_restricted(daemon, kept);
                    assert!(threads > 4, "{threads} threads");
                }
            };
            check();
            traffic::ping(&a.netns, b.ip(4));
            traffic::tcp(a, b, 4, 1 << 20);
            let control = lab.control(0);
            let shown = weft_json(&control, &["show"]);
            let names: Vec<_> = kept.iter().map(ToString::to_string).collect();
            assert_eq!(
                shown["privileges"],
                json!({
                    "capabilities": names,
                    "no_new_privs": true,
                    "seccomp": true,
                    "landlock": "on",
                })
            );
            let text = weft(&control, &["show"]).1;
            let line = format!(
                "privileges: {}  no_new_privs on  seccomp on  landlock on",
                names.join(" ")
            );
            assert!(text.contains(&line), "{text}");
            // A port is removed and added again; the rest of the file stays the same.
            let whole = fs::read_to_string(lab.network_file()).expect("the network file");
            let without =
                whole.replace("name = \"g2\"\nhost = \"h1\"", "name = \"g2\"\nhost = \"h2\"");
            assert_ne!(whole, without);
            for text in [&without, &whole] {
                let file = lab.dir.path().join("changed.toml");
                fs::write(&file, text).expect("a file can be written");
                weft_json(&control, &["reload", file.to_str().expect("a path")]);
            }
            wait_port(&daemons[0], "g2", "up", |port| port.state == "up");
            traffic::ping(&lab.guests[1].netns, b.ip(4));
            check();
            daemons.into_iter().for_each(Daemon::stop);
        }
    }
}

/// `weft run` on `h1` without the capabilities in `dropped`, which is in the format of `setpriv`:
/// `-net_raw`.
fn run_without(lab: &Lab, dropped: &str, datapath: &str) -> Command {
    let mut command = lab.hosts[0].netns.program("setpriv");
    command.args(["--bounding-set", dropped, "--", WEFT, "run", "--host", "h1"]);
    command.args(["--datapath", datapath]).args(MEGAFLOWS);
    command.arg("--control").arg(lab.control(0)).arg(lab.network_file());
    command
}

fn refused(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    stderr
}

#[test]
fn error_names_all_missing_capabilities_and_what_they_are_for() {
    require_root!();
    let lab = |attachment| Lab::new(Setup::new("geneve").mtu(1400).attachment(attachment));
    let (inside, here) = (lab(Attachment::Tap), lab(Attachment::Veth));
    let devices = "CAP_NET_ADMIN (devices and routes)";
    let packets = "CAP_NET_RAW (packet sockets)";
    let guests = "CAP_SYS_ADMIN (ports in network namespaces)";
    let programs = ["CAP_BPF (BPF programs)", "CAP_PERFMON (BPF programs)"];
    let user = "or choose --datapath user";
    let cases: [(&Lab, &str, &str, &[&str]); 8] = [
        (&inside, "user", "-net_admin", &[devices, "AmbientCapabilities="]),
        (&inside, "user", "-net_raw", &[packets]),
        (&inside, "user", "-sys_admin", &[guests]),
        (&inside, "kernel", "-sys_admin,-net_raw,-bpf", &[packets, guests, programs[0]]),
        (&here, "user", "-net_admin,-net_raw,-sys_admin", &[devices, packets]),
        (&here, "kernel", "-sys_admin,-bpf", &[programs[0], user]),
        (&here, "kernel", "-sys_admin,-perfmon", &[programs[1], user]),
        (&here, "kernel", "-sys_admin,-bpf,-perfmon", &[programs[0], programs[1], user]),
    ];
    for (lab, datapath, dropped, named) in cases {
        let output = run_without(lab, dropped, datapath).output().expect("setpriv can be started");
        let stderr = refused(&output);
        for text in named {
            assert!(stderr.contains(text), "without {dropped}: {text} in {stderr}");
        }
        let count = named.iter().filter(|text| text.starts_with("CAP_")).count();
        assert_eq!(stderr.matches("CAP_").count(), count, "without {dropped}: {stderr}");
    }
}

#[test]
fn reload_names_the_capability_that_was_given_up_and_changes_nothing() {
    require_root!();
    let setup = Setup::new("geneve").mtu(1400).attachment(Attachment::Veth);
    let lab = Lab::new(setup);
    let daemons = lab.start_both();
    let (a, b) = lab.ends();
    traffic::ping(&a.netns, b.ip(4));
    let inside = format!(
        "[[logical_switch.port]]\nname = \"inside\"\nhost = \"h1\"\n\
         mac = \"02:00:00:00:00:99\"\ndevice = {{ tap = \"t0\", netns = \"{}\" }}\n",
        a.netns.name().expect("a name")
    );
    let text = fs::read_to_string(lab.network_file()).expect("the network file");
    let file = lab.dir.path().join("inside.toml");
    fs::write(&file, text + &inside).expect("a file can be written");
    let before = daemons[0].show().ports.len();
    let (code, out, stderr) =
        weft(&lab.control(0), &["reload", file.to_str().expect("a path of ASCII")]);
    assert_eq!((code, &*out), (2, ""), "{stderr}");
    for text in ["CAP_SYS_ADMIN (ports in network namespaces)", "nothing was changed", "restart"] {
        assert!(stderr.contains(text), "{text} in {stderr}");
    }
    assert_eq!(daemons[0].show().ports.len(), before);
    traffic::ping(&a.netns, b.ip(4));
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn reload_fails_when_only_another_user_may_read_the_file() {
    require_root!();
    let lab = Lab::new(Setup::new("geneve"));
    let daemon = lab.start(0);
    let file = lab.dir.path().join("private.toml");
    fs::copy(lab.network_file(), &file).expect("a file can be copied");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode can be set");
    let file = file.to_str().expect("a path of ASCII");
    weft_json(&lab.control(0), &["reload", file]);
    chown(file, Some(65_534), None).expect("an owner can be set");
    let (code, out, stderr) = weft(&lab.control(0), &["reload", file]);
    assert_eq!((code, &*out), (2, ""), "{stderr}");
    assert!(stderr.contains("make it readable for the user that runs weft"), "{stderr}");
    daemon.stop();
}

/// A running `weft run`. Dropping it kills the process.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn unprivileged_user_runs_the_switch_with_four_ambient_capabilities() {
    require_root!();
    for datapath in Datapath::BOTH {
        let setup = Setup::new("vxlan").mtu(1400).attachment(Attachment::Veth);
        let lab = Lab::new(setup.datapath(datapath));
        let dir = lab.dir.path();
        let program = dir.join("weft");
        testkit::program::copy_program(WEFT, &program);
        // Creates a directory of the user, and a TUN device that other users may open, like udev
        // does.
        let script = format!(
            "chown nobody {dir} && mknod -m 666 {dir}/tun c 10 200 && \
             mount --bind {dir}/tun /dev/net/tun && exec \"$@\"",
            dir = dir.display()
        );
        let capabilities = "+net_admin,+net_raw,+bpf,+perfmon";
        let mut command = lab.hosts[0].netns.program("unshare");
        command.args(["--mount", "sh", "-c", &script, "sh"]);
        command.args(["setpriv", "--reuid", "nobody", "--clear-groups", "--inh-caps"]);
        command.args([capabilities, "--ambient-caps", capabilities]).arg(&program);
        command.args(["run", "--host", "h1", "--datapath", datapath.name()]).args(MEGAFLOWS);
        command.arg("--control").arg(lab.control(0)).arg(lab.network_file());
        let log = dir.join("log");
        command.stderr(fs::File::create(&log).expect("a file can be made"));
        let running = Running(command.spawn().expect("unshare can be started"));
        let shown = || weft(&lab.control(0), &["show", "--json"]);
        wait_until(PATIENCE, "the switch runs", || shown().0 == 0);
        let other = lab.start(1);
        let (a, b) = lab.ends();
        traffic::ping(&a.netns, b.ip(4));
        traffic::tcp(a, b, 4, 1 << 20);
        let shown = shown().1;
        let log = fs::read_to_string(&log).expect("a text");
        assert!(shown.contains(datapath.name()), "{shown}{log}");
        let status = fs::read_to_string(format!("/proc/{}/status", running.0.id()));
        let status = status.expect("a process");
        assert_eq!(value(&status, "CapPrm"), "0000000000003000", "{log}");
        assert!(value(&status, "Uid").starts_with("65534\t"), "{status}");
        other.stop();
    }
}
