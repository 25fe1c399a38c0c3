//! [`ProgramDiff`]: which decisions of a program also hold in its successor.
//!
//! # Why a decision that is carried over is right
//!
//! A translation reads flows and some other parts of the program ([`ProgramReads`]). If the new
//! program has the same parts, a packet of the megaflow takes the same path through it, provided
//! that each lookup finds an equal flow. That holds if
//!
//! - the flow that was found still exists, with the same rows, steps and priority,
//! - flows of equal priority are still in the same order, and
//! - no added flow of at least that priority matches any packet of the megaflow.
//!
//! The last point is proved by a bit in which the rows of the added flow differ from the rows of
//! the flow that was found, from the rows of another flow on the path, or from the megaflow's own
//! match. Only bits that no flow on the path writes count. A megaflow without such a proof is
//! translated again.

mod table_diff;
mod written;

use crate::flow::Flow;
use crate::program::{Datapath, Program, TableId};
use crate::reads::{ProgramPart, ProgramReads, TableLookup};
use ::flow::{DatapathKey, Field, FlowMask, Match, PortNo};
use std::collections::HashSet;
use std::sync::Arc;
use table_diff::{Rows, TableDiff, rows_of};

type Map<K, V> = std::collections::HashMap<K, V, ahash::RandomState>;

/// The most rules that a comparison of two programs reads. Tables that it has not read count as
/// changed.
const MAX_RULES: usize = 400_000;
/// The most rows of added flows that may match one megaflow. With more, it is translated again.
const MAX_CONFLICTS: usize = 32;

/// A decision of the old program that also holds in the new one.
#[derive(Clone, Debug)]
pub struct Carried {
    /// The matching flows of the new program, in order.
    pub flows: Vec<Arc<Flow>>,
    /// Rows of added flows that might match packets of the megaflow. The decision holds for a
    /// megaflow whose match excludes all of them ([`Match::excludes`]).
    pub conflicts: Arc<[Match]>,
}

/// Compares two programs lazily: only the parts that the queried decisions depend on.
#[derive(Debug)]
pub struct ProgramDiff<'a> {
    old: &'a Program,
    new: &'a Program,
    parts: Map<ProgramPart, bool>,
    tables: Map<(DatapathKey, TableId), TableDiff>,
    /// The rows of the old program's flows, for the tables for which they were requested.
    rows: Map<(DatapathKey, TableId), Rows>,
    /// How many more rules may be read.
    left: usize,
}

impl<'a> ProgramDiff<'a> {
    /// Compares a program with its successor.
    pub fn new(old: &'a Program, new: &'a Program) -> Self {
        Self {
            old,
            new,
            parts: Map::default(),
            tables: Map::default(),
            rows: Map::default(),
            left: MAX_RULES,
        }
    }

    /// The ports whose role differs between the programs.
    pub fn changed_ports(&self) -> HashSet<PortNo> {
        let ports = self.old.port_roles().chain(self.new.port_roles()).map(|(port, _)| port);
        ports.filter(|&port| self.old.port_role(port) != self.new.port_role(port)).collect()
    }

    /// Carries a decision of the old program over to the new one, for packets from ports that are
    /// not among [`ProgramDiff::changed_ports`]. `None` if the new program may decide otherwise.
    pub fn carry(&mut self, flows: &[Arc<Flow>], reads: &ProgramReads) -> Option<Carried> {
        if !reads.parts.iter().all(|part| self.is_same(*part)) {
            return None;
        }
        let mut carried = Vec::with_capacity(flows.len());
        let mut conflicts: Vec<Match> = Vec::new();
        let mut found = flows.iter();
        for lookup in &reads.lookups {
            let flow = if lookup.is_hit { Some(found.next()?) } else { None };
            match self.table((lookup.datapath, lookup.table)) {
                TableDiff::Same => carried.extend(flow.cloned()),
                TableDiff::Incomparable => return None,
                TableDiff::Changed(table) => {
                    if let Some(flow) = flow {
                        carried.push(Arc::clone(table.successor(flow)?));
                    }
                    conflicts.extend(table.conflicts(flow).cloned());
                }
            }
            if conflicts.len() > MAX_CONFLICTS {
                return None;
            }
        }
        if found.next().is_some() {
            return None;
        }
        if !conflicts.is_empty() {
            conflicts = self.exclude_by_path(conflicts, flows, &reads.lookups)?;
        }
        Some(Carried { flows: carried, conflicts: conflicts.into() })
    }

