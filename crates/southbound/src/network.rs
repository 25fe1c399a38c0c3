//! Compiles the rows to a program in which every port is on this host, as in ovn-trace.

use super::Southbound;
use super::rows::{DatapathBinding, LogicalFlow as FlowRow, PortBinding, PortKind};
use flow::{DatapathKey, PortKey, PortNo};
use lflow::lexer::Lexer;
use lflow::{Constant, FlowError, LoadBalancer, Loader, LogicalFlow, TokenKind};
use ovsdb::Uuid;
use pipeline::{
    CtZones, DatapathKind, FdbKey, FdbPort, LearnEvent, LearnedState, LearnedTables, LogicalPort,
    MacBindingKey, MulticastGroup, PortLocation, PortRole, PortSecurity,
};
use std::collections::{BTreeMap, HashMap};

/// The network of a southbound database, ready for traces.
#[derive(Debug)]
pub struct SouthboundNetwork {
    /// The loader that holds the program.
    pub loader: Loader,
    /// The MAC bindings and FDB entries of the database.
    pub learned: LearnedTables,
    /// The datapath port of each logical port that packets can enter by, by name.
    pub ports: BTreeMap<String, PortNo>,
    /// Ignored entries, with the reason. ovn-controller ignores them too.
    pub warnings: Vec<String>,
}

/// An error in the database.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NetworkError {
    /// A flow cannot be compiled.
    #[error(transparent)]
    Flow(#[from] Box<FlowError>),
    /// A row refers to one that does not exist.
    #[error("table {table}, row {row}: there is no {wanted}")]
    Reference {
        /// The table.
        table: &'static str,
        /// The row.
        row: Uuid,
        /// The missing row or object.
        wanted: String,
    },
    /// A member of an address set is not an address.
    #[error("address set `{set}`: `{member}` is not an address, subnet or number")]
    Address {
        /// The set.
        set: String,
        /// The member.
        member: String,
    },
}

impl Southbound {
    /// Compiles the rows to a program.
    ///
    /// # Errors
    /// All errors of the database.
    pub fn network(&self) -> Result<SouthboundNetwork, Vec<NetworkError>> {
        let mut maker = NetworkBuilder::new(self);
        maker.datapaths();
        maker.ports();
        maker.multicast_groups();
        maker.sets();
        maker.flows();
        maker.load_balancers();
        maker.learned();
        maker.network.loader.program_mut().allocate_zones(&CtZones::default());
        if maker.errors.is_empty() { Ok(maker.network) } else { Err(maker.errors) }
    }
}

struct NetworkBuilder<'s> {
    rows: &'s Southbound,
    network: SouthboundNetwork,
    errors: Vec<NetworkError>,
    datapaths: HashMap<Uuid, &'s DatapathBinding>,
    ports: HashMap<Uuid, &'s PortBinding>,
    by_name: HashMap<&'s str, &'s PortBinding>,
}

impl<'s> NetworkBuilder<'s> {
    fn new(rows: &'s Southbound) -> Self {
        Self {
            rows,
            network: SouthboundNetwork {
                loader: Loader::default(),
                learned: LearnedTables::default(),
                ports: BTreeMap::new(),
                warnings: Vec::new(),
            },
            errors: Vec::new(),
            datapaths: rows.datapaths.iter().map(|row| (row.uuid, row)).collect(),
            ports: rows.ports.iter().map(|row| (row.uuid, row)).collect(),
            by_name: rows.ports.iter().map(|row| (row.logical_port.as_str(), row)).collect(),
        }
    }

    fn missing(&mut self, table: &'static str, row: Uuid, wanted: String) {
        self.errors.push(NetworkError::Reference { table, row, wanted });
    }

    /// The key of a datapath. Records an error if the datapath does not exist.
    fn datapath(&mut self, table: &'static str, row: Uuid, wanted: Uuid) -> Option<DatapathKey> {
        let found = self.datapaths.get(&wanted).map(|row| row.tunnel_key);
        if found.is_none() {
            self.missing(table, row, format!("datapath {wanted}"));
        }
        found
    }

    fn datapaths(&mut self) {
        for row in &self.rows.datapaths {
            let kind = if row.is_router() { DatapathKind::Router } else { DatapathKind::Switch };
            self.network.loader.add_datapath(row.tunnel_key, &row.name(), kind);
        }
    }

