//! Provider bridges: learning switches with VLANs, like the action `NORMAL` of Open vSwitch.
//!
//! A bridge has no flows. The ingress port of a frame determines its VLAN. Its source address is
//! learned in that VLAN, and its destination address is looked up there. A frame for an unknown
//! address or a group goes to all other ports that carry the VLAN.
//!
//! A frame leaves through a device, or through a patch port into a logical switch or another
//! bridge. It never leaves through its ingress port. A loop of patch ports ends at the limits of a
//! translation.

use super::emit::VLAN_TAG;
use super::learned::{is_reserved, mac_from_bits};
use super::translator::{LimitExceeded, Packet, TAG_PRESENT, Translator};
use crate::observer::{Event, Nested, Observer};
use crate::port_vlans::PortVlans;
use crate::program::PortLocation;
use crate::reads::ProgramPart;
use crate::state::{FdbKey, FdbPort, LearnEvent, LearnedState};
use flow::{Action, DropReason, Field, PortKey, Subfield};
use wire::EtherType;

/// The VLAN ID of the outer tag.
const VLAN_ID: Subfield = match Subfield::new(Field::VlanTci, 0, 12) {
    Some(bits) => bits,
    None => Subfield::whole(Field::VlanTci),
};
/// Whether a frame has a second tag.
const INNER_TAG_PRESENT: Subfield = match Subfield::new(Field::VlanInnerTci, 12, 1) {
    Some(bits) => bits,
    None => Subfield::whole(Field::VlanInnerTci),
};

/// A frame in a bridge.
#[derive(Clone, Copy)]
struct BridgedFrame {
    inport: PortKey,
    vlan: u16,
    tag: OuterTag,
    /// The TPID of a tag that is pushed for the VLAN.
    tpid: u16,
}

/// The meaning of a frame's outer tag for its VLAN.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OuterTag {
    /// None: the frame is untagged, or its tags are payload.
    Absent,
    /// It names the VLAN.
    Vlan,
    /// It carries only a priority.
    Priority,
}