    /// Removes the conflicts that another flow on the path excludes, and reduces the others to bits
    /// that came with the packet. `None` if that leaves one of them without bits.
    fn exclude_by_path(
        &mut self,
        conflicts: Vec<Match>,
        flows: &[Arc<Flow>],
        lookups: &[TableLookup],
    ) -> Option<Vec<Match>> {
        let mut of_packet = written::packet_bits();
        let written = written::bits_written_by(flows)?;
        remove(&mut of_packet, &written);
        let mut on_path = of_packet.clone();
        if has_one_ingress(lookups) {
            on_path.add(Field::Reg14);
            remove(&mut on_path, &written);
        }
        let on_path: Vec<Match> = conflicts.iter().map(|it| restricted(it, &on_path)).collect();
        let mut is_excluded = vec![false; conflicts.len()];
        let hits = lookups.iter().filter(|lookup| lookup.is_hit).zip(flows);
        for (lookup, flow) in hits {
            let rows = self.rows((lookup.datapath, lookup.table), flow)?;
            for (conflict, is_excluded) in on_path.iter().zip(&mut is_excluded) {
                *is_excluded |= rows.iter().all(|row| row.excludes(conflict));
            }
        }
        let left = conflicts.iter().zip(is_excluded).filter(|(_, is_excluded)| !is_excluded);
        left.map(|(conflict, _)| {
            let conflict = restricted(conflict, &of_packet);
            (conflict != Match::any()).then_some(conflict)
        })
        .collect()
    }

    /// The rows of a matching flow in a table of the old program.
    fn rows(&mut self, at: (DatapathKey, TableId), flow: &Arc<Flow>) -> Option<&[Match]> {
        let (old, left) = (self.old, &mut self.left);
        let rows = self.rows.entry(at).or_insert_with(|| rows_of(old, at, left));
        rows.get(&Arc::as_ptr(flow).addr()).map(Vec::as_slice)
    }

    fn table(&mut self, at: (DatapathKey, TableId)) -> &TableDiff {
        let (old, new, left) = (self.old, self.new, &mut self.left);
        self.tables.entry(at).or_insert_with(|| TableDiff::between(old, new, at, left))
    }

    fn is_same(&mut self, part: ProgramPart) -> bool {
        let (old, new) = (self.old, self.new);
        *self.parts.entry(part).or_insert_with(|| is_same(old, new, part))
    }
}

/// True if packets enter an ingress pipeline once at most, so that `inport` is the same in all
/// lookups unless a flow writes it.
fn has_one_ingress(lookups: &[TableLookup]) -> bool {
    let mut first = lookups.iter().filter(|lookup| lookup.table == TableId::FIRST);
    let datapath = lookups.first().map(|lookup| lookup.datapath);
    first.by_ref().take(2).count() <= 1
        && lookups.iter().all(|lookup| Some(lookup.datapath) == datapath)
}

fn remove(from: &mut FlowMask, bits: &FlowMask) {
    from.words_mut().iter_mut().zip(bits.words()).for_each(|(from, bits)| *from &= !bits);
}

/// The part of a condition that concerns these bits.
fn restricted(condition: &Match, bits: &FlowMask) -> Match {
    let mut mask = condition.mask().clone();
    mask.words_mut().iter_mut().zip(bits.words()).for_each(|(mask, bits)| *mask &= bits);
    Match::new(condition.key(), mask)
}

fn is_same(old: &Program, new: &Program, part: ProgramPart) -> bool {
    match part {
        ProgramPart::Tunnel(tunnel, key) => {
            old.datapath_of_tunnel(tunnel, key) == new.datapath_of_tunnel(tunnel, key)
        }
        ProgramPart::Datapath(key) => {
            let zones = [old, new].map(|it| (it.zones().is_empty(), it.zones().of_datapath(key)));
            zones[0] == zones[1]
                && both(old, new, key)
                    .is_some_and(|(old, new)| std::ptr::eq(old, new) || is_same_datapath(old, new))
        }
        ProgramPart::Port(key, port) => {
            old.zones().of_port(key, port) == new.zones().of_port(key, port)
                && both(old, new, key).is_some_and(|(old, new)| {
                    old.ports.get(&port) == new.ports.get(&port)
                        && old.multicast.get(&port) == new.multicast.get(&port)
                })
        }
        ProgramPart::AllPorts(key) => both(old, new, key).is_some_and(|(old, new)| {
            old.ports == new.ports && old.multicast == new.multicast && old.vlans == new.vlans
        }),
        ProgramPart::Zones => Arc::ptr_eq(old.zones(), new.zones()) || old.zones() == new.zones(),
        // Few translations depend on affinity rules, and comparing them would require all flows.
        ProgramPart::AffinityRules => false,
    }
}

fn both<'p>(
    old: &'p Program,
    new: &'p Program,
    key: DatapathKey,
) -> Option<(&'p Datapath, &'p Datapath)> {
    old.datapath(key).zip(new.datapath(key))
}

/// True if the datapaths differ at most in flows, logical ports and multicast groups.
fn is_same_datapath(old: &Datapath, new: &Datapath) -> bool {
    let Datapath {
        name: _,
        kind,
        tunnel_key,
        underlay_group,
        tunnel_inport,
        groups: _,
        ports: _,
        vlans: _,
        localports,
        multicast: _,
        dns,
        bridge_ports,
        bridge_zones,
    } = old;
    *kind == new.kind
        && *tunnel_key == new.tunnel_key
        && *underlay_group == new.underlay_group
        && *tunnel_inport == new.tunnel_inport
        && *localports == new.localports
        && *dns == new.dns
        && *bridge_ports == new.bridge_ports
        && *bridge_zones == new.bridge_zones
}
