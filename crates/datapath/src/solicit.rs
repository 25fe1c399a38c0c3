//! Limits how often logical routers solicit neighbours (ARP requests, neighbour solicitations).
//!
//! A router that has no MAC address for a next hop sends a broadcast or multicast request, which
//! reaches every port of the logical switch on every host. Without a limit, a guest that sends
//! packets to unused addresses would flood the switch with requests. RFC 1122 section 2.3.2.1
//! recommends at most one request per second and destination. RFC 4861 section 7.2.2 limits
//! neighbour solicitations in the same way.
//!
//! Each ingress port has limits of its own, so one guest cannot use up another's share.

use ahash::{HashMap, HashSet, RandomState};
use flow::{DropReason, PortNo};
use std::collections::VecDeque;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How often routers may solicit neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SolicitLimits {
    /// The shortest time between two requests for the same neighbour. Zero switches off this limit
    /// and that of `neighbours`.
    pub again_after: Duration,
    /// How many different neighbours may be requested within `again_after` for packets of one
    /// ingress port.
    pub neighbours: usize,
}

impl Default for SolicitLimits {
    fn default() -> Self {
        Self { again_after: Duration::from_secs(1), neighbours: 100 }
    }
}

/// The recent requests of all routers. The limits bound its size, and a port whose packets never
/// caused a request takes no memory.
#[derive(Debug)]
pub struct Solicitations {
    limits: SolicitLimits,
    /// Seeded, so that a guest cannot find two neighbours with the same hash.
    hasher: RandomState,
    ports: HashMap<PortNo, RecentRequests>,
}

/// The neighbours that were requested recently for packets of one port, by their hashes.
#[derive(Debug, Default)]
struct RecentRequests {
    hashes: HashSet<u64>,
    /// The same hashes, each with the time from which the neighbour may be requested again. The
    /// earliest time is first.
    order: VecDeque<(Instant, u64)>,
}

impl Solicitations {
    /// Starts without recent requests.
    pub fn new(limits: SolicitLimits) -> Self {
        Self { limits, hasher: RandomState::new(), ports: HashMap::default() }
    }

    /// Decides whether a router may request a neighbour at `now`, for a packet that arrived by
    /// `port`, and counts the request if so. `neighbour` identifies the neighbour and its network.
    ///
    /// # Errors
    /// [`DropReason::NeighbourAsked`] if this neighbour was requested recently.
    /// [`DropReason::SolicitLimit`] if too many other neighbours were.
    pub fn admit(
        &mut self,
        port: PortNo,
        neighbour: impl Hash,
        now: Instant,
    ) -> Result<(), DropReason> {
        let RecentRequests { hashes, order } = self.ports.entry(port).or_default();
        while let Some((_, hash)) = order.pop_front_if(|(until, _)| *until <= now) {
            hashes.remove(&hash);
        }
        let hash = self.hasher.hash_one(neighbour);
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

    /// Forgets all requests, so that every neighbour may be requested at once.
    pub fn forget_all(&mut self) {
        self.ports.clear();
    }

    /// Forgets the requests of a port that was removed.
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

    /// A limit of two neighbours in 1,000 ms. The function converts milliseconds to a time.
    fn limited() -> (Solicitations, impl Fn(u64) -> Instant) {
        let limits = SolicitLimits { again_after: Duration::from_secs(1), neighbours: 2 };
        let start = Instant::now();
        (Solicitations::new(limits), move |ms| start + Duration::from_millis(ms))
    }

    #[test]
    fn same_neighbour_is_admitted_again_when_its_time_is_over() {
        let (mut solicitations, at) = limited();
        assert_eq!(solicitations.admit(A, "x", at(0)), Ok(()));
        assert_eq!(solicitations.admit(A, "x", at(1)), Err(NeighbourAsked));
        assert_eq!(solicitations.admit(A, "x", at(999)), Err(NeighbourAsked));
        assert_eq!(solicitations.admit(A, "x", at(1000)), Ok(()));
        assert_eq!(
            solicitations.admit(A, "x", at(1999)),
            Err(NeighbourAsked),
            "a refused request does not restart the time"
        );
        assert_eq!(solicitations.admit(A, "x", at(90_000)), Ok(()));
    }

    #[test]
    fn other_neighbours_are_admitted_up_to_the_limit() {
        let (mut solicitations, at) = limited();
        assert_eq!(solicitations.admit(A, "x", at(0)), Ok(()));
        assert_eq!(solicitations.admit(A, "y", at(600)), Ok(()));
        assert_eq!(solicitations.admit(A, "z", at(700)), Err(SolicitLimit));
        assert_eq!(solicitations.admit(A, "x", at(700)), Err(NeighbourAsked));
        // Only the first neighbour may be requested again.
        assert_eq!(solicitations.admit(A, "z", at(1000)), Ok(()));
        assert_eq!(solicitations.admit(A, "x", at(1000)), Err(SolicitLimit));
        assert_eq!(solicitations.admit(A, "x", at(1600)), Ok(()));
    }

    #[test]
    fn ports_have_limits_of_their_own() {
        let (mut solicitations, at) = limited();
        for neighbour in 0..100_000 {
            let _ = solicitations.admit(A, neighbour, at(0));
        }
        assert_eq!(solicitations.admit(B, 0, at(0)), Ok(()));
        assert_eq!(solicitations.admit(B, 99_999, at(0)), Ok(()));
        let sizes = |solicitations: &Solicitations| {
            let size = |recent: &RecentRequests| (recent.order.len(), recent.hashes.len());
            solicitations.ports.values().map(size).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&solicitations), [(2, 2); 2]);
        solicitations.forget(A);
        assert_eq!(sizes(&solicitations), [(2, 2)]);
        assert_eq!(solicitations.admit(A, 7, at(0)), Ok(()));
        assert_eq!(solicitations.admit(A, 7, at(0)), Err(NeighbourAsked));
        solicitations.forget_all();
        assert_eq!(sizes(&solicitations), []);
        assert_eq!(solicitations.admit(A, 7, at(0)), Ok(()));
    }

    #[test]
    fn nothing_is_limited_when_again_after_is_zero() {
        let limits = SolicitLimits { again_after: Duration::ZERO, neighbours: 1 };
        let (mut solicitations, now) = (Solicitations::new(limits), Instant::now());
        assert!((0..1000).all(|n| solicitations.admit(A, n / 2, now) == Ok(())));
    }
}
