//! A datapath in memory: the caches of the user datapath and the reference executor, without
//! threads. A datapath with 0 workers accepts every call and does nothing.

use datapath::config::{PortConfig, Underlay};
use datapath::cpu_meter::PortWork;
use datapath::megaflow::{Megaflow, MegaflowId, Usage};
use datapath::stats::Snapshot;
use datapath::upcall::{Answer, Upcall, UpcallReason, WorkerId};
use datapath::watch::{CapturedFrame, DroppedPacket, WatchReceiver};
use datapath::{Cursor, Datapath, DatapathError, DumpCursor, DumpPage};
use datapath_user::cache::{Cache, CacheLimits};
use flow::{Action, ActionOutput, DropReason, Encapsulated, EndpointTable, PortNo, execute};
use packet::PacketBuf;
use std::collections::VecDeque;
use std::mem::take;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type Hook = Box<dyn FnOnce() + Send>;

pub struct Fake {
    pub caches: Vec<Mutex<Cache>>,
    pub queue: Mutex<VecDeque<Upcall>>,
    /// The output ports of packets, in order.
    pub sent: Mutex<Vec<PortNo>>,
    pub now_ms: AtomicU64,
    /// The packets that ports were charged for.
    pub charged: AtomicU64,
    /// Runs once, at the next call of `now_ms`.
    pub at_clock: Mutex<Option<Hook>>,
    /// How long a dump takes.
    pub dump_time: Mutex<Duration>,
    pub stopped: AtomicBool,
}

struct Sent<'a>(&'a mut Vec<PortNo>);

impl ActionOutput for Sent<'_> {
    fn port(&mut self, port: PortNo, _: &mut PacketBuf) -> Result<(), DropReason> {
        self.0.push(port);
        Ok(())
    }

    fn underlay(&mut self, _: &Encapsulated, _: &mut PacketBuf) -> Result<(), DropReason> {
        Err(DropReason::PortDown)
    }

    fn dropped(&mut self, _: DropReason, _: &PacketBuf) {}
}

impl Fake {
    pub fn new(workers: usize) -> Arc<Self> {
        let caches = (0..workers).map(|_| Mutex::new(Cache::new(CacheLimits::default())));
        Arc::new(Self {
            caches: caches.collect(),
            queue: Mutex::default(),
            sent: Mutex::default(),
            now_ms: AtomicU64::new(1000),
            charged: AtomicU64::new(0),
            at_clock: Mutex::default(),
            dump_time: Mutex::default(),
            stopped: AtomicBool::new(false),
        })
    }

    /// Receives a packet at a worker. Returns its output ports, or `None` for an upcall.
    pub fn receive(&self, worker: u16, port: u32, frame: &[u8]) -> Option<Vec<u32>> {
        let packet = PacketBuf::from_bytes(frame);
        let key = flow::extract(&packet, PortNo(port), None).expect("a frame");
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        let actions = {
            let mut cache = self.caches[usize::from(worker)].lock().unwrap();
            cache.look_up(&key, packet.len(), now_ms).map(|hit| Arc::clone(hit.actions))
        };
        match actions {
            Some(actions) => {
                self.execute(PortNo(port), packet, actions).unwrap();
                Some(self.take_sent())
            }
            None => {
                let (port, worker) = (PortNo(port), WorkerId(worker));
                let reason = UpcallReason::Miss;
                let (raised, recirculated) = (Instant::now(), None);
                let upcall = Upcall { packet, key, port, reason, worker, raised, recirculated };
                self.queue.lock().unwrap().push_back(upcall);
                None
            }
        }
    }

    pub fn take_sent(&self) -> Vec<u32> {
        take(&mut *self.sent.lock().unwrap()).iter().map(|port| port.0).collect()
    }

    pub fn take_upcalls(&self) -> Vec<Upcall> {
        self.queue.lock().unwrap().drain(..).collect()
    }

    /// All megaflows of all workers.
    pub fn megaflows(&self) -> Vec<(Megaflow, Usage)> {
        let mut all = Vec::new();
        for cache in &self.caches {
            cache.lock().unwrap().dump(Cursor::default(), usize::MAX, &mut all);
        }
        all
    }

    /// The megaflows of all workers that serve packets.
    pub fn megaflows_in_force(&self) -> Vec<Megaflow> {
        let mut found = Vec::new();
        for cache in &self.caches {
            let (cache, mut all) = (cache.lock().unwrap(), Vec::new());
            cache.dump(Cursor::default(), usize::MAX, &mut all);
            let all = all.into_iter().map(|(megaflow, _)| megaflow);
            found.extend(all.filter(|megaflow| cache.is_in_force(megaflow.id)));
        }
        found
    }

    fn portion<T>(
        &self,
        from: DumpCursor,
        walk: impl FnOnce(&Cache, Cursor, &mut Vec<T>) -> Option<Cursor>,
    ) -> DumpPage<T> {
        let mut out = Vec::new();
        let Some(cache) = self.caches.get(from.worker) else { return (out, None) };
        let next = walk(&cache.lock().unwrap(), from.at, &mut out);
        let next_worker = DumpCursor { worker: from.worker + 1, at: Cursor::default() };
        let next = match next {
            Some(at) => Some(DumpCursor { at, ..from }),
            None => Some(next_worker).filter(|next| next.worker < self.caches.len()),
        };
        (out, next)
    }
}

