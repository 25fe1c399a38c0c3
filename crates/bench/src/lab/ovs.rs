//! Open vSwitch in a lab: one instance for each host, with separate directories, so that an Open
//! vSwitch of this machine is not affected.
//!
//! On each host, the ports of `br-int` are the guests and the tunnel port. With the userspace
//! datapath, `br-phy` has the uplink as a port and owns the underlay address, as is usual for
//! userspace tunnels. With the kernel datapath, the host keeps both. Without a tunnel and for QinQ,
//! the uplink is a port of `br-int`.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::attachment::Attachment;
use super::contender::{Datapath, LAB_INNER_VLAN, LAB_VNI, OvsTunnel};
use super::host::{GUEST_DEVICE, Host, UPLINK, add_address, switch};
use super::kernel::veth_guest;
use super::names::UPLINK_PORT;
use super::scratch::Scratch;
use super::shape::IpVersion;
use super::underlay::Lab;
use crate::process::{self, Process};
use crate::{Error, Result, Stop};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// This directory exists when the kernel module openvswitch is loaded or built in.
const MODULE: &str = "/sys/module/openvswitch";
/// How long a configuration step may take, including the start of the switch.
const STEP_LIMIT: Duration = Duration::from_secs(15);
/// Offloads that are disabled for guests of the userspace datapath, which cannot handle their
/// super-packets and partial checksums.
const GUEST_FEATURES_OFF: &[&str] = &[
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
    "tx-udp-segmentation",
    "tx-checksum-ip-generic",
];

/// Why Open vSwitch is unavailable, or `None` if it is available.
pub(super) fn unavailable(datapath: Datapath) -> Option<String> {
    if datapath == Datapath::Kernel && !Path::new(MODULE).exists() {
        return Some("the kernel's module openvswitch is not loaded".to_owned());
    }
    let found =
        ["ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl"].map(program);
    let installed = found.iter().all(Option::is_some) && Path::new(SCHEMA).exists();
    (!installed).then(|| "not installed (Debian package openvswitch-switch)".to_owned())
}

