//! [`Forwarding`]: the datapath of a daemon, the kernel's or the user's.

use anyhow::{Context, Result};
use datapath::Datapath;
use datapath::user::{Config, UserDatapath};
use datapath_bpf::{KernelDatapath, StartError};
use doctor::host::Capabilities;
use std::fmt;
use std::sync::Arc;

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
    /// Starts it. Nothing is left behind when this fails.
    pub fn start(choice: Choice, config: &Config) -> Result<Self> {
        if choice == Choice::User {
            return Self::start_user(config, "as --datapath says".to_owned());
        }
        let because =
            |why: &dyn fmt::Display| format!("this host cannot have the kernel datapath: {why}");
        // What is known beforehand need not be tried.
        if choice == Choice::Auto
            && let Err(why) = Capabilities::probe()?.kernel_datapath()
        {
            return Self::start_user(config, because(&why));
        }
        match KernelDatapath::start(config.clone()) {
            Ok(kernel) => {
                let why = match choice {
                    Choice::Auto => "this host can have it",
                    Choice::Kernel | Choice::User => "as --datapath says",
                };
                tracing::info!(why, "the kernel datapath forwards");
                Ok(Self { provider: Provider::Kernel(Arc::new(kernel)), why: why.to_owned() })
            }
            Err(StartError::Unsupported(why)) if choice == Choice::Auto => {
                Self::start_user(config, because(&why))
            }
            Err(StartError::Unsupported(why)) => {
                Err(why).context("this host cannot have the kernel datapath")
            }
            Err(error) => Err(error).context("start the kernel datapath"),
        }
    }

    fn start_user(config: &Config, why: String) -> Result<Self> {
        let user = UserDatapath::start(config.clone())?;
        tracing::info!(why, "the user datapath forwards");
        Ok(Self { provider: Provider::User(Arc::new(user)), why })
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
