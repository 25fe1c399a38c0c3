//! [`Host`]: a chassis as a state machine, without I/O and without a clock.

use crate::announcements::HostState;
use crate::endpoints::{Endpoints, local_ends};
use crate::health::{self, ServiceCheck};
use crate::learned_writer::LearnedWriter;
use crate::local::{DeviceDefaults, DeviceFacts, InterfaceState, LocalPorts, Numbers};
use crate::monitored::{Monitored, Scope};
use crate::program::{
    BadFlow, BalancedPair, LocalContext, ProgramBuilder, learned, ports::port_named,
};
use crate::settings::Settings;
use crate::tables::{
    self, ChassisPrivate, DatapathBinding, Encap, Fdb, MacBinding, PortBinding, SbGlobal,
    ServiceMonitor, Text, TextMap, index,
};
use crate::writes::{self, Installed, SouthboundWriter, UnixMs};
use datapath::config::{DeviceConfig, EndpointConfig, PortConfig, PortPeer, TunnelConfig};
use datapath::number_pool::NumberPool;
use flow::{DatapathKey, NamedMeter, PortNo, TunnelType};
use ovsdb::{Atom, Replica, RowChange, Session, Table, Transaction, Uuid};
use pipeline::{LearnEvent, Program};
use services::health::Status;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the old network is kept when the southbound database is empty after a reconnection. Its
/// operators may be restoring it.
const HOLD: Duration = Duration::from_secs(300);

/// How long weft may take to remove a device that it created.
const RETIREMENT: Duration = Duration::from_secs(4);

/// How long the old network is kept while the rows of a new one are still arriving.
const ROWS_PATIENCE: Duration = Duration::from_secs(30);

/// The configuration for this host's switch. The caller applies it, and then calls
/// [`Host::installed`].
#[derive(Clone, Debug)]
pub struct Installation {
    /// The program.
    pub program: Program,
    /// The ports. Their names are those of their interfaces.
    pub ports: Vec<PortConfig>,
    /// The logical port and the logical switch of each port, if known.
    pub names: BTreeMap<PortNo, (String, String)>,
    /// The tunnel ends of this host.
    pub tunnels: Vec<TunnelConfig>,
    /// The tunnel ends of the other hosts.
    pub endpoints: Vec<EndpointConfig>,
    /// The names of the other hosts.
    pub hosts: BTreeMap<IpAddr, String>,
    /// All meters, of which ACLs name some for what they log.
    pub meters: Arc<[NamedMeter]>,
    /// All MAC bindings and stations of the database, if they may have changed.
    pub learned: Option<Vec<LearnEvent>>,
    /// The state of the datapath once this is applied.
    covers: Installed,
}

/// A host of a deployment.
#[derive(Debug)]
pub struct Host {
    settings: Settings,
    /// The MTU of the underlay, in bytes.
    underlay_mtu: u16,
    /// The device of the tunnels.
    uplink: String,
    numbers: Numbers,
    /// The bridges of physical networks, by network.
    mappings: BTreeMap<Text, Text>,
    warnings: Vec<String>,
    endpoint_numbers: NumberPool<(TunnelType, IpAddr)>,
    local: LocalPorts,
    /// The names of all devices of this host, if they are known.
    devices: Option<BTreeSet<Text>>,
    /// Devices that weft is removing, and the time until which each is ignored.
    retired: BTreeMap<Text, Instant>,
    endpoints: Endpoints,
    builder: ProgramBuilder,
    /// The row of this host in the table Chassis.
    chassis: Option<Uuid>,
    /// `nb_cfg` of the southbound database.
    nb_cfg: Option<i64>,
    writer: SouthboundWriter,
    learned_writer: LearnedWriter,
    installed: Installed,
    /// The rows that the southbound server was asked for.
    monitored: Monitored,
    /// The needed rows may differ from those that the server was asked for.
    must_request: bool,
    /// The southbound server does not accept conditions.
    needs_every_row: bool,
    /// Since when the old network is kept because rows are still arriving.
    waiting_since: Option<Instant>,
    /// When the southbound database came back empty, while the old network is kept.
    held_since: Option<Instant>,
    must_install: bool,
    must_learn: bool,
    /// The announcements of this host may have changed.
    must_announce: bool,
}

