//! The daemon of one host: a datapath, the switch that decides for it, and what both were made from. [`Daemon::answer`] is what
//! its control socket can be asked.

mod chosen;
mod deployed;
mod forwarding;
mod probe;
mod reload;
mod tables;
mod underlay;
mod watch;

use crate::Failure;
use crate::control::answers::{Reloaded, Stopping};
use crate::control::{Client, Request};
use anyhow::{Context, Result};
use datapath::Datapath;
use datapath_bpf::Unsupported;
use deployed::Deployed;
pub use deployed::Means;
pub use forwarding::Choice;
use forwarding::{Foreseen, Forwarding};
use netdev::epoll::Waker;
use probe::Probes;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use switch::Switch;

/// See the module.
pub struct Daemon {
    host: String,
    file: PathBuf,
    datapath: Arc<dyn Datapath>,
    forwarding: Forwarding,
    switch: Switch,
    probes: Arc<Probes>,
    in_use: Arc<RwLock<Arc<Deployed>>>,
    /// One reload at a time.
    reloading: Mutex<()>,
    end: Asked,
}

/// Somebody has asked by the control socket that the daemon ends.
struct Asked {
    how: OnceLock<End>,
    waker: Waker,
}

impl Asked {
    fn new() -> Result<Self> {
        Ok(Self { how: OnceLock::new(), waker: Waker::new()? })
    }
}

/// How a daemon ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Nothing is left of it.
    Whole,
    /// What is cached in the kernel goes on forwarding, for the next daemon to take over.
    Leaving,
}

/// A switch that can be started: everything that could be wrong with its network file has been looked at.
pub struct Ready {
    host: String,
    file: PathBuf,
    choice: Choice,
    foreseen: Foreseen,
    deployed: Deployed,
    program: pipeline::Program,
}

impl Ready {
    /// Reads and checks the network file for a switch with these means, and looks which datapath there can be; nothing is made yet.
    ///
    /// # Errors
    /// Bad input, missing rights, too few open files.
    pub fn load(host: &str, file: &Path, choice: Choice, means: Means) -> Result<Self, Failure> {
        let foreseen = Foreseen::of(choice)?;
        Self::load_foreseen(host.to_owned(), file.to_owned(), choice, foreseen, means)
    }

    fn load_foreseen(
        host: String,
        file: PathBuf,
        choice: Choice,
        foreseen: Foreseen,
        means: Means,
    ) -> Result<Self, Failure> {
        let means = Means { by_kernel: foreseen.by_kernel, ..means };
        let (deployed, program) = Deployed::load(&file, &host, means, Default::default())?;
        Ok(Self { host, file, choice, foreseen, deployed, program })
    }

    /// Starts it; in the kernel, what a daemon has left that was killed or stopped is taken over. Nothing is left behind when this
    /// fails. `bpf_fs` is the BPF file system; megaflows that no packet has used for `idle` are deleted.
    ///
    /// # Errors
    /// What the datapath says; bad input if the file has changed since, and is read once more for the other datapath.
    pub fn start(self, bpf_fs: &Path, idle: Duration) -> Result<Daemon, Failure> {
        let started = Forwarding::start(&self.foreseen, &self.deployed.config, bpf_fs);
        let (ready, forwarding) = match started {
            Ok(forwarding) => (self, forwarding),
            // Only trying shows everything that a kernel may refuse.
            Err(error) if self.choice == Choice::Auto && error.is::<Unsupported>() => {
                let foreseen = Foreseen::user(&error.root_cause().to_string());
                let Self { host, file, choice, deployed, .. } = self;
                let ready = Self::load_foreseen(host, file, choice, foreseen, deployed.means())?;
                let forwarding =
                    Forwarding::start(&ready.foreseen, &ready.deployed.config, bpf_fs)?;
                (ready, forwarding)
            }
            Err(error) => {
                let is_input = error.is::<Unsupported>();
                let error = error.context(format!("cannot run the switch of {}", self.host));
                return Err(if is_input { Failure::Input(error) } else { Failure::Work(error) });
            }
        };
        Ok(ready.run(forwarding, idle)?)
    }

    fn run(self, forwarding: Forwarding, idle: Duration) -> Result<Daemon> {
        let Self { host, file, deployed, program, .. } = self;
        let datapath = forwarding.datapath();
        let megaflows = deployed.config.megaflows;
        let limits = switch::Limits { megaflows, idle, ..Default::default() };
        let config = switch::Config { limits, ..Default::default() };
        let switch = Switch::start(Arc::clone(&datapath), program, &config)
            .context("start the threads of the switch")?;
        forwarding.take_over(&switch)?;
        let in_use = Arc::new(RwLock::new(Arc::new(deployed)));
        let (sender, receiver) = sync_channel(probe::QUEUE);
        switch.give_probes_to(sender);
        let probes = Probes::start(Arc::clone(&datapath), Arc::clone(&in_use), receiver)
            .context("start the thread that answers probes")?;
        let (reloading, end) = (Mutex::default(), Asked::new()?);
        Ok(Daemon { host, file, datapath, forwarding, switch, probes, in_use, reloading, end })
    }
}

