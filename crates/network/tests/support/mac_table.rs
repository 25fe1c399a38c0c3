//! [`MacTable`]: the actions for a frame, from its ingress and destination MAC address alone. It is
//! the oracle for networks of switches.
//!
//! Broadcast and multicast reach every other port of the logical switch, and each remote host once.
//! A frame from the underlay never returns to it (split horizon).

use flow::{
    Action, DatapathKey, DropReason, EndpointId, LogicalPorts, PortKey, PortNo, TagLink, TunnelKey,
    TunnelType,
};
use std::collections::HashMap;
use wire::MacAddr;

/// How a logical switch reaches other hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwitchLink {
    /// Through tunnels to remote end points.
    Tunnel {
        /// The tunnel type.
        tunnel: TunnelType,
        /// Whether the tunnel header carries logical ports.
        logical_ports: bool,
    },
    /// With VLAN tags on the uplink.
    Tags {
        /// The uplink.
        uplink: PortNo,
        /// The tags.
        link: TagLink,
    },
}

/// Where a logical port is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortPlace {
    /// On this host.
    Local(PortNo),
    /// Behind a remote end point.
    Remote(EndpointId),
    /// Somewhere behind the uplink, for switches with VLAN tags.
    Uplink,
}

/// Where a frame entered the datapath.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ingress {
    /// From a local guest.
    Vif(PortNo),
    /// From a tunnel, or from the uplink without its tags.
    Tunnel {
        /// The tunnel's type: the same VNI may belong to different switches in different types.
        tunnel: TunnelType,
        /// The contents of its header.
        key: TunnelKey,
    },
}

#[derive(Clone, Copy, Debug)]
struct Station {
    place: PortPlace,
    key: PortKey,
}

#[derive(Debug)]
struct Switch {
    key: DatapathKey,
    link: SwitchLink,
    stations: HashMap<MacAddr, Station>,
    /// The local ports, in the order of flooding.
    local: Vec<PortNo>,
    /// The local ports by their key in tunnel headers.
    local_by_key: HashMap<PortKey, PortNo>,
    /// The end points with ports of the switch behind them, each once.
    remote: Vec<EndpointId>,
}

/// A table that is built once from a configuration.
#[derive(Debug, Default)]
pub struct MacTable {
    switches: Vec<Switch>,
    vifs: HashMap<PortNo, (usize, PortKey)>,
    by_key: HashMap<(TunnelType, DatapathKey), usize>,
}

impl MacTable {
    /// Adds a logical switch and returns its index for [`MacTable::add_port`].
    pub fn add_switch(&mut self, key: DatapathKey, link: SwitchLink) -> usize {
        let place = self.switches.len();
        let tunnel = match link {
            SwitchLink::Tunnel { tunnel, .. } => tunnel,
            SwitchLink::Tags { link, .. } => link.tunnel(),
        };
        let taken = self.by_key.insert((tunnel, key), place);
        assert!(taken.is_none(), "two switches of key {key}");
        self.switches.push(Switch {
            key,
            link,
            stations: HashMap::default(),
            local: Vec::new(),
            local_by_key: HashMap::default(),
            remote: Vec::new(),
        });
        place
    }

    /// Adds a logical port to the switch at the index `switch`.
    pub fn add_port(&mut self, switch: usize, key: PortKey, mac: MacAddr, place: PortPlace) {
        let entry = &mut self.switches[switch];
        let taken = entry.stations.insert(mac, Station { place, key });
        assert!(taken.is_none(), "two ports of {mac}");
        match place {
            PortPlace::Local(port) => {
                self.vifs.insert(port, (switch, key));
                entry.local_by_key.insert(key, port);
                entry.local.push(port);
            }
            PortPlace::Remote(endpoint) => {
                if !entry.remote.contains(&endpoint) {
                    entry.remote.push(endpoint);
                }
            }
            PortPlace::Uplink => {}
        }
    }

    /// Replaces `actions` by those for a frame from `source` to `destination` that entered at
    /// `ingress`. There is at least one action; the default is [`Action::Drop`].
    pub fn look_up(
        &self,
        ingress: Ingress,
        source: MacAddr,
        destination: MacAddr,
        actions: &mut Vec<Action>,
    ) {
        actions.clear();
        let result = if source.is_multicast() {
            Err(DropReason::BadSourceMac)
        } else {
            match ingress {
                Ingress::Vif(port) => self.act_on_vif(port, destination, actions),
                Ingress::Tunnel { tunnel, key } => {
                    self.act_on_tunnel(tunnel, key, destination, actions)
                }
            }
        };
        if let Err(reason) = result {
            actions.clear();
            actions.push(Action::Drop(reason));
        } else if actions.is_empty() {
            actions.push(Action::Drop(DropReason::NoReceiver));
        }
    }

