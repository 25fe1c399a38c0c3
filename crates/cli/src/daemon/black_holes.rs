//! Finds the path MTU of tunnels whose routers send no ICMP errors: a black hole, in which long
//! packets vanish and short ones arrive (RFC 8899).
//!
//! The thread sends a probe as long as the path MTU in use to every end point that guests send to,
//! at most every [`INTERVAL`]. If [`CONFIRMATIONS`] probes of that length are lost while short
//! probes are answered, it searches for the longest packet that arrives, and lowers the path MTU of
//! the tunnel. [`RAISE_INTERVAL`] later it searches again, up to the configured MTU.
//!
//! A report of a router may be forged. So the thread also sends probes of the configured length to
//! an end point whose path MTU a router has reported. If one arrives, the report is not believed
//! any more. With routers of different MTU on parallel paths, both may be right: flows on the
//! narrow one lose a packet then, and get another report. So the time between two such checks
//! doubles. A round begins with up to [`CHECKS`] of them, so that they do not wait for other probes
//! and take at most half of the time.
//!
//! The network file must have `path_probes = true`. A host that runs no weft answers no probe, so
//! nothing is found out about its path. It is asked again after [`SILENCE`].

use super::deployment::Deployment;
use super::probe::{PathProber, Probes, is_gre};
use datapath::config::EndpointConfig;
use datapath::stats::EndpointStats;
use flow::{Carrier, EndpointId};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The pause between two rounds. It grows by this time for every [`ENDPOINTS_OF_A_ROUND`] end
/// points, because each round reads the counters of all end points.
const ROUND: Duration = Duration::from_secs(1);
const ENDPOINTS_OF_A_ROUND: usize = 1000;
/// The minimum time between two probes to one end point.
const INTERVAL: Duration = Duration::from_secs(5);
/// The maximum number of end points that are probed in one round.
const MOST: usize = 16;
/// How many of them are checks of what routers have reported.
const CHECKS: usize = 8;
/// The number of lost probes after which a path counts as a black hole (MAX_PROBES of RFC 8899,
/// section 5.1.2). Each is sent twice.
const CONFIRMATIONS: usize = 3;
/// The time until a lowered path MTU is searched again (PMTU_RAISE_TIMER, section 5.1.1). Shorter
/// than the time after which the datapath discards a probed path MTU.
const RAISE_INTERVAL: Duration = Duration::from_secs(300);
/// The longest time between two checks of what routers have reported about one path. After as much
/// time without a check, the time between them is [`INTERVAL`] again.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(320);
/// How long a host that answers nothing is left alone.
const SILENCE: Duration = Duration::from_secs(60);

/// The state of the path to one end point.
struct PathState {
    remote: IpAddr,
    /// The number of guests' frames that were sent to it.
    sent: u64,
    /// When it may be probed again.
    next: Instant,
    /// When the path MTU is searched again; `None` if the configured one is in use.
    raise: Option<Instant>,
    /// When a report of a router was checked, and when the next one may be checked.
    checks: Option<(Instant, Instant)>,
    /// Until when it is left alone, because it has not answered.
    silent_until: Option<Instant>,
}

impl PathState {
    fn new(remote: IpAddr, now: Instant) -> Self {
        Self { remote, sent: 0, next: now, raise: None, checks: None, silent_until: None }
    }

    /// Whether a report of a router may be checked now.
    fn may_check(&self, now: Instant) -> bool {
        let starts = [self.checks.map(|(_, next)| next), self.silent_until];
        starts.into_iter().flatten().all(|start| now >= start)
    }

    /// Notes that a probe has ended now, and whether any reply came.
    fn probed(&mut self, now: Instant, is_answered: bool) {
        self.silent_until = (!is_answered).then_some(now + SILENCE);
        self.next = now + if is_answered { INTERVAL } else { SILENCE };
    }

    /// Notes a check that has ended now.
    fn checked(&mut self, now: Instant) {
        let interval = self.checks.map_or(INTERVAL, |(last, next)| {
            let is_old = now.saturating_duration_since(next) >= MAX_CHECK_INTERVAL;
            let doubled = next.saturating_duration_since(last) * 2;
            if is_old { INTERVAL } else { doubled.min(MAX_CHECK_INTERVAL) }
        });
        self.checks = Some((now, now + interval));
    }
}

