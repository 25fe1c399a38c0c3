//! A new process adopts the megaflows that a previous process left pinned: see docs/adr/0012.

use super::{KernelDatapath, StartError};
use crate::attachment;
use crate::object::LoadedObject;
use crate::pin::{PinError, PinSet, Pins};
use crate::previous::{InheritedMatches, PreviousState};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The pins of this process, and those that a previous process left.
#[derive(Debug)]
pub(super) struct Pinned {
    /// The pins of this process. It is dropped before `pins`, the directory of all pins. `None` if
    /// pinning failed.
    pub(super) set: Option<Arc<PinSet>>,
    pub(super) pins: Arc<Pins>,
    previous: Mutex<Option<Arc<PreviousState>>>,
    adoption: OnceLock<Adoption>,
}

/// The result of adopting the megaflows of a previous process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Adoption {
    /// Megaflows of the previous process.
    pub megaflows: u64,
    /// Those that were translated again and added.
    pub adopted: u64,
    /// Those that could not be read, because the version of weft that made them has another map
    /// layout.
    pub unreadable: u64,
    /// Packets dropped while no daemon ran, because no megaflow matched.
    pub missed: u64,
}

impl KernelDatapath {
    /// The conditions of the megaflows that a previous process left, the oldest first, with the
    /// current port numbers. Every packet that matched such a megaflow meets its condition. The
    /// caller translates and adds them, and then calls [`KernelDatapath::adopt`].
    pub fn inherited(&self) -> InheritedMatches {
        let previous = self.pinned.as_ref().and_then(|pinned| {
            pinned.previous.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Arc::clone)
        });
        let now = || self.bpf.lock().ports.by_device();
        previous.map(|previous| InheritedMatches::new(previous, now())).unwrap_or_default()
    }

    /// Attaches this process's programs instead of those that a previous process left. `adopted` is
    /// the number of [inherited](KernelDatapath::inherited) megaflows that were added. Each program
    /// is replaced atomically, so no packet passes without one. Until the kernel confirms next
    /// hops, those of the previous process are used, for some seconds at most.
    ///
    /// # Errors
    /// Pins of the previous process cannot be removed; packets are forwarded anyway.
    pub fn adopt(&self, adopted: usize) -> Result<(), StartError> {
        let refused = |error| {
            let folder = self.pinned.as_ref().map(|pinned| pinned.pins.folder().to_owned());
            StartError::Pins(PinError::Refused { folder: folder.unwrap_or_default(), error })
        };
        let previous = self.pinned.as_ref().and_then(|pinned| {
            Some((pinned, pinned.previous.lock().unwrap_or_else(PoisonError::into_inner).take()?))
        });
        // There may be attached programs without pinned maps.
        let Some((pinned, previous)) = previous else {
            return self.bpf.replace_previous_programs().map_err(refused);
        };
        let attached = attachment::devices(&pinned.pins);
        self.bpf.lock().inherit_next_hops(&previous.next_hops());
        let taken = self.bpf.replace_previous_programs();
        let missed = {
            let mut state = self.bpf.lock();
            let missed = previous.drops_without_daemon(&state.ports.by_device());
            for (port, packets) in &missed {
                state.ports.add_missed(*port, *packets);
            }
            missed.values().sum()
        };
        previous.close_devices(&attached, &self.bpf.lock().kept_devices());
        let adoption = Adoption {
            megaflows: previous.megaflows() as u64 + previous.unreadable,
            adopted: adopted as u64,
            unreadable: previous.unreadable,
            missed,
        };
        adoption.log();
        // `adopt` takes the previous state, so this is set once.
        let _ = pinned.adoption.set(adoption);
        let removed = previous.remove();
        taken.and(removed).map_err(refused)
    }

    /// The result of [`KernelDatapath::adopt`], if there was something to adopt.
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
            messages::log!(
                STATE_NOT_PINNED,
                folder = %pins.folder().display(),
                "cannot pin programs: {error}; the next daemon cannot adopt cached flows"
            );
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
    fn log(&self) {
        let Self { megaflows, adopted, unreadable, missed } = self;
        messages::log!(
            MEGAFLOWS_ADOPTED,
            megaflows,
            adopted,
            unreadable,
            missed,
            "adopted the megaflows of a previous process"
        );
        if *unreadable > 0 {
            messages::log!(
                MEGAFLOWS_OUTDATED,
                "{unreadable} megaflows of another version of weft are lost: \
                 their next packets take the slow path"
            );
        }
    }
}
