//! Tests hosts that join an OVN deployment, with real databases and ovn-northd, and `ovs-vsctl` on
//! each host.

use crate::commands::call::weft;
use crate::common::{Attachment, Daemon, GUEST_DEVICE, Guest, Host, Lab, PATIENCE, Setup, traffic};
use crate::metrics::scrape;
use crate::peers::program::{Running, command, run, wait_for_server};
use crate::peers::{carry_wire_frames, carry_wire_frames_between};
use netdev::{Dad, IpNet, Route};
use nix::sys::signal::Signal;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testkit::host::wait_until;
use testkit::ovn::Ovn;
use testkit::require_program;
use wire::MacAddr;

/// The path of the local database's schema in Debian.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// The MTU of guests: that of the underlay minus the headers of Geneve with logical ports.
const MTU: u16 = 1442;
/// The length of a TCP stream between guests.
const TRANSFER_LEN: usize = 2_000_000;

macro_rules! require_ovn {
    () => {
        testkit::require_root!();
        testkit::require_program!("ovs-vsctl", "openvswitch-switch");
        testkit::require_program!("ovn-northd", "ovn-central");
    };
}

mod announced;
mod balanced;
pub mod clients;
mod devices;
mod guest_services;
mod health;
mod learned;
mod localnet;
mod metered;
mod migrated;
pub mod nat;
mod openflow;
mod tools;

/// The local database (`Open_vSwitch`) of a host.
struct LocalDatabase<'l> {
    host: &'l Host,
    directory: PathBuf,
    _server: Running,
}

impl<'l> LocalDatabase<'l> {
    /// Starts the local database of a host, with the settings that make the host a chassis of
    /// `ovn`.
    fn start(lab: &'l Lab, ovn: &Ovn, at: usize) -> Self {
        let host = &lab.hosts[at];
        let directory = lab.dir.path().join(format!("{}-db", host.name));
        std::fs::create_dir(&directory).expect("a directory can be made");
        run(with_args(tool(&directory, "ovsdb-tool"), &["create", "conf.db", SCHEMA]), b"");
        let server = ["conf.db", "--remote=punix:db.sock", "--unixctl=db.ctl", "-vsyslog:off"];
        let server = with_args(tool(&directory, "ovsdb-server"), &server);
        let server = Running::start("ovsdb-server", server, &directory);
        wait_for_server(&directory.join("db.sock"));
        let this = Self { host, directory, _server: server };
        this.vsctl(&format!(
            "--no-wait init \
             -- set open . external_ids:system-id={} external_ids:ovn-remote={} \
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

    /// Runs ovs-vsctl, which waits until the switch has applied the changes.
    fn vsctl(&self, arguments: &str) -> String {
        let limit = PATIENCE.as_secs().to_string();
        let command = tool(&self.directory, "ovs-vsctl");
        let command = with_args(command, &["--db=unix:db.sock", "--timeout", &limit]);
        run(with_args(command, &arguments.split_whitespace().collect::<Vec<_>>()), b"")
    }

    /// Attaches a guest to its logical port. Waits first until the daemon has created the
    /// integration bridge.
    fn add_port(&self, guest: &Guest) {
        self.add_ports([guest]);
    }

    /// Attaches several guests to their logical ports.
    fn add_ports<'g>(&self, guests: impl IntoIterator<Item = &'g Guest>) {
        let mut commands = "wait-until Bridge br-int".to_owned();
        for guest in guests {
            let (device, name) = (guest.host_device(), &guest.name);
            commands += &format!(
                " -- add-port br-int {device} \
                 -- set Interface {device} external_ids:iface-id={name}"
            );
        }
        self.vsctl(&commands);
    }
}

/// A program of Open vSwitch that finds all its files in this directory.
fn tool(directory: &Path, name: &str) -> Command {
    let mut command = command(name);
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, directory);
    }
    command.current_dir(directory);
    command
}

fn with_args(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments);
    command
}

/// The ovn-nbctl commands that create a logical switch with these guests.
fn switch(name: &str, guests: &[&Guest]) -> Vec<String> {
    let ports = guests.iter().flat_map(|Guest { name: port, mac, ip4, ip6, .. }| {
        [format!("lsp-add {name} {port}"), format!("lsp-set-addresses {port} '{mac} {ip4} {ip6}'")]
    });
    [format!("ls-add {name}")].into_iter().chain(ports).collect()
}

