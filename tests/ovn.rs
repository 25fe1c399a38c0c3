//! Hosts that join an OVN deployment: real databases and ovn-northd, and `ovs-vsctl` on each host.

use crate::common::{Attachment, Daemon, Guest, Host, Lab, PATIENCE, Setup, traffic};
use crate::peers::program::{Running, command, run, wait_for_server};
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::host::wait_until;
use testkit::ovn::Ovn;
use testkit::{require_program, require_root};

/// The schema of the local database on Debian.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// The MTU of guests: that of the underlay without the headers of Geneve with logical ports.
const MTU: u16 = 1442;
/// The length of a TCP stream between guests.
const TRANSFER_LEN: usize = 2_000_000;

macro_rules! require_ovn {
    () => {
        require_root!();
        require_program!("ovs-vsctl", "openvswitch-switch");
        require_program!("ovn-northd", "ovn-central");
    };
}

/// The local database of a host.
struct LocalDatabase<'l> {
    host: &'l Host,
    directory: PathBuf,
    _server: Running,
}

impl<'l> LocalDatabase<'l> {
    /// Starts the database of a host, with the settings that make it a chassis of `ovn`.
    fn start(lab: &'l Lab, ovn: &Ovn, at: usize) -> Self {
        let host = &lab.hosts[at];
        let directory = lab.dir.path().join(format!("{}-db", host.name));
        std::fs::create_dir(&directory).expect("a directory can be made");
        run(with_args(tool(host, &directory, "ovsdb-tool"), &["create", "conf.db", SCHEMA]), b"");
        let server = ["conf.db", "--remote=punix:db.sock", "--unixctl=db.ctl", "-vsyslog:off"];
        let server = with_args(tool(host, &directory, "ovsdb-server"), &server);
        let server = Running::start("ovsdb-server", server, &directory);
        wait_for_server(&directory.join("db.sock"));
        let this = Self { host, directory, _server: server };
        this.vsctl("--no-wait init");
        this.vsctl(&format!(
            "--no-wait set open . external_ids:system-id={} external_ids:ovn-remote={} \
             external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip={}",
            host.name,
            ovn.southbound(),
            host.underlay(4),
        ));
        this
    }

    fn remote(&self) -> String {
        format!("unix:{}/db.sock", self.directory.display())
    }

    /// Runs ovs-vsctl, which waits until the switch has done what it is told.
    fn vsctl(&self, arguments: &str) -> String {
        let limit = PATIENCE.as_secs().to_string();
        let command = tool(self.host, &self.directory, "ovs-vsctl");
        let command = with_args(command, &["--db=unix:db.sock", "--timeout", &limit]);
        run(with_args(command, &arguments.split_whitespace().collect::<Vec<_>>()), b"")
    }

    /// Attaches a guest to its logical port.
    fn add_port(&self, guest: &Guest) {
        let (device, name) = (guest.host_device(), &guest.name);
        self.vsctl(&format!(
            "add-port br-int {device} -- set Interface {device} external_ids:iface-id={name}"
        ));
    }
}

fn tool(host: &Host, directory: &Path, name: &str) -> Command {
    let mut command = command(name);
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, directory);
    }
    command.current_dir(directory);
    host.netns.command(command)
}

fn with_args(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments);
    command
}

/// The commands for a logical switch with these guests.
fn switch(name: &str, guests: &[&Guest]) -> Vec<String> {
    let ports = guests.iter().flat_map(|Guest { name: port, mac, ip4, ip6, .. }| {
        [
            format!("lsp-add {name} {port}"),
            format!("lsp-set-addresses {port} '{mac} {ip4} {ip6}'"),
        ]
    });
    [format!("ls-add {name}")].into_iter().chain(ports).collect()
}

/// Two hosts whose guests are attached to logical ports.
struct Hosts<'l> {
    lab: &'l Lab,
    databases: [LocalDatabase<'l>; 2],
    daemons: [Daemon; 2],
}

impl<'l> Hosts<'l> {
    /// Starts weft on both hosts, and attaches the guests.
    fn start(lab: &'l Lab, ovn: &Ovn) -> Self {
        let databases = [0, 1].map(|at| LocalDatabase::start(lab, ovn, at));
        let daemons = [0, 1].map(|at| {
            Daemon::join_ovn(&lab.hosts[at], &databases[at].remote(), &lab.control(at), &[])
        });
        daemons.iter().for_each(Daemon::wait_answers);
        for guest in &lab.guests {
            databases[guest.host].add_port(guest);
        }
        Self { lab, databases, daemons }
    }

    /// Waits until all guests' ports are up in the northbound database.
    fn wait_up(&self, ovn: &Ovn) {
        for guest in &self.lab.guests {
            let wait = format!("wait-until Logical_Switch_Port {} up=true", guest.name);
            ovn.nbctl(&wait);
        }
    }
}

fn lab() -> Lab {
    Lab::new(Setup::new("geneve").attachment(Attachment::Veth).mtu(MTU))
}

#[test]
fn guests_talk_when_two_hosts_join_an_ovn() {
    require_ovn!();
    let lab = lab();
    let ovn = Ovn::start("join");
    let (near, far) = lab.ends();
    ovn.configure(&switch("blue", &[near, far]));
    let hosts = Hosts::start(&lab, &ovn);
    hosts.wait_up(&ovn);
    ovn.nbctl("--wait=hv sync");
    crate::peers::guests_exchange(&lab, TRANSFER_LEN);
    traffic::broadcast(near, far);
    for (database, guest) in hosts.databases.iter().zip([near, far]) {
        let ids = database.vsctl(&format!("get Interface {} external_ids", guest.host_device()));
        assert!(ids.contains("ovn-installed=\"true\""), "{ids}");
    }
    for daemon in hosts.daemons {
        daemon.stop();
    }
    wait_until(PATIENCE, "the hosts have left", || ovn.sbctl("list Chassis").is_empty());
}
