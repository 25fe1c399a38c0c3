//! [`LocalTunnels`]: the local ends of tunnels, in the programs' map `weft_locals`.

use crate::abi::{WEFT_LOCAL_COMPLETE, WEFT_LOCAL_OPEN};
use crate::endpoint_entries;
use crate::map_error::MapError;
use crate::map_use::map_use;
use crate::object::LoadedObject;
use datapath::config::{TunnelConfig, Underlay};
use datapath::stats::MapUse;
use flow::{Carrier, TunnelType};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

/// A local address, and the carrier of a tunnel in the numbers of the programs.
type Local = (IpAddr, u32);

/// Tunnel types and local addresses with end points that the programs do not know. Userspace may
/// accept what these send.
pub(crate) type IncompleteTunnels = HashSet<(TunnelType, IpAddr)>;

/// The map `weft_locals`, and what it contains.
///
/// While an entry is *open*, programs leave packets from unknown senders to userspace. Once it is
/// *complete*, they drop them: every sender that userspace knows is in the programs' maps. So an
/// entry must be open before end points change, and until a grace period after.
#[derive(Debug)]
pub(crate) struct LocalTunnels {
    map: MapHandle,
    /// The value is true for complete entries.
    entries: BTreeMap<Local, bool>,
}

impl LocalTunnels {
    /// Wraps the map of an object that has just been loaded, which is empty.
    pub(crate) fn new(loaded: &LoadedObject) -> Result<Self, MapError> {
        Ok(Self { map: loaded.map("weft_locals")?, entries: BTreeMap::new() })
    }

    /// The map's handle.
    #[cfg(test)]
    pub(crate) fn map(&self) -> &MapHandle {
        &self.map
    }

    /// How full the map is.
    pub(crate) fn map_use(&self) -> MapUse {
        map_use("weft_locals", self.entries.len(), self.map.max_entries() as usize)
    }

    /// Opens all entries.
    pub(crate) fn open(&mut self) -> Result<(), MapError> {
        let complete: Vec<Local> = self.with(true).collect();
        complete.into_iter().try_for_each(|local| self.write(local, false))
    }

    /// Removes entries that a new underlay does not have, and adds its new ones, which are open.
    pub(crate) fn set(&mut self, underlay: &Underlay) -> Result<(), MapError> {
        let wanted = locals(underlay);
        let gone: Vec<Local> =
            self.entries.keys().filter(|local| !wanted.contains_key(local)).copied().collect();
        for local in gone {
            self.map.delete(&endpoint_entries::local_key(local.0, local.1))?;
            self.entries.remove(&local);
        }
        let is_new = |local: &Local| !self.entries.contains_key(local);
        let new: Vec<Local> = wanted.into_keys().filter(is_new).collect();
        new.into_iter().try_for_each(|local| self.write(local, false))
    }

    /// Completes the entries whose senders the programs know, all but `incomplete`.
    pub(crate) fn complete(
        &mut self,
        underlay: &Underlay,
        incomplete: &IncompleteTunnels,
    ) -> Result<(), MapError> {
        let locals = locals(underlay);
        let carriers = |tunnel, address| {
            let of = |(local, types): &(&Local, &BTreeSet<TunnelType>)| {
                local.0 == address && types.contains(&tunnel)
            };
            locals.iter().filter(of).count()
        };
        let open: Vec<Local> = self.with(false).collect();
        for local in open {
            // Userspace finds senders by tunnel type, programs by carrier.
            let is_known = |&tunnel: &TunnelType| {
                !incomplete.contains(&(tunnel, local.0)) && carriers(tunnel, local.0) == 1
            };
            if locals.get(&local).is_some_and(|types| types.iter().all(is_known)) {
                self.write(local, true)?;
            }
        }
        Ok(())
    }

    fn with(&self, is_complete: bool) -> impl Iterator<Item = Local> {
        let of = move |(_, is): &(&Local, &bool)| **is == is_complete;
        self.entries.iter().filter(of).map(|(local, _)| *local)
    }

    fn write(&mut self, local: Local, is_complete: bool) -> Result<(), MapError> {
        let state = if is_complete { WEFT_LOCAL_COMPLETE } else { WEFT_LOCAL_OPEN };
        let key = endpoint_entries::local_key(local.0, local.1);
        self.map.update(&key, &state.to_ne_bytes(), MapFlags::ANY)?;
        self.entries.insert(local, is_complete);
        Ok(())
    }
}

/// The local ends of tunnels whose packets programs may decapsulate, with the tunnel types of each.
/// Userspace handles packets to multicast groups.
fn locals(underlay: &Underlay) -> BTreeMap<Local, BTreeSet<TunnelType>> {
    let mut locals = BTreeMap::<Local, BTreeSet<TunnelType>>::new();
    for TunnelConfig { spec, local, group, .. } in &underlay.tunnels {
        if group.is_none() && matches!(spec.tunnel.carrier(), Carrier::Udp | Carrier::Gre) {
            let carrier = endpoint_entries::carrier(spec, local.is_ipv6());
            locals.entry((*local, carrier)).or_default().insert(spec.tunnel);
        }
    }
    locals
}