impl Host {
    /// A host without ports, whose tunnels use the device `uplink` with this MTU in bytes.
    pub fn new(settings: Settings, uplink: &str, underlay_mtu: u16) -> Self {
        let (mappings, invalid) = settings.mappings();
        Self {
            builder: ProgramBuilder::new(&settings.tunnels),
            monitored: Monitored::new(settings.monitor_all),
            must_request: true,
            needs_every_row: false,
            waiting_since: None,
            settings,
            underlay_mtu,
            uplink: uplink.to_owned(),
            numbers: Numbers::default(),
            mappings,
            warnings: invalid.iter().map(|part| bad_mapping(part)).collect(),
            endpoint_numbers: NumberPool::starting_at(0),
            local: LocalPorts::default(),
            devices: None,
            retired: BTreeMap::new(),
            endpoints: Endpoints::default(),
            chassis: None,
            nb_cfg: None,
            writer: SouthboundWriter::default(),
            learned_writer: LearnedWriter::default(),
            installed: Installed::default(),
            held_since: None,
            must_install: true,
            must_learn: true,
            must_announce: true,
        }
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The names of the provider bridges.
    pub fn provider_bridges(&self) -> impl Iterator<Item = &str> {
        self.local.bridges.keys().map(|name| &**name)
    }

    /// The flows that could not be compiled and are missing in the program, by row, up to a limit.
    pub fn bad_flows(&self) -> &BTreeMap<Uuid, BadFlow> {
        self.builder.bad_flows()
    }

    /// The last `nb_cfg` that was read from the southbound database.
    pub fn read_nb_cfg(&self) -> Option<i64> {
        self.nb_cfg
    }

    /// The `nb_cfg` of the installed program.
    pub fn installed_nb_cfg(&self) -> Option<i64> {
        self.installed.nb_cfg
    }

    /// The number of flows in the program, and of those that could not be compiled.
    pub fn flow_counts(&self) -> (usize, usize) {
        (self.builder.flow_count(), self.builder.bad_flow_count())
    }

    /// The values of this host's template variables.
    pub fn templates(&self) -> &TextMap {
        self.builder.template_values()
    }

    /// Warnings since the last call, for the log.
    pub fn take_warnings(&mut self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut self.warnings);
        warnings.extend(self.builder.take_warnings());
        warnings
    }

    /// The MTU of guests that fits the tunnels of this host, in bytes.
    fn guest_mtu(&self) -> u16 {
        let is_ipv6 = self.settings.encap_ip.is_ipv6();
        let overhead = |tunnel: &TunnelType| {
            tunnel.overhead_bytes(is_ipv6, &tunnel.descriptor().default_settings())
        };
        let overhead = self.settings.tunnels.iter().map(overhead).max().unwrap_or(0);
        self.underlay_mtu.saturating_sub(overhead)
    }

    /// Sets the names of this host's devices. True if they have changed: then call
    /// [`handle_local`](Self::handle_local).
    pub fn set_devices(&mut self, mut names: BTreeSet<Text>, now: Instant) -> bool {
        self.retired.retain(|name, until| *until > now && names.contains(name));
        names.retain(|name| !self.retired.contains_key(name));
        let is_new = self.devices.as_ref() != Some(&names);
        self.devices = Some(names);
        is_new
    }

    /// True if an interface lacks its device.
    pub fn lacks_devices(&self) -> bool {
        self.local.interfaces.values().any(|interface| interface.lacks_device)
    }

    /// Handles a change of the local database. Ports are placed if `southbound` is known.
    pub fn handle_local(&mut self, local: &Replica, southbound: &Replica, now: Instant) {
        let made = self.local.made_devices();
        let present = self.devices.as_ref().map(|devices| (devices, &made));
        let defaults =
            DeviceDefaults { mtu_bytes: self.guest_mtu(), uplink: &self.uplink, present };
        let new = LocalPorts::read(local, &self.settings.bridge, &defaults, &mut self.numbers, now);
        if let Some(devices) = &mut self.devices {
            // The missing interfaces include those whose device weft has created and is about to
            // remove.
            for interface in new.interfaces.values().filter(|it| it.lacks_device) {
                if devices.remove(&interface.name) {
                    self.retired.insert(interface.name.clone(), now + RETIREMENT);
                }
            }
        }
        if new == self.local {
            return;
        }
        let old = std::mem::replace(&mut self.local, new);
        let changed = self.local.changed(&old);
        self.place(southbound, &changed, BTreeSet::new());
        (self.must_install, self.must_request) = (true, true);
    }

