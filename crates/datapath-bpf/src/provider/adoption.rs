//! What outlives a process, and how the next one takes over: see docs/adr/0012.

use super::{KernelDatapath, StartError};
use crate::attachment;
use crate::object::LoadedObject;
use crate::pin::{PinError, Pins, Set};
use crate::previous::{InheritedMatches, PreviousState};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What stays when the process is killed, and what one that was has left.
#[derive(Debug)]
pub(super) struct Pinned {
    /// The names of these programs go before the folder does. `None` when they could not be pinned.
    pub(super) set: Option<Arc<Set>>,
    pub(super) pins: Arc<Pins>,
    previous: Mutex<Option<Arc<PreviousState>>>,
    adoption: OnceLock<Adoption>,
}

/// What became of what a process had left that was killed, or stopped so that its programs stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Adoption {
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
    /// [`KernelDatapath::adopt`].
    pub fn inherited(&self) -> InheritedMatches {
        let previous = self.pinned.as_ref().and_then(|pinned| {
            pinned.previous.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Arc::clone)
        });
        let now = || self.bpf.lock().ports.by_device();
        previous.map(|previous| InheritedMatches::new(previous, now())).unwrap_or_default()
    }

    /// Forwards from now on instead of the programs of a process that was killed, if it has left any. `adopted` of what was
    /// [inherited](KernelDatapath::inherited) has been put. Each program is replaced at once, so no packet passes without one. End points to
    /// which the way is not known yet are reached by the way that was known there, for some seconds at most.
    ///
    /// # Errors
    /// Something that was left behind cannot be removed; packets are forwarded all the same.
    pub fn adopt(&self, adopted: usize) -> Result<(), StartError> {
        let refused = |error| {
            let folder = self.pinned.as_ref().map(|pinned| pinned.pins.folder().to_owned());
            StartError::Pins(PinError::Refused { folder: folder.unwrap_or_default(), error })
        };
        let previous = self.pinned.as_ref().and_then(|pinned| {
            Some((pinned, pinned.previous.lock().unwrap_or_else(PoisonError::into_inner).take()?))
        });
        // Programs may stand somewhere of which nothing is left to be read.
        let Some((pinned, previous)) = previous else {
            return self.bpf.replace_previous_programs().map_err(refused);
        };
        let stood = attachment::devices(&pinned.pins);
        self.bpf.lock().inherit_hops(&previous.hops());
        let taken = self.bpf.replace_previous_programs();
        let missed = {
            let mut state = self.bpf.lock();
            let missed = previous.missed(&state.ports.by_device());
            for (port, packets) in &missed {
                state.ports.add_missed(*port, *packets);
            }
            missed.values().sum()
        };
        previous.close_devices(&stood, &self.bpf.lock().kept_devices());
        let adoption = Adoption {
            megaflows: previous.megaflows() as u64 + previous.unreadable,
            adopted: adopted as u64,
            unreadable: previous.unreadable,
            missed,
        };
        adoption.say();
        // There is one.
        let _ = pinned.adoption.set(adoption);
        let removed = previous.remove();
        taken.and(removed).map_err(refused)
    }

    /// What became of what a process had left, once it has been [taken over](KernelDatapath::adopt).
    pub fn adoption(&self) -> Option<Adoption> {
        self.pinned.as_ref()?.adoption.get().copied()
    }
}

impl Pinned {
    pub(super) fn new(
        loaded: &LoadedObject,
        pins: Arc<Pins>,
        previous: Option<PreviousState>,
    ) -> Self {
        let set = pins.add_set(loaded).map(Arc::new);
        let set = set.inspect_err(|error| {
            tracing::warn!(folder = %pins.folder().display(), "programs cannot be pinned: {error}; what is cached now nobody takes over");
        });
        Self {
            set: set.ok(),
            pins,
            previous: Mutex::new(previous.map(Arc::new)),
            adoption: OnceLock::new(),
        }
    }
}

impl Adoption {
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
