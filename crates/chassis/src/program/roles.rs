//! [`PortRoles`]: which logical ports the ports of this host belong to.

use crate::tables::Text;
use flow::{DatapathKey, PortKey, PortNo};
use lflow::Loader;
use pipeline::PortRole;
use std::collections::{BTreeMap, HashMap};

/// A logical port: datapath and key.
type LogicalPortKey = (DatapathKey, PortKey);

/// The logical ports of each port of this host: its own, and those of containers behind it.
#[derive(Debug, Default)]
pub struct PortRoles(HashMap<PortNo, Members>);

#[derive(Debug, Default)]
struct Members {
    own: Option<LogicalPortKey>,
    /// The containers by VLAN ID, with their names.
    children: BTreeMap<u16, (LogicalPortKey, Text)>,
}

/// How a logical port is attached to a port of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The port.
    pub port: PortNo,
    /// The VLAN ID of a container.
    pub vlan: Option<u16>,
}

impl PortRoles {
    /// Attaches a logical port. False if another container already has the VLAN ID.
    pub fn attach(
        &mut self,
        loader: &mut Loader,
        at: Attached,
        logical: LogicalPortKey,
        name: &Text,
    ) -> bool {
        let members = self.0.entry(at.port).or_default();
        match at.vlan {
            None => members.own = Some(logical),
            Some(vlan) => match members.children.get(&vlan) {
                Some((other, _)) if *other != logical => return false,
                _ => drop(members.children.insert(vlan, (logical, name.clone()))),
            },
        }
        self.update(loader, at.port);
        true
    }

    /// Detaches a logical port, if it is attached there.
    pub fn detach(&mut self, loader: &mut Loader, at: Attached, logical: LogicalPortKey) {
        let Some(members) = self.0.get_mut(&at.port) else { return };
        match at.vlan {
            None if members.own == Some(logical) => members.own = None,
            Some(vlan) if members.children.get(&vlan).is_some_and(|(it, _)| *it == logical) => {
                members.children.remove(&vlan);
            }
            _ => return,
        }
        self.update(loader, at.port);
    }

    /// The containers behind a port, with their names.
    pub fn children(&self, port: PortNo) -> impl Iterator<Item = &(LogicalPortKey, Text)> {
        self.0.get(&port).into_iter().flat_map(|members| members.children.values())
    }

    fn update(&mut self, loader: &mut Loader, port: PortNo) {
        let Some(Members { own, children }) = self.0.get(&port) else { return };
        let role = match own {
            Some((datapath, port)) if children.is_empty() => {
                PortRole::Vif { datapath: *datapath, port: *port }
            }
            None if children.is_empty() => {
                self.0.remove(&port);
                loader.program_mut().remove_port_role(port);
                return;
            }
            own => {
                let children = children.iter().map(|(vlan, (logical, _))| (*vlan, *logical));
                PortRole::Parent { own: *own, children: children.collect() }
            }
        };
        loader.program_mut().set_port_role(port, role);
    }
}
