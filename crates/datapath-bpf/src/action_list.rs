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
use flow::{
    Action, DropReason, EndpointId, Field, FlowKey, FlowMask, Match, PortKey, PortNo, TunnelKey,
};
use wire::EtherType;
use wire::vlan::{MAX_TAGS, TAG_LEN, Tag};

/// The most actions in a list.
pub const MAX_ACTIONS: usize = abi::WEFT_MAX_ACTIONS as usize;
/// The highest port number in the programs' maps.
const MAX_PORT: PortNo = datapath::config::MAX_PORT;
/// The deepest nesting of lists; deeper ones are left to the user datapath.
const MAX_DEPTH: usize = 8;
const PROTO_TCP: u128 = 6;
const PROTO_UDP: u128 = 17;

/// An action of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BpfAction {
    /// Send to a port. The last action takes the packet, others take a copy.
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

    /// Ends in a final action, and copies only frames whose length has not changed.
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

/// What a megaflow's condition says about the tags of its packets.
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
    /// How many bytes longer the frame is now than on arrival.
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
            // Programs have one queue, like the user datapath.
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
        let mut push = |field, bits: u128, value: u128| {
            let (bits, value) = (bits as u32, value as u64);
            self.list.actions.push(BpfAction::Set { field, bits, value });
        };
        match field {
            Field::EthDst if is_whole => push(SetField::EthDst, 0, value),
            Field::EthSrc if is_whole => push(SetField::EthSrc, 0, value),
            _ if self.tags.may_hide_ip() => return None,
            _ => {
                let is_ip6 = match known(self.condition, Field::EthType)? {
                    0x0800 => false,
                    0x86dd => true,
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

    /// Whether all packets are unfragmented TCP or UDP.
    fn has_ports(&self) -> bool {
        let protocol = known(self.condition, Field::IpProto);
        matches!(protocol, Some(PROTO_TCP | PROTO_UDP))
            && known(self.condition, Field::IpFrag) == Some(0)
    }
}

fn encap(endpoint: EndpointId, key: &TunnelKey) -> BpfAction {
    let ports = key.ports.map(|ports| {
        let ingress = ports.ingress.map_or(0, PortKey::value) & 0x7fff;
        u32::from(ingress) << 16 | u32::from(ports.egress.value())
    });
    BpfAction::Encap { endpoint, key: key.datapath.0, ports }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{DatapathKey, LogicalPorts, Reply};
    use services::{Service, dhcp4};
    use std::sync::Arc;
    use wire::VlanId;

    const UPLINK: PortNo = PortNo(0);
    const OUT: Action = Action::Output(PortNo(2));
    const TWO: BpfAction = BpfAction::Output(PortNo(2));

    fn megaflow(fields: &[(Field, u128)], actions: &[Action]) -> Megaflow {
        let mut condition = Match::any();
        for &(field, value) in fields {
            assert!(condition.require(field, value, field.all_ones()));
        }
        Megaflow::new(condition, actions.into())
    }

    fn list(fields: &[(Field, u128)], actions: &[Action]) -> Option<ActionList> {
        ActionList::of(&megaflow(fields, actions), UPLINK)
    }

    /// Compiles a list that has no length limit and does not grow the frame.
    fn compiled_actions(fields: &[(Field, u128)], actions: &[Action]) -> Option<Vec<BpfAction>> {
        let list = list(fields, actions)?;
        assert_eq!((list.max_len, list.grows), (u32::MAX, 0), "{list:?}");
        Some(list.actions)
    }

    fn tag(tpid: EtherType, vlan: u16) -> Tag {
        Tag::new(tpid, VlanId::new(vlan).unwrap())
    }

    fn set(field: Field, value: u128) -> Action {
        Action::Set { field, value, mask: field.all_ones() }
    }

    const KEY: TunnelKey = TunnelKey { datapath: DatapathKey(0x12_3456), ports: None };
    const TUNNEL: Action = Action::Encap { endpoint: EndpointId(7), key: KEY };
    const INTO: BpfAction =
        BpfAction::Encap { endpoint: EndpointId(7), key: 0x12_3456, ports: None };
    const IP4: (Field, u128) = (Field::EthType, 0x0800);
    const IP6: (Field, u128) = (Field::EthType, 0x86dd);
    const TCP: (Field, u128) = (Field::IpProto, 6);
    const WHOLE: (Field, u128) = (Field::IpFrag, 0);

    #[test]
    fn outputs_compile_and_the_last_one_takes_the_packet() {
        let copy = |port| Action::Output(PortNo(port));
        assert_eq!(compiled_actions(&[], &[OUT]), Some(vec![TWO]));
        assert_eq!(
            compiled_actions(&[], &[copy(1), OUT, TUNNEL]),
            Some(vec![BpfAction::Output(PortNo(1)), TWO, INTO])
        );
        assert_eq!(compiled_actions(&[], &[Action::Output(UPLINK)]), Some(vec![BpfAction::Uplink]));
        assert_eq!(compiled_actions(&[], &[OUT, Action::SetQueue(3), OUT]), Some(vec![TWO, TWO]));
        let drop = Action::Drop(DropReason::FlowDrop);
        let dropped = BpfAction::Drop(DropReason::FlowDrop);
        assert_eq!(compiled_actions(&[], &[OUT, drop.clone(), OUT]), Some(vec![TWO, dropped]));
        assert_eq!(compiled_actions(&[], &vec![OUT; 15]), Some(vec![TWO; 15]));
        assert_eq!(compiled_actions(&[], &[]), Some(Vec::new()));
        assert_eq!(compiled_actions(&[], &[OUT, set(Field::EthDst, 1)]), Some(vec![TWO]));
        for too_much in [&[TUNNEL, OUT][..], &vec![OUT; 16]] {
            assert_eq!(compiled_actions(&[], too_much), None, "{too_much:?}");
        }
        assert_eq!(compiled_actions(&[], &[copy(0xffff_ff00)]), None);
    }

    #[test]
    fn encap_has_tunnel_key_and_logical_ports() {
        let ports =
            LogicalPorts { ingress: PortKey::new(0x0102), egress: PortKey::new(0x8003).unwrap() };
        let key = TunnelKey { ports: Some(ports), ..KEY };
        let list = list(&[], &[Action::Encap { endpoint: EndpointId(7), key }]).unwrap();
        let Some(BpfAction::Encap { key, ports, .. }) = list.actions.last().copied() else {
            panic!()
        };
        assert_eq!((key, ports), (0x12_3456, Some(0x0102_8003)));
        assert_eq!(list.endpoint(), Some(EndpointId(7)));
    }

    #[test]
    fn actions_that_programs_cannot_execute_have_no_list() {
        for action in [
            Action::Controller,
            Action::SetIcmpMtu(1400),
            Action::Meter { rate_kbps: 1, burst_kb: 1 },
            Action::Reply { reply: Reply::Arp, actions: Box::new([OUT]) },
            Action::Serve {
                service: Arc::new(Service::Dhcp4(dhcp4::Server::new([10, 0, 0, 5].into()))),
                answered: Box::new([Box::new([OUT]), Box::new([OUT])]),
                otherwise: Box::new([OUT]),
            },
            Action::Clone(Box::new([set(Field::EthDst, 1), OUT])),
            Action::Clone(Box::new([Action::Drop(DropReason::FlowDrop)])),
            Action::PushVlan(tag(EtherType::VLAN_9100, 1)),
            Action::PopVlan,
            set(Field::VlanTci, 5),
            set(Field::ArpOp, 2),
            set(Field::Ip4Src, 1),
            set(Field::TpDst, 1),
            Action::Set { field: Field::EthDst, value: 1, mask: 1 },
        ] {
            assert_eq!(compiled_actions(&[], &[action.clone(), OUT]), None, "{action:?}");
        }
    }

    #[test]
    fn copies_that_change_nothing_are_outputs() {
        let inner = Action::Clone(Box::new([OUT, Action::SetQueue(1)]));
        let clone = Action::Clone(Box::new([OUT, inner]));
        assert_eq!(compiled_actions(&[], &[clone.clone(), TUNNEL]), Some(vec![TWO, TWO, INTO]));
        assert_eq!(
            compiled_actions(&[], &[set(Field::EthSrc, 9), clone]).map(|steps| steps.len()),
            Some(3)
        );
        let deep = (0..20).fold(OUT, |inner, _| Action::Clone(Box::new([inner])));
        assert_eq!(compiled_actions(&[], &[deep]), None);
    }

    #[test]
    fn fields_are_set_when_the_condition_fixes_their_header() {
        let one = |field, bits, value| Some(vec![BpfAction::Set { field, bits, value }, TWO]);
        let of = |fields: &[(Field, u128)], action| compiled_actions(fields, &[action, OUT]);
        assert_eq!(
            of(&[], set(Field::EthDst, 0x0200_0000_0001)),
            one(SetField::EthDst, 0, 0x0200_0000_0001)
        );
        assert_eq!(of(&[IP4], set(Field::IpTtl, 63)), one(SetField::Ip4Ttl, 0, 63));
        assert_eq!(of(&[IP6], set(Field::IpTtl, 63)), one(SetField::Ip6HopLimit, 0, 63));
        assert_eq!(of(&[IP4], set(Field::IpDscp, 46)), one(SetField::Ip4Tos, 0xfc, 46 << 2));
        assert_eq!(of(&[IP6], set(Field::IpEcn, 1)), one(SetField::Ip6Tos, 3, 1));
        let some_bits = Action::Set { field: Field::IpDscp, value: 2, mask: 6 };
        assert_eq!(of(&[IP4], some_bits), one(SetField::Ip4Tos, 6 << 2, 2 << 2));
        assert_eq!(
            of(&[IP4], set(Field::Ip4Dst, 0x0a00_0001)),
            one(SetField::Ip4Dst, 0, 0x0a00_0001)
        );
        assert_eq!(of(&[IP4, TCP, WHOLE], set(Field::TpDst, 80)), one(SetField::TpDst, 0, 80));
        let halves = compiled_actions(&[IP6], &[set(Field::Ip6Src, 5 << 64 | 6), OUT]).unwrap();
        let half = |field, value| BpfAction::Set { field, bits: 0, value };
        assert_eq!(halves, [half(SetField::Ip6SrcHigh, 5), half(SetField::Ip6SrcLow, 6), TWO]);
        let sctp = (Field::IpProto, 132);
        for (fields, field) in [
            (&[IP4][..], Field::Ip6Src),
            (&[IP6], Field::Ip4Src),
            (&[(Field::EthType, 0x0806)], Field::IpTtl),
            (&[IP4, TCP], Field::TpDst),
            (&[IP4, WHOLE], Field::TpDst),
            (&[IP4, sctp, WHOLE], Field::TpDst),
            (&[IP4, TCP, WHOLE], Field::TcpFlags),
            (&[IP6], Field::Ip6Label),
        ] {
            assert_eq!(of(fields, set(field, 1)), None, "{field} of {fields:?}");
        }
        // A mask of 0 changes nothing.
        let nothing = Action::Set { field: Field::NdTarget, value: 0, mask: 0 };
        assert_eq!(of(&[], nothing), Some(vec![TWO]));
    }

    #[test]
    fn tags_are_popped_when_the_condition_fixes_them() {
        let vlan = |tpid| (Field::VlanTpid, tpid);
        let inner = |tpid| (Field::VlanInnerTpid, tpid);
        let pops = |fields: &[(Field, u128)], count| {
            let mut actions = vec![Action::PopVlan; count];
            actions.push(OUT);
            let list = list(fields, &actions)?;
            assert_eq!(list.grows, 0);
            Some(list.actions.len() - 1)
        };
        assert_eq!(pops(&[vlan(0)], 3), Some(0));
        assert_eq!(pops(&[vlan(0x8100)], 1), Some(1));
        assert_eq!(pops(&[vlan(0x8100)], 2), None);
        assert_eq!(pops(&[vlan(0x88a8), inner(0)], 5), Some(1));
        assert_eq!(pops(&[vlan(0x88a8), inner(0x8100)], 2), Some(2));
        assert_eq!(pops(&[vlan(0x88a8), inner(0x8100)], 3), None);
        assert_eq!(pops(&[vlan(0x88a8), inner(0x9100)], 2), None);
        assert_eq!(pops(&[vlan(0x9100)], 1), None);
        assert_eq!(pops(&[], 1), None);
    }

    #[test]
    fn pushed_tags_count_for_the_length_and_follow_set_fields() {
        let (customer, service) = (tag(EtherType::VLAN, 5), tag(EtherType::QINQ, 6));
        let push = [Action::PushVlan(customer), Action::PushVlan(service), Action::Output(UPLINK)];
        let expected =
            [BpfAction::PushVlan(customer), BpfAction::PushVlan(service), BpfAction::Uplink];
        let qinq = list(&[], &push).unwrap();
        assert_eq!((&qinq.actions[..], qinq.grows), (&expected[..], 8));
        let pops = [Action::PopVlan, Action::PopVlan];
        assert_eq!(list(&[], &[&push[..], &pops].concat()), Some(qinq), "as it was, for nobody");
        let pushed = Action::PushVlan(customer);
        let popped = list(&[], &[pushed.clone(), Action::PopVlan, OUT]).unwrap();
        assert_eq!((popped.actions.len(), popped.grows), (3, 0));
        assert!(list(&[IP4], &[set(Field::IpTtl, 1), pushed.clone(), OUT]).is_some());
        assert_eq!(list(&[IP4], &[pushed.clone(), set(Field::IpTtl, 1), OUT]), None);
        assert!(list(&[], &[pushed.clone(), set(Field::EthDst, 1), OUT]).is_some());
        assert_eq!(list(&[], &[OUT, pushed, OUT]), None, "a copy of another length");
    }

    #[test]
    fn ip_fields_are_set_behind_changed_tags_unless_there_may_be_three() {
        let vlan = |tpid| (Field::VlanTpid, tpid);
        let inner = |tpid| (Field::VlanInnerTpid, tpid);
        let (ttl, pushed) = (set(Field::IpTtl, 1), Action::PushVlan(tag(EtherType::VLAN, 5)));
        let is_compiled = |tags: &[(Field, u128)], first: &[Action]| {
            let actions = [first, &[ttl.clone(), OUT]].concat();
            list(&[tags, &[IP4]].concat(), &actions).is_some()
        };
        let one = [vlan(0x8100), inner(0)];
        assert!(is_compiled(&one, &[Action::PopVlan]));
        assert!(is_compiled(&one, std::slice::from_ref(&pushed)));
        assert!(is_compiled(&[vlan(0)], &[pushed.clone(), pushed.clone()]));
        assert!(!is_compiled(&[vlan(0)], &[pushed.clone(), pushed.clone(), pushed.clone()]));
        assert!(!is_compiled(&one, &[pushed.clone(), pushed.clone()]));
        assert!(!is_compiled(&[vlan(0x8100), inner(0x8100)], &[Action::PopVlan]));
        assert!(!is_compiled(&[], &[pushed]));
    }

    #[test]
    fn longer_frames_are_punted_when_their_length_is_checked() {
        let check = |bytes, otherwise: &[Action]| Action::CheckLength {
            bytes,
            larger: Box::new([Action::Controller]),
            otherwise: otherwise.into(),
        };
        let checked =
            list(&[], &[check(1400, &[check(1500, &[OUT])]), Action::Controller]).unwrap();
        assert_eq!((checked.max_len, &checked.actions[..]), (1400, &[TWO][..]));
        let pushed = Action::PushVlan(tag(EtherType::VLAN, 5));
        let tagged = list(&[], &[pushed.clone(), check(1400, &[OUT])]).unwrap();
        assert_eq!((tagged.max_len, tagged.grows), (1396, 4));
        assert_eq!(list(&[], &[pushed, check(4, &[OUT])]), None, "no frame is so short");
        assert_eq!(list(&[], &[check(1400, &[Action::Controller])]), None);
        assert_eq!(list(&[], &[check(1400, &[])]), None, "a list without actions has no limit");
    }
}
