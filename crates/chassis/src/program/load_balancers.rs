//! Load balancers: their flows for hairpin packets, which are not logical flows, and the backends
//! whose connections end when they are removed (`options:ct_flush`).

use super::{Changes, ProgramBuilder};
use crate::tables::{DatapathBinding, LoadBalancer, LogicalDpGroup};
use flow::DatapathKey;
use ovsdb::{Replica, Table, Uuid};
use pipeline::FlowId;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;
use wire::Protocol;

/// A backend of a virtual address. Each has an IP address and a port; 0 for all ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BalancedPair {
    /// The virtual address.
    pub vip: (IpAddr, u16),
    /// The backend.
    pub backend: (IpAddr, u16),
    /// The protocol; `None` for all, if the virtual address has no port.
    pub protocol: Option<Protocol>,
}

/// A load balancer in the program.
#[derive(Debug, Default)]
pub(super) struct LoadedBalancer {
    datapaths: BTreeSet<DatapathKey>,
    flows: Vec<FlowId>,
    /// The backends whose connections end when they are removed.
    flushed: BTreeSet<BalancedPair>,
}

impl ProgramBuilder {
    /// Compiles the load balancers that have changed, or whose datapaths have. With
    /// `has_other_values`, template variables have other values.
    pub(super) fn apply_load_balancers(
        &mut self,
        replica: &Replica,
        changes: &Changes<'_>,
        has_other_values: bool,
    ) {
        let mut affected: BTreeSet<Uuid> = changes.uuids::<LoadBalancer>().collect();
        if has_other_values {
            let rows = replica.rows::<LoadBalancer>();
            affected.extend(rows.filter(|(_, row)| is_template(row)).map(|(uuid, _)| uuid));
        }
        for uuid in affected {
            self.set_load_balancer(replica, uuid);
        }
        if changes.of::<LogicalDpGroup>().next().is_some()
            || changes.of::<DatapathBinding>().next().is_some()
        {
            self.follow_load_balancers(replica);
        }
    }

    /// Compiles the load balancers whose datapaths have changed.
    pub(super) fn follow_load_balancers(&mut self, replica: &Replica) {
        let rows = replica.table(LoadBalancer::NAME).into_iter().flat_map(|table| table.rows());
        let rows: Vec<Uuid> = rows.map(|row| row.uuid()).collect();
        for uuid in rows {
            let Some(row) = replica.get::<LoadBalancer>(uuid) else { continue };
            let datapaths = self.datapaths_of_balancer(replica, &row);
            let known = self.load_balancers.get(&uuid).map(|known| &known.datapaths);
            if known.unwrap_or(&BTreeSet::new()) != &datapaths {
                self.set_load_balancer(replica, uuid);
            }
        }
    }

    fn set_load_balancer(&mut self, replica: &Replica, uuid: Uuid) {
        let old = self.load_balancers.remove(&uuid).unwrap_or_default();
        self.removed_backends.extend(old.flushed);
        for flow in old.flows {
            self.loader.remove_flow(flow);
        }
        let Some(row) = replica.get::<LoadBalancer>(uuid) else { return };
        let datapaths = self.datapaths_of_balancer(replica, &row);
        if !datapaths.is_empty() {
            self.add_load_balancer(uuid, &row, datapaths);
        }
    }

    fn add_load_balancer(
        &mut self,
        uuid: Uuid,
        row: &LoadBalancer,
        datapaths: BTreeSet<DatapathKey>,
    ) {
        let expand = |text| match is_template(row) {
            true => self.templates.expand(text),
            false => Cow::Borrowed(text),
        };
        let vips: Vec<_> =
            row.vips.iter().map(|(vip, backends)| (expand(vip), expand(backends))).collect();
        let vips = vips.iter().map(|(vip, backends)| (&**vip, &**backends));
        let source = row.options.get("hairpin_snat_ip").map(|source| &**source);
        let protocol = row.protocol.as_deref();
        let mut parsed = lflow::LoadBalancer::parse(&row.name, protocol, vips, source);
        parsed.cookie = uuid.first_bits().into();
        let keys: Vec<DatapathKey> = datapaths.iter().copied().collect();
        match self.loader.add_load_balancer(&parsed, &keys) {
            Ok(flows) => {
                let is_flushed = row.options.get("ct_flush").is_some_and(|it| **it == *"true");
                let flushed = if is_flushed { pairs(&parsed) } else { BTreeSet::new() };
                let loaded = LoadedBalancer { datapaths, flows, flushed };
                self.load_balancers.insert(uuid, loaded);
            }
            Err(error) => self.warnings.push(format!("left out load balancer {uuid}: {error}")),
        }
    }

    /// The backends that were removed since the last call, and whose connections are to end.
    pub fn take_removed_backends(&mut self) -> BTreeSet<BalancedPair> {
        let mut removed = std::mem::take(&mut self.removed_backends);
        if !removed.is_empty() {
            for kept in self.load_balancers.values().flat_map(|it| &it.flushed) {
                removed.remove(kept);
            }
        }
        removed
    }

    /// The switches of a load balancer that packets of this host can pass through.
    fn datapaths_of_balancer(
        &self,
        replica: &Replica,
        row: &LoadBalancer,
    ) -> BTreeSet<DatapathKey> {
        let groups = [row.datapath_group, row.ls_datapath_group].into_iter().flatten();
        let groups = groups.filter_map(|uuid| replica.get::<LogicalDpGroup>(uuid));
        let shared = groups.flat_map(|group| group.datapaths);
        let keys = row.datapaths.iter().copied().chain(shared);
        let keys = keys.filter_map(|uuid| self.datapaths.get(&uuid).copied());
        keys.filter(|&key| self.reachable.contains(key)).collect()
    }
}

/// The backends of all virtual addresses.
fn pairs(balancer: &lflow::LoadBalancer) -> BTreeSet<BalancedPair> {
    let of_vip = balancer.vips.iter().flat_map(|(vip, backends)| {
        let protocol = (vip.port != 0).then(|| Protocol(balancer.protocol.ip_protocol()));
        backends.iter().map(move |backend| BalancedPair {
            vip: (vip.ip, vip.port),
            backend: (backend.ip, backend.port),
            protocol,
        })
    });
    of_vip.collect()
}

/// True if virtual addresses and backends may name template variables.
fn is_template(row: &LoadBalancer) -> bool {
    row.options.get("template").is_some_and(|value| **value == *"true")
}