/// The path of a program. The daemons are in directories that a user's PATH may lack.
fn program(name: &str) -> Option<PathBuf> {
    let usual = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(usual.map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

pub(super) fn attach(lab: &Lab<'_>, datapath: Datapath, tunnel: OvsTunnel) -> Result<Attachment> {
    let guests = lab.shape().guests_per_host;
    match tunnel {
        OvsTunnel::QinQ => attach_with(lab, datapath, tunnel, &|_| tag_flows(guests)),
        _ => attach_with(lab, datapath, tunnel, &|_| Vec::new()),
    }
}

/// Like [`attach`], but replaces the flow of a learning switch by the flows of each host, if there
/// are any.
pub(super) fn attach_with(
    lab: &Lab<'_>,
    datapath: Datapath,
    tunnel: OvsTunnel,
    flows: &dyn Fn(&Host) -> Vec<String>,
) -> Result<Attachment> {
    let family = lab.shape().family;
    let guest_mtu = lab.guest_mtu(tunnel.overhead(family))?;
    let scratch = Scratch::create()?;
    let mut processes = Vec::new();
    for guest in lab.guests() {
        veth_guest(lab, guest, guest_mtu, None)?;
        if datapath == Datapath::User {
            switch(&guest.netns().ethtool()?, GUEST_DEVICE, GUEST_FEATURES_OFF, false)?;
        }
    }
    for host in lab.hosts() {
        let instance = Instance::create(host, scratch.path(), lab.stop())?;
        processes.extend(instance.start()?);
        instance.configure(lab, datapath, tunnel, guest_mtu)?;
        instance.replace_flows(&flows(host))?;
        if datapath == Datapath::User && tunnel.is_routed() {
            move_underlay(host, family)?;
        }
    }
    Ok(Attachment::new(processes, Some(scratch), guest_mtu))
}

/// One Open vSwitch with its directory.
struct Instance<'a> {
    host: &'a Host,
    directory: PathBuf,
    stop: &'a Stop,
}

impl<'a> Instance<'a> {
    /// Creates the directory of the instance, and an empty database in it.
    fn create(host: &'a Host, parent: &Path, stop: &'a Stop) -> Result<Self> {
        let directory = parent.join(host.name());
        let what = format!("create {}", directory.display());
        std::fs::create_dir(&directory).map_err(Error::io(what))?;
        let instance = Self { host, directory, stop };
        let mut create = instance.command("ovsdb-tool");
        create.arg("create").arg(instance.file("conf.db")).arg(SCHEMA);
        process::run("ovsdb-tool create", create, STEP_LIMIT, stop)?;
        Ok(instance)
    }

    /// Starts the database server and the switch. The switch is the first element, so that it is
    /// stopped first.
    fn start(&self) -> Result<[Process; 2]> {
        let name = |program: &str| format!("{program} of {}", self.host.name());
        let mut database = self.command("ovsdb-server");
        database
            .arg(self.file("conf.db"))
            .arg(format!("--remote=punix:{}", self.file("db.sock").display()))
            .arg(format!("--unixctl={}", self.file("db.ctl").display()))
            .args(["-vconsole:warn", "-vsyslog:off"]);
        let database = Process::spawn(name("ovsdb-server"), database)?;
        // The socket file exists before the server listens.
        self.stop.wait_for("ovsdb-server that listens", STEP_LIMIT, || {
            Ok(UnixStream::connect(self.file("db.sock")).ok().map(drop))
        })?;
        self.vsctl(&["--no-wait", "init"])?;
        let mut switch = self.command("ovs-vswitchd");
        switch
            .arg(self.database())
            .arg(format!("--unixctl={}", self.file("switch.ctl").display()))
            .args(["-vconsole:warn", "-vsyslog:off"]);
        Ok([Process::spawn(name("ovs-vswitchd"), switch)?, database])
    }

    /// Configures bridges, guests and tunnel; returns when the switch has applied them.
    fn configure(
        &self,
        lab: &Lab<'_>,
        datapath: Datapath,
        tunnel: OvsTunnel,
        guest_mtu: u16,
    ) -> Result<()> {
        let shape = lab.shape();
        let remote = lab.other(self.host).underlay(shape.family);
        let kind = match datapath {
            Datapath::User => "netdev",
            Datapath::Kernel => "system",
        };
        let mut script = String::new();
        if datapath == Datapath::User && tunnel.is_routed() {
            script += &format!(
                "add-br br-phy -- set bridge br-phy datapath_type=netdev -- add-port br-phy {UPLINK} -- "
            );
        }
        script += &format!(
            "add-br br-int -- set bridge br-int datapath_type={kind} \
             -- set interface br-int mtu_request={guest_mtu}"
        );
        if tunnel.is_routed() {
            script += &format!(
                " -- add-port br-int tun0 \
                 -- set interface tun0 type={} options:remote_ip={remote} options:key={LAB_VNI}",
                tunnel.name()
            );
            if let Some(checksum) = shape.outer_checksum {
                script += &format!(" options:csum={checksum}");
            }
        } else {
            // The flows below refer to ports by number.
            script += &format!(
                " -- set open_vswitch . other_config:vlan-limit=2 \
                 -- add-port br-int {UPLINK} -- set interface {UPLINK} ofport_request={UPLINK_PORT}"
            );
        }
        for number in 1..=shape.guests_per_host {
            script += &format!(
                " -- add-port br-int g{number} -- set interface g{number} ofport_request={number}"
            );
        }
        self.vsctl(&script.split_whitespace().collect::<Vec<_>>())
    }

    /// Replaces the default flow, that of a learning switch, by `flows`, unless there are none.
    fn replace_flows(&self, flows: &[String]) -> Result<()> {
        if flows.is_empty() {
            return Ok(());
        }
        let run = |what: &str, arguments: &[&str]| {
            let mut command = self.command("ovs-ofctl");
            command.args(["--protocols=OpenFlow13", what, "br-int"]).args(arguments);
            process::run("ovs-ofctl", command, STEP_LIMIT, self.stop).map(drop)
        };
        self.vsctl(&["set", "bridge", "br-int", "protocols=OpenFlow13"])?;
        run("del-flows", &[])?;
        flows.iter().try_for_each(|flow| run("add-flow", &[flow]))
    }

    fn vsctl(&self, arguments: &[&str]) -> Result<()> {
        let mut command = self.command("ovs-vsctl");
        let limit = STEP_LIMIT.as_secs().to_string();
        command
            .arg(format!("--db={}", self.database()))
            .args(["--timeout", &limit])
            .args(arguments);
        process::run("ovs-vsctl", command, STEP_LIMIT, self.stop).map(drop)
    }

    fn database(&self) -> String {
        format!("unix:{}", self.file("db.sock").display())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A command in the host's namespace that uses this instance's directory.
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(program(name).unwrap_or_else(|| name.into()));
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, &self.directory);
        }
        self.host.netns().command(command)
    }
}

/// Flows that push two tags on the frames of each pair of guests, with an inner tag for each pair.
/// (The published study pushed one, because its guests already sent tagged frames.)
pub(super) fn tag_flows(guests: usize) -> Vec<String> {
    let mut flows = vec![format!(
        "table=0,in_port={UPLINK_PORT},dl_vlan={LAB_VNI},actions=pop_vlan,resubmit(,1)"
    )];
    for guest in 1..=guests {
        let inner = usize::from(LAB_INNER_VLAN) + guest;
        flows.push(format!(
            "table=0,in_port={guest},actions=push_vlan:0x8100,mod_vlan_vid:{inner},\
             push_vlan:0x88a8,mod_vlan_vid:{LAB_VNI},output:{UPLINK_PORT}"
        ));
        flows.push(format!("table=1,dl_vlan={inner},actions=pop_vlan,output:{guest}"));
    }
    flows
}

/// Moves the underlay's addresses from the uplink, which is now a port of `br-phy`, to `br-phy`.
fn move_underlay(host: &Host, family: IpVersion) -> Result<()> {
    let netlink = host.netlink();
    let uplink = netlink.index_of(UPLINK)?;
    for address in netlink.addresses(Some(uplink))? {
        netlink.delete_address(uplink, address.prefix)?;
    }
    for bridge in ["br-phy", "br-int"] {
        netlink.set_up(netlink.index_of(bridge)?)?;
    }
    let len = if family == IpVersion::V4 { 24 } else { 64 };
    add_address(netlink, netlink.index_of("br-phy")?, host.underlay(family), len)
}
