//! The user datapath: threads that move frames between guests' devices and the underlay.
//!
//! Follow a packet through the files:
//!
//! - a guest's frame: [`worker`] receives it from its [`device`], [`forward`] extracts its key, looks it up in the [`cache`] and
//!   executes the actions, [`transmit`] puts it on the underlay;
//! - a frame from the underlay: [`receive`] ([`stt`] for STT, [`uplink`] for tags) takes it out of its tunnel and coalesces
//!   trains, [`forward`] looks it up, [`vif`] hands it to the guest;
//! - one that no megaflow matches goes up ([`crate::upcall`]) and comes back with an answer.
//!
//! [`control`] opens devices ([`port`]), follows the uplink ([`uplink_watch`]) and keeps the Ethernet addresses of end
//! points ([`resolve`]) and what paths carry ([`path_mtu`]), on a thread of its own; [`mailbox`] is how it and others speak to a worker.
//!
//! Where programs stand in front of it, they hand over what they do not do themselves ([`hand_over`]), and ports are veth pairs
//! ([`pair`]), whose frames have room for outer headers ([`headroom`]).
//!
//! A worker owns all that a packet touches; there is no lock on its way. Within one port and one tunnel socket frames keep
//! their order.

mod busy_poll;
pub mod cache;
pub mod config;
mod control;
mod cutter;
mod device;
mod forward;
mod gro;
pub mod hand_over;
mod headroom;
mod mailbox;
mod meters;
mod pair;
mod path_mtu;
mod port;
mod receive;
mod resolve;
mod stt;
mod transmit;
mod uplink;
mod uplink_watch;
mod vif;
mod worker;

pub use config::{
    Config, DeviceConfig, EndpointConfig, GuestConfig, LinkConfig, PortConfig, TunnelConfig,
    Underlay, Workers,
};

use crate::megaflow::{Megaflow, MegaflowId, Usage};
use crate::provider::{Datapath, DatapathError, DumpCursor, Portion};
use crate::stats::{PortStats, Snapshot, UplinkStats, drops};
use crate::upcall::{Answer, Upcall, UpcallQueues, WorkerId};
use crate::watch::{CapturedFrame, DroppedPacket, Watch, Watching};
use busy_poll::BusyPoll;
use cache::{Cache, CacheLimits, Cursor};
use control::Control;
use flow::{Action, EndpointError, EndpointTable, EntropySeed, PortNo};
use forward::{Forwarder, Outputs};
use mailbox::{Dumped, Mailbox, PortCounters, Report, Request};
use meters::Meters;
use netdev::af_packet::VlanTag;
use netdev::epoll::Waker;
use netdev::{Error, Netlink};
use packet::PacketBuf;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::EtherType;
use wire::vlan::Tag;
use worker::Worker;

/// Frames read from one descriptor before the others get their turn.
const BATCH: usize = 32;
/// How often devices that are gone are looked for again and kernel counters are read.
const TICK: Duration = Duration::from_millis(500);
/// The highest number of a port that has a device.
pub const MAX_PORT: PortNo = PortNo(0xffff);
/// The most forwarding threads.
pub const MAX_WORKERS: usize = 64;

/// Removes the devices of ports that a process has left in this thread's network namespace which was killed; how many there were.
///
/// # Errors
/// The kernel refuses it.
pub fn remove_pairs() -> Result<usize, Error> {
    gro::remove(&netdev::Netlink::open()?)?;
    pair::remove_others(&[])
}

/// Whether the kernel joins the segments that come out of VXLAN, before programs in this thread's network namespace see them, if its
/// receive offload is on.
///
/// # Errors
/// The kernel cannot be asked.
pub fn joins_vxlan() -> Result<bool, Error> {
    gro::is_up(&netdev::Netlink::open()?)
}

/// What a worker tells the control thread.
#[derive(Debug)]
enum Notice {
    /// The device of a port is gone, and why.
    PortGone(PortNo, String),
}

/// How workers tell the control thread.
#[derive(Clone, Debug)]
struct Notices {
    sender: Sender<Notice>,
    waker: Arc<Waker>,
}

