//! [`LoadedObject`]: the maps and programs of a loaded BPF object, by name.

use crate::map_error::MapError;
use libbpf_rs::{MapCore, MapHandle, Object};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// File descriptors of maps and programs. They keep both alive, so the libbpf object may be
/// dropped.
#[derive(Debug, Default)]
pub struct LoadedObject {
    maps: BTreeMap<String, MapHandle>,
    programs: BTreeMap<String, OwnedFd>,
}

impl LoadedObject {
    /// Duplicates the descriptors of a loaded object.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn of(object: &Object) -> Result<Self, MapError> {
        let mut loaded = Self::default();
        for map in object.maps() {
            let name = map.name().to_string_lossy().into_owned();
            loaded.maps.insert(name, MapHandle::try_from(&map)?);
        }
        for program in object.progs() {
            let name = program.name().to_string_lossy().into_owned();
            let handle = program.as_fd().try_clone_to_owned().map_err(libbpf_rs::Error::from)?;
            loaded.programs.insert(name, handle);
        }
        Ok(loaded)
    }

    /// All maps and programs with their names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, BorrowedFd<'_>)> {
        let maps = self.maps.iter().map(|(name, map)| (name.as_str(), map.as_fd()));
        maps.chain(self.programs.iter().map(|(name, program)| (name.as_str(), program.as_fd())))
    }

    /// A map.
    ///
    /// # Errors
    /// [`MapError::Missing`].
    pub fn map(&self, name: &'static str) -> Result<MapHandle, MapError> {
        let map = self.maps.get(name).ok_or(MapError::Missing(name))?;
        Ok(MapHandle::try_from(map)?)
    }

    /// A program.
    ///
    /// # Errors
    /// [`MapError::Missing`].
    pub fn program(&self, name: &'static str) -> Result<BorrowedFd<'_>, MapError> {
        self.programs.get(name).map(AsFd::as_fd).ok_or(MapError::Missing(name))
    }

    /// A duplicate descriptor of a program.
    ///
    /// # Errors
    /// As [`LoadedObject::program`], or the process has too many open files.
    pub fn own_program(&self, name: &'static str) -> Result<OwnedFd, MapError> {
        Ok(self.program(name)?.try_clone_to_owned().map_err(libbpf_rs::Error::from)?)
    }
}
