//! [`Forwarding`]: the datapath of a daemon, the kernel's or the user's.

use anyhow::{Context, Result};
use datapath::Datapath;
use datapath::user::{Config, UserDatapath};
use datapath_bpf::{KernelDatapath, PinError, Purged, StartError, TakenOver, purge};
use doctor::host::Capabilities;
use std::fmt;
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
    pub fn start(choice: Choice, config: &Config, bpf_fs: &Path) -> Result<Self> {
        if choice == Choice::User {
            return Self::start_user(config, bpf_fs, "as --datapath says".to_owned());
        }
        let because =
            |why: &dyn fmt::Display| format!("this host cannot have the kernel datapath: {why}");
        // What is known beforehand need not be tried.
        if choice == Choice::Auto
            && let Err(why) = Capabilities::probe()?.kernel_datapath()
        {
            return Self::start_user(config, bpf_fs, because(&why));
        }
        match KernelDatapath::start_pinned(config.clone(), bpf_fs) {
            Ok(kernel) => {
                let why = match choice {
                    Choice::Auto => "this host can have it",
                    Choice::Kernel | Choice::User => "as --datapath says",
                };
                tracing::info!(why, "the kernel datapath forwards");
                Ok(Self { provider: Provider::Kernel(Arc::new(kernel)), why: why.to_owned() })
            }
            Err(StartError::Unsupported(why)) if choice == Choice::Auto => {
                Self::start_user(config, bpf_fs, because(&why))
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
        if let Err(error) = kernel.take_over(adopted) {
            tracing::warn!("something is left of the daemon before: {error}");
        }
        Ok(())
    }

    /// What became of what a daemon had left.
    pub fn taken_over(&self) -> Option<TakenOver> {
        match &self.provider {
            Provider::User(_) => None,
            Provider::Kernel(kernel) => kernel.taken_over(),
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
