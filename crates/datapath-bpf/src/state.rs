//! [`BpfState`]: everything that the programs have, written by one thread at a time, and told by the user datapath what changes.

use crate::abi::weft_config;
use crate::endpoint_maps::EndpointMaps;
use crate::flow_tables::MapError;
use crate::megaflows::{Deleted, Megaflows};
use crate::object::LoadedObject;
use crate::pin::Pins;
use crate::ports::Ports;
use crate::struct_bytes::struct_bytes;
use crate::sys;
use datapath::config::{Config, Underlay};
use datapath::megaflow::{Megaflow, MegaflowId, Usage};
use datapath_user::fast_path::{FastPath, PathMtu, PortRedirect, Resolved};
use flow::{FlowKey, NextHop, PortNo};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use netdev::{Ifindex, Link};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A port's misses in one second, unless it has been quiet, and at once: more than userspace can answer.
const MISSES_PER_SECOND: u64 = 50_000;
const MISS_BURST: u64 = 20_000;
const ETHERNET_LEN: u32 = wire::ethernet::HEADER_LEN as u32;
/// For how long ways to end points are believed that another process has known. Where the kernel knows none by then, the user datapath
/// has it look for one.
const INHERITED_LIMIT: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(crate) struct BpfState(Mutex<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) megaflows: Megaflows,
    pub(crate) endpoint_maps: EndpointMaps,
    pub(crate) ports: Ports,
    config: ProgramConfig,
    config_put: OwnedFd,
    punt_device: MapHandle,
    /// Who watches drops, as long as they live.
    drops: Vec<Weak<()>>,
    /// Who watches ports.
    frames: HashMap<PortNo, Vec<Weak<()>>>,
    /// The programs do not have all of `config`.
    is_config_unwritten: bool,
    /// It has been asked to stop: nothing is attached any more.
    is_closed: bool,
    /// When the ways to end points are forgotten that another process has known.
    inherited_until: Option<Instant>,
}

/// `struct weft_config`.
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
}

