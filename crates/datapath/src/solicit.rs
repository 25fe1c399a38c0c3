//! How often routers ask for neighbours: once in a while for each, and not for too many.
//!
//! Packets to an address that nobody has answered for make a router ask for it, and what it asks is a broadcast: to every port of the
//! logical switch, on every host. So somebody who sends many packets to such an address, or one to each of many, would have
//! his packets delivered to everybody. RFC 1122 section 2.3.2.1 asks for a limit ("the recommended maximum rate is 1 per second per
//! destination"), and so does RFC 4861 section 7.2.2.
//!
//! Each port that packets come in by is limited for itself: who uses up his share keeps nobody else's packets from being asked for.

use ahash::{HashMap, HashSet, RandomState};
use flow::{DropReason, PortNo};
use std::collections::VecDeque;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How often routers ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SolicitLimits {
    /// For the same neighbour again, at the earliest; zero: at any time, and then nothing is limited.
    pub again_after: Duration,
    /// For how many neighbours within that time, for the sake of packets that come in by one port.
    pub neighbours: usize,
}

impl Default for SolicitLimits {
    fn default() -> Self {
        Self { again_after: Duration::from_secs(1), neighbours: 100 }
    }
}

/// Who was asked for lately. It is no larger than its limits, and holds nothing of ports whose packets never needed it.
#[derive(Debug)]
pub struct Solicitations {
    limits: SolicitLimits,
    /// Seeded: no guest knows of two neighbours that are taken for one.
    hasher: RandomState,
    ports: HashMap<PortNo, Recent>,
}

/// The neighbours that were asked for lately, by their hashes.
#[derive(Debug, Default)]
struct Recent {
    hashes: HashSet<u64>,
    /// The same, with the time from which on they may be asked for again, which is in this order.
    order: VecDeque<(Instant, u64)>,
}

impl Solicitations {
    /// Nobody was asked for.
    pub fn new(limits: SolicitLimits) -> Self {
        Self { limits, hasher: RandomState::new(), ports: HashMap::default() }
    }

    /// Has a router ask at `now` for the sake of a packet that came in by `port`. What is asked for, and where, is `what`.
    ///
    /// # Errors
    /// [`DropReason::NeighbourAsked`] when that was asked for lately, [`DropReason::SolicitLimit`] when too much else was.
    pub fn admit(&mut self, port: PortNo, what: impl Hash, now: Instant) -> Result<(), DropReason> {
        let Recent { hashes, order } = self.ports.entry(port).or_default();
        while let Some((_, hash)) = order.pop_front_if(|(until, _)| *until <= now) {
            hashes.remove(&hash);
        }
        let hash = self.hasher.hash_one(what);
        if hashes.contains(&hash) {
            return Err(DropReason::NeighbourAsked);
        }
        if order.len() >= self.limits.neighbours {
            return Err(DropReason::SolicitLimit);
        }
        hashes.insert(hash);
        order.push_back((now + self.limits.again_after, hash));
        Ok(())
    }

    /// The port is gone.
    pub fn forget(&mut self, port: PortNo) {
        self.ports.remove(&port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DropReason::{NeighbourAsked, SolicitLimit};

    const A: PortNo = PortNo(1);
    const B: PortNo = PortNo(2);

    /// With room for two neighbours in 1,000 ms, and the time by milliseconds.
    fn limited() -> (Solicitations, impl Fn(u64) -> Instant) {
        let limits = SolicitLimits { again_after: Duration::from_secs(1), neighbours: 2 };
        let start = Instant::now();
        (Solicitations::new(limits), move |ms| start + Duration::from_millis(ms))
    }

    #[test]
    fn neighbour_is_asked_for_again_when_the_time_is_over() {
        let (mut asked, at) = limited();
        assert_eq!(asked.admit(A, "x", at(0)), Ok(()));
        assert_eq!(asked.admit(A, "x", at(1)), Err(NeighbourAsked));
        assert_eq!(asked.admit(A, "x", at(999)), Err(NeighbourAsked));
        assert_eq!(asked.admit(A, "x", at(1000)), Ok(()));
        assert_eq!(
            asked.admit(A, "x", at(1999)),
            Err(NeighbourAsked),
            "a refusal counts for nothing"
        );
        assert_eq!(asked.admit(A, "x", at(90_000)), Ok(()));
    }

    #[test]
    fn other_neighbours_are_asked_for_until_there_are_too_many() {
        let (mut asked, at) = limited();
        assert_eq!(asked.admit(A, "x", at(0)), Ok(()));
        assert_eq!(asked.admit(A, "y", at(600)), Ok(()));
        assert_eq!(asked.admit(A, "z", at(700)), Err(SolicitLimit));
        assert_eq!(asked.admit(A, "x", at(700)), Err(NeighbourAsked));
        // Only the first one's time is over.
        assert_eq!(asked.admit(A, "z", at(1000)), Ok(()));
        assert_eq!(asked.admit(A, "x", at(1000)), Err(SolicitLimit));
        assert_eq!(asked.admit(A, "x", at(1600)), Ok(()));
    }

    #[test]
    fn ports_have_limits_of_their_own() {
        let (mut asked, at) = limited();
        for neighbour in 0..100_000 {
            let _ = asked.admit(A, neighbour, at(0));
        }
        assert_eq!(asked.admit(B, 0, at(0)), Ok(()));
        assert_eq!(asked.admit(B, 99_999, at(0)), Ok(()));
        let sizes = |asked: &Solicitations| {
            let size = |recent: &Recent| (recent.order.len(), recent.hashes.len());
            asked.ports.values().map(size).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&asked), [(2, 2); 2]);
        asked.forget(A);
        assert_eq!(sizes(&asked), [(2, 2)]);
        assert_eq!(asked.admit(A, 7, at(0)), Ok(()));
    }

    #[test]
    fn nothing_is_limited_when_all_may_be_asked_for_again_at_once() {
        let limits = SolicitLimits { again_after: Duration::ZERO, neighbours: 1 };
        let (mut asked, now) = (Solicitations::new(limits), Instant::now());
        assert!((0..1000).all(|n| asked.admit(A, n / 2, now) == Ok(())));
    }
}