    /// Applies new settings. Returns false, and changes nothing, if they need a restart of the
    /// switch.
    pub fn change_settings(&mut self, new: Settings, southbound: &Replica, now: Instant) -> bool {
        let old = &self.settings;
        let is_same_host = (&old.system_id, &old.tunnels, old.encap_ip, &old.bridge)
            == (&new.system_id, &new.tunnels, new.encap_ip, &new.bridge);
        if is_same_host {
            let (mappings, invalid) = new.mappings();
            if new.bridge_mappings != self.settings.bridge_mappings {
                self.warnings.extend(invalid.iter().map(|part| bad_mapping(part)));
            }
            self.mappings = mappings;
            self.settings = new;
            self.read_hosts(southbound, now);
            (self.must_install, self.must_request) = (true, true);
        }
        is_same_host
    }

    /// Handles changed rows of the southbound database. `is_first` is true for the first update of
    /// a connection.
    pub fn handle_southbound(
        &mut self,
        replica: &Replica,
        changes: &[RowChange],
        is_first: bool,
        now: Instant,
    ) {
        let is_empty = replica.table(DatapathBinding::NAME).is_none_or(|table| table.is_empty());
        if is_empty && is_first && self.builder.has_datapaths() && self.held_since.is_none() {
            self.held_since = Some(now);
        }
        if self.is_held(replica, now) {
            self.chassis = chassis_named(replica, &self.settings.system_id);
            self.must_request = true;
            return;
        }
        let of = |names: &[&str]| changes.iter().any(|change| names.contains(&change.table()));
        if of(&[tables::Chassis::NAME, Encap::NAME]) || self.held_since.is_some() {
            self.read_hosts(replica, now);
        }
        let context = local_context(
            (&self.settings, &self.mappings),
            self.chassis,
            &self.local,
            (&self.endpoints, &self.monitored),
        );
        if self.held_since.take().is_some() {
            self.builder = ProgramBuilder::from_replica(replica, &self.settings.tunnels, &context);
            self.install_again();
        } else {
            self.builder.apply(replica, changes, &context);
        }
        self.nb_cfg = replica.rows::<SbGlobal>().next().map(|(_, row)| row.nb_cfg);
        self.must_learn |=
            changes.iter().any(|change| ProgramBuilder::is_about_learned(change.table()));
        self.must_install |= changes.iter().any(|change| !is_without_effect(change));
        self.must_request |= changes.iter().any(|change| self.is_of_interface(change));
    }

    /// True for the row of a port that an interface of this host names.
    fn is_of_interface(&self, change: &RowChange) -> bool {
        let names = change.typed::<PortBinding>().into_iter().flat_map(|(old, new)| [old, new]);
        let mut names = names.flatten().map(|row| row.logical_port);
        names.any(|name| self.local.logical.contains_key(&name))
    }

    /// Asks the southbound server for the rows that this host needs now. The caller calls this
    /// after each change, and reports the server's replies to
    /// [`conditions_applied`](Self::conditions_applied).
    pub fn request_rows(&mut self, session: &mut Session) {
        self.must_request |= self.builder.take_reachability_change();
        if !std::mem::take(&mut self.must_request) {
            return;
        }
        let scope = self.scope(session.replica());
        // Every table is in the replica, so that the session knows all of them.
        let Ok(made) = session.set_conditions(self.monitored.changes(&scope)) else { return };
        if self.monitored.record_request(scope, made) {
            self.follow_monitored(session.replica());
        }
    }

