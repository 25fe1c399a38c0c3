//! The tables and columns that a chassis reads, of both databases. A column or table marked
//! optional is missing in older schemas of OVN.

use crate::monitored::{Scope, conditions};
use crate::settings::Settings;
use ovsdb::{Clause, Condition, Function, Table, TableRequest, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A string that is shared with the replica.
pub type Text = Arc<str>;
/// A column of keys and values.
pub type TextMap = BTreeMap<Text, Text>;

ovsdb::table! {
    /// The one row about this host.
    pub struct OpenVswitch: "Open_vSwitch" {
        pub bridges: "bridges" => BTreeSet<Uuid>,
        pub external_ids: "external_ids" => TextMap,
        pub ssl: "ssl" => Option<Uuid>,
        pub next_cfg: "next_cfg" => i64,
        pub cur_cfg: "cur_cfg" => i64,
        pub iface_types: "iface_types" => BTreeSet<Text>,
        pub datapath_types: "datapath_types" => BTreeSet<Text>,
    }
}

ovsdb::table! {
    /// The files of TLS.
    pub struct Ssl: "SSL" {
        pub private_key: "private_key" => String,
        pub certificate: "certificate" => String,
        pub ca_cert: "ca_cert" => String,
    }
}

ovsdb::table! {
    /// A bridge.
    pub struct Bridge: "Bridge" {
        pub name: "name" => Text,
        pub ports: "ports" => BTreeSet<Uuid>,
        pub external_ids: "external_ids" => TextMap,
    }
}

ovsdb::table! {
    /// A port of a bridge.
    pub struct Port: "Port" {
        pub name: "name" => Text,
        pub interfaces: "interfaces" => BTreeSet<Uuid>,
        pub vlan_mode: "vlan_mode" => Option<Text>,
        pub tag: "tag" => Option<i64>,
        pub trunks: "trunks" => BTreeSet<i64>,
        pub cvlans: "cvlans" or default => BTreeSet<i64>,
        pub external_ids: "external_ids" => TextMap,
    }
}

ovsdb::table! {
    /// An interface of a port.
    pub struct Interface: "Interface" {
        pub name: "name" => Text,
        pub kind: "type" => Text,
        pub options: "options" => TextMap,
        pub external_ids: "external_ids" => TextMap,
        pub ofport: "ofport" => Option<i64>,
        pub mtu_request: "mtu_request" => Option<i64>,
        pub error: "error" => Option<Text>,
        pub mac_in_use: "mac_in_use" => Option<Text>,
        pub ifindex: "ifindex" => Option<i64>,
        pub mtu: "mtu" => Option<i64>,
        pub admin_state: "admin_state" => Option<Text>,
        pub link_state: "link_state" => Option<Text>,
        pub statistics: "statistics" => BTreeMap<Text, i64>,
    }
}

ovsdb::table! {
    /// The one row about the deployment.
    pub struct SbGlobal: "SB_Global" {
        pub nb_cfg: "nb_cfg" => i64,
    }
}

ovsdb::table! {
    /// A host.
    pub struct Chassis: "Chassis" {
        pub name: "name" => Text,
        pub hostname: "hostname" => Text,
        pub encaps: "encaps" => BTreeSet<Uuid>,
        pub other_config: "other_config" => TextMap,
        pub transport_zones: "transport_zones" or default => BTreeSet<Text>,
    }
}

ovsdb::table! {
    /// The part of a host's state that no other host reads.
    pub struct ChassisPrivate: "Chassis_Private" {
        pub name: "name" => Text,
        pub chassis: "chassis" => Option<Uuid>,
        pub nb_cfg: "nb_cfg" => i64,
    }
}

ovsdb::table! {
    /// A tunnel end of a host.
    pub struct Encap: "Encap" {
        pub kind: "type" => Text,
        pub ip: "ip" => Text,
        pub options: "options" => TextMap,
        pub chassis_name: "chassis_name" => Text,
    }
}

ovsdb::table! {
    /// A logical switch or router.
    pub struct DatapathBinding: "Datapath_Binding" {
        pub tunnel_key: "tunnel_key" => i64,
        pub external_ids: "external_ids" => TextMap,
    }
}

ovsdb::table! {
    /// A logical port.
    pub struct PortBinding: "Port_Binding" {
        pub logical_port: "logical_port" => Text,
        pub kind: "type" => Text,
        pub datapath: "datapath" => Uuid,
        pub tunnel_key: "tunnel_key" => i64,
        pub options: "options" => TextMap,
        pub parent_port: "parent_port" => Option<Text>,
        pub tag: "tag" => Option<i64>,
        pub port_security: "port_security" => Vec<String>,
        pub chassis: "chassis" => Option<Uuid>,
        pub encap: "encap" => Option<Uuid>,
        pub mac: "mac" => Vec<String>,
        pub nat_addresses: "nat_addresses" => Vec<String>,
        pub ha_chassis_group: "ha_chassis_group" => Option<Uuid>,
        pub up: "up" or default => Option<bool>,
    }
}

ovsdb::table! {
    /// A logical flow.
    pub struct LogicalFlow: "Logical_Flow" {
        pub logical_datapath: "logical_datapath" => Option<Uuid>,
        pub logical_dp_group: "logical_dp_group" => Option<Uuid>,
        pub pipeline: "pipeline" => Text,
        pub table_id: "table_id" => i64,
        pub priority: "priority" => i64,
        pub condition: "match" => Text,
        pub actions: "actions" => Text,
        pub controller_meter: "controller_meter" or default => Option<Text>,
        pub external_ids: "external_ids" => TextMap,
    }
}

ovsdb::table! {
    /// A limit on packets for services, or on log records.
    pub struct Meter: "Meter" {
        pub name: "name" => Text,
        pub unit: "unit" => Text,
        pub bands: "bands" => BTreeSet<Uuid>,
    }
}

ovsdb::table! {
    /// The rate of a [`Meter`].
    pub struct MeterBand: "Meter_Band" {
        pub rate: "rate" => i64,
        pub burst_size: "burst_size" => i64,
    }
}

ovsdb::table! {
    /// Datapaths that share flows.
    pub struct LogicalDpGroup: "Logical_DP_Group" {
        pub datapaths: "datapaths" => Vec<Uuid>,
    }
}

ovsdb::table! {
    /// A load balancer of logical switches.
    pub struct LoadBalancer: "Load_Balancer" {
        pub name: "name" => Text,
        pub vips: "vips" => TextMap,
        pub protocol: "protocol" => Option<Text>,
        pub datapaths: "datapaths" => Vec<Uuid>,
        pub datapath_group: "datapath_group" or default => Option<Uuid>,
        pub ls_datapath_group: "ls_datapath_group" or default => Option<Uuid>,
        pub options: "options" => TextMap,
    }
}

ovsdb::table! {
    /// DNS names for which logical switches answer queries.
    pub struct Dns: "DNS" {
        pub records: "records" => TextMap,
        pub datapaths: "datapaths" => BTreeSet<Uuid>,
        pub options: "options" or default => TextMap,
    }
}

ovsdb::table! {
    /// The values of template variables on a host. Since OVN 22.12.
    pub struct ChassisTemplateVar: "Chassis_Template_Var" {
        pub chassis: "chassis" => Text,
        pub variables: "variables" => TextMap,
    }
}

ovsdb::table! {
    /// A multicast group.
    pub struct MulticastGroup: "Multicast_Group" {
        pub datapath: "datapath" => Uuid,
        pub name: "name" => Text,
        pub tunnel_key: "tunnel_key" => i64,
        pub ports: "ports" => Vec<Uuid>,
    }
}

ovsdb::table! {
    /// An address set.
    pub struct AddressSet: "Address_Set" {
        pub name: "name" => Text,
        pub addresses: "addresses" => Vec<Text>,
    }
}

ovsdb::table! {
    /// A port group, or the part of it in one datapath.
    pub struct PortGroup: "Port_Group" {
        pub name: "name" => Text,
        pub ports: "ports" => Vec<String>,
    }
}

ovsdb::table! {
    /// The learned MAC address of an IP address.
    pub struct MacBinding: "MAC_Binding" {
        pub logical_port: "logical_port" => Text,
        pub ip: "ip" => Text,
        pub mac: "mac" => Text,
        /// When it was learned, in milliseconds since 1970. Since OVN 22.09.
        pub timestamp: "timestamp" or default => i64,
    }
}

ovsdb::table! {
    /// The configured MAC address of an IP address.
    pub struct StaticMacBinding: "Static_MAC_Binding" {
        pub logical_port: "logical_port" => Text,
        pub ip: "ip" => Text,
        pub mac: "mac" => Text,
        pub override_dynamic_mac: "override_dynamic_mac" => bool,
    }
}

ovsdb::table! {
    /// The learned port of a MAC address.
    pub struct Fdb: "FDB" {
        pub mac: "mac" => Text,
        pub dp_key: "dp_key" => i64,
        pub port_key: "port_key" => i64,
        /// When it was learned, in milliseconds since 1970. Since OVN 23.09.
        pub timestamp: "timestamp" or default => i64,
    }
}

ovsdb::table! {
    /// The hosts that may serve a port.
    pub struct HaChassisGroup: "HA_Chassis_Group" {
        pub ha_chassis: "ha_chassis" => Vec<Uuid>,
    }
}

ovsdb::table! {
    /// A host of a [`HaChassisGroup`].
    pub struct HaChassis: "HA_Chassis" {
        pub chassis: "chassis" => Option<Uuid>,
        pub priority: "priority" => i64,
    }
}

ovsdb::table! {
    /// A backend whose health the host of its port checks.
    pub struct ServiceMonitor: "Service_Monitor" {
        pub ip: "ip" => Text,
        pub protocol: "protocol" => Option<Text>,
        pub port: "port" => i64,
        pub logical_port: "logical_port" => Text,
        pub src_mac: "src_mac" => Text,
        pub src_ip: "src_ip" => Text,
        pub status: "status" => Option<Text>,
        pub options: "options" => TextMap,
    }
}

/// The names of indexes.
pub mod index {
    /// By the column `name` or `logical_port`.
    pub const NAME: &str = "name";
    /// Datapaths and ports by their key in tunnels, FDB entries by their MAC address and datapath.
    pub const KEY: &str = "key";
    /// MAC bindings by logical port and IP address.
    pub const ADDRESS: &str = "address";
    /// Ports, flows, multicast groups and groups of datapaths by datapath.
    pub const DATAPATH: &str = "datapath";
    /// Ports by the host that they are bound to.
    pub const CHASSIS: &str = "chassis";
    /// Ports by the group of hosts that may serve them.
    pub const HA_GROUP: &str = "ha_group";
    /// Ports by the values of their options, which name other ports.
    pub const OPTIONS: &str = "options";
    /// Ports by their type.
    pub const KIND: &str = "kind";
    /// Ports of containers by their parent.
    pub const PARENT: &str = "parent";
    /// Flows by their group of datapaths.
    pub const DP_GROUP: &str = "dp_group";
    /// Multicast groups by their ports.
    pub const PORTS: &str = "ports";
}

/// The tables of the local database.
pub fn of_host() -> Vec<TableRequest> {
    vec![
        OpenVswitch::request(),
        Ssl::request(),
        Bridge::request().index(index::NAME, &["name"]),
        Port::request(),
        Interface::request(),
    ]
}

/// The tables of the southbound database, with the conditions before the first call of
/// [`Host::request_rows`]. Chassis_Private and Chassis_Template_Var are limited to the row of this
/// host, because each of thousands of hosts changes its own row at every change of the network.
///
/// [`Host::request_rows`]: crate::Host::request_rows
pub fn of_southbound(settings: &Settings) -> Vec<TableRequest> {
    let own =
        |column| Condition::any([Clause::new(column, Function::Equals, &*settings.system_id)]);
    let first = Scope { everything: settings.monitor_all, ..Scope::default() };
    let mut conditions: BTreeMap<&str, Condition> = conditions(&first).into_iter().collect();
    let tables = every_southbound_table().into_iter();
    tables
        .map(|table| match conditions.remove(&*table.name) {
            Some(condition) => table.matching(condition),
            None if &*table.name == ChassisPrivate::NAME => table.matching(own("name")),
            None if &*table.name == ChassisTemplateVar::NAME => table.matching(own("chassis")),
            None => table,
        })
        .collect()
}

fn every_southbound_table() -> Vec<TableRequest> {
    vec![
        SbGlobal::request(),
        Chassis::request().index(index::NAME, &["name"]),
        ChassisPrivate::request(),
        Encap::request(),
        DatapathBinding::request().index(index::KEY, &["tunnel_key"]),
        PortBinding::request()
            .index(index::NAME, &["logical_port"])
            .index(index::DATAPATH, &["datapath"])
            .index(index::KEY, &["datapath", "tunnel_key"])
            .index(index::KIND, &["type"])
            .index_elements(index::PARENT, "parent_port")
            .index_elements(index::CHASSIS, "chassis")
            .index_elements(index::HA_GROUP, "ha_chassis_group")
            .index_map_values(index::OPTIONS, "options"),
        LogicalFlow::request()
            .index_elements(index::DATAPATH, "logical_datapath")
            .index_elements(index::DP_GROUP, "logical_dp_group"),
        Meter::request().index(index::NAME, &["name"]),
        MeterBand::request(),
        LogicalDpGroup::request().index_elements(index::DATAPATH, "datapaths"),
        MulticastGroup::request()
            .index(index::DATAPATH, &["datapath"])
            .index_elements(index::PORTS, "ports"),
        LoadBalancer::request(),
        Dns::request(),
        ChassisTemplateVar::request().optional(),
        AddressSet::request(),
        PortGroup::request(),
        MacBinding::request()
            .index(index::NAME, &["logical_port"])
            .index(index::ADDRESS, &["logical_port", "ip"]),
        StaticMacBinding::request().optional().index(index::ADDRESS, &["logical_port", "ip"]),
        Fdb::request()
            .optional()
            .index(index::KEY, &["mac", "dp_key"])
            .index(index::PORTS, &["dp_key", "port_key"]),
        HaChassisGroup::request(),
        HaChassis::request(),
        ServiceMonitor::request().optional(),
    ]
}
