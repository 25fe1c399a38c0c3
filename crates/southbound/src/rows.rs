//! The types of rows.

use super::cell::{Cell, Value};
use super::error::SouthboundError;
use super::table::{Cells, Column, Row, rows};
use flow::{DatapathKey, PortKey};
use ovsdb::Uuid;
use pipeline::Direction;
use std::collections::BTreeMap;
use std::net::IpAddr;
use wire::MacAddr;

/// A map from strings to strings.
pub type StringMap = BTreeMap<String, String>;

impl Value for StringMap {
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
            // The default of a column that is missing.
            Cell::Set(elements) if elements.is_empty() => Some(Self::new()),
            _ => None,
        }
    }
}

rows! {
    /// A logical switch or router.
    DatapathBinding in "Datapath_Binding" {
        /// The tunnel key.
        tunnel_key: DatapathKey = "tunnel_key",
        /// The UUID of the row in the northbound database as `logical-switch` or `logical-router`,
        /// `name`, and others.
        external_ids: StringMap = "external_ids",
    } others ["load_balancers"];

    /// A port of a logical switch or router.
    PortBinding in "Port_Binding" {
        /// The name.
        logical_port: String = "logical_port",
        /// The type.
        kind: PortKind = "type",
        /// The datapath of the port.
        datapath: Uuid = "datapath",
        /// The key of the port in its datapath.
        tunnel_key: PortKey = "tunnel_key",
        /// `peer` of a patch port, and others.
        options: StringMap = "options",
        /// The addresses that the port may use.
        port_security: Vec<String> = "port_security",
        /// Strings `MAC IP...`, and words such as `unknown`.
        mac: Vec<String> = "mac",
        /// The host that the port is bound to.
        chassis: Option<Uuid> = "chassis",
        /// The parent port, which carries the frames of this port with a VLAN tag.
        parent_port: Option<String> = "parent_port",
        /// The VLAN ID of that tag, or of a localnet port.
        tag: Option<u16> = "tag",
    } others [
        "additional_chassis", "additional_encap", "encap", "external_ids", "gateway_chassis",
        "ha_chassis_group", "mirror_rules", "nat_addresses", "requested_additional_chassis",
        "requested_chassis", "up", "virtual_parent"
    ];

    /// A logical flow.
    LogicalFlow in "Logical_Flow" {
        /// The datapath of the flow, unless it applies to a group.
        logical_datapath: Option<Uuid> = "logical_datapath",
        /// The [`LogicalDpGroup`] of the flow.
        logical_dp_group: Option<Uuid> = "logical_dp_group",
        /// The pipeline.
        pipeline: Direction = "pipeline",
        /// The table in the pipeline.
        table_id: u8 = "table_id",
        /// The priority; the highest wins.
        priority: u16 = "priority",
        /// The match.
        condition: String = "match",
        /// The actions.
        actions: String = "actions",
        /// The origin.
        origin: FlowOrigin = "external_ids",
    } others ["controller_meter", "tags"];

    /// Datapaths that share flows.
    LogicalDpGroup in "Logical_DP_Group" {
        /// The datapaths.
        datapaths: Vec<Uuid> = "datapaths",
    } others [];

    /// A load balancer of logical switches.
    LoadBalancer in "Load_Balancer" {
        /// The name.
        name: String = "name",
        /// Virtual addresses, each with its backends: `IP:PORT` to `IP:PORT,IP:PORT`.
        vips: StringMap = "vips",
        /// `tcp`, `udp` or `sctp`.
        protocol: Option<String> = "protocol",
        /// The switches, in addition to those of the groups.
        datapaths: Vec<Uuid> = "datapaths",
        /// A [`LogicalDpGroup`] of switches, in OVN 23.03.
        datapath_group: Option<Uuid> = "datapath_group",
        /// A [`LogicalDpGroup`] of switches, in later versions.
        ls_datapath_group: Option<Uuid> = "ls_datapath_group",
        /// `hairpin_snat_ip`, and others.
        options: StringMap = "options",
    } others ["external_ids"];

    /// A multicast group.
    MulticastGroup in "Multicast_Group" {
        /// The datapath of the ports.
        datapath: Uuid = "datapath",
        /// The name.
        name: String = "name",
        /// The key of the group in its datapath, from 32768.
        tunnel_key: PortKey = "tunnel_key",
        /// The ports, rows of Port_Binding.
        ports: Vec<Uuid> = "ports",
    } others [];

    /// An address set, `$name` in matches.
    AddressSet in "Address_Set" {
        /// The name.
        name: String = "name",
        /// MAC addresses, or IP addresses and subnets, as in the language of matches.
        addresses: Vec<String> = "addresses",
    } others [];

    /// A port group, `@name` in matches.
    PortGroup in "Port_Group" {
        /// The name, with the prefix that [`PortGroup::group_name`] removes.
        name: String = "name",
        /// The names of the ports.
        ports: Vec<String> = "ports",
    } others [];

    /// The learned MAC address of an IP address.
    MacBinding in "MAC_Binding" {
        /// The port behind which the IP address is.
        logical_port: String = "logical_port",
        /// The IP address.
        ip: IpAddr = "ip",
        /// The MAC address.
        mac: MacAddr = "mac",
        /// The datapath of the port.
        datapath: Uuid = "datapath",
    } others ["timestamp"];

    /// The configured MAC address of an IP address.
    StaticMacBinding in "Static_MAC_Binding" {
        /// The port behind which the IP address is.
        logical_port: String = "logical_port",
        /// The IP address.
        ip: IpAddr = "ip",
        /// The MAC address.
        mac: MacAddr = "mac",
        /// True if it takes precedence over a learned binding.
        override_dynamic_mac: bool = "override_dynamic_mac",
        /// The datapath of the port.
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
        /// The name.
        name: String = "name",
        /// The DNS name.
        hostname: String = "hostname",
    } others [
        "encaps", "external_ids", "nb_cfg", "other_config", "transport_zones",
        "vtep_logical_switches"
    ];
}

