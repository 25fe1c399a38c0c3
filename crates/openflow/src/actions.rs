//! Converts the steps of flows to OpenFlow actions.

use crate::fields::OxmBits;
use crate::message::{Version, be16, pad};
use flow::{CtNat, Field, NatRange, Subfield};
use pipeline::{
    CtBackend, CtBalance, CtOp, CtZone, DatapathKind, Direction, FlowId, LearnedOp, Op, TableId,
};
use std::net::IpAddr;

/// The numbers of the OpenFlow tables of ovn-controller 23.03.
mod table {
    pub const INGRESS: u8 = 8;
    pub const OUTPUT: u8 = 37;
    pub const EGRESS: u8 = 42;
    pub const SAVE_INPORT: u8 = 64;
    pub const HAIRPIN: u8 = 68;
    pub const HAIRPIN_REPLY: u8 = 69;
    pub const HAIRPIN_SNAT: u8 = 70;
    /// Stands for no table.
    pub const NONE: u8 = 255;
}

/// Standard actions.
mod action {
    pub const OUTPUT: u16 = 0;
    pub const PUSH_VLAN: u16 = 17;
    pub const POP_VLAN: u16 = 18;
    pub const SET_QUEUE: u16 = 21;
    pub const GROUP: u16 = 22;
    pub const DEC_TTL: u16 = 24;
    /// Only in OpenFlow 1.0.
    pub const STRIP_VLAN: u16 = 3;
    pub const EXTENSION: u16 = 0xffff;
}

/// The action types of the Open vSwitch extension (Nicira).
mod extension {
    pub const VENDOR: u32 = 0x2320;
    pub const MOVE: u16 = 6;
    pub const LOAD: u16 = 7;
    pub const NOTE: u16 = 8;
    pub const RESUBMIT: u16 = 14;
    pub const DEC_TTL: u16 = 18;
    pub const PUSH: u16 = 27;
    pub const POP: u16 = 28;
    pub const LOAD_WIDE: u16 = 33;
    pub const CT: u16 = 35;
    pub const NAT: u16 = 36;
    pub const CLONE: u16 = 42;
    pub const CT_CLEAR: u16 = 43;
}

/// Reserved port numbers.
mod port {
    pub const IN_PORT: u32 = 0xffff_fff8;
    pub const IN_PORT_16: u16 = 0xfff8;
    pub const NORMAL: u32 = 0xffff_fffa;
    pub const FLOOD: u32 = 0xffff_fffb;
    pub const CONTROLLER: u32 = 0xffff_fffd;
}

/// The number of a table in ovn-controller 23.03; `None` if it has no such table.
pub(crate) fn table_number(table: TableId) -> Option<u8> {
    match table {
        TableId::HAIRPIN => return Some(table::HAIRPIN),
        TableId::HAIRPIN_REPLY => return Some(table::HAIRPIN_REPLY),
        TableId::HAIRPIN_SNAT => return Some(table::HAIRPIN_SNAT),
        _ => {}
    }
    let (direction, number) = table.in_pipeline();
    let (first, end) = match direction {
        Direction::Ingress => (table::INGRESS, table::OUTPUT),
        Direction::Egress => (table::EGRESS, table::SAVE_INPORT),
    };
    first.checked_add(number).filter(|number| *number < end)
}

/// The number of the group of a load balancer.
pub(crate) fn group_number(flow: FlowId) -> u32 {
    // Higher group numbers are reserved.
    (flow.0 & 0x7fff_ffff) as u32
}

/// The context on which the encoding of a flow's actions depends.
#[derive(Clone, Copy)]
pub(crate) struct ActionContext {
    pub version: Version,
    pub flow: FlowId,
    pub table: TableId,
    pub kind: DatapathKind,
    /// The IP protocol that the flow matches.
    pub protocol: Option<u8>,
}

impl ActionContext {
    fn bits(&self, bits: Subfield) -> Option<OxmBits> {
        OxmBits::new(bits, self.protocol)
    }