/// The result of probing one path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// Packets of the probed length arrive.
    Arrives,
    /// Only shorter packets arrive. The value is the longest IP packet that arrives, in bytes.
    BlackHole(u16),
    /// No packet arrives.
    Silent,
}

/// Starts a thread that looks for black holes until `probes` is dropped.
///
/// # Errors
/// The thread cannot be started.
pub fn start(probes: &Arc<Probes>) -> io::Result<()> {
    let probes = Arc::downgrade(probes);
    let run = move || watch(&probes);
    std::thread::Builder::new().name("path-mtu".to_owned()).spawn(run).map(drop)
}

fn watch(probes: &Weak<Probes>) {
    let mut states: HashMap<EndpointId, PathState> = HashMap::new();
    loop {
        let Some(probes) = probes.upgrade() else { return };
        let deployment = probes.deployment();
        if !deployment.network.as_ref().is_some_and(|network| network.path_probes()) {
            drop((probes, deployment));
            std::thread::sleep(ROUND);
            continue;
        }
        // Fails only when the datapath has stopped or is stopping.
        let Ok(snapshot) = probes.datapath().snapshot() else { return };
        let rounds = 1 + snapshot.endpoints.len() / ENDPOINTS_OF_A_ROUND;
        round(&probes, &deployment, &snapshot.endpoints, &mut states);
        drop(probes);
        std::thread::sleep(ROUND * u32::try_from(rounds).unwrap_or(u32::MAX));
    }
}

/// Probes the end points that are due.
fn round(
    probes: &Probes,
    deployment: &Deployment,
    stats: &[EndpointStats],
    states: &mut HashMap<EndpointId, PathState>,
) {
    let ends = &deployment.config.underlay.endpoints;
    states.retain(|id, state| ends.iter().any(|end| end.id == *id && end.remote == state.remote));
    let known: HashMap<(&str, IpAddr, IpAddr), &EndpointStats> =
        stats.iter().map(|end| ((end.tunnel.as_str(), end.local, end.remote), end)).collect();
    let now = Instant::now();
    let (mut checks, mut others) = (Vec::new(), Vec::new());
    for end in ends.iter().filter(|end| is_probed(end)) {
        let name = (end.spec.tunnel.name(), end.local, end.remote);
        let Some(stats) = known.get(&name) else { continue };
        // The counter includes probes. They are subtracted, so that probes do not make an idle
        // tunnel look used.
        let sent = stats.tx.packets.saturating_sub(probes.sent_to(end.id));
        let state = states.entry(end.id).or_insert_with(|| PathState::new(end.remote, now));
        if sent == state.sent {
            continue;
        }
        if is_reported(stats) && state.may_check(now) {
            let due = state.checks.map(|(_, next)| next);
            checks.push((due, (end, stats, sent, true)));
        } else if now >= state.next {
            others.push((state.next, (end, stats, sent, false)));
        }
    }
    for (end, stats, sent, is_check) in choose(checks, others) {
        let Some(state) = states.get_mut(&end.id) else { continue };
        state.sent = sent;
        if is_check {
            check_report(probes, deployment, end, state);
            continue;
        }
        let path_mtu = stats.path_mtu;
        let must_search = state.raise.is_some_and(|raise| Instant::now() >= raise);
        let outcome = probe(probes, deployment, end, path_mtu, must_search);
        let now = Instant::now();
        state.probed(now, outcome != Outcome::Silent);
        let found = match outcome {
            Outcome::BlackHole(mtu) => mtu,
            Outcome::Arrives if must_search => end.spec.path_mtu_bytes,
            Outcome::Arrives | Outcome::Silent => continue,
        };
        let is_lower = found < end.spec.path_mtu_bytes;
        state.raise = is_lower.then_some(now + RAISE_INTERVAL);
        // Fails only when the datapath has stopped.
        let _ = probes.datapath().set_probed_path_mtu(end.id, found);
    }
}