impl Notices {
    fn send(&self, notice: Notice) {
        // Nobody listens any more when everything ends.
        let _ = self.sender.send(notice);
        self.waker.wake();
    }
}

/// A datapath that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The kernel refused something.
    #[error(transparent)]
    Device(#[from] Error),
    /// An end point that cannot be.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// A port's number is not between 0, which is the uplink's, and [`MAX_PORT`].
    #[error("port {0} is not between 1 and {MAX_PORT}")]
    PortNumber(PortNo),
    /// The threads do not do what they are asked.
    #[error(transparent)]
    Threads(#[from] DatapathError),
}

/// See the module.
#[derive(Debug)]
pub struct UserDatapath {
    host: String,
    started: Instant,
    upcalls: Arc<UpcallQueues>,
    control: Arc<Mutex<Control>>,
    control_waker: Arc<Waker>,
    workers: Vec<Mailbox>,
    threads: Mutex<Vec<JoinHandle<Result<(), Error>>>>,
}

impl UserDatapath {
    /// Opens the sockets of the underlay in this thread's network namespace and the devices of all ports that can be opened,
    /// and begins to forward; the other devices are tried again from time to time. Nothing is left behind when this fails.
    ///
    /// # Errors
    /// [`SetupError`] when the underlay cannot be opened: no such uplink, an address that is not this host's, a port taken.
    pub fn start(config: Config) -> Result<Self, SetupError> {
        let wrong = |port: &&config::PortConfig| !(1..=MAX_PORT.0).contains(&port.port.0);
        if let Some(port) = config.ports.iter().find(wrong) {
            return Err(SetupError::PortNumber(port.port));
        }
        let started = Instant::now();
        let ifindex = Netlink::open()?.index_of(&config.uplink)?;
        let mut control = Control::open(&config, ifindex)?;
        let (sender, noticed) = channel();
        let notices = Notices { sender, waker: Arc::new(Waker::new()?) };
        let control_waker = Arc::clone(&notices.waker);
        let upcalls = Arc::new(UpcallQueues::new(config.upcalls));
        let meters = Arc::new(Meters::default());
        let seed = config.hand_over.as_ref().map_or_else(EntropySeed::random, |it| it.entropy);
        let (mut workers, mut threads) = (Vec::new(), Vec::new());
        for number in 0..config.workers.count.clamp(1, MAX_WORKERS) {
            let (mailbox, requests, waker) = Mailbox::new()?;
            let forwarder = Forwarder::new(
                WorkerId(number as u16),
                Cache::new(CacheLimits { megaflows: config.megaflows }),
                EndpointTable::with_seed(config.entropy_base, config.entropy_ports, seed),
                Outputs::new(config.uplink_port, Arc::clone(&meters), config.solicit),
                Arc::clone(&upcalls),
            );
            let busy_poll = BusyPoll::new(config.workers.busy_poll);
            let mailbox_end = (requests, waker);
            let mut worker =
                Worker::new(started, mailbox_end, forwarder, busy_poll, notices.clone())?;
            threads.push(spawn(&format!("forward-{number}"), move || worker.run())?);
            workers.push(mailbox);
        }
        drop(notices);
        let begun = control.begin(workers.clone(), &Arc::new(config.underlay));
        let control = Arc::new(Mutex::new(control));
        let (shared, woken) = (Arc::clone(&control), Arc::clone(&control_waker));
        threads.push(spawn("control", move || control::run(&shared, &noticed, &woken))?);
        let threads = Mutex::new(threads);
        let datapath =
            Self { host: config.host, started, upcalls, control, control_waker, workers, threads };
        // Where something is missing, everything ends again here.
        begun.map(|()| datapath)
    }

    /// True when a thread has ended: the datapath does not forward any more.
    pub fn has_ended(&self) -> bool {
        self.threads().iter().any(JoinHandle::is_finished)
    }

    /// Stops, waits for the threads, and removes the devices that were made.
    ///
    /// # Errors
    /// The first error with which one of the threads had ended.
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

    /// The worker that a cursor is at, and a portion of what it has.
    fn portion<T>(
        &self,
        from: DumpCursor,
        ask: impl Fn(&Mailbox, Cursor) -> Result<Dumped<T>, DatapathError>,
    ) -> Result<Portion<(T, Usage)>, DatapathError> {
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

/// A thread that the datapath consists of.
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

    fn put(&self, megaflows: Vec<Megaflow>) -> Result<(), DatapathError> {
        let megaflows: Arc<[Megaflow]> = megaflows.into();
        self.workers.iter().try_for_each(|worker| worker.send(Request::Put(Arc::clone(&megaflows))))
    }

    fn delete(
        &self,
        megaflows: Vec<MegaflowId>,
    ) -> Result<Vec<(MegaflowId, Usage)>, DatapathError> {
        let megaflows: Arc<[MegaflowId]> = megaflows.into();
        let mut counted = Vec::new();
        for worker in &self.workers {
            counted.extend(worker.ask(|reply| Request::Delete(Arc::clone(&megaflows), reply))?);
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
    ) -> Result<Portion<(Megaflow, Usage)>, DatapathError> {
        self.portion(from, |worker, at| worker.ask(|reply| Request::Dump(at, most, reply)))
    }

    fn usage(
        &self,
        from: DumpCursor,
        most: usize,
    ) -> Result<Portion<(MegaflowId, Usage)>, DatapathError> {
        self.portion(from, |worker, at| worker.ask(|reply| Request::Usage(at, most, reply)))
    }

    fn upcalls(&self, most: usize, timeout: Duration, out: &mut Vec<Upcall>) -> bool {
        self.upcalls.take(most, timeout, out)
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
        let mut total = Report::default();
        let mut ports: BTreeMap<PortNo, PortCounters> = BTreeMap::new();
        let mut endpoints = BTreeMap::new();
        for worker in &self.workers {
            let report = worker.ask(Request::Report)?;
            for (port, counters) in report.ports {
                *ports.entry(port).or_default() += counters;
            }
            total.uplink += report.uplink;
            total.megaflows += report.megaflows;
            // Each end point is in every worker.
            for endpoint in report.endpoints {
                let name = (endpoint.tunnel.clone(), endpoint.remote, endpoint.local);
                match endpoints.entry(name) {
                    Entry::Vacant(place) => drop(place.insert(endpoint)),
                    Entry::Occupied(mut sum) => sum.get_mut().add(&endpoint),
                }
            }
        }
        let control = control::lock(&self.control);
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
            }
        });
        Ok(Snapshot {
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
            },
            endpoints: endpoints.into_values().collect(),
            megaflows: total.megaflows,
        })
    }

    fn watch_drops(&self) -> Result<Watching<DroppedPacket>, DatapathError> {
        let (watch, receiver) = Watch::drops();
        self.watch(&watch)?;
        Ok(receiver)
    }

    fn watch_frames(
        &self,
        port: PortNo,
        snap_bytes: usize,
    ) -> Result<Watching<CapturedFrame>, DatapathError> {
        let (watch, receiver) = Watch::frames(port, snap_bytes);
        self.watch(&watch)?;
        Ok(receiver)
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn stop(&self) {
        self.upcalls.stop();
        control::lock(&self.control).forget_ports();
        for worker in &self.workers {
            // One that has ended has stopped.
            let _ = worker.send(Request::Stop);
        }
    }
}

/// Ends the threads, and with them the devices that were made.
impl Drop for UserDatapath {
    fn drop(&mut self) {
        // Whoever wants to know of errors has joined before.
        let _ = self.join();
    }
}

/// Puts a tag that the kernel has taken out of a frame back into its bytes. A frame too short for it becomes empty, which is
/// refused as malformed: without its tag it would belong to another network.
fn restore_tag(packet: &mut PacketBuf, tag: VlanTag) {
    if flow::push_vlan(packet, Tag::from_tci(EtherType(tag.tpid), tag.tci)).is_err() {
        packet.set_len(0);
    }
}
