//! A network with its program; packets are written in the logical language.

pub mod mac_table;

use flow::{EndpointId, Field, FlowKey, PortNo};
use lflow::expr::parse_microflow;
use lflow::{Constant, Scope};
use network::{LogicalNetwork, Network, Placement, RemoteEnd, load_program, logical_flows};
use pipeline::{LearnEvent, LearnedState, PortRole, Program, trace, translate};
use std::collections::BTreeMap;

pub struct Net {
    pub network: Network,
    pub placement: Placement,
    pub logical: LogicalNetwork,
    pub program: Program,
    ports: BTreeMap<String, PortNo>,
}

impl Net {
    /// Builds the program with all guests on one host.
    pub fn whole(text: &str) -> Self {
        Self::new(text, Placement::of_all)
    }

    /// Builds the program of one host. End points are numbered by tunnel type and host, and 99 is a
    /// multicast group.
    pub fn on(host: &str, text: &str) -> Self {
        Self::new(text, |network| {
            let host = network.host(host).unwrap().index;
            let mut ports = 0;
            let number = |_: &_, _: &_| {
                ports += 1;
                PortNo(ports)
            };
            Placement::of_host(network, host, number, |tunnel, far| {
                let number = match far {
                    RemoteEnd::Host(host) => host.value() as u32,
                    RemoteEnd::Group(_) => 99,
                };
                Some(EndpointId(tunnel as u32 * 100 + number))
            })
        })
    }

    fn new(text: &str, placement: impl Fn(&Network) -> Placement) -> Self {
        let network = Network::parse(text, "net.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let logical = logical_flows(&network);
        let placement = placement(&network);
        let loader = load_program(&logical, &placement, "net.toml")
            .unwrap_or_else(|error| panic!("{error}"));
        let mut ports = BTreeMap::new();
        for (number, entry) in &placement.entries {
            if let PortRole::Vif { datapath, port } = entry {
                let datapath = logical.datapaths.iter().find(|d| d.key == *datapath).unwrap();
                let port = datapath.ports.iter().find(|p| p.key == *port).unwrap();
                ports.insert(port.name.clone(), *number);
            }
        }
        Self { network, placement, logical, program: loader.program(), ports }
    }

    /// The actions for a packet that a guest sends.
    pub fn send(&self, from: &str, packet: &str) -> String {
        self.send_knowing(from, packet, &())
    }

    /// Like [`Net::send`], with learned state.
    pub fn send_knowing(&self, from: &str, packet: &str, state: &impl LearnedState) -> String {
        let mut key = self.key(packet);
        key.set(Field::InPort, self.ports[from].0.into());
        trace(&self.program, &key, state, &Default::default()).0.actions
    }

    /// The actions for a received packet; `enter` sets its ingress in the key.
    pub fn receive(&self, packet: &str, enter: impl FnOnce(&mut FlowKey)) -> String {
        self.receive_knowing(packet, enter, &())
    }

    /// Like [`Net::receive`], with learned state.
    pub fn receive_knowing(
        &self,
        packet: &str,
        enter: impl FnOnce(&mut FlowKey),
        state: &impl LearnedState,
    ) -> String {
        let mut key = self.key(packet);
        enter(&mut key);
        trace(&self.program, &key, state, &Default::default()).0.actions
    }

    /// The learn events of a received packet; `enter` sets its ingress in the key.
    pub fn learn_events_entering(
        &self,
        packet: &str,
        enter: impl FnOnce(&mut FlowKey),
    ) -> Vec<LearnEvent> {
        let mut key = self.key(packet);
        enter(&mut key);
        translate(&self.program, &key, &(), &mut ()).learn_events
    }

    /// The learn events of a packet that a guest sends.
    pub fn learn_events(&self, from: &str, packet: &str) -> Vec<LearnEvent> {
        self.learn_events_with(from, packet, &())
    }

    /// Like [`Net::learn_events`], with learned state.
    pub fn learn_events_with(
        &self,
        from: &str,
        packet: &str,
        state: &impl LearnedState,
    ) -> Vec<LearnEvent> {
        let mut key = self.key(packet);
        key.set(Field::InPort, self.ports[from].0.into());
        translate(&self.program, &key, state, &mut ()).learn_events
    }

    /// The datapath port of a guest.
    pub fn port(&self, name: &str) -> PortNo {
        self.ports[name]
    }

    fn key(&self, packet: &str) -> FlowKey {
        parse_microflow(packet, self).unwrap_or_else(|error| panic!("{error}: {packet}")).key
    }
}

impl Scope for Net {
    fn port(&self, name: &str) -> Option<u16> {
        self.ports.contains_key(name).then_some(1)
    }

    fn address_set(&self, _: &str) -> Option<&[Constant]> {
        None
    }

    fn port_group(&self, _: &str) -> Option<lflow::PortGroupMembers> {
        None
    }

    fn is_chassis_resident(&self, _: &str) -> bool {
        true
    }
}
