//! OVN as the control plane: joins the deployment that the local database names, and follows the
//! southbound database while the switch runs.
//!
//! The switch starts when the whole southbound database has been read, so that a restarted daemon
//! can adopt the megaflows of the previous daemon. Then one thread serves both connections. When a
//! connection is lost, the switch keeps its present configuration.

mod announcements;
mod database;
mod links;
mod status;

use super::Daemon;
use super::deployment::{Deployment, ForwardingOptions};
use super::health::{CheckKey, PlannedCheck};
use crate::Failure;
use crate::control::openflow::{ManagementSockets, ProgramSource};
use crate::control::ovs::run_folder;
use announcements::Announcements;
use anyhow::{Context, Result, anyhow};
use chassis::{
    DeviceFacts, Host, Installation, PortCounters, ServiceCheck, Settings, TlsPaths, UnixMs,
    UnsetHost, of_host, of_southbound,
};
use database::Database;
use datapath::config::PortConfig;
use links::LinkWatch;
use netdev::Netlink;
use openflow::BridgeKind;
use ovsdb::io::{TlsFiles, Waker, wait_any};
use ovsdb::{Config, Remote};
use pipeline::{CtZones, Program};
use status::MAX_NAMED;
pub use status::{OvnStatus, Progress};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The pause before a failed transaction or installation is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long the settings of this host may be missing before a warning is logged.
const SETTINGS_PATIENCE: Duration = Duration::from_secs(30);
/// How long another process may hold the lock of the local database before a warning is logged.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// How long a stopping daemon waits for the southbound database to remove this host.
const LEAVE: Duration = Duration::from_secs(5);
/// How often the state of devices is read for the local database.
const DEVICES_INTERVAL: Duration = Duration::from_secs(5);
/// The lock that ovs-vswitchd holds in the local database. Its holder serves the bridges.
const LOCK: &str = "ovs_vswitchd";

/// A host that has read both databases, before its switch starts.
pub struct JoinedHost {
    local: Database,
    southbound: Database,
    host: Host,
    uplink: String,
    /// The directory of the management sockets of bridges.
    run_folder: PathBuf,
    /// The configuration that the switch starts with.
    first: Option<Installation>,
}

/// The name of this machine.
pub fn machine_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

impl JoinedHost {
    /// Reads the local database at `remote`, then the southbound database that it names. Waits for
    /// both without a time limit.
    ///
    /// # Errors
    /// No device has the address of this host in the underlay.
    pub fn join(remote: &Remote) -> Result<Self, Failure> {
        let mut config = Config::new("Open_vSwitch", [remote.clone()]);
        config.tables = of_host();
        config.lock = Some(LOCK.to_owned());
        let mut local = Database::new("local", config, None)?;
        let run_folder = run_folder(remote);
        let settings = wait_for_settings(&mut local, &run_folder);
        let (uplink, mtu) = uplink_of(settings.encap_ip).map_err(Failure::Input)?;
        let mut southbound = open_southbound(&settings)?;
        let mut host = Host::new(settings, &uplink, mtu);
        if let Some(names) = links::names(&Netlink::open().context("cannot read devices")?) {
            host.set_devices(names, Instant::now());
        }
        host.handle_local(local.replica(), southbound.replica(), Instant::now());
        host.request_rows(southbound.client.session_mut());
        let mut is_updated = false;
        while !is_updated || !host.is_settled() {
            wait_any(&mut [&mut local.client, &mut southbound.client], None);
            if local.receive().is_updated {
                host.handle_local(local.replica(), southbound.replica(), Instant::now());
            }
            is_updated |= southbound.pass_to(&mut host, Instant::now());
        }
        Ok(Self { local, southbound, host, uplink, run_folder, first: None })
    }

    /// The name of this host.
    pub fn name(&self) -> &str {
        &self.host.settings().hostname
    }

    /// The configuration and the program that the switch starts with.
    pub(super) fn deployment(
        &mut self,
        options: ForwardingOptions,
    ) -> Result<(Deployment, Program), Failure> {
        let first = match self.first.take() {
            Some(first) => first,
            None => self
                .host
                .installation(self.southbound.replica(), Instant::now())
                .context("nothing to install")?,
        };
        let settings = self.host.settings();
        let deployment = Deployment::of_chassis(&first, settings, &self.uplink, options)?;
        let mut program = first.program.clone();
        program.allocate_zones(&CtZones::default());
        self.first = Some(first);
        Ok((deployment, program))
    }

