//! Entry of a packet into the program: finds its datapath and its logical ports.

use super::conntrack::{DNAT_ZONE, PORT_ZONE, SNAT_ZONE};
use super::emit::VLAN_TAG;
use super::translator::{LimitExceeded, Packet, TAG_PRESENT, Translator};
use crate::observer::{Event, Observer};
use crate::op::Direction;
use crate::program::{Datapath, DatapathKind, PortRole, TableId, TunnelInport};
use crate::reads::ProgramPart;
use crate::recorder::{RecordedKey, Recorder};
use crate::state::{FdbPort, IngressPort, LearnedState};
use flow::{
    Action, DatapathKey, DropReason, Field, FlowKey, LogicalPortsField, PortKey, PortNo, TunnelType,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::tunnel::{LogicalPorts, SttContext};

/// OVN's `flags.rcv_from_ramp`: the packet comes from a tunnel whose header names no logical ports.
pub(super) const RCV_FROM_RAMP: u128 = 1 << 1;
/// OVN's `flags.local_only`: no copy of the packet leaves this host.
pub(super) const LOCAL_ONLY: u128 = 1 << 4;

/// Where a packet that this host generates enters the program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct InjectionPort {
    /// The logical datapath.
    pub datapath: DatapathKey,
    /// The logical ingress port, which may be one of a router.
    pub port: PortKey,
    /// True if no copy of the packet may leave this host, through a tunnel or to a physical
    /// network.
    pub stays_on_host: bool,
}

