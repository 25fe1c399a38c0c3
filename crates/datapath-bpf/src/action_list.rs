//! [`ActionList`]: the actions of a megaflow in the form that a program executes.
//!
//! A program that executes a list produces the same frames and counters as [`flow::execute()`] with
//! the megaflow's [`Action`]s. If that is not possible for every packet of the megaflow, there is
//! no list, and its packets are punted.
//!
//! Actions set a field "if the frame has it", but programs do not check. So the megaflow's
//! condition has to say that all its packets have the header. Translations that set a field depend
//! on that condition.

use crate::abi;
use datapath::megaflow::Megaflow;
use flow::{Action, DropReason, EndpointId, Field, FlowKey, FlowMask, Match, PortNo, TunnelKey};
use wire::tunnel::LogicalPorts;
use wire::vlan::{MAX_TAGS, TAG_LEN, Tag};
use wire::{EtherType, Protocol};

/// The most actions in a list.
pub const MAX_ACTIONS: usize = abi::WEFT_MAX_ACTIONS as usize;
/// The highest port number in the programs' maps.
const MAX_PORT: PortNo = datapath::config::MAX_PORT;
/// The deepest nesting of lists; deeper ones are left to the user datapath.
const MAX_DEPTH: usize = 8;
const TCP: u128 = Protocol::TCP.0 as u128;
const UDP: u128 = Protocol::UDP.0 as u128;

/// An action of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BpfAction {
    /// Send to a port. The last action sends the packet itself, others send a copy.
    Output(PortNo),
    /// Send by the uplink with the tags that the frame has.
    Uplink,
    /// Encapsulate and send. Always the last action.
    Encap {
        /// The remote end point.
        endpoint: EndpointId,
        /// VNI or GRE key.
        key: u32,
        /// Logical ports as in OVN's Geneve option.
        ports: Option<u32>,
    },
    /// Drop. Always the last action.
    Drop(DropReason),
    /// Push an outermost tag.
    PushVlan(Tag),
    /// Pop the outermost tag. The frame has one.
    PopVlan,
    /// Rewrite a field of a header that the frame has.
    Set {
        /// The field.
        field: SetField,
        /// Mask of the bits to write; 0 for a field that is written as a whole.
        bits: u32,
        /// The new bits, right aligned.
        value: u64,
    },
}

/// Fields that programs can rewrite; the values are those of `enum weft_set_field`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum SetField {
    EthDst = abi::WEFT_SET_ETH_DST as u8,
    EthSrc = abi::WEFT_SET_ETH_SRC as u8,
    Ip4Src = abi::WEFT_SET_IP4_SRC as u8,
    Ip4Dst = abi::WEFT_SET_IP4_DST as u8,
    Ip4Ttl = abi::WEFT_SET_IP4_TTL as u8,
    Ip4Tos = abi::WEFT_SET_IP4_TOS as u8,
    Ip6SrcHigh = abi::WEFT_SET_IP6_SRC_HIGH as u8,
    Ip6SrcLow = abi::WEFT_SET_IP6_SRC_LOW as u8,
    Ip6DstHigh = abi::WEFT_SET_IP6_DST_HIGH as u8,
    Ip6DstLow = abi::WEFT_SET_IP6_DST_LOW as u8,
    Ip6HopLimit = abi::WEFT_SET_IP6_HOP_LIMIT as u8,
    Ip6Tos = abi::WEFT_SET_IP6_TOS as u8,
    TpSrc = abi::WEFT_SET_TP_SRC as u8,
    TpDst = abi::WEFT_SET_TP_DST as u8,
    ArpOp = abi::WEFT_SET_ARP_OP as u8,
    ArpSha = abi::WEFT_SET_ARP_SHA as u8,
    ArpSpa = abi::WEFT_SET_ARP_SPA as u8,
    ArpTha = abi::WEFT_SET_ARP_THA as u8,
    ArpTpa = abi::WEFT_SET_ARP_TPA as u8,
}