/// Two hosts whose guests are attached to logical ports.
struct Hosts<'l> {
    databases: [LocalDatabase<'l>; 2],
    daemons: [Daemon; 2],
}

impl<'l> Hosts<'l> {
    /// Starts weft on both hosts, attaches the guests, and waits until their ports are up in the
    /// northbound database.
    fn start(lab: &'l Lab, ovn: &Ovn) -> Self {
        let databases = [0, 1].map(|at| LocalDatabase::start(lab, ovn, at));
        let daemons = [0, 1].map(|at| join(lab, &databases[at]));
        daemons.iter().for_each(Daemon::wait_answers);
        for (host, database) in databases.iter().enumerate() {
            database.add_ports(lab.guests_of(host));
        }
        wait_up(lab, ovn);
        Self { databases, daemons }
    }

    /// Stops both daemons, and waits until the southbound database contains no host.
    fn stop(self, ovn: &Ovn) {
        for daemon in self.daemons {
            daemon.stop();
        }
        wait_until(PATIENCE, "the hosts have left", || ovn.sbctl("list Chassis").is_empty());
        let rest = "list Chassis_Private -- --columns=_uuid find Port_Binding up=true";
        assert_eq!(ovn.sbctl(rest).trim(), "");
    }
}

/// Starts weft on the host of a local database.
fn join(lab: &Lab, database: &LocalDatabase<'_>) -> Daemon {
    let at = usize::from(database.host.name == lab.hosts[1].name);
    let datapath = std::env::var("WEFT_TEST_DATAPATH").unwrap_or_else(|_| "auto".to_owned());
    let metrics = format!("unix:{}", metrics_socket(lab, at).display());
    let arguments = ["--datapath", datapath.as_str(), "--metrics", &metrics];
    Daemon::join_ovn(database.host, &database.remote(), &lab.control(at), &arguments)
}

/// The socket at which the daemon of a host serves metrics.
fn metrics_socket(lab: &Lab, host: usize) -> PathBuf {
    lab.control(host).with_extension("metrics")
}

/// Waits until all guests' ports are up in the northbound database.
fn wait_up(lab: &Lab, ovn: &Ovn) {
    let wait = |guest: &Guest| format!("wait-until Logical_Switch_Port {} up=true", guest.name);
    ovn.nbctl(&lab.guests.iter().map(wait).collect::<Vec<_>>().join(" -- "));
}

fn lab() -> Lab {
    lab_of(1, 1)
}

/// A lab with these numbers of guests on the two hosts.
fn lab_of(first: usize, second: usize) -> Lab {
    let setup = Setup::new("geneve").guests(first, second);
    Lab::new(setup.attachment(Attachment::Veth).mtu(MTU))
}

/// Returns true if no echo reply arrives within a time that is long enough for one.
fn is_silent(from: &Guest, to: IpAddr) -> bool {
    traffic::ping_within(&from.netns, to, Duration::from_millis(700)).is_err()
}

#[test]
fn guests_talk_when_two_hosts_join_an_ovn() {
    require_ovn!();
    let lab = lab();
    let ovn = Ovn::start("join");
    let (near, far) = lab.ends();
    ovn.configure(&switch("blue", &[near, far]));
    let hosts = Hosts::start(&lab, &ovn);
    ovn.nbctl("--wait=hv sync");
    crate::peers::guests_exchange(&lab, TRANSFER_LEN);
    traffic::broadcast(near, far);
    for (database, guest) in hosts.databases.iter().zip([near, far]) {
        let ids = database.vsctl(&format!("get Interface {} external_ids", guest.host_device()));
        assert!(ids.contains("ovn-installed=\"true\""), "{ids}");
    }
    for (at, guest) in [near, far].into_iter().enumerate() {
        let port = &hosts.daemons[at].show().ports[0];
        assert_eq!((&port.name, port.logical_switch.as_str()), (&guest.name, "blue"));
    }
    // A port that is removed is released. It works again when it is added again.
    hosts.databases[1].vsctl(&format!("del-port {}", far.host_device()));
    ovn.nbctl(&format!("wait-until Logical_Switch_Port {} up=false", far.name));
    assert!(is_silent(near, far.ip(4)));
    hosts.databases[1].add_port(far);
    traffic::ping(&near.netns, far.ip(4));
    wait_up(&lab, &ovn);
    // The port is assigned to the other host, and then to this one again.
    ovn.nbctl(&format!("lsp-set-options {} requested-chassis=h1", far.name));
    ovn.nbctl(&format!("wait-until Logical_Switch_Port {} up=false", far.name));
    assert!(is_silent(near, far.ip(4)));
    ovn.nbctl(&format!("lsp-set-options {} requested-chassis=h2", far.name));
    wait_up(&lab, &ovn);
    traffic::ping(&near.netns, far.ip(4));
    hosts.stop(&ovn);
}

