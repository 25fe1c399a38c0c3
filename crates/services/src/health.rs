//! Health checks of the backends of load balancers.
//!
//! ```text
//! checks --(Checker::set)--> probes (frames) --(receive)--> answers --> status of each backend
//! ```
//!
//! A TCP check opens a connection and resets it. An HTTP check also sends a GET request and reads
//! the status line. A UDP check sends a datagram: the backend is online unless an ICMP "port
//! unreachable" arrives before the timeout. TCP and UDP checks are those of OVN's
//! `Service_Monitor`.
//!
//! A [`Checker`] has no clock: the caller passes milliseconds of any epoch, sends the frames of
//! [`Checker::poll`], and passes received frames to [`Checker::receive`]. Frames come from guests
//! and are not trusted: a frame that is not an answer to a probe is counted and ignored.

mod frame;
mod probe;
#[cfg(test)]
mod tests;

use frame::Answer;
use probe::{Outcome, Probe};
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use wire::MacAddr;

/// The maximum number of checks of a [`Checker`]. Further ones are not made.
pub const MAX_CHECKS: usize = 4096;
/// The longest path of an HTTP check, in bytes.
pub const MAX_PATH_LEN: usize = 200;
/// The delay between the starts of new checks, so that many do not start at once.
const STAGGER_MS: u64 = 2;

/// The type of a check.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// By opening a TCP connection.
    Tcp,
    /// By a UDP datagram that is not refused.
    Udp,
    /// By a GET request for this path over TCP. A status from 200 to 399 is a success.
    Http(HttpPath),
}

/// The path of an HTTP check: it begins with `/`, and has 1 to [`MAX_PATH_LEN`] visible ASCII
/// characters.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HttpPath(String);

impl HttpPath {
    /// `None` if the path is invalid.
    pub fn new(path: &str) -> Option<Self> {
        let is_valid = path.starts_with('/')
            && path.len() <= MAX_PATH_LEN
            && path.bytes().all(|byte| byte.is_ascii_graphic());
        is_valid.then(|| Self(path.to_owned()))
    }

    /// The path.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Kind {
    /// The word in the network file: `tcp`, `udp` or `http`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Http(_) => "http",
        }
    }
}

/// The times of a check, and the thresholds for a change of status.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Timing {
    /// The time from the end of a check to the next one, in milliseconds.
    pub interval_ms: u32,
    /// How long a backend may take to answer, in milliseconds.
    pub timeout_ms: u32,
    /// After this many failures in a row a backend is offline; at least 1.
    pub failures: u32,
    /// After this many successes in a row a backend is online; at least 1.
    pub successes: u32,
}

/// The check of one backend.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Check {
    /// The backend, of the address family of `source`.
    pub backend: SocketAddr,
    /// The MAC address of the backend.
    pub backend_mac: MacAddr,
    /// The source address of probes, in the network of the backend.
    pub source: IpAddr,
    /// The source MAC address of probes.
    pub source_mac: MacAddr,
    /// The first source port of probes.
    pub first_port: u16,
    /// The number of source ports, at least 1. The last port must not exceed 65,535.
    pub port_count: u16,
    /// The place at which answers arrive, as a number that the caller defines; see
    /// [`Checker::receive`].
    pub arrival: u32,
    /// The type of the check.
    pub kind: Kind,
    /// The times and thresholds of the check.
    pub timing: Timing,
}

/// The status of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Status {
    /// Too few checks have been made since the start.
    #[default]
    Unknown,
    /// The backend answers.
    Online,
    /// The backend does not answer, or its answers are failures.
    Offline,
}

impl Status {
    /// `unknown`, `online` or `offline`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Online => "online",
            Self::Offline => "offline",
        }
    }
}

/// Why a check has failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// No answer has arrived in time.
    Timeout,
    /// The backend has refused the connection or the datagram.
    Refused,
    /// The connection ended before the answer.
    Closed,
    /// The answer is not HTTP.
    NotHttp,
    /// The HTTP status is not a success.
    HttpStatus(u16),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("no answer in time"),
            Self::Refused => f.write_str("refused"),
            Self::Closed => f.write_str("the connection ended before the answer"),
            Self::NotHttp => f.write_str("the answer is not HTTP"),
            Self::HttpStatus(status) => write!(f, "HTTP status {status}"),
        }
    }
}

/// A change of a backend's status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change<K> {
    /// The check.
    pub key: K,
    /// The status from now on.
    pub status: Status,
    /// Why the last check failed; `None` if it succeeded.
    pub failure: Option<Failure>,
}

/// The state of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// The status of the backend.
    pub status: Status,
    /// Why the last check failed; `None` if it succeeded.
    pub failure: Option<Failure>,
}