/// The actions of a megaflow in the form that a program executes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ActionList {
    /// At most `WEFT_MAX_ACTIONS`. An empty list consumes the frame without counting a drop.
    pub actions: Vec<BpfAction>,
    /// Longest frame, or segment of a super-packet, in bytes from the Ethernet header on. Longer
    /// ones are punted.
    pub max_len: u32,
    /// Bytes of tags that are added before the last action.
    pub grows: u32,
}

impl ActionList {
    /// Compiles the actions of a megaflow. Frames that leave by the port `uplink` leave by the
    /// uplink device. `None` if programs cannot execute all actions on all its packets.
    pub fn of(megaflow: &Megaflow, uplink: PortNo) -> Option<Self> {
        let mut compiler = Compiler {
            condition: &megaflow.condition,
            uplink,
            tags: TagCondition::of(&megaflow.condition),
            list: Self { actions: Vec::new(), max_len: u32::MAX, grows: 0 },
            growth: 0,
        };
        compiler.compile(&megaflow.actions)?;
        let Compiler { mut list, .. } = compiler;
        // Changes after the last output have no effect, and cannot fail.
        let is_unseen =
            |step: &BpfAction| matches!(step, BpfAction::Set { .. } | BpfAction::PopVlan);
        while list.actions.pop_if(|last| is_unseen(last)).is_some() {}
        (list.is_whole() && list.max_len > 0).then_some(list)
    }

    /// True if the list ends in a final action, and copies only frames whose length has not
    /// changed.
    fn is_whole(&self) -> bool {
        // An empty list consumes the frame. It cannot have a length limit.
        let Some((last, others)) = self.actions.split_last() else {
            return self.max_len == u32::MAX;
        };
        let ends = |step: &BpfAction| {
            matches!(
                step,
                BpfAction::Output(_)
                    | BpfAction::Uplink
                    | BpfAction::Encap { .. }
                    | BpfAction::Drop(_)
            )
        };
        let is_copied = others.iter().any(ends);
        let is_tagged =
            others.iter().any(|step| matches!(step, BpfAction::PushVlan(_) | BpfAction::PopVlan));
        let is_at_the_end =
            |step: &BpfAction| matches!(step, BpfAction::Encap { .. } | BpfAction::Drop(_));
        ends(last)
            && !others.iter().any(is_at_the_end)
            && !(is_copied && is_tagged)
            && self.actions.len() <= MAX_ACTIONS
    }

    /// The end point of the last action, if that is an encapsulation.
    pub fn endpoint(&self) -> Option<EndpointId> {
        match self.actions.last() {
            Some(&BpfAction::Encap { endpoint, .. }) => Some(endpoint),
            _ => None,
        }
    }
}

/// The known tags of a megaflow's packets, from its condition and from the actions so far.
struct TagCondition {
    /// Number of tags that the list has pushed so far.
    pushed: usize,
    /// Tags that the frame arrived with, outermost last; `None`: unknown TPID.
    own: Vec<Option<EtherType>>,
    /// There may be further tags.
    more: bool,
    changed: bool,
}

impl TagCondition {
    fn of(condition: &Match) -> Self {
        let mut own = Vec::new();
        for field in [Field::VlanTpid, Field::VlanInnerTpid] {
            match known(condition, field) {
                Some(0) => return Self { pushed: 0, own, more: false, changed: false },
                Some(tpid) => own.insert(0, Some(EtherType(tpid as u16))),
                None => {
                    own.insert(0, None);
                    break;
                }
            }
        }
        Self { pushed: 0, own, more: true, changed: false }
    }

    /// True if the tags have changed, and there may be three now. Such a frame is not parsed as IP,
    /// so its IP fields cannot be set.
    fn may_hide_ip(&self) -> bool {
        self.changed && (self.more || self.own.len() + self.pushed > MAX_TAGS)
    }

    /// Pops the outermost tag. Returns false if there is none, `None` if that is unknown.
    fn pop(&mut self) -> Option<bool> {
        if self.pushed > 0 {
            self.pushed -= 1;
            return Some(true);
        }
        match self.own.pop() {
            Some(Some(EtherType::VLAN | EtherType::QINQ)) => Some(true),
            Some(_) => None,
            None if self.more => None,
            None => Some(false),
        }
    }
}

