//! Adaptive busy-polling: decides whether an idle worker polls again or sleeps.
//!
//! Waking a thread takes longer than forwarding a packet (docs/adr/0009), so an idle worker
//! busy-polls for a while before it sleeps. If packets seldom arrive in that time it sleeps at
//! once, and tries busy-polling again now and then.

use std::time::{Duration, Instant};

/// How much a packet that arrives in time adds to the score; a late one subtracts 1. So one packet
/// in five keeps busy-polling on.
const GAIN: u32 = 5;
/// The highest score: after so many late packets in a row, busy-polling is off.
const MAX_SCORE: u32 = 20;
/// While busy-polling is off, it is tried once in this many idle periods.
const TRY_EVERY: u32 = 16;

/// What an idle worker does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IdleMode {
    /// Poll again at once.
    Poll,
    /// Sleep until an event.
    Sleep,
}

/// The state of adaptive busy-polling.
#[derive(Debug)]
pub(super) struct BusyPoll {
    longest: Duration,
    /// The start of the idle period, and whether it is busy-polled.
    idle: Option<(Instant, bool)>,
    score: u32,
    sleeps: u32,
}

impl BusyPoll {
    /// Busy-polls for up to `longest` in each idle period; zero turns busy-polling off.
    pub(super) fn new(longest: Duration) -> Self {
        Self { longest, idle: None, score: 0, sleeps: 0 }
    }

    /// Handles a poll that found no event.
    pub(super) fn idle(&mut self, now: Instant) -> IdleMode {
        if self.longest.is_zero() {
            return IdleMode::Sleep;
        }
        let Some((since, polls)) = self.idle else {
            self.sleeps = self.sleeps.wrapping_add(1);
            let tries = self.sleeps.is_multiple_of(TRY_EVERY);
            self.idle = Some((now, self.score > 0 || tries));
            return self.idle(now);
        };
        if polls && now.saturating_duration_since(since) < self.longest {
            IdleMode::Poll
        } else {
            IdleMode::Sleep
        }
    }

    /// Handles a poll that found an event.
    pub(super) fn busy(&mut self, now: Instant) {
        let Some((since, _)) = self.idle.take() else { return };
        self.score = if now.saturating_duration_since(since) <= self.longest {
            (self.score + GAIN).min(MAX_SCORE)
        } else {
            self.score.saturating_sub(1)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(100);

    /// How often the worker polls again until an event after `gap`, if each poll takes 10 µs.
    fn polls(poll: &mut BusyPoll, now: &mut Instant, gap: Duration) -> u32 {
        let (start, mut polls) = (*now, 0);
        while *now - start < gap {
            match poll.idle(*now) {
                IdleMode::Poll => *now += Duration::from_micros(10),
                IdleMode::Sleep => *now = start + gap,
            }
            polls += u32::from(*now - start < gap);
        }
        poll.busy(*now);
        polls
    }

    #[test]
    fn worker_polls_while_packets_arrive_in_time() {
        let (mut poll, mut now) = (BusyPoll::new(LONGEST), Instant::now());
        let short = Duration::from_micros(40);
        let slept = (0..TRY_EVERY).take_while(|_| polls(&mut poll, &mut now, short) == 0).count();
        assert!(slept <= 1, "one packet in time turns polling on");
        assert!((0..100).all(|_| polls(&mut poll, &mut now, short) == 3));
    }

    #[test]
    fn worker_sleeps_at_once_when_packets_seldom_arrive() {
        let (mut poll, mut now) = (BusyPoll::new(LONGEST), Instant::now());
        for _ in 0..10 {
            polls(&mut poll, &mut now, Duration::from_micros(20));
        }
        let long = Duration::from_millis(5);
        for _ in 0..MAX_SCORE {
            polls(&mut poll, &mut now, long);
        }
        let tried = (0..TRY_EVERY * 10).filter(|_| polls(&mut poll, &mut now, long) > 0).count();
        assert_eq!(tried, 10, "tried once in TRY_EVERY periods");
        let mut longest = 0;
        (0..TRY_EVERY).for_each(|_| longest = longest.max(polls(&mut poll, &mut now, long)));
        assert!(longest <= 10, "never longer than the limit");
    }

    #[test]
    fn worker_polls_when_one_packet_in_five_arrives_in_time() {
        let (mut poll, mut now) = (BusyPoll::new(LONGEST), Instant::now());
        let mut polled = 0;
        for number in 0..1_000 {
            let gap = if number % 5 == 0 { 30 } else { 300 };
            polled += u32::from(polls(&mut poll, &mut now, Duration::from_micros(gap)) > 0);
        }
        assert!(polled > 990, "{polled}");
    }

    #[test]
    fn worker_never_polls_when_the_limit_is_zero() {
        let (mut poll, mut now) = (BusyPoll::new(Duration::ZERO), Instant::now());
        assert!((0..100).all(|_| polls(&mut poll, &mut now, Duration::from_micros(20)) == 0));
    }
}
