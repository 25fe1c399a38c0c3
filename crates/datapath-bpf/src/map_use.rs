//! Reports how full a map is.

use datapath::stats::MapUse;

/// The use of the map `name`.
pub(crate) fn map_use(name: &str, entries: usize, limit: usize) -> MapUse {
    MapUse { name: name.to_owned(), entries: entries as u64, limit: limit as u64 }
}
