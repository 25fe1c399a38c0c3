//! [`BpfState`]: all maps of the programs. It has one writer at a time, and the user datapath
//! reports changes of devices and next hops to it.

use crate::abi::weft_config;
use crate::endpoint_maps::EndpointMaps;
use crate::map_error::MapError;
use crate::megaflows::{DeletedMegaflows, Megaflows};
use crate::miss_pauses::MissPauses;
use crate::object::LoadedObject;
use crate::pin::Pins;
use crate::ports::Ports;
use crate::struct_bytes::struct_bytes;
use crate::sys::{self, SharedWord};
use datapath::config::{Config, Underlay};
use datapath::megaflow::{Megaflow, MegaflowId, Usage};
use datapath::provider::FusedMegaflows;
use datapath::stats::MapUse;
use datapath_user::fast_path::{
    FastPath, PUNT_QUEUE_LEN, PathMtu, PortRedirect, ResolvedNextHop, RouteChange,
};
use datapath_user::{SHORT_SEGMENTS_BURST, SHORT_SEGMENTS_PER_SECOND};
use flow::{FlowKey, NextHop, PortNo};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use netdev::{Ifindex, Link};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Rate and burst of one port's misses: more than userspace can translate.
const MISSES_PER_SECOND: u64 = 50_000;
const MISS_BURST: u64 = 20_000;
/// Megaflows that are deleted while the lock is held.
const DELETIONS: usize = 1024;
const ETHERNET_LEN: u32 = wire::ethernet::HEADER_LEN as u32;
/// How long next hops that a previous daemon knew are used. The user datapath resolves those that
/// the kernel has not confirmed by then.
const INHERITED_LIMIT: Duration = Duration::from_secs(10);

/// The maps of the programs, behind a lock.
#[derive(Debug)]
pub(crate) struct BpfState {
    inner: Mutex<LockedMaps>,
    /// Held while unused masks wait for their grace period, so that a thread that needs masks waits
    /// until those are free. Locked before `inner`. Deletions do not hold it: they take long, and
    /// upcalls would wait.
    reclaiming: Mutex<()>,
    /// The time up to which punted packets have been read. The programs read it.
    punt_clock: SharedWord,
    /// Ports whose misses the programs refuse. They are not behind the lock, because workers wait
    /// for no other thread.
    pub(crate) miss_pauses: MissPauses,
}

#[derive(Debug)]
pub(crate) struct LockedMaps {
    pub(crate) megaflows: Megaflows,
    pub(crate) endpoint_maps: EndpointMaps,
    pub(crate) ports: Ports,
    config: ProgramConfig,
    config_put: OwnedFd,
    punt_device: MapHandle,
    /// Captures of drops; each ends when its owner drops the token.
    drops: Vec<Weak<()>>,
    /// Captures of frames, by port.
    frames: HashMap<PortNo, Vec<Weak<()>>>,
    /// The last write of `config` failed, so the programs have an older one.
    is_config_unwritten: bool,
    /// The datapath is stopping: no program is attached any more.
    is_closed: bool,
    /// When next hops of a previous daemon are discarded.
    inherited_until: Option<Instant>,
}

/// The settings in `struct weft_config` that change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct ProgramConfig {
    uplink_ifindex: u32,
    uplink_max_len: u32,
    uplink_port: u32,
    watch_drops: bool,
    watch_frames: bool,
    has_links: bool,
    entropy_base: u16,
    entropy_mask: u16,
    vxlan_port: u16,
    socket_port: u16,
    least_generation: u64,
    punt_limit: u32,
}

