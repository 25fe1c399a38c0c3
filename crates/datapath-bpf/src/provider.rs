//! [`KernelDatapath`]: BPF programs in front of a user datapath.

mod adoption;

use crate::attachment;
use crate::flow_tables::FlowNo;
use crate::load::{MapSizes, Unsupported, load};
use crate::map_error::MapError;
use crate::pin::{NamespaceClaim, PinError, PinSet, Pins};
use crate::ports::AllCounts;
use crate::previous::PreviousState;
use crate::state::BpfState;
use adoption::Pinned;
use datapath::config::{Config, MAX_PORT, MAX_WORKERS, PortConfig, Underlay};
use datapath::cpu_meter::PortWork;
use datapath::megaflow::{Megaflow, MegaflowId, Usage};
use datapath::provider::FusedMegaflows;
use datapath::stats::{Drops, MegaflowStats, Snapshot, drops};
use datapath::tracker::Tracker;
use datapath::upcall::{Answer, Upcall};
use datapath::watch::{CapturedFrame, DroppedPacket, WatchReceiver};
use datapath::{Cursor, Datapath, DatapathError, DumpCursor, DumpPage};
use datapath_user::fast_path::Punt;
use datapath_user::{SetupError, UserDatapath};
use flow::{Action, DropCounters, EndpointId, EntropySeed, Field, FlowKey, NamedMeter, PortNo};
use packet::PacketBuf;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

pub use adoption::Adoption;

/// The TAP to which programs punt packets. The kernel replaces `%d` by a free number.
const PUNT_DEVICE: &str = "weft-up%d";
/// How often the maintenance thread runs.
const TICK: Duration = Duration::from_millis(250);
/// Once per this many ticks, maintenance also sorts the masks and frees deleted entries.
const SORT_TICKS: u32 = 20;

/// The kernel datapath: BPF programs, and a user datapath for the packets that they punt.
#[derive(Debug)]
pub struct KernelDatapath {
    user: UserDatapath,
    bpf: Arc<BpfState>,
    /// The number of workers of the user datapath. A dump treats the programs' maps as one more
    /// worker.
    workers: usize,
    /// Serializes changes of ports and underlay, because each change updates the BPF maps and the
    /// user datapath one after the other.
    changing: Mutex<()>,
    /// The largest number of exact-match hits of the programs that was ever reported.
    exact_hits: AtomicU64,
    pinned: Option<Pinned>,
    /// Keeps other processes from starting a kernel datapath in this network namespace. The last
    /// field, so that it is dropped last.
    _namespace: NamespaceClaim,
}

