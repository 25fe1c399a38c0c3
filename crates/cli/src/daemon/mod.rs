//! The daemon of one host: a datapath, the switch that fills its cache, and the configuration of
//! both. [`Daemon::handle_request`] serves the requests of the control socket.

mod attach;
pub mod attached;
mod black_holes;
mod bridge_flows;
mod capture_outer;
mod connections;
mod decisions;
mod deployment;
mod health;
mod metrics;
mod network_file;
mod ovn;
pub mod preview;
mod probe;
mod provider;
mod queries;
mod reload;
mod sandbox;
pub mod saved;
mod tools;
mod watch;

use crate::control::replies::{ReloadReply, StopReply};
use crate::control::{Connection, Request};
use crate::metrics::PortDrops;
use crate::{Failure, logging};
use anyhow::{Context, Result, bail};
use attach::AttachRequest;
use bridge_flows::ExpiryTimer;
use datapath::stats::Snapshot;
use datapath::{Datapath, DatapathError};
use datapath_bpf::Unsupported;
use deployment::{Deployment, Previous};
pub use deployment::{ForwardingOptions, no_such_host};
use health::Health;
use netdev::epoll::Waker;
use netdev::sandbox::FileLimit;
pub use network_file::FileReads;
use ovn::OvnStatus;
pub use ovn::{JoinedHost, OvnFollower, machine_name};
use probe::Probes;
pub use provider::DatapathArg;
use provider::{ActiveProvider, DatapathChoice, PreparedProvider};
use reload::Reloads;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use switch::Switch;

/// A running daemon.
pub struct Daemon {
    host: String,
    /// The network file; `None` if OVN is the control plane.
    file: Option<PathBuf>,
    datapath: Arc<dyn Datapath>,
    provider: ActiveProvider,
    switch: Switch,
    probes: Arc<Probes>,
    health: Health,
    /// Wakes the thread that follows OVN, if there is one.
    ovn_waker: OnceLock<ovsdb::io::Waker>,
    deployment: Arc<RwLock<Arc<Deployment>>>,
    reads: FileReads,
    reloads: Reloads,
    /// The timer for the timeouts of flows of bridges.
    expiry: Arc<ExpiryTimer>,
    /// Drops of all ports, for metrics.
    port_drops: Mutex<PortDrops>,
    shutdown: ShutdownRequest,
    /// The state that the thread that follows OVN reports.
    ovn: Arc<Mutex<OvnStatus>>,
    /// Whether Landlock restricts which files the daemon can change.
    file_limit: FileLimit,
    /// The file of saved connections.
    saved: PathBuf,
    /// The directory of attached devices.
    attached_folder: PathBuf,
}

/// A client's request that the daemon stops.
struct ShutdownRequest {
    mode: OnceLock<Shutdown>,
    waker: Waker,
}

impl ShutdownRequest {
    fn new() -> Result<Self> {
        Ok(Self { mode: OnceLock::new(), waker: Waker::new()? })
    }
}

/// How a daemon stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// Stops forwarding and removes all devices, programs and pins.
    Full,
    /// The pinned kernel programs keep forwarding cached flows until the next daemon adopts them.
    Detach,
}

/// A daemon whose configuration has been read and checked, but that has not opened or created
/// anything yet.
pub struct PreparedDaemon {
    host: String,
    source: NetworkSource,
    requested: DatapathArg,
    choice: DatapathChoice,
    deployment: Deployment,
    program: pipeline::Program,
}

/// The files of the sockets, which the daemon removes when it stops.
pub struct SocketPaths<'a> {
    pub control: &'a Path,
    /// The other sockets.
    pub others: Vec<&'a Path>,
    /// The directory of the management sockets of bridges, which are created and removed at run
    /// time.
    pub bridges: Option<&'a Path>,
}

/// Where the network comes from.
enum NetworkSource {
    File(PathBuf),
    Ovn(Box<JoinedHost>),
}

impl NetworkSource {
    /// Reads the network, and compiles it for this host.
    fn load(
        &mut self,
        host: &str,
        options: ForwardingOptions,
        control: &Path,
    ) -> Result<(Deployment, pipeline::Program), Failure> {
        match self {
            Self::File(file) => {
                let reads = FileReads::new();
                let network = reads.load(file)?;
                let flows = reads.load_flows(&network, file, host)?;
                let attached = attached::load(&attached::folder(control))?;
                let previous = Previous { attached, ..Previous::default() };
                Deployment::new((network, &flows), file, host, options, previous)
            }
            Self::Ovn(joined) => joined.deployment(options),
        }
    }
}