    /// Starts the thread that follows OVN from now on.
    pub(super) fn follow(self, daemon: &Arc<Daemon>) -> io::Result<OvnFollower> {
        let stop = Arc::new(AtomicU8::new(RUN));
        let source = Arc::clone(daemon);
        let program: ProgramSource = Arc::new(move || source.switch.program());
        let bridges = ManagementSockets::new(&self.run_folder, program);
        let wakers = [&self.local, &self.southbound].map(|database| database.client.waker());
        let self_waker = self.southbound.client.waker();
        let follower = Follower {
            joined: self,
            bridges,
            daemon: Arc::clone(daemon),
            stop: Arc::clone(&stop),
            install_at: None,
            netlink: Netlink::open().map_err(io::Error::other)?,
            links: LinkWatch::start(self_waker).map_err(io::Error::other)?,
            devices: BTreeMap::new(),
            devices_due: Instant::now(),
            ports: Vec::new(),
            last_error: String::new(),
            lock_due: Some(Instant::now() + LOCK_PATIENCE),
            refused_settings: None,
            announcements: Announcements::default(),
            status: Arc::clone(&daemon.ovn),
            progress: Progress::default(),
        };
        let waker = follower.joined.southbound.client.waker();
        // Fails only if it is set already. A daemon starts this thread once.
        let _ = daemon.ovn_waker.set(waker.clone());
        daemon.switch.record_learn_events(move || waker.wake());
        let thread = std::thread::Builder::new().name("ovn".to_owned());
        let thread = thread.spawn(move || follower.run())?;
        Ok(OvnFollower { thread, stop, wakers })
    }
}

/// Waits until the local database has all settings of this host. Until then, reports to waiting
/// tools such as ovs-vsctl that the bridges are configured, so that they do not block.
fn wait_for_settings(local: &mut Database, run_folder: &Path) -> Settings {
    let hostname = machine_name();
    let mut reported = None;
    let mut warn_at = Some(Instant::now() + SETTINGS_PATIENCE);
    let mut unset = UnsetHost::default();
    // The threads of the sockets end with this function, before the process drops its privileges.
    let mut sockets = ManagementSockets::new(run_folder, Arc::new(Program::default));
    loop {
        if local.receive().is_updated {
            match Settings::read(local.replica(), &hostname) {
                Ok(settings) => return settings,
                Err(error) if reported.as_ref() == Some(&error) => {}
                Err(error) => {
                    messages::log!(
                        OVN_SETTINGS_AWAITED,
                        "waiting for the settings of this host: {error}"
                    );
                    reported = Some(error);
                }
            }
        }
        let now = Instant::now();
        if let Some(error) = reported.as_ref().filter(|_| warn_at.is_some_and(|at| at <= now)) {
            messages::log!(
                OVN_SETTINGS_MISSING,
                "still waiting for the settings of this host: {error}"
            );
            warn_at = None;
        }
        if local.client.session().has_lock() && local.may_transact() {
            let transaction = unset.local_transaction(local.replica(), now);
            sockets.follow(&bridges(unset.integration_bridge(), unset.provider_bridges()));
            local.transact(transaction);
        }
        let later = warn_at.into_iter().chain(local.retry_at).filter(|at| *at > now).min();
        wait_any(&mut [&mut local.client], later);
    }
}

/// The bridges of this host, with their kinds.
fn bridges<'a>(
    integration: Option<&'a str>,
    providers: impl Iterator<Item = &'a str>,
) -> BTreeMap<String, BridgeKind> {
    let providers = providers.map(|name| (name.to_owned(), BridgeKind::Provider));
    let integration = integration.map(|name| (name.to_owned(), BridgeKind::Integration));
    providers.chain(integration).collect()
}

fn open_southbound(settings: &Settings) -> Result<Database> {
    let mut config = Config::new("OVN_Southbound", settings.remotes.clone());
    config.tables = of_southbound(settings);
    config.times.probe_interval = settings.probe_interval;
    let tls = settings.tls.clone().map(|TlsPaths { private_key, certificate, ca_certificate }| {
        TlsFiles { private_key, certificate, ca_certificate, server_name: None }
    });
    let remotes: Vec<_> = settings.remotes.iter().map(Remote::to_string).collect();
    messages::log!(OVN_READING, "reading the southbound database at {}", remotes.join(", "));
    Database::new("southbound", config, tls)
}