impl<'p, S: LearnedState, O: Observer> Translator<'p, '_, S, O> {
    /// Translates a packet from its ingress port to its end.
    pub fn translate_packet(&mut self, key: &FlowKey) -> Result<Vec<Action>, LimitExceeded> {
        // Not recorded in a first pass: a datapath keeps the megaflows of later passes apart.
        if key.get(Field::RecircId) != 0 {
            return self.translate_recirculated(key);
        }
        let mut key = RecordedKey::new(key.clone());
        key.know(&self.read);
        let in_port = key.recorder(&mut self.read).read_field(Field::InPort);
        // The cast is lossless: the field is 32 bits wide.
        let in_port = PortNo(in_port as u32);
        let entered = match self.program.port_role(in_port) {
            None => Err(DropReason::NoSuchPort),
            Some(PortRole::Vif { datapath, port }) => self.datapath(*datapath).map(|datapath| {
                let packet = Packet::new(key, in_port, datapath, false);
                (packet, EntryPoint::Ingress(Some(*port)))
            }),
            Some(PortRole::Bridge { datapath, port }) => self.datapath(*datapath).map(|datapath| {
                // Flows use the port's number in the bridge.
                key.write(Field::InPort, port.0.into(), Field::InPort.all_ones());
                (Packet::new(key, *port, datapath, false), EntryPoint::Bridge(*port))
            }),
            Some(PortRole::Parent { own, children }) => {
                self.enter_by_parent(key, in_port, *own, children)
            }
            Some(PortRole::Tunnel(tunnel)) => self.enter_by_tunnel(key, in_port, *tunnel),
        };
        let (mut packet, start) = match entered {
            Ok(entered) => entered,
            Err(reason) => {
                self.observer.event(Event::Drop(reason));
                return Ok(vec![Action::Drop(reason)]);
            }
        };
        self.ingress =
            IngressPort { datapath: packet.datapath.0, port: start.ingress_port(in_port) };
        match start {
            EntryPoint::Bridge(_) => match self.first_ops {
                None => self.look_up(&mut packet, TableId::FIRST)?,
                Some(ops) => packet.begin(ops),
            },
            EntryPoint::Ingress(inport) => self.begin_ingress(&mut packet, inport)?,
            EntryPoint::Egress { inport, outport } => {
                self.write_port(&mut packet, Field::Reg14, inport);
                self.write_port(&mut packet, Field::Reg15, Some(outport));
                self.deliver(&mut packet, outport)?;
            }
        }
        self.finish_packet(packet)
    }

    /// Translates a packet that this host generates, from a logical ingress port to its end.
    pub fn translate_originated(
        &mut self,
        key: &FlowKey,
        from: InjectionPort,
    ) -> Result<Vec<Action>, LimitExceeded> {
        let InjectionPort { datapath, port, stays_on_host } = from;
        let mut key = RecordedKey::new(key.clone());
        key.know(&self.read);
        let in_port = PortNo(key.recorder(&mut self.read).read_field(Field::InPort) as u32);
        let datapath = match self.datapath(datapath) {
            Ok(datapath) => datapath,
            Err(reason) => return Ok(vec![Action::Drop(reason)]),
        };
        self.ingress = IngressPort { datapath: datapath.0, port: FdbPort::Logical(port) };
        let mut packet = Packet::new(key, in_port, datapath, false);
        if stays_on_host {
            packet.key.write(Field::Reg10, LOCAL_ONLY, LOCAL_ONLY);
        }
        self.begin_ingress(&mut packet, Some(port))?;
        self.finish_packet(packet)
    }

    fn datapath(&mut self, key: DatapathKey) -> Result<(DatapathKey, &'p Datapath), DropReason> {
        let datapath = self.find_datapath(key).ok_or(DropReason::UnknownDatapath)?;
        Ok((key, datapath))
    }

    /// Finds the port of a container by the outer tag, and pops it.
    fn enter_by_parent(
        &mut self,
        mut key: RecordedKey,
        in_port: PortNo,
        own: Option<(DatapathKey, PortKey)>,
        children: &BTreeMap<u16, (DatapathKey, PortKey)>,
    ) -> Result<(Packet<'p>, EntryPoint), DropReason> {
        let tag = key.recorder(&mut self.read).read_bits(VLAN_TAG);
        // The cast is lossless: a VLAN ID has 12 bits.
        let vid = (tag & !TAG_PRESENT) as u16;
        let child = children.get(&vid).filter(|_| tag & TAG_PRESENT != 0);
        let (datapath, port) = child.copied().or(own).ok_or(DropReason::NoSuchPort)?;
        let mut packet = Packet::new(key, in_port, self.datapath(datapath)?, false);
        if child.is_some() && !self.pop_known_vlan(&mut packet) {
            return Err(DropReason::VlanDepth);
        }
        Ok((packet, EntryPoint::Ingress(Some(port))))
    }

    /// Finds the logical datapath of a packet from a tunnel or a tagged link, and its logical ports
    /// when the tunnel header names them.
    fn enter_by_tunnel(
        &mut self,
        mut key: RecordedKey,
        in_port: PortNo,
        tunnel: TunnelType,
    ) -> Result<(Packet<'p>, EntryPoint), DropReason> {
        let mut recorder = key.recorder(&mut self.read);
        let tun_id = recorder.read_field(Field::TunId) as u64;
        let (tun_key, ports) = match tunnel.descriptor().logical_ports {
            LogicalPortsField::SttContext => {
                let context = SttContext::from_value(tun_id);
                (context.datapath.into(), context.ports)
            }
            LogicalPortsField::GeneveOption if recorder.read(Field::TunMetadataPresent, 1) != 0 => {
                let ports = recorder.read(Field::TunMetadata0, u32::MAX.into()) as u32;
                (tun_id, Some(LogicalPorts::from_value(ports)))
            }
            _ => (tun_id, None),
        };
        drop(recorder);
        self.reads.add(ProgramPart::Tunnel(tunnel, tun_key));
        let datapath =
            self.program.datapath_of_tunnel(tunnel, tun_key).ok_or(DropReason::UnknownDatapath)?;
        let mut packet = Packet::new(key, in_port, self.datapath(datapath)?, true);
        let inport = ports.and_then(|ports| PortKey::new(ports.ingress));
        let start = match ports.and_then(|ports| PortKey::new(ports.egress)) {
            Some(outport) => EntryPoint::Egress { inport, outport },
            None => EntryPoint::Ingress(self.inport_of_remote(&mut packet)),
        };
        Ok((packet, start))
    }

    /// The logical ingress port of a packet whose tunnel header names none.
    fn inport_of_remote(&mut self, packet: &mut Packet<'p>) -> Option<PortKey> {
        match &packet.datapath.1.tunnel_inport {
            TunnelInport::None => None,
            TunnelInport::Shared(port) => Some(*port),
            TunnelInport::ByHost(hosts) => {
                let mut recorder = packet.key.recorder(&mut self.read);
                let v4 = recorder.read_field(Field::TunSrc) as u32;
                let source = if v4 == 0 {
                    IpAddr::V6(Ipv6Addr::from_bits(recorder.read_field(Field::TunIpv6Src)))
                } else {
                    IpAddr::V4(Ipv4Addr::from_bits(v4))
                };
                hosts.get(&source).copied()
            }
        }
    }

    /// Enters the ingress pipeline of the packet's datapath.
    pub fn begin_ingress(
        &mut self,
        packet: &mut Packet<'p>,
        inport: Option<PortKey>,
    ) -> Result<(), LimitExceeded> {
        let (datapath, _) = packet.datapath;
        packet.key.write(Field::Metadata, datapath.0.into(), Field::Metadata.all_ones());
        self.write_port(packet, Field::Reg14, inport);
        self.write_zones(packet, inport);
        if packet.from_tunnel {
            packet.key.write(Field::Reg10, RCV_FROM_RAMP, RCV_FROM_RAMP);
        }
        self.observer.event(Event::Pipeline {
            datapath,
            direction: Direction::Ingress,
            inport,
            outport: None,
        });
        match (packet.datapath.1.kind, inport) {
            (DatapathKind::Provider, Some(inport)) => self.forward_in_bridge(packet, inport),
            _ => self.look_up(packet, TableId::FIRST),
        }
    }

    /// Loads the zones of a logical port and of its datapath, as ovn-controller does: a port
    /// without a zone leaves the register as it is.
    pub fn write_zones(&mut self, packet: &mut Packet<'p>, port: Option<PortKey>) {
        let zones = self.program.zones();
        if zones.is_empty() {
            return;
        }
        let datapath = packet.datapath.0;
        if let Some(port) = port {
            self.reads_port(packet, port);
        }
        let common = zones.of_datapath(datapath);
        let own = port.map_or(0, |port| zones.of_port(datapath, port));
        for (field, zone) in [(PORT_ZONE, own), (DNAT_ZONE, common.dnat), (SNAT_ZONE, common.snat)]
        {
            if zone != 0 {
                packet.key.write(field, zone.into(), field.all_ones());
            }
        }
    }

    /// Writes `inport` or `outport`.
    pub fn write_port(&mut self, packet: &mut Packet<'p>, field: Field, port: Option<PortKey>) {
        let value = port.map_or(0, |port| port.value().into());
        packet.key.write(field, value, field.all_ones());
    }
}

