//! What outlives a process, and how the next one takes over: see docs/adr/0012.

use super::{KernelDatapath, StartError};
use crate::adopt::{Inherited, Old};
use crate::attach;
use crate::pieces::Pieces;
use crate::pin::{PinError, Pins, Set};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What stays when the process is killed, and what one that was has left.
#[derive(Debug)]
pub(super) struct Pinned {
    /// The names of these programs go before the folder does. `None` when they could not be pinned.
    pub(super) set: Option<Arc<Set>>,
    pub(super) pins: Arc<Pins>,
    old: Mutex<Option<Arc<Old>>>,
    taken_over: OnceLock<TakenOver>,
}

/// What became of what a process had left that was killed, or stopped so that its programs stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TakenOver {
    /// Megaflows that it had.
    pub megaflows: u64,
    /// Those of them that its successor has, decided anew.
    pub adopted: u64,
    /// Those of them that could not be looked at: another version of weft has laid them out.
    pub unreadable: u64,
    /// Packets that were dropped in between because no megaflow was for them.
    pub missed: u64,
}

impl KernelDatapath {
    /// The conditions of the megaflows that a process has left which was killed, the oldest first, by the numbers that ports have now.
    /// Every packet that one of these served meets its condition. Whoever decides them anew puts what comes of it, and then calls
    /// [`KernelDatapath::take_over`].
    pub fn inherited(&self) -> Inherited {
        let old = self.pinned.as_ref().and_then(|pinned| {
            pinned.old.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Arc::clone)
        });
        let now = || self.front.lock().ports.by_device();
        old.map(|old| Inherited::new(old, now())).unwrap_or_default()
    }

    /// Forwards from now on instead of the programs of a process that was killed, if it has left any. `adopted` of what was
    /// [inherited](KernelDatapath::inherited) has been put. Each program is replaced at once, so no packet passes without one. End points to
    /// which the way is not known yet are reached by the way that was known there, for some seconds at most.
    ///
    /// # Errors
    /// Something that was left behind cannot be removed; packets are forwarded all the same.
    pub fn take_over(&self, adopted: usize) -> Result<(), StartError> {
        let refused = |error| {
            let folder = self.pinned.as_ref().map(|pinned| pinned.pins.folder().to_owned());
            StartError::Pins(PinError::Refused { folder: folder.unwrap_or_default(), error })
        };
        let old = self.pinned.as_ref().and_then(|pinned| {
            Some((pinned, pinned.old.lock().unwrap_or_else(PoisonError::into_inner).take()?))
        });
        // Programs may stand somewhere of which nothing is left to be read.
        let Some((pinned, old)) = old else { return self.front.take_over().map_err(refused) };
        let stood = attach::devices(&pinned.pins);
        self.front.lock().inherit_hops(&old.hops());
        let taken = self.front.take_over();
        let missed = {
            let mut state = self.front.lock();
            let missed = old.missed(&state.ports.by_device());
            for (port, packets) in &missed {
                state.ports.add_missed(*port, *packets);
            }
            missed.values().sum()
        };
        old.close_devices(&stood, &self.front.lock().kept_devices());
        let taken_over = TakenOver {
            megaflows: old.megaflows() as u64 + old.unreadable,
            adopted: adopted as u64,
            unreadable: old.unreadable,
            missed,
        };
        taken_over.say();
        // There is one.
        let _ = pinned.taken_over.set(taken_over);
        let removed = old.remove();
        taken.and(removed).map_err(refused)
    }

    /// What became of what a process had left, once it has been [taken over](KernelDatapath::take_over).
    pub fn taken_over(&self) -> Option<TakenOver> {
        self.pinned.as_ref()?.taken_over.get().copied()
    }
}

impl Pinned {
    pub(super) fn new(pieces: &Pieces, pins: Arc<Pins>, old: Option<Old>) -> Self {
        let set = pins.add_set(pieces).map(Arc::new);
        let set = set.inspect_err(|error| {
            tracing::warn!(folder = %pins.folder().display(), "programs cannot be pinned: {error}; what is cached now nobody takes over");
        });
        Self {
            set: set.ok(),
            pins,
            old: Mutex::new(old.map(Arc::new)),
            taken_over: OnceLock::new(),
        }
    }
}

impl TakenOver {
    fn say(&self) {
        let Self { megaflows, adopted, unreadable, missed } = self;
        tracing::info!(
            megaflows,
            adopted,
            unreadable,
            missed,
            "took over from the programs that another process had left"
        );
        if *unreadable > 0 {
            tracing::warn!(
                "{unreadable} megaflows of another version of weft are lost: their packets come up once more"
            );
        }
    }
}