    fn ports(&mut self) {
        let mut next = PortNo(1);
        for row in &self.rows.ports {
            let Some(datapath) = self.datapath("Port_Binding", row.uuid, row.datapath) else {
                continue;
            };
            let location = self.location(row, &mut next);
            if let PortLocation::Local(port) = location {
                let entry = PortRole::Vif { datapath, port: row.tunnel_key };
                self.network.loader.program_mut().set_port_role(port, entry);
                self.network.ports.insert(row.logical_port.clone(), port);
            }
            let (security, problems) = PortSecurity::parse_as_ovn(&row.port_security);
            let name = &row.logical_port;
            let warnings = problems.iter().map(|problem| format!("port {name}: {problem}"));
            self.network.warnings.extend(warnings);
            let port = LogicalPort { name: name.clone(), location, security };
            self.network.loader.set_port(datapath, row.tunnel_key, port);
        }
    }

    fn location(&self, row: &PortBinding, next: &mut PortNo) -> PortLocation {
        let named = |option: &str| {
            row.options.get(option).and_then(|name| self.by_name.get(name.as_str())).copied()
        };
        match row.kind {
            PortKind::Patch | PortKind::L3Gateway => named("peer")
                .and_then(|peer| Some((self.datapaths.get(&peer.datapath)?.tunnel_key, peer)))
                .map_or(PortLocation::Unbound, |(datapath, peer)| PortLocation::Patch {
                    datapath,
                    port: peer.tunnel_key,
                }),
            PortKind::ChassisRedirect => named("distributed-port")
                .filter(|port| port.datapath == row.datapath)
                .map_or(PortLocation::Unbound, |port| PortLocation::Redirect(port.tunnel_key)),
            PortKind::Vif | PortKind::Localnet | PortKind::Localport | PortKind::Other(_) => {
                let port = *next;
                *next = PortNo(port.0 + 1);
                PortLocation::Local(port)
            }
        }
    }

    fn multicast_groups(&mut self) {
        const TABLE: &str = "Multicast_Group";
        for row in &self.rows.multicast_groups {
            let Some(datapath) = self.datapath(TABLE, row.uuid, row.datapath) else { continue };
            let mut members = Vec::with_capacity(row.ports.len());
            for port in &row.ports {
                match self.ports.get(port) {
                    Some(port) => members.push(port.tunnel_key),
                    None => self.missing(TABLE, row.uuid, format!("port {port}")),
                }
            }
            members.sort_unstable();
            let group = MulticastGroup { name: row.name.clone(), members };
            self.network.loader.set_multicast(datapath, row.tunnel_key, group);
        }
    }

    fn sets(&mut self) {
        for row in &self.rows.address_sets {
            let mut members = Vec::with_capacity(row.addresses.len());
            for member in &row.addresses {
                match constant(member) {
                    Some(constant) => members.push(constant),
                    None => {
                        let (set, member) = (row.name.clone(), member.clone());
                        self.errors.push(NetworkError::Address { set, member });
                    }
                }
            }
            self.network.loader.set_address_set(&row.name, members);
        }
        // A port group has one row for each datapath of its ports, named after both. Names of ports
        // are resolved in each datapath anyway, so the rows are merged.
        let mut groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for row in &self.rows.port_groups {
            groups.entry(row.group_name()).or_default().extend(row.ports.iter().cloned());
        }
        for (name, ports) in groups {
            self.network.loader.set_port_group(name, ports);
        }
    }

    /// The keys of the datapaths in each datapath group.
    fn dp_groups(&mut self) -> HashMap<Uuid, Vec<DatapathKey>> {
        let mut groups = HashMap::new();
        for row in &self.rows.dp_groups {
            let keys = row.datapaths.iter();
            let keys = keys.filter_map(|&uuid| self.datapath("Logical_DP_Group", row.uuid, uuid));
            let keys = keys.collect();
            groups.insert(row.uuid, keys);
        }
        groups
    }

