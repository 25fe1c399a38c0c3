//! The work of a worker that ports are charged for: packets without a megaflow, and punted packets.

use super::super::cpu_budget::WorkKind;
use super::super::fast_path::punt_reader::Punted;
use super::super::vif::Vif;
use super::Worker;
use datapath::cpu_meter::PortWork;
use datapath::upcall::Answer;
use flow::PortNo;
use std::time::Instant;

impl Worker {
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
        self.cpu_meter.start();
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
        let budgets = &self.forwarder.upcalls.budgets;
        budgets.charge(self.cpu_meter.finish(), WorkKind::Punted, Instant::now());
    }

    /// Executes the answers of upcalls, and charges their ports.
    pub(super) fn handle_answers(&mut self, answers: Vec<Answer>) {
        self.cpu_meter.start();
        for answer in answers {
            self.cpu_meter.begin_packet(answer.upcall.port);
            self.forwarder.handle_answer(answer);
        }
        let budgets = &self.forwarder.upcalls.budgets;
        budgets.charge(self.cpu_meter.finish(), WorkKind::Forwarding, Instant::now());
    }
}