/// The device that has this address, and its MTU in bytes.
fn uplink_of(address: IpAddr) -> Result<(String, u16)> {
    let netlink = Netlink::open()?;
    let addresses = netlink.addresses(None)?;
    let found = addresses.iter().find(|known| known.prefix.addr() == address);
    let found = found.ok_or_else(|| {
        anyhow!(
            "no device has the address {address}: correct external_ids:ovn-encap-ip of \
             Open_vSwitch, or add the address to the uplink"
        )
    })?;
    let link = netlink.link_by_index(found.index)?;
    Ok((link.name, u16::try_from(link.mtu).unwrap_or(u16::MAX)))
}

const RUN: u8 = 0;
const STOP: u8 = 1;
const LEAVE_AND_STOP: u8 = 2;

/// The handle of the thread that follows OVN.
pub struct OvnFollower {
    thread: JoinHandle<()>,
    stop: Arc<AtomicU8>,
    wakers: [Waker; 2],
}

impl OvnFollower {
    /// Stops the thread. With `must_leave`, this host first leaves the deployment: it releases its
    /// ports and deletes its rows. That is given up after five seconds.
    pub fn stop(self, must_leave: bool) {
        self.stop.store(if must_leave { LEAVE_AND_STOP } else { STOP }, Ordering::Release);
        self.wakers.iter().for_each(Waker::wake);
        if self.thread.join().is_err() {
            messages::log!(OVN_THREAD_PANICKED, "the thread that follows OVN has panicked");
        }
    }
}

struct Follower {
    joined: JoinedHost,
    bridges: ManagementSockets,
    daemon: Arc<Daemon>,
    stop: Arc<AtomicU8>,
    /// When to retry a failed installation.
    install_at: Option<Instant>,
    netlink: Netlink,
    links: LinkWatch,
    /// The devices of this host, by name, and when to read them again.
    devices: BTreeMap<Arc<str>, DeviceFacts>,
    devices_due: Instant,
    /// The ports that were installed last.
    ports: Vec<PortConfig>,
    /// The last error of an installation, which is logged once.
    last_error: String,
    /// When to warn that another process has the lock of the local database.
    lock_due: Option<Instant>,
    /// Settings that need a restart.
    refused_settings: Option<Settings>,
    announcements: Announcements,
    status: Arc<Mutex<OvnStatus>>,
    progress: Progress,
}

impl Follower {
    fn run(mut self) {
        if let Some(first) = self.joined.first.take() {
            self.learn(&first);
            self.open_bridges();
            self.joined.host.installed(first);
        }
        while self.stop.load(Ordering::Acquire) == RUN {
            let again = self.act();
            self.report();
            let JoinedHost { local, southbound, .. } = &mut self.joined;
            wait_any(&mut [&mut local.client, &mut southbound.client], again);
            self.receive();
        }
        if self.stop.load(Ordering::Acquire) == LEAVE_AND_STOP {
            self.leave();
        }
    }

    fn receive(&mut self) {
        let now = Instant::now();
        if self.joined.local.receive().is_updated {
            self.follow_settings(now);
            let JoinedHost { local, southbound, host, .. } = &mut self.joined;
            host.handle_local(local.replica(), southbound.replica(), now);
            if host.lacks_devices() {
                // The missing devices may be newer than the last list of devices.
                self.follow_devices(now);
            }
        }
        if self.links.take_change() {
            self.follow_devices(now);
        }
        let JoinedHost { southbound, host, .. } = &mut self.joined;
        let held = host.holds_network();
        if southbound.pass_to(host, now) {
            self.progress.pending_since.get_or_insert(now);
        }
        if host.holds_network() && !held {
            messages::log!(
                OVN_NETWORK_HELD,
                "the southbound database has come back without any network: the switch goes on \
                 with the one that it has for up to five minutes"
            );
        }
        for warning in host.take_warnings() {
            messages::log!(OVN_WARNING, "{warning}");
        }
        // Reported before the installation, which may take long.
        self.lock_status().progress = self.progress;
    }

    /// Reads the names of all devices again after devices were added or removed.
    fn follow_devices(&mut self, now: Instant) {
        let JoinedHost { local, southbound, host, .. } = &mut self.joined;
        // If the kernel does not reply, the last state stays.
        let Some(names) = links::names(&self.netlink) else { return };
        if host.set_devices(names, now) {
            host.handle_local(local.replica(), southbound.replica(), now);
            self.devices_due = now;
        }
    }

