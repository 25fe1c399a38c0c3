//! The rows, as types.

use super::cell::{Cell, Value};
use super::error::SouthboundError;
use super::table::{Cells, Column, Row, rows};
use super::uuid::Uuid;
use flow::{DatapathKey, PortKey};
use pipeline::Direction;
use std::collections::BTreeMap;
use std::net::IpAddr;
use wire::MacAddr;

/// A map from strings to strings.
pub type Options = BTreeMap<String, String>;

impl Value for Options {
    const EXPECTED: &'static str = "a map of strings";
    const REQUIRED: bool = false;

    fn of(cell: &Cell<'_>) -> Option<Self> {
        let text = |cell: &Cell<'_>| match cell {
            Cell::Text(text) => Some(text.to_string()),
            _ => None,
        };
        match cell {
            Cell::Map(pairs) => {
                pairs.iter().map(|(key, value)| Some((text(key)?, text(value)?))).collect()
            }
            // What stands for a column that is not there.
            Cell::Set(elements) if elements.is_empty() => Some(Self::new()),
            _ => None,
        }
    }
}

rows! {
    /// A logical switch or router.
    DatapathBinding in "Datapath_Binding" {
        /// Its number.
        tunnel_key: DatapathKey = "tunnel_key",
        /// `logical-switch` or `logical-router` with the name of the row of the northbound database, `name`, and others.
        external_ids: Options = "external_ids",
    } others ["load_balancers"];

    /// A port of a logical switch or router.
    PortBinding in "Port_Binding" {
        /// Its name.
        logical_port: String = "logical_port",
        /// What it is.
        kind: PortKind = "type",
        /// Whose port it is.
        datapath: Uuid = "datapath",
        /// Its number there.
        tunnel_key: PortKey = "tunnel_key",
        /// `peer` of a patch port, and others.
        options: Options = "options",
        /// Which addresses it may use.
        port_security: Vec<String> = "port_security",
        /// `MAC IP...` texts, and words such as `unknown`.
        mac: Vec<String> = "mac",
        /// The host that has it.
        chassis: Option<Uuid> = "chassis",
        /// The port that carries its frames with a VLAN tag.
        parent_port: Option<String> = "parent_port",
        /// That tag, or that of a localnet port.
        tag: Option<u16> = "tag",
    } others [
        "additional_chassis", "additional_encap", "encap", "external_ids", "gateway_chassis", "ha_chassis_group",
        "mirror_rules", "nat_addresses", "requested_additional_chassis", "requested_chassis", "up", "virtual_parent"
    ];

    /// A flow.
    LogicalFlow in "Logical_Flow" {
        /// The datapath it is for, unless it is for a group of them.
        logical_datapath: Option<Uuid> = "logical_datapath",
        /// The [`LogicalDpGroup`] it is for.
        logical_dp_group: Option<Uuid> = "logical_dp_group",
        /// The pipeline.
        pipeline: Direction = "pipeline",
        /// The table in it.
        table_id: u8 = "table_id",
        /// Higher wins.
        priority: u16 = "priority",
        /// The match.
        condition: String = "match",
        /// The actions.
        actions: String = "actions",
        /// Where it comes from.
        origin: FlowOrigin = "external_ids",
    } others ["controller_meter", "tags"];

    /// Datapaths that have flows in common.
    LogicalDpGroup in "Logical_DP_Group" {
        /// The datapaths.
        datapaths: Vec<Uuid> = "datapaths",
    } others [];

    /// Several ports under one name.
    MulticastGroup in "Multicast_Group" {
        /// Whose ports they are.
        datapath: Uuid = "datapath",
        /// Its name.
        name: String = "name",
        /// Its number, from 32768.
        tunnel_key: PortKey = "tunnel_key",
        /// The ports, rows of Port_Binding.
        ports: Vec<Uuid> = "ports",
    } others [];

    /// What `$name` means.
    AddressSet in "Address_Set" {
        /// Its name.
        name: String = "name",
        /// MAC addresses, or IP addresses and subnets, as in the language of matches.
        addresses: Vec<String> = "addresses",
    } others [];

    /// What `@name` means.
    PortGroup in "Port_Group" {
        /// Its name; see [`PortGroup::group_name`].
        name: String = "name",
        /// The names of the ports.
        ports: Vec<String> = "ports",
    } others [];

    /// The MAC address of an IP address, learnt.
    MacBinding in "MAC_Binding" {
        /// Behind which port it is.
        logical_port: String = "logical_port",
        /// The IP address.
        ip: IpAddr = "ip",
        /// The MAC address.
        mac: MacAddr = "mac",
        /// Where the port is.
        datapath: Uuid = "datapath",
    } others ["timestamp"];

    /// The MAC address of an IP address, configured.
    StaticMacBinding in "Static_MAC_Binding" {
        /// Behind which port it is.
        logical_port: String = "logical_port",
        /// The IP address.
        ip: IpAddr = "ip",
        /// The MAC address.
        mac: MacAddr = "mac",
        /// Counts for more than what is learnt.
        override_dynamic_mac: bool = "override_dynamic_mac",
        /// Where the port is.
        datapath: Uuid = "datapath",
    } others [];

    /// The port behind which a MAC address was seen.
    FdbEntry in "FDB" {
        /// The MAC address.
        mac: MacAddr = "mac",
        /// The logical switch.
        dp_key: DatapathKey = "dp_key",
        /// The port.
        port_key: PortKey = "port_key",
    } others [];

    /// A host.
    Chassis in "Chassis" {
        /// Its name.
        name: String = "name",
        /// Its name in the DNS.
        hostname: String = "hostname",
    } others [
        "encaps", "external_ids", "nb_cfg", "other_config", "transport_zones", "vtep_logical_switches"
    ];
}

