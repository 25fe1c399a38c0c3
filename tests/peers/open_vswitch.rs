//! Open vSwitch as the switch of `h2`, with its userspace datapath or its kernel module. The
//! instance has a separate directory, so it does not affect one that runs on the machine.
//!
//! The ports of `br-int` are the guest's device and the tunnel port. With the userspace datapath,
//! `br-phy` has the uplink and the underlay addresses, as the Open vSwitch documentation describes
//! for userspace tunnelling. With the kernel module, the host keeps both.

use super::program::{Running, command, run};
use super::{MTU, carry_wire_frames, carry_wire_frames_between};
use crate::common::{Datapath, GUEST_DEVICE, Guest, Host, Lab, PATIENCE, VNI};
use netdev::{Dad, IpNet};
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::host::wait_until;

/// Path of the database schema in Debian.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// The port number of the multicast group that contains all ports of a logical switch, in OVN and
/// weft.
const FLOOD: u16 = 0x8000;
/// Port numbers of `br-int`.
const GUEST_PORT: u16 = 1;
const TUNNEL_PORT: u16 = 2;

/// The flows whose packets the tests count, with their cookies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// From the tunnel with the correct key and logical ports, for the guest only.
    Unicast = 1,
    /// From the tunnel with the correct key and logical ports, for every port of the switch.
    Flood = 2,
    /// All other packets from the tunnel.
    Unexpected = 3,
}

/// A running instance.
pub struct OpenVswitch {
    directory: PathBuf,
    // Dropped, and so stopped, in this order.
    _switch: Running,
    _database: Running,
}

/// The tunnel port.
#[derive(Clone, Copy, Debug)]
pub struct Tunnel<'a> {
    /// Its type in Open vSwitch.
    pub kind: &'a str,
    /// Its options in addition to `remote_ip` and `key`.
    pub options: &'a [&'a str],
    /// Whether OVN's Geneve option is mapped to a register. Flows then set it on packets to the
    /// tunnel and match it on packets from the tunnel.
    pub logical_ports: bool,
    /// Its datapath.
    pub datapath: Datapath,
}

impl OpenVswitch {
    /// Starts an instance on `h2` with a tunnel to `h1`, and attaches the guest of `h2`. For the
    /// userspace datapath, [`carry_wire_frames`] disables the offloads of the uplinks.
    pub fn start(lab: &Lab, tunnel: Tunnel<'_>) -> Self {
        let [h1, h2] = &lab.hosts;
        let (near, far) = lab.ends();
        far.attach(h2, MTU);
        if tunnel.datapath == Datapath::User {
            carry_wire_frames(&far.netns, GUEST_DEVICE);
            carry_wire_frames_between(&lab.hosts);
        }
        let directory = lab.dir.path().join("ovs");
        std::fs::create_dir(&directory).expect("a directory can be made");
        run(with_args(tool(&directory, "ovsdb-tool"), &["create", "conf.db", SCHEMA]), b"");
        let database = Running::start(
            "ovsdb-server",
            with_args(
                tool(&directory, "ovsdb-server"),
                &["conf.db", "--remote=punix:db.sock", "--unixctl=db.ctl", "-vsyslog:off"],
            ),
            &directory,
        );
        wait_until(PATIENCE, "ovsdb-server listens", || directory.join("db.sock").exists());
        run(with_args(vsctl(&directory), &["--no-wait", "init"]), b"");
        let switch = Running::start(
            "ovs-vswitchd",
            with_args(
                h2.netns.command(tool(&directory, "ovs-vswitchd")),
                &["unix:db.sock", "--unixctl=switch.ctl", "-vsyslog:off"],
            ),
            &directory,
        );
        let this = Self { directory, _switch: switch, _database: database };
        this.make_bridges(h1, h2, far, lab.family(), tunnel);
        if tunnel.datapath == Datapath::User {
            this.move_underlay(h2);
        }
        this.make_flows(near, far, tunnel.logical_ports);
        this
    }

    fn make_bridges(&self, h1: &Host, h2: &Host, far: &Guest, family: u8, tunnel: Tunnel<'_>) {
        let (uplink, device, kind) = (&h2.uplink.name, far.host_device(), tunnel.kind);
        let (underlay, type_) = match tunnel.datapath {
            Datapath::User => {
                let bridge = "add-br br-phy -- set bridge br-phy datapath_type=netdev";
                (format!("{bridge} -- add-port br-phy {uplink} --"), "netdev")
            }
            Datapath::Kernel => (String::new(), "system"),
        };
        let script = format!(
            "{underlay} add-br br-int -- set bridge br-int datapath_type={type_} fail_mode=secure \
             -- set interface br-int mtu_request={MTU} \
             -- add-port br-int {device} -- set interface {device} ofport_request={GUEST_PORT} \
             -- add-port br-int tun0 -- set interface tun0 ofport_request={TUNNEL_PORT} \
             type={kind} options:remote_ip={} options:key=flow {}",
            h1.underlay(family),
            tunnel.options.join(" "),
        );
        // ovs-vsctl returns when the switch has applied the change.
        run(with_args(vsctl(&self.directory), &script.split_whitespace().collect::<Vec<_>>()), b"");
    }

