//! Where packets go: to logical ports and multicast groups, to patch ports, out of datapath ports and into tunnels.

use super::machine::{Abort, Machine, Packet};
use crate::observer::{Event, Nested, Observer};
use crate::op::Direction;
use crate::program::{BridgePortKind, MulticastGroup, PortLocation, TableId};
use crate::recorder::Recorder;
use crate::state::LearnedState;
use flow::{
    Action, DatapathKey, DropReason, EndpointId, Field, LogicalPorts, PortKey, PortNo, Subfield,
    TagLink, TunnelKey,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// OVN's `flags.loopback`: the packet may leave by the logical port that it came in by.
const LOOPBACK: u128 = 1;
/// Registers that do not pass from one pipeline to the next.
const SCRATCH: [Field; 3] = [Field::Xxreg0, Field::Xxreg1, Field::Xreg4];

impl<'p, S: LearnedState, O: Observer> Machine<'p, '_, S, O> {
    /// Logical output.
    pub fn output(&mut self, packet: &mut Packet<'p>) -> Result<(), Abort> {
        let outport = self.read_field(packet, Field::Reg15);
        let Some(outport) = u16::try_from(outport).ok().and_then(PortKey::new) else {
            packet.reason = DropReason::NoSuchPort;
            return Ok(());
        };
        if packet.in_egress() {
            // The end of an egress pipeline.
            return self.leave(packet, outport);
        }
        if packet.is_last_step() {
            return self.deliver(packet, outport);
        }
        self.emit_changes(packet);
        let inner = packet.fork(&[]);
        self.run_nested(Nested::Output, packet, inner, |machine, inner| {
            machine.deliver(inner, outport)
        })
    }

    /// Brings the packet to a logical port or multicast group of its datapath.
    pub fn deliver(&mut self, packet: &mut Packet<'p>, outport: PortKey) -> Result<(), Abort> {
        match packet.datapath.1.multicast.get(&outport) {
            Some(group) => self.deliver_to_group(packet, outport, group),
            None => self.deliver_to_port(packet, outport),
        }
    }

    fn deliver_to_group(
        &mut self,
        packet: &mut Packet<'p>,
        key: PortKey,
        group: &'p MulticastGroup,
    ) -> Result<(), Abort> {
        self.emit_changes(packet);
        packet.frames.clear();
        packet.reason = DropReason::NoReceiver;
        let mut remote: Vec<EndpointId> = Vec::new();
        let mut tagged: Vec<(PortNo, TagLink)> = Vec::new();
        let steps = self.steps;
        for &member in &group.members {
            self.steps = steps;
            match packet.datapath.1.ports.get(&member).map(|port| port.location) {
                // Served by the host that the packet came from.
                Some(
                    PortLocation::Remote { .. }
                    | PortLocation::Tagged { .. }
                    | PortLocation::Patch { .. },
                ) if packet.from_tunnel => {}
                // Once for all members that are there.
                Some(PortLocation::Remote { endpoint, logical_ports }) => {
                    let endpoint = packet.datapath.1.underlay_group.unwrap_or(endpoint);
                    if !remote.contains(&endpoint) {
                        remote.push(endpoint);
                        // Without logical ports in the tunnel the other host decides by the destination address.
                        self.encap_logical(packet, endpoint, logical_ports, key);
                    }
                }
                Some(PortLocation::Tagged { uplink, link }) => {
                    if !tagged.contains(&(uplink, link)) {
                        tagged.push((uplink, link));
                        self.send_tagged(packet, uplink, link);
                    }
                }
                _ => {
                    let copy = packet.fork(&[]);
                    let nested = Nested::Member { datapath: packet.datapath.0, port: member };
                    self.run_nested(nested, packet, copy, |machine, copy| {
                        machine.write_port(copy, Field::Reg15, Some(member));
                        machine.deliver_to_port(copy, member)
                    })?;
                }
            }
        }
        Ok(())
    }

    fn deliver_to_port(&mut self, packet: &mut Packet<'p>, outport: PortKey) -> Result<(), Abort> {
        let (datapath, place) = packet.datapath;
        let Some(port) = place.ports.get(&outport) else {
            return self.stop(packet, DropReason::UnknownLogicalPort);
        };
        let inport = self.read_field(packet, Field::Reg14);
        let loopback = packet.key.recorder(&mut self.read).read(Field::Reg10, LOOPBACK) != 0;
        if inport == u128::from(outport.value()) && !loopback {
            return self.stop(packet, DropReason::Hairpin);
        }
        match port.location {
            PortLocation::Redirect(port) if port != outport => {
                // Counted, so that two that lead to each other come to an end.
                self.step()?;
                self.write_port(packet, Field::Reg15, Some(port));
                self.deliver_to_port(packet, port)
            }
            PortLocation::Redirect(_) | PortLocation::Unbound => {
                self.stop(packet, DropReason::PortDown)
            }
            PortLocation::Remote { .. } | PortLocation::Tagged { .. } if packet.from_tunnel => {
                self.stop(packet, DropReason::Hairpin)
            }
            PortLocation::Remote { endpoint, logical_ports } => {
                self.encap_logical(packet, endpoint, logical_ports, outport);
                Ok(())
            }
            PortLocation::Tagged { uplink, link } => {
                self.send_tagged(packet, uplink, link);
                Ok(())
            }
            PortLocation::Local(_) | PortLocation::Patch { .. } => {
                for field in SCRATCH {
                    packet.key.write(field, 0, field.all_ones());
                }
                let inport = u16::try_from(inport).ok().and_then(PortKey::new);
                self.observer.event(Event::Pipeline {
                    datapath,
                    direction: Direction::Egress,
                    inport,
                    outport: Some(outport),
                });
                self.look_up(packet, TableId::FIRST_EGRESS)
            }
        }
    }

    /// Ends the packet without sending it; other copies may go on.
    fn stop(&mut self, packet: &mut Packet<'p>, reason: DropReason) -> Result<(), Abort> {
        packet.frames.clear();
        packet.reason = reason;
        Ok(())
    }

    /// Out of the logical datapath, at the end of its egress pipeline.
    fn leave(&mut self, packet: &mut Packet<'p>, outport: PortKey) -> Result<(), Abort> {
        let (from, datapath) = packet.datapath;
        match datapath.ports.get(&outport).map(|port| port.location) {
            Some(PortLocation::Local(port)) => {
                self.emit_changes(packet);
                packet.actions.push(Action::Output(port));
                let (logical, key) = (Some((from, outport)), packet.key.key());
                self.observer.event(Event::Output { port, logical, key });
                Ok(())
            }
            Some(PortLocation::Patch { datapath, port }) => {
                let Some(peer) = self.program.datapath(datapath) else {
                    return self.stop(packet, DropReason::UnknownDatapath);
                };
                if packet.is_last_step() {
                    return self.cross(packet, (datapath, peer), port);
                }
                let inner = packet.fork(&[]);
                self.run_nested(Nested::Output, packet, inner, |machine, inner| {
                    machine.cross(inner, (datapath, peer), port)
                })
            }
            Some(
                PortLocation::Remote { .. }
                | PortLocation::Tagged { .. }
                | PortLocation::Unbound
                | PortLocation::Redirect(_),
            )
            | None => self.stop(packet, DropReason::UnknownLogicalPort),
        }
    }

    /// Over a patch cable into another logical datapath, where the packet is as one that has just come in.
    fn cross(
        &mut self,
        packet: &mut Packet<'p>,
        datapath: (DatapathKey, &'p crate::program::Datapath),
        port: PortKey,
    ) -> Result<(), Abort> {
        packet.datapath = datapath;
        packet.from_tunnel = false;
        for number in 0..4 {
            if let Some(registers) = Field::xxreg(number) {
                packet.key.write(registers, 0, registers.all_ones());
            }
        }
        self.begin_ingress(packet, Some(port))
    }

    fn encap_logical(
        &mut self,
        packet: &mut Packet<'p>,
        endpoint: EndpointId,
        logical_ports: bool,
        egress: PortKey,
    ) {
        self.emit_changes(packet);
        let datapath = packet.datapath.0;
        let ingress = self.read_field(packet, Field::Reg14);
        let ingress = u16::try_from(ingress).ok().and_then(PortKey::new);
        let ports = logical_ports.then_some(LogicalPorts { ingress, egress });
        let tunnel_key = packet.datapath.1.tunnel_key.unwrap_or(datapath);
        let key = TunnelKey { datapath: tunnel_key, ports };
        packet.actions.push(Action::Encap { endpoint, key });
        let (logical, key) = (Some((datapath, egress)), packet.key.key());
        self.observer.event(Event::Encap { endpoint, logical, key });
    }

    /// Sends a copy with tags in front of the guest's own. The guest's may be as many as they like: the tags are put on and
    /// taken off again without regard to the key.
    fn send_tagged(&mut self, packet: &mut Packet<'p>, uplink: PortNo, link: TagLink) {
        self.emit_changes(packet);
        let (outer, inner) = link.tags();
        packet.actions.extend(inner.map(Action::PushVlan));
        packet.actions.push(Action::PushVlan(outer));
        packet.actions.push(Action::Output(uplink));
        packet.actions.push(Action::PopVlan);
        packet.actions.extend(inner.map(|_| Action::PopVlan));
        let key = packet.key.key();
        self.observer.event(Event::Output { port: uplink, logical: None, key });
    }

    /// Out of a port of the bridge, unless the packet came from there.
    pub fn output_port(&mut self, packet: &mut Packet<'p>, port: PortNo) {
        if port == packet.in_port {
            packet.reason = DropReason::Hairpin;
        } else {
            self.send(packet, port);
        }
    }

    pub fn output_field(&mut self, packet: &mut Packet<'p>, bits: Subfield) {
        match u32::try_from(self.read_bits(packet, bits)) {
            Ok(port) => self.output_port(packet, PortNo(port)),
            Err(_) => packet.reason = DropReason::NoSuchPort,
        }
    }

    pub fn flood(&mut self, packet: &mut Packet<'p>) {
        packet.reason = DropReason::NoReceiver;
        for (port, _) in self.program.bridge_ports() {
            if port != packet.in_port {
                self.send(packet, port);
            }
        }
    }

    /// Out of a port of the bridge.
    pub fn send(&mut self, packet: &mut Packet<'p>, port: PortNo) {
        match self.program.bridge_port(port).map(|port| &port.kind) {
            None => packet.reason = DropReason::NoSuchPort,
            Some(BridgePortKind::Device) => {
                self.emit_changes(packet);
                packet.actions.push(Action::Output(port));
                let key = packet.key.key();
                self.observer.event(Event::Output { port, logical: None, key });
            }
            Some(BridgePortKind::Tunnel { endpoints }) => {
                let remote = self.tunnel_destination(packet);
                let key = u32::try_from(self.read_field(packet, Field::TunId));
                match (remote.and_then(|address| endpoints.get(&address)), key) {
                    (Some(&endpoint), Ok(key)) => {
                        self.emit_changes(packet);
                        let key = TunnelKey { datapath: DatapathKey(key), ports: None };
                        packet.actions.push(Action::Encap { endpoint, key });
                        let key = packet.key.key();
                        self.observer.event(Event::Encap { endpoint, logical: None, key });
                    }
                    _ => packet.reason = DropReason::UnknownEndpoint,
                }
            }
        }
    }

    fn tunnel_destination(&mut self, packet: &mut Packet<'p>) -> Option<IpAddr> {
        let v4 = self.read_field(packet, Field::TunDst) as u32;
        if v4 != 0 {
            return Some(Ipv4Addr::from_bits(v4).into());
        }
        let v6 = self.read_field(packet, Field::TunIpv6Dst);
        (v6 != 0).then(|| Ipv6Addr::from_bits(v6).into())
    }
}
