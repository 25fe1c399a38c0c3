//! Output: to logical ports, multicast groups, patch ports, datapath ports and tunnels.

use super::entry::LOCAL_ONLY;
use super::translator::{LimitExceeded, Packet, Translator};
use crate::observer::{Event, Nested, Observer};
use crate::op::Direction;
use crate::program::{
    BridgePortKind, Datapath, DatapathKind, MulticastGroup, PortLocation, TableId,
};
use crate::recorder::Recorder;
use crate::state::LearnedState;
use flow::{
    Action, DatapathKey, DropReason, EndpointId, Field, LogicalPorts, PortKey, PortNo, Subfield,
    TagLink, TunnelKey,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::EtherType;
use wire::vlan::Tag;

/// OVN's `flags.loopback`: the packet may leave through its logical ingress port.
const LOOPBACK: u128 = 1;
/// Registers that are cleared between the ingress and the egress pipeline.
const PIPELINE_REGISTERS: [Field; 3] = [Field::Xxreg0, Field::Xxreg1, Field::Xreg4];

impl<'p, S: LearnedState, O: Observer> Translator<'p, '_, S, O> {
    /// OVN's `output`.
    pub fn output(&mut self, packet: &mut Packet<'p>) -> Result<(), LimitExceeded> {
        let outport = self.read_field(packet, Field::Reg15);
        let Some(outport) = u16::try_from(outport).ok().and_then(PortKey::new) else {
            packet.reason = DropReason::NoSuchPort;
            return Ok(());
        };
        if packet.in_egress() {
            return self.leave_datapath(packet, outport);
        }
        if packet.is_last_step() {
            return self.deliver(packet, outport);
        }
        self.emit_changes(packet);
        let inner = packet.fork(&[]);
        self.run_nested(Nested::Output, packet, inner, |translator, inner| {
            translator.deliver(inner, outport)
        })
    }

    /// Sends the packet to a logical port or multicast group of its datapath.
    pub fn deliver(
        &mut self,
        packet: &mut Packet<'p>,
        outport: PortKey,
    ) -> Result<(), LimitExceeded> {
        self.reads_port(packet, outport);
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
    ) -> Result<(), LimitExceeded> {
        self.emit_changes(packet);
        packet.frames.clear();
        packet.reason = DropReason::NoReceiver;
        let mut remote: Vec<EndpointId> = Vec::new();
        let mut tagged: Vec<(PortNo, TagLink)> = Vec::new();
        let steps = self.steps;
        let stays_here = self.stays_on_host(packet);
        for &member in &group.members {
            self.steps = steps;
            self.reads_port(packet, member);
            match packet.datapath.1.ports.get(&member).map(|port| port.location) {
                // ovn-controller does not pass these to routers either.
                Some(
                    PortLocation::Remote { .. }
                    | PortLocation::Tagged { .. }
                    | PortLocation::Patch { .. },
                ) if stays_here => {}
                // The host that the packet came from has sent a copy already.
                Some(PortLocation::Remote { .. } | PortLocation::Tagged { .. })
                    if packet.from_tunnel => {}
                Some(PortLocation::Patch { datapath, .. })
                    if packet.from_tunnel && !self.is_provider(datapath) => {}
                // The provider network gets one copy, through the localnet port.
                Some(PortLocation::Redirect(port)) if self.is_localnet(packet, port) => {}
                // One copy for all members on that host.
                Some(PortLocation::Remote { endpoint, logical_ports }) => {
                    let endpoint = packet.datapath.1.underlay_group.unwrap_or(endpoint);
                    if !remote.contains(&endpoint) {
                        remote.push(endpoint);
                        // If the tunnel carries no logical ports, the other host looks up the
                        // destination address.
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
                    self.run_nested(nested, packet, copy, |translator, copy| {
                        translator.write_port(copy, Field::Reg15, Some(member));
                        translator.deliver_to_port(copy, member)
                    })?;
                }
            }
        }
        Ok(())
    }

    /// True if the packet stays on this host: because of its origin, or of its ingress port.
    fn stays_on_host(&mut self, packet: &mut Packet<'p>) -> bool {
        if packet.key.recorder(&mut self.read).read(Field::Reg10, LOCAL_ONLY) != 0 {
            return true;
        }
        let localports = &packet.datapath.1.localports;
        if localports.is_empty() {
            return false;
        }
        let inport = u16::try_from(self.read_field(packet, Field::Reg14)).ok();
        inport.and_then(PortKey::new).is_some_and(|port| localports.contains(&port))
    }

    /// True for ports on other hosts, and for ports to a physical network.
    fn leaves_host(&mut self, location: PortLocation) -> bool {
        match location {
            PortLocation::Remote { .. } | PortLocation::Tagged { .. } => true,
            PortLocation::Patch { datapath, .. } => self.is_provider(datapath),
            _ => false,
        }
    }

    fn is_provider(&mut self, datapath: DatapathKey) -> bool {
        self.find_datapath(datapath).is_some_and(|it| it.kind == DatapathKind::Provider)
    }

    /// True for a port of the packet's datapath that leads to a provider bridge.
    fn is_localnet(&mut self, packet: &Packet<'p>, port: PortKey) -> bool {
        self.reads_port(packet, port);
        match packet.datapath.1.ports.get(&port).map(|port| port.location) {
            Some(PortLocation::Patch { datapath, .. }) => self.is_provider(datapath),
            _ => false,
        }
    }

    fn deliver_to_port(
        &mut self,
        packet: &mut Packet<'p>,
        outport: PortKey,
    ) -> Result<(), LimitExceeded> {
        let (datapath, config) = packet.datapath;
        self.reads_port(packet, outport);
        let Some(port) = config.ports.get(&outport) else {
            return self.end_copy(packet, DropReason::UnknownLogicalPort);
        };
        let inport = self.read_field(packet, Field::Reg14);
        let loopback = packet.key.recorder(&mut self.read).read(Field::Reg10, LOOPBACK) != 0;
        if inport == u128::from(outport.value()) && !loopback {
            return self.end_copy(packet, DropReason::Hairpin);
        }
        if self.leaves_host(port.location) && self.stays_on_host(packet) {
            return self.end_copy(packet, DropReason::FlowDrop);
        }
        match port.location {
            PortLocation::Redirect(port) if port != outport => {
                // Counts as a step, so that a loop of redirects ends.
                self.step()?;
                self.write_port(packet, Field::Reg15, Some(port));
                self.deliver_to_port(packet, port)
            }
            PortLocation::Redirect(_) | PortLocation::Unbound => {
                self.end_copy(packet, DropReason::PortDown)
            }
            PortLocation::Remote { .. } | PortLocation::Tagged { .. } if packet.from_tunnel => {
                self.end_copy(packet, DropReason::Hairpin)
            }
            PortLocation::Remote { endpoint, logical_ports } => {
                self.encap_logical(packet, endpoint, logical_ports, outport);
                Ok(())
            }
            PortLocation::Tagged { uplink, link } => {
                self.send_tagged(packet, uplink, link);
                Ok(())
            }
            PortLocation::Local(_) | PortLocation::Child { .. } | PortLocation::Patch { .. } => {
                for field in PIPELINE_REGISTERS {
                    packet.key.write(field, 0, field.all_ones());
                }
                self.write_zones(packet, Some(outport));
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

    /// Ends this copy without sending it. Other copies are not affected.
    pub fn end_copy(
        &mut self,
        packet: &mut Packet<'p>,
        reason: DropReason,
    ) -> Result<(), LimitExceeded> {
        packet.frames.clear();
        packet.reason = reason;
        Ok(())
    }

    /// Sends the packet out of the logical datapath, at the end of its egress pipeline.
    fn leave_datapath(
        &mut self,
        packet: &mut Packet<'p>,
        outport: PortKey,
    ) -> Result<(), LimitExceeded> {
        let (from, datapath) = packet.datapath;
        self.reads_port(packet, outport);
        match datapath.ports.get(&outport).map(|port| port.location) {
            Some(PortLocation::Local(port)) => {
                self.emit_changes(packet);
                packet.actions.push(Action::Output(port));
                let (logical, key) = (Some((from, outport)), packet.key.key());
                self.observer.event(Event::Output { port, logical, key });
                Ok(())
            }
            Some(PortLocation::Child { parent, vlan }) => {
                self.emit_changes(packet);
                let tag = Tag::new(EtherType::VLAN, vlan);
                packet.actions.push(Action::PushVlan(tag));
                packet.actions.push(Action::Output(parent));
                packet.actions.push(Action::PopVlan);
                let (logical, key) = (Some((from, outport)), packet.key.key());
                self.observer.event(Event::Output { port: parent, logical, key });
                Ok(())
            }
            Some(PortLocation::Patch { datapath, port }) => {
                let Some(peer) = self.find_datapath(datapath) else {
                    return self.end_copy(packet, DropReason::UnknownDatapath);
                };
                if packet.is_last_step() {
                    return self.cross_patch(packet, (datapath, peer), port);
                }
                let inner = packet.fork(&[]);
                self.run_nested(Nested::Output, packet, inner, |translator, inner| {
                    translator.cross_patch(inner, (datapath, peer), port)
                })
            }
            Some(
                PortLocation::Remote { .. }
                | PortLocation::Tagged { .. }
                | PortLocation::Unbound
                | PortLocation::Redirect(_),
            )
            | None => self.end_copy(packet, DropReason::UnknownLogicalPort),
        }
    }

    /// Passes the packet through a patch port into the ingress pipeline of the peer datapath.
    pub fn cross_patch(
        &mut self,
        packet: &mut Packet<'p>,
        datapath: (DatapathKey, &'p Datapath),
        port: PortKey,
    ) -> Result<(), LimitExceeded> {
        packet.datapath = datapath;
        packet.from_tunnel = false;
        // The connection state of one datapath does not apply in the next.
        self.clear_ct(packet);
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

    /// Sends a copy with the link's tags pushed in front of the guest's tags. The key is not
    /// changed, so the guest may use any number of tags.
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

    /// Sends the packet out of a bridge port, unless that is its ingress port.
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
        for &port in packet.datapath.1.bridge_ports.keys() {
            if port != packet.in_port {
                self.send(packet, port);
            }
        }
    }

    /// Sends the packet out of a bridge port.
    pub fn send(&mut self, packet: &mut Packet<'p>, port: PortNo) {
        let Some(bridge_port) = packet.datapath.1.bridge_ports.get(&port) else {
            packet.reason = DropReason::NoSuchPort;
            return;
        };
        match &bridge_port.kind {
            BridgePortKind::Device => {
                let port = bridge_port.number;
                self.emit_changes(packet);
                packet.actions.push(Action::Output(port));
                let key = packet.key.key();
                self.observer.event(Event::Output { port, logical: None, key });
            }
            BridgePortKind::Tunnel { endpoints } => {
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
