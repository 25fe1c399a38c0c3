//! Services of the switch: the answer of a service replaces the packet.

use super::translator::{LimitExceeded, Packet, Translator};
use crate::observer::{Event, Nested, Observer};
use crate::state::LearnedState;
use flow::{Action, Field, Subfield, answer_edits};
use services::Service;
use std::sync::Arc;

/// OVN's `flags.from_ctrl`: ovn-northd lets DNS answers with this flag pass the ACLs of their
/// receiver. OVN also sets it for unanswered queries, which a guest could use to evade ACLs; weft
/// does not.
const FROM_CTRL: u128 = 1 << 16;

impl<'p, S: LearnedState, O: Observer> Translator<'p, '_, S, O> {
    /// Translates the rest of the program once for each destination that an answer may have, and
    /// once for no answer. The request is not part of the key, so the datapath chooses for each
    /// packet.
    pub fn serve(
        &mut self,
        packet: &mut Packet<'p>,
        to: Subfield,
        service: &Arc<Service>,
    ) -> Result<(), LimitExceeded> {
        self.emit_changes(packet);
        let mut rest = packet.clone();
        rest.actions = Vec::new();
        packet.frames.clear();
        let mut answered = Vec::with_capacity(2);
        for &destination in service.destinations() {
            let mut answer = rest.clone();
            // This host originates the answer, so it may be sent to the host of the request.
            answer.from_tunnel = false;
            // The tracker has seen the request, not the answer.
            answer.ct_cleared = true;
            self.observer.event(Event::Enter(Nested::Answered(service.name(), destination)));
            self.apply_steps(&mut answer, &answer_edits(service, destination));
            if matches!(**service, Service::Dns(_)) {
                answer.key.write(Field::Reg10, FROM_CTRL, FROM_CTRL);
            }
            answer.begin_frame();
            answered.push(self.run_branch(answer, to, 1)?);
        }
        self.observer.event(Event::Enter(Nested::Unanswered(service.name())));
        let otherwise = self.run_branch(rest, to, 0)?;
        let (service, answered) = (Arc::clone(service), answered.into());
        packet.actions.push(Action::Serve { service, answered, otherwise });
        Ok(())
    }
}
