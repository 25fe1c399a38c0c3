//! Notices devices that are added or removed. The host claims a logical port when its device
//! appears, and releases it when the device is removed.

use netdev::epoll::{Epoll, EpollEvents, Waker};
use netdev::{Monitor, Netlink, NetlinkEvent};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The pause of the thread after a change, so that many changes at once cost little.
const PAUSE: Duration = Duration::from_millis(50);

const EVENTS: u64 = 0;
const STOP: u64 = 1;

/// The thread that watches the devices of this host. It stops when this handle is dropped.
pub(super) struct LinkWatch {
    has_changed: Arc<AtomicBool>,
    stop: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl LinkWatch {
    /// Starts the thread. It wakes the owner when a device is added or removed.
    pub fn start(owner: ovsdb::io::Waker) -> netdev::Result<Self> {
        let (has_changed, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(Waker::new()?));
        let monitor = Monitor::open()?;
        let epoll = Epoll::new()?;
        epoll.add(&monitor, EVENTS)?;
        epoll.add(&*stop, STOP)?;
        let changed = Arc::clone(&has_changed);
        let run = move || {
            watch(monitor, &epoll, || {
                changed.store(true, Ordering::Release);
                owner.wake();
            })
        };
        let thread = std::thread::Builder::new().name("links".to_owned()).spawn(run);
        let thread = thread.map_err(|error| netdev::Error::os("start a thread", error))?;
        Ok(Self { has_changed, stop, thread: Some(thread) })
    }

    /// True if devices were added or removed since the last call.
    pub fn take_change(&self) -> bool {
        self.has_changed.swap(false, Ordering::AcqRel)
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        self.stop.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}

/// The names of all devices; `None` if the kernel does not reply.
pub(super) fn names(netlink: &Netlink) -> Option<BTreeSet<Arc<str>>> {
    let links = netlink.links().ok()?;
    Some(links.into_iter().map(|link| link.name.into()).collect())
}

fn watch(mut monitor: Monitor, epoll: &Epoll, notify: impl Fn()) {
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut events = EpollEvents::new();
    loop {
        // After an error this thread ends. The owner still reads the devices every few seconds.
        if epoll.wait(&mut events, None).is_err() || events.tokens().any(|token| token == STOP) {
            return;
        }
        let Ok(changes) = monitor.drain() else { return };
        let mut is_other = false;
        for change in changes {
            is_other |= match change {
                NetlinkEvent::LinkChanged(link) => known.insert(link.name),
                NetlinkEvent::LinkRemoved { name, .. } => {
                    known.remove(&name);
                    true
                }
                NetlinkEvent::Lost => {
                    known.clear();
                    true
                }
                _ => false,
            };
        }
        if is_other {
            notify();
            std::thread::sleep(PAUSE);
        }
    }
}
