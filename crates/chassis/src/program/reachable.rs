//! [`ReachableDatapaths`]: the datapaths that packets of this host can pass. Only their flows are
//! compiled.

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
    is_outdated: bool,
}

impl ReachableDatapaths {
    /// True if packets of this host can pass the datapath.
    pub fn contains(&self, datapath: DatapathKey) -> bool {
        self.reached.contains(&datapath)
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

    /// Follows the links again if ports have changed. Returns the datapaths that came and went.
    pub fn update(&mut self) -> BTreeSet<DatapathKey> {
        if !std::mem::take(&mut self.is_outdated) {
            return BTreeSet::new();
        }
        let mut reached: BTreeSet<DatapathKey> = self.own.keys().copied().collect();
        let mut next: Vec<DatapathKey> = reached.iter().copied().collect();
        while let Some(datapath) = next.pop() {
            let links = self.links.get(&datapath).into_iter().flat_map(BTreeMap::keys);
            next.extend(links.filter(|peer| reached.insert(**peer)));
        }
        let moved = self.reached.symmetric_difference(&reached).copied().collect();
        self.reached = reached;
        moved
    }
}