    /// Appends the actions of `ops`.
    pub fn emit(&self, bytes: &mut Vec<u8>, ops: &[Op]) {
        for op in ops {
            if self.emit_one(bytes, op).is_none() {
                note(bytes, name(op));
            }
        }
    }

    /// Appends the action of one step. Returns `None` and appends nothing if OpenFlow has no such
    /// action.
    fn emit_one(&self, bytes: &mut Vec<u8>, op: &Op) -> Option<()> {
        let is_old = self.version == Version::V10;
        match op {
            Op::PopVlan if is_old => standard(bytes, action::STRIP_VLAN, &[0; 4]),
            Op::DecTtl if is_old => extended(bytes, extension::DEC_TTL, &[0; 6], |_| ()),
            Op::PushVlan { .. } | Op::SetQueue(_) | Op::CtBalance(_) if is_old => return None,
            Op::Load { to, value } => load(bytes, self.bits(*to)?, *value),
            Op::Move { from, to } => move_bits(bytes, self.bits(*from)?, self.bits(*to)?),
            Op::Exchange(a, b) => {
                let (a, b) = (self.bits(*a)?, self.bits(*b)?);
                stack(bytes, extension::PUSH, a);
                stack(bytes, extension::PUSH, b);
                stack(bytes, extension::POP, a);
                stack(bytes, extension::POP, b);
            }
            Op::Push(bits) => stack(bytes, extension::PUSH, self.bits(*bits)?),
            Op::Pop(bits) => stack(bytes, extension::POP, self.bits(*bits)?),
            Op::PushVlan { tpid } => {
                let tpid = tpid.to_be_bytes();
                standard(bytes, action::PUSH_VLAN, &[tpid[0], tpid[1], 0, 0]);
            }
            Op::PopVlan => standard(bytes, action::POP_VLAN, &[0; 4]),
            Op::DecTtl => standard(bytes, action::DEC_TTL, &[0; 4]),
            Op::SetQueue(queue) => standard(bytes, action::SET_QUEUE, &queue.to_be_bytes()),
            Op::Next(table) => resubmit(bytes, table_number(*table)?),
            Op::Output => {
                let (direction, _) = self.table.in_pipeline();
                let is_ingress = direction == Direction::Ingress;
                resubmit(bytes, if is_ingress { table::OUTPUT } else { table::SAVE_INPORT });
            }
            Op::OutputPort(number) => self.output(bytes, number.0),
            Op::OutputInPort => self.output(bytes, port::IN_PORT),
            Op::Flood => self.output(bytes, port::FLOOD),
            Op::Normal => self.output(bytes, port::NORMAL),
            Op::Controller => self.output(bytes, port::CONTROLLER),
            Op::Clone(ops) => {
                extended(bytes, extension::CLONE, &[0; 6], |bytes| self.emit(bytes, ops));
            }
            Op::Ct(op) => self.ct(bytes, op)?,
            Op::CtBalance(_) => {
                standard(bytes, action::GROUP, &group_number(self.flow).to_be_bytes());
            }
            Op::CtClear => extended(bytes, extension::CT_CLEAR, &[0; 6], |_| ()),
            // A flow without actions drops packets.
            Op::Drop => {}
            _ => return None,
        }
        Some(())
    }

    fn output(&self, bytes: &mut Vec<u8>, port: u32) {
        let port = port.to_be_bytes();
        // The maximum length of a packet sent to a controller, and padding.
        let rest = [0xff, 0xff, 0, 0, 0, 0, 0, 0];
        match self.version {
            // The lower 16 bits of the reserved port numbers are equal in both versions.
            Version::V10 => standard(bytes, action::OUTPUT, &[&port[2..], &rest[..2]].concat()),
            Version::V13 => standard(bytes, action::OUTPUT, &[&port[..], &rest].concat()),
        }
    }

    fn ct(&self, bytes: &mut Vec<u8>, op: &CtOp) -> Option<()> {
        let table = op.next.map_or(Some(table::NONE), table_number)?;
        let zone = self.zone(op.zone)?;
        connection(bytes, op.commit.is_some(), (zone, table), |bytes| {
            if let Some(translation) = op.nat {
                nat(bytes, translation);
            }
            if let Some(exec) = &op.commit {
                self.emit(bytes, exec);
            }
        });
        Some(())
    }

