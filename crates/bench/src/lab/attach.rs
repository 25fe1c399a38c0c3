//! How a contender connects the guests of a lab.

use std::path::Path;

use network::TunnelType;

use super::attachment::Attachment;
use super::contender::{Contender, Datapath, KernelTunnel, StatefulSwitch};
use super::shape::IpVersion;
use super::underlay::Lab;
use super::{kernel, ovs, stateful, weft};
use crate::{Error, Result};

impl Contender {
    /// Why this contender is unavailable on this machine, or `None` if it is available; `weft` is
    /// the program to run.
    pub fn unavailable(self, weft: &Path) -> Option<String> {
        match self {
            Self::Ovs(datapath, _) => ovs::unavailable(datapath),
            Self::Kernel(tunnel) => kernel::tunnel_unavailable(tunnel),
            Self::Weft(datapath, tunnel) => weft::unavailable(datapath, tunnel, weft),
            Self::WeftBridge(datapath) => weft::unavailable(datapath, TunnelType::QinQ, weft),
            Self::WeftVeth(tunnel) | Self::Stateful(StatefulSwitch::Weft(tunnel), _) => {
                weft::unavailable(Datapath::Kernel, tunnel, weft)
            }
            Self::Stateful(StatefulSwitch::Ovs(_), _) => ovs::unavailable(Datapath::Kernel),
            Self::Stateful(StatefulSwitch::Bridge, _) => None,
            Self::Direct | Self::LinuxBridge => None,
        }
    }

    /// Gives every guest of `lab` its `eth0` and connects them. `weft` is the program to run for
    /// weft's own tunnels. A process may still be starting when this returns: wait for a ping.
    ///
    /// # Errors
    /// The kernel refuses a device, a program cannot be started, or the tunnel does not support the
    /// address family of this underlay.
    pub fn attach(self, lab: &Lab<'_>, weft: &Path) -> Result<Attachment> {
        match self {
            Self::Weft(datapath, tunnel) => weft::attach(lab, datapath, tunnel, weft),
            Self::WeftBridge(datapath) => weft::attach_bridge(lab, datapath, weft),
            Self::WeftVeth(tunnel) => weft::attach_veth(lab, tunnel, weft),
            Self::Stateful(switch, rules) => stateful::attach(lab, switch, rules, weft),
            Self::Ovs(datapath, tunnel) => ovs::attach(lab, datapath, tunnel),
            Self::Direct => kernel::direct(lab),
            Self::LinuxBridge => kernel::bridge(lab),
            Self::Kernel(KernelTunnel::Gre) if lab.shape().family == IpVersion::V6 => {
                Err(Error::Other("this lab has no kernel GRE over IPv6".into()))
            }
            Self::Kernel(tunnel) => kernel::tunnel(lab, tunnel),
        }
    }
}