impl Daemon {
    /// True when it does not forward any more.
    pub fn has_ended(&self) -> bool {
        self.forwarding.has_ended()
    }

    /// Readable when somebody has asked that it ends; see [`Daemon::asked_to_end`].
    pub fn end_waker(&self) -> &Waker {
        &self.end.waker
    }

    /// Whether somebody has asked that it ends, and how.
    pub fn asked_to_end(&self) -> Option<End> {
        self.end.how.get().copied()
    }

    /// Whether something goes on forwarding when the process ends without [`Daemon::stop`].
    pub fn can_leave(&self) -> bool {
        self.forwarding.pinned_at().is_some()
    }

    /// Ends what decides; what is cached in the kernel goes on when the process ends then and there.
    pub fn leave(&self) {
        self.switch.stop();
    }

    /// Ends it; devices that were made are gone when this returns.
    ///
    /// # Errors
    /// With which forwarding had ended before.
    pub fn stop(&self) -> Result<()> {
        self.switch.stop();
        self.forwarding.join()
    }

    /// Reads the file again that it was started with.
    ///
    /// # Errors
    /// Nothing has changed then, unless the error says so.
    pub fn reload(&self) -> Result<Reloaded, Failure> {
        self.reload_from(&self.file)
    }

    /// Answers a request.
    ///
    /// # Errors
    /// The client has hung up, or takes nothing.
    pub fn answer(&self, request: Request, client: &mut Client) -> io::Result<()> {
        match request {
            Request::Show => match self.datapath.snapshot() {
                Ok(snapshot) => client.ok(&snapshot),
                Err(error) => client.fail(&error.to_string()),
            },
            Request::Fdb => client.ok(&self.fdb()),
            Request::Forget { mac } => client.ok(&self.forget(mac)),
            Request::Tunnels => match self.tunnels() {
                Ok(tunnels) => client.ok(&tunnels),
                Err(error) => client.fail(&error.to_string()),
            },
            Request::Flows { port, min_packets } => {
                self.flows(port.as_deref(), min_packets, client)
            }
            Request::Program { datapath } => self.program(datapath.as_deref(), client),
            Request::Drops { port, reason } => {
                self.drops(port.as_deref(), reason.as_deref(), client)
            }
            Request::Capture { port, outer: false, snap_bytes } => {
                self.capture(&port, snap_bytes, client)
            }
            Request::Capture { port, outer: true, snap_bytes } => {
                self.capture_outer(&port, snap_bytes, client)
            }
            Request::Chosen => client.ok(&self.chosen()),
            Request::Path { host } => match self.probes.path(&host) {
                Ok(path) => client.ok(&path),
                Err(error) => client.refuse(&error),
            },
            Request::Stop { purge } => self.answer_stop(purge, client),
            Request::Reload { network } => match self.reload_from(&network) {
                Ok(reloaded) => client.ok(&reloaded),
                Err(Failure::Input(error)) => client.refuse(&crate::sentence(&error)),
                Err(Failure::Work(error)) => client.fail(&crate::sentence(&error)),
                Err(Failure::Unread | Failure::Found(_)) => Ok(()),
            },
        }
    }

    /// Says what becomes of what is cached, has the daemon end, and keeps the client until it has.
    fn answer_stop(&self, purge: bool, client: &mut Client) -> io::Result<()> {
        let pinned = self.forwarding.pinned_at().filter(|_| !purge).map(Path::to_owned);
        let megaflows = match (&pinned, self.datapath.snapshot()) {
            (Some(_), Ok(snapshot)) => snapshot.megaflows.megaflows,
            _ => 0,
        };
        let end = if pinned.is_some() { End::Leaving } else { End::Whole };
        client.ok(&Stopping { host: self.host.clone(), pinned, megaflows })?;
        client.flush()?;
        // The first who asks decides.
        let _ = self.end.how.set(end);
        self.end.waker.wake();
        while !client.has_hung_up() {
            std::thread::sleep(watch::LOOK);
        }
        Ok(())
    }

    /// What it is made from at this moment.
    fn in_use(&self) -> Arc<Deployed> {
        Arc::clone(&self.in_use.read().unwrap_or_else(PoisonError::into_inner))
    }
}