impl DatapathBinding {
    /// The configured name, or the UUID of the row in the northbound database.
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
    /// The name as used in `@name`.
    pub fn group_name(&self) -> &str {
        port_group_name(&self.name)
    }
}

/// The name of a port group as used in `@name`. In its row, ovn-northd prefixes it with the key of
/// the datapath and `_`.
pub fn port_group_name(row_name: &str) -> &str {
    match row_name.split_once('_') {
        Some((number, name)) if number.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => row_name,
    }
}

/// The `type` of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortKind {
    /// A guest's interface.
    Vif,
    /// A patch port, whose peer is `options:peer`.
    Patch,
    /// A patch port of a gateway router that is bound to one host.
    L3Gateway,
    /// The centralized part of a distributed gateway port.
    ChassisRedirect,
    /// The connection to the physical network of the host.
    Localnet,
    /// A port that exists on every host and is reachable only from that host.
    Localport,
    /// Any other type.
    Other(String),
}

impl Value for PortKind {
    const EXPECTED: &'static str = "a string";

    fn of(cell: &Cell<'_>) -> Option<Self> {
        let Cell::Text(text) = cell else { return None };
        Some(Self::from(text.as_ref()))
    }
}

/// From the text in the database.
impl From<&str> for PortKind {
    fn from(text: &str) -> Self {
        match text {
            "" => Self::Vif,
            "patch" => Self::Patch,
            "l3gateway" => Self::L3Gateway,
            "chassisredirect" => Self::ChassisRedirect,
            "localnet" => Self::Localnet,
            "localport" => Self::Localport,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// The origin of a flow, from its `external_ids`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlowOrigin {
    /// `stage-name`, such as `ls_in_l2_lkup`; empty if missing.
    pub stage: String,
    /// `source`, such as `northd.c:7342`; empty if missing.
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