/// A field's value, if the condition fixes all of it.
fn known(condition: &Match, field: Field) -> Option<u128> {
    let (key, mask): (&FlowKey, &FlowMask) = (condition.key(), condition.mask());
    (mask.get(field) == field.all_ones()).then(|| key.get(field))
}

struct Compiler<'a> {
    condition: &'a Match,
    uplink: PortNo,
    tags: TagCondition,
    list: ActionList,
    /// The difference in bytes between the frame's length now and on arrival.
    growth: i32,
}

impl Compiler<'_> {
    /// Compiles a list of actions, following the branches for frames that are not too long.
    fn compile(&mut self, actions: &[Action]) -> Option<()> {
        let mut rest = actions.iter();
        let mut branches = 0;
        while let Some(action) = rest.next() {
            match action {
                Action::CheckLength { bytes, otherwise, .. } if branches < MAX_DEPTH => {
                    branches += 1;
                    // Longer frames are punted, whatever the other branch is.
                    let most = i32::from(*bytes) - self.growth;
                    self.list.max_len = self.list.max_len.min(u32::try_from(most).ok()?);
                    rest = otherwise.iter();
                }
                Action::Drop(reason) => {
                    self.list.actions.push(BpfAction::Drop(*reason));
                    return Some(());
                }
                action => self.step(action, 0)?,
            }
            if self.list.actions.len() > MAX_ACTIONS {
                return None;
            }
        }
        Some(())
    }

    fn step(&mut self, action: &Action, depth: usize) -> Option<()> {
        let step = match action {
            Action::Output(port) if *port == self.uplink => BpfAction::Uplink,
            Action::Output(port) if *port <= MAX_PORT => BpfAction::Output(*port),
            Action::Encap { endpoint, key } => encap(*endpoint, key),
            Action::PushVlan(tag) => self.push(*tag)?,
            Action::PopVlan => {
                if !self.tags.pop()? {
                    return Some(());
                }
                self.tags.changed = true;
                self.growth -= TAG_LEN as i32;
                BpfAction::PopVlan
            }
            Action::Set { field, value, mask } => return self.set(*field, *value, *mask),
            // Neither datapath has more than one queue, so this action has no effect.
            Action::SetQueue(_) => return Some(()),
            Action::Clone(list) if depth < MAX_DEPTH => return self.copies(list, depth + 1),
            _ => return None,
        };
        if matches!(step, BpfAction::Output(_) | BpfAction::Uplink | BpfAction::Encap { .. }) {
            self.list.grows = self.growth.max(0).unsigned_abs();
        }
        self.list.actions.push(step);
        Some(())
    }

    /// Compiles a clone that changes nothing: its outputs are outputs of the frame itself.
    fn copies(&mut self, list: &[Action], depth: usize) -> Option<()> {
        for action in list {
            match action {
                Action::Output(_) | Action::Encap { .. } | Action::Clone(_) => {
                    self.step(action, depth)?;
                }
                // Applies to the clone only.
                Action::SetQueue(_) => {}
                _ => return None,
            }
            if self.list.actions.len() > MAX_ACTIONS {
                return None;
            }
        }
        Some(())
    }

    fn push(&mut self, tag: Tag) -> Option<BpfAction> {
        // Linux pushes no other TPIDs.
        if !matches!(tag.tpid, EtherType::VLAN | EtherType::QINQ) {
            return None;
        }
        self.tags.pushed += 1;
        self.tags.changed = true;
        self.growth += TAG_LEN as i32;
        Some(BpfAction::PushVlan(tag))
    }

    fn set(&mut self, field: Field, value: u128, mask: u128) -> Option<()> {
        let mask = mask & field.all_ones();
        if mask == 0 {
            return Some(());
        }
        let is_whole = mask == field.all_ones();
        let eth_type = self.eth_type();
        let mut push = |field, bits: u128, value: u128| {
            let (bits, value) = (bits as u32, value as u64);
            self.list.actions.push(BpfAction::Set { field, bits, value });
        };
        match field {
            Field::EthDst if is_whole => push(SetField::EthDst, 0, value),
            Field::EthSrc if is_whole => push(SetField::EthSrc, 0, value),
            _ if self.tags.may_hide_ip() => return None,
            _ if of_arp(field).is_some() => {
                // A known operation other than 0 shows that all packets are ARP for IPv4.
                let is_arp = eth_type == Some(EtherType::ARP)
                    && known(self.condition, Field::ArpOp).is_some_and(|op| op != 0);
                if !is_arp || !is_whole {
                    return None;
                }
                of_arp(field).into_iter().for_each(|field| push(field, 0, value));
            }
            _ => {
                let is_ip6 = match eth_type? {
                    EtherType::IPV4 => false,
                    EtherType::IPV6 => true,
                    _ => return None,
                };
                for (field, bits, value) in self.ip(is_ip6, field, value, mask)? {
                    self.list.actions.push(BpfAction::Set { field, bits, value });
                }
            }
        }
        Some(())
    }

    /// Fields of the IP header and of the transport header.
    fn ip(
        &self,
        is_ip6: bool,
        field: Field,
        value: u128,
        mask: u128,
    ) -> Option<Vec<(SetField, u32, u64)>> {
        let is_whole = mask == field.all_ones();
        let whole = |field, value: u128| is_whole.then(|| vec![(field, 0, value as u64)]);
        let halves = |high, low| {
            is_whole.then(|| vec![(high, 0, (value >> 64) as u64), (low, 0, value as u64)])
        };
        let tos = if is_ip6 { SetField::Ip6Tos } else { SetField::Ip4Tos };
        match field {
            Field::IpDscp => Some(vec![(tos, (mask << 2) as u32, (value << 2) as u64)]),
            Field::IpEcn => Some(vec![(tos, mask as u32, value as u64)]),
            Field::IpTtl if is_ip6 => whole(SetField::Ip6HopLimit, value),
            Field::IpTtl => whole(SetField::Ip4Ttl, value),
            Field::Ip4Src if !is_ip6 => whole(SetField::Ip4Src, value),
            Field::Ip4Dst if !is_ip6 => whole(SetField::Ip4Dst, value),
            Field::Ip6Src if is_ip6 => halves(SetField::Ip6SrcHigh, SetField::Ip6SrcLow),
            Field::Ip6Dst if is_ip6 => halves(SetField::Ip6DstHigh, SetField::Ip6DstLow),
            Field::TpSrc if self.has_ports() => whole(SetField::TpSrc, value),
            Field::TpDst if self.has_ports() => whole(SetField::TpDst, value),
            _ => None,
        }
    }

    /// The EtherType, if all packets have the same.
    fn eth_type(&self) -> Option<EtherType> {
        known(self.condition, Field::EthType).map(|eth_type| EtherType(eth_type as u16))
    }

    /// Whether all packets are unfragmented TCP or UDP.
    fn has_ports(&self) -> bool {
        let protocol = known(self.condition, Field::IpProto);
        matches!(protocol, Some(TCP | UDP)) && known(self.condition, Field::IpFrag) == Some(0)
    }
}

/// The field of ARP that programs can rewrite.
const fn of_arp(field: Field) -> Option<SetField> {
    match field {
        Field::ArpOp => Some(SetField::ArpOp),
        Field::ArpSha => Some(SetField::ArpSha),
        Field::ArpSpa => Some(SetField::ArpSpa),
        Field::ArpTha => Some(SetField::ArpTha),
        Field::ArpTpa => Some(SetField::ArpTpa),
        _ => None,
    }
}

fn encap(endpoint: EndpointId, key: &TunnelKey) -> BpfAction {
    let ports = key.ports.map(|ports| LogicalPorts::from(ports).value());
    BpfAction::Encap { endpoint, key: key.datapath.0, ports }
}

#[cfg(test)]
mod tests;
