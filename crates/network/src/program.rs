//! The program of a host: logical flows and placement combined.

use crate::{LogicalNetwork, Placement};
use flow::PortKey;
use lflow::{FlowError, Loader};
use pipeline::{CtZones, LogicalPort, MulticastGroup, PortLocation, PortSecurity};

/// Loads the part of the logical network that a host needs. `file_name` is the file name in the
/// origin of each flow.
///
/// # Errors
/// A flow has a syntax error. That cannot happen with a checked network.
pub fn load_program(
    logical: &LogicalNetwork,
    placement: &Placement,
    file_name: &str,
) -> Result<Loader, Box<FlowError>> {
    let mut loader = Loader::default();
    add_datapaths(&mut loader, logical, placement);
    for (name, members) in &logical.address_sets {
        loader.set_address_set(name, members.iter().map(|&prefix| prefix.into()).collect());
    }
    for (name, members) in &logical.port_groups {
        loader.set_port_group(name, members.clone());
    }
    let program = loader.program_mut();
    for (&port, entry) in &placement.entries {
        program.set_port_role(port, entry.clone());
    }
    for (&(tunnel, key), &datapath) in &placement.tunnels {
        program.set_tunnel(tunnel, key, datapath);
    }
    for flow in &logical.flows {
        let here: Vec<_> = flow
            .datapaths
            .iter()
            .filter(|key| placement.datapaths.contains(key))
            .copied()
            .collect();
        if !here.is_empty() {
            loader.add_flow(&lflow::LogicalFlow {
                datapaths: here,
                direction: flow.stage.direction(),
                table: flow.stage.table(),
                priority: flow.priority,
                stage: flow.stage.name().to_owned(),
                condition: flow.condition.clone(),
                actions: flow.actions.clone(),
                source: match flow.line {
                    Some(line) => format!("{file_name}:{}", line.0),
                    None => file_name.to_owned(),
                },
                cookie: 0,
            })?;
        }
    }
    for (load_balancer, keys) in &logical.load_balancers {
        let here: Vec<_> =
            keys.iter().copied().filter(|key| placement.datapaths.contains(key)).collect();
        if !here.is_empty() {
            loader.add_load_balancer(load_balancer, &here)?;
        }
    }
    loader.program_mut().allocate_zones(&CtZones::default());
    Ok(loader)
}

fn add_datapaths(loader: &mut Loader, logical: &LogicalNetwork, placement: &Placement) {
    let here = logical.datapaths.iter().filter(|dp| placement.datapaths.contains(&dp.key));
    for datapath in here {
        loader.add_datapath(datapath.key, &datapath.name, datapath.kind);
        if let Some(entry) = loader.program_mut().datapath_mut(datapath.key) {
            entry.tunnel_key = datapath.tunnel_key;
            entry.underlay_group = placement.groups.get(&datapath.key).copied();
            entry.tunnel_inport =
                placement.tunnel_inports.get(&datapath.key).cloned().unwrap_or_default();
        }
        for port in &datapath.ports {
            let Some(&location) = placement.locations.get(&(datapath.key, port.key)) else {
                continue;
            };
            // Names and keys from the checked file are valid.
            let security = port.security.iter().map(ToString::to_string).collect::<Vec<_>>();
            let security = PortSecurity::parse_as_ovn(&security).0;
            loader.set_resident(
                &port.name,
                matches!(location, PortLocation::Local(_) | PortLocation::Patch { .. }),
            );
            let port_here = LogicalPort { name: port.name.clone(), location, security };
            loader.set_port(datapath.key, port.key, port_here);
        }
        let groups = [
            (PortKey::FLOOD, "_MC_flood", &datapath.flood),
            (PortKey::UNKNOWN, "_MC_unknown", &datapath.unknown),
        ];
        for (key, name, members) in groups {
            if let Some(members) = members {
                // Ports of pools without a device receive nothing.
                let is_bound = |port: &&PortKey| {
                    let location = placement.locations.get(&(datapath.key, **port));
                    location != Some(&PortLocation::Unbound)
                };
                let members = members.iter().filter(is_bound).copied().collect();
                let group = MulticastGroup { name: name.to_owned(), members };
                loader.set_multicast(datapath.key, key, group);
            }
        }
    }
}
