//! Steps that query learned state and raise learn events.

use super::translator::{Packet, Translator};
use crate::observer::{Event, Observer};
use crate::op::{Direction, LearnedOp, Operand};
use crate::state::{
    Dependency, FdbKey, FdbPort, LearnEvent, LearnedState, MacBindingKey, StateQuery,
};
use flow::{DropReason, Field, PortKey, Subfield};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::MacAddr;

impl<'p, S: LearnedState, O: Observer> Translator<'p, '_, S, O> {
    pub fn execute_learned_op(&mut self, packet: &mut Packet<'p>, op: &LearnedOp) {
        match *op {
            LearnedOp::GetMacBinding { port, ip } => self.get_mac_binding(packet, port, ip),
            LearnedOp::LookupMacBinding { to, port, ip, mac } => {
                self.lookup_mac_binding(packet, to, port, ip, mac);
            }
            LearnedOp::PutMacBinding { port, ip, mac } => {
                self.put_mac_binding(packet, port, ip, mac)
            }
            LearnedOp::GetFdb { to, mac } => self.get_fdb(packet, to, mac),
            LearnedOp::LookupFdb { to, port, mac } => {
                self.lookup_fdb(packet, to, port, mac);
            }
            LearnedOp::PutFdb { port, mac } => self.put_fdb(packet, port, mac),
            LearnedOp::UseMacBinding => self.use_mac_binding(packet),
            LearnedOp::CheckAffinity { to } => self.check_affinity(packet, to),
            LearnedOp::LearnAffinity(ref rule) => self.learn_affinity(packet, rule),
            LearnedOp::CheckNextHop { to, forward } => self.check_next_hop(packet, to, forward),
            LearnedOp::LearnNextHop => self.learn_next_hop(packet),
        }
    }

    fn operand(&mut self, packet: &mut Packet<'p>, operand: Operand) -> u128 {
        match operand {
            Operand::Bits(bits) => self.read_bits(packet, bits),
            Operand::Constant { value, .. } => value,
        }
    }

    fn port_operand(&mut self, packet: &mut Packet<'p>, operand: Operand) -> Option<PortKey> {
        u16::try_from(self.operand(packet, operand)).ok().and_then(PortKey::new)
    }

    fn mac_operand(&mut self, packet: &mut Packet<'p>, operand: Operand) -> MacAddr {
        mac_from_bits(self.operand(packet, operand))
    }

    fn mac_binding_key(
        &mut self,
        packet: &mut Packet<'p>,
        port: Operand,
        ip: Operand,
    ) -> Option<MacBindingKey> {
        let port = self.port_operand(packet, port)?;
        let address = self.operand(packet, ip);
        let ip = if ip.width() == 32 {
            IpAddr::V4(Ipv4Addr::from_bits(address as u32))
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(address))
        };
        Some(MacBindingKey { datapath: packet.datapath.0, port, ip })
    }

    fn query_mac_binding(&mut self, key: MacBindingKey) -> Option<MacAddr> {
        let (answer, generation) = self.state.mac_binding(&key);
        let query = StateQuery::MacBinding(key);
        self.add_dependency(Dependency { query, generation, confirms: true });
        answer
    }

    /// The port of the station that the packet is sent to.
    pub fn query_fdb(&mut self, key: FdbKey) -> Option<FdbPort> {
        let (answer, generation) = self.state.fdb_port(&key);
        let query = StateQuery::Fdb(key);
        self.add_dependency(Dependency { query, generation, confirms: false });
        answer
    }

    /// True if the sender of the packet was learned behind this port.
    pub fn is_known_sender(&mut self, key: FdbKey, port: FdbPort) -> bool {
        let (answer, generation) = self.state.fdb_port(&key);
        let (query, confirms) = (StateQuery::Fdb(key), answer == Some(port));
        self.add_dependency(Dependency { query, generation, confirms });
        confirms
    }

    pub fn add_dependency(&mut self, dependency: Dependency) {
        let Dependency { query, generation, confirms } = dependency;
        let mut known = self.dependencies.iter_mut();
        match known.find(|known| (known.query, known.generation) == (query, generation)) {
            Some(known) => known.confirms |= confirms,
            None => self.dependencies.push(dependency),
        }
    }

    pub fn raise_learn_event(&mut self, event: LearnEvent) {
        if !self.learn_events.contains(&event) {
            self.learn_events.push(event);
        }
    }

    fn get_mac_binding(&mut self, packet: &mut Packet<'p>, port: Operand, ip: Operand) {
        let key = self.mac_binding_key(packet, port, ip);
        let mac = key.and_then(|key| self.query_mac_binding(key));
        match (key, mac) {
            (Some(key), Some(mac)) => {
                self.note(|| format!("{} is at {mac}", key.ip));
            }
            _ => self.note(|| "the MAC address is unknown".to_owned()),
        }
        self.write(packet, Field::EthDst.into(), mac_to_bits(mac.unwrap_or(MacAddr::ZERO)));
    }

    fn lookup_mac_binding(
        &mut self,
        packet: &mut Packet<'p>,
        to: Subfield,
        port: Operand,
        ip: Operand,
        mac: Option<Operand>,
    ) {
        let key = self.mac_binding_key(packet, port, ip);
        let bound = key.and_then(|key| self.query_mac_binding(key));
        let wanted = mac.map(|mac| self.mac_operand(packet, mac));
        let found = bound.is_some_and(|bound| wanted.is_none_or(|wanted| wanted == bound));
        self.assign(packet, to, found.into());
    }

    fn put_mac_binding(
        &mut self,
        packet: &mut Packet<'p>,
        port: Operand,
        ip: Operand,
        mac: Operand,
    ) {
        let Some(key) = self.mac_binding_key(packet, port, ip) else { return };
        let mac = self.mac_operand(packet, mac);
        // The query makes the megaflow depend on the entry: it is retranslated when the entry is
        // learned or ages out.
        if self.query_mac_binding(key) != Some(mac) {
            self.raise_learn_event(LearnEvent::MacBinding(key, mac));
        }
    }

    /// Makes the megaflow depend on the MAC binding of the sender, so that its packets keep the
    /// binding from ageing out.
    fn use_mac_binding(&mut self, packet: &mut Packet<'p>) {
        let port = self.port_operand(packet, Field::Reg14.into());
        if let (Some(port), Some((ip, _))) = (port, self.ip_addresses(packet)) {
            let sender = mac_from_bits(self.read_field(packet, Field::EthSrc));
            let key = MacBindingKey { datapath: packet.datapath.0, port, ip };
            let (answer, generation) = self.state.mac_binding(&key);
            let (query, confirms) = (StateQuery::MacBinding(key), answer == Some(sender));
            self.add_dependency(Dependency { query, generation, confirms });
        }
    }

    fn fdb_key(&mut self, packet: &mut Packet<'p>, mac: Operand) -> FdbKey {
        let mac = self.mac_operand(packet, mac);
        FdbKey { datapath: packet.datapath.0, vlan: 0, mac }
    }

    fn get_fdb(&mut self, packet: &mut Packet<'p>, to: Subfield, mac: Operand) {
        let key = self.fdb_key(packet, mac);
        let port = match self.query_fdb(key) {
            Some(FdbPort::Logical(port)) => port.value().into(),
            _ => 0,
        };
        self.assign(packet, to, port);
    }

    fn lookup_fdb(&mut self, packet: &mut Packet<'p>, to: Subfield, port: Operand, mac: Operand) {
        let key = self.fdb_key(packet, mac);
        let port = self.port_operand(packet, port);
        let found = port.is_some_and(|port| self.is_known_sender(key, FdbPort::Logical(port)));
        self.assign(packet, to, found.into());
    }

    fn put_fdb(&mut self, packet: &mut Packet<'p>, port: Operand, mac: Operand) {
        let key = self.fdb_key(packet, mac);
        let Some(port) = self.port_operand(packet, port) else { return };
        if !key.mac.is_unicast() {
            return;
        }
        let fdb_port = FdbPort::Logical(port);
        if !self.is_known_sender(key, fdb_port) {
            self.raise_learn_event(LearnEvent::Fdb(key, fdb_port));
        }
    }

    pub fn port_security(&mut self, packet: &mut Packet<'p>, to: Subfield, direction: Direction) {
        let field = match direction {
            Direction::Ingress => Field::Reg14,
            Direction::Egress => Field::Reg15,
        };
        let port = self.port_operand(packet, field.into());
        if let Some(port) = port {
            self.reads_port(packet, port);
        }
        let port = port.and_then(|port| packet.datapath.1.ports.get(&port));
        let mut recorder = packet.key.recorder(&mut self.read);
        let forbidden = port.is_some_and(|port| port.security.forbids(direction, &mut recorder));
        drop(recorder);
        self.assign(packet, to, forbidden.into());
    }

    /// The `NORMAL` action of ovs-ofctl: forwards like a learning switch.
    pub fn normal(&mut self, packet: &mut Packet<'p>) {
        let source = mac_from_bits(self.read_field(packet, Field::EthSrc));
        let target = self.read_field(packet, Field::EthDst);
        let vlan = self.read_bits(packet, VLAN_ID) as u16;
        if source.is_multicast() {
            packet.reason = DropReason::BadSourceMac;
            return;
        }
        // A flow may have set another ingress port, which may not exist.
        if !packet.datapath.1.bridge_ports.contains_key(&packet.in_port) {
            packet.reason = DropReason::NoSuchPort;
            return;
        }
        let datapath = packet.datapath.0;
        let key = |mac| FdbKey { datapath, vlan, mac };
        let here = FdbPort::Port(packet.in_port);
        if source.is_unicast() && !self.is_known_sender(key(source), here) {
            self.raise_learn_event(LearnEvent::Fdb(key(source), here));
        }
        if is_reserved(target) {
            packet.reason = DropReason::FlowDrop;
            return;
        }
        let target = mac_from_bits(target);
        let known = if target.is_multicast() { None } else { self.query_fdb(key(target)) };
        match known {
            Some(FdbPort::Port(port)) => self.output_port(packet, port),
            _ => self.flood(packet),
        }
    }

    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if O::ENABLED {
            self.observer.event(Event::Note(&text()));
        }
    }
}

const VLAN_ID: Subfield = match Subfield::new(Field::VlanTci, 0, 12) {
    Some(bits) => bits,
    None => Subfield::whole(Field::VlanTci),
};

/// True for addresses that no bridge forwards (IEEE 802.1Q table 8-1): 01:80:c2:00:00:00 to :0f.
pub(super) fn is_reserved(target: u128) -> bool {
    target & !0xf == 0x0180_c200_0000
}

pub(super) fn mac_from_bits(bits: u128) -> MacAddr {
    let [_, _, mac @ ..] = (bits as u64).to_be_bytes();
    MacAddr(mac)
}

fn mac_to_bits(mac: MacAddr) -> u128 {
    mac.0.iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte))
}