    fn scope(&self, southbound: &Replica) -> Scope {
        let datapaths: BTreeMap<Uuid, DatapathKey> = self.builder.reachable_datapaths().collect();
        let interfaces: BTreeSet<Text> = self.local.logical.keys().cloned().collect();
        let is_unplaced = |name: &&Text| {
            let row = port_named(southbound, name);
            row.is_none_or(|row| !datapaths.contains_key(&row.datapath))
        };
        let unplaced = interfaces.iter().filter(is_unplaced).cloned().collect();
        let everything = self.settings.monitor_all || self.needs_every_row;
        Scope { everything, chassis: self.chassis, interfaces, unplaced, datapaths }
    }

    /// Handles that all rows have arrived that the southbound server was asked for up to this
    /// sequence number of the session.
    pub fn conditions_applied(&mut self, seqno: u64, southbound: &Replica) {
        self.monitored.confirm(seqno);
        self.follow_monitored(southbound);
    }

    /// Handles that the southbound server does not accept the conditions. This host asks for every
    /// row from now on.
    pub fn conditions_refused(&mut self) {
        self.monitored.record_refusal();
        (self.needs_every_row, self.must_request) = (true, true);
    }

    /// True if this host has all rows that it needs.
    pub fn is_settled(&self) -> bool {
        !self.must_request && self.monitored.is_settled()
    }

    /// Compiles the flows of datapaths that have arrived, and removes those that are not asked for
    /// any more.
    fn follow_monitored(&mut self, southbound: &Replica) {
        let context = local_context(
            (&self.settings, &self.mappings),
            self.chassis,
            &self.local,
            (&self.endpoints, &self.monitored),
        );
        self.must_install |= self.builder.follow_monitored(southbound, &context);
    }

    /// True while the old network is kept although the database is empty.
    fn is_held(&self, replica: &Replica, now: Instant) -> bool {
        let is_empty = replica.table(DatapathBinding::NAME).is_none_or(|table| table.is_empty());
        is_empty && self.held_since.is_some_and(|since| now.duration_since(since) < HOLD)
    }

    /// True while the old network is kept although the database is empty.
    pub fn holds_network(&self) -> bool {
        self.held_since.is_some()
    }

