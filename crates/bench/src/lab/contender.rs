//! What joins the guests: weft with one of its tunnels, or something to compare it with.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use netdev::{Ifindex, LinkKind, LinkSpec, VxlanSpec};
use network::TunnelType;
use wire::Vni;

use super::policy::Policy;
use super::scratch::Scratch;
use super::{GUEST_DEVICE, Guest, Host, Lab, UPLINK, ovs, weft};
use crate::process::{self, Process};
use crate::{Error, Result, Stop};

/// What VXLAN takes from the guests' MTU on an IPv4 underlay, in bytes.
pub(super) const VXLAN_OVERHEAD: u16 = 50;
/// How long an answer to an inquiry may take.
const INQUIRY_LIMIT: Duration = Duration::from_secs(2);
/// The network identifier of every contender that has one.
pub(super) const LAB_VNI: u32 = 100;

/// A way to join the guests of a [`Lab`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Contender {
    /// weft on both hosts, with this tunnel between them.
    Weft(TunnelType),
    /// A Linux bridge on each host with the guests and the uplink as its ports: no tunnel.
    LinuxBridge,
    /// A Linux bridge on each host with the guests and a VXLAN device of the kernel as its ports.
    KernelVxlan,
    /// Open vSwitch with its userspace datapath and VXLAN.
    OvsVxlan,
    /// One veth pair from each guest to its counterpart, hosts left out: the load without any switching.
    Direct,
}

impl Contender {
    /// True for what this project makes, false for what it is compared with.
    pub fn is_weft(self) -> bool {
        matches!(self, Self::Weft(_))
    }

    /// Why this contender cannot take part on this machine, if so.
    pub fn unavailable(self) -> Option<String> {
        match self {
            Self::OvsVxlan => ovs::unavailable(),
            _ => None,
        }
    }

    /// True when the contender is meant to carry frames between the two guests.
    pub fn joins(self, a: &Guest, b: &Guest) -> bool {
        match self {
            Self::Direct => a.host() != b.host() && a.number() == b.number(),
            _ => true,
        }
    }

    /// Gives every guest of `lab` its `eth0` and joins them. `weft` is the program to run for weft's own tunnels. A
    /// process may still be starting when this returns: wait for a ping.
    ///
    /// # Errors
    /// The kernel refuses a device, or a program cannot be started.
    pub fn attach(self, lab: &Lab<'_>, weft: &Path) -> Result<Attachment> {
        let mtu = lab.uplink_mtu();
        let vxlan_mtu = mtu.saturating_sub(VXLAN_OVERHEAD);
        match self {
            Self::Weft(tunnel) => weft::attach(lab, tunnel, weft),
            Self::OvsVxlan => ovs::attach(lab, vxlan_mtu),
            Self::Direct => direct(lab, mtu),
            Self::LinuxBridge => bridged(lab, mtu, |host, bridge| {
                let uplink = host.netlink().index_of(UPLINK)?;
                Ok(host.netlink().set_master(uplink, Some(bridge))?)
            }),
            Self::KernelVxlan => bridged(lab, vxlan_mtu, |host, bridge| {
                let other = &lab.hosts()[1 - host.index];
                kernel_vxlan(host, other, bridge, vxlan_mtu)
            }),
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weft(tunnel) => write!(f, "weft {tunnel}"),
            Self::LinuxBridge => f.write_str("Linux bridge"),
            Self::KernelVxlan => f.write_str("kernel vxlan"),
            Self::OvsVxlan => f.write_str("OVS user vxlan"),
            Self::Direct => f.write_str("one veth"),
        }
    }
}

/// Joined guests, and the processes that join them. Dropping it ends the processes; devices end with the lab.
#[derive(Debug)]
pub struct Attachment {
    // Processes first: they use the files in the directory, and devices of guests.
    processes: Vec<Process>,
    _scratch: Option<Scratch>,
    guest_mtu: u16,
    inquiries: Vec<Inquiry>,
    controls: Vec<PathBuf>,
    policy: Option<Policy>,
}

/// A program that tells what a running process knows of itself.
#[derive(Debug)]
struct Inquiry {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Attachment {
    pub(super) fn new(processes: Vec<Process>, scratch: Option<Scratch>, guest_mtu: u16) -> Self {
        let (inquiries, controls) = (Vec::new(), Vec::new());
        Self { processes, _scratch: scratch, guest_mtu, inquiries, controls, policy: None }
    }

    /// The MTU of the guests, in bytes.
    pub fn guest_mtu(&self) -> u16 {
        self.guest_mtu
    }

    /// # Errors
    /// [`Error::Process`] when one of the processes has ended.
    pub fn check(&mut self) -> Result<()> {
        self.processes.iter_mut().try_for_each(Process::check_running)
    }

