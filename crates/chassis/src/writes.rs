//! The transactions of the host, which change the databases to the contents that they should have.
//! They are computed again from the replicas after each change, so changes by others are repaired,
//! and a transaction whose outcome is lost does no harm.

use crate::claims;
use crate::endpoints::Endpoints;
use crate::local::{DeviceFacts, LocalInterface, LocalPorts, bridge_named};
use crate::monitored::Monitored;
use crate::program::LocalContext;
use crate::settings::Settings;
use crate::tables::{
    Bridge, Chassis, ChassisPrivate, Encap, Interface, OpenVswitch, PortBinding, Text, TextMap,
};
use flow::{PortNo, TunnelType};
use ovsdb::{Clause, Datum, Function, Mutation, Replica, RowValues, Table, Transaction, Uuid};
use southbound::PortKind;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// How long a host waits before it claims a port again that another host has taken from it.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);

/// The state that the datapath has installed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Installed {
    /// The `nb_cfg` of the southbound database.
    pub nb_cfg: Option<i64>,
    /// The `next_cfg` of the local database.
    pub next_cfg: Option<i64>,
    /// The local logical ports.
    pub ports: BTreeMap<Text, PortNo>,
}

/// A timestamp in a database, in milliseconds since 1970.
pub type UnixMs = i64;

pub(crate) fn row_is(uuid: Uuid) -> [Clause; 1] {
    [Clause::new("_uuid", Function::Equals, uuid)]
}

/// Selects the row of a port only while this host has claimed it. Another host may have claimed it
/// meanwhile, and a late release must not undo that.
fn row_of_own_port(uuid: Uuid, chassis: Uuid) -> [Clause; 2] {
    let [row] = row_is(uuid);
    [row, Clause::new("chassis", Function::Equals, chassis)]
}

/// Writes the southbound database.
#[derive(Debug, Default)]
pub struct SouthboundWriter {
    /// When each port was claimed last.
    claimed: HashMap<Uuid, Instant>,
}

impl SouthboundWriter {
    /// The next transaction; `None` if the database is up to date. The second value is the latest
    /// time of the next call.
    pub fn next(
        &mut self,
        replica: &Replica,
        settings: &Settings,
        context: &LocalContext<'_>,
        installed: &Installed,
        (now, unix_ms): (Instant, UnixMs),
    ) -> (Option<Transaction>, Option<Instant>) {
        let transaction = chassis(replica, settings, context.chassis);
        let Some(chassis) = context.chassis else { return (some(transaction), None) };
        let transaction = private(transaction, replica, settings, chassis, installed, unix_ms);
        let (transaction, again) =
            self.claims(transaction, replica, (chassis, context), installed, now);
        (some(transaction), again)
    }