    /// When to call [`handle_southbound`](Self::handle_southbound) at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let rows = self.waiting_since.map(|since| since + ROWS_PATIENCE);
        self.held_since.map(|since| since + HOLD).into_iter().chain(rows).min()
    }

    /// Reads the rows of the hosts, and places the ports of those that have moved.
    fn read_hosts(&mut self, replica: &Replica, now: Instant) {
        let (mtu, numbers) = (self.underlay_mtu, &mut self.endpoint_numbers);
        let new = Endpoints::read(replica, &self.settings, mtu, numbers, now);
        let old = std::mem::replace(&mut self.endpoints, new);
        let mut hosts = self.endpoints.changed(&old);
        let own = chassis_named(replica, &self.settings.system_id);
        if own != self.chassis {
            hosts.extend(self.chassis.into_iter().chain(own));
            self.chassis = own;
            self.must_request = true;
        }
        self.place(replica, &BTreeSet::new(), hosts);
    }

    fn place(&mut self, southbound: &Replica, names: &BTreeSet<Text>, hosts: BTreeSet<Uuid>) {
        let context = local_context(
            (&self.settings, &self.mappings),
            self.chassis,
            &self.local,
            (&self.endpoints, &self.monitored),
        );
        self.builder.replace(southbound, names, hosts, &context);
    }

    /// The next configuration to apply; `None` if nothing has changed.
    pub fn installation(&mut self, southbound: &Replica, now: Instant) -> Option<Installation> {
        if self.waits_for_rows(now) || !std::mem::take(&mut self.must_install) {
            return None;
        }
        let program = self.builder.program();
        let mut ports = Vec::new();
        let mut names = BTreeMap::new();
        for interface in self.local.interfaces.values() {
            let InterfaceState::Port { port, device } = &interface.state else { continue };
            if interface.lacks_device {
                continue;
            }
            ports.push(PortConfig {
                port: *port,
                name: interface.name.to_string(),
                logical_switch: interface.bridge.to_string(),
                device: device.clone(),
                // Of a provider bridge.
                peer: match device {
                    DeviceConfig::Interface { mtu: None, .. } => PortPeer::Network,
                    _ => PortPeer::Guest,
                },
            });
            if let Some(name) = &interface.logical_port {
                let switch = switch_of(&program, *port).unwrap_or_default();
                names.insert(*port, (name.to_string(), switch));
            }
        }
        let must_learn = std::mem::take(&mut self.must_learn);
        let logical = self.local.logical.keys();
        let known = logical.filter_map(|name| Some((name.clone(), self.local.of_logical(name)?.0)));
        let placed = known.filter(|(_, port)| self.is_placed(*port));
        let children = |port: PortNo| {
            self.builder.children(port).map(move |name| (name.clone(), port)).collect::<Vec<_>>()
        };
        let placed = placed.flat_map(|(name, port)| {
            let mut all = children(port);
            all.push((name, port));
            all
        });
        let hosts = self.endpoints.hosts.iter();
        Some(Installation {
            covers: Installed {
                nb_cfg: if self.is_settled() { self.nb_cfg } else { self.installed.nb_cfg },
                next_cfg: Some(self.local.next_cfg),
                ports: placed.collect(),
            },
            program,
            ports,
            names,
            tunnels: local_ends(&self.settings, self.underlay_mtu),
            endpoints: self.endpoints.configs.clone(),
            hosts: hosts.map(|(address, name)| (*address, name.to_string())).collect(),
            meters: Arc::clone(self.builder.meters()),
            learned: must_learn.then(|| learned(southbound)),
        })
    }

    /// True while working ports would lose their flows, because the rows of their datapaths have
    /// not arrived yet. A database that was filled again has new rows for the same network.
    fn waits_for_rows(&mut self, now: Instant) -> bool {
        let is_lost = |(name, port): (&Text, &PortNo)| {
            self.local.logical.contains_key(name) && !self.is_placed(*port)
        };
        let has_lost = || self.installed.ports.iter().any(is_lost);
        if self.is_settled() || !has_lost() {
            self.waiting_since = None;
            return false;
        }
        now.duration_since(*self.waiting_since.get_or_insert(now)) < ROWS_PATIENCE
    }

    /// True if a port has its place in the program, and the flows of its datapath are known.
    fn is_placed(&self, port: PortNo) -> bool {
        let is_complete = |(datapath, _)| self.builder.is_complete(datapath);
        let role = self.builder.port_role(port);
        role.is_some_and(|role| role.logical_port().is_none_or(is_complete))
    }

    /// Records that the caller has applied an installation.
    pub fn installed(&mut self, installation: Installation) {
        self.installed = installation.covers;
        self.must_announce = true;
    }

    /// The backends of load balancers that were removed since the last call, and whose connections
    /// are to end (`ct_flush`).
    pub fn take_removed_backends(&mut self) -> BTreeSet<BalancedPair> {
        self.builder.take_removed_backends()
    }

    /// The state that announcements depend on, if it may have changed since the last call.
    pub(crate) fn announcing<'a>(&'a mut self, replica: &'a Replica) -> Option<HostState<'a>> {
        // Changes that are not installed yet are announced later.
        let is_due = !self.must_install && std::mem::take(&mut self.must_announce);
        is_due.then(|| HostState {
            replica,
            chassis: self.chassis,
            builder: &self.builder,
            installed: self.installed.ports.keys().collect(),
        })
    }

    /// Records that an installation failed: [`installation`](Self::installation) returns the newest
    /// one again.
    pub fn install_again(&mut self) {
        (self.must_install, self.must_learn) = (true, true);
    }

    /// The next transaction for the southbound database, and the latest time of the next call.
    pub fn southbound_transaction(
        &mut self,
        replica: &Replica,
        (now, unix_ms): (Instant, UnixMs),
        health: &BTreeMap<Uuid, Status>,
    ) -> (Option<Transaction>, Option<Instant>) {
        if !self.must_install && self.is_settled() {
            // The changes since the last installation do not affect the program.
            self.installed.nb_cfg = self.nb_cfg;
        }
        let context = local_context(
            (&self.settings, &self.mappings),
            self.chassis,
            &self.local,
            (&self.endpoints, &self.monitored),
        );
        let next =
            self.writer.next(replica, &self.settings, &context, &self.installed, (now, unix_ms));
        let monitored = self.service_rows(replica);
        let mut own = next.0.unwrap_or_default();
        own = health::statuses(own, replica, &monitored, health);
        let next = ((!own.is_empty()).then_some(own), next.1);
        match next {
            (None, again) => {
                let (transaction, later) = self.learned_writer.next(replica, now, unix_ms);
                (transaction, again.into_iter().chain(later).min())
            }
            own => own,
        }
    }

    /// The health checks that this host sends.
    pub fn service_checks(&self, replica: &Replica) -> Vec<ServiceCheck> {
        self.service_rows(replica).into_iter().filter_map(|(_, check)| check).collect()
    }

    fn service_rows(&self, replica: &Replica) -> Vec<(Uuid, Option<ServiceCheck>)> {
        health::of_host(replica, self.chassis, &self.installed, &self.settings.tunnels)
    }

    /// Handles addresses that the switch has learned from packets. They are written to the
    /// southbound database.
    pub fn handle_learn_events(&mut self, events: Vec<LearnEvent>, now: Instant) {
        self.learned_writer.add(events, now);
    }

    /// The next transaction for the local database. `devices` are those of this host, by name.
    pub fn local_transaction(
        &self,
        local: &Replica,
        southbound: &Replica,
        devices: &BTreeMap<Text, DeviceFacts>,
        unix_ms: UnixMs,
    ) -> Option<Transaction> {
        let is_up = |name: &&Text| {
            let row = port_named(southbound, name);
            row.is_some_and(|row| row.chassis.is_some() && row.chassis == self.chassis)
                && self.installed.ports.contains_key(*name)
        };
        let up = self.local.logical.keys().filter(is_up).cloned().collect();
        let facts = (&up, devices);
        writes::local(local, &self.settings, &self.local, facts, &self.installed, unix_ms)
    }

    /// The transaction with which the host leaves the deployment.
    pub fn leave(&self, southbound: &Replica) -> Option<Transaction> {
        writes::leave(southbound, &self.settings, self.chassis)
    }
}

