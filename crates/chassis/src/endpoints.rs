//! [`Endpoints`]: the tunnel end points of the other hosts.

use crate::settings::{Settings, preference};
use crate::tables::{Chassis, Encap, Text};
use datapath::config::{EndpointConfig, TunnelConfig};
use datapath::number_pool::NumberPool;
use flow::{EndpointId, TunnelSpec, TunnelType};
use network::Placement;
use ovsdb::{Replica, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

/// The end points of all other hosts.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Endpoints {
    /// By host, the end point that both sides prefer.
    by_chassis: BTreeMap<Uuid, EndpointId>,
    /// By tunnel end.
    by_encap: BTreeMap<Uuid, EndpointId>,
    /// All end points.
    pub configs: Vec<EndpointConfig>,
    /// The names of hosts by their addresses.
    pub hosts: BTreeMap<IpAddr, Text>,
}

impl Endpoints {
    /// Reads the end points. `numbers` keeps the number of each.
    pub fn read(
        replica: &Replica,
        settings: &Settings,
        path_mtu_bytes: u16,
        numbers: &mut NumberPool<(TunnelType, IpAddr)>,
        now: Instant,
    ) -> Self {
        let mut all = Self::default();
        // Sorted by name, so that a restarted host gives the same end points the same numbers.
        let mut rows: Vec<_> = replica.rows::<Chassis>().collect();
        rows.sort_unstable_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        for (uuid, chassis) in rows {
            if chassis.name == settings.system_id || !shares_zone(settings, &chassis) {
                continue;
            }
            let mut ends: Vec<_> = chassis
                .encaps
                .iter()
                .filter_map(|&encap| end_of(replica, settings, encap))
                .collect();
            ends.sort_by_key(|(_, tunnel, remote)| (preference(*tunnel), *remote));
            for &(encap, tunnel, remote) in &ends {
                let id = EndpointId(numbers.number((tunnel, remote), now));
                let spec = spec(settings, tunnel, path_mtu_bytes);
                all.by_encap.insert(encap, id);
                all.by_chassis.entry(uuid).or_insert(id);
                if !all.configs.iter().any(|config| config.id == id) {
                    let local = settings.encap_ip;
                    all.configs.push(EndpointConfig { id, spec, local, remote });
                }
                let name =
                    if chassis.hostname.is_empty() { &chassis.name } else { &chassis.hostname };
                all.hosts.insert(remote, name.clone());
            }
        }
        all.configs.sort_unstable_by_key(|config| config.id);
        numbers.release_unused(now);
        all
    }

    /// The end point of a host, or of one of its tunnel ends.
    pub fn of(&self, chassis: Uuid, encap: Option<Uuid>) -> Option<EndpointId> {
        let by_encap = encap.and_then(|encap| self.by_encap.get(&encap));
        by_encap.or_else(|| self.by_chassis.get(&chassis)).copied()
    }

    /// The hosts whose end points differ between `self` and `other`.
    pub fn changed(&self, other: &Self) -> BTreeSet<Uuid> {
        if self.by_encap != other.by_encap {
            // A port may name any tunnel end of its host.
            return self.by_chassis.keys().chain(other.by_chassis.keys()).copied().collect();
        }
        let hosts = self.by_chassis.keys().chain(other.by_chassis.keys());
        let differs = |host: &&Uuid| self.by_chassis.get(host) != other.by_chassis.get(host);
        hosts.filter(differs).copied().collect()
    }
}

/// True if both hosts have a transport zone in common, and so a tunnel. All hosts without zones are
/// in one common zone.
fn shares_zone(settings: &Settings, chassis: &Chassis) -> bool {
    match (settings.transport_zones.is_empty(), chassis.transport_zones.is_empty()) {
        (true, true) => true,
        (false, false) => !settings.transport_zones.is_disjoint(&chassis.transport_zones),
        _ => false,
    }
}

/// A tunnel end that this host can reach.
fn end_of(
    replica: &Replica,
    settings: &Settings,
    uuid: Uuid,
) -> Option<(Uuid, TunnelType, IpAddr)> {
    let encap = replica.get::<Encap>(uuid)?;
    let remote: IpAddr = encap.ip.parse().ok()?;
    let own = settings.tunnels.iter().copied();
    let tunnel = own.into_iter().find(|tunnel| tunnel.name() == &*encap.kind)?;
    let fits = remote.is_ipv4() == settings.encap_ip.is_ipv4() && remote != settings.encap_ip;
    fits.then_some((uuid, tunnel, remote))
}

/// The settings of all end points of a tunnel type.
pub fn spec(settings: &Settings, tunnel: TunnelType, path_mtu_bytes: u16) -> TunnelSpec {
    let defaults = tunnel.descriptor().default_settings();
    let plain = TunnelSpec::new(tunnel, &defaults);
    let checksum = defaults.checksum.unwrap_or(settings.checksum);
    TunnelSpec { checksum, dscp: settings.dscp, path_mtu_bytes, ..plain }
}

/// The local ends of all tunnel types.
pub fn local_ends(settings: &Settings, path_mtu_bytes: u16) -> Vec<TunnelConfig> {
    let end = |&tunnel: &TunnelType| TunnelConfig {
        port: Placement::tunnel_port(tunnel),
        spec: spec(settings, tunnel, path_mtu_bytes),
        local: settings.encap_ip,
        group: None,
    };
    settings.tunnels.iter().map(end).collect()
}