impl Datapath for Fake {
    fn add_port(&self, _: PortConfig) -> Result<(), DatapathError> {
        Ok(())
    }

    fn remove_port(&self, _: PortNo) -> Result<(), DatapathError> {
        Ok(())
    }

    fn set_underlay(&self, _: Underlay) -> Result<(), DatapathError> {
        Ok(())
    }

    fn put(&self, megaflows: Vec<Megaflow>) -> Result<(), DatapathError> {
        for cache in &self.caches {
            let mut cache = cache.lock().unwrap();
            for megaflow in &megaflows {
                // A full cache rejects the megaflow.
                let _ = cache.put(megaflow);
            }
        }
        Ok(())
    }

    fn begin_epoch(&self) -> Result<(), DatapathError> {
        self.caches.iter().for_each(|cache| cache.lock().unwrap().begin_epoch());
        Ok(())
    }

    fn confirm(&self, megaflows: Vec<MegaflowId>) -> Result<(), DatapathError> {
        for cache in &self.caches {
            let mut cache = cache.lock().unwrap();
            megaflows.iter().for_each(|&id| cache.confirm(id));
        }
        Ok(())
    }

    fn withdraw_unconfirmed(&self) -> Result<(), DatapathError> {
        self.caches.iter().for_each(|cache| cache.lock().unwrap().withdraw_unconfirmed());
        Ok(())
    }

    fn delete(
        &self,
        megaflows: Vec<MegaflowId>,
    ) -> Result<Vec<(MegaflowId, Usage)>, DatapathError> {
        let mut counted = Vec::new();
        for cache in &self.caches {
            let mut cache = cache.lock().unwrap();
            counted.extend(megaflows.iter().filter_map(|&id| Some((id, cache.delete(id)?))));
        }
        Ok(counted)
    }

    fn get(&self, megaflows: Vec<MegaflowId>) -> Result<Vec<Megaflow>, DatapathError> {
        let get = |id: MegaflowId| {
            let mut caches = self.caches.iter();
            caches.find_map(|cache| Some(cache.lock().unwrap().get(id)?.0))
        };
        Ok(megaflows.into_iter().filter_map(get).collect())
    }

    fn dump(
        &self,
        from: DumpCursor,
        most: usize,
    ) -> Result<DumpPage<(Megaflow, Usage)>, DatapathError> {
        std::thread::sleep(*self.dump_time.lock().unwrap());
        Ok(self.portion(from, |cache, at, out| cache.dump(at, most, out)))
    }

    fn usage(
        &self,
        from: DumpCursor,
        most: usize,
    ) -> Result<DumpPage<(MegaflowId, Usage)>, DatapathError> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(DatapathError::Stopped);
        }
        Ok(self.portion(from, |cache, at, out| cache.usage(at, most, out)))
    }

    fn upcalls(&self, most: usize, _: Duration, out: &mut Vec<Upcall>) -> bool {
        let mut queue = self.queue.lock().unwrap();
        let count = most.min(queue.len());
        out.extend(queue.drain(..count));
        drop(queue);
        if out.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        !self.stopped.load(Ordering::Relaxed)
    }

    fn charge_upcalls(&self, work: &[PortWork]) {
        let packets: u32 = work.iter().map(|work| work.packets).sum();
        self.charged.fetch_add(packets.into(), Ordering::Relaxed);
    }

    fn answer(&self, answers: Vec<Answer>) -> Result<(), DatapathError> {
        for answer in answers {
            let Some(cache) = self.caches.get(usize::from(answer.upcall.worker.0)) else {
                continue;
            };
            if let Some(megaflow) = &answer.megaflow {
                let _ = cache.lock().unwrap().put(megaflow);
            }
            self.execute(answer.upcall.port, answer.upcall.packet, answer.actions)?;
        }
        Ok(())
    }

    fn execute(
        &self,
        _: PortNo,
        mut packet: PacketBuf,
        actions: Arc<[Action]>,
    ) -> Result<(), DatapathError> {
        let mut sent = self.sent.lock().unwrap();
        execute(&actions, &mut packet, &mut EndpointTable::new(49_152, 1), &mut Sent(&mut sent));
        Ok(())
    }

    fn snapshot(&self) -> Result<Snapshot, DatapathError> {
        Err(DatapathError::Busy)
    }

    fn watch_drops(&self) -> Result<WatchReceiver<DroppedPacket>, DatapathError> {
        Err(DatapathError::Busy)
    }

    fn watch_frames(
        &self,
        _: PortNo,
        _: usize,
    ) -> Result<WatchReceiver<CapturedFrame>, DatapathError> {
        Err(DatapathError::Busy)
    }

    fn now_ms(&self) -> u64 {
        let hook = self.at_clock.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        self.now_ms.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}
