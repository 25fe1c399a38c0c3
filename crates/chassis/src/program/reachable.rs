//! [`ReachableDatapaths`]: the datapaths that packets of this host can pass through. Only their
//! flows are compiled, and only once all of them have arrived.

use super::ports::PlacedPort;
use flow::DatapathKey;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The datapaths with a port on this host, and those that patch ports connect with them.
#[derive(Debug, Default)]
pub struct ReachableDatapaths {
    /// The number of ports on this host, by datapath.
    own: HashMap<DatapathKey, usize>,
    /// The number of patch ports between two datapaths.
    links: HashMap<DatapathKey, BTreeMap<DatapathKey, usize>>,
    reached: BTreeSet<DatapathKey>,
    /// Reached datapaths of which the database has sent all rows.
    complete: BTreeSet<DatapathKey>,
    is_outdated: bool,
}

impl ReachableDatapaths {
    /// True if packets of this host can pass through the datapath, and all of its rows are known.
    /// With only some of its flows, packets that the others drop could be permitted.
    pub fn contains(&self, datapath: DatapathKey) -> bool {
        self.complete.contains(&datapath)
    }

    /// True if packets of this host can pass through the datapath.
    pub fn is_reached(&self, datapath: DatapathKey) -> bool {
        self.reached.contains(&datapath)
    }

    /// Notes that rows of datapaths have arrived, or are not asked for any more.
    pub fn outdate(&mut self) {
        self.is_outdated = true;
    }

    pub fn add(&mut self, port: &PlacedPort) {
        if port.is_own() {
            let ports = self.own.entry(port.datapath).or_default();
            *ports += 1;
            self.is_outdated |= *ports == 1;
        }
        if let Some(peer) = port.patch {
            let links = self.links.entry(port.datapath).or_default().entry(peer).or_default();
            *links += 1;
            self.is_outdated |= *links == 1;
        }
    }

    pub fn remove(&mut self, port: &PlacedPort) {
        if port.is_own()
            && let Some(ports) = self.own.get_mut(&port.datapath)
        {
            *ports -= 1;
            if *ports == 0 {
                self.own.remove(&port.datapath);
                self.is_outdated = true;
            }
        }
        if let Some(peer) = port.patch
            && let Some(links) = self.links.get_mut(&port.datapath)
            && let Some(count) = links.get_mut(&peer)
        {
            *count -= 1;
            if *count == 0 {
                links.remove(&peer);
                self.is_outdated = true;
            }
        }
    }

    /// Follows the links again if ports have changed. Returns the datapaths whose flows are to be
    /// compiled or removed; `None` if nothing has changed.
    pub fn update(
        &mut self,
        is_complete: impl Fn(DatapathKey) -> bool,
    ) -> Option<BTreeSet<DatapathKey>> {
        if !std::mem::take(&mut self.is_outdated) {
            return None;
        }
        let mut reached: BTreeSet<DatapathKey> = self.own.keys().copied().collect();
        let mut next: Vec<DatapathKey> = reached.iter().copied().collect();
        while let Some(datapath) = next.pop() {
            let links = self.links.get(&datapath).into_iter().flat_map(BTreeMap::keys);
            next.extend(links.filter(|peer| reached.insert(**peer)));
        }
        let complete = reached.iter().copied().filter(|key| is_complete(*key)).collect();
        let moved = self.complete.symmetric_difference(&complete).copied().collect();
        (self.reached, self.complete) = (reached, complete);
        Some(moved)
    }
}