impl DatapathBinding {
    /// The name that people gave it, or that of its row in the northbound database.
    pub fn name(&self) -> String {
        ["name", "logical-switch", "logical-router"]
            .iter()
            .find_map(|key| self.external_ids.get(*key))
            .map_or_else(|| self.uuid.to_string(), String::clone)
    }

    /// True for a router, false for a switch.
    pub fn is_router(&self) -> bool {
        self.external_ids.contains_key("logical-router")
    }
}

impl PortGroup {
    /// The name in `@name`: ovn-northd puts the number of the datapath, and `_`, in front of it.
    pub fn group_name(&self) -> &str {
        match self.name.split_once('_') {
            Some((number, name)) if number.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => &self.name,
        }
    }
}

/// The `type` of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortKind {
    /// A guest's interface.
    Vif,
    /// One end of a cable whose other end is `options:peer`.
    Patch,
    /// The same on a gateway that is bound to one host.
    L3Gateway,
    /// The place of a distributed port's centralized traffic.
    ChassisRedirect,
    /// The network that the host's uplink is in.
    Localnet,
    /// A port that is on every host and reaches only that host.
    Localport,
    /// Any other.
    Other(String),
}

impl Value for PortKind {
    const EXPECTED: &'static str = "a string";

    fn of(cell: &Cell<'_>) -> Option<Self> {
        let Cell::Text(text) = cell else { return None };
        Some(match text.as_ref() {
            "" => Self::Vif,
            "patch" => Self::Patch,
            "l3gateway" => Self::L3Gateway,
            "chassisredirect" => Self::ChassisRedirect,
            "localnet" => Self::Localnet,
            "localport" => Self::Localport,
            other => Self::Other(other.to_owned()),
        })
    }
}

/// Where a flow comes from: part of its `external_ids`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlowOrigin {
    /// `stage-name`, such as `ls_in_l2_lkup`; empty when it is not given.
    pub stage: String,
    /// `source`, such as `northd.c:7342`; empty when it is not given.
    pub source: String,
}

impl Value for FlowOrigin {
    const EXPECTED: &'static str = "a map of strings";
    const REQUIRED: bool = false;

    fn of(cell: &Cell<'_>) -> Option<Self> {
        let pairs = match cell {
            Cell::Map(pairs) => pairs.as_slice(),
            Cell::Set(elements) if elements.is_empty() => &[],
            _ => return None,
        };
        let mut origin = Self::default();
        for pair in pairs {
            let (Cell::Text(key), Cell::Text(value)) = pair else { return None };
            match key.as_ref() {
                "stage-name" => origin.stage = value.to_string(),
                "source" => origin.source = value.to_string(),
                _ => {}
            }
        }
        Some(origin)
    }
}
