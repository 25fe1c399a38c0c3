//! weft itself in a lab: one network file, one daemon for each host.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use datapath_bpf::Unsupported;
use network::{Network, TunnelType};

use super::attachment::Attachment;
use super::contender::{Datapath, LAB_INNER_VLAN, LAB_VNI};
use super::policy::Policy;
use super::scratch::Scratch;
use super::{Family, GUEST_DEVICE, Lab, UPLINK};
use crate::process::Process;
use crate::{Error, Result};

/// The option of `weft run` that says where it forwards.
const DATAPATH: &str = "--datapath";
/// Asked once, for all tunnels.
static CAN_FORWARD_IN_KERNEL: LazyLock<std::result::Result<(), Unsupported>> =
    LazyLock::new(datapath_bpf::check);

/// The network file of `lab` with `tunnel` between the hosts: both hosts, one logical switch, all four guests.
pub fn network_toml(lab: &Lab<'_>, tunnel: TunnelType) -> String {
    flat_network(lab, tunnel, "")
}

/// As [`network_toml`], with these lines in the logical switch.
pub(super) fn flat_network(lab: &Lab<'_>, tunnel: TunnelType, switch: &str) -> String {
    let shape = lab.shape();
    let mut text = format!("tunnel = \"{tunnel}\"\nunderlay_mtu = {}\n", lab.uplink_mtu());
    // Those of the kernel, beside which it is measured, have one unless told otherwise; left to itself weft would choose.
    let is_udp = matches!(tunnel, TunnelType::Vxlan | TunnelType::Geneve);
    if let Some(checksum) = shape.outer_checksum.or(is_udp.then_some(true)) {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n[tunnel_options.{tunnel}]\nchecksum = {checksum}\n");
    }
    for host in lab.hosts() {
        let name = host.name();
        let underlay = match shape.family {
            Family::V4 => format!("\"{}\", \"{}\"", host.underlay4(), host.underlay6()),
            Family::V6 => format!("\"{}\"", host.underlay6()),
        };
        let _ = write!(
            text,
            "\n[[host]]\nname = \"{name}\"\nuplink = \"{UPLINK}\"\nunderlay = [{underlay}]\n"
        );
    }
    let segment = segment(tunnel, 0);
    let _ = write!(text, "\n[[logical_switch]]\nname = \"lab\"\n{segment}\n{switch}");
    if let Some(mtu) = shape.guest_mtu {
        let _ = writeln!(text, "mtu = {mtu}");
    }
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
        TunnelType::QinQ => format!(
            "vlan = {{ outer = {LAB_VNI}, inner = {} }}",
            u32::from(LAB_INNER_VLAN) + number
        ),
        _ => format!("vni = {}", LAB_VNI + number),
    }
}

/// Why weft cannot take part so, if that is known.
pub(super) fn unavailable(datapath: Datapath, tunnel: TunnelType, weft: &Path) -> Option<String> {
    if datapath == Datapath::User {
        return None;
    }
    if tunnel == TunnelType::Stt {
        return Some(
            "no program of the kernel can send STT; the user datapath carries it for both"
                .to_owned(),
        );
    }
    if let Err(why) = CAN_FORWARD_IN_KERNEL.as_ref() {
        return Some(format!("this host cannot have the kernel datapath: {why}"));
    }
    let help = Command::new(weft).args(["run", "--help"]).output();
    let knows = help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains(DATAPATH));
    (!knows).then(|| format!("this weft has no `weft run {DATAPATH}`"))
}

pub(super) fn attach(
    lab: &Lab<'_>,
    datapath: Datapath,
    tunnel: TunnelType,
    weft: &Path,
) -> Result<Attachment> {
    if !lab.shape().policy {
        return attach_with(lab, datapath, &network_toml(lab, tunnel), weft, &[]);
    }
    let policy = Policy::create(lab)?;
    let text = policy.network_toml(lab, tunnel);
    let attachment = attach_with(lab, datapath, &text, weft, &[])?;
    Ok(attachment.with_policy(policy))
}

/// As [`Contender::attach`](super::Contender::attach) with the user datapath and the network file `text`.
///
/// # Errors
/// The file is refused, or a program cannot be started.
pub fn attach_network(lab: &Lab<'_>, text: &str, weft: &Path) -> Result<Attachment> {
    attach_with(lab, Datapath::User, text, weft, &[])
}

/// The same with either datapath, and more options of `weft run`.
///
/// # Errors
/// As [`attach_network`].
pub(crate) fn attach_with(
    lab: &Lab<'_>,
    datapath: Datapath,
    text: &str,
    weft: &Path,
    options: &[&str],
) -> Result<Attachment> {
    attach_large(lab, datapath, [text, ""], weft, options)
}

/// The same with more text behind that of the lab, which only the daemons read: a million hosts take each of them a minute and 7 GB.
///
/// # Errors
/// As [`attach_network`].
pub(crate) fn attach_large(
    lab: &Lab<'_>,
    datapath: Datapath,
    [text, more]: [&str; 2],
    weft: &Path,
    options: &[&str],
) -> Result<Attachment> {
    let scratch = Scratch::create()?;
    let file = scratch.write("network.toml", text)?;
    let network = Network::load(&file)
        .map_err(|errors| Error::Traffic(format!("the network file of the lab: {errors}")))?;
    let guest_mtu = network.logical_switches().first().map_or(lab.uplink_mtu(), |s| s.mtu);
    if !more.is_empty() {
        scratch.write("network.toml", &[text, more].concat())?;
    }
    let (mut processes, mut controls) = (Vec::new(), Vec::new());
    for host in lab.hosts() {
        // Not where a weft of this machine would have its own.
        let control = scratch.path().join(format!("{}.sock", host.name()));
        let mut command = Command::new(weft);
        command.args(["run", "--host", &host.name(), "--control"]).arg(&control).arg(&file);
        command.args([DATAPATH, datapath.name()]);
        if lab.shape().one_source_port {
            command.args(["--source-ports", "1"]);
        }
        command.args(options);
        let name = format!("weft run --host {}", host.name());
        processes.push(Process::spawn(name, host.netns().command(command))?);
        controls.push(control);
    }
    let attachment = Attachment::new(processes, Some(scratch), guest_mtu);
    Ok(attachment.with_daemons(weft, controls))
}
