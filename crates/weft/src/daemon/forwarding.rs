//! [`Forwarding`]: the datapath of a daemon, the kernel's or the user's.

use anyhow::{Context, Result};
use datapath::Datapath;
use datapath::config::Config;
use datapath_bpf::{Adoption, KernelDatapath, PinError, Purged, StartError, purge};
use datapath_user::UserDatapath;
use doctor::host::Capabilities;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use switch::Switch;

/// Which datapath is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Choice {
    /// BPF programs in front of the user datapath
    Kernel,
    /// Threads of this process
    User,
    /// The kernel's if this host can have it
    Auto,
}

/// Which datapath is tried, and why.
pub struct Foreseen {
    /// The kernel's.
    pub by_kernel: bool,
    why: String,
}

impl Foreseen {
    /// What is known beforehand of what this host can have.
    ///
    /// # Errors
    /// The kernel does not answer netlink.
    pub fn of(choice: Choice) -> Result<Self> {
        Ok(match choice {
            Choice::User | Choice::Kernel => {
                Self { by_kernel: choice == Choice::Kernel, why: "as --datapath says".to_owned() }
            }
            Choice::Auto => match Capabilities::probe()?.kernel_datapath() {
                Ok(()) => Self { by_kernel: true, why: "this host can have it".to_owned() },
                Err(why) => Self::user(&why),
            },
        })
    }

    /// The user's, because there cannot be the kernel's.
    pub fn user(why: &str) -> Self {
        let why = format!("this host cannot have the kernel datapath: {why}");
        Self { by_kernel: false, why }
    }
}

/// See the module.
pub struct Forwarding {
    provider: Provider,
    /// Why it is this one.
    pub why: String,
}

enum Provider {
    User(Arc<UserDatapath>),
    Kernel(Arc<KernelDatapath>),
}

impl Forwarding {
    /// Starts it. Nothing is left behind when this fails. What is to outlive the process is pinned in the BPF file system meant by
    /// `bpf_fs`.
    ///
    /// # Errors
    /// [`Unsupported`](datapath_bpf::Unsupported) when this host cannot have the kernel's after all; what the datapath says.
    pub fn start(foreseen: &Foreseen, config: &Config, bpf_fs: &Path) -> Result<Self> {
        let Foreseen { by_kernel, why } = foreseen;
        if !by_kernel {
            return Self::start_user(config, bpf_fs, why.clone());
        }
        match KernelDatapath::start_pinned(config.clone(), bpf_fs) {
            Ok(kernel) => {
                tracing::info!(why, "the kernel datapath forwards");
                Ok(Self { provider: Provider::Kernel(Arc::new(kernel)), why: why.clone() })
            }
            Err(StartError::Unsupported(why)) => {
                Err(why).context("this host cannot have the kernel datapath")
            }
            Err(error) => Err(error).context("start the kernel datapath"),
        }
    }

    fn start_user(config: &Config, bpf_fs: &Path, why: String) -> Result<Self> {
        // Programs of a daemon that was killed would take packets away.
        match purge(bpf_fs) {
            Ok(purged) if purged == Purged::default() => {}
            Ok(purged) => tracing::info!(?purged, "removed what a daemon has left"),
            Err(taken @ PinError::Taken(_)) => {
                return Err(taken).context("start the user datapath");
            }
            Err(error) => tracing::warn!("cannot look for what a daemon has left: {error}"),
        }
        let user = UserDatapath::start(config.clone())?;
        tracing::info!(why, "the user datapath forwards");
        Ok(Self { provider: Provider::User(Arc::new(user)), why })
    }

    /// Has it go on with what a daemon has left that was killed or stopped, as the switch decides now.
    ///
    /// # Errors
    /// The datapath has ended.
    pub fn take_over(&self, switch: &Switch) -> Result<()> {
        let Provider::Kernel(kernel) = &self.provider else { return Ok(()) };
        let adopted = switch.adopt(kernel.inherited(), Instant::now())?;
        if let Err(error) = kernel.adopt(adopted) {
            tracing::warn!("something is left of the daemon before: {error}");
        }
        Ok(())
    }

    /// What became of what a daemon had left.
    pub fn taken_over(&self) -> Option<Adoption> {
        match &self.provider {
            Provider::User(_) => None,
            Provider::Kernel(kernel) => kernel.adoption(),
        }
    }

    /// Where it is pinned what goes on when the process ends without [`Forwarding::join`]; `None` when nothing does.
    pub fn pinned_at(&self) -> Option<&Path> {
        match &self.provider {
            Provider::User(_) => None,
            Provider::Kernel(kernel) => kernel.pinned_at(),
        }
    }

    /// It, as whoever uses it sees it.
    pub fn datapath(&self) -> Arc<dyn Datapath> {
        match &self.provider {
            Provider::User(datapath) => Arc::<UserDatapath>::clone(datapath),
            Provider::Kernel(datapath) => Arc::<KernelDatapath>::clone(datapath),
        }
    }

    /// How the program at the uplink is attached; `None` for the user's, and while there is no program.
    pub fn uplink_hook(&self) -> Option<String> {
        match &self.provider {
            Provider::User(_) => None,
            Provider::Kernel(kernel) => kernel.uplink_hook(),
        }
    }

    /// True for the kernel's.
    pub fn is_kernel(&self) -> bool {
        matches!(self.provider, Provider::Kernel(_))
    }

    /// True when it does not forward any more.
    pub fn has_ended(&self) -> bool {
        match &self.provider {
            Provider::User(datapath) => datapath.has_ended(),
            Provider::Kernel(datapath) => datapath.has_ended(),
        }
    }

    /// Ends it, and waits until devices that were made are gone.
    ///
    /// # Errors
    /// With which forwarding had ended before.
    pub fn join(&self) -> Result<()> {
        match &self.provider {
            Provider::User(datapath) => Ok(datapath.join()?),
            Provider::Kernel(datapath) => Ok(datapath.join()?),
        }
    }
}