/// Counters of all checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Checks that have begun.
    pub checks: u64,
    /// Checks that have failed.
    pub failures: u64,
    /// Checks that were postponed because all their source ports were in use.
    pub no_port: u64,
    /// Checks passed to [`Checker::set`] beyond [`MAX_CHECKS`], which are not made.
    pub over_limit: u64,
    /// Received frames that are an answer to a probe.
    pub answers: u64,
    /// Received frames that are no answer to a probe.
    pub unmatched_packets: u64,
}

struct Running {
    check: Check,
    state: State,
    /// The number of consecutive results that are equal to the last one.
    in_row: u32,
    is_last_good: bool,
    phase: Phase,
}

enum Phase {
    /// Waits for the next check, which starts at this time.
    Resting(u64),
    Probing(Probe),
}

/// Makes checks. Each has a key that the caller chooses.
pub struct Checker<K> {
    running: BTreeMap<K, Running>,
    /// The probes that wait for an answer, by backend and source port.
    probes: BTreeMap<(SocketAddr, u16), K>,
    /// The checks by the time at which they need an action.
    due: BTreeSet<(u64, K)>,
    changes: Vec<Change<K>>,
    counters: Counters,
    /// The source of sequence numbers and source ports that guests cannot predict.
    secret: RandomState,
    numbers: u64,
}

impl<K: Ord + Clone> Default for Checker<K> {
    fn default() -> Self {
        Self {
            running: BTreeMap::new(),
            probes: BTreeMap::new(),
            due: BTreeSet::new(),
            changes: Vec::new(),
            counters: Counters::default(),
            secret: RandomState::new(),
            numbers: 0,
        }
    }
}

impl<K: Ord + Clone> Checker<K> {
    /// Replaces the checks. A check of the same kind and backend as before keeps its status.
    pub fn set(&mut self, checks: BTreeMap<K, Check>, now_ms: u64) {
        self.counters.over_limit += checks.len().saturating_sub(MAX_CHECKS) as u64;
        let mut old = std::mem::take(&mut self.running);
        self.probes.clear();
        self.due.clear();
        let mut start_ms = now_ms;
        for (key, check) in checks.into_iter().take(MAX_CHECKS) {
            let running = match old.remove(&key) {
                Some(running) if running.check == check => running,
                other => {
                    let is_same = |it: &Running| {
                        (&it.check.kind, it.check.backend) == (&check.kind, check.backend)
                    };
                    start_ms += STAGGER_MS;
                    Running {
                        state: other.filter(is_same).map(|it| it.state).unwrap_or_default(),
                        check,
                        in_row: 0,
                        is_last_good: true,
                        phase: Phase::Resting(start_ms),
                    }
                }
            };
            if let Phase::Probing(probe) = &running.phase {
                self.probes.insert((running.check.backend, probe.source_port), key.clone());
            }
            self.due.insert((running.due_ms(), key.clone()));
            self.running.insert(key, running);
        }
    }

    /// When [`Self::poll`] must be called next; `None` without checks.
    pub fn due_ms(&self) -> Option<u64> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Begins the checks that are due, and ends checks that have timed out. Returns the frames to
    /// send, each with the key of its check.
    pub fn poll(&mut self, now_ms: u64) -> Vec<(K, Vec<u8>)> {
        let mut frames = Vec::new();
        // The loop ends, because each turn moves the due time of a check after `now_ms`.
        while let Some((due, key)) = self.due.pop_first() {
            if due > now_ms {
                self.due.insert((due, key));
                break;
            }
            let Some(running) = self.running.get_mut(&key) else { continue };
            let frame = match &mut running.phase {
                Phase::Resting(_) => {
                    let Some(probe) = self.begin(&key, now_ms) else { continue };
                    probe
                }
                Phase::Probing(probe) if probe.deadline_ms > now_ms => {
                    let frame = probe.resend(&running.check, now_ms);
                    self.due.insert((running.due_ms(), key.clone()));
                    frame
                }
                Phase::Probing(_) => {
                    let outcome = match running.check.kind {
                        Kind::Udp => Ok(()),
                        _ => Err(Failure::Timeout),
                    };
                    // A half-open connection is reset.
                    let reset = self.end(&key, outcome, now_ms);
                    match reset {
                        Some(frame) => frame,
                        None => continue,
                    }
                }
            };
            frames.push((key, frame));
        }
        frames
    }

    /// Handles a frame that was received at `arrival`. Returns a frame to send, with its check.
    ///
    /// A frame is an answer only to a probe of a check with this [`Check::arrival`], so that no
    /// other guest can answer for a backend.
    pub fn receive(&mut self, frame: &[u8], arrival: u32, now_ms: u64) -> Option<(K, Vec<u8>)> {
        let taken = self.take(frame, arrival, now_ms);
        match taken {
            Some(_) => self.counters.answers += 1,
            None => self.counters.unmatched_packets += 1,
        }
        taken.flatten()
    }