impl PreparedDaemon {
    /// Chooses the datapath, then reads and checks the network file. Changes nothing on the host.
    /// The list of attached devices is read from the directory next to the socket `control`.
    ///
    /// # Errors
    /// The network file is invalid, privileges are missing, or the limit on open files is too low.
    pub fn load(
        host: &str,
        file: &Path,
        requested: DatapathArg,
        options: ForwardingOptions,
        control: &Path,
    ) -> Result<Self, Failure> {
        let choice = DatapathChoice::new(requested)?;
        let source = NetworkSource::File(file.to_owned());
        Self::load_for(host.to_owned(), source, (requested, choice), options, control)
    }

    /// Chooses the datapath, and takes the network of a host that has joined OVN. Changes nothing
    /// on the host.
    ///
    /// # Errors
    /// Privileges are missing, or the limit on open files is too low.
    pub fn of_ovn(
        joined: JoinedHost,
        requested: DatapathArg,
        options: ForwardingOptions,
        control: &Path,
    ) -> Result<Self, Failure> {
        let choice = DatapathChoice::new(requested)?;
        let host = joined.name().to_owned();
        let source = NetworkSource::Ovn(Box::new(joined));
        Self::load_for(host, source, (requested, choice), options, control)
    }

    fn load_for(
        host: String,
        mut source: NetworkSource,
        (requested, choice): (DatapathArg, DatapathChoice),
        options: ForwardingOptions,
        control: &Path,
    ) -> Result<Self, Failure> {
        let options = ForwardingOptions { use_kernel: choice.use_kernel(), ..options };
        let (deployment, program) = source.load(&host, options, control)?;
        sandbox::require_at_start(&deployment.config, choice.use_kernel())
            .map_err(Failure::Input)?;
        Ok(Self { host, source, requested, choice, deployment, program })
    }

    /// Starts the daemon. Its sockets must be open already. The kernel datapath adopts the
    /// megaflows that a killed or stopped daemon left pinned under `bpf_fs`. Megaflows that no
    /// packet has used for `idle` are deleted. A failed start leaves nothing behind.
    ///
    /// The process permanently drops the privileges that the running switch does not need. The
    /// caller must not have started threads yet, except threads that drop their own privileges.
    ///
    /// # Errors
    /// The error of the datapath. After a fallback to the user datapath the network file is read
    /// again, so it may also be the error of a file that has changed since.
    pub fn start(
        self,
        bpf_fs: &Path,
        SocketPaths { control, mut others, bridges }: SocketPaths<'_>,
        idle: Duration,
    ) -> Result<RunningDaemon, Failure> {
        let host = self.host.clone();
        let cannot_run = |error: anyhow::Error| {
            let is_input = error.is::<Unsupported>();
            let error = error.context(format!("cannot run the switch of {host}"));
            if is_input { Failure::Input(error) } else { Failure::Runtime(error) }
        };
        let loaded = PreparedProvider::new(&self.choice, &self.deployment.config, bpf_fs);
        let (mut prepared, provider) = match loaded {
            Ok(provider) => (self, provider),
            // The probe of the kernel cannot find every reason for which loading the programs
            // fails.
            Err(error) if self.requested == DatapathArg::Auto && error.is::<Unsupported>() => {
                let choice = DatapathChoice::fall_back_to_user(&error.root_cause().to_string());
                let Self { host, source, requested, deployment, .. } = self;
                let choice = (requested, choice);
                let options = deployment.options();
                let prepared = Self::load_for(host, source, choice, options, control)?;
                let config = &prepared.deployment.config;
                let provider = PreparedProvider::new(&prepared.choice, config, bpf_fs)?;
                (prepared, provider)
            }
            Err(error) => return Err(cannot_run(error)),
        };
        let config = &prepared.deployment.config;
        let saved = saved::path(control);
        let restored = saved::restore(&saved, config, &mut prepared.program);
        let attached = attached::folder(control);
        attached::prepare(&attached)?;
        others.push(control);
        let file_limit = sandbox::enter(config, &provider, (&others, bridges), &attached)?;
        let provider = provider.start().map_err(cannot_run)?;
        if let Some(tracker) = provider.datapath().tracker() {
            tracker.restore(restored);
        }
        Ok(prepared.run(provider, (file_limit, saved, attached), idle)?)
    }