impl BpfState {
    /// For freshly loaded programs, which do nothing yet; with `waits` until they [take over](BpfState::replace_previous_programs).
    pub(crate) fn new(
        loaded: &LoadedObject,
        config: &Config,
        pins: Option<Arc<Pins>>,
        waits: bool,
    ) -> Result<Self, MapError> {
        let program_config = ProgramConfig {
            uplink_port: config.uplink_port.0,
            entropy_base: config.entropy_base,
            entropy_mask: config.entropy_ports.max(1).next_power_of_two() - 1,
            ..ProgramConfig::default()
        };
        let inner = Inner {
            megaflows: Megaflows::new(loaded, config.uplink_port)?,
            endpoint_maps: EndpointMaps::new(loaded)?,
            ports: Ports::new(loaded, pins, waits)?,
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
        inner.ports.count_for(config.uplink_port)?;
        Ok(Self(Mutex::new(inner)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // Whatever panics here has at worst left a megaflow out.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts what fits, each with the key of a packet that it is for, if one is known. What cannot be put is not there afterwards, and
    /// its packets are handed over; the others are put all the same. The first error.
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
        if left.is_empty() || !self.make_room()? {
            return result;
        }
        let mut state = self.lock();
        for (megaflow, key) in left {
            match state.megaflows.put(megaflow, key) {
                Err(error) if !error.is_full() => result = result.and(Err(error)),
                _ => {}
            }
        }
        result
    }

    /// Waits until what was deleted makes room; false when that is nothing.
    fn make_room(&self) -> Result<bool, MapError> {
        let deleted = self.lock().megaflows.reclaim()?;
        if deleted.is_empty() {
            return Ok(false);
        }
        self.finish(deleted, 0).map(|_| true)
    }

    /// Takes megaflows out; when this returns, no program executes them any more. What they have counted, and the first error: what could
    /// not be taken out is there still.
    pub(crate) fn delete(
        &self,
        ids: &[MegaflowId],
        now_ms: u64,
    ) -> (Vec<(MegaflowId, Usage)>, Result<(), MapError>) {
        let (deleted, result) = self.lock().megaflows.delete(ids);
        if deleted.is_empty() {
            return (Vec::new(), result);
        }
        match self.finish(deleted, now_ms) {
            Ok(counted) => (counted, result),
            Err(error) => (Vec::new(), result.and(Err(error))),
        }
    }

    /// Gives back what was deleted, after a grace period for which nobody else has to wait.
    fn finish(&self, deleted: Deleted, now_ms: u64) -> Result<Vec<(MegaflowId, Usage)>, MapError> {
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

    /// Forgets what another underlay does not have; when this returns, no program uses it any more.
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

    /// Adds what an underlay has that programs do not know yet.
    pub(crate) fn add_endpoints(&self, underlay: &Underlay) -> Result<(), MapError> {
        let mut state = self.lock();
        state.endpoint_maps.add_all(underlay)?;
        state.configure(|config| config.has_links = !underlay.links.is_empty())
    }

    /// What is to be done now and then; `thoroughly` less often.
    pub(crate) fn maintain(&self, thoroughly: bool) -> Result<(), MapError> {
        // One that fails keeps the others from nothing.
        let mut result;
        let deleted = {
            let mut state = self.lock();
            result = state.tidy_watchers();
            state.megaflows.discard_doomed();
            if state.inherited_until.is_some_and(|until| until <= Instant::now()) {
                state.inherited_until = None;
                result = result.and(state.endpoint_maps.disinherit());
            }
            if !state.is_closed {
                state.ports.attach_missing();
            }
            if !thoroughly {
                return result;
            }
            match state.megaflows.maintain() {
                Ok(deleted) => deleted,
                Err(error) => return result.and(Err(error)),
            }
        };
        if !deleted.is_empty() {
            result = result.and(self.finish(deleted, 0).map(drop));
        }
        result
    }

    /// Has programs stand everywhere, in the place of those of another process.
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

impl Inner {
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
        // Some of it is told once only: what was not written goes with the next that is.
        let written = self.write_config();
        self.is_config_unwritten = written.is_err();
        written
    }

    /// Believes in ways to end points that another process has known, by the addresses of these as they are on the wire, as far as they leave
    /// by the same uplink, until the kernel tells.
    pub(crate) fn inherit_hops(&mut self, hops: &HashMap<[u32; 4], NextHop>) {
        let Some(source) = self.ports.uplink().map(|link| link.mac) else { return };
        let of_uplink = |remote: &[u32; 4]| hops.get(remote).filter(|hop| hop.source == source);
        say(
            "the way to end points",
            self.endpoint_maps.inherit(|remote| of_uplink(remote).copied()),
        );
        self.inherited_until = Some(Instant::now() + INHERITED_LIMIT);
    }

    /// The devices that are ports; and the uplink, if it has to receive all frames.
    pub(crate) fn kept_devices(&self) -> HashSet<Ifindex> {
        let uplink = self.ports.uplink().filter(|_| self.config.has_links);
        self.ports.by_device().into_keys().chain(uplink.map(|link| link.index)).collect()
    }

    /// What is dropped is handed over as long as somebody has what the weak reference refers to.
    pub(crate) fn watch_drops(&mut self, watcher: Weak<()>) -> Result<(), MapError> {
        self.drops.push(watcher);
        self.tidy_watchers()
    }

    /// The same for the frames of a port.
    pub(crate) fn watch_frames(&mut self, port: PortNo, watcher: Weak<()>) -> Result<(), MapError> {
        self.frames.entry(port).or_default().push(watcher);
        self.tidy_watchers()
    }

    fn tidy_watchers(&mut self) -> Result<(), MapError> {
        let is_there = |watcher: &Weak<()>| watcher.strong_count() > 0;
        self.drops.retain(is_there);
        let watch_drops = !self.drops.is_empty();
        let mut told = self.configure(|config| config.watch_drops = watch_drops);
        let ports: Vec<PortNo> = self.frames.keys().copied().collect();
        let is_watched = self.frames.values().flatten().any(is_there);
        let switch = |state: &mut Self| state.configure(|config| config.watch_frames = is_watched);
        // What can be told is, whatever else fails: the switch is on while a port is watched.
        if is_watched {
            told = told.and(switch(self));
        }
        for port in ports {
            let watchers = self.frames.entry(port).or_default();
            watchers.retain(is_there);
            let is_watched = !watchers.is_empty();
            let of_port = self.ports.watch(port, is_watched);
            if !is_watched && of_port.is_ok() {
                self.frames.remove(&port);
            }
            told = told.and(of_port);
        }
        if is_watched { told } else { told.and(switch(self)) }
    }
}

/// What goes wrong here leaves packets to the user datapath, and is said.
fn say(what: &str, result: Result<(), MapError>) {
    if let Err(error) = result {
        tracing::error!("the programs cannot be told {what}: {error}");
    }
}

impl FastPath for BpfState {
    fn punt_device(&self, device: Option<Ifindex>) {
        let (state, first) = (self.lock(), 0_u32.to_ne_bytes());
        let told = match device {
            Some(device) => {
                state.punt_device.update(&first, &device.0.to_ne_bytes(), MapFlags::ANY)
            }
            None => state.punt_device.delete(&first),
        };
        say("where packets are handed over", told.map_err(MapError::from));
    }

    fn uplink(&self, link: Option<&Link>) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        let usable = link.filter(|link| link.is_usable());
        let told = state.configure(|config| {
            config.uplink_ifindex = usable.map_or(0, |link| link.index.0);
            config.uplink_max_len = usable.map_or(0, |link| link.mtu + ETHERNET_LEN);
        });
        say("of the uplink", told);
        state.ports.set_uplink(link);
    }

    fn redirect_vxlan(&self, ports: Option<PortRedirect>) -> bool {
        let mut state = self.lock();
        let led = state.configure(|config| {
            config.vxlan_port = ports.map_or(0, |ports| ports.tunnel_port);
            config.socket_port = ports.map_or(0, |ports| ports.socket_port);
        });
        let is_led = led.is_ok();
        if !is_led && ports.is_some() {
            // Nobody opens a socket there any more.
            (state.config.vxlan_port, state.config.socket_port) = (0, 0);
        }
        say("where the sockets of VXLAN are", led);
        is_led
    }

    fn port(&self, port: PortNo, link: Option<&Link>) {
        let mut state = self.lock();
        if !state.is_closed {
            say("of a port", state.ports.observe(port, link));
        }
    }

    fn resolved(&self, news: &[Resolved]) {
        let mut state = self.lock();
        let told = news.iter().try_for_each(|&(id, hop)| state.endpoint_maps.resolve(id, hop));
        say("the way to end points", told);
    }

    fn path_mtus(&self, news: &[PathMtu]) {
        let mut state = self.lock();
        let told = news.iter().try_for_each(|&(id, mtu)| state.endpoint_maps.set_path_mtu(id, mtu));
        say("what paths carry", told);
    }
}

/// Programs are detached by whoever had them attached.
impl Drop for BpfState {
    fn drop(&mut self) {
        self.close();
    }
}
