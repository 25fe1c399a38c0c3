//! weft in a lab: one network file, and one daemon for each host.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use datapath_bpf::Unsupported;
use network::{KernelDatapath, Network, TunnelType};

use super::attachment::Attachment;
use super::contender::{Datapath, OvsTunnel};
use super::host::GUEST_DEVICE;
use super::kernel::veth_guest;
use super::network_file::{bridges_toml, network_toml};
use super::ovs::tag_flows;
use super::policy::RoutedSetup;
use super::scratch::Scratch;
use super::underlay::{Lab, host_end};
use crate::process::Process;
use crate::{Error, Result};

/// The option of `weft run` that selects the datapath.
const DATAPATH: &str = "--datapath";
/// Whether this host supports the kernel datapath, checked once.
static CAN_FORWARD_IN_KERNEL: LazyLock<std::result::Result<(), Unsupported>> =
    LazyLock::new(datapath_bpf::check);

/// Why weft is unavailable with this datapath and tunnel, if that is known.
pub(super) fn unavailable(datapath: Datapath, tunnel: TunnelType, weft: &Path) -> Option<String> {
    if datapath == Datapath::User {
        return None;
    }
    if let KernelDatapath::Unsupported { why } = tunnel.descriptor().kernel_datapath {
        return Some(why.to_owned());
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
    let setup = RoutedSetup::create(lab)?;
    let text = setup.network_toml(lab, tunnel);
    let attachment = attach_with(lab, datapath, &text, weft, &[])?;
    Ok(attachment.with_routed_setup(setup))
}

/// Creates veth pairs for the guests, and starts weft's kernel datapath to forward between them.
pub(super) fn attach_veth(lab: &Lab<'_>, tunnel: TunnelType, weft: &Path) -> Result<Attachment> {
    let taps = network_toml(lab, tunnel);
    let text = lab.guests().iter().fold(taps, |text, guest| {
        let tap = format!("device = {{ tap = \"{GUEST_DEVICE}\", netns = \"{}\" }}", guest.netns());
        text.replace(&tap, &format!("device = {{ interface = \"{}\" }}", host_end(guest)))
    });
    let network = Network::parse(&text, "network.toml")
        .map_err(|errors| Error::Other(format!("the network file of the lab: {errors}")))?;
    let mtu = network.logical_switches().first().map_or(lab.uplink_mtu(), |switch| switch.mtu);
    for guest in lab.guests() {
        veth_guest(lab, guest, mtu, None)?;
    }
    attach_with(lab, Datapath::Kernel, &text, weft, &[])
}

/// Connects the guests by a bridge of weft on each host, with the same flows as the contender Open
/// vSwitch with QinQ.
pub(super) fn attach_bridge(lab: &Lab<'_>, datapath: Datapath, weft: &Path) -> Result<Attachment> {
    let mtu = lab.guest_mtu(OvsTunnel::QinQ.overhead(lab.shape().family))?;
    let flows = tag_flows(lab.shape().guests_per_host).join("\n");
    attach_files(lab, datapath, (&bridges_toml(lab, mtu), &[("tags.flows", &flows)]), weft, &[])
}

/// Starts the daemons with the network file `text` and additional options for `weft run`.
///
/// # Errors
/// The file is refused, or a program cannot be started.
pub(crate) fn attach_with(
    lab: &Lab<'_>,
    datapath: Datapath,
    text: &str,
    weft: &Path,
    options: &[&str],
) -> Result<Attachment> {
    attach_large(lab, datapath, [text, ""], weft, options)
}

/// Like [`attach_with`], but only the daemons read the text `more`. This process would need a
/// minute and 7 GB to load a million hosts.
///
/// # Errors
/// As [`attach_with`].
pub(crate) fn attach_large(
    lab: &Lab<'_>,
    datapath: Datapath,
    [text, more]: [&str; 2],
    weft: &Path,
    options: &[&str],
) -> Result<Attachment> {
    attach_files(lab, datapath, (text, &[("", more)]), weft, options)
}

/// Starts the daemons with the network file `text` and with further files in its directory. A file
/// without a name is appended to the network file, and only the daemons read it.
fn attach_files(
    lab: &Lab<'_>,
    datapath: Datapath,
    (text, files): (&str, &[(&str, &str)]),
    weft: &Path,
    options: &[&str],
) -> Result<Attachment> {
    let scratch = Scratch::create()?;
    for (name, flows) in files.iter().filter(|(name, _)| !name.is_empty()) {
        scratch.write(name, flows)?;
    }
    let file = scratch.write("network.toml", text)?;
    let network = Network::load(&file)
        .map_err(|errors| Error::Other(format!("the network file of the lab: {errors}")))?;
    let switch_mtu = network.logical_switches().first().map(|switch| switch.mtu);
    let bridge_mtu = network.bridges().first().map(|bridge| bridge.mtu);
    let guest_mtu = switch_mtu.or(bridge_mtu).unwrap_or(lab.uplink_mtu());
    for (_, more) in files.iter().filter(|(name, more)| name.is_empty() && !more.is_empty()) {
        scratch.write("network.toml", &[text, more].concat())?;
    }
    let (mut processes, mut controls) = (Vec::new(), Vec::new());
    for host in lab.hosts() {
        // The default path may belong to another weft on this machine.
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