#[test]
fn changes_of_the_network_are_in_force_when_wait_hv_returns() {
    require_ovn!();
    let lab = lab();
    let ovn = Ovn::start("changes");
    let (near, far) = lab.ends();
    ovn.configure(&switch("blue", &[near, far]));
    let hosts = Hosts::start(&lab, &ovn);
    traffic::ping(&near.netns, far.ip(4));
    let drop = format!("acl-add blue to-lport 5 'ip4.dst == {} && icmp4' drop", far.ip4);
    ovn.nbctl(&format!("--wait=hv {drop}"));
    assert!(is_silent(near, far.ip(4)));
    traffic::ping(&near.netns, far.ip(6));
    ovn.nbctl("--wait=hv acl-del blue");
    traffic::ping(&near.netns, far.ip(4));
    // Tests address sets and port groups, and changes of their members.
    ovn.nbctl("pg-add guests");
    ovn.nbctl("create Address_Set name=blocked");
    ovn.nbctl("acl-add guests to-lport 5 'outport == @guests && ip4.src == $blocked' drop");
    ovn.nbctl(&format!("pg-set-ports guests {}", far.name));
    ovn.nbctl(&format!("--wait=hv add Address_Set blocked addresses {}", near.ip4));
    assert!(is_silent(near, far.ip(4)));
    ovn.nbctl(&format!("--wait=hv remove Address_Set blocked addresses {}", near.ip4));
    traffic::ping(&near.netns, far.ip(4));
    // A flow that weft cannot compile is skipped and reported; all other flows work.
    ovn.nbctl("--wait=hv acl-add blue to-lport 7 'frobnicated == 3' drop");
    traffic::ping(&near.netns, far.ip(4));
    wait_until(PATIENCE, "the bad flow is named", || {
        let (_, shown, _) = weft(&lab.control(0), &["show"]);
        shown.contains("1 left out") && shown.contains("frobnicated == 3")
    });
    ovn.nbctl("--wait=hv acl-del blue");
    let (_, shown, _) = weft(&lab.control(0), &["show"]);
    assert!(shown.contains("0 left out"), "{shown}");
    hosts.stop(&ovn);
}

/// Connects each guest to a separate logical switch, and the switches by a router.
fn routed(ovn: &Ovn, guests: [&Guest; 2]) {
    let mut commands = vec!["lr-add r0".to_owned()];
    for (number, guest) in (1..).zip(guests) {
        let Guest { name, mac, .. } = guest;
        let (router_mac, ip) = (format!("02:00:00:00:ff:0{number}"), routed_ip(number));
        let (switch, gateway) = (format!("s{number}"), gateway(number));
        commands.extend([
            format!("ls-add {switch}"),
            format!("lsp-add {switch} {name}"),
            format!("lsp-set-addresses {name} '{mac} {ip}'"),
            format!("lrp-add r0 r0-{switch} {router_mac} {gateway}/24"),
            format!("lsp-add {switch} {switch}-r0"),
            format!("lsp-set-type {switch}-r0 router"),
            format!("lsp-set-addresses {switch}-r0 router"),
            format!("lsp-set-options {switch}-r0 router-port=r0-{switch}"),
        ]);
    }
    ovn.configure(&commands);
}

fn routed_ip(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 16, number, 10)
}

fn gateway(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 16, number, 1)
}