    fn act_on_vif(
        &self,
        port: PortNo,
        destination: MacAddr,
        actions: &mut Vec<Action>,
    ) -> Result<(), DropReason> {
        let &(switch, ingress) = self.vifs.get(&port).ok_or(DropReason::NoSuchPort)?;
        let switch = &self.switches[switch];
        if destination.is_multicast() {
            switch.flood_local(Some(port), actions);
            switch.flood_remote(ingress, actions);
            return Ok(());
        }
        let station = switch.stations.get(&destination).ok_or(DropReason::UnknownMac)?;
        match station.place {
            PortPlace::Local(out) if out == port => return Err(DropReason::Hairpin),
            PortPlace::Local(out) => actions.push(Action::Output(out)),
            PortPlace::Remote(endpoint) => {
                actions.push(switch.encap(endpoint, ingress, station.key))
            }
            PortPlace::Uplink => switch.output_tagged(actions),
        }
        Ok(())
    }

    fn act_on_tunnel(
        &self,
        tunnel: TunnelType,
        key: TunnelKey,
        destination: MacAddr,
        actions: &mut Vec<Action>,
    ) -> Result<(), DropReason> {
        let &switch =
            self.by_key.get(&(tunnel, key.datapath)).ok_or(DropReason::UnknownDatapath)?;
        let switch = &self.switches[switch];
        match key.ports {
            // The ingress host has already chosen the port.
            Some(LogicalPorts { egress, .. }) if !egress.is_group() => {
                let port =
                    switch.local_by_key.get(&egress).ok_or(DropReason::UnknownLogicalPort)?;
                actions.push(Action::Output(*port));
                Ok(())
            }
            Some(LogicalPorts { egress, .. }) if egress != PortKey::FLOOD => {
                Err(DropReason::UnknownLogicalPort)
            }
            Some(_) => {
                switch.flood_local(None, actions);
                Ok(())
            }
            None => switch.deliver(destination, actions),
        }
    }
}

impl Switch {
    /// Sends to the local port that owns `destination`, or to all for a group address.
    fn deliver(&self, destination: MacAddr, actions: &mut Vec<Action>) -> Result<(), DropReason> {
        if destination.is_multicast() {
            self.flood_local(None, actions);
            return Ok(());
        }
        match self.stations.get(&destination).map(|station| station.place) {
            Some(PortPlace::Local(port)) => {
                actions.push(Action::Output(port));
                Ok(())
            }
            Some(PortPlace::Remote(_) | PortPlace::Uplink) => Err(DropReason::Hairpin),
            None => Err(DropReason::UnknownMac),
        }
    }

    fn flood_local(&self, except: Option<PortNo>, actions: &mut Vec<Action>) {
        let others = self.local.iter().filter(|port| Some(**port) != except);
        actions.extend(others.map(|&port| Action::Output(port)));
    }

    fn flood_remote(&self, ingress: PortKey, actions: &mut Vec<Action>) {
        if matches!(self.link, SwitchLink::Tags { .. }) {
            self.output_tagged(actions);
        } else {
            actions.extend(self.remote.iter().map(|&e| self.encap(e, ingress, PortKey::FLOOD)));
        }
    }

    fn encap(&self, endpoint: EndpointId, ingress: PortKey, egress: PortKey) -> Action {
        let ports = match self.link {
            SwitchLink::Tunnel { logical_ports: true, .. } => {
                Some(LogicalPorts { ingress: Some(ingress), egress })
            }
            _ => None,
        };
        Action::Encap { endpoint, key: TunnelKey { datapath: self.key, ports } }
    }

    fn output_tagged(&self, actions: &mut Vec<Action>) {
        let SwitchLink::Tags { uplink, link } = self.link else { return };
        let (outer, inner) = link.tags();
        actions.extend(inner.map(Action::PushVlan));
        actions.push(Action::PushVlan(outer));
        actions.push(Action::Output(uplink));
        actions.push(Action::PopVlan);
        actions.extend(inner.map(|_| Action::PopVlan));
    }
}
