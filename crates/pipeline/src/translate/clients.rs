//! Steps that remember clients: the backend of a client of a load balancer, and the next hop of a
//! connection through a router.
//!
//! ovn-controller learns these as flows in separate tables. weft keeps them as learned state in
//! [`LearnedTables`](crate::LearnedTables), with limits and ages.

use super::learned::mac_from_bits;
use super::translator::{Packet, Translator};
use crate::observer::Observer;
use crate::op::AffinityRule;
use crate::program::DatapathKind;
use crate::reads::ProgramPart;
use crate::state::{
    Affinity, AffinityKey, AffinityVip, Dependency, LearnEvent, LearnedState, NextHopKey,
    StateQuery,
};
use flow::{Field, Subfield};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::MacAddr;

/// The registers to which OVN 23.03 writes the backend of a client.
const BACKEND_IP4: Field = Field::Reg4;
const BACKEND_IP6_IN_SWITCH: Field = Field::Xxreg0;
const BACKEND_IP6_IN_ROUTER: Field = Field::Xxreg1;
const BACKEND_PORT: Subfield = match Subfield::new(Field::Reg8, 0, 16) {
    Some(bits) => bits,
    None => Subfield::whole(Field::Reg8),
};

impl<'p, S: LearnedState, O: Observer> Translator<'p, '_, S, O> {
    /// `chk_lb_aff`: looks up the backend of the client that has sent the packet.
    pub fn check_affinity(&mut self, packet: &mut Packet<'p>, to: Subfield) {
        let affinity = self.affinity_of(packet);
        self.assign(packet, to, affinity.is_some().into());
        let Some(affinity) = affinity else { return };
        self.note(|| format!("the client has the backend {affinity}"));
        match affinity.backend {
            IpAddr::V4(ip) => self.assign(packet, BACKEND_IP4.into(), ip.to_bits().into()),
            IpAddr::V6(ip) => {
                let register = match packet.datapath.1.kind {
                    DatapathKind::Router => BACKEND_IP6_IN_ROUTER,
                    _ => BACKEND_IP6_IN_SWITCH,
                };
                self.assign(packet, register.into(), ip.to_bits());
            }
        }
        if affinity.port != 0 {
            self.assign(packet, BACKEND_PORT, affinity.port.into());
        }
    }

    /// The affinity to the service that the packet is for, or else to all services of its
    /// destination.
    fn affinity_of(&mut self, packet: &mut Packet<'p>) -> Option<Affinity> {
        let (client, ip) = self.ip_addresses(packet)?;
        let datapath = packet.datapath.0;
        let key = |service| AffinityKey { datapath, client, vip: AffinityVip { ip, service } };
        let service = self.service(packet);
        let of_service = service.and_then(|it| self.query_affinity(packet, key(Some(it))));
        of_service.or_else(|| self.query_affinity(packet, key(None)))
    }

    /// `commit_lb_aff`: learns the backend of the client that has sent the packet.
    pub fn learn_affinity(&mut self, packet: &mut Packet<'p>, rule: &AffinityRule) {
        let AffinityRule { vip, affinity } = *rule;
        let Some((client, _)) = self.ip_addresses(packet) else { return };
        if client.is_ipv4() != vip.ip.is_ipv4() {
            return;
        }
        let key = AffinityKey { datapath: packet.datapath.0, client, vip };
        if self.query_affinity(packet, key) != Some(affinity) {
            self.raise_learn_event(LearnEvent::Affinity(key, affinity));
        }
    }

    /// The affinity of a client, if the program still contains its affinity rule: an affinity ends
    /// when the load balancer loses the backend.
    fn query_affinity(&mut self, packet: &Packet<'p>, key: AffinityKey) -> Option<Affinity> {
        let (answer, generation) = self.state.affinity(&key);
        let mut groups = packet.datapath.1.groups.iter();
        if answer.is_some() {
            self.reads.add(ProgramPart::AffinityRules);
        }
        let known = answer.filter(|&affinity| {
            let rule = AffinityRule { vip: key.vip, affinity };
            groups.any(|group| self.program.has_affinity_rule(*group, &rule))
        });
        let (query, confirms) = (StateQuery::Affinity(key), known.is_some());
        self.add_dependency(Dependency { query, generation, confirms });
        known
    }

    /// `chk_ecmp_nh_mac` for a packet in the direction in which its connection was opened, and
    /// `chk_ecmp_nh` for a reply.
    pub fn check_next_hop(&mut self, packet: &mut Packet<'p>, to: Subfield, forward: bool) {
        let known = match self.next_hop_key(packet, forward) {
            Some(key) => self.query_next_hop(key),
            None => None,
        };
        let is_found = match (known, forward) {
            (None, _) => false,
            (Some(_), false) => true,
            (Some(mac), true) => mac == self.sender(packet),
        };
        self.assign(packet, to, is_found.into());
    }

    /// `commit_ecmp_nh`: learns the next hop that has sent the packet.
    pub fn learn_next_hop(&mut self, packet: &mut Packet<'p>) {
        let Some(key) = self.next_hop_key(packet, true) else { return };
        let mac = self.sender(packet);
        if self.query_next_hop(key) != Some(mac) {
            self.raise_learn_event(LearnEvent::NextHop(key, mac));
        }
    }

    fn query_next_hop(&mut self, key: NextHopKey) -> Option<MacAddr> {
        let (answer, generation) = self.state.next_hop(&key);
        let query = StateQuery::NextHop(key);
        self.add_dependency(Dependency { query, generation, confirms: true });
        answer
    }

    fn sender(&mut self, packet: &mut Packet<'p>) -> MacAddr {
        mac_from_bits(self.read_field(packet, Field::EthSrc))
    }

    /// The packet's connection, as it was opened. `None` for a packet without ports.
    fn next_hop_key(&mut self, packet: &mut Packet<'p>, forward: bool) -> Option<NextHopKey> {
        let (source, destination) = self.ip_addresses(packet)?;
        let (protocol, to) = self.service(packet)?;
        // The cast is lossless: the field has 16 bits.
        let from = self.read_field(packet, Field::TpSrc) as u16;
        let datapath = packet.datapath.0;
        Some(match forward {
            true => {
                let (addresses, ports) = ((source, destination), (from, to));
                NextHopKey { datapath, addresses, protocol, ports }
            }
            false => {
                let (addresses, ports) = ((destination, source), (to, from));
                NextHopKey { datapath, addresses, protocol, ports }
            }
        })
    }

    /// The source and destination address of an IP packet.
    pub fn ip_addresses(&mut self, packet: &mut Packet<'p>) -> Option<(IpAddr, IpAddr)> {
        match self.read_field(packet, Field::EthType) {
            0x0800 => {
                let mut ip = |field| {
                    // The cast is lossless: the field has 32 bits.
                    Ipv4Addr::from_bits(self.read_field(packet, field) as u32).into()
                };
                Some((ip(Field::Ip4Src), ip(Field::Ip4Dst)))
            }
            0x86dd => {
                let mut ip = |field| Ipv6Addr::from_bits(self.read_field(packet, field)).into();
                Some((ip(Field::Ip6Src), ip(Field::Ip6Dst)))
            }
            _ => None,
        }
    }

    /// The protocol and the destination port of a TCP, UDP or SCTP packet. Later fragments have
    /// none.
    pub fn service(&mut self, packet: &mut Packet<'p>) -> Option<(u8, u16)> {
        const LATER_FRAGMENT: u128 = 2;
        const PORTS: [u8; 3] = [6, 17, 132];
        // The casts are lossless: the fields have 8 and 16 bits.
        let protocol = self.read_field(packet, Field::IpProto) as u8;
        let fragment = self.read_field(packet, Field::IpFrag);
        if !PORTS.contains(&protocol) || fragment & LATER_FRAGMENT != 0 {
            return None;
        }
        Some((protocol, self.read_field(packet, Field::TpDst) as u16))
    }
}
