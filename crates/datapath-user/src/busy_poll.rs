//! Whether a worker that has nothing to do looks again, or sleeps.
//!
//! To be woken takes longer than all the work on a packet (docs/adr/0009). So a worker looks again for a while before it sleeps,
//! but only while that pays: when packets seldom arrive in that time it sleeps at once, and tries now and then.

use std::time::{Duration, Instant};

/// How much more a packet that came in time counts than one that did not. One in five is enough to go on.
const GAIN: u32 = 5;
/// How far back it remembers, in packets that did not come in time.
const MEMORY: u32 = 20;
/// While it does not pay it is tried each time after this many sleeps.
const TRY_EVERY: u32 = 16;

/// What to do when there is nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Idle {
    /// Look again at once.
    Look,
    /// Sleep until there is something.
    Sleep,
}

/// See the module.
#[derive(Debug)]
pub(super) struct BusyPoll {
    longest: Duration,
    /// Since when there is nothing to do, and whether it looks again in this time.
    idle: Option<(Instant, bool)>,
    score: u32,
    sleeps: u32,
}

impl BusyPoll {
    /// Looks again for up to `longest`; zero: never.
    pub(super) fn new(longest: Duration) -> Self {
        Self { longest, idle: None, score: 0, sleeps: 0 }
    }

    /// There is nothing to do.
    pub(super) fn idle(&mut self, now: Instant) -> Idle {
        if self.longest.is_zero() {
            return Idle::Sleep;
        }
        let Some((since, looks)) = self.idle else {
            self.sleeps = self.sleeps.wrapping_add(1);
            let tries = self.sleeps.is_multiple_of(TRY_EVERY);
            self.idle = Some((now, self.score > 0 || tries));
            return self.idle(now);
        };
        if looks && now.saturating_duration_since(since) < self.longest {
            Idle::Look
        } else {
            Idle::Sleep
        }
    }

    /// There is something to do.
    pub(super) fn busy(&mut self, now: Instant) {
        let Some((since, _)) = self.idle.take() else { return };
        self.score = if now.saturating_duration_since(since) <= self.longest {
            (self.score + GAIN).min(MEMORY)
        } else {
            self.score.saturating_sub(1)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(100);

    /// How often it looks again until something comes after `gap`, when each look takes 10 µs.
    fn looks(poll: &mut BusyPoll, now: &mut Instant, gap: Duration) -> u32 {
        let (start, mut looks) = (*now, 0);
        while *now - start < gap {
            match poll.idle(*now) {
                Idle::Look => *now += Duration::from_micros(10),
                Idle::Sleep => *now = start + gap,
            }
            looks += u32::from(*now - start < gap);
        }
        poll.busy(*now);
        looks
    }

    #[test]
    fn looks_again_while_packets_come_in_time() {
        let (mut poll, mut now) = (BusyPoll::new(LONGEST), Instant::now());
        let short = Duration::from_micros(40);
        let slept = (0..TRY_EVERY).take_while(|_| looks(&mut poll, &mut now, short) == 0).count();
        assert!(slept <= 1, "one packet in time is enough to begin");
        assert!((0..100).all(|_| looks(&mut poll, &mut now, short) == 3));
    }

    #[test]
    fn sleeps_at_once_when_packets_seldom_come() {
        let (mut poll, mut now) = (BusyPoll::new(LONGEST), Instant::now());
        for _ in 0..10 {
            looks(&mut poll, &mut now, Duration::from_micros(20));
        }
        let long = Duration::from_millis(5);
        for _ in 0..MEMORY {
            looks(&mut poll, &mut now, long);
        }
        let tried = (0..TRY_EVERY * 10).filter(|_| looks(&mut poll, &mut now, long) > 0).count();
        assert_eq!(tried, 10, "and tries now and then");
        let mut longest = 0;
        (0..TRY_EVERY).for_each(|_| longest = longest.max(looks(&mut poll, &mut now, long)));
        assert!(longest <= 10, "never for longer than it may");
    }

    #[test]
    fn goes_on_when_one_packet_in_five_comes_in_time() {
        let (mut poll, mut now) = (BusyPoll::new(LONGEST), Instant::now());
        let mut looked = 0;
        for number in 0..1_000 {
            let gap = if number % 5 == 0 { 30 } else { 300 };
            looked += u32::from(looks(&mut poll, &mut now, Duration::from_micros(gap)) > 0);
        }
        assert!(looked > 990, "{looked}");
    }

    #[test]
    fn never_looks_again_when_told_so() {
        let (mut poll, mut now) = (BusyPoll::new(Duration::ZERO), Instant::now());
        assert!((0..100).all(|_| looks(&mut poll, &mut now, Duration::from_micros(20)) == 0));
    }
}