impl BpfState {
    /// Manages programs that have just been loaded. With `wait_for_adoption`, they are attached
    /// only when [`BpfState::replace_previous_programs`] is called.
    pub(crate) fn new(
        loaded: &LoadedObject,
        config: &Config,
        pins: Option<Arc<Pins>>,
        wait_for_adoption: bool,
    ) -> Result<Self, MapError> {
        let program_config = ProgramConfig {
            uplink_port: config.uplink_port.0,
            entropy_base: config.entropy_base,
            entropy_mask: config.entropy_ports.max(1).next_power_of_two() - 1,
            punt_limit: config.punt_limit,
            ..ProgramConfig::default()
        };
        let inner = LockedMaps {
            megaflows: Megaflows::new(loaded, config.uplink_port)?,
            endpoint_maps: EndpointMaps::new(loaded)?,
            ports: Ports::new(loaded, pins, wait_for_adoption)?,
            config: program_config,
            config_put: loaded.own_program("config_put")?,
            punt_device: loaded.map("weft_punt_device")?,
            drops: Vec::new(),
            frames: HashMap::new(),
            is_config_unwritten: false,
            is_closed: false,
            inherited_until: None,
        };
        inner.write_config()?;
        inner.ports.add_uplink_counters(config.uplink_port)?;
        let punt_clock = loaded.map("weft_punt_clock")?;
        let punt_clock = SharedWord::of(&punt_clock).map_err(libbpf_rs::Error::from)?;
        punt_clock.store(u64::MAX);
        let miss_pauses = MissPauses::new(loaded)?;
        Ok(Self { inner: Mutex::new(inner), reclaiming: Mutex::new(()), punt_clock, miss_pauses })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LockedMaps> {
        // If a thread panicked while it held the lock, at worst a megaflow is missing from the
        // maps.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reclaiming(&self) -> MutexGuard<'_, ()> {
        self.reclaiming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds megaflows, each with the key of one of its packets if known. A megaflow that does not
    /// fit is left out, and its packets are punted; the others are added anyway. Returns the first
    /// error.
    pub(crate) fn put<'m>(
        &self,
        megaflows: impl IntoIterator<Item = (&'m Megaflow, Option<&'m FlowKey>)>,
    ) -> Result<(), MapError> {
        let mut result = Ok(());
        let mut left = Vec::new();
        {
            let mut state = self.lock();
            for (megaflow, key) in megaflows {
                match state.megaflows.put(megaflow, key) {
                    Ok(()) => {}
                    Err(error) if error.is_full() => left.push((megaflow, key)),
                    Err(error) => result = result.and(Err(error)),
                }
            }
        }
        if left.is_empty() {
            return result;
        }
        self.make_room()?;
        let mut state = self.lock();
        for (megaflow, key) in left {
            match state.megaflows.put(megaflow, key) {
                Err(error) if !error.is_full() => result = result.and(Err(error)),
                _ => {}
            }
        }
        result
    }

    /// Waits until deleted entries and unused masks are free again, including those that another
    /// thread is about to free.
    fn make_room(&self) -> Result<(), MapError> {
        let _reclaiming = self.reclaiming();
        let deleted = self.lock().megaflows.reclaim()?;
        if deleted.is_empty() {
            return Ok(());
        }
        self.finish(deleted, 0).map(drop)
    }

    /// Deletes megaflows. When this returns, no program uses them any more. Returns their counters
    /// and the first error; a megaflow that could not be deleted stays.
    pub(crate) fn delete(
        &self,
        ids: &[MegaflowId],
        now_ms: u64,
    ) -> (Vec<(MegaflowId, Usage)>, Result<(), MapError>) {
        let (mut deleted, mut result) = (DeletedMegaflows::default(), Ok(()));
        // In portions, so that upcall handlers get the lock in between.
        for some in ids.chunks(DELETIONS) {
            let (more, failed) = self.lock().megaflows.delete(some);
            deleted.append(more);
            result = result.and(failed);
        }
        if deleted.is_empty() {
            return (Vec::new(), result);
        }
        match self.finish(deleted, now_ms) {
            Ok(counted) => (counted, result),
            Err(error) => (Vec::new(), result.and(Err(error))),
        }
    }

    /// Begins an epoch of megaflows ([`Datapath::begin_epoch`](datapath::Datapath::begin_epoch)).
    pub(crate) fn begin_epoch(&self) {
        self.lock().megaflows.begin_epoch();
    }

    /// Moves megaflows to the current epoch.
    pub(crate) fn confirm(&self, ids: &[MegaflowId]) -> Result<(), MapError> {
        self.lock().megaflows.confirm(ids)
    }

    /// Invalidates the megaflows of earlier epochs with one write.
    pub(crate) fn withdraw_unconfirmed(&self) -> Result<(), MapError> {
        let mut state = self.lock();
        let least = state.megaflows.withdraw_unconfirmed();
        state.configure(|config| config.least_generation = least.0)
    }

    /// Waits for a grace period without the lock, then frees deleted entries and returns their
    /// counters.
    fn finish(
        &self,
        deleted: DeletedMegaflows,
        now_ms: u64,
    ) -> Result<Vec<(MegaflowId, Usage)>, MapError> {
        let grace = self.lock().megaflows.grace();
        let waited = grace.wait();
        let mut state = self.lock();
        match waited {
            Ok(()) => state.megaflows.finish(deleted, now_ms),
            Err(error) => {
                state.megaflows.requeue(deleted);
                Err(error)
            }
        }
    }

    /// Removes end points and links that a new underlay does not have. When this returns, no
    /// program uses them any more.
    pub(crate) fn remove_stale_endpoints(&self, underlay: &Underlay) -> Result<(), MapError> {
        let (classes, grace) = {
            let mut state = self.lock();
            state.endpoint_maps.forget(underlay)?;
            (state.endpoint_maps.retire(), state.megaflows.grace())
        };
        grace.wait()?;
        self.lock().endpoint_maps.free(classes);
        Ok(())
    }

    /// Adds the end points and links of a new underlay. Then the programs know all senders.
    pub(crate) fn add_endpoints(&self, underlay: &Underlay) -> Result<(), MapError> {
        let grace = {
            let mut state = self.lock();
            state.endpoint_maps.add_all(underlay)?;
            state.configure(|config| config.has_links = !underlay.links.is_empty())?;
            state.megaflows.grace()
        };
        grace.wait()?;
        self.lock().endpoint_maps.complete(underlay)
    }

    /// Limits the packets of each port that wait for the user datapath, in the units of
    /// `bpf/punt_queue.h`.
    pub(crate) fn set_punt_limit(&self, limit: u32) -> Result<(), MapError> {
        self.lock().configure(|config| config.punt_limit = limit)
    }

    /// Runs the periodic maintenance; with `is_full_pass` also its expensive part, sorting masks
    /// and freeing entries.
    pub(crate) fn maintain(&self, is_full_pass: bool) -> Result<(), MapError> {
        // A step that fails does not prevent the others.
        let mut result;
        {
            let mut state = self.lock();
            result = state.remove_closed_watchers();
            state.megaflows.retry_deletions();
            if state.inherited_until.is_some_and(|until| until <= Instant::now()) {
                state.inherited_until = None;
                result = result.and(state.endpoint_maps.discard_inherited());
            }
            if !state.is_closed {
                state.ports.attach_missing();
            }
        }
        result = result.and(self.miss_pauses.end_counts(Instant::now()));
        if !is_full_pass {
            return result;
        }
        let _reclaiming = self.reclaiming();
        let deleted = self.lock().megaflows.maintain();
        result.and(match deleted {
            Ok(deleted) if deleted.is_empty() => Ok(()),
            Ok(deleted) => self.finish(deleted, 0).map(drop),
            Err(error) => Err(error),
        })
    }

    /// Attaches all programs, and replaces those of a previous daemon.
    pub(crate) fn replace_previous_programs(&self) -> io::Result<()> {
        let mut state = self.lock();
        if state.is_closed { Ok(()) } else { state.ports.replace_previous_programs() }
    }

    /// Detaches the programs.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.ports.close();
    }
}