    /// The processes are daemons of `weft` with these control sockets.
    pub(super) fn with_daemons(self, weft: &Path, controls: Vec<PathBuf>) -> Self {
        let inquiry = |control: &PathBuf| {
            let arguments = vec!["show".into(), "--control".into(), control.into()];
            Inquiry { program: weft.to_owned(), arguments }
        };
        Self { inquiries: controls.iter().map(inquiry).collect(), controls, ..self }
    }

    pub(super) fn with_policy(self, policy: Policy) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// The router and the lists of weft's network file.
    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_ref()
    }

    /// The control socket of the daemon of host `host`, from 0.
    pub(crate) fn control(&self, host: usize) -> Option<&Path> {
        self.controls.get(host).map(PathBuf::as_path)
    }

    /// What the processes printed last and what they count, for whoever has to find out why frames do not arrive.
    pub fn testimony(&self, stop: &Stop) -> String {
        let printed = self.processes.iter().map(|p| (p.name().to_owned(), p.output_tail()));
        let asked = self.inquiries.iter().map(|inquiry| inquiry.ask(stop));
        printed
            .chain(asked)
            .filter(|(_, text)| !text.is_empty())
            .map(|(name, text)| format!("{name} says:\n{text}"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Ends the processes in order.
    ///
    /// # Errors
    /// The first [`Error::Process`] of those that did not end by themselves or reported failure; all are ended.
    pub fn stop(self) -> Result<()> {
        self.processes.into_iter().map(Process::stop).fold(Ok(()), Result::and)
    }
}

impl Inquiry {
    /// The command as it would be typed, and its answer.
    fn ask(&self, stop: &Stop) -> (String, String) {
        let program = self.program.file_name().unwrap_or(self.program.as_os_str());
        let words = [program].into_iter().chain(self.arguments.iter().map(OsString::as_os_str));
        let name = words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        let answer = process::run(&name, command, INQUIRY_LIMIT, stop);
        (name, answer.unwrap_or_else(|error| error.to_string()))
    }
}

/// Makes `eth0` of `guest` one end of a veth pair whose other end, `g1` or `g2`, is on its host.
pub(super) fn veth_guest(
    lab: &Lab<'_>,
    guest: &Guest,
    mtu: u16,
    bridge: Option<Ifindex>,
) -> Result<Ifindex> {
    let name = format!("g{}", guest.number() + 1);
    let mtu = u32::from(mtu);
    let mut spec = LinkSpec::new(&name).mtu(mtu).up();
    if let Some(bridge) = bridge {
        spec = spec.master(bridge);
    }
    let peer = guest_end(guest, mtu);
    let index = lab.hosts()[guest.host()].netlink().create(&spec, &LinkKind::Veth { peer })?;
    guest.configure()?;
    Ok(index)
}

fn guest_end(guest: &Guest, mtu: u32) -> LinkSpec<'_> {
    LinkSpec::new(GUEST_DEVICE).mac(guest.mac()).mtu(mtu).up().netns(guest.netns())
}

/// A bridge on each host with its guests as ports; `add_uplink` adds the way to the other host.
fn bridged(
    lab: &Lab<'_>,
    guest_mtu: u16,
    mut add_uplink: impl FnMut(&Host, Ifindex) -> Result<()>,
) -> Result<Attachment> {
    for host in lab.hosts() {
        let bridge = host.netlink().create(&LinkSpec::new("br0").up(), &LinkKind::Bridge)?;
        add_uplink(host, bridge)?;
        for guest in lab.guests().iter().filter(|guest| guest.host() == host.index) {
            veth_guest(lab, guest, guest_mtu, Some(bridge))?;
        }
    }
    Ok(Attachment::new(Vec::new(), None, guest_mtu))
}

fn kernel_vxlan(host: &Host, other: &Host, bridge: Ifindex, mtu: u16) -> Result<()> {
    let vni = Vni::new(LAB_VNI).ok_or_else(|| Error::Traffic("the VNI of the lab".into()))?;
    let vxlan = VxlanSpec {
        local: Some(host.underlay4().into()),
        remote: Some(other.underlay4().into()),
        underlay: Some(host.netlink().index_of(UPLINK)?),
        ..VxlanSpec::new(vni)
    };
    let spec = LinkSpec::new("vx0").mtu(u32::from(mtu)).up().master(bridge);
    host.netlink().create(&spec, &LinkKind::Vxlan(vxlan))?;
    Ok(())
}

fn direct(lab: &Lab<'_>, mtu: u16) -> Result<Attachment> {
    for number in 0..2 {
        let (first, second) = (lab.guest(0, number), lab.guest(1, number));
        let mtu = u32::from(mtu);
        let spec = guest_end(first, mtu);
        let kind = LinkKind::Veth { peer: guest_end(second, mtu) };
        lab.hosts()[0].netlink().create(&spec, &kind)?;
        first.configure()?;
        second.configure()?;
    }
    Ok(Attachment::new(Vec::new(), None, lab.uplink_mtu()))
}
