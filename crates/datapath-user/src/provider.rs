//! [`UserDatapath`]: starts the threads and implements the [`Datapath`] trait by requests to them.

use crate::WorkerEventSender;
use crate::busy_poll::BusyPoll;
use crate::cache::CacheLimits;
use crate::control::{self, Control};
use crate::cpu_budget::{CpuBudgets, WorkKind};
use crate::device_closer::DeviceCloser;
use crate::fast_path::Punt;
use crate::forward::{Forwarder, FrameOutputs};
use crate::mailbox::{DumpedPage, Mailbox, PortCounters, Request, WorkerCounters};
use crate::named_meter::NamedMeters;
use crate::pass_caches::PassCaches;
use crate::token_bucket::TokenBuckets;
use crate::upcall_queue::UpcallQueues;
use crate::watchers::Watch;
use crate::worker::Worker;
use datapath::config::{Config, MAX_PORT, MAX_WORKERS, PortConfig, Underlay};
use datapath::cpu_meter::PortWork;
use datapath::megaflow::{Megaflow, MegaflowId, Usage};
use datapath::stats::{
    ConnectionStats, LogStats, PortStats, PrivilegeStats, Snapshot, UplinkStats, drops,
};
use datapath::tracker::Tracker;
use datapath::upcall::{Answer, Upcall, WorkerId};
use datapath::watch::{CapturedFrame, DroppedPacket, WatchReceiver};
use datapath::{Cursor, Datapath, DatapathError, DumpCursor, DumpPage};
use flow::{
    Action, DropReason, EndpointError, EndpointId, EndpointTable, EntropySeed, NamedMeter, PortNo,
};
use netdev::epoll::Waker;
use netdev::{Error, Netlink};
use packet::PacketBuf;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Megaflows that a worker deletes at a time.
const DELETIONS: usize = 1024;