/// Assigns a guest its address in the routed network.
fn address_routed(guest: &Guest, number: u8) {
    let netlink = guest.netns.netlink();
    let index = netlink.index_of(GUEST_DEVICE).expect("a guest has its device");
    let own = IpNet::new(routed_ip(number).into(), 24).expect("a prefix");
    netlink.add_address(index, own, Dad::Skip).expect("an address can be added");
    let network = "172.16.0.0/16".parse().expect("a prefix");
    let route = Route::via(network, gateway(number).into());
    netlink.add_route(&route).expect("a route can be added");
}

#[test]
fn router_connects_guests_of_two_hosts() {
    require_ovn!();
    let lab = lab();
    let ovn = Ovn::start("router");
    let (near, far) = lab.ends();
    routed(&ovn, [near, far]);
    let hosts = Hosts::start(&lab, &ovn);
    address_routed(near, 1);
    address_routed(far, 2);
    traffic::ping(&near.netns, gateway(1).into());
    traffic::ping(&near.netns, gateway(2).into());
    traffic::ping(&near.netns, routed_ip(2).into());
    traffic::ping(&far.netns, routed_ip(1).into());
    hosts.stop(&ovn);
}

#[test]
fn gateway_router_of_one_host_serves_guests_of_both() {
    require_ovn!();
    let lab = lab();
    let ovn = Ovn::start("gateway");
    let (near, far) = lab.ends();
    let inside = gateway(7);
    let commands = [
        "lr-add gr -- set Logical_Router gr options:chassis=h2".to_owned(),
        "lrp-add gr gr-blue 02:00:00:00:ff:01 192.168.7.254/24".to_owned(),
        "lsp-add blue blue-gr -- lsp-set-type blue-gr router -- lsp-set-addresses blue-gr router \
         -- lsp-set-options blue-gr router-port=gr-blue"
            .to_owned(),
        format!("lrp-add gr gr-out 02:00:00:00:ff:02 {inside}/24"),
    ];
    ovn.configure(&switch("blue", &[near, far]));
    ovn.configure(&commands);
    let hosts = Hosts::start(&lab, &ovn);
    let chassis = |host: &str| {
        ovn.sbctl(&format!("--bare --columns=_uuid find Chassis name={host}")).trim().to_owned()
    };
    let bound = "--bare --columns=chassis find Port_Binding logical_port=blue-gr";
    wait_until(PATIENCE, "the gateway is bound to h2", || ovn.sbctl(bound).trim() == chassis("h2"));
    ovn.nbctl("--wait=hv sync");
    for guest in [near, far] {
        traffic::ping(&guest.netns, Ipv4Addr::new(192, 168, 7, 254).into());
    }
    // The gateway router moves to the other host.
    ovn.nbctl("--wait=hv set Logical_Router gr options:chassis=h1");
    wait_until(PATIENCE, "the gateway is bound to h1", || ovn.sbctl(bound).trim() == chassis("h1"));
    ovn.nbctl("--wait=hv sync");
    for guest in [near, far] {
        traffic::ping(&guest.netns, Ipv4Addr::new(192, 168, 7, 254).into());
    }
    hosts.stop(&ovn);
}

/// The metrics that show the connections to both databases.
const LOCAL: &str = "weft_ovn_connected{database=\"local\"}";
const SOUTHBOUND: &str = "weft_ovn_connected{database=\"southbound\"}";