    fn load_balancers(&mut self) {
        const TABLE: &str = "Load_Balancer";
        let groups = self.dp_groups();
        for row in &self.rows.load_balancers {
            let own = row.datapaths.iter();
            let own = own.filter_map(|&uuid| self.datapath(TABLE, row.uuid, uuid));
            let mut datapaths: Vec<DatapathKey> = own.collect();
            let shared = [row.datapath_group, row.ls_datapath_group].into_iter().flatten();
            datapaths.extend(shared.filter_map(|group| groups.get(&group)).flatten());
            let vips = row.vips.iter().map(|(vip, backends)| (vip.as_str(), backends.as_str()));
            let source = row.options.get("hairpin_snat_ip").map(String::as_str);
            let protocol = row.protocol.as_deref();
            let mut load_balancer = LoadBalancer::parse(&row.name, protocol, vips, source);
            load_balancer.cookie = row.uuid.first_bits().into();
            let added = self.network.loader.add_load_balancer(&load_balancer, &datapaths);
            if let Err(error) = added {
                self.errors.push(error.into());
            }
        }
    }

    fn flows(&mut self) {
        const TABLE: &str = "Logical_Flow";
        let groups = self.dp_groups();
        for row in &self.rows.flows {
            let own = row.logical_datapath.map(|uuid| self.datapath(TABLE, row.uuid, uuid));
            let shared = row.logical_dp_group.map(|uuid| groups.get(&uuid));
            if let (Some(group), Some(None)) = (row.logical_dp_group, shared) {
                self.missing(TABLE, row.uuid, format!("datapath group {group}"));
            }
            let shared = shared.flatten().into_iter().flatten().copied();
            let datapaths: Vec<DatapathKey> = own.flatten().into_iter().chain(shared).collect();
            if let Err(error) = self.network.loader.add_flow(&logical_flow(row, datapaths)) {
                self.errors.push(error.into());
            }
        }
    }

    fn learned(&mut self) {
        for row in &self.rows.mac_bindings {
            let key = self.binding_key("MAC_Binding", row.uuid, row.datapath, &row.logical_port);
            if let Some((datapath, port)) = key {
                let key = MacBindingKey { datapath, port, ip: row.ip };
                self.network.learned.configure(LearnEvent::MacBinding(key, row.mac));
            }
        }
        for row in &self.rows.static_mac_bindings {
            let key =
                self.binding_key("Static_MAC_Binding", row.uuid, row.datapath, &row.logical_port);
            let Some((datapath, port)) = key else { continue };
            let key = MacBindingKey { datapath, port, ip: row.ip };
            let is_learned = self.network.learned.mac_binding(&key).0.is_some();
            if row.override_dynamic_mac || !is_learned {
                self.network.learned.configure(LearnEvent::MacBinding(key, row.mac));
            }
        }
        for row in &self.rows.fdb {
            let key = FdbKey { datapath: row.dp_key, vlan: 0, mac: row.mac };
            let location = FdbPort::Logical(row.port_key);
            self.network.learned.configure(LearnEvent::Fdb(key, location));
        }
    }

    fn binding_key(
        &mut self,
        table: &'static str,
        row: Uuid,
        datapath: Uuid,
        port: &str,
    ) -> Option<(DatapathKey, PortKey)> {
        let datapath = self.datapath(table, row, datapath)?;
        let found = self.by_name.get(port).map(|port| port.tunnel_key);
        if found.is_none() {
            self.missing(table, row, format!("port {port}"));
        }
        Some((datapath, found?))
    }
}

fn logical_flow(row: &FlowRow, datapaths: Vec<DatapathKey>) -> LogicalFlow {
    LogicalFlow {
        datapaths,
        direction: row.pipeline,
        table: row.table_id,
        priority: row.priority,
        stage: row.origin.stage.clone(),
        condition: row.condition.clone(),
        actions: row.actions.clone(),
        source: row.origin.source.clone(),
        // OVN uses the first 32 bits of the UUID as the cookie.
        cookie: row.uuid.first_bits().into(),
    }
}

/// Parses a number, address or subnet in the notation of the match language.
pub fn constant(text: &str) -> Option<Constant> {
    let mut lexer = Lexer::new(text);
    let TokenKind::Integer(constant) = lexer.advance().kind else { return None };
    (*lexer.kind() == TokenKind::End).then_some(constant)
}
