//! [`Monitored`]: the rows of the southbound database that this host asks for (conditional
//! monitoring, ovsdb-server(7) section 4.1.12).
//!
//! A deployment has many more rows than a host needs. The tables that are large in a large
//! deployment are read in two steps:
//!
//! 1. All patch ports and gateway ports, which connect datapaths, and the ports that name an
//!    interface or the row of this host.
//! 2. The ports, flows, groups and learned addresses of each datapath that packets of this host can
//!    pass through.
//!
//! All flows that belong to a group of datapaths are read. northd replaces a group when its
//! datapaths change. If no condition named the new group, the server would then remove the group's
//! flows from the replica.
//!
//! The comparisons are equalities where the server permits it, because it finds those in a hash
//! table.

use crate::tables::{
    Dns, Fdb, LogicalFlow, MacBinding, MulticastGroup, PortBinding, StaticMacBinding, Text,
};
use flow::DatapathKey;
use ovsdb::{Clause, Condition, Datum, Function, Table, Uuid};
use std::collections::{BTreeMap, BTreeSet};

/// The rows that this host needs, which determine the conditions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scope {
    /// Every row is wanted.
    pub everything: bool,
    /// The row of this host in the table Chassis.
    pub chassis: Option<Uuid>,
    /// The logical ports of interfaces, of which containers may be children.
    pub interfaces: BTreeSet<Text>,
    /// The `interfaces` whose row is not known to belong to one of the `datapaths`.
    pub unplaced: BTreeSet<Text>,
    /// The datapaths that packets of this host can pass through.
    pub datapaths: BTreeMap<Uuid, DatapathKey>,
}

/// The rows that this host has asked for, and those of them that have arrived.
///
/// The server confirms conditions by their sequence number.
#[derive(Debug)]
pub struct Monitored {
    scope: Scope,
    /// The number at which all rows of a datapath have arrived, for each of the scope.
    datapaths: BTreeMap<Uuid, u64>,
    /// The number at which every row has arrived, if the scope has all of them.
    everything: Option<u64>,
    /// The number of the newest conditions.
    made: u64,
    /// The number up to which the server has confirmed.
    confirmed: u64,
}

impl Monitored {
    /// The state before any conditions are sent. With `everything`, the first update has all rows.
    pub fn new(everything: bool) -> Self {
        Self {
            scope: Scope { everything, ..Scope::default() },
            datapaths: BTreeMap::new(),
            everything: everything.then_some(0),
            made: 0,
            confirmed: 0,
        }
    }

    /// True if all rows of this datapath have arrived.
    pub fn has_all_of(&self, datapath: Uuid) -> bool {
        let of_datapath = self.datapaths.get(&datapath);
        self.everything.iter().chain(of_datapath).any(|number| *number <= self.confirmed)
    }

    /// True if all rows that were asked for have arrived.
    pub fn is_settled(&self) -> bool {
        self.made == self.confirmed
    }

    /// The conditions that differ from those of the last scope.
    pub fn changes(&self, scope: &Scope) -> Vec<(&'static str, Condition)> {
        let (old, new) = (conditions(&self.scope), conditions(scope));
        let changed = old.into_iter().zip(new).filter(|(old, new)| old != new);
        changed.map(|(_, new)| new).collect()
    }

    /// Records that the session was asked for this scope, with the sequence number `made`. Returns
    /// true if the scope no longer has some datapaths.
    pub fn record_request(&mut self, scope: Scope, made: u64) -> bool {
        let listed = scope.datapaths.keys().map(|datapath| {
            // A datapath whose rows have all arrived stays complete while every condition names it.
            let since = if self.has_all_of(*datapath) { self.confirmed } else { made };
            (*datapath, self.datapaths.get(datapath).copied().unwrap_or(since))
        });
        let listed: BTreeMap<Uuid, u64> = listed.collect();
        let loses = self.datapaths.keys().any(|datapath| !listed.contains_key(datapath));
        self.datapaths = listed;
        self.everything = scope.everything.then(|| self.everything.unwrap_or(made));
        self.made = made;
        self.scope = scope;
        loses
    }

    /// Records that the server has refused conditions. It is not known which rows of their
    /// datapaths it sends.
    pub fn record_refusal(&mut self) {
        self.datapaths.retain(|_, number| *number <= self.confirmed);
    }

    /// Records that the server has sent all rows of the conditions up to this number.
    pub fn confirm(&mut self, number: u64) {
        self.confirmed = self.confirmed.max(number);
    }
}

