//! Later passes of a packet: after connection tracking it is looked up again.

use super::forward::Forwarder;
use datapath::tracker::Tracker;
use datapath::upcall::{FuseProposal, Recirculated, Tracking};
use flow::{
    ActionOutput, CtAction, DropReason, Field, FlowKey, MAX_PASSES, PACKET_WORDS, PortNo, execute,
    extract,
};
use packet::PacketBuf;
use std::collections::VecDeque;

/// The most copies of one packet that may wait for their next pass at the same time.
const MAX_COPIES: usize = 1024;

/// The passes that the actions of the current packet have begun.
#[derive(Debug, Default)]
pub(super) struct Passes {
    /// How many passes the current packet has made before this one.
    before: u8,
    /// The tracking result of the previous passes.
    tracking: Option<Tracking>,
    /// The next pass of the frame itself, if no action follows; other passes get a copy.
    of_frame: Option<Box<Recirculated>>,
    /// The passes so far, while they may be fused.
    proposal: Option<Box<FuseProposal>>,
    /// The number of times that packets have reached a commit. It wraps around.
    opened: u32,
    /// The next passes of copies.
    of_copies: VecDeque<(Box<Recirculated>, PacketBuf)>,
}

impl Passes {
    /// Begins to execute the actions of a first pass, or of the later pass `recirculated`.
    pub(super) fn begin(&mut self, recirculated: Option<Recirculated>) {
        (self.before, self.tracking) = match recirculated {
            None => (0, None),
            Some(recirculated) => (recirculated.passes, Some(recirculated.tracking)),
        };
    }

    /// Passes a frame that arrived by `port` through the tracker, and queues its next pass.
    ///
    /// # Errors
    /// The tracker refuses the frame, or there were too many passes.
    pub(super) fn track(
        &mut self,
        (tracker, port): (&Tracker, PortNo),
        action: &CtAction,
        packet: &mut PacketBuf,
        is_last: bool,
    ) -> Result<(), DropReason> {
        let is_reassembled = packet.refragment.is_some();
        self.opened = self.opened.wrapping_add(action.commit.is_some().into());
        let before = self.tracking.as_ref();
        let before = before.filter(|before| !action.fresh && before.zone == action.zone);
        let Some(recirculation) = &action.recirculation else {
            let tracking = tracker.track(action, before, packet, port)?;
            self.propose((tracker, is_reassembled), action, &tracking);
            self.tracking = Some(tracking);
            return Ok(());
        };
        let passes = self.before + 1;
        if passes >= MAX_PASSES || self.of_copies.len() >= MAX_COPIES {
            return Err(DropReason::RecircLimit);
        }
        let recirculation = recirculation.clone();
        if is_last && self.of_frame.is_none() {
            let tracking = tracker.track(action, before, packet, port)?;
            self.propose((tracker, is_reassembled), action, &tracking);
            self.of_frame = Some(Box::new(Recirculated { recirculation, passes, tracking }));
        } else {
            // The passes of copies are not fused.
            self.proposal = None;
            // Address translation must not change the frame for the actions that follow.
            let mut copy = packet.clone();
            let tracking = tracker.track(action, before, &mut copy, port)?;
            let pass = Box::new(Recirculated { recirculation, passes, tracking });
            self.of_copies.push_back((pass, copy));
        }
        Ok(())
    }

    /// The number of times that packets have reached a commit. It wraps around.
    pub(super) const fn opened(&self) -> u32 {
        self.opened
    }

    /// Adds a pass to the proposal to fuse passes, or discards the proposal.
    fn propose(
        &mut self,
        (tracker, is_reassembled): (&Tracker, bool),
        action: &CtAction,
        tracking: &Tracking,
    ) {
        // A fused megaflow would serve fragments, which must be reassembled first.
        if is_reassembled {
            self.proposal = None;
            return;
        }
        let is_first = self.before == 0 && self.tracking.is_none();
        let begins = || {
            let tracked = tracking.result.as_ref().map(|(_, tracked)| tracked);
            tracked.is_some_and(|tracked| tracked.proposes) && tracker.is_fusing()
        };
        let proposal = match self.proposal.take() {
            _ if is_first => begins().then(Box::default),
            proposal => proposal,
        };
        self.proposal =
            proposal.and_then(|proposal| proposal.with_pass(action, tracking).map(Box::new));
    }
}

impl Forwarder {
    /// Runs the passes that the actions of a packet have queued, if any. `key` is the key of the
    /// pass before.
    #[cold]
    pub(super) fn run_passes(&mut self, key: &FlowKey, port: PortNo, packet: &mut PacketBuf) {
        while let Some(pass) = self.out.passes.of_frame.take() {
            self.run_pass(pass, key, port, packet);
        }
        while let Some((pass, mut copy)) = self.out.passes.of_copies.pop_front() {
            self.run_pass(pass, key, port, &mut copy);
            while let Some(pass) = self.out.passes.of_frame.take() {
                self.run_pass(pass, key, port, &mut copy);
            }
        }
        if let Some(proposal) = self.out.passes.proposal.take()
            && key.get(Field::RecircId) == 0
        {
            self.raise_fuse_proposal(port, key, proposal);
        }
        self.out.passes.begin(None);
        self.out.has_queued = false;
    }

    fn run_pass(
        &mut self,
        pass: Box<Recirculated>,
        before: &FlowKey,
        port: PortNo,
        packet: &mut PacketBuf,
    ) {
        self.out.begin(port, None);
        let mut key = match extract(packet, port, None) {
            Ok(key) => key,
            Err(error) => return self.out.dropped(DropReason::of_invalid_frame(error), packet),
        };
        // Ingress port and tunnel header are those with which the packet arrived.
        let [metadata, _] = PACKET_WORDS;
        key.words_mut()[metadata.clone()].copy_from_slice(&before.words()[metadata]);
        pass.tracking.write_to(&mut key);
        key.set(Field::RecircId, pass.recirculation.id().value().into());
        let (len, now_ms) = (packet.len(), self.now_ms);
        let cache = self.caches.later();
        match cache.and_then(|cache| cache.look_up_recirculated(&key, len, now_ms)) {
            Some(hit) => {
                self.out.decided_by = Some(hit.id);
                self.out.passes.begin(Some(*pass));
                execute(hit.actions, packet, &mut self.endpoints, &mut self.out);
                self.send_queued(&key, port);
            }
            None => {
                self.out.passes.proposal = None;
                self.raise_upcall(port, key, packet, Some(pass));
            }
        }
    }
}
