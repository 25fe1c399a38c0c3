//! [`ActiveProvider`]: the datapath that this daemon runs, in the kernel or in user space.

use anyhow::{Context, Result};
use datapath::Datapath;
use datapath::config::Config;
use datapath_bpf::{Adoption, KernelDatapath, PinError, PurgeResult, StartError, purge};
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
}

/// Which datapath the daemon starts, and why.
pub struct DatapathChoice {
    /// True for the kernel datapath.
    pub use_kernel: bool,
    reason: String,
}

impl DatapathChoice {
    /// Chooses from the command line and from what this host supports.
    ///
    /// # Errors
    /// The kernel does not answer netlink.
    pub fn new(wanted: DatapathArg) -> Result<Self> {
        Ok(match wanted {
            DatapathArg::User | DatapathArg::Kernel => Self {
                use_kernel: wanted == DatapathArg::Kernel,
                reason: "requested with --datapath".to_owned(),
            },
            DatapathArg::Auto => match Capabilities::probe()?.kernel_datapath() {
                Ok(()) => Self { use_kernel: true, reason: "this host supports it".to_owned() },
                Err(reason) => Self::fall_back_to_user(&reason),
            },
        })
    }

    /// The user datapath, because the kernel datapath cannot run here for `reason`.
    pub fn fall_back_to_user(reason: &str) -> Self {
        let reason = format!("this host does not support the kernel datapath: {reason}");
        Self { use_kernel: false, reason }
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
    Kernel(Arc<KernelDatapath>),
}

impl ActiveProvider {
    /// Starts the chosen datapath. The kernel datapath pins its maps and programs under `bpf_fs`.
    /// A failed start leaves no devices, programs or pins behind.
    ///
    /// # Errors
    /// [`Unsupported`](datapath_bpf::Unsupported) when the kernel refuses a program or map that
    /// the probe expected to work; otherwise the error of the datapath.
    pub fn start(choice: &DatapathChoice, config: &Config, bpf_fs: &Path) -> Result<Self> {
        let DatapathChoice { use_kernel, reason } = choice;
        if !use_kernel {
            return Self::start_user(config, bpf_fs, reason.clone());
        }
        match KernelDatapath::start_pinned(config.clone(), bpf_fs) {
            Ok(kernel) => {
                tracing::info!(reason, "kernel datapath started");
                Ok(Self { provider: Provider::Kernel(Arc::new(kernel)), reason: reason.clone() })
            }
            Err(StartError::Unsupported(error)) => {
                Err(error).context("this host does not support the kernel datapath")
            }
            Err(error) => Err(error).context("cannot start the kernel datapath"),
        }
    }

    fn start_user(config: &Config, bpf_fs: &Path, reason: String) -> Result<Self> {
        // Programs that a killed daemon left attached would consume packets before the user
        // datapath sees them.
        match purge(bpf_fs) {
            Ok(purged) if purged == PurgeResult::default() => {}
            Ok(purged) => tracing::info!(?purged, "removed the state of an earlier daemon"),
            Err(taken @ PinError::Taken(_)) => {
                return Err(taken).context("cannot start the user datapath");
            }
            Err(error) => {
                tracing::warn!("cannot check for the state of an earlier daemon: {error}");
            }
        }
        let user = UserDatapath::start(config.clone())?;
        tracing::info!(reason, "user datapath started");
        Ok(Self { provider: Provider::User(Arc::new(user)), reason })
    }

    /// Adopts the megaflows that a killed or stopped daemon left in the kernel. `switch`
    /// revalidates each of them first.
    ///
    /// # Errors
    /// The datapath has stopped.
    pub fn adopt(&self, switch: &Switch) -> Result<()> {
        let Provider::Kernel(kernel) = &self.provider else { return Ok(()) };
        let adopted = switch.adopt(kernel.inherited(), Instant::now())?;
        if let Err(error) = kernel.adopt(adopted) {
            tracing::warn!("cannot remove all state of the previous daemon: {error}");
        }
        Ok(())
    }

    /// How many megaflows of the previous daemon were adopted and lost; `None` when there was no
    /// state to adopt.
    pub fn adoption(&self) -> Option<Adoption> {
        match &self.provider {
            Provider::User(_) => None,
            Provider::Kernel(kernel) => kernel.adoption(),
        }
    }

    /// The directory of the pinned state that keeps forwarding when the process exits without
    /// [`ActiveProvider::join`]; `None` when nothing is pinned.
    pub fn pinned_at(&self) -> Option<&Path> {
        match &self.provider {
            Provider::User(_) => None,
            Provider::Kernel(kernel) => kernel.pinned_at(),
        }
    }

    /// The provider as a trait object.
    pub fn datapath(&self) -> Arc<dyn Datapath> {
        match &self.provider {
            Provider::User(datapath) => Arc::<UserDatapath>::clone(datapath),
            Provider::Kernel(datapath) => Arc::<KernelDatapath>::clone(datapath),
        }
    }

    /// The hook at which a program is attached to the uplink; `None` without such a program.
    pub fn uplink_hook(&self) -> Option<String> {
        match &self.provider {
            Provider::User(_) => None,
            Provider::Kernel(kernel) => kernel.uplink_hook(),
        }
    }

    /// True for the kernel datapath.
    pub fn is_kernel(&self) -> bool {
        matches!(self.provider, Provider::Kernel(_))
    }

    /// True once forwarding has stopped.
    pub fn has_ended(&self) -> bool {
        match &self.provider {
            Provider::User(datapath) => datapath.has_ended(),
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
            Provider::Kernel(datapath) => Ok(datapath.join()?),
        }
    }
}
