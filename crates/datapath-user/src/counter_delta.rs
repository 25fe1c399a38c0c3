//! The growth of a counter since it was read last.

/// Remembers the last reading of a counter that only grows.
#[derive(Debug, Default)]
pub(super) struct CounterDelta(u64);

impl CounterDelta {
    /// The growth since the last reading, now that the counter reads `count`.
    pub(super) fn advance_to(&mut self, count: u64) -> u64 {
        let growth = count.saturating_sub(self.0);
        self.0 = self.0.max(count);
        growth
    }

    /// The same for a 32-bit counter that wraps around.
    pub(super) fn advance_wrapping_to(&mut self, count: u32) -> u64 {
        let growth = count.wrapping_sub(self.0 as u32);
        self.0 = count.into();
        growth.into()
    }
}