    fn claims(
        &mut self,
        mut transaction: Transaction,
        replica: &Replica,
        (chassis, context): (Uuid, &LocalContext<'_>),
        installed: &Installed,
        now: Instant,
    ) -> (Transaction, Option<Instant>) {
        let mut again: Option<Instant> = None;
        let candidates = claims::candidates(replica, context);
        self.claimed.retain(|uuid, _| candidates.contains(uuid));
        for uuid in candidates {
            let Some(row) = replica.get::<PortBinding>(uuid) else { continue };
            let is_bound = row.chassis == Some(chassis);
            if !claims::should_claim(replica, &row, context) {
                if is_bound && is_released(&row) {
                    let values = RowValues::new().set("chassis", Datum::empty_set());
                    let values = values.set("encap", Datum::empty_set()).set("up", false);
                    let row = row_of_own_port(uuid, chassis);
                    transaction = transaction.update(PortBinding::NAME, &row, values);
                }
                continue;
            }
            if !is_bound {
                let due = self.claimed.get(&uuid).map_or(now, |&last| last + CLAIM_PAUSE);
                if due > now {
                    again = Some(again.map_or(due, |again| again.min(due)));
                    continue;
                }
                self.claimed.insert(uuid, now);
                let values = RowValues::new().set("chassis", chassis);
                let values = values.set("encap", Datum::empty_set());
                transaction = transaction.update(PortBinding::NAME, &row_is(uuid), values);
            } else if row.up != Some(true) && is_up(&row, installed) {
                let values = RowValues::new().set("up", true);
                transaction = transaction.update(PortBinding::NAME, &row_is(uuid), values);
            }
        }
        (transaction, again)
    }
}

/// True for ports of the types that this crate claims, and therefore releases.
fn is_released(row: &PortBinding) -> bool {
    let kind = PortKind::from(&*row.kind);
    matches!(kind, PortKind::Vif | PortKind::L3Gateway | PortKind::ChassisRedirect)
}

/// True if a port is up: a guest's port once it is installed, any other port once it is bound.
fn is_up(row: &PortBinding, installed: &Installed) -> bool {
    PortKind::from(&*row.kind) != PortKind::Vif || installed.ports.contains_key(&row.logical_port)
}

fn some(transaction: Transaction) -> Option<Transaction> {
    (!transaction.is_empty()).then_some(transaction)
}

/// The column `other_config` of this host's row, for northd and the other hosts.
fn other_config(settings: &Settings) -> TextMap {
    let pairs = [
        ("ovn-bridge-mappings", &*settings.bridge_mappings),
        ("ovn-cms-options", &settings.cms_options),
        ("ovn-monitor-all", if settings.monitor_all { "true" } else { "false" }),
        ("datapath-type", ""),
        ("iface-types", "internal,system,tap"),
        // The features that northd uses only if every host has them.
        ("port-up-notif", "true"),
        ("ct-no-masked-label", "true"),
        ("mac-binding-timestamp", "true"),
        ("ovn-ct-lb-related", "true"),
    ];
    pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
}

/// The columns of a tunnel end's row.
type EncapValues = (Text, Text, bool);

fn wanted_encaps(settings: &Settings) -> BTreeSet<EncapValues> {
    let ip: Text = settings.encap_ip.to_string().into();
    let encap = |tunnel: &TunnelType| (tunnel.name().into(), ip.clone(), settings.checksum);
    settings.tunnels.iter().map(encap).collect()
}

/// Creates or corrects the row of the host and its tunnel ends.
fn chassis(replica: &Replica, settings: &Settings, own: Option<Uuid>) -> Transaction {
    let mut transaction = Transaction::new();
    let config = other_config(settings);
    let encaps = wanted_encaps(settings);
    let names: Vec<String> = (0..encaps.len()).map(|number| format!("encap{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let insert_encaps = |mut transaction: Transaction| {
        for (name, (kind, ip, checksum)) in names.iter().zip(&encaps) {
            let options = BTreeMap::from([("csum", if *checksum { "true" } else { "false" })]);
            let values = RowValues::new().set("type", kind.clone()).set("ip", ip.clone());
            let values = values.set("options", options);
            let values = values.set("chassis_name", settings.system_id.clone());
            transaction = transaction.insert_named(name, Encap::NAME, values);
        }
        transaction
    };
    let Some((uuid, row)) = own.and_then(|uuid| Some((uuid, replica.get::<Chassis>(uuid)?))) else {
        let values = RowValues::new()
            .set("name", settings.system_id.clone())
            .set("hostname", settings.hostname.clone())
            .set_named("encaps", &names)
            .set("transport_zones", settings.transport_zones.clone())
            .set("other_config", config);
        return insert_encaps(transaction).insert(Chassis::NAME, values).comment("weft: join");
    };
    let known = row.encaps.iter().filter_map(|&encap| replica.get::<Encap>(encap));
    let known: BTreeSet<EncapValues> = known
        .map(|encap| {
            let checksum = encap.options.get("csum").is_some_and(|value| **value == *"true");
            (encap.kind, encap.ip, checksum)
        })
        .collect();
    if known != encaps {
        // The database deletes the old tunnel ends with the last reference to them.
        let values = RowValues::new().set_named("encaps", &names);
        transaction = insert_encaps(transaction).update(Chassis::NAME, &row_is(uuid), values);
    }
    if config.iter().any(|(key, value)| row.other_config.get(key) != Some(value)) {
        let keys: Vec<Text> = config.keys().cloned().collect();
        let changes =
            [Mutation::delete("other_config", keys), Mutation::insert("other_config", config)];
        transaction = transaction.mutate(Chassis::NAME, &row_is(uuid), &changes);
    }
    if row.transport_zones != settings.transport_zones {
        let values = RowValues::new().set("transport_zones", settings.transport_zones.clone());
        transaction = transaction.update(Chassis::NAME, &row_is(uuid), values);
    }
    transaction
}

/// Creates or corrects the row in Chassis_Private, which has the last `nb_cfg` that this host has
/// installed.
fn private(
    transaction: Transaction,
    replica: &Replica,
    settings: &Settings,
    chassis: Uuid,
    installed: &Installed,
    unix_ms: UnixMs,
) -> Transaction {
    let with_cfg = |values: RowValues| match installed.nb_cfg {
        Some(cfg) => values.set("nb_cfg", cfg).set("nb_cfg_timestamp", unix_ms),
        None => values,
    };
    let mut rows = replica.rows::<ChassisPrivate>();
    let Some((uuid, row)) = rows.find(|(_, row)| row.name == settings.system_id) else {
        let values = RowValues::new().set("name", settings.system_id.clone());
        return transaction.insert(ChassisPrivate::NAME, with_cfg(values.set("chassis", chassis)));
    };
    let mut values = RowValues::new();
    if row.chassis != Some(chassis) {
        values = values.set("chassis", chassis);
    }
    if installed.nb_cfg.is_some_and(|cfg| cfg != row.nb_cfg) {
        values = with_cfg(values);
    }
    if values == RowValues::new() {
        return transaction;
    }
    transaction.update(ChassisPrivate::NAME, &row_is(uuid), values)
}

/// Leaves the deployment: releases all ports and deletes the rows of the host.
pub fn leave(replica: &Replica, settings: &Settings, chassis: Option<Uuid>) -> Option<Transaction> {
    let chassis = chassis?;
    let none = LocalPorts::default();
    let context = LocalContext {
        chassis: Some(chassis),
        names: [&settings.system_id, &settings.hostname],
        local: &none,
        integration: &settings.bridge,
        mappings: &BTreeMap::new(),
        endpoints: &Endpoints::default(),
        monitored: &Monitored::new(true),
    };
    let mut transaction = Transaction::new();
    for uuid in claims::candidates(replica, &context) {
        let row = replica.get::<PortBinding>(uuid);
        if row.is_some_and(|row| row.chassis == Some(chassis) && is_released(&row)) {
            let values = RowValues::new().set("chassis", Datum::empty_set());
            let values = values.set("encap", Datum::empty_set()).set("up", false);
            let row = row_of_own_port(uuid, chassis);
            transaction = transaction.update(PortBinding::NAME, &row, values);
        }
    }
    let named = [Clause::new("name", Function::Equals, settings.system_id.clone())];
    let transaction = transaction.delete(ChassisPrivate::NAME, &named);
    Some(transaction.delete(Chassis::NAME, &row_is(chassis)).comment("weft: leave"))
}

/// The next transaction for the local database; `None` if it is up to date. `up` are the ports of
/// this host that are up in the southbound database, and `devices` the devices by name.
pub fn local(
    replica: &Replica,
    settings: &Settings,
    ports: &LocalPorts,
    (up, devices): (&BTreeSet<Text>, &BTreeMap<Text, DeviceFacts>),
    installed: &Installed,
    unix_ms: UnixMs,
) -> Option<Transaction> {
    let root = ports.root?;
    let mut transaction = Transaction::new();
    if ports.bridge.is_none() && bridge_named(replica, &settings.bridge).is_none() {
        transaction = add_bridge(transaction, root, &settings.bridge);
    }
    for (&uuid, port) in &ports.interfaces {
        let Some(row) = replica.get::<Interface>(uuid) else { continue };
        let device = devices.get(&port.name).cloned().unwrap_or_default();
        if let Some(values) = of_interface(&row, port, device) {
            transaction = transaction.update(Interface::NAME, &row_is(uuid), values);
        }
        let is_up = port.logical_port.as_ref().is_some_and(|name| up.contains(name));
        if row.external_ids.contains_key(INSTALLED) != is_up {
            let change = if is_up {
                let time = unix_ms.to_string();
                let pairs = [(INSTALLED, "true"), (INSTALLED_TIME, time.as_str())];
                Mutation::insert("external_ids", BTreeMap::from(pairs))
            } else {
                Mutation::delete("external_ids", vec![INSTALLED, INSTALLED_TIME])
            };
            transaction = transaction.mutate(Interface::NAME, &row_is(uuid), &[change]);
        }
    }
    transaction = nb_cfg_of_bridge(transaction, replica, ports, installed, unix_ms);
    let row = replica.get::<OpenVswitch>(root)?;
    let mut values = RowValues::new();
    if let Some(cfg) = installed.next_cfg.filter(|cfg| *cfg != row.cur_cfg) {
        values = values.set("cur_cfg", cfg);
    }
    let iface_types: BTreeSet<Text> = ["internal", "system", "tap"].map(Text::from).into();
    if row.iface_types != iface_types {
        values = values.set("iface_types", iface_types);
    }
    let datapath_types: BTreeSet<Text> = ["netdev", "system"].map(Text::from).into();
    if row.datapath_types != datapath_types {
        values = values.set("datapath_types", datapath_types);
    }
    if values != RowValues::new() {
        transaction = transaction.update(OpenVswitch::NAME, &row_is(root), values);
    }
    some(transaction)
}

/// Writes the numbers of ports on a host that has no settings yet, and `cur_cfg`, so that tools do
/// not wait.
pub fn without_settings(replica: &Replica, ports: &LocalPorts) -> Option<Transaction> {
    let root = ports.root?;
    let mut transaction = Transaction::new();
    for (&uuid, port) in &ports.interfaces {
        let Some(row) = replica.get::<Interface>(uuid) else { continue };
        let values = number_of_interface(RowValues::new(), &row, port);
        if values != RowValues::new() {
            transaction = transaction.update(Interface::NAME, &row_is(uuid), values);
        }
    }
    if replica.get::<OpenVswitch>(root)?.cur_cfg != ports.next_cfg {
        let values = RowValues::new().set("cur_cfg", ports.next_cfg);
        transaction = transaction.update(OpenVswitch::NAME, &row_is(root), values);
    }
    some(transaction)
}

/// The new values of the columns of an Interface row that are outdated.
fn of_interface(row: &Interface, port: &LocalInterface, device: DeviceFacts) -> Option<RowValues> {
    let mut values = number_of_interface(RowValues::new(), row, port);
    let statistics = device.counters.map(|counters| counters.statistics()).unwrap_or_default();
    if row.statistics != statistics {
        values = values.set("statistics", statistics);
    }
    let [admin_state, link_state] = device.states();
    let known = (&row.mac_in_use, row.ifindex, row.mtu, &row.admin_state, &row.link_state);
    if known != (&device.mac, device.ifindex, device.mtu, &admin_state, &link_state) {
        let DeviceFacts { mac, ifindex, mtu, .. } = device;
        values = values.set("mac_in_use", mac).set("ifindex", ifindex).set("mtu", mtu);
        values = values.set("admin_state", admin_state).set("link_state", link_state);
    }
    (values != RowValues::new()).then_some(values)
}

/// Adds `ofport` and `error` if they are outdated.
fn number_of_interface(values: RowValues, row: &Interface, port: &LocalInterface) -> RowValues {
    let (ofport, error) = (port.ofport(), port.error());
    if row.ofport == Some(ofport) && row.error == error {
        return values;
    }
    values.set("ofport", ofport).set("error", error)
}

/// Keys of `external_ids` of an interface whose port is installed.
const INSTALLED: &str = "ovn-installed";
const INSTALLED_TIME: &str = "ovn-installed-ts";
/// Keys of `external_ids` of the integration bridge.
const NB_CFG: &str = "ovn-nb-cfg";
const NB_CFG_TIME: &str = "ovn-nb-cfg-ts";

fn nb_cfg_of_bridge(
    transaction: Transaction,
    replica: &Replica,
    ports: &LocalPorts,
    installed: &Installed,
    unix_ms: UnixMs,
) -> Transaction {
    let Some((uuid, cfg)) = ports.bridge.zip(installed.nb_cfg) else { return transaction };
    let (cfg, time) = (cfg.to_string(), unix_ms.to_string());
    let known = replica.get::<Bridge>(uuid).and_then(|row| row.external_ids.get(NB_CFG).cloned());
    if known.as_deref() == Some(cfg.as_str()) {
        return transaction;
    }
    let pairs = BTreeMap::from([(NB_CFG, cfg.as_str()), (NB_CFG_TIME, time.as_str())]);
    let changes = [
        Mutation::delete("external_ids", vec![NB_CFG, NB_CFG_TIME]),
        Mutation::insert("external_ids", pairs),
    ];
    transaction.mutate(Bridge::NAME, &row_is(uuid), &changes)
}

/// Creates the integration bridge.
fn add_bridge(transaction: Transaction, root: Uuid, name: &Text) -> Transaction {
    let named = |name: &Text| RowValues::new().set("name", name.clone());
    let bridge = named(name).set("fail_mode", "secure").set_named("ports", &["bridge_port"]);
    transaction
        .wait_until_absent(Bridge::NAME, &[Clause::new("name", Function::Equals, name.clone())])
        .insert_named("bridge_interface", Interface::NAME, named(name).set("type", "internal"))
        .insert_named(
            "bridge_port",
            "Port",
            named(name).set_named("interfaces", &["bridge_interface"]),
        )
        .insert_named("new_bridge", Bridge::NAME, bridge)
        .mutate(
            OpenVswitch::NAME,
            &row_is(root),
            &[Mutation::insert_named("bridges", "new_bridge")],
        )
}
