//! A second, naive implementation of actions on a flow key, as the oracle.

use flow::{Action, Field, FlowKey, STAGES, WORDS, answer_edits};
use std::collections::BTreeSet;

const PRESENT: u128 = 0x1000;

/// A packet that was sent: the port and the headers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SentPacket {
    port: u32,
    headers: Vec<u64>,
}

impl SentPacket {
    pub fn new(port: u32, key: &FlowKey) -> Self {
        Self { port, headers: key.words()[STAGES[1].start..].to_vec() }
    }

    pub fn differs_from(&self, key: &FlowKey) -> bool {
        self.headers != key.words()[STAGES[1].start..]
    }
}

impl std::fmt::Debug for SentPacket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut key = FlowKey::default();
        key.words_mut()[STAGES[1].start..WORDS].copy_from_slice(&self.headers);
        write!(f, "{}: {key}", self.port)
    }
}

/// All packets that `actions` send for the packet with this key, for short and long frames, and for
/// all answers of services. Also the keys of packets that begin another pass, without the fields of
/// connection tracking.
pub fn execute_actions(actions: &[Action], key: &FlowKey) -> (BTreeSet<SentPacket>, Vec<FlowKey>) {
    let (mut sent, mut passes) = (BTreeSet::new(), Vec::new());
    execute_on(actions, key.clone(), &mut sent, &mut passes);
    (sent, passes)
}

fn tag_of(key: &FlowKey, tpid: Field, tci: Field) -> (u128, u128) {
    (key.get(tpid), key.get(tci))
}

fn set_tag(key: &mut FlowKey, tpid: Field, tci: Field, tag: (u128, u128)) {
    key.set(tpid, tag.0);
    key.set(tci, tag.1);
}

fn execute_on(
    actions: &[Action],
    mut key: FlowKey,
    sent: &mut BTreeSet<SentPacket>,
    passes: &mut Vec<FlowKey>,
) {
    // Tags beyond the second, which the key does not hold.
    let mut hidden = Vec::new();
    for action in actions {
        match action {
            Action::Output(port) => {
                // An uplink gets the link's tags in addition to the packet's own.
                if port.0 < super::program::UPLINK {
                    sent.insert(SentPacket::new(port.0, &key));
                }
            }
            Action::Encap { endpoint, .. } => {
                sent.insert(SentPacket::new(!endpoint.0, &key));
            }
            Action::PushVlan(tag) => {
                let tci = u128::from(tag.tci()) | PRESENT;
                hidden.push(tag_of(&key, Field::VlanInnerTpid, Field::VlanInnerTci));
                let old = tag_of(&key, Field::VlanTpid, Field::VlanTci);
                set_tag(&mut key, Field::VlanInnerTpid, Field::VlanInnerTci, old);
                set_tag(&mut key, Field::VlanTpid, Field::VlanTci, (tag.tpid.0.into(), tci));
            }
            Action::PopVlan => {
                let old = tag_of(&key, Field::VlanInnerTpid, Field::VlanInnerTci);
                set_tag(&mut key, Field::VlanTpid, Field::VlanTci, old);
                let inner = hidden.pop().unwrap_or_default();
                set_tag(&mut key, Field::VlanInnerTpid, Field::VlanInnerTci, inner);
            }
            Action::Drop(_) => return,
            Action::Set { field, value, mask } => {
                let kept = key.get(*field) & !mask;
                key.set(*field, kept | value);
            }
            Action::Clone(actions) => execute_on(actions, key.clone(), sent, passes),
            Action::Reply { reply, actions } => {
                let mut made = key.clone();
                let steps = reply.key_edits(key.get(Field::Ip6Src) == 0);
                steps.iter().for_each(|step| step.apply(&mut made));
                execute_on(actions, made, sent, passes);
            }
            Action::CheckLength { larger, otherwise, .. } => {
                execute_on(larger, key.clone(), sent, passes);
                execute_on(otherwise, key, sent, passes);
                return;
            }
            Action::Serve { service, answered, otherwise } => {
                for (&destination, list) in service.destinations().iter().zip(answered) {
                    let mut made = key.clone();
                    answer_edits(service, destination)
                        .iter()
                        .for_each(|step| step.apply(&mut made));
                    execute_on(list, made, sent, passes);
                }
                execute_on(otherwise, key, sent, passes);
                return;
            }
            Action::SetIcmpMtu(_)
            | Action::Log(_)
            | Action::Controller
            | Action::Meter { .. }
            | Action::NamedMeter(_)
            | Action::SetQueue(_) => {}
            Action::Ct(action) => {
                if let Some(recirculation) = &action.recirculation {
                    let mut next = key.clone();
                    next.set(Field::RecircId, recirculation.id().value().into());
                    passes.push(next);
                }
            }
        }
    }
}