impl FusedMegaflows for BpfState {
    fn put(&self, megaflow: &Megaflow) -> bool {
        if let Err(error) = self.put([(megaflow, None)]) {
            messages::log!(
                FUSED_MEGAFLOW_NOT_ADDED,
                "cannot add a fused megaflow to the BPF maps: {error}"
            );
        }
        self.lock().megaflows.contains(megaflow.id)
    }

    fn suspend(&self, megaflows: &[MegaflowId]) {
        self.lock().megaflows.suspend(megaflows);
    }
}

impl LockedMaps {
    /// How full the maps are; `drop_keys` is the number of entries of the map of drops.
    pub(crate) fn map_use(&self, drop_keys: usize) -> Vec<MapUse> {
        let (ports, endpoints) = (self.ports.map_use(drop_keys), self.endpoint_maps.map_use());
        self.megaflows.map_use().into_iter().chain(ports).chain(endpoints).collect()
    }

    fn write_config(&self) -> Result<(), MapError> {
        let ProgramConfig { uplink_ifindex, uplink_max_len, uplink_port, .. } = self.config;
        let mut bytes = struct_bytes!(weft_config {
            uplink_ifindex: uplink_ifindex,
            uplink_port: uplink_port,
            watch_drops: u32::from(self.config.watch_drops),
            watch_frames: u32::from(self.config.watch_frames),
            miss_ns: 1_000_000_000 / MISSES_PER_SECOND,
            miss_burst: MISS_BURST,
            entropy_base: self.config.entropy_base,
            entropy_mask: self.config.entropy_mask,
            uplink_max_len: uplink_max_len,
            vxlan_port: self.config.vxlan_port,
            socket_port: self.config.socket_port,
            has_links: u32::from(self.config.has_links),
            least_generation: self.config.least_generation,
            punt_limit: self.config.punt_limit,
            punt_queue_len: PUNT_QUEUE_LEN,
            segment_ns: 1_000_000_000 / SHORT_SEGMENTS_PER_SECOND,
            segment_burst: SHORT_SEGMENTS_BURST,
        });
        match sys::run(self.config_put.as_fd(), &mut bytes).map_err(libbpf_rs::Error::from)? {
            0 => Ok(()),
            other => Err(MapError::Refused(other)),
        }
    }

