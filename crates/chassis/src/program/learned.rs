//! MAC bindings and FDB entries of the southbound database.

use super::{ProgramBuilder, datapath_key, ports};
use crate::tables::{DatapathBinding, Fdb, MacBinding, StaticMacBinding};
use flow::{DatapathKey, PortKey};
use ovsdb::Replica;
use pipeline::{FdbKey, FdbPort, LearnEvent, MacBindingKey};
use std::collections::BTreeMap;

impl ProgramBuilder {
    /// True if a table that [`learned`] reads is among these.
    pub fn is_about_learned(table: &str) -> bool {
        matches!(table, "MAC_Binding" | "Static_MAC_Binding" | "FDB" | "Port_Binding")
    }
}

/// The MAC bindings and FDB entries of the database. Invalid rows are ignored.
pub fn learned(replica: &Replica) -> Vec<LearnEvent> {
    let key = |port: &str, ip: &str| {
        let row = ports::port_named(replica, port)?;
        let datapath = datapath_key(&replica.get::<DatapathBinding>(row.datapath)?)?;
        let port = u16::try_from(row.tunnel_key).ok().and_then(PortKey::new)?;
        Some(MacBindingKey { datapath, port, ip: ip.parse().ok()? })
    };
    let mut bindings = BTreeMap::new();
    for (_, row) in replica.rows::<MacBinding>() {
        if let (Some(key), Ok(mac)) = (key(&row.logical_port, &row.ip), row.mac.parse()) {
            bindings.insert(key, mac);
        }
    }
    for (_, row) in replica.rows::<StaticMacBinding>() {
        if let (Some(key), Ok(mac)) = (key(&row.logical_port, &row.ip), row.mac.parse())
            && (row.override_dynamic_mac || !bindings.contains_key(&key))
        {
            bindings.insert(key, mac);
        }
    }
    let bindings = bindings.into_iter().map(|(key, mac)| LearnEvent::MacBinding(key, mac));
    let stations = replica.rows::<Fdb>().filter_map(|(_, row)| {
        let datapath = u32::try_from(row.dp_key).ok().map(DatapathKey)?;
        let port = u16::try_from(row.port_key).ok().and_then(PortKey::new)?;
        let key = FdbKey { datapath, vlan: 0, mac: row.mac.parse().ok()? };
        Some(LearnEvent::Fdb(key, FdbPort::Logical(port)))
    });
    bindings.chain(stations).collect()
}