    /// `None` if the frame is not an answer to a probe.
    fn take(&mut self, frame: &[u8], arrival: u32, now_ms: u64) -> Option<Option<(K, Vec<u8>)>> {
        let answer = Answer::parse(frame)?;
        let key = self.probes.get(&(answer.backend(), answer.source_port()))?.clone();
        let running = self.running.get_mut(&key)?;
        let check = &running.check;
        if check.arrival != arrival || answer.destination() != check.source {
            return None;
        }
        let was_due = (running.due_ms(), key.clone());
        let Phase::Probing(probe) = &mut running.phase else { return None };
        let (outcome, frame) = probe.receive(check, &answer, now_ms)?;
        let due = running.due_ms();
        self.due.remove(&was_due);
        let frame = match outcome {
            Outcome::Continues => {
                self.due.insert((due, key.clone()));
                frame
            }
            Outcome::Ended(result) => self.end(&key, result, now_ms),
        };
        Some(frame.map(|frame| (key, frame)))
    }

    /// Begins a check, and returns its first frame. Without a free source port, the check is
    /// postponed.
    fn begin(&mut self, key: &K, now_ms: u64) -> Option<Vec<u8>> {
        let (random, secret) = (self.random(), self.random());
        let running = self.running.get_mut(key)?;
        let check = &running.check;
        let ports = u64::from(check.port_count.max(1));
        let mut candidates = (0..ports).filter_map(|at| {
            let offset = (random.wrapping_add(at) % ports) as u16;
            check.first_port.checked_add(offset)
        });
        let free = candidates.find(|port| !self.probes.contains_key(&(check.backend, *port)));
        let Some(port) = free else {
            self.counters.no_port += 1;
            let next = now_ms + u64::from(check.timing.interval_ms.max(1));
            running.phase = Phase::Resting(next);
            self.due.insert((next, key.clone()));
            return None;
        };
        self.counters.checks += 1;
        let mut probe = Probe::new(check, port, secret, now_ms);
        let frame = probe.resend(check, now_ms);
        self.probes.insert((check.backend, port), key.clone());
        running.phase = Phase::Probing(probe);
        self.due.insert((running.due_ms(), key.clone()));
        Some(frame)
    }

    /// Ends a check. Returns a frame that ends the connection, if there is one.
    fn end(&mut self, key: &K, result: Result<(), Failure>, now_ms: u64) -> Option<Vec<u8>> {
        let running = self.running.get_mut(key)?;
        let next = now_ms + u64::from(running.check.timing.interval_ms.max(1));
        let ended = std::mem::replace(&mut running.phase, Phase::Resting(next));
        self.due.insert((next, key.clone()));
        let reset = match ended {
            Phase::Probing(probe) => {
                self.probes.remove(&(running.check.backend, probe.source_port));
                probe.reset(&running.check)
            }
            Phase::Resting(_) => None,
        };
        self.counters.failures += u64::from(result.is_err());
        if running.note(result) {
            let State { status, failure } = running.state;
            self.changes.push(Change { key: key.clone(), status, failure });
        }
        reset
    }

    fn random(&mut self) -> u64 {
        self.numbers = self.numbers.wrapping_add(1);
        self.secret.hash_one(self.numbers)
    }

    /// The changes since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<Change<K>> {
        std::mem::take(&mut self.changes)
    }

    /// All checks, with the states of their backends.
    pub fn states(&self) -> impl Iterator<Item = (&K, &Check, State)> {
        self.running.iter().map(|(key, running)| (key, &running.check, running.state))
    }

    /// Counters of all checks.
    pub const fn counters(&self) -> Counters {
        self.counters
    }
}

impl Running {
    const fn due_ms(&self) -> u64 {
        match &self.phase {
            Phase::Resting(until) => *until,
            Phase::Probing(probe) => probe.due_ms(),
        }
    }

    /// Records a result. Returns true if it changes the status.
    fn note(&mut self, result: Result<(), Failure>) -> bool {
        let is_good = result.is_ok();
        self.in_row = match self.is_last_good == is_good {
            true => self.in_row.saturating_add(1),
            false => 1,
        };
        self.is_last_good = is_good;
        self.state.failure = result.err();
        let Timing { failures, successes, .. } = self.check.timing;
        let (enough, status) = match is_good {
            true => (successes, Status::Online),
            false => (failures, Status::Offline),
        };
        if self.in_row < enough.max(1) || self.state.status == status {
            return false;
        }
        self.state.status = status;
        true
    }
}
