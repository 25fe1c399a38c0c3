//! Questions about what was learnt, and lessons.

use super::machine::{Machine, Packet};
use crate::observer::{Event, Observer};
use crate::op::{Direction, LearnedOp, Operand};
use crate::program::Program;
use crate::state::{
    Dependency, FdbKey, FdbPort, LearnEvent, LearnedState, MacBindingKey, StateQuery,
};
use flow::{DropReason, Field, PortKey, Subfield};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::MacAddr;

impl<'p, S: LearnedState, O: Observer> Machine<'p, '_, S, O> {
    pub fn ask_or_learn(&mut self, packet: &mut Packet<'p>, op: &LearnedOp) {
        match *op {
            LearnedOp::GetMacBinding { port, ip } => self.find_binding(packet, port, ip),
            LearnedOp::LookupMacBinding { to, port, ip, mac } => {
                self.look_up_binding(packet, to, port, ip, mac);
            }
            LearnedOp::PutMacBinding { port, ip, mac } => self.put_binding(packet, port, ip, mac),
            LearnedOp::GetFdb { to, mac } => self.find_station(packet, to, mac),
            LearnedOp::LookupFdb { to, port, mac } => {
                self.look_up_station(packet, to, port, mac);
            }
            LearnedOp::PutFdb { port, mac } => self.put_station(packet, port, mac),
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

    fn binding_key(
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

    fn ask_binding(&mut self, key: MacBindingKey) -> Option<MacAddr> {
        let (answer, generation) = self.state.mac_binding(&key);
        self.depend(Dependency { query: StateQuery::MacBinding(key), generation });
        answer
    }

    fn ask_station(&mut self, key: FdbKey) -> Option<FdbPort> {
        let (answer, generation) = self.state.fdb_port(&key);
        self.depend(Dependency { query: StateQuery::Fdb(key), generation });
        answer
    }

    fn depend(&mut self, dependency: Dependency) {
        if !self.dependencies.contains(&dependency) {
            self.dependencies.push(dependency);
        }
    }

    fn learn(&mut self, lesson: LearnEvent) {
        if !self.learn_events.contains(&lesson) {
            self.learn_events.push(lesson);
        }
    }

    fn find_binding(&mut self, packet: &mut Packet<'p>, port: Operand, ip: Operand) {
        let key = self.binding_key(packet, port, ip);
        let mac = key.and_then(|key| self.ask_binding(key));
        match (key, mac) {
            (Some(key), Some(mac)) => {
                self.note(|| format!("{} is at {mac}", key.ip));
            }
            _ => self.note(|| "no MAC address is known".to_owned()),
        }
        self.write(packet, Field::EthDst.into(), mac_to_bits(mac.unwrap_or(MacAddr::ZERO)));
    }

    fn look_up_binding(
        &mut self,
        packet: &mut Packet<'p>,
        to: Subfield,
        port: Operand,
        ip: Operand,
        mac: Option<Operand>,
    ) {
        let key = self.binding_key(packet, port, ip);
        let bound = key.and_then(|key| self.ask_binding(key));
        let wanted = mac.map(|mac| self.mac_operand(packet, mac));
        let found = bound.is_some_and(|bound| wanted.is_none_or(|wanted| wanted == bound));
        self.assign(packet, to, found.into());
    }

    fn put_binding(&mut self, packet: &mut Packet<'p>, port: Operand, ip: Operand, mac: Operand) {
        let Some(key) = self.binding_key(packet, port, ip) else { return };
        let mac = self.mac_operand(packet, mac);
        // Asked so that what is cached ends when the lesson is learnt, or forgotten.
        if self.ask_binding(key) != Some(mac) {
            self.learn(LearnEvent::MacBinding(key, mac));
        }
    }

    fn station_key(&mut self, packet: &mut Packet<'p>, mac: Operand) -> FdbKey {
        let mac = self.mac_operand(packet, mac);
        FdbKey { datapath: packet.datapath.0, vlan: 0, mac }
    }

    fn find_station(&mut self, packet: &mut Packet<'p>, to: Subfield, mac: Operand) {
        let key = self.station_key(packet, mac);
        let port = match self.ask_station(key) {
            Some(FdbPort::Logical(port)) => port.value().into(),
            _ => 0,
        };
        self.assign(packet, to, port);
    }

    fn look_up_station(
        &mut self,
        packet: &mut Packet<'p>,
        to: Subfield,
        port: Operand,
        mac: Operand,
    ) {
        let key = self.station_key(packet, mac);
        let port = self.port_operand(packet, port).map(FdbPort::Logical);
        let found = port.is_some() && self.ask_station(key) == port;
        self.assign(packet, to, found.into());
    }

    fn put_station(&mut self, packet: &mut Packet<'p>, port: Operand, mac: Operand) {
        let key = self.station_key(packet, mac);
        let Some(port) = self.port_operand(packet, port) else { return };
        if !key.mac.is_unicast() {
            return;
        }
        let place = FdbPort::Logical(port);
        if self.ask_station(key) != Some(place) {
            self.learn(LearnEvent::Fdb(key, place));
        }
    }

    pub fn port_security(&mut self, packet: &mut Packet<'p>, to: Subfield, direction: Direction) {
        let field = match direction {
            Direction::Ingress => Field::Reg14,
            Direction::Egress => Field::Reg15,
        };
        let port = self.port_operand(packet, field.into());
        let port = port.and_then(|port| packet.datapath.1.ports.get(&port));
        let mut recorder = packet.key.recorder(&mut self.read);
        let forbidden = port.is_some_and(|port| port.security.forbids(direction, &mut recorder));
        drop(recorder);
        self.assign(packet, to, forbidden.into());
    }

    /// What a learning switch does.
    pub fn normal(&mut self, packet: &mut Packet<'p>) {
        /// Addresses that no bridge forwards (IEEE 802.1Q table 8-1): 01:80:c2:00:00:00 to :0f.
        const RESERVED: u128 = 0x0180_c200_0000;
        let source = mac_from_bits(self.read_field(packet, Field::EthSrc));
        let target = self.read_field(packet, Field::EthDst);
        let vlan = self.read_bits(packet, VLAN_ID) as u16;
        if source.is_multicast() {
            packet.reason = DropReason::BadSourceMac;
            return;
        }
        let key = |mac| FdbKey { datapath: Program::BRIDGE, vlan, mac };
        let here = FdbPort::Port(packet.in_port);
        if source.is_unicast() && self.ask_station(key(source)) != Some(here) {
            self.learn(LearnEvent::Fdb(key(source), here));
        }
        if target & !0xf == RESERVED {
            packet.reason = DropReason::FlowDrop;
            return;
        }
        let target = mac_from_bits(target);
        let place = if target.is_multicast() { None } else { self.ask_station(key(target)) };
        match place {
            Some(FdbPort::Port(port)) => self.output_port(packet, port),
            _ => self.flood(packet),
        }
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if O::ENABLED {
            self.observer.event(Event::Note(&text()));
        }
    }
}

const VLAN_ID: Subfield = match Subfield::new(Field::VlanTci, 0, 12) {
    Some(bits) => bits,
    None => Subfield::whole(Field::VlanTci),
};

fn mac_from_bits(bits: u128) -> MacAddr {
    let [_, _, mac @ ..] = (bits as u64).to_be_bytes();
    MacAddr(mac)
}

fn mac_to_bits(mac: MacAddr) -> u128 {
    mac.0.iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte))
}