    /// The actions of a load balancer's bucket.
    pub fn bucket(&self, balance: &CtBalance, backend: CtBackend) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let table = balance.next.map_or(Some(table::NONE), table_number)?;
        let zone = self.zone(balance.zone)?;
        connection(&mut bytes, true, (zone, table), |bytes| {
            let ports = (backend.port != 0).then_some((backend.port, backend.port));
            let range = NatRange { ports, ..NatRange::address(backend.ip) };
            nat(bytes, CtNat::Destination(range));
            self.emit(bytes, &balance.exec);
        });
        Some(bytes)
    }

    /// The encoding of a zone: the header of its field, and offset and width; or no field, and a
    /// number. As in ovn-controller, registers hold the zones of ports and routers.
    fn zone(&self, zone: CtZone) -> Option<([u8; 4], [u8; 2])> {
        let is_router = self.kind == DatapathKind::Router;
        let register = match zone {
            CtZone::Number(number) => return Some(([0; 4], number.to_be_bytes())),
            CtZone::Bits(bits) => bits,
            CtZone::Dnat => Subfield::new(Field::Reg11, 0, 16)?,
            CtZone::Snat => Subfield::new(Field::Reg12, 0, 16)?,
            CtZone::Logical if is_router => Subfield::new(Field::Reg11, 0, 16)?,
            CtZone::LogicalSnat if is_router => Subfield::new(Field::Reg12, 0, 16)?,
            CtZone::Logical | CtZone::LogicalSnat => Subfield::new(Field::Reg13, 0, 16)?,
        };
        let bits = self.bits(register)?;
        Some((bits.header, bits.offset_and_width()))
    }
}

/// Appends a standard action. The length of `body` plus 4 must be a multiple of 8.
fn standard(bytes: &mut Vec<u8>, kind: u16, body: &[u8]) {
    bytes.extend(kind.to_be_bytes());
    bytes.extend(be16(4 + body.len()));
    bytes.extend(body);
}

