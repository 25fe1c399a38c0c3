//! [`Limiter`]: limits the rate of each log message.

use std::time::{Duration, Instant};

/// The maximum number of messages with one identifier that are logged within [`INTERVAL`].
const MOST: u32 = 500;
const INTERVAL: Duration = Duration::from_secs(10);
/// Log records of ACLs have a separate limit and a separate counter.
const UNLIMITED: &str = messages::ACL_RECORD.id;

/// Counts the messages of each identifier.
pub struct Limiter {
    /// One entry for each identifier, so at most as many as the table of messages has.
    kinds: Vec<Kind>,
    /// Messages left out since the start.
    total_left_out: u64,
}

struct Kind {
    id: &'static str,
    /// When the present interval began.
    begin: Instant,
    /// Messages in this interval.
    count: u32,
    /// How many of them were left out.
    left_out: u64,
}

impl Limiter {
    pub const fn new() -> Self {
        Self { kinds: Vec::new(), total_left_out: 0 }
    }

    /// Counts a message. Returns false if it must not be logged.
    pub fn admit(&mut self, id: &'static str, now: Instant) -> bool {
        if id == UNLIMITED {
            return true;
        }
        let Some(kind) = self.kinds.iter_mut().find(|kind| kind.id == id) else {
            self.kinds.push(Kind { id, begin: now, count: 1, left_out: 0 });
            return true;
        };
        if now.saturating_duration_since(kind.begin) >= INTERVAL {
            (kind.begin, kind.count) = (now, 0);
        }
        kind.count = kind.count.saturating_add(1);
        let is_admitted = kind.count <= MOST;
        kind.left_out += u64::from(!is_admitted);
        self.total_left_out += u64::from(!is_admitted);
        is_admitted
    }

    /// How many messages were left out since the start.
    pub const fn total_left_out(&self) -> u64 {
        self.total_left_out
    }

    /// The number of messages left out since the last call, by identifier: in intervals that have
    /// ended at `now`, or in all.
    pub fn take_left_out(&mut self, now: Option<Instant>) -> Vec<(&'static str, u64)> {
        let has_ended = |kind: &Kind| {
            now.is_none_or(|now| now.saturating_duration_since(kind.begin) >= INTERVAL)
        };
        let counted = self.kinds.iter_mut().filter(|kind| kind.left_out != 0 && has_ended(kind));
        counted.map(|kind| (kind.id, std::mem::take(&mut kind.left_out))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_messages_are_left_out_and_counted() {
        let mut limiter = Limiter::new();
        let begin = Instant::now();
        let admitted = |limiter: &mut Limiter, id, count: u32, now| {
            (0..count).filter(|_| limiter.admit(id, now)).count()
        };
        assert_eq!(admitted(&mut limiter, "port-up", MOST + 7, begin), MOST as usize);
        assert_eq!(admitted(&mut limiter, "port-down", 1, begin), 1);
        assert_eq!(admitted(&mut limiter, UNLIMITED, MOST * 2, begin), MOST as usize * 2);
        assert_eq!(limiter.take_left_out(Some(begin)), []);
        let later = begin + INTERVAL;
        assert_eq!(limiter.take_left_out(Some(later)), [("port-up", 7)]);
        assert_eq!(limiter.take_left_out(Some(later)), []);
        assert_eq!(admitted(&mut limiter, "port-up", MOST + 1, later), MOST as usize);
        assert_eq!(limiter.take_left_out(None), [("port-up", 1)]);
        assert_eq!(limiter.total_left_out(), 8);
    }
}
