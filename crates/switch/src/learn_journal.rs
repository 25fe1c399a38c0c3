//! [`LearnJournal`]: the learn events of packets, until a control plane takes them and passes them
//! to other hosts.

use flow::DatapathKey;
use pipeline::{IngressPort, LearnEvent, StateQuery};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The most events that wait.
const MAX_EVENTS: usize = 1024;
/// The most events of one port that wait, so that a port that floods does not displace the events
/// of others.
const MAX_EVENTS_OF_PORT: usize = 128;

/// Called when the first event waits.
type Notify = Box<dyn Fn() + Send + Sync>;

/// Learn events that wait. The journal keeps the latest event of each station or binding. Without a
/// control plane it keeps nothing.
#[derive(Default)]
pub(crate) struct LearnJournal {
    notify: OnceLock<Notify>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    events: BTreeMap<StateQuery, (LearnEvent, IngressPort)>,
    of_port: HashMap<IngressPort, usize>,
}

impl fmt::Debug for LearnJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LearnJournal").finish_non_exhaustive()
    }
}

impl LearnJournal {
    /// Keeps events from now on. Calls `notify` when the first one waits. Only the first call has
    /// an effect.
    pub fn open(&self, notify: Notify) {
        // Fails if it is open already.
        let _ = self.notify.set(notify);
    }

    /// Keeps an event that a packet from `ingress` has caused. False if there is no room. Events
    /// that concern only this host, and those of datapaths that others do not know, are left out.
    pub fn add(&self, event: LearnEvent, ingress: IngressPort) -> bool {
        let Some(notify) = self.notify.get() else { return true };
        if !event.is_shared() || event.query().datapath() >= DatapathKey::FIRST_LOCAL {
            return true;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Waiting { events, of_port } = &mut *waiting;
        let is_first = events.is_empty();
        let is_full = events.len() >= MAX_EVENTS;
        // A later event of the same station replaces the earlier one, which no longer counts for
        // its port.
        let before = events.get(&event.query()).map(|(_, before)| *before);
        if before != Some(ingress) {
            let count = of_port.entry(ingress).or_default();
            if *count >= MAX_EVENTS_OF_PORT || (is_full && before.is_none()) {
                return false;
            }
            *count += 1;
            if let Some(count) = before.and_then(|before| of_port.get_mut(&before)) {
                *count -= 1;
            }
        }
        events.insert(event.query(), (event, ingress));
        drop(waiting);
        if is_first {
            notify();
        }
        true
    }

    /// Takes all events.
    pub fn take(&self) -> Vec<LearnEvent> {
        let waiting =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.events.into_values().map(|(event, _)| event).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::PortNo;
    use pipeline::{FdbKey, FdbPort};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use wire::MacAddr;

    fn station(number: u16, port: u32) -> (LearnEvent, IngressPort) {
        let [high, low] = number.to_be_bytes();
        let mac = MacAddr([2, 0, 0, 0, high, low]);
        let port = FdbPort::Port(PortNo(port));
        let event = LearnEvent::Fdb(FdbKey { datapath: DatapathKey(1), vlan: 0, mac }, port);
        (event, IngressPort { datapath: DatapathKey(1), port })
    }

    fn add(journal: &LearnJournal, (event, ingress): (LearnEvent, IngressPort)) -> bool {
        journal.add(event, ingress)
    }

    fn open() -> (LearnJournal, Arc<AtomicUsize>) {
        let (journal, calls) = (LearnJournal::default(), Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&calls);
        journal.open(Box::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        (journal, calls)
    }

    #[test]
    fn nothing_waits_when_nobody_takes_it() {
        let journal = LearnJournal::default();
        assert!(add(&journal, station(1, 1)));
        assert_eq!(journal.take(), []);
    }

    #[test]
    fn stations_of_a_provider_bridge_are_not_told() {
        let (journal, calls) = open();
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let key = FdbKey { datapath: DatapathKey::FIRST_LOCAL, vlan: 0, mac };
        let event = LearnEvent::Fdb(key, FdbPort::Port(PortNo(1)));
        assert!(add(&journal, (event, station(1, 1).1)));
        assert_eq!((journal.take(), calls.load(Ordering::Relaxed)), (vec![], 0));
    }

    #[test]
    fn latest_event_of_a_station_waits_and_the_first_one_notifies() {
        let (journal, calls) = open();
        for (number, port) in [(1, 1), (2, 1), (1, 2)] {
            assert!(add(&journal, station(number, port)));
        }
        assert_eq!(journal.take(), [station(1, 2).0, station(2, 1).0]);
        assert_eq!((journal.take().len(), calls.load(Ordering::Relaxed)), (0, 1));
        assert!(add(&journal, station(1, 1)));
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn port_that_floods_leaves_room_for_others() {
        let (journal, _) = open();
        let accepted = (0..1000).filter(|&number| add(&journal, station(number, 1))).count();
        assert_eq!(accepted, MAX_EVENTS_OF_PORT);
        assert!(add(&journal, station(2000, 2)));
        // Its earlier station has moved, so that the first port has one waiting event less.
        assert!(add(&journal, station(0, 3)));
        assert!(add(&journal, station(3000, 1)));
        assert!(!add(&journal, station(3001, 1)));
    }

    #[test]
    fn journal_is_bounded_when_many_ports_flood() {
        let (journal, _) = open();
        let ports = 2 * (MAX_EVENTS / MAX_EVENTS_OF_PORT) as u16;
        let accepted = (0..ports * 200)
            .filter(|&number| add(&journal, station(number, u32::from(number % ports))))
            .count();
        assert_eq!((accepted, journal.take().len()), (MAX_EVENTS, MAX_EVENTS));
    }
}