/// Appends an action of the Open vSwitch extension: a fixed part, then the part that `rest`
/// appends.
fn extended(bytes: &mut Vec<u8>, kind: u16, body: &[u8], rest: impl FnOnce(&mut Vec<u8>)) {
    let start = bytes.len();
    bytes.extend(action::EXTENSION.to_be_bytes());
    bytes.extend([0; 2]);
    bytes.extend(extension::VENDOR.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(body);
    rest(bytes);
    pad(bytes, start);
    let len = bytes.len() - start;
    bytes[start + 2..start + 4].copy_from_slice(&be16(len));
}

fn resubmit(bytes: &mut Vec<u8>, table: u8) {
    let [high, low] = port::IN_PORT_16.to_be_bytes();
    extended(bytes, extension::RESUBMIT, &[high, low, table, 0, 0, 0], |_| ());
}

fn load(bytes: &mut Vec<u8>, to: OxmBits, value: u128) {
    if let Ok(value) = u64::try_from(value)
        && to.width <= 64
    {
        let mut body = to.offset_and_width().to_vec();
        body.extend(to.header);
        body.extend(value.to_be_bytes());
        extended(bytes, extension::LOAD, &body, |_| ());
        return;
    }
    // Only loads of whole fields are wider.
    extended(bytes, extension::LOAD_WIDE, &[], |bytes| to.field.emit(bytes, value << to.first));
}

fn move_bits(bytes: &mut Vec<u8>, from: OxmBits, to: OxmBits) {
    let mut body = u16::from(from.width).to_be_bytes().to_vec();
    body.extend(u16::from(from.first).to_be_bytes());
    body.extend(u16::from(to.first).to_be_bytes());
    body.extend(from.header);
    body.extend(to.header);
    extended(bytes, extension::MOVE, &body, |_| ());
}

fn stack(bytes: &mut Vec<u8>, kind: u16, bits: OxmBits) {
    let mut body = u16::from(bits.first).to_be_bytes().to_vec();
    body.extend(bits.header);
    body.extend(u16::from(bits.width).to_be_bytes());
    body.extend([0; 6]);
    extended(bytes, kind, &body, |_| ());
}

/// Appends a `ct` action: the zone, the next table, and the nested actions that `rest` appends.
fn connection(
    bytes: &mut Vec<u8>,
    must_commit: bool,
    ((field, zone), table): (([u8; 4], [u8; 2]), u8),
    rest: impl FnOnce(&mut Vec<u8>),
) {
    let mut body = u16::from(must_commit).to_be_bytes().to_vec();
    body.extend(field);
    body.extend(zone);
    body.push(table);
    // Padding, and no application-level gateway.
    body.extend([0; 5]);
    extended(bytes, extension::CT, &body, rest);
}

fn nat(bytes: &mut Vec<u8>, translation: CtNat) {
    let how = |range: &NatRange| u16::from(range.persistent) << 2 | u16::from(range.random) << 4;
    let (flags, range) = match translation {
        CtNat::Existing => (0_u16, None),
        CtNat::Source(range) => (1 | how(&range), Some(range)),
        CtNat::Destination(range) => (2 | how(&range), Some(range)),
    };
    // The bits of `present` tell which parts follow: first and last IPv4 address, IPv6 address,
    // port.
    let (mut present, mut parts) = (0_u16, Vec::new());
    if let Some(NatRange { first, last, ports, .. }) = range {
        let shift = if first.is_ipv4() { 0 } else { 2 };
        present |= 1 << shift;
        parts.extend(octets(first));
        if last != first {
            present |= 2 << shift;
            parts.extend(octets(last));
        }
        if let Some((first, last)) = ports {
            present |= 16;
            parts.extend(first.to_be_bytes());
            if last != first {
                present |= 32;
                parts.extend(last.to_be_bytes());
            }
        }
    }
    let mut body = vec![0, 0];
    body.extend(flags.to_be_bytes());
    body.extend(present.to_be_bytes());
    body.extend(parts);
    extended(bytes, extension::NAT, &body, |_| ());
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn note(bytes: &mut Vec<u8>, text: &str) {
    extended(bytes, extension::NOTE, text.as_bytes(), |_| ());
}

/// The name of a step that OpenFlow cannot express. It is the name in logical flows, if they have
/// this step.
fn name(op: &Op) -> &'static str {
    match op {
        Op::Learned(op) => match **op {
            LearnedOp::GetMacBinding { .. } => "get_arp",
            LearnedOp::LookupMacBinding { .. } => "lookup_arp",
            LearnedOp::PutMacBinding { .. } => "put_arp",
            LearnedOp::GetFdb { .. } => "get_fdb",
            LearnedOp::LookupFdb { .. } => "lookup_fdb",
            LearnedOp::PutFdb { .. } => "put_fdb",
            LearnedOp::UseMacBinding => "mac_cache_use",
            LearnedOp::CheckAffinity { .. } => "chk_lb_aff",
            LearnedOp::LearnAffinity(_) => "commit_lb_aff",
            LearnedOp::CheckNextHop { .. } => "chk_ecmp_nh",
            LearnedOp::LearnNextHop => "commit_ecmp_nh",
        },
        Op::Reply { .. } => "reply",
        Op::Reject(_) => "reject",
        Op::SetIcmpMtu(_) => "icmp.frag_mtu",
        Op::PortSecurity { .. } => "check_port_sec",
        Op::CheckLength { .. } => "check_pkt_larger",
        Op::Serve { .. } => "serve",
        Op::DnsLookup(_) => "dns_lookup",
        Op::Select { .. } => "select",
        Op::Log(_) => "log",
        Op::Meter { .. } | Op::NamedMeter(_) => "meter",
        Op::CtOriginal { .. } => "ct_original",
        Op::CtBalance(_) => "ct_lb",
        Op::PushVlan { .. } => "push_vlan",
        Op::SetQueue(_) => "set_queue",
        Op::Unsupported(name) => name,
        _ => "no_action",
    }
}