    fn configure(&mut self, change: impl FnOnce(&mut ProgramConfig)) -> Result<(), MapError> {
        let had = self.config;
        change(&mut self.config);
        if self.config == had && !self.is_config_unwritten {
            return Ok(());
        }
        // Some settings are reported only once, so a failed write is repeated with the next one.
        let written = self.write_config();
        self.is_config_unwritten = written.is_err();
        written
    }

    /// Uses the next hops that a previous daemon knew, by remote address in network order, until
    /// the kernel confirms or replaces them. Only hops by the same uplink are used.
    pub(crate) fn inherit_next_hops(&mut self, hops: &HashMap<[u32; 4], NextHop>) {
        let Some(source) = self.ports.uplink().map(|link| link.mac) else { return };
        let of_uplink = |remote: &[u32; 4]| hops.get(remote).filter(|hop| hop.source == source);
        log_error("next hops", self.endpoint_maps.inherit(|remote| of_uplink(remote).copied()));
        self.inherited_until = Some(Instant::now() + INHERITED_LIMIT);
    }

    /// The devices of ports, and the uplink if it has to stay promiscuous for tagged frames.
    pub(crate) fn kept_devices(&self) -> HashSet<Ifindex> {
        let uplink = self.ports.uplink().filter(|_| self.config.has_links);
        self.ports.by_device().into_keys().chain(uplink.map(|link| link.index)).collect()
    }

    /// Makes programs punt packets instead of dropping them as long as `watcher` is alive.
    pub(crate) fn watch_drops(&mut self, watcher: Weak<()>) -> Result<(), MapError> {
        self.drops.push(watcher);
        self.remove_closed_watchers()
    }

    /// Makes programs punt a port's frames as long as `watcher` is alive.
    pub(crate) fn watch_frames(&mut self, port: PortNo, watcher: Weak<()>) -> Result<(), MapError> {
        self.frames.entry(port).or_default().push(watcher);
        self.remove_closed_watchers()
    }