/// The reason why a kernel datapath could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// This host cannot run the BPF programs.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A BPF map could not be filled.
    #[error(transparent)]
    FlowTables(#[from] MapError),
    /// The user datapath behind the programs could not start.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Another process runs a kernel datapath in this network namespace, or pins cannot be removed.
    #[error(transparent)]
    Pins(#[from] PinError),
}

/// Loaded programs that are not attached yet. Everything that needs CAP_BPF or CAP_PERFMON is done.
/// From now on CAP_SYS_ADMIN is needed only for the network namespaces of guests.
#[derive(Debug)]
pub struct PreparedKernelDatapath {
    config: Config,
    entropy: EntropySeed,
    bpf: Arc<BpfState>,
    pinned: Option<Pinned>,
    namespace: NamespaceClaim,
}

impl PreparedKernelDatapath {
    /// Loads the programs for this thread's network namespace, and pins them and their maps in the
    /// BPF file system at `bpf_fs`. Starts no thread. An error leaves nothing behind, and so does
    /// dropping the result.
    ///
    /// If pinning fails, this logs a warning, and the programs end with the process.
    ///
    /// # Errors
    /// - [`StartError::Unsupported`] if the host cannot run the programs; nothing was changed;
    /// - [`PinError::Taken`] if another process runs a kernel datapath in the namespace;
    /// - the error of a BPF map.
    pub fn load(config: Config, bpf_fs: &Path) -> Result<Self, StartError> {
        let namespace = NamespaceClaim::claim()?;
        let pins = Pins::open(bpf_fs).map(Arc::new).inspect_err(|error| {
            messages::log!(
                PINNING_IMPOSSIBLE,
                "cannot pin programs: {error}; cached flows will end with the process"
            );
        });
        if let Ok(pins) = &pins
            && !pins.outlive_process()
        {
            messages::log!(
                PINS_MAY_END,
                folder = %pins.folder().display(),
                "cached flows may end with the process: process 1 does not have this BPF file \
                 system mounted; start weft in the mount namespace of process 1"
            );
        }
        Self::load_with(config, namespace, pins.ok())
    }

    fn load_with(
        config: Config,
        namespace: NamespaceClaim,
        pins: Option<Arc<Pins>>,
    ) -> Result<Self, StartError> {
        let wrong = |port: &&PortConfig| !(1..=MAX_PORT.0).contains(&port.port.0);
        if let Some(port) = config.ports.iter().find(wrong) {
            return Err(SetupError::PortNumber(port.port).into());
        }
        let sizes = MapSizes::new(config.megaflows, config.underlay.endpoints.len());
        let entropy = EntropySeed::random();
        let loaded = load(sizes, &entropy)?;
        let previous = pins
            .as_ref()
            .map(|pins| PreviousState::read(pins))
            .filter(|previous| !previous.is_empty());
        let bpf = BpfState::new(&loaded, &config, pins.clone(), previous.is_some())?;
        let bpf = Arc::new(bpf);
        for port in &config.ports {
            bpf.lock().ports.add(port)?;
        }
        attachment::remove_all_left_over_programs(pins.as_deref());
        attachment::remember_programs(&loaded, pins.as_deref());
        let pinned = pins.map(|pins| Pinned::new(&loaded, pins, previous));
        Ok(Self { config, entropy, bpf, pinned, namespace })
    }

    /// The directories that the datapath changes as long as it runs: the mount point of the BPF
    /// file system, and the directory of the pins below it. `None` if nothing is pinned.
    pub fn pin_folders(&self) -> Option<[&Path; 2]> {
        self.pinned.as_ref().map(|pinned| pinned.pins.open_folders())
    }

    /// Starts the user datapath, and attaches the programs to the devices of this thread's network
    /// namespace. If a previous process has died, its programs stay attached until
    /// [`KernelDatapath::adopt`] is called. Until then this datapath receives nothing from ports
    /// and the underlay. An error leaves nothing behind.
    ///
    /// # Errors
    /// The errors of [`UserDatapath::start`].
    pub fn start(self) -> Result<KernelDatapath, StartError> {
        let Self { config, entropy, bpf, pinned, namespace } = self;
        let underlay = config.underlay.clone();
        let workers = config.workers.count.clamp(1, MAX_WORKERS);
        let fast_path = Arc::clone(&bpf);
        let punt = Punt { device: PUNT_DEVICE.to_owned(), entropy, fast_path };
        let user = UserDatapath::start_behind(punt, config)?;
        bpf.add_endpoints(&underlay)?;
        let set = pinned.as_ref().and_then(|pinned| pinned.set.as_ref());
        maintain(&bpf, set)?;
        let (changing, exact_hits, _namespace) = (Mutex::default(), AtomicU64::new(0), namespace);
        Ok(KernelDatapath { user, bpf, workers, changing, exact_hits, pinned, _namespace })
    }
}

impl KernelDatapath {
    /// Loads the programs, starts the user datapath, and attaches the programs to the devices of
    /// this thread's network namespace. Nothing is pinned. An error leaves nothing behind.
    ///
    /// # Errors
    /// As [`PreparedKernelDatapath::load`] and [`PreparedKernelDatapath::start`].
    pub fn start(config: Config) -> Result<Self, StartError> {
        PreparedKernelDatapath::load_with(config, NamespaceClaim::claim()?, None)?.start()
    }

    /// How the uplink's program is attached, `tcx` or `clsact`; `None` if it is not.
    pub fn uplink_hook(&self) -> Option<String> {
        self.bpf.lock().ports.uplink_hook()
    }

    /// Where programs and maps are pinned; `None` if they are not.
    pub fn pinned_at(&self) -> Option<&Path> {
        let pinned = self.pinned.as_ref()?;
        pinned.set.as_ref().map(|_| pinned.pins.folder())
    }

    /// True if programs and maps are pinned and known to outlive the process.
    pub fn pins_last(&self) -> bool {
        let pinned = self.pinned.as_ref().filter(|pinned| pinned.set.is_some());
        pinned.is_some_and(|pinned| pinned.pins.outlive_process())
    }

    /// Whether a thread of the user datapath has ended, so that it no longer forwards.
    pub fn has_ended(&self) -> bool {
        self.user.has_ended()
    }

    /// Detaches the programs, stops all threads and waits for them, and removes the devices that
    /// the datapath created.
    ///
    /// # Errors
    /// The first error that ended a thread.
    pub fn join(&self) -> Result<(), netdev::Error> {
        self.bpf.close();
        if let Some(pinned) = &self.pinned
            && let Err(error) = pinned.pins.remove_all()
        {
            messages::log!(
                PINS_LEFT,
                folder = %pinned.pins.folder().display(),
                "cannot remove pins: {error}"
            );
        }
        self.user.join()
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_counts(&self, snapshot: &mut Snapshot) -> Result<(), MapError> {
        let (state, now) = (self.bpf.lock(), Instant::now());
        snapshot.datapath = "kernel".to_owned();
        let AllCounts { mut ports, uplink, drop_keys } = state.ports.counts()?;
        snapshot.maps = state.map_use(drop_keys);
        for port in &mut snapshot.ports {
            let number = PortNo(port.port);
            if let Some(attach_error) = state.ports.attach_error(number) {
                port.state = format!("down: {attach_error}");
            } else if let Some(others) = state.ports.programs_before(number) {
                port.state = format!("{}, behind {others}", port.state);
            }
            let Some(counts) = ports.get_mut(&number) else { continue };
            port.rx += counts.rx;
            port.tx += counts.tx;
            self.bpf.miss_pauses.correct(number, &mut counts.drops, now);
            add_drops(&mut port.drops, &counts.drops);
        }
        if let Some(attach_error) = state.ports.uplink_attach_error() {
            snapshot.uplink.state = format!("{}, but {attach_error}", snapshot.uplink.state);
        } else if let Some(others) = state.ports.programs_before_uplink() {
            snapshot.uplink.state = format!("{}, behind {others}", snapshot.uplink.state);
        }
        snapshot.uplink.rx += uplink.rx;
        snapshot.uplink.tx += uplink.tx;
        add_drops(&mut snapshot.uplink.drops, &uplink.drops);
        let endpoints = state.endpoint_maps.counts()?;
        if !endpoints.is_empty() {
            for end in &mut snapshot.endpoints {
                let key = (end.tunnel.as_str(), end.local, end.remote);
                if let Some(&[rx, tx]) = endpoints.get(&key) {
                    end.rx += rx;
                    end.tx += tx;
                }
            }
        }
        let (megaflows, masks) = state.megaflows.len();
        let (served, lookups) = state.megaflows.lookups()?;
        // `lookups.hits` also counts packets that a program punted after the search; `served`
        // does not. So the difference may fall, and a counter must not.
        let without_search = served.saturating_sub(lookups.hits);
        let before = self.exact_hits.fetch_max(without_search, Ordering::Relaxed);
        let exact_hits = before.max(without_search).min(served);
        snapshot.megaflows += MegaflowStats {
            megaflows: megaflows as u64,
            masks: masks as u64,
            lookups: served,
            exact_hits,
            search_hits: served - exact_hits,
            mask_probes: lookups.masks,
        };
        Ok(())
    }

    /// The position in the programs' maps that a cursor refers to; `None` if it refers to a worker
    /// of the user datapath.
    fn in_tables(&self, from: DumpCursor) -> Option<FlowNo> {
        (from.worker >= self.workers).then_some(FlowNo(from.at.0))
    }

    /// After the last worker of the user datapath, a dump continues in the programs' maps.
    fn continue_in_maps<T>(&self, (portion, next): DumpPage<T>) -> DumpPage<T> {
        let tables = DumpCursor { worker: self.workers, at: Cursor::default() };
        (portion, Some(next.unwrap_or(tables)))
    }

    fn cursor(&self, next: Option<FlowNo>) -> Option<DumpCursor> {
        next.map(|next| DumpCursor { worker: self.workers, at: Cursor(next.0) })
    }

    /// Adds megaflows to the maps, except those of later passes, which programs do not execute.
    fn put_in_tables<'m>(
        &self,
        megaflows: impl IntoIterator<Item = (&'m Megaflow, Option<&'m FlowKey>)>,
    ) {
        let is_first = |megaflow: &Megaflow| megaflow.condition.mask().get(Field::RecircId) == 0;
        let first = megaflows.into_iter().filter(|(megaflow, _)| is_first(megaflow));
        if let Err(error) = self.bpf.put(first) {
            // Without an entry in the maps, programs punt the packets of these megaflows.
            messages::log!(
                MEGAFLOWS_NOT_ADDED,
                "cannot add megaflows to the BPF maps: {error}; \
                 the user datapath takes their packets"
            );
        }
    }
}

fn add_drops(sums: &mut Drops, counters: &DropCounters) {
    for (reason, count) in drops(counters) {
        *sums.entry(reason).or_default() += count;
    }
}

/// Converts the error of a map operation.
fn failed(error: MapError) -> DatapathError {
    DatapathError::FastPath(error.to_string())
}

/// Starts the maintenance thread. It ends when the datapath is dropped.
fn maintain(bpf: &Arc<BpfState>, set: Option<&Arc<PinSet>>) -> Result<(), SetupError> {
    let (bpf, set) = (Arc::downgrade(bpf), set.map(Arc::downgrade));
    let run = move || {
        for tick in 1.. {
            std::thread::sleep(TICK);
            let Some(bpf) = Weak::upgrade(&bpf) else { return };
            if let Err(error) = bpf.maintain(tick % SORT_TICKS == 0) {
                messages::log!(MAP_MAINTENANCE_FAILED, "BPF map maintenance failed: {error}");
            }
            if let Some(set) = set.as_ref().and_then(Weak::upgrade) {
                let (megaflows, _) = bpf.lock().megaflows.len();
                if let Err(error) = set.note(megaflows as u64) {
                    messages::log!(
                        PINNED_COUNT_NOT_UPDATED,
                        "cannot update the pinned number of megaflows: {error}"
                    );
                }
            }
        }
    };
    std::thread::Builder::new().name("programs".to_owned()).spawn(run)?;
    Ok(())
}

impl Datapath for KernelDatapath {
    fn add_port(&self, config: PortConfig) -> Result<(), DatapathError> {
        let port = config.port;
        let _changing = self.changing();
        if !(1..=MAX_PORT.0).contains(&port.0) {
            return Err(DatapathError::PortNumber(port));
        }
        if self.bpf.lock().ports.has(port) {
            return Err(DatapathError::PortTaken(port));
        }
        self.bpf.lock().ports.add(&config).map_err(failed)?;
        let added = self.user.add_port(config);
        if added.is_err() {
            self.bpf.lock().ports.remove(port).map_err(failed)?;
        }
        added
    }

    fn remove_port(&self, port: PortNo) -> Result<(), DatapathError> {
        let _changing = self.changing();
        self.user.remove_port(port)?;
        self.bpf.miss_pauses.forget(port);
        self.bpf.lock().ports.remove(port).map_err(failed)
    }

    fn set_underlay(&self, underlay: Underlay) -> Result<(), DatapathError> {
        let failed = |error: MapError| DatapathError::Underlay(error.to_string());
        let _changing = self.changing();
        self.bpf.remove_stale_endpoints(&underlay).map_err(failed)?;
        self.user.set_underlay(underlay.clone())?;
        self.bpf.add_endpoints(&underlay).map_err(failed)
    }

    fn set_punt_limit(&self, limit: u32) -> Result<(), DatapathError> {
        self.bpf.set_punt_limit(limit).map_err(failed)
    }

    fn set_upcall_cpu_percent(&self, percent: u32) {
        self.user.set_upcall_cpu_percent(percent);
    }

    fn charge_upcalls(&self, work: &[PortWork]) {
        self.user.charge_upcalls(work);
    }

    fn set_log_meters(&self, meters: &[NamedMeter]) {
        self.user.set_log_meters(meters);
    }

    fn set_probed_path_mtu(&self, endpoint: EndpointId, bytes: u16) -> Result<(), DatapathError> {
        self.user.set_probed_path_mtu(endpoint, bytes)
    }

    fn put(&self, megaflows: Vec<Megaflow>) -> Result<(), DatapathError> {
        self.put_in_tables(megaflows.iter().map(|megaflow| (megaflow, None)));
        let others = megaflows.into_iter().filter(|megaflow| megaflow.fusion.is_none());
        self.user.put(others.collect())
    }

    fn begin_epoch(&self) -> Result<(), DatapathError> {
        self.bpf.begin_epoch();
        self.user.begin_epoch()
    }

    fn confirm(&self, megaflows: Vec<MegaflowId>) -> Result<(), DatapathError> {
        if let Err(error) = self.bpf.confirm(&megaflows) {
            messages::log!(
                MEGAFLOWS_NOT_CONFIRMED,
                "cannot confirm megaflows in the BPF maps: {error}; \
                 the user datapath takes their packets"
            );
        }
        self.user.confirm(megaflows)
    }

    fn withdraw_unconfirmed(&self) -> Result<(), DatapathError> {
        let withdrawn = self.bpf.withdraw_unconfirmed();
        self.user.withdraw_unconfirmed()?;
        withdrawn.map_err(failed)
    }

    fn delete(
        &self,
        megaflows: Vec<MegaflowId>,
    ) -> Result<Vec<(MegaflowId, Usage)>, DatapathError> {
        let (mut counted, deleted) = self.bpf.delete(&megaflows, self.now_ms());
        counted.extend(self.user.delete(megaflows)?);
        deleted.map_err(failed).map(|()| counted)
    }

    fn get(&self, megaflows: Vec<MegaflowId>) -> Result<Vec<Megaflow>, DatapathError> {
        let mut others: BTreeSet<MegaflowId> = megaflows.iter().copied().collect();
        let mut found = self.user.get(megaflows)?;
        for megaflow in &found {
            others.remove(&megaflow.id);
        }
        found.extend(self.bpf.lock().megaflows.get(others));
        Ok(found)
    }

    fn damaged(&self, megaflows: &[MegaflowId]) -> Result<Vec<MegaflowId>, DatapathError> {
        self.bpf.lock().megaflows.damaged(megaflows).map_err(failed)
    }

    fn dump(
        &self,
        from: DumpCursor,
        most: usize,
    ) -> Result<DumpPage<(Megaflow, Usage)>, DatapathError> {
        let Some(at) = self.in_tables(from) else {
            return Ok(self.continue_in_maps(self.user.dump(from, most)?));
        };
        let now = self.now_ms();
        let portion = self.bpf.lock().megaflows.portion(at, most, now, |_, megaflow| megaflow());
        let (portion, next) = portion.map_err(failed)?;
        Ok((portion, self.cursor(next)))
    }

    fn usage(
        &self,
        from: DumpCursor,
        most: usize,
    ) -> Result<DumpPage<(MegaflowId, Usage)>, DatapathError> {
        let Some(at) = self.in_tables(from) else {
            return Ok(self.continue_in_maps(self.user.usage(from, most)?));
        };
        let now = self.now_ms();
        let portion = self.bpf.lock().megaflows.portion(at, most, now, |id, _| id);
        let (portion, next) = portion.map_err(failed)?;
        Ok((portion, self.cursor(next)))
    }

    fn upcalls(&self, most: usize, timeout: Duration, out: &mut Vec<Upcall>) -> bool {
        self.user.upcalls(most, timeout, out)
    }

    fn answer(&self, answers: Vec<Answer>) -> Result<(), DatapathError> {
        let made = answers
            .iter()
            .filter_map(|answer| Some((answer.megaflow.as_deref()?, Some(&answer.upcall.key))));
        self.put_in_tables(made);
        if self.workers > 1 {
            // Punted packets of one megaflow can reach any worker, so all workers get it.
            let made = answers.iter().filter_map(|answer| answer.megaflow.as_deref().cloned());
            self.user.put(made.collect())?;
        }
        self.user.answer(answers)
    }

    fn forget_solicitations(&self) -> Result<(), DatapathError> {
        self.user.forget_solicitations()
    }

    fn execute(
        &self,
        port: PortNo,
        packet: PacketBuf,
        actions: Arc<[Action]>,
    ) -> Result<(), DatapathError> {
        self.user.execute(port, packet, actions)
    }

    fn snapshot(&self) -> Result<Snapshot, DatapathError> {
        let mut snapshot = self.user.snapshot()?;
        self.add_counts(&mut snapshot).map_err(failed)?;
        Ok(snapshot)
    }

    fn watch_drops(&self) -> Result<WatchReceiver<DroppedPacket>, DatapathError> {
        let watching = self.user.watch_drops()?;
        let watched = self.bpf.lock().watch_drops(watching.token());
        watched.map_err(failed)?;
        Ok(watching)
    }

    fn watch_frames(
        &self,
        port: PortNo,
        snap_bytes: usize,
    ) -> Result<WatchReceiver<CapturedFrame>, DatapathError> {
        let watching = self.user.watch_frames(port, snap_bytes)?;
        let watched = self.bpf.lock().watch_frames(port, watching.token());
        watched.map_err(failed)?;
        Ok(watching)
    }

    fn tracker(&self) -> Option<&Tracker> {
        self.user.tracker()
    }

    fn fused(&self) -> Option<Arc<dyn FusedMegaflows>> {
        Some(Arc::<BpfState>::clone(&self.bpf))
    }

    fn now_ms(&self) -> u64 {
        self.user.now_ms()
    }

    fn stop(&self) {
        self.bpf.close();
        self.user.stop();
    }
}
