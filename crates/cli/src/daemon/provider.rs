//! [`ActiveProvider`]: the datapath that this daemon runs, in the kernel, in user space, or none.

use anyhow::{Context, Result};
use datapath::Datapath;
use datapath::config::Config;
use datapath::none::NoDatapath;
use datapath_bpf::{
    Adoption, KernelDatapath, PinError, PreparedKernelDatapath, PurgeResult, StartError, purge,
};
use datapath_user::UserDatapath;
use doctor::host::Capabilities;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use switch::Switch;

/// The value of `weft run --datapath`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum DatapathArg {
    /// eBPF programs; threads of this process handle what the programs cannot
    Kernel,
    /// Threads of this process only
    User,
    /// `kernel` where this host supports it, otherwise `user`
    Auto,
    /// With --ovn, forwards nothing
    None,
}

/// The kind of datapath that the daemon starts, and the reason.
pub struct DatapathChoice {
    kind: Kind,
    reason: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kernel,
    User,
    None,
}

const REQUESTED: &str = "requested with --datapath";

impl DatapathChoice {
    /// Chooses the datapath by the command line and by the capabilities of this host.
    ///
    /// # Errors
    /// The kernel does not reply to netlink requests.
    pub fn new(requested: DatapathArg) -> Result<Self> {
        Ok(match requested {
            DatapathArg::User => Self { kind: Kind::User, reason: REQUESTED.to_owned() },
            DatapathArg::Kernel => Self { kind: Kind::Kernel, reason: REQUESTED.to_owned() },
            DatapathArg::None => Self { kind: Kind::None, reason: REQUESTED.to_owned() },
            DatapathArg::Auto => match Capabilities::probe()?.kernel_datapath() {
                Ok(()) => Self { kind: Kind::Kernel, reason: "this host supports it".to_owned() },
                Err(reason) => Self::fall_back_to_user(&reason),
            },
        })
    }

    /// The user datapath, because the kernel datapath cannot run here for `reason`.
    pub fn fall_back_to_user(reason: &str) -> Self {
        let reason = format!("this host does not support the kernel datapath: {reason}");
        Self { kind: Kind::User, reason }
    }

    /// True for the kernel datapath.
    pub fn use_kernel(&self) -> bool {
        self.kind == Kind::Kernel
    }
}

/// The running datapath, and the reason for its choice.
pub struct ActiveProvider {
    provider: Provider,
    /// Why this provider was chosen.
    pub reason: String,
}

enum Provider {
    User(Arc<UserDatapath>),
    None(Arc<NoDatapath>),
    Kernel(Arc<KernelDatapath>),
}

/// The chosen datapath, with no thread started yet. Starting it needs fewer privileges than
/// preparing it.
pub struct PreparedProvider {
    prepared: Prepared,
    reason: String,
}

enum Prepared {
    User(Box<Config>),
    None(Box<Config>),
    Kernel(Box<PreparedKernelDatapath>),
}

impl PreparedProvider {
    /// Prepares the chosen datapath. The kernel datapath loads its programs, and pins them and
    /// their maps under `bpf_fs`. Starts no thread. An error leaves no programs or pins behind.
    ///
    /// # Errors
    /// [`Unsupported`](datapath_bpf::Unsupported) when the kernel refuses a program or map that
    /// the probe expected to work; otherwise the error of the datapath.
    pub fn new(choice: &DatapathChoice, config: &Config, bpf_fs: &Path) -> Result<Self> {
        let DatapathChoice { kind, reason } = choice;
        let prepared = match kind {
            Kind::Kernel => match PreparedKernelDatapath::load(config.clone(), bpf_fs) {
                Ok(kernel) => {
                    warn_of_ipsec();
                    Prepared::Kernel(Box::new(kernel))
                }
                Err(StartError::Unsupported(error)) => {
                    return Err(error).context("this host does not support the kernel datapath");
                }
                Err(error) => return Err(error).context(NOT_STARTED),
            },
            Kind::User => {
                remove_programs(bpf_fs)?;
                Prepared::User(Box::new(config.clone()))
            }
            Kind::None => Prepared::None(Box::new(config.clone())),
        };
        Ok(Self { prepared, reason: reason.clone() })
    }

    /// True for the kernel datapath.
    pub fn is_kernel(&self) -> bool {
        matches!(self.prepared, Prepared::Kernel(_))
    }

    /// The directories of pins that the running datapath changes, see
    /// [`PreparedKernelDatapath::pin_folders`].
    pub fn pin_folders(&self) -> Option<[&Path; 2]> {
        match &self.prepared {
            Prepared::User(_) | Prepared::None(_) => None,
            Prepared::Kernel(kernel) => kernel.pin_folders(),
        }
    }