/// True for actions that send a packet, or drop and count it.
pub(super) fn sends_or_drops(action: &Action) -> bool {
    match action {
        Action::Output(_) | Action::Encap { .. } | Action::Drop(_) | Action::Controller => true,
        Action::CheckLength { .. } | Action::Serve { .. } | Action::Reply { .. } => true,
        Action::Ct(action) => action.recirculation.is_some(),
        Action::Clone(actions) => actions.iter().any(sends_or_drops),
        Action::PushVlan(_)
        | Action::PopVlan
        | Action::Set { .. }
        | Action::SetIcmpMtu(_)
        | Action::Log(_)
        | Action::Meter { .. }
        | Action::NamedMeter(_)
        | Action::SetQueue(_) => false,
    }
}

/// True for actions that have an effect even when the packet is then dropped.
pub(super) fn has_side_effect(action: &Action) -> bool {
    matches!(
        action,
        Action::Log(_)
            | Action::Meter { .. }
            | Action::NamedMeter(_)
            | Action::Clone(_)
            | Action::Ct(_)
    )
}

/// Where a packet starts in the program.
enum EntryPoint {
    /// The first table of a bridge, from this port of the bridge.
    Bridge(PortNo),
    /// The ingress pipeline, with the logical ingress port if it is known.
    Ingress(Option<PortKey>),
    /// The egress pipeline: the sending host has executed the ingress pipeline.
    Egress { inport: Option<PortKey>, outport: PortKey },
}

impl EntryPoint {
    /// The logical ingress port if it is known, else the port of the bridge, or the datapath port.
    fn ingress_port(&self, in_port: PortNo) -> FdbPort {
        let inport = match *self {
            Self::Bridge(port) => return FdbPort::Port(port),
            Self::Ingress(inport) | Self::Egress { inport, .. } => inport,
        };
        inport.map_or(FdbPort::Port(in_port), FdbPort::Logical)
    }
}
