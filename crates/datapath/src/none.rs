//! [`NoDatapath`]: a datapath that forwards nothing.

use crate::config::{PortConfig, Underlay};
use crate::megaflow::{Megaflow, MegaflowId, Usage};
use crate::provider::{Datapath, DatapathError, DumpCursor, DumpPage};
use crate::stats::{PortStats, Snapshot};
use crate::upcall::{Answer, Upcall};
use crate::watch::{CapturedFrame, DroppedPacket, WatchReceiver, channel};
use flow::{Action, PortNo};
use packet::PacketBuf;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A datapath without devices, sockets, programs and packets, for a host that only follows its
/// control plane. It records the ports, and drops all packets that it is told to send.
#[derive(Debug)]
pub struct NoDatapath {
    host: String,
    uplink: String,
    started: Instant,
    state: Mutex<State>,
    stopped: Condvar,
}

#[derive(Debug)]
struct State {
    ports: BTreeMap<PortNo, PortConfig>,
    is_stopped: bool,
}

impl NoDatapath {
    /// A datapath of the host named `host`, with these ports.
    pub fn new(host: String, uplink: String, ports: Vec<PortConfig>) -> Self {
        let ports = ports.into_iter().map(|port| (port.port, port)).collect();
        let state = Mutex::new(State { ports, is_stopped: false });
        Self { host, uplink, started: Instant::now(), state, stopped: Condvar::new() }
    }

    /// True once it was stopped.
    pub fn has_ended(&self) -> bool {
        self.lock().is_stopped
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> Result<MutexGuard<'_, State>, DatapathError> {
        let state = self.lock();
        if state.is_stopped { Err(DatapathError::Stopped) } else { Ok(state) }
    }
}

impl Datapath for NoDatapath {
    fn add_port(&self, config: PortConfig) -> Result<(), DatapathError> {
        let mut state = self.running()?;
        if state.ports.contains_key(&config.port) {
            return Err(DatapathError::PortTaken(config.port));
        }
        state.ports.insert(config.port, config);
        Ok(())
    }

    fn remove_port(&self, port: PortNo) -> Result<(), DatapathError> {
        self.running()?.ports.remove(&port);
        Ok(())
    }

    fn set_underlay(&self, _: Underlay) -> Result<(), DatapathError> {
        self.running().map(drop)
    }

    fn put(&self, _: Vec<Megaflow>) -> Result<(), DatapathError> {
        self.running().map(drop)
    }

    fn begin_epoch(&self) -> Result<(), DatapathError> {
        self.running().map(drop)
    }

    fn confirm(&self, _: Vec<MegaflowId>) -> Result<(), DatapathError> {
        self.running().map(drop)
    }

    fn withdraw_unconfirmed(&self) -> Result<(), DatapathError> {
        self.running().map(drop)
    }

    fn delete(&self, _: Vec<MegaflowId>) -> Result<Vec<(MegaflowId, Usage)>, DatapathError> {
        self.running().map(|_| Vec::new())
    }

    fn get(&self, _: Vec<MegaflowId>) -> Result<Vec<Megaflow>, DatapathError> {
        self.running().map(|_| Vec::new())
    }

    fn dump(&self, _: DumpCursor, _: usize) -> Result<DumpPage<(Megaflow, Usage)>, DatapathError> {
        self.running().map(|_| (Vec::new(), None))
    }

    fn usage(
        &self,
        _: DumpCursor,
        _: usize,
    ) -> Result<DumpPage<(MegaflowId, Usage)>, DatapathError> {
        self.running().map(|_| (Vec::new(), None))
    }

    fn upcalls(&self, _: usize, timeout: Duration, _: &mut Vec<Upcall>) -> bool {
        let waited = self.stopped.wait_timeout_while(self.lock(), timeout, |it| !it.is_stopped);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.is_stopped
    }

    fn answer(&self, _: Vec<Answer>) -> Result<(), DatapathError> {
        self.running().map(drop)
    }

    fn execute(&self, _: PortNo, _: PacketBuf, _: Arc<[Action]>) -> Result<(), DatapathError> {
        self.running().map(drop)
    }

    fn snapshot(&self) -> Result<Snapshot, DatapathError> {
        let state = self.running()?;
        let ports = state.ports.values().map(|config| PortStats {
            port: config.port.0,
            name: config.name.clone(),
            logical_switch: config.logical_switch.clone(),
            device: config.device.to_string(),
            state: "not opened".to_owned(),
            ..PortStats::default()
        });
        let mut snapshot = Snapshot {
            host: self.host.clone(),
            datapath: "none".to_owned(),
            pid: std::process::id(),
            uptime_ms: self.now_ms(),
            ports: ports.collect(),
            ..Snapshot::default()
        };
        snapshot.uplink.device.clone_from(&self.uplink);
        "not opened".clone_into(&mut snapshot.uplink.state);
        Ok(snapshot)
    }

    fn watch_drops(&self) -> Result<WatchReceiver<DroppedPacket>, DatapathError> {
        self.running().map(|_| channel().1)
    }

    fn watch_frames(
        &self,
        _: PortNo,
        _: usize,
    ) -> Result<WatchReceiver<CapturedFrame>, DatapathError> {
        self.running().map(|_| channel().1)
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn stop(&self) {
        self.lock().is_stopped = true;
        self.stopped.notify_all();
    }
}