    /// Starts the datapath. A failed start leaves no devices, programs or pins behind.
    ///
    /// # Errors
    /// The error of the datapath.
    pub fn start(self) -> Result<ActiveProvider> {
        let Self { prepared, reason } = self;
        let provider = match prepared {
            Prepared::User(config) => {
                let user = UserDatapath::start(*config)?;
                messages::log!(USER_DATAPATH_STARTED, reason, "user datapath started");
                Provider::User(Arc::new(user))
            }
            Prepared::None(config) => {
                messages::log!(NO_DATAPATH_STARTED, "no datapath started: packets are not handled");
                let Config { host, uplink, ports, .. } = *config;
                Provider::None(Arc::new(NoDatapath::new(host, uplink, ports)))
            }
            Prepared::Kernel(kernel) => {
                let kernel = kernel.start().context(NOT_STARTED)?;
                messages::log!(KERNEL_DATAPATH_STARTED, reason, "kernel datapath started");
                Provider::Kernel(Arc::new(kernel))
            }
        };
        Ok(ActiveProvider { provider, reason })
    }
}

/// Warns if the host has IPsec policies. Programs that send tunnel packets bypass them.
fn warn_of_ipsec() {
    // A failure is no reason not to start. The doctor checks this, too.
    let policies = netdev::ipsec_policies().unwrap_or(0);
    if policies > 0 {
        messages::log!(
            IPSEC_BYPASSED,
            policies,
            "the kernel datapath does not obey the IPsec policies of this host"
        );
    }
}

const NOT_STARTED: &str = "cannot start the kernel datapath";

/// Removes programs that a killed daemon left attached: they would consume packets before the user
/// datapath sees them.
fn remove_programs(bpf_fs: &Path) -> Result<()> {
    match purge(bpf_fs) {
        Ok(purged) if purged == PurgeResult::default() => {}
        Ok(purged) => {
            messages::log!(OLD_STATE_REMOVED, ?purged, "removed the state of an earlier daemon")
        }
        Err(taken @ PinError::Taken(_)) => {
            return Err(taken).context("cannot start the user datapath");
        }
        Err(error) => {
            messages::log!(
                OLD_STATE_UNKNOWN,
                "cannot check for the state of an earlier daemon: {error}"
            );
        }
    }
    Ok(())
}

impl ActiveProvider {
    /// Adopts the megaflows that a killed or stopped daemon left in the kernel. `switch`
    /// revalidates each of them first.
    ///
    /// # Errors
    /// The datapath has stopped.
    pub fn adopt(&self, switch: &Switch) -> Result<()> {
        let Provider::Kernel(kernel) = &self.provider else { return Ok(()) };
        let adopted = switch.adopt(kernel.inherited(), Instant::now())?;
        if let Err(error) = kernel.adopt(adopted) {
            messages::log!(
                OLD_STATE_LEFT,
                "cannot remove all state of the previous daemon: {error}"
            );
        }
        Ok(())
    }

    /// How many megaflows of the previous daemon were adopted and lost; `None` when there was no
    /// state to adopt.
    pub fn adoption(&self) -> Option<Adoption> {
        match &self.provider {
            Provider::User(_) | Provider::None(_) => None,
            Provider::Kernel(kernel) => kernel.adoption(),
        }
    }

    /// The directory of the pinned state that keeps forwarding when the process exits without
    /// [`ActiveProvider::join`]; `None` when nothing is pinned.
    pub fn pinned_at(&self) -> Option<&Path> {
        match &self.provider {
            Provider::User(_) | Provider::None(_) => None,
            Provider::Kernel(kernel) => kernel.pinned_at(),
        }
    }

    /// True when the pinned programs are known to outlive the process.
    pub fn pins_last(&self) -> bool {
        match &self.provider {
            Provider::User(_) | Provider::None(_) => false,
            Provider::Kernel(kernel) => kernel.pins_last(),
        }
    }

    /// The provider as a trait object.
    pub fn datapath(&self) -> Arc<dyn Datapath> {
        match &self.provider {
            Provider::User(datapath) => Arc::<UserDatapath>::clone(datapath),
            Provider::None(datapath) => Arc::<NoDatapath>::clone(datapath),
            Provider::Kernel(datapath) => Arc::<KernelDatapath>::clone(datapath),
        }
    }

    /// The hook at which a program is attached to the uplink; `None` without such a program.
    pub fn uplink_hook(&self) -> Option<String> {
        match &self.provider {
            Provider::User(_) | Provider::None(_) => None,
            Provider::Kernel(kernel) => kernel.uplink_hook(),
        }
    }

    /// True for the kernel datapath.
    pub fn is_kernel(&self) -> bool {
        matches!(self.provider, Provider::Kernel(_))
    }

    /// True for `--datapath none`, which forwards nothing.
    pub fn is_none(&self) -> bool {
        matches!(self.provider, Provider::None(_))
    }

    /// True once forwarding has stopped.
    pub fn has_ended(&self) -> bool {
        match &self.provider {
            Provider::User(datapath) => datapath.has_ended(),
            Provider::None(datapath) => datapath.has_ended(),
            Provider::Kernel(datapath) => datapath.has_ended(),
        }
    }

    /// Stops forwarding and waits until the devices that it created are removed.
    ///
    /// # Errors
    /// The error with which forwarding had stopped before this call.
    pub fn join(&self) -> Result<()> {
        match &self.provider {
            Provider::User(datapath) => Ok(datapath.join()?),
            Provider::None(datapath) => {
                datapath.stop();
                Ok(())
            }
            Provider::Kernel(datapath) => Ok(datapath.join()?),
        }
    }
}