    fn run(
        self,
        provider: ActiveProvider,
        (file_limit, saved, attached_folder): (FileLimit, PathBuf, PathBuf),
        idle: Duration,
    ) -> Result<RunningDaemon> {
        let Self { host, source, deployment, program, .. } = self;
        let datapath = provider.datapath();
        let megaflows = deployment.config.megaflows;
        let limits = switch::Limits { megaflows, idle, ..Default::default() };
        let config = switch::Config { limits, ..Default::default() };
        let switch = Switch::start(Arc::clone(&datapath), program, &config)
            .context("cannot start the threads of the switch")?;
        provider.adopt(&switch)?;
        let deployment = Arc::new(RwLock::new(Arc::new(deployment)));
        let (sender, receiver) = sync_channel(probe::QUEUE);
        switch.set_probe_receiver(sender);
        let probes = Probes::start(Arc::clone(&datapath), Arc::clone(&deployment), receiver)
            .context("cannot start the thread for path probes")?;
        black_holes::start(&probes).context("cannot start the thread for path MTUs")?;
        let (sender, copies) = health::channel();
        switch.set_controller(sender);
        let (reloads, shutdown) = (Reloads::default(), ShutdownRequest::new()?);
        let (file, joined) = match source {
            NetworkSource::File(file) => (Some(file), None),
            NetworkSource::Ovn(joined) => (None, Some(joined)),
        };
        let daemon = Arc::new(Daemon {
            host,
            file,
            datapath,
            provider,
            switch,
            probes,
            health: Health::new(),
            ovn_waker: OnceLock::new(),
            deployment,
            reads: FileReads::new(),
            reloads,
            expiry: Arc::default(),
            port_drops: Mutex::default(),
            shutdown,
            ovn: Arc::default(),
            file_limit,
            saved,
            attached_folder,
        });
        bridge_flows::start_expiry(&daemon)
            .context("cannot start the thread that removes expired flows")?;
        health::start(&daemon, copies).context("cannot start the thread for health checks")?;
        let ovn = joined.map(|joined| joined.follow(&daemon)).transpose();
        let ovn = ovn.context("cannot start the thread that follows OVN")?;
        Ok(RunningDaemon { daemon, ovn })
    }
}

/// A daemon, and the thread that follows OVN if OVN is the control plane.
pub struct RunningDaemon {
    pub daemon: Arc<Daemon>,
    pub ovn: Option<OvnFollower>,
}

impl Daemon {
    /// True once forwarding has stopped.
    pub fn has_ended(&self) -> bool {
        self.provider.has_ended()
    }

    /// Checks that no turn of the switch's threads has lasted longer than `limit`, and that each
    /// forwarding thread replies. Blocks if a thread holds a lock for ever.
    ///
    /// # Errors
    /// A thread of the switch is busy, or the datapath does not reply.
    pub fn check_threads(&self, limit: Duration) -> Result<()> {
        let turn = self.switch.longest_turn();
        if turn > limit {
            bail!("a thread of the switch has been busy for {} s", turn.as_secs());
        }
        self.datapath.snapshot().context("the datapath does not answer")?;
        Ok(())
    }

    /// Becomes readable when a client requests shutdown.
    pub fn shutdown_waker(&self) -> &Waker {
        &self.shutdown.waker
    }

    /// The shutdown that a client has requested, if any.
    pub fn requested_shutdown(&self) -> Option<Shutdown> {
        self.shutdown.mode.get().copied()
    }

    /// True when pinned programs would keep forwarding after [`Daemon::detach`].
    pub fn can_detach(&self) -> bool {
        self.provider.pinned_at().is_some()
    }

    /// True when the pinned programs are known to outlive the process.
    pub fn pins_last(&self) -> bool {
        self.provider.pins_last()
    }

    /// Stops the switch but leaves the pinned programs attached. The caller must exit the process
    /// without dropping the daemon.
    pub fn detach(&self) {
        self.reloads.close();
        self.switch.stop();
    }

    /// Stops the switch and the datapath. The devices that they created are removed on return.
    ///
    /// # Errors
    /// The error with which forwarding had stopped before this call.
    pub fn stop(&self) -> Result<()> {
        self.reloads.close();
        self.switch.stop();
        self.provider.join()
    }

    /// Removes the saved connections, so that the next daemon begins without any.
    pub fn forget_connections(&self) {
        saved::remove(&self.saved);
    }

    /// Reads the network file that the daemon was started with again, and applies its changes.
    ///
    /// # Errors
    /// Nothing has changed, unless the error says so.
    pub fn reload(&self) -> Result<ReloadReply, Failure> {
        self.reload_from(self.file.as_deref().unwrap_or(Path::new("")))
    }