#[test]
fn guests_go_on_when_the_southbound_database_is_lost() {
    require_ovn!();
    let lab = lab();
    let mut ovn = Ovn::start("lost");
    let (near, far) = lab.ends();
    ovn.configure(&switch("blue", &[near, far]));
    let hosts = Hosts::start(&lab, &ovn);
    traffic::ping(&near.netns, far.ip(4));
    let metric = |at: usize, name: &str| scrape(&metrics_socket(&lab, at))[name];
    for at in [0, 1] {
        wait_until(PATIENCE, "all is in force", || metric(at, "weft_ovn_lag_seconds") == 0.0);
        assert_eq!(metric(at, LOCAL), 1.0);
        assert_eq!(metric(at, SOUTHBOUND), 1.0);
        assert!(metric(at, "weft_ovn_logical_flows{state=\"in_force\"}") > 10.0);
        assert_eq!(metric(at, "weft_ovn_lock_held"), 1.0);
    }
    ovn.stop_southbound();
    for at in [0, 1] {
        wait_until(PATIENCE, "the daemon notices", || {
            weft(&lab.control(at), &["show"]).1.contains("not connected to")
        });
        assert_eq!((metric(at, LOCAL), metric(at, SOUTHBOUND)), (1.0, 0.0));
    }
    // New traffic must also work, for which no megaflow exists yet.
    traffic::ping(&near.netns, far.ip(6));
    traffic::ping(&far.netns, near.ip(4));
    ovn.start_southbound();
    ovn.nbctl("--wait=hv acl-add blue to-lport 5 icmp4 drop");
    assert!(is_silent(near, far.ip(4)));
    traffic::ping(&near.netns, far.ip(6));
    for at in [0, 1] {
        let generation = |stage| metric(at, &format!("weft_ovn_nb_cfg{{stage=\"{stage}\"}}"));
        assert!(generation("read") > 0.0);
        assert_eq!(generation("installed"), generation("read"));
        assert_eq!(metric(at, SOUTHBOUND), 1.0);
    }
    hosts.stop(&ovn);
}

#[test]
fn host_that_was_removed_by_mistake_joins_again() {
    require_ovn!();
    let lab = lab();
    let ovn = Ovn::start("again");
    let (near, far) = lab.ends();
    ovn.configure(&switch("blue", &[near, far]));
    let hosts = Hosts::start(&lab, &ovn);
    ovn.sbctl("chassis-del h2");
    ovn.nbctl("--wait=hv sync");
    wait_up(&lab, &ovn);
    traffic::ping(&near.netns, far.ip(4));
    // Changes settings while the daemon runs.
    hosts.databases[1].vsctl("set open . external_ids:ovn-encap-csum=false");
    wait_until(PATIENCE, "the tunnel end has changed", || {
        let options = ovn.sbctl("--bare --columns=options find Encap chassis_name=h2");
        options.trim() == "csum=false"
    });
    traffic::ping(&near.netns, far.ip(4));
    hosts.stop(&ovn);
}

/// Starts `ping -i 0.05`, which runs until it is dropped and writes its output to a log.
fn pings(from: &Guest, to: IpAddr, directory: &Path) -> Running {
    let mut ping = from.netns.program("ping");
    ping.args(["-n", "-i", "0.05", &to.to_string()]);
    Running::start("ping", ping, directory)
}

#[test]
fn killed_host_stays_in_the_deployment_and_loses_no_packet_of_a_known_flow() {
    require_ovn!();
    let lab = lab();
    let ovn = Ovn::start("killed");
    let (near, far) = lab.ends();
    ovn.configure(&switch("blue", &[near, far]));
    let bpf_fs = lab.dir.path().join("bpf");
    std::fs::create_dir(&bpf_fs).expect("a directory can be made");
    let kernel = ["--datapath", "kernel", "--bpf-fs", bpf_fs.to_str().expect("UTF-8")];
    let databases = [0, 1].map(|at| LocalDatabase::start(&lab, &ovn, at));
    let start = |at: usize| {
        let remote = databases[at].remote();
        let daemon = Daemon::join_ovn(&lab.hosts[at], &remote, &lab.control(at), &kernel);
        daemon.wait_answers();
        daemon
    };
    let [_other, mut daemon] = [0, 1].map(start);
    for (host, database) in databases.iter().enumerate() {
        database.add_ports(lab.guests_of(host));
    }
    wait_up(&lab, &ovn);
    let rows = || ovn.sbctl("--columns=_uuid,name,encaps list Chassis") + &ovn.sbctl("show");
    let before = rows();
    traffic::ping(&near.netns, far.ip(4));
    let pings = pings(near, far.ip(4), lab.dir.path());
    wait_until(PATIENCE, "pings are answered", || pings.output().lines().count() > 10);
    daemon.signal(Signal::SIGKILL);
    daemon.wait_end(PATIENCE);
    let (count, silent) = (pings.output().lines().count(), "replies come without the daemon");
    wait_until(PATIENCE, silent, || pings.output().lines().count() > count + 10);
    assert_eq!(rows(), before);
    let daemon = start(1);
    let count = pings.output().lines().count();
    wait_until(PATIENCE, "replies come", || pings.output().lines().count() > count + 20);
    assert_eq!(rows(), before);
    let (_, shown, _) = weft(&lab.control(1), &["show"]);
    assert!(shown.contains("megaflows adopted") && !shown.contains("restart: 0 of "), "{shown}");
    ovn.nbctl("--wait=hv acl-add blue to-lport 5 icmp4 drop");
    let pings = pings.stop();
    let numbers =
        pings.lines().filter_map(|line| line.split("icmp_seq=").nth(1)?.split(' ').next());
    let numbers: Vec<u32> = numbers.map(|text| text.parse().expect("a number")).collect();
    let lost: Vec<_> = numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1).collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert!(is_silent(near, far.ip(4)));
    daemon.stop();
}

