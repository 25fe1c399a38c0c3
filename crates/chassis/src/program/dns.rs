//! The DNS names for which logical switches answer queries.

use super::{Changes, ProgramBuilder};
use crate::tables::Dns;
use ovsdb::{Replica, Uuid};
use services::Service;
use services::dns::{Records, Resolver};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A row of the table DNS.
#[derive(Debug)]
pub(super) struct NameSet {
    datapaths: BTreeSet<Uuid>,
    records: Arc<Records>,
}

impl ProgramBuilder {
    /// Sets the names of the datapaths whose rows have changed, and of those in `added`.
    pub(super) fn apply_dns(
        &mut self,
        replica: &Replica,
        changes: &Changes<'_>,
        added: &BTreeSet<Uuid>,
    ) {
        let mut affected = added.clone();
        for uuid in changes.uuids::<Dns>() {
            let old = self.name_sets.remove(&uuid);
            affected.extend(old.into_iter().flat_map(|old| old.datapaths));
            if let Some(row) = replica.get::<Dns>(uuid) {
                affected.extend(&row.datapaths);
                let set = self.name_set(uuid, row);
                self.name_sets.insert(uuid, set);
            }
        }
        for uuid in affected {
            let Some(&key) = self.datapaths.get(&uuid) else { continue };
            let sets = self.name_sets.values().filter(|set| set.datapaths.contains(&uuid));
            let sets: Box<[Arc<Records>]> = sets.map(|set| Arc::clone(&set.records)).collect();
            let service = (!sets.is_empty()).then(|| Arc::new(Service::Dns(Resolver(sets))));
            self.loader.set_dns(key, service);
        }
    }

    fn name_set(&mut self, uuid: Uuid, row: Dns) -> NameSet {
        let is_owner = row.options.get("ovn-owned");
        let is_owner = is_owner.is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let mut records = Records::new(is_owner);
        for (name, value) in &row.records {
            if !records.add(name, value) {
                let problem = format!("`{value}` is neither IP addresses nor a domain name");
                let effect = "only the addresses before the invalid part are served";
                self.warnings.push(format!("DNS record {name} of {uuid}: {problem}: {effect}"));
            }
        }
        NameSet { datapaths: row.datapaths, records: Arc::new(records) }
    }
}
