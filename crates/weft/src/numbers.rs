//! [`Numbers`]: which numbers of the datapath stand for ports and end points. What stays in the network file keeps its number.

use flow::TunnelSpec;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A number that was given back stands for nothing else so long: megaflows that name it may live for one interval of
/// revalidation more, and they must not lead to somebody else.
const REST: Duration = Duration::from_secs(5);

/// A port, by the names of its logical switch and its own: in another switch it is another port.
pub type PortName = (String, String);
/// An end point: what it is like, this host's address, the other's.
pub type EndpointName = (TunnelSpec, IpAddr, IpAddr);

/// See the module.
#[derive(Clone, Debug)]
pub struct Numbers {
    /// From 1: 0 is the uplink.
    pub ports: Pool<PortName>,
    /// From 0.
    pub endpoints: Pool<EndpointName>,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { ports: Pool::from(1), endpoints: Pool::from(0) }
    }
}

impl Numbers {
    /// Gives back what was not asked for since the last time.
    pub fn settle(&mut self, now: Instant) {
        self.ports.settle(now);
        self.endpoints.settle(now);
    }
}

/// Numbers of one kind.
#[derive(Clone, Debug)]
pub struct Pool<K> {
    given: HashMap<K, u32>,
    /// Those asked for since the last time that numbers were given back.
    wanted: HashSet<K>,
    /// Given back, the longest ago first.
    resting: VecDeque<(Instant, u32)>,
    next: u32,
}

impl<K: Clone + Eq + Hash> Pool<K> {
    fn from(first: u32) -> Self {
        Self {
            given: HashMap::new(),
            wanted: HashSet::new(),
            resting: VecDeque::new(),
            next: first,
        }
    }

    /// The number of `name`: that which it has, or a free one.
    pub fn number(&mut self, name: K, now: Instant) -> u32 {
        self.wanted.insert(name.clone());
        if let Some(&number) = self.given.get(&name) {
            return number;
        }
        let rested =
            |(since, _): &mut (Instant, u32)| now.saturating_duration_since(*since) >= REST;
        let number = match self.resting.pop_front_if(rested) {
            Some((_, number)) => number,
            None => {
                let number = self.next;
                self.next = number.saturating_add(1);
                number
            }
        };
        self.given.insert(name, number);
        number
    }

    fn settle(&mut self, now: Instant) {
        let wanted = std::mem::take(&mut self.wanted);
        let resting = &mut self.resting;
        self.given.retain(|name, number| {
            let stays = wanted.contains(name);
            if !stays {
                resting.push_back((now, *number));
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_with_their_names_and_rest_before_they_are_given_again() {
        let mut pool = Pool::from(1);
        let start = Instant::now();
        let mut round = |seconds: u64, names: &[&'static str]| {
            let now = start + Duration::from_secs(seconds);
            let numbers: Vec<u32> = names.iter().map(|name| pool.number(*name, now)).collect();
            pool.settle(now);
            numbers
        };
        assert_eq!(round(0, &["a", "b", "c"]), [1, 2, 3]);
        assert_eq!(round(1, &["c", "a"]), [3, 1]);
        assert_eq!(round(5, &["c", "d", "a"]), [3, 4, 1], "2 rests until second 6");
        assert_eq!(round(7, &["b", "c", "d", "a"]), [2, 3, 4, 1]);
        assert_eq!(round(8, &[]), [0_u32; 0]);
        assert_eq!(round(20, &["x", "y", "z", "u", "v"]).len(), 5);
        assert_eq!(pool.next, 6, "four were free");
    }
}
