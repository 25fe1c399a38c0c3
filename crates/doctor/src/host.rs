//! What the switch itself asks: which datapath this host can have, and what its uplink does with what is sent.

use crate::facts::{HostFacts, KernelVersion, NicFacts};
use crate::judge::tunnel::{Outcome, Outer, TunnelVerdict, verdict};
use flow::TunnelType;
use netdev::{Netlink, Result};
use serde::{Deserialize, Serialize};

/// The oldest kernel that weft's programs are tried with; the kernel datapath refuses older ones.
const OLDEST: KernelVersion = KernelVersion::new(6, 1);

/// What a datapath in the kernel needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// The kernel's version.
    pub kernel: KernelVersion,
    /// It tells its types, without which programs are not fitted to it.
    pub btf: bool,
    /// The compiler of programs is on; `None` when this process may not read that.
    pub jit: Option<bool>,
    /// Programs attach to devices by tcx.
    pub tcx: bool,
    /// Programs attach to devices by a clsact queueing discipline, built in or in a module.
    pub clsact: bool,
    /// This process may load programs that see packets (CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN before Linux 5.8).
    pub may_load: bool,
}

impl Capabilities {
    /// Looks at this host, from the network namespace of the calling thread. Takes some milliseconds, changes nothing, and needs no
    /// privilege.
    ///
    /// # Errors
    /// The kernel does not answer netlink.
    pub fn probe() -> Result<Self> {
        Ok(Self::of(&HostFacts::read(&[], &Netlink::open()?.links()?)))
    }

    /// Of a host that was looked at.
    pub fn of(host: &HostFacts) -> Self {
        let kernel = &host.kernel;
        Self {
            kernel: kernel.version,
            btf: kernel.btf,
            jit: kernel.jit,
            tcx: kernel.tcx,
            clsact: kernel.clsact,
            may_load: host.may_load_programs,
        }
    }

    /// Whether the kernel datapath can be had, for `--datapath auto`.
    ///
    /// # Errors
    /// One sentence on what is missing first.
    pub fn kernel_datapath(&self) -> Result<(), String> {
        let Self { kernel, btf, jit, tcx, clsact, may_load } = *self;
        if kernel < OLDEST {
            return Err(format!("Linux {kernel} is older than {OLDEST}"));
        }
        let needs = [
            (btf, "the kernel does not tell its types (CONFIG_DEBUG_INFO_BTF)"),
            (
                jit != Some(false),
                "the kernel would interpret programs (net.core.bpf_jit_enable is 0)",
            ),
            (tcx || clsact, "the kernel has neither tcx nor clsact to attach programs by"),
            (may_load, "this process may not load programs (CAP_BPF and CAP_NET_ADMIN)"),
        ];
        match needs.into_iter().find(|(is_met, _)| !is_met) {
            None => Ok(()),
            Some((_, why)) => Err(why.to_owned()),
        }
    }
}

/// How something is done, and why so.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Chosen {
    /// What: a tunnel type, or the datapath.
    pub what: String,
    /// How: of a tunnel type, how its super-packets leave.
    pub how: String,
    /// Why so: of a tunnel type, who cuts them, and by which offload that is known.
    pub why: String,
}

/// How super-packets of these tunnels are sent through a device: by the user datapath, or by the kernel datapath, which leaves to the
/// user's what it cannot send.
pub fn chosen(
    nic: &NicFacts,
    tunnels: &[TunnelType],
    outer: Outer,
    by_kernel: bool,
) -> Vec<Chosen> {
    tunnels
        .iter()
        .map(|&tunnel| {
            let TunnelVerdict { segmentation, kernel_segmentation, cost, .. } =
                verdict(nic, tunnel, outer);
            let kernel = kernel_segmentation.filter(|_| by_kernel);
            let in_kernel = kernel.is_some();
            let segmentation = kernel.unwrap_or(segmentation);
            let how = match (tunnel, in_kernel) {
                (TunnelType::Vxlan | TunnelType::Geneve | TunnelType::Gre, true) => {
                    "super-packets inside the outer headers"
                }
                (TunnelType::Vxlan | TunnelType::Geneve, false) => "trains of UDP datagrams",
                (TunnelType::Gre, false) => "a packet for each segment",
                (TunnelType::Stt, _) => "one TCP-shaped super-packet",
                (TunnelType::Vlan | TunnelType::QinQ, _) => "tagged super-packets",
            };
            let device = &nic.name;
            let who = match segmentation.outcome {
                Outcome::Yes => format!("{device} cuts them"),
                Outcome::InSoftware => format!("the kernel cuts them for {device}"),
                Outcome::No => "there are no super-packets".to_owned(),
                Outcome::Unknown => format!("{device} or the kernel cuts them"),
            };
            let keeps = match cost.filter(|_| segmentation.outcome == Outcome::InSoftware) {
                Some(cost) => {
                    format!("; that leaves at least {:.2} of the throughput", cost.at_least)
                }
                None => String::new(),
            };
            let why = format!("{who}: {}{keeps}", segmentation.why);
            Chosen { what: tunnel.name().to_owned(), how: how.to_owned(), why }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_datapath_is_refused_for_the_first_thing_that_is_missing() {
        let able = Capabilities {
            kernel: KernelVersion::new(6, 1),
            btf: true,
            jit: None,
            tcx: false,
            clsact: true,
            may_load: true,
        };
        assert_eq!(able.kernel_datapath(), Ok(()));
        let table = [
            (Capabilities { kernel: KernelVersion::new(4, 19), ..able.clone() }, "4.19"),
            (Capabilities { btf: false, may_load: false, ..able.clone() }, "BTF"),
            (Capabilities { jit: Some(false), ..able.clone() }, "bpf_jit_enable"),
            (Capabilities { clsact: false, ..able.clone() }, "tcx nor clsact"),
            (Capabilities { may_load: false, ..able }, "CAP_BPF"),
        ];
        for (host, missing) in table {
            let why = host.kernel_datapath().unwrap_err();
            assert!(why.contains(missing), "{why}");
        }
    }

    #[test]
    fn running_kernel_is_looked_at_without_privilege() {
        let here = Capabilities::probe().unwrap();
        assert!(here.kernel >= KernelVersion::new(5, 0), "{here:?}");
    }
}