/// Why a user datapath cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The kernel refuses to open or configure a device or socket.
    #[error(transparent)]
    Device(#[from] Error),
    /// An end point of the configuration is invalid.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The uplink has no Ethernet header.
    #[error(
        "the uplink {0} is not an Ethernet device: name one, such as a gretap or vxlan device over {0}"
    )]
    NotEthernet(String),
    /// A thread cannot be started.
    #[error("cannot start a forwarding thread: {0}")]
    Thread(#[from] std::io::Error),
    /// A port's number is 0, which is the uplink's, or above [`MAX_PORT`].
    #[error("port {0} is out of range (1 to {MAX_PORT})")]
    PortNumber(PortNo),
    /// A thread did not carry out a request.
    #[error(transparent)]
    Threads(#[from] DatapathError),
}

/// A running user datapath. Dropping it ends its threads and removes the devices that it made.
#[derive(Debug)]
pub struct UserDatapath {
    host: String,
    started: Instant,
    upcalls: Arc<UpcallQueues>,
    control: Arc<Mutex<Control>>,
    control_waker: Arc<Waker>,
    tracker: Arc<Tracker>,
    workers: Vec<Mailbox>,
    threads: Mutex<Vec<JoinHandle<Result<(), Error>>>>,
}

impl UserDatapath {
    /// Opens the sockets of the underlay in this thread's network namespace and the devices of the
    /// ports, and starts to forward. Devices that cannot be opened are retried from time to time.
    /// After an error, nothing is left behind.
    ///
    /// # Errors
    /// [`SetupError`] when the underlay cannot be opened: no such uplink, an address that is not
    /// this host's, or a UDP port in use.
    pub fn start(config: Config) -> Result<Self, SetupError> {
        Self::start_with(config, None)
    }

    /// Like [`start`](Self::start), behind programs that punt packets to this datapath.
    ///
    /// # Errors
    /// As [`start`](Self::start); or the TAP cannot be made.
    pub fn start_behind(punt: Punt, config: Config) -> Result<Self, SetupError> {
        Self::start_with(config, Some(punt))
    }

    fn start_with(config: Config, punt: Option<Punt>) -> Result<Self, SetupError> {
        let wrong = |port: &&PortConfig| !(1..=MAX_PORT.0).contains(&port.port.0);
        if let Some(port) = config.ports.iter().find(wrong) {
            return Err(SetupError::PortNumber(port.port));
        }
        let started = Instant::now();
        let uplink = Netlink::open()?.link(&config.uplink)?;
        if !uplink.is_ethernet {
            return Err(SetupError::NotEthernet(uplink.name));
        }
        let ifindex = uplink.index;
        let seed = punt.as_ref().map_or_else(EntropySeed::random, |punt| punt.entropy);
        let programs = punt.as_ref().map(|punt| Arc::clone(&punt.fast_path));
        let budgets = CpuBudgets::new(config.upcall_cpu_percent, programs);
        let upcalls = Arc::new(UpcallQueues::new(config.upcalls, budgets));
        let (closer, queues) = (DeviceCloser::start()?, Arc::clone(&upcalls));
        let mut control = Control::open(&config, ifindex, punt, closer, queues)?;
        let (sender, worker_events) = channel();
        let event_sender = WorkerEventSender { sender, waker: Arc::new(Waker::new()?) };
        let control_waker = Arc::clone(&event_sender.waker);
        let meters = Arc::new(TokenBuckets::default());
        let named_meters = Arc::<NamedMeters>::default();
        let tracker = Arc::new(Tracker::new(config.conntrack.clone()));
        let (mut workers, mut threads) = (Vec::new(), Vec::new());
        for number in 0..config.workers.count.clamp(1, MAX_WORKERS) {
            let (mailbox, requests, waker) = Mailbox::new()?;
            let log_meters = Arc::clone(&control.log_meters);
            let forwarder = Forwarder::new(
                WorkerId(number as u16),
                PassCaches::new(CacheLimits { megaflows: config.megaflows }),
                EndpointTable::with_seed(config.entropy_base, config.entropy_ports, seed),
                FrameOutputs::new(
                    config.uplink_port,
                    (Arc::clone(&meters), log_meters, Arc::clone(&named_meters)),
                    config.solicit,
                    Arc::clone(&tracker),
                ),
                Arc::clone(&upcalls),
            );
            let busy_poll = BusyPoll::new(config.workers.busy_poll);
            let mailbox_end = (requests, waker);
            let mut worker =
                Worker::new(started, mailbox_end, forwarder, busy_poll, event_sender.clone())?;
            threads.push(spawn(&format!("forward-{number}"), move || worker.run())?);
            workers.push(mailbox);
        }
        drop(event_sender);
        let begun = control.start(workers.clone(), &Arc::new(config.underlay));
        let control = Arc::new(Mutex::new(control));
        let (shared, woken) = (Arc::clone(&control), Arc::clone(&control_waker));
        threads.push(spawn("control", move || control::run(&shared, &worker_events, &woken))?);
        let threads = Mutex::new(threads);
        let host = config.host;
        let datapath =
            Self { host, started, upcalls, control, control_waker, tracker, workers, threads };
        // On an error, dropping `datapath` ends the threads again.
        begun.map(|()| datapath)
    }

    /// True when a thread has ended, so that the datapath no longer forwards.
    pub fn has_ended(&self) -> bool {
        self.threads().iter().any(JoinHandle::is_finished)
    }

    /// Stops the threads, waits for them, and removes the devices that were made.
    ///
    /// # Errors
    /// The error of the first thread that had failed.
    pub fn join(&self) -> Result<(), Error> {
        self.stop();
        let mut result = Ok(());
        for thread in self.threads().drain(..) {
            self.control_waker.wake();
            let ended = thread.join().unwrap_or_else(|_| {
                Err(Error::invalid("forward".to_owned(), "a thread of the datapath panicked"))
            });
            result = result.and(ended);
        }
        result
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<Result<(), Error>>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, watch: &Watch) -> Result<(), DatapathError> {
        self.workers.iter().try_for_each(|worker| worker.send(Request::Watch(watch.clone())))
    }

    /// Asks the worker of a cursor for a portion of its megaflows.
    fn portion<T>(
        &self,
        from: DumpCursor,
        ask: impl Fn(&Mailbox, Cursor) -> Result<DumpedPage<T>, DatapathError>,
    ) -> Result<DumpPage<(T, Usage)>, DatapathError> {
        let Some(worker) = self.workers.get(from.worker) else { return Ok((Vec::new(), None)) };
        let (found, next) = ask(worker, from.at)?;
        let next = match next {
            Some(at) => Some(DumpCursor { at, ..from }),
            None if from.worker + 1 < self.workers.len() => {
                Some(DumpCursor { worker: from.worker + 1, at: Cursor::default() })
            }
            None => None,
        };
        Ok((found, next))
    }
}

/// Starts a thread of the datapath.
fn spawn(
    name: &str,
    run: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> std::io::Result<JoinHandle<Result<(), Error>>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

impl Datapath for UserDatapath {
    fn add_port(&self, config: PortConfig) -> Result<(), DatapathError> {
        if !(1..=MAX_PORT.0).contains(&config.port.0) {
            return Err(DatapathError::PortNumber(config.port));
        }
        control::lock(&self.control).add_port(config)
    }

    fn remove_port(&self, port: PortNo) -> Result<(), DatapathError> {
        control::lock(&self.control).remove_port(port)
    }

    fn set_underlay(&self, underlay: Underlay) -> Result<(), DatapathError> {
        let set = control::lock(&self.control).set_underlay(&Arc::new(underlay));
        set.map_err(|error| match error {
            SetupError::Threads(error) => error,
            error => DatapathError::Underlay(error.to_string()),
        })
    }

    fn set_log_meters(&self, meters: &[NamedMeter]) {
        control::lock(&self.control).log_meters.set(meters);
    }

    fn set_probed_path_mtu(&self, endpoint: EndpointId, bytes: u16) -> Result<(), DatapathError> {
        control::lock(&self.control).set_probed_path_mtu(endpoint, bytes);
        Ok(())
    }

    fn put(&self, megaflows: Vec<Megaflow>) -> Result<(), DatapathError> {
        let megaflows: Arc<[Megaflow]> = megaflows.into();
        self.workers.iter().try_for_each(|worker| worker.send(Request::Put(Arc::clone(&megaflows))))
    }

    fn begin_epoch(&self) -> Result<(), DatapathError> {
        self.workers.iter().try_for_each(|worker| worker.send(Request::BeginEpoch))
    }

    fn confirm(&self, megaflows: Vec<MegaflowId>) -> Result<(), DatapathError> {
        let megaflows: Arc<[MegaflowId]> = megaflows.into();
        let confirm = || Request::Confirm(Arc::clone(&megaflows));
        self.workers.iter().try_for_each(|worker| worker.send(confirm()))
    }

    fn withdraw_unconfirmed(&self) -> Result<(), DatapathError> {
        self.workers.iter().try_for_each(|worker| worker.ask(Request::WithdrawUnconfirmed))
    }

    fn delete(
        &self,
        megaflows: Vec<MegaflowId>,
    ) -> Result<Vec<(MegaflowId, Usage)>, DatapathError> {
        let mut counted = Vec::new();
        // Deletes in portions, because a worker does not forward while it deletes.
        for some in megaflows.chunks(DELETIONS) {
            let some: Arc<[MegaflowId]> = some.into();
            for worker in &self.workers {
                counted.extend(worker.ask(|reply| Request::Delete(Arc::clone(&some), reply))?);
            }
        }
        Ok(counted)
    }

    fn get(&self, megaflows: Vec<MegaflowId>) -> Result<Vec<Megaflow>, DatapathError> {
        let mut wanted: BTreeSet<MegaflowId> = megaflows.into_iter().collect();
        let mut found: Vec<Megaflow> = Vec::with_capacity(wanted.len());
        for worker in &self.workers {
            let ids: Arc<[MegaflowId]> = wanted.iter().copied().collect();
            let here = worker.ask(|reply| Request::Get(ids, reply))?;
            for megaflow in &here {
                wanted.remove(&megaflow.id);
            }
            found.extend(here);
        }
        Ok(found)
    }

    fn dump(
        &self,
        from: DumpCursor,
        most: usize,
    ) -> Result<DumpPage<(Megaflow, Usage)>, DatapathError> {
        self.portion(from, |worker, at| worker.ask(|reply| Request::Dump(at, most, reply)))
    }

    fn usage(
        &self,
        from: DumpCursor,
        most: usize,
    ) -> Result<DumpPage<(MegaflowId, Usage)>, DatapathError> {
        self.portion(from, |worker, at| worker.ask(|reply| Request::Usage(at, most, reply)))
    }

    fn upcalls(&self, most: usize, timeout: Duration, out: &mut Vec<Upcall>) -> bool {
        let mut expired = Vec::new();
        let goes_on = self.upcalls.take(most, timeout, out, &mut expired);
        // The workers count drops and show them to observers.
        let actions: Arc<[Action]> = Arc::new([Action::Drop(DropReason::UpcallBudget)]);
        let misses = expired.into_iter().filter_map(|upcall| self.upcalls.discard(upcall));
        let answers = misses.map(|upcall| Answer {
            upcall,
            actions: Arc::clone(&actions),
            megaflow: None,
            decided_by: None,
        });
        let answers: Vec<Answer> = answers.collect();
        goes_on && (answers.is_empty() || self.answer(answers).is_ok())
    }

    fn set_upcall_cpu_percent(&self, percent: u32) {
        self.upcalls.set_percent(percent);
    }

    fn charge_upcalls(&self, work: &[PortWork]) {
        self.upcalls.budgets.charge(work, WorkKind::Upcalls, Instant::now());
    }

    fn answer(&self, mut answers: Vec<Answer>) -> Result<(), DatapathError> {
        if let [worker] = self.workers.as_slice() {
            return worker.send(Request::Answers(answers));
        }
        for (number, worker) in (0..).map(WorkerId).zip(&self.workers) {
            let (here, others): (Vec<_>, _) =
                answers.into_iter().partition(|answer| answer.upcall.worker == number);
            answers = others;
            if !here.is_empty() {
                worker.send(Request::Answers(here))?;
            }
        }
        Ok(())
    }

    fn forget_solicitations(&self) -> Result<(), DatapathError> {
        self.workers.iter().try_for_each(|worker| worker.send(Request::ForgetSolicitations))
    }

    fn execute(
        &self,
        port: PortNo,
        packet: PacketBuf,
        actions: Arc<[Action]>,
    ) -> Result<(), DatapathError> {
        let worker = self.workers.first().ok_or(DatapathError::Stopped)?;
        worker.send(Request::Execute(port, packet, actions))
    }

    fn snapshot(&self) -> Result<Snapshot, DatapathError> {
        let mut total = WorkerCounters::default();
        let mut ports: BTreeMap<PortNo, PortCounters> = BTreeMap::new();
        let mut endpoints = BTreeMap::new();
        for worker in &self.workers {
            let report = worker.ask(Request::Report)?;
            for (port, counters) in report.ports {
                *ports.entry(port).or_default() += counters;
            }
            total.uplink += report.uplink;
            total.megaflows += report.megaflows;
            // Every worker has counters of every end point.
            for endpoint in report.endpoints {
                let name = (endpoint.tunnel.clone(), endpoint.remote, endpoint.local);
                match endpoints.entry(name) {
                    Entry::Vacant(entry) => drop(entry.insert(endpoint)),
                    Entry::Occupied(mut sum) => {
                        sum.get_mut().rx += endpoint.rx;
                        sum.get_mut().tx += endpoint.tx;
                    }
                }
            }
        }
        let control = control::lock(&self.control);
        let mut reports = control.path_mtus.reports(Instant::now());
        for endpoint in endpoints.values_mut() {
            let name = (endpoint.tunnel.as_str(), endpoint.remote, endpoint.local);
            endpoint.path_mtu_report = reports.remove(&name);
        }
        let port_stats = control.ports.iter().map(|(&number, port)| {
            let counters = ports.remove(&number).unwrap_or_default();
            PortStats {
                port: number.0,
                name: port.config.name.clone(),
                logical_switch: port.config.logical_switch.clone(),
                device: port.config.device.to_string(),
                state: port.state(),
                rx: counters.rx.into(),
                tx: counters.tx.into(),
                drops: drops(&counters.drops),
                slow_path: self.upcalls.budgets.stats(number),
            }
        });
        Ok(Snapshot {
            health: Default::default(),
            host: self.host.clone(),
            datapath: "user".to_owned(),
            pid: std::process::id(),
            uptime_ms: self.now_ms(),
            ports: port_stats.collect(),
            uplink: UplinkStats {
                device: control.uplink.device.clone(),
                state: control.uplink.state().name().to_owned(),
                rx: total.uplink.rx.into(),
                tx: total.uplink.tx.into(),
                drops: drops(&total.uplink.drops),
                path_mtu_reports: control.path_mtus.counts(),
            },
            endpoints: endpoints.into_values().collect(),
            megaflows: total.megaflows,
            upcalls: self.upcalls.stats(),
            maps: Vec::new(),
            log: LogStats { over_rate: control.log_meters.suppressed(), ..LogStats::default() },
            connections: ConnectionStats {
                connections: self.tracker.stats().0,
                limit: self.tracker.config().limits.connections,
            },
            privileges: PrivilegeStats::default(),
        })
    }

    fn watch_drops(&self) -> Result<WatchReceiver<DroppedPacket>, DatapathError> {
        let (watch, receiver) = Watch::drops();
        self.watch(&watch)?;
        Ok(receiver)
    }

    fn watch_frames(
        &self,
        port: PortNo,
        snap_bytes: usize,
    ) -> Result<WatchReceiver<CapturedFrame>, DatapathError> {
        let (watch, receiver) = Watch::frames(port, snap_bytes);
        self.watch(&watch)?;
        Ok(receiver)
    }

    fn tracker(&self) -> Option<&Tracker> {
        Some(&self.tracker)
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn stop(&self) {
        self.upcalls.stop();
        control::lock(&self.control).forget_ports();
        for worker in &self.workers {
            // A worker that cannot be reached has ended already.
            let _ = worker.send(Request::Stop);
        }
    }
}

/// Ends the threads. The devices that they made go with them.
impl Drop for UserDatapath {
    fn drop(&mut self) {
        // A caller that is interested in errors has called `join` before.
        let _ = self.join();
    }
}
