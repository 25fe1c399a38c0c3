//! An instance of Open vSwitch with a userspace-only datapath. It runs in a separate directory, so
//! that it does not disturb an instance of the machine. It needs no privileges.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use testkit::program::{self, Running};

/// The path of the database schema on Debian.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// A directory that is removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weft-ofctl-{}-{unique}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory can be made");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // If this fails, only temporary files are left.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running instance with a bridge `br0` and the ports p1 to p4. Like weft, it parses two VLAN
/// tags.
pub struct OpenVswitch {
    // The processes, in the order in which they are stopped.
    _switch: Running,
    _database: Running,
    directory: Directory,
}

impl OpenVswitch {
    /// Starts an instance.
    pub fn start() -> Self {
        let directory = Directory::new();
        let path = directory.0.as_path();
        tool(path, "ovsdb-tool", &["create", "conf.db", SCHEMA]);
        let database = Running::start(
            "ovsdb-server",
            command(
                path,
                "ovsdb-server",
                &["conf.db", "--remote=punix:db.sock", "--unixctl=db.ctl", "-vsyslog:off"],
            ),
            path,
        );
        program::wait_for_server(&path.join("db.sock"));
        tool(path, "ovs-vsctl", &["--db=unix:db.sock", "--no-wait", "init"]);
        let switch = Running::start(
            "ovs-vswitchd",
            command(
                path,
                "ovs-vswitchd",
                &[
                    "unix:db.sock",
                    "--enable-dummy=override",
                    "--disable-system",
                    "--unixctl=switch.ctl",
                    "-vsyslog:off",
                    "-vconsole:warn",
                ],
            ),
            path,
        );
        program::wait_for_server(&path.join("switch.ctl"));
        let mut script =
            "--db=unix:db.sock --timeout 20 set Open_vSwitch . other_config:vlan-limit=2 \
                          -- add-br br0 -- set bridge br0 datapath_type=dummy fail_mode=secure"
                .to_owned();
        for port in 1..=4 {
            script += &format!(
                " -- add-port br0 p{port} -- set interface p{port} type=dummy ofport_request={port}"
            );
        }
        // ovs-vsctl returns when the switch has applied the change.
        tool(path, "ovs-vsctl", &script.split_whitespace().collect::<Vec<_>>());
        // As in weft, flows can match the ports of first fragments.
        tool(path, "ovs-ofctl", &["set-frags", "unix:br0.mgmt", "nx-match"]);
        Self { _switch: switch, _database: database, directory }
    }

    /// Replaces all flows of the bridge.
    pub fn replace_flows(&self, flows: &str) {
        let path = &self.directory.0;
        std::fs::write(path.join("flows.txt"), flows).expect("a file can be written");
        tool(path, "ovs-ofctl", &["-O", "OpenFlow15", "del-flows", "unix:br0.mgmt"]);
        tool(path, "ovs-ofctl", &["-O", "OpenFlow15", "add-flows", "unix:br0.mgmt", "flows.txt"]);
    }

    /// The flows with statistics, as `ovs-ofctl dump-flows` prints them.
    pub fn dump_flows(&self) -> Vec<String> {
        let arguments = ["--no-names", "--sort", "dump-flows", "unix:br0.mgmt"];
        tool(&self.directory.0, "ovs-ofctl", &arguments).lines().map(str::to_owned).collect()
    }

    /// The datapath actions for a packet.
    pub fn trace(&self, packet: &str) -> String {
        let path = &self.directory.0;
        // The path must be absolute: ovs-appctl interprets a relative path as the name of a daemon.
        let control = path.join("switch.ctl");
        let control = control.to_str().expect("a temporary directory has a plain name");
        let text =
            tool(path, "ovs-appctl", &["-t", control, "ofproto/trace", "--names", "br0", packet]);
        let actions = text.lines().find_map(|line| line.strip_prefix("Datapath actions: "));
        actions.unwrap_or_else(|| panic!("{packet}: no actions in\n{text}")).to_owned()
    }
}

/// The flow as Open vSwitch prints it, or its errors. Tries OpenFlow 1.5, then OpenFlow 1.0.
pub fn canonical(line: &str) -> Result<String, String> {
    canonical_in("OpenFlow15", line)
        .or_else(|error| canonical_in("OpenFlow10", line).map_err(|older| error + &older))
}

fn canonical_in(version: &str, line: &str) -> Result<String, String> {
    let directory = Directory::new();
    std::fs::write(directory.0.join("flow.txt"), line).expect("a file can be written");
    let arguments = ["-O", version, "--no-names", "parse-flows", "flow.txt"];
    // `parse-flows` parses a file of one line and exits.
    let output =
        command(&directory.0, "ovs-ofctl", &arguments).output().expect("ovs-ofctl can be run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let flow = text.lines().find(|line| line.contains("_MOD "));
    match flow.filter(|flow| output.status.success() && !flow.contains("decode error")) {
        // The line begins with the type of the message.
        Some(flow) => Ok(flow.split_once("): ").map_or(flow, |(_, flow)| flow).to_owned()),
        None => Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Runs a program of the package in the directory. Sockets are named relative to it because the
/// length of their paths is limited.
fn command(directory: &Path, name: &str, arguments: &[&str]) -> Command {
    let mut command = program::command(name);
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, directory);
    }
    command.current_dir(directory).args(arguments);
    command
}

fn tool(directory: &Path, name: &str, arguments: &[&str]) -> String {
    program::run(command(directory, name, arguments), b"")
}
