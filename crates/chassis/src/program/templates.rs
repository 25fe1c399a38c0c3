//! Template variables: parts of flows and load balancers for which each host has its own values
//! (table Chassis_Template_Var).

use crate::tables::{ChassisTemplateVar, Text, TextMap};
use lflow::expand_templates;
use ovsdb::{Replica, Uuid};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The values of this host, and the flows that name variables.
#[derive(Debug, Default)]
pub(super) struct Templates {
    values: TextMap,
    /// The variables that each flow names.
    names: HashMap<Uuid, BTreeSet<Text>>,
    /// The flows that name each variable.
    flows: BTreeMap<Text, BTreeSet<Uuid>>,
}

impl Templates {
    /// Reads the values of the host with this name. Returns the flows that name a changed variable;
    /// `None` if no value has changed.
    pub fn read(&mut self, replica: &Replica, host: &str) -> Option<BTreeSet<Uuid>> {
        let own = replica.rows::<ChassisTemplateVar>().find(|(_, row)| *row.chassis == *host);
        let new = own.map(|(_, row)| row.variables).unwrap_or_default();
        let old = std::mem::replace(&mut self.values, new);
        let names: BTreeSet<&Text> = old.keys().chain(self.values.keys()).collect();
        let changed = names.into_iter().filter(|&name| old.get(name) != self.values.get(name));
        let flows: Vec<_> = changed.map(|name| self.flows.get(name)).collect();
        (!flows.is_empty()).then(|| flows.into_iter().flatten().flatten().copied().collect())
    }

    /// A text of a flow with the values of its variables.
    pub fn expand_flow<'t>(&mut self, flow: Uuid, text: &'t str) -> Cow<'t, str> {
        expand_templates(text, |name| {
            let name: Text = name.into();
            self.flows.entry(name.clone()).or_default().insert(flow);
            self.names.entry(flow).or_default().insert(name.clone());
            self.values.get(&name).cloned()
        })
    }

    /// The values of this host.
    pub const fn values(&self) -> &TextMap {
        &self.values
    }

    /// A text with the values of its variables.
    pub fn expand<'t>(&self, text: &'t str) -> Cow<'t, str> {
        expand_templates(text, |name| self.values.get(name))
    }

    /// Forgets the variables of a flow that is removed.
    pub fn remove_flow(&mut self, flow: Uuid) {
        for name in self.names.remove(&flow).unwrap_or_default() {
            if let Some(flows) = self.flows.get_mut(&name) {
                flows.remove(&flow);
                if flows.is_empty() {
                    self.flows.remove(&name);
                }
            }
        }
    }
}