impl<'p, S: LearnedState, O: Observer> Translator<'p, '_, S, O> {
    /// Forwards a packet that has entered a bridge through this port.
    pub fn forward_in_bridge(
        &mut self,
        packet: &mut Packet<'p>,
        inport: PortKey,
    ) -> Result<(), LimitExceeded> {
        self.step()?;
        self.reads.add(ProgramPart::AllPorts(packet.datapath.0));
        let Some(frame) = self.classify_vlan(packet, inport) else {
            return self.end_copy(packet, DropReason::WrongVlan);
        };
        let source = mac_from_bits(self.read_field(packet, Field::EthSrc));
        if source.is_multicast() {
            return self.end_copy(packet, DropReason::BadSourceMac);
        }
        let datapath = packet.datapath.0;
        let key = |mac| FdbKey { datapath, vlan: frame.vlan, mac };
        let here = FdbPort::Logical(inport);
        if source.is_unicast() && !self.is_known_sender(key(source), here) {
            self.raise_learn_event(LearnEvent::Fdb(key(source), here));
        }
        let target = self.read_field(packet, Field::EthDst);
        if is_reserved(target) {
            return self.end_copy(packet, DropReason::FlowDrop);
        }
        let target = mac_from_bits(target);
        let known = if target.is_multicast() { None } else { self.query_fdb(key(target)) };
        match known {
            Some(FdbPort::Logical(outport)) if carries(packet, outport, frame.vlan) => {
                self.note(|| format!("{target} in VLAN {} is behind a known port", frame.vlan));
                self.send_from_bridge(packet, frame, outport)
            }
            _ => {
                self.note(|| format!("{target} in VLAN {}: flood", frame.vlan));
                self.flood_in_bridge(packet, frame)
            }
        }
    }

    /// Finds the VLAN of a frame. `None` if its ingress port refuses it.
    fn classify_vlan(&mut self, packet: &mut Packet<'p>, inport: PortKey) -> Option<BridgedFrame> {
        let tag = self.read_bits(packet, VLAN_TAG);
        // The cast is lossless: a VLAN ID has 12 bits.
        let vid = (tag & !TAG_PRESENT) as u16;
        let vlans = packet.datapath.1.vlans.get(&inport);
        let vlan = vlans.map_or(Some(vid), |vlans| vlans.of_received(vid))?;
        let (tag, tpid) = match vlans {
            Some(PortVlans::Tunnel { tpid, .. }) => (OuterTag::Absent, *tpid),
            _ if tag & TAG_PRESENT == 0 => (OuterTag::Absent, EtherType::VLAN.0),
            // Without the priority tag, the second tag would choose another VLAN for the frame.
            _ if vid == 0 && self.read_bits(packet, INNER_TAG_PRESENT) != 0 => return None,
            _ if vid == 0 => (OuterTag::Priority, EtherType::VLAN.0),
            _ => (OuterTag::Vlan, EtherType::VLAN.0),
        };
        Some(BridgedFrame { inport, vlan, tag, tpid })
    }

    fn flood_in_bridge(
        &mut self,
        packet: &mut Packet<'p>,
        frame: BridgedFrame,
    ) -> Result<(), LimitExceeded> {
        self.emit_changes(packet);
        packet.frames.clear();
        packet.reason = DropReason::NoReceiver;
        let ports = packet.datapath.1.ports.keys().copied();
        let mut ports: Vec<PortKey> = ports
            .filter(|&port| port != frame.inport && carries(packet, port, frame.vlan))
            .collect();
        ports.sort_unstable();
        let steps = self.steps;
        for port in ports {
            self.steps = steps;
            let copy = packet.fork(&[]);
            let nested = Nested::Member { datapath: packet.datapath.0, port };
            self.run_nested(nested, packet, copy, |translator, copy| {
                translator.send_from_bridge(copy, frame, port)
            })?;
        }
        Ok(())
    }

    /// Sends a frame out of a bridge by a port that carries its VLAN.
    fn send_from_bridge(
        &mut self,
        packet: &mut Packet<'p>,
        frame: BridgedFrame,
        outport: PortKey,
    ) -> Result<(), LimitExceeded> {
        let (from, datapath) = packet.datapath;
        if outport == frame.inport {
            return self.end_copy(packet, DropReason::Hairpin);
        }
        let Some(port) = datapath.ports.get(&outport) else {
            return self.end_copy(packet, DropReason::UnknownLogicalPort);
        };
        let vlans = datapath.vlans.get(&outport);
        let is_tagged = vlans.map_or(frame.vlan != 0, |vlans| vlans.tags(frame.vlan));
        if !self.set_outer_tag(packet, frame, is_tagged) {
            return Ok(());
        }
        match port.location {
            PortLocation::Local(port) => {
                self.emit_changes(packet);
                packet.actions.push(Action::Output(port));
                let (logical, key) = (Some((from, outport)), packet.key.key());
                self.observer.event(Event::Output { port, logical, key });
                Ok(())
            }
            PortLocation::Patch { datapath, port } => match self.find_datapath(datapath) {
                Some(peer) => self.cross_patch(packet, (datapath, peer), port),
                None => self.end_copy(packet, DropReason::UnknownDatapath),
            },
            _ => self.end_copy(packet, DropReason::PortDown),
        }
    }

    /// Pushes, pops or changes the outer tag. Returns false if that has dropped the packet.
    fn set_outer_tag(
        &mut self,
        packet: &mut Packet<'p>,
        frame: BridgedFrame,
        is_tagged: bool,
    ) -> bool {
        match (frame.tag, is_tagged) {
            (OuterTag::Vlan, true) | (OuterTag::Absent, false) => true,
            (OuterTag::Vlan | OuterTag::Priority, false) => self.pop_known_vlan(packet),
            (OuterTag::Priority, true) => {
                self.write(packet, VLAN_ID, frame.vlan.into());
                true
            }
            (OuterTag::Absent, true) => {
                let is_pushed = self.push_vlan(packet, frame.tpid);
                if is_pushed {
                    self.write(packet, VLAN_ID, frame.vlan.into());
                }
                is_pushed
            }
        }
    }
}

/// True if a port of the packet's bridge carries a VLAN.
fn carries(packet: &Packet<'_>, port: PortKey, vlan: u16) -> bool {
    let bridge = packet.datapath.1;
    bridge.ports.contains_key(&port)
        && bridge.vlans.get(&port).is_none_or(|vlans| vlans.carries(vlan))
}
