//! The work of a worker that ports are charged for: packets without a megaflow, and punted packets.

use super::super::cpu_budget::WorkKind;
use super::super::fast_path::punt_reader::Punted;
use super::super::vif::Vif;
use super::Worker;
use datapath::cpu_meter::PortWork;
use datapath::upcall::Answer;
use flow::PortNo;
use std::time::Instant;

/// Of batches of punted frames that all have megaflows, one in so many is measured.
const SAMPLED_TURNS: u32 = 16;
/// So many batches are measured after one in which a frame had no megaflow.
const METERED_TURNS: u32 = 64;

/// Which batches of punted frames are measured. The clock is a system call.
#[derive(Debug, Default)]
pub(super) struct PuntedTurns {
    /// So many of the next batches are measured.
    metered: u32,
    /// The number of the batch. It wraps around.
    number: u32,
}

impl PuntedTurns {
    /// For how many batches the next one stands; 0 if it is not measured.
    fn batches(&self) -> u32 {
        match (self.metered, self.number % SAMPLED_TURNS) {
            (0, 0) => SAMPLED_TURNS,
            (0, _) => 0,
            _ => 1,
        }
    }

    /// Ends a batch.
    fn end(&mut self, has_misses: bool) {
        self.number = self.number.wrapping_add(1);
        self.metered = if has_misses { METERED_TURNS } else { self.metered.saturating_sub(1) };
    }
}

impl Worker {
    /// Begins to measure a batch of punted frames, if it is one that is measured.
    pub(super) fn meter_punted_batch(&mut self) {
        self.cpu_meter.start(self.punted_turns.batches() > 0);
    }

    /// Forwards the frames of a port, and charges it for those that become upcalls. The clock is
    /// a system call, so it is not read for a port whose frames have megaflows.
    pub(super) fn receive_from_vif(&mut self, port: PortNo) {
        let is_metered = self.forwarder.out.vif(port).is_some_and(Vif::take_metered_turn);
        if !is_metered {
            let before = self.forwarder.misses();
            self.read_vif(port);
            if self.forwarder.misses() != before
                && let Some(vif) = self.forwarder.out.vif(port)
            {
                vif.meter_turns();
            }
            return;
        }
        self.cpu_meter.start(true);
        let (missed, refused) = self.forwarder.misses();
        let read = self.read_vif(port);
        let (missed_now, refused_now) = self.forwarder.misses();
        let misses = missed_now.wrapping_sub(missed);
        let misses = misses.saturating_sub(refused_now.wrapping_sub(refused));
        let cpu = self.cpu_meter.lap() * misses.min(read) / read.max(1);
        if misses > 0 {
            let work = PortWork { port, packets: misses, misses, cpu };
            self.forwarder.upcalls.budgets.charge(&[work], WorkKind::Forwarding, Instant::now());
            if let Some(vif) = self.forwarder.out.vif(port) {
                vif.meter_turns();
            }
        }
    }

    /// Forwards a punted frame, and measures what it costs. Frames that are refused count as well:
    /// the programs refuse them earlier while their port is in debt.
    pub(super) fn meter_punted_frame(&mut self, punted: Punted) {
        self.cpu_meter.begin_packet(punted.port);
        let (before, _) = self.forwarder.misses();
        self.handle_punted_frame(punted);
        self.cpu_meter.add_misses(self.forwarder.misses().0.wrapping_sub(before));
    }

    /// Charges ports for the punted frames that were measured.
    pub(super) fn charge_punted(&mut self) {
        let kind = WorkKind::Punted { batches: self.punted_turns.batches() };
        let work = self.cpu_meter.finish();
        self.forwarder.upcalls.budgets.charge(work, kind, Instant::now());
        self.punted_turns.end(work.iter().any(|work| work.misses > 0));
    }

    /// Executes the answers of upcalls, and charges their ports.
    pub(super) fn handle_answers(&mut self, answers: Vec<Answer>) {
        self.cpu_meter.start(true);
        for answer in answers {
            self.cpu_meter.begin_packet(answer.upcall.port);
            self.forwarder.handle_answer(answer);
        }
        let budgets = &self.forwarder.upcalls.budgets;
        budgets.charge(self.cpu_meter.finish(), WorkKind::Forwarding, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_sampled_unless_frames_had_no_megaflow() {
        let mut turns = PuntedTurns::default();
        let mut measured = |misses: &[bool]| -> Vec<u32> {
            let end = |&has_misses: &bool| (turns.batches(), turns.end(has_misses)).0;
            misses.iter().map(end).collect()
        };
        let unloaded = measured(&[false; 160]);
        assert_eq!(unloaded.iter().sum::<u32>(), 160);
        assert_eq!(unloaded.iter().filter(|batches| **batches > 0).count(), 10);
        measured(&[true]);
        assert_eq!(measured(&[false; METERED_TURNS as usize]), [1; METERED_TURNS as usize]);
        assert_eq!(measured(&[false; 16]).iter().sum::<u32>(), SAMPLED_TURNS);
    }
}