    /// Answers one request of a client.
    ///
    /// # Errors
    /// The client has closed the connection or does not read.
    pub fn handle_request(&self, request: Request, client: &mut Connection) -> io::Result<()> {
        match request {
            Request::Show => match self.snapshot() {
                Ok(snapshot) => client.ok(&snapshot),
                Err(error) => client.fail(&error.to_string()),
            },
            Request::Fdb => client.ok(&self.fdb()),
            Request::Forget { mac } => client.ok(&self.forget(mac)),
            Request::Tunnels => match self.datapath.snapshot() {
                Ok(mut now) => client.ok(&self.tunnels(&mut now)),
                Err(error) => client.fail(&error.to_string()),
            },
            Request::Flows { port, min_packets } => {
                self.flows(port.as_deref(), min_packets, client)
            }
            Request::Connections { filter } => self.connections(&filter, client),
            Request::ConnectionUse => self.connection_use(client),
            Request::FlushConnections { filter } => self.flush_connections(&filter, client),
            Request::Program { datapath } => self.program(datapath.as_deref(), client),
            Request::BridgeFlows { bridge, selector, statistics } => {
                self.bridge_flows(&bridge, (&selector, statistics), client)
            }
            Request::BridgePorts { bridge, port } => {
                self.bridge_ports(&bridge, port.as_deref(), client)
            }
            Request::ChangeFlows { bridge, change, text, source } => {
                answer(self.change_flows(&bridge, change, &text, &source), client)
            }
            Request::PacketOut { bridge, text } => answer(self.packet_out(&bridge, &text), client),
            Request::Drops { port, reason } => {
                self.drops(port.as_deref(), reason.as_deref(), client)
            }
            Request::Capture { port, outer: false, snap_bytes } => {
                self.capture(&port, snap_bytes, client)
            }
            Request::Capture { port, outer: true, snap_bytes } => {
                self.capture_outer(&port, snap_bytes, client)
            }
            Request::Decisions => client.ok(&self.decisions()),
            Request::Topology => client.ok(&self.topology()),
            Request::Path { host } => match self.probes.path(&host) {
                Ok(path) => client.ok(&path),
                Err(error) => client.reject(&error),
            },
            Request::Pools => client.ok(&self.pools()),
            Request::AddPort { at, device, owner, addresses } => {
                let request = AttachRequest {
                    at: &at,
                    device: &device,
                    owner: &owner,
                    addresses: &addresses,
                };
                answer(self.add_port(&request), client)
            }
            Request::DeletePort { port, owner } => {
                answer(self.delete_ports(port.as_deref(), owner.as_deref()), client)
            }
            Request::Stop { purge } => self.handle_stop(purge, client),
            Request::Reload { network } => answer(self.reload_from(&network), client),
        }
    }

    /// Replies what keeps forwarding, requests the shutdown, and holds the connection open until
    /// the process exits. The closed connection tells the client that the daemon has stopped.
    fn handle_stop(&self, purge: bool, client: &mut Connection) -> io::Result<()> {
        let pinned = self.provider.pinned_at().filter(|_| !purge).map(Path::to_owned);
        let megaflows = match (&pinned, self.datapath.snapshot()) {
            (Some(_), Ok(snapshot)) => snapshot.megaflows.megaflows,
            _ => 0,
        };
        let mode = if purge { Shutdown::Full } else { Shutdown::Detach };
        let lasting = pinned.is_some() && self.pins_last();
        client.ok(&StopReply { host: self.host.clone(), pinned, lasting, megaflows })?;
        client.flush()?;
        self.request_shutdown(mode);
        while !client.is_closed() {
            std::thread::sleep(watch::CLOSE_CHECK_INTERVAL);
        }
        Ok(())
    }

    /// All counters of the datapath, with the names of ports and the counters of the daemon itself.
    fn snapshot(&self) -> Result<Snapshot, DatapathError> {
        let mut snapshot = self.datapath.snapshot()?;
        snapshot.log.not_written = logging::not_written();
        snapshot.log.limited = logging::limited();
        snapshot.health = self.health.stats();
        snapshot.privileges = sandbox::stats(self.file_limit);
        self.deployment().name_ports(&mut snapshot);
        Ok(snapshot)
    }

    /// The current configuration; a reload replaces it.
    fn deployment(&self) -> Arc<Deployment> {
        Arc::clone(&self.deployment.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Sends the result of a change.
fn answer<T: Serialize>(result: Result<T, Failure>, client: &mut Connection) -> io::Result<()> {
    match result {
        Ok(reply) => client.ok(&reply),
        Err(Failure::Input(error)) => client.reject(&crate::one_line(&error)),
        Err(Failure::Runtime(error)) => client.fail(&crate::one_line(&error)),
        Err(Failure::OutputClosed | Failure::Findings(_)) => Ok(()),
    }
}