#[test]
fn vsctl_commands_return_and_internal_interfaces_are_guests() {
    require_ovn!();
    let lab = lab();
    let ovn = Ovn::start("vsctl");
    let (near, far) = lab.ends();
    ovn.configure(&switch("blue", &[near, far]));
    ovn.configure(&[
        "lsp-add blue int1",
        "lsp-set-addresses int1 '02:00:00:00:00:77 192.168.7.77'",
    ]);
    let hosts = Hosts::start(&lab, &ovn);
    let database = &hosts.databases[0];
    database.vsctl("--may-exist add-br br-int -- --may-exist add-br br-ex");
    let uplink = &lab.hosts[0].uplink.name;
    let (bond, odd) = ("add-bond br-ex bond0 b0 b1", "add-port br-ex p0 -- set Port p0 cvlans=5");
    for (command, interface, problem) in [
        ("add-port br-ex t0 -- set Interface t0 type=gre", "t0", "no interfaces of type gre"),
        (format!("add-port br-ex {uplink}").as_str(), uplink, "is the uplink of the tunnels"),
        (bond, "b0", "weft makes no bonds"),
        (&format!("{odd} tag=7 vlan_mode=dot1q-tunnel"), "p0", "clear cvlans"),
        ("add-port br-ex q0 -- set Interface q0 type=patch options:peer=q1", "q0", "options:peer"),
    ] {
        database.vsctl(command);
        let error = database.vsctl(&format!("get Interface {interface} error ofport"));
        assert!(error.contains(problem) && error.ends_with("-1\n"), "{error}");
    }
    database.vsctl("del-br br-ex");
    database.vsctl(
        "add-port br-int int1 -- set Interface int1 type=internal external_ids:iface-id=int1 \
         mac=\"02:00:00:00:00:77\"",
    );
    assert_ne!(database.vsctl("get Interface int1 ofport").trim(), "-1");
    ovn.nbctl("wait-until Logical_Switch_Port int1 up=true");
    // The host itself acts as the guest. Platforms check whether the device of the integration
    // bridge exists.
    let netlink = lab.hosts[0].netns.netlink();
    assert!(netlink.index_of("br-int").is_ok());
    assert_eq!(database.vsctl("get Interface br-int ofport").trim(), "65534");
    let mut found = None;
    wait_until(PATIENCE, "the device is there", || {
        found = netlink.index_of("int1").ok();
        found.is_some()
    });
    let index = found.expect("wait_until returns only on success");
    netlink.set_mac(index, MacAddr([2, 0, 0, 0, 0, 0x77])).expect("a MAC address can be set");
    let prefix = IpNet::new([192, 168, 7, 77].into(), 24).expect("a prefix");
    netlink.add_address(index, prefix, Dad::Skip).expect("an address can be added");
    netlink.set_up(index).expect("a link can be set up");
    traffic::ping(&far.netns, [192, 168, 7, 77].into());
    wait_until(PATIENCE, "the state of the device is written", || {
        let state = database.vsctl("get Interface int1 mac_in_use admin_state link_state ifindex");
        state.lines().eq(["\"02:00:00:00:00:77\"", "up", "up", &index.0.to_string()])
    });
    database.vsctl("del-port int1");
    wait_until(PATIENCE, "the device is gone", || netlink.index_of("int1").is_err());
    hosts.stop(&ovn);
    assert!(netlink.index_of("br-int").is_err());
}