/// The end points of one round: first those whose reports are checked, then the others. Those that
/// have waited longest come first.
fn choose<T>(mut checks: Vec<(Option<Instant>, T)>, mut others: Vec<(Instant, T)>) -> Vec<T> {
    checks.sort_by_key(|(due, _)| *due);
    others.sort_by_key(|(due, _)| *due);
    let checks = checks.into_iter().map(|(_, end)| end).take(CHECKS);
    checks.chain(others.into_iter().map(|(_, end)| end)).take(MOST).collect()
}

/// Whether a router has reported the path MTU in use.
fn is_reported(stats: &EndpointStats) -> bool {
    stats.path_mtu_report.is_some_and(|report| report.router.is_some())
}

/// Checks what a router has reported: if a packet of the configured length arrives, it was wrong.
fn check_report(
    probes: &Probes,
    deployment: &Deployment,
    end: &EndpointConfig,
    state: &mut PathState,
) {
    let configured = end.spec.path_mtu_bytes;
    let measure = |prober: &mut PathProber<'_>| prober.arrives(configured);
    let (arrives, is_answered) = probes.with_prober(deployment, end, measure);
    let now = Instant::now();
    state.checked(now);
    state.probed(now, is_answered);
    if arrives {
        // Fails only when the datapath has stopped.
        let _ = probes.datapath().set_probed_path_mtu(end.id, configured);
    }
}

/// Whether a tunnel has path probes, and frames that can be too long for it. STT segments frames
/// itself.
fn is_probed(end: &EndpointConfig) -> bool {
    (end.spec.key || !is_gre(end)) && end.spec.tunnel.carrier() != Carrier::TcpLike
}

/// Probes one path with packets of `path_mtu` bytes; with `must_search`, with packets of the
/// configured MTU.
fn probe(
    probes: &Probes,
    deployment: &Deployment,
    end: &EndpointConfig,
    path_mtu: u16,
    must_search: bool,
) -> Outcome {
    let length = if must_search { end.spec.path_mtu_bytes } else { path_mtu };
    probes.with_prober(deployment, end, |prober| {
        let mut is_answered = false;
        for _ in 0..CONFIRMATIONS {
            match prober.arrives(length) {
                (true, _) => return Outcome::Arrives,
                (false, short) => is_answered |= short,
            }
            if !is_answered {
                return Outcome::Silent;
            }
        }
        Outcome::BlackHole(prober.longest_forward(length))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_checks_of_reports_doubles_and_starts_again_after_a_pause() {
        let remote = IpAddr::from([192, 0, 2, 2]);
        let start = Instant::now();
        let mut state = PathState::new(remote, start);
        let mut now = start;
        for expected_s in [5, 10, 20, 40, 80, 160, 320, 320] {
            assert!(state.may_check(now));
            state.checked(now);
            now += Duration::from_secs(expected_s);
            assert!(!state.may_check(now - Duration::from_secs(1)), "{expected_s}");
        }
        now += MAX_CHECK_INTERVAL;
        state.checked(now);
        assert!(state.may_check(now + INTERVAL));
    }

    #[test]
    fn silent_host_is_left_alone_and_an_answer_ends_that() {
        let start = Instant::now();
        let mut state = PathState::new(IpAddr::from([192, 0, 2, 2]), start);
        state.checked(start);
        state.probed(start, false);
        let later = start + SILENCE;
        assert!(!state.may_check(later - INTERVAL) && state.next == later);
        assert!(state.may_check(later));
        state.probed(later, true);
        assert!(state.may_check(later) && state.next == later + INTERVAL);
    }

    #[test]
    fn reports_are_checked_first_and_take_half_of_a_round_at_most() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let checks = |count| (0..count).map(|n| (Some(at(n)), n)).rev().collect::<Vec<_>>();
        let others = |count| (0..count).map(|n| (at(n), 100 + n)).rev().collect::<Vec<_>>();
        assert_eq!(choose(checks(2), others(3)), [0, 1, 100, 101, 102]);
        let both: Vec<u64> = (0..8).chain(100..108).collect();
        assert_eq!(choose(checks(100), others(100)), both);
        assert_eq!(choose(checks(0), others(100)).len(), MOST);
        // One that was never checked comes first.
        let mut many = checks(100);
        many.push((None, 200));
        assert_eq!(choose(many, Vec::new())[0], 200);
    }
}
