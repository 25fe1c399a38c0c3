//! Checks the health of the backends of load balancers, and keeps new connections away from those
//! that fail.
//!
//! One thread makes all checks. With a network file, a changed status changes the program of this
//! host. With OVN, the daemon writes the status to the southbound database, and ovn-northd changes
//! the logical flows.

use super::Daemon;
use super::deployment::Deployment;
use crate::Failure;
use crate::bridges::FlowFiles;
use datapath::stats::{BackendHealth, HealthStats};
use flow::{PortNo, TunnelInfo};
use network::Network;
use ovsdb::Uuid;
use services::health::{Change, Check, Checker, Counters, MAX_CHECKS, State, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use switch::ControllerCopy;

/// The capacity of the queue of packets to the thread.
const QUEUE: usize = 256;
/// The longest sleep of the thread. New checks start within this time.
const MAX_SLEEP: Duration = Duration::from_millis(250);
/// The minimum time between two changes of the program, so that flapping backends cost little.
const PAUSE: Duration = Duration::from_millis(500);
/// The pause before a failed change is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// The number of changes of status that one turn logs one by one. It logs only the count of the
/// others.
const MAX_LOGGED: usize = 10;
/// The arrival port of answers that come from a tunnel or from the uplink.
pub(super) const FROM_UNDERLAY: u32 = u32::MAX;

/// The identity of a check.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum CheckKey {
    /// A backend of a load balancer in the network file.
    Backend(String, SocketAddr),
    /// A row of the southbound table `Service_Monitor`.
    Row(Uuid),
}

/// A check, with the ingress port and the tunnel header of its probes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PlannedCheck {
    /// The name of the load balancer; empty with OVN, whose rows do not contain it.
    pub balancer: String,
    /// The logical port of the backend.
    pub port: String,
    /// The ingress port with which probes enter the pipeline, and their tunnel header.
    pub entry: (PortNo, Option<TunnelInfo>),
    pub check: Check,
}

#[derive(Default)]
struct Inner {
    checker: Checker<CheckKey>,
    planned: BTreeMap<CheckKey, PlannedCheck>,
}

/// The checks of a daemon.
pub(super) struct Health {
    inner: Mutex<Inner>,
    start: Instant,
}

