//! The growth of a counter since it was read last.

/// Remembers the last reading of a counter that only grows.
#[derive(Debug, Default)]
pub(super) struct CounterDelta(u64);

impl CounterDelta {
    /// Returns the growth since the last reading; `count` is the present reading. 0 if the counter
    /// went back.
    pub(super) fn advance_to(&mut self, count: u64) -> u64 {
        let growth = count.saturating_sub(self.0);
        self.0 = self.0.max(count);
        growth
    }

    /// Returns the growth of a 32-bit counter that wraps around. Use it for at most one wrap per
    /// reading.
    pub(super) fn advance_wrapping_to(&mut self, count: u32) -> u64 {
        let growth = count.wrapping_sub(self.0 as u32);
        self.0 = count.into();
        growth.into()
    }
}