    /// Applies changed settings of the local database, if they can be applied at run time.
    fn follow_settings(&mut self, now: Instant) {
        let JoinedHost { local, southbound, host, .. } = &mut self.joined;
        // If the settings are incomplete, the last ones stay.
        let Ok(new) = Settings::read(local.replica(), &machine_name()) else { return };
        if new == *host.settings() || self.refused_settings.as_ref() == Some(&new) {
            return;
        }
        let remotes = new.remotes.clone();
        if host.change_settings(new.clone(), southbound.replica(), now) {
            southbound.client.session_mut().set_remotes(now, remotes);
        } else {
            messages::log!(
                OVN_SETTINGS_CHANGED,
                "system-id, ovn-encap-type, ovn-encap-ip or ovn-bridge of Open_vSwitch has \
                 changed: restart weft run, which goes on with the old ones"
            );
            self.refused_settings = Some(new);
        }
    }

    /// Installs changes, sends announcements, and writes to both databases. Returns the latest time
    /// for the next call.
    fn act(&mut self) -> Option<Instant> {
        self.install();
        self.follow_health();
        let announce_at = self.announce();
        let health = self.daemon.health.rows();
        self.read_devices();
        let (now, unix_ms) = (Instant::now(), unix_ms());
        let JoinedHost { local, southbound, host, .. } = &mut self.joined;
        host.handle_learn_events(self.daemon.switch.take_learn_events(), now);
        let mut again = [self.install_at, local.retry_at, southbound.retry_at, host.deadline()]
            .into_iter()
            .flatten()
            .filter(|at| *at > now)
            .chain(announce_at)
            .min();
        if southbound.may_transact() {
            let (transaction, later) =
                host.southbound_transaction(southbound.replica(), (now, unix_ms), &health);
            again = again.into_iter().chain(later).min();
            southbound.transact(transaction);
        }
        if local.client.session().has_lock() {
            self.lock_due = None;
            if local.may_transact() {
                let (replica, devices) = (local.replica(), &self.devices);
                let transaction =
                    host.local_transaction(replica, southbound.replica(), devices, unix_ms);
                local.transact(transaction);
            }
        } else if self.lock_due.is_some_and(|due| due <= now) {
            self.lock_due = None;
            messages::log!(
                OVN_LOCK_TAKEN,
                "another process, such as ovs-vswitchd, has the lock {LOCK} of the local \
                 database: stop it, or ovs-vsctl does not learn what weft does"
            );
        }
        again.into_iter().chain(self.lock_due).chain([self.devices_due]).min()
    }

    /// Starts the health checks that the southbound database requests, and ends all others.
    fn follow_health(&self) {
        // Without a datapath, no answer can arrive.
        if self.daemon.provider.is_none() {
            return;
        }
        let JoinedHost { southbound, host, .. } = &self.joined;
        let checks = host.service_checks(southbound.replica()).into_iter().map(|it| {
            let ServiceCheck { row, port, entry: (number, tunnel), check } = it;
            let entry = (number, Some(tunnel));
            let planned = PlannedCheck { balancer: String::new(), port, entry, check };
            (CheckKey::Row(row), planned)
        });
        self.daemon.health.set(checks.collect());
    }

    /// Reads the state of all devices when it is due.
    fn read_devices(&mut self) {
        if self.devices_due > Instant::now() {
            return;
        }
        self.devices_due = Instant::now() + DEVICES_INTERVAL;
        // If the kernel does not reply, the last state stays.
        let Ok(links) = self.netlink.links() else { return };
        let facts = links.into_iter().map(|link| {
            let facts = DeviceFacts {
                mac: Some(link.mac.to_string().into()),
                ifindex: Some(link.index.0.into()),
                mtu: Some(link.mtu.into()),
                is_up: Some(link.up),
                has_carrier: Some(link.carrier && link.up),
                counters: None,
            };
            (link.name.into(), facts)
        });
        self.devices = facts.collect();
        let JoinedHost { local, southbound, host, .. } = &mut self.joined;
        let now = Instant::now();
        if host.set_devices(self.devices.keys().cloned().collect(), now) {
            host.handle_local(local.replica(), southbound.replica(), now);
        }
        self.read_counters();
    }

    /// Adds the counters of ports to the devices. A port has the name of its interface.
    fn read_counters(&mut self) {
        // If the datapath does not reply, the rows have no statistics until the next call.
        let Ok(snapshot) = self.daemon.datapath.snapshot() else { return };
        for port in snapshot.ports {
            let counters = PortCounters {
                rx: (port.rx.packets, port.rx.bytes),
                tx: (port.tx.packets, port.tx.bytes),
                dropped: port.drops.values().sum(),
            };
            let facts = self.devices.entry(port.name.into()).or_default();
            facts.counters = Some(counters);
        }
    }

