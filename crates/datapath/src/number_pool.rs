//! [`NumberPool`]: numbers for datapath ports and tunnel end points. An item that stays in the
//! configuration keeps its number when the configuration changes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How long a released number stays unused. Megaflows that refer to it may live for one
/// revalidation interval and must not output to another port or end point.
const REUSE_DELAY: Duration = Duration::from_secs(5);

/// Assigns numbers to names and reuses released numbers after a delay.
#[derive(Clone, Debug)]
pub struct NumberPool<K> {
    assigned: HashMap<K, u32>,
    /// Names requested since the last release.
    requested: HashSet<K>,
    /// Released numbers with the time of their release, oldest first.
    released: VecDeque<(Instant, u32)>,
    next: u32,
}

impl<K: Clone + Eq + Hash> NumberPool<K> {
    /// A pool whose first number is `first`.
    pub fn starting_at(first: u32) -> Self {
        Self {
            assigned: HashMap::new(),
            requested: HashSet::new(),
            released: VecDeque::new(),
            next: first,
        }
    }

    /// Gives `name` the number `number`, unless the name has a number already or `number` was
    /// assigned before. Lower numbers that are skipped become free after a delay.
    pub fn prefer(&mut self, name: &K, number: u32, now: Instant) {
        if number < self.next || self.assigned.contains_key(name) {
            return;
        }
        self.released.extend((self.next..number).map(|free| (now, free)));
        self.next = number.saturating_add(1);
        self.assigned.insert(name.clone(), number);
    }

    /// The number of `name`: its present one, or a free one.
    pub fn number(&mut self, name: K, now: Instant) -> u32 {
        self.requested.insert(name.clone());
        if let Some(&number) = self.assigned.get(&name) {
            return number;
        }
        let is_reusable =
            |(since, _): &mut (Instant, u32)| now.saturating_duration_since(*since) >= REUSE_DELAY;
        let number = match self.released.pop_front_if(is_reusable) {
            Some((_, number)) => number,
            None => {
                let number = self.next;
                self.next = number.saturating_add(1);
                number
            }
        };
        self.assigned.insert(name, number);
        number
    }

    /// Releases the number of a name.
    pub fn release(&mut self, name: &K, now: Instant) {
        self.requested.remove(name);
        if let Some(number) = self.assigned.remove(name) {
            self.released.push_back((now, number));
        }
    }

    /// Releases the numbers of names that were not requested since the last call.
    pub fn release_unused(&mut self, now: Instant) {
        let requested = std::mem::take(&mut self.requested);
        let released = &mut self.released;
        self.assigned.retain(|name, number| {
            let is_kept = requested.contains(name);
            if !is_kept {
                released.push_back((now, *number));
            }
            is_kept
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept_and_released_ones_are_reused_after_a_delay() {
        let mut pool = NumberPool::starting_at(1);
        let start = Instant::now();
        let mut round = |seconds: u64, names: &[&'static str]| {
            let now = start + Duration::from_secs(seconds);
            let numbers: Vec<u32> = names.iter().map(|name| pool.number(*name, now)).collect();
            pool.release_unused(now);
            numbers
        };
        assert_eq!(round(0, &["a", "b", "c"]), [1, 2, 3]);
        assert_eq!(round(1, &["c", "a"]), [3, 1]);
        assert_eq!(round(5, &["c", "d", "a"]), [3, 4, 1], "2 is not reused before second 6");
        assert_eq!(round(7, &["b", "c", "d", "a"]), [2, 3, 4, 1]);
        assert_eq!(round(8, &[]), [0_u32; 0]);
        assert_eq!(round(20, &["x", "y", "z", "u", "v"]).len(), 5);
        assert_eq!(pool.next, 6, "four released numbers were reused");
    }

    #[test]
    fn preferred_number_is_taken_unless_it_is_in_use() {
        let mut pool = NumberPool::starting_at(1);
        let start = Instant::now();
        pool.prefer(&"b", 3, start);
        pool.prefer(&"a", 3, start);
        pool.prefer(&"b", 7, start);
        assert_eq!([pool.number("b", start), pool.number("a", start)], [3, 4]);
        let later = start + REUSE_DELAY;
        assert_eq!([pool.number("c", later), pool.number("d", later)], [1, 2]);
        assert_eq!(pool.number("e", later), 5);
    }
}