    fn remove_closed_watchers(&mut self) -> Result<(), MapError> {
        let is_there = |watcher: &Weak<()>| watcher.strong_count() > 0;
        self.drops.retain(is_there);
        let watch_drops = !self.drops.is_empty();
        let mut result = self.configure(|config| config.watch_drops = watch_drops);
        let ports: Vec<PortNo> = self.frames.keys().copied().collect();
        let is_watched = self.frames.values().flatten().any(is_there);
        let switch = |state: &mut Self| state.configure(|config| config.watch_frames = is_watched);
        // `watch_frames` has to be set before the first port is watched and cleared after the last.
        if is_watched {
            result = result.and(switch(self));
        }
        for port in ports {
            let watchers = self.frames.entry(port).or_default();
            watchers.retain(is_there);
            let is_watched = !watchers.is_empty();
            let of_port = self.ports.watch(port, is_watched);
            if !is_watched && of_port.is_ok() {
                self.frames.remove(&port);
            }
            result = result.and(of_port);
        }
        if is_watched { result } else { result.and(switch(self)) }
    }
}

/// Logs an error. Its consequence is that the user datapath handles more packets.
fn log_error(what: &str, result: Result<(), MapError>) {
    if let Err(error) = result {
        messages::log!(
            MAP_NOT_UPDATED,
            "cannot update {what} of the BPF programs: {error}; \
             the user datapath takes the packets that need it"
        );
    }
}

impl FastPath for BpfState {
    fn punt_device(&self, device: Option<Ifindex>) {
        let (state, first) = (self.lock(), 0_u32.to_ne_bytes());
        let result = match device {
            Some(device) => {
                state.punt_device.update(&first, &device.0.to_ne_bytes(), MapFlags::ANY)
            }
            None => state.punt_device.delete(&first),
        };
        log_error("the punt device", result.map_err(MapError::from));
    }

    fn uplink(&self, link: Option<&Link>) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        let usable = link.filter(|link| link.is_usable());
        let result = state.configure(|config| {
            config.uplink_ifindex = usable.map_or(0, |link| link.index.0);
            config.uplink_max_len = usable.map_or(0, |link| link.mtu + ETHERNET_LEN);
        });
        log_error("the uplink", result);
        state.ports.set_uplink(link);
    }

    fn punted_read_until(&self, time_ns: u64) {
        self.punt_clock.store(time_ns);
    }

    fn pause_misses(&self, port: PortNo, pause: Duration) {
        let paused = self.miss_pauses.pause(port, pause, Instant::now());
        log_error("the miss limit of a port", paused);
    }

    fn redirect_vxlan(&self, ports: Option<PortRedirect>) -> bool {
        let mut state = self.lock();
        let result = state.configure(|config| {
            config.vxlan_port = ports.map_or(0, |ports| ports.tunnel_port);
            config.socket_port = ports.map_or(0, |ports| ports.socket_port);
        });
        let is_redirected = result.is_ok();
        if !is_redirected && ports.is_some() {
            // Without this setting, the user datapath does not open a socket at the other port.
            (state.config.vxlan_port, state.config.socket_port) = (0, 0);
        }
        log_error("the port redirect of VXLAN", result);
        is_redirected
    }

    fn port(&self, port: PortNo, link: Option<&Link>) {
        let mut state = self.lock();
        if !state.is_closed {
            log_error("a port", state.ports.observe(port, link));
        }
    }

    fn resolved(&self, changes: &[ResolvedNextHop]) {
        let mut state = self.lock();
        let result = changes.iter().try_for_each(|&(id, hop)| state.endpoint_maps.resolve(id, hop));
        log_error("next hops", result);
    }

    fn routed(&self, changes: &[RouteChange]) {
        let (mut result, grace) = {
            let mut state = self.lock();
            (state.endpoint_maps.set_routed(changes), state.megaflows.grace())
        };
        if changes.iter().any(|(_, is_routed)| *is_routed) {
            let waited = grace.wait();
            result =
                result.and(waited).and_then(|()| self.lock().endpoint_maps.add_accepted(changes));
        }
        log_error("senders", result);
    }

    fn path_mtus(&self, changes: &[PathMtu]) {
        let mut state = self.lock();
        let result =
            changes.iter().try_for_each(|&(id, mtu)| state.endpoint_maps.set_path_mtu(id, mtu));
        log_error("path MTUs", result);
    }
}

/// Detaches the programs.
impl Drop for BpfState {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