/// The conditions of all tables that have some, in the same order for each scope.
pub fn conditions(scope: &Scope) -> [(&'static str, Condition); 7] {
    let by_row = |column: &'static str| {
        let rows = scope.datapaths.keys();
        rows.map(move |uuid| Clause::new(column, Function::Equals, *uuid))
    };
    let by_key = |column: &'static str| {
        let keys = scope.datapaths.values();
        keys.map(move |key| Clause::new(column, Function::Equals, i64::from(key.0)))
    };
    // A flow of a datapath group has an empty `logical_datapath`. With `logical_dp_group != []`
    // instead, which is not an equality, the server would compare each flow with each clause.
    let in_a_group = Clause::new("logical_datapath", Function::Equals, Datum::empty_set());
    let named = scope.datapaths.keys();
    let named = named.map(|uuid| Clause::new("datapaths", Function::Includes, *uuid));
    let all = [
        (PortBinding::NAME, Condition::any(ports(scope).chain(by_row("datapath")))),
        (LogicalFlow::NAME, Condition::any(by_row("logical_datapath").chain([in_a_group]))),
        (MulticastGroup::NAME, Condition::any(by_row("datapath"))),
        (MacBinding::NAME, Condition::any(by_row("datapath"))),
        (StaticMacBinding::NAME, Condition::any(by_row("datapath"))),
        (Fdb::NAME, Condition::any(by_key("dp_key"))),
        (Dns::NAME, Condition::any(named)),
    ];
    all.map(|(table, some)| (table, if scope.everything { Condition::all() } else { some }))
}

/// The ports that are needed even if their datapath is not.
fn ports(scope: &Scope) -> impl Iterator<Item = Clause> {
    // This includes the gateway ports of other hosts, which are few, because it is an equality.
    let kinds = ["patch", "l3gateway", "chassisredirect"];
    let kinds = kinds.into_iter().map(|kind| Clause::new("type", Function::Equals, kind));
    let bound = scope.chassis.map(|host| Clause::new("chassis", Function::Equals, host));
    let of_interface = |column: &'static str, names: &BTreeSet<Text>| {
        let clause = |name: &Text| Clause::new(column, Function::Equals, &**name);
        names.iter().map(clause).collect::<Vec<_>>()
    };
    kinds
        .chain(bound)
        .chain(of_interface("logical_port", &scope.unplaced))
        .chain(of_interface("parent_port", &scope.interfaces))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u32) -> Uuid {
        let text = format!("00000000-0000-0000-0000-{number:012x}");
        Uuid::from_text(text.as_bytes()).unwrap()
    }

    fn scope(everything: bool, datapaths: &[u32]) -> Scope {
        let datapaths = datapaths.iter().map(|number| (row(*number), DatapathKey(*number)));
        Scope { everything, datapaths: datapaths.collect(), ..Scope::default() }
    }

    fn known(monitored: &Monitored) -> Vec<u32> {
        (1..4).filter(|number| monitored.has_all_of(row(*number))).collect()
    }

    #[test]
    fn datapath_is_complete_from_its_confirmation_until_it_is_not_asked_for() {
        let mut monitored = Monitored::new(false);
        assert!(!monitored.record_request(scope(false, &[1]), 3));
        assert!(known(&monitored).is_empty() && !monitored.is_settled());
        assert!(!monitored.record_request(scope(false, &[1, 2]), 5));
        monitored.confirm(3);
        assert_eq!(known(&monitored), [1]);
        assert!(monitored.record_request(scope(false, &[2]), 6), "1 is not asked for any more");
        assert!(known(&monitored).is_empty());
        monitored.record_request(scope(false, &[1, 2]), 7);
        monitored.confirm(6);
        assert_eq!(known(&monitored), [2], "the rows of 1 may have gone and come");
        monitored.confirm(7);
        assert_eq!(known(&monitored), [1, 2]);
        assert!(monitored.is_settled());
    }

    #[test]
    fn known_datapaths_stay_known_when_everything_is_asked_for_and_not_any_more() {
        let mut monitored = Monitored::new(true);
        assert_eq!(known(&monitored), [1, 2, 3]);
        monitored.record_request(scope(true, &[1]), 0);
        monitored.record_request(scope(false, &[1, 2]), 4);
        assert_eq!(known(&monitored), [1, 2]);
        monitored.confirm(4);
        monitored.record_request(scope(true, &[1, 2]), 9);
        assert_eq!(known(&monitored), [1, 2], "the rest has not arrived");
        monitored.confirm(9);
        assert_eq!(known(&monitored), [1, 2, 3]);
    }

    #[test]
    fn only_tables_with_other_conditions_are_asked_for_again() {
        let mut monitored = Monitored::new(false);
        monitored.record_request(scope(false, &[1]), 1);
        let names = |monitored: &Monitored, scope: &Scope| -> Vec<&str> {
            monitored.changes(scope).into_iter().map(|(table, _)| table).collect()
        };
        assert!(names(&monitored, &scope(false, &[1])).is_empty());
        let more = Scope { unplaced: ["p".into()].into(), ..scope(false, &[1]) };
        assert_eq!(names(&monitored, &more), ["Port_Binding"]);
        assert_eq!(names(&monitored, &scope(false, &[2])).len(), 7);
    }
}
