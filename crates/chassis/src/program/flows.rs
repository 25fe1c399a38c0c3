//! Logical flows.

use super::{BadFlow, LocalContext, ProgramBuilder};
use crate::tables::{LogicalDpGroup, LogicalFlow, Text, index};
use flow::DatapathKey;
use ovsdb::{Atom, Replica, Table, Uuid};
use pipeline::Direction;
use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most bad flows that are kept by name. All are counted.
const MAX_BAD_FLOWS: usize = 1000;

impl ProgramBuilder {
    pub(super) fn remove_flow(&mut self, uuid: Uuid) {
        if let Some(flow) = self.flows.remove(&uuid) {
            self.loader.remove_flow(flow);
        }
        self.templates.remove_flow(uuid);
        self.metered.remove(&uuid);
        if self.bad_flows.remove(&uuid).is_none() {
            self.unnamed_bad_flows.remove(&uuid);
        }
    }

    /// Compiles a flow, or keeps it as a bad one.
    pub(super) fn add_flow(&mut self, replica: &Replica, uuid: Uuid) {
        let Some(row) = replica.get::<LogicalFlow>(uuid) else { return };
        let text = |key: &str| row.external_ids.get(key).map(Text::to_string).unwrap_or_default();
        let stage = text("stage-name");
        let datapaths = self.datapaths_of(replica, &row);
        if datapaths.is_empty() {
            return;
        }
        let texts = [&row.condition, &row.actions];
        let [condition, actions] =
            texts.map(|text| self.templates.expand_flow(uuid, text).into_owned());
        let flow = match logical_flow(&row, uuid, datapaths, &stage) {
            Ok(flow) => lflow::LogicalFlow { condition, actions, source: text("source"), ..flow },
            Err(problem) => return self.keep_bad_flow(uuid, &row, &stage, problem),
        };
        let meter = self.meter_of(replica, uuid, &row);
        match self.loader.add_metered_flow(&flow, meter) {
            Ok(id) => drop(self.flows.insert(uuid, id)),
            Err(error) => {
                let problem = match &error.error {
                    Some(syntax) => format!("{}: {}", error.part, syntax.message),
                    None => error.to_string(),
                };
                self.keep_bad_flow(uuid, &row, &stage, problem);
            }
        }
    }

    fn keep_bad_flow(&mut self, uuid: Uuid, row: &LogicalFlow, stage: &str, problem: String) {
        if self.bad_flows.len() >= MAX_BAD_FLOWS {
            self.unnamed_bad_flows.insert(uuid);
            return;
        }
        let stage = match stage {
            "" => format!("{} table {}", row.pipeline, row.table_id),
            stage => stage.to_owned(),
        };
        let (priority, condition) = (row.priority, row.condition.clone());
        let bad = BadFlow { stage, priority, condition, problem };
        self.warnings.push(format!("left out logical flow {uuid}: {bad}"));
        self.bad_flows.insert(uuid, bad);
    }

    fn datapaths_of(&mut self, replica: &Replica, row: &LogicalFlow) -> Vec<DatapathKey> {
        let own = row.logical_datapath.and_then(|uuid| self.datapaths.get(&uuid).copied());
        let own = own.filter(|&key| self.reachable.contains(key));
        let shared = row.logical_dp_group.map(|uuid| self.datapaths_of_group(replica, uuid));
        let shared = shared.iter().flat_map(|keys| keys.iter().copied());
        own.into_iter().chain(shared).collect()
    }

    /// The datapaths of a group whose flows are compiled. Thousands of flows have the same group.
    fn datapaths_of_group(&mut self, replica: &Replica, group: Uuid) -> Arc<[DatapathKey]> {
        if let Some(known) = self.dp_groups.get(&group) {
            return Arc::clone(known);
        }
        let row = replica.get::<LogicalDpGroup>(group);
        let all = row.into_iter().flat_map(|row| row.datapaths);
        let keys = all.filter_map(|uuid| self.datapaths.get(&uuid).copied());
        let keys: Arc<[DatapathKey]> = keys.filter(|&key| self.reachable.contains(key)).collect();
        self.dp_groups.insert(group, Arc::clone(&keys));
        keys
    }

    /// Compiles the flows of datapaths that packets of this host can pass through since the last
    /// call, and removes those of datapaths that they cannot pass through any more. It leaves out
    /// flows of `pending`, which the caller compiles. It does the same for load balancers. Returns
    /// true if there were any.
    pub(super) fn update_reachable(
        &mut self,
        replica: &Replica,
        pending: &BTreeSet<Uuid>,
        context: &LocalContext<'_>,
    ) -> bool {
        let keys = &self.datapaths;
        let complete = || {
            let rows = keys.iter().filter(|(uuid, _)| context.monitored.has_all_of(**uuid));
            rows.map(|(_, key)| *key).collect::<BTreeSet<_>>()
        };
        let complete = LazyCell::new(complete);
        let Some(moved) = self.reachable.update(|key| complete.contains(&key)) else {
            return false;
        };
        self.has_reachability_changed = true;
        self.dp_groups.clear();
        if moved.is_empty() {
            return false;
        }
        self.bridges.lack_ports = true;
        let rows = self.datapaths.iter().filter(|(_, key)| moved.contains(key));
        let flows: BTreeSet<Uuid> =
            rows.flat_map(|(uuid, _)| flows_of_datapath(replica, *uuid)).collect();
        for &uuid in flows.difference(pending) {
            self.remove_flow(uuid);
            self.add_flow(replica, uuid);
        }
        self.follow_load_balancers(replica);
        true
    }
}

/// The flows of a datapath, its own and those of its groups.
fn flows_of_datapath(replica: &Replica, datapath: Uuid) -> Vec<Uuid> {
    let find = |table: &str, index: &str, uuid: Uuid| -> Vec<Uuid> {
        let found = replica.table(table).and_then(|table| table.index(index));
        let rows = found.into_iter().flat_map(|found| found.find_atom(Atom::Uuid(uuid)));
        rows.map(|row| row.uuid()).collect()
    };
    let mut flows = find(LogicalFlow::NAME, index::DATAPATH, datapath);
    for group in find(LogicalDpGroup::NAME, index::DATAPATH, datapath) {
        flows.extend(find(LogicalFlow::NAME, index::DP_GROUP, group));
    }
    flows
}

fn logical_flow(
    row: &LogicalFlow,
    uuid: Uuid,
    datapaths: Vec<DatapathKey>,
    stage: &str,
) -> Result<lflow::LogicalFlow, String> {
    let direction = match &*row.pipeline {
        "ingress" => Direction::Ingress,
        "egress" => Direction::Egress,
        other => return Err(format!("there is no pipeline `{other}`")),
    };
    let number = |what: &str, value: i64| format!("the {what} {value} is out of range");
    Ok(lflow::LogicalFlow {
        datapaths,
        direction,
        table: u8::try_from(row.table_id).map_err(|_| number("table", row.table_id))?,
        priority: u16::try_from(row.priority).map_err(|_| number("priority", row.priority))?,
        stage: stage.to_owned(),
        condition: String::new(),
        actions: String::new(),
        source: String::new(),
        // OVN uses the first 32 bits of the UUID as the cookie.
        cookie: uuid.first_bits().into(),
    })
}
