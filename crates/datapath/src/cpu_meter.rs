//! [`CpuMeter`]: the processor time that a thread spends on the packets of each port.

use flow::PortNo;
use netdev::thread_clock;
use std::time::Duration;

/// What a thread has done for the packets of one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortWork {
    /// The ingress port of the packets.
    pub port: PortNo,
    /// The packets.
    pub packets: u32,
    /// Those of them that had no megaflow, if the caller has [noted](CpuMeter::add_misses) them.
    pub misses: u32,
    /// The processor time that they took.
    pub cpu: Duration,
}

/// Divides the processor time of a thread among the ports of the packets that it handles.
///
/// The clock is a system call, so it is read only where packets of another port follow. A batch of
/// one port costs two reads. A meter that is off counts packets, but no time.
#[derive(Debug, Default)]
pub struct CpuMeter {
    is_on: bool,
    read: Duration,
    current: Option<usize>,
    /// The time spent for all packets alike.
    shared: Duration,
    work: Vec<PortWork>,
}

impl CpuMeter {
    /// A meter of this thread that begins to measure.
    pub fn started() -> Self {
        let mut meter = Self::default();
        meter.start(true);
        meter
    }

    /// Begins to measure, without what was measured before. Reads no clock unless `is_on`.
    pub fn start(&mut self, is_on: bool) {
        self.work.clear();
        (self.current, self.shared) = (None, Duration::ZERO);
        self.is_on = is_on;
        self.lap();
    }

    /// From now on the thread handles a packet of `port`.
    pub fn begin_packet(&mut self, port: PortNo) {
        let current = self.current.and_then(|current| self.work.get_mut(current));
        if let Some(current) = current
            && current.port == port
        {
            current.packets += 1;
            return;
        }
        self.charge_elapsed();
        let at = self.work.iter().position(|work| work.port == port).unwrap_or(self.work.len());
        self.current = Some(at);
        match self.work.get_mut(at) {
            Some(work) => work.packets += 1,
            None => {
                self.work.push(PortWork { port, packets: 1, misses: 0, cpu: Duration::ZERO });
            }
        }
    }

    /// Notes misses of the current packet.
    pub fn add_misses(&mut self, misses: u32) {
        if let Some(work) = self.current.and_then(|current| self.work.get_mut(current)) {
            work.misses += misses;
        }
    }

    /// The processor time since it was started, or since the clock was last read.
    pub fn lap(&mut self) -> Duration {
        if !self.is_on {
            return Duration::ZERO;
        }
        let now = thread_clock::now();
        let spent = now.saturating_sub(self.read);
        self.read = now;
        spent
    }

    /// From now on the thread works for all packets alike.
    pub fn end_packets(&mut self) {
        // What is shared by one port is the port's.
        if self.work.len() > 1 {
            self.charge_elapsed();
        }
    }

    /// Counts the time since the clock was last read.
    fn charge_elapsed(&mut self) {
        let spent = self.lap();
        match self.current.take().and_then(|current| self.work.get_mut(current)) {
            Some(work) => work.cpu += spent,
            None => self.shared += spent,
        }
    }

    /// Ends the measurement. What was spent for all packets alike counts by their number.
    pub fn finish(&mut self) -> &[PortWork] {
        self.charge_elapsed();
        let shared = std::mem::take(&mut self.shared);
        let packets: u32 = self.work.iter().map(|work| work.packets).sum();
        for work in &mut self.work {
            work.cpu += shared * work.packets / packets.max(1);
        }
        &self.work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses processor time.
    fn work(time: Duration) {
        let begin = thread_clock::now();
        while thread_clock::now() - begin < time {}
    }

    #[test]
    fn time_counts_for_the_port_whose_packets_took_it() {
        const MS: Duration = Duration::from_millis(1);
        let mut meter = CpuMeter::started();
        for (port, time) in [(1, MS), (1, MS), (2, 20 * MS), (1, MS)] {
            meter.begin_packet(PortNo(port));
            work(time);
        }
        meter.add_misses(1);
        meter.end_packets();
        work(8 * MS);
        let found = meter.finish().to_vec();
        let [first, second] = found[..] else { panic!("{found:?}") };
        assert_eq!((first.port.0, first.packets, first.misses), (1, 3, 1));
        assert_eq!((second.port.0, second.packets, second.misses), (2, 1, 0));
        // Three of four packets, and their own time.
        assert!((9 * MS..18 * MS).contains(&first.cpu), "{found:?}");
        assert!((22 * MS..31 * MS).contains(&second.cpu), "{found:?}");
        meter.start(true);
        assert!(meter.finish().is_empty());
    }

    #[test]
    fn time_without_the_processor_does_not_count() {
        let mut meter = CpuMeter::started();
        meter.begin_packet(PortNo(1));
        std::thread::sleep(Duration::from_millis(50));
        let found = meter.finish().to_vec();
        assert!(found[0].cpu < Duration::from_millis(25), "{found:?}");
    }

    #[test]
    fn time_of_one_port_includes_what_is_shared_and_is_zero_when_the_meter_is_off() {
        let mut meter = CpuMeter::started();
        for is_on in [true, false] {
            meter.start(is_on);
            meter.begin_packet(PortNo(1));
            meter.end_packets();
            work(Duration::from_millis(2));
            let found = meter.finish()[0];
            assert_eq!((found.packets, found.cpu >= Duration::from_millis(2)), (1, is_on));
        }
    }
}
