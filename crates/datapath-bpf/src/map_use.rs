//! How full a map is, as it is reported.

use datapath::stats::MapUse;

/// A map of this name with this number of entries in use.
pub(crate) fn map_use(name: &str, entries: usize, limit: usize) -> MapUse {
    MapUse { name: name.to_owned(), entries: entries as u64, limit: limit as u64 }
}