impl Health {
    pub fn new() -> Self {
        Self { inner: Mutex::default(), start: Instant::now() }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the checks.
    pub fn set(&self, planned: BTreeMap<CheckKey, PlannedCheck>) {
        let mut inner = self.lock();
        if inner.planned == planned {
            return;
        }
        let unchecked = planned.len().saturating_sub(MAX_CHECKS);
        if unchecked > 0 {
            messages::log!(
                HEALTH_CHECKS_LIMITED,
                "{unchecked} backends are not checked: a host makes at most {MAX_CHECKS} checks"
            );
        }
        let checks = planned.iter().map(|(key, it)| (key.clone(), it.check.clone())).collect();
        inner.checker.set(checks, self.now_ms());
        inner.planned = planned;
    }

    /// The status of the backends in rows of `Service_Monitor`.
    pub fn rows(&self) -> BTreeMap<Uuid, Status> {
        let inner = self.lock();
        let states = inner.checker.states().filter_map(|(key, _, state)| match key {
            CheckKey::Row(uuid) => Some((*uuid, state.status)),
            CheckKey::Backend(..) => None,
        });
        states.collect()
    }

    /// The counters, and the states of the backends, for `weft show`.
    pub fn stats(&self) -> HealthStats {
        let inner = self.lock();
        let Counters { checks, failures, no_port, over_limit, unmatched_packets, .. } =
            inner.checker.counters();
        let backends = inner.checker.states().filter_map(|(key, check, state)| {
            let PlannedCheck { balancer, port, .. } = inner.planned.get(key)?;
            let State { status, failure } = state;
            Some(BackendHealth {
                balancer: balancer.clone(),
                backend: check.backend,
                port: port.clone(),
                kind: check.kind.name().to_owned(),
                status: status.name().to_owned(),
                failure: failure.map(|failure| failure.to_string()),
            })
        });
        let put_off = no_port + over_limit;
        HealthStats {
            backends: backends.collect(),
            checks,
            failures,
            put_off,
            strays: unmatched_packets,
        }
    }

    fn offline(&self) -> BTreeSet<(String, SocketAddr)> {
        let inner = self.lock();
        let states = inner.checker.states();
        let offline = states.filter(|(_, _, state)| state.status == Status::Offline);
        offline
            .filter_map(|(key, ..)| match key {
                CheckKey::Backend(balancer, backend) => Some((balancer.clone(), *backend)),
                CheckKey::Row(_) => None,
            })
            .collect()
    }

    /// Passes a received packet to its check. Adds the frame that the check sends in return to
    /// `out`.
    fn receive(&self, copy: &ControllerCopy, arrival: u32, out: &mut Vec<Frame>) {
        let mut inner = self.lock();
        let Inner { checker, planned } = &mut *inner;
        let reply = checker.receive(&copy.frame, arrival, self.now_ms());
        out.extend(reply.and_then(|(key, frame)| Some((planned.get(&key)?.entry, frame))));
    }

    /// Adds the frames that are due to `out`. Returns the changes of status, and the time until the
    /// next frame is due.
    fn turn(&self, out: &mut Vec<Frame>) -> (Vec<NamedChange>, Duration) {
        let mut inner = self.lock();
        let Inner { checker, planned } = &mut *inner;
        let now_ms = self.now_ms();
        let due = checker.poll(now_ms);
        out.extend(
            due.into_iter().filter_map(|(key, frame)| Some((planned.get(&key)?.entry, frame))),
        );
        let changes = checker.take_changes().into_iter();
        let changes = changes.filter_map(|change| {
            let PlannedCheck { balancer, port, check, .. } = planned.get(&change.key)?;
            Some(NamedChange {
                balancer: balancer.clone(),
                port: port.clone(),
                backend: check.backend,
                change,
            })
        });
        let rest = checker.due_ms().map_or(MAX_SLEEP, |due| {
            Duration::from_millis(due.saturating_sub(now_ms)).min(MAX_SLEEP)
        });
        (changes.collect(), rest)
    }
}

/// When the next program with changes of status is published.
#[derive(Default)]
struct ApplySchedule {
    /// When to publish the next one; `None` if nothing has changed.
    at: Option<Instant>,
    /// When the last one was published.
    last: Option<Instant>,
}

/// A frame, with the ingress port and the tunnel header with which it enters the pipeline.
type Frame = ((PortNo, Option<TunnelInfo>), Vec<u8>);

struct NamedChange {
    balancer: String,
    port: String,
    backend: SocketAddr,
    change: Change<CheckKey>,
}

/// The channel of packets for the controller.
pub(super) fn channel() -> (SyncSender<ControllerCopy>, Receiver<ControllerCopy>) {
    sync_channel(QUEUE)
}

/// Starts the thread that makes the checks until the daemon ends.
pub(super) fn start(daemon: &Arc<Daemon>, receiver: Receiver<ControllerCopy>) -> io::Result<()> {
    let weak = Arc::downgrade(daemon);
    daemon.follow_health(&daemon.deployment());
    let run = move || {
        let (mut rest, mut schedule) = (MAX_SLEEP, ApplySchedule::default());
        loop {
            let first = match receiver.recv_timeout(rest) {
                Ok(copy) => Some(copy),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let Some(daemon) = weak.upgrade() else { return };
            // At most one queue of packets in each turn, so that a flood of packets does not block
            // the checks.
            let copies = first.into_iter().chain(receiver.try_iter().take(QUEUE));
            rest = daemon.health_turn(copies, &mut schedule);
        }
    };
    std::thread::Builder::new().name("health".to_owned()).spawn(run).map(drop)
}

impl Daemon {
    /// Handles answers, sends the frames that are due, and publishes changes. Returns the time
    /// until the next turn.
    fn health_turn(
        &self,
        copies: impl Iterator<Item = ControllerCopy>,
        schedule: &mut ApplySchedule,
    ) -> Duration {
        let mut frames = Vec::new();
        let deployment = self.deployment();
        for copy in copies {
            self.health.receive(&copy, deployment.arrival(copy.port), &mut frames);
        }
        let (changes, mut rest) = self.health.turn(&mut frames);
        for ((port, tunnel), frame) in frames {
            // Fails only when the datapath has stopped.
            let device = deployment.config.uplink_port;
            let _ = self.switch.originate(&frame, (port, tunnel.as_ref()), device);
        }
        if !changes.is_empty() {
            log(&changes);
            let earliest = schedule.last.map_or_else(Instant::now, |last| last + PAUSE);
            schedule.at.get_or_insert(earliest);
            if let Some(waker) = self.ovn_waker.get() {
                waker.wake();
            }
        }
        if let Some(at) = schedule.at {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                *schedule = ApplySchedule { at: None, last: Some(Instant::now()) };
                if let Err(error) = self.apply_health() {
                    if let Failure::Input(error) | Failure::Runtime(error) = error {
                        messages::log!(
                            HEALTH_NOT_APPLIED,
                            "cannot put the health of backends in force: {error:#}"
                        );
                    }
                    schedule.at = Some(Instant::now() + RETRY);
                } else if self.must_apply_health() {
                    schedule.at = Some(Instant::now() + PAUSE);
                }
            } else {
                rest = rest.min(left);
            }
        }
        rest
    }

    /// True if the running program does not reflect the health of the backends.
    fn must_apply_health(&self) -> bool {
        let deployment = self.deployment();
        deployment.network.is_some() && deployment.offline() != self.health.offline()
    }

    /// Publishes a program without the backends that are offline.
    ///
    /// # Errors
    /// As for a reload.
    fn apply_health(&self) -> Result<(), Failure> {
        let mut state = self.lock_reload_state()?;
        let old = self.deployment();
        let Some(network) = &old.network else { return Ok(()) };
        let offline = self.health.offline();
        if offline == old.offline() {
            return Ok(());
        }
        let network = Network::clone(network);
        let mut previous = old.leave();
        previous.offline = offline;
        let file = self.file.as_deref().unwrap_or(Path::new(""));
        // The bridges keep their present flows.
        let flows = FlowFiles::new();
        let (new, program) =
            Deployment::new((network, &flows), file, &self.host, old.options(), previous)?;
        self.activate_ports(&old, &Arc::new(new), program, &mut state.has_underlay)?;
        Ok(())
    }

    /// Starts the checks of a deployment from a network file. With OVN, the checks come from the
    /// southbound database.
    pub(super) fn follow_health(&self, deployment: &Deployment) {
        if deployment.network.is_some() {
            self.health.set(deployment.checks());
        }
    }
}

fn log(changes: &[NamedChange]) {
    for NamedChange { balancer, port, backend, change } in changes.iter().take(MAX_LOGGED) {
        let status = change.status.name();
        match change.failure {
            Some(failure) => {
                messages::log!(BACKEND_OFFLINE, %balancer, %port, "backend {backend} is {status}: {failure}");
            }
            None => {
                messages::log!(BACKEND_ONLINE, %balancer, %port, "backend {backend} is {status}")
            }
        }
    }
    let further = changes.len().saturating_sub(MAX_LOGGED);
    if further > 0 {
        messages::log!(BACKENDS_FURTHER, "{further} further backends have changed their status");
    }
}
