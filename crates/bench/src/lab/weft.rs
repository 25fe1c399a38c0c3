//! weft itself in a lab: one network file, one daemon for each host.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use network::{Network, TunnelType};

use super::contender::{Attachment, LAB_VNI};
use super::policy::Policy;
use super::scratch::Scratch;
use super::{GUEST_DEVICE, Lab, UPLINK};
use crate::process::Process;
use crate::{Error, Result};

/// The network file of `lab` with `tunnel` between the hosts: both hosts, one logical switch, all four guests.
pub fn network_toml(lab: &Lab<'_>, tunnel: TunnelType) -> String {
    flat_network(lab, tunnel, "")
}

/// As [`network_toml`], with these lines in the logical switch.
pub(super) fn flat_network(lab: &Lab<'_>, tunnel: TunnelType, switch: &str) -> String {
    let mut text = format!("tunnel = \"{tunnel}\"\nunderlay_mtu = {}\n", lab.uplink_mtu());
    for host in lab.hosts() {
        let (name, ip4, ip6) = (host.name(), host.underlay4(), host.underlay6());
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n[[host]]\nname = \"{name}\"\nuplink = \"{UPLINK}\"\nunderlay = [\"{ip4}\", \"{ip6}\"]\n"
        );
    }
    let segment = segment(tunnel, 0);
    let _ = write!(text, "\n[[logical_switch]]\nname = \"lab\"\n{segment}\n{switch}");
    for guest in lab.guests() {
        let (name, host) = (guest.name(), lab.hosts()[guest.host()].name());
        let (mac, ip4, ip6) = (guest.mac(), guest.ip4(), guest.ip6());
        let netns = guest.netns();
        let _ = write!(
            text,
            "\n[[logical_switch.port]]\nname = \"{name}\"\nhost = \"{host}\"\nmac = \"{mac}\"\n\
             addresses = [\"{ip4}/24\", \"{ip6}/64\"]\n\
             device = {{ tap = \"{GUEST_DEVICE}\", netns = \"{netns}\" }}\n"
        );
    }
    text
}

/// What tells the frames of the logical switch `number`, from 0, from those of others.
pub(super) fn segment(tunnel: TunnelType, number: u32) -> String {
    match tunnel {
        TunnelType::Vlan => format!("vlan = {}", LAB_VNI + number),
        TunnelType::QinQ => format!("vlan = {{ outer = {LAB_VNI}, inner = {} }}", 200 + number),
        _ => format!("vni = {}", LAB_VNI + number),
    }
}

pub(super) fn attach(lab: &Lab<'_>, tunnel: TunnelType, weft: &Path) -> Result<Attachment> {
    let policy = Policy::create(lab)?;
    let attachment = attach_network(lab, &policy.network_toml(lab, tunnel), weft)?;
    Ok(attachment.with_policy(policy))
}

/// As [`Contender::attach`](super::Contender::attach), with the network file `text`.
///
/// # Errors
/// The file is refused, or a program cannot be started.
pub fn attach_network(lab: &Lab<'_>, text: &str, weft: &Path) -> Result<Attachment> {
    let scratch = Scratch::create()?;
    let file = scratch.write("network.toml", text)?;
    let network = Network::load(&file)
        .map_err(|errors| Error::Traffic(format!("the network file of the lab: {errors}")))?;
    let guest_mtu = network.logical_switches().first().map_or(lab.uplink_mtu(), |s| s.mtu);
    let (mut processes, mut controls) = (Vec::new(), Vec::new());
    for host in lab.hosts() {
        // Not where a weft of this machine would have its own.
        let control = scratch.path().join(format!("{}.sock", host.name()));
        let mut command = Command::new(weft);
        command.args(["run", "--host", &host.name(), "--control"]).arg(&control).arg(&file);
        let name = format!("weft run --host {}", host.name());
        processes.push(Process::spawn(name, host.netns().command(command))?);
        controls.push(control);
    }
    let attachment = Attachment::new(processes, Some(scratch), guest_mtu);
    Ok(attachment.with_daemons(weft, controls))
}