/// True if a change does not affect the program: a change of `nb_cfg`, of a host's report about
/// ports or backends, or of the timestamp of a learned row, which hosts refresh while they use the
/// row.
fn is_without_effect(change: &RowChange) -> bool {
    if [SbGlobal::NAME, ChassisPrivate::NAME, ServiceMonitor::NAME].contains(&change.table()) {
        return true;
    }
    let port = change.typed::<PortBinding>().is_some_and(|(old, new)| {
        old.zip(new).is_some_and(|(old, new)| PortBinding { up: new.up, ..old } == new)
    });
    let binding = change.typed::<MacBinding>().is_some_and(|(old, new)| {
        old.zip(new).is_some_and(|(old, new)| MacBinding { timestamp: new.timestamp, ..old } == new)
    });
    let station = change.typed::<Fdb>().is_some_and(|(old, new)| {
        old.zip(new).is_some_and(|(old, new)| Fdb { timestamp: new.timestamp, ..old } == new)
    });
    port || binding || station
}

fn bad_mapping(part: &str) -> String {
    format!("ovn-bridge-mappings: `{part}` is no NETWORK:BRIDGE, and is ignored")
}

fn local_context<'a>(
    (settings, mappings): (&'a Settings, &'a BTreeMap<Text, Text>),
    chassis: Option<Uuid>,
    local: &'a LocalPorts,
    (endpoints, monitored): (&'a Endpoints, &'a Monitored),
) -> LocalContext<'a> {
    LocalContext {
        chassis,
        names: [&settings.system_id, &settings.hostname],
        local,
        integration: &settings.bridge,
        mappings,
        endpoints,
        monitored,
    }
}

fn chassis_named(replica: &Replica, name: &Text) -> Option<Uuid> {
    let by_name = replica.table(tables::Chassis::NAME)?.index(index::NAME)?;
    by_name.find_atom(Atom::String(name.clone())).map(|row| row.uuid()).next()
}

/// The logical switch of a datapath port.
fn switch_of(program: &Program, port: PortNo) -> Option<String> {
    let (datapath, _) = program.port_role(port)?.logical_port()?;
    Some(program.datapath(datapath)?.name.clone())
}