/// ovn-controller and ovs-vswitchd (userspace datapath) on a host.
struct StockChassis {
    _controller: Running,
    _switch: Running,
}

impl StockChassis {
    fn start(database: &LocalDatabase<'_>) -> Self {
        let (host, directory) = (database.host, database.directory.as_path());
        database.vsctl("--no-wait set open . external_ids:ovn-bridge-datapath-type=netdev");
        let switch = ["unix:db.sock", "--unixctl=switch.ctl", "-vsyslog:off"];
        let switch = with_args(tool(directory, "ovs-vswitchd"), &switch);
        let switch = host.netns.command(switch);
        let switch = Running::start("ovs-vswitchd", switch, directory);
        let uplink = &host.uplink.name;
        database.vsctl(&format!(
            "add-br br-phy -- set Bridge br-phy datapath_type=netdev -- add-port br-phy {uplink}"
        ));
        // The kernel also receives the frames of the uplink. By default it would respond to ARP
        // requests for any address of the host.
        let ignore = format!("net/ipv4/conf/{uplink}/arp_ignore");
        host.netns.sysctl(&ignore, "1").expect("a sysctl can be set");
        let netlink = host.netns.netlink();
        let bridge = netlink.index_of("br-phy").expect("the switch has made its bridge");
        let prefix = IpNet::new(host.underlay(4), 24).expect("a prefix");
        netlink.delete_address(host.uplink.index, prefix).expect("the address is there");
        netlink.add_address(bridge, prefix, Dad::Skip).expect("an address can be added");
        carry_wire_frames(&host.netns, "br-phy");
        netlink.set_up(bridge).expect("a link can be set up");
        let mut controller = host.netns.command(tool(directory, "ovn-controller"));
        for variable in ["OVN_RUNDIR", "OVN_LOGDIR", "OVN_DBDIR"] {
            controller.env(variable, directory);
        }
        let arguments = ["unix:db.sock", "-vsyslog:off"];
        let controller = with_args(controller, &arguments);
        let controller = Running::start("ovn-controller", controller, directory);
        Self { _controller: controller, _switch: switch }
    }
}

#[test]
fn guests_of_weft_and_of_a_stock_chassis_talk() {
    require_ovn!();
    require_program!("ovn-controller", "ovn-host");
    let lab = lab();
    let ovn = Ovn::start("stock");
    let (near, far) = lab.ends();
    ovn.configure(&switch("blue", &[near, far]));
    carry_wire_frames_between(&lab.hosts);
    carry_wire_frames(&far.netns, GUEST_DEVICE);
    let databases = [0, 1].map(|at| LocalDatabase::start(&lab, &ovn, at));
    let stock = StockChassis::start(&databases[1]);
    let daemon = join(&lab, &databases[0]);
    daemon.wait_answers();
    for (host, database) in databases.iter().enumerate() {
        database.add_ports(lab.guests_of(host));
    }
    wait_up(&lab, &ovn);
    ovn.nbctl("--wait=hv sync");
    crate::peers::guests_exchange(&lab, TRANSFER_LEN);
    traffic::broadcast(near, far);
    // Adds a router between both hosts, which each host executes for its own guests.
    ovn.configure(&[
        "lr-add r0 -- lrp-add r0 r0-blue 02:00:00:00:ff:01 192.168.7.254/24".to_owned(),
        "lsp-add blue blue-r0 -- lsp-set-type blue-r0 router -- lsp-set-addresses blue-r0 router \
         -- lsp-set-options blue-r0 router-port=r0-blue"
            .to_owned(),
    ]);
    ovn.nbctl("--wait=hv sync");
    for guest in [near, far] {
        traffic::ping(&guest.netns, Ipv4Addr::new(192, 168, 7, 254).into());
    }
    ovn.nbctl("--wait=hv acl-add blue to-lport 5 icmp4 drop");
    assert!(is_silent(near, far.ip(4)) && is_silent(far, near.ip(4)));
    traffic::ping(&near.netns, far.ip(6));
    crate::peers::tried(&daemon, "OVN 23.03", "a chassis beside ovn-controller, Geneve");
    daemon.stop();
    drop(stock);
}
