//! Load balancers: their flows for hairpin packets, which are not logical flows.

use super::{Changes, ProgramBuilder};
use crate::tables::{DatapathBinding, LoadBalancer, LogicalDpGroup};
use flow::DatapathKey;
use ovsdb::{Replica, Table, Uuid};
use pipeline::FlowId;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// A load balancer in the program.
#[derive(Debug, Default)]
pub(super) struct LoadedBalancer {
    datapaths: BTreeSet<DatapathKey>,
    flows: Vec<FlowId>,
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
                self.load_balancers.insert(uuid, LoadedBalancer { datapaths, flows });
            }
            Err(error) => self.warnings.push(format!("left out load balancer {uuid}: {error}")),
        }
    }

    /// The switches of a load balancer that packets of this host can pass.
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

/// True if virtual addresses and backends may name template variables.
fn is_template(row: &LoadBalancer) -> bool {
    row.options.get("template").is_some_and(|value| **value == *"true")
}
