//! Probes whether this host can run the kernel datapath.

use crate::facts::{HostFacts, KernelVersion};
use datapath_bpf::OLDEST_KERNEL;
use netdev::{Netlink, Result};

/// The properties of a host that the kernel datapath requires.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// The kernel's version.
    pub kernel: KernelVersion,
    /// The kernel has BTF, which is needed to relocate BPF programs for it.
    pub btf: bool,
    /// The BPF JIT compiler is on; `None` when this process may not read the sysctl.
    pub jit: Option<bool>,
    /// BPF programs can be attached with tcx.
    pub tcx: bool,
    /// BPF programs can be attached to a clsact qdisc, which is built in or a module.
    pub clsact: bool,
    /// The capabilities that loading BPF programs needs and this process lacks.
    pub missing: Vec<String>,
}

impl Capabilities {
    /// Probes this host from the network namespace of the calling thread. Takes some milliseconds,
    /// changes nothing, and needs no privilege.
    ///
    /// # Errors
    /// The kernel does not reply to netlink requests.
    pub fn probe() -> Result<Self> {
        Ok(Self::of(&HostFacts::read(&[], &Netlink::open()?.links()?)))
    }

    /// Takes the properties from facts that were already read.
    pub fn of(host: &HostFacts) -> Self {
        let kernel = &host.kernel;
        Self {
            kernel: kernel.version,
            btf: kernel.btf,
            jit: kernel.jit,
            tcx: kernel.tcx,
            clsact: kernel.clsact,
            missing: host.missing_for_programs.clone(),
        }
    }

    /// Whether `--datapath auto` can choose the kernel datapath.
    ///
    /// # Errors
    /// A sentence about the first requirement that is not met.
    pub fn kernel_datapath(&self) -> Result<(), String> {
        let Self { kernel, btf, jit, tcx, clsact, .. } = *self;
        if kernel < OLDEST_KERNEL {
            return Err(format!("Linux {kernel} is older than {OLDEST_KERNEL}"));
        }
        let needs = [
            (btf, "the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"),
            (
                jit != Some(false),
                "the kernel would interpret BPF programs (net.core.bpf_jit_enable is 0)",
            ),
            (tcx || clsact, "the kernel has neither tcx nor clsact to attach BPF programs to"),
        ];
        if let Some((_, why)) = needs.into_iter().find(|(is_met, _)| !is_met) {
            return Err(why.to_owned());
        }
        match self.missing.as_slice() {
            [] => Ok(()),
            missing => Err(format!("loading BPF programs needs {}", missing.join(" and "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_datapath_is_refused_for_the_first_thing_that_is_missing() {
        let capable = Capabilities {
            kernel: KernelVersion::new(6, 1),
            btf: true,
            jit: None,
            tcx: false,
            clsact: true,
            missing: Vec::new(),
        };
        assert_eq!(capable.kernel_datapath(), Ok(()));
        let missing = vec!["CAP_BPF".to_owned(), "CAP_PERFMON".to_owned()];
        let table = [
            (Capabilities { kernel: KernelVersion::new(4, 19), ..capable.clone() }, "4.19"),
            (Capabilities { btf: false, missing: missing.clone(), ..capable.clone() }, "BTF"),
            (Capabilities { jit: Some(false), ..capable.clone() }, "bpf_jit_enable"),
            (Capabilities { clsact: false, ..capable.clone() }, "tcx nor clsact"),
            (Capabilities { missing, ..capable }, "needs CAP_BPF and CAP_PERFMON"),
        ];
        for (host, missing) in table {
            let why = host.kernel_datapath().unwrap_err();
            assert!(why.contains(missing), "{why}");
        }
    }

    #[test]
    fn features_of_the_running_kernel_are_read_without_privilege() {
        let here = Capabilities::probe().unwrap();
        assert!(here.kernel >= KernelVersion::new(5, 0), "{here:?}");
    }
}