    /// Moves the underlay addresses from the uplink, which is now a port of `br-phy`, to `br-phy`.
    fn move_underlay(&self, h2: &Host) {
        // The kernel also receives the frames of the uplink. By default it would respond to ARP
        // requests for any address of the host.
        let ignore = format!("net/ipv4/conf/{}/arp_ignore", h2.uplink.name);
        h2.netns.sysctl(&ignore, "1").expect("a sysctl can be set");
        let netlink = h2.netns.netlink();
        let bridge = netlink.index_of("br-phy").expect("the switch has made its bridge");
        for (address, len) in [(h2.underlay(4), 24), (h2.underlay(6), 64)] {
            let prefix = IpNet::new(address, len).expect("the length fits the family");
            netlink.delete_address(h2.uplink.index, prefix).expect("the address is there");
            netlink.add_address(bridge, prefix, Dad::Skip).expect("an address can be added");
        }
        carry_wire_frames(&h2.netns, "br-phy");
        netlink.set_up(bridge).expect("a link can be set up");
    }

    /// Adds the flows between the guest and the tunnel. They set and match the key, and the logical
    /// ports if they are mapped.
    fn make_flows(&self, near: &Guest, far: &Guest, logical_ports: bool) {
        if logical_ports {
            self.ofctl("add-tlv-map", &["{class=0x0102,type=0x80,len=4}->tun_metadata0"], "");
        }
        let word = |ingress: u16, egress: u16| u32::from(ingress) << 16 | u32::from(egress);
        let set = |egress| match logical_ports {
            true => format!("set_field:{:#x}->tun_metadata0,", word(far.port_key, egress)),
            false => String::new(),
        };
        let demand = |egress| match logical_ports {
            true => format!(",tun_metadata0={:#x}", word(near.port_key, egress)),
            false => String::new(),
        };
        let to_tunnel = format!("set_field:{VNI}->tun_id,output:{TUNNEL_PORT}");
        let from_guest = format!("in_port={GUEST_PORT}");
        let from_tunnel = format!("in_port={TUNNEL_PORT},tun_id={VNI}");
        let group = "dl_dst=01:00:00:00:00:00/01:00:00:00:00:00";
        let guests_mac = far.mac;
        let flows = [
            format!("{from_guest},dl_dst={},actions={}{to_tunnel}", near.mac, set(near.port_key)),
            format!("{from_guest},{group},actions={}{to_tunnel}", set(FLOOD)),
            format!(
                "cookie={},{from_tunnel},dl_dst={guests_mac}{},actions=output:{GUEST_PORT}",
                Counted::Unicast as u8,
                demand(far.port_key),
            ),
            format!(
                "cookie={},{from_tunnel},{group}{},actions=output:{GUEST_PORT}",
                Counted::Flood as u8,
                demand(FLOOD),
            ),
            format!(
                "cookie={},priority=1,in_port={TUNNEL_PORT},actions=drop",
                Counted::Unexpected as u8,
            ),
        ];
        self.ofctl("add-flows", &["-"], &flows.join("\n"));
    }

    /// The current packet counters of these flows.
    pub fn packets<const N: usize>(&self, flows: [Counted; N]) -> [u64; N] {
        let mut appctl = tool(&self.directory, "ovs-appctl");
        // ovs-appctl interprets a relative path as the name of a daemon.
        appctl.arg("-t").arg(self.directory.join("switch.ctl")).arg("revalidator/wait");
        run(appctl, b"");
        let dump = self.ofctl("dump-flows", &[], "");
        flows.map(|counted| {
            let cookie = format!("cookie={:#x},", counted as u8);
            let flow = dump.lines().find(|line| line.contains(&cookie));
            let rest = flow.and_then(|flow| flow.split("n_packets=").nth(1));
            rest.and_then(|rest| rest.split(',').next())
                .and_then(|count| count.parse().ok())
                .unwrap_or_else(|| panic!("no counter of {counted:?} in\n{dump}"))
        })
    }

    /// Runs `ovs-ofctl NAME br-int ...`.
    fn ofctl(&self, name: &str, arguments: &[&str], input: &str) -> String {
        let mut command = tool(&self.directory, "ovs-ofctl");
        command.arg(name).arg("unix:br-int.mgmt").args(arguments);
        run(command, input.as_bytes())
    }
}

/// A program of Open vSwitch that runs in the directory of the instance. Socket paths are relative
/// to it, because their length is limited.
fn tool(directory: &Path, name: &str) -> Command {
    let mut command = command(name);
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, directory);
    }
    command.current_dir(directory);
    command
}

fn vsctl(directory: &Path) -> Command {
    let limit = PATIENCE.as_secs().to_string();
    with_args(tool(directory, "ovs-vsctl"), &["--db=unix:db.sock", "--timeout", &limit])
}

fn with_args(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments);
    command
}