    fn install(&mut self) {
        if self.install_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        self.install_at = None;
        let JoinedHost { southbound, host, uplink, .. } = &mut self.joined;
        let Some(installation) = host.installation(southbound.replica(), Instant::now()) else {
            self.progress.pending_since = None;
            return;
        };
        self.daemon.datapath.set_log_meters(&installation.meters);
        let options = self.daemon.deployment().options();
        let done = Deployment::of_chassis(&installation, host.settings(), uplink, options)
            .and_then(|new| self.daemon.install(new, installation.program.clone()));
        match done {
            Ok(generation) => {
                messages::log!(OVN_INSTALLED, generation, "installed the network of OVN");
                self.learn(&installation);
                self.last_error.clear();
                self.progress.pending_since = None;
                self.progress.installed += 1;
                if installation.ports != self.ports {
                    // The devices of new ports may exist now.
                    self.devices_due = Instant::now();
                    self.ports.clone_from(&installation.ports);
                }
                self.open_bridges();
                self.joined.host.installed(installation);
                self.daemon.flush_backends(&self.joined.host.take_removed_backends());
            }
            Err(failure) => {
                self.progress.failed += 1;
                if let Failure::Input(error) | Failure::Runtime(error) = failure {
                    let error = format!("{error:#}");
                    if error != self.last_error {
                        messages::log!(
                            OVN_INSTALL_FAILED,
                            "cannot install the network of OVN: {error}"
                        );
                        self.last_error = error;
                    }
                }
                host.install_again();
                self.install_at = Some(Instant::now() + RETRY);
            }
        }
    }

    /// Opens the management sockets of bridges. This precedes the report to tools that the bridges
    /// exist.
    fn open_bridges(&mut self) {
        let host = &self.joined.host;
        let integration = Some(&*host.settings().bridge);
        self.bridges.follow(&bridges(integration, host.provider_bridges()));
    }

    fn lock_status(&self) -> MutexGuard<'_, OvnStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the status that `weft show` and the metrics report.
    fn report(&mut self) {
        let JoinedHost { local, southbound, host, .. } = &self.joined;
        let session = southbound.client.session();
        self.progress.is_local_connected = local.client.session().is_ready();
        self.progress.is_southbound_connected = session.is_ready();
        self.progress.holds_network = host.holds_network();
        self.progress.read_nb_cfg = host.read_nb_cfg();
        let remote = session.remote().map(Remote::to_string).unwrap_or_default();
        let state = match (session.is_ready(), host.holds_network()) {
            (false, _) => "not connected to",
            (true, true) => "holding the network that was lost from",
            (true, false) => "connected to",
        };
        let (flows, bad_flows) = host.flow_counts();
        let bad = host.bad_flows().iter().take(MAX_NAMED);
        let status = OvnStatus {
            southbound: format!("{state} {remote}"),
            flows,
            bad_flows,
            bad: bad.map(|(uuid, flow)| (uuid.to_string(), flow.to_string())).collect(),
            nb_cfg: host.installed_nb_cfg(),
            has_lock: local.client.session().has_lock(),
            templates: host.templates().clone(),
            progress: self.progress,
        };
        *self.lock_status() = status;
    }

    fn learn(&self, installation: &Installation) {
        if let Some(learned) = &installation.learned {
            self.daemon.switch.configure(learned.clone());
        }
    }

    fn leave(&mut self) {
        let end = Instant::now() + LEAVE;
        let JoinedHost { southbound, host, .. } = &mut self.joined;
        let mut is_sent = false;
        while Instant::now() < end && southbound.client.session().is_ready() {
            if !is_sent && southbound.pending.is_none() {
                let transaction = host.leave(southbound.replica());
                is_sent = true;
                southbound.transact(transaction);
            }
            if is_sent && southbound.pending.is_none() {
                return;
            }
            wait_any(&mut [&mut southbound.client], Some(end));
            southbound.receive();
        }
        messages::log!(
            OVN_CHASSIS_LEFT,
            "the southbound database keeps this host: remove it with ovn-sbctl chassis-del"
        );
    }
}

fn unix_ms() -> UnixMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMs::try_from(since.as_millis()).unwrap_or(UnixMs::MAX)
}
