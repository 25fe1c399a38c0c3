//! Tests the messages that a daemon sends to the service manager, and the permissions of the
//! daemon's group.

use crate::commands::call::weft;
use crate::common::daemon::WEFT;
use crate::common::{Daemon, Datapath, Lab, PATIENCE, Setup};
use nix::sys::signal::Signal;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;
use testkit::host::wait_until;
use testkit::require_root;

/// The daemon's messages, as a service manager receives them.
struct Manager(UnixDatagram);

impl Manager {
    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.0.recv(&mut bytes).expect("a message of the daemon");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// The next message that contains a state.
    fn state(&self) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.next() {
                text if text != "WATCHDOG=1" => return text,
                _ => assert!(Instant::now() < end, "the state of the daemon does not change"),
            }
        }
    }
}

#[test]
fn service_manager_hears_each_state_and_that_all_threads_are_alive() {
    require_root!();
    for datapath in Datapath::BOTH {
        let lab = Lab::new(Setup::new("vxlan").datapath(datapath));
        let path = lab.dir.path().join("notify");
        let manager = Manager(UnixDatagram::bind(&path).expect("a socket"));
        manager.0.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
        let environment =
            [("NOTIFY_SOCKET", path.to_str().expect("ASCII")), ("WATCHDOG_USEC", "1000000")];
        let daemon = Daemon::spawn_with_environment(
            &lab.hosts[0],
            &lab.network_file(),
            &lab.control(0),
            &["--datapath", datapath.name()],
            &environment,
        );
        assert_eq!(manager.state(), "READY=1\nSTATUS=");
        assert_eq!(weft(&lab.control(0), &["show"]).0, 0, "a daemon that is ready answers");
        for _ in 0..3 {
            assert_eq!(manager.next(), "WATCHDOG=1");
        }
        daemon.signal(Signal::SIGHUP);
        assert_eq!([manager.state(), manager.state()], ["RELOADING=1", "READY=1\nSTATUS="]);
        fs::write(lab.network_file(), "nonsense = 1\n").expect("a file can be written");
        daemon.signal(Signal::SIGHUP);
        assert_eq!(manager.state(), "RELOADING=1");
        let failed = manager.state();
        let reason = failed.strip_prefix("READY=1\nSTATUS=cannot reload after SIGHUP: ");
        assert!(reason.is_some_and(|why| why.contains("nonsense")), "{failed}");
        daemon.signal(Signal::SIGTERM);
        assert_eq!(manager.state(), "STOPPING=1");
        daemon.stop();
    }
}

#[test]
fn daemon_does_not_start_when_its_service_manager_is_unreachable() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    let mut command = lab.hosts[0].netns.program(WEFT);
    command.args(["run", "--host", "h1"]).arg(lab.network_file());
    let output = command.env("NOTIFY_SOCKET", "/no/such").output().expect("weft can be started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("NOTIFY_SOCKET=/no/such"), "{stderr}");
}

/// The command `weft ARGUMENTS`, executed by the user `nobody` with this group.
fn weft_of_nobody(program: &Path, group: &str, control: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "nobody", "--regid", group, "--clear-groups", "--"]);
    command.arg(program).args(arguments).arg("--control").arg(control);
    command
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A child process that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn members_of_the_group_may_view_but_not_change_nor_keep_root_out() {
    require_root!();
    let lab = Lab::new(Setup::new("vxlan"));
    let (folder, control) = (lab.dir.path(), lab.control(0));
    fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("a mode can be set");
    let program = folder.join("weft");
    testkit::program::copy_program(WEFT, &program);
    let arguments = ["--view-group", "nogroup"];
    let daemon = Daemon::spawn(&lab.hosts[0], &lab.network_file(), &control, &arguments);
    daemon.wait_ready();
    let mode = fs::metadata(&control).expect("a socket").permissions().mode() & 0o777;
    assert_eq!(mode, 0o660);
    let call = |group: &str, arguments: &[&str]| {
        weft_of_nobody(&program, group, &control, arguments).output().expect("setpriv is there")
    };
    let outside = call("daemon", &["show"]);
    assert_eq!(outside.status.code(), Some(1));
    assert!(stderr_of(&outside).contains("Permission denied"), "{}", stderr_of(&outside));
    for view in
        [&["show"][..], &["ports"], &["tunnels"], &["fdb"], &["flows"], &["ct"], &["ct", "--stats"]]
    {
        let output = call("nogroup", view);
        assert!(output.status.success(), "{view:?}: {}", stderr_of(&output));
    }
    let file = lab.network_file();
    let file = file.to_str().expect("ASCII");
    for change in [
        &["stop"][..],
        &["reload", file],
        &["capture", "g1", "-w", "-"],
        &["fdb", "--forget", "02:00:00:00:00:07"],
        &["ct", "--flush", "--all"],
        &["doctor", "--path", "h2"],
    ] {
        let output = call("nogroup", change);
        assert_eq!(output.status.code(), Some(2), "{change:?}: {}", stderr_of(&output));
        assert!(stderr_of(&output).contains("your group may only view"), "{}", stderr_of(&output));
    }
    let watch = || {
        let mut command = weft_of_nobody(&program, "nogroup", &control, &["monitor", "--drops"]);
        Running(command.stdout(Stdio::null()).spawn().expect("setpriv is there"))
    };
    let watching: Vec<_> = (0..8).map(|_| watch()).collect();
    wait_until(PATIENCE, "eight viewers are served", || {
        stderr_of(&call("nogroup", &["show"])).contains("the daemon serves 8 at a time")
    });
    assert_eq!(weft(&control, &["show"]).0, 0, "root is served");
    drop(watching);
    daemon.stop();
}
